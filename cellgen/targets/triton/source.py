"""Put the Triton module of a cell together.

Input: a planned cell. Output: the text of ``<cell>_triton.py``, or the reason why there is none.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.language.cell import Definition
from cellgen.program.chunks import lines_of
from cellgen.program.chunks.programs import NO_FORM, chunk_programs
from cellgen.targets.head import Head, in_ascii, safe
from cellgen.targets.target import Files, NotYet, PlannedCell
from cellgen.targets.templates import fill
from cellgen.targets.triton.expressions import functions_of
from cellgen.targets.triton.memory import NoContext, memory_head
from cellgen.targets.triton.passes import Ordering, Passes, RowLaunch
from cellgen.targets.triton.plan import ANEW, LEFT_OUT, WIDE, laid_out, literal
from cellgen.targets.triton.rows import RowWork

SUFFIX = "_triton.py"


@dataclass(frozen=True)
class ModuleContext:
    """Of ``module.py.j2``."""

    head: Head
    layers: list[str]
    functions: list[str]
    kernels: list[str]
    plan: str
    anew: int = ANEW
    left_out: int = LEFT_OUT


@dataclass(frozen=True)
class TritonTarget:
    """Forms over time in Triton: scans and memories for all steps in a few launches."""

    name: str = "triton"
    suffixes: tuple[str, ...] = (SUFFIX,)

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell ``<cell>_triton.py``, or say why the cell runs step by step alone."""
        try:
            return {SUFFIX: _text(cell)}
        except DerivationError as error:
            return _not_yet(error)

    def explain(self, cell: PlannedCell) -> list[str]:
        """The launches of both passes."""
        passes = passes_of(cell.definition)
        if isinstance(passes, NotYet):
            return [f"not rendered for Triton: {passes.reason}"]
        return [
            f"{name}: {', '.join(_described(one) for one in operations)}"
            for name, operations in (("forward", passes.forward), ("backward", passes.backward))
        ]

    def plans(self, cell: PlannedCell) -> list[str]:
        """Both passes, an operation a line."""
        return self.explain(cell)


def passes_of(definition: Definition) -> Passes | NotYet:
    """What a cell's module does over a whole sequence, or why there is none."""
    try:
        return _ordering(definition).passes()
    except DerivationError as error:
        return _not_yet(error)


def _described(operation: object) -> str:
    described = literal(operation)
    assert isinstance(described, dict)
    return str(described.get("kernel") or f"{described['op']} {described.get('into', '')}".strip())


def _not_yet(error: DerivationError) -> NotYet:
    """The reason in an error of this target; any other is raised again."""
    if error.code != NO_FORM and not str(error.code).startswith("triton."):
        raise error
    return NotYet(str(error.args[0]))


def _ordering(definition: Definition) -> Ordering:
    return Ordering(RowWork(chunk_programs(definition)))


def _text(cell: PlannedCell) -> str:
    """The text of the module.

    Raises:
        DerivationError: no form over time; or, with a code of ``triton.``, what is not spelled.
    """
    programs = chunk_programs(cell.definition)
    ordering = _ordering(cell.definition)
    passes = ordering.passes()
    memories = ordering.memories.values()
    kernels = [kernel.text for kernel in ordering.kernels.values()]
    if any(one.once for one in (*passes.forward, *passes.backward) if isinstance(one, RowLaunch)):
        kernels.insert(0, fill("triton/once_head.py.j2", NoContext()).strip())
    if memories:
        head = memory_head(any(memory.by_key for memory in memories))
        kernels += [text.strip() for text in (head, *(memory.text for memory in memories))]
    expressions = [e for kernel in ordering.kernels.values() for e in kernel.expressions]
    layers = [
        wrapped
        for line in lines_of(programs.form)
        for wrapped in textwrap.wrap(in_ascii(safe(line)), WIDE - 4, subsequent_indent="   ")
    ]
    plan = laid_out(literal(passes))
    context = ModuleContext(cell.head, layers, functions_of(expressions), kernels, plan)
    return fill("triton/module.py.j2", context).rstrip() + "\n"

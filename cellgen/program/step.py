"""The functions of a cell: which programs a definition gives, and what each takes and returns.

Input: a ``Definition``. Output: ``CellPrograms``: ``forward``; ``backward`` (the gradients that the
step must return); ``weight_gradients`` (what can wait); and ``input_gradients`` where the author's
``gradients`` leave out an input or a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cellgen.language.cell import Definition
from cellgen.language.value import Role, Value
from cellgen.program.differentiate import differentiate, moving_values, parameters
from cellgen.program.simplify import LOWER, simplify
from cellgen.program.ssa import Program, digest
from cellgen.runtime.notebook import ShownInNotebooks


@dataclass(frozen=True)
class CellPrograms(ShownInNotebooks):
    """A cell's programs.

    ``mathematics`` is the simplified forward program and its whole adjoint; ``functions`` are the
    lowered programs that get scheduled; ``accepted`` lists, for each function, every name that a
    call may give (those it reads first).
    """

    definition: Definition
    mathematics: tuple[Program, ...]
    functions: tuple[Program, ...]
    accepted: Mapping[str, tuple[Value, ...]]
    adjoints: Mapping[Value, Value]

    @property
    def digest(self) -> str:
        """Digest of the functions' mathematics."""
        return digest(self.functions)

    @property
    def sources(self) -> Mapping[Value, Value]:
        """What each gradient, given or returned, is of; of values that share one, its namesake."""
        sources: dict[Value, Value] = {}
        for value, gradient in self.adjoints.items():
            if gradient not in sources or str(gradient.name) == f"d_{value.name}":
                sources[gradient] = value
        upstream = self.mathematics[1].optional
        return sources | dict(zip(upstream, self.definition.outputs, strict=True))

    def __getitem__(self, function: str) -> Program:
        return next(program for program in self.functions if program.function == function)


def derive_functions(definition: Definition) -> CellPrograms:
    """Derive every function of a cell.

    Raises:
        DerivationError: an equation that cannot be differentiated.
    """
    step = differentiate(definition)
    forward, full, adjoints = step.plain, step.mathematics, step.adjoints
    moving, learned = moving_values(definition, forward), parameters(definition, forward)
    chosen = definition.gradients
    if chosen is None:
        chosen = (*moving, *_pre_activations(full, adjoints, moving, learned))
    split = _split(step.full, adjoints, definition.outputs, chosen, moving, learned)
    functions = tuple(simplify(program, LOWER) for program in (step.forward, *split))
    offered = (*forward.arguments, *definition.outputs, *full.optional)
    upstream = step.of((*chosen, *moving))
    return CellPrograms(
        definition,
        (forward, full),
        functions,
        {
            p.function: _accepted(p, forward.arguments if p is functions[0] else offered, upstream)
            for p in functions
        },
        adjoints,
    )


def _pre_activations(
    full: Program,
    adjoints: Mapping[Value, Value],
    moving: Iterable[Value],
    parameters: Iterable[Value],
) -> list[Value]:
    """Named values whose adjoints the weight gradients read and the step forms anyway."""
    step = full.restrict("step", [adjoints[v] for v in moving], ())
    deferred = full.restrict("deferred", [adjoints[v] for v in parameters], step.values)
    formed = {s.target for s in step.statements} - {adjoints[v] for v in moving}
    read = [a for a in deferred.arguments if a in formed and a.role is Role.ADJOINT]
    names: dict[Value, Value] = {}
    for value, value_adjoint in adjoints.items():
        best = names.get(value_adjoint)
        if best is None or _author_rank(value) < _author_rank(best):
            names[value_adjoint] = value
    return sorted((names[a] for a in read if a in names), key=lambda v: (v.order, str(v)))


def _author_rank(value: Value) -> tuple[bool, int, str]:
    """Prefer a name that the author gave."""
    return (value.role is Role.TEMPORARY, value.order, str(value))


def _split(
    full: Program,
    adjoints: Mapping[Value, Value],
    outputs: tuple[Value, ...],
    chosen: tuple[Value, ...],
    moving: Iterable[Value],
    parameters: Iterable[Value],
) -> list[Program]:
    """Cut the adjoint into backward, input_gradients and weight_gradients."""
    returned = [adjoints[value] for value in chosen]
    programs = [full.restrict("backward", returned, outputs)]
    available = (*outputs, *returned)
    for function, values in (("input_gradients", moving), ("weight_gradients", parameters)):
        rest = [adjoints[value] for value in values if value not in chosen]
        if rest:
            programs.append(full.restrict(function, rest, available))
    return programs


def _accepted(
    program: Program, offered: Iterable[Value], upstream: Iterable[Value]
) -> tuple[Value, ...]:
    """Names a call may give: what the program reads, then what it could have read."""
    extra = upstream if program.function not in ("forward", "backward") else ()
    names = {str(value.name) for value in program.results}
    candidates = [v for v in (*offered, *extra) if str(v.name) not in names]
    return tuple(dict.fromkeys((*program.arguments, *candidates)))

"""Render schedules through the templates of a target.

Input: ``Schedule``, ``SequenceSchedule``, ``Definition``. Output: ``Source``, strings only. Python
prepares every value here; the templates place them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.language.cell import Definition
from cellgen.runtime.abi import (
    PRECISIONS,
    Interface,
    c_parameters,
    plan_parameters,
    size_parameters,
    struct_lines,
)
from cellgen.schedule import Schedule
from cellgen.schedule.lower import lower
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.c.sequence import SequenceContext, sequence_function
from cellgen.targets.c.step import FunctionContext, step_function
from cellgen.targets.cuda import cuda_source
from cellgen.targets.head import Head
from cellgen.targets.interface import interface_literal, make_interface, sequence_signatures
from cellgen.targets.spelling import in_c, signature_in_c
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class Source:
    """The generated files of a cell and the interface they implement."""

    name: str
    interface: Interface
    header: str
    body: str
    init: str
    cuda: str
    """Text of the ``.cu``; empty for a cell that is not rendered for CUDA yet."""
    not_on_cuda: str = ""

    @property
    def files(self) -> dict[str, str]:
        """Contents by file name, as they stand in ``generated/<cell>/``."""
        files = {
            f"{self.name}.h": self.header,
            f"{self.name}.c": self.body,
            f"{self.name}.cu": self.cuda,
            "__init__.py": self.init,
        }
        return {name: text for name, text in files.items() if text}


def render(schedule: Schedule, sequence: SequenceSchedule | None, definition: Definition) -> Source:
    """Render the sources and the interface of a cell; without ``sequence``, of its step only."""
    over_time = sequence_signatures(sequence) if sequence else ()
    interface = make_interface(schedule, over_time, definition)
    signatures = {function.name: signature_in_c(function) for function in interface.functions}
    head = Head.of(definition, interface.digest)
    in_time = tuple(map(signature_in_c, over_time))
    schedule, sequence = in_c(schedule, sequence)
    steps = [step_function(f, signatures[f.name], interface) for f in schedule.functions]
    plans = lower(sequence, in_time) if sequence else ()
    sequences = [sequence_function(*item) for item in zip(plans, in_time, strict=True)]
    body = BodyContext(head, steps, sequences)
    exports = [function.name for function in interface.functions]
    cuda, why_not = _cuda(schedule, sequence, interface, head)
    return Source(
        definition.name,
        interface,
        header=fill("c/cell.h.j2", HeaderContext(head, _structs(interface), interface.has_team)),
        body=fill("c/cell.c.j2", body),
        init=fill("c/init.py.j2", InitContext(head, interface_literal(interface), exports)),
        cuda=cuda,
        not_on_cuda=why_not,
    )


def _cuda(
    schedule: Schedule, sequence: SequenceSchedule | None, interface: Interface, head: Head
) -> tuple[str, str]:
    """The text of the ``.cu``, or why there is none."""
    try:
        return cuda_source(schedule, sequence, interface, head), ""
    except DerivationError as error:
        if not str(error.code).startswith("cuda."):
            raise
        return "", str(error)


@dataclass(frozen=True)
class StructContext:
    """One argument struct and its prototypes, in one precision."""

    members: list[tuple[str, str]]
    struct: str
    call: str
    workspace_size: str
    plan: str
    packed_size: str
    pack: str
    parameters: str
    size_parameters: str
    text: str


@dataclass(frozen=True)
class HeaderContext:
    """Of ``cell.h.j2``."""

    head: Head
    structs: list[StructContext]
    has_team: bool


@dataclass(frozen=True)
class BodyContext:
    """Of ``cell.c.j2``."""

    head: Head
    functions: list[FunctionContext]
    sequences: list[SequenceContext]


@dataclass(frozen=True)
class InitContext:
    """Of ``init.py.j2``."""

    head: Head
    functions: str
    exports: list[str]


def _structs(interface: Interface) -> list[StructContext]:
    structs = []
    for suffix, c_type in PRECISIONS:
        for function in interface.functions:
            names = interface.symbols(function, suffix)
            structs.append(
                StructContext(
                    members=list(struct_lines(function, c_type)),
                    struct=names.struct,
                    call=names.call,
                    workspace_size=names.workspace_size if function.workspace else "",
                    plan=f"{names.plan}({plan_parameters(function)})" if function.team else "",
                    packed_size=names.packed_size if function.team else "",
                    pack=names.pack if function.team else "",
                    parameters=c_parameters(function),
                    size_parameters=size_parameters(function),
                    text=function.text,
                )
            )
    return structs

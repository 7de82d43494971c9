"""Put the CUDA source of a cell together.

Input: the schedules and the interface that C has too. Output: the text of ``<cell>.cu``, or an
error that says what of the cell is not rendered for CUDA yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import Interface
from cellgen.runtime.device.cuda_abi import cuda_struct_lines
from cellgen.schedule import Schedule
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.targets.cuda.sequence import sequence_functions, tier_choices
from cellgen.targets.cuda.step import FunctionContext, step_function
from cellgen.targets.cuda.tiers import explanation
from cellgen.targets.head import Head
from cellgen.targets.spelling import signature_in_c
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class CudaContext:
    """Of ``cell.cu.j2``; ``members`` are (declaration, comment) of each argument struct."""

    head: Head
    functions: list[FunctionContext]
    members: dict[str, list[tuple[str, str]]]


def explain(sequence: SequenceSchedule, signatures: tuple[Signature, ...]) -> list[str]:
    """Lines that say how the functions over time run on a device, and why.

    Raises:
        DerivationError: with a code that starts with ``cuda.``, for what is not rendered yet.
    """
    return explanation(tier_choices(sequence, signatures))


def cuda_source(
    schedule: Schedule, sequence: SequenceSchedule | None, interface: Interface, head: Head
) -> str:
    """Render ``<cell>.cu`` from schedules with the names of C.

    Raises:
        DerivationError: with a code that starts with ``cuda.``, for what is not rendered yet.
    """
    signatures = {function.name: signature_in_c(function) for function in interface.functions}
    functions = [step_function(f, signatures[f.name], head.name) for f in schedule.functions]
    if sequence is not None:
        over_time = [signatures[f.name] for f in interface.functions if f.team]
        functions += sequence_functions(sequence, tuple(over_time))
    members = {f.name: list(cuda_struct_lines(f)) for f in interface.functions}
    return fill("cuda/cell.cu.j2", CudaContext(head, functions, members))

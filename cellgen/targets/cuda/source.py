"""Put the CUDA source of a cell together.

Input: the schedules and the interface that C has too. Output: the text of ``<cell>.cu``, or an
reason why the cell is not rendered for CUDA yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.runtime.device.cuda_abi import cuda_struct_lines
from cellgen.targets.cuda.sequence import device_plans, sequence_functions
from cellgen.targets.cuda.step import HostFunctionContext, step_function
from cellgen.targets.cuda.tiers import explanation
from cellgen.targets.head import Head
from cellgen.targets.target import Files, NotYet, PlannedCell
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class CudaContext:
    """Of ``cell.cu.j2``; ``members`` are (declaration, comment) of each argument struct."""

    head: Head
    functions: list[HostFunctionContext]
    members: dict[str, list[tuple[str, str]]]


@dataclass(frozen=True)
class CudaTarget:
    """The CUDA of the same schedules."""

    name: str = "cuda"
    suffixes: tuple[str, ...] = (".cu",)

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell ``<cell>.cu``, or say what of the cell is not rendered for CUDA yet."""
        try:
            return {".cu": _text(cell)}
        except DerivationError as error:
            return _not_yet(error)

    def explain(self, cell: PlannedCell) -> list[str]:
        """Lines that say how the functions over time run on a device, and why."""
        if cell.sequence is None:
            return ["its step alone is rendered: the time loop is not planned"]
        try:
            plans = device_plans(cell.sequence, cell.over_time)
            return explanation({plan.function: plan.tier for plan in plans})
        except DerivationError as error:
            return [f"not rendered for CUDA: {_not_yet(error).reason}"]

    def plans(self, cell: PlannedCell) -> list[str]:
        """What its functions over time do on a device beside the steps, as text."""
        if cell.sequence is None:
            return []
        try:
            return [str(plan) for plan in device_plans(cell.sequence, cell.over_time)]
        except DerivationError as error:
            return [f"not rendered for CUDA: {_not_yet(error).reason}"]


def _not_yet(error: DerivationError) -> NotYet:
    """The reason in an error of this target; any other is raised again."""
    if not str(error.code).startswith("cuda."):
        raise error
    return NotYet(str(error))


def _text(cell: PlannedCell) -> str:
    """The text of the ``.cu``.

    Raises:
        DerivationError: with a code that starts with ``cuda.``, for what is not rendered yet.
    """
    spelled, name = cell.in_c, cell.head.name
    steps = spelled.schedule.functions
    functions = [step_function(f, spelled.signatures[f.name], name) for f in steps]
    if spelled.sequence is not None:
        functions += sequence_functions(spelled.sequence, spelled.over_time)
    members = {f.name: list(cuda_struct_lines(f)) for f in cell.interface.functions}
    return fill("cuda/cell.cu.j2", CudaContext(cell.head, functions, members))

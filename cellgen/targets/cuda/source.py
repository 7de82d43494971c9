"""Put the CUDA source of a cell together.

Input: the schedules and the interface that C has too. Output: the text of ``<cell>.cu``, or the
reason why the cell is not rendered for CUDA yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.runtime.device.cuda_abi import CUDA_STORES, cuda_struct_lines
from cellgen.schedule.device.lower import lower_for_device, lower_step_for_device
from cellgen.targets.cuda.dialect import CUDA, DeviceDialect
from cellgen.targets.cuda.persist import staying_explained
from cellgen.targets.cuda.sequence import sequence_function
from cellgen.targets.cuda.step import HostFunctionContext, step_function
from cellgen.targets.cuda.tiers import explanation
from cellgen.targets.head import Head
from cellgen.targets.target import Files, NotYet, PlannedCell
from cellgen.targets.templates import fill


@dataclass(frozen=True)
class CudaContext:
    """Of ``cell.cu.j2``; ``members`` are (declaration, comment) of each argument struct.

    ``stores`` are the suffixes of element types; ``stays`` has a bit for each function, in their
    order, that has kernels whose blocks stay on the device.
    """

    head: Head
    words: DeviceDialect
    functions: list[HostFunctionContext]
    members: dict[str, list[tuple[str, str]]]
    stores: tuple[str, ...]
    stays: int


@dataclass(frozen=True)
class CudaTarget:
    """The language of a device, in the words of a dialect."""

    words: DeviceDialect = CUDA

    @property
    def name(self) -> str:
        """What ``load`` and ``--target`` call it."""
        return self.words.name

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the file that it writes."""
        return (self.words.suffix,)

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell ``<cell>.cu``, or say what of the cell is not rendered for CUDA yet."""
        try:
            return {self.words.suffix: self._text(cell)}
        except DerivationError as error:
            return _not_yet(error)

    def explain(self, cell: PlannedCell) -> list[str]:
        """Lines that say how the functions over time run on a device, and why."""
        if cell.sequence is None:
            return ["its step alone is rendered: the time loop is not planned"]
        try:
            plans = lower_for_device(cell.sequence, cell.over_time)
            return [*explanation(plans), *staying_explained(plans)]
        except DerivationError as error:
            return [f"not rendered for CUDA: {_not_yet(error).reason}"]

    def plans(self, cell: PlannedCell) -> list[str]:
        """What its functions over time do on a device, as text."""
        if cell.sequence is None:
            return []
        try:
            return [str(plan) for plan in lower_for_device(cell.sequence, cell.over_time)]
        except DerivationError as error:
            return [f"not rendered for CUDA: {_not_yet(error).reason}"]

    def _text(self, cell: PlannedCell) -> str:
        """The text of the file.

        Raises:
            DerivationError: with a code that starts with ``cuda.``, for what is not rendered yet.
        """
        spelled, name = cell.in_c, cell.head.name
        functions = [
            step_function(lower_step_for_device(f, name), spelled.signatures[f.name], self.words)
            for f in spelled.schedule.functions
        ]
        if spelled.sequence is not None:
            plans = lower_for_device(spelled.sequence, spelled.over_time)
            functions += [
                sequence_function(plan, signature, self.words)
                for plan, signature in zip(plans, spelled.over_time, strict=True)
            ]
        members = {f.name: list(cuda_struct_lines(f)) for f in cell.interface.functions}
        stores = tuple(store.suffix for store in CUDA_STORES)
        stays = sum((f.persistent is not None) << number for number, f in enumerate(functions))
        context = CudaContext(cell.head, self.words, functions, members, stores, stays)
        return fill("cuda/cell.cu.j2", context)


def _not_yet(error: DerivationError) -> NotYet:
    """The reason in an error of this target; any other is raised again."""
    if not str(error.code).startswith("cuda."):
        raise error
    return NotYet(str(error))

"""Run a kernel on tensors: addresses of their memory, no copy, nothing of NumPy.

Input: tensors that passed the check of a ``Layout``. Output: new tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cellgen.frameworks.layout import row_axis
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.raw import RawFunction
from cellgen.runtime.kernel import Kernel
from cellgen.torch.layout import Layout, has_dense_units

NUMPY_NAMES = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True)
class Steps:
    """Which steps of a call count, and how it runs; as in ``cellgen.runtime.call.over_time``.

    ``per_row``: gradients that are sums over rows are formed row by row, (B, ...).
    """

    lengths: Tensor | None = None
    mask: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False
    zero_output_for_mask: bool = False
    window: int = 0
    flush_denormals: bool = False
    per_row: bool = False

    @property
    def is_usual(self) -> bool:
        """Whether every step counts, from the first on."""
        return (
            self.lengths is None
            and self.mask is None
            and self.reset is None
            and not (self.reverse or self.window or self.flush_denormals or self.per_row)
        )


class Runner(ABC):
    """The two functions over time of a cell, called on tensors; how is its kernel's matter."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def may_leave_out(self, item: Argument) -> bool:
        """Whether the kernel can leave out a gradient that nobody wants."""

    @abstractmethod
    def call(
        self,
        name: str,
        like: Tensor,
        sizes: dict[str, int],
        arrays: dict[str, Tensor | float],
        scalars: Sequence[float],
        steps: Steps,
    ) -> None:
        """Run a function on arrays by name, of the device and element type of ``like``."""

    def forward(
        self, theta: Sequence[Tensor], scalars: Sequence[float], steps: Steps, save: bool
    ) -> list[Tensor]:
        """Compute all steps; return the outputs, then what was saved, if it was."""
        layout = self.layout
        sizes = layout.sizes(theta)
        arrays = self._given(layout.theta, theta)
        formed = (*layout.outputs, *layout.saved) if save else layout.outputs
        results = [theta[0].new_empty(layout.shape(item.name, sizes)) for item in formed]
        arrays |= {item.name: result for item, result in zip(formed, results, strict=True)}
        self.call("sequence_forward", theta[0], sizes, arrays, scalars, steps)
        return results

    def backward(
        self,
        theta: Sequence[Tensor],
        scalars: Sequence[float],
        kept: Sequence[Tensor],
        upstream: Sequence[Tensor | None],
        steps: Steps,
        wanted: int = -1,
    ) -> list[Tensor]:
        """Compute gradients of what learns from what ``forward`` gave with ``save``.

        Bit k of ``wanted`` says whether the k-th is formed and returned.
        """
        layout = self.layout
        sizes = layout.sizes(theta)
        arrays = self._given(layout.theta, theta)
        arrays |= self._given((*layout.outputs, *layout.saved), kept)
        arrays |= self._given(layout.upstream, upstream)
        results = []
        for place, item in enumerate(layout.gradients):
            is_wanted = wanted >> place & 1
            if is_wanted or not self.may_leave_out(item):
                shape = layout.shape(item.name, sizes)
                is_sum = steps.per_row and row_axis(item) is None
                made = theta[0].new_empty((sizes["B"], *shape) if is_sum else shape)
                arrays[item.name] = made
                results += [made] if is_wanted else []
        self.call("sequence_backward", theta[0], sizes, arrays, scalars, steps)
        return results

    @staticmethod
    def _given(
        items: Sequence[Argument], tensors: Sequence[Tensor | None]
    ) -> dict[str, Tensor | float]:
        """Name the tensors of a call, in memory that a kernel can read."""
        given: dict[str, Tensor | float] = {}
        for item, tensor in zip(items, tensors, strict=True):
            if tensor is None:
                continue
            if item.is_scalar:
                given[item.name] = float(tensor)
            elif item.over_time and has_dense_units(tensor):
                given[item.name] = tensor
            else:
                given[item.name] = tensor.contiguous()
        return given


class HostRunner(Runner):
    """The two functions over time of one kernel in C, called on tensors of the CPU."""

    def __init__(self, kernel: Kernel, layout: Layout) -> None:
        super().__init__(layout)
        self.kernel = kernel
        self._raw: dict[tuple[str, torch.dtype], RawFunction] = {}

    def raw(self, name: str, dtype: torch.dtype) -> RawFunction:
        """The function of a precision, by its name in the interface."""
        found = self._raw.get((name, dtype))
        if found is None:
            found = RawFunction(self.kernel, name, NUMPY_NAMES[dtype])
            self._raw[name, dtype] = found
        return found

    def may_leave_out(self, item: Argument) -> bool:
        """Whether the interface says so."""
        return item.optional

    def call(
        self,
        name: str,
        like: Tensor,
        sizes: dict[str, int],
        arrays: dict[str, Tensor | float],
        scalars: Sequence[float],
        steps: Steps,
    ) -> None:
        """Run a function by the addresses of its arrays."""
        raw = self.raw(name, like.dtype)
        layout = self.layout
        arrays |= {item.name: value for item, value in zip(layout.scalars, scalars, strict=True)}
        words: list[int | float] = []
        apart = False
        for item in raw.members:
            value = arrays.get(item.name, 0)
            if isinstance(value, Tensor):
                apart = apart or not value.is_contiguous()
                value = value.data_ptr()
            words.append(value)
        strides = self._strides(raw, sizes, arrays, steps) if apart else None
        options, tables = None, _tables(steps, strides)
        if tables or not steps.is_usual:
            options = _options(raw, steps, tables)
        dims = [sizes[dim] for dim in raw.function.dims]
        raw(dims, words, options, torch.get_num_threads())

    def _strides(
        self,
        raw: RawFunction,
        sizes: dict[str, int],
        arrays: dict[str, Tensor | float],
        steps: Steps,
    ) -> Tensor:
        """Elements from step to step and from row to row of every array over time."""
        numbers: list[int] = []
        for item in raw.members:
            if not item.over_time:
                continue
            tensor = arrays.get(item.name)
            if isinstance(tensor, Tensor) and not tensor.is_contiguous():
                numbers += tensor.stride()[:2]
            else:
                _, rows, *units = self.layout.shape(item.name, sizes)
                width = 1
                for length in units:
                    width *= length
                numbers += (rows * width, width)
        numbers += (sizes["B"], 1) * 2  # of mask and reset
        return torch.tensor(numbers, dtype=torch.int64)


def _tables(steps: Steps, strides: Tensor | None) -> dict[str, Tensor]:
    """The arrays among the options of a call, without gaps; they must outlive it."""
    tables = {"lengths": steps.lengths, "mask": steps.mask, "reset": steps.reset}
    named = {**tables, "strides": strides}.items()
    return {name: table.contiguous() for name, table in named if table is not None}


def _options(raw: RawFunction, steps: Steps, tables: dict[str, Tensor]) -> object:
    """Make the options of a call."""
    return raw.options(
        **{name: table.data_ptr() for name, table in tables.items()},
        reverse=int(steps.reverse),
        hold=int(not steps.zero_output_for_mask),
        window=steps.window,
        flush=int(steps.flush_denormals),
        per_row=int(steps.per_row),
    )

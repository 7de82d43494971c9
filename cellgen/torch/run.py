"""Run a kernel on tensors: addresses of their memory, no copy, nothing of NumPy.

Input: tensors that passed the check of a ``Layout``. Output: new tensors.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cellgen.frameworks.layout import row_axis
from cellgen.frameworks.shown import AS_ARRAYS, Shown, is_in_bf16, showing
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.raw import RawFunction
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.kernel import Kernel
from cellgen.torch.layout import Layout, has_dense_units
from cellgen.torch.narrow import STORED, stored_of, widened

NUMPY_NAMES = {torch.float64: "float64"} | dict.fromkeys((torch.float32, *STORED), "float32")
"""What kernels compute in, by the type of tensors."""


@dataclass(frozen=True)
class Steps:
    """Which steps of a call count, and how it runs; as in ``cellgen.runtime.call.over_time``.

    ``products`` is a number of ``cellgen.frameworks.shown.PRODUCTS``. ``per_row``: gradients that
    are sums over rows are formed row by row, (B, ...).
    """

    lengths: Tensor | None = None
    mask: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False
    zero_output_for_mask: bool = False
    window: int = 0
    flush_denormals: bool = False
    products: int = AS_ARRAYS
    checkpoint: int = 0
    every: int = 1
    hidden: int = 0
    last: bool = False
    per_row: bool = False

    @property
    def skips(self) -> bool:
        """Whether there are steps that may be masked."""
        return not (self.lengths is None and self.mask is None and self.reset is None)

    @property
    def is_usual(self) -> bool:
        """Whether a call has no options."""
        return not self.skips and self == NO_STEPS

    def layout(self, of: Layout) -> Layout:
        """What a call takes and gives, with these options."""
        shown = Shown(self.every, self.hidden, self.last, self.checkpoint, self.skips)
        return showing(of, shown)


NO_STEPS = Steps()


@dataclass(frozen=True)
class Given:
    """The dimensions, tensors by name, scalars and checkpoints of a call.

    Tensors are of the device and element type of ``like``.
    """

    like: Tensor
    sizes: dict[str, int]
    arrays: dict[str, Tensor | float]
    scalars: Sequence[float]
    states: Sequence[Tensor]


class Runner(ABC):
    """The two functions over time of a cell, called on tensors; how is its kernel's matter."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def may_leave_out(self, item: Argument) -> bool:
        """Whether the kernel can leave out a gradient that nobody wants."""

    @abstractmethod
    def call(self, name: str, given: Given, steps: Steps) -> None:
        """Run a function on the arrays of a call."""

    def forward(
        self, theta: Sequence[Tensor], scalars: Sequence[float], steps: Steps, save: bool
    ) -> list[Tensor]:
        """Compute all steps; return the outputs, then what was saved, if it was."""
        steps = steps if save else replace(steps, checkpoint=0)
        layout = steps.layout(self.layout)
        sizes = layout.sizes(theta)
        arrays = self._given(layout.theta, theta)
        formed = (*layout.outputs, *layout.saved) if save else layout.outputs
        make = theta[0].new_zeros if steps.last else theta[0].new_empty
        dtypes = layout.dtypes(theta[0], save=save)
        results = [
            make(layout.shape(item.name, sizes), dtype=dtype)
            for item, dtype in zip(formed, dtypes, strict=True)
        ]
        arrays |= {item.name: result for item, result in zip(formed, results, strict=True)}
        states = results[len(layout.outputs) :] if steps.checkpoint and save else []
        made = Given(theta[0], sizes, arrays, scalars, states)
        self.call("sequence_forward", made, steps)
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
        layout = steps.layout(self.layout)
        sizes = layout.sizes(theta)
        arrays = self._given(layout.theta, theta)
        if not steps.checkpoint:
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
        states = [state.contiguous() for state in kept] if steps.checkpoint else []
        made = Given(theta[0], sizes, arrays, scalars, states)
        self.call("sequence_backward", made, steps)
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

    def call(self, name: str, given: Given, steps: Steps) -> None:
        """Run a function by the addresses of its arrays."""
        raw = self.raw(name, given.like.dtype)
        is_narrow = given.like.dtype in STORED
        wide = None
        if is_narrow:
            read = {i.name: i for i in (*self.layout.theta, *raw.function.struct_members)}
            wide = widened(given.arrays, [*read.values()], raw.function.results, last=steps.last)
            given = replace(given, arrays=wide.arrays)
        words, apart = self._words(raw, given)
        strides = self._strides(raw, given) if apart else None
        options, held = None, _tables(steps, strides)
        if is_narrow:
            held["stored"] = stored_of(given.arrays, raw.members)
        if held or not steps.is_usual:
            keep: list[object] = []
            named = {} if not given.states else self._checkpoints(raw, given, steps, keep)
            options = _options(raw, steps, held, named, given.like.dtype)
        dims = [given.sizes[dim] for dim in raw.function.dims]
        raw(dims, words, options, torch.get_num_threads())
        if wide is not None:
            wide.round()

    def _words(self, raw: RawFunction, given: Given) -> tuple[list[int | float], bool]:
        """The words of a struct's members, and whether arrays over time have gaps."""
        scalars = zip(self.layout.scalars, given.scalars, strict=True)
        arrays = given.arrays | {item.name: value for item, value in scalars}
        words: list[int | float] = []
        apart = False
        for item in raw.members:
            value = arrays.get(item.name, 0)
            if isinstance(value, Tensor):
                apart = apart or not value.is_contiguous()
                value = value.data_ptr()
            words.append(value)
        return words, apart

    def _checkpoints(
        self, raw: RawFunction, given: Given, steps: Steps, keep: list[object]
    ) -> dict[str, int]:
        """Addresses of checkpoints, and of what a backward pass runs forward once more."""
        addresses = [state.data_ptr() for state in given.states]
        states = (ctypes.c_void_p * len(addresses))(*addresses)
        keep.append(states)
        named = {"checkpoints": ctypes.addressof(states)}
        if raw.function.name == "sequence_forward":
            return named
        again = self.raw("sequence_forward", given.like.dtype)
        theta = {item.name for item in self.layout.theta}
        own = replace(given, arrays={n: a for n, a in given.arrays.items() if n in theta})
        words, apart = self._words(again, own)
        held = _tables(steps, self._strides(again, own) if apart else None)
        if given.like.dtype in STORED:
            held["stored"] = stored_of(own.arrays, again.members)
        once_more = replace(steps, window=0, every=1, hidden=0, checkpoint=0, per_row=False)
        options = _options(again, once_more, held, {}, given.like.dtype)
        struct = ctypes.create_string_buffer(again.struct(words, options))
        keep += (options, held, struct)
        return named | {"forward": ctypes.addressof(struct)}

    def _strides(self, raw: RawFunction, given: Given) -> Tensor:
        """Elements from step to step and from row to row of every array over time."""
        numbers: list[int] = []
        for item in raw.members:
            if not item.over_time:
                continue
            tensor = given.arrays.get(item.name)
            if isinstance(tensor, Tensor) and not tensor.is_contiguous():
                numbers += tensor.stride()[:2]
            else:
                _, rows, *units = self.layout.shape(item.name, given.sizes)
                width = 1
                for length in units:
                    width *= length
                numbers += (rows * width, width)
        numbers += (given.sizes["B"], 1) * 2  # of mask and reset
        return torch.tensor(numbers, dtype=torch.int64)


def _tables(steps: Steps, strides: Tensor | None) -> dict[str, Tensor]:
    """The arrays among the options of a call, without gaps; they must outlive it."""
    tables = {"lengths": steps.lengths, "mask": steps.mask, "reset": steps.reset}
    named = {**tables, "strides": strides}.items()
    return {name: table.contiguous() for name, table in named if table is not None}


def _options(
    raw: RawFunction,
    steps: Steps,
    held: dict[str, Tensor],
    addresses: dict[str, int],
    dtype: torch.dtype,
) -> object:
    """Make the options of a call on tensors of a type."""
    return raw.options(
        **{name: table.data_ptr() for name, table in held.items()},
        **addresses,
        reverse=int(steps.reverse),
        hold=int(not steps.zero_output_for_mask),
        window=steps.window,
        flush=int(steps.flush_denormals),
        products=int(is_in_bf16(steps.products, element_name(dtype))),
        checkpoint=steps.checkpoint,
        every=steps.every,
        partial=int(steps.hidden != 0),
        last=int(steps.last),
        per_row=int(steps.per_row),
    )

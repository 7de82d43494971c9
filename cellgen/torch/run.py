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

from cellgen.frameworks.shown import ON_TENSORS, is_last, showing, with_products
from cellgen.runtime.abi import NO_GAPS, Argument
from cellgen.runtime.call.raw import RawFunction
from cellgen.runtime.call.signature import once_more
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.numbers import c_numbers
from cellgen.runtime.options import Options, skips, with_tables
from cellgen.torch.layout import Layout, has_dense_units
from cellgen.torch.narrow import STORED, stored_of, widened

NUMPY_NAMES = {torch.float64: "float64"} | dict.fromkeys((torch.float32, *STORED), "float32")
"""What kernels compute in, by the type of tensors."""


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


@dataclass(frozen=True)
class TensorPlan:
    """What calls of one function share whose tensors are of the same kinds, with equal options.

    ``theta``, ``kept`` and ``upstream`` are what its tensors are; ``formed`` are the results:
    name, shape, type, and whether it is returned; the last ``states`` are those at checkpoints.
    ``zeros``: they begin at zero. ``options`` are without tables. No numbers are in its key: each
    call has its own scalars.
    """

    runner: Runner
    options: Options
    sizes: dict[str, int]
    theta: tuple[Argument, ...]
    kept: tuple[Argument, ...]
    upstream: tuple[Argument, ...]
    formed: tuple[tuple[str, tuple[int, ...], torch.dtype, bool], ...]
    zeros: bool = False
    states: int = 0

    def results(self, like: Tensor) -> list[Tensor]:
        """New tensors, one for each of ``formed``."""
        make = like.new_zeros if self.zeros else like.new_empty
        return [make(shape, dtype=dtype) for _, shape, dtype, _ in self.formed]


class Runner(ABC):
    """The two functions over time of a cell, called on tensors; how is its kernel's matter."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def may_leave_out(self, item: Argument) -> bool:
        """Whether the kernel can leave out a gradient that nobody wants."""

    @abstractmethod
    def call(self, name: str, of_call: Given, options: Options) -> None:
        """Run a function on the arrays of a call."""

    def plan_forward(self, theta: Sequence[Tensor], options: Options, *, save: bool) -> TensorPlan:
        """Plan the forward pass of calls with tensors like these."""
        options = options if save else replace(options, checkpoint=0)
        layout = showing(self.layout, options, skips=skips(options))
        sizes = layout.sizes(theta)
        items = (*layout.outputs, *layout.saved) if save else layout.outputs
        formed = tuple(
            (item.name, layout.shape(item.name, sizes), dtype, True)
            for item, dtype in zip(items, layout.dtypes(theta[0], save=save), strict=True)
        )
        states = len(layout.saved) if options.checkpoint and save else 0
        own, zeros = with_tables(options), is_last(options)
        return TensorPlan(self, own, sizes, layout.theta, (), (), formed, zeros, states)

    def plan_backward(self, theta: Sequence[Tensor], options: Options, wanted: int) -> TensorPlan:
        """Plan the backward pass; bit k of ``wanted`` says whether the k-th gradient is wanted."""
        layout = showing(self.layout, options, skips=skips(options))
        sizes = layout.sizes(theta)
        formed = tuple(
            (i.name, layout.gradient_shape(i, sizes, options.per_row), theta[0].dtype, is_wanted)
            for place, i in enumerate(layout.gradients)
            if (is_wanted := bool(wanted >> place & 1)) or not self.may_leave_out(i)
        )
        own, kept = with_tables(options), (*layout.outputs, *layout.saved)
        return TensorPlan(self, own, sizes, layout.theta, kept, layout.upstream, formed)

    def forward(
        self,
        plan: TensorPlan,
        theta: Sequence[Tensor],
        scalars: Sequence[float],
        options: Options,
    ) -> list[Tensor]:
        """Compute all steps; return the outputs, then what was saved, if it was."""
        arrays, results = _by_name(plan.theta, theta), plan.results(theta[0])
        for (name, *_), result in zip(plan.formed, results, strict=True):
            arrays[name] = result
        states = results[-plan.states :] if plan.states else []
        of_call = Given(theta[0], plan.sizes, arrays, scalars, states)
        self.call("sequence_forward", of_call, options)
        return results

    def backward(
        self,
        plan: TensorPlan,
        theta: Sequence[Tensor],
        scalars: Sequence[float],
        kept: Sequence[Tensor],
        upstream: Sequence[Tensor | None],
        options: Options,
    ) -> list[Tensor]:
        """Compute gradients of what learns from what ``forward`` gave with ``save``."""
        arrays = _by_name(plan.theta, theta)
        if not options.checkpoint:
            arrays |= _by_name(plan.kept, kept)
        arrays |= _by_name(plan.upstream, upstream)
        results = plan.results(theta[0])
        for (name, *_), result in zip(plan.formed, results, strict=True):
            arrays[name] = result
        states = [state.contiguous() for state in kept] if options.checkpoint else []
        of_call = Given(theta[0], plan.sizes, arrays, scalars, states)
        self.call("sequence_backward", of_call, options)
        return [result for result, one in zip(results, plan.formed, strict=True) if one[-1]]


def _by_name(
    items: Sequence[Argument], tensors: Sequence[Tensor | None]
) -> dict[str, Tensor | float]:
    """Name the tensors of a call, in memory that a kernel can read."""
    arrays: dict[str, Tensor | float] = {}
    for item, tensor in zip(items, tensors, strict=True):
        if tensor is None:
            continue
        if item.is_scalar:
            arrays[item.name] = float(tensor)
        elif tensor.is_contiguous() or (item.over_time and has_dense_units(tensor)):
            arrays[item.name] = tensor
        else:
            arrays[item.name] = tensor.contiguous()
    return arrays


class HostRunner(Runner):
    """The two functions over time of one kernel in C, called on tensors of the CPU."""

    def __init__(self, kernel: Kernel, layout: Layout) -> None:
        super().__init__(layout)
        self.kernel = kernel
        self._raw: dict[tuple[str, torch.dtype], RawFunction] = {}

    def raw(self, name: str, dtype: torch.dtype) -> RawFunction:
        """The function of a precision, by its name in the interface."""
        raw = self._raw.get((name, dtype))
        if raw is None:
            raw = RawFunction(self.kernel, name, NUMPY_NAMES[dtype])
            self._raw[name, dtype] = raw
        return raw

    def may_leave_out(self, item: Argument) -> bool:
        """Whether the interface says so."""
        return item.optional

    def call(self, name: str, of_call: Given, options: Options) -> None:
        """Run a function by the addresses of its arrays."""
        raw = self.raw(name, of_call.like.dtype)
        is_narrow = of_call.like.dtype in STORED
        wide = None
        if is_narrow:
            read = {i.name: i for i in (*self.layout.theta, *raw.function.struct_members)}
            wide = widened(
                of_call.arrays, [*read.values()], raw.function.results, last=is_last(options)
            )
            of_call = replace(of_call, arrays=wide.arrays)
        words, apart = self._words(raw, of_call)
        strides = self._strides(raw, of_call) if apart else None
        settings, held = None, _tables(options, strides)
        if is_narrow:
            held["stored"] = stored_of(of_call.arrays, raw.members)
        if held or options != ON_TENSORS:
            keep: list[object] = []
            named = {} if not of_call.states else self._checkpoints(raw, of_call, options, keep)
            settings = _settings(raw, options, held, named, of_call.like.dtype)
        dims = [of_call.sizes[dim] for dim in raw.function.dims]
        raw(dims, words, settings, torch.get_num_threads())
        if wide is not None:
            wide.round()

    def _words(self, raw: RawFunction, of_call: Given) -> tuple[list[int | float], bool]:
        """The words of a struct's members, and whether arrays over time have gaps."""
        scalars = zip(self.layout.scalars, of_call.scalars, strict=True)
        arrays = of_call.arrays | {item.name: value for item, value in scalars}
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
        self, raw: RawFunction, of_call: Given, options: Options, keep: list[object]
    ) -> dict[str, int]:
        """Addresses of checkpoints, and of what a backward pass runs forward once more."""
        addresses = [state.data_ptr() for state in of_call.states]
        states = (ctypes.c_void_p * len(addresses))(*addresses)
        keep.append(states)
        named = {"checkpoints": ctypes.addressof(states)}
        if raw.function.name == "sequence_forward":
            return named
        again = self.raw("sequence_forward", of_call.like.dtype)
        theta = {item.name for item in self.layout.theta}
        own = replace(of_call, arrays={n: a for n, a in of_call.arrays.items() if n in theta})
        words, apart = self._words(again, own)
        held = _tables(options, self._strides(again, own) if apart else None)
        if of_call.like.dtype in STORED:
            held["stored"] = stored_of(own.arrays, again.members)
        settings = _settings(again, once_more(options), held, {}, of_call.like.dtype)
        struct = ctypes.create_string_buffer(again.struct(words, settings))
        keep += (settings, held, struct)
        return named | {"forward": ctypes.addressof(struct)}

    def _strides(self, raw: RawFunction, of_call: Given) -> Tensor:
        """Elements from step to step and from row to row of every array over time, and tables."""
        numbers: list[int] = []
        for item in raw.members:
            tensor = of_call.arrays.get(item.name)
            if not item.over_time:
                continue
            if isinstance(tensor, Tensor) and not tensor.is_contiguous():
                numbers += tensor.stride()[:2]
            else:
                numbers += NO_GAPS
        return torch.tensor([*numbers, *NO_GAPS, *NO_GAPS], dtype=torch.int64)


def _tables(options: Options, strides: Tensor | None) -> dict[str, Tensor]:
    """The arrays among the options of a call, without gaps; they must outlive it."""
    tables = {"lengths": options.lengths, "mask": options.mask, "reset": options.reset}
    named = {**tables, "strides": strides}.items()
    return {name: table.contiguous() for name, table in named if isinstance(table, Tensor)}


def _settings(
    raw: RawFunction,
    options: Options,
    held: dict[str, Tensor],
    addresses: dict[str, int],
    dtype: torch.dtype,
) -> object:
    """Make the options of a call on tensors of a type."""
    return raw.options(
        **{name: table.data_ptr() for name, table in held.items()},
        **addresses,
        **c_numbers(with_products(options, element_name(dtype))),
    )

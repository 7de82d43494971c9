"""Run a kernel on tensors: addresses of their memory, no copy.

Input: tensors that passed the check of a ``Layout``. Output: new tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cellgen.frameworks.selection import in_call, is_last, showing, with_products
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.engine import Again, Engine
from cellgen.runtime.call.owner import defect
from cellgen.runtime.call.settings import StepTables
from cellgen.runtime.call.signature import from_checkpoints
from cellgen.runtime.call.stored import STORED, element_name
from cellgen.runtime.call.workspace import take_workspace
from cellgen.runtime.host.threads import team_size, threads_team
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD, Options, skips, with_tables
from cellgen.runtime.results import Array
from cellgen.torch.layout import Layout, has_dense_units


@dataclass(frozen=True)
class CallArguments:
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
    def call(self, name: str, of_call: CallArguments, options: Options) -> None:
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
        of_call = CallArguments(theta[0], plan.sizes, arrays, scalars, states)
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
        of_call = CallArguments(theta[0], plan.sizes, arrays, scalars, states)
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
        functions = {one.name: one for one in kernel.interface.functions}
        again = from_checkpoints(functions[BACKWARD], functions[FORWARD])
        self._engines = {name: Engine(kernel, one) for name, one in functions.items()}
        self._from_checkpoints = Engine(kernel, again)

    def may_leave_out(self, item: Argument) -> bool:
        """Whether the interface says so."""
        return item.optional

    def call(self, name: str, of_call: CallArguments, options: Options) -> None:
        """Make a call by the engine, on arrays in the memory of the tensors.

        Raises BuildError, MemoryError.
        """
        is_again = name == BACKWARD and bool(of_call.states)
        engine = self._from_checkpoints if is_again else self._engines[name]
        function, label = engine.function, engine.label
        options = with_products(options, element_name(of_call.like.dtype))
        arrays = {n: _in_numpy(t) for n, t in of_call.arrays.items() if isinstance(t, Tensor)}
        written = {item.name: arrays.pop(item.name) for item in _results(function, arrays)}
        numbers = {n: x for n, x in of_call.arrays.items() if not isinstance(x, Tensor)}
        numbers |= {i.name: x for i, x in zip(self.layout.scalars, of_call.scalars, strict=True)}
        mine = {item.name for item in function.arguments}
        again = None
        states = tuple(map(_in_numpy, of_call.states))
        if is_again:
            again = Again(states, int(options.flush_denormals), options.products)
        call = engine.bind(
            in_call(function, options),
            {n: a for n, a in arrays.items() if n in mine},
            written,
            options,
            scalars=[(n, float(x)) for n, x in numbers.items() if n in mine],
            again=again,
        )
        lengths, mask, reset = map(_table, (options.lengths, options.mask, options.reset))
        call.prepare({}, StepTables(lengths, mask, reset, None), states=states)
        memory = take_workspace(label, call.workspace, call.dims)
        library, interface = self.kernel.library(), self.kernel.interface
        team = threads_team(library, interface, team_size(torch.get_num_threads(), label))
        code = call.run(memory.pointer, memory.bytes, team)
        if code:
            raise defect(label, call.dims, call.dtype, code)


def _results(function: Function, arrays: Mapping[str, Array]) -> list[Argument]:
    """The results of a function that a call has arrays for."""
    return [item for item in function.results if item.name in arrays]


def _table(table: object) -> Array | None:
    """A table of steps without gaps, None for none."""
    return _in_numpy(table.contiguous()) if isinstance(table, Tensor) else None


def _in_numpy(tensor: Tensor) -> Array:
    """An array in the memory of a tensor, of 16 bits as the engine has them."""
    element = element_name(tensor.dtype)
    is_narrow = element in STORED
    plain = tensor.detach().view(torch.int16) if is_narrow else tensor.detach()
    array: Array = plain.numpy()
    return array.view(STORED[element]) if is_narrow else array

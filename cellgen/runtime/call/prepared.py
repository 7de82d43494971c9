"""Put a checked call of a function over time together: results, workspace, the C struct.

Input: a call that passed every check. Output: ``PreparedCall``, which only has to be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import DTYPES, Checked, lengths
from cellgen.runtime.call.checkpoints import Checkpoints, empty_checkpoints
from cellgen.runtime.call.layout import (
    address_of,
    refuse_shared,
    strides_of,
    swap_time_and_batch,
)
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.packing import Packing
from cellgen.runtime.call.plan import CallPlan, Owner, make_plan, run_nothing
from cellgen.runtime.call.settings import (
    Beside,
    make_settings,
    require_float32,
    require_forward,
)
from cellgen.runtime.call.signature import kept_element
from cellgen.runtime.call.stored import NUMBERS, STORED, element_of_type, kinds_of
from cellgen.runtime.call.workspace import AlignedBytes, Pointer, take_workspace
from cellgen.runtime.host.interrupt import LONG as LONG  # what tests shorten
from cellgen.runtime.host.memory import empty, hold, is_small
from cellgen.runtime.host.threads import team_size, threads_team
from cellgen.runtime.options import BACKWARD, NONE, Options
from cellgen.runtime.results import Array


@dataclass(frozen=True)
class TimeCallPlan(CallPlan):
    """How to make a call of a function over time.

    ``strides``: elements from step to step and from row to row of arrays over time that have gaps,
    whose address must be taken without a buffer. It is ``plain`` where nothing has gaps and all
    results are new: then ``made`` says how to make each. A ``long`` call can be ended by a signal;
    it is never plain. ``fits``: what packed weights must have been laid out for. ``stored``: the
    type of arrays over time where it is another than that of the call.
    """

    strides: Mapping[str, tuple[int, int]]
    size: Callable[..., int]
    plain: bool
    long: bool
    made: tuple[tuple[str, tuple[int, ...], Callable[..., Array]], ...]
    fits: tuple[str | int, ...]
    stored: np.dtype[Any] | None


class CheckedCall(NamedTuple):
    """A call that passed every check.

    Arguments time-major, the arrays of ``out``, and run-time scalars by their places in the struct.
    """

    plan: TimeCallPlan
    arguments: dict[str, object]
    results: dict[str, Array]
    scalars: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class PreparedCall:
    """A call that only has to be made.

    Its struct, what must stay alive until it has ended (and the workspace, which a bound call finds
    anew), every array of its results by name, bytes of workspace, and the flag that ends it, if it
    is a long one.
    """

    struct: Pointer
    keep: object
    found: dict[str, Array | None]
    memory: AlignedBytes
    workspace: int
    stop: Any


class Preparation:
    """How calls of one function over time are put together."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        self._kernel, self._function = kernel, function
        self._where = f"{kernel.name}.{function.name}"
        self.outputs = Outputs(self._where, function)
        self.packing = Packing(kernel, function)
        kept = [item.name for item in function.results if not item.saved]
        self.ordered = (*kept, *(item.name for item in function.results if item.saved))
        named = (*function.arguments, *function.results)
        # A name that a call may give and the kernel does not read is checked all the same.
        self.over_time = frozenset(item.name for item in named if item.over_time)
        self._operands = tuple(item.name for item in function.arguments if item.operand)

    def plan(self, checked: Checked, function: Function) -> TimeCallPlan:
        """Say how to make a call that has been checked; ``function`` is the interface it had."""
        plan = make_plan(self._kernel, function, checked)
        library = self._kernel.library()
        suffix = DTYPES[checked.dtype][0]
        entry = library.entry(self._function.name, suffix)
        runs = plan.call is not run_nothing
        arrays = {**checked.inputs, **checked.outputs}
        apart = {n: a for n, a in arrays.items() if not a.flags.c_contiguous}  # over time: checked
        long = runs and _work(self._function, checked.dims) >= LONG
        stored = checked.stored
        return TimeCallPlan(
            **{name: getattr(plan, name) for name in CallPlan.__dataclass_fields__},
            strides={name: strides_of(array) for name, array in apart.items()},
            size=entry.size if runs else run_nothing,
            plain=not (apart or plan.given or long) and stored is None,
            long=long,
            made=tuple(
                (name, shape, np.empty if is_small(shape, plan.dtype) else empty)
                for name, shape in plan.fresh
            ),
            fits=(suffix, *(checked.dims[name] for name in self.packing.dims)),
            stored=stored,
        )

    def prepare(
        self,
        call: CheckedCall,
        options: Options,
        threads: int | None,
        *,
        save: bool,
        kept: Checkpoints | None = None,
    ) -> PreparedCall:
        """Allocate results and workspace, and fill the struct of a call.

        ``kept`` is what a backward pass is given in place of saved arrays; a forward pass that
        keeps checkpoints makes them.
        """
        plan, arguments, results, _ = call
        library, label = self._kernel.library(), self._where
        dims = dict(zip(self._function.dims, plan.dims, strict=True))
        results_formed, of_last_step = self.make_results(plan, options, save=save)
        results_formed |= results
        states = {}
        if save and options.checkpoint:
            states = empty_checkpoints(self._function, dims, plan.dtype, options)
            kept = Checkpoints(tuple(states.values()))
        strides = plan.strides
        if options.batch_first:
            over_time = ((n, a) for n, a in results_formed.items() if n in self.outputs.results)
            strides = {**strides, **{n: strides_of(a) for n, a in over_time if a is not None}}
        members = self._members(call, {**results_formed, **of_last_step}, strides)
        settings: Pointer = library.ffi.NULL
        keep: tuple[object, ...] = ()
        size = plan.workspace or 0
        stop: Any = library.ffi.new("int *") if plan.long else library.ffi.NULL
        if options is not NONE or strides or plan.long or plan.stored is not None:
            require_float32(label, options.products, plan.dtype)
            if save or self._function.name == BACKWARD:
                require_forward(label, options.products, save=save)
            layout = self.packing.layout_of(options.packed, plan.fits, options.products)
            stored = self._stored(call, {**results_formed, **of_last_step})
            beside = Beside(strides, layout, stop, kept, stored)
            c_options = make_settings(label, library.ffi, self._function, dims, options, beside)
            settings, keep = c_options.struct, c_options.keep
            size = plan.size(plan.sizes, settings)
        memory = take_workspace(label, size, plan.dims)
        team = threads_team(library, self._kernel.interface, team_size(threads, label))
        members += (memory.pointer, memory.bytes, team, settings)
        struct = plan.new(plan.struct, members)
        if results:
            refuse_shared(label, plan.read(arguments), results)
        if options.batch_first:
            results_formed = swap_time_and_batch(self.over_time, results_formed)
        held = hold((*arguments.values(), *results_formed.values())) if plan.long else ()
        flag = stop if plan.long else None
        alive = (keep, members, held, results_formed)
        formed = self.outputs.shown({**results_formed, **of_last_step, **states}, options)
        return PreparedCall(struct, alive, formed, memory, size, flag)

    def again(self, call: CheckedCall, options: Options) -> tuple[Pointer, object]:
        """Fill the struct of a call without results, which a backward pass makes once more.

        Returns it and what must stay alive.
        """
        plan, arguments, _, _ = call
        ffi = self._kernel.library().ffi
        dims = dict(zip(self._function.dims, plan.dims, strict=True))
        packed, products = options.packed, options.products
        fits = packed is not None and packed.weights.products == products
        layout = self.packing.layout(packed, plan.fits, products) if packed and fits else None
        beside = Beside(plan.strides, layout, ffi.NULL, stored=self._stored(call, {}))
        c_options = make_settings(self._where, ffi, self._function, dims, options, beside)
        members = self._members(call, {}, plan.strides)
        members += (ffi.NULL, 0, ffi.NULL, c_options.struct)
        return plan.new(plan.struct, members), (c_options, members, arguments)

    def make_results(
        self, plan: TimeCallPlan, options: Options, *, save: bool
    ) -> tuple[dict[str, Array | None], dict[str, Array | None]]:
        """Allocate the results that a call forms: those of all steps, those of the last one."""
        results: dict[str, Array | None] = {}
        of_last_step: dict[str, Array | None] = {}
        shapes = dict(plan.fresh)
        for item in self.outputs.formed(options, saves=save):
            shape = shapes.get(item.name)
            if shape is not None and len(shape) > len(item.shape):
                of_last_step[item.name] = np.zeros(shape[1:], plan.dtype)
            elif shape is not None:
                results[item.name] = self.empty(item.name, shape, self._dtype(plan, item), options)
        return results, of_last_step

    def _dtype(self, plan: TimeCallPlan, item: Argument) -> np.dtype[Any]:
        if plan.stored is None:
            return plan.dtype
        element = kept_element(item, element_of_type(plan.stored))
        return STORED.get(element, plan.dtype)

    def _stored(self, call: CheckedCall, results: Mapping[str, Array | None]) -> Array | None:
        """What each member of a call's struct holds, as C numbers it; None: floats, all of them."""
        if call.plan.stored is None and not any(
            getattr(call.arguments.get(name), "dtype", None) in NUMBERS for name in self._operands
        ):
            return None
        members = (*(a.name for a in self._function.struct_members), *self.ordered)
        return kinds_of({**call.arguments, **results}, members)

    def _members(
        self, call: CheckedCall, results: Mapping[str, Array | None], apart: Collection[str]
    ) -> list[object]:
        """The members of a call's struct up to its workspace; NULL for what is not formed."""
        plan, arguments, _, scalars = call
        ffi, view, pointer = self._kernel.library().ffi, plan.view, plan.pointer
        members: list[object] = []
        for name in plan.arrays:
            array = arguments[name]
            members.append(address_of(ffi, plan, array) if name in apart else view(pointer, array))
        for place, value in sorted((*plan.nulls, *scalars)):
            members.insert(place, value)
        for name in self.ordered:
            result = results.get(name)
            if result is None:
                members.append(ffi.NULL)
            elif name in apart:
                members.append(address_of(ffi, plan, result))
            else:
                members.append(view(pointer, result))
        return members

    def empty(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.floating], options: Options
    ) -> Array:
        """Make an array for a result. Raises MemoryError, naming it."""
        try:
            if options.batch_first and name in self.outputs.results:
                steps, rows, *rest = shape
                return empty((rows, steps, *rest), dtype).swapaxes(0, 1)
            return empty(shape, dtype)
        except MemoryError as error:
            raise MemoryError(
                f"{self._where}: no memory for {name} of shape {shape}, {dtype}"
            ) from error


def _work(function: Function, dims: Mapping[str, int]) -> int:
    """Estimate the multiply-adds of a call: one for every weight, row and step.

    64 stand for the functions of every number over time, and for a step itself.
    """

    def count(items: Iterable[Argument]) -> int:
        return sum(math.prod(lengths(item, dict(dims))) for item in items)

    weights = count(i for i in function.arguments if i.is_weight)
    over_time = count(i for i in (*function.arguments, *function.results) if i.over_time)
    return dims["T"] * dims["B"] * weights + 64 * (over_time + dims["T"])

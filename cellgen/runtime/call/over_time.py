"""Call a function over time: on a team of threads, over the steps that count, in any layout.

Arrays over time are (T, B, ...) with units side by side; steps and rows may lie any distance apart,
so that batch-first arrays and slices of larger ones are read and written in place.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from cellgen import accept
from cellgen.accept import type_name
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, UNFIT_PLAN, Argument, Function
from cellgen.runtime.call.arguments import (
    DTYPES,
    OPTION_TEXTS,
    Checked,
    as_base,
    as_scalar,
    as_steps,
    check_call,
    dims_of,
    document,
    lengths,
    refuse_overflow,
    signature_of,
    take_out,
)
from cellgen.runtime.call.function import (
    KEPT_PLANS,
    BoundCall,
    KernelFunction,
    Memory,
    Out,
    Owner,
    Plan,
    Pointer,
    defect,
    lending,
    make_plan,
    new_memory,
    refuse_overlap,
    run_nothing,
    take_workspace,
)
from cellgen.runtime.call.packed import Layout, Packed, PackedWeights
from cellgen.runtime.call.saved import (
    ALL,
    ForwardRun,
    Saved,
    Steps,
    is_on,
    make_saved,
    read_saved,
    same_number,
    steps_in,
    steps_of,
)
from cellgen.runtime.call.truncation import Tables, truncated
from cellgen.runtime.host.interrupt import LONG, heeding_signals
from cellgen.runtime.host.memory import empty, hold, is_small
from cellgen.runtime.host.out_of_memory import dense, named_in_memory_errors, steps_within
from cellgen.runtime.host.plans import Constants, SequencePlan, choose
from cellgen.runtime.host.threads import team_size, thread_count, threads_team
from cellgen.runtime.host.tuning import candidates, measured
from cellgen.runtime.names import c_member
from cellgen.runtime.results import Array, Results, result_class


@dataclass(frozen=True)
class Options:
    """Which steps of a sequence count and how its arrays lie in memory.

    ``lengths`` (B): steps of each row that count, from the first on; 0 is legal. ``mask`` (T, B),
    bool: False leaves a step out. ``reset`` (T, B), bool: True sets the state before a step to
    zero. ``reverse``: from the last step to the first. ``batch_first``: arrays over time, mask and
    reset are (B, T, ...). ``zero_output_for_mask``: outputs over time of a step that ``mask``
    leaves out are zeros instead of the step before's (Keras' name). ``last_only``: no outputs over
    time, but final states, and outputs that are no states (B, ...) as each row's last step that
    counts gives them, zeros where none does.
    ``window``: no gradient passes from a step that is a multiple of it to the one before; 0: all
    do. ``plan``: how to run, as
    ``sequence_forward.plan(...)`` gives it or with changes; results do not depend on it.
    ``flush_denormals``: numbers below the smallest normal one count as zeros during the call, which
    may be ten times as fast where gradients or states die away.

    A step that does not count leaves the state as it is; nothing of the inputs is read there, no
    reset happens there, and outputs beyond a length are zeros. Upstream gradients count where
    outputs do: at a step that repeats an output, they are added to those of the step that made it.
    """

    lengths: object = None
    mask: object = None
    reset: object = None
    reverse: bool = False
    batch_first: bool = False
    zero_output_for_mask: bool = False
    last_only: bool = False
    window: int = 0
    plan: SequencePlan | None = None
    packed: Packed | None = None
    flush_denormals: bool = False


NONE = Options()
SWITCHES = tuple(item.name for item in fields(Options) if item.default is False)
"""The options that are on or off."""


@dataclass(frozen=True)
class TimePlan(Plan):
    """A plan of a function over time.

    ``strides``: elements from step to step and from row to row of every array over time, or None
    where none has gaps; ``apart``: those whose address must be taken without a buffer. A plan is
    ``plain`` where nothing has gaps and all results are new: then ``made`` says how to make each.
    A ``long`` call can be ended by a signal; it is never plain. ``fits``: what packed weights must
    have been laid out for.
    """

    strides: tuple[int, ...] | None
    apart: frozenset[str]
    size: Callable[..., int]
    plain: bool
    long: bool
    made: tuple[tuple[str, tuple[int, ...], Callable[..., Array]], ...]
    fits: tuple[str | int, ...]


class CheckedCall(NamedTuple):
    """A call that passed every check: arguments time-first, the arrays of ``out``, and run-time
    scalars by their places in the struct."""

    plan: TimePlan
    arguments: dict[str, object]
    results: dict[str, Array]
    scalars: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Prepared:
    """A call that only has to be made: its struct, what must stay alive until it has ended (and
    the workspace, which a bound call finds anew), every array of its results by name, bytes of
    workspace, and the flag that ends it, if it is a long one."""

    struct: Pointer
    keep: object
    found: dict[str, Array | None]
    memory: Memory
    workspace: int
    stop: Any


def _qualname(function: TimeFunction) -> str:
    return function.__qualname__


class TimeFunction(KernelFunction):
    """A function over time: runs on a team of threads, on the steps that its options say."""

    look = staticmethod(attrgetter("dtype", "shape", "strides", "flags.num"))

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        options = _option_parameters(type(self))
        lines = [f"{option.name}: {OPTION_TEXTS[option.name]}" for option in options]
        self.__doc__ = document(self.__qualname__, function, lines)
        self.__signature__ = signature_of(function, options)
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        members = (*function.struct_members, *function.results)
        self._timed = tuple(item.name for item in members if item.over_time)
        # A name that a call may give and the kernel does not read is checked all the same.
        named = (*function.arguments, *function.results)
        self._turned = frozenset(item.name for item in named if item.over_time)
        self._outputs = frozenset(i.name for i in function.results if i.over_time)
        self._stateless = frozenset(n for n in self._outputs if f"{n}_last" not in self._fields)
        self._ordered = (*self._fields, *self._saves)
        weights = {name for a in function.arguments if a.is_weight for name in dims_of(a)}
        self._weight_dims = tuple(name for name in function.dims if name in weights)
        self._runs: dict[object, ForwardRun] = {}
        self._build = ""

    def _run(
        self,
        arguments: dict[str, object],
        out: Out,
        options: Options,
        threads: int | None,
        *,
        save: bool = False,
        packed: Packed | None = None,
        run: ForwardRun | None = None,
    ) -> tuple[dict[str, Array | None], TimePlan]:
        """Check and call; return every array of the results by name, and the plan.

        ``packed`` is given here where it is the only option, as in inference step by step;
        ``run`` is the one whose saved arrays are among the arguments.
        """
        call = self._check(arguments, out, options)
        plan = call.plan
        if run is not None and (run.sizes, run.dims) != (plan.dims, self.function.dims):
            self._check_run(run, dict(zip(self.function.dims, plan.dims, strict=True)))
        if plan.plain and options is NONE:
            return self._run_plain(call, threads, save=save, packed=packed), plan
        if packed is not None:
            options = Options(packed=packed)
        prepared = self._prepare(call, options, threads, save=save)
        struct, stop = prepared.struct, prepared.stop
        if stop is not None:
            with lending(prepared.memory):
                code = heeding_signals(lambda: plan.call(*plan.dims, struct), stop)
        else:
            code = plan.call(*plan.dims, struct)
        if code:
            raise self._failure(plan, code, options)
        return prepared.found, plan

    def bind(self, /, *, out: Out = None, **call: object) -> BoundCall:
        """Check a call once, for many: ``bound = sequence_forward.bind(...)``, then ``bound()``.

        Takes what a call takes, but for ``bp_lim``. Every ``bound()`` reads the arrays that were
        given, as they are by then (but lengths as they were), writes to the same results and
        returns those. Raises ArgumentError, BuildError, MemoryError.
        """
        chosen: dict[str, Any] = {
            option.name: call.pop(option.name, option.default)
            for option in _option_parameters(type(self))
        }
        threads, arguments = chosen.pop("threads"), call
        save = accept.flag(f"{self.__qualname__}.bind", "save", chosen.pop("save", False))
        if chosen.get("packed") is not None:
            self._take_packed(arguments, chosen["packed"])
        run = self._take_saved(arguments, chosen.pop("saved", None))
        steps = self._steps(run, steps_in(chosen))
        chosen |= steps._asdict()
        if chosen.pop("bp_lim", None) is not None:
            raise ArgumentError(
                f"{self.__qualname__}.bind: bp_lim is given, expected none: it takes several calls "
                f"of other dimensions; call {self.__qualname__} itself"
            )
        usual = all(value is getattr(NONE, name) for name, value in chosen.items())
        options = NONE if usual else Options(**chosen)
        if save and is_on(options.last_only):
            options = replace(options, last_only=False)
        scalars = self._scalars_of(arguments) if save else ()
        checked = self._check(arguments, out, options)
        plan, made = checked.plan, self._prepare(checked, options, threads, save=save)
        if run is not None:
            self._check_run(run, dict(zip(self.function.dims, plan.dims, strict=True)))
        kept = self._forward_run(plan, options, scalars, copied=False) if save else None
        library, interface = self._kernel.library(), self._kernel.interface
        count = team_size(threads, self.__qualname__)
        return BoundCall(
            self.__qualname__,
            plan,
            made.struct,
            (made.keep, checked),
            self._named(made.found, kept),
            lambda code: self._failure(plan, code, options),
            made.workspace,
            None if count == 1 else lambda: threads_team(library, interface, count),
            made.stop,
            (*checked.arguments.values(), *made.found.values(), options.mask, options.reset),
        )

    def _take_saved(self, arguments: dict[str, object], saved: object) -> ForwardRun | None:
        """Unfold ``saved`` into the arguments that come from the forward pass, if any do; return
        the run that it knows."""
        return None

    def _steps(self, run: ForwardRun | None, stated: Steps) -> Steps:
        """Return which steps count as a call states them, or as the run had them."""
        if run is None:
            return Steps(
                *(False if n in SWITCHES and g is None else g for n, g in stated._asdict().items())
            )
        return steps_of(self.__qualname__, run, stated, partial(self._same, run, stated))

    def _check_run(self, run: ForwardRun, dims: Mapping[str, int]) -> None:
        """Raise ArgumentError where a call has other dimensions than the run that saved."""
        of_run = dict(zip(run.dims, run.sizes, strict=True))
        other = [name for name, size in dims.items() if of_run.get(name, size) != size]
        if other:
            found, expected = (
                ", ".join(f"{name} = {sizes[name]}" for name in other) for sizes in (dims, of_run)
            )
            raise ArgumentError(
                f"{self.__qualname__}: arguments have {found}, but saved is of a run with "
                f"{expected}; pass the arguments and results of that run"
            )

    def _forward_run(
        self,
        plan: TimePlan,
        options: Options,
        scalars: tuple[tuple[str, float], ...],
        *,
        copied: bool,
    ) -> ForwardRun:
        """Write down how a run that saves was made: with copies of what says which steps count."""
        raise NotImplementedError

    def _scalars_of(self, arguments: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
        return tuple(
            (name, as_scalar(self.__qualname__, name, arguments.get(name, default), default))
            for _, name, default in self._scalars
        )

    @named_in_memory_errors(_qualname)
    def _same(self, run: ForwardRun, stated: Steps, name: str, given: object, own: object) -> bool:
        """Whether lengths, mask or reset of a call are those that a run had."""
        sizes = dict(zip(run.dims, run.sizes, strict=True))
        steps, rows = sizes["T"], sizes["B"]
        if name == "lengths":
            return np.array_equal(self._lengths(given, steps, rows), own)  # type: ignore[arg-type]
        first = run.steps.batch_first if stated.batch_first is None else stated.batch_first
        options = Options(**{name: given}, batch_first=is_on(first))  # type: ignore[arg-type]
        flags = self._flags(name, options, steps, rows)
        if flags is None or own is None:
            return flags is own
        return np.array_equal(dense(flags), dense(own))  # type: ignore[arg-type]

    def _check(self, arguments: dict[str, object], out: Out, options: Options) -> CheckedCall:
        """Look at everything a call was given, and find its plan."""
        for name in SWITCHES if options is not NONE else ():
            accept.flag(self.__qualname__, name, getattr(options, name))
        scalars = self._take_scalars(arguments)
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        unformed = self._outputs & results.keys() if options.last_only else ()
        if unformed:
            raise ArgumentError(
                f"{self.__qualname__}: out has {', '.join(sorted(unformed))}, expected final "
                f"states alone, since last_only forms no outputs over time; leave it out"
            )
        if options.batch_first:
            arguments, results = self._time_first(arguments), self._time_first(results)
        plan = self._find_plan(arguments, results)
        assert isinstance(plan, TimePlan)
        return CheckedCall(plan, arguments, results, scalars)

    def _named(self, found: Mapping[str, Array | None], run: ForwardRun | None) -> Results:
        """Make the named tuple of a call's results; with what a ``run`` saved, if it did."""
        raise NotImplementedError

    def _prepare(
        self, call: CheckedCall, options: Options, threads: int | None, *, save: bool
    ) -> Prepared:
        """Allocate results and workspace, and fill the struct of a call."""
        plan, arguments, results, scalars = call
        library = self._kernel.library()
        view, pointer = plan.view, plan.pointer
        found: dict[str, Array | None] = {}
        shown: dict[str, Array] = {}
        for name, shape in plan.fresh:
            if options.last_only and name in self._stateless:
                shown[name] = found[name] = np.zeros(shape[1:], plan.dtype)
            elif (save or name not in self._saves) and not (
                options.last_only and name in self._outputs
            ):
                found[name] = self._empty(name, shape, plan.dtype, options)
        found.update(results)
        strides = plan.strides
        if options.batch_first:
            fresh = {n: a for n, a in found.items() if n not in shown}
            strides = self._with_fresh(strides or self._dense(plan), fresh)
        apart = plan.apart | self._outputs if options.batch_first else plan.apart
        members: list[object] = []
        for name in plan.arrays:
            array = arguments[name]
            members.append(
                _address(library.ffi, plan, array) if name in apart else view(pointer, array)
            )
        for place, value in sorted((*plan.nulls, *scalars)):
            members.insert(place, value)
        for name in (*self._fields, *self._saves):
            result = found.get(name)
            if result is None:
                members.append(library.ffi.NULL)
            elif name in apart:
                members.append(_address(library.ffi, plan, result))
            else:
                members.append(view(pointer, result))
        settings: Pointer = library.ffi.NULL
        keep: tuple[object, ...] = ()
        size = plan.workspace or 0
        stop: Any = library.ffi.new("int *") if plan.long else library.ffi.NULL
        if options is not NONE or strides is not None or plan.long:
            settings, keep = self._settings(library.ffi, plan, options, strides, stop)
            size = plan.size(*plan.dims, settings)
        memory = take_workspace(self.__qualname__, size, plan.dims)
        team = threads_team(library, self._kernel.interface, team_size(threads, self.__qualname__))
        members += (memory.pointer, memory.bytes, team, settings)
        struct = plan.new(plan.struct, members)
        if plan.given and apart:
            self._refuse_shared(arguments, results)
        elif plan.given:
            refuse_overlap(self.__qualname__, plan, struct)
        if options.batch_first:
            found = self._time_first(found)
        held = hold((*arguments.values(), *found.values())) if plan.long else ()
        made = {**found, **shown}
        return Prepared(
            struct, (keep, members, held), made, memory, size, stop if plan.long else None
        )

    def _run_plain(
        self, call: CheckedCall, threads: int | None, *, save: bool, packed: Packed | None
    ) -> dict[str, Array | None]:
        """Call for all steps of arrays without gaps: what is left of ``_run`` in the usual case."""
        plan, arguments, _, scalars = call
        library = self._kernel.library()
        view, pointer, dtype, null = plan.view, plan.pointer, plan.dtype, library.ffi.NULL
        saves = () if save else self._saves
        found: dict[str, Array | None] = {}
        for name, shape, make in plan.made:
            if name not in saves:
                try:
                    found[name] = make(shape, dtype)
                except MemoryError:
                    found[name] = self._empty(name, shape, dtype, NONE)
        members: list[object] = [view(pointer, arguments[name]) for name in plan.arrays]
        for place, value in sorted((*plan.nulls, *scalars)):
            members.insert(place, value)
        for name in self._ordered:
            members.append(null if name in saves else view(pointer, found[name]))
        memory = take_workspace(self.__qualname__, plan.workspace or 0, plan.dims)
        team = threads_team(library, self._kernel.interface, team_size(threads, self.__qualname__))
        settings: Pointer = null
        layout = None
        if packed is not None:
            layout = self._layout(packed, plan)
            lies = layout.memory
            laid_out = {"packed": lies.pointer, "packed_bytes": lies.bytes}
            settings = library.ffi.new("cellgen_options *", laid_out)
        members += (memory.pointer, memory.bytes, team, settings)
        code = plan.call(*plan.dims, plan.new(plan.struct, members))
        if code:
            raise defect(self.__qualname__, plan, code)
        return found

    def pack(self, **weights: object) -> Packed:
        """Lay out weights once for many calls: every weight and bias of the cell, by name.

        Run-time scalars may be given too; a call takes those that were given here.

        Raises ArgumentError, BuildError, MemoryError.
        """
        where = f"{self._kernel.name}.pack"
        scalars = {
            name: as_scalar(where, name, weights.pop(name, default), default)
            for _, name, default in self._scalars
        }
        checked = self._check_weights(where, weights)
        arguments: dict[str, Any] = {name: weights[name] for name in checked.inputs} | scalars
        kernel = self._kernel
        of = PackedWeights(
            kernel.name,
            kernel.digest(),
            str(checked.dtype),
            tuple((name, checked.dims[name]) for name in self._weight_dims),
            tuple(arguments.items()),
        )
        packed = Packed(of)
        self._lay_out(packed)
        return packed

    def _check_weights(self, where: str, weights: Mapping[str, object]) -> Checked:
        return check_call(where, self._of_weights(), weights, {})

    def _of_weights(self) -> Function:
        """The function's interface with weights alone."""
        mine = tuple(a for a in self.function.arguments if a.is_weight)
        return replace(self.function, arguments=mine, results=(), dims=self._weight_dims)

    def _lay_out(self, packed: Packed) -> Layout:
        """Lay out packed weights for this function. Raises ArgumentError, MemoryError."""
        where, of = f"{self._kernel.name}.pack", packed.weights
        given = dict(of.arguments)
        scalars = {name: given.pop(name) for _, name, _ in self._scalars if name in given}
        checked = self._check_weights(where, given)
        dims = tuple((name, checked.dims[name]) for name in self._weight_dims)
        if (of.dtype, of.dims) != (str(checked.dtype), dims):
            raise self._changed(packed)
        refuse_overflow(where, self._of_weights(), checked.dims, checked.dtype.itemsize)
        library = self._kernel.library()
        ffi = library.ffi
        suffix, c_type = DTYPES[checked.dtype]
        symbols = self._kernel.interface.symbols(self.function, suffix)
        numbers = [checked.dims.get(name, 0) for name in self.function.dims]
        size = getattr(library.lib, symbols.packed_size)(*numbers)
        memory = new_memory(where, size, tuple(numbers))
        pointers: dict[str, object] = {
            c_member(item.name): ffi.cast(f"{c_type} *", checked.inputs[item.name].ctypes.data)
            for item in self.function.arguments
            if item.is_weight and item.used
        }
        pointers |= {
            c_member(name): scalars[name] for place, name, _ in self._scalars if place >= 0
        }
        struct = ffi.new(f"{symbols.struct} *", pointers)
        code = getattr(library.lib, symbols.pack)(*numbers, struct, memory.pointer, memory.bytes)
        if code:
            raise CellgenError(f"{where}: the compiled function returned {code}", code="kernel")
        layout = Layout(of, (suffix, *(size for _, size in dims)), memory, hold(given.values()))
        packed.layouts[self.function.name, self._build_name()] = layout
        return layout

    def _build_name(self) -> str:
        """Name the build that this process runs: layouts of another one may differ."""
        if not self._build:
            self._build = self._kernel.build().path.name
        return self._build

    def _layout(self, packed: Packed, plan: TimePlan) -> Layout:
        """Return the layout that a call reads. Raises ArgumentError where it does not fit."""
        layout = packed.layouts.get((self.function.name, self._build_name()))
        if layout is None:
            layout = self._lay_out(packed)
        if layout.weights is not packed.weights or layout.fits != plan.fits:
            raise self._changed(packed)
        return layout

    def _changed(self, packed: Packed) -> ArgumentError:
        sizes = ", ".join(f"{name} = {size}" for name, size in packed.weights.dims)
        return ArgumentError(
            f"{self.__qualname__}: packed was changed since {self._kernel.name}.pack made it for "
            f"{packed.weights.dtype} and {sizes}, expected it as it was; pack again"
        )

    def _take_packed(self, arguments: dict[str, object], packed: Packed) -> None:
        """Add the arrays that were packed. Raises ArgumentError for those of another cell."""
        if not isinstance(packed, Packed) or packed.weights.digest != self._kernel.digest():
            found = repr(packed) if isinstance(packed, Packed) else type_name(packed)
            if isinstance(packed, Packed) and packed.cell == self._kernel.name:
                found += ", of another version of this cell"
            raise ArgumentError(
                f"{self.__qualname__}: packed is {found}, expected what {self._kernel.name}.pack "
                f"returns"
            )
        for name, array in packed.weights.arguments:
            given, is_array = arguments.get(name, array), isinstance(array, np.ndarray)
            if given is not array and (is_array or accept.number(given) != array):
                other = (
                    "another array than the one"
                    if is_array
                    else f"{accept.shown(given)}, not the {array}"
                )
                raise ArgumentError(
                    f"{self.__qualname__}: {name} is {other} that was packed, expected that one or "
                    f"none; pack again, or leave {name} out"
                )
            arguments[name] = array

    def _plan(self, arguments: dict[str, object], results: dict[str, Array]) -> Plan:
        checked = check_call(self.__qualname__, self.function, arguments, results)
        plan = make_plan(self._kernel, self.function, checked)
        library = self._kernel.library()
        symbols = self._kernel.interface.symbols(self.function, DTYPES[checked.dtype][0])
        runs = plan.call is not run_nothing
        size = getattr(library.lib, symbols.workspace_size) if runs else run_nothing
        strides, apart = _strides(self.function, checked)
        fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
        made = tuple(
            (name, shape, np.empty if is_small(shape, plan.dtype) else empty)
            for name, shape in plan.fresh
        )
        long = runs and _work(self.function, checked.dims) >= LONG
        plain = strides is None and not apart and not plan.given and not long
        suffix = DTYPES[checked.dtype][0]
        return TimePlan(
            **fields,
            strides=strides,
            apart=apart,
            size=size,
            plain=plain,
            long=long,
            made=made,
            fits=(suffix, *(checked.dims[name] for name in self._weight_dims)),
        )

    def plan(
        self,
        *,
        threads: int | None = None,
        constants: Constants | None = None,
        dtype: object = np.float32,
        **dims: int,
    ) -> SequencePlan:
        """Tell how a call of some dimensions would run: ``plan(T=100, B=32, I=128, H=256)``.

        Raises ArgumentError, BuildError.
        """
        suffix, _ = DTYPES[accept.float_dtype(f"{self.__qualname__}.plan", dtype)]
        library, interface = self._kernel.library(), self._kernel.interface
        return choose(library, interface, self.function, suffix, dims, threads, constants)

    def measure(self, *, threads: int | None = None, **arguments: object) -> SequencePlan:
        """Time the plans that come into question on these arguments; return the fastest.

        It is kept on disk, by program, dimensions, dtype, threads, compiler and machine, and is
        what another call gets without measuring. Pass it on as ``plan=``. Takes what a call takes.
        Raises ArgumentError, BuildError, MemoryError.
        """
        count, named = (
            thread_count(threads, self.__qualname__),
            {item.name for item in self.function.arguments},
        )
        if "plan" in arguments:
            raise ArgumentError(
                f"{self.__qualname__}.measure: plan is given, expected none: it finds one; leave "
                f"it out"
            )
        arrays = {n: a for n, a in arguments.items() if n in named and a is not None}
        options: dict[str, Any] = arguments
        if options.get("packed") is not None:
            self._take_packed(arrays, options["packed"])
        run = self._take_saved(arrays, options.get("saved"))
        steps = self._steps(run, Steps(batch_first=options.get("batch_first")))
        self._take_scalars(arrays)
        if is_on(steps.batch_first):
            arrays = self._time_first(arrays)
        checked = check_call(self.__qualname__, self.function, arrays, {})
        dims = {name: checked.dims[name] for name in self.function.dims}
        own = self.plan(threads=count, constants=None, dtype=checked.dtype, **dims)
        others = sorted(n for n in arguments if n not in named)
        key = [
            ("kernel", self._kernel.build().path.name),
            ("machine", "\n".join(os.uname())),
            ("call", f"{self.function.name} {dims} {checked.dtype} {count} {others}"),
        ]
        chunked = self.function.name == "sequence_backward"
        plans = candidates(own, dims["T"], dims["B"], chunked=chunked)
        call: Callable[..., Results] = self
        return measured(key, plans, lambda plan: call(**arguments, threads=count, plan=plan))

    # --- layouts ---

    def _time_first(self, arrays: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        """Look at arrays over time with their first two axes swapped."""
        return {
            name: array.swapaxes(0, 1)
            if name in self._turned and isinstance(array, np.ndarray) and array.ndim > 1
            else array
            for name, array in ((name, as_base(array)) for name, array in arrays.items())
        }

    def _empty(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.floating], options: Options
    ) -> Array:
        swap = options.batch_first and name in self._timed
        try:
            if swap:
                steps, rows, *rest = shape
                return empty((rows, steps, *rest), dtype).swapaxes(0, 1)
            return empty(shape, dtype)
        except MemoryError as error:
            raise MemoryError(
                f"{self.__qualname__}: no memory for {name} of shape {shape}, {dtype}"
            ) from error

    def _dense(self, plan: TimePlan) -> tuple[int, ...]:
        dims = dict(zip(self.function.dims, plan.dims, strict=True))
        members = (*self.function.struct_members, *self.function.results)
        timed = [item for item in members if item.over_time]
        return tuple(number for item in timed for number in _dense_strides(item, dims))

    def _with_fresh(
        self, strides: Sequence[int], found: Mapping[str, Array | None]
    ) -> tuple[int, ...]:
        """Put in the strides of results that this call has made."""
        numbers = list(strides)
        for place, name in enumerate(self._timed):
            array = found.get(name)
            if array is not None:
                numbers[2 * place : 2 * place + 2] = _steps_of(array)
        return tuple(numbers)

    @named_in_memory_errors(_qualname)
    def _refuse_shared(self, arguments: Mapping[str, object], results: Mapping[str, Array]) -> None:
        """Raise ArgumentError where a result shares an element with another array of the call."""
        others = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
        for name, result in results.items():
            rest = {**others, **{n: a for n, a in results.items() if n != name}}
            for other, array in rest.items():
                if _share(result, array):
                    kind = "result" if other in results else "argument"
                    raise ArgumentError(
                        f"{self.__qualname__}: out {name} shares memory with the {kind} {other}, "
                        f"expected memory of its own (results are written while arguments are "
                        f"read); give another array"
                    )

    # --- options ---

    @named_in_memory_errors(_qualname)
    def _settings(
        self,
        ffi: Pointer,
        plan: TimePlan,
        options: Options,
        strides: tuple[int, ...] | None,
        stop: Pointer,
    ) -> tuple[Pointer, tuple[object, ...]]:
        """Make the C options, and tell what must stay alive during the call."""
        dims = dict(zip(self.function.dims, plan.dims, strict=True))
        steps, rows = dims["T"], dims["B"]
        counts = self._lengths(options.lengths, steps, rows)
        mask = self._flags("mask", options, steps, rows)
        reset = self._flags("reset", options, steps, rows)
        if (mask is not None and not mask.flags.c_contiguous) or (
            reset is not None and not reset.flags.c_contiguous
        ):
            strides = strides or self._dense(plan)
        numbers = None
        if strides is not None:
            tables = [n for flags in (mask, reset) for n in _flag_steps(flags, rows)]
            numbers = np.array([*strides, *tables], np.int64)
        arrays = (counts, mask, reset, numbers)
        kinds = ("int64_t *", "unsigned char *", "unsigned char *", "int64_t *")
        pointers = [
            ffi.NULL if a is None else ffi.cast(kind, a.__array_interface__["data"][0])  # type: ignore[attr-defined]
            for kind, a in zip(kinds, arrays, strict=True)
        ]
        window = as_steps(self.__qualname__, "window", options.window, "or 0 for no limit")
        how = ffi.NULL if options.plan is None else self._checked_plan(options.plan).as_c(ffi)  # type: ignore[attr-defined]
        layout = None if options.packed is None else self._layout(options.packed, plan)
        settings = ffi.new(  # type: ignore[attr-defined]
            "cellgen_options *",
            [
                *pointers,
                bool(options.reverse),
                not options.zero_output_for_mask,
                bool(options.last_only),
                int(window),
                ffi.NULL if layout is None else layout.memory.pointer,  # type: ignore[attr-defined]
                0 if layout is None else layout.memory.bytes,
                how,
                bool(options.flush_denormals),
                stop,
            ],
        )
        return settings, (*arrays, layout, how)

    def _checked_plan(self, plan: object) -> SequencePlan:
        if isinstance(plan, SequencePlan):
            return plan.checked(self.__qualname__)
        raise ArgumentError(
            f"{self.__qualname__}: plan is {type_name(plan)}, expected a SequencePlan; pass what "
            f"{self.__qualname__}.plan(...) returns, or leave it out"
        )

    def _failure(self, plan: Plan, code: int, options: Options) -> CellgenError:
        """What a return value other than 0 means: the caller's plan, or a defect."""
        if code != UNFIT_PLAN:
            return defect(self.__qualname__, plan, code)
        return ArgumentError(
            f"{self.__qualname__}: plan is {options.plan}, which is {ERROR_CODES[code]} "
            f"(dimensions {plan.dims}); change what {self.__qualname__}.plan(...) returns for "
            f"these dimensions less, or leave plan out"
        )

    def _lengths(self, given: object, steps: int, rows: int) -> Array | None:
        if given is None:
            return None
        if isinstance(given, np.ma.MaskedArray):
            raise self._masked("lengths", given)
        array = dense(accept.array(self.__qualname__, "lengths", given))
        if not array.size:  # of an empty list NumPy makes floats
            array = array.astype(np.int64)
        if array.shape != (rows,) or array.dtype.kind not in "iu":
            raise ArgumentError(
                f"{self.__qualname__}: lengths has shape {array.shape} and dtype {array.dtype}, "
                f"expected (B,) = ({rows},) integers; pass one length for each row"
            )
        bad = np.flatnonzero((array < 0) | (array > steps))
        if bad.size:
            row = int(bad[0])
            raise ArgumentError(
                f"{self.__qualname__}: lengths[{row}] is {array[row]}, expected 0 to T = {steps}; "
                f"shorten it or pass longer arrays"
            )
        return np.array(array, np.int64, order="C")  # checked: what the caller changes is not

    def _masked(self, name: str, given: object) -> ArgumentError:
        return ArgumentError(
            f"{self.__qualname__}: {name} is {type_name(given)}, expected an array without a mask "
            f"of its own, which would be ignored; pass {name}.filled(...)"
        )

    def _flags(self, name: str, options: Options, steps: int, rows: int) -> Array | None:
        given = as_base(getattr(options, name))
        if given is None:
            return None
        if isinstance(given, np.ma.MaskedArray):
            raise self._masked(name, given)
        axes = ("B", "T") if options.batch_first else ("T", "B")
        shape = (rows, steps) if options.batch_first else (steps, rows)
        if not isinstance(given, np.ndarray) or given.dtype != np.bool_ or given.shape != shape:
            found, advice = type_name(given), f"np.asarray({name}, dtype=bool)"
            if isinstance(given, np.ndarray):
                found = f"of shape {given.shape} and dtype {given.dtype}"
                advice = f"{name}.astype(bool)"
            raise ArgumentError(
                f"{self.__qualname__}: {name} is {found}, expected a numpy.ndarray of bool "
                f"({', '.join(axes)}) = {shape}; pass {advice} in that shape"
            )
        return given.swapaxes(0, 1) if options.batch_first else given


class SequenceForward(TimeFunction):
    """``sequence_forward``: outputs over time, final states, and on request what backward reads."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self.result = result_class(function.name, (*self._fields, "saved"))

    def __call__(  # type: ignore[override]  # adds keywords; arguments are checked at run time
        self,
        /,
        *,
        out: Out = None,
        save: bool = False,
        threads: int | None = None,
        lengths: object = None,
        mask: object = None,
        reset: object = None,
        reverse: bool = False,
        batch_first: bool = False,
        zero_output_for_mask: bool = False,
        last_only: bool = False,
        plan: SequencePlan | None = None,
        packed: Packed | None = None,
        flush_denormals: bool = False,
        **arguments: object,
    ) -> Results:
        """Compute all steps; see ``Options``. With ``save``, outputs over time are always formed.

        ``packed`` stands for the weights and biases that ``kernel.pack`` was given.

        Raises ArgumentError, BuildError, MemoryError.
        """
        options, alone = NONE, packed
        if save is not False:
            save = accept.flag(self.__qualname__, "save", save)
        if (
            lengths is not None
            or mask is not None
            or reset is not None
            or reverse is not False
            or batch_first is not False
            or zero_output_for_mask is not False
            or last_only is not False
            or plan is not None
            or flush_denormals is not False
        ):
            alone = None
            options = Options(
                lengths,
                mask,
                reset,
                reverse,
                batch_first,
                zero_output_for_mask,
                accept.flag(self.__qualname__, "last_only", last_only) and not save,
                plan=plan,
                packed=packed,
                flush_denormals=flush_denormals,
            )
        if packed is not None:
            self._take_packed(arguments, packed)
        scalars = self._scalars_of(arguments) if save else ()
        found, made = self._run(arguments, out, options, threads, save=save, packed=alone)
        run = self._forward_run(made, options, scalars, copied=True) if save else None
        return self._named(found, run)

    @named_in_memory_errors(_qualname)
    def _forward_run(
        self,
        plan: TimePlan,
        options: Options,
        scalars: tuple[tuple[str, float], ...],
        *,
        copied: bool,
    ) -> ForwardRun:
        known = self._runs.get((plan.dims, scalars)) if options is NONE else None
        if known is not None:
            return known
        sizes = dict(zip(self.function.dims, plan.dims, strict=True))
        steps, rows = sizes["T"], sizes["B"]
        flags = {name: self._flags(name, options, steps, rows) for name in ("mask", "reset")}
        if copied:
            flags = {n: None if a is None else a.copy(order="C") for n, a in flags.items()}
        how = Steps(
            self._lengths(options.lengths, steps, rows),
            **flags,
            reverse=bool(options.reverse),
            batch_first=bool(options.batch_first),
            zero_output_for_mask=bool(options.zero_output_for_mask),
        )
        name, dims = self._kernel.name, self.function.dims
        run = ForwardRun(name, self._kernel.digest(), dims, plan.dims, scalars, how)
        if options is NONE:
            if len(self._runs) >= KEPT_PLANS:
                self._runs.clear()
            self._runs[plan.dims, scalars] = run = run._replace(steps=ALL)
        return run

    def _named(self, found: Mapping[str, Array | None], run: ForwardRun | None) -> Results:
        kept: Saved | None = None
        if run is not None:
            kept = make_saved(self._saves, tuple(found[n] for n in self._saves), run)  # type: ignore[misc]
        return tuple.__new__(self.result, [*(found.get(n) for n in self._fields), kept])


class SequenceBackward(TimeFunction):
    """``sequence_backward``: every gradient; options as they were given to ``sequence_forward``."""

    def __call__(  # type: ignore[override]  # adds keywords; arguments are checked at run time
        self,
        /,
        *,
        out: Out = None,
        saved: Saved | Mapping[str, Array] | None = None,
        threads: int | None = None,
        lengths: object = None,
        mask: object = None,
        reset: object = None,
        reverse: bool | None = None,
        batch_first: bool | None = None,
        zero_output_for_mask: bool | None = None,
        window: int = 0,
        bp_lim: int | None = None,
        plan: SequencePlan | None = None,
        packed: Packed | None = None,
        flush_denormals: bool = False,
        **arguments: object,
    ) -> Results:
        """Compute every gradient; see ``Options``.

        ``saved`` brings along which steps counted and how arrays lay: these options may be left
        out, and others are refused. Arrays of one's own are a dict by name, ``saved={"z": z}``:
        nothing is known of their run then, and options are those of this call alone.

        ``bp_lim``: every loss term reaches so many earlier states, see ``truncation``, and with
        ``window`` none before its own chunk. ``packed`` stands for the weights and biases that
        ``kernel.pack`` was given: for many calls with the same weights, as where gradients are
        summed over small batches.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if packed is not None:
            self._take_packed(arguments, packed)
        run = self._take_saved(arguments, saved)
        steps = ALL if run is None else run.steps
        if (
            steps is not ALL
            or lengths is not None
            or mask is not None
            or reset is not None
            or reverse is not None
            or batch_first is not None
            or zero_output_for_mask is not None
        ):
            stated = Steps(lengths, mask, reset, reverse, batch_first, zero_output_for_mask)
            steps = self._steps(run, stated)
        options, alone = NONE, packed
        if (
            steps is not ALL
            or type(window) is not int
            or window
            or bp_lim is not None
            or plan is not None
            or flush_denormals is not False
        ):
            alone = None
            options = Options(
                *steps,  # type: ignore[arg-type]  # checked with all options
                window=window,
                plan=plan,
                packed=packed,
                flush_denormals=flush_denormals,
            )
        if bp_lim is not None:
            if plan is not None:
                raise ArgumentError(
                    f"{self.__qualname__}: bp_lim and plan are both given, expected one of them; "
                    f"bp_lim runs steps of other dimensions, for which this plan is not"
                )
            return self._truncated(arguments, out, options, threads, bp_lim, run)
        found, _ = self._run(arguments, out, options, threads, packed=alone, run=run)
        return self._named(found, None)

    def _named(self, found: Mapping[str, Array | None], run: ForwardRun | None) -> Results:
        return tuple.__new__(self.result, [found[name] for name in self._fields])

    @named_in_memory_errors(_qualname)
    def _truncated(
        self,
        arguments: dict[str, object],
        out: Out,
        options: Options,
        threads: int | None,
        bp_lim: object,
        run: ForwardRun | None,
    ) -> Results:
        """Call with every loss term reaching ``bp_lim`` states; ``truncation`` says how."""
        for name in SWITCHES:
            accept.flag(self.__qualname__, name, getattr(options, name))
        limit = as_steps(self.__qualname__, "bp_lim", bp_lim, "0 or more")
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        scalars = {name: arguments.pop(name) for _, name, _ in self._scalars if name in arguments}
        if options.batch_first:
            arguments, results = self._time_first(arguments), self._time_first(results)
        checked = check_call(self.__qualname__, self.function, arguments, results)
        self._refuse_shared(checked.inputs, checked.outputs)
        if run is not None:
            self._check_run(run, checked.dims)
        steps, rows = checked.dims["T"], checked.dims["B"]
        if not rows:  # nothing reaches anything
            given: dict[str, object] = {**arguments, **scalars}
            flags = {name: self._flags(name, options, steps, rows) for name in ("mask", "reset")}
            how = replace(options, **flags, batch_first=False)  # type: ignore[arg-type]
            named, _ = self._run(given, results, how, threads)
            if options.batch_first:
                named = self._time_first(named)
            return self._named(named, None)
        tables = self._tables(options, steps, rows)

        def step(arrays: dict[str, Array], mask: Array, reset: Array) -> dict[str, Array]:
            given: dict[str, object] = {**arrays, **scalars}
            how = Options(
                mask=mask,
                reset=reset,
                packed=options.packed,
                flush_denormals=options.flush_denormals,
            )
            found, _ = self._run(given, None, how, threads)
            return {name: array for name, array in found.items() if array is not None}

        found = truncated(self.function, step, checked, tables, limit)
        for name, array in checked.outputs.items():
            array[...] = found[name]
        found |= results
        if options.batch_first:
            found = self._time_first(found)
        return tuple.__new__(self.result, [found[name] for name in self._fields])

    @named_in_memory_errors(_qualname)
    def _tables(self, options: Options, steps: int, rows: int) -> Tables:
        """Tell which steps count, in the order of computation."""
        lengths = self._lengths(options.lengths, steps, rows)
        mask = self._flags("mask", options, steps, rows)
        reset = self._flags("reset", options, steps, rows)
        everywhere = np.ones((steps, rows), bool)
        inside = everywhere if lengths is None else steps_within(lengths, steps)
        counts = inside if mask is None else inside & dense(mask)
        fresh = np.zeros_like(counts) if reset is None else counts & dense(reset)
        order = slice(None, None, -1) if options.reverse else slice(None)
        inside, counts, fresh = (dense(table[order]) for table in (inside, counts, fresh))
        started = np.logical_or.accumulate(counts, axis=0)
        held = inside & ~counts & started & (not options.zero_output_for_mask)
        window = as_steps(self.__qualname__, "window", options.window, "or 0 for no limit")
        return Tables(inside, counts, fresh, held, options.reverse, int(window))

    def _take_saved(self, arguments: dict[str, object], saved: object) -> ForwardRun | None:
        where = self.__qualname__
        if saved is None:
            if self._takes and not any(name in arguments for name in self._takes):
                raise ArgumentError(
                    f"{where}: saved is missing, expected what "
                    f"sequence_forward(..., save=True).saved holds ({', '.join(self._takes)}); "
                    f"pass saved=..."
                )
            return None
        arrays, run = read_saved(where, self._takes, saved, self._kernel.digest())
        arguments.update(arrays)
        if run is None or not run.scalars:
            return run
        defaults = {name: default for _, name, default in self._scalars}
        for name, kept in run.scalars:
            if name not in defaults:
                continue
            given = as_scalar(where, name, arguments.get(name, kept), defaults[name])
            if not same_number(given, kept):
                raise ArgumentError(
                    f"{where}: {name} is {given!r}, but the run that saved had {kept!r}; leave "
                    f"{name} out, or run sequence_forward with it too"
                )
            arguments[name] = given
        return run


def _work(function: Function, dims: Mapping[str, int]) -> int:
    """Estimate the multiply-adds of a call: one for every weight, row and step; 64 stand for the
    functions of every number over time, and for a step itself."""

    def count(items: Iterable[Argument]) -> int:
        return sum(math.prod(lengths(item, dict(dims))) for item in items)

    weights = count(i for i in function.arguments if i.is_weight)
    over_time = count(i for i in (*function.arguments, *function.results) if i.over_time)
    return dims["T"] * dims["B"] * weights + 64 * (over_time + dims["T"])


def _option_parameters(kind: type) -> list[inspect.Parameter]:
    """The keywords of a function over time beside arguments and ``out``, as declared."""
    declared = inspect.signature(kind.__call__).parameters.values()
    return [p for p in declared if p.kind is p.KEYWORD_ONLY and p.name != "out"]


# --- strides ----------------------------------------------------------------------------------


def _strides(function: Function, checked: Checked) -> tuple[tuple[int, ...] | None, frozenset[str]]:
    """Measure steps and rows of every array over time, and name those that have gaps."""
    given = {**checked.inputs, **checked.outputs}
    numbers: list[int] = []
    apart = set()
    for item in (*function.struct_members, *function.results):
        if not item.over_time:
            continue
        array = given.get(item.name)
        if array is None or array.flags.c_contiguous:
            numbers += _dense_strides(item, checked.dims)
        else:
            apart.add(item.name)
            numbers += _steps_of(array)
    return (tuple(numbers) if apart else None), frozenset(apart)


def _dense_strides(item: Argument, dims: Mapping[str, int]) -> tuple[int, int]:
    _, rows, *units = lengths(item, dict(dims))
    width = math.prod(units)
    return rows * width, width


def _steps_of(array: Array) -> tuple[int, int]:
    return array.strides[0] // array.itemsize, array.strides[1] // array.itemsize


def _flag_steps(flags: Array | None, rows: int) -> tuple[int, int]:
    return (rows, 1) if flags is None else (flags.strides[0], flags.strides[1])


def _address(ffi: Pointer, plan: Plan, array: object) -> Pointer:
    """The address of an array's first element, whatever its strides."""
    data = array.__array_interface__["data"][0]  # type: ignore[attr-defined]
    return ffi.cast(plan.element, data)  # type: ignore[attr-defined]


def _share(one: Array, other: Array) -> bool:
    return np.may_share_memory(one, other) and np.shares_memory(one, other)

"""Call a function over time: on a team of threads, over the valid steps, in any layout.

Input: the arrays and options of a call. Output: its results. What forward and backward passes
share stands here; ``options`` says what there is to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Never

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, UNFIT_PLAN, Function
from cellgen.runtime.call import engine
from cellgen.runtime.call.arguments import DTYPES, check_call, take_out, unnamed_error
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.called import called_as
from cellgen.runtime.call.checkpoints import empty_checkpoints
from cellgen.runtime.call.door import Door
from cellgen.runtime.call.engine import NO_LAYOUTS, Again, EngineCall
from cellgen.runtime.call.function import KernelFunction, Out
from cellgen.runtime.call.layout import refuse_shared, swap_time_and_batch
from cellgen.runtime.call.narrow import converted, narrow_element
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.owner import Owner, defect
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.packing import Packing
from cellgen.runtime.call.runs import Runs
from cellgen.runtime.call.saved import ForwardRun, is_on, stated_of
from cellgen.runtime.call.segments import refuse_bound
from cellgen.runtime.call.settings import (
    checked_options,
    require_float32,
    require_forward,
    step_tables,
)
from cellgen.runtime.call.signature import of_steps
from cellgen.runtime.call.workspace import AlignedBytes, lending, per_thread, take_workspace
from cellgen.runtime.host.interrupt import heeding_signals
from cellgen.runtime.host.memory import hold
from cellgen.runtime.host.plans import Constants, SequencePlan, choose
from cellgen.runtime.host.threads import team_address, team_size, thread_count, threads_team
from cellgen.runtime.host.tuning import candidates, measured
from cellgen.runtime.options import BACKWARD, FULL, NONE, OF_OPTIONS, ROWS, Options, taken_by
from cellgen.runtime.results import Array, Results
from cellgen.runtime.system import description

_OF_CALL = tuple(option.name for option in OF_OPTIONS if option.of_call)


def qualname(function: TimeFunction) -> str:
    """What messages call a function."""
    return function.__qualname__


class CheckedCall(NamedTuple):
    """A call that C has bound, its arguments, time-major, and the arrays of ``out``."""

    call: EngineCall
    arguments: dict[str, object]
    results: dict[str, Array]


class PreparedCall(NamedTuple):
    """A call that only has to be run.

    Every array of its results by name, its workspace, and the flag that ends it, if it is a long
    one. Arrays of a long call are ``held`` where they are.
    """

    call: EngineCall
    formed: dict[str, Array | None]
    memory: AlignedBytes
    stop: Any
    held: object


class TimeFunction(KernelFunction):
    """A function over time: runs on a team of threads, on the steps that its options say."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._ordered = (*self._fields, *self._saves)
        self._outputs = Outputs(self.__qualname__, function)
        self._packing = Packing(kernel, function)
        # A name that a call may give and the kernel does not read is checked all the same.
        named = (*function.arguments, *function.results)
        self._over_time = frozenset(item.name for item in named if item.over_time)
        self._runs = Runs(kernel, function)
        self._is_backward = function.name == BACKWARD
        self._made: frozenset[str] = frozenset()  # arguments that a backward pass makes itself
        mine = {option.name for option in taken_by(function.name)}
        self._chosen = tuple(o.name for o in OF_OPTIONS if o.name in mine and o.name != "packed")
        self._keywords = frozenset(self._chosen)

    def _take_options(self, arguments: dict[str, object]) -> dict[str, Any]:
        """Move the options that a call states, other than ``packed``, out of its arguments."""
        if self._keywords.isdisjoint(arguments):
            return {}
        named = [name for name in self._chosen if name in arguments]
        stated = {name: arguments.pop(name) for name in named}
        defaults = {n: ROWS[n].default_in(self.__name__) for n in named}
        return {n: v for n, v in stated.items() if v is not defaults[n]}

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
        kept: Again | None = None,
    ) -> tuple[dict[str, Array | None], EngineCall]:
        """Check and call; return every array of the results by name, and the call.

        ``packed`` is given here where it is the only option, as in inference step by step; ``run``
        is the one whose saved arrays are among the arguments, ``kept`` stands for these.
        """
        checked = self._check(arguments, out, options, save=save, kept=kept)
        call = checked.call
        if run is not None and (run.sizes, run.dims) != (call.dims, self.function.dims):
            self._runs.check(run, call.sizes)
        if packed is not None:
            options = Options(packed=packed)
        ready = self._prepare(checked, options, save=save, kept=kept)
        memory, stop = ready.memory, ready.stop
        team: object = engine.NULL
        if type(threads) is not int or threads != 1:
            count = team_size(threads, self.__qualname__)
            team = threads_team(call.library, self._kernel.interface, count)
        if stop is not None:
            with lending(memory):
                code = heeding_signals(
                    lambda: call.run(memory.pointer, memory.bytes, team), stop, self.__qualname__
                )
        else:
            code = call.run(memory.pointer, memory.bytes, team)
        if code:
            raise failure_of(self.__qualname__, call, code, options)
        return ready.formed, call

    def bind(self, /, *unnamed: Never, out: Out = None, **call: object) -> BoundCall:
        """Check a call once, for many: ``bound = sequence_forward.bind(...)``, then ``bound()``.

        Takes what a call takes, but for ``bp_lim``. Every ``bound()`` reads the arrays that were
        given, as they are by then (but lengths as they were), writes to the same results and
        returns those. Raises ArgumentError, BuildError, MemoryError.
        """
        label, arguments = self.__qualname__, call
        if unnamed:
            raise unnamed_error(f"{label}.bind", self.function, unnamed)
        self._packing.say_products(arguments, call.get("packed"))
        floats = converted(label, self.function, arguments, out)
        if floats is not None:
            return self.bind(out=floats.out, **floats.arguments).in_place_of(floats)
        save = accept.flag(f"{label}.bind", "save", self._popped(call, "save"))
        packed, threads = self._popped(call, "packed"), self._popped(call, "threads")
        saved, limit = self._popped(call, "saved"), self._popped(call, "bp_lim")
        chosen = self._take_options(arguments)
        if packed is not None:
            self._packing.take(arguments, packed)
            chosen["packed"] = packed
        run = self._runs.take(arguments, saved) if self._is_backward else None
        chosen |= self._runs.steps(run, stated_of(chosen))
        refuse_bound(label, arguments, limit)
        usual = all(value is getattr(NONE, name) for name, value in chosen.items())
        options = NONE if usual else checked_options(label, chosen)
        self._outputs.refuse_both(options)
        options, kept = self._with_checkpoints(arguments, out, options, saved, save=save)
        whole = save and not options.checkpoint
        if saved is not None:
            self._runs.add_whole(arguments, saved, options)
        scalars = self._runs.scalars(arguments) if save else ()
        if whole and options.every != 1 and out is not None:
            self._outputs.refuse_copies(take_out(label, self._fields, out), options)
        formed = self._outputs.when_saving(options) if whole else options
        checked = self._check(arguments, out, formed, save=save, kept=kept)
        bound = checked.call
        ready = self._prepare(checked, formed, save=save, kept=kept)
        if run is not None:
            self._runs.check(run, bound.sizes)
        ran = self._runs.describe(bound.dims, options, scalars, copied=False) if save else None
        library, interface = self._kernel.library(), self._kernel.interface
        count = team_size(threads, label)
        return BoundCall(
            label,
            bound,
            self._named(ready.formed, ran, options),
            lambda code: failure_of(label, bound, code, options),
            None if count == 1 else lambda: threads_team(library, interface, count),
            ready.stop,
            (*checked.arguments.values(), *ready.formed.values(), options.mask, options.reset),
        )

    def _with_checkpoints(
        self, arguments: dict[str, object], out: Out, options: Options, saved: object, *, save: bool
    ) -> tuple[Options, Again | None]:
        """The options of a call with checkpoints, and what a backward pass goes on with."""
        return options, None

    def _popped(self, call: dict[str, object], name: str) -> Any:  # of the option's own type
        """Take an option out of a call that this function has; else it is refused by its name."""
        option = ROWS[name]
        mine = self.__name__ in option.functions
        return call.pop(name, option.default) if mine else option.default

    # --- a call ---

    def _check(
        self,
        arguments: dict[str, object],
        out: Out,
        options: Options,
        *,
        save: bool = False,
        kept: Again | None = None,
    ) -> CheckedCall:
        """Look at everything a call was given, and let C bind it. Raises ArgumentError."""
        scalars = self._take_scalars(arguments) if self._scalars else ()
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        if results and options is not NONE:
            self._outputs.refuse(results, options)
        if options.batch_first:
            arguments = swap_time_and_batch(self._over_time, arguments)
            results = swap_time_and_batch(self._over_time, results)
        function = of_steps(self.function, options)
        call = self._engine.bind(
            function, arguments, results, options, saves=save, scalars=scalars, again=kept
        )
        return CheckedCall(call, arguments, results)

    def _prepare(
        self, checked: CheckedCall, options: Options, *, save: bool, kept: Again | None = None
    ) -> PreparedCall:
        """Make the results of a call, and what C runs it with.

        ``kept`` is what a backward pass is given in place of saved arrays; a forward pass that
        keeps checkpoints makes them. Raises ArgumentError, MemoryError.
        """
        call, arguments, results = checked
        label, library = self.__qualname__, call.library
        fresh = self._outputs.make(call, options, results, save=save)
        states: dict[str, Array] = {}
        if save and options.checkpoint:
            states = empty_checkpoints(self.function, call.sizes, call.dtype, options)
        tables, layouts = None, NO_LAYOUTS
        if options is not NONE:
            require_float32(label, options.products, call.dtype)
            if save or self._is_backward:
                require_forward(label, options.products, save=save)
            fits = self._packing.fits(call.dtype, call.sizes)
            layout = self._packing.layout_of(options.packed, fits, options.products)
            again = None if kept is None else kept.layout(options.packed, fits)
            tables, layouts = step_tables(label, library.ffi, options, call.sizes), (layout, again)
        stop = library.ffi.new("int *") if call.is_long() else None
        at = kept.states if kept is not None else tuple(states.values())
        call.prepare(fresh, tables, layouts, at, stop)
        if results:
            refuse_shared(label, call.read(arguments), results)
        memory = take_workspace(label, call.workspace, call.dims)
        formed = self._outputs.as_called({**fresh, **results}, options)
        held = hold((*arguments.values(), *formed.values())) if stop is not None else ()
        selected = self._outputs.selected({**formed, **states}, options)
        return PreparedCall(call, selected, memory, stop, held)

    def _named(
        self, arrays: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        """Make the named tuple of a call's results; with what a ``run`` saved, if it did."""
        raise NotImplementedError

    # --- plans ---

    @called_as("plan({dims})")
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

    @called_as("measure({arguments})")
    def measure(self, *, threads: int | None = None, **arguments: object) -> SequencePlan:
        """Time the plans that come into question on these arguments; return the fastest.

        It is kept on disk, by program, dimensions, dtype, threads, compiler and machine, and is
        what another call gets without measuring. Pass it on as ``plan=``. Takes what a call takes.
        Raises ArgumentError, BuildError, MemoryError.
        """
        return _measured(self, thread_count(threads, self.__qualname__), arguments)


def way_into_c(
    function: TimeFunction, arguments: dict[str, object], packed: object
) -> tuple[Door | None, dict[str, object]]:
    """The way of a call into C, and all of its arguments: with packed weights these, too.

    None for a call that Python makes.
    """
    if packed is None:
        return function._door, arguments
    if type(packed) is not Packed or not packed.keywords.keys().isdisjoint(arguments):
        return None, arguments  # Python compares weights that are given too
    whole = {**arguments, **packed.keywords}
    if packed.weights.products != FULL:
        whole.setdefault("products", packed.weights.products)
    door = packed.doors.get(function)
    if not isinstance(door, Door):
        door = packed.doors[function] = Door(function._kernel, function.function, function.result)
    return door, whole


def open_way(
    function: TimeFunction, door: Door | None, packed: Packed | None, call: EngineCall | None
) -> None:
    """Let C make calls like one that Python made, once it can."""
    if packed is None:
        function._door.open()
    elif call is not None and door is not None:
        fits = function._packing.fits(call.dtype, call.sizes)
        door.open(function._packing.layout(packed, fits, packed.weights.products))


def by_c(
    function: TimeFunction,
    door: Door,
    arguments: dict[str, object],
    threads: int | None,
    save: bool,
    sizes: Any,
) -> Any:
    """Let C make a call of some dimensions; None: Python makes it."""
    make = door.make
    if make is None:
        return None
    team = 0
    if type(threads) is not int or threads != 1:
        kernel = function._kernel
        try:
            count = team_size(threads, function.__qualname__)
            team = team_address(kernel.library(), kernel.interface, count)
        except (ArgumentError, MemoryError):  # said once the arrays have been looked at
            return None
    memory = per_thread.memory
    return make(arguments, save, memory.address, memory.bytes, team, engine.LONG, sizes)


def _measured(owner: TimeFunction, count: int, arguments: dict[str, Any]) -> SequencePlan:
    """The fastest plan of a call of a function on so many threads."""
    named = {item.name for item in owner.function.arguments}
    if "plan" in arguments:
        raise ArgumentError(
            f"{owner.__qualname__}.measure: plan is given, expected none: it finds one; leave "
            f"it out"
        )
    if arguments.get("parallel") is not None:
        raise ArgumentError(
            f"{owner.__qualname__}.measure: parallel is given, expected none: calls in segments "
            f"have no plan; leave it out"
        )
    named -= owner._made
    element = narrow_element(arguments)
    floats = converted(owner.__qualname__, owner.function, arguments, None)
    options = arguments if floats is None else floats.arguments
    arrays = {n: a for n, a in options.items() if n in named and a is not None}
    if options.get("packed") is not None:
        owner._packing.take(arrays, options["packed"])
    saved = options.get("saved")
    run = owner._runs.take(arrays, saved) if owner._is_backward else None
    stated = stated_of({name: options.get(name) for name in _OF_CALL})
    steps = Options(**owner._runs.steps(run, stated))  # type: ignore[arg-type]
    owner._runs.add_whole(arrays, saved, steps)
    owner._take_scalars(arrays)
    if is_on(steps.batch_first):
        arrays = swap_time_and_batch(owner._over_time, arrays)
    function = of_steps(owner.function, steps)
    checked = check_call(owner.__qualname__, function, arrays, {})
    dims = {name: checked.dims[name] for name in owner.function.dims}
    own = owner.plan(threads=count, constants=None, dtype=checked.dtype, **dims)
    others = sorted(n for n in arguments if n not in named)
    text = f"{owner.function.name} {dims} {element or checked.dtype} {count} {others}"
    plans = candidates(own, dims["T"], dims["B"], chunked=owner._is_backward)
    call: Callable[..., Results] = owner
    return measured(
        _key(owner._kernel, text),
        plans,
        lambda p: call(**arguments, threads=count, plan=p),
        owner.__qualname__,
    )


def _key(kernel: Owner, call: str) -> list[tuple[str, str]]:
    """What the plan measured for a call depends on."""
    return [
        ("kernel", kernel.build().path.name),
        ("machine", "\n".join(description())),
        ("call", call),
    ]


def failure_of(label: str, call: EngineCall, code: int, options: Options) -> CellgenError:
    """What a return value other than 0 means: the caller's plan, or a defect."""
    if code != UNFIT_PLAN:
        return defect(label, call.dims, call.dtype, code)
    return ArgumentError(
        f"{label}: plan is {options.plan}, which is {ERROR_CODES[code]} "
        f"(dimensions {call.dims}); change what {label}.plan(...) returns for "
        f"these dimensions less, or leave plan out"
    )

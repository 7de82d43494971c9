"""Call a function over time: on a team of threads, over the valid steps, in any layout.

Input: the arrays and options of a call. Output: its results. What forward and backward passes
share stands here; ``options`` says what there is to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Never

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import ERROR_CODES, UNFIT_PLAN, Function
from cellgen.runtime.call import prepared
from cellgen.runtime.call.arguments import DTYPES, check_call, take_out, unnamed_error
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.called import called_as
from cellgen.runtime.call.checkpoints import Checkpoints
from cellgen.runtime.call.door import Door
from cellgen.runtime.call.function import KernelFunction, Out
from cellgen.runtime.call.layout import swap_time_and_batch
from cellgen.runtime.call.narrow import converted, narrow_element
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.plan import CallPlan, Owner, defect
from cellgen.runtime.call.prepared import CheckedCall, Preparation, TimeCallPlan
from cellgen.runtime.call.runs import Runs
from cellgen.runtime.call.saved import ForwardRun, is_on, stated_of
from cellgen.runtime.call.segments import refuse_bound
from cellgen.runtime.call.settings import checked_options
from cellgen.runtime.call.signature import of_steps, signature
from cellgen.runtime.call.workspace import Pointer, lending, per_thread, take_workspace
from cellgen.runtime.host.interrupt import heeding_signals
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


class TimeFunction(KernelFunction):
    """A function over time: runs on a team of threads, on the steps that its options say."""

    look = staticmethod(attrgetter("dtype", "shape", "strides", "flags.num"))

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._ordered = (*self._fields, *self._saves)
        self._calls = Preparation(kernel, function)
        self._outputs, self._packing = self._calls.outputs, self._calls.packing
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
        kept: Checkpoints | None = None,
    ) -> tuple[dict[str, Array | None], TimeCallPlan]:
        """Check and call; return every array of the results by name, and the plan.

        ``packed`` is given here where it is the only option, as in inference step by step; ``run``
        is the one whose saved arrays are among the arguments, ``kept`` stands for these.
        """
        call = self._check(arguments, out, options)
        plan = call.plan
        if run is not None and (run.sizes, run.dims) != (plan.dims, self.function.dims):
            self._runs.check(run, self._dims(plan))
        if plan.plain and options is NONE:
            return self._run_plain(call, threads, save=save, packed=packed), plan
        if packed is not None:
            options = Options(packed=packed)
        ready = self._calls.prepare(call, options, threads, save=save, kept=kept)
        struct, stop = ready.struct, ready.stop
        if stop is not None:
            with lending(ready.memory):
                code = heeding_signals(
                    lambda: plan.call(plan.sizes, struct), stop, self.__qualname__
                )
        else:
            code = plan.call(plan.sizes, struct)
        if code:
            raise failure_of(self.__qualname__, plan, code, options)
        return ready.found, plan

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
        checked = self._check(arguments, out, formed)
        plan = checked.plan
        ready = self._calls.prepare(checked, formed, threads, save=save, kept=kept)
        if run is not None:
            self._runs.check(run, self._dims(plan))
        ran = self._runs.describe(plan.dims, options, scalars, copied=False) if save else None
        library, interface = self._kernel.library(), self._kernel.interface
        count = team_size(threads, label)
        return BoundCall(
            label,
            plan,
            ready.struct,
            (ready.keep, checked),
            self._named(ready.found, ran, options),
            lambda code: failure_of(self.__qualname__, plan, code, options),
            ready.workspace,
            None if count == 1 else lambda: threads_team(library, interface, count),
            ready.stop,
            (*checked.arguments.values(), *ready.found.values(), options.mask, options.reset),
        )

    def _with_checkpoints(
        self, arguments: dict[str, object], out: Out, options: Options, saved: object, *, save: bool
    ) -> tuple[Options, Checkpoints | None]:
        """The options of a call with checkpoints, and what a backward pass goes on with."""
        return options, None

    def _popped(self, call: dict[str, object], name: str) -> Any:  # of the option's own type
        """Take an option out of a call that this function has; else it is refused by its name."""
        option = ROWS[name]
        mine = self.__name__ in option.functions
        return call.pop(name, option.default) if mine else option.default

    # --- a call ---

    def _check(self, arguments: dict[str, object], out: Out, options: Options) -> CheckedCall:
        """Look at everything a call was given, and find its plan."""
        scalars = self._take_scalars(arguments)
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        if results and options is not NONE:
            self._outputs.refuse(results, options)
        if options.batch_first:
            arguments = swap_time_and_batch(self._calls.over_time, arguments)
            results = swap_time_and_batch(self._calls.over_time, results)
        plan = self._find_plan(arguments, results, options.every)
        assert isinstance(plan, TimeCallPlan)
        return CheckedCall(plan, arguments, results, scalars)

    def _named(
        self, arrays: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        """Make the named tuple of a call's results; with what a ``run`` saved, if it did."""
        raise NotImplementedError

    def _dims(self, plan: CallPlan) -> dict[str, int]:
        return dict(zip(self.function.dims, plan.dims, strict=True))

    def _run_plain(
        self, call: CheckedCall, threads: int | None, *, save: bool, packed: Packed | None
    ) -> dict[str, Array | None]:
        """Call for all steps of arrays without gaps: what is left of ``_run`` in the usual case."""
        plan, arguments, _, scalars = call
        library = self._kernel.library()
        view, pointer, dtype, null = plan.view, plan.pointer, plan.dtype, library.ffi.NULL
        saves = () if save else self._saves
        results: dict[str, Array | None] = {}
        for name, shape, make in plan.made:
            if name not in saves:
                try:
                    results[name] = make(shape, dtype)
                except MemoryError:
                    results[name] = self._calls.empty(name, shape, dtype, NONE)
        members: list[object] = [view(pointer, arguments[name]) for name in plan.arrays]
        if plan.nulls or scalars:
            for place, value in sorted((*plan.nulls, *scalars)):
                members.insert(place, value)
        members += [null if n in saves else view(pointer, results[n]) for n in self._ordered]
        memory = take_workspace(self.__qualname__, plan.workspace or 0, plan.dims)
        count = team_size(threads, self.__qualname__)
        team = null if count == 1 else threads_team(library, self._kernel.interface, count)
        settings: Pointer = null
        layout = None
        if packed is not None:
            layout = self._packing.layout(packed, plan.fits, FULL)
            settings = library.ffi.new("cellgen_options *", layout.members)
        members += (memory.pointer, memory.bytes, team, settings)
        code = plan.call(plan.sizes, plan.new(plan.struct, members))
        if code:
            raise defect(self.__qualname__, plan, code)
        return results

    def _plan(
        self, arguments: dict[str, object], results: dict[str, Array], every: int
    ) -> CallPlan:
        function = signature(self.function, every)
        checked = check_call(self.__qualname__, function, arguments, results)
        return self._calls.plan(checked, function)

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
    function: TimeFunction, door: Door | None, packed: Packed | None, plan: TimeCallPlan | None
) -> None:
    """Let C make calls like one that Python made by a plan, once it can."""
    if packed is None:
        function._door.open()
    elif plan is not None and door is not None:
        door.open(function._packing.layout(packed, plan.fits, packed.weights.products))


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
    return make(arguments, save, memory.address, memory.bytes, team, prepared.LONG, sizes)


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
        arrays = swap_time_and_batch(owner._calls.over_time, arrays)
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


def failure_of(label: str, plan: CallPlan, code: int, options: Options) -> CellgenError:
    """What a return value other than 0 means: the caller's plan, or a defect."""
    if code != UNFIT_PLAN:
        return defect(label, plan, code)
    return ArgumentError(
        f"{label}: plan is {options.plan}, which is {ERROR_CODES[code]} "
        f"(dimensions {plan.dims}); change what {label}.plan(...) returns for "
        f"these dimensions less, or leave plan out"
    )

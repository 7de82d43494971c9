"""``sequence_backward``: every gradient of a run of ``sequence_forward``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Never, cast

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import as_steps, check_call, take_out, unnamed_error
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.called import called_as
from cellgen.runtime.call.door import Door
from cellgen.runtime.call.engine import Again, EngineCall
from cellgen.runtime.call.forward import SequenceForward
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared, swap_time_and_batch
from cellgen.runtime.call.narrow import converted, in_float32
from cellgen.runtime.call.over_time import TimeFunction, by_c, open_way, qualname, way_into_c
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.saved import OF_RUN, ForwardRun, Saved, kept_arrays, stated_of
from cellgen.runtime.call.settings import checked_options, number_of, read_flags
from cellgen.runtime.call.signature import (
    NORMS,
    ROWS_APART,
    from_checkpoints,
    made_again,
    of_steps,
    signature,
)
from cellgen.runtime.call.stored import NUMBERS
from cellgen.runtime.call.truncation import tables_of, truncated
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.options import FORWARD, NONE, ROWS, Options
from cellgen.runtime.results import Array, Results


class SequenceBackward(TimeFunction):
    """``sequence_backward``: every gradient; options as they were given to ``sequence_forward``."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self._variants: dict[bool, SequenceBackward] = {}
        self._segments: SequenceBackward | None = None
        self._mode = False  # whether results are row by row

    def __call__(self, /, *unnamed: Never, **arguments: object) -> Results:
        """Compute every gradient; ``Options`` says what a call takes beside what follows.

        ``out`` has arrays that results are written to; ``threads`` says how many there are.
        ``saved`` brings along which steps were valid and how arrays lay: these options may be left
        out, and others are refused. Arrays of one's own are a dict by name, ``saved={"z": z}``:
        nothing is known of their run then, and options are those of this call alone.

        ``bp_lim``: every loss term reaches so many earlier states, see ``truncation``, and with
        ``window`` none before its own chunk. ``packed`` stands for the weights and biases that
        ``kernel.pack`` was given: for many calls with the same weights. ``gradients=("d_x",)``
        names the results that are wanted: the others are None, and the products that only they need
        are left out. ``per_row``: results that are sums over rows are given row by row, as a call
        with that row alone gives them, to the bit; a step is a sequence of one.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if unnamed:
            raise unnamed_error(self.__qualname__, self.function, unnamed)
        saved: Any = arguments.pop("saved", None)
        threads: Any = arguments.pop("threads", None)
        bp_lim: Any = arguments.pop("bp_lim", None)
        packed: Any = arguments.pop("packed", None)
        door, whole = way_into_c(self, arguments, packed)
        gradients = None if bp_lim is not None else _in_c(self, door, whole, saved, threads)
        if gradients is not None:
            return gradients
        out: Any = arguments.pop("out", None)
        results, call = self._by_python(arguments, out, saved, threads, bp_lim, packed)
        open_way(self, door, packed, call)
        return results

    def _by_python(
        self,
        arguments: dict[str, object],
        out: Out,
        saved: Any,
        threads: Any,
        bp_lim: Any,
        packed: Any,
    ) -> tuple[Results, EngineCall | None]:
        """Make a call; also return what C bound, if that is all of it."""
        self._packing.say_products(arguments, packed)
        how: dict[str, Any] = {"threads": threads, "bp_lim": bp_lim, "packed": packed}
        whole = {**arguments, "saved": saved}
        call = converted(self.__qualname__, self.function, whole, out)
        if call is not None:
            return call.results(self(out=call.out, **how, **call.arguments)), None
        chosen = self._take_options(arguments)
        if packed is not None:
            self._packing.take(arguments, packed)
        run = self._runs.take(arguments, saved)
        options, alone = self._options(run, chosen, packed), packed
        if options is not NONE:
            alone = None
            self._runs.add_whole(arguments, saved, options)
        if bp_lim is not None:
            _refuse_beside_limit(self.__qualname__, options)
            options = options if packed is None else replace(options, packed=packed)
            return _in_float32(self, arguments, out, options, threads, bp_lim, run), None
        function = self._variant(options.per_row, run)
        options, states = function._with_checkpoints(arguments, out, options, saved, save=False)
        gradients, ran = function._run(
            arguments, out, options, threads, packed=alone, run=run, kept=states
        )
        return self._named(gradients, None, options), ran

    def bind(self, /, *unnamed: Never, out: Out = None, **call: object) -> BoundCall:
        """Check a call once, for many; see ``TimeFunction.bind``."""
        function = self._variant(call.get("per_row"), _run_of(call.get("saved")))
        return super(SequenceBackward, function).bind(*unnamed, out=out, **call)

    @called_as("measure({arguments})")
    def measure(self, *, threads: int | None = None, **arguments: object) -> SequencePlan:
        """Time the plans that come into question; see ``TimeFunction.measure``."""
        function = self._variant(arguments.get("per_row"), _run_of(arguments.get("saved")))
        return super(SequenceBackward, function).measure(threads=threads, **arguments)

    def _variant(self, mode: object, run: ForwardRun | None) -> SequenceBackward:
        """This function as a call has it.

        With results row by row, and without the arguments that it makes once more itself.
        """
        function = self if not mode or self._mode else self._rows(mode)
        return function if run is None or not run.checkpoint else function._over_segments()

    def _over_segments(self) -> SequenceBackward:
        if self._made:
            return self
        if self._segments is None:
            forward = self._forward.function
            function = from_checkpoints(self.function, forward)
            self._segments = SequenceBackward(self._kernel, function)
            self._segments._mode, self._segments._made = self._mode, made_again(forward)
        return self._segments

    @cached_property
    def _forward(self) -> SequenceForward:
        """The forward pass of the cell."""
        functions = {item.name: item for item in self._kernel.interface.functions}
        return SequenceForward(self._kernel, functions[FORWARD])

    def _with_checkpoints(
        self, arguments: dict[str, object], out: Out, options: Options, saved: object, *, save: bool
    ) -> tuple[Options, Again | None]:
        """The options of a call, and what it computes steps from once more, if it does.

        Raises ArgumentError where an argument of the forward pass is missing.
        """
        if not self._made:
            return options, None
        assert isinstance(saved, Saved)
        assert saved.run is not None
        if out is not None:
            results = take_out(self.__qualname__, self._fields, out)
            refuse_shared(self.__qualname__, kept_arrays(saved), results)
        for name in self._made & arguments.keys():
            del arguments[name]
        forward = self._forward
        inputs = {
            a.name: arguments[a.name] for a in forward.function.arguments if a.name in arguments
        }
        try:
            forward._check(dict(inputs), None, _options_again(options, saved.run))
        except ArgumentError as error:
            raise _once_more(self.__qualname__, error) from error
        own = saved.run.options
        states = _arrays_of(self.__qualname__, saved, inputs)
        kept = Again(states, int(own.flush_denormals), own.products, forward._packing)
        return replace(options, checkpoint=saved.run.checkpoint), kept

    def _save_all(
        self,
        arguments: dict[str, object],
        options: Options,
        threads: int | None,
        run: ForwardRun,
    ) -> None:
        """Add what all steps save and show, which ``bp_lim`` reads in an order of its own."""
        forward = self._forward
        inputs: dict[str, Any] = {
            a.name: arguments[a.name] for a in forward.function.arguments if a.name in arguments
        }
        how = _options_again(options, run)
        inputs |= {name: getattr(how, name) for name in forward._chosen}
        try:
            results = forward(save=True, threads=threads, **inputs)
        except ArgumentError as error:
            raise _once_more(self.__qualname__, error) from error
        by_name = {**results._asdict(), **results.saved._asdict()}  # type: ignore[attr-defined]
        takes = {item.name for item in self.function.arguments}
        arguments.update({name: array for name, array in by_name.items() if name in takes})

    def _rows(self, mode: object) -> SequenceBackward:
        """This function with the shapes that its results have row by row."""
        norms = bool(number_of(self.__qualname__, ROWS["per_row"], mode) > 1)
        if norms not in self._variants:
            of_rows = signature(self.function, per_row=NORMS if norms else ROWS_APART)
            variant = SequenceBackward(self._kernel, of_rows)
            variant._mode = True
            self._variants[norms] = variant
        return self._variants[norms]

    def _options(
        self, run: ForwardRun | None, chosen: dict[str, Any], packed: Packed | None
    ) -> Options:
        """The options of a call: those that it states, and those of the run that saved."""
        if not chosen and (run is None or run.options is NONE):
            return NONE
        steps = self._runs.steps(run, stated_of(chosen))
        rest = {name: value for name, value in chosen.items() if name not in OF_RUN}
        return checked_options(self.__qualname__, {**steps, **rest, "packed": packed})

    def _named(
        self, gradients: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        wanted = self._outputs.selected(gradients, options)
        return tuple.__new__(self.result, [wanted.get(name) for name in self._fields])

    @named_in_memory_errors(qualname)
    def _truncated(
        self,
        arguments: dict[str, object],
        results: dict[str, Array],
        options: Options,
        threads: int | None,
        bp_lim: object,
        run: ForwardRun | None,
    ) -> Results:
        """Call with every loss term reaching ``bp_lim`` states; ``truncation`` says how.

        ``results`` are the arrays that it writes to.
        """
        label, over_time = self.__qualname__, self._over_time
        limit = as_steps(label, "bp_lim", bp_lim, ROWS["bp_lim"].least)
        self._outputs.refuse(results, options)
        scalars = {name: arguments.pop(name) for _, name, _ in self._scalars if name in arguments}
        if options.batch_first:
            arguments, results = (
                swap_time_and_batch(over_time, arguments),
                swap_time_and_batch(over_time, results),
            )
        checked = check_call(label, of_steps(self.function, options), arguments, results)
        refuse_shared(label, checked.inputs, checked.outputs)
        if run is not None:
            self._runs.check(run, checked.dims)
        steps, rows = checked.dims["T"], checked.dims["B"]
        spread = self._outputs.spread(checked.inputs, options, steps)
        arguments.update(spread)
        checked = replace(checked, inputs=spread)
        options = replace(options, every=1)
        if not rows:  # nothing reaches anything
            flags = {n: read_flags(label, n, options, steps, rows) for n in ("mask", "reset")}
            how = replace(options, **flags, batch_first=False)  # type: ignore[arg-type]
            named, _ = self._run({**arguments, **scalars}, results, how, threads)
            named = swap_time_and_batch(over_time, named) if options.batch_first else named
            return self._named(named, None, options)

        def step(arrays: dict[str, Array], mask: Array, reset: Array) -> dict[str, Array]:
            how = replace(
                NONE,
                mask=mask,
                reset=reset,
                packed=options.packed,
                flush_denormals=options.flush_denormals,
                products=options.products,
            )
            gradients, _ = self._run({**arrays, **scalars}, None, how, threads)
            return {name: array for name, array in gradients.items() if array is not None}

        tables = tables_of(label, options, steps, rows)
        sums = truncated(self.function, step, checked, tables, limit)
        for name, array in checked.outputs.items():
            array[...] = sums[name]
        sums |= results
        sums = swap_time_and_batch(over_time, sums) if options.batch_first else sums
        return self._named(sums, None, options)


def _in_c(
    function: SequenceBackward,
    door: Door | None,
    arguments: dict[str, object],
    saved: object,
    threads: int | None,
) -> Results | None:
    """Let C make a call, by itself or of a run that saved; None: Python makes it."""
    if door is None or door.make is None:
        return None
    run, whole, sizes = _run_of(saved), arguments, None
    if run is not None:
        beside = function._runs.beside(arguments, cast(Saved, saved), run)
        if beside is None:
            return None
        whole, sizes = beside, run.sizes
    elif saved is not None:
        return None
    results: Results | None = by_c(function, door, whole, threads, False, sizes)
    return results


def _in_float32(
    function: SequenceBackward,
    arguments: dict[str, object],
    out: Out,
    options: Options,
    threads: int | None,
    bp_lim: object,
    run: ForwardRun | None,
) -> Results:
    """Make a call with ``bp_lim``; of arrays of 16 bits its sums over steps are in float32."""
    label = function.__qualname__
    results = {} if out is None else take_out(label, function._fields, out)
    wide, written, round_all = in_float32(label, arguments, results)
    if run is not None and run.checkpoint:
        function._save_all(wide, options, threads, run)
    formed = function._truncated(wide, written, options, threads, bp_lim, run)
    return tuple.__new__(function.result, [*round_all(formed._asdict()).values()])


def _refuse_beside_limit(label: str, options: Options) -> None:
    """Raise ArgumentError for what a call with ``bp_lim`` cannot have."""
    if options.per_row:
        raise ArgumentError(
            f"{label}: per_row and bp_lim are both given, expected one of them; "
            f"window cuts gradients of rows, too"
        )
    if options.plan is not None:
        raise ArgumentError(
            f"{label}: bp_lim and plan are both given, expected one of them; "
            f"bp_lim runs steps of other dimensions, for which this plan is not"
        )


def _run_of(saved: object) -> ForwardRun | None:
    return saved.run if isinstance(saved, Saved) else None


def _options_again(options: Options, run: ForwardRun) -> Options:
    """The options of a forward pass that is made once more, with all of its outputs."""
    kept: dict[str, Any] = {name: getattr(options, name) for name in OF_RUN} | {"every": 1}
    own = run.options
    return Options(**kept, flush_denormals=own.flush_denormals, products=own.products)


def _once_more(label: str, error: ArgumentError) -> ArgumentError:
    return ArgumentError(
        f"{label}: saved holds checkpoints, from which the forward pass is computed once more: "
        f"{error.args[0]}"
    )


def _arrays_of(label: str, saved: Saved, arguments: Mapping[str, object]) -> tuple[Array, ...]:
    """The arrays of checkpoints. Raises ArgumentError where arguments have another precision."""
    name, array = next((n, a) for n, a in arguments.items() if isinstance(a, np.ndarray))
    expected = np.dtype(np.float32) if array.dtype in NUMBERS else array.dtype
    for kept in saved:
        if kept.dtype != expected:
            raise ArgumentError(
                f"{label}: saved is of a run with {kept.dtype} arrays, but {name} is "
                f"{expected}; pass the arguments and results of that run"
            )
    return tuple(saved)

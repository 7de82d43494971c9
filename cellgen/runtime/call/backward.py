"""``sequence_backward``: every gradient of a run of ``sequence_forward``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import as_steps, check_call, take_out
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.frameworks import adopt, has_foreign, saved_as_numpy
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared, time_first
from cellgen.runtime.call.outputs import interface_of
from cellgen.runtime.call.over_time import TimeFunction, qualname
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.plan import Owner
from cellgen.runtime.call.saved import ALL, ForwardRun, Saved, SavedSteps, steps_in
from cellgen.runtime.call.settings import checked_options, number_of, read_flags
from cellgen.runtime.call.truncation import tables_of, truncated
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.options import NONE, ROWS, Options
from cellgen.runtime.results import Array, Results


class SequenceBackward(TimeFunction):
    """``sequence_backward``: every gradient; options as they were given to ``sequence_forward``."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self._variants: dict[bool, SequenceBackward] = {}
        self._mode = False  # whether results are row by row

    def __call__(  # type: ignore[override]  # adds keywords; arguments are checked at run time
        self,
        /,
        *,
        out: Out = None,
        saved: Saved | Mapping[str, Array] | None = None,
        threads: int | None = None,
        bp_lim: int | None = None,
        packed: Packed | None = None,
        **arguments: object,
    ) -> Results:
        """Compute every gradient; ``Options`` says what else a call takes.

        ``saved`` brings along which steps counted and how arrays lay: these options may be left
        out, and others are refused. Arrays of one's own are a dict by name, ``saved={"z": z}``:
        nothing is known of their run then, and options are those of this call alone.

        ``bp_lim``: every loss term reaches so many earlier states, see ``truncation``, and with
        ``window`` none before its own chunk. ``packed`` stands for the weights and biases that
        ``kernel.pack`` was given: for many calls with the same weights, as where gradients are
        summed over small batches. ``gradients=("d_x",)`` names the results that are wanted: the
        others are None, and the products that only they need are left out. ``per_row``: results
        that are sums over rows are given row by row, as a call with that row alone gives them, to
        the bit; a step is a sequence of one.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if has_foreign(arguments):
            call = adopt(self.__qualname__, arguments, out)
            kept: dict[str, Any] = {"threads": threads, "bp_lim": bp_lim, "packed": packed}
            kept["saved"] = saved_as_numpy(self.__qualname__, saved)
            return call.framework.named(self(out=call.out, **kept, **call.arguments))
        chosen = self._take_options(arguments)
        if packed is not None:
            self._packing.take(arguments, packed)
        run = self._runs.take(arguments, saved)
        options, alone = self._options(run, chosen, packed), packed
        if options is not NONE:
            alone = None
            self._runs.add_whole(arguments, saved, options)
        if options.per_row:
            return self._by_row(arguments, out, options, threads, bp_lim, run)
        if bp_lim is not None:
            if options.plan is not None:
                raise ArgumentError(
                    f"{self.__qualname__}: bp_lim and plan are both given, expected one of them; "
                    f"bp_lim runs steps of other dimensions, for which this plan is not"
                )
            if packed is not None:
                options = replace(options, packed=packed)
            return self._truncated(arguments, out, options, threads, bp_lim, run)
        found, _ = self._run(arguments, out, options, threads, packed=alone, run=run)
        return self._named(found, None, options)

    def bind(self, /, *, out: Out = None, **call: object) -> BoundCall:
        """Check a call once, for many; see ``TimeFunction.bind``."""
        mode = call.get("per_row")
        where = self if not mode or self._mode else self._rows(mode)
        return super(SequenceBackward, where).bind(out=out, **call)

    def _by_row(
        self,
        arguments: dict[str, object],
        out: Out,
        options: Options,
        threads: int | None,
        bp_lim: object,
        run: ForwardRun | None,
    ) -> Results:
        """Call for the gradients of each row, or the sums of their squares."""
        if bp_lim is not None:
            raise ArgumentError(
                f"{self.__qualname__}: per_row and bp_lim are both given, expected one of them; "
                f"window cuts gradients of rows, too"
            )
        function = self._rows(options.per_row)
        found, _ = function._run(arguments, out, options, threads, run=run)
        return self._named(found, None, options)

    def _rows(self, mode: object) -> SequenceBackward:
        """This function with the shapes that its results have row by row."""
        norms = bool(number_of(self.__qualname__, ROWS["per_row"], mode) > 1)
        if norms not in self._variants:
            results = tuple(_of_rows(item, norms=norms) for item in self.function.results)
            made = SequenceBackward(self._kernel, replace(self.function, results=results))
            made._mode = True
            self._variants[norms] = made
        return self._variants[norms]

    def _options(
        self, run: ForwardRun | None, chosen: dict[str, Any], packed: Packed | None
    ) -> Options:
        """The options of a call: those that it states, and those of the run that saved."""
        steps = ALL if run is None else run.steps
        if steps is ALL and not chosen:
            return NONE
        stated = steps_in(chosen)
        if steps is not ALL or any(value is not None for value in stated):
            steps = self._runs.steps(run, stated)
        rest = {name: value for name, value in chosen.items() if name not in SavedSteps._fields}
        return checked_options(self.__qualname__, {**steps._asdict(), **rest, "packed": packed})

    def _named(
        self, found: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        shown = self._outputs.shown(found, options)
        return tuple.__new__(self.result, [shown.get(name) for name in self._fields])

    @named_in_memory_errors(qualname)
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
        where, turned = self.__qualname__, self._calls.turned
        limit = as_steps(where, "bp_lim", bp_lim, ROWS["bp_lim"].least)
        results = {} if out is None else take_out(where, self._fields, out)
        self._outputs.refuse(results, options)
        scalars = {name: arguments.pop(name) for _, name, _ in self._scalars if name in arguments}
        if options.batch_first:
            arguments, results = time_first(turned, arguments), time_first(turned, results)
        checked = check_call(where, interface_of(self.function, options.every), arguments, results)
        refuse_shared(where, checked.inputs, checked.outputs)
        if run is not None:
            self._runs.check(run, checked.dims)
        steps, rows = checked.dims["T"], checked.dims["B"]
        spread = self._outputs.spread(checked.inputs, options, steps)
        arguments.update(spread)
        checked = replace(checked, inputs=spread)
        options = replace(options, every=1)
        if not rows:  # nothing reaches anything
            flags = {n: read_flags(where, n, options, steps, rows) for n in ("mask", "reset")}
            how = replace(options, **flags, batch_first=False)  # type: ignore[arg-type]
            named, _ = self._run({**arguments, **scalars}, results, how, threads)
            named = time_first(turned, named) if options.batch_first else named
            return self._named(named, None, options)

        def step(arrays: dict[str, Array], mask: Array, reset: Array) -> dict[str, Array]:
            how = replace(
                NONE,
                mask=mask,
                reset=reset,
                packed=options.packed,
                flush_denormals=options.flush_denormals,
            )
            found, _ = self._run({**arrays, **scalars}, None, how, threads)
            return {name: array for name, array in found.items() if array is not None}

        tables = tables_of(where, options, steps, rows)
        found = truncated(self.function, step, checked, tables, limit)
        for name, array in checked.outputs.items():
            array[...] = found[name]
        found |= results
        found = time_first(turned, found) if options.batch_first else found
        return self._named(found, None, options)


def _of_rows(item: Argument, *, norms: bool) -> Argument:
    """What a sum over rows and steps is row by row, or the sum of its squares."""
    if {"T", "B"} & set(item.shape):
        return item
    return replace(item, shape=("B",) if norms else ("B", *item.shape))

"""``sequence_forward``: outputs over time, final states, and on request what backward reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Never

from cellgen import accept
from cellgen.runtime.abi import Function
from cellgen.runtime.call import engine
from cellgen.runtime.call.arguments import take_out, unnamed_error
from cellgen.runtime.call.checkpoints import kept_items, step_bytes, within_limit
from cellgen.runtime.call.door import Door, become_direct
from cellgen.runtime.call.engine import EngineCall
from cellgen.runtime.call.frameworks import adopt, has_foreign
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.narrow import converted
from cellgen.runtime.call.over_time import TimeFunction, by_c, open_way, way_into_c
from cellgen.runtime.call.owner import KEPT_PLANS, Owner
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.runs import PRODUCTS, bits_of
from cellgen.runtime.call.saved import ForwardRun, Saved, make_saved
from cellgen.runtime.call.segmented import call_in_segments
from cellgen.runtime.call.segments import segments_of
from cellgen.runtime.call.settings import checked_options
from cellgen.runtime.call.workspace import per_thread
from cellgen.runtime.options import NONE, TABLES, Options
from cellgen.runtime.results import Array, Results, result_class, said_of


class _Described(NamedTuple):
    """What calls alike have in common that C makes and that save.

    Tables of steps are each call's own. ``views`` say of outputs by their places which part a call
    shows, None: nothing; none are there where it shows all as they are.
    """

    run: ForwardRun
    checkpoint: int
    views: tuple[tuple[int, tuple[slice, ...] | None], ...]


class SequenceForward(TimeFunction):
    """``sequence_forward``: outputs over time, final states, and on request what backward reads."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        super().__init__(kernel, function)
        self.result = result_class(function.name, (*self._fields, "saved"))
        self._door = Door(kernel, function, self.result)
        self._described: dict[object, _Described] = {}
        self._described_by = self._keywords.difference(TABLES)
        self._needed = sum(a.used and not (a.optional or a.is_scalar) for a in function.arguments)

    def __call__(self, /, *unnamed: Never, **arguments: object) -> Results:
        """Compute all steps; ``Options`` says what a call takes beside what follows.

        ``out`` has arrays that results are written to; ``threads`` says how many there are. With
        ``save``, outputs over time are always formed.

        ``packed`` stands for the weights and biases that ``kernel.pack`` was given.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if unnamed:
            raise unnamed_error(self.__qualname__, self.function, unnamed)
        save: Any = arguments.pop("save", False)
        threads: Any = arguments.pop("threads", None)
        packed: Any = arguments.pop("packed", None)
        door, whole = way_into_c(self, arguments, packed)
        if door is not None and (save is False or save is True):
            results_of_c = by_c(self, door, whole, threads, save, None)
            if results_of_c is not None:
                return self._with_saved(results_of_c, whole) if save else results_of_c
        out: Any = arguments.pop("out", None)
        results, call = self._by_python(arguments, out, threads, packed, save=save)
        open_way(self, door, packed, call)
        if packed is None:
            become_direct(self)
        return results

    _way = per_thread, vars(engine), __call__, 1

    def _with_saved(self, parts: Any, arguments: dict[str, object]) -> Results:
        """The results of a call that C made, with what it saved."""
        fields, arrays, dims, products, tables = parts
        stated: list[tuple[str, object]] = []
        if len(arguments) != self._needed:
            option_names = self._described_by.intersection(arguments)
            stated = [(name, arguments[name]) for name in option_names]
        scalars = self._runs.scalars(arguments)
        key: tuple[object, ...] = dims
        if stated or scalars or products:
            key = (dims, products, bits_of(scalars), *stated)
        described = self._described.get(key)
        if described is None:
            chosen = dict(stated)
            if products:  # as the type of arrays tells, where nothing is said
                chosen["products"] = PRODUCTS.choices[products]
            options = checked_options(self.__qualname__, chosen)
            described = self._describe(dims, NONE if options == NONE else options, scalars)
            if len(self._described) >= KEPT_PLANS:
                self._described.clear()
            self._described[key] = described
        run = described.run if tables is None else described.run.of_tables(*tables)
        whole: dict[str, Array] | None = None
        if described.views:
            fields, whole = list(fields), {}
            for place, part in described.views:
                whole[self._fields[place]] = array = fields[place]
                fields[place] = None if part is None else array[part]
        names = self._saves
        if described.checkpoint:
            names = tuple([name for name, _ in kept_items(self.function, run.options)])
        saved = make_saved(names, arrays, run, whole)
        return tuple.__new__(self.result, (*fields[:-1], saved))

    def _describe(
        self, dims: tuple[int, ...], options: Options, scalars: tuple[tuple[str, float], ...]
    ) -> _Described:
        """What calls with these have in common that C makes and that save."""
        run = self._runs.describe(dims, options, scalars, copied=True)
        views: tuple[tuple[int, tuple[slice, ...] | None], ...] = ()
        if not run.checkpoint and (options.every != 1 or options.outputs is not None):
            parts = self._outputs.views(options).items()
            views = tuple((self._fields.index(name), part) for name, part in parts)
        return _Described(run, run.checkpoint, views)

    def _by_python(
        self,
        arguments: dict[str, object],
        out: Out,
        threads: int | None,
        packed: Packed | None,
        *,
        save: bool,
    ) -> tuple[Results, EngineCall | None]:
        """Make a call; also return what C bound, if that is all of it."""
        self._packing.say_products(arguments, packed)
        how: dict[str, Any] = {"save": save, "threads": threads, "packed": packed}
        call = converted(self.__qualname__, self.function, arguments, out)
        if call is not None:
            results = self(out=call.out, **how, **call.arguments)
            return said_of(call.results(results), results), None
        options, alone = NONE, packed
        if save is not False:
            save = accept.flag(self.__qualname__, "save", save)
        chosen = self._take_options(arguments)
        jumps = self._kernel.interface.jumps
        cut = segments_of(self.__qualname__, arguments, chosen, jumps)
        if chosen:
            options, alone = checked_options(self.__qualname__, {**chosen, "packed": packed}), None
            self._outputs.refuse_both(options)
        if packed is not None:
            self._packing.take(arguments, packed)
        if cut is not None:
            whole = options if alone is None else replace(options, packed=packed)
            return call_in_segments(self, arguments, out, whole, threads, cut, save=save), None
        scalars = self._runs.scalars(arguments) if save else ()
        if options.checkpoint or options.memory_limit is not None:
            options, _ = self._with_checkpoints(arguments, out, options, None, save=bool(save))
        if not save or options is NONE or options.checkpoint:
            arrays, ran = self._run(arguments, out, options, threads, save=save, packed=alone)
            run = self._runs.describe(ran.dims, options, scalars, copied=True) if save else None
            return self._named(arrays, run, options), ran
        if out is not None:
            self._outputs.refuse(take_out(self.__qualname__, self._fields, out), options)
        copies, out = self._shown(arguments, out, options)
        formed = self._outputs.when_saving(options)
        arrays, ran = self._run(arguments, out, formed, threads, save=True)
        results = self._named(
            arrays, self._runs.describe(ran.dims, options, scalars, copied=True), options
        )
        for name, array in copies.items():
            array[...] = getattr(results, name)
        named = zip(results._fields, results, strict=True)
        every = [copies.get(name, array) for name, array in named]
        return tuple.__new__(self.result, every), None

    def _with_checkpoints(
        self, arguments: dict[str, object], out: Out, options: Options, saved: object, *, save: bool
    ) -> tuple[Options, None]:
        """The options of a call with the steps of a segment that its limit allows.

        They say nothing of a call that does not save. Raises ArgumentError.
        """
        if not save:
            return replace(options, checkpoint=0, memory_limit=None), None
        if options.memory_limit is None:
            return options, None
        call = self._check(dict(arguments), out, options).call
        needs = step_bytes(
            self.function,
            call.sizes,
            call.dtype.itemsize,
            options,
            self._outputs.in_full(options),
            call.stored,
        )
        return within_limit(self.__qualname__, needs, options), None

    def _shown(
        self, arguments: dict[str, object], out: Out, options: Options
    ) -> tuple[dict[str, Array], Out]:
        """Take the arrays out of ``out`` that a run which saves copies what it shows to.

        Such a run forms the outputs of all steps. Raises ArgumentError as a call does.
        """
        if out is None or options.every == 1:
            return {}, out
        checked = self._check(dict(arguments), out, options)
        refuse_shared(self.__qualname__, checked.arguments, checked.results)
        arrays = take_out(self.__qualname__, self._fields, out)
        copies = {name: a for name, a in arrays.items() if name in self._outputs.names}
        return copies, {name: a for name, a in arrays.items() if name not in copies}

    def pack(self, /, *unnamed: Never, **weights: object) -> Packed:
        """Lay out weights once for many calls: every weight and bias of the cell, by name.

        Run-time scalars may be given too; a call takes those that were given here.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if unnamed:
            raise self._packing.unnamed_error(unnamed)
        if has_foreign(weights):
            weights = adopt(f"{self._kernel.name}.pack", weights).arguments
        return self._packing.pack(weights)

    def _named(
        self, arrays: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        kept: Saved | None = None
        if run is not None and run.checkpoint:
            names = tuple(name for name, _ in kept_items(self.function, options))
            kept = make_saved(names, tuple(arrays[n] for n in names), run)  # type: ignore[misc]
        elif run is not None:
            whole: dict[str, Array] = {}
            if options.every != 1 or options.outputs is not None:
                arrays, whole = self._outputs.show(arrays, options)
            kept = make_saved(self._saves, tuple(arrays[n] for n in self._saves), run, whole)  # type: ignore[misc]
        return tuple.__new__(self.result, [*map(arrays.get, self._fields), kept])

"""``sequence_forward``: outputs over time, final states, and on request what backward reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellgen import accept
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import take_out
from cellgen.runtime.call.frameworks import adopt, has_foreign
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.over_time import TimeFunction
from cellgen.runtime.call.packed import Packed
from cellgen.runtime.call.plan import Owner
from cellgen.runtime.call.saved import ForwardRun, Saved, make_saved
from cellgen.runtime.call.settings import checked_options
from cellgen.runtime.options import NONE, Options
from cellgen.runtime.results import Array, Results, result_class


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
        packed: Packed | None = None,
        **arguments: object,
    ) -> Results:
        """Compute all steps; ``Options`` says what else a call takes.

        With ``save``, outputs over time are always formed.

        ``packed`` stands for the weights and biases that ``kernel.pack`` was given.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if has_foreign(arguments):
            call = adopt(self.__qualname__, arguments, out)
            kept: dict[str, Any] = {"save": save, "threads": threads, "packed": packed}
            return call.framework.named(self(out=call.out, **kept, **call.arguments))
        options, alone = NONE, packed
        if save is not False:
            save = accept.flag(self.__qualname__, "save", save)
        chosen = self._take_options(arguments)
        if chosen:
            options, alone = checked_options(self.__qualname__, {**chosen, "packed": packed}), None
            self._outputs.refuse_both(options)
        if packed is not None:
            self._packing.take(arguments, packed)
        scalars = self._runs.scalars(arguments) if save else ()
        if not save or options is NONE:
            found, made = self._run(arguments, out, options, threads, save=save, packed=alone)
            run = self._runs.describe(made, options, scalars, copied=True) if save else None
            return self._named(found, run, options)
        shown, out = self._shown(arguments, out, options)
        formed = self._outputs.when_saving(options)
        found, made = self._run(arguments, out, formed, threads, save=True)
        results = self._named(
            found, self._runs.describe(made, options, scalars, copied=True), options
        )
        for name, array in shown.items():
            array[...] = getattr(results, name)
        named = zip(results._fields, results, strict=True)
        return tuple.__new__(self.result, [shown.get(name, array) for name, array in named])

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
        given = take_out(self.__qualname__, self._fields, out)
        shown = {name: a for name, a in given.items() if name in self._outputs.names}
        return shown, {name: a for name, a in given.items() if name not in shown}

    def pack(self, **weights: object) -> Packed:
        """Lay out weights once for many calls: every weight and bias of the cell, by name.

        Run-time scalars may be given too; a call takes those that were given here.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if has_foreign(weights):
            weights = adopt(f"{self._kernel.name}.pack", weights).arguments
        return self._packing.pack(weights)

    def _named(
        self, found: Mapping[str, Array | None], run: ForwardRun | None, options: Options
    ) -> Results:
        kept: Saved | None = None
        if run is not None:
            whole: dict[str, Array] = {}
            if options.every != 1:
                found, whole = self._outputs.show(found, options)
            kept = make_saved(self._saves, tuple(found[n] for n in self._saves), run, whole)  # type: ignore[misc]
        return tuple.__new__(self.result, [*map(found.get, self._fields), kept])

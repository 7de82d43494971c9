"""Which results a call over time forms.

Outputs are of all steps, of every so many-th, or of the last alone; gradients, those wanted.

Input: the interface of a function over time and the options of a call. Output: for each result
whether it is formed, and of which steps; ``signature`` has its shape.
Outputs are those of a forward pass, the upstream gradients of a backward pass are as its outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cellgen.accept import quoted
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import lengths
from cellgen.runtime.call.engine import EngineCall
from cellgen.runtime.call.layout import swap_time_and_batch
from cellgen.runtime.call.saved import is_on
from cellgen.runtime.call.signature import kept_element, lengths_of, shown_steps, signature
from cellgen.runtime.call.stored import STORED, element_of_type
from cellgen.runtime.call.wanted import Wanted
from cellgen.runtime.host.memory import empty
from cellgen.runtime.options import FORWARD, NONE, Options
from cellgen.runtime.results import Array


class Outputs:
    """The outputs of one function over time; ``stateless`` are those that are no states.

    ``results`` are all results over time, ``upstream`` the gradients of outputs that it takes.
    """

    def __init__(self, label: str, function: Function) -> None:
        self._label = label
        self.results = frozenset(item.name for item in function.results if item.over_time)
        self.names = self.results if function.name == FORWARD else frozenset[str]()
        self.stateless = self.names - {*function.states.values()}
        self.upstream = frozenset(a.name for a in function.arguments if a.optional and a.over_time)
        self._saved = frozenset(item.name for item in function.results if item.saved)
        self._wanted = Wanted(label, function)
        self._function = function
        self._plain: dict[bool, tuple[Argument, ...]] = {}
        """Results of calls without options, by whether they save."""
        self._shown: dict[tuple[int, bool], tuple[Argument, ...]] = {}
        """Results by ``every`` and ``last_only``: to hash a function takes longer than a call."""

    def when_saving(self, options: Options) -> Options:
        """A run that saves forms all outputs: a backward pass reads them."""
        if self.in_full(options) == self.names:
            return options
        return replace(options, last_only=False, every=1, outputs=None)

    def ends_alone(self, options: Options) -> Options:
        """The options of a run of which final states count alone."""
        return replace(options, last_only=True, every=1, outputs=None)

    def in_full(self, options: Options) -> frozenset[str]:
        """The outputs that a call shows at every step."""
        if is_on(options.last_only) or options.every != 1:
            return frozenset()
        return self._named(options)

    def make(
        self,
        call: EngineCall,
        options: Options,
        results: Collection[str],
        *,
        save: bool,
    ) -> dict[str, Array | None]:
        """Make the results that a call forms, time-major, but for ``results``, which have memory.

        Raises MemoryError, naming the one.
        """
        sizes: Mapping[str, int] = call.sizes
        if options.every != 1:
            sizes = {**sizes, **lengths_of(options, sizes["T"])}
        arrays: dict[str, Array | None] = {}
        for item in self.formed(options, saves=save):
            if item.name in results:
                continue
            kind = call.rest
            if call.stored is not None and (item.saved or item.over_time):
                kind = STORED.get(kept_element(item, element_of_type(call.stored)), call.dtype)
            swaps = options.batch_first and item.over_time
            arrays[item.name] = self._empty(item.name, lengths(item, sizes), kind, swaps=swaps)
        return arrays

    def _empty(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, swaps: bool
    ) -> Array:
        try:
            if swaps:
                steps, rows, *rest = shape
                return empty((rows, steps, *rest), dtype).swapaxes(0, 1)
            return empty(shape, dtype)
        except MemoryError as error:
            raise MemoryError(
                f"{self._label}: no memory for {name} of shape {shape}, {dtype}"
            ) from error

    def with_steps(self, options: Options) -> frozenset[str]:
        """The results over time that have an axis of steps in a call."""
        return self.results - self.names if options.last_only else self.results

    def as_called(
        self, formed: dict[str, Array | None], options: Options
    ) -> dict[str, Array | None]:
        """Results as a call has them, of which those of all steps are time-major."""
        if not options.batch_first:
            return formed
        return swap_time_and_batch(self.with_steps(options), formed)

    def _named(self, options: Options) -> frozenset[str]:
        """The outputs over time that a call wants. Raises ArgumentError for other names."""
        if options.outputs is None:
            return self.names
        stated = options.outputs
        names = stated if isinstance(stated, tuple | list | set | frozenset) else None
        if names is None or not all(isinstance(n, str) and n in self.names for n in names):
            raise ArgumentError(
                f"{self._label}: outputs is {quoted(stated)}, expected a tuple of some of "
                f"{', '.join(sorted(self.names))}; name the outputs over time that are wanted"
            )
        return frozenset(names)

    def formed(self, options: Options, *, saves: bool) -> tuple[Argument, ...]:
        """The results that a call forms, with the axes that they have in it."""
        plain = self._plain.get(saves) if options is NONE else None
        if plain is not None:
            return plain
        left = self._wanted.unformed(options.gradients)
        if not saves or options.checkpoint:
            left |= self._saved
        if self.names:
            left |= self.names - (self.stateless if options.last_only else self.names)
            left |= self.names - self._named(options)
        steps = options.every, bool(options.last_only)
        results = self._shown.get(steps)
        if results is None:
            every, last = steps
            results = self._shown[steps] = signature(self._function, every, last=last).results
        formed = tuple([item for item in results if item.name not in left])
        if options is NONE:
            self._plain[saves] = formed
        return formed

    def selected(
        self, results: Mapping[str, Array | None], options: Options
    ) -> dict[str, Array | None]:
        """The results without those that the caller does not want."""
        if options.gradients is None:
            return {**results}
        left = self._wanted.left_out(options.gradients)
        return {name: array for name, array in results.items() if name not in left}

    def refuse_both(self, options: Options) -> None:
        """Raise ArgumentError where a call asks for the last step alone and for others."""
        if options.last_only and options.every != 1:
            raise ArgumentError(
                f"{self._label}: last_only and every={options.every} are both given, expected one "
                f"of them; leave last_only out for the outputs of every {options.every}-th step, "
                f"or every for those of the last one"
            )

    def refuse(self, names: Collection[str], options: Options) -> None:
        """Raise ArgumentError where ``out`` has a result that a call does not form."""
        self._wanted.refuse(names, options.gradients)
        unformed = self.names & set(names) if options.last_only else ()
        unwanted = self.names & set(names) - self._named(options)
        if unwanted and not unformed:
            raise ArgumentError(
                f"{self._label}: out has {', '.join(sorted(unwanted))}, expected outputs that are "
                f"wanted; name them in outputs, or leave them out"
            )
        if unformed:
            raise ArgumentError(
                f"{self._label}: out has {', '.join(sorted(unformed))}, expected final states "
                f"alone, since last_only forms no outputs over time; leave it out"
            )

    def refuse_copies(self, names: Collection[str], options: Options) -> None:
        """Raise ArgumentError where a bound call that saves would have to copy what it shows."""
        copied = self.names & set(names)
        if copied:
            raise ArgumentError(
                f"{self._label}.bind: out has {', '.join(sorted(copied))}, expected none of them "
                f"with save=True and every={options.every}: what is saved holds the outputs of all "
                f"steps, and those shown are a part of it; leave them out"
            )

    def views(self, options: Options) -> dict[str, tuple[slice, ...] | None]:
        """How a call shows each output of all steps: the part of it, None for one it does not."""
        steps = shown_steps(options)
        part = (slice(None), steps) if options.batch_first else (steps,)
        wanted = self._named(options)
        return {name: part if name in wanted else None for name in self.names}

    def show(
        self, results: Mapping[str, Array | None], options: Options
    ) -> tuple[dict[str, Array | None], dict[str, Array]]:
        """Look at outputs of all steps as a call shows them; return results, and these outputs."""
        whole = {name: a for name, a in results.items() if name in self.names and a is not None}
        views = self.views(options)
        selected = {n: None if (part := views[n]) is None else a[part] for n, a in whole.items()}
        return {**results, **selected}, whole

    def spread(
        self, arguments: Mapping[str, Array], options: Options, steps: int
    ) -> dict[str, Array]:
        """Give upstream gradients of some steps, time-major, as those of all: zeros elsewhere."""
        spread = dict(arguments)
        for name in self.upstream & arguments.keys() if options.every != 1 else ():
            upstream = arguments[name]
            spread[name] = np.zeros((steps, *upstream.shape[1:]), upstream.dtype)
            spread[name][shown_steps(options)] = upstream
        return spread

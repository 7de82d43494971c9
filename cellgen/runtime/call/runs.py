"""What a forward run hands on to its backward pass, and whether a call agrees with it.

Input: the options of a run, or what it saved. Output: ``ForwardRun``, and the options that a
backward pass takes from it; an ArgumentError where a call contradicts the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import as_scalar, scalar_places
from cellgen.runtime.call.owner import KEPT_PLANS, Owner
from cellgen.runtime.call.saved import (
    KEPT_NAME,
    OF_RUN,
    ForwardRun,
    Saved,
    is_on,
    read_saved,
    same_number,
    steps_of,
)
from cellgen.runtime.call.settings import read_flags, read_lengths
from cellgen.runtime.call.signature import shown_steps
from cellgen.runtime.host.out_of_memory import dense, named_in_memory_errors
from cellgen.runtime.options import NONE, ROWS, SWITCHES, Options

PRODUCTS = ROWS["products"]
_OWN = frozenset(name for name in OF_RUN if not ROWS[name].of_call)
"""What a run alone says."""
_BATCH_FIRST = Options(batch_first=True)


def bits_of(scalars: tuple[tuple[str, float], ...]) -> tuple[tuple[str, str], ...]:
    """Run-time scalars as keys: 0.0 and -0.0 are two, and a NaN is itself."""
    return tuple([(name, float.hex(value)) for name, value in scalars])


def _label(runs: Runs) -> str:
    return runs.label


class Runs:
    """The forward runs of one cell, as one of its functions over time sees them."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        self.label = f"{kernel.name}.{function.name}"
        self._kernel, self._function = kernel, function
        self._reads = frozenset(item.name for item in function.arguments)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        self._scalars = {name: default for _, name, default in scalar_places(function)}
        self._known: dict[object, ForwardRun] = {}

    # --- of a forward pass ---

    def scalars(self, arguments: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
        """The run-time scalars of a call."""
        if not self._scalars:
            return ()
        return tuple(
            (name, as_scalar(self.label, name, arguments.get(name, default), default))
            for name, default in self._scalars.items()
        )

    @named_in_memory_errors(_label)
    def describe(
        self,
        dims: tuple[int, ...],
        options: Options,
        scalars: tuple[tuple[str, float], ...],
        *,
        copied: bool,
    ) -> ForwardRun:
        """Write down how a run that saves was made; ``copied``: its tables of steps are copies."""
        key = dims, bits_of(scalars)
        known = self._known.get(key) if options is NONE else None
        if known is not None:
            return known
        sizes = dict(zip(self._function.dims, dims, strict=True))
        steps, rows = sizes["T"], sizes["B"]
        flags: dict[str, Any] = {
            n: read_flags(self.label, n, options, steps, rows) for n in ("mask", "reset")
        }
        if copied:
            flags = {n: None if a is None else a.copy(order="C") for n, a in flags.items()}
        switches: dict[str, Any] = {n: bool(getattr(options, n)) for n in OF_RUN if n in SWITCHES}
        how = Options(
            read_lengths(self.label, options.lengths, steps, rows),
            **flags,
            **switches,
            every=int(options.every),
            products=options.products,
            checkpoint=options.checkpoint,
            flush_denormals=options.flush_denormals,
        )
        name, named = self._kernel.name, self._function.dims
        run = ForwardRun(name, self._kernel.digest(), named, dims, scalars, how)
        if options is NONE:
            if len(self._known) >= KEPT_PLANS:
                self._known.clear()
            self._known[key] = run = run._replace(options=NONE)
        return run

    # --- of a backward pass ---

    def beside(
        self, arguments: dict[str, object], saved: Saved, run: ForwardRun
    ) -> dict[str, object] | None:
        """The arguments of a call with what a run saved; None where more has to be looked at."""
        options = run.options
        if run.dims != self._function.dims or run.digest != self._kernel.digest():
            return None
        whole = arguments.copy()
        if run.checkpoint:
            numbers = int(options.flush_denormals), PRODUCTS.choices.index(options.products)
            whole[KEPT_NAME] = run.checkpoint, *numbers, *saved
        else:
            whole.update(zip(self._takes, saved, strict=True))
        if options is NONE and not run.scalars and not saved._whole:
            return whole if arguments.keys().isdisjoint(_OWN) else None
        of_run = {n: v for n, v in run.scalars if n in self._scalars}
        of_run |= {n: v for n in OF_RUN if (v := getattr(options, n)) is not getattr(NONE, n)}
        whole |= {n: v for n, v in of_run.items() if arguments.get(n) is None}
        swaps = whole.get("batch_first", False) is not False
        if swaps and not (options.mask is None and options.reset is None):
            return None
        if not (_OWN.isdisjoint(arguments) and self._scalars.keys().isdisjoint(arguments)):
            return None
        if saved._whole:
            self.add_whole(whole, saved, _BATCH_FIRST if swaps else NONE)
        return whole

    def take(self, arguments: dict[str, object], saved: object) -> ForwardRun | None:
        """Unfold ``saved`` into the arguments that come from the forward pass; return its run.

        Raises ArgumentError: nothing is saved, or a scalar is another than the run had.
        """
        if saved is None:
            if self._takes and not any(name in arguments for name in self._takes):
                raise ArgumentError(
                    f"{self.label}: saved is missing, expected what "
                    f"sequence_forward(..., save=True).saved holds ({', '.join(self._takes)}); "
                    f"pass saved=..."
                )
            return None
        arrays, run = read_saved(
            self.label, self._takes, saved, self._kernel.name, self._kernel.digest()
        )
        arguments.update(arrays)
        for name, kept in () if run is None else run.scalars:
            if name not in self._scalars:
                continue
            default = self._scalars[name]
            value = as_scalar(self.label, name, arguments.get(name, kept), default)
            if not same_number(value, kept):
                raise ArgumentError(
                    f"{self.label}: {name} is {value!r}, but the run that saved had {kept!r}; "
                    f"leave {name} out, or run sequence_forward with it too"
                )
            arguments[name] = value
        return run

    def add_whole(self, arguments: dict[str, object], saved: object, options: Options) -> None:
        """Add the outputs of all steps that a run kept which showed some of them.

        They have the layout of a call; those that it showed may be among the arguments.
        """
        if not isinstance(saved, Saved) or saved.run is None:
            return
        first, steps = saved.run.options.batch_first, shown_steps(saved.run.options)
        for name, kept in saved._whole.items():
            if name not in self._reads:
                continue
            shape = (kept[:, steps] if first else kept[steps]).shape
            array, transposed = arguments.get(name), is_on(options.batch_first) != first
            whole = kept.swapaxes(0, 1) if transposed else kept
            shape = (shape[1], shape[0], *shape[2:]) if transposed else shape
            if array is None or (isinstance(array, np.ndarray) and array.shape == shape):
                arguments[name] = whole

    def steps(self, run: ForwardRun | None, stated: Mapping[str, Any]) -> dict[str, object]:
        """Return which steps are valid as a call states them, or as the run had them."""
        if run is None:
            return {name: stated.get(name, ROWS[name].default) for name in OF_RUN}
        return steps_of(self.label, run, stated, partial(self._same, run, stated))

    def check(self, run: ForwardRun, dims: Mapping[str, int]) -> None:
        """Raise ArgumentError where a call has other dimensions than the run that saved."""
        of_run = dict(zip(run.dims, run.sizes, strict=True))
        other = [name for name, size in dims.items() if of_run.get(name, size) != size]
        if other:
            own_sizes, expected = (
                ", ".join(f"{name} = {sizes[name]}" for name in other) for sizes in (dims, of_run)
            )
            raise ArgumentError(
                f"{self.label}: arguments have {own_sizes}, but saved is of a run with "
                f"{expected}; pass the arguments and results of that run"
            )

    @named_in_memory_errors(_label)
    def _same(
        self,
        run: ForwardRun,
        stated: Mapping[str, Any],
        name: str,
        stated_value: object,
        own: object,
    ) -> bool:
        """Whether lengths, mask or reset of a call are those that a run had."""
        sizes = dict(zip(run.dims, run.sizes, strict=True))
        steps, rows = sizes["T"], sizes["B"]
        if name == "lengths":
            table = read_lengths(self.label, stated_value, steps, rows)
            return np.array_equal(table, own)  # type: ignore[arg-type]
        first = stated.get("batch_first", run.options.batch_first)
        options = Options(**{name: stated_value}, batch_first=is_on(first))  # type: ignore[arg-type]
        flags = read_flags(self.label, name, options, steps, rows)
        if flags is None or own is None:
            return flags is own
        return np.array_equal(dense(flags), dense(own))  # type: ignore[arg-type]

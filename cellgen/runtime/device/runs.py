"""What a forward run on a device hands on to its backward pass, and whether a call agrees with it.

As ``call.runs``, but nothing is compared that would wait for the device: arrays of options are
those of the run by where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import as_scalar
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.saved import (
    ForwardRun,
    Saved,
    is_on,
    make_saved,
    read_saved,
    same_number,
    stated_of,
    steps_of,
)
from cellgen.runtime.device.arrays import same_place
from cellgen.runtime.device.launching import DeviceOwner
from cellgen.runtime.options import Options


class DeviceRuns:
    """The forward runs of one cell, as one of its functions sees them."""

    def __init__(self, kernel: DeviceOwner, function: Function, outputs: Outputs) -> None:
        self._kernel, self._function, self._outputs = kernel, function, outputs
        self._label = f"{kernel.name}.{function.name}"
        self._known = frozenset(item.name for item in function.arguments)
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        self._defaults = {a.name: a.default for a in function.arguments if a.is_scalar}

    def keep(
        self,
        results: Mapping[str, object],
        dims: Mapping[str, int],
        scalars: Mapping[str, float],
        options: Options,
    ) -> Saved:
        """Put what was saved together with how the run was made; its tables stay on the device."""
        names = self._function.dims
        sizes = tuple(dims[name] for name in names)
        digest = self._kernel.digest()
        run = ForwardRun(self._kernel.name, digest, names, sizes, tuple(scalars.items()), options)
        whole = {n: results[n] for n in self._outputs.names if options.every != 1}
        return make_saved(self._saves, tuple(results[n] for n in self._saves), run, whole)  # type: ignore[misc,arg-type]

    def take(
        self, arguments: dict[str, object], saved: object
    ) -> tuple[dict[str, object], ForwardRun | None]:
        """Return what was saved, and add the options of its run to the arguments.

        Raises ArgumentError.
        """
        if saved is None:
            return {}, None
        arrays, run = read_saved(
            self._label, self._takes, saved, self._kernel.name, self._kernel.digest()
        )
        if run is None or not isinstance(saved, Saved):
            return {**arrays}, None
        self._take_scalars(arguments, run)
        stated = stated_of(arguments)
        first = stated.get("batch_first")
        transposed = first is not None and is_on(first) != run.options.batch_first
        for name in ("mask", "reset"):
            if transposed and name not in stated and getattr(run.options, name) is not None:
                raise self._other_layout(f"{name} of the run that saved is", run, stated)
        steps = steps_of(self._label, run, stated, self._same)
        arguments.update(steps)
        whole = {n: a for n, a in saved._whole.items() if n in self._known}
        if whole and transposed:
            raise self._other_layout(
                f"{', '.join(whole)} of all steps, which saved has, are", run, stated
            )
        for name in whole:  # what the run showed of it
            arguments.pop(name, None)
        return {**arrays, **whole}, run

    def check(self, run: ForwardRun | None, dims: Mapping[str, int]) -> None:
        """Raise ArgumentError where a call has other dimensions than the run that saved."""
        for name, size in zip(run.dims, run.sizes, strict=True) if run else ():
            if dims.get(name, size) != size:
                raise ArgumentError(
                    f"{self._label}: arguments have {name} = {dims[name]}, but saved is of a run "
                    f"with {name} = {size}; pass the arguments and results of that run"
                )

    def _take_scalars(self, arguments: dict[str, object], run: ForwardRun) -> None:
        for name, kept in run.scalars:
            if name not in self._defaults:
                continue
            value = as_scalar(self._label, name, arguments.get(name, kept), self._defaults[name])
            if not same_number(value, kept):
                raise ArgumentError(
                    f"{self._label}: {name} is {value!r}, but the run that saved had {kept!r}; "
                    f"leave it out"
                )
            arguments[name] = value

    def _same(self, name: str, value: object, own: object) -> bool:
        """Raise ArgumentError for another array than that of a run: contents would take waiting."""
        if not same_place(value, own):
            raise ArgumentError(
                f"{self._label}: {name} is another array than the run that saved had (contents on "
                f"a device are not compared); pass that one, or leave {name} out"
            )
        return True

    def _other_layout(self, what: str, run: ForwardRun, stated: Mapping[str, Any]) -> ArgumentError:
        own, called = run.options.batch_first, stated["batch_first"]
        return ArgumentError(
            f"{self._label}: {what} laid out for batch_first={own}, expected as "
            f"batch_first={called} says; pass it transposed, or leave batch_first out"
        )

"""Recognise a call on a device that is like an earlier one, at little cost.

Input: what a call was given. Output: ``SeenCall``: the kind of the call, from which the verdicts of
all its checks follow but that on addresses, and what differs between calls of one kind. A call that
is unusual, or may be wrong, is none: the checks look at it themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from cellgen.errors import DeviceError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import as_scalar
from cellgen.runtime.call.saved import OF_RUN, Saved, same_number
from cellgen.runtime.call.views import ArrayView
from cellgen.runtime.device.arrays import (
    DeviceArray,
    Stream,
    Tensors,
    look,
    placed,
    stream_handle,
)
from cellgen.runtime.device.launching import DeviceOwner
from cellgen.runtime.device.settings import TABLES
from cellgen.runtime.options import TABLE

_NUMBERS = frozenset(option.name for option in TABLE) - frozenset(TABLES)
"""Options that are no arrays."""


class CallRequest(NamedTuple):
    """What a call is given, before any of it is looked at."""

    out: object
    save: object
    saved: object
    stream: Stream
    tier: object
    graph: object
    arguments: Mapping[str, object]


class SeenCall(NamedTuple):
    """A call by its ``kind``, and what its kind leaves open.

    ``addresses`` are those of arrays by label, ``bits`` all that are set in any address of an
    array of numbers. ``operands`` are the arrays, ``results`` those of ``out``, ``tables`` those of
    options. ``views`` are of arrays that were lent; they stay so while ``lent`` lives.
    """

    kind: tuple[object, ...]
    stream: int
    addresses: dict[str, int]
    bits: int
    operands: Mapping[str, object]
    results: Mapping[str, object]
    tables: Mapping[str, object]
    scalars: Mapping[str, float]
    views: Mapping[str, ArrayView]
    lent: list[object]


class Recognition:
    """Sees which calls of one function are of one kind."""

    def __init__(self, kernel: DeviceOwner, function: Function) -> None:
        self._label, self._kernel = f"{kernel.name}.{function.name}", kernel
        self._defaults = {a.name: a.default for a in function.arguments if a.default is not None}
        self._known = frozenset(item.name for item in function.arguments)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        self._results = tuple(item.name for item in function.results)
        self._numbers = _NUMBERS if function.team else frozenset[str]()
        self._tables = frozenset(TABLES) if function.team else frozenset[str]()

    def see(self, request: CallRequest) -> SeenCall | None:
        """Look at a call; None for one that is unusual or may be wrong. Raises DeviceError."""
        try:
            return self._see(request)
        except DeviceError:  # of the driver, which may fail once
            raise
        except Exception:  # of whatever is wrong with it: the checks say so
            return None

    def _see(self, request: CallRequest) -> SeenCall | None:
        how = (request.save, request.tier, request.graph)
        kind: list[object] = [*how]
        tables, operands, scalars = dict[str, object](), dict[str, object](), {**self._defaults}
        kept = self._kept(request.saved, kind, tables)
        results = self._results_of(request.out)
        if tuple(map(type, how)) not in _USUAL or kept is None or results is None:
            return None
        for name, value in request.arguments.items():
            if value is None or name in kept:
                kind += (name, value is None)
            elif name in self._defaults:
                scalars[name] = as_scalar(self._label, name, value, None)
                kind += (name, float)
            elif name in self._numbers and _is_plain(value):
                kind += (name, type(value), value)
            else:
                (tables if name in self._tables else operands)[name] = value
        operands |= kept
        if self._is_odd(request, scalars):
            return None
        return self._looked_at(request.stream, kind, operands, results, tables, scalars)

    def _is_odd(self, request: CallRequest, scalars: dict[str, float]) -> bool:
        """Whether a call states what its forward run has; takes the scalars of that."""
        run = request.saved.run if isinstance(request.saved, Saved) else None
        if run is None:
            return False
        stated = {name for name, value in request.arguments.items() if value is not None}
        if not stated.isdisjoint((*self._takes, *TABLES)):
            return True
        for name, own in run.scalars:
            if name in self._defaults:
                value = as_scalar(self._label, name, request.arguments.get(name, own), None)
                if not same_number(value, own):
                    return True
                scalars[name] = value
        return False

    def _kept(
        self, saved: object, kind: list[object], tables: dict[str, object]
    ) -> dict[str, object] | None:
        """What a forward run hands on: its arrays, and tables of its options."""
        kind.append(type(saved))
        if saved is None:
            return {}
        run = saved.run if isinstance(saved, Saved) else None
        if run is None or not isinstance(saved, Saved) or run.checkpoint:
            return None
        options = run.options
        tables |= {n: a for n in TABLES if (a := getattr(options, n)) is not None}
        whole = {name: array for name, array in saved._whole.items() if name in self._known}
        kind += (run.digest, run.dims, run.sizes, _PLAIN(options), tuple(tables), tuple(whole))
        return {**dict(zip(self._takes, saved, strict=True)), **whole}

    def _results_of(self, out: object) -> dict[str, object] | None:
        """The arrays of ``out`` by name."""
        if out is None:
            return {}
        if type(out) is tuple:
            out = dict(zip(self._results, out, strict=True))
        if type(out) is not dict:
            return None
        return {name: array for name, array in out.items() if array is not None}

    def _looked_at(
        self,
        stream: Stream,
        kind: list[object],
        operands: dict[str, object],
        results: dict[str, object],
        tables: dict[str, object],
        scalars: dict[str, float],
    ) -> SeenCall:
        """Look at arrays: where they are, and all else that checks depend on."""
        handle = stream_handle(stream, operands.values())
        tensors, addresses, bits = Tensors(handle), dict[str, int](), 0
        views, lent = dict[str, ArrayView](), list[object]()
        labelled = [*operands.items(), *((f"out {name}", array) for name, array in results.items())]
        count = len(labelled)
        labelled += ((f"option {name}", array) for name, array in tables.items())
        for number, (label, array) in enumerate(labelled):
            if type(array) is DeviceArray:
                kind += (label, DeviceArray, array.shape, array.dtype, array.device)
                address = array.pointer
            elif type(array) in tensors.kinds and (facts := tensors.facts(array)) is not None:
                address = facts[0]
                kind += (label, *facts[1])
            else:
                view = look(self._label, label, array, handle, lent)
                view = views[label] = placed(self._label, label, view, self._kernel.library)
                kind += (label, ArrayView, view.shape, view.dtype, view.strides, view.device)
                kind += (view.writable, view.library)
                address = view.pointer
            addresses[label] = address
            if number < count:
                bits |= address
        return SeenCall(
            tuple(kind), handle, addresses, bits, operands, results, tables, scalars, views, lent
        )


_PLAIN = attrgetter(*(name for name in OF_RUN if name not in TABLES))
"""What a run says of its steps, but for arrays."""
_USUAL = frozenset((bool, str, graph) for graph in (bool, type(None)))
"""Types of ``save``, ``tier`` and ``graph``."""


def _is_plain(value: object) -> bool:
    """Whether an option can be told from others by its type and by comparing it."""
    if type(value) is tuple:
        return all(type(item) is str for item in value)
    return type(value) in (bool, int, str)

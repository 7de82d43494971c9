"""Call one function of a cell's CUDA kernels on device arrays, by the names of its equations.

Input: device arrays, options, a stream. Output: a named tuple of results, launched and not waited
for. Checks are those of calls on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import (
    as_scalar,
    check_call,
    check_names,
    lengths,
    refuse_overflow,
    take_out,
)
from cellgen.runtime.call.engine import SURELY_COUNTED
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.call.signature import lengths_of, of_steps
from cellgen.runtime.call.views import BYTES, ArrayView
from cellgen.runtime.device.arrays import (
    SUFFIXES,
    Stream,
    Views,
    make_like,
    place_of,
    shown_part,
    stream_handle,
    view_of_result,
)
from cellgen.runtime.device.cuda_abi import ON_UNITS
from cellgen.runtime.device.engine import FarCall
from cellgen.runtime.device.graphs import Graphs
from cellgen.runtime.device.launching import DeviceOwner, FunctionLauncher
from cellgen.runtime.device.runs import DeviceRuns
from cellgen.runtime.device.settings import (
    TIERS,
    DeviceOptions,
    check_tables,
    meant_tier,
    take_options,
)
from cellgen.runtime.options import FORWARD, with_tables
from cellgen.runtime.results import Results, result_class


class CudaFunction:
    """One function of a kernel: checks its arguments, launches, returns a named tuple."""

    def __init__(self, kernel: DeviceOwner, function: Function) -> None:
        self.__name__ = function.name
        self.__qualname__ = f"{kernel.name}.{function.name}"
        self.function = function
        self._kernel = kernel
        self._defaults = {a.name: a.default for a in function.arguments if a.is_scalar}
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._results = tuple(item.name for item in function.results)
        arguments = ((a.name, a) for a in function.arguments)
        results = ((f"out {a.name}", a) for a in function.results)
        self._over_time = {name for name, a in (*arguments, *results) if a.over_time}
        self._known = {a.name for a in function.arguments}
        self._required = {
            a.name for a in function.arguments if a.used and not (a.optional or a.is_scalar)
        }
        extra = ("saved",) if function.name == FORWARD else ()
        self.result = result_class(function.name, (*self._fields, *extra))
        self._outputs = Outputs(self.__qualname__, function)
        self._runs = DeviceRuns(kernel, function, self._outputs)
        self.launcher = FunctionLauncher(kernel, function)

    @property
    def graphs(self) -> Graphs:
        """The graphs that calls replay."""
        return self.launcher.graphs

    def __repr__(self) -> str:
        return f"<CUDA kernel function {self.__qualname__}>"

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self._kernel, self.__name__)

    def __call__(
        self,
        /,
        *,
        out: Mapping[str, object] | None = None,
        save: bool = False,
        saved: Saved | Mapping[str, object] | None = None,
        stream: Stream = None,
        tier: str = "auto",
        graph: bool | None = None,
        **arguments: object,
    ) -> Results:
        """Launch the function on a stream. Raises ArgumentError, DeviceError, MemoryError.

        ``tier`` says how functions over time run: ``"steps"`` one launch for each level and step,
        ``"whole"`` all steps in one launch where the cell allows it, to the same bits,
        ``"fragments"`` the same with matrix units, of 16 bits only, ``"device"`` and ``"cluster"``
        in one launch whose blocks share the layer and wait for each other, ``"auto"`` as the cost
        models of ``cellgen_persist_choice.cuh`` and ``cellgen_cuda_tiers.cuh`` choose between all;
        with CELLGEN_PERSISTENT=0 in the environment between the first three, where ``"together"``
        means all nevertheless, and ``"half"`` the same in half of the processors. Only compute
        capability 9.0 has constants for ``"device"`` and ``"cluster"``: elsewhere they are taken
        where a call says so.

        ``graph`` says whether a function over time replays its launches as a CUDA graph: True
        always, False never, None from the second call on with the same arrays. Into a stream that
        the caller captures, kernels are launched as they are. Graphs keep a workspace;
        ``function.graphs.clear()`` gives it back.

        Functions over time take the options of the C kernels whose row in ``options.TABLE`` says
        that devices have them. Their arrays lie on the device, ``lengths`` of int64; a length
        outside 0 to T counts as the nearer of the two.
        """
        label, function = self.__qualname__, self.function
        tier = accept.choice(label, "tier", meant_tier(tier), TIERS)
        save = accept.flag(label, "save", save)
        if graph is not None and accept.flag(label, "graph", graph) and not function.team:
            raise ArgumentError(f"{label}: graph is an option of functions over time; leave it out")
        kept, run = self._runs.take(arguments, saved)
        options = take_options(label, function, self._outputs, arguments, tier, save=save)
        results = {} if out is None else self._given(out, options, save=save)
        arguments |= kept  # after the options, whose names a value may have
        operands: dict[str, object] = {n: a for n, a in arguments.items() if a is not None}
        scalars = {n: as_scalar(label, n, operands.pop(n, d), d) for n, d in self._defaults.items()}
        if not (operands.keys() <= self._known and operands.keys() >= self._required):
            check_names(label, function, operands)
        look = Views(label, stream_handle(stream, operands.values()), self._kernel.library)
        views = {name: look(name, array) for name, array in operands.items()}
        views |= {f"out {n}": look(f"out {n}", array) for n, array in results.items()}
        tables = {n: look(f"option {n}", array) for n, array in options.tables.items()}
        try:
            call = self._bound(operands, results, views, tables, scalars, options, tier, save=save)
            self._runs.check(run, call.sizes)
            results |= self._run(call, operands, results, tables, options, look, tier, graph, save)
        finally:
            look.lent.clear()
        return self._named(results, call, scalars, options, save=save)

    def _given(
        self, out: Mapping[str, object], options: DeviceOptions, *, save: bool
    ) -> dict[str, object]:
        """Name the results that have memory. Raises ArgumentError."""
        results: dict[str, object] = {**take_out(self.__qualname__, self._results, out)}
        self._outputs.refuse(results, options.chosen)
        if save and options.stated.every != 1:
            self._outputs.refuse_copies(results, options.stated)
        return results

    def _bound(
        self,
        operands: Mapping[str, object],
        results: Mapping[str, object],
        views: dict[str, ArrayView],
        tables: dict[str, ArrayView],
        scalars: Mapping[str, float],
        options: DeviceOptions,
        tier: str,
        *,
        save: bool,
    ) -> FarCall:
        """Bind a call, its arrays time-major. Raises ArgumentError."""
        label, chosen = self.__qualname__, options.chosen
        if chosen.batch_first:
            tables.update((n, v.swapped()) for n, v in tables.items())
            views.update((n, v.swapped()) for n, v in views.items() if n in self._over_time)
        element = "" if results else _plain_element(views)
        arrays: Iterable[tuple[str, ArrayView]] = views.items()
        if results:
            arrays = [(name.removeprefix("out "), view) for name, view in views.items()]

        def bound(element: str) -> FarCall | None:
            return self.launcher.engine.bind(element, arrays, chosen, scalars.items(), saves=save)

        call = bound(element) if element else None
        if call is None:
            checked = check_call(
                label,
                of_steps(self.function, chosen),
                operands,
                results,
                lambda *at: views[at[2]],
                tuple(SUFFIXES),
            )
            element = checked.element
            refuse_overflow(label, self.function, checked.dims, BYTES[element])
            call = bound(element)
        if call is None:
            raise self.launcher.engine.defect()
        if results:
            places = {n: place_of(view) for n, view in views.items() if 0 not in view.shape}
            written = {n: places.pop(f"out {n}") for n in results if f"out {n}" in places}
            refuse_shared(label, places, written)
        if math.prod(size or 1 for size in call.words.dims) >= SURELY_COUNTED:
            refuse_overflow(label, self.function, call.sizes, BYTES[element])
        if tier == "fragments" and element not in ON_UNITS:
            raise ArgumentError(
                f"{label}: tier is 'fragments' and arrays are {element}: matrix units take "
                f"{' and '.join(ON_UNITS)} only; use tier='whole'"
            )
        device = next(iter(views.values())).device
        check_tables(label, tables, call.sizes, device, batch_first=chosen.batch_first)
        call.element, call.device = element, device
        return call

    def _run(
        self,
        call: FarCall,
        operands: Mapping[str, object],
        results: Mapping[str, object],
        tables: Mapping[str, ArrayView],
        options: DeviceOptions,
        look: Views,
        tier: str,
        graph: bool | None,
        save: bool,
    ) -> dict[str, object]:
        """Make the results that a call forms, and launch its kernels; return these results."""
        kernel, chosen = self._kernel, options.chosen
        element, device, sizes = call.element, call.device, call.sizes
        library = kernel.library(element)
        if chosen.every != 1:
            sizes = {**sizes, **lengths_of(chosen, sizes["T"])}
        kernel.require_device(device)
        formed = [i for i in self._outputs.formed(chosen, saves=save) if i.name not in results]
        shapes = [lengths(item, sizes) for item in formed]
        turned = [chosen.batch_first and item.over_time for item in formed]
        if chosen.batch_first:
            pairs = zip(shapes, turned, strict=True)
            shapes = [(s[1], s[0], *s[2:]) if is_turned else s for s, is_turned in pairs]
        with library.on(device):
            like = next(iter(operands.values()))
            arrays = make_like(like, shapes, element, device, library, look.stream)
            if call.is_run:
                fresh = []
                for item, shape, array, turn in zip(formed, shapes, arrays, turned, strict=True):
                    view = view_of_result(array, shape, element, device)
                    fresh.append((item.name, view.swapped() if turn else view))
                call.prepare(fresh, tables)
                replays = None if graph is None and self.function.team else bool(graph)
                launcher = self.launcher
                ready = launcher.ready(library, element, device, call.words, look.stream, tier)
                launcher.launch(library, ready, replays)
        return {item.name: array for item, array in zip(formed, arrays, strict=True)}

    def _named(
        self,
        results: dict[str, object],
        call: FarCall,
        scalars: Mapping[str, float],
        options: DeviceOptions,
        *,
        save: bool,
    ) -> Results:
        if self.function.name != FORWARD:
            return tuple.__new__(self.result, [results.get(name) for name in self._fields])
        saved = None
        if save:
            stated = with_tables(options.stated, **options.tables)
            saved = self._runs.keep(results, call.sizes, scalars, stated)
            results |= {n: shown_part(a, stated) for n, a in saved._whole.items()}
        return tuple.__new__(self.result, [*(results.get(name) for name in self._fields), saved])


def _plain_element(views: Mapping[str, ArrayView]) -> str:
    """The type that all arrays of a call have, aligned and on one device; empty: they have not."""
    element, device, bits = "", None, 0
    for view in views.values():
        element, device = element or view.dtype, view.device if device is None else device
        bits |= view.pointer
        if view.dtype != element or view.device != device:
            return ""
    return element if element in SUFFIXES and not bits % BYTES[element] else ""

"""Call one function of a cell's CUDA kernels on device arrays, by the names of its equations.

Input: device arrays, options, a stream. Output: a named tuple of results, launched and not waited
for. Checks are those of calls on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.call.arguments import (
    as_scalar,
    check_call,
    check_names,
    has_elements,
    refuse_overflow,
    take_out,
)
from cellgen.runtime.call.outputs import Outputs, interface_of
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.call.views import BYTES, ArrayView
from cellgen.runtime.device.arrays import (
    SUFFIXES,
    Stream,
    looked_at,
    make_like,
    shown_part,
    stream_handle,
    view_of_made,
)
from cellgen.runtime.device.graphs import Graphs
from cellgen.runtime.device.launching import DeviceCall, DeviceOwner, launch, launch_of
from cellgen.runtime.device.runs import DeviceRuns
from cellgen.runtime.device.settings import TIERS, DeviceOptions, check_tables, take_options
from cellgen.runtime.options import FORWARD
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
        named = ((a.name, a) for a in function.arguments)
        made = ((f"out {a.name}", a) for a in function.results)
        self._over_time = {name for name, a in (*named, *made) if a.over_time}
        extra = ("saved",) if function.name == FORWARD else ()
        self.result = result_class(function.name, (*self._fields, *extra))
        self._outputs = Outputs(self.__qualname__, function)
        self._runs = DeviceRuns(kernel, function, self._outputs)
        self.graphs = Graphs()

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
        ``"fragments"`` the same with matrix units, of bfloat16 only, ``"auto"`` as the cost model
        of ``cellgen_cuda_tiers.cuh`` chooses.

        ``graph`` says whether a function over time replays its launches as a CUDA graph: True
        always, False never, None from the second call on with the same arrays. Into a stream that
        the caller captures, kernels are launched as they are. Graphs keep a workspace;
        ``function.graphs.clear()`` gives it back.

        Functions over time take the options of the C kernels whose row in ``options.TABLE`` says
        that devices have them. Their arrays lie on the device, ``lengths`` of int64; a length
        outside 0 to T counts as the nearer of the two.
        """
        where, function = self.__qualname__, self.function
        tier, save = accept.choice(where, "tier", tier, TIERS), accept.flag(where, "save", save)
        if graph is not None and accept.flag(where, "graph", graph) and not function.team:
            raise ArgumentError(f"{where}: graph is an option of functions over time; leave it out")
        kept, run = self._runs.take(arguments, saved)
        options = take_options(where, function, self._outputs, arguments, tier, save=save)
        results = {} if out is None else dict(take_out(where, self._results, out))
        if save and options.stated.every != 1:
            self._outputs.refuse_copies(results, options.stated)
        arguments |= kept  # after the options, whose names a value may have
        given: dict[str, object] = {n: a for n, a in arguments.items() if a is not None}
        scalars = {n: as_scalar(where, n, given.pop(n, d), d) for n, d in self._defaults.items()}
        check_names(where, function, given)
        handle = stream_handle(stream, given.values())
        arrays = {**given, **{f"out {n}": a for n, a in results.items()}, **options.labelled}
        with looked_at(where, arrays, handle) as views:
            call = self._checked(given, results, views, options, scalars, tier, handle)
            self._runs.check(run, call.checked.dims)
            made = self._run(call, options, given, results, graph, save=save)
        return self._named(made, call, options, save=save)

    def _checked(
        self,
        given: Mapping[str, object],
        results: Mapping[str, object],
        found: dict[str, ArrayView],
        options: DeviceOptions,
        scalars: Mapping[str, float],
        tier: str,
        stream: int,
    ) -> DeviceCall:
        """Check what a call was given. Raises ArgumentError."""
        where, first = self.__qualname__, options.chosen.batch_first
        views = {name: self._placed(name, view) for name, view in found.items()}
        tables = {n.removeprefix("option "): views.pop(n) for n in options.labelled}
        if first:
            tables = {n: v.swapped() for n, v in tables.items()}
            views.update((n, v.swapped()) for n, v in views.items() if n in self._over_time)
        function = interface_of(self.function, options.chosen.every)
        checked = check_call(
            where, function, given, results, lambda _, label, __: views[label], tuple(SUFFIXES)
        )
        refuse_overflow(where, self.function, checked.dims, BYTES[checked.element])
        if tier == "fragments" and checked.element != "bfloat16":
            raise ArgumentError(
                f"{where}: tier is 'fragments' and arrays are {checked.element}: matrix units take "
                f"bfloat16 only; use tier='whole'"
            )
        check_tables(where, tables, checked.dims, checked.device, batch_first=first)
        return DeviceCall(checked, views, tables, scalars, options.settings, stream)

    def _placed(self, name: str, view: ArrayView) -> ArrayView:
        """Ask the driver where an array lies that does not say so itself."""
        if view.device >= 0:
            return view
        device = self._kernel.library().device_of(view.pointer) if view.pointer else 0
        if device < 0:
            raise ArgumentError(
                f"{self.__qualname__}: {name} lies in the host's memory; move it to the device"
            )
        return replace(view, device=device)

    def _run(
        self,
        call: DeviceCall,
        options: DeviceOptions,
        given: Mapping[str, object],
        results: Mapping[str, object],
        graph: bool | None,
        *,
        save: bool,
    ) -> dict[str, object]:
        """Make the results that a call forms, launch its kernels, and return every result."""
        library, device = self._kernel.library(), call.checked.device
        self._kernel.require_device(device)
        with library.on(device):
            found, views = self._make_results(call, options, given, results, save=save)
            if has_elements(self.function.results, call.checked.dims):
                ready = launch_of(self._kernel, self.function, replace(call, views=views))
                launch(library, self.graphs, ready, graph if self.function.team else False)
        return found

    def _make_results(
        self,
        call: DeviceCall,
        options: DeviceOptions,
        given: Mapping[str, object],
        results: Mapping[str, object],
        *,
        save: bool,
    ) -> tuple[dict[str, object], dict[str, ArrayView]]:
        """Allocate the results that a call forms; return all of them, and views of everything."""
        found, views = dict(results), dict(call.views)
        checked, like = call.checked, next(iter(given.values()))
        for item in interface_of(self.function, options.chosen.every).results:
            if item.name in results or (item.saved and not save):
                continue
            if not self._outputs.is_formed(item.name, options.chosen):
                continue
            shape = tuple(axis_length(axis, checked.dims) for axis in item.shape)
            transposed = options.chosen.batch_first and item.over_time
            if transposed:
                shape = (shape[1], shape[0], *shape[2:])
            library = self._kernel.library()
            made = make_like(like, shape, checked.element, checked.device, library, call.stream)
            view = view_of_made(made, shape, checked.element, checked.device)
            found[item.name] = made
            views[f"out {item.name}"] = view.swapped() if transposed else view
        return found, views

    def _named(
        self, found: dict[str, object], call: DeviceCall, options: DeviceOptions, *, save: bool
    ) -> Results:
        if self.function.name != FORWARD:
            return tuple.__new__(self.result, [found.get(name) for name in self._fields])
        made = None
        if save:
            made = self._runs.keep(found, call.checked.dims, call.scalars, options.stated)
            found |= {n: shown_part(a, options.stated) for n, a in made._whole.items()}
        return tuple.__new__(self.result, [*(found.get(name) for name in self._fields), made])

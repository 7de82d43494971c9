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
from cellgen.runtime.call.kept import KeptPlans
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.call.signature import of_steps
from cellgen.runtime.call.views import BYTES, ArrayView
from cellgen.runtime.device.arrays import (
    SUFFIXES,
    Stream,
    address_of_result,
    look,
    make_like,
    placed,
    shown_part,
    stream_handle,
)
from cellgen.runtime.device.cuda_abi import ON_UNITS
from cellgen.runtime.device.graphs import Graphs
from cellgen.runtime.device.launching import DeviceCall, DeviceOwner, launch, plan_launch
from cellgen.runtime.device.plan import DevicePlan
from cellgen.runtime.device.recognise import CallRequest, Recognition, SeenCall
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
        extra = ("saved",) if function.name == FORWARD else ()
        self.result = result_class(function.name, (*self._fields, *extra))
        self._outputs = Outputs(self.__qualname__, function)
        self._runs = DeviceRuns(kernel, function, self._outputs)
        self._recognition = Recognition(kernel, function)
        self._plans = KeptPlans[DevicePlan]()
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
        request = CallRequest(out, save, saved, stream, meant_tier(tier), graph, arguments)
        call = self._recognition.see(request)
        plan = None if call is None else self._plans.find(call.kind)
        if call is None or plan is None or call.bits % plan.itemsize:
            call, plan = self._check(request, call)
        try:
            return self._named(self._run(plan, call, graph), plan, call, save=bool(save))
        finally:
            call.lent.clear()

    def _check(self, request: CallRequest, seen: SeenCall | None) -> tuple[SeenCall, DevicePlan]:
        """Check a call, and plan it; what was ``seen`` of it is kept. Raises ArgumentError."""
        label, function, graph = self.__qualname__, self.function, request.graph
        tier = accept.choice(label, "tier", request.tier, TIERS)
        save = accept.flag(label, "save", request.save)
        if graph is not None and accept.flag(label, "graph", graph) and not function.team:
            raise ArgumentError(f"{label}: graph is an option of functions over time; leave it out")
        arguments = {**request.arguments}
        kept, run = self._runs.take(arguments, request.saved)
        options = take_options(label, function, self._outputs, arguments, tier, save=save)
        results = {} if request.out is None else dict(take_out(label, self._results, request.out))
        if save and options.stated.every != 1:
            self._outputs.refuse_copies(results, options.stated)
        arguments |= kept  # after the options, whose names a value may have
        operands: dict[str, object] = {n: a for n, a in arguments.items() if a is not None}
        scalars = {n: as_scalar(label, n, operands.pop(n, d), d) for n, d in self._defaults.items()}
        check_names(label, function, operands)
        stream = stream_handle(request.stream, operands.values())
        arrays = operands | {f"out {n}": a for n, a in results.items()}
        arrays |= {f"option {n}": a for n, a in options.tables.items()}
        lent, views = list[object](), dict[str, ArrayView]()
        for name, array in arrays.items():
            known = None if seen is None else seen.views.get(name)
            views[name] = known or look(label, name, array, stream, lent)
        device_call = self._checked(operands, results, views, options, scalars, tier, stream)
        self._runs.check(run, device_call.checked.dims)
        plan = self._planned(device_call, options, results, save=save)
        if seen is not None:
            self._plans.keep(seen.kind, plan)
            return seen, plan
        addresses = {name: view.pointer for name, view in views.items()}
        tables = dict(options.tables)
        call = SeenCall((), stream, addresses, 0, operands, results, tables, scalars, {}, lent)
        return call, plan

    def _checked(
        self,
        operands: Mapping[str, object],
        results: Mapping[str, object],
        by_label: dict[str, ArrayView],
        options: DeviceOptions,
        scalars: Mapping[str, float],
        tier: str,
        stream: int,
    ) -> DeviceCall:
        """Check what a call was given. Raises ArgumentError."""
        label, first = self.__qualname__, options.chosen.batch_first
        library = self._kernel.library
        views = {name: placed(label, name, view, library) for name, view in by_label.items()}
        tables = {n: views.pop(f"option {n}") for n in options.tables}
        if first:
            tables = {n: v.swapped() for n, v in tables.items()}
            views.update((n, v.swapped()) for n, v in views.items() if n in self._over_time)
        function = of_steps(self.function, options.chosen)
        checked = check_call(
            label, function, operands, results, lambda *look: views[look[2]], tuple(SUFFIXES)
        )
        refuse_overflow(label, self.function, checked.dims, BYTES[checked.element])
        if tier == "fragments" and checked.element not in ON_UNITS:
            raise ArgumentError(
                f"{label}: tier is 'fragments' and arrays are {checked.element}: matrix units take "
                f"{' and '.join(ON_UNITS)} only; use tier='whole'"
            )
        check_tables(label, tables, checked.dims, checked.device, batch_first=first)
        return DeviceCall(checked, views, tables, scalars, options.settings, stream)

    def _planned(
        self,
        call: DeviceCall,
        options: DeviceOptions,
        results: Mapping[str, object],
        *,
        save: bool,
    ) -> DevicePlan:
        """Say which results are made, how the kernels are launched, and what a run hands on."""
        checked, chosen, views = call.checked, options.chosen, dict(call.views)
        dims, element = checked.dims, checked.element
        fresh = dict[str, tuple[int, ...]]()
        for item in self._outputs.formed(chosen, saves=save):
            if item.name in results:
                continue
            shape = tuple(axis_length(axis, dims) for axis in item.shape)
            transposed = chosen.batch_first and item.over_time
            shape = (shape[1], shape[0], *shape[2:]) if transposed else shape
            fresh[item.name] = shape
            view = ArrayView(0, shape, element, BYTES[element], checked.device)
            views[f"out {item.name}"] = view.swapped() if transposed else view
        launch = None
        if has_elements(self.function.results, dims):
            launch = plan_launch(self._kernel, self.function, replace(call, views=views))
        return DevicePlan(
            dims,
            element,
            BYTES[element],
            checked.device,
            tuple(fresh),
            tuple(fresh.values()),
            launch,
            with_tables(options.stated),
        )

    def _run(self, plan: DevicePlan, call: SeenCall, graph: bool | None) -> dict[str, object]:
        """Make the results that a call forms, launch its kernels, and return every result."""
        kernel, library, device = self._kernel, self._kernel.library(), plan.device
        kernel.require_device(device)
        results, addresses = dict(call.results), call.addresses
        with library.on(device):
            like = next(iter(call.operands.values()))
            arrays = make_like(like, plan.shapes, plan.element, device, library, call.stream)
            for name, array in zip(plan.fresh, arrays, strict=True):
                results[name] = array
                addresses[f"out {name}"] = address_of_result(array)
            if plan.launch is not None:
                ready = plan.launch.ready(kernel, addresses, call.scalars, call.stream)
                wanted = None if graph is None and self.function.team else bool(graph)
                launch(library, self.graphs, ready, wanted)
        return results

    def _named(
        self, results: dict[str, object], plan: DevicePlan, call: SeenCall, *, save: bool
    ) -> Results:
        if self.function.name != FORWARD:
            return tuple.__new__(self.result, [results.get(name) for name in self._fields])
        saved = None
        if save:
            options = with_tables(plan.options, **call.tables)
            saved = self._runs.keep(results, plan.dims, call.scalars, options)
            results |= {n: shown_part(a, options) for n, a in saved._whole.items()}
        return tuple.__new__(self.result, [*(results.get(name) for name in self._fields), saved])

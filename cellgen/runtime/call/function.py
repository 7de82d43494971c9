"""Call one function of a compiled cell by the names of its equations.

Every call is checked: names, dtypes, shapes, memory. Arguments are never converted nor copied.
A check costs little because its verdict is kept: it depends on names, types, dtypes, shapes and
memory flags only, so a call like an earlier one needs a single look-up (see ``CallPlan``).
Not supported: devices, arrays other than NumPy's, non-contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Never, TypeAlias

import numpy as np

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import (
    as_base,
    as_scalar,
    check_call,
    require_callable,
    scalar_places,
    take_out,
    unnamed_error,
)
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.document import document, headline, signature_of
from cellgen.runtime.call.door import Door, Way, become_direct
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.narrow import converted
from cellgen.runtime.call.plan import (
    KEPT_PLANS,
    CallPlan,
    Owner,
    defect,
    make_plan,
)
from cellgen.runtime.call.wanted import Wanted
from cellgen.runtime.call.workspace import per_thread, take_workspace
from cellgen.runtime.notebook import ShownInNotebooks
from cellgen.runtime.results import Array, Results, result_class

Out: TypeAlias = Mapping[str, Array | None] | tuple[Array | None, ...] | Array | None
"""What ``out`` may be; an array alone is refused at run time, and typed so that ``**arrays``
passes."""


class KernelFunction(ShownInNotebooks):
    """One function of a kernel: checks its arguments, calls the C, returns a named tuple."""

    def __init__(self, kernel: Owner, function: Function) -> None:
        require_callable(kernel.name, function)
        self.__name__ = function.name
        self.__qualname__ = f"{kernel.name}.{function.name}"
        self.__doc__ = document(function)
        self.__signature__ = signature_of(function)
        self.function = function
        self.result = result_class(function.name, tuple(item.name for item in function.results))
        self._kernel = kernel
        self._fields = tuple(item.name for item in function.results)
        self._scalars = scalar_places(function)
        self._nullable = tuple(
            item.name for item in function.arguments if item.optional or not item.used
        )
        self._wanted = Wanted(self.__qualname__, function)
        self._door = Door(kernel, function, self.result)
        self._plans: dict[object, CallPlan] = {}
        self._latest: tuple[object, CallPlan | None] = (None, None)

    def __repr__(self) -> str:
        return f"<kernel function {headline(self.__qualname__, self.function)}>"

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as the kernel and a name; a copy is the function itself."""
        return getattr, (self._kernel, self.__name__)

    def __call__(self, /, *unnamed: Never, **arguments: object) -> Results:
        """Call the C function.

        ``out`` has arrays that results are written to. ``gradients=("d_x",)`` names the results of
        a backward function that are wanted; the others are None.

        Python compares each keyword with the names of a signature, by text: a tenth of a call of
        twelve arrays. So no keyword stands there, nor in those of functions over time.

        Raises ArgumentError, BuildError, MemoryError.
        """
        if unnamed:
            raise unnamed_error(self.__qualname__, self.function, unnamed)
        make = self._door.make
        if make is not None:
            memory = per_thread.memory
            place = memory.address, memory.bytes
            results: Results | None = make(arguments, False, *place, 0, -1, None)
            if results is not None:
                return results
        out: Any = arguments.pop("out", None)
        gradients = arguments.pop("gradients", None)
        call = converted(self.__qualname__, self.function, arguments, out, in_place=False)
        if call is not None:
            return call.results(self(out=call.out, gradients=gradients, **call.arguments))
        plan, members, ordered = self._gather(out, arguments, gradients)
        if plan.workspace is not None:
            memory = take_workspace(self.__qualname__, plan.workspace, plan.dims)
            members += (memory.pointer, memory.bytes)
        struct = plan.new(plan.struct, members)
        code = plan.call(plan.sizes, struct)
        if code:
            raise defect(self.__qualname__, plan, code)
        self._door.open()
        become_direct(self)
        return tuple.__new__(self.result, ordered)

    _way: ClassVar[Way] = per_thread, -1, __call__, None

    def bind(
        self, /, *unnamed: Never, out: Out = None, gradients: object = None, **arguments: object
    ) -> BoundCall:
        """Check a call once, for many: ``bound = forward.bind(...)``, then ``bound()``.

        Takes what a call takes. Every ``bound()`` reads the arrays that were given, as they are by
        then, writes to the same results and returns those. Raises ArgumentError, BuildError,
        MemoryError.
        """
        if unnamed:
            raise unnamed_error(f"{self.__qualname__}.bind", self.function, unnamed)
        call = converted(self.__qualname__, self.function, arguments, out, in_place=False)
        if call is not None:
            bound = self.bind(out=call.out, gradients=gradients, **call.arguments)
            return bound.in_place_of(call)
        plan, members, ordered = self._gather(out, arguments, gradients)
        struct = plan.new(plan.struct, members)  # without a workspace: the bound call finds it
        label, results = self.__qualname__, tuple.__new__(self.result, ordered)
        return BoundCall(
            label,
            plan,
            struct,
            members,
            results,
            lambda code: defect(label, plan, code),
            plan.workspace,
            arrays=(*arguments.values(), *results),
        )

    def _gather(
        self, out: Out, arguments: dict[str, object], gradients: object
    ) -> tuple[CallPlan, list[object], list[Array | None]]:
        """Check a call.

        Return its plan, the members of its C struct but for the workspace, and its results.
        """
        scalars = self._take_scalars(arguments) if self._scalars else ()
        for name in self._nullable:
            if name in arguments and arguments[name] is None:
                del arguments[name]
        if gradients is not None and not self._wanted.on_request:
            self._wanted.refuse_all(gradients)
            arguments["gradients"] = gradients  # refused as any other name
            gradients = None
        results = {} if out is None else take_out(self.__qualname__, self._fields, out)
        if gradients is not None:
            self._wanted.refuse(results, gradients)
        plan = self._find_plan(arguments, results)
        if results:
            refuse_shared(self.__qualname__, plan.read(arguments), results)
        view, pointer = plan.view, plan.pointer
        members: list[object] = [view(pointer, arguments[name]) for name in plan.arrays]
        for place, value in sorted((*plan.nulls, *scalars)) if plan.nulls else scalars:
            members.insert(place, value)
        if gradients is not None:
            return plan, members, self._take_wanted(plan, members, results, gradients)
        for name, shape in plan.fresh:
            results[name] = np.empty(shape, plan.dtype)
        ordered = [results[name] for name in self._fields]
        members += [view(pointer, array) for array in ordered]
        return plan, members, [*ordered]

    def _take_wanted(
        self, plan: CallPlan, members: list[object], results: dict[str, Array], gradients: object
    ) -> list[Array | None]:
        """Add the results to the members of a struct, NULL for what is not formed; return them."""
        unformed = self._wanted.unformed(gradients)
        for name, shape in plan.fresh:
            if name not in unformed:
                results[name] = np.empty(shape, plan.dtype)
        null = self._kernel.library().ffi.NULL
        for name in self._fields:
            members.append(plan.view(plan.pointer, results[name]) if name in results else null)
        left = self._wanted.left_out(gradients)
        return [None if name in left else results[name] for name in self._fields]

    look: Callable[[object], object] = staticmethod(attrgetter("dtype", "shape", "flags.num"))
    """Gather all of an array that a check depends on (but its type and its address)."""

    def _find_plan(
        self, arguments: dict[str, object], results: dict[str, Array], every: int = 1
    ) -> CallPlan:
        """Return the plan of an earlier call of the same kind, or check this one and make it.

        ``every`` is the option of that name of a function over time.
        """
        try:
            key = self._key(arguments, results, every)
            latest, plan = self._latest
            if (
                plan is not None and key == latest
            ):  # to compare takes a third of the time that hashing takes
                return plan
            known = self._plans.get(key)
        except Exception:  # of what is no array; the check says so
            known = None
        if known is None:
            return self._new_plan(arguments, results, every)
        self._latest = (key, known)
        return known

    def _new_plan(
        self, arguments: dict[str, object], results: dict[str, Array], every: int
    ) -> CallPlan:
        """Check a call that is unlike earlier ones, or is so once subclasses are set aside."""
        plain = {name: as_base(value) for name, value in arguments.items()}
        if any(plain[name] is not value for name, value in arguments.items()):
            arguments.update(plain)
            return self._find_plan(arguments, results, every)
        plan = self._plan(arguments, results, every)
        if len(self._plans) >= KEPT_PLANS:
            self._plans.clear()
        key = self._key(arguments, results, every)
        self._plans[key], self._latest = plan, (key, plan)
        return plan

    def _key(self, arguments: dict[str, object], results: dict[str, Array], every: int) -> object:
        """All that the check of a call depends on but addresses, and a subclass of arrays."""
        values = arguments.values()
        if not results:
            return (every, *arguments, *map(type, values), *map(self.look, values))
        written = results.values()
        types, looks = map(type, (*values, *written)), map(self.look, (*values, *written))
        return (every, *arguments, None, *results, *types, *looks)

    def _take_scalars(self, arguments: dict[str, object]) -> list[tuple[int, float]]:
        """Move run-time scalars out of the arguments; defaults stand in for absent ones."""
        members = []
        for place, name, default in self._scalars:
            value = arguments.pop(name, default)
            if type(value) is not float:
                value = as_scalar(self.__qualname__, name, value, default)
            if place >= 0:
                members.append((place, value))
        return members

    def _plan(
        self, arguments: dict[str, object], results: dict[str, Array], every: int
    ) -> CallPlan:
        """Check a call of a new kind and say how to make it. Raises ArgumentError, BuildError."""
        checked = check_call(self.__qualname__, self.function, arguments, results)
        return make_plan(self._kernel, self.function, checked)

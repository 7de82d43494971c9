"""Call one function of a compiled cell by the names of its equations.

Every call is checked: names, dtypes, shapes, memory. Arguments are never converted nor copied.
The engine of the kernel binds and makes it (``engine``); what is wrong is looked for once more by
words. Not supported: devices, arrays other than NumPy's, non-contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Never, TypeAlias

import numpy as np

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import (
    as_scalar,
    lengths,
    require_callable,
    scalar_places,
    take_out,
    unnamed_error,
)
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.document import document, headline, signature_of
from cellgen.runtime.call.door import Door, Way, become_direct
from cellgen.runtime.call.engine import Engine, EngineCall
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.narrow import converted
from cellgen.runtime.call.owner import Owner, defect
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
        self._engine = Engine(kernel, function)

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
        call = converted(self.__qualname__, self.function, arguments, out)
        if call is not None:
            return call.results(self(out=call.out, gradients=gradients, **call.arguments))
        engine_call, ordered = self._gather(out, arguments, gradients)
        memory = take_workspace(self.__qualname__, engine_call.workspace, engine_call.dims)
        code = engine_call.run(memory.pointer, memory.bytes)
        if code:
            raise defect(self.__qualname__, engine_call.dims, engine_call.dtype, code)
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
        call = converted(self.__qualname__, self.function, arguments, out)
        if call is not None:
            bound = self.bind(out=call.out, gradients=gradients, **call.arguments)
            return bound.in_place_of(call)
        engine_call, ordered = self._gather(out, arguments, gradients)
        results = tuple.__new__(self.result, ordered)
        return BoundCall(
            self.__qualname__, engine_call, results, arrays=(*arguments.values(), *results)
        )

    def _gather(
        self, out: Out, arguments: dict[str, object], gradients: object
    ) -> tuple[EngineCall, list[Array | None]]:
        """Check a call and make its results; return it, ready, and these."""
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
        call = self._engine.bind(self.function, arguments, results, scalars=scalars)
        if results:
            refuse_shared(self.__qualname__, call.read(arguments), results)
        unformed = self._wanted.unformed(gradients) if gradients is not None else ()
        sizes = call.sizes
        fresh = {
            item.name: np.empty(lengths(item, sizes), call.rest)
            for item in self.function.results
            if item.name not in results and item.name not in unformed
        }
        call.prepare(fresh)
        left = self._wanted.left_out(gradients) if gradients is not None else ()
        results |= fresh
        return call, [None if n in left else results[n] for n in self._fields]

    def _take_scalars(self, arguments: dict[str, object]) -> list[tuple[str, float]]:
        """Move run-time scalars out of the arguments; defaults stand in for absent ones."""
        scalars = []
        for _, name, default in self._scalars:
            value = arguments.pop(name, default)
            if type(value) is not float:
                value = as_scalar(self.__qualname__, name, value, default)
            scalars.append((name, value))
        return scalars

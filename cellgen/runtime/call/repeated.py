"""Let C make calls that look like earlier ones, in a process that makes many.

Input: calls that passed every check, made by Python. Output: ``Repeats``, which makes others of
their kinds: arrays of the same names, types and shapes without gaps, in the same order. Whatever
else a call has, Python makes it. The code is ``cellgen_repeated.c``, an extension that is compiled
where it is used. A kernel's first call does not wait for it: it is looked for in the cache once
calls have taken as long as that takes, and compiled once they have taken as long as that. Where it
cannot be compiled, Python makes all calls, with the same results.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import _cffi_backend
import numpy as np

from cellgen import accept
from cellgen.errors import CellgenError
from cellgen.runtime.abi import Function
from cellgen.runtime.build import extension
from cellgen.runtime.call.arguments import scalar_places
from cellgen.runtime.call.plan import KEPT_PLANS, CallPlan, run_nothing
from cellgen.runtime.call.settings import Settings
from cellgen.runtime.options import taken_by
from cellgen.runtime.results import Results

VARIABLE = "CELLGEN_CALLS"
"""``python``: calls are never made in C. ``c``: from the second one on, compiled if need be."""
WORDS = "python", "c"
SOURCE = Path(__file__).with_name("cellgen_repeated.c")
LOOK_AFTER = 300
"""Calls after which the cache is looked at: the 3 ms that this takes are what they could save."""
COMPILE_AFTER = 30_000
"""Calls after which it is compiled: the 0.3 s that this takes are what they could have saved."""
KEPT_KINDS = 32
"""Kinds of calls that a call of one function is compared with, in 0.4 us if it is of none."""
THREAD = "cellgen calls in C"
"""The name of the thread that loads what makes them."""
MOST_WORDS, MOST_AXES = 512, 8
"""Of a struct, of an array: what C has room for."""

ARRAY, NUMBER, CONSTANT = range(3)
"""What an argument was, as C numbers it; a constant is the object itself."""

log = logging.getLogger("cellgen")
_ffi = _cffi_backend.FFI()


class Extension:
    """The module of C; None until this process has made many calls."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self._calls, self._asked, self._given_up = 0, False, False

    def count(self) -> ModuleType | None:
        """Count a call that C could have made, and return the module once there is one."""
        if self.module is not None or self._given_up:
            return self.module
        if not self._asked:
            self._ask()
            return self.module
        self._calls = count = self._calls + 1
        if count == LOOK_AFTER:
            self._load_beside(extension.find)
        elif count % COMPILE_AFTER == 0:  # again in a child that was forked meanwhile
            self._load_beside(extension.build)
        return self.module

    def require(self) -> ModuleType:
        """Load the module now, compiled if need be. Raises BuildError."""
        if self.module is None:
            self.module = extension.load(SOURCE.stem, extension.build(SOURCE))
        return self.module

    def _ask(self) -> None:
        """Heed what the environment asks for."""
        asked = accept.word_from_environment(VARIABLE, WORDS)
        self._asked = True
        if asked == "c":
            self._load(extension.build)
        self._given_up = asked in WORDS

    def _load_beside(self, make: Callable[[Path], Path | None]) -> None:
        thread = threading.Thread(target=self._load, args=(make,), name=THREAD, daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter is ending
            thread.start()

    def _load(self, make: Callable[[Path], Path | None]) -> None:
        """Load the module if ``make`` finds or compiles it; the log says why not."""
        try:
            path = make(SOURCE)
            if path is not None:
                self.module = extension.load(SOURCE.stem, path)
        except (CellgenError, OSError, MemoryError) as error:
            log.info("calls are made by Python: %s", error)
            self._given_up = True


EXTENSION = Extension()


class Repeats:
    """The kinds of calls of one function that C makes: those of its latest calls.

    With weights that were ``packed``, these are an argument of that name and always the same.

    ``make(kinds, arguments, address, bytes, team)`` gives the results of a call, None for one that
    is of no kind of these, which Python makes. It takes the addresses of workspace and team.
    """

    def __init__(self, function: Function, result: type[Results], packed: object = None) -> None:
        self.kinds: tuple[object, ...] = ()
        self.make: Callable[..., Results | None] = _none
        self._function, self._result = function, result
        self._scalars = {name: place for place, name, _ in scalar_places(function)}
        nullable = (a.name for a in function.arguments if a.optional or not a.used)
        options = taken_by(function.name) if function.team else ()
        self._constants: dict[str, object] = dict.fromkeys(nullable)
        self._constants |= {o.name: o.default_in(function.name) for o in options}
        self._constants["packed"] = packed
        self._known: dict[object, tuple[CallPlan, object]] = {}

    def remember(
        self,
        plan: CallPlan,
        names: tuple[str, ...],
        arguments: Mapping[str, object],
        settings: Settings | None = None,
    ) -> None:
        """Let C make calls like one that Python made: of ``names`` in order; its arrays by name."""
        try:
            module = EXTENSION.count()
            if module is None or plan.given or plan.call is run_nothing:
                return
            key = (id(plan), names)
            known = self._known.get(key)
            if known is None:
                if len(self._known) >= KEPT_PLANS:
                    self._known.clear()  # another thread may do so at any time
                known = plan, self._kind(module, plan, names, arguments, settings)
                self._known[key] = known
            kind = known[1]
            if kind is not None:
                others = [other for other in self.kinds if other is not kind]
                self.make, self.kinds = module.make, (kind, *others[: KEPT_KINDS - 1])
        except MemoryError:  # Python makes the next one as well
            return

    def _kind(
        self,
        module: ModuleType,
        plan: CallPlan,
        names: tuple[str, ...],
        arguments: Mapping[str, object],
        settings: Settings | None,
    ) -> object:
        """Describe a call to C; None for one that is too large for it, or of no function of C."""
        function, fresh = self._function, dict(plan.fresh)
        members = (*function.struct_members, *function.results)
        places = {item.name: place for place, item in enumerate(members)}
        given = tuple(self._item(name, places, arguments) for name in names)
        results = tuple(
            (name, ARRAY, places[name], fresh[name], None)
            for name in self._result._fields
            if name in fresh
        )
        values = [item.default if item.is_scalar else 0 for item in members]
        tail = 2 * function.workspace + 2 * function.team
        pointer = 0 if settings is None else address(settings.struct)
        options = pointer.to_bytes(8, sys.byteorder) if function.team else b""
        shapes = [item[3] for item in (*given, *results)]
        large = len(members) + tail > MOST_WORDS or max(map(len, shapes)) > MOST_AXES
        if large or not isinstance(plan.call, _ffi.CData):
            return None
        return module.kind(
            address(plan.call),
            address(plan.sizes),
            (plan, settings),
            plan.dtype,
            self._result,
            len(self._result._fields),
            plan.layout.pack(*values) + bytes(8 * tail - 8 * function.team) + options,
            len(members) if function.workspace else -1,
            plan.workspace or 0 if function.workspace else -1,
            len(members) + 2 * function.workspace if function.team else -1,
            given,
            results,
        )

    def _item(
        self, name: str, places: Mapping[str, int], arguments: Mapping[str, object]
    ) -> tuple[str, int, int, tuple[int, ...], object]:
        """What C compares an argument with: name, look, word in the struct, shape, constant."""
        if name in self._scalars:
            return name, NUMBER, self._scalars[name], (), None
        array = arguments.get(name)
        if isinstance(array, np.ndarray):
            return name, ARRAY, places.get(name, -1), array.shape, None
        return name, CONSTANT, -1, (), self._constants[name]


def described() -> str:
    """Say who makes calls that look like earlier ones.

    Raises BuildError where C cannot: no compiler, no headers.
    """
    if accept.word_from_environment(VARIABLE, WORDS) == "python":
        return f"Python, as {VARIABLE} says"
    path = extension.find(SOURCE)
    if path is not None:
        return f"C, {path.name}"
    return f"C, once a process has made {COMPILE_AFTER:,}; {VARIABLE}=c compiles it at once"


def address(value: object) -> int:
    """The address in a pointer of cffi's."""
    return int(_ffi.cast("intptr_t", value))


def _none(*_: object) -> None:
    return None

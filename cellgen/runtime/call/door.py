"""Let C make calls, in a process that makes many.

Input: a function of a kernel. Output: ``Door``, by which calls on NumPy's own arrays go to the
kernel without Python: keywords, dimensions, strides and results are C's (``cellgen_door.c``, by
``cellgen_call.h``). What it does not take Python makes, with the words for what is wrong. The code
is an extension that is compiled where it is used. A kernel's first call does not wait for it: it
is looked for in the cache once calls have taken as long as that takes, and compiled once they have
taken as long as that. Where it cannot be compiled, Python makes all calls, with the same results.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from cellgen import accept
from cellgen.errors import CellgenError
from cellgen.runtime.abi import PRECISIONS, Function
from cellgen.runtime.build import extension
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.call.packed import PackedLayout
from cellgen.runtime.call.saved import KEPT_NAME
from cellgen.runtime.host.memory import empty
from cellgen.runtime.numbers import ALL, MOST_BITS, NUMBERED, number_of
from cellgen.runtime.options import (
    BACKWARD,
    BY_ROW,
    CHOICE,
    FORWARD,
    NAMES,
    OF_OPTIONS,
    ROWS,
    STEPS,
    SWITCH,
    TABLES,
    Option,
    taken_by,
)
from cellgen.runtime.results import Results

Make: TypeAlias = Callable[..., Any]
Keyword: TypeAlias = tuple[str, int, int, int, bool, object]
Way: TypeAlias = tuple[object, object, Make, int | None]
"""How C makes calls of a class of functions: what has each thread's workspace; the multiply-adds
from which on a signal may end a call, or the dict that has them as ``LONG``; Python's ``__call__``,
which makes the others; what ``threads`` has to be, None: it is no keyword."""

VARIABLE = "CELLGEN_CALLS"
"""``python``: calls are never made in C. ``c``: from a function's second one on, compiled if need
be."""
WORDS = "python", "c"
SOURCE = Path(__file__).with_name("cellgen_door.c")
LOOK_AFTER = 50
"""Calls after which the cache is looked at: the 3 ms that this takes are what they could save, some
60 us each."""
COMPILE_AFTER = 5_000
"""Calls after which it is compiled: the 0.3 s that this takes are what they could have saved."""
THREAD = "cellgen calls in C"
"""The name of the thread that loads what makes them."""
MEMBER, CHECKED, SWITCHED, COUNTED, CHOSEN, TABLE = range(6)
FIRST, OUTPUTS, CONSTANT, BESIDE, RESULTS, KEPT, WANTED = range(6, 13)
"""What a keyword is, as C numbers it."""

log = logging.getLogger("cellgen")


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
        word = accept.word_from_environment(VARIABLE, WORDS)
        self._asked = True
        if word == "c":
            self._load(extension.build)
        self._given_up = word in WORDS

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


class Door:
    """The way of a function's calls into C.

    ``make(arguments, save, address, bytes, team, longest, sizes)`` gives the results of a call, or
    None for one that Python makes; it is None itself until C can. It takes the workspace by
    address and bytes, the team, the multiply-adds from which on a signal may end a call, which
    Python makes then (below 0: none), and the dimensions that a call must have (None: any). Of a
    call that saves it gives what that returns, what it saves, its dimensions, the number of its
    ``products``, and copies of its tables of steps, None where it has none.
    """

    def __init__(self, kernel: Owner, function: Function, result: type[Results]) -> None:
        self.make: Make | None = None
        self._kernel, self._function, self._result = kernel, function, result

    def open(self, packed: PackedLayout | None = None) -> None:
        """Count a call that Python made, and let C make others once it can.

        With weights that are ``packed``, these are an argument of that name and always the same.
        """
        try:
            module = EXTENSION.count()
            if module is None or self.make is not None:
                return
            keywords = self._keywords(packed)
            if len({name for name, *_ in keywords}) == len(keywords):
                self.make = self._made(module, keywords, packed).make
        except MemoryError:  # Python makes the next one as well
            return

    def _made(
        self, module: ModuleType, keywords: Sequence[Keyword], packed: PackedLayout | None
    ) -> Any:
        function, library = self._function, self._kernel.library()
        states = [
            item.over_time and item.name in function.states.values() for item in function.results
        ]
        unformed = sum(is_state << number for number, is_state in enumerate(states))
        return module.door(
            library.descriptor,
            function.name,
            FORWARD if function.name == BACKWARD else None,
            (library, packed),
            self._result,
            empty,
            tuple(keywords),
            self._result._fields,
            tuple(item.name for item in function.results if item.saved),
            0 if unformed >> MOST_BITS else ALL - unformed,
            None if packed is None else _layout(packed),
        )

    def _keywords(self, packed: PackedLayout | None) -> list[Keyword]:
        """What C is told of each keyword: name, kind, number, least, may be None, what else."""
        function = self._function
        keywords: list[Keyword] = [
            (a.name, MEMBER if a.used else CHECKED, 0, 0, a.optional or not a.used, None)
            for a in function.arguments
        ]
        for option in taken_by(function.name) if function.team else ():
            row = _keyword(option, function)
            if row is not None:
                keywords.append(row)
        if any(item.optional for item in function.results):
            names = tuple(item.name for item in function.results)
            keywords.append(("gradients", WANTED, 0, 0, True, names))
        if packed is not None:
            keywords.append(("packed", CONSTANT, 0, 0, False, packed.weights))
        keywords.append(("out", RESULTS, 0, 0, True, None))
        if function.name == FORWARD:
            keywords += [("threads", CONSTANT, 0, 0, False, 1), ("save", BESIDE, 0, 0, False, None)]
        if function.name == BACKWARD:
            keywords.append((KEPT_NAME, KEPT, 0, 0, False, None))
        return keywords


def become_direct(function: Any) -> None:
    """Give a function a class whose calls are C's, once its door is open; Python makes the others.

    A class with a ``__call__`` of its own, other than that of its ``_way``, keeps it.
    """
    kind: Any = type(function)
    if function._door.make is None or kind.__call__ is not kind._way[2]:
        return
    with contextlib.suppress(TypeError):  # objects of another layout: Python calls ``make``
        function.__class__ = _direct(kind, EXTENSION.require().Direct)


def become_bound(call: Any, python: Callable[..., Any], places: tuple[object, ...]) -> None:
    """Give a bound call a class whose calls are C's; ``python`` makes what C does not.

    ``places``: what has each thread's workspace, then the addresses of the function, the dimensions
    and the struct.
    """
    kind: Any = type(call)
    module = EXTENSION.count()
    if module is not None and not isinstance(call, module.Bound):
        call._places = (*places, python)
        with contextlib.suppress(TypeError):  # objects of another layout
            call.__class__ = _direct(kind, module.Bound)


@cache
def _direct(kind: Any, base: Any) -> Any:
    body = {"__slots__": (), "__module__": kind.__module__, "__call__": base.__call__}
    return type(kind.__name__, (kind, base), body | {"__doc__": kind.__doc__})


def _keyword(option: Option, function: Function) -> Keyword | None:
    """What C is told of an option; None for one that is no keyword of its calls."""
    name, default = option.name, option.default_in(function.name)
    number = NUMBERED.index(option) if option in NUMBERED else 0
    may_be_none = default is None
    if option not in OF_OPTIONS or name in ("packed", "gradients"):
        return None
    if name == "batch_first":
        return name, FIRST, 0, 0, may_be_none, None
    if option in NUMBERED and option.kind == NAMES:
        names = tuple(r.name if r.over_time else None for r in function.results)
        return name, OUTPUTS, number, 0, True, names
    if option.kind == BY_ROW:
        return name, TABLE, [*TABLES].index(name), 0, True, None
    kinds = {SWITCH: SWITCHED, STEPS: COUNTED, CHOICE: CHOSEN}
    if option in NUMBERED and option.kind in kinds:
        choices = option.choices_in(function.name)
        return name, kinds[option.kind], number, option.fewest, may_be_none, choices
    return name, CONSTANT, 0, 0, may_be_none, default


def _layout(packed: PackedLayout) -> tuple[int, int, int, int, dict[str, int]]:
    """What C is told of packed weights: where they lie, and what they were laid out for."""
    suffix, *_ = packed.fits
    sizes = {name: int(size) for name, size in packed.weights.dims}
    products = number_of(ROWS["products"], packed.weights.products)
    is_double = int(suffix == PRECISIONS[1][0])
    return packed.memory.address, packed.memory.bytes, is_double, products, sizes


def described() -> str:
    """Say who makes calls.

    Raises BuildError where C cannot: no compiler, no headers.
    """
    if accept.word_from_environment(VARIABLE, WORDS) == "python":
        return f"Python, as {VARIABLE} says"
    path = extension.find(SOURCE)
    if path is not None:
        return f"C, {path.name}"
    return f"C, once a process has made {COMPILE_AFTER:,}; {VARIABLE}=c compiles it at once"

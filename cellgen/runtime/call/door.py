"""Let C make calls.

Input: a function of a kernel. Output: ``Door``, by which calls on NumPy's own arrays go to the
kernel without Python: keywords, dimensions, strides and results are C's (``cellgen_door.c``, by
``cellgen_call.h``). What it does not take Python makes, with the words for what is wrong, and the
first call of a function: that opens the door. Where there is none (``compiled``) Python makes all
calls, with the same results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

from cellgen import accept
from cellgen.runtime.abi import PRECISIONS, Function
from cellgen.runtime.build import extension
from cellgen.runtime.call import compiled
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

MEMBER, CHECKED, SWITCHED, COUNTED, CHOSEN, TABLE = range(6)
FIRST, OUTPUTS, CONSTANT, BESIDE, RESULTS, KEPT, WANTED = range(6, 13)
"""What a keyword is, as C numbers it."""


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
        """Let C make calls after one that Python made, once it can.

        With weights that are ``packed``, these are an argument of that name and always the same.
        """
        module = compiled.EXTENSION.get()
        if module is None or self.make is not None:
            return
        try:
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
        function.__class__ = _direct(kind, compiled.EXTENSION.require().Direct)


def become_bound(call: Any, python: Callable[..., Any], places: tuple[object, ...]) -> bool:
    """Give a bound call a class whose calls are C's; ``python`` makes what C does not.

    ``places``: what has each thread's workspace, then the addresses of the function, the dimensions
    and the struct. Tell whether nothing is left to do: not where C may make calls later.
    """
    module = compiled.EXTENSION.get()
    if module is None:
        return False
    kind: Any = type(call)
    call._places = (*places, python)
    with contextlib.suppress(TypeError):  # objects of another layout
        call.__class__ = _direct(kind, module.Bound)
    return True


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
    if accept.word_from_environment(compiled.VARIABLE, compiled.WORDS) == "python":
        return f"Python, as {compiled.VARIABLE} says"
    path = extension.find(compiled.SOURCE)
    if path is not None:
        return f"C, {path.name}"
    extension.require_promising(compiled.SOURCE)
    return (
        f"C, once a process that calls has compiled it; {compiled.VARIABLE}=c compiles it at once"
    )

"""Triton's interpreter in half of the processor time: the same functions, without what they repeat.

For each value it makes, the interpreter spells the value's type, counts its entries and makes a
table of all types; for each function that a kernel calls, it looks through all names of Triton for
those that it replaces, although the kernel's launch has replaced them. ``with quickly():`` keeps
what was found the first time. A version of Triton without these functions is left as it is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from triton.language import core
from triton.runtime import interpreter

from cellgen.proof.interpreted import replaced

Functions = dict[str, Callable[..., Any]]
PLACES: tuple[tuple[object, tuple[str, ...]], ...] = (
    (interpreter, ("_get_np_dtype", "_patch_builtin", "_patch_lang")),
    (core, ("_unwrap_if_constexpr",)),
    (core.block_type, ("__init__",)),
    (core.tensor, ("__init__",)),
)
OWN: list[tuple[Any, Functions]] = [
    (place, {name: vars(place)[name] for name in names if name in vars(place)})
    for place, names in PLACES
]
"""Triton's functions, by the module or class that they stand in."""
PLAIN = frozenset((bool, int, float, str, type(None), core.dtype, core.block_type, core.tensor))
"""Types whose values hold no constant."""


def by_name(own: Functions) -> Functions:
    """Types of arrays, looked up by the name of Triton's type; names of a module looked up once."""
    known: dict[str, Any] = {}
    array_type, patch_attribute = own["_get_np_dtype"], interpreter._patch_attr

    def _get_np_dtype(kind: Any) -> Any:
        kind = kind.element_ty if type(kind) is core.block_type else kind
        if kind.name not in known:
            known[kind.name] = array_type(kind)
        return known[kind.name]

    @cache
    def builtins(place: object) -> tuple[str, ...]:
        members = inspect.getmembers(place)
        return tuple(name for name, member in members if core.is_builtin(member))

    def _patch_builtin(place: Any, builder: object, scope: object) -> None:
        for name in builtins(place):
            if core.is_builtin(member := getattr(place, name)):
                patch_attribute(place, name, member, builder, scope)

    def _patch_lang(function: Any) -> object:
        seen = [m for m in function.__globals__.values() if m in (interpreter.tl, core)]
        needs_no_more = not any(core.is_builtin(p.load) for p in seen)
        if seen and needs_no_more and not core.is_builtin(core.tensor.__add__):
            return interpreter._LangPatchScope()
        return own["_patch_lang"](function)

    return {f.__name__: f for f in (_get_np_dtype, _patch_builtin, _patch_lang)}


def unwrapping(own: Functions) -> Functions:
    """Constants as their numbers, without a look for sequences in what is none."""
    unwrap = own["_unwrap_if_constexpr"]

    def _unwrap_if_constexpr(one: Any) -> Any:
        if type(one) in PLAIN:
            return one
        return one.value if type(one) is core.constexpr else unwrap(one)

    return {"_unwrap_if_constexpr": _unwrap_if_constexpr}


def types_of_blocks(_: Functions) -> Functions:
    """Types of blocks, whose names and numbers of entries are kept by shape."""
    entries = cache(core.validate_block_shape)
    spelled = cache(lambda shape, element: f"<{shape}, {element}>")

    def __init__(self: Any, element: Any, shape: Any) -> None:  # noqa: N807
        self.element_ty, self.shape = element, tuple(core._unwrap_shape(shape))
        if not self.shape:
            raise TypeError("a block has an axis")
        self.numel, self.name = entries(self.shape), spelled(self.shape, str(element))

    return {"__init__": __init__}


def values(_: Functions) -> Functions:
    """Values, whose shapes as Triton's constants are kept by shape."""

    @cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(n) for n in shape])

    def __init__(self: Any, handle: object, kind: Any) -> None:  # noqa: N807
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = constants(kind.shape if kind.is_block() else ())

    return {"__init__": __init__}


@contextmanager
def quickly() -> Iterator[None]:
    """Let the interpreter keep what it finds."""
    with ExitStack() as stack:
        if all(own.keys() == {*names} for (_, own), (_, names) in zip(OWN, PLACES, strict=True)):
            for (place, own), ours in zip(
                OWN, (by_name, unwrapping, types_of_blocks, values), strict=True
            ):
                stack.enter_context(replaced(place, ours(own)))
        yield


@contextmanager
def as_triton_does() -> Iterator[None]:
    """Have Triton's own functions back."""
    with ExitStack() as stack:
        for place, own in OWN:
            stack.enter_context(replaced(place, own))
        yield

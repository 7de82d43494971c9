"""Which outputs a call forms and what it keeps: the layout of a call with options.

Input: the layout of a cell and ``Shown``. Output: the same layout with the outputs that such a call
gives, the gradients that its backward pass takes, and checkpoints in place of saved arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.frameworks.layout import CHECKPOINTS, STEPS_SHOWN, TensorLayout
from cellgen.runtime.abi import Argument, axis_terms
from cellgen.runtime.call.arguments import as_steps
from cellgen.runtime.call.checkpoints import StepBytes, kept_items, limit_bytes, segment_steps
from cellgen.runtime.call.stored import BFLOAT16
from cellgen.runtime.options import BF16, FULL, INT8, ROWS, Options

Kind = TypeVar("Kind", bound=TensorLayout)

PRODUCTS = ("", FULL, BF16)
"""What a call says of its products, by number; the first: nothing, so that the type of its arrays
tells."""
AS_ARRAYS, IN_FULL, IN_BF16 = range(len(PRODUCTS))


def is_in_bf16(products: int, element: str) -> bool:
    """Whether products over time have operands in bfloat16, of arrays of a type."""
    return products == IN_BF16 or (products == AS_ARRAYS and element == BFLOAT16)


AT_CHECKPOINTS = " at checkpoints"
"""What follows a name where checkpoints hold the value."""


@dataclass(frozen=True)
class Shown:
    """Options that say which outputs come out of a call, and what it keeps.

    ``every``: steps; ``hidden``: bit k says that the k-th output is not formed; ``last``:
    outputs over time that are not hidden are (B, ...), of the last step; ``checkpoint``: steps, 0
    for what every step saves; ``skips``: whether there are steps that may be masked.
    """

    every: int = 1
    hidden: int = 0
    last: bool = False
    checkpoint: int = 0
    skips: bool = False


USUAL = (Shown(), Shown(skips=True))
FLOAT_BYTES = 4
"""Of an element of checkpoints, and of what runs from one to the next, where arrays have 16 bits.
"""


def showing(layout: Kind, shown: Shown) -> Kind:
    """Give the layout that a call with options has; without any, the same."""
    if shown in USUAL:
        return layout
    made: Kind = _showing(layout, shown)
    return made


@functools.lru_cache(maxsize=1024)
def _showing(layout: Kind, shown: Shown) -> Kind:
    outputs = tuple(
        _shown(item, shown) for k, item in enumerate(layout.outputs) if not shown.hidden >> k & 1
    )
    named = {f"d_{item.name}": item for item in outputs}
    upstream = tuple(
        replace(item, shape=named[item.name].shape)
        for item in layout.upstream
        if item.name in named
    )
    saved = layout.saved
    if shown.checkpoint:
        kept = kept_items(layout.forward, Options(mask=True if shown.skips else None))
        saved = tuple(
            replace(a, name=name + AT_CHECKPOINTS, shape=(CHECKPOINTS, *a.shape), of="")
            for name, a in kept
        )
    changed = {item.name: item for item in (*outputs, *upstream, *saved)}
    terms = {name: tuple(map(axis_terms, item.shape)) for name, item in changed.items()}
    return replace(
        layout,
        outputs=outputs,
        upstream=upstream,
        saved=saved,
        terms={**layout.terms, **terms},
        every=shown.every,
        checkpoint=shown.checkpoint,
    )


def _shown(item: Argument, shown: Shown) -> Argument:
    if not item.over_time or (shown.every == 1 and not shown.last):
        return item
    units = item.shape[1:]
    return replace(item, shape=units if shown.last else (STEPS_SHOWN, *units))


# --- options as a caller states them ----------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a caller asks to be shown and kept, looked at; ``limit`` is of memory, None: none.

    ``names`` are the outputs over time that are wanted. ``hidden`` has a bit for each output that
    is not formed: those, and of the last step alone states, whose final ones tell the same.
    ``products`` is a number of ``PRODUCTS``.
    """

    names: tuple[str, ...]
    every: int = 1
    last: bool = False
    checkpoint: int = 0
    limit: int | None = None
    products: int = AS_ARRAYS
    hidden: int = 0


ASKED = ("every", "last_only", "outputs", "checkpoint", "memory_limit", "products")
"""The options that ``asked`` looks at."""


def asked(layout: TensorLayout, given: Mapping[str, object]) -> Request:
    """Look at what a caller asks for; ``given`` has some of ``ASKED``. Raises ArgumentError."""
    where = layout.where
    every = ROWS["every"]
    checkpoint = ROWS["checkpoint"]
    limit, outputs = given.get("memory_limit"), given.get("outputs")
    found = Request(
        _names(layout, outputs),
        as_steps(where, "every", given.get("every", 1), every.least, every.fewest),
        accept.flag(where, "last_only", given.get("last_only", False)),
        as_steps(where, "checkpoint", given.get("checkpoint", 0), checkpoint.least),
        None if limit is None else limit_bytes(where, limit),
        _products(where, given["products"]) if "products" in given else AS_ARRAYS,
    )
    if found.last and found.every != 1:
        raise ArgumentError(
            f"{where}: last_only and every={found.every} are both given, expected one of them; "
            f"leave out one"
        )
    if found.checkpoint and limit is not None:
        raise ArgumentError(
            f"{where}: memory_limit and checkpoint={found.checkpoint} are both given, expected "
            f"one of them; leave out checkpoint, which memory_limit chooses"
        )
    return replace(found, hidden=_hidden(layout, found))


def _hidden(layout: TensorLayout, found: Request) -> int:
    states = layout.forward.states.values() if found.last else ()
    wanted = {*found.names} - {*states}
    numbered = enumerate(layout.outputs)
    return sum(1 << k for k, item in numbered if not item.of and item.name not in wanted)


def is_last(given: Mapping[str, object]) -> bool:
    """Whether options by name ask for the last step alone."""
    return bool(given.get("last_only"))


def _names(layout: TensorLayout, outputs: object) -> tuple[str, ...]:
    """The outputs over time that are wanted. Raises ArgumentError."""
    every = tuple(item.name for item in layout.outputs if item.over_time)
    if outputs is None:
        return every
    names: Collection[object] = (
        outputs if isinstance(outputs, tuple | list | set | frozenset) else (outputs,)
    )
    if names is outputs and all(name in every for name in names):
        return tuple(name for name in every if name in names)
    raise ArgumentError(
        f"{layout.where}: outputs is {accept.shown(outputs)}, expected a tuple of some of "
        f"{', '.join(every)}; name the outputs over time that are wanted"
    )


def _products(where: str, products: object) -> int:
    known = PRODUCTS[IN_FULL:]
    if isinstance(products, str) and products in known:
        return known.index(products) + IN_FULL
    if products == INT8:
        raise ArgumentError(
            f"{where}: products is {INT8!r}, which calls of frameworks do not have, expected one "
            f"of {', '.join(map(repr, known))}; pack the weights for a kernel, "
            f"kernel.pack(..., products={INT8!r}), and call kernel.sequence_forward"
        )
    raise ArgumentError(
        f"{where}: products is {accept.shown(products)}, expected one of "
        f"{', '.join(map(repr, known))}"
    )


def looked_at(
    layout: TensorLayout,
    given: Sequence[tuple[str, object]],
    sizes: Sequence[tuple[str, int]] = (),
    itemsize: int = 0,
    skips: bool = False,
) -> Request:
    """Look at options by name, and choose checkpoints for a limit of memory if there is one.

    ``sizes`` are the dimensions of the call, then needed, ``itemsize`` the bytes of an element of
    its arrays. Raises ArgumentError.
    """
    found = asked(layout, dict(given))
    if found.limit is None:
        return found
    steps = _segment(layout, found, dict(sizes), itemsize, skips=skips)
    return replace(found, checkpoint=steps, limit=None)


def _segment(
    layout: TensorLayout, found: Request, sizes: Mapping[str, int], itemsize: int, *, skips: bool
) -> int:
    """The steps of a segment that a limit of memory allows; 0: every step saves.

    Raises ArgumentError where nothing fits.
    """
    in_full = found.names if found.every == 1 and not found.last else ()
    in_segment = max(itemsize, FLOAT_BYTES)
    forward = [item for item in layout.forward.results if item.shape[:1] == ("T",)]
    seen = showing(layout, Shown(checkpoint=1, skips=skips))
    known = {**sizes, CHECKPOINTS: 1}

    def count(items: Collection[Argument], size: int) -> int:
        return sum(size * math.prod(seen.shape(i.name, known)[1:]) for i in items)

    saved = [item for item in forward if item.saved or item.name not in in_full]
    kept = count(saved, itemsize), count(forward, in_segment), count(seen.saved, in_segment)
    return segment_steps(layout.where, StepBytes(sizes["T"], *kept), found.limit)

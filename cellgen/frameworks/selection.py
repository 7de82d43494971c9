"""Which outputs a call forms and what it keeps: the layout of a call with options.

Input: the layout of a cell and the ``Options`` of a call. Output: the same layout with the outputs
that such a call gives, the gradients that its backward pass takes, and checkpoints in place of
saved arrays. ``outputs`` of these options names those over time that are formed: of the last step
alone no states, whose final ones tell the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.frameworks.layout import TensorLayout, outputs_of
from cellgen.runtime.abi import Argument, Function, axis_terms
from cellgen.runtime.call.arguments import as_steps
from cellgen.runtime.call.checkpoints import StepBytes, kept_items, limit_bytes, segment_steps
from cellgen.runtime.call.signature import CHECKPOINTS, ROWS_APART, signature
from cellgen.runtime.call.stored import BFLOAT16
from cellgen.runtime.numbers import ALL, MOST_BITS
from cellgen.runtime.options import BF16, BY_TYPE, FULL, INT8, ROWS, Options

Kind = TypeVar("Kind", bound=TensorLayout)

ON_TENSORS = Options(products=BY_TYPE)
"""A call of a framework without options: the type of its arrays says how products are formed."""
AT_CHECKPOINTS = " at checkpoints"
"""What follows a name where checkpoints hold the value."""
FLOAT_BYTES = 4
"""Of an element of checkpoints, and of what runs from one to the next, where arrays have 16 bits.
"""


def is_in_bf16(products: str, element: str) -> bool:
    """Whether products over time have operands in bfloat16, of arrays of a type."""
    return products == BF16 or (products == BY_TYPE and element == BFLOAT16)


def with_products(options: Options, element: str) -> Options:
    """The same options with products as they are for arrays of a type."""
    return replace(options, products=BF16 if is_in_bf16(options.products, element) else FULL)


# --- what options show ------------------------------------------------------------------------


def is_whole(options: Options) -> bool:
    """Whether a call gives all outputs of all steps, and keeps what every step saves."""
    usual = options.every == 1 and options.outputs is None
    return usual and not (options.checkpoint or options.last_only)


LAST = "last_only"
"""The option by which outputs over time are those of the last step."""


def is_last(options: Options) -> bool:
    """Whether outputs over time are (B, ...), of the last step."""
    return options.last_only


def in_call(function: Function, options: Options) -> Function:
    """The interface of a function in a call with options: the steps that it shows, and rows."""
    per_row = ROWS_APART if options.per_row else 0
    return signature(function, options.every, last=is_last(options), per_row=per_row)


def hidden(layout: TensorLayout, options: Options) -> int:
    """Outputs that are not formed, as bits: bit k stands for the k-th of the cell."""
    names = outputs_of(options)
    if names is None:
        return 0
    numbered = enumerate(layout.outputs)
    return sum(1 << k for k, item in numbered if not item.of and item.name not in names)


def formed(layout: TensorLayout, options: Options) -> int:
    """The others, as bits; final states always are.

    Raises ArgumentError where bits do not reach one that is not formed.
    """
    unformed = hidden(layout, options)
    if unformed >> MOST_BITS:
        raise ArgumentError(
            f"{layout.label}: of {len(names_over_time(layout))} outputs some are left out, "
            f"expected at most {MOST_BITS} outputs over time where a call of a framework forms a "
            f"part of them; leave outputs and last_only out"
        )
    return ALL - unformed


def names_over_time(layout: TensorLayout) -> tuple[str, ...]:
    """The outputs over time of a cell."""
    return tuple(item.name for item in layout.outputs if item.over_time)


def joined(options: Options, wanted: Options) -> Options:
    """The options of a call, and what is ``wanted`` of its outputs, of products and of memory."""
    return replace(
        options,
        last_only=wanted.last_only,
        outputs=wanted.outputs,
        every=wanted.every,
        products=wanted.products,
        checkpoint=wanted.checkpoint,
    )


def when_plain(options: Options) -> Options:
    """The options of the same call where it does not save."""
    return replace(options, checkpoint=0) if options.checkpoint else options


def when_saving(options: Options) -> Options:
    """The options of the same call where it saves: all outputs are formed, which gradients read.

    With a checkpoint, those that are shown, of all steps in place of the last.
    """
    if options.checkpoint:
        return replace(options, last_only=False)
    return replace(options, every=1, outputs=None, last_only=False)


def showing(layout: Kind, options: Options, *, skips: bool) -> Kind:
    """Give the layout that a call with options has; without any, the same.

    ``skips``: whether there are steps that may be masked.
    """
    if is_whole(options):
        return layout
    selection = Options(
        mask=skips or None,
        last_only=options.last_only,
        outputs=options.outputs,
        every=options.every,
        checkpoint=options.checkpoint,
    )
    kind: Kind = _showing(layout, selection)
    return kind


@functools.lru_cache(maxsize=1024)
def _showing(layout: Kind, options: Options) -> Kind:
    unformed, last = hidden(layout, options), options.last_only
    results = signature(layout.forward, options.every, last=last).results
    shapes = signature(layout.backward, options.every, last=last).arguments
    formed = enumerate(item for item in results if not item.saved)
    outputs = tuple(item for k, item in formed if not unformed >> k & 1)
    named = {f"d_{item.name}" for item in outputs}
    upstream = tuple(item for item in shapes if item.optional and item.name in named)
    saved = layout.saved
    if options.checkpoint:
        saved = tuple(
            replace(a, name=name + AT_CHECKPOINTS, shape=(CHECKPOINTS, *a.shape), of="")
            for name, a in kept_items(layout.forward, options)
        )
    changed = {item.name: item for item in (*outputs, *upstream, *saved)}
    terms = {name: tuple(map(axis_terms, item.shape)) for name, item in changed.items()}
    return replace(
        layout,
        outputs=outputs,
        upstream=upstream,
        saved=saved,
        terms={**layout.terms, **terms},
        options=options,
    )


# --- options as a caller states them ----------------------------------------------------------

OUTPUT_OPTIONS = ("every", "last_only", "outputs", "checkpoint", "memory_limit", "products")
"""The options that ``options_of`` looks at."""


def options_of(
    layout: TensorLayout,
    stated: Sequence[tuple[str, object]],
    sizes: Sequence[tuple[str, int]] = (),
    itemsize: int = 0,
    skips: bool = False,
) -> Options:
    """Look at options by name, and choose checkpoints for a limit of memory if there is one.

    ``stated`` has some of ``OUTPUT_OPTIONS``; ``sizes`` are the dimensions of the call, needed for
    a limit, ``itemsize`` the bytes of an element of its arrays. Raises ArgumentError.
    """
    options, whole = _checked(layout, dict(stated))
    if options.memory_limit is None:
        return options
    steps = _segment(layout, options, whole, dict(sizes), itemsize, skips=skips)
    return replace(options, checkpoint=steps, memory_limit=None)


def _checked(layout: TensorLayout, stated: Mapping[str, object]) -> tuple[Options, tuple[str, ...]]:
    """The options, and the outputs that are shown of all steps. Raises ArgumentError."""
    label, limit = layout.label, stated.get("memory_limit")
    every, checkpoint = ROWS["every"], ROWS["checkpoint"]
    names = _names(layout, stated.get("outputs"))
    options = replace(
        ON_TENSORS,
        every=as_steps(label, "every", stated.get("every", 1), every.least, every.fewest),
        last_only=accept.flag(label, "last_only", stated.get("last_only", False)),
        checkpoint=as_steps(label, "checkpoint", stated.get("checkpoint", 0), checkpoint.least),
        memory_limit=None if limit is None else limit_bytes(label, limit),
        products=_products(label, stated["products"]) if "products" in stated else BY_TYPE,
    )
    if options.last_only and options.every != 1:
        raise ArgumentError(
            f"{label}: last_only and every={options.every} are both given, expected one of them; "
            f"leave out one"
        )
    if options.checkpoint and limit is not None:
        raise ArgumentError(
            f"{label}: memory_limit and checkpoint={options.checkpoint} are both given, expected "
            f"one of them; leave out checkpoint, which memory_limit chooses"
        )
    whole = names if options.every == 1 and not options.last_only else ()
    return replace(options, outputs=_formed_names(layout, names, options)), whole


def _formed_names(
    layout: TensorLayout, names: tuple[str, ...], options: Options
) -> tuple[str, ...] | None:
    """Of the outputs that are wanted, those that are formed; None: all that there are."""
    states = layout.forward.states.values() if options.last_only else ()
    formed = tuple(name for name in names if name not in states)
    return None if formed == names_over_time(layout) else formed


def asks_for_last(stated: Mapping[str, object]) -> bool:
    """Whether options by name ask for the last step alone."""
    return bool(stated.get("last_only"))


def _names(layout: TensorLayout, outputs: object) -> tuple[str, ...]:
    """The outputs over time that are wanted. Raises ArgumentError."""
    every = names_over_time(layout)
    if outputs is None:
        return every
    names: Collection[object] = (
        outputs if isinstance(outputs, tuple | list | set | frozenset) else (outputs,)
    )
    if names is outputs and all(name in every for name in names):
        return tuple(name for name in every if name in names)
    raise ArgumentError(
        f"{layout.label}: outputs is {accept.quoted(outputs)}, expected a tuple of some of "
        f"{', '.join(every)}; name the outputs over time that are wanted"
    )


def _products(label: str, products: object) -> str:
    known = (FULL, BF16)
    if isinstance(products, str) and products in known:
        return known[known.index(products)]
    if products == INT8:
        raise ArgumentError(
            f"{label}: products is {INT8!r}, which calls of frameworks do not have, expected one "
            f"of {', '.join(map(repr, known))}; pack the weights for a kernel, "
            f"kernel.pack(..., products={INT8!r}), and call kernel.sequence_forward"
        )
    raise ArgumentError(
        f"{label}: products is {accept.quoted(products)}, expected one of "
        f"{', '.join(map(repr, known))}"
    )


def _segment(
    layout: TensorLayout,
    options: Options,
    whole: tuple[str, ...],
    sizes: Mapping[str, int],
    itemsize: int,
    *,
    skips: bool,
) -> int:
    """The steps of a segment that a limit of memory allows; 0: every step saves.

    Raises ArgumentError where nothing fits.
    """
    in_segment = max(itemsize, FLOAT_BYTES)
    forward = [item for item in layout.forward.results if item.shape[:1] == ("T",)]
    kept = showing(layout, Options(checkpoint=1), skips=skips)
    known = {**sizes, CHECKPOINTS: 1}

    def count(items: Collection[Argument], size: int) -> int:
        return sum(size * math.prod(kept.shape(i.name, known)[1:]) for i in items)

    saved = [item for item in forward if item.saved or item.name not in whole]
    counts = count(saved, itemsize), count(forward, in_segment), count(kept.saved, in_segment)
    return segment_steps(layout.label, StepBytes(sizes["T"], *counts), options.memory_limit)

"""Dialects that other packages bring, by their entry points.

Input: a dialect's name. Output: a row as those of the table: a function of options that returns a
layout, of which nothing is believed before it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.plugins import DIALECTS, Plugin, named, plugins
from cellgen.weights.layouts import CELLS, Dialect, blocks_of


def names_of_packages() -> list[str]:
    """Names of the dialects that packages bring; none is imported."""
    return [plugin.name for plugin in plugins(DIALECTS)]


def row_of_package(name: str) -> Callable[..., Dialect] | None:
    """The row that a package brings; None where none does. Raises ArgumentError, naming it."""
    plugin = named(DIALECTS, name)
    if plugin is None:
        return None
    row = plugin.load(ArgumentError)
    if not callable(row):
        raise plugin.fault(f"{plugin.value} is no function of options", ArgumentError)
    return partial(_layout, plugin, row)


def _layout(plugin: Plugin, row: Callable[..., object], **options: object) -> Dialect:
    """The layout that a package's function returns. Raises ArgumentError, which names it."""
    try:
        layout = row(**options)
    except (TypeError, ArgumentError):  # options that do not fit
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise plugin.fault(f"{plugin.value} raises {reason}", ArgumentError) from error
    if not isinstance(layout, Dialect):
        raise plugin.fault(
            f"{plugin.value} returns {accept.quoted(layout)}, expected a cellgen.weights.Dialect",
            ArgumentError,
        )
    if not isinstance(layout.function, str) or layout.function not in CELLS:
        known = ", ".join(CELLS)
        raise plugin.fault(
            f"function is {accept.quoted(layout.function)}, expected one of {known}", ArgumentError
        )
    try:
        named_blocks = [str(block) for array in layout.arrays for block in array.blocks]
    except (TypeError, AttributeError) as error:
        raise plugin.fault(
            f"arrays is {accept.quoted(layout.arrays)}, expected a tuple of PackedWeight: {error}",
            ArgumentError,
        ) from None
    _require_blocks(plugin, layout.function, named_blocks)
    return layout


def _require_blocks(plugin: Plugin, function: str, named_blocks: Sequence[str]) -> None:
    """Refuse blocks that the equations do not have, or have twice, and matrices left out."""
    blocks = blocks_of(function)
    unknown = sorted({*named_blocks} - blocks)
    missing = sorted({block for block in blocks if block[0] in "wur"} - {*named_blocks})
    twice = sorted({block for block in named_blocks if named_blocks.count(block) > 1})
    faults = (
        (unknown, f"is no block of {function}, expected {', '.join(sorted(blocks))}"),
        (missing, f"of {function} has no place"),
        (twice, f"of {function} stands twice"),
    )
    for which, what in faults:
        if which:
            raise plugin.fault(f"{', '.join(which)} {what}", ArgumentError)

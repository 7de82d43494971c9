"""Arrays to blocks and back: what a dialect's grid says, done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.weights.layouts import Array as Array
from cellgen.weights.layouts import Dialect, PackedWeight

Arrays: TypeAlias = dict[str, Array]
Blocks: TypeAlias = dict[str, Array]


def read_blocks(dialect: Dialect, arrays: Mapping[str, Array]) -> Blocks:
    """Cut a library's arrays into the blocks that its dialect names. Raises ArgumentError."""
    laid = {array.name: _laid(dialect, array, arrays[array.name]) for array in dialect.arrays}
    units = _units(dialect, laid)
    blocks = Blocks()
    for array in dialect.arrays:
        grid = laid[array.name]
        heights = _heights(dialect, array, grid, units)
        top = 0
        for row, height in zip(array.grid, heights, strict=True):
            for at, block in enumerate(row):
                cut = grid[top : top + height, units * at : units * (at + 1)]
                if block.lstrip("-")[0] in "bcp":
                    cut = cut[0]
                elif array.column_major:
                    cut = cut.reshape(cut.shape[::-1]).T
                blocks[block.lstrip("-")] = -cut if block.startswith("-") else cut
            top += height
    _require_one_input(dialect, blocks)
    return blocks


def write_blocks(dialect: Dialect, blocks: Mapping[str, Array]) -> Arrays:
    """Join blocks as a library stacks them."""
    written = Arrays()
    for array in dialect.arrays:
        rows = []
        for row in array.grid:
            signed = [
                -blocks[block.lstrip("-")] if block.startswith("-") else blocks[block]
                for block in row
            ]
            if array.column_major:
                signed = [block.T.reshape(block.shape) for block in signed]
            rows.append(np.concatenate(signed, axis=-1))
        joined = rows[0] if len(rows) == 1 else np.concatenate([np.atleast_2d(r) for r in rows])
        joined = joined.T if array.transposed else joined
        written[array.name] = np.ascontiguousarray(joined[None] if array.leading else joined)
    return written


def _laid(dialect: Dialect, array: PackedWeight, whole: Array) -> Array:
    """Look at an array as two axes: rows of blocks, and units."""
    entry = whole
    if array.leading:
        if entry.ndim not in (2, 3) or array.entry >= entry.shape[0]:
            raise ArgumentError(
                f"{dialect.name}: {array.name} has shape {whole.shape}, expected a first axis of "
                f"{array.entry + 1} or more (one entry a direction); give the array as the library "
                f"holds it"
            )
        entry = entry[array.entry]
    flat = all(block[0] in "bcp" for block in array.blocks)
    if entry.ndim != (1 if flat and len(array.grid) == 1 else 2):
        axes = "one axis" if flat and len(array.grid) == 1 else "two axes"
        raise ArgumentError(
            f"{dialect.name}: {array.name} has shape {whole.shape}, expected {axes}"
            + (" behind the first" if array.leading else "")
        )
    return np.atleast_2d(entry.T if array.transposed else entry)


def _units(dialect: Dialect, laid: Mapping[str, Array]) -> int:
    """H, from the first array; every other must agree. Raises ArgumentError."""
    first = dialect.arrays[0]
    units = int(laid[first.name].shape[1]) // len(first.grid[0])
    for array in dialect.arrays:
        count, width = len(array.grid[0]), laid[array.name].shape[1]
        if width != count * units or not units:
            raise ArgumentError(
                f"{dialect.name}: {array.name} holds {width} numbers for its {count} blocks "
                f"{', '.join(array.grid[0])}, expected {count} H = {count * units}, since "
                f"{first.name} says H = {units}"
            )
    return units


def _heights(dialect: Dialect, array: PackedWeight, laid: Array, units: int) -> list[int]:
    """Rows of each row of blocks: I of the input, H of the state, one of a bias."""
    kinds = [row[0].lstrip("-")[0] for row in array.grid]
    known = {"u": units, "b": 1, "c": 1, "p": 1}
    rest = laid.shape[0] - sum(known.get(kind, 0) for kind in kinds)
    heights = [rest if kind == "w" else known[kind] for kind in kinds]
    if rest < 0 or ("w" not in kinds and rest):
        axis = "second" if array.transposed else "first"
        wanted = {"u": f"H = {units}", "w": "I + H", "b": str(len(kinds))}[kinds[0]]
        raise ArgumentError(
            f"{dialect.name}: the {axis} of {array.name}'s axes holds {laid.shape[0]}, expected "
            f"{wanted}"
        )
    return heights


def _require_one_input(dialect: Dialect, blocks: Blocks) -> None:
    inputs = {block: cut.shape[0] for block, cut in blocks.items() if block[0] == "w"}
    if len(set(inputs.values())) > 1:
        said = ", ".join(f"{block}: {size}" for block, size in inputs.items())
        raise ArgumentError(f"{dialect.name}: arrays disagree on I, the size of the input: {said}")

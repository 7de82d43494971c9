"""Weights of one library to those of another, through the cell that computes both."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.weights.dialects import ROWS, dialect
from cellgen.weights.grids import Array, Arrays, Blocks, read_blocks, write_blocks
from cellgen.weights.heads import read_heads, write_heads
from cellgen.weights.layouts import CELLS, SUFFIXES, Dialect
from cellgen.weights.semantics import largest_difference

OF_TENSORFLOW = ":0"
"""What the names of TensorFlow's variables end in."""
LISTED = 4
"""Entries that a message lists."""
PRECISIONS = ("float16", "bfloat16", "float32", "float64")
SLACK = 64
"""Units in the last place by which two dialects may differ after a few steps."""


class Converted(dict[str, Array]):
    """Arrays by the target's names; also what they are and how they were proved.

    ``cell``: the shipped cell that they went through. ``difference``: the largest difference of the
    states between the two libraries' equations, over five steps of two rows of drawn numbers,
    relative to the largest state, or None where it was not proved.
    """

    def __init__(self, arrays: Mapping[str, Array], cell: str, difference: float | None) -> None:
        super().__init__(arrays)
        self.cell = cell
        self.difference = difference


def convert(
    arrays: Mapping[str, Any],
    source: str | Dialect,
    target: str | Dialect,
    *,
    prefix: str = "",
    prove: bool = False,
) -> Converted:
    """Convert one layer's weights from one library's layout to another's.

    ``arrays``: by the source's names; nested mappings are flattened with "/", names without
    ``prefix`` left out, and ``:0``, in which TensorFlow's end, is dropped. ``source`` and
    ``target``: dialects (``cellgen.weights.dialect``) or their names, ``"torch.nn.LSTM"``,
    ``"keras.layers.GRU(reset_after=False)"``; ``cellgen.<cell>`` is the cell's own. Arrays keep
    their precision. Two biases that the library adds stay two where the target has two, else are
    added. With ``prove`` both libraries' equations run in float64 over the same drawn inputs, and
    the result says by how much they differ.

    Raises:
        ArgumentError: a dialect that is not known, arrays that are missing, left over or do not
            fit; dialects of different equations; entries that the target has no place for; a proof
            that fails.
    """
    read_as, write_as = _known(source), _known(target)
    if read_as.function != write_as.function:
        alike = ", ".join(name for name in ROWS if _computes(name, read_as.function))
        raise ArgumentError(
            f"convert: {read_as.name} computes {CELLS[read_as.function]}, {write_as.name} "
            f"{CELLS[write_as.function]}: no weights make one of the other; dialects of "
            f"{CELLS[read_as.function]}: {alike}"
        )
    source_arrays = _arrays_of(read_as, arrays, prefix)
    blocks = (
        read_heads(read_as, source_arrays) if read_as.heads else read_blocks(read_as, source_arrays)
    )
    if read_as.forget_bias:
        offset = blocks["b_f"].dtype.type(read_as.forget_bias)
        blocks["b_f"] = _added(read_as, "b_f", blocks["b_f"], offset)
    fitted = _fitted(write_as, blocks)
    written = (write_heads if write_as.heads else write_blocks)(write_as, fitted)
    difference = _proved(read_as, source_arrays, write_as, written) if prove else None
    cell = "lstm_peephole" if _has_peepholes(blocks) else CELLS[read_as.function]
    return Converted(written, cell, difference)


def _known(wanted: str | Dialect) -> Dialect:
    return wanted if isinstance(wanted, Dialect) else dialect(wanted)


def _computes(name: str, function: str) -> bool:
    """Whether a dialect has these equations, by its options where they are left out."""
    return ROWS[name]().function == function


def _arrays_of(read_as: Dialect, arrays: Mapping[str, Any], prefix: str) -> Arrays:
    """The dialect's arrays among those given, as NumPy arrays of one precision."""
    prefix = accept.word("convert", "prefix", prefix, "how names begin")
    flat = {
        name.removeprefix(prefix): value
        for name, value in _flat(arrays).items()
        if name.startswith(prefix)
    }
    wanted = [array.name for array in read_as.arrays]
    for name in [n for n in flat if n.endswith(OF_TENSORFLOW)]:
        plain = name.removesuffix(OF_TENSORFLOW)
        if plain in flat:
            raise ArgumentError(
                f"{read_as.name}: {plain} stands twice, as {plain} and {name}; give one"
            )
        flat[plain] = flat.pop(name)
    missing = [name for name in wanted if name not in flat]
    if missing:
        present = ", ".join(sorted(flat)) or "none"
        before = [name.removesuffix(wanted[0]) for name in flat if name.endswith(wanted[0])]
        whole = [repr(prefix + p) for p in before if all(p + name in flat for name in wanted)]
        raise ArgumentError(
            f"{read_as.name}: {', '.join(missing)} missing among the arrays"
            + (f" that begin with {prefix!r}" if prefix else "")
            + f"; found: {present}; expected: {', '.join(wanted)}"
            + (f"; all are there with prefix {' or '.join(whole)}" if whole else "")
        )
    spare = [n for n in flat if n not in wanted and not n.startswith(read_as.others or ("\0",))]
    if spare:
        close = difflib.get_close_matches(spare[0], wanted, n=1)
        raise ArgumentError(
            f"{read_as.name}: {', '.join(spare)} not known"
            + (f"; did you mean {close[0]}?" if close else "")
            + f"; expected: {', '.join(wanted)}; arrays of other layers need a prefix that they "
            f"do not have"
        )
    return _of_one_precision(read_as, {name: flat[name] for name in wanted})


def _flat(arrays: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    if not isinstance(arrays, Mapping):
        raise ArgumentError(
            f"convert: arrays is a {type(arrays).__name__}, expected arrays by name in a dict"
        )
    flat: dict[str, Any] = {}
    for name, value in arrays.items():
        inner = isinstance(value, Mapping)
        own = _flat(value, f"{before}{name}/") if inner else {f"{before}{name}": value}
        twice = sorted(flat.keys() & own.keys())
        if twice:
            raise ArgumentError(
                f"convert: {twice[0]} stands twice among the arrays, nested and by its whole name; "
                f"give one"
            )
        flat |= own
    return flat


def _of_one_precision(read_as: Dialect, arrays: Mapping[str, Any]) -> Arrays:
    by_name = {}
    for name, value in arrays.items():
        accept.refuse_masked(read_as.name, name, value)
        held = value.detach() if hasattr(value, "detach") else value
        held = accept.in_memory(read_as.name, name, held)
        try:
            array = np.asarray(held)
        except Exception as error:
            raise ArgumentError(
                f"{read_as.name}: {name} is a {type(value).__name__} that NumPy cannot read: "
                f"{error}; give a NumPy array"
            ) from None
        if array.dtype.name not in PRECISIONS:
            raise ArgumentError(
                f"{read_as.name}: {name} is of {array.dtype}, expected floating-point numbers: "
                f"{', '.join(PRECISIONS)}"
            )
        by_name[name] = array
    kinds = {array.dtype for array in by_name.values()}
    if len(kinds) > 1:
        said = ", ".join(f"{name}: {array.dtype}" for name, array in by_name.items())
        raise ArgumentError(f"{read_as.name}: arrays of several precisions: {said}; give one")
    return by_name


def _fitted(write_as: Dialect, blocks: Mapping[str, Array]) -> Blocks:
    """The blocks that the target has, biases added where it has one, zero where none was given."""
    fitted = dict(blocks)
    places = write_as.blocks
    for suffix in SUFFIXES[write_as.function]:
        first, second = f"b{suffix}", f"c{suffix}"
        both_meet = not (write_as.function == "gru" and suffix == "_n")
        if second in fitted and second not in places and both_meet:
            fitted[first] = _added(write_as, first, fitted[first], fitted.pop(second))
    if write_as.forget_bias:
        none = np.zeros_like(fitted["u_f"][0])
        bias = fitted.get("b_f", none)
        fitted["b_f"] = _added(write_as, "b_f", bias, -bias.dtype.type(write_as.forget_bias))
    _require_places(write_as, fitted)
    vectors = [block for block in places if block not in fitted]
    like = next(array for block, array in sorted(blocks.items()) if block[0] in "ur")
    return fitted | {block: np.zeros(like.shape[1:], like.dtype) for block in vectors}


def _added(known: Dialect, block: str, one: Array, other: Array) -> Array:
    """The sum of two biases. Raises ArgumentError where its precision cannot hold it."""
    with np.errstate(over="ignore"):
        total = np.asarray(one + other)
    if np.any(np.isinf(total) & np.isfinite(one) & np.isfinite(other)):
        raise ArgumentError(
            f"{known.name}: the sum of two biases, {block}, is beyond {total.dtype}; give the "
            f"arrays in a wider precision"
        )
    return total


def _require_places(write_as: Dialect, blocks: Mapping[str, Array]) -> None:
    """Refuse entries that are not zero and have no place in the target. Raises ArgumentError."""
    lost = []
    for block, array in blocks.items():
        if block not in write_as.blocks:
            lost += [f"{block}[{int(at)}] = {float(array[at]):.6g}" for at in np.flatnonzero(array)]
    if lost:
        rest = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
        what = {"b": "bias", "c": "second bias", "p": "peephole"}[lost[0][0]]
        raise ArgumentError(
            f"{write_as.name} has no {what} there: {', '.join(lost[:LISTED])}{rest} cannot be "
            f"expressed; choose a dialect that has one, or set them to zero"
        )


def _has_peepholes(blocks: Mapping[str, Array]) -> bool:
    return any(np.any(array) for block, array in blocks.items() if block.startswith("p_"))


def _proved(read_as: Dialect, source_arrays: Arrays, write_as: Dialect, written: Arrays) -> float:
    """Run both libraries' equations; return how far their states differ. Raises ArgumentError."""
    for name, array in source_arrays.items():
        if not np.isfinite(array.astype(np.float64)).all():
            raise ArgumentError(
                f"convert: {name} has entries that are not finite, of which nothing can be proved; "
                f"leave prove out, or give finite weights"
            )
    precision = next(iter(source_arrays.values())).dtype
    difference = largest_difference((read_as, source_arrays), (write_as.alone, written))
    eps = float(np.finfo(precision).eps) if precision.kind == "f" else 2.0**-7
    if not difference <= SLACK * eps:
        raise ArgumentError(
            f"convert: {read_as.name} and {write_as.name} differ by {difference:.2g} after five "
            f"steps, more than {SLACK} roundings of {precision} explain"
        )
    return difference

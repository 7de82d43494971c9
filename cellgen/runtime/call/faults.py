"""What is wrong with the shapes of a call, as data, and the sentence that says so at every door.

A ``Fault`` names an argument, what it has and what was expected. ``TABLE`` has a sentence for each
kind. A door raises it as an error of its own: ``raise TensorError(sentence(where, fault))``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cellgen.runtime.abi import Argument, axis_terms, terms_length
from cellgen.runtime.call.dimensions import dims_of

RANK, LENGTH, SHAPE = "rank", "length", "shape"
"""Another number of axes; a length that is none of its axis; lengths that do not agree."""
Origin: TypeAlias = tuple[str, Argument]
"""An argument that told a dimension, and what messages call it."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with one argument of a call.

    ``label`` names it in messages, ``actual`` is the shape that it has. ``axis`` is one that no
    length of the dimensions makes as long. ``sizes`` are the dimensions that are known, ``origins``
    the arguments that told them.
    """

    code: str
    argument: Argument
    label: str
    actual: tuple[int, ...]
    axis: int = 0
    sizes: Mapping[str, int] | None = None
    origins: Mapping[str, Origin] | None = None

    @property
    def expected(self) -> tuple[int, ...]:
        """The shape that the argument should have, of sizes that are known."""
        sizes = self.sizes or {}
        return tuple(terms_length(axis_terms(axis), sizes) for axis in self.argument.shape)


TABLE = {
    RANK: "{label} has {rank} axes, shape {actual}, expected {axes}: {shape}; {advice}",
    LENGTH: "{label} has shape {actual}, expected {shape}: no length >= 0 makes {sum} equal "
    "{length}{known}; check the shape of {label}",
    SHAPE: "{label} has shape {actual}, expected {shape} = {expected} with {reasons}; {advice}",
}
"""The sentence of each kind of fault."""


def sentence(label: str, fault: Fault) -> str:
    """Say what is wrong, of the function ``label``, and what to do."""
    item = fault.argument
    words: dict[str, object] = {"label": fault.label, "actual": fault.actual}
    words["shape"] = shape_text(item)
    if fault.code == RANK:
        words |= {"rank": len(fault.actual), "axes": len(item.shape), "advice": _advice(fault)}
    elif fault.code == LENGTH:
        words |= _of_sum(fault)
    else:
        words |= {"expected": fault.expected, "reasons": _reasons(fault)}
        words["advice"] = _agreement(fault)
    return f"{label}: {TABLE[fault.code].format(**words)}"


def _advice(fault: Fault) -> str:
    """What to do about an array that lacks an axis, or has one too many."""
    item, label = fault.argument, fault.label
    if label == item.name and item.over_time and len(fault.actual) + 1 == len(item.shape):
        return f"pass {label}[:, None] for one row, {label}[None] for one step"
    return "reshape it"


def _agreement(fault: Fault) -> str:
    """What to do about a length that another argument contradicts: what was likely exchanged."""
    item, actual, expected = fault.argument, fault.actual, fault.expected
    if fault.label == item.name and len(actual) == 2 and actual[::-1] == expected:
        return f"make the two agree: {item.name}.T has this shape"
    if item.shape[0] == "B" and actual == ((fault.sizes or {}).get("T"), *expected[1:]):
        return "make the two agree: arrays are (T, B, ...), and (B, T, ...) with batch_first=True"
    return "make the two agree"


def _of_sum(fault: Fault) -> dict[str, object]:
    """The words of an axis that no length makes as long as it is."""
    terms, sizes = axis_terms(fault.argument.shape[fault.axis]), fault.sizes or {}
    known = ", ".join(f"{name} = {sizes[name]}" for _, name in terms if name in sizes)
    return {
        "sum": " + ".join(f"{factor}*{name}" if factor > 1 else name for factor, name in terms),
        "length": fault.actual[fault.axis],
        "known": f" with {known}" if known else "",
    }


def _reasons(fault: Fault) -> str:
    """Which argument told each dimension of the shape that was expected."""
    sizes, origins = fault.sizes or {}, fault.origins or {}
    names = dict.fromkeys(dims_of(fault.argument))
    reasons = [(name, *origins[name]) for name in names]
    return ", ".join(f"{n} = {sizes[n]} from {label} {shape_text(a)}" for n, label, a in reasons)


def unbound(label: str, dim: str, sums: Iterable[Argument], ways: Sequence[str]) -> str:
    """Say that nothing tells a dimension; ``sums`` have it among others, ``ways`` would tell it."""
    alone = ", ".join(f"{item.name} {shape_text(item)}" for item in sums)
    advice = (
        f"pass {' or '.join(ways)}" if ways else "add an argument to the cell that has it alone"
    )
    return (
        f"{label}: nothing in this call tells the dimension {dim}"
        f"{f', only sums with it: {alone}' if alone else ''}; {advice}"
    )


def shape_text(argument: Argument) -> str:
    """Write a shape as the equations do: ``(B, 2 H)``."""
    return "(" + ", ".join(re.sub(r"\*", " ", axis) for axis in argument.shape) + ")"

"""Which cells show, between them, all that a property can depend on.

A property that holds for code is shown by cells that go through all of it; the same code again, for
another cell, shows nothing more. So tests that repeat one property over every cell that ships run
on a cover, and on the other cells with the slow tests. What cells have is read of what is
committed, which costs nothing to derive.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from sympy import preorder_traversal

from cellgen.cells import SHIPPED
from cellgen.language.cell import Cell
from cellgen.language.value import Role
from cellgen.runtime.paths import generated_folder, include_folder

Name = TypeVar("Name", bound=Hashable)
Traits = frozenset[tuple[Hashable, ...]]
SEVERAL = 3
"""As many of a kind as are told apart: none, one, two, more."""


def cover(traits: Mapping[Name, Traits]) -> tuple[Name, ...]:
    """Names that have every trait between them, of which none can be left out, in their order.

    Whoever has most of what is missing is taken, the first of equals; then those are left out whose
    traits others that were taken have as well.
    """
    missing, taken = set[tuple[Hashable, ...]]().union(*traits.values()), list[Name]()
    while missing:
        best = max(traits, key=lambda name: len(traits[name] & missing))
        taken.append(best)
        missing -= traits[best]
    counts = Counter(trait for name in taken for trait in traits[name])
    for name in sorted(taken, key=lambda name: len(traits[name])):
        if all(counts[trait] > 1 for trait in traits[name]):
            counts.subtract(traits[name])
            taken.remove(name)
    return tuple(name for name in traits if name in taken)


@cache
def of_interface(cell: type[Cell]) -> Traits:
    """What a call can tell of a cell: kinds of values, the forms of their shapes, how many."""
    found: set[tuple[Hashable, ...]] = set()
    text = (generated_folder() / cell.definition.name / "interface.json").read_text()
    for function in json.loads(text)["functions"]:
        over_time = function.get("team", False)
        found.add(("dimensions", over_time, min(len(function["dims"]), 2 + SEVERAL)))
        for side in ("arguments", "results"):
            for value in function[side]:
                said = (value.keys() - {"name", "shape", "text", "of", "role"}) | {value["role"]}
                found.add((side, over_time, len(value["shape"]), *sorted(said)))
                found |= {("length", _kind_of_length(axis)) for axis in value["shape"]}
    return frozenset(found) | _counts(cell)


@cache
def operators_of(cell: type[Cell]) -> Traits:
    """Operators of a cell's equations."""
    nodes = (n for e in cell.definition.equations for n in preorder_traversal(e.expression))
    return frozenset(("operator", type(node).__name__) for node in nodes)


def of_equations(cell: type[Cell]) -> Traits:
    """Operators of a cell's equations, and axes and number of its values by role."""
    return operators_of(cell) | _counts(cell)


@cache
def of_source(cell: type[Cell]) -> Traits:
    """Names of the runtime that a cell's C has, and what a call can tell."""
    name = cell.definition.name
    text = (generated_folder() / name / f"{name}.c").read_text()
    words = set(re.findall(r"\b(?:cellgen|CELLGEN|cg)_\w+", text)) & _of_runtime()
    return frozenset(("name", word) for word in words) | of_interface(cell)


def of_all(cell: type[Cell]) -> Traits:
    """Of a cell's C and of its equations."""
    return of_source(cell) | operators_of(cell)


def each_of(
    traits: Callable[[type[Cell]], Traits], cells: Sequence[type[Cell]] = SHIPPED
) -> list[ParameterSet]:
    """Parameters: cells that cover run each time, the others with the slow tests."""
    covering = cover({cell: traits(cell) for cell in cells})
    return [
        pytest.param(
            cell, id=cell.definition.name, marks=() if cell in covering else pytest.mark.slow
        )
        for cell in cells
    ]


def each_time(names: Sequence[Name], every: Iterable[Name]) -> list[Name | ParameterSet]:
    """Every one of them as a parameter; all but ``names`` with the slow tests alone."""
    slow = pytest.mark.slow
    return [name if name in names else pytest.param(name, marks=slow) for name in every]


def _counts(cell: type[Cell]) -> Traits:
    """How many values of each role and number of axes there are, and how many outputs."""
    definition = cell.definition
    values = Counter((value.role, len(value.shape)) for value in definition.declared)
    counts = {*values.items(), ((Role.STATE, 0), len(definition.states))}
    roles = frozenset(("count", key, min(count, SEVERAL)) for key, count in counts)
    return roles | {("outputs", min(len(definition.outputs), SEVERAL))}


def _kind_of_length(axis: str) -> str:
    """The form of an axis: every number is 0, every dimension beyond rows and steps D."""
    return re.sub(r"\b(?!T\b|B\b)[A-Z]\w*", "D", re.sub(r"\d+", "0", str(axis)))


@cache
def _of_runtime() -> frozenset[str]:
    texts = (path.read_text() for path in sorted(include_folder().glob("*.h")))
    return frozenset(re.findall(r"\w+", "".join(texts)))

"""Which cells show, between them, all that a property can depend on.

A property that holds for code is shown by cells that go through all of it; the same code again, for
another cell, shows nothing more. So tests that repeat one property over every cell that ships run
on a cover, and on the other cells with the slow tests. What cells have is read of what is
committed, which costs nothing to derive. So it is with options of a call beside cells and types:
``in_turn`` lets each of them meet some of the others.

This is the rule, and ``each_of`` is how a test says it: by what the property depends on.

    of_equations   derivations, programs, what is shown of them
    of_call        calls over time and what hands them on: streams, layers of other libraries
    of_all         proofs, which go through everything
    of_code        what an optimiser sees: which cells are compiled as users compile them
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
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
ROW = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}|\w+\([^()]*\)(?=,)")
"""Of a table of a plan: in braces, which may have braces in them, or a macro."""
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


@cache
def of_plan(cell: type[Cell]) -> Traits:
    """Rows of the tables that the time driver reads: of which table, with which words in it."""
    name = cell.definition.name
    text = (generated_folder() / name / f"{name}_plan.inc.h").read_text()
    tables = re.findall(r"static const (\w+) [^=]*= \{(.*?)\n?\};", text, re.DOTALL)
    return frozenset(
        ("row", kind, *sorted(words))
        for kind, body in tables
        for row in re.findall(ROW, _without_comments(body))
        if (words := set(re.findall(r"\b[A-Z][A-Z_]+\b", row)) - {"CELLGEN_NAME", "NULL"})
    )


def of_call(cell: type[Cell]) -> Traits:
    """What a call can tell of a cell, and what the time driver does for it."""
    return of_interface(cell) | of_plan(cell)


def of_equations(cell: type[Cell]) -> Traits:
    """Operators of a cell's equations, and axes and number of its values by role."""
    return operators_of(cell) | _counts(cell)


@cache
def of_source(cell: type[Cell]) -> Traits:
    """Names of the runtime that a cell's C has."""
    name = cell.definition.name
    text = (generated_folder() / name / f"{name}.c").read_text()
    words = set(re.findall(r"\b(?:cellgen|CELLGEN|cg)_\w+", text)) & _of_runtime()
    return frozenset(("name", word) for word in words)


def of_code(cell: type[Cell]) -> Traits:
    """What an optimiser sees: names of the runtime, kinds of stages, axes of values by role.

    An operator without such a name is arithmetic or a comparison, which every cell has.
    """
    axes = frozenset(("axes", value.role, len(value.shape)) for value in cell.definition.declared)
    stages = frozenset(trait for trait in of_plan(cell) if trait[1] == "cg_stage")
    return of_source(cell) | stages | axes


def of_all(cell: type[Cell]) -> Traits:
    """Of a cell's C, of its plan, of its equations and of calls."""
    return of_source(cell) | operators_of(cell) | of_call(cell)


@cache
def covering(
    traits: Callable[[type[Cell]], Traits], cells: tuple[type[Cell], ...] = SHIPPED
) -> tuple[type[Cell], ...]:
    """Cells that have, between them, all that any of them has."""
    return cover({cell: traits(cell) for cell in cells})


def each_of(
    traits: Callable[[type[Cell]], Traits], cells: Iterable[type[Cell]] = SHIPPED
) -> list[ParameterSet]:
    """Parameters: cells that cover run each time, the others with the slow tests."""
    every = tuple(cells)
    names = [cell.definition.name for cell in every]
    taken = covering(traits, every)
    return [
        pytest.param(cell, id=name, marks=() if cell in taken else pytest.mark.slow)
        for name, cell in zip(names, every, strict=True)
    ]


def each_name_of(
    traits: Callable[[type[Cell]], Traits], cells: Iterable[type[Cell]] = SHIPPED
) -> list[ParameterSet]:
    """As ``each_of``, by name."""
    return [pytest.param(p.id, id=p.id, marks=p.marks) for p in each_of(traits, cells)]


def each_time(names: Sequence[Name], every: Iterable[Name]) -> list[Name | ParameterSet]:
    """Every one of them as a parameter; all but ``names`` with the slow tests alone."""
    slow = pytest.mark.slow
    return [name if name in names else pytest.param(name, marks=slow) for name in every]


def in_turn(*axes: Mapping[str, object] | Iterable[str]) -> list[ParameterSet]:
    """All combinations of values, by name where they are mappings, as parameters.

    Each time every value of an axis meets one of every other axis, the next one the next; all of
    them meet with the slow tests.
    """
    named = [dict(a) if isinstance(a, Mapping) else {name: name for name in a} for a in axes]
    names = [tuple(axis) for axis in named]
    turns = range(max(map(len, names)))
    often = {tuple(axis[turn % len(axis)] for axis in names) for turn in turns}
    return [
        pytest.param(
            *(axis[name] for axis, name in zip(named, one, strict=True)),
            id="-".join(one),
            marks=() if one in often else pytest.mark.slow,
        )
        for one in product(*names)
    ]


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


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@cache
def _of_runtime() -> frozenset[str]:
    texts = (path.read_text() for path in sorted(include_folder().glob("*.h")))
    return frozenset(re.findall(r"\w+", "".join(texts)))

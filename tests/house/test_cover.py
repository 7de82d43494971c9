"""Cells that stand for all have all that a property can depend on, and no cell too many."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgen.cells import GRU, LSTM, SHIPPED, Elman
from cellgen.language.cell import Cell
from cellgen.runtime.paths import generated_folder
from tests import cover as covers
from tests.conftest import asks_for_slow_tests, optimised
from tests.cover import (
    Traits,
    cover,
    each_name_of,
    each_of,
    in_turn,
    of_all,
    of_call,
    of_code,
    of_equations,
    of_interface,
    of_plan,
    of_source,
)

KINDS = (of_interface, of_call, of_equations, of_code, of_all)
each_kind = pytest.mark.parametrize("traits", KINDS, ids=lambda traits: traits.__name__)


@each_kind
def test_cells_that_run_each_time_have_every_trait_of_every_cell(
    traits: Callable[[type[Cell]], Traits],
) -> None:
    taken = [p.values[0] for p in each_of(traits) if not p.marks]
    covered = set[object]().union(*(traits(cell) for cell in taken))
    assert covered == set[object]().union(*map(traits, SHIPPED))
    assert len(taken) < len(SHIPPED) / 3
    for cell in taken:
        others = set[object]().union(*(traits(other) for other in taken if other is not cell))
        assert traits(cell) - others, f"{cell.definition.name} adds nothing"


def test_cells_that_are_compiled_as_users_do_have_every_trait_that_a_compiler_sees() -> None:
    taken = [cell for cell in SHIPPED if cell.definition.name in optimised()]
    covered = set[object]().union(*map(of_code, taken))
    assert covered == set[object]().union(*map(of_code, SHIPPED))
    assert {LSTM, GRU} <= {*taken}


def test_all_that_a_property_can_depend_on_is_in_the_traits_of_a_proof() -> None:
    """Operators, names of the runtime, kinds of values and of stages, flags of the plan's rows."""
    for cell in SHIPPED:
        every = of_interface(cell) | of_plan(cell) | of_equations(cell) | of_source(cell)
        assert of_code(cell) - every <= {trait for trait in of_code(cell) if trait[0] == "axes"}
        assert every == of_all(cell)


def test_every_word_of_a_plan_is_in_a_row_of_it() -> None:
    for cell in SHIPPED:
        name = cell.definition.name
        text = (generated_folder() / name / f"{name}_plan.inc.h").read_text()
        words = set(re.findall(r"\bCELLGEN_(?:IS|AT|STATE|IF|ROLE|VALUE)_[A-Z_]+\b", text))
        assert words <= {word for trait in of_plan(cell) for word in trait[2:]}, name


def test_values_that_meet_in_turn_are_all_met_each_time() -> None:
    every = in_turn(("a", "b"), {"one": 1, "two": 2, "three": 3})
    assert len({one.values for one in every}) == len(every) == 6
    often = {one.id: one.values for one in every if not one.marks}
    assert often == {"a-one": ("a", 1), "a-three": ("a", 3), "b-two": ("b", 2)}


@pytest.mark.parametrize(
    ("marks", "asks"),
    [
        ("", False),
        ("slow", True),
        ("not slow", False),
        ("(not slow) and not of_numpy", False),
        ("(slow or not slow) and not of_numpy", True),
    ],
)
def test_who_leaves_slow_tests_out_does_not_ask_for_them(marks: str, asks: bool) -> None:
    """As suites of bridges do: their cells are compiled as those of other tests."""
    assert asks_for_slow_tests(marks) is asks


@each_kind
def test_every_cell_is_a_parameter_the_others_with_the_slow_tests(
    traits: Callable[[type[Cell]], Traits],
) -> None:
    assert [p.values[0] for p in each_of(traits)] == list(SHIPPED)
    assert [p.values[0] for p in each_name_of(traits)] == [c.definition.name for c in SHIPPED]
    marks = {mark.name for p in each_of(traits) for mark in p.marks}
    assert marks == {"slow"}


@each_kind
@pytest.mark.parametrize("place", [0, 7, -1])
def test_a_cell_with_a_trait_of_its_own_is_taken(
    traits: Callable[[type[Cell]], Traits], place: int
) -> None:
    by_cell = {cell: traits(cell) for cell in SHIPPED}
    taken = cover(by_cell)
    alone = [cell for cell in SHIPPED if cell not in taken][place]
    by_cell[alone] |= {("operator", "that no other cell has")}
    assert alone in cover(by_cell)


def test_what_a_cell_begins_to_call_is_a_trait_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "elman"
    shutil.copytree(generated_folder() / "elman", folder)
    monkeypatch.setattr(covers, "generated_folder", lambda: tmp_path)
    before = of_source.__wrapped__(Elman)
    with (folder / "elman.c").open("a") as file:
        file.write("/* cg_add_lanes, cg_no_such_function */")
    assert of_source.__wrapped__(Elman) - before == {("name", "cg_add_lanes")}


def test_one_of_two_equals_is_taken_and_what_others_have_is_left_out() -> None:
    a, b, c = ((n,) for n in "abc")
    assert cover({"one": frozenset({a}), "same": frozenset({a})}) == ("one",)
    assert cover({"none": frozenset(), "one": frozenset({a})}) == ("one",)
    assert cover({"all": frozenset({a, b, c}), "one": frozenset({a})}) == ("all",)
    greedy = {"ab": frozenset({a, b}), "a": frozenset({a}), "bc": frozenset({b, c})}
    assert cover(greedy) == ("ab", "bc")

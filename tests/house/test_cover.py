"""Cells that stand for all have all that a property can depend on, and no cell too many."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgen.cells import SHIPPED, Elman
from cellgen.language.cell import Cell
from cellgen.runtime.paths import generated_folder
from tests import cover as covers
from tests.conftest import TYPICAL, asks_for_slow_tests, optimised
from tests.cover import Traits, cover, each_of, of_equations, of_interface, of_source

KINDS = (of_interface, of_equations, of_source)
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


@each_kind
def test_cells_that_are_compiled_as_users_do_have_every_trait_of_every_cell(
    traits: Callable[[type[Cell]], Traits],
) -> None:
    taken = [cell for cell in SHIPPED if cell.definition.name in optimised()]
    covered = set[object]().union(*map(traits, taken))
    assert covered == set[object]().union(*map(traits, SHIPPED))
    assert {*TYPICAL} <= {*taken}


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
    marks = {mark.name for p in each_of(traits) for mark in p.marks}
    assert marks == {"slow"}


@each_kind
@pytest.mark.parametrize("place", [0, 7, -1])
def test_a_cell_with_a_trait_of_its_own_is_taken(
    traits: Callable[[type[Cell]], Traits], place: int
) -> None:
    by_cell = {cell: traits(cell) for cell in SHIPPED}
    alone = [cell for cell in SHIPPED if cell not in cover(by_cell)][place]
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

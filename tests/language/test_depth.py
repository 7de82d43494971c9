"""Equations whose operations nest deeper than Python recurses are named, as is what to do."""

from __future__ import annotations

import sys

import pytest
from sympy import Expr, Symbol

from cellgen import Bias, Cell, H, I, Input, State, Weight, tanh, where
from cellgen.errors import DeclarationError
from cellgen.language.cell.depth import depth, depth_explained
from cellgen.language.ops import from_sympy
from cellgen.pipeline import generate
from cellgen.program.chunks.affine import is_affine


def nested(a: Expr, h: Expr, times: int) -> Expr:
    for _ in range(times):
        a = tanh(a) * 0.5 + h
    return a


def declared(times: int) -> type[Cell]:
    class Nested(Cell):
        x, h_prev = Input(I), State(H)
        w, b = Weight(I, H), Bias(H)
        a = tanh(x @ w + b)
        h = nested(a, h_prev, times)

    return Nested


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch):
    """Python's own limit, whatever the tests' is."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("times", [200, 400], ids=["found when derived", "found when declared"])
def test_the_equation_that_is_too_deep_is_named(times: int) -> None:
    with pytest.raises(
        DeclarationError,
        match=rf"Nested: {3 * times + 1} operations of h nest.* limit of 1000; give parts of it "
        r"names.*sys\.setrecursionlimit\(10000\)",
    ) as raised:
        generate(declared(times))
    assert raised.value.code == "declaration.depth"


def test_levels_are_counted_however_often_parts_are_shared() -> None:
    class Doubled(Cell):
        x, h_prev = Input(H), State(H)
        h = x + h_prev

    value = Doubled.x
    for _ in range(60):
        value = tanh(value) * (tanh(value) + 2)
    assert depth(value) == 60 * 3 + 1


def test_a_value_that_many_places_read_is_looked_at_once() -> None:
    """Of 60 levels that read the last one twice, as a tree has them, there are 2**60 places."""

    class Chosen(Cell):
        x, h_prev = Input(H), State(H)
        h = x

    a = Chosen.x
    for _ in range(60):
        a = where(a > Chosen.h_prev, a * 0.5, Chosen.h_prev)
    assert not is_affine(from_sympy(a), {Chosen.h_prev})


def test_a_recursion_of_another_cause_stays_what_it_is() -> None:
    with pytest.raises(RecursionError), depth_explained("Flat", {"h": tanh(Symbol("x"))}):
        raise RecursionError
    with pytest.raises(RecursionError), depth_explained("Empty", {}):
        raise RecursionError

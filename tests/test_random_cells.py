"""Random cells: a few in every run; ``python -m tests.random_cells`` makes thousands."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.random_cells import declared, equations_hold, everything_holds, sources

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
}


@seed(20240501)
@settings(max_examples=12, **COMMON)
@given(sources())
def test_equations_of_random_cells(source: str) -> None:
    equations_hold(declared(source))


@seed(7)
@settings(max_examples=2, phases=[Phase.generate], **COMMON)
@given(sources())
def test_compiled_random_cells(source: str) -> None:
    everything_holds(declared(source))


@pytest.mark.slow
@seed(8)
@settings(max_examples=40, **COMMON)
@given(sources())
def test_many_compiled_random_cells(source: str) -> None:
    everything_holds(declared(source))


@seed(3)
@settings(max_examples=20, **COMMON)
@given(sources())
def test_sources_are_drawn_alike_and_read_like_a_declaration(source: str) -> None:
    head, *body = source.splitlines()
    assert head == "class RandomCell(Cell):"
    assert all(line.startswith("    ") and " = " in line for line in body)
    assert any("_prev = State(" in line for line in body)

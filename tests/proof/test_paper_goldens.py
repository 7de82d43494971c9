"""Kernels against numbers that JAX computed from the papers' equations (tests/golden/papers)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cellgen import load
from cellgen.cells import SHIPPED

FOLDER = Path(__file__).parents[1] / "golden" / "papers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
BAR = 1e-12
"""float64, relative to the largest entry: four steps of other sums and functions than JAX's."""


@cache
def golden(name: str) -> dict[str, dict[str, np.ndarray]]:
    tables: dict[str, dict[str, np.ndarray]] = {"in": {}, "out": {}, "cot": {}, "grad": {}}
    with np.load(FOLDER / f"{name}.npz") as file:
        for key in file.files:
            table, _, array = key.partition(".")
            tables[table][array] = file[key]
    return tables


def fixed(name: str) -> set[str]:
    """Masks, times and matrices that the declaration says have no gradient."""
    cell = next(cell for cell in SHIPPED if cell.definition.name == name)
    return {str(value.name) for value in cell.definition.fixed}


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


@pytest.mark.parametrize("name", NAMES)
def test_sequences_and_gradients_are_those_of_the_papers_equations(name: str) -> None:
    tables, kernel = golden(name), load(name)
    run = kernel.sequence_forward(**tables["in"], save=True)
    for output, expected in tables["out"].items():
        assert error(getattr(run, output), expected) < BAR, output
    above = {f"d_{output}": cot for output, cot in tables["cot"].items()}
    outputs = {output: getattr(run, output) for output in tables["out"]}
    back = kernel.sequence_backward(**tables["in"], **outputs, **above, saved=run.saved)
    formed = {field.removeprefix("d_") for field in back._fields}
    assert set(tables["grad"]) - formed == set(tables["grad"]) & fixed(name)
    for field in back._fields:
        found, expected = getattr(back, field), tables["grad"][field.removeprefix("d_")]
        if np.abs(expected).max() > BAR:
            assert error(found, expected) < BAR, field
        else:  # what does not reach the loss, as a normaliser's first value, is rounding of zero
            assert np.abs(found).max() < BAR, field


@pytest.mark.parametrize("name", NAMES)
def test_single_steps_are_those_of_the_papers_equations(name: str) -> None:
    tables, kernel = golden(name), load(name)
    step = kernel.forward
    over_time = {a.name for a in kernel.sequence_forward.function.arguments if a.over_time}
    given = {n: a[0] if n in over_time else a for n, a in tables["in"].items()}
    found = step(**{a.name: given[a.name] for a in step.function.arguments if a.name in given})
    for output, expected in tables["out"].items():
        assert error(getattr(found, output), expected[0]) < BAR, output

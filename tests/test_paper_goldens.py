"""Kernels against numbers that JAX computed from the papers' equations (tests/golden/papers)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cellgen import load

FOLDER = Path(__file__).parent / "golden" / "papers"
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
    compared = 0
    for field in back._fields:
        expected = tables["grad"].get(field.removeprefix("d_"))
        if expected is not None:
            compared += 1
            # What does not reach the loss, as a normaliser's first value, is rounding of zero.
            if np.abs(expected).max() > 1e-12:
                assert error(getattr(back, field), expected) < BAR, field
    assert compared >= len(tables["grad"]) - 3  # masks, times and fixed matrices have none


@pytest.mark.parametrize("name", NAMES)
def test_single_steps_are_those_of_the_papers_equations(name: str) -> None:
    tables, kernel = golden(name), load(name)
    step = kernel.forward
    over_time = {a.name for a in kernel.sequence_forward.function.arguments if a.over_time}
    given = {n: a[0] if n in over_time else a for n, a in tables["in"].items()}
    found = step(**{a.name: given[a.name] for a in step.function.arguments if a.name in given})
    for output, expected in tables["out"].items():
        assert error(getattr(found, output), expected[0]) < BAR, output

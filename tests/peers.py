"""Golden files of the peers for the drop-in functions: reading, errors, bars (decision "Bars").

A group is a row of golden/README.md and a direction, "BlockLSTM fwd"; a run maps (arrays, meta) to
arrays by the names of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

from cellgen.proof import goldens
from cellgen.proof.goldens import FLOAT64_BAR, Measurement

Arrays: TypeAlias = dict[str, np.ndarray]
Run: TypeAlias = Callable[[Arrays, Mapping[str, Any]], Arrays]

Beyond: TypeAlias = Mapping[tuple[str, str], tuple[float, str]]
"""Figures above the bar by (group, figure): what they may be instead, and why. The limits are 1.3
to 1.5 times the largest that was measured (AVX-512, AVX2 without fma, exact functions)."""

FIGURES = ("worst nrm", "worst elt", "median nrm", "median elt")
ROOT = goldens.folder()
assert ROOT is not None, "tests run in a checkout"


def errors(value: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The two errors of golden/README.md: of the largest entry, and entry by entry."""
    assert value.shape == reference.shape, (value.shape, reference.shape)
    if not value.size:
        return 0.0, 0.0
    difference, size = np.abs(value.astype(np.float64) - reference), np.abs(reference)
    assert np.isfinite(difference).all()
    largest = size.max()
    if largest == 0:
        return (np.inf, np.inf) if difference.any() else (0.0, 0.0)
    return difference.max() / largest, (difference / (size + goldens.SMALL * largest)).max()


def measured(
    ops: tuple[str, str], meta: Mapping[str, Any], found: Arrays, reference: Arrays
) -> list[Measurement]:
    """Compare what a function returned with a file; ``ops`` name the rows, forward and backward."""
    case, items = meta["case"].removesuffix("_f32"), []
    for array, value in found.items():
        is_gradient = array not in meta["roles"]["outputs"]
        op = ops[is_gradient]
        saturated = " (sat)" if case.endswith("_sat") else ""
        group = f"{op}{saturated} {'bwd' if is_gradient else 'fwd'}"
        peer = goldens.accuracy().get(op, {}).get(case, {}).get(array, (None, None))
        items.append(Measurement(group, case, array, *errors(value, reference[array]), *peer))
    return items


def bars(groups: tuple[str, ...], beyond: Beyond) -> list[Any]:
    """Parameters (group, figure, limit) of the float32 test: None, or what ``beyond`` says."""
    assert {group for group, _ in beyond} <= set(groups)
    found = []
    for group in groups:
        for figure in FIGURES:
            name = f"{group}-{figure}".replace(" ", "_")
            limit = beyond.get((group, figure), (None, ""))[0]
            found.append(pytest.param(group, figure, limit, id=name))
    return found


def check_float32(
    items: list[Measurement], group: str, figure: str, limit: float | None = None
) -> None:
    """The figure of a group is within its bar (decision "Bars"), or a limit that has a cause."""
    standing = {s.group: s for s in goldens.standings(items)}[group]
    found, bar = standing.pairs[figure]
    arrays = f"over {standing.arrays} arrays"
    assert found <= max(bar, limit or 0), f"{found:.2e} of {bar:.2e}, {limit}, {arrays}"


def check_float64(items: list[Measurement]) -> None:
    """Every array agrees to 1e-13 of its largest entry."""
    assert items
    worst = max(items, key=lambda item: item.nrm)
    assert worst.nrm <= FLOAT64_BAR, worst


def expected(meta: Mapping[str, Any]) -> set[str]:
    """Names of all outputs and gradients of a file that a function returns."""
    roles = meta["roles"]
    return {*roles["outputs"], *roles["grads"].values()}

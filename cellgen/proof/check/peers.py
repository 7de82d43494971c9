"""Compare kernels with the numbers that the peer libraries computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from cellgen.cells import ships
from cellgen.errors import BuildError
from cellgen.proof import goldens
from cellgen.proof.check.errors import raise_to
from cellgen.proof.check.points import Subject
from cellgen.proof.check.report import Row, judged
from cellgen.runtime.kernel import Kernel


def prove_goldens(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare with the peers' numbers, by the measure of this report, the largest entry.

    Other figures of the decision "Bars", entry by entry and medians, are judged in
    tests/proof/test_goldens.py.
    """
    name, kernel = subject.definition.name, subject.kernel
    row = Row("goldens of the real peers", None, None, "skipped")
    if not ships(subject.cell) or name not in goldens.PEERS:
        return [replace(row, note="no peer's numbers for this cell")]
    if goldens.folder() is None:
        return [replace(row, note="not available here: tests/golden comes with a checkout")]
    if isinstance(kernel, BuildError):
        return [replace(row, verdict="failed", note=str(kernel))]
    return [*_golden_rows(kernel, name, ""), *_golden_rows(kernel, name, " over time")]


def _golden_rows(kernel: Kernel, name: str, how: str) -> list[Row]:
    """Judge one way to run the peers' cases: as steps, or over time those that are sequences."""
    measure = partial(goldens.measure, kernel, name, over_time=bool(how))
    exact: dict[str, dict[str, float]] = {}
    for item in measure("float64"):
        raise_to(exact.setdefault(item.group, {}), item.array, item.nrm)
    rows = [judged(f"float64 {g}{how}", e, goldens.FLOAT64_BAR) for g, e in exact.items()]
    for standing in goldens.standings(measure("float32")):
        figure, bar = standing.worst_nrm
        median, elt = standing.median_nrm[0], standing.worst_elt[0]
        note = f"{standing.arrays} arrays, median {median:.1e}; entry by entry {elt:.1e}"
        rows.append(judged(f"float32 {standing.group}{how}", {"worst": figure}, bar, note))
    return rows

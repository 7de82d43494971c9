"""Time one long row in segments that carry their Jacobians beside step by step, one thread.

A segment carries, beside its states, the product of its steps' Jacobians: the tangent of the cell
along each state, which is n x n numbers a unit where units read their own past alone. A scan over
segments then corrects all first states at once, a step of Newton's method: new first state = last
state of the segment before + its product times the change of that segment's first state. Gates are
biased by 6, so that the cells remember some 400 steps; of 64 or 16 segments.

    python benchmarks/long_rows_carried.py
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from long_rows import seconds

import cellgen
from cellgen.cells import SHIPPED
from cellgen.language.cell import definition_of
from cellgen.runtime.call.segments import SegmentsRun

BIASED = {"para_gru": ("b_z", -6.0), "para_lstm": ("b_f", 6.0), "sru": ("b_f", 6.0)}
BIASED["min_gru"] = ("b_z", -6.0)
SHAPES = ((16384, 1), (65536, 1), (16384, 8), (65536, 8))
"""Steps and units."""
SEGMENTS, MOST_SWEEPS, CALLS = (16, 64), 40, 7
TOLERANCES = (1e-6, 0.0)

Arrays = dict[str, np.ndarray]


class Row:
    """One row, its kernel and the kernel of its tangent along the states."""

    def __init__(self, name: str, steps: int, units: int) -> None:
        self.kernel, self.steps = cellgen.load(name), steps
        self.states = dict(self.kernel.sequence_forward.function.states)
        cell = next(cell for cell in SHIPPED if definition_of(cell).name == name)
        self.tangent = cellgen.compile(cellgen.tangent(cell, by=tuple(self.states)))
        rng = np.random.default_rng(0)
        function = self.kernel.sequence_forward.function
        sizes = {d: {"T": steps, "B": 1, "I": 4}.get(d, units) for d in function.dims}
        given = self.kernel.init(rng, **{n: s for n, s in sizes.items() if n != "T"})
        bias, value = BIASED[name]
        given[bias] = np.full_like(given[bias], value)
        self.first = {n: given.pop(n) for n in self.states}
        self.weights = given
        self.x = rng.standard_normal(self.kernel.shapes(**sizes)["x"], np.float32)

    def stepping(self) -> object:
        """All steps, one after the other."""
        return self.kernel.sequence_forward(x=self.x, **self.weights, **self.first, threads=1)

    def plain(self, count: int, tolerance: float) -> SegmentsRun:
        """Segments without Jacobians, as they are built; how it went."""
        cut = {"parallel": "segments", "segments": count, "tolerance": tolerance}
        given = {"x": self.x, **self.weights, **self.first, "threads": 1}
        return self.kernel.sequence_forward(**given, **cut).parallel

    def carried(self, count: int, tolerance: float) -> tuple[int, Arrays]:
        """Sweeps until segments agree, and the last states."""
        rows = self.x.reshape(count, self.steps // count, -1).swapaxes(0, 1)
        begin = {n: np.repeat(a, count, axis=0) for n, a in self.first.items()}
        for sweep in range(1, MOST_SWEEPS + 1):  # noqa: B007 - how many it took
            ends, products = self._pass(rows, begin)
            apart = max(
                float((np.abs(ends[n][:-1] - a[1:]) / np.maximum(1, np.abs(a[1:]))).max())
                for n, a in begin.items()
            )
            if apart <= tolerance:
                break
            begin = self._scan(begin, ends, products)
        return sweep, ends

    def _pass(self, rows: np.ndarray, begin: Arrays) -> tuple[Arrays, dict[str, Arrays]]:
        """Last states of all segments, and by each first state their derivatives."""
        ends: Arrays = {}
        products: dict[str, Arrays] = {}
        for moved in self.states:
            along = {f"dot_{n}": np.full_like(a, n == moved) for n, a in begin.items()}
            found = self.tangent.sequence_forward(
                x=rows, **self.weights, **begin, **along, threads=1
            )._asdict()
            ends = {n: found[f"{new}_last"] for n, new in self.states.items()}
            products[moved] = {n: found[f"dot_{new}_last"] for n, new in self.states.items()}
        return ends, products

    def _scan(self, begin: Arrays, ends: Arrays, products: dict[str, Arrays]) -> Arrays:
        """First states, each corrected by what the segment before makes of its own correction."""
        new = {n: a.copy() for n, a in begin.items()}
        for k in range(1, len(next(iter(begin.values())))):
            change = {n: new[n][k - 1] - begin[n][k - 1] for n in new}
            for n in new:
                new[n][k] = ends[n][k - 1] + sum(products[m][n][k - 1] * change[m] for m in new)
        return new


def main() -> None:
    """Print a row for each cell, shape, number of segments and tolerance."""
    heads = f"{'cell':10} {'T, B, H':14} {'segments':>8} {'tol':>6}"
    print(f"{heads} {'carried: sweeps':>15} {'ratio':>6} {'error':>8} {'plain':>6}  how it went")
    for name in BIASED:
        for steps, units in SHAPES:
            row = Row(name, steps, units)
            exact = row.stepping()._asdict()
            for count in SEGMENTS:
                for tolerance in TOLERANCES:
                    sweeps, ends = row.carried(count, tolerance)
                    error = max(
                        float(np.abs(ends[n][-1] - exact[f"{new}_last"][0]).max())
                        for n, new in row.states.items()
                    )
                    calls = (
                        row.stepping,
                        partial(row.carried, count, tolerance),
                        partial(row.plain, count, tolerance),
                    )
                    least = [math.inf] * len(calls)
                    for _ in range(CALLS):
                        least = [min(t, seconds(c)) for t, c in zip(least, calls, strict=True)]
                    carried, plain = (least[0] / one for one in least[1:])
                    print(
                        f"{name:10} {f'({steps}, 1, {units})':14} {count:8} {tolerance:6.0e} "
                        f"{sweeps:15} {carried:6.2f} {error:8.1e} {plain:6.2f}  "
                        f"{row.plain(count, tolerance)}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

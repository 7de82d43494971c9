"""Time the backward pass of one long row in segments of time beside step by step, one thread.

A gradient that a segment's last state gets is a linear map of that which its first one gives. So
gradients of all segments follow from calls of ``sequence_backward`` on segments as rows:

* scan: with no gradient behind them, with 1 behind each state in turn, whose answers are the
  Jacobians of whole segments where a unit reads its own past alone, and, after a scan over
  segments, with the right ones. Only the last call forms all gradients.
* guess: what the first quarter of the segment behind makes of no gradient is the guess, and what
  comes of it is compared, to the bit; segments that began wrongly are run once more.

Ratios are of the least processor times, of calls that take turns. Both are checked in float64.

    python benchmarks/long_rows_back.py
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping

import numpy as np

import cellgen

CELLS = ("ind_rnn", "brc", "sru", "min_gru", "para_gru", "para_lstm")
SHAPES = ((16384, 1, 32), (65536, 1, 64), (65536, 8, 64), (65536, 64, 16))
"""Steps, units and segments."""
CALLS, WARM = 9, 4

Arrays = dict[str, np.ndarray]


class Row:
    """The run of one row, and its backward pass in segments."""

    def __init__(self, name: str, steps: int, units: int, count: int, dtype: str) -> None:
        self.kernel, self.count = cellgen.load(name), count
        function = self.kernel.sequence_forward.function
        rng = np.random.default_rng(0)
        sizes = {d: {"T": steps, "B": 1, "I": 4}.get(d, units) for d in function.dims}
        arguments = self.kernel.init(rng, **{n: s for n, s in sizes.items() if n != "T"})
        self.weights = {n: np.asarray(a, dtype) for n, a in arguments.items()}
        self.first = {n: self.weights.pop(n) for n in function.states}
        self.states = dict(function.states)
        x = rng.standard_normal(self.kernel.shapes(**sizes)["x"]).astype(dtype)
        run = self.kernel.sequence_forward(x=x, **self.weights, **self.first, save=True, threads=1)
        outputs = {n: a for n, a in run._asdict().items() if isinstance(a, np.ndarray)}
        self.outputs = {n: a for n, a in outputs.items() if not n.endswith("_last")}
        self.saved: Mapping[str, np.ndarray] = run.saved._asdict() if run.saved else {}
        self.above = {
            f"d_{n}": rng.standard_normal(a.shape).astype(dtype) for n, a in self.outputs.items()
        }
        self.over_time = {"x": x} | self.outputs
        ends = {
            n: self.outputs[new][steps // count - 1 :: steps // count]
            for n, new in self.states.items()
        }
        self.firsts = {n: np.concatenate([a, ends[n][:-1, 0]]) for n, a in self.first.items()}

    def stepping(self) -> Mapping[str, np.ndarray]:
        """Every gradient, step by step."""
        given = {**self.weights, **self.first, **self.over_time, **self.above}
        return self.kernel.sequence_backward(**given, saved=self.saved, threads=1)._asdict()

    def cut(self, array: np.ndarray, part: int = 1) -> np.ndarray:
        """Segments as rows: all of their steps, or the first ones."""
        steps = len(array) // self.count
        rows = array[:, 0].reshape(self.count, steps, *array.shape[2:]).swapaxes(0, 1)
        return rows[: steps // part]

    def back(
        self, behind: Arrays, part: int = 1, *, above: bool = True, whole: bool = False
    ) -> Arrays:
        """A call of segments; ``behind``: gradients of their last states."""
        given = {n: self.cut(a, part) for n, a in self.over_time.items()}
        if above:
            given |= {n: self.cut(a, part) for n, a in self.above.items()}
        given |= {f"d_{self.states[n]}_last": a for n, a in behind.items()}
        saved = {n: a[: len(a) // part] for n, a in self.kept.items()}
        wanted = {} if whole else {"gradients": tuple(f"d_{n}" for n in self.states)}
        found = self.kernel.sequence_backward(
            **self.weights, **self.firsts, **given, saved=saved, threads=1, **wanted
        )
        return found._asdict()

    def lie(self) -> None:
        """Copy what is saved, once for all calls: kernels take it with rows side by side."""
        self.kept = {n: np.ascontiguousarray(self.cut(a)) for n, a in self.saved.items()}

    def none(self) -> Arrays:
        """No gradient behind any segment."""
        return {n: np.zeros_like(a) for n, a in self.firsts.items()}

    def scan(self) -> Arrays:
        """Every gradient, by Jacobians of segments."""
        self.lie()
        own = self.back(self.none())
        jacobian = {}
        for n in self.states:
            unit = self.none() | {n: np.ones_like(self.firsts[n])}
            jacobian[n] = self.back(unit, above=False)
        behind = self.none()
        for at in range(self.count - 1, 0, -1):
            for m in self.states:
                behind[m][at - 1] = own[f"d_{m}"][at]
                for n in self.states:
                    behind[m][at - 1] += jacobian[n][f"d_{m}"][at] * behind[n][at]
        return self.back(behind, whole=True)

    def guess(self) -> Arrays:
        """Every gradient, from a guess that the first pass has to confirm."""
        self.lie()
        behind, warm = self.none(), self.back(self.none(), WARM)
        for n in self.states:
            behind[n][:-1] = warm[f"d_{n}"][1:]
        while True:
            found = self.back(behind, whole=True)
            if all(np.array_equal(found[f"d_{n}"][1:], behind[n][:-1]) for n in self.states):
                return found
            for n in self.states:
                behind[n][:-1] = found[f"d_{n}"][1:]


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def worst(row: Row, found: Arrays) -> float:
    """The largest difference of gradients of weights from those of stepping, in float64."""
    expected = row.stepping()
    pairs = [(found[f"d_{n}"], expected[f"d_{n}"]) for n in row.weights]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) for a, b in pairs)


def main() -> None:
    """Print a row for each cell and shape."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(
        f"{'cell':10} {'T, B, H':15} {'step by step':>12} {'scan':>5} {'guess':>6}  {'float64':>8}"
    )
    for name in CELLS:
        for steps, units, count in SHAPES:
            row, exact = (
                Row(name, steps, units, count, "float32"),
                Row(name, steps, units, count, "float64"),
            )
            calls = row.stepping, row.scan, row.guess
            least = [math.inf] * 3
            for _ in range(CALLS):
                least = [min(t, seconds(call)) for t, call in zip(least, calls, strict=True)]
            errors = worst(exact, exact.scan()), worst(exact, exact.guess())
            shape = f"({steps}, 1, {units})"
            ratios = f"{least[0] / least[1]:5.2f} {least[0] / least[2]:6.2f}"
            print(
                f"{name:10} {shape:15} {least[0] * 1e3:9.2f} ms {ratios}  {max(errors):.0e}",
                flush=True,
            )


if __name__ == "__main__":
    main()

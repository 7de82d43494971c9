"""NumPy's BLAS: nothing but the products that a cell's input needs, as a limit to compare with.

Forward: x (T B, I) by the joined weights (I, N). With gradients also the two products of its
adjoint. For cells whose state is in no product.
"""

from __future__ import annotations

import numpy as np

from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Threads are set by the environment; results are in memory that is there already."""
    arrays = problem.draw()
    I = problem.shape.I
    x = arrays["x"].reshape(-1, I)
    matrices = [arrays[n] for n, lengths in problem.parameters if lengths[:1] == (I,)]
    w = np.concatenate([matrix for matrix in matrices if matrix.ndim == 2], axis=1)
    a = np.empty((len(x), w.shape[1]), np.float32)
    d_a = np.random.default_rng(0).standard_normal(a.shape, np.float32)
    d_x, d_w = np.empty_like(x), np.empty_like(w)

    def forward() -> None:
        np.matmul(x, w, out=a)

    def both() -> None:
        forward()
        np.matmul(d_a, w.T, out=d_x)
        np.matmul(x.T, d_a, out=d_w)

    def results(outcome: object) -> Arrays:
        return {}

    return Prepared(both if mode is Mode.BOTH else forward, results)

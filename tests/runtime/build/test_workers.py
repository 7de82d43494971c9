"""Workers of a cluster: a kernel that is sent to them is that of one cache, compiled once.

Needs ``distributed`` (of Dask), in an environment of its own: ``.ci/frameworks slow`` makes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

distributed = pytest.importorskip("distributed")

import cellgen  # noqa: E402
from cellgen.language.cell import Cell, Input, State, Weight  # noqa: E402
from cellgen.language.ops import tanh  # noqa: E402
from cellgen.language.value import H, I  # noqa: E402
from cellgen.runtime.kernel import Kernel  # noqa: E402

pytestmark = pytest.mark.slow


class Sent(Cell, name="sent_to_workers"):
    """A cell that no worker knows by name."""

    x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)
    h = tanh(x @ w + h_prev @ u)


def arrays() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    shapes = {"x": (5, 2, 3), "h_prev": (2, 4), "w": (3, 4), "u": (4, 4)}
    return {name: draw(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gradient(kernel: Kernel, row: int) -> tuple[np.ndarray, str, bool]:
    """The gradient of a row's weights, the kernel's file, and whether the cache had it."""
    given = {n: a[:, row : row + 1] if n == "x" else a for n, a in arrays().items()}
    given["h_prev"] = given["h_prev"][row : row + 1]
    y = kernel.sequence_forward(**given, save=True)
    d_h = np.ones_like(y.h)
    built = kernel.build()
    return (
        kernel.sequence_backward(**given, h=y.h, saved=y.saved, d_h=d_h).d_u,
        str(built.path),
        built.cached,
    )


def test_workers_hold_the_same_kernel_from_one_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    kernel = cellgen.compile(Sent)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None, local_directory=tmp_path
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = [*client.scheduler_info()["workers"]]
        assert len(workers) == 2
        futures = [
            client.submit(gradient, kernel, row, workers=[worker], pure=False)
            for worker in workers
            for row in range(2)
        ]
        found = client.gather(futures)
    for place, (d_u, path, cached) in enumerate(found):
        wanted, own, _ = gradient(kernel, place % 2)
        np.testing.assert_array_equal(d_u, wanted)
        assert path == own
        assert cached
    assert len(list((tmp_path / "cache").glob("kernels/sent_to_workers-*"))) == 1

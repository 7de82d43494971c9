"""The bridge of prebuilt kernels to JAX: arrays of 16 bits.

Results and gradients of others are those of the kernel: ``tests/doors``.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tests.doors.by_wheel import package  # noqa: E402

SHAPES = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (3, 5), "u": (5, 5), "b": (5,)}


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_arrays_of_16_bits_keep_their_type_within_jit(element: str) -> None:
    door, kernel = importlib.import_module(f"{package().__name__}.jax"), package().elman
    draw = np.random.default_rng(3).normal
    arrays = {name: draw(size=shape).astype(element) for name, shape in SHAPES.items()}
    run = kernel.sequence_forward(**arrays, save=True)
    upstream = {"d_h": np.ones_like(run.h), "d_h_last": np.ones_like(run.h_last)}
    expected = kernel.sequence_backward(**arrays, h=run.h, **upstream, saved=run.saved)

    @jax.jit
    def both(given):
        results, pull = jax.vjp(lambda a: door.sequence(kernel, **a)._asdict(), given)
        (gradients,) = pull({n: jax.numpy.ones_like(a) for n, a in results.items()})
        return results, gradients

    results, gradients = both(arrays)
    pairs = {n: (array, getattr(run, n)) for n, array in results.items()}
    pairs |= {n: (array, getattr(expected, f"d_{n}")) for n, array in gradients.items()}
    assert pairs.keys() == {*SHAPES, "h", "h_last"}
    for name, (found, wanted) in pairs.items():
        assert found.dtype == element, name
        np.testing.assert_array_equal(np.asarray(found), wanted, err_msg=name)

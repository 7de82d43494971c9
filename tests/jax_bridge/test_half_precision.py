"""Arrays of JAX in bfloat16, as calls of a kernel take and give them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import cellgen
from tests.test_half_precision import drawn


def test_arrays_in_bfloat16_give_arrays_in_bfloat16() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", 3, 2, 4, 5)
    given = {n: jnp.asarray(a, jnp.bfloat16) for n, a in arrays.items()}
    found = kernel.sequence_forward(**given).h
    wide = {n: np.asarray(a).astype(np.float32) for n, a in given.items()}
    expected = kernel.sequence_forward(**wide, products="bf16").h
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(found), expected.astype(found.dtype))

"""Segments of time side by side through JAX: what is refused, and transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cellgen.errors import ArgumentError
from tests.jax.arrays import call, drawn, function
from tests.jax.emulated import emulated_device

SEGMENTS = {"parallel": "segments", "segments": 3, "sweeps": 9}


@pytest.mark.parametrize(
    ("cell", "how", "said"),
    [
        ("lif", {}, r"`s = spike\(v - threshold\)` jumps"),
        ("elman", {"mask": np.ones((9, 2), bool)}, "and mask is given"),
        ("elman", {"every": 2}, "and every is given"),
        ("elman", {"checkpoint": 4}, "and checkpoint is given"),
        ("elman", {"parallel": None}, "segments is 3 and parallel is None"),
        ("elman", {"dtype": "float16"}, "the arrays are float16, expected float32 or float64"),
    ],
)
def test_what_does_not_go_with_segments_is_refused(
    cell: str, how: dict[str, Any], said: str
) -> None:
    options = {**SEGMENTS, **how}
    given = drawn(function(cell), options.pop("dtype", "float32"), T=9)
    with pytest.raises(ArgumentError, match=said):
        call(function(cell), given, **options)


def test_transforms_give_what_those_of_steps_give() -> None:
    cell = function("sru")
    given = drawn(cell, "float32", T=9, I=3)

    def loss(x: jax.Array, **how: Any) -> jax.Array:
        return (call(cell, {**given, "x": x}, **how)[0] ** 2).sum()

    def cut(x: jax.Array) -> jax.Array:
        return loss(x, **SEGMENTS)

    x = jnp.asarray(given["x"])
    pairs = jnp.stack([x, x + 1])
    for transform, operand in (
        (jax.grad, x),
        (jax.vmap, pairs),
        (lambda f: jax.vmap(jax.grad(f)), pairs),
        (lambda f: lambda one: jax.jvp(f, (one,), (one,))[1], x),
        (lambda f: lambda one: jax.jvp(jax.grad(f), (one,), (one,))[1], x),
    ):
        found, wanted = (jax.jit(transform(f))(operand) for f in (cut, loss))
        np.testing.assert_array_equal(found, wanted)


LENGTHS = np.array([12, 3, 0, 8, 6, 1, 11])
RESET = np.arange(12 * 7).reshape(12, 7) % 11 == 3


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("elman", {}),
        ("lstm", {"lengths": LENGTHS, "reset": RESET, "reverse": True}),
        pytest.param("s5", {"lengths": LENGTHS, "reset": RESET}, marks=pytest.mark.slow),
        pytest.param("s5", {"reverse": True}, marks=pytest.mark.slow),
        pytest.param(
            *("elman", {"lengths": LENGTHS, "reset": RESET, "reverse": True}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["", "of rows, in reverse", "pairs, of rows", "pairs, in reverse", "elman, of rows"],
)
def test_on_a_device_segments_are_rows_of_its_kernels(cell: str, options: dict[str, Any]) -> None:
    """The emulation of CUDA: outputs and gradients have the bits of its steps, and a tail too."""
    run = function(cell)
    given = {n: jnp.asarray(a) for n, a in drawn(run, "float64", T=12, B=7).items()}

    def trained(**how: Any) -> Any:
        def loss(arrays: dict[str, jax.Array]) -> Any:
            found = call(run, arrays, **options, **how)
            return sum((one**2).sum() for one in found), found

        return jax.tree.leaves(jax.jit(jax.grad(loss, has_aux=True))(given))

    with emulated_device():
        wanted = trained()
        for segments, sweeps in ((4, 9), (5, 1)):
            found = trained(parallel="segments", segments=segments, sweeps=sweeps)
            for one, other in zip(wanted, found, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{segments}, {sweeps}")


def test_on_a_device_what_is_shown_batches_and_a_tolerance_are_as_without_segments() -> None:
    run = function("min_gru")
    given = {n: jnp.asarray(a) for n, a in drawn(run, "float32", T=12).items()}
    several, x = jnp.stack([given["x"], given["x"] + 1]), given["x"].swapaxes(0, 1)
    with emulated_device() as there:
        for shown in ({"last_only": True, "batch_first": True, "x": x}, {"outputs": ()}):
            options = {**shown}
            arrays = {**given, "x": options.pop("x", given["x"])}
            whole, cut = (call(run, arrays, **options, **how) for how in ({}, SEGMENTS))
            for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(cut), strict=True):
                np.testing.assert_array_equal(one, other)
        whole, cut = (
            jax.vmap(lambda x, how=how: call(run, {**given, "x": x}, **how).h)(several)
            for how in ({}, SEGMENTS)
        )
        np.testing.assert_array_equal(whole, cut)
        calls = there.calls
        near = call(run, given, **SEGMENTS, tolerance=1.0).h.block_until_ready()
        assert there.calls == calls + 2  # the guess, and one pass
        np.testing.assert_allclose(near, call(run, given).h, atol=1)
        calls = there.calls
        ended = call(run, given, **SEGMENTS, lengths=np.array([4, 2])).h.block_until_ready()
        assert there.calls == calls + 2  # nothing is run once more behind the end of a row
        assert not ended[4:].any()

"""The examples for JAX do what they say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import own_cell_in_jax
from tests.house.test_notebooks import run_code
from tests.jax.arrays import function


@pytest.fixture(autouse=True)
def _single_precision() -> object:
    with jax.enable_x64(False):
        yield


def test_a_cell_of_ones_own_learns_as_its_equations_by_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_cell_in_jax, "STEPS", 100)
    ours, scan, *_ = own_cell_in_jax.curves()
    assert len(ours) == own_cell_in_jax.STEPS
    assert ours[-1] < 0.7 * ours[0]
    np.testing.assert_allclose(ours, scan, rtol=2e-4)  # float32, 100 steps apart


def test_layers_of_flax() -> None:
    nnx = pytest.importorskip("flax.nnx")
    pytest.importorskip("equinox")
    from examples.jax_layers import FlaxLayer

    layer = FlaxLayer("lstm", I=3, H=4, rngs=nnx.Rngs(0))
    x = jnp.ones((5, 2, 3))
    params = {name: getattr(layer, name)[...] for name in function("lstm").params}
    wanted = function("lstm")(params, x)
    np.testing.assert_array_equal(layer(x).h, wanted.h)
    np.testing.assert_array_equal(nnx.jit(lambda layer, x: layer(x).h)(layer, x), wanted.h)
    found = nnx.grad(lambda layer: layer(x).c.sum())(layer)
    of_params = jax.grad(lambda p: function("lstm")(p, x).c.sum())(params)
    assert {*nnx.to_pure_dict(nnx.state(layer, nnx.Param))} == {*params}
    np.testing.assert_array_equal(found["w_f"][...], of_params["w_f"])


def test_layers_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    pytest.importorskip("flax")
    from examples.jax_layers import EquinoxLayer

    layer = EquinoxLayer("gru", I=3, H=4, key=jax.random.key(0))
    x = jnp.ones((6, 5, 2, 3))
    wanted = jnp.stack([layer(one).h for one in x])
    np.testing.assert_array_equal(eqx.filter_jit(jax.vmap(lambda one: layer(one).h))(x), wanted)
    found = eqx.filter_grad(lambda layer: layer(x[0]).h.sum())(layer)
    of_params = jax.grad(lambda p: function("gru")(p, x[0]).h.sum())(layer.params)
    np.testing.assert_array_equal(found.params["u_n"], of_params["u_n"])


def test_the_layers_learn() -> None:
    pytest.importorskip("equinox")
    pytest.importorskip("flax")
    from examples import jax_layers

    with pytest.raises(SystemExit) as ended:
        jax_layers.main()
    assert ended.value.code == 0


def test_the_notebook_trains() -> None:
    run_code("jax_training")

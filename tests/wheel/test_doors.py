"""Doors of prebuilt kernels: gradients in PyTorch and JAX are those of ``sequence_backward``."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest

OPTIONS = {"lengths": np.array([4, 2]), "reverse": True}


def _arguments(dtype: type) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3).normal
    shapes = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (3, 5), "u": (5, 5), "b": (5,)}
    return {name: draw(size=shape).astype(dtype) for name, shape in shapes.items()}


def _expected(package: ModuleType, arrays: dict[str, np.ndarray]) -> tuple[object, object]:
    """Results and gradients of the sum of h and of three times h_last."""
    y = package.elman.sequence_forward(**arrays, **OPTIONS, save=True)
    up = {"d_h": np.ones_like(y.h), "d_h_last": np.full_like(y.h_last, 3)}
    return y, package.elman.sequence_backward(**arrays, **up, h=y.h, saved=y.saved)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_in_pytorch(package: ModuleType, dtype: type) -> None:
    torch = pytest.importorskip("torch")
    door, arrays = importlib.import_module(f"{package.__name__}.torch"), _arguments(dtype)
    y, g = _expected(package, arrays)
    tensors = {name: torch.tensor(a, requires_grad=name != "b") for name, a in arrays.items()}
    found = door.sequence(package.elman, **tensors, **OPTIONS)
    np.testing.assert_array_equal(found.h.detach().numpy(), y.h)
    (found.h.sum() + 3 * found.h_last.sum()).backward()
    for name, tensor in tensors.items():
        if name == "b":
            assert tensor.grad is None
        else:
            np.testing.assert_array_equal(tensor.grad.numpy(), getattr(g, f"d_{name}"))


def test_scalars_pass_through_pytorch(package: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    door, draw = importlib.import_module(f"{package.__name__}.torch"), np.random.default_rng(0)
    arrays = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (8, 5)}
    tensors = {n: torch.tensor(draw.normal(size=s), requires_grad=True) for n, s in arrays.items()}
    call = lambda **given: door.sequence(package.gated, **given, leak=0.75).h
    assert torch.autograd.gradcheck(
        lambda *t: call(**dict(zip(tensors, t, strict=True))), (*tensors.values(),)
    )


def test_a_tensor_elsewhere_is_refused_in_pytorch(package: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    door = importlib.import_module(f"{package.__name__}.torch")
    tensors = {name: torch.tensor(a) for name, a in _arguments(np.float32).items()}
    with pytest.raises(package.KernelError, match="elman: u is on meta, expected the CPU"):
        door.sequence(package.elman, **{**tensors, "u": tensors["u"].to("meta")})


def test_gradients_in_jax(package: ModuleType) -> None:
    jax = pytest.importorskip("jax")
    door = importlib.import_module(f"{package.__name__}.jax")
    arrays = _arguments(np.float32)
    y, g = _expected(package, arrays)

    def loss(arrays: dict[str, object]) -> object:
        found = door.sequence(package.elman, options=OPTIONS, **arrays)
        return found.h.sum() + 3 * found.h_last.sum()

    found = jax.jit(jax.grad(loss))(arrays)
    for name in arrays:
        np.testing.assert_array_equal(found[name], getattr(g, f"d_{name}"))
    call = jax.jit(lambda given: door.sequence(package.elman, options=OPTIONS, **given))
    np.testing.assert_array_equal(call(arrays).h, y.h)

"""The bridge of prebuilt kernels to PyTorch: scalars, devices, what needs no gradient.

Results and gradients through each door are those of the kernel: ``tests/doors``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.wheel.conftest import of_levels  # noqa: E402


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one level, whose driver ``tests/doors`` compiles as well. Which is taken is no matter."""
    return of_levels(tmp_path_factory.mktemp("wheel"), "v3")


def _arguments(dtype: type) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3).normal
    shapes = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (3, 5), "u": (5, 5), "b": (5,)}
    return {name: draw(size=shape).astype(dtype) for name, shape in shapes.items()}


def test_gradients_in_float64_in_pytorch(package: ModuleType) -> None:
    """The bits of ``sequence_backward``, and none of what needs none."""
    door, arrays = importlib.import_module(f"{package.__name__}.torch"), _arguments(np.float64)
    run = package.elman.sequence_forward(**arrays, save=True)
    above = {"h": run.h, "d_h": np.ones_like(run.h), "saved": run.saved}
    expected = package.elman.sequence_backward(**arrays, **above)
    tensors = {name: torch.tensor(a, requires_grad=name != "b") for name, a in arrays.items()}
    door.sequence(package.elman, **tensors).h.sum().backward()
    assert tensors.pop("b").grad is None
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.grad.numpy(), getattr(expected, f"d_{name}"))


def test_scalars_pass_through_pytorch(package: ModuleType) -> None:
    door, draw = importlib.import_module(f"{package.__name__}.torch"), np.random.default_rng(0)
    arrays = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (8, 5)}
    tensors = {n: torch.tensor(draw.normal(size=s), requires_grad=True) for n, s in arrays.items()}
    call = lambda **given: door.sequence(package.gated, **given, leak=0.75).h
    assert torch.autograd.gradcheck(
        lambda *t: call(**dict(zip(tensors, t, strict=True))), (*tensors.values(),)
    )


def test_a_tensor_elsewhere_is_refused_in_pytorch(package: ModuleType) -> None:
    door = importlib.import_module(f"{package.__name__}.torch")
    tensors = {name: torch.tensor(a) for name, a in _arguments(np.float32).items()}
    with pytest.raises(package.KernelError, match="elman: u is on meta, expected the CPU"):
        door.sequence(package.elman, **{**tensors, "u": tensors["u"].to("meta")})

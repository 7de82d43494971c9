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


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_tensors_of_16_bits_pass_through_pytorch(package: ModuleType, element: str) -> None:
    """The bits of the same numbers in NumPy's arrays; these are columns of what is wider."""
    if element == "bfloat16":
        pytest.importorskip("ml_dtypes")
    door, kernel = importlib.import_module(f"{package.__name__}.torch"), package.elman
    arrays = {n: a.astype(element) for n, a in _arguments(np.float32).items()}
    run = kernel.sequence_forward(**arrays, save=True)
    above = {"h": run.h, "d_h": np.ones_like(run.h), "saved": run.saved}
    expected = kernel.sequence_backward(**arrays, **above)
    tensors = {
        name: torch.tensor(np.repeat(a.astype(np.float32), 2, -1), dtype=getattr(torch, element))
        for name, a in arrays.items()
    }
    apart = {name: tensor[..., ::2].requires_grad_() for name, tensor in tensors.items()}
    y = door.sequence(kernel, **apart)
    assert str(y.h.dtype) == f"torch.{element}"
    np.testing.assert_array_equal(_numbers(y.h), run.h.astype(np.float32))
    y.h.sum().backward()
    for name, tensor in apart.items():
        wanted = getattr(expected, f"d_{name}").astype(np.float32)
        np.testing.assert_array_equal(_numbers(tensor.grad), wanted)


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().numpy()


def test_bfloat16_in_pytorch_says_what_it_needs(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = importlib.import_module(f"{package.__name__}.torch")
    monkeypatch.setattr(door, "bfloat16", None)
    tensors = {n: torch.tensor(a, dtype=torch.bfloat16) for n, a in _arguments(float).items()}
    with pytest.raises(package.KernelError, match="elman: x is bfloat16, which needs `pip install"):
        door.sequence(package.elman, **tensors)

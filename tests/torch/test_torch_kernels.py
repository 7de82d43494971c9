"""Tensors in calls of kernels themselves, beside autograd."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import cellgen  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd_notices_that_a_call_wrote_to_what_it_kept(dtype: torch.dtype) -> None:
    kernel = cellgen.load("elman")
    shapes = {"x": (3, 2, 2), "h_prev": (2, 4), "w": (2, 4), "u": (4, 4), "b": (4,)}
    given = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    out = torch.zeros(3, 2, 4, dtype=dtype)
    factor = torch.ones(3, 2, 4, dtype=dtype, requires_grad=True)
    kept = (out * factor).sum()
    kernel.sequence_forward(**given, out={"h": out})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    with torch.inference_mode():
        kernel.sequence_forward(**given, out={"h": torch.zeros(3, 2, 4, dtype=dtype)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lends", [False, True])
def test_autograd_notices_that_a_bound_call_wrote_again(dtype: torch.dtype, lends: bool) -> None:
    kernel = cellgen.load("elman")
    shapes = {"x": (3, 2, 2), "h_prev": (2, 4), "w": (2, 4), "u": (4, 4), "b": (4,)}
    given = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    own = torch.zeros(3, 2, 4, dtype=dtype)
    bound = kernel.sequence_forward.bind(**given, out={"h": own} if lends else None)
    factor = torch.ones(3, 2, 4, dtype=dtype, requires_grad=True)
    kept = ((own if lends else bound().h) * factor).sum()
    bound()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    assert torch.equal(bound().h, kernel.sequence_forward(**given).h)


def test_autograd_notices_that_a_bound_step_wrote_again() -> None:
    kernel = cellgen.load("elman")
    shapes = {"x": (2, 2), "h_prev": (2, 4), "w": (2, 4), "u": (4, 4), "b": (4,)}
    bound = kernel.forward.bind(**{name: torch.randn(shape) for name, shape in shapes.items()})
    kept = (bound().h * torch.ones(2, 4, requires_grad=True)).sum()
    bound()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()

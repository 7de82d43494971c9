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

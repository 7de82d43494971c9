"""Operators along units beside PyTorch's: results and the gradient of every unit, at ties too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.language.test_running import along_rows  # noqa: E402

ROWS = [
    *np.random.default_rng(3).normal(size=(3, 6)).tolist(),
    [1.0, 3.0, 3.0, 2.0, 3.0, 3.0],
    [2.0, 0.0, 3.0, 0.0, 5.0, 1.0],
    [0.0, 1.0, 1.0, -2.0, 0.0, 4.0],
    [-50.0, 60.0, 60.0, -700.0, 700.0, 1.0],
]


@pytest.mark.parametrize(
    ("op", "theirs"),
    [
        ("cumprod", lambda a: torch.cumprod(a, dim=1)),
        ("cummax", lambda a: torch.cummax(a, dim=1).values),
        ("logcumsumexp", lambda a: torch.logcumsumexp(a, dim=1)),
    ],
)
def test_it_is_pytorchs_at_ties_zeros_and_large_numbers(
    op: str, theirs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    a = torch.tensor(ROWS, dtype=torch.float64, requires_grad=True)
    result = theirs(a)
    by_unit = [torch.autograd.grad(y.sum(), a, retain_graph=True)[0] for y in result.unbind(1)]
    found, gradients = along_rows(op, ROWS)
    np.testing.assert_allclose(found, result.detach().numpy(), rtol=1e-14)
    # Both exponentiate differences of numbers of size 700, which are rounded.
    np.testing.assert_allclose(gradients, torch.stack(by_unit, 1).numpy(), rtol=1e-12, atol=1e-300)

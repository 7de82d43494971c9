"""The whole operator table in torch: values as in NumPy, gradients as by complex steps."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Expr

torch = pytest.importorskip("torch")

from cellgen.errors import DerivationError  # noqa: E402
from cellgen.language.ops import OPERATORS, POINTWISE  # noqa: E402
from cellgen.language.value import B, H, Role, Shape, Value  # noqa: E402
from cellgen.program.interpret import interpret  # noqa: E402
from cellgen.program.ssa import Program  # noqa: E402
from cellgen.torch.chunks.meanings import MEANINGS  # noqa: E402
from cellgen.torch.chunks.pointwise import POINTWISE as IN_TORCH  # noqa: E402
from cellgen.torch.chunks.products import decayed_nt  # noqa: E402
from cellgen.torch.chunks.scans import linear_scan  # noqa: E402
from cellgen.torch.chunks.spelled import source_of, spelled  # noqa: E402
from tests.conftest import SIZES, directional, draw  # noqa: E402
from tests.language.test_ops import (  # noqa: E402
    CASES,
    every_function,
    node_of,
    operands,
    program_of,
    softsign,
)

CLOSE = 1e-12
"""Sums of some dozen terms in float64, in another order."""


def distance(found: np.ndarray, true: np.ndarray) -> float:
    """The largest error; infinities are those of the other."""
    assert found.shape == true.shape
    finite = np.isfinite(true)
    np.testing.assert_array_equal(found[~finite], true[~finite])
    found, true = found[finite], true[finite]
    return float(np.max(np.abs(found - true), initial=0)) / (1 + np.max(np.abs(true), initial=0))


def errors(program: Program, values: list[Value], given: dict[str, np.ndarray]) -> list[float]:
    """How far values are from NumPy's, and a product with the gradient from the complex step's."""
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    formed = spelled(program)(tensors, SIZES, False)
    expected = interpret(program, given, SIZES)
    found = [distance(formed[n].detach().numpy(), array) for n, array in expected.items()]
    along, above = draw(values, seed=1), draw(program.results, seed=5)
    moved = directional(program, given, along)
    finite = {n: torch.tensor(np.where(np.isfinite(a), above[n], 0)) for n, a in expected.items()}
    total = sum(torch.where(finite[n] != 0, formed[n] * finite[n], 0).sum() for n in expected)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, [*tensors.values()], allow_unused=True)
    else:
        gradients = (None,) * len(tensors)
    back = sum(
        float((g * torch.tensor(along[n])).sum())
        for n, g in zip(tensors, gradients, strict=True)
        if g is not None
    )
    forward = sum(float(np.sum(finite[n].numpy() * array)) for n, array in moved.items())
    return [*found, abs(back - forward) / (1 + abs(forward))]


def test_every_row_of_both_tables_has_a_meaning() -> None:
    assert set(MEANINGS) == set(OPERATORS)
    assert set(IN_TORCH) == set(POINTWISE)


@pytest.mark.parametrize(("op", "shapes", "attributes", "shape"), CASES)
def test_an_operator_is_what_numpy_has(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, values = node_of(op, shapes, attributes)
    assert max(errors(program_of(node, values), values, draw(values))) <= CLOSE


@every_function
def test_a_pointwise_function_is_what_numpy_has(name: str) -> None:
    if name not in IN_TORCH:
        pytest.skip("an activation of another test")
    values, points = operands(POINTWISE[name])
    given = {str(v): np.resize(p, SIZES["H"]) for v, p in zip(values, points, strict=True)}
    assert max(errors(program_of(POINTWISE[name](*values), values), values, given)) <= CLOSE


def test_decays_of_any_strength_are_exact_between_blocks() -> None:
    """40 steps are three blocks; sums of logarithms fall to -4000, where exp(-G) is no number."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 2, 40, 3))
    gates = -np.exp(rng.uniform(-7, np.log(100), (2, 40, 3)))
    after = np.cumsum(gates, axis=-2)
    given = (a, b, after - gates, after)
    found = decayed_nt(*map(torch.tensor, given), 1, False).numpy()
    expected = OPERATORS["decayed_nt"].numpy(given, (1,), int)  # type: ignore[arg-type]
    assert distance(found, expected) <= 1e-14


def test_a_factor_of_zero_begins_anew_and_has_its_gradient() -> None:
    a = torch.tensor([[0.5], [0.5], [0.0], [2.0]], dtype=torch.float64)
    b = torch.tensor([[3.0], [1.0], [4.0], [5.0]], dtype=torch.float64)
    a.requires_grad_()
    scanned = linear_scan(a, b, 1)
    assert scanned.flatten().tolist() == [3, 2.5, 4, 13]
    (gradient,) = torch.autograd.grad(scanned.sum(), a)
    assert gradient.flatten().tolist() == [0, 3, 2.5 * 3, 4]
    spoilt = b.clone()
    spoilt[1] = float("nan")
    assert linear_scan(a, spoilt, 1).flatten().tolist()[2:] == [4, 13]


def test_a_program_is_python_that_a_person_can_read() -> None:
    a, b = (Value(name, (B, H), Role.LOCAL) for name in ("a", "b"))
    program = program_of(POINTWISE["tanh"](a - 2 * b) ** 2 / b, [a, b])
    assert source_of(program) == (
        "def row(arrays, sizes, narrow):\n"
        "    a = arrays['a']\n"
        "    b = arrays['b']\n"
        "    y = ((1 / b) * (tanh(((b * -2.0) + a)) ** 2))\n"
        "    return {'y': y}\n"
    )


def test_names_that_python_has_are_spelled_otherwise() -> None:
    words = [Value(name, (H,), Role.WEIGHT, order=n) for n, name in enumerate(("lambda", "exp"))]
    program = program_of(POINTWISE["exp"](words[0]) + words[1], words)
    rows = torch.ones(SIZES["H"], dtype=torch.float64)
    formed = spelled(program)({"lambda": 0 * rows, "exp": rows}, SIZES, False)
    assert formed["y"].tolist() == [2.0] * SIZES["H"]


def test_a_function_of_ones_own_is_refused_by_its_name() -> None:
    a = Value("a", (B, H), Role.LOCAL)
    with pytest.raises(DerivationError, match=r"table: softsign is a function of one's own"):
        spelled(program_of(softsign(a), [a]))

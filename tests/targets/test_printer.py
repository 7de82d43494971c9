"""C spellings of expressions and lengths."""

from __future__ import annotations

import pytest
from sympy import Expr, Rational

from cellgen.cells import Elman
from cellgen.language import value
from cellgen.language.ops import (
    clip,
    keep,
    maximum,
    power,
    sigmoid,
    sqrt,
    stop_gradient,
    tanh,
    where,
)
from cellgen.language.value import B, Dim, H, I, Role, Value
from cellgen.pipeline import generate
from cellgen.targets.c_expressions import c_axis, c_expression, c_factor

X, Y, Z = (Value(name, (B, H), Role.INPUT, order=k) for k, name in enumerate("xyz"))

PRINTED: dict[str, Expr] = {
    "1 - x * x": 1 - X**2,
    "x * x * x * x": X**4,
    "cg_pow(x, 5)": X**5,
    "(x + y) * (x + y)": (X + Y) ** 2,
    "x / (y * y)": X / Y**2,
    "x * x * z": Z * X**2,
    "x * (y * y)": X * Y**2,
    "cg_tanh(x + y)": tanh(X + Y),
    "x * (1 - y)": X * (1 - Y),
    "x / 3": X / 3,
    "(real)0.5 * x": X / 2,
    "(real)0.1 * x": 0.1 * X,
    "x + (real)1e-05": X + 1e-5,
    "2 * x": 2 * X,
    "x / (real)nH": X / H,
    "cg_sqrt(x)": sqrt(X),
    "1 / cg_sqrt(x)": X ** Rational(-1, 2),
    "cg_pow(x, y)": power(X, Y),
    "cg_maximum(x, y)": maximum(X, Y),
    "cg_where(cg_gt(x, 0), y, z)": where(X > 0, Y, Z),
    "cg_clip(x, -y, y)": clip(X, -Y, Y),
    "cg_sigmoid(-x)": sigmoid(-X),
    # Barriers cost nothing, and keep their brackets where C would join them.
    "(x + y) * z": keep(X + Y) * Z,
    "x - (y + z)": X - keep(Y + Z),
    "x * y": stop_gradient(X) * Y,
}


@pytest.mark.parametrize("expected", PRINTED)
def test_expressions_in_c(expected: str) -> None:
    assert c_expression(PRINTED[expected]) == expected


@pytest.mark.parametrize(
    ("axis", "printed", "factor"),
    [
        (H, "nH", "nH"),
        (2 * H, "2 * nH", "(2 * nH)"),
        (I + 3 * H, "nI + 3 * nH", "(nI + 3 * nH)"),
        (Dim("D") * 2 + 1 + H, "nH + 2 * nD + 1", "(nH + 2 * nD + 1)"),
        (Rational(1), "1", "1"),
    ],
)
def test_lengths_in_c(axis: Expr, printed: str, factor: str) -> None:
    assert c_axis(axis) == printed
    assert c_factor(axis) == factor


def test_no_length_is_worked_out_for_each_place_that_spells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That takes SymPy half of the time of sources: what has terms is remembered."""
    worked_out, terms = list[Expr](), value.terms_of
    monkeypatch.setattr(value, "terms_of", lambda axis: worked_out.append(axis) or terms(axis))
    generate(Elman)
    assert all(worked_out.count(axis) <= 2 for axis in worked_out)  # for people, and for C

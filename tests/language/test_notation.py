"""Printed mathematics: order, brackets, numbers, LaTeX."""

from __future__ import annotations

import pytest
import sympy
from sympy import Expr, Rational

from cellgen.cells import GRUBlockCell
from cellgen.language.latex import latex, latex_name
from cellgen.language.notation import text
from cellgen.language.ops import (
    absolute,
    concat,
    expand_dims,
    keep,
    power,
    sigmoid,
    split,
    sqrt,
    tanh,
    where,
)
from cellgen.language.value import Apply, B, H, I, Role, Value


def value(name: str, order: int, *shape: Expr) -> Value:
    return Value(name, shape or (B, H), Role.INPUT, order=order)


# Declared in an order that is not the alphabet's.
Z, Y, X, C = (value(name, order) for order, name in enumerate("zyxc"))
W, V = value("w", 10, H, I), value("v", 11, I, H)

PRINTED = {
    # order of declaration, constants first in products and last in sums
    "z + y + x": X + Y + Z,
    "z * y * x": X * Y * Z,
    "z + y * x + 1": 1 + X * Y + Z,
    "2 * z * y": Y * Z * 2,
    "z + 1": 1 + Z,
    "1 - z": 1 - Z,
    "(1 - z) * y + z * x": (1 - Z) * Y + Z * X,
    # differences
    "y - z": Y - Z,
    "y - 2 * z": Y - 2 * Z,
    "-z": -Z,
    "-z * y": -Z * Y,
    "-z - y": -Z - Y,
    "z - (y + x) * c": Z - (Y + X) * C,
    "1 - z * y": 1 - Z * Y,
    # powers and roots
    "z**2": Z * Z,
    "1 - z**2": 1 - Z**2,
    "(z + y)**2": (Z + Y) ** 2,
    "tanh(z)**3": tanh(Z) ** 3,
    "sqrt(z)": sympy.sqrt(Z),
    "sqrt(z + 1)": sqrt(Z + 1),
    "pow(z, y)": power(Z, Y),
    # fractions
    "z / y": Z / Y,
    "1 / z": 1 / Z,
    "z / (y * x)": Z / Y / X,
    "(z + y) / x": (Z + Y) / X,
    "z / (y + x)": Z / (Y + X),
    "z / y**2": Z / Y**2,
    "z * y / x": Z * Y / X,
    "z / 3": Z / 3,
    "0.5 * z": Z / 2,
    "2 * z / 3": Rational(2, 3) * Z,
    "1 / sqrt(z)": 1 / sympy.sqrt(Z),
    "z / H": Z / H,
    # a number that multiplies a whole sum
    "2 * (z + y) / 3": Rational(2, 3) * (Z + Y),
    "0.5 * (z - y)": (Z - Y) / 2,
    "3 * (z + 1)": 3 * Z + 3,
    "2 * z + 4 * y": 2 * Z + 4 * Y,
    "-2 * z - 2 * y": -2 * Z - 2 * Y,
    "2 * (z + y) * x": X * (2 * Z + 2 * Y),
    # numbers
    "0.25": Rational(1, 4),
    "1 / 3.0": Rational(1, 3),
    "z + 1e-05": Z + 1e-5,
    "0.1 * z": Z * 0.1,
    # functions and comparisons
    "tanh(z + y)": tanh(Z + Y),
    "sigmoid(-z)": sigmoid(-Z),
    "where((z > 0), y, x)": where(Z > 0, Y, X),
    # operators across elements
    "z @ w": Z @ W,
    "(z * y) @ w": (Z * Y) @ W,
    "(z @ w) @ v": Z @ W @ V,
    "z @ w + y @ w": Y @ W + Z @ W,
    "2 * (z @ w)": 2 * (Z @ W),
    "tanh(z @ w)": tanh(Z @ W),
    "concat(z, y) @ w": Apply("matmul", (concat(Z, Y), W)),
    "z @ v.T": Apply("matmul_transposed", (Z, V)),
    "z.T @ y": Apply("outer_sum", (Z, Y)),
    "sum(z -> (H,))": Apply("sum_to", (Z,), (H,)),
}


@pytest.mark.parametrize("expected", PRINTED)
def test_expressions_print_in_declaration_order_with_no_bracket_too_many(expected: str) -> None:
    assert text(PRINTED[expected]) == expected


def test_parts_print_as_slices() -> None:
    wide = value("a", 0, B, 3 * H)
    assert [text(node) for node in split(wide, 3)] == [
        "a[:, :H]",
        "a[:, H:2*H]",
        "a[:, 2*H:3*H]",
    ]


def test_nodes_without_notation_are_refused() -> None:
    with pytest.raises(TypeError, match="no notation for Derivative"):
        text(sympy.Derivative(Z, Y))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h_prev", "h_{t-1}"),
        ("c_bar", r"\bar{c}"),
        ("d_h_prev", r"\partial h_{t-1}"),
        ("w_ru", "w_{ru}"),
        ("gamma", r"\gamma"),
        ("c_hat", r"\hat{c}"),
        ("s_1", "s_{1}"),
    ],
)
def test_names_in_latex(name: str, expected: str) -> None:
    assert latex_name(name) == expected


def test_equations_in_latex() -> None:
    equations = {str(e.target): latex(e.expression) for e in GRUBlockCell.definition.equations}
    assert equations["h"] == r"h_{t-1} \odot u + \left(1 - u\right) \odot c"
    assert equations["c"] == r"\tanh\left(\bar{c}\right)"
    assert equations["c_bar"].endswith(r"\, w_{c} + b_{c}")
    assert latex(Z / (Y + X)) == r"\frac{z}{y + x}"
    assert latex(Apply("sum_to", (Z,), (H,))) == r"\textstyle\sum z"
    cases = r"\begin{cases} {y} & {z \ge 0} \\ {x} & \text{else} \end{cases}"
    assert latex(where(Z >= 0, Y, X)) == cases


def test_latex_tells_products_by_elements_from_products_of_matrices() -> None:
    decay = Value("r", (), Role.SCALAR, order=20)
    assert latex(Y * X) == r"y \odot x"
    assert latex(2 * Y * X) == r"2 \, y \odot x"
    assert latex(Y * decay) == r"y \, r"
    assert latex(Y @ W) == r"y \, w"


def test_latex_sets_functions_as_mathematics_does() -> None:
    assert latex(absolute(X)) == r"\left|x\right|"
    assert latex(sqrt(X)) == r"\sqrt{x}"
    assert latex(keep(Y + X)) == "y + x"
    assert latex(X + 1e-6) == "x + 10^{-6}"
    assert latex(2.5e-7 * X) == r"2.5 \cdot 10^{-7} \, x"
    assert latex(expand_dims(X, -1)) == r"{x}_{H \times 1}"

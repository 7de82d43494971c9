"""The operator table itself: every row's derivative, meaning and spellings. A new row is tested by
existing (an operator across elements also needs an example of operand shapes)."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sympy
from sympy import Expr

from cellgen import (
    Cell,
    Input,
    State,
    activation,
    clip,
    concat,
    hard_sigmoid,
    hardmax,
    identity,
    logsumexp,
    mean,
    softmax,
    softplus,
    split,
    tanh,
)
from cellgen import max as units_max
from cellgen import sum as units_sum
from cellgen.errors import DeclarationError
from cellgen.language.latex import latex
from cellgen.language.notation import text
from cellgen.language.ops import (
    OPERATORS,
    POINTWISE,
    Pointwise,
    broadcast,
    from_sympy,
    shape_of,
    where,
)
from cellgen.language.value import Apply, B, Dim, H, I, Role, Shape, Value
from cellgen.pipeline import programs_of
from cellgen.program.derive import adjoint, tangent
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program, Statement
from cellgen.runtime.paths import include_folder
from cellgen.targets.c_expressions import c_expression
from tests.conftest import SIZES, STEP, directional, draw, relative

every_function = pytest.mark.parametrize("name", sorted(POINTWISE))

POINTS = np.array([-1.75, -0.6, -0.3, 0.2, 0.7, 1.3, 2.2])
"""Away from every kink (0, 3, equal arguments), inside and outside of limits."""
LOW, HIGH = np.full(POINTS.shape, -0.5), np.full(POINTS.shape, 0.8)

softsign = activation(
    "softsign",
    numpy=lambda x: x / (1 + np.where(np.real(x) < 0, -x, x)),
    derivative=lambda y, x: 1 / (1 + sympy.Abs(x)) ** 2,
    c="{0} / (1 + cg_abs({0}))",
)


def operands(function: type[Pointwise]) -> tuple[list[Value], list[np.ndarray]]:
    arity = function.row.arity
    values = [Value(name, (H,), Role.INPUT, order=k) for k, name in enumerate("abc"[:arity])]
    points = {1: [POINTS], 2: [POINTS, POINTS[::-1] + 0.11], 3: [POINTS, LOW, HIGH]}[arity]
    if function.row.name == "where":
        points = [(POINTS > 0).astype(float), POINTS, POINTS**2]
    with np.errstate(all="ignore"):
        inside = np.isfinite(function.row.numpy(*points))
    return values, [array[inside] for array in points]


def program_of(expression: Expr, arguments: list[Value]) -> Program:
    y = Value("y", shape_of(expression), Role.LOCAL, order=10)
    return Program("table", "row", tuple(arguments), (Statement(y, expression),), (y,))


# --- pointwise functions --------------------------------------------------------------------------


@every_function
def test_derivatives_of_a_function_agree_with_its_meaning(name: str) -> None:
    function = POINTWISE[name]
    values, points = operands(function)
    assert len(points[0]) >= 2
    sizes = {"H": len(points[0])}
    given = {str(v): p for v, p in zip(values, points, strict=True)}
    for k, value in enumerate(values):
        slope = program_of(from_sympy(function(*values).fdiff(k + 1)), values)
        stated = interpret(slope, given, sizes)["y"]
        moved = {**given, str(value): given[str(value)] + 1j * STEP}
        result = interpret(program_of(function(*values), values), moved, sizes)["y"]
        # Both are closed forms in float64; a few roundings of each.
        np.testing.assert_allclose(stated + 0 * points[0], np.imag(result) / STEP, rtol=1e-14)


@every_function
def test_stated_derivatives_are_marked_and_others_are_true(name: str) -> None:
    function = POINTWISE[name]
    values, points = operands(function)
    for k in range(len(values)):
        moved = [p + 1j * STEP * (j == k) for j, p in enumerate(points)]
        true = np.imag(function.row.numpy(*moved)) / STEP
        slope = program_of(from_sympy(function(*values).fdiff(k + 1)), values)
        given = {str(v): p for v, p in zip(values, points, strict=True)}
        found = interpret(slope, given, {"H": len(points[0])})["y"] + 0 * points[0]
        if not function.row.stated:
            np.testing.assert_allclose(found, true, rtol=1e-14)
        elif k == 0:
            assert not np.allclose(found, true)


@every_function
def test_functions_print_as_text_latex_and_sympy(name: str) -> None:
    function = POINTWISE[name]
    values, _ = operands(function)
    call = function(*values)
    sign = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}.get(name)
    listed = ", ".join("abc"[: len(values)])
    assert text(call) == (f"(a {sign} b)" if sign else f"{name}({listed})")
    assert latex(call).count("{") == latex(call).count("}")
    assert str(call).startswith(f"{name}(")
    assert function.row.c.count("{") == function.row.c.count("}") >= function.row.arity


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All rows, and an own activation, in one tiny C file that includes itself per precision."""
    folder = tmp_path_factory.mktemp("ops")
    functions = [*POINTWISE.values(), softsign]
    body = []
    for function in functions:
        values, _ = operands(function)
        loads = "".join(f"const real {v} = {v}_row[unit]; " for v in values)
        body.append(
            f"void CELLGEN_NAME(row_{function.row.name})(int64_t n, const real *a_row, "
            f"const real *b_row, const real *c_row, real *y_row)\n"
            f"{{\n    (void)b_row; (void)c_row;\n"
            f"    for (int64_t unit = 0; unit < n; ++unit) {{ {loads}"
            f"y_row[unit] = {c_expression(function(*values))}; }}\n}}\n"
        )
    precisions = "".join(
        f'#define CELLGEN_PRECISION {bits}\n#include "rows.inc"\n#undef CELLGEN_PRECISION\n'
        for bits in (32, 64)
    )
    (folder / "rows.c").write_text(precisions)
    (folder / "rows.inc").write_text('#include "cellgen_real.h"\n' + "\n".join(body))
    object_file = folder / "rows.so"
    command = ["cc", "-std=c99", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra"]
    warnings = ["-Wconversion", "-Wshadow", "-Werror", f"-I{include_folder()}", f"-I{folder}"]
    subprocess.run(
        [*command, *warnings, str(folder / "rows.c"), "-o", str(object_file), "-lm"], check=True
    )
    return ctypes.CDLL(str(object_file))


@pytest.mark.parametrize("suffix", ["f32", "f64"])
@pytest.mark.parametrize("name", [*sorted(POINTWISE), "softsign"])
def test_c_spelling_means_what_numpy_means(library: ctypes.CDLL, name: str, suffix: str) -> None:
    function = softsign if name == "softsign" else POINTWISE[name]
    dtype = {"f32": np.float32, "f64": np.float64}[suffix]
    _, points = operands(function)
    arrays = [np.ascontiguousarray(p, dtype=dtype) for p in points]
    result = np.empty_like(arrays[0])
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *[arrays[0]] * 2)][:3]
    call = getattr(library, f"row_{name}_{suffix}")
    call(ctypes.c_int64(result.size), *pointers, ctypes.c_void_p(result.ctypes.data))
    expected = function.row.numpy(*(a.astype(np.float64) for a in arrays))
    # 4 units in the last place of a function (decision "Functions"), some for its parts.
    np.testing.assert_allclose(result, expected, rtol=8 * np.finfo(dtype).eps)


# --- ties, folds, options -------------------------------------------------------------------------


def slope_at(function: Callable[..., Expr], point: float, *others: float) -> list[float]:
    values = [Value(n, (H,), Role.INPUT, order=k) for k, n in enumerate("abc"[: 1 + len(others)])]
    given = {str(v): np.array([p]) for v, p in zip(values, (point, *others), strict=True)}
    forward = program_of(function(*values), values)
    found = []
    for value in values:
        slope = from_sympy(forward.statements[0].expression.diff(value))
        found.append(float(interpret(program_of(slope, values), given, {"H": 1})["y"].ravel()[0]))
    return found


def test_ties_go_to_the_first_argument_and_kinks_have_derivative_zero() -> None:
    assert slope_at(POINTWISE["maximum"], 1, 1) == [1, 0]
    assert slope_at(POINTWISE["minimum"], 1, 1) == [1, 0]
    assert slope_at(POINTWISE["relu"], 0) == [0]
    assert slope_at(POINTWISE["abs"], 0) == [0]
    assert slope_at(POINTWISE["clip_exact"], 2, 1, 2) == [1, 0, 0]
    assert slope_at(POINTWISE["clip_exact"], 1, 1, 2) == [1, 0, 0]
    assert slope_at(hard_sigmoid, 3) == [1 / 6]


def test_every_row_whose_derivative_jumps_says_so() -> None:
    """Proofs keep away from kinks, and branches are sought, where a row says that it has some."""

    def compares(name: str) -> bool:
        function = POINTWISE[name]
        values = [Value(f"x_{k}", (H,), Role.INPUT, order=k) for k in range(function.row.arity)]
        slopes = [from_sympy(d(function(*values), *values)) for d in function.row.derivatives]
        called = {node.row.name for slope in slopes for node in slope.atoms(Pointwise)}
        return not called.isdisjoint({"gt", "ge", "lt", "le", "sign"})

    kinked = {name for name, function in POINTWISE.items() if function.row.kinks}
    comparing = {name for name in POINTWISE if compares(name)}
    assert comparing - kinked == {"pow", "atan2"}  # where both sides agree, or nothing is defined
    jumping = {"gt", "ge", "lt", "le", "sign", "floor", "round", "where", "clip_straight_through"}
    assert kinked - comparing == jumping  # themselves


def test_both_gradients_of_clip() -> None:
    def exact(x: Expr) -> Expr:
        return clip(x, -1, 1)

    def straight(x: Expr) -> Expr:
        return clip(x, -1, 1, gradient="straight_through")

    assert [slope_at(exact, p)[0] for p in (-2, 0, 2)] == [0, 1, 0]
    assert [slope_at(straight, p)[0] for p in (-2, 0, 2)] == [1, 1, 1]


def test_nan_flows_through_selections() -> None:
    nan = np.array([math.nan])
    for name, others in (("maximum", [0.0]), ("minimum", [0.0]), ("relu", []), ("abs", [])):
        row = POINTWISE[name].row
        assert np.isnan(row.numpy(nan, *(np.array([o]) for o in others)))
    assert np.isnan(POINTWISE["clip_exact"].row.numpy(nan, np.array([-1.0]), np.array([1.0])))


def test_where_takes_comparisons_and_folds_equal_branches() -> None:
    a, b = (Value(name, (H,), Role.INPUT) for name in "ab")
    assert where(a > 0, b, b) == b
    assert text(where(a <= b, 1, b)) == "where((a <= b), 1, b)"
    # Branches are differentiated under one condition; equal slopes need no condition at all.
    assert text(where(a > 0, b, 2 + b).diff(b)) == "1"


def test_sympys_functions_become_rows_and_unknown_ones_are_named() -> None:
    a, b = (Value(name, (H,), Role.INPUT, order=k) for k, name in enumerate("ab"))
    for theirs, ours in (
        (sympy.exp(a), "exp(a)"),
        (sympy.log(a), "log(a)"),
        (sympy.tanh(a), "tanh(a)"),
        (sympy.sin(a) + sympy.cos(b), "sin(a) + cos(b)"),
        (sympy.Abs(a), "abs(a)"),
        (sympy.sign(a), "sign(a)"),
        (sympy.Max(a, b), "maximum(a, b)"),
        (sympy.Min(a, b, 1), "minimum(minimum(1, a), b)"),
        (a**b, "pow(a, b)"),
        (a**2.5, "pow(a, 2.5)"),
        (sympy.sqrt(a), "sqrt(a)"),
        (a > b, "(a > b)"),
        (a @ Value("w", (H, H), Role.WEIGHT), "a @ w"),
        (2 * tanh(sympy.exp(a)), "2 * tanh(exp(a))"),
        (sympy.erf(a), "erf(a)"),
        (a * True + False, "a"),
        (sympy.tan(a), "sin(a) / cos(a)"),
        (sympy.atan(a), "atan2(a, 1)"),
        (sympy.atan2(a, b), "atan2(a, b)"),
        (
            sympy.Piecewise((a, a > 0), (b, b > 0), (0, True)),
            "where((a > 0), a, where((b > 0), b, 0))",
        ),
        (sympy.Heaviside(a), "0.5 * (sign(a) + 1)"),
        ((a > 0) & (b > 0), "where((a > 0), (b > 0), 0)"),
        ((a > 0) | (b > 0), "where((a > 0), 1, (b > 0))"),
        (sympy.Eq(a, b), "where((a >= b), (a <= b), 0)"),
    ):
        assert text(from_sympy(theirs)) == ours
    for unknown, instead in (
        (sympy.gamma(a), "gamma is not in the operator table; compose it .* activation"),
        (sympy.asinh(a), "asinh is not in the operator table; write sign"),
        (sympy.erfc(a), "write 1 - erf"),
        (sympy.ceiling(a), "pass the number as an input"),
        (sympy.Piecewise((a, a > 0)), "end it with \\(value, True\\)"),
    ):
        with pytest.raises(DeclarationError, match=instead):
            from_sympy(unknown)
    assert identity(a) is a


CONDITIONS = {
    "and": (lambda a, b: (a > 0) & (b > 0), np.logical_and),
    "or": (lambda a, b: (a > 0) | (b > 0), np.logical_or),
    "xor": (lambda a, b: sympy.Xor(a > 0, b > 0), np.logical_xor),
    "neither": (lambda a, b: ~((a > 0) | (b > 0)), lambda p, q: ~(p | q)),
    "equal": (lambda a, b: sympy.Eq(a, b) & (b > 0), lambda p, q: p & q),
    "different": (lambda a, b: sympy.Ne(a, b), np.not_equal),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_combined_conditions_are_one_and_zero(name: str) -> None:
    a, b = (Value(name, (H,), Role.INPUT, order=k) for k, name in enumerate("ab"))
    written, meant = CONDITIONS[name]
    given = {"a": np.array([0.0, 0.0, 1.0, 1.0]), "b": np.array([0.0, 1.0, 0.0, 1.0])}
    found = interpret(program_of(from_sympy(written(a, b)), [a, b]), given, {"H": 4})["y"]
    assert found.tolist() == meant(given["a"] > 0, given["b"] > 0).astype(float).tolist()


COMPOSED = {
    "cosh": (sympy.cosh, np.cosh),
    "sinh": (sympy.sinh, np.sinh),
    "tan": (sympy.tan, np.tan),
    "atan": (sympy.atan, np.arctan),
    "asin": (lambda x: sympy.asin(x / 3), lambda x: np.arcsin(x / 3)),
    "acos": (lambda x: sympy.acos(x / 3), lambda x: np.arccos(x / 3)),
    "atanh": (lambda x: sympy.atanh(x / 3), lambda x: np.arctanh(x / 3)),
    "heaviside": (lambda a: sympy.Heaviside(a, 1), lambda x: np.heaviside(x, 1)),
    "softmax": (softmax, lambda x: np.exp(x) / np.exp(x).sum()),
    "logsumexp": (logsumexp, lambda x: np.log(np.exp(x).sum()) + 0 * x),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions_and_their_derivatives_mean_what_they_are_called(name: str) -> None:
    written, meant = COMPOSED[name]

    class Composed(Cell):
        x, h_prev = Input(H), State(H)
        h = written(x) + h_prev

    points = np.array([[-1.5, -1e-9, 0.3, 2.0, 0.7]])
    given = {"x": points, "h_prev": np.zeros_like(points)}
    sizes = {"B": 1, "H": 5}
    programs = programs_of(Composed)
    found = interpret(programs["forward"], given, sizes)["h"]
    np.testing.assert_allclose(found, meant(points), rtol=1e-14)
    upstream = np.array([[0.3, -1.0, 2.0, 0.1, 0.5]])
    slopes = interpret(programs["backward"], {**given, "h": found, "d_h": upstream}, sizes)["d_x"]
    for unit in range(5):
        moved = {**given, "x": points + 1j * STEP * (np.arange(5) == unit)}
        moved_h = interpret(programs["forward"], moved, sizes)["h"]
        expected = (np.imag(moved_h) / STEP * upstream).sum()
        # Where exponentials near 1 cancel, their roundings are left.
        np.testing.assert_allclose(slopes[0, unit], expected, rtol=1e-13, atol=1e-16)


# --- own activations ------------------------------------------------------------------------------


def test_own_activation_is_differentiated_and_printed_with_the_brackets_it_needs() -> None:
    a, b = (Value(name, (H,), Role.INPUT, order=k) for k, name in enumerate("ab"))
    assert slope_at(softsign, -1.0) == [0.25]
    assert text(2 * softsign(a + b)) == "2 * softsign(a + b)"
    assert c_expression(softsign(a)) == "a / (1 + cg_abs(a))"
    assert c_expression(2 * softsign(a + b)) == "2 * ((a + b) / (1 + cg_abs((a + b))))"


def test_own_activation_of_known_functions_needs_nothing_else() -> None:
    def mish(x: Expr) -> Expr:
        return x * tanh(softplus(x))

    (slope,) = slope_at(mish, 0.3)
    step = 1e-6  # central differences: error step^2, about 1e-12
    high, low = (p * np.tanh(np.log1p(np.exp(p))) for p in (0.3 + step, 0.3 - step))
    assert slope == pytest.approx((high - low) / (2 * step), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "c", "message"),
    [
        ("tanh", "cg_tanh({0})", "'tanh' is reserved by C"),
        ("softplus", "cg_tanh({0})", "'softplus' is in the operator table already"),
        ("my act", "cg_tanh({0})", "activation 'my act' is no valid name"),
        ("act", "cg_tanh(x)", r"'cg_tanh\(x\)' does not read \{0\}"),
        ("act", "{0} + {1}", r"'\{0\} \+ \{1\}' cannot be filled in .* no places but \{0\}"),
        ("act", "cg_tanh({0}", r"not one whole expression: \( is not closed"),
        ("act", "{0}) * (1", r"not one whole expression: \) closes nothing"),
        ("act", "(({0}]", r"not one whole expression: \] closes nothing"),
        ("act", "{0}; evil()", "not one whole expression: ; ends the statement"),
        ("act", "{0}, 1", "not one whole expression: , outside of brackets"),
        ("act", "{0} /* half", "not one whole expression: a comment"),
        ("act", "{0} */ + 1", "not one whole expression: the end of a comment"),
        ("act", "{0} // rest", "not one whole expression: a comment"),
        ("act", "{0} \\\n", "not one whole expression: a backslash"),
        ("act", "{0} ??/\n", "not one whole expression: a trigraph"),
        ("act", "{0}\n#define x", "not one whole expression: a directive"),
        ("act", "{0} + 'x", "not one whole expression: ' is not closed"),
        ("act", '{0} + "x', 'not one whole expression: " is not closed'),
        ("act", "{0}\0", "not one whole expression: .* is no character of C"),
        ("act", "{0} + \u03b1", "not one whole expression: 'α' is no character of C"),
    ],
)
def test_own_activation_that_cannot_be_says_why(name: str, c: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        activation(name, numpy=np.tanh, derivative=lambda y, x: 1 - y**2, c=c)
    assert f'File "{Path(__file__)}"' in str(caught.value)


@pytest.mark.parametrize(
    "c",
    [
        "{0} / (1 + cg_abs({0}))",
        "({{ real half = {0} / 2; half * half; }})",
        "cg_where({0} > 0, {0}, \n  (real)0.1 * {0})",
        '{0} * (real)sizeof("; not ( closed")',
        "{0} + ((real[]){{1, 2}})[0] * '('",
    ],
)
def test_own_activation_may_be_any_one_expression(c: str) -> None:
    activation("whole", numpy=np.tanh, derivative=lambda y, x: 1 - y**2, c=c)


@pytest.mark.parametrize(
    ("derivative", "message"),
    [
        (lambda y, x: np.cos(x), r"formed of symbols \(TypeError"),
        (lambda x: x, "takes the result and 1 argument, and is written with functions of cellgen"),
        (lambda y, x: x > 0, "its derivative gives .*, expected an expression"),
    ],
)
def test_a_derivative_that_cannot_be_formed_is_told_where_it_is_declared(derivative, message):
    with pytest.raises(DeclarationError, match=message) as caught:
        activation("act", numpy=np.tanh, derivative=derivative, c="cg_tanh({0})")
    assert f'File "{Path(__file__)}"' in str(caught.value)


# --- operators across elements --------------------------------------------------------------------

K, D, ONE = Dim("K"), Dim("D"), sympy.Integer(1)

M, N, TWO = Dim("M"), Dim("N"), sympy.Integer(2)
SOLVES: list[tuple[list[Shape], list[Expr], Shape]] = [
    ([(B, M, M), (B, M, K)], [], (B, M, K)),
    ([(B, TWO, TWO, N, M, M), (B, TWO, N, M, K)], [], (B, TWO, N, M, K)),
]
SCANS: list[tuple[list[Shape], list[Expr], Shape]] = [
    ([(B, TWO, TWO, M, K), (B, TWO, M, K)], [], (B, TWO, M, K)),
    ([(B, TWO, TWO, N, M, K), (B, TWO, N, M, K)], [], (B, TWO, N, M, K)),
]
EXAMPLES: dict[str, list[tuple[list[Shape], list[Expr], Shape]]] = {
    "matmul": [
        ([(B, I), (I, H)], [], (B, H)),
        ([(I, H), (H, I)], [], (I, I)),
        ([(B, I), (I, K, D)], [], (B, K, D)),
    ],
    "matmul_transposed": [
        ([(B, I), (H, I)], [], (B, H)),
        ([(B, K, D), (I, K, D)], [], (B, I)),
    ],
    "outer_sum": [([(B, I), (B, H)], [], (I, H)), ([(B, I), (B, K, D)], [], (I, K, D))],
    "matmul_heads": [([(B, K, D), (K, D, H)], [], (B, K, H))],
    "matmul_heads_transposed": [([(B, K, H), (K, D, H)], [], (B, K, D))],
    "outer_sum_heads": [([(B, K, D), (B, K, H)], [], (K, D, H))],
    "matmul_onto": [([(B, H), (B, I), (I, H)], [], (B, H))],
    "matmul_transposed_onto": [([(B, H), (B, I), (H, I)], [], (B, H))],
    "outer_sum_onto": [([(I, H), (B, I), (B, H)], [], (I, H))],
    "matmul_heads_onto": [([(B, K, H), (B, K, D), (K, D, H)], [], (B, K, H))],
    "matmul_heads_transposed_onto": [([(B, K, D), (B, K, H), (K, D, H)], [], (B, K, D))],
    "outer_sum_heads_onto": [([(K, D, H), (B, K, D), (B, K, H)], [], (K, D, H))],
    "transpose": [([(I, H)], [], (H, I)), ([(B, K, D)], [], (B, D, K))],
    "concat": [
        ([(B, I), (B, H), (B, 2 * H)], [sympy.Integer(1)], (B, I + 3 * H)),
        ([(I, H), (H, H)], [sympy.Integer(0)], (I + H, H)),
    ],
    "part": [
        ([(B, I + 2 * H)], [sympy.Integer(1), I, H], (B, H)),
        ([(3 * H, I)], [sympy.Integer(0), 2 * H, H], (H, I)),
    ],
    "sum_to": [
        ([(B, H)], [H], (H,)),
        ([(B, H)], [B, sympy.Integer(1)], (B, 1)),
        ([(B, H)], [sympy.Integer(1)], (1,)),
        ([(B, H)], [], ()),
        ([(B, K, D)], [B, K, ONE], (B, K, 1)),
        ([(B, K, D)], [B, ONE, ONE], (B, 1, 1)),
        ([(B, K, D)], [K, D], (K, D)),
    ],
    "first_max": [
        ([(B, H)], [ONE], (B, H)),
        ([(B, K, D)], [sympy.Integer(2)], (B, K, D)),
        ([(B, K, D)], [ONE, ONE], (B, K, D)),
    ],
    "cumsum": [
        ([(B, H)], [], (B, H)),
        ([(B, K, D)], [], (B, K, D)),
        ([(B, K, D)], [ONE], (B, K, D)),
        ([(H,)], [], (H,)),
    ],
    "cumsum_reversed": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "shifted": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "shifted_from_1": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "shifted_from_least": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "shifted_back": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "linear_scan": [
        ([(B, H), (B, H)], [], (B, H)),
        ([(B, K, D), (B, K, D)], [ONE], (B, K, D)),
        ([(H,), (H,)], [], (H,)),
    ],
    "linear_scan_transposed": [
        ([(B, H), (B, H)], [], (B, H)),
        ([(B, K, D), (B, K, D)], [ONE], (B, K, D)),
    ],
    "cumprod": [
        ([(B, H)], [], (B, H)),
        ([(B, K, D)], [ONE], (B, K, D)),
        ([(H,)], [], (H,)),
    ],
    "cummax": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "logcumsumexp": [([(B, H)], [], (B, H)), ([(B, K, D)], [ONE], (B, K, D))],
    "reshape": [
        ([(B, K)], [B, K, ONE], (B, K, 1)),
        ([(B, K, D)], [B, K * D], (B, K * D)),
        ([(B, 2 * D)], [B, sympy.Integer(2), D], (B, 2, D)),
    ],
    "chunk_nn": [([(B, M, D), (B, D, K)], [], (B, M, K))],
    "chunk_nt": [([(B, N, M, K), (B, N, D, K)], [], (B, N, M, D))],
    "chunk_tn": [([(B, M, D), (B, M, K)], [], (B, D, K))],
    "lower": [([(B, M, M)], [], (B, M, M))],
    "strictly_lower": [([(B, N, M, M)], [], (B, N, M, M))],
    "first_row": [([(B, M, K)], [], (B, ONE, K))],
    "last_row": [([(B, M, K)], [], (B, ONE, K))],
    "into_first_row": [([(B, ONE, K)], [M], (B, M, K))],
    "into_last_row": [([(B, ONE, K)], [M], (B, M, K))],
    "stacked": [([(B, M, K)] * 2, [], (B, ONE + 1, M, K))],
    "entry": [([(B, ONE + 1, M, K)], [ONE], (B, M, K))],
    "into_entry": [([(B, M, K)], [ONE, ONE + 1], (B, ONE + 1, M, K))],
    "unit_lower_solve": SOLVES,
    "unit_lower_solve_transposed": SOLVES,
    "coupled_scan": SCANS,
    "coupled_scan_transposed": SCANS,
    "max_scan": [([(B, M, K)] * 2, [ONE], (B, M, K)), ([(B, M, K)] * 2, [ONE - 1], (B, M, K))],
    "decayed_nt": [([(B, M, K)] * 4, [n], (B, M, M)) for n in (ONE - 1, ONE)],
    "decayed_nn": [([(B, M, M), *[(B, M, K)] * 3], [n], (B, M, K)) for n in (ONE - 1, ONE)],
    "decayed_tn": [([(B, M, M), *[(B, M, K)] * 3], [n], (B, M, K)) for n in (ONE - 1, ONE)],
}
"""Operand shapes, attributes and the shape of the result, for each operator of the table."""

WRONG: dict[str, tuple[list[Shape], list[Expr]]] = {
    "matmul": ([(B, I), (H, H)], []),
    "matmul_transposed": ([(B, I), (H, H)], []),
    "outer_sum": ([(B, I), (I, H)], []),
    "matmul_onto": ([(B, I), (B, I), (I, H)], []),
    "matmul_transposed_onto": ([(B, I), (B, I), (H, I)], []),
    "outer_sum_onto": ([(H, H), (B, I), (B, H)], []),
    "matmul_heads": ([(B, K, D), (K, H, D)], []),
    "matmul_heads_transposed": ([(B, K, D), (K, D, H)], []),
    "outer_sum_heads": ([(B, K, D), (B, H, D)], []),
    "matmul_heads_onto": ([(B, K, D), (B, K, D), (K, D, H)], []),
    "matmul_heads_transposed_onto": ([(B, K, H), (B, K, H), (K, D, H)], []),
    "outer_sum_heads_onto": ([(K, D, D), (B, K, D), (B, K, H)], []),
    "transpose": ([(B, H)], []),
    "concat": ([(B, I), (I, H)], [sympy.Integer(1)]),
    "sum_to": ([(B, H)], [I]),
    "first_max": ([(H,)], [sympy.Integer(2)]),
    "cumsum": ([()], []),
    "cumsum_reversed": ([()], []),
    "shifted": ([()], []),
    "shifted_from_1": ([()], []),
    "shifted_from_least": ([()], []),
    "shifted_back": ([()], []),
    "linear_scan": ([(B, H), (H,)], []),
    "linear_scan_transposed": ([(B, H), (B, K)], []),
    "cumprod": ([()], []),
    "cummax": ([(B, H)], [sympy.Integer(2)]),
    "logcumsumexp": ([()], []),
    "reshape": ([(B, H)], [B, K, D]),
    "chunk_nn": ([(B, M, D), (B, K, D)], []),
    "chunk_nt": ([(B, N, M, K), (B, M, K)], []),
    "chunk_tn": ([(B, M, D), (B, D, M)], []),
    "lower": ([(B, M, K)], []),
    "strictly_lower": ([(B, M, K)], []),
    "first_row": ([(B, K)], []),
    "last_row": ([(B, K)], []),
    "into_first_row": ([(B, M, K)], [M]),
    "into_last_row": ([(B, M, K)], [M]),
    "stacked": ([(B, M, K), (B, M, D)], []),
    "entry": ([(B, TWO, M, K)], [TWO]),
    "into_entry": ([(B, M, K)], [TWO, TWO]),
    "unit_lower_solve": ([(B, M, K), (B, M, K)], []),
    "unit_lower_solve_transposed": ([(B, M, M), (B, K, M)], []),
    "coupled_scan": ([(B, M, K), (B, M, K)], []),
    "coupled_scan_transposed": ([(B, TWO, M, M, K), (B, TWO, M, K)], []),
    "max_scan": ([(B, M, K), (B, M, D)], []),
    "decayed_nt": ([(B, M, K), (B, M, K), (B, M, D), (B, M, K)], [ONE]),
    "decayed_nn": ([(B, M, K)] * 4, [ONE]),
    "decayed_tn": ([(B, M, K)] * 4, [ONE]),
}
CASES = [
    pytest.param(op, *example, id=f"{op}-{k}")
    for op in OPERATORS
    for k, example in enumerate(EXAMPLES.get(op, []))
]


def test_every_operator_has_an_example() -> None:
    assert set(EXAMPLES) == set(OPERATORS)
    assert set(WRONG) == set(OPERATORS) - {"part"}  # parts are made by split, which checks


def node_of(op: str, shapes: list[Shape], attributes: list[Expr]) -> tuple[Apply, list[Value]]:
    values = [Value(f"a_{k}", shape, Role.WEIGHT, order=k) for k, shape in enumerate(shapes)]
    return Apply(op, values, attributes), values


@pytest.mark.parametrize(("op", "shapes", "attributes", "shape"), CASES)
def test_operator_shapes_agree_with_numpy(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, values = node_of(op, shapes, attributes)
    assert shape_of(node) == shape
    program = program_of(node, values)
    program.verify()
    interpret(program, draw(values), SIZES)  # broadcasts to the symbolic shape: a wrong one fails


@pytest.mark.parametrize("op", WRONG)
def test_operators_refuse_shapes_that_do_not_agree(op: str) -> None:
    node, _ = node_of(op, *WRONG[op])
    with pytest.raises(DeclarationError, match="shapes do not agree: ") as caught:
        shape_of(node)
    assert caught.value.code == "declaration.shape"


@pytest.mark.parametrize(("op", "shapes", "attributes", "shape"), CASES)
def test_adjoint_and_tangent_of_an_operator(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, values = node_of(op, shapes, attributes)
    program = program_of(node, values)
    given, along = draw(values), draw(values, seed=1)
    expected = directional(program, given, along)["y"]

    moving = tangent(program, values)
    found = interpret(moving, {**given, **{f"t_{n}": a for n, a in along.items()}}, SIZES)
    assert relative(found["t_y"], expected) < 1e-14

    back, _ = adjoint(program, program.results, values)
    upstream = draw(program.results, seed=2)["y"]
    gradients = interpret(back, {**given, "d_y": upstream}, SIZES)
    product = sum(np.sum(gradients[f"d_{name}"] * along[name]) for name in given)
    # <d_y, J t> = <J^T d_y, t>: sums of some dozen terms in another order.
    assert product == pytest.approx(np.sum(upstream * expected), rel=1e-12)


@pytest.mark.parametrize(("op", "shapes", "attributes", "shape"), CASES)
def test_operators_print(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, _ = node_of(op, shapes, attributes)
    printed = text(node)
    assert all(f"a_{k}" in printed for k in range(len(shapes)))
    assert "{" not in printed
    drawn = latex(node)
    assert drawn.count("{") == drawn.count("}")
    assert all(f"a_{{{k}}}" in drawn for k in range(len(shapes)))


def test_the_maximum_goes_to_the_first_of_equal_units_and_nan_passes() -> None:
    class Largest(Cell):
        x, h_prev = Input(H), State(1)
        h = units_max(x)

    forward, full = programs_of(Largest).mathematics
    rows = np.array([[1.0, 3.0, 3.0, 2.0], [math.nan, 5.0, 1.0, 0.0], [-2.0, -2.0, -2.0, -3.0]])
    found = interpret(forward, {"x": rows}, {"B": 3, "H": 4})["h"]
    np.testing.assert_array_equal(found, [[3.0], [math.nan], [-2.0]])
    known = {"x": rows, "h_prev": np.zeros((3, 1)), "d_h": np.ones((3, 1))}
    d_x = interpret(full, known, {"B": 3, "H": 4})["d_x"]
    np.testing.assert_array_equal(d_x, [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])


def test_hardmax_is_1_at_the_first_of_the_largest_and_lets_no_gradient_through() -> None:
    class Choice(Cell):
        x, h_prev = Input(3, H), State(3, H)
        h = hardmax(x) + hardmax(x, axis=-2) + hardmax(x, axis=all) + h_prev

    x = np.array([[[1.0, 4.0, 4.0], [-np.inf, -2.0, -3.0], [4.0, 0.0, 4.0]]])
    forward, full = programs_of(Choice).mathematics
    given = {"x": x, "h_prev": np.zeros_like(x)}
    found = interpret(forward, given, {"B": 1, "H": 3})["h"]
    assert found.tolist() == [[[0, 3, 1], [0, 1, 0], [2, 0, 0]]]
    back = interpret(full, {**given, "d_h": np.ones_like(x)}, {"B": 1, "H": 3})
    assert not np.any(back["d_x"])
    cube = Value("a", (B, K, D, H), Role.INPUT)
    with pytest.raises(DeclarationError, match=r"hardmax over axes of .* that are not neighbours"):
        hardmax(cube, axis=(-1, -3))


def test_heads_of_weights_are_not_joined_split_or_transposed() -> None:
    h, w = Value("h", (B, K, D), Role.STATE), Value("w", (H, K, D), Role.WEIGHT)
    with pytest.raises(DeclarationError, match="the parts of heads lie apart; use a weight for"):
        split(w, 2)
    with pytest.raises(DeclarationError, match="the units of heads lie apart"):
        concat(w, w)
    with pytest.raises(DeclarationError, match=r"pairs K heads of D with K of H"):
        shape_of(h @ Value("r", (K, H, D), Role.WEIGHT))
    with pytest.raises(DeclarationError, match="transpose needs two axes"):
        shape_of(Apply("transpose", (Value("b", (D,), Role.BIAS),)))


def test_broadcasting_is_numpys() -> None:
    assert broadcast([(B, H), (H,), (), (B, sympy.Integer(1))]) == (B, H)
    with pytest.raises(DeclarationError, match=r"\(B, H\) and \(I,\) \(H against I\)"):
        broadcast([(B, H), (I,)])


def test_reductions_over_units_keep_the_axis() -> None:
    x = Value("x", (B, H), Role.INPUT)
    assert shape_of(units_sum(x)) == shape_of(mean(x)) == shape_of(units_max(x)) == (B, 1)
    h = Value("h", (B, K, D), Role.STATE)
    for reduce in (units_sum, mean, units_max):
        assert shape_of(reduce(h)) == (B, K, 1)
        assert shape_of(reduce(h, axis=all)) == (B, 1, 1)
        assert shape_of(reduce(x, axis=all)) == (B, 1)
    with pytest.raises(DeclarationError, match=r"max\(..., axis=1\): leave axis out") as caught:
        units_max(h, axis=1)
    assert caught.value.code == "declaration.axis"
    with pytest.raises(DeclarationError, match="sum over the units of a scalar"):
        units_sum(Value("k", (), Role.SCALAR))
    with pytest.raises(DeclarationError, match="split takes a value with at least one axis"):
        split(Value("k", (), Role.SCALAR), 2)

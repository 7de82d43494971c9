"""Numbers in equations: exact, rounded once for each precision, or refused at declaration."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Float, Integer, Rational

import cellgen
from cellgen import Cell, H, Input, Scalar, State, clip, maximum, tanh, where
from cellgen.errors import DeclarationError, DerivationError
from cellgen.language.constants import DOUBLE, SINGLE, Precision, exact_constant, nearest
from cellgen.language.notation import text
from cellgen.language.ops import from_sympy, power
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import generate
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program, Statement
from cellgen.runtime.paths import include_folder
from cellgen.targets.c_expressions import c_expression

X, OTHER = (Value(name, (B, H), Role.INPUT, order=k) for k, name in enumerate(("x", "y")))
DTYPES = {SINGLE: np.float32, DOUBLE: np.float64}

BETWEEN = Rational(2**24 + 1, 2**24) + Rational(1, 2**80)
"""Just above the middle of two numbers of float32: float64 rounds it to the middle, and float32
from there to the even one below."""


# --- what is nearest ------------------------------------------------------------------------------

integers = st.integers(-(10**38), 10**38).map(Integer)
rationals = st.builds(Rational, st.integers(-(10**30), 10**30), st.integers(1, 10**12))
floats = st.builds(
    lambda digits, power: Float(f"{digits}e{power}", 60),
    st.one_of(st.just(0), st.integers(10**30, 10**50)),
    st.integers(-70, -20),
)
irrational = st.sampled_from(
    [sympy.pi, sympy.E, sympy.sqrt(2), sympy.GoldenRatio, sympy.log(3), sympy.gamma(Rational(1, 3))]
)
large_powers = st.builds(
    lambda base, up, down: Rational(base**up, (base + 1) ** down),
    st.integers(2, 9),
    st.integers(0, 200),
    st.integers(0, 200),
).filter(lambda number: Rational(1, 10**30) < number < 10**30)
middles = st.builds(
    lambda odd, power, off: (2 * odd + 1 + off * Rational(1, 2**70)) * Rational(2) ** power,
    st.integers(2**23, 2**24 - 1),
    st.integers(-90, 60),
    st.sampled_from([-1, 0, 1]),
)
"""Between two numbers of float32, or the smallest bit beside it."""
plain = st.one_of(integers, rationals, floats, large_powers, middles)
constants = st.one_of(plain, irrational, st.builds(lambda a, b: a * b / 7, plain, irrational))


def by_mpmath(constant: Expr, precision: Precision) -> float:
    """Round with mpmath alone: to so many bits, or to a multiple of the smallest number."""
    with mpmath.workprec(4000):
        if constant.is_Rational:
            exact = mpmath.mpf(int(constant.p)) / int(constant.q)
        else:
            exact = mpmath.mpf((constant if constant.is_Float else constant.evalf(300))._mpf_)
        smallest = mpmath.mpf(2) ** precision.least
        if abs(exact) < smallest * 2 ** (precision.bits - 1):
            return float(mpmath.nint(exact / smallest) * smallest)
    with mpmath.workprec(precision.bits):
        return float(+exact)


@settings(deadline=None, max_examples=300)
@given(constants)
def test_constants_are_rounded_once_in_both_precisions(constant: Expr) -> None:
    exact = exact_constant(constant)
    spelled = c_expression(exact * X)
    for precision in (SINGLE, DOUBLE):
        expected = by_mpmath(constant, precision)
        assert nearest(exact, precision) == expected
        assert value_of_c(spelled, precision, 1.0) == DTYPES[precision](expected)


def value_of_c(spelled: str, precision: Precision, x: float) -> np.floating:
    """Evaluate printed C as C does: literals in double, integers beside a real as reals."""
    real = DTYPES[precision]
    python = re.sub(
        r"\(CELLGEN_PRECISION == 32 \? (\S+) : (\S+)\)",
        r"(\1)" if precision is SINGLE else r"(\2)",
        spelled,
    )
    python = re.sub(r"\(real\)(\(.*?\)|-?[\d.e+-]+)", r"real(\1)", python)
    for integer in re.findall(r"(?<![\w.])\d+(?![\w.])", python):
        assert int(integer) <= 2**24, f"{integer} in {spelled} is no number of float32"
    python = re.sub(r"(?<![\w.])(?<!e[+-])(\d+)(?![\w.])", r"real(\1)", python)
    return eval(python, {"real": real, "x": real(x)})  # type: ignore[no-any-return]


def test_a_number_between_two_of_float32_has_a_literal_for_each_precision() -> None:
    assert np.float32(nearest(BETWEEN, DOUBLE)) != nearest(BETWEEN, SINGLE)
    single, double = 1 + 2.0**-23, 1 + 2.0**-24
    assert c_expression(BETWEEN * X) == f"(real)(CELLGEN_PRECISION == 32 ? {single} : {double}) * x"


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        (1 - X, "1 - x"),
        (X / 3, "x / 3"),
        (2**24 * X, "16777216 * x"),
        ((2**24 + 1) * X, "(real)16777217.0 * x"),
        (2**64 * X, "(real)1.8446744073709552e+19 * x"),
        (Rational(10**20, 3) * X, "(real)3.333333333333333e+19 * x"),
        (X**2 * 3000000000 * 3000000000 * 3, "(real)2.7e+19 * (x * x)"),
        (3 * X * (2 * OTHER + 2 * X), "6 * x * (x + y)"),
        (100000 * X * (100000 * OTHER + 100000 * X), "(real)10000000000.0 * x * (x + y)"),
        (X**5, "cg_pow(x, 5)"),
        (X ** (10**20), "cg_pow(x, (real)1e+20)"),
        (X ** Rational(10**20 + 1, 3 * 10**20), "cg_pow(x, (real)0.3333333333333333)"),
        (X**sympy.pi, "cg_pow(x, (real)3.141592653589793)"),
        (sympy.pi**X, "cg_pow((real)3.141592653589793, x)"),
        (X + sympy.sqrt(2), "x + (real)1.4142135623730951"),
        (where(X < 2**64, X, 0), "cg_where(cg_lt(x, (real)1.8446744073709552e+19), x, 0)"),
        (clip(X, -(10**30), 0), "cg_clip(x, (real)-1e+30, 0)"),
        (clip(X, 0, sympy.oo), "cg_maximum(x, 0)"),
        (clip(X, -math.inf, 1), "cg_minimum(x, 1)"),
        (
            clip(X, 0, math.inf, gradient="straight_through"),
            "cg_clip(x, 0, (real)INFINITY)",
        ),
    ],
)
def test_numbers_in_c(expression: Expr, printed: str) -> None:
    assert c_expression(from_sympy(expression)) == printed


# --- compiled, in every place ---------------------------------------------------------------------

NUMBERS = (
    *(Integer(2**k + d) for k in (24, 31, 32, 53, 63, 64, 100) for d in (-1, 0, 1)),
    *(Rational(10**20, 3), Rational(3**50, 7**20), Rational(1, 3), Rational(2, 3), Rational(1, 10)),
    *(Rational(2**24 + 1, 2**24 - 1), BETWEEN, Float("0.1", 50), Float("1e-44"), Float(1e38)),
    *(sympy.pi, sympy.E, sympy.sqrt(2), sympy.GoldenRatio, 2 ** Rational(1, 3), sympy.exp(-20)),
)
PLACES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "factor": lambda x, c: c * x,
    "term": lambda x, c: c + x,
    "divisor": lambda x, c: x / c,
    "comparison": lambda x, c: where(x < c, x, -1),
    "limit": lambda x, c: clip(x, -c, c),
    "largest": lambda x, c: maximum(x, c),
    "exponent": lambda x, c: power(x, c),
    "base": lambda x, c: power(c, x),
}
POINTS = np.array([1.0, 0.75, -2.0, 1e19, 2.0**64, 2.0**64 * (1 - 2.0**-24), 2.0**31])


def in_table(expression: Expr) -> Expr | None:
    try:
        return from_sympy(expression)
    except DeclarationError:
        return None


CASES = [
    (place, number, expression)
    for place, formed in PLACES.items()
    for number in NUMBERS
    if (expression := in_table(formed(X, number))) is not None
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every case as a function, compiled as strictly as generated code is."""
    folder = tmp_path_factory.mktemp("constants")
    body = [
        f"void CELLGEN_NAME(case_{k})(const real *in, real *out)\n"
        f"{{ const real x = *in; *out = {c_expression(expression)}; }}\n"
        for k, (_, _, expression) in enumerate(CASES)
    ]
    (folder / "cases.inc").write_text('#include "cellgen_real.h"\n' + "\n".join(body))
    precisions = (
        f'#define CELLGEN_PRECISION {bits}\n#include "cases.inc"\n#undef CELLGEN_PRECISION\n'
        for bits in (32, 64)
    )
    (folder / "cases.c").write_text("".join(precisions))
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic", "-ffp-contract=off"]
    command = ["cc", "-std=c99", "-O1", "-shared", "-fPIC", *warnings, f"-I{include_folder()}"]
    subprocess.run(
        [*command, f"-I{folder}", str(folder / "cases.c"), "-o", str(folder / "cases.so"), "-lm"],
        check=True,
    )
    return ctypes.CDLL(str(folder / "cases.so"))


def called(library: ctypes.CDLL, k: int, precision: Precision, x: float) -> np.floating:
    dtype = DTYPES[precision]
    given, made = np.array([x], dtype), np.empty(1, dtype)
    call = getattr(library, f"case_{k}_{'f32' if precision is SINGLE else 'f64'}")
    call(ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(made.ctypes.data))
    return made[0]


def expected_of(place: str, number: Expr, x: np.floating, precision: Precision) -> np.floating:
    """One operation of a precision, on the number that is nearest in it."""
    dtype = DTYPES[precision]
    exact = exact_constant(number)
    c = dtype(nearest(exact, precision))
    with np.errstate(all="ignore"):
        if place == "factor" and exact.is_Rational and max(exact.p, exact.q) <= 2**24:
            return dtype(dtype(exact.p) * x / dtype(exact.q))
        if place == "divisor":
            inverse = exact_constant(1 / number)
            if inverse.is_Rational and max(inverse.p, inverse.q) <= 2**24:
                return dtype(dtype(inverse.p) * x / dtype(inverse.q))
            return dtype(dtype(nearest(inverse, precision)) * x)
        operations: dict[str, Callable[[], object]] = {
            "factor": lambda: c * x,
            "term": lambda: x + c,
            "comparison": lambda: x if x < c else -1,
            "limit": lambda: min(max(x, -c), c),
            "largest": lambda: max(x, c),
            "exponent": lambda: np.power(x, c),
            "base": lambda: np.power(c, x),
        }
        return dtype(operations[place]())


@pytest.mark.parametrize("precision", [SINGLE, DOUBLE], ids=lambda precision: precision.name)
@pytest.mark.parametrize("place", PLACES)
def test_compiled_constants_are_exact_in_every_place(
    library: ctypes.CDLL, place: str, precision: Precision
) -> None:
    count = 0
    for k, (where_, number, _) in enumerate(CASES):
        if where_ != place:
            continue
        for x in DTYPES[precision](POINTS):
            found, expected = (
                called(library, k, precision, x),
                expected_of(place, number, x, precision),
            )
            if place in ("exponent", "base"):  # powf and pow: within a spacing or two of NumPy's
                np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(type(x)).eps)
            else:
                assert found == expected, f"{place} {number} at {x!r}"
            count += 1
    assert count >= 7 * 30


@pytest.mark.parametrize("place", PLACES)
def test_the_interpreter_takes_the_same_numbers(place: str) -> None:
    for where_, number, expression in CASES:
        if where_ != place:
            continue
        y = Value("z", (B, H), Role.LOCAL, order=9)
        program = Program("table", "row", (X,), (Statement(y, expression),), (y,))
        found = interpret(program, {"x": POINTS[None]}, {"B": 1, "H": len(POINTS)})["z"][0]
        expected = [expected_of(place, number, np.float64(x), DOUBLE) for x in POINTS]
        # A factor p / q is one number here, and a product and a division in C.
        np.testing.assert_allclose(found, expected, rtol=4e-16, err_msg=f"{place} {number}")


def test_whole_powers_are_as_exact_in_the_interpreter_beside_the_real_line() -> None:
    y = Value("z", (B, H), Role.LOCAL, order=9)
    program = Program("table", "row", (X,), (Statement(y, X**101),), (y,))
    points = np.array([[-1.01, 0.99, 1.5]])
    moved = interpret(program, {"x": points + 1e-180j}, {"B": 1, "H": 3})["z"]
    np.testing.assert_allclose(np.imag(moved) / 1e-180, 101 * points**100, rtol=1e-13)


# --- cells ----------------------------------------------------------------------------------------


class Sides(Cell):
    """What C's integers cannot hold."""

    x, h_prev, k = Input(H), State(H), Scalar(sympy.pi)
    a = where(x < 2**64, x, h_prev)
    b = Rational(10**20, 3) * x
    c = x * 3**50 / 7**20
    d = x**2 * 3000000000 * 3000000000 * 3
    h = a + b + c + d + BETWEEN * tanh(x) + k

    outputs = a, b, c, d, h


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kernel_computes_with_numbers_beyond_integers(dtype: type) -> None:
    kernel = cellgen.compile(Sides)
    x = np.array([[0.5, -3.0, 2.0**63, 2.0**65]], dtype)
    made = kernel.forward(x=x, h_prev=np.zeros_like(x))
    assert made.a.tolist() == [[0.5, -3.0, 2.0**63, 0.0]]
    precision = SINGLE if dtype is np.float32 else DOUBLE
    with np.errstate(over="ignore"):
        for found, number, times in (
            (made.b, Rational(10**20, 3), x),
            (made.c, Rational(3**50, 7**20), x),
            (made.d, Integer(27 * 10**18), x * x),
        ):
            assert found.tolist() == (dtype(nearest(number, precision)) * times).tolist()
    assert Sides.definition.defaults == {"k": math.pi}


def test_cuda_spells_the_same_numbers() -> None:
    source = generate(Sides)
    literal = re.compile(r"\(real\)\(CELLGEN_PRECISION [^)]*\)|\(real\)[\d.e+]+")
    literals = set(literal.findall(source.text(".c")))
    assert len(literals) >= 5
    assert literals <= set(literal.findall(source.text(".cu")))


def test_generated_code_that_loses_a_constant_is_not_compiled() -> None:
    from cellgen.runtime.build.compiler import OPTIONAL_FLAGS

    assert ("-Werror=overflow",) in OPTIONAL_FLAGS


REFUSED = {
    "x * 10**400": (lambda x: x * 10**400, "1.00000e+400, which has no finite value in float32"),
    "x / 10**400": (lambda x: x / 10**400, "rounds to 0 in float32"),
    "x * 1e300 * 1e300": (lambda x: x * 1e300 * 1e300, "has no finite value in float32"),
    "1e39 * x": (lambda x: 1e39 * x, "has no finite value in float32; numbers there lie between"),
    "1e-50 + x": (lambda x: 1e-50 + x, "rounds to 0 in float32"),
    "x ** 10**50": (lambda x: x ** (10**50), "has no finite value in float32"),
    "clip(x, 0, 1e39)": (lambda x: clip(x, 0, 1e39), "has no finite value in float32"),
    "where(x < 1e39, x, 0)": (lambda x: where(x < 1e39, x, 0), "has no finite value in float32"),
    "exp(1000) * x": (lambda x: sympy.exp(1000) * x, "has no finite value in float32"),
    "1j * x": (lambda x: 1j * x, "which is no finite real number"),
    "sqrt(-2) * x": (lambda x: sympy.sqrt(-2) * x, "which is no finite real number"),
    "maximum(x, inf)": (lambda x: maximum(x, math.inf), "use a large number"),
    "where(x > 0, x, nan)": (lambda x: where(x > 0, x, math.nan), "which is no finite real number"),
}


@pytest.mark.parametrize("written", REFUSED)
def test_numbers_without_a_value_are_refused_with_the_line(written: str) -> None:
    formed, message = REFUSED[written]
    with pytest.raises(DeclarationError, match=re.escape(message)) as caught:

        class Refused(Cell):
            x, h_prev = Input(H), State(H)
            h = formed(x) + h_prev

    assert caught.value.code == "declaration.constant"
    assert str(Path(__file__).resolve()) in str(caught.value)


def test_a_derivative_without_a_value_is_refused() -> None:
    class Steep(Cell):
        x, h_prev = Input(H), State(H)
        h = 2e38 * x**3 + h_prev

    with pytest.raises(DerivationError, match=r"6.00000e\+38, which has no finite value"):
        generate(Steep)


@pytest.mark.parametrize("default", [10**400, 1e39, sympy.I, math.nan, Integer(10) ** 60])
def test_defaults_without_a_value_are_refused(default: Expr) -> None:
    with pytest.raises(DeclarationError, match="the default must be a finite number") as caught:
        Scalar(default)
    assert caught.value.code == "declaration.scalar"


def test_defaults_may_be_constants() -> None:
    for default in (Rational(1, 3), sympy.pi / 3, np.float32(0.5), np.int64(3)):
        assert Scalar(default).default == float(default)


def test_text_shows_constants_as_people_write_them() -> None:
    assert text(from_sympy(Rational(10**20, 3) * X)) == "100000000000000000000 * x / 3"
    assert text(from_sympy(sympy.pi * X)) == "3.141592653589793 * x"
    assert text(from_sympy(0.1 * X)) == "0.1 * x"
    assert len(text(10**38 * X)) < 20


def test_an_equation_that_is_a_number_of_many_digits_is_refused_with_a_few() -> None:
    with pytest.raises(DeclarationError, match=r"h folds to the constant 8\.79098e\+4342944819"):

        class Huge(Cell):
            x, h_prev = Input(H), State(H)
            h = sympy.sinh(1e30)

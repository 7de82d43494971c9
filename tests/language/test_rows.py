"""Vectors and matrices of a row: products, transposes, axes put in, and functions along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sympy import Expr

from cellgen import (
    Cell,
    Dim,
    H,
    I,
    Input,
    State,
    Weight,
    api,
    atan2,
    concat,
    cumsum,
    expand_dims,
    flatten,
    floor,
    gelu,
    hard_tanh,
    heads,
    l2_normalise,
    leaky_relu,
    logaddexp,
    logsumexp,
    max,
    mod,
    outer,
    repeat_heads,
    rms_norm,
    round,
    sigmoid,
    silu,
    softmax,
    split,
    sum,
    tanh,
    transpose,
)
from cellgen.errors import DeclarationError, DerivationError
from cellgen.language.cell import Equation
from cellgen.language.notation import text
from cellgen.language.ops import shape_of
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import programs_of, recurrence, schedule_of
from cellgen.program.derive import forward
from cellgen.program.interpret import interpret
from cellgen.program.recurrence import RecurrenceClass
from cellgen.proof import check
from cellgen.schedule import BufferKind
from tests.conftest import draw

D, K, N, E = Dim("D"), Dim("K"), Dim("N"), Dim("E")


class Attention(Cell):
    """Linear attention with vectors as the papers write them."""

    x, s_prev = Input(I), State(D, K)
    w_q, w_k, w_v = Weight(I, K), Weight(I, K), Weight(I, D)

    q, k, v = softmax(x @ w_q), l2_normalise(x @ w_k), x @ w_v
    s = s_prev + outer(v - s_prev @ k, k)
    h = s @ q
    outputs = h, s


class InHeads(Cell):
    """Heads cut from one vector; keys that heads share; products from either side."""

    x, p_prev, s_prev = Input(4 * D), Input(K), State(4, D, K)
    g = Weight(4 * D, K)

    k = tanh(p_prev) + x @ g
    v = heads(x, 4)
    s = sigmoid(sum(s_prev, axis=all)) * s_prev + outer(v, expand_dims(k, 1))
    u = v @ s
    h = rms_norm(flatten(s @ u))
    outputs = h, s


class Along(Cell):
    """Functions along a named axis, and a transpose."""

    x, s_prev = Input(D, K), State(K, D)

    a = softmax(x, axis=D) + cumsum(x, axis=D) * 0.1
    b = logsumexp(x * 0.5, axis=(D, K)) + max(x, axis=D)
    s = transpose(a) * sigmoid(s_prev) + transpose(b) * s_prev
    m = s @ x
    outputs = m, s


class Flat(Cell):
    """What is kept, and an output, with an axis that is a product of dimensions."""

    x, s_prev = Input(I), State(D, N)
    w = Weight(I, D, N)

    y = sigmoid(flatten(x @ w + s_prev))
    s = s_prev * expand_dims(sum(y * y), -1) + x @ w
    outputs = y, s


class FlatSquare(Cell):
    """The same of a square matrix, which grows ten-fold a step: gates near 1 have few digits."""

    x, s_prev = Input(I), State(D, D)
    w = Weight(I, D, D)

    y = sigmoid(flatten(x @ w + s_prev))
    s = s_prev * expand_dims(sum(y * y), -1)
    outputs = y, s


class ByWeight(Cell):
    """Matrices of a row by weights: without heads, and into other units head by head."""

    x, m_prev, s_prev = Input(I), State(K, D), State(N, K, D)
    w_k, w_v, u = Weight(I, K), Weight(I, D), Weight(D, D)
    w_h, u_in, u_out = Weight(I, N, K), Weight(N, D, E), Weight(N, E, D)

    m = tanh(m_prev @ u + outer(x @ w_k, x @ w_v))
    s = (s_prev @ u_in) @ u_out + expand_dims(x @ w_h, -1)
    outputs = m, s


@pytest.mark.parametrize(
    "cell",
    [Attention, InHeads, Along, Flat, pytest.param(FlatSquare, marks=pytest.mark.slow), ByWeight],
)
def test_its_kernels_agree_with_the_equations_and_with_complex_steps(cell: type[Cell]) -> None:
    report = check.check(cell)
    judged = [row for row in report.rows if row.verdict != "skipped"]
    assert [row.name for row in judged if not row.ok] == []
    assert len(judged) > 8


def test_products_of_rows_are_numpys() -> None:
    forward, _ = programs_of(Attention).mathematics
    sizes = {"B": 2, "I": 3, "D": 4, "K": 5}
    given = draw(forward.arguments, sizes=sizes)
    q, k, v = (given["x"] @ given[name] for name in ("w_q", "w_k", "w_v"))
    q = np.exp(q) / np.exp(q).sum(axis=1, keepdims=True)
    k = k / np.sqrt((k * k).sum(axis=1, keepdims=True))
    read = v - np.einsum("bdk,bk->bd", given["s_prev"], k)
    s = given["s_prev"] + np.einsum("bd,bk->bdk", read, k)
    found = interpret(forward, given, sizes)
    np.testing.assert_allclose(found["s"], s, rtol=1e-13)
    np.testing.assert_allclose(found["h"], np.einsum("bdk,bk->bd", s, q), rtol=1e-12)


def test_products_of_matrices_by_weights_are_numpys() -> None:
    forward, _ = programs_of(ByWeight).mathematics
    sizes = {"B": 2, "I": 3, "D": 4, "K": 5, "N": 2, "E": 3}
    a = draw(forward.arguments, sizes=sizes)
    added = np.einsum("bk,bd->bkd", a["x"] @ a["w_k"], a["x"] @ a["w_v"])
    found = interpret(forward, a, sizes)
    np.testing.assert_allclose(found["m"], np.tanh(a["m_prev"] @ a["u"] + added), rtol=1e-13)
    s = a["s_prev"] @ a["u_in"] @ a["u_out"] + np.einsum("bi,ink->bnk", a["x"], a["w_h"])[..., None]
    np.testing.assert_allclose(found["s"], s, rtol=1e-12)


def test_a_product_of_a_matrix_is_one_loop_without_a_temporary_of_its_size() -> None:
    function = schedule_of(Attention).functions[0]
    assert (B, D, K) not in [b.value.shape for b in function.of_kind(BufferKind.WORKSPACE)]


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((B, D, K), (B, K), (B, D)),
        ((B, D), (B, D, K), (B, K)),
        ((B, N, D, K), (B, N, K), (B, N, D)),
        ((B, N, D), (B, N, D, K), (B, N, K)),
        ((B, D, K), (B, K, E), (B, D, E)),
        ((B, N, D, K), (B, 1, K), (B, N, D)),
        ((B, K, D), (D, E), (B, K, E)),
        ((B, N, K, D), (N, D, E), (B, N, K, E)),
    ],
)
def test_shapes_of_products_of_rows(a: tuple, b: tuple, shape: tuple) -> None:
    left, right = Value("a", a, Role.INPUT), Value("b", b, Role.INPUT)
    assert shape_of(left @ right) == shape
    assert text(left @ right) == "a @ b"


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        ((B, D, K), (B, D), r"\(B, D, K\) @ \(B, D\): what would fit is a vector of \(B, ..., K\)"),
        ((B, D), (B, K, D), r"what would fit is a vector of \(B, ..., K\)"),
        ((B, K, D), (K, E), r"matrices of K x D fit a weight of \(D, E\)"),
        ((B, N, K, D), (K, D, E), r"matrices of K x D fit a weight of \(N, D, E\)"),
        ((B, N, K, D), (D, E), r"matrices of K x D fit a weight of \(N, D, E\)"),
        ((B, K, D), (D,), r"matrices of K x D fit a weight of \(D, D\)"),
        ((B, K, D), (), r"matrices of K x D fit a weight of \(D, D\)"),
        ((N, D, K), (B, N, K), r"must not have the batch axis B; write \(B, N, K\) @ \(N, K, D\)"),
        ((N, D, K), (B, K), r"must not have the batch axis B; write \(B, K\) @ weight"),
        ((D, K), (B, K), r"must not have the batch axis B; write \(B, K\) @ \(K, D\)"),
        ((B, D), (B, D), r"must be a weight, .* a matrix and a vector fit, .* write sum\(a \* b\)"),
    ],
)
def test_a_product_that_does_not_fit_names_both_shapes_and_what_would(
    a: tuple, b: tuple, fits: str
) -> None:
    with pytest.raises(DeclarationError, match=fits):
        shape_of(Value("a", a, Role.INPUT) @ Value("b", b, Role.INPUT))


def test_axes_are_put_in_and_laid_side_by_side() -> None:
    v = Value("v", (B, 4 * D), Role.INPUT)
    assert shape_of(heads(v, 4)) == (B, 4, D)
    assert shape_of(heads(v, D)) == (B, D, 4)
    assert shape_of(flatten(heads(v, 4))) == (B, 4 * D)
    assert shape_of(expand_dims(v, -1)) == (B, 4 * D, 1)
    assert shape_of(expand_dims(v, 1)) == (B, 1, 4 * D)
    with pytest.raises(DeclarationError, match=r"3 heads of \(B, 4\*D\)"):
        heads(v, 3)
    with pytest.raises(DeclarationError, match="behind the first one of a value with rows"):
        expand_dims(v, 0)
    with pytest.raises(DeclarationError, match=r"cumsum\(..., axis=K\).* whose rows have 4\*D"):
        cumsum(v, axis=K)


def test_a_matrix_of_one_number_is_transposed_to_itself() -> None:
    class OfOne(Cell):
        x, s_prev = Input(1, 1), State(D, D)
        s = sigmoid(transpose(x)) * s_prev

    x, s_prev = np.array([[[[0.5]]]]), np.ones((1, 2, 2))
    found = api.compile(OfOne).sequence_forward(x=x, s_prev=s_prev).s_last
    np.testing.assert_allclose(found, s_prev / (1 + math.exp(-0.5)), rtol=1e-15)


def test_the_rows_of_a_matrix_that_is_multiplied_by_a_vector_stay_apart() -> None:
    class Rows(Cell):
        k, s_prev = Input(1, K), State(D, K)
        s = tanh(s_prev + sum(s_prev * k) * k)

    assert recurrence(Rows).kind is RecurrenceClass.BLOCK_DIAGONAL


POINTS = np.array([[-2.6, -0.4, 0.2, 0.7, 3.2]])
FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[np.ndarray], np.ndarray], list]] = {
    "silu": (silu, lambda x: x / (1 + np.exp(-x)), []),
    "hard_tanh": (hard_tanh, lambda x: np.clip(x, -1, 1), [0, 1, 1, 1, 0]),
    "leaky_relu": (lambda x: leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, x / 10), []),
    "floor": (floor, np.floor, [0] * 5),
    "round": (round, np.round, [0] * 5),
    "mod": (lambda x: mod(x, 2), lambda x: np.mod(x, 2), [1] * 5),
    "sympy's mod": (lambda x: floor(x) + 0.5 * x, lambda x: np.floor(x) + x / 2, [0.5] * 5),
    "logaddexp": (lambda x: logaddexp(x, 0.3 * x), lambda x: np.logaddexp(x, 0.3 * x), []),
    "logaddexp near 0": (
        lambda x: 1e9 * logaddexp(1e-9 * x, -20),
        lambda x: 1e9 * np.logaddexp(1e-9 * x, -20),
        [],
    ),
    "logaddexp of x and 0": (lambda x: logaddexp(x, -30), lambda x: np.logaddexp(x, -30), []),
    "atan2": (lambda x: atan2(x, 1 + x**2), lambda x: np.arctan2(x, 1 + x**2), []),
    "gelu": (
        gelu,
        lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
        [],
    ),
    "rms_norm": (
        lambda x: rms_norm(x, epsilon=0),
        lambda x: x / np.sqrt((x * x).mean(axis=1, keepdims=True)),
        [],
    ),
    "l2_normalise": (
        l2_normalise,
        lambda x: x / np.sqrt((x * x).sum(axis=1, keepdims=True)),
        [],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_mean_what_they_are_called(name: str) -> None:
    written, meant, slopes = FUNCTIONS[name]

    class Composed(Cell):
        x, h_prev = Input(H), State(H)
        h = written(x) + h_prev

    programs, sizes = programs_of(Composed), {"B": 1, "H": 5}
    given = {"x": POINTS, "h_prev": 0 * POINTS}
    found = interpret(programs["forward"], given, sizes)["h"]
    np.testing.assert_allclose(found, meant(POINTS), rtol=1e-13)
    above = {**given, "h": found, "d_h": 1 + 0 * POINTS}
    d_x = interpret(programs["backward"], above, sizes)["d_x"]
    if slopes:
        np.testing.assert_array_equal(d_x, [slopes])
    else:  # central differences: an error of the step's square
        moved = [
            interpret(programs["forward"], {**given, "x": POINTS + s}, sizes)["h"].sum()
            for s in (1e-6 * np.eye(5)[k] * sign for k in range(5) for sign in (1, -1))
        ]
        expected = (np.array(moved[::2]) - np.array(moved[1::2])) / 2e-6
        np.testing.assert_allclose(d_x[0], expected, atol=1e-8)


@pytest.mark.parametrize("normalised", [l2_normalise, lambda x: rms_norm(x, epsilon=0)])
def test_norms_have_the_derivative_zero_at_zero(normalised: Callable[[Expr], Expr]) -> None:
    class Normal(Cell):
        x, h_prev = Input(H), State(H)
        h = normalised(x) + h_prev

    programs, sizes = programs_of(Normal), {"B": 1, "H": 3}
    zero = np.zeros((1, 3))
    given = {"x": zero, "h_prev": zero}
    found = interpret(programs["forward"], given, sizes)["h"]
    np.testing.assert_array_equal(found, zero)
    d_x = interpret(programs["backward"], {**given, "h": found, "d_h": 1 + zero}, sizes)["d_x"]
    np.testing.assert_array_equal(d_x, zero)


INF = np.inf
LOGS = np.array([[-INF, -INF], [-INF, 1], [INF, 1], [INF, INF], [2, 2], [np.nan, 0]])


@pytest.mark.parametrize("summed", [logaddexp, lambda x, y: logsumexp(concat(x, y))])
def test_sums_of_logarithms_may_be_infinite(summed: Callable[..., Expr]) -> None:
    """Probabilities of 0 add up to 0, and have finite derivatives; NaN passes."""

    class Summed(Cell):
        x, y, h_prev = Input(1), Input(1), State(1)
        h = summed(x, y) + h_prev

    programs, sizes = programs_of(Summed), {"B": len(LOGS)}
    x, y = LOGS[:, :1], LOGS[:, 1:]
    given = {"x": x, "y": y, "h_prev": np.zeros_like(x)}
    found = interpret(programs["forward"], given, sizes)["h"]
    np.testing.assert_array_equal(found[:, 0], [-INF, 1, INF, INF, 2 + math.log(2), np.nan])
    above = {**given, "h": found, "d_h": np.ones_like(x)}
    kept = interpret(programs["forward"], given, sizes, keep=True)
    d = interpret(programs["backward"], {**kept, **above}, sizes)
    np.testing.assert_array_equal(d["d_x"][:, 0], [1, 0, 1, 1, 0.5, np.nan])
    np.testing.assert_array_equal(d["d_y"][:, 0], [0, 1, 0, 0, 0.5, np.nan])


def test_the_angle_of_the_origin_has_the_derivative_zero() -> None:
    class Angle(Cell):
        x, y, h_prev = Input(H), Input(H), State(H)
        h = atan2(y, x) + h_prev

    programs, sizes = programs_of(Angle), {"B": 1, "H": 2}
    zero = np.zeros((1, 2))
    given = {"x": np.array([[0.0, 1.0]]), "y": np.array([[0.0, 1.0]]), "h_prev": zero}
    d = interpret(programs["backward"], {**given, "h": zero, "d_h": 1 + zero}, sizes)
    np.testing.assert_array_equal(d["d_x"], [[0, -0.5]])
    np.testing.assert_array_equal(d["d_y"], [[0, 0.5]])


X = Value("x", (B, D), Role.INPUT)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: round(X, 2), "takes no digits"),
        (lambda: mod(X, 0), "remainder of x by 0"),
        (lambda: X % 0, "remainder of x by 0"),
        (lambda: X % 0.0, "remainder of x by 0"),
        (lambda: (X + 1) % 0.0, r"remainder of x \+ 1 by 0"),
        (lambda: concat(heads(X, 1), 1), r"concat of .* and \(\) differs"),
        (lambda: softmax(X, axis=()), r"axis=\(\)\) names no axis"),
        (lambda: expand_dims(X, "K"), "axis='K'"),
        (lambda: expand_dims(X, 1.5), "axis=1.5"),
        (lambda: heads(X, 0), "0 heads of .* a number from 1"),
        (lambda: heads(X, 2.5), "heads of .* a number from 1"),
        (lambda: heads(X, None), "None heads of .* a number from 1"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(made: Callable[[], Expr], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        made()


def test_more_dimensions_multiplied_than_the_interface_says_are_refused() -> None:
    class Wide(Cell):
        x, s_prev = Input(D, K, N, E), State(D, K, N, E)
        s = sigmoid(s_prev) + x
        y = flatten(s)
        outputs = y, s

    with pytest.raises(DerivationError, match=r"4 dimensions multiplied in an axis of y, .*3"):
        api.compile(Wide)


def test_round_of_a_number_is_pythons() -> None:
    assert round(2.5) == 2
    assert round(2.34, 1) == 2.3


# --- heads that are joined, parted and shared ----------------------------------------------------


class JoinedHeads(Cell):
    """Units of heads side by side: a product by head reads both."""

    x, h_prev = Input(I), State(N, K)
    w, v, r = Weight(I, N, D), Weight(I, N, K), Weight(N, D + K, K)
    h = tanh(concat(x @ w, h_prev * (x @ v)) @ r)


class PartedHeads(Cell):
    """Gates of a head side by side, in one product by head."""

    x, h_prev = Input(I), State(N, K)
    w, r = Weight(I, N, 2 * K), Weight(N, K, 2 * K)
    z, n = split(x @ w + h_prev @ r, 2)
    h = h_prev + sigmoid(z) * (tanh(n) - h_prev)


class SharedKeys(Cell):
    """Two heads share each key."""

    x, s_prev = Input(I), State(2 * N, D, K)
    w_k, w_v = Weight(I, N, K), Weight(I, 2 * N, D)
    k = repeat_heads(x @ w_k, 2)
    s = 0.9 * s_prev + outer(x @ w_v, k)
    h = s @ k
    outputs = h, s


def test_heads_are_joined_parted_and_repeated_head_by_head() -> None:
    rng = np.random.default_rng(0)
    sizes = {"B": 2, "N": 3, "K": 2, "D": 4, "E": 5}
    a = Value("a", (B, N, E, K), Role.INPUT)
    b = Value("b", (B, N, E, D), Role.INPUT)
    arrays = {"a": rng.normal(size=(2, 3, 5, 2)), "b": rng.normal(size=(2, 3, 5, 4))}

    def found(expression: Expr) -> np.ndarray:
        class Made(Cell):
            x, h_prev = Input(1), State(1)
            h = h_prev + x

        definition = replace(
            Made.definition,
            declared=(a, b),
            equations=(
                Equation(
                    made := Value("made", shape_of(expression), Role.LOCAL),
                    expression,
                    Made.definition.equations[0].line,
                ),
            ),
            outputs=(made,),
        )
        return interpret(forward(definition), arrays, sizes)["made"]

    both = np.concatenate([arrays["a"], arrays["b"]], axis=-1)
    assert np.array_equal(found(concat(a, b)), both)
    first, second = split(concat(a, b), (K, D))
    assert shape_of(second) == (B, N, E, D)
    assert np.array_equal(found(first), arrays["a"])
    assert np.array_equal(found(second), arrays["b"])
    repeated = repeat_heads(a, 3)
    assert shape_of(repeated) == (B, N, 3 * E, K)
    assert np.array_equal(found(repeated), np.repeat(arrays["a"], 3, axis=2))


@pytest.mark.slow
@pytest.mark.parametrize("cell", [JoinedHeads, PartedHeads, SharedKeys])
def test_cells_whose_heads_are_joined_parted_and_shared_are_proved(cell: type[Cell]) -> None:
    report = check.check(cell)
    assert report.ok, str(report)


def test_heads_that_do_not_fit_are_told() -> None:
    a, b = Value("a", (B, N, K), Role.INPUT), Value("b", (B, D, K), Role.INPUT)
    with pytest.raises(DeclarationError, match=r"\(B, N, K\) and \(B, D, K\) differs off its last"):
        concat(a, b)
    with pytest.raises(
        DeclarationError, match=r"repeat_heads\(\(B, N, K\), 0\): give a value with"
    ):
        repeat_heads(a, 0)
    with pytest.raises(DeclarationError, match=r"repeat_heads\(\(B, H\), 2\)"):
        repeat_heads(Value("c", (B, H), Role.INPUT), 2)

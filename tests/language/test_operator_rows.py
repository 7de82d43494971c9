"""The whole operator table: what its rows state of derivatives is true, in the second order too.

Truth is the complex step of what a row means in NumPy, which nothing of a derivation takes part in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from sympy import Expr

from cellgen.errors import DeclarationError, DerivationError
from cellgen.language.ops import OPERATORS, POINTWISE, Motion, Operator
from cellgen.language.value import Apply, B, H, Role, Shape, Value
from cellgen.program.derive import adjoint, tangent
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program
from tests.conftest import SIZES, directional, draw
from tests.language.test_ops import CASES, every_function, node_of, operands, program_of

CLOSE = 1e-12
"""Sums of some dozen terms in float64, in another order."""

Arrays = dict[str, np.ndarray]
every_row = pytest.mark.parametrize(("op", "shapes", "attributes", "shape"), CASES)


def distance(found: np.ndarray, true: np.ndarray) -> float:
    assert found.shape == true.shape
    return float(np.max(np.abs(found - true), initial=0)) / (1 + np.max(np.abs(true), initial=0))


def tangent_error(program: Program, by: tuple[Value, ...], given: Arrays, along: Arrays) -> float:
    """How far the derived tangents are from the complex step of the program."""
    true = directional(program, given, along)
    moving = tangent(program, by)
    numbers = dict(zip(moving.arguments[len(program.arguments) :], by, strict=True))
    directions = {str(t.name): along[str(value.name)] for t, value in numbers.items()}
    derived = interpret(moving, given | directions, SIZES)
    results = zip(program.results, moving.results[len(program.results) :], strict=True)
    return max(distance(derived[str(t.name)], true[str(y.name)]) for y, t in results)


def adjoint_error(program: Program, by: tuple[Value, ...], given: Arrays, along: Arrays) -> float:
    """How far <d_y, J t> by complex step is from <J^T d_y, t> by the derived adjoint."""
    true = directional(program, given, along)
    upstream = draw(program.results, seed=5)
    back = adjoint(program, program.results, by)[0]
    above = dict(zip(back.arguments[len(program.arguments) :], program.results, strict=True))
    numbers = {str(value.name): upstream[str(result.name)] for value, result in above.items()}
    gradients = interpret(back, given | numbers, SIZES)
    forward = sum(np.sum(upstream[name] * array) for name, array in true.items())
    returned = zip(by, back.results, strict=True)
    backward = sum(np.sum(gradients[str(d.name)] * along[str(v.name)]) for v, d in returned)
    return float(abs(forward - backward)) / (1 + abs(forward))


def errors(program: Program, values: list[Value], given: Arrays) -> Iterator[tuple[str, float]]:
    """The errors of a program's tangent and adjoint, and of the tangent and adjoint of both."""
    by, along = tuple(values), draw(values, seed=1)
    yield "tangent", tangent_error(program, by, given, along)
    yield "adjoint", adjoint_error(program, by, given, along)
    moving = tangent(program, by)
    back, _ = adjoint(program, program.results, by)
    for order, once in (("tangent", moving), ("adjoint", back)):
        points = draw(once.arguments, seed=3) | given
        directions = draw(once.arguments, seed=4)
        yield f"tangent of the {order}", tangent_error(once, once.arguments, points, directions)
        yield f"adjoint of the {order}", adjoint_error(once, once.arguments, points, directions)


def wrong(program: Program, values: list[Value], given: Arrays) -> list[str]:
    return [
        f"{order}: {size:.1e}" for order, size in errors(program, values, given) if size > CLOSE
    ]


@every_row
def test_what_a_row_states_of_its_derivatives_is_true(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, values = node_of(op, shapes, attributes)
    assert wrong(program_of(node, values), values, draw(values)) == []


@every_function
def test_a_pointwise_function_has_true_derivatives_of_both_orders(name: str) -> None:
    values, points = operands(POINTWISE[name])
    given = {str(v): np.resize(p, SIZES["H"]) for v, p in zip(values, points, strict=True)}
    assert wrong(program_of(POINTWISE[name](*values), values), values, given) == []


@every_row
def test_a_row_that_stands_still_does_and_a_linear_one_is(
    op: str, shapes: list[Shape], attributes: list[Expr], shape: Shape
) -> None:
    node, values = node_of(op, shapes, attributes)
    row, program, along = OPERATORS[op], program_of(node, values), draw(values, seed=1)
    moved = directional(program, draw(values), along)["y"]
    if row.is_still:
        assert not moved.any()
    if row.is_linear:
        assert distance(moved, interpret(program, along, SIZES)["y"]) <= CLOSE
    elsewhere = directional(program, draw(values, seed=2), along)["y"]
    is_constant = distance(moved, elsewhere) <= CLOSE
    is_affine = row.is_linear or row.is_still or row.fill is not None
    assert is_constant == is_affine  # a weaker word than is true is no help


WRONG_ROWS = {
    "its own tangent, of products": lambda row: replace(row, tangent=Motion.LINEAR),
    "still, and moves": lambda row: replace(row, tangent=Motion.STILL),
    "an adjoint that is twice as large": lambda row: replace(
        row, adjoint=lambda *given: tuple(2 * term for term in row.adjoint(*given))
    ),
}


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_the_test_of_the_table_notices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    squared = Operator(
        "squared_sums",
        lambda shapes, attributes: shapes[0],
        lambda arrays, attributes, size: np.cumsum(arrays[0] ** 2, axis=-1),
        lambda y, d_y, operands, attributes: (2 * operands[0] * Apply("cumsum_reversed", (d_y,)),),
        tangent=lambda y, tangents, operands, attributes: (
            Apply("cumsum", (2 * operands[0] * tangents[0],)),
        ),
        mixes_units=True,
        is_routine=True,
    )
    x = Value("x", (B, H), Role.WEIGHT)
    monkeypatch.setitem(OPERATORS, "squared_sums", squared)  # type: ignore[arg-type]
    program = program_of(Apply("squared_sums", (x,)), [x])
    assert wrong(program, [x], draw([x])) == []
    monkeypatch.setitem(OPERATORS, "squared_sums", WRONG_ROWS[kind](squared))  # type: ignore[arg-type]
    assert wrong(program, [x], draw([x])) != []


@pytest.mark.parametrize(
    ("contributions", "message"),
    [
        ((), "operator sums gives 0 contributions, expected one for each of its 1 operands"),
        ((None,), "operator sums has no adjoint"),
        (
            (Apply("sum_to", (Value("x", (B, H), Role.WEIGHT),), (H,)),),
            r"d_x is \(B, H\), its expr",
        ),
    ],
    ids=["too few", "unknown", "of another shape"],
)
def test_an_adjoint_that_does_not_fit_is_refused_with_the_reason(
    contributions: tuple[Expr | None, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(OPERATORS["cumsum"], name="sums", adjoint=lambda *of: contributions)
    x = Value("x", (B, H), Role.WEIGHT)
    monkeypatch.setitem(OPERATORS, "sums", row)  # type: ignore[arg-type]
    program = program_of(Apply("sums", (x,)), [x])
    with pytest.raises(DerivationError, match=message):
        adjoint(program, program.results, (x,))


def test_a_row_without_a_tangent_or_an_adjoint_is_refused() -> None:
    def shape(shapes: object, attributes: object) -> Shape:
        return (B, H)

    def twice(*given: object) -> object:
        return given[0]

    def refusal(adjoint: object, **tangent: object) -> str:
        with pytest.raises(DeclarationError, match=r"operator doubled: its \w+ is not st") as error:
            Operator("doubled", shape, twice, adjoint, **tangent)  # type: ignore[arg-type]
        return str(error.value)

    said = refusal(twice)
    assert "its tangent is not stated, found None; give tangent=Motion.LINEAR where it is" in said
    assert "its tangent is not stated, found 'linear'" in refusal(twice, tangent="linear")
    assert "its adjoint is not stated, found None; give a fun" in refusal(
        None, tangent=Motion.STILL
    )

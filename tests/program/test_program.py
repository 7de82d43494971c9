"""The single-assignment form: what its verifier rejects, how it is cut and printed."""

from __future__ import annotations

import pytest
from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.language.names import Names
from cellgen.language.ops import tanh
from cellgen.language.value import Apply, B, H, I, Role, Shape, Value
from cellgen.pipeline import programs_of
from cellgen.program.ssa import Program, Statement
from tests.conftest import every_cell


def value(name: str, *shape: Expr, role: Role = Role.LOCAL) -> Value:
    return Value(name, shape, role)


X, W = value("x", B, I, role=Role.INPUT), value("w", I, H, role=Role.WEIGHT)
Y, Z = value("y", B, H), value("z", B, H)
PRODUCT = Statement(Y, X @ W)


def program(*statements: Statement, results: tuple[Value, ...] = ()) -> Program:
    return Program("cell", "forward", (X, W), statements, results)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (
            program(Statement(Z, tanh(Y)), PRODUCT),
            "y is used before it is defined in `z = tanh(y)`",
        ),
        (program(Statement(Z, Z + 1)), "z is used before it is defined"),
        (program(PRODUCT, PRODUCT), "y is assigned twice in `y = x @ w`"),
        (program(Statement(value("x", B, H), X @ W)), "x is assigned twice"),
        (
            Program("cell", "forward", (X, X, W), (PRODUCT,), (Y,)),
            "x is assigned twice",
        ),
        (program(PRODUCT, results=(Z,)), "result z is not computed"),
        (program(PRODUCT, results=(value("y", B, I),)), "result y is not computed"),
        (program(PRODUCT, Statement(Z, tanh(value("y", B, I)))), "y is used before it is defined"),
        (program(Statement(Y, X)), "shapes do not agree: (B, I) and (B, H)"),
        (program(Statement(value("y", H), X @ W)), "y is (H,), its expression (B, H)"),
        (program(PRODUCT, Statement(value("z", H), Y)), "z is (H,), its expression (B, H)"),
        (program(PRODUCT, Statement(Z, X + Y)), "shapes do not agree: (B, I) and (B, H)"),
        (program(Statement(Y, Apply("matmul", (2 * X, W)))), "an operator takes named values only"),
        (program(Statement(Y, 2 * (X @ W))), "a pointwise expression contains an operator"),
        (program(Statement(Y, tanh(X @ W))), "a pointwise expression contains an operator"),
        (program(Statement(Y, X @ X)), "must be a weight"),
    ],
)
def test_verifier_rejects(broken: Program, fault: str) -> None:
    with pytest.raises(DerivationError) as caught:
        broken.verify()
    text = str(caught.value)
    assert text.startswith("[derivation.verify] cell.forward: ")
    assert fault in text
    assert "please report it" in text


def test_verifier_accepts_broadcasts_of_pointwise_statements_only() -> None:
    program(Statement(Y, Integer(0)), Statement(Z, Y + 1), results=(Z,)).verify()
    with pytest.raises(DerivationError, match="its expression"):
        program(Statement(Y, Apply("transpose", (W,)))).verify()


@every_cell
def test_programs_of_every_cell_verify(cell: type) -> None:
    programs = programs_of(cell)
    for each in (*programs.mathematics, *programs.functions):
        each.verify()
        assert set(each.optional) <= set(each.arguments)


def test_restriction_keeps_what_results_need_and_reads_what_is_given() -> None:
    whole = program(PRODUCT, Statement(Z, tanh(Y)), results=(Z,))
    cut = whole.restrict("rest", (Z,), known=(Y,))
    assert cut.arguments == (Y,)
    assert [str(s) for s in cut.statements] == ["z = tanh(y)"]
    # A result is computed even if it is given as well.
    assert whole.restrict("rest", (Y,), known=(Y,)).arguments == (X, W)


def test_printed_programs_are_the_mathematics_with_shapes() -> None:
    whole = program(PRODUCT, Statement(Z, tanh(Y)), results=(Z,))
    assert str(whole).splitlines() == [
        "cell.forward(x (B, I), w (I, H))",
        "    y = x @ w    (B, H)",
        "    z = tanh(y)    (B, H)",
        "    return z",
    ]
    assert whole.uses[Y] == (whole.statements[1],)
    assert whole.definition_of(Y) == PRODUCT
    assert whole.definition_of(X) is None


def test_fresh_names_are_numbered_and_short() -> None:
    names = Names(["x"])
    assert [names.fresh("x"), names.fresh("x"), names.fresh("y")] == ["x_2", "x_3", "y"]
    assert len(names.fresh("long_" * 20)) <= 40


def test_shapes_are_tuples_of_lengths() -> None:
    shape: Shape = (B, 2 * H)
    assert Statement(value("q", *shape), Integer(1)).operands == ()

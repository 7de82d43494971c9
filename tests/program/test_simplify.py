"""Named rewrites: each keeps the values of every program, and does what it says."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sympy import Integer

from cellgen.language.ops import exp, maximum, part, sigmoid, tanh
from cellgen.language.value import Apply, B, H, I, Role, Value
from cellgen.program.derive import adjoint, forward, tangent
from cellgen.program.interpret import interpret
from cellgen.program.rewrites.copies import materialize
from cellgen.program.rewrites.exponentials import share_exponentials
from cellgen.program.rewrites.inlined import inline_sums, inline_temporaries
from cellgen.program.rewrites.parts import narrow_parts, unwrap_parts
from cellgen.program.rewrites.products import (
    accumulate_products,
    distribute_concat,
    transposed_products,
)
from cellgen.program.rewrites.unused import drop_copies, drop_dead, merge_equal
from cellgen.program.simplify import FORWARD, LOWER, Rewrite, simplify
from cellgen.program.ssa import Program, Statement
from tests.conftest import CELLS, SIZES, Arrays, draw, every_cell, relative

REWRITES = tuple(dict.fromkeys((*FORWARD, share_exponentials, *LOWER)))
REORDERED = 1e-13
"""A rewrite may change the order of a sum: some roundings, relative to the largest entry."""


@cache
def values_of(program: Program) -> tuple[Arrays, Arrays]:
    """Random arguments of a program that is rewritten by several tests, and its results."""
    given = draw(program.arguments)
    return given, interpret(program, given, SIZES)


def same_values(before: Program, after: Program) -> None:
    after.verify()
    assert after.results == before.results
    given, expected = values_of(before)
    for name, array in interpret(after, given, SIZES).items():
        assert relative(array, expected[name]) < REORDERED, (before.function, name)


@cache
def programs(cell: type) -> tuple[Program, ...]:
    """A flat forward program, its adjoint and its tangent: all shapes of statement there are."""
    flat = forward(cell.definition)  # type: ignore[attr-defined]
    full, _ = adjoint(flat, flat.results, flat.arguments)
    return flat, full, tangent(flat, flat.arguments)


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_every_rewrite_alone_keeps_the_values_of_every_program(rewrite: Rewrite) -> None:
    for cell in CELLS:
        for program in programs(cell):
            same_values(program, rewrite(program))


@every_cell
def test_rewrites_together_keep_the_values(cell: type) -> None:
    for program in programs(cell):
        same_values(program, simplify(simplify(program, FORWARD), LOWER))


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_rewrites_never_touch_what_they_are_given(rewrite: Rewrite) -> None:
    program = programs(CELLS[0])[1]
    before = str(program)
    rewrite(program)
    assert str(program) == before


# --- what each does -------------------------------------------------------------------------------


def argument(name: str, *shape: object, order: int = 0) -> Value:
    return Value(name, shape, Role.INPUT, order=order)  # type: ignore[arg-type]


def temporary(name: str, *shape: object, order: int = 50) -> Value:
    return Value(name, shape, Role.TEMPORARY, order=order)  # type: ignore[arg-type]


def local(name: str, *shape: object, order: int = 90) -> Value:
    return Value(name, shape, Role.LOCAL, order=order)  # type: ignore[arg-type]


X, A, V = argument("x", B, I), argument("a", B, H, order=1), argument("v", B, H, order=2)
W, U = argument("w", I, H, order=3), argument("u", H, H, order=4)
WIDE, LONG = argument("wide", B, 2 * H, order=5), argument("long", I + H, H, order=6)
P, Q, R = temporary("p", B, H), temporary("q", B, H, order=51), temporary("r", B, H, order=52)
Y, Z = local("y", B, H), local("z", B, H, order=91)


def after(
    rewrite: Rewrite, *pairs: tuple[Value, object], results: tuple[Value, ...] = (Y,)
) -> list[str]:
    statements = tuple(Statement(target, expression) for target, expression in pairs)  # type: ignore[arg-type]
    program = Program("cell", "forward", (X, A, V, W, U, WIDE, LONG), statements, results)
    program.verify()
    rewritten = rewrite(program)
    same_values(program, rewritten)
    return [str(statement) for statement in rewritten.statements]


def test_merge_equal_computes_equal_right_hand_sides_once() -> None:
    assert after(merge_equal, (P, tanh(A)), (Q, tanh(A)), (Y, P + 2 * Q)) == [
        "p = tanh(a)",
        "y = 3 * p",
    ]
    # A result keeps its own statement.
    assert after(merge_equal, (Y, tanh(A)), (Z, tanh(A)), results=(Y, Z)) == [
        "y = tanh(a)",
        "z = tanh(a)",
    ]


def test_drop_copies_reads_the_original() -> None:
    assert after(drop_copies, (P, A), (Q, P), (Y, 2 * Q)) == ["y = 2 * a"]
    assert after(drop_copies, (Y, A)) == ["y = a"]


def test_drop_dead_keeps_what_results_need() -> None:
    assert after(drop_dead, (P, tanh(A)), (Q, tanh(P)), (Y, 2 * P)) == ["p = tanh(a)", "y = 2 * p"]


def test_transposed_products_read_the_weight_the_other_way() -> None:
    transposed = temporary("transposed", H, I)
    assert after(
        transposed_products,
        (transposed, Apply("transpose", (W,))),
        (temporary("p", B, I), A @ transposed),
        (Y, Apply("matmul", (X, W))),
        results=(temporary("p", B, I), Y),
    ) == ["p = a @ w.T", "y = x @ w"]


def test_distribute_concat_makes_one_product_per_operand() -> None:
    joined = temporary("joined", B, I + H)
    assert after(
        distribute_concat, (joined, Apply("concat", (X, A), (Integer(1),))), (Y, joined @ LONG)
    ) == [
        "long_x = long[:I]",
        "x_long = x @ long_x",
        "long_a = long[I:I + H]",
        "a_long = a @ long_a",
        "y = x_long + a_long",
    ]


def test_inline_sums_puts_all_terms_of_a_sum_together() -> None:
    assert after(inline_sums, (P, A + V), (Q, tanh(A)), (Y, P + Q)) == [
        "q = tanh(a)",
        "y = a + v + q",
    ]
    assert after(inline_sums, (P, A + V), (Y, tanh(P))) == ["p = a + v", "y = tanh(p)"]
    assert after(inline_sums, (P, A + V), (Q, 2 * P), (Y, P + Q))[0] == "p = a + v"
    assert after(inline_sums, (P, A + V), (Y, 2 * P + A))[0] == "p = a + v"  # found as a sum later


M, E, F = local("m", B, H, order=92), local("e", B, H, order=93), local("f", B, H, order=94)
GATES = ((M, maximum(A, V)), (E, exp(A - M)), (F, exp(V - M)))


def test_share_exponentials_takes_one_for_two_gates() -> None:
    gap = ["m = maximum(a, v)", "a_v_gap = a - v", "a_v_gap_exp = exp(-abs(a_v_gap))"]
    gates = [
        "e = where((a_v_gap >= 0), 1, a_v_gap_exp)",
        "f = where((a_v_gap <= 0), 1, a_v_gap_exp)",
    ]
    assert after(share_exponentials, *GATES, results=(E, F, M)) == gap + gates
    # The exponents stand in statements of their own, and the maximum has no name.
    unnamed = ((P, A - maximum(A, V)), (E, exp(P)), (Q, V - maximum(A, V)), (F, 2 * exp(Q)))
    rewritten = after(share_exponentials, *unnamed, results=(E, F))
    assert rewritten[-1] == "f = 2 * where((a_v_gap <= 0), 1, a_v_gap_exp)"
    assert sum("exp(" in statement for statement in rewritten) == 1


def test_share_exponentials_names_pairs_in_the_same_order_in_every_process() -> None:
    sides = ((P, maximum(A, V)), (Q, 2 * A), (R, 3 * V), (Z, maximum(Q, R)))
    total = exp(A - P) + exp(V - P) + exp(Q - Z) + exp(R - Z)
    rewritten = after(share_exponentials, *sides, (Y, total))
    assert [line.split(" = ")[0] for line in rewritten[4:8]] == [
        "a_v_gap",
        "a_v_gap_exp",
        "q_r_gap",
        "q_r_gap_exp",
    ]


def test_share_exponentials_leaves_what_would_only_grow() -> None:
    alone = [(M, maximum(A, V)), (Y, exp(A - M))]
    assert after(share_exponentials, *alone) == ["m = maximum(a, v)", "y = exp(a - m)"]
    other = [(P, 2 * A), (M, maximum(A, V)), (E, exp(A - M)), (Y, exp(P - M) + E)]
    assert after(share_exponentials, *other)[2:] == ["e = exp(a - m)", "y = exp(p - m) + e"]


def test_share_exponentials_keeps_every_bit_but_takes_the_limit_at_infinity() -> None:
    numbers = np.array([0.0, -0.0, 1.5, -3e38, 3e38, 1e-45, np.inf, -np.inf, np.nan])
    a, v = (side.reshape(1, -1) for side in np.meshgrid(numbers, numbers))
    program = Program(
        "cell", "forward", (A, V), tuple(Statement(*pair) for pair in GATES), (M, E, F)
    )
    given, sizes = {"a": a, "v": v}, {"B": 1, "H": a.size}
    with np.errstate(all="ignore"):
        expected = interpret(program, given, sizes)
        found = interpret(share_exponentials(program), given, sizes)
    is_limit = (a == np.inf) ^ (v == np.inf)
    limits = {"e": is_limit & (a > v), "f": is_limit & (v > a), "m": is_limit & False}
    for name, array in expected.items():
        wanted = np.where(limits[name], 1, array)
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_inline_temporaries_writes_unnamed_values_back_where_they_are_read_once() -> None:
    assert after(inline_temporaries, (P, A + V), (Y, tanh(P))) == ["y = tanh(a + v)"]
    named = local("named", B, H, order=60)
    assert after(inline_temporaries, (named, A + V), (Y, tanh(named)))[0] == "named = a + v"
    assert after(inline_temporaries, (P, A + V), (Y, tanh(P) * P))[0] == "p = a + v"
    assert after(inline_temporaries, (P, A + V), (Y, P**2)) == ["y = (a + v)**2"]


def test_narrow_parts_computes_parts_instead_of_wholes() -> None:
    whole = temporary("whole", B, 2 * H)
    bias = argument("bias", 2 * H, order=7)
    statements = (
        Statement(whole, WIDE + bias),
        Statement(P, part(whole, 1, Integer(0), H)),
        Statement(Q, part(whole, 1, H, H)),
        Statement(Y, sigmoid(P) * Q),
    )
    program = Program("cell", "forward", (WIDE, bias), statements, (Y,))
    rewritten = narrow_parts(program)
    same_values(program, rewritten)
    assert {str(s) for s in rewritten.statements} == {
        "wide_0 = wide[:, :H]",
        "bias_0 = bias[:H]",
        "p = wide_0 + bias_0",
        "wide_1 = wide[:, H:2*H]",
        "bias_1 = bias[H:2*H]",
        "q = wide_1 + bias_1",
        "y = sigmoid(p) * q",
    }
    # Half of a value is no reason to narrow it.
    half = Program("cell", "forward", (WIDE, bias), (*statements[:2], Statement(Y, P)), (Y,))
    assert str(narrow_parts(half).statements[0]) == "whole = wide + bias"


def test_unwrap_parts_finds_the_operand() -> None:
    joined = temporary("joined", B, I + H)
    assert after(
        unwrap_parts,
        (joined, Apply("concat", (X, A), (Integer(1),))),
        (P, part(joined, 1, I, H)),
        (Y, 2 * P),
    ) == ["y = 2 * a"]


def test_accumulate_products_grows_sums_in_one_buffer() -> None:
    assert after(accumulate_products, (P, X @ W), (Q, A @ U), (Y, tanh(P + Q))) == [
        "p = x @ w",
        "q = a @ u",
        "y = tanh(p + q)",
    ]
    assert after(accumulate_products, (P, X @ W), (Q, A @ U), (R, P + Q), (Y, tanh(R))) == [
        "p = x @ w",
        "r = p + a @ u",
        "y = tanh(r)",
    ]
    assert after(accumulate_products, (P, X @ W), (Q, A @ U), (Y, V + P + Q)) == [
        "p = x @ w",
        "p_a = p + a @ u",
        "y = v + p_a",
    ]
    # A product that something else reads is no term to grow on.
    assert after(
        accumulate_products, (P, X @ W), (Q, A @ U), (Y, P + Q), (Z, P * 2), results=(Y, Z)
    )[2] == ("y = p + q")


def test_materialize_gives_everything_a_place_of_its_own() -> None:
    joined = local("joined", B, 2 * H, order=60)
    assert after(
        materialize,
        (P, tanh(A)),
        (joined, Apply("concat", (P, V), (Integer(1),))),
        results=(joined,),
    ) == ["p = tanh(a)", "v_copy = v", "joined = concat(p, v_copy)"]
    # A result that is a part of another value is copied out of it.
    assert after(materialize, (joined, 2 * WIDE), (Y, part(joined, 1, H, H))) == [
        "joined = 2 * wide",
        "y_view = joined[:, H:2*H]",
        "y = y_view",
    ]


def test_materialize_copies_a_missing_argument_once_for_all_operators() -> None:
    statements = (
        Statement(P, part(WIDE, 1, Integer(0), H)),
        Statement(Q, part(WIDE, 1, H, H)),
        Statement(Y, P * Q),
    )
    program = Program("cell", "backward", (WIDE,), statements, (Y,), optional=(WIDE,))
    assert [str(s) for s in materialize(program).statements] == [
        "wide_copy = wide",
        "p = wide_copy[:, :H]",
        "q = wide_copy[:, H:2*H]",
        "y = p * q",
    ]

"""Dimensions, values and operator nodes: identity, caches, printing, pickling."""

from __future__ import annotations

import pickle

import pytest
import sympy
from sympy import Symbol, srepr

from cellgen import matmul, tanh
from cellgen.errors import DeclarationError
from cellgen.language.notation import text
from cellgen.language.value import Apply, B, Dim, H, I, Role, Value, format_axis, format_shape
from cellgen.program.ssa import Program, Statement, digest


def weight(*shape: sympy.Expr, name: str = "w", owner: str = "m:A") -> Value:
    return Value(name, shape, Role.WEIGHT, owner)


def test_values_of_one_name_and_different_shape_role_or_cell_are_different() -> None:
    w = weight(I, H)
    others = [
        weight(H, H),
        weight(I, H, owner="m:B"),
        Value("w", (I, H), Role.INPUT, "m:A"),
        Symbol("w"),
    ]
    for other in others:
        assert w != other
        assert (w - other) != 0
        assert len({w, other}) == 2
    assert w == weight(I, H)
    assert hash(w) == hash(weight(I, H))


def test_symbol_caches_do_not_mix_shapes() -> None:
    first, second = weight(I, H), weight(H, H)
    assert (first.shape, second.shape) == ((I, H), (H, H))
    assert tanh(first).args[0].shape == (I, H)
    assert tanh(second).args[0].shape == (H, H)
    assert (2 * first).atoms(Value).pop().shape == (I, H)
    assert (2 * second).atoms(Value).pop().shape == (H, H)


def test_order_of_declaration_takes_part_in_equality_so_that_caches_do_not_mix_orders() -> None:
    first, second = (
        [Value(n, (H,), Role.BIAS, "m", k) for n, k in zip("ab", order, strict=True)]
        for order in ((1, 2), (2, 1))
    )
    assert first[0] != second[0]
    assert text(sympy.Add(*first)) == "a + b"
    assert text(sympy.Add(*second)) == "b + a"


def test_values_and_nodes_survive_pickling() -> None:
    x = Value("x", (B, I), Role.INPUT, "m:A", 3)
    for item in (Dim("D"), x, x @ weight(I, H), tanh(x) * 2):
        again = pickle.loads(pickle.dumps(item))
        assert again == item
        assert type(again) is type(item)
    again = pickle.loads(pickle.dumps(x))
    assert (again.shape, again.role, again.owner, again.order) == (x.shape, x.role, "m:A", 3)


def test_str_and_srepr_omit_shapes_so_the_digest_hashes_text_with_shapes() -> None:
    narrow, wide = weight(H, name="a"), weight(2 * H, name="a")
    assert (str(narrow), srepr(narrow)) == (str(wide), srepr(wide))

    def program(a: Value) -> Program:
        y = Value("y", a.shape, Role.LOCAL)
        return Program("c", "forward", (a,), (Statement(y, 2 * a),), (y,))

    assert digest([program(narrow)]) != digest([program(wide)])
    assert len(digest([program(narrow)])) == 12


def test_sympy_prints_values_and_nodes_by_name() -> None:
    x, w = Value("x", (B, I), Role.INPUT), weight(I, H)
    assert str(x * 2 + 1) == "2*x + 1"
    assert "matmul" in str(x @ w)
    assert str(tanh(x)) == "tanh(x)"


def test_at_works_from_both_sides_and_refuses_two_compound_expressions() -> None:
    x, w = Value("x", (B, I), Role.INPUT), weight(I, H)
    assert (2 * x) @ w == Apply("matmul", (2 * x, w))
    assert x @ (2 * w) == Apply("matmul", (x, 2 * w))
    assert (x @ w) @ (2 * w) == Apply("matmul", (x @ w, 2 * w))
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for @: 'Mul' and 'Mul'"):
        (2 * x) @ (2 * w)
    assert matmul(2 * x, 2 * w) == Apply("matmul", (2 * x, 2 * w))


def test_operators_across_elements_refuse_to_be_differentiated_pointwise() -> None:
    h, w = Value("h", (B, H), Role.STATE), weight(H, H)
    with pytest.raises(DeclarationError, match="matmul looks across elements") as caught:
        tanh(matmul(h, w)).diff(h)
    assert caught.value.code == "derivation.pointwise"


def test_axes_and_shapes_print_as_people_write_them() -> None:
    assert format_axis(H * 2 + I) == "I + 2*H"
    assert format_axis(Dim("D") + H + 3) == "H + D + 3"
    assert format_shape(()) == "()"
    assert format_shape((H,)) == "(H,)"
    assert format_shape((B, 2 * H)) == "(B, 2*H)"

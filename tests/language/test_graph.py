"""Expressions as graphs: what is read twice is one node, and gets one name."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import sympy
from sympy import Expr

import cellgen
from cellgen import Cell, H, Input, State, Weight, maximum, tanh, where
from cellgen.language import notation
from cellgen.language.graph import Graph, replaced, symbols_in, values_in
from cellgen.language.notation import text
from cellgen.language.ops import from_sympy, shape_of
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import generate, programs_of
from cellgen.program.interpret import interpret

X, Y = (Value(name, (B, H), Role.INPUT, order=k) for k, name in enumerate("xy"))

Round = Callable[[Expr, Expr], Expr]

ROUNDS: dict[str, Round] = {
    "logistic": lambda y, x: y + 0.1 * tanh(y) * (1 - y * x),
    "leaky": lambda y, x: 0.9 * y + 0.1 * tanh(y),
    "halves": lambda y, x: y / 2 + tanh(y * x) / 2,
    "squares": lambda y, x: y**2 / 4 + x,
    "products": lambda y, x: y * (1 + tanh(y) * x),
    "quotients": lambda y, x: x / (1 + y * y) + tanh(y),
    "branches": lambda y, x: where(y > x, y - x, tanh(y) * y),
    "largest": lambda y, x: maximum(y, x) * y / 2,
    "quadratic": lambda y, x: y - x * y * (1 - y) / 4,
}
every_round = pytest.mark.parametrize("name", ROUNDS)


@cache
def looped(name: str, count: int) -> type[Cell]:
    def body(ns: dict[str, Expr]) -> None:
        ns["x"], ns["h_prev"], ns["w"] = Input(H), State(H), Weight(H, H)
        y = ns["h_prev"] @ ns["w"] + ns["x"]
        for _ in range(count):
            y = ROUNDS[name](y, ns["x"])
        ns["h"] = y

    return types.new_class("Looped", (Cell,), {"name": f"{name}_{count}"}, body)  # type: ignore[return-value]


def is_linear(counts: list[int]) -> bool:
    """Whether counts at n, 2 n and 4 n rise by no more than twice as much the second time, and
    some for longer names and cuts that fall between rounds."""
    first, second, third = counts
    return third - second <= 2.4 * (second - first)


@every_round
def test_statements_text_and_c_of_a_loop_grow_as_its_rounds(name: str) -> None:
    statements, characters, c = [], [], []
    for count in (5, 10, 20):
        cell = looped(name, count)
        programs = programs_of(cell).functions
        statements.append(sum(len(program.statements) for program in programs))
        characters.append(sum(len(str(equation)) for equation in cell.definition.equations))
        c.append(len(generate(cell, ("c",)).text(".c")))
    assert is_linear(statements), statements
    assert is_linear(characters), characters
    assert is_linear(c), c


def test_fifty_rounds_are_few_statements_and_little_c() -> None:
    cell = looped("logistic", 50)
    assert len(cell.definition.equations) == 50
    assert [len(program.statements) for program in programs_of(cell).functions] == [51, 204, 1]
    assert len(generate(cell, ("c",)).text(".c")) < 300_000


def test_a_cell_that_begins_as_an_earlier_one_is_not_compared_with_it_tree_by_tree() -> None:
    """Comparisons of nodes, in a process of its own: 7580; with SymPy's own cache 22 million."""
    source = """
        import sympy
        import cellgen
        from cellgen.pipeline import generate
        from tests.language.test_graph import looped

        generate(looped("logistic", 20), ("c",)).text(".c")
        compared, equal = 0, sympy.Basic.__eq__

        def counted(self, other):
            global compared
            compared += 1
            return equal(self, other)

        sympy.Basic.__eq__ = counted
        looped("logistic", 50)
        print(compared)
    """
    source = textwrap.dedent(source)
    ran = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    assert int(ran.stdout) < 100_000


def test_nodes_visited_grow_as_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every walk: at the declaration, in derivation, rewriting and printing."""
    visited = 0
    add = Graph.add

    def counted(self: Graph, node: sympy.Basic) -> None:
        nonlocal visited
        visited += 1
        add(self, node)

    monkeypatch.setattr(Graph, "add", counted)
    counts = []
    for count in (7, 14, 28):  # other cells than elsewhere, which are known already
        visited = 0
        generate(looped("branches", count))
        counts.append(visited)
    assert is_linear(counts), counts


@every_round
def test_a_loop_means_what_its_rounds_mean(name: str) -> None:
    program = programs_of(looped(name, 8))["forward"]
    rng = np.random.default_rng(0)
    x, h = rng.uniform(-0.7, 0.7, (2, 3, 4))
    w = rng.uniform(-0.5, 0.5, (4, 4))
    found = interpret(program, {"x": x, "h_prev": h, "w": w}, {"B": 3, "H": 4})["h"]
    y, step = h @ w + x, NUMPY[name]
    for _ in range(8):
        y = step(y, x)
    np.testing.assert_allclose(found, y, rtol=1e-12, atol=1e-14)


NUMPY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "logistic": lambda y, x: y + 0.1 * np.tanh(y) * (1 - y * x),
    "leaky": lambda y, x: 0.9 * y + 0.1 * np.tanh(y),
    "halves": lambda y, x: y / 2 + np.tanh(y * x) / 2,
    "squares": lambda y, x: y**2 / 4 + x,
    "products": lambda y, x: y * (1 + np.tanh(y) * x),
    "quotients": lambda y, x: x / (1 + y * y) + np.tanh(y),
    "branches": lambda y, x: np.where(y > x, y - x, np.tanh(y) * y),
    "largest": lambda y, x: np.maximum(y, x) * y / 2,
    "quadratic": lambda y, x: y - x * y * (1 - y) / 4,
}


def test_a_kernel_of_a_loop_and_its_gradient_are_right() -> None:
    cell = looped("logistic", 8)
    kernel, programs = cellgen.compile(cell), programs_of(cell)
    rng = np.random.default_rng(1)
    x, h = rng.uniform(-0.7, 0.7, (2, 3, 4))
    given = {"x": x, "h_prev": h, "w": rng.uniform(-0.5, 0.5, (4, 4))}
    made = kernel.forward(**given)
    expected = interpret(programs["forward"], given, {"B": 3, "H": 4})["h"]
    np.testing.assert_allclose(made.h, expected, rtol=1e-13)
    upstream = rng.standard_normal((3, 4))
    found = kernel.backward(**given, h=made.h, d_h=upstream)
    for unit in range(4):
        moved = {**given, "h_prev": h + 1e-180j * (np.arange(4) == unit)}
        moved_h = interpret(programs["forward"], moved, {"B": 3, "H": 4})["h"]
        slope = (np.imag(moved_h) / 1e-180 * upstream).sum(axis=1)
        np.testing.assert_allclose(found.d_h_prev[:, unit], slope, rtol=1e-11, atol=1e-13)


def test_shared_values_are_named_after_the_equation_that_reads_them() -> None:
    equations = [str(equation) for equation in looped("logistic", 3).definition.equations]
    assert equations == [
        "h_inner = x + 0.1 * (1 - x * (x + h_prev @ w)) * tanh(x + h_prev @ w) + h_prev @ w",
        "h_inner_2 = 0.1 * (1 - x * h_inner) * tanh(h_inner) + h_inner",
        "h = 0.1 * (1 - x * h_inner_2) * tanh(h_inner_2) + h_inner_2",
    ]


def test_equations_share_what_both_read_and_small_pieces_stay_as_written() -> None:
    class Both(Cell):
        x, h_prev, c_prev = Input(H), State(H), State(H)
        h_inner = tanh(x)
        h = ROUNDS["logistic"](ROUNDS["logistic"](h_prev + h_inner, x), x)
        c = ROUNDS["logistic"](ROUNDS["logistic"](h_prev + h_inner, x), x) * c_prev
        small = (1 - x) * h + (1 - x) ** 2 * c

        outputs = h, c, small

    names = [str(equation.target) for equation in Both.definition.equations]
    assert names == ["h_inner", "h_inner_2", "h", "c", "small"]


def test_a_subclass_restates_an_equation_with_its_own_shared_values() -> None:
    parent = looped("logistic", 4)

    class Child(parent):  # type: ignore[misc, valid-type]
        h = ROUNDS["leaky"](ROUNDS["leaky"](ROUNDS["leaky"](parent.x * 3, parent.h_prev), 0), 0)

    targets = [str(equation.target) for equation in Child.definition.equations]
    assert targets[-1] == "h"
    assert all(len(str(equation)) < 100 for equation in Child.definition.equations)


def test_equal_nodes_are_one_node_whether_or_not_they_are_one_object() -> None:
    first, second = tanh(X + Y), tanh.__new__(tanh, X + Y)
    graph = Graph(sympy.Tuple(first, second, X + Y))
    assert sum(isinstance(node, tanh) for node in graph.nodes) == 1
    assert values_in(first) == {X, Y}
    assert symbols_in(X * H) == {X, H}


def test_replacing_visits_a_node_once_and_keeps_what_is_shared() -> None:
    y = X
    for _ in range(60):  # 2**60 nodes as a tree
        y = tanh(y) * (1 - y)
    made = replaced(y, {X: Y})
    assert values_in(made) == {Y}
    assert len(Graph(made)) == len(Graph(y))
    assert shape_of(from_sympy(made)) == (B, H)


def test_terms_are_ordered_by_their_text_only_where_their_values_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(
        notation, "sympy_text", lambda expression: printed.append(str(expression)) or printed[-1]
    )
    assert text(Y * X + tanh(Y) + tanh(X) + 1) == "tanh(x) + x * y + tanh(y) + 1"
    assert printed == []
    assert text(tanh(Y) + Y**2) == "tanh(y) + y**2"
    assert sorted(set(printed)) == ["tanh(y)", "y**2"]

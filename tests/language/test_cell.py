"""The declaration language: what each trap says, and what the notation means."""

from __future__ import annotations

import ast
import builtins
import linecache
import re
import runpy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy

import cellgen
from cellgen import (
    Bias,
    Cell,
    Dim,
    H,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    cells,
    clip,
    concat,
    exp,
    keep,
    matmul,
    mean,
    sigmoid,
    split,
    sum,
    tanh,
    transpose,
    where,
)
from cellgen.cells import GRU, LSTM, SHIPPED, ElmanRelu, GRUBlockCell, LSTMPeephole
from cellgen.errors import DeclarationError
from cellgen.language.cell import definition_of
from cellgen.language.value import B, Role, T, Value, format_shape
from cellgen.pipeline import programs_of
from cellgen.program.interpret import interpret
from cellgen.views.find import load_file
from tests.conftest import LayerNormGRU

HERE = Path(__file__)
PACKAGE = Path(cellgen.__file__).parent


class Refused:
    """``with refused(code, parts...)``: the body raises, naming the author's file and line."""

    def __init__(self, code: str, *parts: str, line: str) -> None:
        self.code, self.parts, self.line = code, parts, line

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        assert isinstance(error, DeclarationError), f"found {error!r}"
        assert error.code == f"declaration.{self.code}"
        text = str(error)
        for part in self.parts:
            assert part in text, text
        if self.line:
            numbers = re.findall(rf'File "{HERE}", line (\d+)\n    ', text)
            shown = [linecache.getline(str(HERE), int(number)) for number in numbers]
            assert any(self.line in code and "line=" not in code for code in shown), text
            assert self.line in text, text
        return True


def refused(code: str, *parts: str, line: str) -> Refused:
    return Refused(code, *parts, line=line)


# --- states ---------------------------------------------------------------------------------------


def test_state_without_its_equation() -> None:
    with refused(
        "state",
        "A: state c_prev has no equation for its new value; state `c = ...`",
        line="state_without_equation, h_prev, c_prev =",
    ):

        class A(Cell):
            state_without_equation, h_prev, c_prev = Input(H), State(H), State(H)
            h = tanh(state_without_equation + h_prev * c_prev)


def test_state_not_named_after_its_value() -> None:
    with refused(
        "state",
        "A: state 'hidden' must be named after the value it carries: write hidden_prev = State(",
        line="hidden = State(H)",
    ):

        class A(Cell):
            hidden = State(H)


def test_cell_without_state() -> None:
    with refused("state", "A: a recurrent cell needs a state: h_prev = State(H)", line=""):

        class A(Cell):
            x = Input(H)
            h = tanh(x)


# --- shapes ---------------------------------------------------------------------------------------


def test_shapes_that_do_not_agree_pointwise() -> None:
    with refused(
        "shape",
        "A: shapes do not agree: (B, I) and (B, H) (I against H)",
        line="h = added + h_prev",
    ):

        class A(Cell):
            added, h_prev = Input(I), State(H)
            h = added + h_prev


def test_shapes_that_do_not_agree_in_a_product() -> None:
    with refused(
        "shape", "A: ", "(B, I) @ (H, H) contracts I with H", line="h = tanh(matmul_x @ w"
    ):

        class A(Cell):
            matmul_x, h_prev, w = Input(I), State(H), Weight(H, H)
            h = tanh(matmul_x @ w)


def test_products_take_a_weight_on_the_right() -> None:
    with refused(
        "shape", "must be a weight, it must not have the batch", line="h = turned @ h_prev"
    ):

        class A(Cell):
            turned, h_prev = Static(H), State(H)
            h = turned @ h_prev

    with refused("shape", "A: shapes do not agree: @ needs two axes, found ()", line="= scale @"):

        class A(Cell):
            h_prev, scale = State(H), Scalar(1.0)
            h = scale @ h_prev


def test_shapes_that_do_not_agree_in_a_concatenation() -> None:
    with refused(
        "shape",
        "A: ",
        "concat of (B, I) and (I, H) differs off axis 1",
        line="h = concat(joined, w)",
    ):

        class A(Cell):
            joined, h_prev, w = Input(I), State(H), Weight(I, H)
            h = concat(joined, w)

    with refused("shape", "concat of (B, I), (H,): every operand needs the same number", line=""):

        class B(Cell):
            x, h_prev, b = Input(I), State(H), Bias(H)
            h = concat(x, b)


def test_axis_that_does_not_split() -> None:
    with refused(
        "shape", "A: ", "split of an axis of length H into 2 equal parts", line="= split(h_prev, 2)"
    ):

        class A(Cell):
            h_prev = State(H)
            a, b = split(h_prev, 2)

    with refused("shape", "split of an axis of length 3*H into (H, H)", line="(h_prev, (H, H))"):

        class C(Cell):
            h_prev = State(3 * H)
            a, b = split(h_prev, (H, H))


def test_state_and_new_value_of_different_shape() -> None:
    with refused(
        "shape",
        "A: shapes do not agree: h_prev is (B, H), its new value h is (B, I)",
        line="h = tanh(other) * mean(h_prev)",
    ):

        class A(Cell):
            other, h_prev = Input(I), State(H)
            h = tanh(other) * mean(h_prev)


def test_variant_whose_declaration_breaks_a_parents_equation_shows_that_equation() -> None:
    with pytest.raises(DeclarationError) as caught:

        class Wide(GRU):
            h_prev = State(2 * H)

    text = str(caught.value)
    assert "Wide: shapes do not agree: (B, 2*H) @ (H, H) contracts 2*H with H" in text
    assert f'File "{PACKAGE / "cells" / "gru.py"}"' in text
    assert "z_bar = x @ w_z + h_prev @ u_z + b_z" in text


@pytest.mark.parametrize("factor", ["x.shape[0]", "sigmoid(B + x)", "mean(B * x)"])
def test_a_number_of_rows_is_no_number_of_an_equation(factor: str) -> None:
    body = f"class A(Cell):\n    x, h_prev = Input(H), State(H)\n    h = h_prev * {factor} + x\n"
    with pytest.raises(DeclarationError, match="B counts rows; a row's result does not depend"):
        exec(body, {**vars(cellgen), "B": B})


@pytest.mark.parametrize("equation", ["x / T", "sigmoid(T + x)", "mean(T * x)"])
def test_a_number_of_steps_is_no_number_of_an_equation(equation: str) -> None:
    body = f"class A(Cell):\n    x, h_prev = Input(H), State(H)\n    h = {equation} + h_prev\n"
    with pytest.raises(DeclarationError, match="T counts steps; a step"):
        exec(body, {**vars(cellgen), "T": T})


def test_other_lengths_are_numbers_of_an_equation() -> None:
    class A(Cell):
        x, h_prev = Input(H), State(H)
        h = h_prev * x.shape[1] + mean(x, axis=all)

    assert H in A.definition.equations[0].expression.free_symbols


# --- Python's own errors --------------------------------------------------------------------------

MISUSES = {
    "relu = relu(x @ w)\n    h = relu(h_prev)": "'Value' object is not callable; a value of a "
    "class body hides the function of its name there",
    "h = (x @ w)(h_prev)": "a product is written with *",
    "h = (2 * x) @ (w * w)": "for @: 'Mul' and 'Pow'; `@` needs a named value",
    "h = math.tanh(2 * x)": "an equation uses cellgen's own: from cellgen import tanh",
    "h = math.tanh(x)": "an equation uses cellgen's own: from cellgen import tanh",
    "h = np.exp(x @ w)": "an equation uses cellgen's own: from cellgen import tanh",
    "h = np.tanh(x)": "an equation uses cellgen's own: from cellgen import tanh",
    "h = x @ w - np.mean(h_prev)": "numpy.mean takes arrays",
    "h = np.dot(x, w) + h_prev": "an equation uses cellgen's own: from cellgen import tanh",
    "h = x @ w if x else h_prev": "so `if` cannot decide: write where(x, x @ w, h_prev)",
    "h = h_prev + (x and h_prev) @ w": "truth value of x; an equation has no value yet",
    "h = h_prev / len(x)": "an equation holds for all units at once: write H for them",
    "h = x @ w if 2 * x > 1 else h_prev": (
        "so `if` cannot decide: write where(2 * x > 1, x @ w, h_prev)"
    ),
    "h = max(h_prev, 0)": "`max` cannot decide: write maximum(h_prev, 0)",
    "h = max(h_prev, 0, x @ w)": "`max` cannot decide: write maximum(maximum(h_prev, 0), x @ w)",
    "h = min(h_prev, 1, x @ w)": "`min` cannot decide: write minimum(minimum(h_prev, 1), x @ w)",
    "from cellgen import max\n    h = max(h_prev, H) * (h_prev if h_prev > 0 else 1)": (
        "`if` cannot decide: write where(h_prev > 0, h_prev, 1)"
    ),
    "h = pow(h_prev, 2, 3)": "a remainder is written mod(a ** b, 3)",
    "h = where(x > 0 and h_prev > 0, x, 0)": "`and` cannot decide: write (x > 0) & (h_prev > 0)",
    "h = where(h_prev > 1 or x < 0, 1, 0)": "`or` cannot decide: write (h_prev > 1) | (x < 0)",
    "h = where(0 < x < 1, x, h_prev)": "`and` cannot decide: write (0 < x) & (x < 1)",
    "h = where(not h_prev > 0, 1, 0)": "`not` cannot decide: write ~(h_prev > 0)",
    "h = min(h_prev, 1)": "`min` cannot decide: write minimum(h_prev, 1)",
    "h = 1 * h_prev if 0 < h_prev < 1 else h_prev * 2": (
        "`if` cannot decide: write where((0 < h_prev) & (h_prev < 1), 1 * h_prev, h_prev * 2)"
    ),
}


@pytest.mark.parametrize("equations", MISUSES)
def test_errors_of_python_in_a_class_body_are_explained_wherever_it_runs(
    equations: str, tmp_path: Path
) -> None:
    """As on the command line: in a program, a notebook, an import."""
    path = tmp_path / "body.py"
    path.write_text(
        "import math\nimport numpy as np\n"
        "from cellgen import Cell, H, I, Input, State, Weight, relu, where\n"
        f"class A(Cell):\n    x, h_prev, w = Input(I), State(H), Weight(I, H)\n    {equations}\n"
    )
    with pytest.raises(DeclarationError) as caught:
        runpy.run_path(str(path))
    text, last = str(caught.value), equations.splitlines()[-1].strip()
    assert text.startswith("[declaration.python] A: TypeError: ")
    assert MISUSES[equations] in text
    assert text.endswith(f'File "{path}", line {6 + equations.count(chr(10))}\n    {last}')
    with pytest.raises(DeclarationError, match=r"\[declaration.python\]") as told:
        load_file(path)
    assert MISUSES[equations] in str(told.value)


TOLD = {
    "h = h_prev @ u.T": "AttributeError: 'Value' object has no attribute 'T'; write transpose(u)",
    "h = h_prev.sum()": "write sum(h_prev)",
    "h = (2 * h_prev).reshape(3)": "equations hold for all units at once; see split, heads",
    "h = tanh(h_prv)": "name 'h_prv' is not defined; did you mean h_prev?",
    "h = h_prev + half_gat": "name 'half_gat' is not defined; did you mean half_gate?",
    "h = h_prev + noted": "`noted: ...` only annotates: write noted = ..., such as noted = Inp",
    "h = dropout(h_prev, 0.5)": "cellgen.regularise.recurrent_dropout(MyCell) gives a cell one",
    "v = Weight": "v is Weight itself, which lacks its brackets; write v = Weight(I, H)",
    "y = Input": "y is Input itself, which lacks its brackets; write y = Input(I)",
    "h = max(h_prev, 0)": "for the larger of two write maximum(a, 0)",
    "h = softmax(h_prev, axis=1)": "softmax(..., axis=1): leave axis out",
    "h = softmax(h_prev, dim=-1)": "it is softmax(a: ",
    "v = Weight(I, H, init=0)": "it is Weight(*dims: ",
}


@pytest.mark.parametrize("equation", TOLD)
def test_what_arrays_and_other_libraries_have_is_answered(equation: str, tmp_path: Path) -> None:
    path = tmp_path / "body.py"
    path.write_text(
        "from cellgen import *\nclass A(Cell):\n"
        "    x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)\n"
        f"    half_gate = x @ w\n    noted: H\n    {equation}\n"
    )
    with pytest.raises(DeclarationError) as told:
        load_file(path)
    assert TOLD[equation] in str(told.value)
    assert str(told.value).endswith(f'File "{path}", line 6\n    {equation}')


def test_expressions_have_no_attributes_of_arrays() -> None:
    """Others ask for them by ``hasattr``, SymPy among them."""
    x, y = Value("x", (H,), Role.INPUT), sympy.Symbol("y")
    for expression in (x, 2 * x, x @ Value("w", (H, H), Role.WEIGHT), y, y + 1):
        for name in ("T", "reshape", "sum", "dot"):
            assert not hasattr(expression, name)
    with pytest.raises(AttributeError, match="has no attribute 'T'") as caught:
        _ = (y + 1).T
    assert not isinstance(caught.value, DeclarationError)


def test_equations_in_methods_are_told_where_they_stand() -> None:
    with refused("state", "equations in the class body itself, not in methods such as", line=""):

        class A(Cell):
            def forward(self, x: object, h: object) -> object:
                return tanh(x)


def test_truth_beside_a_compound_expression_is_explained_on_the_command_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "body.py"
    path.write_text(
        "from cellgen import Cell, H, Input, State\n"
        "class A(Cell):\n    x, h_prev = Input(H), State(H)\n    h = (2 * x) * True + h_prev\n"
    )
    with pytest.raises(DeclarationError, match="beside an expression: write 1 and 0"):
        load_file(path)


def test_names_that_a_class_body_does_not_know_are_explained_wherever_it_runs() -> None:
    expected = "A: NameError: name 'tanhh' is not defined; did you mean tanh?"
    with refused("python", expected, line="h = tanhh(h_prev)"):

        class A(Cell):
            h_prev = State(H)
            h = tanhh(h_prev)  # noqa: F821

    with pytest.raises(NameError):  # as Python says it

        class Tolerant(Cell):
            h_prev = State(H)
            h = tanhh(h_prev)  # noqa: F821

    half = 0.5

    class Known(Cell):
        h_prev = State(H)
        h = tanh(half * h_prev) * len("1")


def test_a_star_import_brings_a_declaration_and_hides_nothing_of_python() -> None:
    names: dict[str, Any] = {}
    exec("from cellgen import *", names)
    assert {"Cell", "State", "H", "tanh", "where", "mean"} <= names.keys()
    assert names.keys().isdisjoint({"abs", "compile", "load", "Kernel", "Layers", "CellgenError"})
    assert {n for n in names if hasattr(builtins, n)} == {"max", "round", "sum"}
    longest, total = names["max"], names["sum"]
    assert (longest(2, 3, 1), longest([1, 4], key=lambda n: -n), longest([], default=5)) == (
        3,
        1,
        5,
    )
    assert (total([1, 2]), total((n for n in (1, 2)), 4), total([[1], [2]], start=[])) == (
        3,
        7,
        [1, 2],
    )
    source = """
class Star(Cell):
    x, h_prev, w, v = Input(I), State(H), Weight(I, H), Weight(I, H)
    a = sum([x @ w, abs(x @ v), 1])
    h = tanh(a / max(a) - h_prev)
"""
    exec(source, names)
    assert str(names["Star"].definition.equations[0]) == "a = x @ w + abs(x @ v) + 1"
    with pytest.raises(DeclarationError, match=r"write maximum\(a, b\)"):
        exec(source.replace("max(a)", "max(a, h_prev)"), names)


def test_expressions_without_values_behave_as_sympy_says() -> None:
    y = sympy.Symbol("y")
    for wrong in (lambda: y @ (y + 1), lambda: float(y + 1), lambda: bool(y > 1), lambda: y(2)):
        with pytest.raises(TypeError) as caught:
            wrong()
        assert not isinstance(caught.value, DeclarationError)
    assert float(sympy.Integer(2) + 1) == 3
    assert bool(sympy.Integer(2) > 1)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int", "template", "lambda", "linux", "threadIdx", "WX"])
def test_reserved_names(name: str) -> None:
    def body(ns: dict[str, object]) -> None:
        ns[name] = Input(I)

    with refused("name", f"A: input {name!r} is reserved by", "rename it", line="ns[name] = Input"):
        types.new_class("A", (Cell,), {}, body)


@pytest.mark.parametrize("name", ["d_x", "_x", "x_", "x__y", "s 1", "1s", "é"])
def test_names_that_are_no_names(name: str) -> None:
    def body(ns: dict[str, object]) -> None:
        ns[name] = Input(H)

    with refused("name", f"A: input {name!r}", line="ns[name] = Input(H)"):
        types.new_class("A", (Cell,), {}, body)


def test_values_named_like_a_dimension() -> None:
    with refused("name", "A: weight D has the name of a dimension", line="x, D, h_prev"):
        size = Dim("D")

        class A(Cell):
            x, D, h_prev = Input(size), Weight(size, H), State(H)
            h = tanh(x @ D + h_prev)


def test_dimensions_that_are_no_names() -> None:
    with refused("name", "dimension 'my dim' is no valid name", line='Input(Dim("my dim"))'):
        Input(Dim("my dim"))


def test_dimensions_that_no_shape_tells() -> None:
    """State(H + K) alone: an array of 7 units says nothing of H and K."""
    K = Dim("K")
    expected = "A: h_prev (B, H + K): no shape of this cell tells H or K alone"
    with refused("dims", expected, line="h_prev = State(H + K)"):

        class A(Cell):
            h_prev = State(H + K)
            h = tanh(h_prev)

    class Told(Cell):
        x, h_prev = Input(2 * H), State(H + K)
        h = tanh(h_prev) + mean(x)

    assert [str(dim) for dim in Told.definition.dims] == ["B", "H", "K"]


def test_class_names_that_give_no_name() -> None:
    with refused("name", "A: cell 'template' is reserved by C++", line=""):

        class A(Cell, name="template"):
            h_prev = State(H)
            h = tanh(h_prev)

    class Template(Cell):
        h_prev = State(H)
        h = tanh(h_prev)

    assert Template.definition.name == "template_cell"

    class Klass(Cell, name="cfc"):
        h_prev = State(H)
        h = tanh(h_prev)

    assert Klass.definition.name == "cfc"
    assert repr(Klass) == "<cell cfc>"


def test_name_assigned_twice() -> None:
    with refused(
        "twice",
        "A: a is assigned twice in one class body",
        "First assigned at",
        "a subclass may re-state it",
        line="a = tanh(a_second)",
    ):

        class A(Cell):
            a_second, h_prev = Input(H), State(H)
            a = tanh(h_prev)
            a = tanh(a_second)  # noqa: PIE794


def test_name_assigned_twice_in_a_loop() -> None:
    with refused("twice", "A: looped is assigned twice", line="looped = tanh(h_prev)"):

        class A(Cell):
            h_prev = State(H)
            for _ in range(2):
                looped = tanh(h_prev)


# --- cycles ---------------------------------------------------------------------------------------


def test_equations_in_terms_of_their_own_parent_are_cyclic() -> None:
    with refused(
        "cycle",
        "A: the equations are cyclic: n -> n",
        "subclass Parent.replaced('n', 'n_raw') and use its n_raw",
        line="n = 2 * GRU.n",
    ):

        class A(GRU):
            n = 2 * GRU.n


def test_longer_cycles_show_every_line() -> None:
    with refused("cycle", "cyclic: n -> h -> n", "cells/gru.py", line="n = tanh(GRU.h)"):

        class A(GRU):
            n = tanh(GRU.h)


@pytest.mark.parametrize("parent", [GRU, GRUBlockCell], ids=["default outputs", "stated outputs"])
def test_replaced_serves_regularisers(parent: type[Cell]) -> None:
    raw = parent.replaced("h", "h_raw")

    class Zoneout(raw):  # type: ignore[misc, valid-type]
        keep_old = Static(H)
        h = where(keep_old > 0, raw.h_prev, raw.h_raw)

    definition = Zoneout.definition
    assert str(definition.equations[-1]) == "h = where((keep_old > 0), h_prev, h_raw)"
    assert definition.outputs[-1].name == "h"
    assert len(definition.outputs) == len(parent.definition.outputs)
    assert [str(v) for v in definition.gradients or ()] == [
        str(v) for v in parent.definition.gradients or ()
    ]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("q", "q_raw", "it has no equation for 'q'; it has z_bar, r_bar"),
        ("h", "n", "it has 'n' already; choose another name"),
        ("h", "h_prev", "it has 'h_prev' already"),
    ],
)
def test_replaced_refuses_what_is_not_there_and_what_is(old: str, new: str, fault: str) -> None:
    with refused("replaced", f"replaced({old!r}, {new!r}): {fault}", line="GRU.replaced(old, new)"):
        GRU.replaced(old, new)


def test_unfinished_cell_is_no_cell() -> None:
    with refused("cell", "GRUWithoutH is unfinished (made by replaced())", line=""):
        definition_of(GRU.replaced("h", "h_raw"))
    with refused("cell", "expected a subclass of cellgen.Cell, found <class 'int'>", line=""):
        definition_of(int)  # type: ignore[arg-type]


# --- what must be used ----------------------------------------------------------------------------


def test_a_number_for_each_row_beside_heads() -> None:
    message = "(K against B); beside heads a number for each row is Input(1, 1)"
    with refused("shape", message, line="h = h_prev * ts"):

        class A(Cell):
            ts, h_prev = Input(1), State(Dim("K"), Dim("D"))
            h = h_prev * ts


def test_an_index_on_a_value() -> None:
    with refused("index", "B: x has an index: equations hold for all units", line="h = x[0]"):

        class B(Cell):
            x, h_prev = Input(I), State(H)
            h = x[0] + h_prev

    with refused("index", "C: an expression has an index", line="(x @ w)[:2]"):

        class C(Cell):
            x, h_prev, w = Input(I), State(H), Weight(I, H)
            h = (x @ w)[:2] + h_prev

    with pytest.raises(TypeError, match="'Value' object is not iterable"):

        class D(Cell):
            x, h_prev = Input(I), State(H)
            a, b = x


def test_unused_part_of_a_split() -> None:
    with refused(
        "split", "A: b is a part of a split that is never used", line="a, b = split(split_x @ w, 2)"
    ):

        class A(Cell):
            split_x, h_prev, w = Input(I), State(H), Weight(I, 2 * H)
            a, b = split(split_x @ w, 2)
            h = a + h_prev


def test_part_of_a_split_without_a_name() -> None:
    with refused(
        "split", "has unused parts: H of 2*H units are used", line="a = split(x_unnamed @ w, 2)[0]"
    ):

        class A(Cell):
            x_unnamed, h_prev, w = Input(I), State(H), Weight(I, 2 * H)
            a = split(x_unnamed @ w, 2)[0]
            h = a + h_prev


def test_unused_declaration() -> None:
    with refused("unused", "A: input spare is declared and never used", line="x, spare, h_prev = "):

        class A(Cell):
            x, spare, h_prev = Input(H), Input(I), State(H)
            h = x + h_prev


def test_unused_equation() -> None:
    with refused("unused", "A: q is computed and never used", line="q = tanh(unread)"):

        class A(Cell):
            unread, h_prev = Input(H), State(H)
            q = tanh(unread)
            h = unread + h_prev


def test_what_a_variant_no_longer_needs_goes() -> None:
    class Ungated(GRU):
        z = sigmoid(GRU.r_bar)

    names = {str(value) for value in Ungated.definition.declared}
    assert names == {"x", "h_prev", "w_r", "u_r", "b_r", "w_n", "u_n", "b_n", "c_n"}
    assert "z_bar" not in {str(e.target) for e in Ungated.definition.equations}


# --- foreign values -------------------------------------------------------------------------------


@pytest.mark.parametrize("where_used", ["equation", "alias", "outputs", "gradients"])
def test_values_of_another_cell(where_used: str) -> None:
    def body(ns: dict[str, object]) -> None:
        h_prev = ns["h_prev"] = State(H)
        h_prev = ns["h_prev"]
        if where_used == "equation":
            ns["h"] = h_prev + GRU.b_z
        elif where_used == "alias":
            ns["z"] = GRU.h
        else:
            ns[where_used] = (GRU.h,)

    with refused(
        "foreign",
        "belongs to cellgen.cells.gru:GRU, which A does not inherit from",
        "declare it here or subclass that cell",
        line="",
    ):
        types.new_class("A", (Cell,), {}, body)


def test_symbols_that_are_no_values() -> None:
    with refused("foreign", "A: q (Symbol) has no shape; use values", line="h = h_prev * stranger"):
        stranger = sympy.Symbol("q")

        class A(Cell):
            h_prev = State(H)
            h = h_prev * stranger


# --- what SymPy and Python do before us -----------------------------------------------------------


def test_equations_that_fold_to_a_constant() -> None:
    with refused(
        "constant",
        "A: the equation of z folds to the constant 0",
        "keep(",
        line="z = h_prev - h_prev",
    ):

        class A(Cell):
            h_prev = State(H)
            z = h_prev - h_prev

    with refused("constant", "folds to the constant False", line="z = sympy.Integer(1) > 2"):

        class C(Cell):
            h_prev = State(H)
            z = sympy.Integer(1) > 2

    with refused("constant", "an equation holds oo, which is no finite", line="h_prev * sympy.oo"):

        class D(Cell):
            h_prev = State(H)
            h = h_prev * sympy.oo


def test_keep_is_a_barrier() -> None:
    class A(Cell):
        h_prev = State(H)
        z = keep(h_prev) - h_prev
        h = keep(h_prev + 1e8) - 1e8 + z

    assert [str(e) for e in A.definition.equations] == [
        "z = keep(h_prev) - h_prev",
        "h = keep(h_prev + 100000000.0) + z - 100000000.0",
    ]


def test_products_of_two_expressions_are_pythons_error_and_matmul_or_a_name_is_the_way() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):

        class A(Cell):
            x, h_prev, w = Input(H), State(H), Weight(H, H)
            h = (x * h_prev) @ (2 * w)

    class Called(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, H)
        h = matmul(x * h_prev, 2 * w)

    class Named(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, H)
        a = x * h_prev
        h = a @ (2 * w)

    assert str(Called.definition.equations[-1]) == "h = (x * h_prev) @ (2 * w)"
    assert str(Named.definition.equations[-1]) == "h = a @ (2 * w)"


def test_comprehensions_in_a_class_body_do_not_see_its_names() -> None:
    with pytest.raises(NameError, match="'h_prev'"):

        class A(Cell):
            h_prev = State(H)
            a, b = [tanh(k * h_prev) for k in (1, 2)]  # noqa: F821

    class Mapped(Cell):
        h_prev = State(2 * H)
        a, b = map(tanh, split(h_prev, 2))
        h = concat(b, a)

    assert [str(e.target) for e in Mapped.definition.equations] == ["a", "b", "h"]


@pytest.mark.parametrize(
    "use",
    [
        lambda unnamed: tanh(unnamed),
        lambda unnamed: unnamed @ Weight(I, H),
        lambda unnamed: GRU.x @ unnamed,
        lambda unnamed: -unnamed,
        lambda unnamed: 1 + unnamed,
        lambda unnamed: unnamed / 2,
        lambda unnamed: unnamed**2,
        lambda unnamed: unnamed > 0,
        lambda unnamed: where(GRU.x > 0, unnamed, 0),
    ],
)
def test_declarations_without_a_name(use: object) -> None:
    with refused("unnamed", "name the input first, then use it", line=""):
        use(Input(I))  # type: ignore[operator]


@pytest.mark.parametrize(
    "length", ["H", 2.5, 0, -H, H - 1, H / 2, H * H, sympy.Symbol("q"), None], ids=str
)
def test_axis_lengths_that_are_none(length: object) -> None:
    with refused("dims", "is no axis length; use I, H, Dim('D')", line="Input(length)  # axis"):
        Input(length)  # axis  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [B, T])
def test_batch_and_time_are_added_by_the_roles(axis: Dim) -> None:
    with refused("dims", "B and T are added by cellgen", line="State(axis, H)"):
        State(axis, H)


def test_declarations_need_an_axis_and_scalars_a_number() -> None:
    with refused("dims", "Weight() needs at least 1 axis length, for example Weight(H)", line=""):
        Weight()
    with refused("scalar", "Scalar('1'): the default must be a finite number", line='Scalar("1")'):
        Scalar("1")  # type: ignore[arg-type]
    with refused("scalar", "Scalar(True)", line="Scalar(True)"):
        Scalar(True)


def test_unknown_functions_and_options_name_the_known_ones() -> None:
    with refused(
        "operator", "A: gamma is not in the operator table", "tanh", line="sympy.gamma(h_"
    ):

        class A(Cell):
            h_prev = State(H)
            h = sympy.gamma(h_prev)

    with refused("clip", "expected one of exact, straight_through", line='gradient="soft"'):
        clip(GRU.x, 0, 1, gradient="soft")


def test_cells_have_one_parent() -> None:
    with refused("parents", "Both: a cell varies one parent, found GRU and LSTM", line=""):

        class Both(GRU, LSTM):
            pass


# --- outputs and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["outputs", "gradients"])
@pytest.mark.parametrize("item", ["h", 3, (2 * GRU.h,)], ids=str)
def test_selections_list_named_values(what: str, item: object) -> None:
    def body(ns: dict[str, object]) -> None:
        ns[what] = item

    with refused(what, f"A: {what} must list named values of this cell", line="ns[what] = item"):
        types.new_class("A", (Cell,), {}, body)


def test_outputs_are_computed_values() -> None:
    with refused("outputs", "A: outputs lists x, a declared input", line="outputs = x, h  # input"):

        class A(Cell):
            x, h_prev = Input(H), State(H)
            h = x + h_prev
            outputs = x, h  # input


def test_outputs_hold_every_new_state() -> None:
    with refused(
        "outputs", "A: outputs leaves out h, the new value of h_prev", line="outputs = y  # no h"
    ):

        class A(Cell):
            h_prev = State(H)
            h = tanh(h_prev)
            y = 2 * h
            outputs = y  # no h


def test_empty_and_repeated_selections() -> None:
    with refused("outputs", "A: outputs is empty", line="outputs = ()"):

        class A(Cell):
            outputs = ()

    with refused("twice", "C: outputs is assigned twice", line="outputs = (h,)  # again"):

        class C(Cell):
            h_prev = State(H)
            h = tanh(h_prev)
            outputs = h
            outputs = (h,)  # again  # noqa: PIE794


def test_gradients_that_no_output_depends_on() -> None:
    with refused("gradients", "A: gradients lists c_bar, which no output depends on", line=""):

        class A(GRUBlockCell):
            c = GRUBlockCell.r * 2

    with refused("gradients", "C: gradients lists x, which no output depends on", line="= GRU.x"):

        class C(GRU):
            r_bar, z_bar, n_bar = GRU.h_prev * 1.5, GRU.h_prev * 2.5, GRU.r * 3.5
            gradients = GRU.x

    class Fine(GRUBlockCell):
        c = GRUBlockCell.r * 2
        gradients = GRUBlockCell.x, GRUBlockCell.h_prev

    assert [str(v) for v in Fine.definition.gradients or ()] == ["x", "h_prev"]


def test_single_value_is_a_selection_of_one_and_defaults_are_all_states() -> None:
    class One(Cell):
        h_prev = State(H)
        h = tanh(h_prev)
        outputs = h
        gradients = h_prev

    assert [str(v) for v in One.definition.outputs] == ["h"]
    assert [str(v) for v in One.definition.gradients or ()] == ["h_prev"]

    class Two(GRU):
        m_prev = State(H)
        m = GRU.h * m_prev

    assert [str(v) for v in Two.definition.outputs] == ["h", "m"]
    assert Two.definition.gradients is None


# --- what is no equation --------------------------------------------------------------------------


def test_numbers_strings_functions_and_lengths_are_no_equations() -> None:
    class A(Cell):
        """Doc."""

        eps, label, wide = 1e-5, "label", 2 * H

        @staticmethod
        def helper() -> int:
            return 7

        x, h_prev, w = Input(I), State(wide), Weight(I, wide)
        h = tanh(x @ w + h_prev) + eps

    assert (A.eps, A.label, A.helper(), A.wide) == (1e-5, "label", 7, 2 * H)
    assert [str(e) for e in A.definition.equations] == ["h = tanh(x @ w + h_prev) + 1e-05"]
    assert A.definition.doc == "Doc."


def test_aliases() -> None:
    class A(Cell):
        x, h_prev = Input(H), State(H)
        z = h_prev
        y = tanh(z * x)
        h = y

    assert [str(e) for e in A.definition.equations] == ["y = tanh(x * h_prev)", "h = y"]
    assert A.definition.aliases == {"z": "h_prev"}
    assert A.z == A.h_prev


def test_a_value_that_is_listed_by_two_names_is_refused() -> None:
    with pytest.raises(DeclarationError) as found:

        class A(Cell):
            x, h_prev = Input(H), State(H)
            h = tanh(h_prev * x)
            y = h
            outputs = y, h

    assert found.value.code == "declaration.outputs"
    assert "A: outputs lists h twice (y: another name of it); a value has one place" in str(
        found.value
    )


def test_new_state_that_is_another_value_is_a_value_of_its_own() -> None:
    class Copy(Cell):
        x, h_prev, c_prev = Input(H), State(H), State(H)
        h = h_prev
        c = x
        y = h * c
        outputs = y, h, c

    assert [str(e) for e in Copy.definition.equations] == ["h = h_prev", "c = x", "y = h * c"]
    assert [str(v) for v in Copy.definition.outputs] == ["y", "h", "c"]


def test_comparisons_and_sympys_functions_are_equations() -> None:
    class A(Cell):
        x, h_prev = Input(H), State(H)
        open_gate = x > 0
        a = sympy.tanh(x) + sympy.Max(x, h_prev, 0) + sympy.Abs(x) + sympy.exp(x) * sympy.pi
        h = open_gate * a + where(x >= h_prev, x, 1)

    assert [str(e) for e in A.definition.equations] == [
        "open_gate = (x > 0)",
        "a = 3.141592653589793 * exp(x) + abs(x) + tanh(x) + maximum(maximum(0, h_prev), x)",
        "h = where((x >= h_prev), x, 1) + open_gate * a",
    ]


def test_constants_of_lengths_and_numbers_may_stand_in_equations() -> None:
    class A(Cell):
        x, h_prev, w = Input(I), State(H), Weight(I, H)
        h = x @ w / H**0.5 + h_prev / (2 * H) + exp(1)

    assert A.definition.equations[-1].expression.free_symbols >= {H}


# --- values, families, variants -------------------------------------------------------------------


def test_roles_give_shapes() -> None:
    class A(Cell):
        x, kept, h_prev = Input(I), Static(H), State(H)
        w, b, k = Weight(I, H), Bias(H), Scalar(1.5)
        h = tanh(x @ w + b) * kept * k + h_prev

    shapes = {str(v): (v.role, format_shape(v.shape)) for v in A.definition.declared}
    assert shapes == {
        "x": (Role.INPUT, "(B, I)"),
        "kept": (Role.STATIC, "(B, H)"),
        "h_prev": (Role.STATE, "(B, H)"),
        "w": (Role.WEIGHT, "(I, H)"),
        "b": (Role.BIAS, "(H,)"),
        "k": (Role.SCALAR, "()"),
    }
    assert A.definition.defaults == {"k": 1.5}
    assert A.definition.dims == (B, I, H)
    assert isinstance(A.w, Value)


def test_what_is_constant_learns_where_it_asks_to() -> None:
    class Asks(Cell):
        x, h_prev, w = Input(I), State(H), Weight(I, H)
        gain, kept = Static(H, gradient=True), Static(H)
        k, s = Scalar(1.5, gradient=True), Scalar(0.5)
        h = tanh(x @ w) * gain * k + kept * h_prev * s

    class Lists(Asks):
        gradients = Asks.x, Asks.h_prev, Asks.kept

    class Fixed(Asks):
        gain = Static(H)

    assert [str(v) for v in Asks.definition.requested] == ["gain", "k"]
    assert [str(v) for v in Lists.definition.requested] == ["gain", "kept", "k"]
    assert [str(v) for v in Fixed.definition.requested] == ["k"]
    assert {"d_gain", "d_k"} <= {str(v) for v in programs_of(Asks)["backward"].results}
    # What a list leaves out of ``backward`` is still formed.
    assert [str(v) for v in programs_of(Lists)["backward"].results] == ["d_x", "d_h_prev", "d_kept"]
    assert {str(v) for v in programs_of(Lists)["input_gradients"].results} == {"d_gain", "d_k"}


@pytest.mark.parametrize("declare", [Static, Input, Weight])
def test_whether_there_is_a_gradient_is_a_boolean(declare: Callable[..., object]) -> None:
    with pytest.raises(DeclarationError, match=r"\(..., gradient='no'\): expected True or False"):
        declare(H, gradient="no")
    with pytest.raises(DeclarationError, match=r"Scalar\(..., gradient=1\): expected True or"):
        Scalar(1.0, gradient=1)  # type: ignore[arg-type]


def test_families_are_classes_made_by_functions() -> None:
    def deep(layers: int) -> type[Cell]:
        def body(ns: dict[str, object]) -> None:
            ns["x"], ns["h_prev"], ns["w"], ns["u"] = Input(I), State(H), Weight(I, H), Weight(H, H)
            s = ns["x"] @ ns["w"]  # type: ignore[operator]
            for k in range(1, layers + 1):
                ns[f"s_{k}"] = tanh(s + ns["h_prev"] @ ns["u"])  # type: ignore[operator]
                s = ns[f"s_{k}"]
            ns["h"] = s

        return types.new_class("Deep", (Cell,), {"name": f"deep_{layers}"}, body)  # type: ignore[return-value]

    cell = deep(2)
    assert cell.definition.name == "deep_2"
    assert cell.definition.origin == f"{__name__}:Deep"
    assert [str(e) for e in cell.definition.equations] == [
        "s_1 = tanh(x @ w + h_prev @ u)",
        "s_2 = tanh(h_prev @ u + s_1)",
        "h = s_2",
    ]
    assert cell.definition.lines["s_1"].file == str(HERE)


def test_values_of_one_name_in_two_cells_keep_their_shapes() -> None:
    class Narrow(Cell):
        x, h_prev, w = Input(I), State(H), Weight(I, H)
        h = tanh(x @ w + h_prev)

    class Wide(Cell):
        x, h_prev, w = Input(H), State(H), Weight(H, H)
        h = tanh(x @ w + h_prev)

    assert Narrow.w.shape == (I, H)
    assert Wide.w.shape == (H, H)
    assert Narrow.definition.equations[0].expression != Wide.definition.equations[0].expression


def test_variants_restate_equations_and_order_is_recovered() -> None:
    assert [str(e) for e in LayerNormGRU.definition.equations][4:] == [
        "c_hat = c_bar - sum(c_bar -> (B, 1)) / H",
        "c_std = sqrt(sum(c_hat**2 -> (B, 1)) / H + 1e-05)",
        "c = tanh(gamma * c_hat / c_std + beta)",
        "h = h_prev * u + (1 - u) * c",
    ]
    assert [str(v) for v in LayerNormGRU.definition.outputs] == ["r", "u", "c", "h"]
    order = [str(e.target) for e in LSTMPeephole.definition.equations]
    assert order.index("c") < order.index("o") < order.index("h")
    assert str(ElmanRelu.definition.equations[-1]) == "h = relu(h_bar)"


def test_redeclared_values_keep_their_place() -> None:
    class Wider(GRU):
        w_z = Weight(I, H)

    assert [str(v) for v in Wider.definition.declared] == [str(v) for v in GRU.definition.declared]


def test_reductions_products_and_transposes_have_the_shapes_they_say() -> None:
    class A(Cell):
        x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, I)
        row = 1.0
        s = sum(x @ w)
        m = mean(x) * s
        h = tanh(x @ transpose(u)) * m + h_prev

    shapes = {str(e.target): format_shape(e.target.shape) for e in A.definition.equations}
    assert shapes == {"s": "(B, 1)", "m": "(B, 1)", "h": "(B, H)"}


def test_definitions_print() -> None:
    assert str(ElmanRelu.definition).splitlines() == [
        "ElmanRelu (elman_relu)",
        "  input   x (B, I)",
        "  state   h_prev (B, H)",
        "  weight  w (I, H)",
        "  weight  u (H, H)",
        "  bias    b (H,)",
        "  h_bar = x @ w + h_prev @ u + b",
        "  h = relu(h_bar)",
    ]


# --- codes ----------------------------------------------------------------------------------------

CODES = {
    "declaration",
    "declaration.activation",
    "declaration.arity",
    "declaration.axis",
    "declaration.cell",
    "declaration.clip",
    "declaration.constant",
    "declaration.cycle",
    "declaration.depth",
    "declaration.dims",
    "declaration.file",
    "declaration.foreign",
    "declaration.gradients",
    "declaration.index",
    "declaration.name",
    "declaration.online",
    "declaration.operator",
    "declaration.outputs",
    "declaration.parents",
    "declaration.python",
    "declaration.regulariser",
    "declaration.replaced",
    "declaration.scalar",
    "declaration.shape",
    "declaration.split",
    "declaration.state",
    "declaration.tangent",
    "declaration.twice",
    "declaration.undefined",
    "declaration.unnamed",
    "declaration.unused",
    "declaration.where",
}


def test_a_cell_without_anything_to_differentiate_is_refused() -> None:
    with pytest.raises(DeclarationError, match="read no input, no state and no weight"):

        class Lonely(Cell):
            m, h_prev = Static(H), State(H)
            h = tanh(m)


def test_a_condition_that_is_the_same_everywhere_is_refused() -> None:
    """``x == 0`` is False, and ``x != 0`` True, whatever x will be."""
    with refused("where", "where(False, ...)", "where(abs(x) > 0, b, a)", line="x == 0"):

        class Equal(Cell):
            x, h_prev = Input(H), State(H)
            h = where(x == 0, h_prev, x)

    with refused("where", "the condition is 1 everywhere", line="where(1"):

        class One(Cell):
            x, h_prev = Input(H), State(H)
            h = where(1, h_prev, x)


def test_conditions_stand_in_where_alone() -> None:
    with refused("operator", "x > 0", "where(x > 0, 1, 0)", line="x * (x > 0)"):

        class Masked(Cell):
            x, h_prev = Input(H), State(H)
            h = x * (x > 0) + h_prev


def test_conditions_beside_compound_expressions_are_refused_alike() -> None:
    with refused("operator", "x > 0", "where(x > 0, 1, 0)", line="(2 * x) * (x > 0)"):

        class Compound(Cell):
            x, h_prev = Input(H), State(H)
            h = (2 * x) * (x > 0) + h_prev

    with refused("operator", "x > 0", "where(x > 0, 1, 0)", line="-(x > 0)"):

        class Negative(Cell):
            x, h_prev = Input(H), State(H)
            h = -(x > 0) + h_prev


def test_remainders_and_whole_parts_are_pythons() -> None:
    class Whole(Cell):
        x, h_prev = Input(H), State(H)
        h = x % 2 + 10 * (x // 2) + 7 % (x - 5) + h_prev

    x = np.array([[-3.5, 0.5, 3.25]])
    forward, full = programs_of(Whole).mathematics
    given = {"x": x, "h_prev": 0 * x}
    found = interpret(forward, given, {"B": 1, "H": 3})["h"]
    np.testing.assert_allclose(found, x % 2 + 10 * (x // 2) + 7 % (x - 5), rtol=1e-14)
    d_x = interpret(full, {**given, "d_h": 1 + 0 * x}, {"B": 1, "H": 3})["d_x"]
    np.testing.assert_allclose(d_x, 1 - 7 // (x - 5), rtol=1e-14)


def test_remainders_of_sums_and_of_remainders_are_pythons() -> None:
    class OfSums(Cell):
        x, h_prev = Input(H), State(H)
        h = (x - h_prev) % 0.75 + 10 * ((x % 3 % 1.25) % (h_prev + 2))

    x, h_prev = np.array([[-3.6, 0.5, 3.25]]), np.array([[1.0, -0.25, 8.0]])
    forward, _ = programs_of(OfSums).mathematics
    found = interpret(forward, {"x": x, "h_prev": h_prev}, {"B": 1, "H": 3})["h"]
    expected = (x - h_prev) % 0.75 + 10 * ((x % 3 % 1.25) % (h_prev + 2))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_limits_of_clip_the_wrong_way_round_are_refused() -> None:
    with refused("clip", "clip(x, 1, -1)", line="clip(x, 1, -1)"):

        class Clipped(Cell):
            x, h_prev = Input(H), State(H)
            h = clip(x, 1, -1) + h_prev


@pytest.mark.parametrize("default", [float("nan"), float("inf"), True, "1"])
def test_defaults_of_scalars_are_finite_numbers(default: object) -> None:
    with pytest.raises(DeclarationError, match="a finite number") as caught:
        Scalar(default)  # type: ignore[arg-type]
    assert caught.value.code == "declaration.scalar"


def test_the_name_of_a_final_state_is_taken() -> None:
    with refused("name", "h_last", "final state of h", "'h_last_value'", line="h_last = Weight"):

        class Weighted(Cell):
            x, h_prev = Input(H), State(H)
            h_last = Weight(H)
            h = tanh(x) * h_last + h_prev

    with refused("name", "h_last", line="h_last = tanh(x)"):

        class Computed(Cell):
            x, h_prev = Input(H), State(H)
            h_last = tanh(x)
            h = h_last + h_prev


def test_a_new_value_that_is_declared_is_refused() -> None:
    """A state of a state, and an input of the name of a new value."""
    with refused("state", "h_prev, which is declared as state", line="h_prev_prev = State(H)"):

        class Delay(Cell):
            x, h_prev = Input(H), State(H)
            h_prev_prev = State(H)
            h = x + h_prev_prev

    with refused("state", "h, which is declared as input", "c = h", line="h_prev, h = State(H)"):

        class Hidden(Cell):
            x = Input(H)
            h_prev, h = State(H), Input(H)
            y = x + h_prev * h


def test_a_numpy_array_of_expressions_is_refused() -> None:
    with refused("foreign", "array of 3 expressions", line="np.ones(3) * x"):

        class Vector(Cell):
            x, h_prev = Input(H), State(H)
            h = np.ones(3) * x + h_prev


def test_every_cell_that_ships_can_be_imported_by_its_name() -> None:
    names: dict[str, object] = {}
    exec("from cellgen.cells import *", names)
    assert set(SHIPPED) <= {value for value in names.values() if isinstance(value, type)}
    assert len(cells.__all__) == len(set(cells.__all__)) == len(SHIPPED) + 1


def test_codes_of_declaration_errors_are_stable() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^declaration(?:\.[a-z]+)?\Z", node.value))
    assert found == CODES

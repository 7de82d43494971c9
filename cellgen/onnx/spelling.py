"""Spell the statements of a program as nodes of ONNX.

Input: statements. Output: nodes in a ``GraphWriter``. A pointwise function is spelled from its
expression in C (``cg_tanh({0})``), as everywhere, so that an author's own activation needs nothing:
the text is read as an expression of Python's grammar, whose calls are rows of ``FUNCTIONS``.
Operators across elements go by their traits. Not supported: operators of adjoints.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import numpy as np
from sympy import Expr

from cellgen.errors import UsageError
from cellgen.language.constants import DOUBLE, nearest
from cellgen.language.graph import WRITTEN_AS_PRODUCT
from cellgen.language.notation import Text
from cellgen.language.ops import Form, Operator, Pointwise, operator_of, shape_of
from cellgen.language.value import Apply, Role, Value
from cellgen.onnx.graph import GraphWriter
from cellgen.program.interpret import Sizes, axis_size
from cellgen.program.ssa import Statement
from cellgen.targets.python.loop import PythonNotation

FUNCTIONS: Mapping[str, str] = {
    "cg_exp": "Exp",
    "cg_log": "Log",
    "cg_tanh": "Tanh",
    "cg_sigmoid": "Sigmoid",
    "cg_softplus": "Softplus",
    "cg_sqrt": "Sqrt",
    "cg_erf": "Erf",
    "cg_sin": "Sin",
    "cg_cos": "Cos",
    "cg_pow": "Pow",
    "cg_abs": "Abs",
    "cg_sign": "Sign",
    "cg_floor": "Floor",
    "cg_round": "Round",
    "cg_relu": "Relu",
    "cg_maximum": "Max",
    "cg_minimum": "Min",
}
"""Functions of the runtime header that are operators of ONNX."""

COMPARISONS: Mapping[str, str] = {
    "cg_gt": "Greater",
    "cg_ge": "GreaterOrEqual",
    "cg_lt": "Less",
    "cg_le": "LessOrEqual",
}
"""Those that are conditions, 1 or 0."""

WRITTEN: Mapping[str, str] = {
    "cg_log_sigmoid": "-cg_softplus(-{0})",
    "cg_hard_sigmoid": "cg_clip({0} / 6 + 0.5, 0, 1)",
    "cg_clip": "cg_maximum(cg_minimum({0}, {2}), {1})",
    # exp(x) - 1 = tanh(x / 2) (exp(x) + 1): exact near 0, and -1 and infinity at the ends.
    "cg_expm1": "cg_tanh({0} / 2) * (cg_exp({0}) + 1)",
    # log(1 + x) = log(u) x / (u - 1) with u = 1 + x rounded, which loses nothing near 0.
    "cg_log1p": "cg_where(cg_le(cg_abs(1 + {0} - 1), 0), {0}, cg_where(cg_ge({0}, 1), "
    "cg_log(1 + {0}), cg_log(1 + {0}) * ({0} / (1 + {0} - 1))))",
    "cg_strong_product": "cg_where({0}, cg_where({1}, {0} * {1}, 0), 0)",
    "cg_atan2": "cg_where(cg_gt({1}, 0), cg_atan({0} / {1}), cg_where(cg_lt({1}, 0), "
    "cg_atan({0} / {1}) + cg_where(cg_lt({0}, 0), -1, 1) * 3.141592653589793, "
    "cg_sign({0}) * 1.5707963267948966))",
}
"""Functions that are made of others."""

WRITTEN_IN: Mapping[str, Mapping[str, str]] = {
    "float32": WRITTEN,
    "float64": {
        **WRITTEN,
        "cg_softplus": "cg_relu({0}) + cg_log1p(cg_exp(-cg_abs({0})))",
    },
}
"""By precision: onnxruntime has no Softplus in float64."""

_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
}
_FOLDED: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_RELATIONS: Mapping[type[ast.cmpop], str] = {
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
}


class ValueNotation(PythonNotation):
    """Values alone, derivatives left out; a value is spelled by its number, ``v3``."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.values: dict[str, Value] = {}

    def value(self, value: Value) -> str:
        """Spell a value by a name that Python's grammar leaves as it is."""
        for name, known in self.values.items():
            if known == value:
                return name
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    def real(self, number: Expr) -> str:
        """Spell a number."""
        value = nearest(number, DOUBLE)
        return repr(value) if isfinite(value) else ("1e999" if value > 0 else "-1e999")

    def _stated(self, node: Pointwise) -> Text:
        return self.call(node.row, [self._print(argument) for argument in node.args])


class Speller:
    """Writes statements into a graph; ``known`` are the names there of values that are given."""

    def __init__(
        self, cell: str, writer: GraphWriter, sizes: Sizes, known: Mapping[Value, str]
    ) -> None:
        self.cell = cell
        self.writer = writer
        self.sizes = sizes
        self.known = dict(known)
        self.notation = ValueNotation(sizes)

    def write(self, statement: Statement, suffix: str = "") -> None:
        """Write one statement; its target is called after it."""
        name = f"{statement.target.name}{suffix}"
        expression = statement.expression
        if isinstance(expression, Apply):
            result = self._operator(expression, name)
        else:
            result = self._expression(self.notation(expression), name)
        self.known[statement.target] = result

    # --- pointwise work -----------------------------------------------------------------------

    def _expression(self, text: str, name: str) -> str:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise self._unread(text) from None
        spelled = self._formed(tree, name)
        return self.writer.number(spelled) if isinstance(spelled, float) else spelled

    def _unread(self, text: str) -> UsageError:
        return UsageError(
            f"{self.cell}: {text!r} is C that has no form in ONNX; write the activation with "
            f"cg_ functions and arithmetic, cg_where(c, a, b) for a choice"
        )

    def _formed(self, tree: ast.expr, name: str = "") -> str | float:
        """Form an expression: the name of its value, or a number."""
        form = _FORMED.get(type(tree))
        spelled = None if form is None else form(self, tree, name)
        if spelled is None:
            raise self._unread(ast.unparse(tree))
        return spelled

    def _literal(self, tree: ast.Constant, name: str) -> float | None:
        return float(tree.value) if isinstance(tree.value, int | float) else None

    def _named(self, tree: ast.Name, name: str) -> str | None:
        value = self.notation.values.get(tree.id)
        return None if value is None else self.known[value]

    def _signed(self, tree: ast.UnaryOp, name: str) -> str | float | None:
        if not isinstance(tree.op, ast.USub):
            return None
        operand = self._formed(tree.operand)
        return -operand if isinstance(operand, float) else self.writer.node("Neg", [operand], name)

    def _compared(self, tree: ast.Compare, name: str) -> str | None:
        known = type(tree.ops[0]) in _RELATIONS
        return self._number_of(self._condition(tree), name) if known else None

    def _called(self, tree: ast.Call, name: str) -> str | float | None:
        function = tree.func
        return self._call(function.id, tree.args, name) if isinstance(function, ast.Name) else None

    def _operand(self, tree: ast.expr) -> str:
        spelled = self._formed(tree)
        return self.writer.number(spelled) if isinstance(spelled, float) else spelled

    def _arithmetic(self, tree: ast.BinOp, name: str) -> str | float | None:
        if isinstance(tree.op, ast.Pow):
            return self._power(tree, name)
        if type(tree.op) not in _ARITHMETIC:
            return None
        left, right = self._formed(tree.left), self._formed(tree.right)
        if isinstance(left, float) and isinstance(right, float):
            return _FOLDED[type(tree.op)](left, right)
        operands = [self.writer.number(x) if isinstance(x, float) else x for x in (left, right)]
        return self.writer.node(_ARITHMETIC[type(tree.op)], operands, name)

    def _power(self, tree: ast.BinOp, name: str) -> str:
        """Form a whole power, a low one as a product."""
        base, exponent = self._operand(tree.left), self._formed(tree.right)
        if not isinstance(exponent, float) or exponent > WRITTEN_AS_PRODUCT:
            return self.writer.node("Pow", [base, self._operand(tree.right)], name)
        power = base
        for _ in range(int(exponent) - 1):
            power = self.writer.node("Mul", [power, base], name)
        return power

    def _call(self, function: str, arguments: Sequence[ast.expr], name: str) -> str | float:
        written = WRITTEN_IN[self.writer.dtype]
        if function in written:
            texts = [f"({ast.unparse(argument)})" for argument in arguments]
            return self._formed(ast.parse(written[function].format(*texts), mode="eval").body, name)
        if function in FUNCTIONS:
            operands = [self._operand(argument) for argument in arguments]
            return self.writer.node(FUNCTIONS[function], operands, name)
        if function in COMPARISONS:
            return self._number_of(self._relation(COMPARISONS[function], arguments), name)
        if function == "cg_where":
            condition, *branches = arguments
            operands = [self._condition(condition), *map(self._operand, branches)]
            return self.writer.node("Where", operands, name)
        if function == "cg_atan":
            return self.writer.node("Atan", [self._operand(arguments[0])], name)
        known = sorted((*FUNCTIONS, *COMPARISONS, *WRITTEN, "cg_where"))
        close = difflib.get_close_matches(function, known, n=1)
        raise UsageError(
            f"{self.cell}: {function}() has no form in ONNX; "
            + (f"{close[0]}() has" if close else f"these have: {', '.join(known)}")
        )

    def _condition(self, tree: ast.expr) -> str:
        """Form a condition as a bool of ONNX."""
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            operator = COMPARISONS.get(tree.func.id)
            if operator:
                return self._relation(operator, tree.args)
        if isinstance(tree, ast.Compare) and type(tree.ops[0]) in _RELATIONS:
            return self._relation(_RELATIONS[type(tree.ops[0])], [tree.left, tree.comparators[0]])
        return self.writer.node("Cast", [self._operand(tree)], "holds", to=_BOOL)

    def _relation(self, operator: str, arguments: Sequence[ast.expr]) -> str:
        return self.writer.node(operator, [self._operand(argument) for argument in arguments])

    def _number_of(self, condition: str, name: str = "") -> str:
        return self.writer.node("Cast", [condition], name, to=_FLOATS[self.writer.dtype])

    # --- operators across elements ------------------------------------------------------------

    def _operator(self, node: Apply, name: str) -> str:
        row = operator_of(node)
        for applies, spell in _OPERATORS:
            if applies(row):
                return spell(self, node, [self.known[operand] for operand in node.operands], name)
        raise UsageError(f"{self.cell}: the operator {node.op} has no form in ONNX")

    def _lengths(self, shape: Sequence[Expr]) -> list[int]:
        """Axes of a row behind the first one, which is copied (0)."""
        return [0, *(axis_size(axis, self.sizes) for axis in shape[1:])]

    def _reshaped(self, source: str, shape: Sequence[Expr], name: str) -> str:
        return self.writer.node("Reshape", [source, self.writer.whole(*self._lengths(shape))], name)

    def _product(self, node: Apply, operands: Sequence[str], name: str) -> str:
        a, w = operands
        columns = shape_of(node.operands[1])[1:]
        if len(columns) < 2:
            return self.writer.node("MatMul", [a, w], name)
        flat = self.writer.node("Reshape", [w, self.writer.whole(0, -1)], f"{name}_weights")
        return self._reshaped(self.writer.node("MatMul", [a, flat]), shape_of(node), name)

    def _product_of_heads(self, node: Apply, operands: Sequence[str], name: str) -> str:
        return self.writer.node("Einsum", operands, name, equation="bkd,kde->bke")

    def _transposed(self, node: Apply, operands: Sequence[str], name: str) -> str:
        axes = list(range(len(shape_of(node))))
        axes[-2:] = axes[:-3:-1]
        return self.writer.node("Transpose", operands, name, perm=axes)

    def _joined(self, node: Apply, operands: Sequence[str], name: str) -> str:
        return self.writer.node("Concat", operands, name, axis=int(node.attributes[0]))

    def _part(self, node: Apply, operands: Sequence[str], name: str) -> str:
        axis, start, size = (axis_size(attribute, self.sizes) for attribute in node.attributes)
        bounds = [self.writer.whole(n) for n in (start, start + size, axis)]
        return self.writer.node("Slice", [*operands, *bounds], name)

    def _reshape(self, node: Apply, operands: Sequence[str], name: str) -> str:
        return self._reshaped(operands[0], shape_of(node), name)

    def _summed(self, node: Apply, operands: Sequence[str], name: str) -> str:
        """By the symbolic shape, not the lengths: an axis of length 1 may not be summed."""
        before, after = shape_of(node.operands[0]), shape_of(node)
        gone = len(before) - len(after)
        source = operands[0]
        if gone:
            axes = self.writer.whole(*range(gone))
            source = self.writer.node("ReduceSum", [source, axes], keepdims=0)
        kept = [k for k, n in enumerate(after) if n == 1 and before[k + gone] != 1]
        if not kept:
            return source
        return self.writer.node("ReduceSum", [source, self.writer.whole(*kept)], name, keepdims=1)

    def _first_largest(self, node: Apply, operands: Sequence[str], name: str) -> str:
        """1 where the largest of some axes stands, the first of equal ones: those axes as one."""
        row, write = operator_of(node), self.writer.node
        shape = shape_of(node)
        behind = len(shape) - row.axes_after(node.attributes)
        rows = behind - row.unit_axes(node.attributes)
        sizes = self._lengths(shape)
        flat_shape = [*sizes[:rows], int(np.prod(sizes[rows:behind])), *sizes[behind:]]
        flat = write("Reshape", [operands[0], self.writer.whole(*flat_shape)])
        largest = write("ReduceMax", [flat], axes=[rows], keepdims=1)
        equal = self._number_of(write("Equal", [flat, largest]))
        count = write("CumSum", [equal, self.writer.constant(np.asarray(rows), "axis")])
        first = self._number_of(write("Equal", [count, self.writer.number(1.0)]))
        return self._reshaped(write("Mul", [equal, first]), shape, name)

    def _running_sum(self, node: Apply, operands: Sequence[str], name: str) -> str:
        row = operator_of(node)
        assert row.running is not None
        axis = len(shape_of(node)) - 1 - row.axes_after(node.attributes)
        operands = [*operands, self.writer.constant(np.asarray(axis), "axis")]
        return self.writer.node("CumSum", operands, name, reverse=int(row.running.is_reversed))

    def _combined(self, node: Apply, operands: Sequence[str], name: str) -> str:
        """Of twice as many units in each round: what n units give with what the n before them do.

        ONNX has a running sum alone.
        """
        row, shape = operator_of(node), shape_of(node)
        assert row.running is not None
        assert row.running.combine is not None  # as in every row that authors write
        axis = len(shape) - 1 - row.axes_after(node.attributes)
        length, count, combined = axis_size(shape[axis], self.sizes), 1, operands[0]
        before, after = (Value(side, shape, Role.LOCAL, "onnx") for side in ("before", "after"))
        text = self.notation(row.running.combine(before, after))
        while count < length:
            self.known[before] = self._cut(combined, axis, 0, length - count)
            self.known[after] = self._cut(combined, axis, count, length)
            both = [self._cut(combined, axis, 0, count), self._expression(text, "")]
            combined, count = self.writer.node("Concat", both, name, axis=axis), 2 * count
        return combined

    def _cut(self, operand: str, axis: int, start: int, end: int) -> str:
        bounds = [self.writer.whole(n) for n in (start, end, axis)]
        return self.writer.node("Slice", [operand, *bounds])


_FORMED: Mapping[type[ast.expr], Callable[..., str | float | None]] = {
    ast.Constant: Speller._literal,
    ast.Name: Speller._named,
    ast.UnaryOp: Speller._signed,
    ast.BinOp: Speller._arithmetic,
    ast.Compare: Speller._compared,
    ast.Call: Speller._called,
}
"""How a piece of an expression is formed; None where ONNX has no such thing."""

_BOOL = 9
_FLOATS: Mapping[str, int] = {"float32": 1, "float64": 11}
"""Types of elements, by the numbers that ``Cast`` takes."""


def _is_product_of_heads(row: Operator) -> bool:
    product = row.product
    return product is not None and product.by_head and product.form is Form.NN and not product.onto


_OPERATORS: tuple[
    tuple[Callable[[Operator], bool], Callable[[Speller, Apply, Sequence[str], str], str]], ...
] = (
    (lambda row: row.is_matmul, Speller._product),
    (_is_product_of_heads, Speller._product_of_heads),
    (lambda row: row.is_transpose, Speller._transposed),
    (lambda row: row.is_join, Speller._joined),
    (lambda row: row.is_part, Speller._part),
    (lambda row: row.is_reshape, Speller._reshape),
    (lambda row: row.is_sum, Speller._summed),
    (lambda row: row.is_indicator, Speller._first_largest),
    (lambda row: row.running is not None and row.running.adds, Speller._running_sum),
    (lambda row: row.running is not None and row.running.is_written, Speller._combined),
)
"""How an operator is spelled, by its traits; the first that holds."""

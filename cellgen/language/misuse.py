"""Explain Python's own errors about expressions and names: what causes them, what to write instead.

Input: an error that Python or SymPy raised. Output: what it said, and a hint. The command line asks
for it where an author's file failed. In a program the language asks at once: values, and SymPy's
expressions and relations of them, raise an ``ExpressionError`` where Python would raise a
``TypeError`` that says nothing of cells.
Not explained in a program: a name of a class body inside a comprehension there, which Python looks
for in the module, where nobody can answer.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Collection

from cellgen.errors import DeclarationError
from cellgen.language.lines import SourceLine, caller


class ExpressionError(DeclarationError, TypeError):
    """An expression was used as a number or a function; SymPy expects such errors as TypeError."""

    code = "declaration.python"


class UnknownAttributeError(DeclarationError, AttributeError):
    """An expression was asked for what an array or a tensor has."""

    code = "declaration.python"


class UnknownNameError(DeclarationError, NameError):
    """A class body reads a name that nothing has."""

    code = "declaration.python"


def explanation(error: BaseException, line: SourceLine | None = None, source: str = "") -> str:
    """Say what Python said, and what is known to cause it; ``source`` is the author's file."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = next((text for cause in _CAUSES if (text := cause(error, line, source))), "")
    return f"{type(error).__name__}: {said}" + (f"; {hint}" if hint else "")


def _matmul_of_expressions(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and "for @" in str(error)):
        return ""
    return (
        "`@` needs a named value or another product on one side: name one side first "
        "(`a = r * h_prev`, then `a @ w`), or write matmul(r * h_prev, w)"
    )


def _value_called(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and "object is not callable" in str(error)):
        return ""
    return (
        "a value of a class body hides the function of its name there: give the value another name "
        "(`sigmoid_x = sigmoid(x)`); a product is written with *"
    )


def _name_in_comprehension(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not isinstance(error, NameError) or line is None:
        return ""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
    for body in ast.walk(ast.parse(text)):
        if not isinstance(body, ast.ClassDef):
            continue
        stored = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and _is_stored(n)}
        inside = any(
            isinstance(node, comprehensions)
            and node.lineno <= line.number <= (node.end_lineno or node.lineno)
            for node in ast.walk(body)
        )
        if inside and error.name in stored:
            return (
                f"a comprehension in a class body cannot see the names of that body, such as "
                f"{error.name}: write the terms out, use map(...), or build the cell in a function"
            )
    return ""


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _name_of_cellgen(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not isinstance(error, NameError) or not error.name:
        return ""
    return advice_on_name(error.name)


def advice_on_name(name: str, own: Collection[str] = (), annotated: Collection[str] = ()) -> str:
    """What to do about a name that nothing has: ``own`` are those of the class body so far."""
    module = sys.modules["cellgen"]
    names = [known for known in dir(module) if known in module.EXPORTS]
    if name in annotated:
        return f"`{name}: ...` only annotates: write {name} = ..., such as {name} = Input(I)"
    if name in names:
        return f"add it: from cellgen import {name}"
    if name in _OF_OTHERS:
        return _OF_OTHERS[name]
    if f"{name}_prev" in own:
        return f"the value before the step is {name}_prev"
    close = difflib.get_close_matches(name, [*own, *names], n=1)
    return f"did you mean {close[0]}?" if close else ""


def advice_on_attribute(name: str, value: str) -> str:
    """What to write for an attribute of arrays and tensors; "" for what none of them has."""
    return ATTRIBUTES.get(name, "").format(value)


def _attribute(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not isinstance(error, AttributeError) or "object has no attribute" not in str(error):
        return ""
    return advice_on_attribute(error.name or "", "a")


def _foreign_function(error: BaseException, line: SourceLine | None, text: str) -> str:
    wanted = (
        r"expression to float|float\(\) argument|loop of ufunc does not support|__array|"
        r"must be Tensor, not|requires ndarray or scalar|Error interpreting argument to"
    )
    if not (isinstance(error, TypeError) and re.search(wanted, str(error))):
        return ""
    return (
        "functions of math, numpy, torch and jax take numbers and arrays; an equation uses "
        "cellgen's own: from cellgen import tanh, exp, sqrt, ..."
    )


def _unknown_argument(error: BaseException, line: SourceLine | None, text: str) -> str:
    wanted = r"(\w+)\(\) got an unexpected keyword argument '(\w+)'"
    said = re.match(wanted, str(error)) if isinstance(error, TypeError) else None
    function = getattr(sys.modules["cellgen"], said[1], None) if said else None
    if said is None or not inspect.isroutine(function):
        return ""
    return f"it is {said[1]}{inspect.signature(function)}".partition(" -> ")[0]


def _truth_value(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and "truth value" in str(error)):
        return ""
    word, written = next(iter(_conditions(line or caller()[0])), ("if", "where(condition, a, b)"))
    return f"an equation has no value yet, so `{word}` cannot decide: write {written}"


def _conditions(line: SourceLine) -> list[tuple[str, str]]:
    """What in a statement asks for a truth, and what to write instead, the outermost first."""
    tree = _tree_of(line.file)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {a.asname or a.name for i in imports if i.module == "cellgen" for a in i.names}
    pairs = [pair for node in _nodes_at(tree, line) for pair in _condition(node)]
    return [pair for pair in pairs if pair[0] != "max" or not own & {"max", "*"}]


def _condition(node: ast.AST) -> list[tuple[str, str]]:
    match node:
        case ast.If() | ast.While():
            return [("if", f"where({_written(node.test)}, a, b)")]
        case ast.IfExp():
            word = "if"
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
        case ast.Compare() if len(node.ops) > 1:
            word = "and"
        case ast.UnaryOp(op=ast.Not()):
            word = "not"
        case ast.Call(func=ast.Name(id=("min" | "max") as word), args=[_, _, *_], keywords=[]):
            pass
        case _:
            return []
    return [(word, _written(node))]


def _written(node: ast.expr) -> str:
    """An expression as cellgen takes it: what would ask for a truth is written otherwise."""
    match node:
        case ast.IfExp():
            return f"where({', '.join(map(_written, (node.test, node.body, node.orelse)))})"
        case ast.BoolOp():
            sign = " & " if isinstance(node.op, ast.And) else " | "
            return sign.join(f"({_written(value)})" for value in node.values)
        case ast.Compare() if len(node.ops) > 1:
            terms = [node.left, *node.comparators]
            pairs = zip(terms, node.ops, terms[1:], strict=False)
            parts = [ast.unparse(ast.Compare(a, [sign], [b])) for a, sign, b in pairs]
            return " & ".join(f"({part})" for part in parts)
        case ast.UnaryOp(op=ast.Not()):
            return f"~({_written(node.operand)})"
        case ast.Call(
            func=ast.Name(id=("min" | "max") as word), args=[first, _, *_] as terms, keywords=[]
        ):
            written = _written(first)
            for term in terms[1:]:
                written = f"{word}imum({written}, {_written(term)})"
            return written
    return ast.unparse(node)


def _tree_of(file: str) -> ast.Module:
    """A file as it is parsed; an empty one where the source is not there."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _nodes_at(tree: ast.Module, line: SourceLine) -> list[ast.AST]:
    """What stands in the smallest statement at a line."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and node.lineno <= line.number <= (node.end_lineno or node.lineno)
    ]
    if not around:
        return []
    last = around[-1]  # the innermost: breadth comes first
    inner = last.test if isinstance(last, ast.If | ast.While) else last
    return [last, *ast.walk(inner)] if inner is not last else [*ast.walk(last)]


def _truth_as_number(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and re.search(r"operand.*'bool'", str(error))):
        return ""
    return "True and False are no numbers beside an expression: write 1 and 0"


_OF_OTHERS = {
    "dropout": "a mask is an input: cellgen.regularise.recurrent_dropout(MyCell) gives a cell one",
    "Parameter": "write Weight(I, H) or Bias(H)",
    "Linear": "write x @ w + b with w = Weight(I, H) and b = Bias(H)",
    "cat": "write concat(a, b)",
    "stack": "write concat(a, b)",
    "chunk": "write split(a, 2)",
    "einsum": "write a @ w, or products and sum(a * b)",
    "clamp": "write clip(a, low, high)",
    "argmax": "write hardmax(a), 1 at the largest unit and 0 elsewhere",
}
"""Names of other libraries, and what to write instead."""

_BY_UNITS = (
    "equations hold for all units at once; see split, heads, flatten, expand_dims, transpose"
)
ATTRIBUTES = {
    **{name: f"write {name}({{}})" for name in ("sigmoid", "relu", "softmax", "softplus", "sum")},
    **{name: f"write {name}({{}})" for name in ("mean", "max", "norm", "cumsum", "logsumexp")},
    **{name: f"write {name}({{}})" for name in ("cumprod", "cummax", "logcumsumexp")},
    **dict.fromkeys(("T", "mT", "t", "transpose"), "write transpose({})"),
    **dict.fromkeys(("dot", "mm", "bmm", "matmul"), "write {} @ b"),
    **dict.fromkeys(("clamp", "clip"), "write clip({}, low, high)"),
    **dict.fromkeys(("reshape", "view", "squeeze", "unsqueeze", "permute", "size"), _BY_UNITS),
    "min": "write -max(-{}), or minimum(a, b) of two",
    "chunk": "write split({}, 2)",
    "pow": "write {} ** b",
    "detach": "write stop_gradient({})",
    "argmax": "write hardmax({}), 1 at the largest unit and 0 elsewhere",
}
"""What arrays and tensors have, and what to write instead."""


_CAUSES: tuple[Callable[[BaseException, SourceLine | None, str], str], ...] = (
    _matmul_of_expressions,
    _value_called,
    _name_in_comprehension,
    _name_of_cellgen,
    _attribute,
    _unknown_argument,
    _foreign_function,
    _truth_value,
    _truth_as_number,
)

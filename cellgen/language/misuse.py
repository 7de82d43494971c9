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
import re
import sys
from collections.abc import Callable

from cellgen.errors import DeclarationError
from cellgen.language.lines import SourceLine


class ExpressionError(DeclarationError, TypeError):
    """An expression was used as a number or a function; SymPy expects such errors as TypeError."""

    code = "declaration.python"


class UnknownNameError(DeclarationError, NameError):
    """A class body reads a name that nothing has."""

    code = "declaration.python"


def explanation(error: BaseException, line: SourceLine | None = None, source: str = "") -> str:
    """Say what Python said, and what is known to cause it; ``source`` is the author's file."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = next((found for cause in _CAUSES if (found := cause(error, line, source))), "")
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
    module = sys.modules["cellgen"]
    names = [name for name in dir(module) if name in module.EXPORTS]
    if error.name in names:
        return f"add it: from cellgen import {error.name}"
    close = difflib.get_close_matches(error.name, names, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _foreign_function(error: BaseException, line: SourceLine | None, text: str) -> str:
    wanted = r"expression to float|float\(\) argument|loop of ufunc does not support|__array"
    if not (isinstance(error, TypeError) and re.search(wanted, str(error))):
        return ""
    return (
        "functions of math and numpy take numbers; an equation uses cellgen's own: "
        "from cellgen import tanh, exp, sqrt, ..."
    )


def _truth_value(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and "truth value" in str(error)):
        return ""
    return "an equation has no value yet, so `if` cannot decide: write where(condition, a, b)"


def _truth_as_number(error: BaseException, line: SourceLine | None, text: str) -> str:
    if not (isinstance(error, TypeError) and re.search(r"operand.*'bool'", str(error))):
        return ""
    return "True and False are no numbers beside an expression: write 1 and 0"


_CAUSES: tuple[Callable[[BaseException, SourceLine | None, str], str], ...] = (
    _matmul_of_expressions,
    _value_called,
    _name_in_comprehension,
    _name_of_cellgen,
    _foreign_function,
    _truth_value,
    _truth_as_number,
)

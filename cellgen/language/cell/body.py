"""Record a class body: each assignment, and the line on which it stands.

Nothing is parsed. The namespace turns an assignment into a declaration or an equation, and hands
later lines a symbol of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import numpy as np
from sympy import Expr
from sympy.logic.boolalg import Boolean

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell.declaration import DECLARATIONS, Declaration
from cellgen.language.constants import in_few_digits
from cellgen.language.graph import symbols_in, values_in
from cellgen.language.lines import SourceLine, caller
from cellgen.language.misuse import UnknownNameError, advice_on_name
from cellgen.language.names import check_argument, check_name
from cellgen.language.ops import from_sympy, shape_of
from cellgen.language.value import Dim, Role, Value
from cellgen.runtime.names import GREEK, spelled


def _located(error: DeclarationError, cell: str, line: SourceLine) -> DeclarationError:
    message = Exception.__str__(error)
    return DeclarationError(f"{cell}: {message}\n  {line}", code=error.code)


class Namespace(dict[str, Any]):
    """The class body's namespace: turns assignments into declarations and equations.

    ``ancestors`` are the owners of values that equations may read beside the cell's own, ``states``
    names of states that the parents have.
    """

    is_class_body = True

    def __init__(
        self, class_name: str, owner: str, ancestors: Iterable[str], states: Iterable[str]
    ) -> None:
        super().__init__()
        self.class_name = class_name
        self.owner = owner
        self.owners = {owner, *ancestors}
        self.states = set(states)
        self.declarations: dict[str, Declaration] = {}
        self.equations: dict[str, Expr] = {}
        self.aliases: dict[str, Value] = {}
        self.lines: dict[str, SourceLine] = {}
        self.selected: dict[str, SourceLine] = {}

    def __setitem__(self, name: str, item: Any) -> None:
        if name.startswith("__") and name.endswith("__"):
            super().__setitem__(name, item)
            return
        line, _ = caller()
        try:
            super().__setitem__(name, self._record(name, item, line))
        except DeclarationError as error:
            raise _located(error, self.class_name, line) from None

    def _record(self, name: str, item: Any, line: SourceLine) -> Any:
        """Store what an assignment means and return what later lines see under the name."""
        if name in ("outputs", "gradients"):
            return self._selection(name, item, line)
        if isinstance(item, Declaration):
            return self._declare(name, item, line)
        if isinstance(item, FunctionType) and item in DECLARATIONS:
            raise DeclarationError(
                f"{name} is {item.__name__} itself, which lacks its brackets; write "
                f"{name} = {DECLARATIONS[item]}",
                code="declaration.dims",
            )
        if isinstance(item, Value) and f"{name}_prev" not in self.states:
            return self._alias(name, item, line)
        if isinstance(item, Expr | Boolean) and not _is_length(item):
            return self._equation(name, item, line)
        if isinstance(item, np.ndarray) and any(isinstance(e, Expr) for e in item.flat):
            raise DeclarationError(
                f"{name} is a NumPy array of {item.size} expressions, expected one expression: a "
                f"symbol stands for each of its elements; write numbers as they are, and arrays as "
                f"weights or inputs",
                code="declaration.foreign",
            )
        if f"{name}_prev" in self.states:
            raise DeclarationError(
                f"{name} is {accept.quoted(item)}, expected one expression: it is the new value of "
                f"the state {name}_prev; write {name} = ... of values that this body names",
                code="declaration.foreign",
            )
        return item

    def __missing__(self, name: str) -> Any:
        """Find a value under the other spelling of its name: ``alpha`` is ``α``."""
        for other in self.lines:
            if _same_letters(name, other):
                return self[other]
        frame = sys._getframe(1)
        known = frame.f_globals, frame.f_builtins, frame.f_code.co_freevars
        is_read = frame.f_locals is self and not name.startswith("__")
        if not is_read or any(name in names for names in known):
            raise KeyError(name)
        line, _ = caller()
        advice = advice_on_name(name, self.lines, self.get("__annotations__", ()))
        message = f"{self.class_name}: NameError: name {name!r} is not defined"
        raise UnknownNameError(f"{message}{f'; {advice}' if advice else ''}\n  {line}")

    def _new_name(self, name: str, what: str, line: SourceLine) -> None:
        check_name(name, what)
        if name in self.lines:
            raise DeclarationError(
                f"{name} is assigned twice in one class body; a symbol stands for one equation: "
                f"use another name (a subclass may re-state it). First assigned at\n"
                f"  {self.lines[name]}\nand again at",
                code="declaration.twice",
            )
        self.lines[name] = line

    def _declare(self, name: str, item: Declaration, line: SourceLine) -> Value:
        check_argument(name, item.role.value)
        self._new_name(name, item.role.value, line)
        if item.role is Role.STATE and not name.endswith("_prev"):
            raise DeclarationError(
                f"state {name!r} must be named after the value it carries: "
                f"write {name}_prev = State(...), and {name} = ... for its new value",
                code="declaration.state",
            )
        if item.role is Role.STATE:
            after, what = name.removesuffix("_prev"), f"the new value of state {name!r},"
            check_name(after, what)
            check_argument(after, what)
            self.states.add(name)
        self.declarations[name] = item
        return Value(name, item.shape, item.role, self.owner, len(self.lines))

    def _alias(self, name: str, item: Value, line: SourceLine) -> Value:
        self._check_owners(item)
        self._new_name(name, "value", line)
        self.aliases[name] = item
        return item

    def _equation(self, name: str, item: Expr, line: SourceLine) -> Value:
        self._new_name(name, "value", line)
        if not symbols_in(item):
            raise DeclarationError(
                f"the equation of {name} folds to the constant {in_few_digits(item)} (SymPy "
                f"simplifies x - x and x / x before cellgen sees them), which has no shape; drop "
                f"it or use keep(...)",
                code="declaration.constant",
            )
        self._check_owners(item)
        expression = from_sympy(item)
        self.equations[name] = expression
        return Value(name, shape_of(expression), Role.LOCAL, self.owner, len(self.lines))

    def _check_owners(self, item: Expr) -> None:
        for value in sorted(values_in(item), key=str):
            if value.owner not in self.owners:
                raise DeclarationError(
                    f"{value.name} belongs to {value.owner}, which {self.class_name} does not "
                    f"inherit from; declare it here or subclass that cell",
                    code="declaration.foreign",
                )

    def _selection(self, name: str, item: Any, line: SourceLine) -> tuple[Value, ...]:
        if name in self.selected:
            raise DeclarationError(
                f"{name} is assigned twice in one class body; list every value in one place. "
                f"First assigned at\n  {self.selected[name]}\nand again at",
                code="declaration.twice",
            )
        self.selected[name] = line
        chosen = tuple(item) if isinstance(item, tuple | list) else (item,)
        if not chosen and name == "outputs":
            raise DeclarationError(
                "outputs is empty; list the values that a step returns, or leave it out",
                code="declaration.outputs",
            )
        for value in chosen:
            if not isinstance(value, Value):
                raise DeclarationError(
                    f"{name} must list named values of this cell, found {accept.quoted(value)}; "
                    f"give the expression a name first",
                    code=f"declaration.{name}",
                )
            self._check_owners(value)
        return chosen


def _is_length(item: Expr) -> bool:
    """``wide = 2 * H`` in a class body is a length, a Python value like a number."""
    symbols = symbols_in(item)
    return bool(symbols) and all(isinstance(symbol, Dim) for symbol in symbols)


def _same_letters(name: str, other: str) -> bool:
    """Whether two names are one, a Greek letter spelled out in one of them."""
    greek = not GREEK.keys().isdisjoint(name + other)
    return name != other and greek and spelled(name) == spelled(other)

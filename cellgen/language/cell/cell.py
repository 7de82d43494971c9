"""Declare a cell: a class whose body is the system of equations.

Input: the author's class body. Output: ``Cell.definition``, a frozen ``Definition`` with values,
equations in dependency order, outputs and gradients. Nothing is parsed: the class namespace records
each assignment together with the line it stands on and hands later lines a symbol of that name.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, cast

import numpy as np
from sympy import Expr, sympify
from sympy.logic.boolalg import Boolean

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.constants import DOUBLE, exact_constant, nearest
from cellgen.language.graph import Sharing, replaced, symbols_in, values_in
from cellgen.language.lines import SourceLine, caller, located
from cellgen.language.misuse import UnknownNameError, explanation
from cellgen.language.names import (
    Names,
    cell_name,
    check_argument,
    check_cell_name,
    check_dim,
    check_identifier,
    check_name,
)
from cellgen.language.notation import text
from cellgen.language.ops import from_sympy, operator_of, shape_of
from cellgen.language.value import Apply, B, Dim, Role, Shape, T, Value, format_axis, format_shape
from cellgen.runtime.names import GREEK, spelled

LONGEST = 2**31 - 1
"""The longest axis that a declaration may state as a number."""

ORDER_STEP = 1000
"""Between the orders of two declarations, so that derived values print beside their origin."""


@dataclass(frozen=True)
class Declaration:
    """What ``Input(I)``, ``State(H)``, ... return; the assignment gives it its name."""

    role: Role
    dims: Shape
    default: float | None = None
    gradient: bool = True
    initial: float = 0.0

    def __post_init__(self) -> None:
        for dim in self.dims:
            if dim.has(B, T):
                raise DeclarationError(
                    f"{self.role.value} of shape {format_shape(self.dims)}: B and T are added by "
                    f"cellgen; give the unit axes only",
                    code="declaration.dims",
                )
            terms = dim.as_coefficients_dict().items()
            if not all(
                (term == 1 or isinstance(term, Dim)) and count.is_Integer and 0 < count <= LONGEST
                for term, count in terms
            ):
                raise DeclarationError(
                    f"{self.role.value}: {dim} is no axis length; use I, H, Dim('D'), integers, "
                    f"their sums and integer multiples",
                    code="declaration.dims",
                )
            for symbol in sorted(dim.free_symbols, key=str):
                check_dim(str(symbol))

    @property
    def shape(self) -> Shape:
        """Its axes, B first where every row has its own."""
        batched = self.role in (Role.INPUT, Role.STATE, Role.STATIC)
        return (B, *self.dims) if batched else self.dims

    @located
    def _unnamed(self, *_: object) -> Expr:
        raise DeclarationError(
            f"name the {self.role.value} first, then use it: a declaration such as Input(I) gets "
            f"its name from its own assignment",
            code="declaration.unnamed",
        )

    __matmul__ = __rmatmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = _unnamed
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _sympy_ = _unnamed
    __lt__ = __le__ = __gt__ = __ge__ = _unnamed


def _check_flag(kind: str, gradient: object) -> None:
    if not isinstance(gradient, bool):
        raise DeclarationError(
            f"{kind}(..., gradient={accept.shown(gradient)}): expected True or False",
            code="declaration.gradients",
        )


def _declaration(
    role: Role, dims: tuple[Expr | int, ...], minimum: int = 1, gradient: bool = True
) -> Declaration:
    if len(dims) < minimum:
        raise DeclarationError(
            f"{role.value.capitalize()}() needs at least {minimum} axis length"
            f"{'s' if minimum > 1 else ''}, for example {role.value.capitalize()}(H)",
            code="declaration.dims",
        )
    _check_flag(role.value.capitalize(), gradient)
    for dim in dims:
        if not isinstance(dim, Expr) and not accept.is_whole(dim, -LONGEST, LONGEST):
            raise DeclarationError(
                f"{role.value}: {accept.shown(dim)} is no axis length; use I, H, Dim('D'), "
                f"integers, their sums and integer multiples",
                code="declaration.dims",
            )
    axes = (dim if isinstance(dim, Expr) else sympify(accept.plain(dim)) for dim in dims)
    return Declaration(role, tuple(axes), gradient=gradient)


@located
def Input(*dims: Expr | int, gradient: bool = True) -> Declaration:  # noqa: N802 - a declaration
    """Declare a per-step input: ``Input(I)`` has shape (B, I) at every step.

    With ``gradient=False`` (a mask, an elapsed time) its gradient is not formed.
    """
    return _declaration(Role.INPUT, dims, gradient=gradient)


@located
def State(*dims: Expr | int, initial: float = 0.0) -> Declaration:  # noqa: N802
    """Declare a carried state named ``<value>_prev``: ``h_prev = State(H)`` has shape (B, H).

    ``initial`` is where it starts where nobody says otherwise, and after a reset: a number, or
    ``-math.inf`` for a running maximum.
    """
    start = accept.number(initial)
    if start is None or not _starts_everywhere(start):
        raise DeclarationError(
            f"State(..., initial={accept.shown(initial)}): expected a Python number that float32 "
            f"holds, or an infinity, such as -math.inf",
            code="declaration.state",
        )
    return replace(_declaration(Role.STATE, dims), initial=start)


def _starts_everywhere(number: float) -> bool:
    """Whether it is a number, or an infinity, in every precision."""
    return number in (math.inf, -math.inf) or abs(number) <= float(np.finfo(np.float32).max)


@located
def Static(*dims: Expr | int, gradient: bool = False) -> Declaration:  # noqa: N802
    """Declare a per-row value that is constant over time (a dropout mask, a context): (B, H).

    With ``gradient=True`` (a context that learns) its gradient is formed, over time that of all
    steps.
    """
    return _declaration(Role.STATIC, dims, gradient=gradient)


@located
def Weight(*dims: Expr | int, gradient: bool = True) -> Declaration:  # noqa: N802
    """Declare a weight shared by rows and steps: ``Weight(I, H)`` has shape (I, H).

    With ``gradient=False`` (a mask, a fixed matrix) its gradient is not formed.
    """
    return _declaration(Role.WEIGHT, dims, gradient=gradient)


@located
def Bias(*dims: Expr | int) -> Declaration:  # noqa: N802
    """Declare a rank-1 weight; differs from ``Weight(H)`` in its usual initial value, zero."""
    return _declaration(Role.BIAS, dims)


@located
def Scalar(default: float | Expr, *, gradient: bool = False) -> Declaration:  # noqa: N802
    """Declare a run-time number with a default, such as a forget bias. A constant such as
    ``sympy.pi`` is rounded to float64, as every number that is given at run time.

    With ``gradient=True`` its gradient is formed, over time that of all steps and rows.
    """
    _check_flag("Scalar", gradient)
    given = default if isinstance(default, Expr) else accept.plain(default)
    if given is None or isinstance(given, bool) or symbols_in(number := sympify(given)):
        raise DeclarationError(
            f"Scalar({accept.shown(default)}): the default must be a finite number",
            code="declaration.scalar",
        )
    try:
        exact = exact_constant(number)
    except DeclarationError as error:
        why = Exception.__str__(error).removeprefix("an equation holds ")
        raise DeclarationError(
            f"Scalar({accept.shown(default)}): the default must be a finite number, found {why}",
            code="declaration.scalar",
        ) from None
    return Declaration(Role.SCALAR, (), nearest(exact, DOUBLE), gradient)


@dataclass(frozen=True)
class Equation:
    """``target = expression``, and where it was written."""

    target: Value
    expression: Expr
    line: SourceLine

    def __str__(self) -> str:
        return f"{self.target} = {text(self.expression)}"


@dataclass(frozen=True)
class Definition:
    """A cell as data: what the class body said, checked.

    ``outputs`` is what ``forward`` returns (the author's list, if ``states_outputs``, or every new
    state); ``gradients`` what ``backward`` returns, or None where the author left the choice to
    ``derive``; ``fixed`` are values declared without gradient, ``initials`` where states start that
    do not start from 0. ``is_partial`` marks
    what ``replaced`` makes: a parent, not yet a cell.
    """

    name: str
    class_name: str
    origin: str
    doc: str
    declared: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]
    gradients: tuple[Value, ...] | None
    defaults: Mapping[str, float]
    lines: Mapping[str, SourceLine]
    aliases: Mapping[str, str]
    states_outputs: bool = False
    is_partial: bool = False
    fixed: tuple[Value, ...] = ()
    initials: Mapping[str, float] = field(default_factory=dict)

    def with_role(self, *roles: Role) -> tuple[Value, ...]:
        return tuple(value for value in self.declared if value.role in roles)

    def learning(self, *roles: Role) -> tuple[Value, ...]:
        """Values of some roles whose gradients are formed."""
        return tuple(value for value in self.with_role(*roles) if value not in self.fixed)

    @property
    def requested(self) -> tuple[Value, ...]:
        """Statics and scalars whose gradients were asked for, where they were declared or in
        ``gradients``."""
        constant = self.with_role(Role.STATIC, Role.SCALAR)
        return tuple(v for v in constant if v not in self.fixed or v in (self.gradients or ()))

    @property
    def states(self) -> tuple[Value, ...]:
        return self.with_role(Role.STATE)

    def initial_of(self, state: Value) -> float:
        """Where a state starts."""
        return self.initials.get(str(state.name), 0.0)

    @property
    def parameters(self) -> tuple[Value, ...]:
        return self.with_role(Role.WEIGHT, Role.BIAS)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Run-time dimensions in order of first appearance, B first."""
        found: dict[Dim, None] = {B: None}
        for value in (*self.declared, *(equation.target for equation in self.equations)):
            for axis in value.shape:
                for dim in sorted(axis.free_symbols, key=str):
                    found.setdefault(dim, None)
        return tuple(found)

    def with_outputs(self, outputs: tuple[Value, ...]) -> Definition:
        """Return the same cell with other outputs."""
        return replace(self, outputs=outputs)

    def next_state(self, state: Value) -> Value:
        """The value that a state takes after the step: ``h`` for ``h_prev``."""
        name = _next_name(state)
        return next(e.target for e in self.equations if e.target.name == name)

    def __str__(self) -> str:
        lines = [f"{self.class_name} ({self.name})"]
        lines += [
            f"  {v.role.value:7} {v.name} {format_shape(v.shape)}"
            + (f" from {self.initial_of(v)}" if self.initial_of(v) else "")
            for v in self.declared
        ]
        lines += [f"  {equation}" for equation in self.equations]
        return "\n".join(lines)


def _located(error: DeclarationError, cell: str, line: SourceLine) -> DeclarationError:
    message = Exception.__str__(error)
    return DeclarationError(f"{cell}: {message}\n  {line}", code=error.code)


class _Namespace(dict[str, Any]):
    """The class body's namespace: turns assignments into declarations and equations."""

    def __init__(self, class_name: str, owner: str, bases: tuple[type, ...]) -> None:
        super().__init__()
        self.class_name = class_name
        self.owner = owner
        self.owners = {owner} | {
            base.definition_owner for cls in bases for base in cls.__mro__ if _is_cell(base)
        }
        self.states = {
            str(state.name) for base in bases if _is_cell(base) for state in base.definition.states
        }
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
        return item

    def __missing__(self, name: str) -> Any:
        """Find a value under the other spelling of its name: ``alpha`` is ``α``."""
        for other in self.lines:
            if _same_letters(name, other):
                return self[other]
        frame = sys._getframe(1)
        known = frame.f_globals, frame.f_builtins, frame.f_code.co_freevars
        asked = frame.f_locals is self and not name.startswith("__")
        if not asked or any(name in names for names in known):
            raise KeyError(name)
        line, _ = caller()
        error = NameError(f"name {name!r} is not defined", name=name)
        message = f"{self.class_name}: {explanation(error)}\n  {line}"
        raise UnknownNameError(message)

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
                f"the equation of {name} folds to the constant {item} (SymPy simplifies x - x and "
                f"x / x before cellgen sees them), which has no shape; drop it or use keep(...)",
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
                    f"{name} must list named values of this cell, found {accept.shown(value)}; "
                    f"give the expression a name first",
                    code=f"declaration.{name}",
                )
            self._check_owners(value)
        return chosen


def _is_length(item: Expr) -> bool:
    """``wide = 2 * H`` in a class body is a length, a Python value like a number."""
    symbols = symbols_in(item)
    return bool(symbols) and all(isinstance(symbol, Dim) for symbol in symbols)


def _is_cell(cls: type) -> TypeGuard[CellMeta]:
    return isinstance(cls, CellMeta) and "definition_owner" in cls.__dict__


_OWN_ATTRIBUTES = ("definition", "definition_owner", "replaced", "mro", "reference")
"""Attributes of a cell class that a value of that name does not replace."""


def _same_letters(name: str, other: str) -> bool:
    """Whether two names are one, a Greek letter spelled out in one of them."""
    greek = not GREEK.keys().isdisjoint(name + other)
    return name != other and greek and spelled(name) == spelled(other)


def _class_name(
    class_name: str, name: object, unknown: Mapping[str, object], renamed: object
) -> str | None:
    """The ``name`` of ``class X(Cell, name=...)``, where nothing else may stand.

    ``renamed`` is what ``replaced`` puts there.
    """
    words = renamed if isinstance(renamed, tuple) else (renamed,)
    if renamed is not None and not (len(words) == 2 and all(isinstance(w, str) for w in words)):
        unknown = {**unknown, "renamed": renamed}
    if unknown:
        raise DeclarationError(
            f"{class_name}: unknown {', '.join(unknown)} in the class statement, expected name "
            f"alone: class {class_name}(Cell, name='...')",
            code="declaration.cell",
        )
    if name is None or isinstance(name, str):
        return name
    raise DeclarationError(
        f"{class_name}: name is {accept.shown(name)}, expected a text, such as "
        f"name={cell_name(class_name)!r}; leave it out for that one",
        code="declaration.name",
    )


class CellMeta(type):
    """Build a ``Definition`` from a class body."""

    definition: Definition
    definition_owner: str

    @classmethod
    def __prepare__(
        mcls,  # noqa: N804 - of a metaclass
        class_name: str,
        bases: tuple[type, ...],
        /,
        **options: object,
    ) -> _Namespace:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "types":
            frame = frame.f_back
        owner = f"{frame.f_globals.get('__name__', '?')}:{class_name}"
        return _Namespace(class_name, owner, bases)

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: _Namespace,
        /,
        *,
        name: str | None = None,
        renamed: tuple[str, str] | None = None,
        **unknown: object,
    ) -> CellMeta:
        name, partial = _class_name(class_name, name, unknown, renamed), renamed is not None
        members = {key: item for key, item in namespace.items() if key not in namespace.lines}
        cls = super().__new__(mcls, class_name, bases, members)
        if not bases:
            return cls
        cls.definition_owner = namespace.owner
        parents = [base.definition for base in bases if _is_cell(base)]
        if len(parents) > 1:
            listed = " and ".join(parent.class_name for parent in parents)
            raise DeclarationError(
                f"{class_name}: a cell varies one parent, found {listed}; subclass one of them and "
                f"state the other's equations",
                code="declaration.parents",
            )
        draft = _Draft.merge(parents, namespace, renamed)
        cls.definition = draft.finish(class_name, name or cell_name(class_name), partial)
        values = [*cls.definition.declared, *(e.target for e in cls.definition.equations)]
        named = {str(value.name): value for value in values}
        named |= {alias: named[target] for alias, target in cls.definition.aliases.items()}
        for called, value in named.items():
            if called not in _OWN_ATTRIBUTES:
                setattr(cls, called, value)
        return cls

    def __init__(
        cls, class_name: str, bases: tuple[type, ...], namespace: Any, **_: object
    ) -> None:
        super().__init__(class_name, bases, dict(namespace))

    def __repr__(cls) -> str:
        return f"<cell {cls.definition.name}>" if _is_cell(cls) else "<class Cell>"


@dataclass
class _Draft:
    """Everything a class says, its parents' equations included, before symbols are bound to it."""

    owner: str
    doc: str
    declarations: dict[str, Declaration]
    equations: dict[str, Expr]
    aliases: dict[str, str]
    lines: dict[str, SourceLine]
    own: set[str]
    outputs: tuple[Value, ...] | None
    gradients: tuple[Value, ...] | None
    selected: Mapping[str, SourceLine] = field(default_factory=dict)

    @staticmethod
    def merge(
        parents: Iterable[Definition], namespace: _Namespace, renamed: tuple[str, str] | None
    ) -> _Draft:
        draft = _Draft(
            namespace.owner, str(namespace.get("__doc__") or ""), {}, {}, {}, {}, set(), None, None
        )
        for parent in parents:
            draft._inherit(parent)
        if renamed is not None:
            draft._rename(*renamed)
        draft._add(namespace)
        return draft

    def _inherit(self, parent: Definition) -> None:
        for value in parent.declared:
            dims = value.shape[1:] if value.is_batched else value.shape
            default = parent.defaults.get(str(value.name))
            learns = value not in parent.fixed
            initial = parent.initial_of(value)
            declared = Declaration(value.role, dims, default, learns, initial)
            self.declarations[str(value.name)] = declared
        for equation in parent.equations:
            self.equations[str(equation.target.name)] = equation.expression
        self.lines.update(parent.lines)
        self.aliases.update(parent.aliases)
        self.outputs = parent.outputs if parent.states_outputs else None
        self.gradients = parent.gradients

    def _rename(self, old: str, new: str) -> None:
        check_name(new, "value")
        if old not in self.equations or new in self.lines:
            fault = f"it has {new!r} already; choose another name"
            if old not in self.equations:
                fault = f"it has no equation for {old!r}; it has {', '.join(self.equations)}"
            raise DeclarationError(
                f"replaced({old!r}, {new!r}): {fault}", code="declaration.replaced"
            )
        self.equations = {new if k == old else k: e for k, e in self.equations.items()}
        self.lines[new] = self.lines[old]

    def _add(self, namespace: _Namespace) -> None:
        for name in namespace.lines:  # what is stated anew keeps its place
            self.aliases.pop(name, None)
            if name not in namespace.declarations:
                self.declarations.pop(name, None)
            if name not in namespace.equations:
                self.equations.pop(name, None)
        self.declarations.update(namespace.declarations)
        self.equations.update(namespace.equations)
        self.aliases.update({name: str(value.name) for name, value in namespace.aliases.items()})
        self.lines.update(namespace.lines)
        self.own = set(namespace.lines)
        self.selected = namespace.selected
        self.outputs = namespace.get("outputs", self.outputs)
        self.gradients = namespace.get("gradients", self.gradients)

    # --- binding and checks -----------------------------------------------------------------

    def finish(self, class_name: str, name: str, partial: bool) -> Definition:
        """Bind every symbol to this cell, order the equations and check the whole."""
        try:
            check_cell_name(name)
            self._promote_aliases()
            declared = self._declared()
            equations = self._ordered_equations(declared, partial)
            bound = {str(v.name): v for v in (*declared, *(e.target for e in equations))}
            outputs = self._chosen("outputs", self.outputs, bound, partial)
            self._check_outputs(outputs or ())
            gradients = self._chosen("gradients", self.gradients, bound, partial)
            self._check_spellings(bound)
            self._check_dims(bound.values())
            self._check_last(bound)
            if not partial:
                self._check_states(declared, bound, outputs)
                equations = self._reached(equations, bound, outputs)
                self._check_splits(equations)
                self._check_gradients(gradients, declared, equations)
                declared = self._check_used(declared, equations)
                self._check_told(declared)
        except DeclarationError as error:
            message = Exception.__str__(error)
            raise DeclarationError(f"{class_name}: {message}", code=error.code) from None
        if outputs is None:
            outputs = tuple(
                bound[n] for v in declared if v.role is Role.STATE and (n := _next_name(v)) in bound
            )
        return Definition(
            name=name,
            class_name=class_name,
            origin=self.owner,
            doc=self.doc,
            declared=declared,
            equations=equations,
            outputs=outputs,
            gradients=gradients,
            defaults={n: d.default for n, d in self.declarations.items() if d.default is not None},
            lines=dict(self.lines),
            aliases={a: t for a, t in self.aliases.items() if t in bound},
            states_outputs=self.outputs is not None,
            is_partial=partial,
            fixed=tuple(v for v in declared if not self.declarations[str(v.name)].gradient),
            initials={n: d.initial for n, d in self.declarations.items() if d.initial != 0},
        )

    def _promote_aliases(self) -> None:
        """An alias that is the new value of a state (``h = z``) is an equation."""
        for alias, target in list(self.aliases.items()):
            if f"{alias}_prev" in self.declarations:
                del self.aliases[alias]
                self.equations[alias] = Value(target, (), Role.LOCAL, self.owner)

    def _declared(self) -> tuple[Value, ...]:
        return tuple(
            Value(name, item.shape, item.role, self.owner, order * ORDER_STEP)
            for order, (name, item) in enumerate(self.declarations.items())
        )

    def _ordered_equations(
        self, declared: tuple[Value, ...], partial: bool
    ) -> tuple[Equation, ...]:
        bound: dict[str, Value] = {str(value.name): value for value in declared}
        ordered: list[Equation] = []
        sharing, names = Sharing(), Names([*bound, *self.equations, *self.aliases, *self.lines])
        for name in self._topological_order(partial):
            expression = self.equations[name]
            line = self.lines[name]
            swap = {
                v: bound[self._target(v)] for v in values_in(expression) if self._target(v) in bound
            }

            def state(name: str, expression: Expr, line: SourceLine = line) -> Value:
                order = (len(declared) + len(ordered)) * ORDER_STEP
                target = Value(name, shape_of(expression), Role.LOCAL, self.owner, order)
                bound[name] = target
                ordered.append(Equation(target, expression, line))
                return target

            def state_part(expression: Expr, name: str = name, line: SourceLine = line) -> Value:
                part = names.fresh(f"{name}_inner")
                self.lines[part] = line
                return state(part, expression)

            try:
                state(name, sharing.rest(replaced(expression, swap), state_part))
            except DeclarationError as error:
                raise DeclarationError(
                    f"{Exception.__str__(error)}\n  {line}", code=error.code
                ) from None
        return tuple(ordered)

    def _target(self, value: Value) -> str:
        name = str(value.name)
        return self.aliases.get(name, name)

    def _topological_order(self, partial: bool) -> list[str]:
        """Depth first in the order of writing; raises on a cycle or an undefined name."""
        done: dict[str, None] = {}
        path: list[str] = []

        def visit(name: str) -> None:
            if name in done or name in self.declarations:
                return
            if name in path:
                raise self._cycle(path[path.index(name) :])
            if name not in self.equations:
                if partial:
                    return
                raise DeclarationError(
                    f"{name} has no equation; state `{name} = ...` in the class body",
                    code="declaration.undefined",
                )
            path.append(name)
            for value in sorted(values_in(self.equations[name]), key=lambda v: (v.order, str(v))):
                visit(self._target(value))
            path.pop()
            done[name] = None

        for name in self.equations:
            visit(name)
        return list(done)

    def _cycle(self, names: list[str]) -> DeclarationError:
        chain = " -> ".join([*names, names[0]])
        where = "\n".join(f"  {self.lines[name]}" for name in names)
        name = names[0]
        hint = (
            f"; to re-state {name} in terms of the parent's, subclass "
            f"Parent.replaced({name!r}, '{name}_raw') and use its {name}_raw"
            if name in self.own
            else ""
        )
        return DeclarationError(
            f"the equations are cyclic: {chain}; rename one of them{hint}\n{where}",
            code="declaration.cycle",
        )

    def _check_last(self, bound: Mapping[str, Value]) -> None:
        """Refuse names that results of functions over time have: the final states."""
        for state in (value for value in bound.values() if value.role is Role.STATE):
            taken = f"{_next_name(state)}_last"
            if taken in bound:
                raise DeclarationError(
                    f"{taken} is the name of the final state of {_next_name(state)} over time; "
                    f"rename the value, for example to {f'{taken}_value'!r}\n"
                    f"  {self.lines.get(taken, '')}",
                    code="declaration.name",
                )

    def _check_outputs(self, outputs: Iterable[Value]) -> None:
        """Outputs are arguments of the backward functions."""
        for value in outputs:
            try:
                check_argument(str(value.name), "output")
            except DeclarationError as error:
                raise DeclarationError(
                    f"{Exception.__str__(error)}\n  {self.lines[str(value.name)]}", code=error.code
                ) from None

    def _check_spellings(self, bound: Mapping[str, Value]) -> None:
        """Two spellings of one name must not name two values."""
        found: dict[str, str] = {}
        for name in bound:
            first = found.setdefault(spelled(name), name)
            if first != name:
                raise DeclarationError(
                    f"{first} and {name} are two spellings of one name; spell it {first} in both "
                    f"places, or rename one. First assigned at\n  {self.lines[first]}\nand again "
                    f"at\n  {self.lines[name]}",
                    code="declaration.twice",
                )

    def _check_dims(self, values: Iterable[Value]) -> None:
        """A value must not have the name of a dimension, nor two dimensions one name."""
        values = tuple(values)
        dims = sorted({str(d) for v in values for axis in v.shape for d in axis.free_symbols})
        taken = {spelled(str(dim)): str(dim) for dim in (T, B)}
        for dim in dims:
            first = taken.setdefault(spelled(dim), dim)
            if first != dim:
                raise DeclarationError(
                    f"the dimensions {first} and {dim} are two spellings of one name; use one",
                    code="declaration.name",
                )
        for value in values:
            if spelled(str(value.name)) in taken:
                raise DeclarationError(
                    f"{value.role.value} {value.name} has the name of a dimension; rename it, for "
                    f"example to '{spelled(str(value.name)).lower()}_value'\n"
                    f"  {self.lines[str(value.name)]}",
                    code="declaration.name",
                )

    def _check_told(self, declared: tuple[Value, ...]) -> None:
        """Every dimension must follow from the shapes of a call: H + K alone tells neither."""
        axes = [axis.free_symbols for value in declared for axis in value.shape]
        told: set[Dim] = set()
        while found := [axis - told for axis in axes if len(axis - told) == 1]:
            told.update(*found)
        for value in declared:
            for axis in value.shape:
                unknown = sorted(axis.free_symbols - told, key=str)
                if unknown:
                    raise DeclarationError(
                        f"{value.name} {format_shape(value.shape)}: no shape of this cell tells "
                        f"{' or '.join(map(str, unknown))} alone; use one dimension for "
                        f"{format_axis(axis)}\n  {self.lines[str(value.name)]}",
                        code="declaration.dims",
                    )

    def _check_states(
        self,
        declared: tuple[Value, ...],
        bound: Mapping[str, Value],
        outputs: tuple[Value, ...] | None,
    ) -> None:
        if not any(value.role is Role.STATE for value in declared):
            raise DeclarationError(
                "a recurrent cell needs a state: h_prev = State(H)", code="declaration.state"
            )
        for state in declared:
            if state.role is not Role.STATE:
                continue
            name, line = _next_name(state), self.lines[str(state.name)]
            if name not in bound:
                raise DeclarationError(
                    f"state {state.name} has no equation for its new value; state `{name} = ...`\n"
                    f"  {line}",
                    code="declaration.state",
                )
            if bound[name].shape != state.shape:
                raise DeclarationError(
                    f"shapes do not agree: {state.name} is {format_shape(state.shape)}, its new "
                    f"value {name} is {format_shape(bound[name].shape)}\n  {self.lines[name]}",
                    code="declaration.shape",
                )
            if outputs is not None and bound[name] not in outputs:
                raise DeclarationError(
                    f"outputs leaves out {name}, the new value of {state.name}, which the next "
                    f"step needs; add it{self._where('outputs')}",
                    code="declaration.outputs",
                )

    def _where(self, what: str) -> str:
        return f"\n  {self.selected[what]}" if what in self.selected else ""

    def _reached(
        self,
        equations: tuple[Equation, ...],
        bound: Mapping[str, Value],
        outputs: tuple[Value, ...] | None,
    ) -> tuple[Equation, ...]:
        """Keep what the new states and the outputs need. A parent's equation that a variant no
        longer needs goes; one that this body states must be of use."""
        needed = {value for value in bound.values() if f"{value.name}_prev" in self.declarations}
        needed.update(outputs or ())
        kept = []
        for equation in reversed(equations):
            target = equation.target
            if target in needed:
                kept.append(equation)
                needed.update(equation.expression.atoms(Value))
            elif target.name in self.own:
                is_part = _is_part(equation.expression)
                what = "a part of a split that is never" if is_part else "computed and never"
                raise DeclarationError(
                    f"{target.name} is {what} used; use it, list it in outputs, or drop it\n"
                    f"  {equation.line}",
                    code="declaration.split" if is_part else "declaration.unused",
                )
        return tuple(reversed(kept))

    def _check_gradients(
        self,
        gradients: tuple[Value, ...] | None,
        declared: tuple[Value, ...],
        equations: tuple[Equation, ...],
    ) -> None:
        used = {v for e in equations for v in e.expression.atoms(Value)}
        reached = used | {equation.target for equation in equations}
        for value in gradients or ():
            if value not in reached and value.role is not Role.STATE:
                raise DeclarationError(
                    f"gradients lists {value.name}, which no output depends on; leave it out"
                    f"{self._where('gradients')}",
                    code="declaration.gradients",
                )

    def _check_splits(self, equations: tuple[Equation, ...]) -> None:
        """Every part of a split must be used; an unused one is a typo or wasted work."""
        parts: dict[Expr, dict[Expr, Equation]] = {}
        for equation in equations:
            for node in equation.expression.atoms(Apply):
                if _is_part(node):
                    _, start, size = node.attributes
                    parts.setdefault(node.operands[0], {})[(start, size)] = equation
        for source, found in parts.items():
            total = shape_of(source)[-1]
            covered = sum(size for _, size in found)
            if covered != total:
                equation = next(iter(found.values()))
                raise DeclarationError(
                    f"a split of {text(source)} has unused parts: {format_axis(covered)} of "
                    f"{format_axis(total)} units are used; use every part or split off less\n"
                    f"  {equation.line}",
                    code="declaration.split",
                )

    def _check_used(
        self, declared: tuple[Value, ...], equations: tuple[Equation, ...]
    ) -> tuple[Value, ...]:
        used = {v for e in equations for v in e.expression.atoms(Value)}
        for value in declared:
            if value not in used and value.role is not Role.STATE and value.name in self.own:
                raise DeclarationError(
                    f"{value.role.value} {value.name} is declared and never used; use it or drop "
                    f"it\n"
                    f"  {self.lines[str(value.name)]}",
                    code="declaration.unused",
                )
        moving = (Role.INPUT, Role.STATE, Role.WEIGHT, Role.BIAS)
        if not any(value.role in moving for value in used):
            raise DeclarationError(
                "the equations read no input, no state and no weight, so that nothing has a "
                "gradient; read one of them",
                code="declaration.unused",
            )
        return tuple(v for v in declared if v in used or v.role is Role.STATE)

    def _chosen(
        self,
        what: str,
        chosen: tuple[Value, ...] | None,
        bound: Mapping[str, Value],
        partial: bool,
    ) -> tuple[Value, ...] | None:
        if chosen is None:
            return None
        names = [self._target(value) for value in chosen]
        missing = [name for name in names if name not in bound]
        if partial:
            return tuple(bound.get(name, value) for name, value in zip(names, chosen, strict=True))
        if missing:
            raise DeclarationError(
                f"{what} lists {', '.join(missing)}, which this cell does not define; list names "
                f"of this cell{self._where(what)}",
                code=f"declaration.{what}",
            )
        values = tuple(bound[name] for name in dict.fromkeys(names))
        wrong = [v for v in values if what == "outputs" and v.role is not Role.LOCAL]
        if wrong:
            raise DeclarationError(
                f"outputs lists {wrong[0].name}, a declared {wrong[0].role.value}; outputs are "
                f"values that the equations compute{self._where('outputs')}",
                code="declaration.outputs",
            )
        return values


def _is_part(expression: Expr) -> bool:
    return isinstance(expression, Apply) and operator_of(expression).is_part


def _next_name(state: Value) -> str:
    return str(state.name).removesuffix("_prev")


class Cell(metaclass=CellMeta):
    """Base of all cells. Subclass it and state the equations in the class body.

    Raises:
        DeclarationError: at class creation, pointing at the author's line.
    """

    @classmethod
    @located
    def replaced(cls, old: str, new: str) -> type[Cell]:
        """Return this cell with the equation of ``old`` stored under ``new``.

        Other equations still refer to ``old``, which a subclass then states anew::

            Raw = GRU.replaced("h", "h_raw")
            class ZoneoutGRU(Raw):
                keep_old = Static(H)
                h = where(keep_old > 0, Raw.h_prev, Raw.h_raw)
        """
        for given in (old, new):
            if not isinstance(given, str):
                raise DeclarationError(
                    f"{cls.__name__}.replaced: {accept.shown(given)} is no name, expected two, "
                    f"such as replaced('h', 'h_raw')",
                    code="declaration.replaced",
                )
            check_identifier(given, "value")
        options = {"renamed": (old, new)}
        name = f"{cls.__name__}Without{old.title().replace('_', '')}"
        return cast("type[Cell]", types.new_class(name, (cls,), options))


def definition_of(cell: type[Cell]) -> Definition:
    """Return a cell's definition.

    Raises:
        DeclarationError: what was given is not a subclass of ``Cell``, or is only partial.
    """
    if not _is_cell(cell):
        raise DeclarationError(
            f"expected a subclass of cellgen.Cell, found {accept.shown(cell)}",
            code="declaration.cell",
        )
    definition = cell.definition
    if definition.is_partial:
        raise DeclarationError(
            f"{definition.class_name} is unfinished (made by replaced()): subclass it and state "
            f"the equation that it lacks",
            code="declaration.cell",
        )
    return definition


def renamed(definition: Definition, name: str) -> Definition:
    """Return a definition under another cell name."""
    return replace(definition, name=name)

"""A cell before its symbols are bound to it: what its class and its parents say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sympy import Expr

from cellgen.errors import DeclarationError
from cellgen.language.cell.body import Namespace
from cellgen.language.cell.declaration import Declaration
from cellgen.language.cell.definition import ORDER_STEP, Definition
from cellgen.language.lines import SourceLine
from cellgen.language.names import check_name
from cellgen.language.value import Role, Value


@dataclass
class Draft:
    """Everything a class says, its parents' equations included, before symbols are bound to it.

    ``derived`` says that the compiler wrote the class body (``__derived__`` stands in it), so that
    what would be a slip of an author's, such as a part of a split that nothing reads, is none.
    """

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
    derived: bool = False
    directions: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def merge(
        parents: Iterable[Definition], namespace: Namespace, renamed: tuple[str, str] | None
    ) -> Draft:
        """Join what the parents say and what the class body says."""
        draft = Draft(
            namespace.owner, str(namespace.get("__doc__") or ""), {}, {}, {}, {}, set(), None, None
        )
        for parent in parents:
            draft.inherit(parent)
        if renamed is not None:
            draft.rename(*renamed)
        draft.add(namespace)
        return draft

    def inherit(self, parent: Definition) -> None:
        """Take over what a parent says."""
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

    def rename(self, old: str, new: str) -> None:
        """Store the equation of one name under another."""
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

    def add(self, namespace: Namespace) -> None:
        """Add what the class body says; it replaces what a parent says."""
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
        self.derived = bool(namespace.get("__derived__", False))
        self.directions = namespace.get("__directions__", {})
        self.outputs = namespace.get("outputs", self.outputs)
        self.gradients = namespace.get("gradients", self.gradients)

    def promote_aliases(self) -> None:
        """An alias that is the new value of a state (``h = z``) is an equation."""
        for alias, target in list(self.aliases.items()):
            before = self.declarations.get(f"{alias}_prev")
            if before is not None and before.role is Role.STATE:
                del self.aliases[alias]
                self.equations[alias] = Value(target, (), Role.LOCAL, self.owner)

    def declared(self) -> tuple[Value, ...]:
        """The declared values, in order."""
        return tuple(
            Value(name, item.shape, item.role, self.owner, order * ORDER_STEP)
            for order, (name, item) in enumerate(self.declarations.items())
        )

    def target(self, value: Value) -> str:
        """The name that a value's name stands for."""
        name = str(value.name)
        return self.aliases.get(name, name)

    def where(self, what: str) -> str:
        """Where a list was written, as a line of a message."""
        return f"\n  {self.selected[what]}" if what in self.selected else ""

"""Places where parameters enter the rows of a step, each with a value that stands for it.

Input: a definition, and parameters. Output: ``Probed``, the same definition in which every product
by such a parameter has a probe added to it, and every parameter that is read unit by unit is a
probe itself, one for each row. The gradient of a probe is that of its place, row by row. For an
approximation, products that carry states on read states that are held: their derivative is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import sympy
from sympy import Expr, Integer

from cellgen.errors import DeclarationError
from cellgen.language.cell import Definition, Equation
from cellgen.language.names import Names
from cellgen.language.notation import text
from cellgen.language.ops import (
    concat,
    operator_of,
    part,
    product_of_rows,
    shape_of,
)
from cellgen.language.value import Apply, B, Role, Shape, Value

PROBE_ORDER = 10_000_000
"""Probes print behind all that an author named."""


class Manner(Enum):
    """How a parameter enters a row: as the factor of a product, head by head, or unit by unit."""

    PRODUCT = "product"
    BY_HEAD = "by head"
    UNITS = "units"


@dataclass(frozen=True)
class ProbePlace:
    """One place where a parameter enters a row.

    ``probe`` (B, ...) stands for it; ``factor`` is what the parameter is multiplied by there, in
    the values of the cell.
    """

    parameter: Value
    entry: Manner
    probe: Value
    factor: Expr | None = None


@dataclass(frozen=True)
class Probed:
    """A definition with probes; ``restored`` tells what each value that it adds stands for.

    Of approximations that keep them, ``diagonals`` are what stands for the diagonals of square
    weights, or blocks, and ``own_units``, by the weight of a product, those of its blocks.
    """

    definition: Definition
    places: tuple[ProbePlace, ...]
    restored: Mapping[Value, Expr]
    diagonals: Mapping[Value, Value]
    own_units: Mapping[Value, tuple[Value, ...]]


def probed(
    definition: Definition,
    parameters: Iterable[Value],
    *,
    holds: bool = False,
    keeps_diagonals: bool = False,
) -> Probed:
    """Put probes where parameters enter the rows of a step.

    With ``holds``, products that new states wait for read states of the step before that are held,
    but for the diagonals of their weights where ``keeps_diagonals``.

    Raises:
        DeclarationError: a parameter that meets others before it enters a row.
    """
    return _Probing(definition, tuple(parameters), holds, keeps_diagonals).run()


class _Probing:
    """States the equations of a definition anew, in their order."""

    def __init__(
        self,
        definition: Definition,
        parameters: tuple[Value, ...],
        holds: bool,
        keeps_diagonals: bool,
    ) -> None:
        self.definition = definition
        self.parameters = parameters
        self.keeps_diagonals = keeps_diagonals
        declared = (*definition.declared, *(e.target for e in definition.equations))
        self.names = Names(str(value.name) for value in declared)
        self.probes: list[Value] = []
        self.places: list[ProbePlace] = []
        self.restored: dict[Value, Expr] = {}
        self.diagonals: dict[Value, Value] = {}
        self.own_units: dict[Value, tuple[Value, ...]] = {}
        self.blocks: dict[tuple[Value, int, Expr], Value] = {}
        self.by_units: dict[Value, Value] = {}
        self.swap: dict[Value, Value] = {}
        self.learned = set(parameters)
        """Parameters, and values of parameters alone."""
        self.carrying = _carrying(definition) if holds else set()
        self.held: dict[Value, Value] = {}
        """States and what reads them, by what stands for them while they are held."""
        self.equations: list[Equation] = []
        self._carries = False
        self._known: dict[tuple[bool, Expr], Expr] = {}

    def run(self) -> Probed:
        if self.carrying:
            for state in self.definition.states:
                self.held[state] = self._add(f"{state.name}_held", state.shape, state)
        for equation in self.definition.equations:
            self._restate(equation)
        outputs = tuple(self.swap.get(value, value) for value in self.definition.outputs)
        definition = replace(
            self.definition,
            declared=(*self.definition.declared, *self.probes),
            equations=_reached(self.equations, outputs),
            outputs=outputs,
        )
        return Probed(definition, tuple(self.places), self.restored, self.diagonals, self.own_units)

    def _add(self, name: str, shape: Shape, stands_for: Expr | None = None) -> Value:
        """Add a value that is given, and what it stands for where that is known here."""
        order = PROBE_ORDER + len(self.probes)
        value = Value(self.names.fresh(name), shape, Role.INPUT, "", order)
        self.probes.append(value)
        if stands_for is not None:
            self.restored[value] = stands_for
        return value

    def _restate(self, equation: Equation) -> None:
        own = equation.target
        self._carries = own in self.carrying
        expression = self._rewritten(equation.expression)
        shape = shape_of(expression)
        target = own
        if shape != own.shape:
            target = Value(own.name, shape, own.role, own.owner, own.order)
            self.swap[own] = target
            self.restored[target] = own
            if B not in own.shape:
                self.learned.add(own)
        self.equations.append(replace(equation, target=target, expression=expression))
        if self.held and equation.expression.atoms(Value) & set(self.held):
            twin = self._twin(target)
            self.restored[twin] = own
            held = replace(equation, target=twin, expression=self._still(expression))
            self.equations.append(held)
            self.held[own] = twin

    def _twin(self, target: Value) -> Value:
        name = self.names.fresh(f"{target.name}_held")
        return Value(name, target.shape, Role.LOCAL, target.owner, PROBE_ORDER + len(self.held))

    def _still(self, expression: Expr) -> Expr:
        """What is stated anew already, of states that are held."""
        still = expression.xreplace({self.swap.get(v, v): t for v, t in self.held.items()})
        empty = [node for node in still.atoms(Apply) if not any(node.operands)]
        return still.xreplace(dict.fromkeys(empty, Integer(0)))

    # --- expressions ---

    def _rewritten(self, expression: Expr) -> Expr:
        key = self._carries, expression
        if key not in self._known:
            self._known[key] = self._rewrite(expression)
        return self._known[key]

    def _rewrite(self, expression: Expr) -> Expr:
        if isinstance(expression, Value):
            if expression in self.parameters:
                return self._unit_by_unit(expression)
            return self.swap.get(expression, expression)
        if not expression.args:
            return expression
        if isinstance(expression, Apply):
            return self._operator(expression)
        arguments = [self._rewritten(argument) for argument in expression.args]
        return expression.func(*_aligned(expression, arguments))

    def _unit_by_unit(self, parameter: Value) -> Expr:
        if parameter not in self.by_units:
            if parameter.is_batched:
                shape = parameter.shape
            else:
                shape = (B, *(parameter.shape or (Integer(1),)))
            probe = self._add(f"{parameter.name}_of_row", shape, parameter)
            self.by_units[parameter] = probe
            self.places.append(ProbePlace(parameter, Manner.UNITS, probe))
        return self.by_units[parameter]

    def _operator(self, node: Apply) -> Expr:
        row = operator_of(node)
        if row.is_product and not all(B in shape_of(operand) for operand in node.operands):
            parts = product_of_rows(node)
            return self._product(node) if parts is None else self._rewritten(parts)
        operands = [self._rewritten(operand) for operand in node.operands]
        pairs = zip(node.operands, operands, strict=True)
        if not any(B in shape_of(new) and B not in shape_of(old) for old, new in pairs):
            return Apply(node.op, operands, node.attributes)
        if row.is_reshape:
            return Apply(node.op, operands, (B, *node.attributes))
        raise self._joined(node)

    def _product(self, node: Apply) -> Expr:
        left, weight = node.operands
        met = self.learned & weight.atoms(Value)
        if B not in shape_of(left) and (met or self.learned & left.atoms(Value)):
            raise self._joined(node)
        carried = self._carried(node, left, weight)
        if not met:
            return carried
        if weight not in self.parameters:
            raise self._joined(node)
        probe = self._add(f"{weight.name}_product", shape_of(node), Integer(0))
        entry = Manner.BY_HEAD if len(shape_of(left)) == 3 else Manner.PRODUCT
        self.places.append(ProbePlace(weight, entry, probe, left))
        return carried + probe

    def _carried(self, node: Apply, left: Expr, weight: Expr) -> Expr:
        """The product; of states that are held where it carries them on."""
        moving = self._rewritten(left)
        still = self._still(moving) if self._carries else moving
        if not self.keeps_diagonals or not self._carries or not isinstance(weight, Value):
            return Apply(node.op, (still, weight), node.attributes)
        total = Integer(0)
        for start, piece in self._pieces(left):
            moving = self._rewritten(piece)
            still, rows = self._still(moving), self._rows(weight, start, shape_of(piece)[-1])
            total += Apply(node.op, (still, rows), node.attributes)
            blocks = [self._diagonal(block) for block in self._columns(rows)]
            own = tuple(diagonal for diagonal in blocks if diagonal is not None)
            if own:
                self.own_units[rows] = own
                total += concat(*((moving - still) * diagonal for diagonal in own))
        return total

    def _pieces(self, left: Expr) -> list[tuple[Expr, Expr]]:
        """What is joined in a factor of a product, each with its first unit; or the whole."""
        stated = {e.target: e.expression for e in self.definition.equations}
        whole = stated.get(left, left)
        if not isinstance(whole, Apply) or not operator_of(whole).is_join:
            return [(Integer(0), left)]
        lengths = [shape_of(piece)[-1] for piece in whole.operands]
        starts = [sympy.Add(*lengths[:index]) for index in range(len(lengths))]
        return list(zip(starts, whole.operands, strict=True))

    def _rows(self, weight: Value, start: Expr, length: Expr) -> Value:
        """What stands for some rows of a weight: the weight itself where it is all of them."""
        by_head = len(weight.shape) > 2
        return (
            weight
            if by_head or length == weight.shape[0]
            else self._block(weight, 0, start, length)
        )

    def _columns(self, weight: Value) -> list[Value]:
        """Square blocks of a weight side by side, as gates have them; none where it has none."""
        rows, columns = weight.shape[-2:]
        count = columns / rows
        if len(weight.shape) > 2 or not count.is_Integer or count == 1:
            return [weight]
        return [self._block(weight, 1, index * rows, rows) for index in range(int(count))]

    def _block(self, weight: Value, axis: int, start: Expr, length: Expr) -> Value:
        key = weight, axis, start
        if key not in self.blocks:
            whole = self.restored.get(weight, weight)
            shape = (*weight.shape[:axis], length, *weight.shape[axis + 1 :])
            self.blocks[key] = self._add(
                f"{weight.name}_block", shape, part(whole, axis, start, length)
            )
        return self.blocks[key]

    def _diagonal(self, weight: Value) -> Value | None:
        """What stands for the diagonal of a square weight, (H, H) or (K, D, D)."""
        if weight.shape[-1] != weight.shape[-2]:
            return None
        if weight not in self.diagonals:
            whole = self.restored.get(weight, weight)
            name = f"own_{min(str(value.name) for value in whole.atoms(Value))}"
            self.diagonals[weight] = self._add(name, weight.shape[:-1])
        return self.diagonals[weight]

    def _joined(self, node: Apply) -> DeclarationError:
        learned = self.learned | set(self.parameters)
        names = ", ".join(sorted(str(v.name) for v in node.atoms(Value) & learned))
        return self._fault(
            f"`{text(node)}` forms an expression of {names} before an input meets it; traces are "
            f"of parameters that enter rows as they are: leave {names} out of by="
        )

    def _fault(self, what: str) -> DeclarationError:
        return DeclarationError(
            f"online({self.definition.class_name}): {what}", code="declaration.online"
        )


def _aligned(node: Expr, arguments: Sequence[Expr]) -> list[Expr]:
    """Arguments that have got rows, with their axes where they meet the others without.

    Beside (B, D, K) what was (K,) is (B, 1, K), and beside (B, H) what was (1, H) is (B, H). A
    number of a row is (B, 1).
    """
    shape, aligned = shape_of(node), list[Expr]()
    inner = max(len(shape) - (B in shape), 1)
    for old, new in zip(node.args, arguments, strict=True):
        units = shape_of(new)[1:]
        if B in shape_of(new) and B not in shape_of(old) and len(units) != inner:
            wide = (*(Integer(1) for _ in range(inner - len(units))), *units)
            new = Apply("reshape", (new,), (B, *wide[len(wide) - inner :]))
        aligned.append(new)
    return aligned


def _carrying(definition: Definition) -> set[Value]:
    """Values that new states wait for."""
    carrying = {definition.next_state(state) for state in definition.states}
    for equation in reversed(definition.equations):
        if equation.target in carrying:
            carrying |= equation.expression.atoms(Value)
    return carrying


def _reached(equations: Sequence[Equation], outputs: Iterable[Value]) -> tuple[Equation, ...]:
    """The equations that some outputs need."""
    wanted, kept = set(outputs), []
    for equation in reversed(equations):
        if equation.target in wanted:
            kept.append(equation)
            wanted |= equation.expression.atoms(Value)
    return tuple(reversed(kept))

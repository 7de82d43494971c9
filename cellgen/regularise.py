"""Regularise any cell: functions from a cell to a cell that rewrite its equations.

Input: a cell class. Output: a subclass with masks among its inputs, which ``masks_of`` lists and
``masks.draw_masks`` draws. The functions compose: ``zoneout(variational_dropout(LSTM))``. Nothing
but the equations is needed, so that each works for every cell, with gradients that are derived as
always. The masks are inputs: a kernel holds no random numbers.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from sympy import Expr

from cellgen.cell import (
    Cell,
    Declaration,
    Definition,
    Equation,
    Input,
    Static,
    Weight,
    definition_of,
)
from cellgen.errors import DeclarationError
from cellgen.lines import located
from cellgen.masks import Kind, Mask, Varies
from cellgen.ops import OPERATORS
from cellgen.program import Names
from cellgen.value import Apply, Role, Value, format_axis

_DECLARE: Mapping[Varies, Callable[..., Declaration]] = {
    Varies.STEP_AND_ROW: partial(Input, gradient=False),
    Varies.ROW: Static,
    Varies.NEVER: partial(Weight, gradient=False),
}

_ROLES: Mapping[str, Role] = {"inputs": Role.INPUT, "states": Role.STATE}


def masks_of(cell: type[Cell]) -> tuple[Mask, ...]:
    """List the masks that a regularised cell takes, in the order in which they were added."""
    masks: tuple[Mask, ...] = getattr(cell, "__masks__", ())
    return masks


@located
def variational_dropout(
    cell: type[Cell],
    *,
    inputs: Iterable[str] | None = None,
    states: Iterable[str] | None = None,
    name: str = "",
) -> type[Cell]:
    """Drop units of inputs and of states where products read them, the same units at every step
    (Gal & Ghahramani 2016, arXiv:1512.05287).

    What products read is masked by ``mask_<input>`` and ``mask_<state>``, one number for each row
    and unit; what is read unit by unit (``u * h_prev``) is not. A named value that only products
    read (``rh = r * h_prev``) counts as part of them. All inputs and states that products read are
    masked unless they are listed; ``inputs=()`` masks none.

    Raises:
        DeclarationError: a name that no product reads, or a cell without products.
    """
    definition = definition_of(cell)
    carriers = _only_in_products(definition)
    read = _read_by_products(definition, carriers)
    chosen = [
        value
        for kind, names in (("inputs", inputs), ("states", states))
        for value in _chosen(definition, "variational_dropout", kind, names, read)
    ]
    if not chosen:
        raise _fault(definition, "variational_dropout", "no product reads an input or a state")
    body = _Body(cell, "VariationalDropout", name)
    for value in chosen:
        body.mask(f"mask_{_stem(value)}", value, Kind.DROPOUT, Varies.ROW)

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap = {value: value * mask for value, mask in zip(chosen, masks, strict=True)}
        for equation in definition.equations:
            whole = equation.target in carriers
            expression = equation.expression
            changed = expression.xreplace(swap) if whole else _in_products(expression, swap)
            if changed != expression:
                ns[str(equation.target.name)] = changed

    return body.make(state)


@located
def recurrent_dropout(
    cell: type[Cell], value: str, *, per_sequence: bool = False, name: str = ""
) -> type[Cell]:
    """Drop units of a candidate, the value that updates the state, and never of the state itself
    (Semeniuta, Severyn & Barth 2016, arXiv:1603.05118).

    ``value`` is the candidate's name (``g`` in LSTM, ``n`` in GRU). Everything that reads it reads
    it times ``mask_<value>``, which differs at every step, or with ``per_sequence`` only by row.

    Raises:
        DeclarationError: a value that the equations do not compute, or a new state.
    """
    definition = definition_of(cell)
    equation = _equation_of(definition, "recurrent_dropout", value)
    if f"{value}_prev" in {str(state.name) for state in definition.states}:
        raise _fault(
            definition,
            "recurrent_dropout",
            f"{value} is a new state, and dropping it would forget it; name the candidate that "
            f"updates it, or use zoneout",
        )
    body = _Body(cell, "RecurrentDropout", name)
    varies = Varies.ROW if per_sequence else Varies.STEP_AND_ROW
    body.mask(f"mask_{value}", equation.target, Kind.DROPOUT, varies)
    raw = body.fresh(f"{value}_raw")

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        ns[raw] = equation.expression
        ns[value] = cast(Expr, ns[raw]) * masks[0]

    return body.make(state)


@located
def dropconnect(cell: type[Cell], *weights: str, name: str = "") -> type[Cell]:
    """Drop weights, the same ones for all rows and steps (Wan et al. 2013; on recurrent weights:
    Merity, Keskar & Socher 2018, arXiv:1708.02182).

    Everything that reads a weight ``w`` reads ``w_dropped = w * mask_w``; the mask has the shape of
    the weight. Without names, the weights of products that read a state directly are dropped; a
    weight that also meets an input, as in ``concat(x, h_prev) @ w``, is dropped whole.

    Raises:
        DeclarationError: a name that is no weight of the cell, or no product that reads a state.
    """
    definition = definition_of(cell)
    parameters = {str(value.name): value for value in definition.parameters}
    unknown = [w for w in weights if w not in parameters]
    if unknown:
        listed = ", ".join(parameters)
        raise _fault(definition, "dropconnect", f"{unknown[0]} is no weight; it has {listed}")
    chosen = [parameters[w] for w in weights] or _recurrent_weights(definition)
    if not chosen:
        raise _fault(definition, "dropconnect", "no product reads a state; name the weights")
    body = _Body(cell, "Dropconnect", name)
    for weight in chosen:
        body.mask(f"mask_{weight.name}", weight, Kind.DROPOUT, Varies.NEVER)
    dropped = [body.fresh(f"{weight.name}_dropped") for weight in chosen]

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Value, Expr] = {}
        for weight, mask, own in zip(chosen, masks, dropped, strict=True):
            ns[own] = weight * mask
            swap[weight] = cast(Expr, ns[own])
        _restate(ns, definition, swap)

    return body.make(state)


@located
def zoneout(
    cell: type[Cell], *states: str, per_sequence: bool = False, name: str = ""
) -> type[Cell]:
    """Keep units of states at their old value (Krueger et al. 2017, arXiv:1606.01305).

    ``h = keep_h * h_prev + (1 - keep_h) * h_raw`` for each state (all of them unless listed, as
    ``"h"`` or ``"h_prev"``). As in the paper, other equations read the new value before units are
    kept: an LSTM's h is formed from ``c_raw``. Masks differ at every step, or with ``per_sequence``
    only by row.

    Raises:
        DeclarationError: a name that is no state of the cell.
    """
    definition = definition_of(cell)
    known = {str(state.name).removesuffix("_prev"): state for state in definition.states}
    names = [name.removesuffix("_prev") for name in states]
    unknown = [state for state in names if state not in known]
    if unknown:
        raise _fault(definition, "zoneout", f"{unknown[0]} is no state; it has {', '.join(known)}")
    chosen = {state: known[state] for state in names} or known
    body = _Body(cell, "Zoneout", name)
    varies = Varies.ROW if per_sequence else Varies.STEP_AND_ROW
    for state, previous in chosen.items():
        body.mask(f"keep_{state}", previous, Kind.KEEP, varies)
    raw = {state: body.fresh(f"{state}_raw") for state in chosen}
    targets = {str(equation.target.name): equation for equation in definition.equations}

    def state_equations(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Value, Expr] = {}
        pending = [state for state in targets if state in chosen]
        for state in pending:
            ns[raw[state]] = targets[state].expression.xreplace(swap)
            swap[targets[state].target] = cast(Expr, ns[raw[state]])
        for state, mask in zip(chosen, masks, strict=True):
            ns[state] = mask * chosen[state] + (1 - mask) * cast(Expr, ns[raw[state]])
        _restate(ns, definition, swap, leave=chosen)

    return body.make(state_equations)


# --- a subclass from its statements --------------------------------------------------------------


class _Body:
    """The class body of a regularised cell: masks first, then the equations that differ."""

    def __init__(self, cell: type[Cell], prefix: str, name: str) -> None:
        definition = definition_of(cell)
        self.cell = cell
        self.class_name = f"{prefix}{definition.class_name}"
        self.name = name or f"{_snake(prefix)}_{definition.name}"
        self.doc = f"{_DOCS[prefix]} of: {' '.join(definition.doc.split())}"
        values = (*definition.declared, *(e.target for e in definition.equations))
        self._names = Names([*(str(value.name) for value in values), *definition.aliases])
        self.masks: list[tuple[Mask, Declaration]] = []

    def fresh(self, name: str) -> str:
        return self._names.fresh(name)

    def mask(self, name: str, value: Value, kind: Kind, varies: Varies) -> None:
        """Declare a mask for the units, or the weights, of a value."""
        dims = value.shape[1:] if value.is_batched else value.shape
        shape = tuple(format_axis(axis) for axis in dims)
        mask = Mask(self.fresh(name), shape, kind, varies)
        self.masks.append((mask, _DECLARE[varies](*dims)))

    def make(self, state: Callable[[dict[str, object], Sequence[Expr]], None]) -> type[Cell]:
        def body(ns: dict[str, object]) -> None:
            ns["__doc__"] = self.doc
            ns["__masks__"] = (*masks_of(self.cell), *(mask for mask, _ in self.masks))
            for mask, declaration in self.masks:
                ns[mask.name] = declaration
            state(ns, [cast(Expr, ns[mask.name]) for mask, _ in self.masks])

        made = types.new_class(self.class_name, (self.cell,), {"name": self.name}, body)
        return cast("type[Cell]", made)


_DOCS = {
    "VariationalDropout": "Variational dropout (Gal & Ghahramani 2016)",
    "RecurrentDropout": "Recurrent dropout (Semeniuta, Severyn & Barth 2016)",
    "Dropconnect": "Dropconnect (Wan et al. 2013)",
    "Zoneout": "Zoneout (Krueger et al. 2017)",
}


def _snake(prefix: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in prefix).lstrip("_")


def _restate(
    ns: dict[str, object],
    definition: Definition,
    swap: Mapping[Value, Expr],
    leave: Iterable[str] = (),
) -> None:
    """State every equation that reads a swapped value anew."""
    left = set(leave)
    for equation in definition.equations:
        changed = equation.expression.xreplace(dict(swap))
        if changed != equation.expression and str(equation.target.name) not in left:
            ns[str(equation.target.name)] = changed


# --- which equations -----------------------------------------------------------------------------


def _operand(expression: Expr) -> bool:
    return isinstance(expression, Apply) and OPERATORS[expression.op].is_product


def _in_products(expression: Expr, swap: Mapping[Value, Expr]) -> Expr:
    """Swap values inside the first operands of products, and nowhere else."""
    if not expression.args or isinstance(expression, Value):
        return expression
    if _operand(expression):
        first, *others = expression.operands
        rest = [_in_products(other, swap) for other in others]
        return Apply(expression.op, (first.xreplace(dict(swap)), *rest), expression.attributes)
    return expression.func(*(_in_products(argument, swap) for argument in expression.args))


def _reads(expression: Expr, inside: bool) -> set[Value]:
    """Values read inside the first operands of products, or those read elsewhere."""
    if isinstance(expression, Value):
        return set() if inside else {expression}
    if _operand(expression):
        first, *others = expression.operands
        rest = [_reads(other, inside) for other in others]
        return set().union(first.atoms(Value) if inside else set(), *rest)
    return set().union(*(_reads(argument, inside) for argument in expression.args))


def _only_in_products(definition: Definition) -> set[Value]:
    """Named values that nothing but products reads."""
    new_states = {definition.next_state(state) for state in definition.states}
    found = {e.target for e in definition.equations} - new_states - set(definition.outputs)
    while True:
        others = [e for e in definition.equations if e.target not in found]
        elsewhere = set().union(*(_reads(e.expression, inside=False) for e in others))
        if not found & elsewhere:
            return found
        found -= elsewhere


def _read_by_products(definition: Definition, carriers: set[Value]) -> set[Value]:
    found: set[Value] = set()
    for equation in definition.equations:
        whole = equation.target in carriers
        expression = equation.expression
        found |= expression.atoms(Value) if whole else _reads(expression, inside=True)
    return found


def _recurrent_weights(definition: Definition) -> list[Value]:
    states, carriers = set(definition.states), _only_in_products(definition)
    carrying = {
        e.target
        for e in definition.equations
        if e.target in carriers and states & e.expression.atoms(Value)
    }
    found: set[Value] = set()
    for equation in definition.equations:
        for node in equation.expression.atoms(Apply):
            if _operand(node) and node.operands[0].atoms(Value) & (states | carrying):
                found |= node.operands[1].atoms(Value)
    return [value for value in definition.parameters if value in found]


def _chosen(
    definition: Definition,
    function: str,
    kind: str,
    names: Iterable[str] | None,
    read: set[Value],
) -> list[Value]:
    values = definition.with_role(_ROLES[kind])
    if names is None:
        return [value for value in values if value in read]
    known = {str(value.name): value for value in values}
    known |= {_stem(value): value for value in values}
    chosen = []
    for name in names:
        if name not in known:
            listed = ", ".join(str(value.name) for value in values)
            raise _fault(definition, function, f"{name} is not among its {kind} ({listed})")
        if known[name] not in read:
            raise _fault(definition, function, f"no product reads {known[name]}; leave it out")
        chosen.append(known[name])
    return chosen


def _equation_of(definition: Definition, function: str, name: str) -> Equation:
    for equation in definition.equations:
        if equation.target.name == name and equation.target.is_batched:
            return equation
    listed = ", ".join(str(e.target.name) for e in definition.equations if e.target.is_batched)
    raise _fault(definition, function, f"it computes no {name}; it computes {listed}")


def _stem(value: Value) -> str:
    return str(value.name).removesuffix("_prev")


def _fault(definition: Definition, function: str, what: str) -> DeclarationError:
    return DeclarationError(
        f"{function}({definition.class_name}): {what}", code="declaration.regulariser"
    )

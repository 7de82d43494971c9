"""Regularise any cell: functions from a cell to a cell that rewrite its equations.

Input: a cell class. Output: a subclass with masks among its inputs, which ``masks_of`` lists and
``masks.draw_masks`` draws. The functions compose: ``zoneout(variational_dropout(LSTM))``. Nothing
but the equations is needed, so that each works for every cell, with gradients that are derived as
always. The masks are inputs: a kernel holds no random numbers.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from sympy import Expr, Integer, Mul

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import (
    Cell,
    Declaration,
    Definition,
    Equation,
    Input,
    Static,
    Weight,
    definition_of,
)
from cellgen.language.lines import located
from cellgen.language.names import Names
from cellgen.language.notation import text
from cellgen.language.ops import from_sympy, operator_of, shape_of
from cellgen.language.value import Apply, B, Role, Shape, Value, format_axis
from cellgen.runtime.masks import Kind, Mask, Varies

_DECLARE: Mapping[Varies, Callable[..., Declaration]] = {
    Varies.STEP_AND_ROW: partial(Input, gradient=False),
    Varies.ROW: Static,
    Varies.NEVER: partial(Weight, gradient=False),
}

_ROLES: Mapping[str, Role] = {"inputs": Role.INPUT, "states": Role.STATE}


def masks_of(cell: type[Cell]) -> tuple[Mask, ...]:
    """List the masks that a regularised cell takes, in the order in which they were added.

    Raises:
        DeclarationError: what was given is no complete cell.
    """
    definition_of(cell)
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
        body.mask(f"mask_{_stem(value)}", value.shape, Kind.DROPOUT, Varies.ROW)

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
    cell: type[Cell], *values: str | Expr, per_sequence: bool = False, name: str = ""
) -> type[Cell]:
    """Drop units of a candidate, the value that updates the state, and never of the state itself
    (Semeniuta, Severyn & Barth 2016, arXiv:1603.05118).

    ``values`` are the candidates: names (``"g"`` in LSTM, ``"n"`` in GRU), or expressions as they
    stand in the equations where the author named none (``RAN.x @ RAN.w_c``). Everything that reads
    a candidate reads it times ``mask_<value>`` (of an expression ``mask_<equation>_candidate``),
    which differs at every step, or with ``per_sequence`` only by row. A cell that forms its state
    from one value alone (Elman, IndRNN) has no candidate.

    Raises:
        DeclarationError: a value that the equations do not compute, a new state, or a value
            without which a new state reads nothing of the past.
    """
    definition = definition_of(cell)
    accept.flag("recurrent_dropout", "per_sequence", per_sequence, error=DeclarationError)
    if not values:
        raise _fault(definition, "recurrent_dropout", 'name the candidate, such as "g" in LSTM')
    candidates = [_candidate(definition, value) for value in values]
    if len({candidate.expression for candidate in candidates}) < len(candidates):
        names = ", ".join(candidate.name for candidate in candidates)
        raise _fault(definition, "recurrent_dropout", f"a candidate is named twice ({names})")
    chosen = sorted(candidates, key=lambda candidate: candidate.is_named)
    _refuse_forgetting(definition, {candidate.expression for candidate in chosen})
    body = _Body(cell, "RecurrentDropout", name)
    varies = Varies.ROW if per_sequence else Varies.STEP_AND_ROW
    own, raw = [], []
    for candidate in chosen:
        body.mask(f"mask_{candidate.name}", candidate.shape, Kind.DROPOUT, varies)
        own.append(candidate.name if candidate.is_named else body.fresh(candidate.name))
        raw.append(body.fresh(f"{candidate.name}_raw"))

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Expr, Expr] = {}
        for candidate, mask, name, before in zip(chosen, masks, own, raw, strict=True):
            ns[before] = candidate.formed.xreplace(swap)
            ns[name] = cast(Expr, ns[before]) * mask
            if not candidate.is_named:
                swap[candidate.expression] = cast(Expr, ns[name])
        _restate(ns, definition, swap, leave=own)

    return body.make(state)


@located
def dropconnect(cell: type[Cell], *weights: str, name: str = "") -> type[Cell]:
    """Drop weights, the same ones for all rows and steps (Wan et al. 2013; on recurrent weights:
    Merity, Keskar & Socher 2018, arXiv:1708.02182).

    ``weights`` are names of weights, or of values that the equations form from weights alone.
    Everything that reads a weight ``w`` reads ``w_dropped = w * mask_w``; the mask has the shape of
    the weight. Without names the recurrent weights are dropped: those of products that read a state
    directly, or, where none does, those that multiply a state unit by unit (IndRNN's ``u``). A
    weight that also meets an input, as in ``concat(x, h_prev) @ w``, is dropped whole. Of a matrix
    that is a linear function of weights the weights are dropped (AntisymmetricRNN's ``u``, not
    ``a = u - transpose(u)``); of any other function its value (LRU's ``lam_re``), which alone is 0
    where it is dropped.

    Raises:
        DeclarationError: a name that is no weight of the cell, or a cell whose states no weight
            multiplies (minGRU, minLSTM, QRNN).
    """
    definition = definition_of(cell)
    known = {str(value.name): value for value in _of_weights(definition)}
    weights = tuple(_word(definition, "dropconnect", "a weight", w) for w in weights)
    unknown = [w for w in weights if w not in known]
    if unknown:
        listed = ", ".join(known)
        raise _fault(definition, "dropconnect", f"{unknown[0]} is no weight; it has {listed}")
    chosen = [known[w] for w in weights] or _recurrent_weights(definition)
    if not chosen:
        raise _fault(definition, "dropconnect", "no weight multiplies a state; name the weights")
    body = _Body(cell, "Dropconnect", name)
    for weight in chosen:
        body.mask(f"mask_{weight.name}", weight.shape, Kind.DROPOUT, Varies.NEVER)
    dropped = [body.fresh(f"{weight.name}_dropped") for weight in chosen]

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Expr, Expr] = {}
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
    accept.flag("zoneout", "per_sequence", per_sequence, error=DeclarationError)
    words = [_word(definition, "zoneout", "a state", name) for name in states]
    names = [name.removesuffix("_prev") for name in words]
    unknown = [state for state in names if state not in known]
    if unknown:
        raise _fault(definition, "zoneout", f"{unknown[0]} is no state; it has {', '.join(known)}")
    chosen = {state: known[state] for state in names} or known
    body = _Body(cell, "Zoneout", name)
    varies = Varies.ROW if per_sequence else Varies.STEP_AND_ROW
    for state, previous in chosen.items():
        body.mask(f"keep_{state}", previous.shape, Kind.KEEP, varies)
    raw = {state: body.fresh(f"{state}_raw") for state in chosen}
    targets = {str(equation.target.name): equation for equation in definition.equations}

    def state_equations(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Expr, Expr] = {}
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
        name = accept.word(prefix, "name", name, "a text", error=DeclarationError)
        self.class_name = f"{prefix}{definition.class_name}"
        self.name = name or f"{_snake(prefix)}_{definition.name}"
        self.doc = f"{_DOCS[prefix]} of: {' '.join(definition.doc.split())}"
        values = (*definition.declared, *(e.target for e in definition.equations))
        self._names = Names([*(str(value.name) for value in values), *definition.aliases])
        self.masks: list[tuple[Mask, Declaration]] = []

    def fresh(self, name: str) -> str:
        return self._names.fresh(name)

    def mask(self, name: str, masked: Shape, kind: Kind, varies: Varies) -> None:
        """Declare a mask for the units, or the weights, of what has a shape."""
        dims = masked[1:] if B in masked else masked
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
    swap: Mapping[Expr, Expr],
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
    return isinstance(expression, Apply) and operator_of(expression).is_product


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


def _of_weights(definition: Definition) -> list[Value]:
    """Weights, and named values that are formed from weights (and scalars) alone."""
    found = list(definition.parameters)
    scalars = set(definition.with_role(Role.SCALAR))
    for equation in definition.equations:
        read = equation.expression.atoms(Value)
        if read & set(found) and read <= scalars | set(found):
            found.append(equation.target)
    return found


def _recurrent_weights(definition: Definition) -> list[Value]:
    """What multiplies a state: in products, or where there is none, unit by unit."""
    states, carriers = set(definition.states), _only_in_products(definition)
    carrying = {
        e.target
        for e in definition.equations
        if e.target in carriers and states & e.expression.atoms(Value)
    }
    of_weights = set(_of_weights(definition))
    found: set[Value] = set()
    for equation in definition.equations:
        for node in equation.expression.atoms(Apply):
            if _operand(node) and node.operands[0].atoms(Value) & (states | carrying):
                found |= node.operands[1].atoms(Value) & of_weights
    if not found:
        for equation in definition.equations:
            for node in equation.expression.atoms(Mul):
                if states & set(node.args):
                    found |= of_weights & set(node.args)
    origins = {origin for value in found for origin in _origins(definition, value)}
    return [value for value in _of_weights(definition) if value in origins]


def _origins(definition: Definition, value: Value) -> set[Value]:
    """The learned weights that a value is a linear function of, else the value itself."""
    found = [e.expression for e in definition.equations if e.target == value]
    if not found:
        return {value}
    constant = {*definition.fixed, *definition.with_role(Role.SCALAR)}
    if not _is_linear(found[0], constant):
        return {value}
    inner = found[0].atoms(Value) - constant
    return set().union(*(_origins(definition, origin) for origin in inner))


def _is_linear(expression: Expr, constant: set[Value]) -> bool:
    """Whether an expression of weights is linear in those that are not constant."""
    moving = [a for a in expression.args if (a.atoms(Value) - constant)]
    if isinstance(expression, Value):
        return True
    if isinstance(expression, Apply):
        operands = expression.operands
        is_linear = operator_of(expression).is_linear
        return is_linear and all(_is_linear(operand, constant) for operand in operands)
    if expression.is_Mul:
        return len(moving) == 1 and _is_linear(moving[0], constant)
    return bool(expression.is_Add) and all(_is_linear(argument, constant) for argument in moving)


@dataclass(frozen=True)
class _Candidate:
    """What recurrent dropout drops: a named value, or an expression within equations.

    ``expression`` is what readers read, ``formed`` how it is formed.
    """

    name: str
    expression: Expr
    formed: Expr
    shape: Shape

    @property
    def is_named(self) -> bool:
        return isinstance(self.expression, Value)


def _candidate(definition: Definition, value: str | Expr) -> _Candidate:
    is_own = isinstance(value, Expr) and all(isinstance(s, Value) for s in value.free_symbols)
    if not isinstance(value, str) and not is_own:
        raise _fault(
            definition,
            "recurrent_dropout",
            f"{accept.shown(value)} is no candidate, expected its name, or an expression of the "
            f"cell's values",
        )
    if not isinstance(value, str | Value):
        return _expression_candidate(definition, value)
    name = str(value)
    equation = _equation_of(definition, "recurrent_dropout", name)
    if f"{name}_prev" in {str(state.name) for state in definition.states}:
        raise _fault(
            definition,
            "recurrent_dropout",
            f"{name} is a new state, and dropping it would forget it; name the candidate that "
            f"updates it, or use zoneout",
        )
    return _Candidate(name, equation.target, equation.expression, equation.target.shape)


def _expression_candidate(definition: Definition, value: Expr) -> _Candidate:
    expression = from_sympy(value)
    for equation in definition.equations:
        stands = expression in equation.expression.atoms(type(expression))
        if stands and B in shape_of(expression):
            name = f"{equation.target.name}_candidate"
            return _Candidate(name, expression, expression, shape_of(expression))
    raise _fault(
        definition,
        "recurrent_dropout",
        f"`{text(expression)}` stands in no equation; write it as the cell does, of the cell's own "
        f"values ({definition.class_name}.{definition.states[0]}, ...)",
    )


def _refuse_forgetting(definition: Definition, dropped: set[Expr]) -> None:
    """Raise where a new state reads the past through what is dropped, and nowhere else."""
    swap = dict.fromkeys(dropped, Integer(0))
    reaching: set[Value] = set(definition.states)
    before: set[Value] = set(definition.states)
    for equation in definition.equations:
        if equation.expression.atoms(Value) & before:
            before.add(equation.target)
        if equation.target not in dropped and (
            equation.expression.xreplace(swap).atoms(Value) & reaching
        ):
            reaching.add(equation.target)
    for state in definition.states:
        following = definition.next_state(state)
        if following in before - reaching:
            listed = ", ".join(sorted(text(expression) for expression in dropped))
            raise _fault(
                definition,
                "recurrent_dropout",
                f"{following} reads the past through {listed} alone, and dropping that would "
                f"forget it; use zoneout or variational_dropout",
            )


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
    listed = (
        (names,) if isinstance(names, str) else _gone_through(definition, function, kind, names)
    )
    chosen: list[Value] = []
    for name in (_word(definition, function, f"an entry of {kind}", item) for item in listed):
        if name not in known:
            own = ", ".join(str(value.name) for value in values)
            raise _fault(definition, function, f"{name} is not among its {kind} ({own})")
        if known[name] not in read:
            raise _fault(definition, function, f"no product reads {known[name]}; leave it out")
        chosen.append(known[name])
    return chosen


def _gone_through(
    definition: Definition, function: str, kind: str, names: object
) -> tuple[object, ...]:
    if isinstance(names, Iterable) and not isinstance(names, Mapping):
        try:
            return tuple(names)
        except Exception as fault:  # of what cannot be gone through, although it says so
            raise _fault(
                definition, function, f"{kind} cannot be gone through ({accept.reason(fault)})"
            ) from fault
    raise _fault(
        definition, function, f"{kind} is {accept.shown(names)}, expected names, in a tuple"
    )


def _word(definition: Definition, function: str, what: str, name: object) -> str:
    if isinstance(name, str | Value):
        return str(name)
    raise _fault(definition, function, f"{what} is {accept.shown(name)}, expected its name")


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

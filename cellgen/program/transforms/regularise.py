"""Regularise any cell: functions from a cell to a cell that rewrite its equations.

Input: a cell class. Output: a subclass with masks among its inputs, which ``masks_of`` lists and
``masks.draw_masks`` draws. The functions compose: ``zoneout(variational_dropout(LSTM))``. Nothing
but the equations is needed, so that each works for every cell, with gradients that are derived as
always. The masks are inputs: a kernel holds no random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from sympy import Expr

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import (
    Cell,
    definition_of,
)
from cellgen.language.lines import located
from cellgen.program.transforms.arguments import checked_name, chosen_values, fault, state_name
from cellgen.program.transforms.candidate import candidate_of, refuse_forgetting
from cellgen.program.transforms.masked_cell import MaskedCell, restate
from cellgen.program.transforms.readers import (
    in_products,
    only_in_products,
    read_by_products,
    recurrent_weights,
    values_of_weights,
)
from cellgen.runtime.masks import Kind, Varies


@located
def variational_dropout(
    cell: type[Cell],
    *,
    inputs: Iterable[str] | None = None,
    states: Iterable[str] | None = None,
    name: str = "",
) -> type[Cell]:
    """Drop units of inputs and of states where products read them, the same at every step.

    Source: Gal & Ghahramani 2016, arXiv:1512.05287.

    What products read is masked by ``mask_<input>`` and ``mask_<state>``, one number for each row
    and unit; what is read unit by unit (``u * h_prev``) is not. A named value that only products
    read (``rh = r * h_prev``) counts as part of them. All inputs and states that products read are
    masked unless they are listed; ``inputs=()`` masks none.

    Raises:
        DeclarationError: a name that no product reads, or a cell without products.
    """
    definition = definition_of(cell)
    carriers = only_in_products(definition)
    read = read_by_products(definition, carriers)
    chosen = [
        value
        for kind, names in (("inputs", inputs), ("states", states))
        for value in chosen_values(definition, "variational_dropout", kind, names, read)
    ]
    if not chosen:
        raise fault(definition, "variational_dropout", "no product reads an input or a state")
    body = MaskedCell(cell, "VariationalDropout", name)
    for value in chosen:
        body.mask(f"mask_{state_name(value)}", value.shape, Kind.DROPOUT, Varies.ROW)

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap = {value: value * mask for value, mask in zip(chosen, masks, strict=True)}
        for equation in definition.equations:
            whole = equation.target in carriers
            expression = equation.expression
            changed = expression.xreplace(swap) if whole else in_products(expression, swap)
            if changed != expression:
                ns[str(equation.target.name)] = changed

    return body.make(state)


@located
def recurrent_dropout(
    cell: type[Cell], *values: str | Expr, per_sequence: bool = False, name: str = ""
) -> type[Cell]:
    """Drop units of a candidate, the value that updates the state, never of the state itself.

    Source: Semeniuta, Severyn & Barth 2016, arXiv:1603.05118.

    ``values`` are the candidates: names (``"g"`` in LSTM, ``"n"`` in GRU), or expressions as they
    stand in the equations where the author named none (``RAN.x @ RAN.w_c``). Everything that reads
    a candidate reads it times ``mask_<value>`` (of an expression ``mask_<equation>candidate_of``),
    which differs at every step, or with ``per_sequence`` only by row. A cell that forms its state
    from one value alone (Elman, IndRNN) has no candidate.

    Raises:
        DeclarationError: a value that the equations do not compute, a new state, or a value
            without which a new state reads nothing of the past.
    """
    definition = definition_of(cell)
    accept.flag("recurrent_dropout", "per_sequence", per_sequence, error=DeclarationError)
    if not values:
        raise fault(definition, "recurrent_dropout", 'name the candidate, such as "g" in LSTM')
    candidates = [candidate_of(definition, value) for value in values]
    if len({candidate.expression for candidate in candidates}) < len(candidates):
        names = ", ".join(candidate.name for candidate in candidates)
        raise fault(definition, "recurrent_dropout", f"a candidate is named twice ({names})")
    chosen = sorted(candidates, key=lambda candidate: candidate.is_named)
    refuse_forgetting(definition, {candidate.expression for candidate in chosen})
    body = MaskedCell(cell, "RecurrentDropout", name)
    varies = Varies.ROW if per_sequence else Varies.STEP_AND_ROW
    own, raw = [], []
    for candidate in chosen:
        body.mask(f"mask_{candidate.name}", candidate.shape, Kind.DROPOUT, varies)
        own.append(candidate.name if candidate.is_named else body.fresh(candidate.name))
        raw.append(body.fresh(f"{candidate.name}_raw"))

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Expr, Expr] = {}
        for candidate, mask, dropped, before in zip(chosen, masks, own, raw, strict=True):
            ns[before] = candidate.formed.xreplace(swap)
            ns[dropped] = cast(Expr, ns[before]) * mask
            if not candidate.is_named:
                swap[candidate.expression] = cast(Expr, ns[dropped])
        restate(ns, definition, swap, leave=own)

    return body.make(state)


@located
def dropconnect(cell: type[Cell], *weights: str, name: str = "") -> type[Cell]:
    """Drop weights, the same ones for all rows and steps.

    Sources: Wan et al. 2013; on recurrent weights: Merity, Keskar & Socher 2018, arXiv:1708.02182.

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
    known = {str(value.name): value for value in values_of_weights(definition)}
    weights = tuple(checked_name(definition, "dropconnect", "a weight", w) for w in weights)
    unknown = [w for w in weights if w not in known]
    if unknown:
        listed = ", ".join(known)
        raise fault(definition, "dropconnect", f"{unknown[0]} is no weight; it has {listed}")
    chosen = [known[w] for w in weights] or recurrent_weights(definition)
    if not chosen:
        raise fault(definition, "dropconnect", "no weight multiplies a state; name the weights")
    body = MaskedCell(cell, "Dropconnect", name)
    for weight in chosen:
        body.mask(f"mask_{weight.name}", weight.shape, Kind.DROPOUT, Varies.NEVER)
    dropped = [body.fresh(f"{weight.name}_dropped") for weight in chosen]

    def state(ns: dict[str, object], masks: Sequence[Expr]) -> None:
        swap: dict[Expr, Expr] = {}
        for weight, mask, own in zip(chosen, masks, dropped, strict=True):
            ns[own] = weight * mask
            swap[weight] = cast(Expr, ns[own])
        restate(ns, definition, swap)

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
    known = {state_name(state): state for state in definition.states}
    spelled = {str(state.name): state_name(state) for state in definition.states}
    accept.flag("zoneout", "per_sequence", per_sequence, error=DeclarationError)
    words = [checked_name(definition, "zoneout", "a state", name) for name in states]
    names = [spelled.get(name, name) for name in words]
    unknown = [state for state in names if state not in known]
    if unknown:
        raise fault(definition, "zoneout", f"{unknown[0]} is no state; it has {', '.join(known)}")
    chosen = {state: known[state] for state in names} or known
    body = MaskedCell(cell, "Zoneout", name)
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
        restate(ns, definition, swap, leave=chosen)

    return body.make(state_equations)

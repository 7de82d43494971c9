"""What operators of ONNX are in the language: one row each.

Input: a node of a body and its operands. Output: the text of what it gives. A template has the
operands' texts in its places; what needs attributes is a function. What has no row is refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from onnx import TensorProto

from cellgen.errors import UsageError
from cellgen.onnx.across import ACROSS
from cellgen.onnx.activations import ACTIVATIONS
from cellgen.onnx.calls import NodeCall, Row
from cellgen.onnx.terms import BodyTerm, StepText, fitted

POINTWISE: Mapping[str, str] = {
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Div": "{0} / {1}",
    "Neg": "-{0}",
    "Exp": "exp({0})",
    "Log": "log({0})",
    "Sqrt": "sqrt({0})",
    "Sin": "sin({0})",
    "Cos": "cos({0})",
    "Tan": "sin({0}) / cos({0})",
    "Atan": "atan2({0}, 1)",
    "Erf": "erf({0})",
    "Abs": "abs({0})",
    "Sign": "sign({0})",
    "Floor": "floor({0})",
    "Ceil": "-floor(-{0})",
    "Round": "round({0})",
    "Reciprocal": "1 / {0}",
    "Identity": "{0}",
    "PRelu": "where({0} > 0, {0}, {1} * {0})",
    "Mish": "{0} * tanh(softplus({0}))",
    "HardSwish": "{0} * clip({0} / 6 + 0.5, 0, 1)",
    "Sinh": "(exp({0}) - exp(-{0})) / 2",
    "Cosh": "(exp({0}) + exp(-{0})) / 2",
    "Not": "where({0}, 0, 1)",
    "And": "where({0}, where({1}, 1, 0), 0)",
    "Or": "where({0}, 1, where({1}, 1, 0))",
    "Xor": "where({0}, where({1}, 0, 1), where({1}, 1, 0))",
}
"""Those without attributes; an operand that stands twice is named first."""

COMPARED: Mapping[str, str] = {
    "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "Less": "{0} < {1}",
    "LessOrEqual": "{0} <= {1}",
}

FOLDED = {
    "Max": "maximum({0}, {1})",
    "Min": "minimum({0}, {1})",
    "Sum": "{0} + {1}",
}
"""Of any number of operands, two at a time."""

WITH_NUMBERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "Selu": (
        "{gamma} * where({0} > 0, {0}, {alpha} * expm1({0}))",
        {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    ),
    "Celu": ("maximum({0}, 0) + minimum({alpha} * expm1({0} / {alpha}), 0)", {"alpha": 1.0}),
    "Swish": ("{0} * sigmoid({alpha} * {0})", {"alpha": 1.0}),
}

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _template(template: str) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        terms = call.terms
        return [call.new_term(_filled(call.step, template, terms), flat=fitted(terms))]

    return row


def _filled(step: StepText, template: str, terms: Sequence[BodyTerm], **numbers: str) -> str:
    """A template with texts; an operand that it reads twice is written down first."""
    texts = []
    for place, term in enumerate(terms):
        is_condition = f"where({{{place}}}" in template
        twice = template.count(f"{{{place}}}") > 1
        plain = step.text(term) if is_condition else step.number(term)
        texts.append(step.atom(term) if twice else plain)
    return template.format(*texts, **numbers)


def _compared(template: str) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        terms = call.terms
        texts = [call.step.number(term) for term in terms]
        text = template.format(*texts)
        return [call.new_term(text, is_truth=True, flat=fitted(terms))]

    return row


def _folded(template: str) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        terms = call.terms
        text = reduce(lambda a, b: f"({template.format(a, b)})", map(call.step.number, terms))
        return [call.new_term(text, flat=fitted(terms))]

    return row


def _with_numbers(template: str, defaults: Mapping[str, float]) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        terms = call.terms
        numbers = {name: call.number(name, default) for name, default in defaults.items()}
        text = _filled(call.step, template, terms, **numbers)
        return [call.new_term(text, flat=fitted(terms))]

    return row


def _activation(name: str) -> Row:
    """A row of the activations of recurrent operators."""
    activation = ACTIVATIONS[name.lower()]
    template = activation.text.replace("{x}", "{0}").replace("{a}", "{alpha}")
    numbers = (("alpha", activation.alpha), ("beta", activation.beta))
    defaults = {n: default for n, default in numbers if default is not None}
    return _with_numbers(template.replace("{b}", "{beta}"), defaults)


# --- pointwise, with operands of their own kind ---------------------------------------------------


def _power(call: NodeCall) -> list[BodyTerm]:
    base, exponent = call.operands
    assert base is not None
    assert exponent is not None
    text = f"{call.step.number(base)} ** {call.step.number(exponent)}"
    return [call.new_term(text, flat=fitted([base, exponent]))]


def _clip(call: NodeCall) -> list[BodyTerm]:
    x, *limits = (*call.operands, None, None)[:3]
    assert x is not None
    texts = [None if term is None else call.step.number(term) for term in limits]
    for place, name in enumerate(("min", "max")):
        if name in call.options:
            texts[place] = call.number(name, 0.0)
    low, high = texts
    text = call.step.number(x)
    if low is not None and high is not None:
        text = f"clip({text}, {low}, {high})"
    elif low is not None:
        text = f"maximum({text}, {low})"
    elif high is not None:
        text = f"minimum({text}, {high})"
    return [call.new_term(text, flat=x.flat)]


def _where(call: NodeCall) -> list[BodyTerm]:
    terms = call.terms
    condition, a, b = terms
    text = f"where({call.step.text(condition)}, {call.step.number(a)}, {call.step.number(b)})"
    return [call.new_term(text, flat=fitted(terms))]


def _equal(call: NodeCall) -> list[BodyTerm]:
    terms = call.terms
    a, b = (call.step.atom(term) for term in terms)
    text = f"where({a} >= {b}, where({a} <= {b}, 1, 0), 0)"
    return [call.new_term(text, flat=fitted(terms))]


def _cast(call: NodeCall) -> list[BodyTerm]:
    (x,) = call.operands
    assert x is not None
    to = call.options["to"]
    if to in _FLOATS or x.is_truth:
        text = call.step.text(x) if x.is_truth and to == TensorProto.BOOL else call.step.number(x)
        is_truth = x.is_truth and to == TensorProto.BOOL
        return [call.new_term(text, is_truth=is_truth, flat=x.flat)]
    if to == TensorProto.BOOL:
        return [call.new_term(f"where({call.step.text(x)}, 1, 0)", flat=x.flat)]
    name = call.step.atom(x)
    return [call.new_term(f"sign({name}) * floor(abs({name}))", flat=x.flat)]


def _dropout(call: NodeCall) -> list[BodyTerm]:
    if any(call.constant(2, "training_mode") or ()):
        raise UsageError(
            "it is in training mode, where it draws numbers; expected one at inference"
        )
    x = call.operands[0]
    assert x is not None
    return [call.new_term(call.step.number(x), flat=x.flat)]


def _gelu(call: NodeCall) -> list[BodyTerm]:
    if call.options.get("approximate", "none") != "none":
        raise UsageError("approximate is 'tanh'; expected 'none'")
    return _template("gelu({0})")(call)


ROWS: Mapping[str, Row] = {
    **{name: _template(template) for name, template in POINTWISE.items()},
    **{name: _compared(template) for name, template in COMPARED.items()},
    **{name: _folded(template) for name, template in FOLDED.items()},
    **{name: _with_numbers(*row) for name, row in WITH_NUMBERS.items()},
    **{row.name: _activation(row.name) for row in ACTIVATIONS.values() if row.stands_alone},
    **ACROSS,
    "Cast": _cast,
    "Clip": _clip,
    "Dropout": _dropout,
    "Equal": _equal,
    "Gelu": _gelu,
    "Pow": _power,
    "Where": _where,
}
"""Every operator that a body of ``Scan`` may hold."""

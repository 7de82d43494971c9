"""The form of a node: its attributes by name, as the schema of its operator has them.

Input: a node. Output: its attributes. Raises UsageError, naming the node, for one that lacks an
attribute or an operand, has one of another type, or has some that its operator has not.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, helper

from cellgen import accept
from cellgen.errors import UsageError

DOMAINS = ("", "ai.onnx")
"""Names of the standard operators' domain."""
RUNTIME = "com.microsoft"
"""The domain of onnxruntime's operators."""
SAME_FORM = {"DynamicQuantizeLSTM": "LSTM"}
"""Operators of onnxruntime, and the standard ones whose attributes they have."""
GIVES_NAMES = ("LSTM", "GRU", "RNN")
"""Operators whose operands are looked at where they are read, by what they hold."""
LONGEST_NAME = 80
"""Characters of a name that a message shows."""


def called(node: NodeProto) -> str:
    """How messages name a node: its name, or the name of its first result, and its operator."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {short(name)!r} ({short(node.op_type)})"


def short(name: str) -> str:
    """A name of a model, cut where it is long."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def attributes(label: str, node: NodeProto, opset: int) -> dict[str, Any]:
    """Attributes by name, texts as ``str``; looked at, where the operator has a schema."""
    schema = _schema(SAME_FORM.get(node.op_type, node.op_type), opset)
    known = {} if schema is None else schema.attributes
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        if schema is not None:
            _require_known(label, node, attribute, known)
        values[attribute.name] = _value(label, node, attribute)
    for name, row in known.items():
        if row.required and name not in values:
            raise UsageError(f"{label}: {called(node)} lacks the attribute {name!r}")
    if schema is not None and node.domain in DOMAINS:
        _require_count(label, node, "operands", len(node.input), schema.min_input, schema.max_input)
        least, most = schema.min_output, schema.max_output
        _require_count(label, node, "results", len(node.output), least, most)
        for formal, name in zip(schema.inputs[: schema.min_input], node.input, strict=False):
            is_needed = formal.option.name == "Single" and node.op_type not in GIVES_NAMES
            if is_needed and not name:
                raise UsageError(f"{label}: {called(node)}: its operand {formal.name} is left out")
    return values


@lru_cache(maxsize=1024)
def _schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, max(opset, 1), "")
    except onnx.defs.SchemaError:
        return None


def _require_known(
    label: str,
    node: NodeProto,
    attribute: AttributeProto,
    known: Mapping[str, onnx.defs.OpSchema.Attribute],
) -> None:
    if attribute.name not in known:
        near = difflib.get_close_matches(short(attribute.name), known, n=1)
        raise UsageError(
            f"{label}: {called(node)} has an unknown attribute {short(attribute.name)!r}; "
            + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}")
        )
    expected = known[attribute.name].type.name
    kinds = AttributeProto.AttributeType
    kind = kinds.Name(attribute.type) if attribute.type in kinds.values() else "none"
    if kind != expected:
        raise UsageError(
            f"{label}: {called(node)}: its attribute {attribute.name!r} is of the type {kind}, "
            f"expected {expected}"
        )


def _value(label: str, node: NodeProto, attribute: AttributeProto) -> Any:
    try:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list | tuple):
            return [v.decode() if isinstance(v, bytes) else v for v in value]
    except ValueError as error:  # bytes that are no text, a type that is none
        raise UsageError(
            f"{label}: {called(node)}: its attribute {short(attribute.name)!r} cannot be read: "
            f"{accept.reason(error)}"
        ) from None
    return value


def _require_count(
    label: str, node: NodeProto, what: str, count: int, least: int, most: int
) -> None:
    if not least <= count <= most:
        expected = least if least == most else f"{least} to {most}" if most < 99 else f"{least}"
        raise UsageError(f"{label}: {called(node)} has {count} {what}, expected {expected}")

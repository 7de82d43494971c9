"""Local functions of a model, written where they are called.

Input: a ``ModelProto``. Output: one without local functions. Raises UsageError for functions that
call themselves, and for those that would be more nodes than a model has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import FunctionProto, ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.onnx.forms import short

LARGEST = 200_000
"""Nodes of a model, its functions written where they are called."""

_Key = tuple[str, str]


def inlined(label: str, model: ModelProto) -> ModelProto:
    """Write local functions where they are called."""
    if not model.functions:
        return model
    functions = {(f.domain, f.name): f for f in model.functions}
    counts: dict[_Key, int] = {}
    for key in functions:
        _count(label, key, functions, counts, ())
    if _total(model.graph.node, counts) > LARGEST:
        raise UsageError(f"{label}: its local functions are over {LARGEST} nodes where called")
    try:
        return inline_local_functions(model)
    except Exception as error:
        raise UsageError(
            f"{label}: its local functions cannot be written where they are called: "
            f"{accept.reason(error)}"
        ) from None


def _count(
    label: str,
    key: _Key,
    functions: Mapping[_Key, FunctionProto],
    counts: dict[_Key, int],
    callers: tuple[_Key, ...],
) -> None:
    """Count the nodes of a function, those that it calls first."""
    if key in counts:
        return
    if key in callers or len(callers) > 64:
        raise UsageError(
            f"{label}: the local function {short(key[1])!r} calls itself, or 64 others in a row"
        )
    every = list(nodes_within(functions[key].node))
    for node in every:
        if (node.domain, node.op_type) in functions:
            _count(label, (node.domain, node.op_type), functions, counts, (*callers, key))
    counts[key] = min(_total(every, counts), LARGEST + 1)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """Nodes and those of bodies within."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            stack += attribute.g.node


def _total(nodes: Iterable[NodeProto], counts: Mapping[_Key, int]) -> int:
    return sum(1 + counts.get((node.domain, node.op_type), 0) for node in nodes_within(nodes))

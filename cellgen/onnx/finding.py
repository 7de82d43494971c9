"""The recurrent nodes of a model, in branches and bodies too, and loops that are such nodes.

Input: ``ModelGraph``. Output: ``RecurrentNode``, in the order of the model, and ``OtherLoop``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import NodeProto

from cellgen.errors import UsageError
from cellgen.onnx.forms import DOMAINS, RUNTIME, called
from cellgen.onnx.loops import scan_of
from cellgen.onnx.reading import LEAST, ModelGraph

DEEPEST = 32
"""Bodies within bodies that are looked into."""


@dataclass(frozen=True)
class RecurrentNode:
    """A node and the graph that it stands in; ``name`` is what messages call it.

    ``node`` is a ``Scan`` where the model has a ``Loop`` over a sequence.
    """

    graph: ModelGraph
    node: NodeProto
    name: str


@dataclass(frozen=True)
class OtherLoop:
    """A loop that is no cell, and why."""

    why: str


def recurrent(graph: ModelGraph, depth: int = 0) -> Iterator[RecurrentNode | OtherLoop]:
    """The nodes of a graph that are recurrent. Raises UsageError for bodies too deep."""
    for node in graph.proto.node:
        if is_recurrent(node):
            yield RecurrentNode(graph, node, called(node))
            continue
        bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        if bodies and depth == DEEPEST:
            raise UsageError(f"{graph.label}: {called(node)} stands within {DEEPEST} bodies")
        inner = [one for body in bodies for one in recurrent(graph.within(body), depth + 1)]
        yield from inner
        is_loop = node.op_type == "Loop" and node.domain in DOMAINS
        if is_loop and not any(isinstance(one, RecurrentNode) for one in inner):
            yield _loop(graph, node)


def _loop(graph: ModelGraph, node: NodeProto) -> RecurrentNode | OtherLoop:
    try:
        return RecurrentNode(graph, scan_of(graph, node), called(node))
    except UsageError as error:
        return OtherLoop(Exception.__str__(error).removeprefix(f"{graph.label}: "))
    except Exception:  # of a node that is broken in a way that nothing looks for
        return OtherLoop(f"{called(node)} cannot be read")


def is_recurrent(node: NodeProto) -> bool:
    """Whether a node is a cell over time."""
    operator = str(node.op_type)
    if node.domain == RUNTIME:
        return operator == "DynamicQuantizeLSTM"
    return operator in LEAST and node.domain in DOMAINS

"""A model of ONNX as it is read: its nodes, and what in it is constant.

Input: a file, or a ``ModelProto``. Output: ``ModelGraph``. Raises UsageError, naming file and
node, for what cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.onnx.graph import Array

DOMAINS = ("", "ai.onnx")
"""Names of the standard operators' domain."""
LEAST = {"LSTM": 7, "GRU": 7, "RNN": 7, "Scan": 9}
"""The opsets from which on these operators mean what they mean today."""


class MissingError(UsageError):
    """A value that a node reads and nothing gives: an initializer that was left out."""


@dataclass(frozen=True)
class ModelGraph:
    """A graph and what surrounds it; ``where`` says how a message begins."""

    where: str
    model: ModelProto
    proto: GraphProto
    opset: int
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)

    @cached_property
    def initializers(self) -> Mapping[str, Array]:
        """Arrays that stand in the graph, by name."""
        return {tensor.name: _array(self.where, tensor) for tensor in self.proto.initializer}

    @cached_property
    def producers(self) -> Mapping[str, NodeProto]:
        """Nodes by the names of their results."""
        return {name: node for node in self.proto.node for name in node.output if name}

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of what the graph takes."""
        return frozenset(value.name for value in self.proto.input)

    def constant(self, name: str, node: NodeProto) -> Array | None:
        """A value that ``node`` reads, where initializers alone make it; None where inputs do.

        Raises:
            MissingError: nothing gives the value, or what it is made of.
        """
        nodes: list[NodeProto] = []
        arrays: dict[str, Array] = {}
        if not self._gather(name, node, nodes, arrays):
            return None
        if name in arrays:
            return arrays[name]
        return self._evaluated(name, nodes, arrays)

    def _gather(
        self, name: str, reader: NodeProto, nodes: list[NodeProto], arrays: dict[str, Array]
    ) -> bool:
        """Collect the nodes that make a value, in order, and the arrays that they read."""
        if name in arrays or any(name in node.output for node in nodes):
            return True
        if name in self.initializers:
            arrays[name] = self.initializers[name]
            return True
        if name in self.inputs:
            return False
        made = self.producers.get(name)
        if made is None:
            raise MissingError(
                f"{self.where}: {called(reader)} reads {name!r}, which no initializer, input or "
                f"node gives; save the model with its weights"
            )
        if any(attribute.HasField("g") for attribute in made.attribute):
            return False
        if not all(self._gather(n, made, nodes, arrays) for n in made.input if n):
            return False
        nodes.append(made)
        return True

    def _evaluated(
        self, name: str, nodes: Sequence[NodeProto], arrays: Mapping[str, Array]
    ) -> Array:
        graph = helper.make_graph(
            list(nodes),
            "constants",
            [],
            [onnx.ValueInfoProto(name=name)],
            [numpy_helper.from_array(array, key) for key, array in arrays.items()],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import)
        try:
            (found,) = ReferenceEvaluator(model).run(None, {})
        except Exception as error:
            raise UsageError(
                f"{self.where}: the constant {name!r} cannot be computed: {accept.reason(error)}"
            ) from None
        return np.asarray(found)


def opened(source: object) -> ModelGraph:
    """Read a model. Raises UsageError for a file that is none."""
    if isinstance(source, ModelProto):
        return _graph(source.graph.name or "model", source)
    path = accept.path("cellgen.onnx.load", "model", source, error=UsageError)
    try:
        model = onnx.load(str(path))
    except Exception as error:  # of the file system, or of protobuf
        raise UsageError(f"cannot read {path} as a model of ONNX: {accept.reason(error)}") from None
    return _graph(path.name, model)


def _graph(where: str, model: ModelProto) -> ModelGraph:
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = max((opsets[d] for d in DOMAINS if d in opsets), default=0)
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UsageError(
            f"{where}: opset {opset}, and the installed onnx {onnx.__version__} knows those up to "
            f"{newest}; pip install -U onnx"
        )
    return ModelGraph(where, model, model.graph, opset, _shapes(model))


def _shapes(model: ModelProto) -> dict[str, tuple[int | str | None, ...]]:
    """Lengths of axes where they are known, by the names of values."""
    with suppress(Exception):  # what cannot be inferred is asked for where it is needed
        model = onnx.shape_inference.infer_shapes(model)
    graph = model.graph
    values = [*graph.input, *graph.value_info, *graph.output]
    found = {v.name: shape for v in values if (shape := shape_of_type(v.type)) is not None}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def shape_of_type(kind: onnx.TypeProto) -> tuple[int | str | None, ...] | None:
    """The axes of a type: lengths, names of free ones, None for what is not said."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        axis.dim_value if axis.HasField("dim_value") else (axis.dim_param or None)
        for axis in tensor.shape.dim
    )


def _array(where: str, tensor: onnx.TensorProto) -> Array:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise UsageError(
            f"{where}: the initializer {tensor.name!r} cannot be read: {accept.reason(error)}"
        ) from None


def require_opset(graph: ModelGraph, node: NodeProto) -> None:
    """Refuse a recurrent operator of an opset in which it meant something else."""
    least = LEAST[node.op_type]
    if graph.opset < least:
        raise UsageError(
            f"{graph.where}: {called(node)} is of opset {graph.opset}, expected {least} or newer; "
            f"convert the model with onnx.version_converter.convert_version(model, 17)"
        )


def called(node: NodeProto) -> str:
    """How messages name a node: its name, or the name of its first result, and its operator."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({node.op_type})"


def attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes by name; texts as ``str``."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, list | tuple):
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
        found[attribute.name] = value
    return found


def recurrent(graph: ModelGraph) -> Iterator[NodeProto]:
    """The nodes of a graph that are recurrent."""
    for node in graph.proto.node:
        if node.op_type in LEAST and node.domain in DOMAINS:
            yield node


def within(graph: ModelGraph) -> str:
    """The first node whose body holds a recurrent one, by name; empty where there is none."""
    for node in graph.proto.node:
        for attribute in node.attribute:
            inner = attribute.g.node if attribute.HasField("g") else ()
            if any(one.op_type in LEAST and one.domain in DOMAINS for one in inner):
                return called(node)
    return ""


def stem(path: object) -> str:
    """The name of a model's file without its ending."""
    return Path(path).stem if isinstance(path, str | Path) else "model"

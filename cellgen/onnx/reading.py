"""A model of ONNX as it is read: its nodes, within branches too, and what in it is constant.

Input: a file, or a ``ModelProto``. Output: ``ModelGraph``, one for the model and one for each body
of ``If`` and ``Loop`` within; local functions stand where they are called. Raises UsageError,
naming file and node, for what cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.onnx.constants import computed, require_entries
from cellgen.onnx.forms import DOMAINS, attributes, called, short
from cellgen.onnx.functions import inlined, nodes_within
from cellgen.onnx.graph import Array

LEAST = {"LSTM": 7, "GRU": 7, "RNN": 7, "Scan": 9}
"""The opsets from which on these operators mean what they mean today."""
MOST = 1000
"""Nodes that a constant may be made by."""
FREE = (2, 3)
"""Lengths of free axes: what is the same with both does not depend on them."""

Axes = tuple[int | str | None, ...]


class MissingError(UsageError):
    """A value that a node reads and nothing gives: an initializer that was left out."""


@dataclass(frozen=True)
class ModelGraph:
    """A graph and the one around it; ``label`` says how a message begins."""

    label: str
    model: ModelProto
    proto: GraphProto
    opset: int
    outer: ModelGraph | None = None
    known: dict[tuple[str, int], Array] = field(default_factory=dict)

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto | SparseTensorProto]:
        """What stands in the graph, by name."""
        dense = {tensor.name: tensor for tensor in self.proto.initializer}
        return {**{s.values.name: s for s in self.proto.sparse_initializer}, **dense}

    @cached_property
    def producers(self) -> Mapping[str, NodeProto]:
        """Nodes by the names of their results."""
        return {name: node for node in self.proto.node for name in node.output if name}

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of what the graph takes."""
        return frozenset(value.name for value in self.proto.input)

    @cached_property
    def shapes(self) -> Mapping[str, Axes]:
        """Lengths of axes where they are known, by the names of values."""
        around = {} if self.outer is None else self.outer.shapes
        values = [*self.proto.input, *self.proto.value_info, *self.proto.output]
        own = {v.name: shape for v in values if (shape := shape_of_type(v.type)) is not None}
        tensors = {tensor.name: tuple(tensor.dims) for tensor in self.proto.initializer}
        return {**around, **own, **tensors}

    def within(self, body: GraphProto) -> ModelGraph:
        """The graph of a body, which sees the values of this one."""
        return ModelGraph(self.label, self.model, body, self.opset, self)

    def giver(self, name: str) -> ModelGraph | None:
        """The innermost graph that gives a value."""
        graph: ModelGraph | None = self
        while graph is not None:
            if name in graph.initializers or name in graph.inputs or name in graph.producers:
                return graph
            graph = graph.outer
        return None

    def constant(self, name: str, node: NodeProto) -> Array | None:
        """A value that ``node`` reads, where initializers alone make it; None where inputs do.

        Raises:
            MissingError: nothing gives the value, or what it is made of.
            UsageError: a node on the way that no constant is made by.
        """
        return _Constant(self, 0).value(name, node)

    def counted(self, name: str, node: NodeProto, free: int) -> Array | None:
        """A value that ``node`` reads, where free axes of what inputs make have that length.

        None where it depends on more than lengths. Raises as ``constant``.
        """
        return _Constant(self, free).value(name, node)

    def start(self, name: str, node: NodeProto, rows: int) -> Array | None:
        """An initial state that ``node`` reads, where inputs give at most its number of rows.

        The axis ``rows`` has length 1 where every row is the same. None where inputs make it.
        Raises as ``constant``.
        """
        fixed = self.constant(name, node)
        if fixed is not None:
            return fixed
        starts = [self.counted(name, node, length) for length in FREE]
        return _alike([array for array in starts if array is not None], rows)


def _alike(arrays: Sequence[Array], axis: int) -> Array | None:
    """The one row, its axis of length 1, that all rows of both arrays are."""
    if len(arrays) < len(FREE) or any(a.ndim <= axis or not a.shape[axis] for a in arrays):
        return None
    first, other = (array.take([0], axis) for array in arrays)
    same = first.shape == other.shape
    if same and all(np.array_equal(a, np.broadcast_to(first, a.shape)) for a in arrays):
        return first
    return None


class _Constant:
    """Goes back from a value to what makes it.

    Axes of unknown length have the length ``free``; with 0 the shape of a value that inputs make is
    no constant.
    """

    def __init__(self, graph: ModelGraph, free: int) -> None:
        self.graph = graph
        self.free = free

    def value(self, name: str, reader: NodeProto) -> Array | None:
        """Compute a value, what it is made of first."""
        stack = [(self.graph, name, reader)]
        opened: set[tuple[int, str]] = set()
        while stack:
            graph, wanted, by = stack[-1]
            holder = self._holder(graph, wanted, by)
            key = (wanted, self.free)
            if key in holder.known:
                stack.pop()
                continue
            if wanted in holder.initializers:
                holder.known[key] = array_of(holder.label, holder.initializers[wanted])
                continue
            node = holder.producers.get(wanted)
            if node is None or any(attribute.HasField("g") for attribute in node.attribute):
                return None
            lacking = [n for n in node.input if n and not self._known(holder, n, node)]
            shape = self._shape(holder, node) if lacking else None
            if shape is not None:
                holder.known[key] = shape
            elif not lacking:
                self._compute(holder, node)
            elif (id(holder), wanted) in opened:
                raise UsageError(f"{holder.label}: {called(node)} reads what is made of its result")
            elif len(opened) > MOST:
                raise UsageError(f"{holder.label}: {called(by)}: over {MOST} nodes make its input")
            else:
                opened.add((id(holder), wanted))
                stack += [(holder, n, node) for n in lacking]
        holder = self._holder(self.graph, name, reader)
        return holder.known[name, self.free]

    def _holder(self, graph: ModelGraph, name: str, reader: NodeProto) -> ModelGraph:
        holder = graph.giver(name)
        if holder is None:
            raise MissingError(
                f"{graph.label}: {called(reader)} reads {short(name)!r}, which no initializer, "
                f"input or node gives; save the model with its weights"
            )
        return holder

    def _known(self, graph: ModelGraph, name: str, reader: NodeProto) -> bool:
        return (name, self.free) in self._holder(graph, name, reader).known

    def _shape(self, graph: ModelGraph, node: NodeProto) -> Array | None:
        """What a ``Shape`` gives of a value whose axes are counted."""
        if node.op_type != "Shape" or node.domain not in DOMAINS or not self.free:
            return None
        options = attributes(graph.label, node, graph.opset)
        axes = graph.shapes.get(node.input[0])
        if axes is None:
            return None
        lengths = [axis if isinstance(axis, int) else self.free for axis in axes]
        return np.asarray(lengths[options.get("start", 0) : options.get("end")], np.int64)

    def _compute(self, graph: ModelGraph, node: NodeProto) -> None:
        arrays = {n: self._holder(graph, n, node).known[n, self.free] for n in node.input if n}
        results = computed(graph.label, node, arrays, graph.model.opset_import)
        graph.known.update(zip([(n, self.free) for n in node.output], results, strict=True))


def opened(source: object) -> ModelGraph:
    """Read a model. Raises UsageError for a file that is none."""
    if isinstance(source, ModelProto):
        name = "".join(c if c.isprintable() else "?" for c in short(source.graph.name))
        return _graph(name or "model", source)
    path = accept.path("cellgen.onnx.load", "model", source, error=UsageError)
    try:
        model = onnx.load(str(path))
    except Exception as error:  # of the file system, or of protobuf
        raise UsageError(f"cannot read {path} as a model of ONNX: {accept.reason(error)}") from None
    return _graph(path.name, model)


def _graph(label: str, model: ModelProto) -> ModelGraph:
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = max((opsets[d] for d in DOMAINS if d in opsets), default=0)
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UsageError(
            f"{label}: opset {opset}, and the installed onnx {onnx.__version__} knows those up to "
            f"{newest}; pip install -U onnx"
        )
    model = inlined(label, model)
    with suppress(Exception):  # what cannot be inferred is asked for where it is needed
        for node in nodes_within(model.graph.node):  # some releases of onnx crash on a broken one
            if node.domain in DOMAINS:
                attributes(label, node, opset)
        model = onnx.shape_inference.infer_shapes(model)
    return ModelGraph(label, model, model.graph, opset)


def shape_of_type(kind: onnx.TypeProto) -> Axes | None:
    """The axes of a type: lengths, names of free ones, None for what is not said."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        axis.dim_value if axis.HasField("dim_value") else (axis.dim_param or None)
        for axis in tensor.shape.dim
    )


def array_of(label: str, tensor: TensorProto | SparseTensorProto) -> Array:
    """The numbers of an initializer. Raises UsageError, which names it."""
    name = tensor.name if isinstance(tensor, TensorProto) else tensor.values.name
    label = f"{label}: the initializer {short(name)!r}"
    require_entries(label, tensor.dims)
    try:
        if isinstance(tensor, TensorProto):
            return np.asarray(numpy_helper.to_array(tensor))
        values, places = (numpy_helper.to_array(t) for t in (tensor.values, tensor.indices))
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        flat = places.ndim < 2  # one number for each entry, or one for each axis
        dense[np.unravel_index(places, dense.shape) if flat else tuple(places.T)] = values
        return dense
    except Exception as error:
        raise UsageError(f"{label} cannot be read: {accept.reason(error)}") from None


def require_opset(graph: ModelGraph, node: NodeProto) -> None:
    """Refuse a recurrent operator of an opset in which it meant something else."""
    least = LEAST.get(node.op_type, 0) if node.domain in DOMAINS else 0
    if graph.opset < least:
        raise UsageError(
            f"{graph.label}: {called(node)} is of opset {graph.opset}, expected {least} or newer; "
            f"convert the model with onnx.version_converter.convert_version(model, 17)"
        )


def stem(path: object) -> str:
    """The name of a model's file without its ending."""
    return Path(path).stem if isinstance(path, str | Path) else "model"

"""What of a body is the same in every call: its own arrays, those around, and what is made of both.

Input: a body and the graph around it. Output: arrays by name. Raises UsageError, naming the node,
for a body whose nodes read what is not made yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnx import GraphProto, NodeProto, TensorProto

from cellgen.errors import UsageError
from cellgen.onnx.constants import OPERATORS, computed
from cellgen.onnx.forms import DOMAINS, attributes, called, short
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import ModelGraph, array_of
from cellgen.onnx.rows import ROWS

VIEWS = (
    *("Reshape", "Unsqueeze", "Squeeze", "Slice", "Split", "Concat", "Identity", "Cast", "Expand"),
    "DequantizeLinear",
)
"""Operators that of constants make constants; others of weights are equations."""

INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8)
"""Types of elements that are whole numbers with a sign."""


def needed(proto: GraphProto) -> list[NodeProto]:
    """The nodes of a body that its results are made by, in order."""
    names = {value.name for value in proto.output}
    nodes = []
    for node in reversed(proto.node):
        if not names.isdisjoint(node.output):
            nodes.append(node)
            names.update(node.input)
    return nodes[::-1]


class BodyConstants:
    """Values of a body that are arrays; each is computed once."""

    def __init__(self, graph: ModelGraph, node: NodeProto, proto: GraphProto, label: str) -> None:
        self.graph = graph
        self.node = node
        self.label = label
        inner = graph.within(proto)
        self.own = {n: array_of(self.label, t) for n, t in inner.initializers.items()}
        self.makers = inner.producers
        self.inputs = inner.inputs
        self.uses = Counter(name for n in needed(proto) for name in n.input)
        self.uses.update(value.name for value in proto.output)
        self.folded: dict[str, Array] = {}
        kinds = {v.name: v.type.tensor_type.elem_type for v in proto.input}
        self.integers = {name for name, kind in kinds.items() if kind in INTEGERS}
        """Names of integers that change from call to call."""
        self._require_order(proto)

    def _require_order(self, proto: GraphProto) -> None:
        """Refuse nodes that are not as their operators have them, or stand before their operands.

        Behind this no node reads its own result, at whatever distance.
        """
        formed: set[str] = set()
        for node in proto.node:
            attributes(self.label, node, self.graph.opset)
            for name in node.input:
                if name in self.makers and name not in formed:
                    raise UsageError(
                        f"{self.label}: {called(node)} reads {short(name)!r} before it is made"
                    )
            twice = formed.union(self.inputs, self.own).intersection(node.output)
            if twice:
                raise UsageError(
                    f"{self.label}: {called(node)} gives {short(min(twice))!r}, which is there "
                    f"already"
                )
            formed.update(name for name in node.output if name)

    def note_integers(self, node: NodeProto) -> None:
        """Tell whether results of a node are integers. Raises UsageError for their quotient."""
        if node.op_type == "Cast":
            is_whole = attributes(self.label, node, self.graph.opset)["to"] in INTEGERS
        else:
            is_whole = all(self._is_integer(name) for name in node.input if name)
        if is_whole and node.op_type == "Div":
            raise UsageError(
                f"{self.label}: {called(node)} cuts the quotient of integers off; a cell has real "
                f"numbers alone: Cast them before, and Floor what comes of it"
            )
        self.integers.update(node.output if is_whole else ())

    def _is_integer(self, name: str) -> bool:
        source = self.source(name)
        if source in self.integers:
            return True
        array = self.array(source)
        return array is not None and array.dtype.kind in "iu"

    def source(self, name: str) -> str:
        """The value that a name stands for, behind nodes that change nothing."""
        maker = self.makers.get(name)
        while maker is not None and maker.op_type == "Identity" and maker.domain in DOMAINS:
            name = maker.input[0]
            maker = self.makers.get(name)
        return name

    def array(self, name: str) -> Array | None:
        """What a value holds, where it is the same in every call."""
        if name in self.folded or name in self.own:
            return self.folded[name] if name in self.folded else self.own[name]
        moves = name in self.makers or name in self.inputs
        return None if moves else self.graph.constant(name, self.node)

    def fold(self, node: NodeProto) -> bool:
        """Compute a node that makes a constant of constants, and is no equation of weights."""
        if node.op_type not in OPERATORS or node.domain not in DOMAINS:
            return False
        arrays = {name: self.array(self.source(name)) for name in node.input if name}
        every = {name: array for name, array in arrays.items() if array is not None}
        if len(every) < len(arrays) or not self._is_view(node, every.values()):
            return False
        results = computed(self.label, node, every, self.graph.model.opset_import)
        self.folded.update(zip(node.output, results, strict=True))
        return True

    def _is_view(self, node: NodeProto, arrays: Iterable[Array]) -> bool:
        if node.op_type == "Transpose":
            return self.uses[node.input[0]] == 1
        is_whole = all(array.dtype.kind in "iub" for array in arrays)
        return node.op_type in VIEWS or is_whole or node.op_type not in ROWS

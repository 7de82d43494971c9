"""What nodes make of constants: computed one node after the other, within limits.

Input: a node and the arrays that it reads. Output: what it gives. Raises UsageError, naming the
node, for an operator that makes no weights (one that draws numbers, a loop) and for results that
are too large. The numbers are those of onnx's reference implementation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, OperatorSetIdProto, TypeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.onnx.forms import DOMAINS, attributes, called
from cellgen.onnx.graph import Array

OPERATORS = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BitShift", "Cast", "CastLike", "Ceil", "Clip",
    "Concat", "Constant", "ConstantOfShape", "Cos", "CumSum", "DequantizeLinear", "Div",
    "Dropout", "Einsum", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "Gemm", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Log", "LpNormalization", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg",
    "NonZero", "Not", "Or", "Pad", "Pow", "QuantizeLinear", "Range", "Reciprocal", "ReduceL1",
    "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "Round", "Scatter", "ScatterElements", "ScatterND",
    "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Split", "Sqrt", "Squeeze",
    "Sub", "Sum", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
"""What weights may be made by."""
GROWING = frozenset((
    "ConstantOfShape", "Einsum", "Expand", "EyeLike", "Gemm", "MatMul", "Pad", "Range", "Tile",
))  # fmt: skip
"""Those whose results may be larger than what they read: their lengths are known before."""
NEWER = {"DequantizeLinear": 19, "QuantizeLinear": 19}
"""The opset whose implementation computes an operator of earlier ones, which meant the same."""
LARGEST = 2**28
"""Entries of one array that is computed."""
TOLD = 1024
"""Entries of an array up to which it is a shape, or axes, and tells how large results are."""


def computed(
    label: str,
    node: NodeProto,
    arrays: Mapping[str, Array],
    opsets: Sequence[OperatorSetIdProto],
) -> list[Array]:
    """Compute the results of a node of constants."""
    if node.op_type not in OPERATORS or node.domain not in DOMAINS:
        raise UsageError(
            f"{label}: {called(node)} is none of the operators that make a constant; save the "
            f"model with what it gives as an initializer"
        )
    opset = max((entry.version for entry in opsets if entry.domain in DOMAINS), default=1)
    attributes(label, node, opset)
    try:
        _require_size(label, node, arrays, opset)
        graph = helper.make_graph(
            [node],
            "constants",
            [],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        version = max(opset, NEWER.get(node.op_type, opset))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
        with np.errstate(all="ignore"):
            results = iter(ReferenceEvaluator(model).run(None, {}))
        return [np.asarray(next(results)) if name else np.zeros(0) for name in node.output]
    except UsageError:
        raise
    except Exception as error:
        reason = accept.reason(error)
        raise UsageError(f"{label}: {called(node)} cannot be computed: {reason}") from None


def _require_size(label: str, node: NodeProto, arrays: Mapping[str, Array], opset: int) -> None:
    """Raise UsageError where a result has more entries than a weight can have."""
    types = {name: _type(array) for name, array in arrays.items()}
    small = {n: numpy_helper.from_array(a, n) for n, a in arrays.items() if a.size <= TOLD}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    opsets = [helper.make_opsetid("", opset)]
    results = onnx.shape_inference.infer_node_outputs(
        schema, node, types, small, opset_imports=opsets
    )
    for kind in results.values():
        lengths = [
            axis.dim_value if axis.HasField("dim_value") else -1
            for axis in kind.tensor_type.shape.dim
        ]
        is_told = kind.tensor_type.HasField("shape") and min(lengths, default=0) >= 0
        if not is_told and node.op_type in GROWING:
            raise UsageError(f"{label}: {called(node)}: its result has unknown lengths")
        if is_told:
            require_entries(f"{label}: {called(node)}", lengths)


def require_entries(label: str, lengths: Iterable[int]) -> None:
    """Raise UsageError for lengths of axes that no weight has."""
    lengths = list(lengths)
    if min(lengths, default=0) < 0 or math.prod(lengths) > LARGEST:
        raise UsageError(
            f"{label}: an array of {accept.quoted(tuple(lengths))}; expected {LARGEST} entries at "
            f"most, and no axis below 0"
        )


def _type(array: Array) -> TypeProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(kind, list(array.shape))

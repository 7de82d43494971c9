"""onnxruntime's LSTM of integers: its weights as floating numbers, as ONNX's LSTM has them.

Input: a ``DynamicQuantizeLSTM`` and its arrays. Output: W (D, 4 H, I) and R (D, 4 H, H). What
onnxruntime does beside, rounding inputs and states to eight bits in every step, is not done.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto

from cellgen.errors import UsageError
from cellgen.onnx.forms import RUNTIME, called
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import ModelGraph

SCALES = {"W": (8, 9), "R": (10, 11)}
"""Places of a weight's scale and of its number for zero among the operands."""


def dequantized(
    graph: ModelGraph, node: NodeProto, arrays: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Weights of a node: of a quantised one ``(q - zero) scale``, else as they are.

    Raises UsageError for scales that inputs make, or that do not fit.
    """
    if node.domain != RUNTIME:
        return arrays
    label = f"{graph.label}: {called(node)}"
    return {
        **arrays,
        **{
            name: _weight(graph, node, arrays[name], places, f"{label}: {name}")
            for name, places in SCALES.items()
            if name in arrays
        },
    }


def _weight(
    graph: ModelGraph, node: NodeProto, q: Array, places: tuple[int, int], label: str
) -> Array:
    """One weight: ``q`` (D, K, 4 H), scale and zero (D) or (D, 4 H)."""
    names = [node.input[place] if place < len(node.input) else "" for place in places]
    scale, zero = (graph.constant(name, node) if name else None for name in names)
    if q.dtype.kind not in "iu" or q.ndim != 3 or scale is None or zero is None:
        raise UsageError(
            f"{label} is {q.dtype} {q.shape}, its scale {_said(scale)}, its zero {_said(zero)}; "
            f"expected quantised initializers (D, columns, rows of gates)"
        )
    directions, _, rows = q.shape
    for array in (scale, zero):
        if array.shape not in ((directions,), (directions, rows)):
            raise UsageError(
                f"{label}: a scale or zero of shape {array.shape}, expected {(directions,)} or "
                f"{(directions, rows)}"
            )
    by = scale.reshape(directions, 1, -1).astype(np.float32)
    away = zero.reshape(directions, 1, -1).astype(np.int32)
    weight = (q.astype(np.int32) - away) * by
    return np.ascontiguousarray(weight.astype(np.float32).transpose(0, 2, 1))


def _said(array: Array | None) -> str:
    return "of the model's inputs" if array is None else f"{array.dtype} {array.shape}"

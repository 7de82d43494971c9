"""Write a graph of ONNX: nodes, constants and names, each name once in a model.

Input: operators and the names of their operands. Output: ``GraphWriter``, of which a model's graph
and the body of a ``Scan`` are made. Equal nodes are written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from cellgen.language.names import Names

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

OPSET, IR_VERSION = 17, 8
"""Of exported models: what every onnxruntime from 1.12 (2022) on takes."""

_TYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}


def typed(name: str, dtype: str, shape: Sequence[int | str]) -> ValueInfoProto:
    """What is said of a graph's input or output: axes are lengths, or names of free ones."""
    return helper.make_tensor_value_info(name, _TYPES[dtype], list(shape))


class GraphWriter:
    """Nodes and constants of one graph; numbers are of the precision ``dtype``.

    The body of a ``Scan`` sees the names of the graph around it, so that both share ``names``.
    """

    def __init__(self, dtype: str, names: Names) -> None:
        self.dtype = dtype
        self.names = names
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._written: dict[tuple[object, ...], str] = {}

    def node(
        self, op: str, operands: Sequence[str], name: str = "", **attributes: Attribute
    ) -> str:
        """Write a node of one result, under a fresh name like ``name``; returns the result."""
        key = (op, *operands, *((k, str(v)) for k, v in sorted(attributes.items())))
        if key not in self._written:
            (self._written[key],) = self.several(
                op, operands, [name or op.lower()], "", **attributes
            )
        return self._written[key]

    def several(
        self,
        op: str,
        operands: Sequence[str],
        names: Sequence[str],
        called: str,
        **attributes: Attribute,
    ) -> list[str]:
        """Write a node of several results, under fresh names; an empty one is left out."""
        results = [self.names.fresh(name) if name else "" for name in names]
        called = called or results[0]
        self.nodes.append(helper.make_node(op, list(operands), results, called, **attributes))
        return results

    def result(self, source: str, name: str) -> None:
        """Give a value the very name of an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [source], [name], name))

    def number(self, value: float) -> str:
        """A constant without axes, rounded once to the graph's precision."""
        return self.constant(np.asarray(value, self.dtype), "number")

    def whole(self, *values: int) -> str:
        """A constant (n) of int64, such as axes."""
        return self.constant(np.asarray(values, np.int64), "whole")

    def constant(self, array: Array, name: str) -> str:
        """An array that stands in the model; equal ones stand there once."""
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        if key not in self._written:
            self._written[key] = self.names.fresh(name)
            self.parameter(array, self._written[key])
        return self._written[key]

    def parameter(self, array: Array, name: str) -> None:
        """Put an array into the model under this very name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))

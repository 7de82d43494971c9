"""Cells with drawn weights, and models that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import ModelProto

from cellgen.language.cell import Cell
from cellgen.language.value import Role
from cellgen.program.interpret import shape_sizes

Arrays = dict[str, np.ndarray]

SIZES = {"T": 5, "B": 3, "I": 4, "H": 6, "K": 3, "D": 2, "M": 5, "N": 2, "P": 3, "R": 2}
POSITIVE = ("ts", "t", "delta", "m")
"""Elapsed times, and what tells whether an input was seen."""
DIVISORS = ("n_prev",)
"""States that are divided by, sums of positive numbers."""
LENGTHS = np.array([5, 2, 0])


@dataclass(frozen=True)
class Drawn:
    """Arguments of a cell over time: ``rest`` are inputs, statics and initial states."""

    weights: Arrays
    rest: Arrays

    @property
    def every(self) -> Arrays:
        return {**self.weights, **self.rest}

    def of(self, dtype: str) -> Drawn:
        return Drawn(as_dtype(self.weights, dtype), as_dtype(self.rest, dtype))


def as_dtype(arrays: Arrays, dtype: str) -> Arrays:
    return {name: array.astype(dtype) for name, array in arrays.items()}


def draw(cell: type[Cell], seed: int = 0, **sizes: int) -> Drawn:
    """Draw small weights and inputs of ordinary size that float32 holds."""
    rng, lengths = np.random.default_rng(seed), SIZES | sizes
    arrays: Arrays = {}
    for value in cell.definition.declared:
        shape = shape_sizes(value, lengths)
        if value.role is Role.INPUT:
            shape = (lengths["T"], *shape)
        if value.role is not Role.SCALAR:
            array = rng.standard_normal(shape) * (0.5 if value.role.is_parameter else 1)
            array = np.abs(array) if str(value.name) in POSITIVE + DIVISORS else array
            array = array + 0.5 if str(value.name) in DIVISORS else array
            arrays[str(value.name)] = array.astype(np.float32).astype(np.float64)
    names = {str(value.name) for value in cell.definition.parameters}
    return Drawn(
        {n: a for n, a in arrays.items() if n in names},
        {n: a for n, a in arrays.items() if n not in names},
    )


def dims_of(cell: type[Cell]) -> dict[str, int]:
    """The fixed dimensions of a cell, for ``export``."""
    return {str(dim): SIZES[str(dim)] for dim in cell.definition.dims if str(dim) != "B"}


def run(model: ModelProto, given: Mapping[str, np.ndarray]) -> Arrays:
    """Run a model with onnxruntime; its results by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results = [output.name for output in session.get_outputs()]
    return dict(zip(results, session.run(None, dict(given)), strict=True))


def operators(model: ModelProto) -> list[str]:
    """The recurrent operators of a model's graph."""
    kinds = ("LSTM", "GRU", "RNN", "Scan")
    return [node.op_type for node in model.graph.node if node.op_type in kinds]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, of the largest entry where that exceeds 1."""
    assert found.shape == expected.shape
    if not found.size:
        return 0.0
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(found - expected).max()) / scale

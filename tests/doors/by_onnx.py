"""The door of ONNX: a model of the cell, run by onnxruntime."""

from __future__ import annotations

import cellgen.onnx
from tests.doors import Case, Results
from tests.doors.by_numpy import cell_of
from tests.onnx.sessions import run


def model(case: Case) -> Results:
    """The cell with its weights as a model."""
    weights = case.of_role("weight", "bias")
    lengths = case.options.get("lengths")
    exported = cellgen.onnx.export(cell_of(case), weights, lengths=lengths is not None)
    given = case.of_role("input", "state")
    if lengths is not None:
        given["sequence_lens"] = lengths.astype("int32")
    found = run(exported, given)
    return Results({n: a for n, a in found.items() if n in case.shown}, {})

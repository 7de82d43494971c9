"""Cells as models of ONNX and back: ``cellgen.onnx.export(GRU, weights)``, ``cellgen.onnx.load``.

``export`` writes a cell over time: as ONNX's ``LSTM``, ``GRU`` or ``RNN`` where that is exactly the
cell, else as a ``Scan`` over standard operators. ``load`` finds such nodes in a model and gives
their cells and weights; ``read`` gives what runs them as the nodes run, ``declare`` writes them
down. Needs onnx: ``pip install cellgen-compiler[onnx]``.
"""

from __future__ import annotations

from cellgen.errors import CellgenError
from cellgen.runtime.imports import needed

with needed(
    "onnx",
    "cellgen.onnx needs the package onnx, which is not installed; "
    "pip install 'cellgen-compiler[onnx]'",
):
    import onnx as _onnx  # noqa: F401

from cellgen.onnx.export import export
from cellgen.onnx.imported import (
    Imported,
    OperatorLayer,
    ScanLayer,
    declare,
    declared_text,
    load,
    read,
)

__all__ = [
    "CellgenError",
    "Imported",
    "OperatorLayer",
    "ScanLayer",
    "declare",
    "declared_text",
    "export",
    "load",
    "read",
]

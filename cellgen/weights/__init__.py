"""Weights of other libraries: one table of dialects, conversion both ways, proof, files.

    convert(state_dict, source="torch.nn.LSTM", target="onnx.LSTM", prove=True)

The names of dialects and their options: docs/reference/weights.md, ``cellgen.weights.ROWS``.
"""

from cellgen.weights.convert import Converted, convert
from cellgen.weights.dialects import ROWS, dialect
from cellgen.weights.files import load, save
from cellgen.weights.layouts import Dialect, PackedWeight

__all__ = ["ROWS", "Converted", "Dialect", "PackedWeight", "convert", "dialect", "load", "save"]

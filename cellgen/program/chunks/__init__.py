"""Forms over time: layers of states, and programs of whole chunks, derived from one step."""

from cellgen.program.chunks.analyse import form_over_time
from cellgen.program.chunks.described import equation_of, kind_of, lines_of
from cellgen.program.chunks.layers import (
    Decay,
    Delay,
    FormOverTime,
    Layer,
    LinearScan,
    MaxPlusScan,
    Memory,
    Readout,
    Refusal,
    Update,
)

__all__ = [
    "Decay",
    "Delay",
    "FormOverTime",
    "Layer",
    "LinearScan",
    "MaxPlusScan",
    "Memory",
    "Readout",
    "Refusal",
    "Update",
    "equation_of",
    "form_over_time",
    "kind_of",
    "lines_of",
]

"""Declaring a cell: a class whose body is the system of equations."""

from cellgen.language.cell.cell import Cell, CellMeta, definition_of, renamed
from cellgen.language.cell.declaration import (
    Bias,
    Declaration,
    Input,
    Scalar,
    State,
    Static,
    Weight,
)
from cellgen.language.cell.definition import ORDER_STEP, Definition, Equation

__all__ = [
    "ORDER_STEP",
    "Bias",
    "Cell",
    "CellMeta",
    "Declaration",
    "Definition",
    "Equation",
    "Input",
    "Scalar",
    "State",
    "Static",
    "Weight",
    "definition_of",
    "renamed",
]

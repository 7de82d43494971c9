"""Declaring a cell: a class whose body is the system of equations."""

from cellgen.language.cell.cell import (
    ORDER_STEP,
    Bias,
    Cell,
    CellMeta,
    Declaration,
    Definition,
    Equation,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    definition_of,
    renamed,
)

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

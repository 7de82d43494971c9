"""One node of a body, while it is read: operands, attributes, and what its results become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto
from sympy import Integer

from cellgen.errors import UsageError
from cellgen.language.value import B, Shape, format_shape
from cellgen.onnx.source import number
from cellgen.onnx.terms import BodyTerm, StepText, reshaped


@dataclass(frozen=True)
class NodeCall:
    """A node with its operands (None: left out) and attributes, and the step that it stands in.

    ``opset`` is that of the model, by which some operators differ.
    """

    step: StepText
    node: NodeProto
    operands: Sequence[BodyTerm | None]
    options: Mapping[str, Any]
    opset: int

    @property
    def terms(self) -> list[BodyTerm]:
        """Operands that are not left out."""
        return [term for term in self.operands if term is not None]

    def number(self, name: str, default: float) -> str:
        """The text of an attribute that is a number; ONNX holds it in float32."""
        return number(float(np.float32(self.options.get(name, default))), self.step.dtype)

    def new_term(self, text: str, *, is_truth: bool = False, flat: bool = False) -> BodyTerm:
        """The node's first result."""
        return self.step.new_term(self.node.output[0], text, is_truth=is_truth, flat=flat)

    def units(self, place: int = 0) -> BodyTerm:
        """An operand that has axes beside that of rows. Raises UsageError for one that has none."""
        term = self.operands[place] if place < len(self.operands) else None
        if term is None:
            raise UsageError(f"operand {place} is left out")
        if term.flat:
            raise UsageError(f"{term.name!r} has no axis but that of rows")
        return term

    def constant(self, place: int, what: str) -> list[Any] | None:
        """The entries of an operand that is a constant, None where it is left out.

        Raises UsageError for one that depends on the model's inputs.
        """
        term = self.operands[place] if place < len(self.operands) else None
        if term is None:
            return None
        if term.array is None:
            raise UsageError(f"{what} depends on the model's inputs; expected a constant")
        entries: list[Any] = np.ravel(term.array).tolist()
        return entries

    @property
    def axes(self) -> list[int] | None:
        """The axes that an operand or an attribute names."""
        constant = self.constant(1, "axes")
        constant = self.options.get("axes") if constant is None else constant
        return None if constant is None else [int(n) for n in constant]

    def along(self, x: BodyTerm, after: Shape) -> BodyTerm:
        """A value of rows along other axes; without any but that of rows it is flat."""
        if x.shape and x.shape[0] != B:
            shape = format_shape(x.shape)
            raise UsageError(f"{x.name!r}, {shape}, has no rows; expected a constant")
        flat = len(after) == 1
        text = reshaped(self.step.number(x), x.shape, (B, Integer(1)) if flat else after)
        return self.new_term(text, flat=flat)


Row = Callable[[NodeCall], list[BodyTerm]]
"""Gives the results of a node."""


def axis_text(axes: Sequence[int], rank: int) -> str:
    """Which axes, counted from the last, as an argument; none for the last alone."""
    behind = sorted(axis % rank - rank for axis in axes)
    if behind == [-1]:
        return ""
    return f", axis={behind[0] if len(behind) == 1 else tuple(behind)}"

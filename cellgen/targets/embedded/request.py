"""What an export is asked for: sizes, type, training; and what of that a cell cannot have.

Input: dimensions by name and options. Output: ``ExportRequest``, checked against a cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from cellgen.errors import DeclarationError, UsageError
from cellgen.language.cell import Definition
from cellgen.language.names import check_cell_name
from cellgen.language.value import Value, format_shape
from cellgen.program.interpret import shape_sizes
from cellgen.targets.embedded.optimisers import OPTIMISERS
from cellgen.targets.embedded.spelling import DTYPES

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ExportRequest:
    """An export: ``window`` steps go into a training step; ``weights`` are values by name.

    ``name`` is that of its files, types and functions: the cell's, where it is left out.
    """

    sizes: Mapping[str, int]
    dtype: str = "float"
    train: bool = False
    window: int = 16
    optimizer: str = "sgd"
    weights: Mapping[str, Array] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if self.name:
            _check_name(self.name)
        for name, word, known in (
            ("dtype", self.dtype, DTYPES),
            ("optimizer", self.optimizer, tuple(OPTIMISERS)),
        ):
            if word not in known:
                raise UsageError(f"{name} {word!r}: expected one of {', '.join(known)}")
        for name, size in {**self.sizes, "window": self.window}.items():
            if size < 1:
                raise UsageError(f"{name}={size}: expected a whole number from 1")

    def checked(self, definition: Definition) -> ExportRequest:
        """Hold the sizes to a cell's dimensions; B is 1 where it is left out. Raises UsageError."""
        sizes = {"B": 1, **self.sizes}
        names = [str(dim.name) for dim in definition.dims]
        unknown = [name for name in sizes if name not in names]
        missing = [name for name in names if name not in sizes]
        if unknown or missing:
            fault = f"does not know {', '.join(unknown)}" if unknown else "has no size for "
            fault += "" if unknown else ", ".join(missing)
            example = ",".join(f"{name}={sizes.get(name, 8)}" for name in names)
            raise UsageError(
                f"{definition.name}: its export {fault}; its dimensions are {', '.join(names)}: "
                f"--dims {example}"
            )
        return replace(self, sizes={name: sizes[name] for name in names})

    def values_of(self, cell: str, parameters: tuple[Value, ...]) -> dict[str, Array]:
        """The given weights, each of its shape and finite. Raises UsageError."""
        names = [str(value.name) for value in parameters]
        missing = [name for name in names if name not in self.weights]
        if missing:
            raise UsageError(
                f"{cell}: the weights lack {', '.join(missing)}; expected arrays named "
                f"{', '.join(names)}"
            )
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise UsageError(
                f"{cell}: the weights hold {', '.join(unknown)}, which it does not have; expected "
                f"arrays named {', '.join(names)}"
            )
        return {str(value.name): self._value_of(cell, value) for value in parameters}

    def _value_of(self, cell: str, value: Value) -> Array:
        array = np.asarray(self.weights[str(value.name)])
        shape = shape_sizes(value, self.sizes)
        if array.shape != shape or array.dtype.kind not in "fiu":
            raise UsageError(
                f"{cell}: {value.name} is {array.dtype} of shape {array.shape}, expected real "
                f"numbers of shape {format_shape(value.shape)} = {shape}"
            )
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float32 if self.dtype == "float" else np.float64)
        if not np.isfinite(rounded).all():
            raise UsageError(
                f"{cell}: {value.name} has entries that are not finite in {self.dtype}; export "
                f"weights that are"
            )
        return rounded


def _check_name(name: str) -> None:
    """Accept a name for an export's files and functions. Raises UsageError."""
    try:
        check_cell_name(name)
    except DeclarationError as error:
        raise UsageError(f"--name {name!r}: {error.args[0]}") from None

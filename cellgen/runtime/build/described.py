"""Make the descriptor of a cell from its interface, for kernels that have none in C.

Input: an ``Interface``, and bytes of an element. Output: ``Described``, a ``cellgen_cell``
(``generated/include/cellgen_descriptor.h``) in this process's memory, of one precision, none of
whose functions can be called: by it the engine binds calls whose arrays lie on a device.
``targets/c/descriptor.py`` spells the same for C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cellgen.runtime.abi import (
    ABI_VERSION,
    Argument,
    Function,
    Interface,
    axis_terms,
    term_dims,
)
from cellgen.runtime.build.library import (
    AXIS,
    CELL,
    ENTRIES,
    INT64S,
    PRECISIONS_OF,
    SIGNATURES,
    TERMS,
    TEXTS,
    VALUES,
    CData,
    Types,
)

ROLES = (
    *("input", "state", "static", "weight", "bias", "scalar"),
    *("output", "final", "intermediate", "saved", "upstream", "gradient"),
)
"""In the order of ``cellgen_role``."""
NO_DIM = -1


@dataclass(frozen=True, eq=False)
class Described:
    """A descriptor, and what it points to."""

    cell: CData
    keep: list[object] = field(repr=False)


def described(interface: Interface, element_bytes: int) -> Described:
    """Make the descriptor of a cell."""
    maker = _Maker(interface)
    functions = [maker.signature(function) for function in interface.functions]
    signatures = maker.array(SIGNATURES, functions)
    entries = maker.array(ENTRIES, [{} for _ in functions])
    precision = {"name": maker.text("own"), "bytes": element_bytes, "entry": entries}
    cell = Types.make(
        CELL,
        {
            "abi": ABI_VERSION,
            "name": maker.text(interface.name),
            "digest": maker.text(interface.digest),
            "dims": len(interface.dims),
            "dim": maker.array(TEXTS, [maker.text(name) for name in interface.dims]),
            "functions": len(functions),
            "function": signatures,
            "precisions": 1,
            "precision": maker.array(PRECISIONS_OF, [precision]),
        },
    )
    return Described(cell, maker.keep)


class _Maker:
    """Makes the tables of one cell; each length of an axis once."""

    def __init__(self, interface: Interface) -> None:
        self.keep: list[object] = []
        self._dims = interface.dims
        self._axes: dict[str, CData] = {}
        self._texts: dict[str, CData] = {}

    def array(self, kind: Any, rows: Sequence[object]) -> CData:
        table = Types.make(kind, rows)
        self.keep.append(table)
        return table

    def text(self, text: str) -> CData:
        if text not in self._texts:
            self._texts[text] = Types.make(Types.TEXT, text.encode())
            self.keep.append(self._texts[text])
        return self._texts[text]

    def signature(self, function: Function) -> dict[str, object]:
        """What a function takes."""
        read = function.struct_members
        members = [*((item, False) for item in read), *((i, True) for i in function.results)]
        return {
            "name": self.text(function.name),
            "text": self.text(function.text),
            "dims": len(function.dims),
            "dim": self.array(INT64S, [self._dims.index(name) for name in function.dims]),
            "arguments": len(read),
            "members": len(members),
            "member": self.array(VALUES, [self._value(*member) for member in members]),
            "has_workspace": int(function.workspace),
            "has_team": int(function.team),
        }

    def _value(self, item: Argument, written: bool) -> dict[str, object]:
        default = item.default if item.default is not None else item.initial
        flags = (
            *(item.optional, item.over_time, item.saved, written),
            *(item.is_weight, item.bounded, item.operand, bool(item.follows)),
        )
        return {
            "name": self.text(item.name),
            "of": self.text(item.of),
            "role": ROLES.index(item.role),
            "flags": sum(bool(flag) << place for place, flag in enumerate(flags)),
            "value": default,
            "axes": len(item.shape),
            "axis": [self._axis(axis) for axis in item.shape],
        }

    def _axis(self, axis: str) -> CData:
        if axis not in self._axes:
            terms = axis_terms(axis)
            rows = [{"factor": factor, "dim": self._numbers(name)} for factor, name in terms]
            row = {"terms": len(terms), "term": self.array(TERMS, rows)}
            self._axes[axis] = self.array(AXIS, row)  # type: ignore[arg-type]
        return self._axes[axis]

    def _numbers(self, name: str) -> list[int]:
        dims = [self._dims.index(dim) for dim in term_dims(name)]
        return [*dims, *[NO_DIM] * (3 - len(dims))]

"""A descriptor that is made of an interface says what that of the compiled kernel says."""

from __future__ import annotations

from typing import Any

import _cffi_backend
import pytest

import cellgen
from cellgen.runtime.build.described import described
from cellgen.runtime.build.library import Types
from cellgen.runtime.paths import shipped_names

FFI = _cffi_backend.FFI()


def words(cell: Any) -> list[object]:
    """All that a descriptor says of its functions, in order."""

    def text(characters: Any) -> str:
        said: bytes = FFI.string(characters)
        return said.decode()

    def axis(length: Any) -> list[tuple[int, list[int]]]:
        return [(term.factor, list(term.dim)) for term in length.term[0 : length.terms]]

    said: list[object] = [text(cell.name), text(cell.digest)]
    said += [text(name) for name in cell.dim[0 : cell.dims]]
    for function in cell.function[0 : cell.functions]:
        counts = (function.arguments, function.has_workspace, function.has_team)
        said += [text(function.name), text(function.text), list(function.dim[0 : function.dims])]
        said.append(counts)
        for value in function.member[0 : function.members]:
            axes = [axis(value.axis[n]) for n in range(value.axes)]
            said.append((text(value.name), text(value.of), value.role, value.flags, axes))
            said.append(value.value)
    return said


@pytest.mark.parametrize("name", shipped_names())
def test_it_says_what_the_compiled_one_says(name: str) -> None:
    kernel = cellgen.load(name)
    made = described(kernel.interface, 2)
    assert words(made.cell) == words(kernel.library().cell)
    assert made.cell.precision[0].bytes == 2
    assert made.cell.precision[0].entry[0].call == Types.NULL

"""Dimensions of a call: C and Python tell the same, and find the same faults."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellgen.errors import ArgumentError
from cellgen.language.cell import Cell
from cellgen.runtime.abi import ROLES, Argument, Function, Interface, axis_terms, term_dims
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.call.arguments import check_call, lengths
from cellgen.runtime.call.signature import signature
from cellgen.runtime.folders import read_interface
from cellgen.runtime.numbers import USUAL
from cellgen.runtime.paths import generated_folder, include_folder
from tests.cover import each_of, of_interface
from tests.descriptor import (
    BOUNDED,
    CARRIED,
    OPERAND,
    OPTIONAL,
    OVER_TIME,
    SAVED,
    WEIGHT,
    WRITTEN,
    Axis,
    CellOfC,
    Signature,
    Term,
    Value,
)

SOURCE = Path(__file__).with_name("bind.c")
FITS, RANK, LENGTH, SHAPE, UNBOUND = range(5)
SENTENCES = {
    RANK: r": (\w+) has \d+ axes, shape",
    LENGTH: r": (\w+) has shape .* no length >= 0 makes",
    SHAPE: r": (\w+) has shape .*; make the two agree",
    UNBOUND: r": nothing in this call tells the dimension (\w+)",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("bind") / "bind.so"
    command = [*compiler().command, "-O1", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    subprocess.run(
        [*command, "-shared", f"-I{include_folder()}", str(SOURCE), "-o", str(path)], check=True
    )
    found = ctypes.CDLL(str(path))
    found.bind_dims.restype = ctypes.c_int64
    return found


class Described:
    """The descriptor of a cell, made of its interface alone: nothing is compiled."""

    def __init__(self, interface: Interface) -> None:
        self.interface, self.keep = interface, list[object]()
        dims = [name.encode() for name in interface.dims]
        functions = [self._signature(function) for function in interface.functions]
        self.cell = CellOfC(
            dims=len(dims),
            dim=self._array(ctypes.c_char_p, dims),
            functions=len(functions),
            function=self._array(Signature, functions),
        )

    def _array(self, kind: type, items: list) -> ctypes.Array:
        made = (kind * (len(items) + 1))(*items)
        self.keep.append(made)
        return made

    def _signature(self, function: Function) -> Signature:
        members = [self._value(item, 0) for item in function.struct_members]
        members += [self._value(item, WRITTEN) for item in function.results]
        return Signature(
            dims=len(function.dims),
            dim=self._array(ctypes.c_int64, [self.interface.dims.index(d) for d in function.dims]),
            arguments=len(function.struct_members),
            members=len(members),
            member=self._array(Value, members),
        )

    def _value(self, item: Argument, flags: int) -> Value:
        axes = [ctypes.pointer(self._axis(axis)) for axis in item.shape]
        flags += (
            OPTIONAL * item.optional
            + OVER_TIME * item.over_time
            + SAVED * item.saved
            + WEIGHT * item.is_weight
            + BOUNDED * item.bounded
            + OPERAND * item.operand
            + CARRIED * bool(item.follows)
        )
        axis = (ctypes.POINTER(Axis) * 8)(*axes)
        name, role = item.name.encode(), ROLES.index(item.role)
        return Value(name=name, role=role, flags=flags, axes=len(axes), axis=axis)

    def _axis(self, axis: str) -> Axis:
        terms = []
        for factor, names in axis_terms(axis):
            dims = [self.interface.dims.index(name) for name in term_dims(names)]
            terms.append(Term(factor, (ctypes.c_int64 * 3)(*dims, *[-1] * (3 - len(dims)))))
        return Axis(len(terms), self._array(Term, terms))


def in_c(
    library: ctypes.CDLL,
    cell: Described,
    function: Function,
    arrays: Mapping[str, np.ndarray],
    every: int,
) -> tuple[int, str, dict[str, int]]:
    """The fault that C finds, what it is of, and the dimensions."""
    members = [item.name for item in (*function.struct_members, *function.results)]
    ordered = sorted(function.struct_members, key=lambda item: item.optional or not item.used)
    views = [item.name for item in ordered if item.name in arrays]
    shapes = [arrays[name].shape for name in views]
    held = [(ctypes.c_int64 * (len(shape) + 1))(*shape) for shape in shapes]
    numbers = (ctypes.c_int64 * len(USUAL))(*({**USUAL, "every": every}).values())
    size, where = (ctypes.c_int64 * len(cell.interface.dims))(), (ctypes.c_int64 * 3)()
    code = library.bind_dims(
        *(ctypes.byref(cell.cell), ctypes.c_int64(cell.interface.functions.index(function))),
        *(ctypes.c_int64(len(views)), (ctypes.c_int64 * len(views))(*map(members.index, views))),
        (ctypes.c_int64 * len(views))(*map(len, shapes)),
        (ctypes.c_void_p * len(views))(*map(ctypes.addressof, held)),
        *(numbers, size, where),
    )
    of = cell.interface.dims[where[1]] if code == UNBOUND else views[where[0]]
    return code, of, dict(zip(cell.interface.dims, size, strict=True))


def in_python(
    function: Function, arrays: Mapping[str, np.ndarray]
) -> tuple[int, str, dict[str, int]]:
    try:
        return FITS, "", check_call("cell.function", function, arrays, {}).dims
    except ArgumentError as error:
        for code, pattern in SENTENCES.items():
            found = re.search(pattern, str(error))
            if found:
                return code, found[1], {}
        raise


@pytest.mark.parametrize("cell", each_of(of_interface))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_c_tells_what_python_does(
    cell: type[Cell], library: ctypes.CDLL, data: st.DataObject
) -> None:
    described = Described(read_interface(generated_folder() / cell.definition.name))
    function = data.draw(st.sampled_from(described.interface.functions))
    every = data.draw(st.sampled_from([1, 2, 3])) if function.team else 1
    sizes = {dim: data.draw(st.integers(0, 6)) for dim in function.dims}
    of_call = signature(function, every)
    items = [i for i in of_call.arguments if i.used and not i.is_scalar]
    items = [i for i in items if not i.optional or data.draw(st.booleans())]
    known = {**sizes, f"T // {every}": sizes.get("T", 0) // every}
    shapes = {item.name: list(lengths(item, known)) for item in items}
    fault = data.draw(st.sampled_from(["none", "length", "axis"]))
    if fault != "none":
        changed = shapes[data.draw(st.sampled_from([n for n, shape in shapes.items() if shape]))]
        axis = data.draw(st.integers(0, len(changed) - 1))
        if fault == "axis":
            del changed[axis]
        else:
            changed[axis] = data.draw(st.integers(0, 9))
    arrays = {n: np.zeros(shape, np.float32) for n, shape in shapes.items()}
    code, of, dims = in_python(of_call, arrays)
    found = in_c(library, described, function, arrays, every)
    assert found[0] == code
    if code:
        assert found[1] == of
    else:
        assert {dim: found[2][dim] for dim in function.dims} == {d: dims[d] for d in function.dims}

"""The descriptor of a cell in C: a shared object and one symbol are enough to call everything."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen import Cell, H, I, Input, Scalar, State, Static, Weight, concat, tanh
from cellgen.cells import SHIPPED, LSTMProjection
from cellgen.errors import DerivationError
from cellgen.pipeline import generate
from cellgen.runtime.abi import ABI_VERSION, ROLES
from cellgen.runtime.folders import read_interface
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.paths import generated_folder, include_folder
from cellgen.targets.c import descriptor as spelling
from tests import descriptor
from tests.descriptor import (
    BOUNDED,
    CARRIED,
    OPERAND,
    OPTIONAL,
    SAVED,
    WEIGHT,
    WRITTEN,
    Call,
    CellOfC,
    open_cell,
)

DIMS = {"T": 5, "B": 3, "I": 4, "H": 6}
NAMES = ("forward", "backward", "weight_gradients", "sequence_forward", "sequence_backward")


class Leaky(Cell):
    """A sum of dimensions, a scalar, a static, a name that is not ASCII."""

    x, h_prev, s = Input(I), State(H), Static(H)
    W_α, k = Weight(I + H, H), Scalar(0.25)
    n = tanh(concat(x, h_prev) @ W_α + s)
    h = k * h_prev + (1 - k) * n
    outputs = h


@pytest.fixture(scope="module", params=["gru", "lstm", "own"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if request.param == "own":
        made = cellgen.compile(Leaky)
        assert isinstance(made, Kernel)
        return made
    return cellgen.load(request.param)


@pytest.fixture(scope="module")
def cell(kernel: Kernel) -> CellOfC:
    return open_cell(str(kernel.build().path), f"{kernel.name}_cellgen")


def checked(kernel: Kernel, call: Call, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of a call by names, and what it saves."""
    given, saved, options = {}, {}, {}
    for item in call.members:
        name = item.name.decode()
        if item.flags & WRITTEN:
            options |= {"save": True} if item.flags & SAVED else {}
        elif item.role == ROLES.index("scalar"):
            given[name] = float(arrays[name])
        else:
            (saved if item.flags & SAVED else given)[name] = arrays[name]
    if saved:
        options["saved"] = saved
    found = kernel.functions[call.signature.name.decode()](**given, **options)._asdict()
    kept = found.pop("saved", None)
    return found if kept is None else found | kept._asdict()


def test_the_header_the_tables_and_the_interface_say_the_same(kernel: Kernel, cell) -> None:
    interface = kernel.interface
    assert (cell.abi, cell.name.decode(), cell.digest.decode()) == (
        *(ABI_VERSION, kernel.name, interface.digest),
    )
    dims = [dim.decode() for dim in cell.dim[: cell.dims]]
    found = cell.function[: cell.functions]
    assert [item.name.decode() for item in found] == [f.name for f in interface.functions]
    for signature, function in zip(found, interface.functions, strict=True):
        assert [dims[d] for d in signature.dim[: signature.dims]] == list(function.dims)
        members = signature.member[: signature.members]
        items = (*function.struct_members, *function.results)
        assert signature.arguments == len(function.struct_members)
        for value, item in zip(members, items, strict=True):
            assert (value.name.decode(), value.of.decode()) == (item.name, item.of)
            assert descriptor.ROLES[value.role] == item.role
            assert value.axes == len(item.shape)
            assert bool(value.flags & OPTIONAL) == item.optional
            assert bool(value.flags & WEIGHT) == item.is_weight
            assert bool(value.flags & BOUNDED) == item.bounded
            assert bool(value.flags & OPERAND) == item.operand
            assert bool(value.flags & CARRIED) == bool(item.follows)
            assert value.value == (item.default if item.is_scalar else item.initial)


def test_roles_and_limits_are_those_of_the_headers() -> None:
    text = (include_folder() / "cellgen_descriptor.h").read_text()
    found = re.findall(r"CELLGEN_ROLE_(\w+) = (\d+)", text)
    assert tuple(name.lower() for name, _ in found) == ROLES == descriptor.ROLES
    assert [int(number) for _, number in found] == list(range(len(ROLES)))
    assert f"CELLGEN_VALUE_AXES {spelling.AXES} " in text
    assert f"CELLGEN_TERM_DIMS {spelling.TERM_DIMS} " in text


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("name", NAMES)
def test_every_function_is_called_by_words_alone(kernel, cell, name, precision) -> None:
    call = Call(cell, name, precision)
    arrays = call.arrays(DIMS)
    assert call(DIMS, arrays, threads=2) == 0
    expected = checked(kernel, call, arrays)
    for item in call.members:
        if item.flags & WRITTEN:
            found = arrays[item.name.decode()]
            assert np.array_equal(found, expected[item.name.decode()]), item.name


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A C program without Python that calls any cell."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    made = str(tmp_path_factory.mktemp("program") / "descriptor")
    source = str(Path(__file__).parent / "descriptor.c")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{include_folder()}"]
    subprocess.run(["cc", *flags, source, "-o", made, "-ldl"], check=True)
    return made


def command_of(program, kernel, cell, precision, way) -> list[str]:
    order = [str(DIMS[dim.decode()]) for dim in cell.dim[: cell.dims]]
    path = str(kernel.build().path)
    return [program, path, f"{kernel.name}_cellgen", precision, "2", way, *order]


def test_a_program_without_python_is_told_which_array_has_another_length(
    kernel, cell, program
) -> None:
    """The first array has a row more than the others, of which the second is looked at next."""
    command = command_of(program, kernel, cell, "f32", "misfit")
    refused = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr == "refused 1: h_prev is 3, axis 0, expected 4\n"


@pytest.mark.parametrize("way", ["words", "engine"])
@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_a_program_without_python_gets_the_same_bits(kernel, cell, precision, program, way) -> None:
    command = command_of(program, kernel, cell, precision, way)
    found = subprocess.run(command, capture_output=True, check=True).stdout
    expected = b""
    for name in NAMES:
        call = Call(cell, name, precision)
        arrays = call.arrays(DIMS)
        for place, item in enumerate(call.members):
            if item.role == ROLES.index("scalar"):
                arrays[item.name.decode()] = np.array(item.value)
            elif not item.flags & WRITTEN:
                array = arrays[item.name.decode()]
                numbers = (np.arange(array.size) * 7919 + place * 104729) % 1000 + 1
                array.flat = numbers / 1001
        made = checked(kernel, call, arrays)
        results = [item.name.decode() for item in call.members if item.flags & WRITTEN]
        expected += b"".join(made[result].tobytes() for result in results)
    assert len(expected) > 1000
    assert found == expected


def test_arrays_without_elements_may_be_null_others_may_not(kernel, cell) -> None:
    for name in ("sequence_forward", "sequence_backward"):
        call, sizes = Call(cell, name, "f32"), {**DIMS, "T": 0}
        arrays = call.arrays(sizes)
        empty = tuple(found for found, array in arrays.items() if not array.size)
        assert empty
        assert call(sizes, arrays, null=empty) == 0
        written = {item.name.decode() for item in call.members if item.flags & WRITTEN}
        assert not any(np.isnan(arrays[found]).any() for found in written)
        assert call(sizes, arrays, null=("h_prev",)) == 1
        assert call(DIMS, call.arrays(DIMS), null=empty) == 1
    call, sizes = Call(cell, "forward", "f64"), {**DIMS, "B": 0}
    arrays = call.arrays(sizes)
    assert call(sizes, arrays, null=tuple(n for n, a in arrays.items() if not a.size)) == 0


def _in_child(path: str, symbol: str, results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    call = Call(open_cell(path, symbol), "sequence_forward", "f64")
    arrays = call.arrays(DIMS)
    results.put((call(DIMS, arrays, threads=2), arrays["h"]))


def test_teams_are_found_by_size_and_made_anew_in_a_forked_child(kernel, cell) -> None:
    assert cell.team(1) is None
    assert cell.team(2) == cell.team(2) != cell.team(3)
    call = Call(cell, "sequence_forward", "f64")
    arrays = call.arrays(DIMS)
    assert call(DIMS, arrays, threads=2) == 0
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    path = str(kernel.build().path)
    child = context.Process(target=_in_child, args=(path, f"{kernel.name}_cellgen", results))
    child.start()
    code, found = results.get(timeout=60)
    child.join()
    assert (code, child.exitcode) == (0, 0)
    assert np.array_equal(found, arrays["h"])
    assert os.getpid() != child.pid


@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_what_is_saved_has_steps_and_rows_first(cell: type[Cell]) -> None:
    """Of what is committed, which is what is generated (``cellgen build --check``)."""
    for function in read_interface(generated_folder() / cell.definition.name).functions:
        for item in (*function.arguments, *function.results):
            assert item.role in ROLES
            assert item.saved == (item.role == "saved")
            assert not item.saved or item.shape[:2] == ("T", "B"), item.name


def test_what_the_tables_have_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "MEMBERS", 10)
    with pytest.raises(DerivationError, match=r"ard: \d+ arguments and results, expected at"):
        generate(LSTMProjection)

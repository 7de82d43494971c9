"""Which results a call has, and of which shapes: C and Python say the same, for every cell."""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import pytest

from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import lengths
from cellgen.runtime.call.checkpoints import checkpoints, kept_items
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.signature import kept_element, signature
from cellgen.runtime.call.stored import BFLOAT16, IN_C
from cellgen.runtime.folders import read_interface
from cellgen.runtime.numbers import USUAL
from cellgen.runtime.options import BACKWARD, BF16, FORWARD, FULL, Options
from cellgen.runtime.paths import generated_folder
from tests.cover import each_name_of, of_call
from tests.runtime.call.test_dimensions import Described
from tests.runtime.call.test_dimensions import library as library  # a fixture

AXES = 9
Shapes = dict[str, tuple[int, ...] | None]
"""The shape of each result, None of one that is not formed."""


def in_c(
    library: ctypes.CDLL,
    cell: Described,
    function: Function,
    numbers: dict[str, int],
    sizes: dict[str, int],
    *,
    saves: bool,
    wanted: int = -1,
) -> Shapes:
    count = len(function.results)
    ranks, shapes = (ctypes.c_int64 * count)(), (ctypes.c_int64 * AXES * count)()
    said = (ctypes.c_int64 * len(USUAL))(*{**USUAL, **numbers}.values())
    size = [sizes.get(name, -1) for name in cell.interface.dims]
    library.results_of(
        *(ctypes.byref(cell.cell), ctypes.c_int64(cell.interface.functions.index(function)), said),
        *(ctypes.c_int64(saves), ctypes.c_int64(wanted), (ctypes.c_int64 * len(size))(*size)),
        *(ranks, shapes),
    )
    found = zip(function.results, ranks, shapes, strict=True)
    return {a.name: None if rank < 0 else tuple(shape[:rank]) for a, rank, shape in found}


def in_python(
    outputs: Outputs, function: Function, options: Options, sizes: dict[str, int], *, saves: bool
) -> Shapes:
    known = {**sizes, f"T // {options.every}": sizes["T"] // options.every}
    formed = {a.name: lengths(a, known) for a in outputs.formed(options, saves=saves)}
    return {item.name: formed.get(item.name) for item in function.results}


def bits(function: Function, names: Any) -> int:
    """Results that are formed, of outputs over time those named."""
    numbered = enumerate(function.results)
    return sum(1 << k for k, a in numbered if not a.over_time or a.name in names)


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_c_forms_what_python_forms_forward(name: str, library: ctypes.CDLL) -> None:
    cell = Described(read_interface(generated_folder() / name))
    (function,) = (f for f in cell.interface.functions if f.name == FORWARD)
    outputs, sizes = Outputs(name, function), {d: 2 + k for k, d in enumerate(function.dims)}
    sizes["T"] = 7
    names: list[Any] = [None, (), tuple(sorted(outputs.names))[:1]]
    for every, last, only, step, saves in product((1, 3), (False, True), names, (0, 2), (0, 1)):
        options = Options(every=every, last_only=last, outputs=only, checkpoint=step)
        if last and every != 1:
            continue
        named = outputs.names if only is None else frozenset(only)
        named = named & outputs.stateless if last else named
        numbers = {"every": every, "last_only": int(last), "checkpoint": step}
        if last or only is not None:
            numbers["outputs"] = bits(function, named)
        found = in_c(library, cell, function, numbers, sizes, saves=bool(saves))
        assert found == in_python(outputs, function, options, sizes, saves=bool(saves)), options


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_c_forms_what_python_forms_backward(name: str, library: ctypes.CDLL) -> None:
    cell = Described(read_interface(generated_folder() / name))
    (function,) = (f for f in cell.interface.functions if f.name == BACKWARD)
    sizes = {d: 2 + k for k, d in enumerate(function.dims)}
    sizes["T"] = 7
    for per_row, only in product((False, True), (None, *([a.name] for a in function.results))):
        of_call = signature(function, per_row=int(per_row))
        wanted = -1
        if only is not None:
            wanted = 1 << [a.name for a in function.results].index(only[0])
        options = Options(per_row=per_row, gradients=only)
        numbers = {"per_row": int(per_row)}
        found = in_c(library, cell, function, numbers, sizes, saves=True, wanted=wanted)
        outputs = Outputs(name, of_call)
        assert found == in_python(outputs, of_call, options, sizes, saves=True), options


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_c_keeps_in_16_bits_what_python_keeps(name: str, library: ctypes.CDLL) -> None:
    cell = Described(read_interface(generated_folder() / name))
    for number, function in enumerate(cell.interface.functions):
        members = [*function.struct_members, *function.results]
        found = (ctypes.c_int64 * len(members))()
        for element, products in product(IN_C, (FULL, BF16)):
            library.held_of(
                *(ctypes.byref(cell.cell), ctypes.c_int64(number), ctypes.c_int64(IN_C[element])),
                *(ctypes.c_int64((FULL, BF16).index(products)), found),
            )
            for item, kind in zip(members, found, strict=True):
                expected = kept_element(item, element)
                if item.operand and element == BFLOAT16 and products == BF16:
                    expected = BFLOAT16
                assert kind == IN_C.get(expected, 0), (function.name, item.name)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("name", each_name_of(of_call))
def test_c_keeps_what_python_keeps_at_checkpoints(
    name: str, skips: bool, library: ctypes.CDLL
) -> None:
    cell = Described(read_interface(generated_folder() / name))
    (function,) = (f for f in cell.interface.functions if f.name == FORWARD)
    sizes = {d: 2 + k for k, d in enumerate(function.dims)}
    count = len(function.results)
    for steps, segment in product((0, 1, 7), (1, 3)):
        sizes["T"] = steps
        items = kept_items(function, Options(mask=skips or None))
        expected = [(a.name, checkpoints(steps, segment), *lengths(a, sizes)) for _, a in items]
        names, ranks = (ctypes.c_char_p * count)(), (ctypes.c_int64 * count)()
        shapes = (ctypes.c_int64 * (AXES + 1) * count)()
        size = [sizes.get(dim, -1) for dim in cell.interface.dims]
        kept = library.checkpoints_of(
            *(ctypes.byref(cell.cell), ctypes.c_int64(cell.interface.functions.index(function))),
            *(ctypes.c_int64(skips), ctypes.c_int64(segment), (ctypes.c_int64 * len(size))(*size)),
            *(names, ranks, shapes),
        )
        found = [(names[k].decode(), *shapes[k][: ranks[k]]) for k in range(kept)]
        assert found == expected

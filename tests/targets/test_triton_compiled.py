"""Kernels of scans compiled for devices that are not there: registers, spills, widths of loads."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

import cellgen
from cellgen.proof.machine import resources
from cellgen.proof.machine.compiled import (
    HOPPER,
    MI300,
    SpecialisedKernel,
    compile_kernels,
)
from cellgen.targets.triton.passes import Passes
from cellgen.targets.triton.plan import literal
from cellgen.torch.cuts import configurations, cut, may_be_read_once

CELLS = ("min_gru", "rwkv4")
OTHERS = ("qrnn", "min_lstm", "min_gru_log", "lru", "rg_lru", "s5")


TYPES = {"sums": "*fp32", "int32": "*i32"}


CONFIGURATIONS = [*configurations(literal(Passes((), (), (), {}, (), ())))]
SPILT = {("rwkv4", 1, 1): 32}
"""Bytes, by units of a lane and warps, that the way back may spill in the place of none."""
SPILT_ONCE = {
    ("qrnn", 2, 16): 32,
    ("min_lstm", 2, 16): 16,
    ("rg_lru", 1, 16): 184,
    ("s5", 2, 16): 32,
    ("s5", 1, 16): 32,
}
"""The same by units of a lane and steps of a segment that is read once (lab note 19)."""
READ_ONCE = ("min_gru", *OTHERS, "hawk", "mamba3")
TRIED = [one for one in CONFIGURATIONS if one["programs"] == CONFIGURATIONS[0]["programs"]]
ONCE = [one for one in CONFIGURATIONS if one["once"]]
WIDTHS = {"*bf16": 2, "*fp32": 4}


def specialised(
    name: str,
    dtype: str,
    gaps: bool = False,
    settings: dict[str, int] = CONFIGURATIONS[0],
    kinds: tuple[bool, ...] = (False, True),
) -> list[SpecialisedKernel]:
    """The kernels of a cell as a call of many units has them compiled; ``kinds``: flat or not."""
    kernel = cellgen.load(name, "triton")
    plan, kernels = kernel.module.PLAN, []
    for one in (*plan["forward"], *plan["backward"]):
        if one["op"] != "launch" or one["is_flat"] not in kinds:
            continue
        spelled = [(one["kernel"], one["arrays"], one["dims"], one["flags"])]
        if settings["once"]:
            if not may_be_read_once(one, settings, WIDTHS[dtype]):
                continue
            spelled = [tuple(one[f"once{of}"] for of in ("", "_arrays", "_dims", "_flags"))]
        elif one["whole"]:
            spelled.append((one["whole"], one["whole_arrays"], one["whole_dims"], ()))
        sizes = dict.fromkeys(one["dims"].values(), 1024) | {"T": 4096, "B": 1}
        how = cut(one, sizes, {}, settings, gaps)
        for function, arrays, dims, flags in spelled:
            types = {
                parameter: TYPES.get(plan["arrays"][array]["dtype"], dtype)
                for parameter, array in arrays.items()
            }
            constants = dict.fromkeys(dims, 1024) | dict.fromkeys(flags, True)
            constants |= {"AHEAD": how.ahead, "UNITS": how.lanes, "DOUBLE": False, "GAPS": gaps}
            signature = {**types, "T": "i32", "LENGTH": "i32"}
            path = str(kernel.build().path)
            kernels.append(SpecialisedKernel(path, function, signature, constants, how.warps, 1))
    return kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CELLS, *OTHERS])
@pytest.mark.parametrize("dtype", ["*bf16", "*fp32"])
def test_states_stay_in_registers_on_both_makes_of_devices(name: str, dtype: str) -> None:
    kernels = specialised(name, dtype)
    for kernel, made in zip(kernels, compile_kernels(kernels, HOPPER), strict=True):
        uses = resources(made.binary)
        assert uses.stack == 0, f"{name}.{kernel.kernel}: {uses}"
        assert made.shared == 0
        assert not re.search(r"ld\.global\.b16\b", made.text), kernel.kernel
    for made in compile_kernels(kernels, MI300):
        assert re.search(r"\.vgpr_spill_count:\s+0\b", made.text)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CELLS, *OTHERS])
def test_nothing_is_spilt_where_steps_are_left_out(name: str) -> None:
    kernels = specialised(name, "*bf16", gaps=True)
    for kernel, made in zip(kernels, compile_kernels(kernels, HOPPER), strict=True):
        assert resources(made.binary).stack == 0, kernel.kernel


@pytest.mark.slow
@pytest.mark.parametrize("settings", TRIED[1:], ids=str)
@pytest.mark.parametrize("name", [*CELLS, *OTHERS])
def test_nothing_is_spilt_by_a_configuration_that_is_tried(
    name: str, settings: dict[str, int]
) -> None:
    kernels = specialised(name, "*bf16", True, settings, kinds=(False,))
    most = SPILT.get((name, settings["units"], settings["warps"]), 0)
    for kernel, made in zip(kernels, compile_kernels(kernels, HOPPER), strict=True):
        assert resources(made.binary).stack <= most, kernel.kernel
        assert made.shared == 0


@pytest.mark.parametrize(
    ("name", "settings", "gaps"),
    [
        pytest.param(
            name, one, gaps, marks=[] if (name, one) == ("min_gru", ONCE[2]) else pytest.mark.slow
        )
        for name in READ_ONCE
        for one in ONCE
        for gaps in (False, True)
    ],
    ids=str,
)
def test_segments_that_are_read_once_stay_in_registers(
    name: str, settings: dict[str, int], gaps: bool
) -> None:
    """What a program tells of its segment is released behind a barrier, and taken by acquiring."""
    kernels = specialised(name, "*bf16", gaps, settings, kinds=(False,))
    for kernel, made in zip(kernels, compile_kernels(kernels, HOPPER), strict=True):
        most = SPILT_ONCE.get((name, settings["units"], settings["once"]), 0)
        assert resources(made.binary).stack <= most, kernel.kernel
        assert made.shared <= 16  # the number that it takes
        told = [*re.finditer(r"(st\.global|bar\.sync|atom\S*release|atom\S*acquire)", made.text)]
        orders = [one[1] for one in told]
        for place, order in enumerate(orders):
            if order.endswith("release"):
                assert orders[place - 1] == "bar.sync", kernel.kernel
        assert sum(order.endswith("acquire") for order in orders) >= 1
        assert "ld.global.cg" in made.text


@pytest.mark.parametrize(
    ("name", "dtype", "both"),
    [
        ("min_gru", "*bf16", {(2, 16), (1, 32), (1, 16)}),
        ("min_gru", "*fp32", {(2, 16), (1, 32), (1, 16)}),
        ("rg_lru", "*bf16", {(1, 16)}),  # of a step, six numbers in which its state has no part
        ("rg_lru", "*fp32", {(1, 16)}),
        ("hawk", "*bf16", set()),
    ],
)
def test_segments_are_read_once_where_what_is_formed_of_them_fits_registers(
    name: str, dtype: str, both: set[tuple[int, int]]
) -> None:
    found = {
        (one["units"], one["once"])
        for one in ONCE
        if len(specialised(name, dtype, settings=one, kinds=(False,))) == 2
    }
    assert found == both

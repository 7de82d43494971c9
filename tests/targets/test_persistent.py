"""Kernels whose blocks stay on the device together: run by the emulation against the equations.

Blocks, warps and what they tell each other get on in an order that a seed draws; stores for others
arrive late. The last tests plant faults into the headers: each must be noticed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sympy import expand

from cellgen import Cell, H, I, Input, State, Weight, tanh
from cellgen.cells import (
    GRU,
    LSTM,
    LTC,
    RWKV4,
    SHIPPED,
    Elman,
    GRUResetBefore,
    Hawk,
    LayerNormGRU,
    LayerNormLSTM,
    LSTMProjection,
    MinGRU,
    SLSTMHeads,
)
from cellgen.errors import ArgumentError, BuildError, DerivationError, DeviceError
from cellgen.language.ops import sqrt, units_mean
from cellgen.pipeline import generate, planned
from cellgen.proof.machine.assembled import tool
from cellgen.proof.over_time import shared_keywords
from cellgen.runtime.abi import axis_length
from cellgen.runtime.device import launching, nvcc
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.device.library import CUDA_ERROR, DeviceLibrary
from cellgen.runtime.device.model import DEVICES, EMULATED, Together, choices, describe
from cellgen.runtime.device.settings import TIERS
from cellgen.runtime.paths import include_folder
from cellgen.schedule.device.joined import in_slots
from cellgen.schedule.device.lower import lower_for_device
from cellgen.schedule.device.persistent import Persistent, PersistentChoice
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.verify import verify_for_device
from cellgen.targets.cuda.persist import staying_explained
from tests.conftest import SLSTM, relative
from tests.cover import each_time
from tests.targets.test_cuda import (
    UNITS,
    OnHost,
    drawn_options,
    emulated,
    emulated_in,
    in_elements,
    inputs,
    names,
    padded,
    run,
    sizes_of,
    upstream,
    with_cxx,
    with_nvcc,
)
from tests.within import set_library

CHOICE = "cellgen_persist_choice.cuh"
MULTIPLIED = 4
"""The count of products of fragments, of ``cellgen_emulation_count``."""
SMALL, GROUPS, CLUSTER = (3, 4, 5, 7), (2, 20, 3, 33), (3, 4, 5, 12)
"""One octet of units and a part of a group of rows; several octets and two groups; two octets."""
ERRORS = {"float32": 1e-5, "bfloat16": 0.06, "float16": 0.0075}
"""Sums of tens of terms over few steps; of 16 bits 2^-9 or 2^-12 for each of tens of roundings."""


class OwnCell(Cell):
    """A cell of one's own: two products, one after the other, and a state of its own."""

    x = Input(I)
    h_prev = State(H)
    c_prev = State(H)
    w = Weight(I, H)
    u = Weight(H, H)
    v = Weight(H, H)
    a = tanh(x @ w + h_prev @ u)
    c = 0.5 * c_prev + a
    h = tanh(c + a @ v)
    outputs = h, c


class ReadLater(Cell):
    """A state that is formed in the first stage, and read by a product of the second one."""

    x = Input(I)
    h_prev = State(H)
    c_prev = State(H)
    w = Weight(I, H)
    u = Weight(H, H)
    v = Weight(H, H)
    q = Weight(H, H)
    h = tanh(x @ w + h_prev @ u)
    g = h * h
    c = tanh(g @ v + h_prev @ q + c_prev)
    outputs = h, c


class Normed(Cell):
    """A state that is divided by its root mean square: a sum over units in each step."""

    x = Input(I)
    h_prev = State(H)
    w = Weight(I, H)
    u = Weight(H, H)
    k = Weight(H)
    g = tanh(x @ w + h_prev @ u) + k * h_prev
    h = g / sqrt(units_mean(g * g) + 1e-5)
    outputs = (h,)


class Linear(Cell):
    """Nothing bounds its state."""

    x = Input(I)
    h_prev = State(H)
    w = Weight(I, H)
    u = Weight(H, H)
    h = x @ w + h_prev @ u
    outputs = (h,)


def qualifying() -> list[type[Cell]]:
    """Cells that ship with a product of what the step before formed."""
    return [cell for cell in SHIPPED if plans_of(cell)[0].persistent.persistent is not None]


def plans_of(cell: type[Cell]) -> tuple[DeviceTimePlan, DeviceTimePlan]:
    spelled = planned(cell).in_c
    assert spelled.sequence is not None
    return lower_for_device(spelled.sequence, spelled.over_time)


@contextmanager
def machine(
    kernel: CudaKernel, processors: int = 4, kilobytes: int = 227, capability: int = 90
) -> Iterator[None]:
    """An emulated device of that size."""
    lib = kernel.library().lib
    lib.cellgen_emulation_device(processors, kilobytes << 10)
    lib.cellgen_emulation_machine(1, 0, capability)
    try:
        yield
    finally:
        lib.cellgen_emulation_device(*EMULATED)
        lib.cellgen_emulation_machine(1, 0, 80)


def agree(
    cell: type[Cell], shape: tuple[int, ...], dtypes: Sequence[str], tiers: Sequence[str]
) -> None:
    """Outputs and gradients against float64 step by step, with the same bits at every seed."""
    kernel = emulated(cell)
    exact = run(cell, kernel, shape, "float64", "steps")
    with machine(kernel):
        for dtype in dtypes:
            steps = run(cell, kernel, shape, dtype, "steps")
            for tier in tiers:
                found = []
                for seed in (1, 2, 3):
                    kernel.library().lib.cellgen_emulation_seed(seed)
                    found.append(run(cell, kernel, shape, dtype, tier))
                for name, right in exact.items():
                    allowed = max(ERRORS[dtype], 2 * relative(steps[name], right))
                    assert relative(found[0][name], right) <= allowed, (dtype, tier, name)
                    for other in found[1:]:
                        assert np.array_equal(other[name], found[0][name]), (dtype, tier, name)


# --- numbers -------------------------------------------------------------------------------------


@with_cxx
@pytest.mark.parametrize(
    "cell",
    [
        *names(
            tuple(cell for cell in SHIPPED if cell.definition.name not in ("lru", "rwkv4", "s5")),
            (LSTM, SLSTMHeads),
        ),
        pytest.param(OwnCell, id="own_cell"),
        pytest.param(Normed, id="normed"),
    ],
)
def test_blocks_that_stay_agree_with_the_equations(cell: type[Cell]) -> None:
    """Every cell that qualifies, of every element type, over the device and in clusters."""
    if plans_of(cell)[0].persistent.persistent is None:
        pytest.skip("no product reads what the step before it formed")
    if plans_of(cell)[1].persistent.persistent is None:
        pytest.skip("its backward pass goes step by step")
    agree(cell, SMALL, tuple(ERRORS), ("device",))


@with_cxx
@pytest.mark.parametrize(
    "cell",
    [
        LSTM,
        pytest.param(GRUResetBefore, marks=pytest.mark.slow),
        pytest.param(OwnCell, id="own_cell"),
        pytest.param(Normed, id="normed", marks=pytest.mark.slow),
        *(pytest.param(c, marks=pytest.mark.slow) for c in (LTC, LayerNormGRU, LayerNormLSTM)),
    ],
)
def test_clusters_agree_with_the_equations(cell: type[Cell]) -> None:
    agree(cell, CLUSTER, tuple(ERRORS), ("cluster",))


@with_cxx
def test_a_state_that_a_later_stage_reads_is_told_behind_it() -> None:
    """A cluster's channel has two buffers: told earlier, it would lie over what is still read."""
    kernel, shape = emulated_in(ReadLater, "f32"), (9, 4, 5, 12)
    right = run(ReadLater, kernel, shape, "float32", "steps")
    with machine(kernel):
        for seed in range(6):
            kernel.library().lib.cellgen_emulation_seed(seed)
            found = run(ReadLater, kernel, shape, "float32", "cluster")
            for name, expected in right.items():
                assert relative(found[name], expected) <= ERRORS["float32"], (seed, name)
    for options in (1, 4):
        exact = run_with(ReadLater, kernel, shape, options, "float32", "steps")
        with machine(kernel):
            found = run_with(ReadLater, kernel, shape, options, "float32", "cluster")
        for name, expected in exact.items():
            assert relative(found[name], expected) <= ERRORS["float32"], (options, name)


@with_cxx
def test_a_layer_that_has_a_width_of_nothing_goes_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread has a unit of it, nor may one read beside it."""
    monkeypatch.setattr("tests.targets.test_cuda.sizes_of", lambda s: {**sizes_of(s), "P": 0})
    kernel = emulated_in(LSTMProjection, "f32")
    given = inputs(kernel, OPEN)
    forward = OnHost(kernel, "float32").sequence_forward
    with machine(kernel):
        steps, together = (forward(**given, tier=tier) for tier in ("steps", "together"))
        for tier in ("device", "cluster"):
            with pytest.raises(DeviceError, match="tier does not run"):
                forward(**given, tier=tier)
    for one, other in zip(steps, together, strict=True):
        assert np.array_equal(one, other)


@with_cxx
def test_a_cluster_has_no_block_without_units() -> None:
    """It would publish nothing, so the others could be steps ahead, and it would wait for ever."""
    kernel = emulated(Elman)
    given = inputs(kernel, SMALL)
    with machine(kernel), pytest.raises(DeviceError, match="tier does not run"):
        OnHost(kernel, "float32").sequence_forward(**given, tier="cluster")


@with_cxx
@pytest.mark.parametrize(
    "cell",
    [
        Elman,
        pytest.param(GRU, marks=pytest.mark.slow),
        pytest.param(Normed, id="normed", marks=pytest.mark.slow),
    ],
)
def test_several_groups_of_rows_and_octets_of_units_agree(cell: type[Cell]) -> None:
    agree(cell, GROUPS, tuple(ERRORS), ("device",))


@with_cxx
@pytest.mark.slow
def test_a_sum_over_more_units_than_threads_of_a_row_read_at_once_agrees() -> None:
    """Its eight threads read 32 octets at once, and take turns for those beyond."""
    kernel, shape = emulated_in(Normed, "f32"), (1, 1, 2, 264)
    right = run(Normed, kernel, shape, "float32", "steps")
    with machine(kernel, processors=20):
        found = run(Normed, kernel, shape, "float32", "device")
    for name, expected in right.items():
        assert relative(found[name], expected) <= ERRORS["float32"], name


@with_cxx
@pytest.mark.parametrize("ones", [np.uint32(0xFFFFFFFF), np.uint16(0xFFFF)], ids=["32", "16"])
def test_a_nan_of_all_ones_is_told_as_another_nan(ones: np.unsignedinteger) -> None:
    """A NaN in a state would otherwise look like data that is not there, and hang the device."""
    kernel, nan = emulated(Elman), ones.view(f"f{ones.itemsize}")
    device = OnHost(kernel, str(nan.dtype))
    given = inputs(kernel, SMALL)
    given["h_prev"] = np.full(given["h_prev"].shape, nan)
    with machine(kernel):
        result = device.sequence_forward(**given, tier="device")
    assert np.isnan(result.h).all()


@with_cxx
@pytest.mark.parametrize("tier", ["steps", "whole", "fragments", "device", "cluster"])
def test_what_float16_has_no_number_for_is_infinite_or_zero(tier: str) -> None:
    """As it is rounded to the nearest: from 65520 on infinite, half the least number is zero."""
    kernel = emulated_in(Linear, "f16")
    device, steps, hidden = OnHost(kernel, "float16"), 4, 12
    ones = {"x": np.ones((steps, 3, 5)), "h_prev": np.zeros((3, hidden))}
    large = {**ones, "w": np.full((5, hidden), 1000.0), "u": np.ones((hidden, hidden))}
    least = 2.0**-24
    small = {**ones, "w": np.zeros((5, hidden)), "u": np.eye(hidden) / 2}
    small["h_prev"] = np.full((3, hidden), 5 * least)
    with machine(kernel):
        for given, states in (
            (large, (5000, 64992, np.inf, np.inf)),
            (small, (2 * least, least, 0, 0)),
        ):
            found = device.sequence_forward(**given, tier=tier).h
            expected = np.broadcast_to(np.reshape(states, (steps, 1, 1)), found.shape)
            assert np.array_equal(found, expected)


@with_cxx
@pytest.mark.parametrize("tier", ["device", "cluster"])
def test_a_replayed_graph_tells_again(tier: str) -> None:
    """The places of the exchange are emptied in the graph, too."""
    kernel = emulated(Elman)
    device, given = OnHost(kernel, "float32"), inputs(kernel, CLUSTER)
    with machine(kernel):
        right = device.sequence_forward(**given, tier=tier, graph=False)
        for _ in range(4):
            again = device.sequence_forward(**given, tier=tier, graph=True)
            assert np.array_equal(right.h, again.h)


def run_with(
    cell: type[Cell], kernel: CudaKernel, shape: tuple[int, ...], seed: int, dtype: str, tier: str
) -> dict[str, np.ndarray]:
    """Both functions under options over time; inputs are NaN where a step is masked."""
    device, options = OnHost(kernel, dtype), drawn_options(shape, seed)
    chosen = shared_keywords(options)
    given = padded(inputs(kernel, shape), cell, options, shape)
    result = device.sequence_forward(**given, **chosen, save=True, tier=tier)
    outputs = {str(v.name): getattr(result, str(v.name)) for v in cell.definition.outputs}
    call = {**given, **outputs, **upstream(kernel, shape), **chosen}
    gradients = device.sequence_backward(**call, saved=result.saved, tier=tier)
    found = {name: getattr(result, name) for name in result._fields if name != "saved"}
    return {**found, **gradients._asdict()}


@with_cxx
@pytest.mark.parametrize(
    ("cell", "shape", "tiers"),
    [
        pytest.param(LSTM, (4, 3, 5, 12), ("device", "cluster"), id="lstm"),
        pytest.param(
            *(GRUResetBefore, (4, 17, 3, 9), ("device",)),
            id="gru_reset_before",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(SLSTMHeads, (4, 3, 5, 7), ("device",)), id="slstm_heads", marks=pytest.mark.slow
        ),
        pytest.param(OwnCell, (4, 3, 5, 12), ("device", "cluster"), id="own_cell"),
        *(
            pytest.param(
                *(cell, (4, 3, 5, 12), ("device", "cluster")), id=name, marks=pytest.mark.slow
            )
            for cell, name in ((Normed, "normed"), (LayerNormLSTM, "layer_norm_lstm"))
        ),
    ],
)
def test_steps_that_are_masked_and_states_that_begin_anew_agree(
    cell: type[Cell], shape: tuple[int, ...], tiers: tuple[str, ...]
) -> None:
    """Lengths, masks and resets, each alone and all, against float64 step by step."""
    kernel = emulated(cell)
    for seed in (1, 2, 3, 4, 5):
        exact = run_with(cell, kernel, shape, seed, "float64", "steps")
        with machine(kernel):
            for dtype, tier in product(ERRORS, tiers):
                if dtype in UNITS and seed < 4:
                    continue
                kernel.library().lib.cellgen_emulation_seed(seed)
                steps = run_with(cell, kernel, shape, seed, dtype, "steps")
                found = run_with(cell, kernel, shape, seed, dtype, tier)
                for name, right in exact.items():
                    allowed = max(ERRORS[dtype], 2 * relative(steps[name], right))
                    assert relative(found[name], right) <= allowed, (seed, dtype, tier, name)


# --- what no device has timed ---------------------------------------------------------------------


def tried(cell: type[Cell], named: str, *elements: str) -> CudaKernel:
    """A kernel that is compiled with what ``CELLGEN_CUDA_TRY`` names."""
    kernel = emulated_in(cell, *elements)
    kernel = CudaKernel(kernel.interface, kernel.sources, emulated=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(nvcc.TRY_VARIABLE, named)
        kernel.build()
    return kernel


def run_over(
    cell: type[Cell], kernel: CudaKernel, dtype: str, tier: str, **options: object
) -> tuple[dict[str, np.ndarray], int]:
    """Results of 8 steps of two groups of rows, and how many products of fragments they took."""
    shape, device = (8, 20, 3, 9), OnHost(kernel, dtype)
    given, count = inputs(kernel, shape), kernel.library().lib.cellgen_emulation_count
    before = count(MULTIPLIED)
    result = device.sequence_forward(**given, **options, save=True, tier=tier)
    outputs = {str(v.name): getattr(result, str(v.name)) for v in cell.definition.outputs}
    call = {**given, **outputs, **upstream(kernel, shape)}
    gradients = device.sequence_backward(**call, saved=result.saved, tier=tier)
    found = {name: getattr(result, name) for name in result._fields if name != "saved"}
    return {**found, **gradients._asdict()}, count(MULTIPLIED) - before


@with_cxx
@pytest.mark.slow
@pytest.mark.parametrize("cell", [Elman, GRUResetBefore])
def test_a_group_without_a_valid_row_multiplies_nothing(cell: type[Cell]) -> None:
    """Once its lengths have ended, before they begin in reverse, and where a mask has none."""
    elements = ("f32", "bf16")
    kernel, other = emulated_in(cell, *elements), tried(cell, "ends", *elements)
    lengths = np.array([0, 1, *[2] * 14, 8, 8, 5, 3])
    mask = np.ones((8, 20), bool)
    mask[3, 16:] = mask[4, 17:] = False
    cases = (
        ({"lengths": lengths}, 10),
        ({"lengths": lengths, "reverse": True}, 10),
        ({"lengths": lengths, "mask": mask}, 9),
        ({}, 16),
    )
    with machine(kernel), machine(other):
        for dtype, (options, groups) in product(("float32", "bfloat16"), cases):
            right, all_of_them = run_over(cell, kernel, dtype, "device", **options)
            found, fewer = run_over(cell, other, dtype, "device", **options)
            assert fewer * 16 == all_of_them * groups, options
            for name, expected in right.items():
                np.testing.assert_array_equal(found[name], expected, f"{dtype} {name}")


@with_cxx
@pytest.mark.slow
def test_what_is_brought_and_received_otherwise_has_the_same_bits() -> None:
    kernel, other = emulated_in(Elman, "bf16"), tried(Elman, "prefetch,wide", "bf16")
    with machine(kernel), machine(other):
        for tier in ("device", "cluster"):
            shape = (3, 4, 5, 12) if tier == "cluster" else GROUPS
            right = run(Elman, kernel, shape, "bfloat16", tier)
            found = run(Elman, other, shape, "bfloat16", tier)
            for name, expected in right.items():
                np.testing.assert_array_equal(found[name], expected, f"{tier} {name}")


def test_what_cannot_be_tried_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvcc.TRY_VARIABLE, "wide,ends")
    assert nvcc.trials() == ("-DCELLGEN_TRY_ENDS=1", "-DCELLGEN_TRY_WIDE=1")
    headers = (include_folder() / "cellgen_persist.cuh").read_text()
    assert all(f"CELLGEN_TRY_{name.upper()}" in headers for name in nvcc.TRIALS)
    monkeypatch.setenv(nvcc.TRY_VARIABLE, "ends,fast")
    with pytest.raises(BuildError, match="CELLGEN_CUDA_TRY names fast, expected some of ends, pre"):
        nvcc.trials()


def multiplied(cell: type[Cell], named: str) -> CudaKernel:
    """A kernel that is compiled with what ``CELLGEN_CUDA_PRODUCTS`` names."""
    kernel = emulated_in(cell, "f32")
    kernel = CudaKernel(kernel.interface, kernel.sources, emulated=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(nvcc.PRODUCTS_VARIABLE, named)
        kernel.build()
    return kernel


@with_cxx
@pytest.mark.parametrize(
    ("named", "bar"), [("parts", 1e-6), pytest.param("tf32", 2e-3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cell", [Elman, pytest.param(LSTM, marks=pytest.mark.slow)])
def test_float32_on_matrix_units_is_as_near_as_its_products_are(
    cell: type[Cell], named: str, bar: float
) -> None:
    """Sums of three parts as near as multiply-adds, TF32 by 2^-12 of each factor."""
    kernel, shape = emulated(cell), (3, 4, 5, 36)
    exact = run(cell, kernel, shape, "float64", "steps")
    other, found = multiplied(cell, named), []
    count = other.library().lib.cellgen_emulation_count
    with machine(other, processors=8):
        for seed in (1, 2):
            other.library().lib.cellgen_emulation_seed(seed)
            before = count(MULTIPLIED)
            found.append(run(cell, other, shape, "float32", "device"))
            assert count(MULTIPLIED) > before
    errors = {name: relative(found[0][name], right) for name, right in exact.items()}
    assert max(errors.values()) < bar, errors
    assert (max(errors.values()) > 1e-5) == (named == "tf32")
    for name, first in found[0].items():
        assert np.array_equal(first, found[1][name]), name


@with_cxx
def test_float32_on_matrix_units_agrees_in_clusters() -> None:
    exact = run(Elman, emulated(Elman), CLUSTER, "float64", "steps")
    kernel = multiplied(Elman, "parts")
    with machine(kernel):
        found = run(Elman, kernel, CLUSTER, "float32", "cluster")
    for name, right in exact.items():
        assert relative(found[name], right) < 1e-6, name


BY_PARTS = "as CELLGEN_CUDA_PRODUCTS=parts has it"
FIT = {
    Elman: ({256: [1, 1], 1408: [1, 1], 1440: [0, 0]}, {256: BY_PARTS, 1408: BY_PARTS}),
    LSTM: (
        {256: [1, 1], 512: [1, 0], 1024: [0, 0]},
        {256: BY_PARTS, 1024: "by fused multiply-adds: with"},
    ),
}
"""By units, whether each pass multiplies by parts, and what is said of it."""


@with_cxx
@pytest.mark.parametrize("cell", each_time((Elman,), FIT))
def test_weights_whose_parts_do_not_fit_are_multiplied_by_multiply_adds(cell: type[Cell]) -> None:
    """By the model of an H200: backward, gate gradients of 512 units of an LSTM take the room."""
    kernel, (fit, said) = multiplied(cell, "parts"), FIT[cell]
    for units, by_parts in fit.items():
        sizes = {"T": 100, "B": 16, "I": 8, "H": units}
        found = choices(kernel, sizes, "float32", DEVICES["h200"])
        assert [one.together.products for one in found if one.together] == by_parts
        times = [one.together.by_device for one in found if one.together]
        adds = [
            one.together.by_device
            for one in choices(emulated(cell), sizes, "float32", DEVICES["h200"])
            if one.together
        ]
        assert [own < of_adds for own, of_adds in zip(times, adds, strict=True)] == by_parts
        if units in said:
            assert said[units] in "\n".join(describe(DEVICES["h200"], found))


def test_products_that_are_unknown_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    header = (include_folder() / "cellgen_persist_products.cuh").read_text()
    named = re.search(r"enum \{ (CELLGEN_.*) \};", header)
    assert named is not None
    assert tuple(n.removeprefix("CELLGEN_").lower() for n in named[1].split(", ")) == nvcc.PRODUCTS
    for asked, flags in (("", ()), ("fma", ()), ("tf32", ("-DCELLGEN_PRODUCTS=2",))):
        monkeypatch.setenv(nvcc.PRODUCTS_VARIABLE, asked)
        assert nvcc.switches() == flags
    monkeypatch.setenv(nvcc.PRODUCTS_VARIABLE, "bf16x3")
    with pytest.raises(BuildError, match="CELLGEN_CUDA_PRODUCTS is 'bf16x3', expected one of fma,"):
        nvcc.switches()


@with_cxx
def test_two_directions_in_half_of_the_processors_each_have_the_bits_of_one_after_the_other() -> (
    None
):
    """Each is told of half of them, so that both have room at once; else one waits."""
    kernel = staying()
    arrays = inputs(kernel, (9, 33, 5, 12))
    given = {name: kernel.array(array, dtype="float32") for name, array in arrays.items()}
    forward, lib = kernel.sequence_forward, kernel.library().lib
    figures = kernel.library().ffi.new("double[]", len(fields(Together)))

    def run_in(tier: str, stream: int, **options: object) -> tuple[np.ndarray, int]:
        found = forward(**given, **options, tier=tier, stream=stream, graph=False).h.numpy()
        assert lib.cellgen_emulation_told_together(figures, len(figures)) == len(figures)
        told = Together(*figures)
        assert told.way == 1
        return found, int(told.blocks * told.heads * told.sets)

    with machine(kernel, processors=8):
        ways = ({"reverse": False}, {"reverse": True})
        one = [run_in("half", 0, **way) for way in ways]
        both = [run_in("half", number, **way) for number, way in enumerate(ways, start=1)]
        whole = [run_in("together", 0, **way) for way in ways]
    for (right, _), (found, blocks), (_, all_blocks) in zip(one, both, whole, strict=True):
        np.testing.assert_array_equal(found, right)
        assert blocks <= 4 < all_blocks <= 8


# --- where it does not run -----------------------------------------------------------------------


@with_cxx
def test_what_cannot_stay_is_refused_where_it_is_asked_for() -> None:
    kernel = emulated(Elman)
    device, given = OnHost(kernel, "float32"), inputs(kernel, SMALL)
    forward = device.sequence_forward
    with machine(kernel, capability=80), pytest.raises(DeviceError, match="tier does not run"):
        forward(**given, tier="cluster")
    with machine(kernel, kilobytes=1), pytest.raises(DeviceError, match="tier does not run"):
        forward(**given, tier="device")
    kernel.library().lib.cellgen_emulation_room(0, 0)
    try:
        for tier in ("device", "cluster"):
            with machine(kernel), pytest.raises(DeviceError, match="not all blocks run at once"):
                forward(**given, tier=tier)
    finally:
        kernel.library().lib.cellgen_emulation_room(1, 16)
    with pytest.raises(ArgumentError, match="tier is 'whole'"):
        forward(**given, tier="whole", lengths=np.array([3, 2, 1, 3]))
    with machine(kernel), pytest.raises(DeviceError, match="tier does not run"):
        OnHost(kernel, "float64").sequence_forward(**given, tier="device")
    other = emulated(MinGRU)
    with machine(other), pytest.raises(DeviceError, match="the cell has no such kernel"):
        OnHost(other, "float32").sequence_forward(**inputs(other, SMALL), tier="device")


OPEN = (9, 4, 5, 12)
"""Steps enough, and two octets of units."""
STAYS = ("#define CELLGEN_STAYING_GAINS 1.05", "#define CELLGEN_STAYING_GAINS 0.0")
"""The model takes blocks that stay wherever they fit: so small a layer is faster in one block."""


def staying() -> CudaKernel:
    """A cell in float32 whose blocks stay wherever they fit, of sources of its own."""
    return in_elements(planted(Elman, (STAYS,)), "f32")


def apart(kernel: CudaKernel, folder: Path) -> CudaKernel:
    """A kernel whose library is a copy: what a device refuses it, others do not know."""
    copy = shutil.copy(kernel.build().path, folder)
    anew = CudaKernel(kernel.interface, kernel.sources, emulated=True)
    set_library(anew, DeviceLibrary(str(copy), kernel.interface))
    return anew


@with_cxx
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (720, "not all blocks of the launch run at once"),
        pytest.param(801, "not support it", marks=pytest.mark.slow),
    ],
)
def test_a_device_that_refuses_such_launches_has_the_steps_launched(
    error: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told once, by whichever error; a call that asks for the tier gets the error.

    Another cell's library knows nothing of it.
    """
    kernel, other = apart(staying(), tmp_path), emulated(Elman)
    device, given = OnHost(kernel, "float32"), inputs(kernel, OPEN)
    lib = kernel.library().lib
    with machine(kernel):
        monkeypatch.setenv("CELLGEN_PERSISTENT", "0")
        steps = device.sequence_forward(**given, tier="auto").h
        lib.cellgen_emulation_fail(b"together", error)
        with pytest.raises(DeviceError, match=why):
            device.sequence_forward(**given, tier="cluster", graph=False)
        lib.cellgen_emulation_fail(b"together", error)
        monkeypatch.delenv("CELLGEN_PERSISTENT")
        with pytest.warns(RuntimeWarning, match=f"refused a launch .*{why}.*launch by launch"):
            first = device.sequence_forward(**given)
        again = device.sequence_forward(**given)  # a warning would be an error
    assert np.array_equal(steps, first.h)
    assert np.array_equal(steps, again.h)
    refused = [each.library().lib.cellgen_cuda_refused(0) for each in (kernel, other)]
    assert refused == [CUDA_ERROR + error, 0]


@pytest.mark.slow
@with_cxx
def test_another_error_of_such_a_launch_is_no_refusal() -> None:
    kernel = staying()
    with machine(kernel):
        kernel.library().lib.cellgen_emulation_fail(b"together", 719)
        with pytest.raises(DeviceError, match=r"719.*waited for each other.*CELLGEN_PERSISTENT=0"):
            OnHost(kernel, "float32").sequence_forward(**inputs(kernel, OPEN), tier="together")


@pytest.mark.slow
@with_cxx
def test_a_launch_that_fails_before_it_is_no_refusal(tmp_path: Path) -> None:
    """What was to be launched first has not run: the call has failed, by whichever error."""
    kernel = apart(staying(), tmp_path)
    given, library = inputs(kernel, OPEN), kernel.library()
    forward = OnHost(kernel, "float32").sequence_forward
    with machine(kernel):
        library.lib.cellgen_emulation_fail(b"launch", 801)
        with pytest.raises(DeviceError, match="801"):
            forward(**given, tier="together", graph=False)
        assert library.lib.cellgen_cuda_refused(0) == 0


@with_cxx
def test_the_variable_is_read_at_each_call_and_graphs_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = staying()
    given = {n: kernel.array(a, dtype="float32") for n, a in inputs(kernel, OPEN).items()}
    out = {
        a.name: kernel.array(np.zeros([axis_length(x, sizes_of(OPEN)) for x in a.shape], "float32"))
        for a in kernel.sequence_forward.function.results
        if not a.saved
    }
    graphs, found = kernel.sequence_forward.graphs, []
    graphs.clear()
    with machine(kernel):
        for number, said in enumerate(("0", "0", "1", None, "0"), start=1):
            if said is None:
                monkeypatch.delenv("CELLGEN_PERSISTENT", raising=False)
            else:
                monkeypatch.setenv("CELLGEN_PERSISTENT", said)
            kernel.sequence_forward(**given, out=out, graph=True)
            found.append(out["h"].numpy())
            assert len(graphs) == (1 if number < 3 else 2)
    assert relative(found[2], found[0]) < 1e-6
    graphs.clear()


@with_cxx
def test_the_model_says_where_blocks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps of few rows; from 64 rows of 1024 units on, products step by step are as good."""
    kernel, device = emulated(LSTM), DEVICES["h200"]

    def ways(
        rows: int, units: int, steps: int = 100, on: str = "h200", dtype: str = "bfloat16"
    ) -> list[float]:
        sizes = {"T": steps, "B": rows, "I": 8, "H": units}
        chosen = choices(kernel, sizes, dtype, DEVICES[on])
        return [choice.together.way for choice in chosen if choice.together is not None]

    monkeypatch.delenv("CELLGEN_PERSISTENT", raising=False)
    assert ways(16, 1024) == [1, 1]
    assert all(ways(32, 256))
    assert ways(16, 1024, dtype="float32") == [1, 0], "measured: 10.5 us a step, by steps 18.3"
    assert ways(64, 1024) == [0, 0]
    assert ways(16, 1024, steps=4) == [0, 0] or ways(16, 1024, steps=4) == []
    assert ways(16, 1024, on="a100") == [0, 0], "the constants are not of such a device"
    monkeypatch.setenv("CELLGEN_PERSISTENT", "0")
    assert ways(16, 1024) == []
    assert device.capability == 90


@with_cxx
def test_the_model_says_what_two_directions_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where a process asks for it: groups of rows take turns in half of the processors."""
    kernel, device = emulated(LSTM), DEVICES["h200"]
    sizes = {"T": 100, "B": 32, "I": 8, "H": 512}
    monkeypatch.setenv("CELLGEN_CUDA_DIRECTIONS", "both")
    found = choices(kernel, sizes, "bfloat16", device)
    for choice in found:
        whole, half = choice.together, choice.halved
        assert whole is not None
        assert half is not None
        assert (whole.way, half.way) == (1, 1)
        assert half.blocks * half.sets <= 66 < whole.blocks * whole.sets
        assert whole.ns < half.ns < 2 * whole.ns
    assert (
        sum("at once, as CELLGEN_CUDA_DIRECTIONS=both" in s for s in describe(device, found)) == 2
    )
    wide = describe(device, choices(kernel, {**sizes, "H": 1024}, "bfloat16", device))
    assert any("no blocks stay in half of the processors" in line for line in wide)
    monkeypatch.delenv("CELLGEN_CUDA_DIRECTIONS")
    assert not any(
        "at once, as" in line
        for line in describe(device, choices(kernel, sizes, "bfloat16", device))
    )


def test_python_and_the_headers_mean_the_same_by_their_numbers() -> None:
    texts = [(include_folder() / name).read_text() for name in ("cellgen_cuda_tiers.cuh", CHOICE)]
    named = dict(re.findall(r"CELLGEN_(?:TIER_)?(\w+) = (\d+)", "\n".join(texts)))
    assert {
        name: int(named["CHOOSE" if name == "auto" else name.upper()]) for name in TIERS
    } == TIERS
    for name in ("STAYS", "LACKS_DEVICE", "LACKS_CLUSTER"):
        assert (
            f"#define CELLGEN_{name} ((int64_t)1 << {getattr(launching, name).bit_length() - 1})"
            in texts[1]
        )


@pytest.mark.slow
def test_more_than_half_of_the_cells_stay() -> None:
    """Plans of every cell that ships."""
    assert len(qualifying()) == 44


def test_explain_says_which_cells_stay_and_why_others_do_not() -> None:
    told = staying_explained(plans_of(LSTM))
    assert "1 level of products" in told[0]
    assert told[0].startswith("sequence_forward: blocks stay on the device together")
    assert "because no product reads" in staying_explained(plans_of(MinGRU))[0]
    summed = staying_explained(plans_of(Normed))
    assert all("2 levels of products and of sums over units in a step" in line for line in summed)
    assert "they tell each other h, sum_g_2" in summed[0]


# --- plans ---------------------------------------------------------------------------------------


def _without_publication(own: Persistent) -> Persistent:
    return replace(own, stages=tuple(replace(stage, publishes=()) for stage in own.stages))


def _in_another_order(own: Persistent) -> Persistent:
    return replace(own, stages=(*own.stages[1:], own.stages[0]))


def _with_fewer_factors(own: Persistent) -> Persistent:
    first, *rest = own.stages
    held = replace(first.products[0], channels=())
    return replace(own, stages=(replace(first, products=(held,)), *rest))


@pytest.mark.parametrize(
    ("change", "which", "says"),
    [
        (_without_publication, 0, "published 0 times"),
        (_without_publication, 1, "no stage before it publishes"),
        (_in_another_order, 1, "no stage before it publishes"),
        (_with_fewer_factors, 0, "factors"),
    ],
)
def test_a_plan_that_tells_too_little_is_refused(
    change: Callable[[Persistent], Persistent], which: int, says: str
) -> None:
    plan = plans_of(GRU)[which]
    own = plan.persistent.persistent
    assert own is not None
    with pytest.raises(DerivationError, match=says):
        verify_for_device(replace(plan, persistent=PersistentChoice(change(own))))


def test_joined_values_are_slots_of_what_is_joined() -> None:
    """Four gates side by side are four slots of H units; what is of H alone stays as it is."""
    for cell, told in ((LayerNormLSTM, 4), (LayerNormGRU, 3)):
        forward, backward = plans_of(cell)
        for plan in (forward, backward):
            own = plan.persistent.persistent
            assert own is not None
            assert own.widths == (H,)
        own = backward.persistent.persistent
        assert own is not None
        assert len(own.channels) == told
    for plan in plans_of(LSTM):
        assert in_slots(plan.steps) == plan.steps


def test_a_product_of_an_input_that_several_loops_read_is_formed_for_all_steps() -> None:
    for cell in (LayerNormLSTM, LayerNormGRU):
        plan = plans_of(cell)[0]
        assert "x @ [w]" in [str(stage) for stage in plan.ahead]
        assert not any("x @" in str(stage) for stage in plan.steps)


def _with_a_stage_changed(own: Persistent, **changes: object) -> Persistent:
    """With changes of each stage that has what is changed."""
    stages = (
        replace(s, **changes) if all(getattr(s, n) for n in changes) else s for s in own.stages
    )
    return replace(own, stages=tuple(stages))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda own: _with_a_stage_changed(own, tells=()), "parts of .* are told where"),
        (lambda own: _with_a_stage_changed(own, receives=()), "is read before threads have it"),
        (lambda own: _with_a_stage_changed(own, by_row=()), "is read before threads have it"),
        (
            lambda own: replace(own, stages=(*own.stages[:2], own.stages[1], *own.stages[2:])),
            "is received before its parts are told, or once more",
        ),
    ],
)
def test_a_plan_whose_sums_over_units_are_not_told_and_received_once_is_refused(
    change: Callable[[Persistent], Persistent], says: str
) -> None:
    for plan in plans_of(Normed):
        own = plan.persistent.persistent
        assert own is not None
        with pytest.raises(DerivationError, match=says):
            verify_for_device(replace(plan, persistent=PersistentChoice(change(own))))


def test_a_state_is_told_when_its_last_product_has_read_it() -> None:
    for plan in (*plans_of(ReadLater), *plans_of(LSTM), *plans_of(GRUResetBefore)):
        own = plan.persistent.persistent
        assert own is not None
        for channel in own.channels:
            told = [n for n, stage in enumerate(own.stages) if channel in stage.publishes]
            read = [
                n
                for n, stage in enumerate(own.stages)
                if any(channel in held.channels for held in stage.products)
            ]
            assert len(told) == 1
            assert channel.initial is None or told[0] >= max(read)


def test_a_plan_that_tells_a_state_before_it_was_read_is_refused() -> None:
    plan = plans_of(ReadLater)[0]
    own = plan.persistent.persistent
    assert own is not None
    assert [len(stage.publishes) for stage in own.stages] == [1, 1]
    first, last = own.stages
    early = replace(first, publishes=(*first.publishes, *last.publishes))
    change = replace(own, stages=(early, replace(last, publishes=())))
    with pytest.raises(DerivationError, match="which a stage before it publishes for the next"):
        verify_for_device(replace(plan, persistent=PersistentChoice(change)))


def test_a_sum_that_is_read_behind_all_steps_is_left_in_memory() -> None:
    """RWKV-4's gradients of what it mixes: a loop of the step reads them, and what follows all."""
    plan = plans_of(RWKV4)[1]
    own = plan.persistent.persistent
    assert own is not None
    behind = set(plan.terms.order) & {value for stage in own.stages for value in stage.formed}
    assert {value.name for value in behind} >= {"d_x_r", "d_x_k", "d_x_v"}
    *before, sums, loop = own.stages
    assert sums.loop is None
    assert loop.loop is not None
    joined = replace(own, stages=(*before, replace(sums, loop=loop.loop)))
    with pytest.raises(DerivationError, match=r"stay on the device .* reads d_x_r in terms, which"):
        verify_for_device(replace(plan, persistent=PersistentChoice(joined)))


def test_a_product_that_receives_another_value_of_as_many_units_is_refused() -> None:
    """A state, and the state times its gate, have H units each: only values differ."""
    plan = plans_of(GRUResetBefore)[0]
    own = plan.persistent.persistent
    assert own is not None
    first, last = own.channels[0], own.channels[-1]
    *before, stage = own.stages
    held = [replace(h, channels=(first,)) for h in stage.products if last in h.channels]
    stages = (*before, replace(stage, products=tuple(held)))
    assert expand(first.units - last.units) == 0
    with pytest.raises(DerivationError, match=f"receives {first.value}, not {last.value}"):
        verify_for_device(replace(plan, persistent=PersistentChoice(replace(own, stages=stages))))


# --- faults that must be noticed -----------------------------------------------------------------

SINGLE = (
    ("to.buffer + turn * staged::pieces", "to.buffer + 0 * staged::pieces"),
    ("from.buffer + turn * staged::pieces", "from.buffer + 0 * staged::pieces"),
)
HALVES = (
    (
        "cellgen_emulator::one().send([=]() { memcpy(to, &piece, sizeof piece); });",
        "cellgen_emulator::one().send([=]() { memcpy((char *)to + 8, (char *)&piece + 8, 8); });"
        "cellgen_emulator::one().send([=]() { memcpy(to, &piece, 8); });",
    ),
)
FULL = (
    (
        "piece{CELLGEN_NOT_THERE, CELLGEN_NOT_THERE, CELLGEN_NOT_THERE, CELLGEN_NOT_THERE}",
        "piece{}",
    ),
)
SUMS = (("    __syncthreads(); /* all have read: the next group may come */\n", ""),)
SILENT = (
    (
        "if (!own.is_there) return;\n        enum",
        "if (!own.is_there || rank == 0) return;\n        enum",
    ),
)


UNREAD = (
    (
        "cellgen_await<at_once>(pieces, base, at);",
        "for (int i = 0; i < at_once; ++i) if (at[i] >= 0) "
        "pieces[i] = cellgen_read_piece(base + at[i]);",
    ),
)
ONE_FOR_ALL = (("+ row) * of.octets", "+ 0 * row) * of.octets"),)
UNEMPTIED = (
    (
        "CELLGEN_ELEMENTS(run, cellgen_empty_pieces<piece>, "
        "steps * cellgen_whole(rows, CELLGEN_GROUP),\n"
        "                     (int64_t)cellgen_octets(units), (piece *)(void *)sent);",
        "const int64_t numbers = 4 * (int64_t)cellgen_octets(units);\n"
        "    cg_clear(run, steps * cellgen_whole(rows, CELLGEN_GROUP), numbers, "
        "cg_rows(sent, numbers));",
    ),
)


def planted(cell: type[Cell], changes: Sequence[tuple[str, str]]) -> CudaKernel:
    """A cell's kernel with faults in its headers."""
    good, files = emulated(cell), dict(emulated(cell).sources.files)
    for right, wrong in changes:
        places = [name for name, text in files.items() if right in text]
        assert len(places) == 1, right
        files[places[0]] = files[places[0]].replace(right, wrong)
    sources = type(good.sources)(cell.definition.name, tuple(files.items()))
    return CudaKernel(good.interface, sources, emulated=True)


@with_cxx
@pytest.mark.parametrize(
    ("cell", "changes", "tier"),
    [
        pytest.param(Elman, SINGLE, "cluster", id="a single buffer in the place of two"),
        *(
            pytest.param(cell, changes, tier, id=name, marks=pytest.mark.slow)
            for cell, changes, tier, name in (
                (Elman, HALVES, "device", "published before its data"),
                (Elman, FULL, "device", "places that are not emptied"),
                (Elman, SUMS, "device", "a barrier left out"),
                (Normed, UNREAD, "device", "a sum that waits for no part"),
                (Normed, UNREAD, "cluster", "a sum that waits for no part, in a cluster"),
                (Normed, UNEMPTIED, "device", "parts of sums whose places are not emptied"),
                (Normed, ONE_FOR_ALL, "device", "one place for the parts of all rows"),
            )
        ),
    ],
)
def test_a_fault_in_what_blocks_tell_is_noticed(
    cell: type[Cell], changes: Sequence[tuple[str, str]], tier: str
) -> None:
    good, bad = emulated(cell), in_elements(planted(cell, changes), "f16")
    shape = (6, 3, 2, 30)
    with machine(good), machine(bad):
        right = run(cell, good, shape, "float16", tier)
        for seed in range(12):
            bad.library().lib.cellgen_emulation_seed(seed)
            found = run(cell, bad, shape, "float16", tier)
            if any(not np.array_equal(right[name], found[name]) for name in right):
                return
    pytest.fail("nothing was noticed in 12 orders")


HANGS = """
from tests.targets.test_persistent import *
kernel = in_elements(planted(Elman, SILENT), "f32")
with machine(kernel):
    run(Elman, kernel, SMALL, "float32", "device")
"""


@pytest.mark.slow
@with_cxx
def test_a_wait_that_does_not_end_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 0
    assert "a wait that does not end" in done.stderr


# --- machine code --------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineCode:
    """A kernel for sm_90a: what the assembler says of it, and its instructions."""

    name: str
    spilled: int
    text: str


def machine_code(cell: type[Cell], folder: Path, element: str = "") -> list[MachineCode]:
    """Compile the kernels of a cell whose blocks stay on a device, and no others.

    ``element``: the suffix of one element type, all where it is empty.
    """
    name, found = cell.definition.name, nvcc.compiler()
    files = dict(generate(cell, ["cuda"]).files)
    launched = ("CELLGEN_LAUNCH", "CELLGEN_LAUNCH_SHARED")
    left_out = "".join(f"#undef {one}\n#define {one}(run, ...) ((void)(run))\n" for one in launched)
    body = "#if !defined(CELLGEN_ONE_STORE)"
    text = files[f"{name}.cu"].replace(body, left_out + body, 1)
    (folder / f"{name}.cu").write_text(text)
    flags = [f for f in found.command if f != "-shared" and not f.startswith("-arch")]
    command = [*flags, "-arch=sm_90a", "-cubin", "-Xptxas", "-v", f"-I{include_folder()}", "-I."]
    one = ("-DCELLGEN_ONE_STORE", f"-DCELLGEN_ONE_STORE_{element}") if element else ()
    command += [*one, f"{name}.cu", "-o", "cell.cubin"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    spills = dict(re.findall(r"function '(\S*)' for.*\n.*\n.*?(\d+) bytes spill stores", said))
    listing = subprocess.run(
        [tool("cuobjdump"), "-sass", "cell.cubin"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    bodies = (body.split("\n", 1) for body in re.split(r"Function : ", listing)[1:])
    own = ((name.strip(), text) for name, text in bodies if "_persistent_" in name)
    return [MachineCode(name, int(spills[name]), text) for name, text in own]


@pytest.mark.slow
@with_nvcc
@pytest.mark.parametrize(
    "cell", [*SHIPPED, SLSTM, OwnCell, ReadLater, Normed], ids=lambda cell: cell.definition.name
)
def test_machine_code_has_no_spill_and_no_fence(cell: type[Cell], tmp_path: Path) -> None:
    """A fence would wait for every store of a block under way; what spills is in memory."""
    passes = sum(plan.persistent.persistent is not None for plan in plans_of(cell))
    if not passes:
        pytest.skip("no blocks of it stay on a device")
    try:
        kernels = machine_code(cell, tmp_path)
    except BuildError as missing:
        pytest.skip(str(missing))
    assert len(kernels) == passes * len(ERRORS) * 2  # over the device and in clusters
    for kernel in kernels:
        assert kernel.spilled == 0, kernel.name
        assert "HMMA" in kernel.text or "FFMA" in kernel.text
        if "ILb0E" in kernel.name:
            assert not re.search(r"\bMEMBAR\b|\bERRBAR\b|\bCCTL\b", kernel.text), kernel.name


@pytest.mark.slow
@with_nvcc
@pytest.mark.parametrize(("cell", "named"), [*product((LSTM, GRU), ("parts", "tf32"))], ids=str)
def test_machine_code_of_float32_on_matrix_units_has_no_spill_and_no_fence(
    cell: type[Cell], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(nvcc.PRODUCTS_VARIABLE, named)
    try:
        kernels = machine_code(cell, tmp_path, "f32")
    except BuildError as missing:
        pytest.skip(str(missing))
    others = [k for k in kernels if f"Li{nvcc.PRODUCTS.index(named)}E" in k.name]
    assert len(others) * 2 == len(kernels) == 8
    for kernel in others:
        assert kernel.spilled == 0, kernel.name
        assert "HMMA" in kernel.text
        if "ILb0E" in kernel.name:
            assert not re.search(r"\bMEMBAR\b|\bERRBAR\b|\bCCTL\b", kernel.text), kernel.name


def test_threads_that_keep_more_numbers_are_fewer() -> None:
    """So that each has registers for them: LSTM and GRU have four octets of a block."""
    most = {
        cell: [own.most_octets for plan in plans_of(cell) if (own := plan.persistent.persistent)]
        for cell in (LSTM, GRU, SLSTMHeads, Hawk)
    }
    assert most == {LSTM: [4, 4], GRU: [4, 4], SLSTMHeads: [3, 3], Hawk: [3, 2]}

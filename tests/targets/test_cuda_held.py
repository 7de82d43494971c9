"""Kernels that keep memories in registers: run by the emulation, beside one launch a step.

Of the cells that ship one runs each time, the others with the slow tests, which hold every cell to
the equations too (``test_cuda``).
"""

from __future__ import annotations

import numpy as np
import pytest

from cellgen import Cell
from cellgen.cells import (
    MLSTM,
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    Mamba2,
    RetNet,
    TTTLinear,
)
from cellgen.errors import DeviceError
from cellgen.pipeline import planned
from cellgen.proof.over_time import forward_errors, gradient_errors
from cellgen.runtime.abi import axis_length
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.schedule.device.lower import lower_for_device
from tests.conftest import relative
from tests.cuda_cover import in_any_order
from tests.drawing import draw_arrays
from tests.memory_cells import drawn
from tests.targets.test_cuda import (
    LAUNCHED,
    TOLERANCE,
    Counts,
    OnHost,
    emulated,
    emulated_in,
    inputs,
    names,
    run,
    sizes_of,
    upstream,
    with_cxx,
)

HELD = (RetNet, GatedLinearAttention, DeltaNet, GatedDeltaNet, MLSTM, TTTLinear, Mamba2)
each = pytest.mark.parametrize("cell", names(HELD, (RetNet,)))


@with_cxx
@each
def test_memories_in_registers_give_the_bits_of_one_launch_a_step(cell: type[Cell]) -> None:
    kernel = emulated(cell)
    for shape in ((3, 2, 3, 5), (1, 1, 1, 1), (0, 2, 3, 4), (2, 0, 3, 4)):
        for dtype in ("float64", "float32", "bfloat16"):
            steps, whole = (run(cell, kernel, shape, dtype, tier) for tier in ("steps", "whole"))
            for name, array in steps.items():
                if in_any_order(cell, name) and array.size:
                    least = {"float64": 1e-14, "float32": 4e-6, "bfloat16": 2**-6}[dtype]
                    assert relative(whole[name], array) < least, (shape, dtype, name)
                else:
                    assert np.array_equal(whole[name], array), (shape, dtype, name)


@with_cxx
def test_more_than_a_warp_along_each_axis_gives_the_same_bits() -> None:
    """Several classes and shares of a sum over keys, several columns of a lane, a second frame."""
    kernel = emulated(RetNet)
    device = OnHost(kernel, "float32")
    for keys, values in ((40, 64), (3, 70)):
        sizes = {"T": 2, "B": 1, "I": 2, "N": 1, "K": keys, "D": values}
        given = draw_arrays(kernel.sequence_forward.function, sizes, scale=1.0)
        scalars = {a.name: 0.9 for a in kernel.sequence_forward.function.arguments if a.is_scalar}
        found = [
            device.sequence_forward(**given, **scalars, save=True, tier=tier)
            for tier in ("steps", "whole")
        ]
        for one, other in zip(*(f._asdict().items() for f in found), strict=True):
            if one[0] != "saved":
                assert np.array_equal(one[1], other[1]), one[0]
        brought = [
            device.sequence_backward(
                **given, **scalars, h=f.h, s=f.s, d_h=f.h, d_s=f.s, saved=f.saved, tier=tier
            )._asdict()
            for f, tier in zip(found, ("steps", "whole"), strict=True)
        ]
        for name, array in brought[0].items():
            assert np.array_equal(array, brought[1][name]), name


@with_cxx
def test_results_do_not_depend_on_the_order_of_threads() -> None:
    kernel, found = emulated(RetNet), []
    for seed in (1, 2, 3):
        kernel.library().lib.cellgen_emulation_seed(seed)
        arrays = run(RetNet, kernel, (3, 2, 3, 5), "float32", "whole")
        found.append({name: array.tobytes() for name, array in arrays.items()})
    assert found[0] == found[1] == found[2]


@with_cxx
def test_all_steps_are_one_launch_where_a_head_fits() -> None:
    """So many launches for any number of steps; of 129 keys, or with masked steps, more."""
    kernel = emulated(RetNet)
    counts, lib = Counts(kernel), kernel.library().lib

    def launched(steps: int, keys: int, **options: object) -> int:
        sizes = {"T": steps, "B": 2, "I": 3, "N": 2, "K": keys, "D": 4}
        given: dict[str, object] = {
            a.name: 0.9
            if a.is_scalar
            else kernel.array(
                np.ones([axis_length(axis, sizes) for axis in a.shape]), dtype="float32"
            )
            for a in kernel.sequence_forward.function.arguments
        }
        counts.new()
        lib.cellgen_emulation_dry(1)
        try:
            kernel.sequence_forward(**given, graph=False, **options)
        finally:
            lib.cellgen_emulation_dry(0)
        return counts.new()[LAUNCHED]

    assert launched(2, 128) == launched(9, 128)
    assert launched(9, 128, tier="steps") - launched(2, 128, tier="steps") >= 7 * 3
    assert launched(9, 129) > launched(2, 129)
    lengths = kernel.array(np.array([1, 2]))
    assert isinstance(lengths, DeviceArray)
    assert launched(9, 4, lengths=lengths) > launched(2, 4, lengths=lengths)
    with pytest.raises(DeviceError, match="or the memory of a head its registers"):
        launched(2, 129, tier="whole")


@with_cxx
def test_windows_of_steps_cut_gradients_in_registers_too() -> None:
    kernel, shape = emulated(RetNet), (4, 1, 2, 3)
    device, given = OnHost(kernel), inputs(emulated(RetNet), shape)
    found = device.sequence_forward(**given, save=True)
    call = {**given, "h": found.h, "s": found.s, "d_h": found.h, "saved": found.saved}
    steps, whole, uncut = (
        device.sequence_backward(**call, **options)._asdict()
        for options in (
            {"tier": "steps", "window": 2},
            {"tier": "whole", "window": 2},
            {"tier": "whole"},
        )
    )
    for name, array in steps.items():
        assert np.array_equal(array, whole[name]), name
    assert not np.array_equal(uncut["d_w_k"], whole["d_w_k"])


@with_cxx
@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.slow if s != 4 else ()) for s in range(8)]
)
def test_drawn_memories_agree_with_the_equations(seed: int) -> None:
    """Cells that no list names: what is erased, gates, a second state, sums over a whole memory."""
    cell, shape = drawn(seed), (3, 2, 3, 5)
    kernel, rng, sizes = emulated_in(cell, "f64"), np.random.default_rng(seed), sizes_of(shape)
    given, above = inputs(kernel, shape), upstream(kernel, shape)
    errors = forward_errors(OnHost(kernel), cell.definition, given, sizes, "float64")
    errors |= gradient_errors(OnHost(kernel), cell.definition, given, above, sizes, rng)
    assert max(errors.values()) < TOLERANCE["float64"], errors


def test_drawn_memories_are_planned_in_registers_both_ways() -> None:
    for seed in range(12):
        names_of = planned(drawn(seed)).in_c
        assert names_of.sequence is not None
        for plan in lower_for_device(names_of.sequence, names_of.over_time):
            assert plan.tier.held is not None, (seed, plan.tier.reason)

"""Sums of a step on a device: how many terms one thread adds up, of every cell that ships."""

from __future__ import annotations

from collections import defaultdict

import pytest
from sympy import Expr, Mul

from cellgen.cells import SHIPPED
from cellgen.pipeline import planned
from cellgen.schedule.device.lower import lower_for_device
from cellgen.schedule.device.stages import DeviceLoop, LaunchedOver, LoopKernel

SIZES = {"I": 512, "H": 1024, "N": 16, "K": 64, "D": 64, "R": 64, "P": 512, "M": 256}
ROW_THREADS, LANES = 256, 32


def length(of: Expr) -> int:
    return int(of.subs({symbol: SIZES[str(symbol)] for symbol in of.free_symbols}))


def terms(kernel: LoopKernel, loop: DeviceLoop) -> int:
    """How many terms of a row a thread adds up one after the other."""
    if kernel.kind is LaunchedOver.EACH_ROW:
        return -(-length(loop.loop.space[-1]) // ROW_THREADS)
    if kernel.walk is None:
        return 1
    axes = zip(loop.loop.axes, kernel.walk.strides, strict=True)
    summed = [length(axis) for axis, stride in axes if stride == 0]
    if kernel.over_rows or not summed:
        return int(Mul(*summed))
    return int(Mul(*summed[:-1])) * -(-summed[-1] // LANES)


@pytest.mark.slow
def test_no_thread_adds_up_a_row_alone() -> None:
    """Threads of a warp share what is added up along one axis or two. The longest that is left is a
    sum over both axes of a memory, 64 x 64 terms by 32 threads; in a launch of all steps, 16."""
    most: dict[int, set[str]] = defaultdict(set)
    for cell in SHIPPED:
        names = planned(cell).in_c
        assert names.sequence is not None
        for plan in lower_for_device(names.sequence, names.over_time):
            for stage in (*plan.steps, *plan.deferred):
                if isinstance(stage, DeviceLoop):
                    for kernel in stage.kernels:
                        if kernel.summed:
                            most[terms(kernel, stage)].add(cell.definition.name)
    assert max(most) == 64 * 64 // LANES, most
    assert most[max(most)] == {
        *("mlstm", "mlstm_sigmoid", "gated_delta_net", "mamba2", "titans", "comba", "mamba3"),
        "m2rnn",
    }

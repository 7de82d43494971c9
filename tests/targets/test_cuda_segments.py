"""Kernels of CUDA run segments of time side by side as rows: the plan of the CPU, in emulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cells import SHIPPED
from cellgen.language.cell import definition_of
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.segments import Segmentation, SegmentsRun, WholeCall, in_segments
from cellgen.runtime.options import Options
from tests.drawing import draw_arrays
from tests.targets.test_cuda import emulated

SIZES = {"T": 48, "B": 2, "I": 3, "H": 5}


class Lent:
    """An array of the emulated device: NumPy's memory, with its strides."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": array.strides,
            "stream": None,
        }


@pytest.mark.parametrize("name", ["ind_rnn", "min_gru", "elman"])
@pytest.mark.parametrize("reverse", [False, True], ids=["onward", "in reverse"])
def test_rows_of_a_device_may_be_segments_of_time(name: str, reverse: bool) -> None:
    cell = next(cell for cell in SHIPPED if definition_of(cell).name == name)
    device = emulated(cell)
    function = cellgen.load(name).sequence_forward.function
    given = draw_arrays(function, SIZES, scale=0.4)
    options = Options(reverse=reverse)

    def run(
        arguments: dict[str, Any], results: dict[str, Any], options: Options, *, keep: bool
    ) -> Mapping[str, Any]:
        lent = {n: Lent(array) for n, array in arguments.items()}
        out = {n: Lent(array) for n, array in results.items()}
        for item in function.results:
            if item.name not in out and not item.saved:
                steps, rows = arguments["x"].shape[:2]
                sizes = SIZES | {"T": steps, "B": rows}
                array = np.empty([axis_length(axis, sizes) for axis in item.shape])
                out[item.name] = Lent(array)
        device.sequence_forward(**lent, out=out, reverse=options.reverse)
        return {n: one.array for n, one in out.items()}

    names = [item.name for item in function.results if not item.saved]
    wanted = {n: np.array(a) for n, a in run(given, {}, options, keep=False).items()}
    found = {n: np.full_like(wanted[n], np.nan) for n in names}
    over_time = frozenset(item.name for item in function.results if item.over_time)
    call = WholeCall(
        function,
        given,
        {},
        options,
        None,
        None,
        found,
        run,
        False,
        (SIZES["T"], SIZES["B"]),
        over_time,
        options,
    )
    ran = in_segments(call, Segmentation(segments=4, sweeps=9))
    assert ran == SegmentsRun(4, ran.sweeps, 0)
    for n, array in wanted.items():
        np.testing.assert_array_equal(found[n], array, err_msg=n)

"""Another language of devices is a table of words: the same plan, in words like those of Metal.

The words of the toy are macros, so that the emulation of CUDA runs what it spells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cellgen import Cell
from cellgen.cells import GRU, MLSTM
from cellgen.pipeline import planned
from cellgen.proof.over_time import forward_errors, gradient_errors
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.paths import include_folder
from cellgen.schedule.device.places import Element
from cellgen.schedule.device.stages import LaunchedOver
from cellgen.targets.cuda.dialect import CUDA
from cellgen.targets.cuda.source import CudaTarget
from tests.targets.test_cuda import OnHost, in_elements, inputs, sizes_of, upstream, with_cxx

TOY = replace(
    CUDA,
    headers=("toy_device.h",),
    header_of_type="toy_type.h",
    kernel="kernel",
    barrier="threadgroup_barrier();",
    block=("threadgroup_position_x", "threadgroup_position_y"),
    thread=("thread_position_x", "thread_position_y"),
    threads="threads_per_threadgroup_x",
    my=("toy_row", "toy_unit"),
    my_entry="toy_entry",
    shared="THREADGROUP",
    unroll="UNROLLED",
    named="TOY_NAME",
    api="TOY_API",
    bytes="TOY_BYTES",
    elements={
        Element.STORE: "element",
        Element.REAL: "number",
        Element.FLAG: "uchar",
        Element.NUMBER: "int32",
    },
    launch={kind: f"TOY_{kind.name}" for kind in LaunchedOver},
    launch_stream="TOY_STREAM",
    launch_blocks="TOY_BLOCKS",
    launch_held="TOY_HELD",
    launch_together="TOY_TOGETHER",
    launch_in_cluster="TOY_CLUSTER",
    together="TOY_THREADS",
)
MACROS = """#include "cellgen_cuda.cuh"
#include "cellgen_cuda_options.cuh"
#include "cellgen_cuda_held.cuh"
#include "cellgen_persist_choice.cuh"
#define kernel __global__ void
#define threadgroup_barrier() __syncthreads()
#define threadgroup_position_x blockIdx.x
#define threadgroup_position_y blockIdx.y
#define thread_position_x threadIdx.x
#define thread_position_y threadIdx.y
#define threads_per_threadgroup_x blockDim.x
#define toy_row CELLGEN_MY_ROW
#define toy_unit CELLGEN_MY_UNIT
#define toy_entry CELLGEN_MY_ENTRY
#define THREADGROUP CELLGEN_DYNAMIC_SHARED
#define UNROLLED CELLGEN_UNROLL
#define TOY_NAME CELLGEN_CUDA_NAME
#define TOY_API CELLGEN_CUDA_API
#define TOY_BYTES CELLGEN_CUDA_BYTES
#define element store
#define number real
#define uchar unsigned char
#define int32 int32_t
#define TOY_ELEMENTS CELLGEN_ELEMENTS
#define TOY_EACH_ROW CELLGEN_EACH_ROW
#define TOY_EACH_CHUNK CELLGEN_EACH_CHUNK
#define TOY_ENTRIES CELLGEN_ENTRIES
#define TOY_STREAM CELLGEN_STREAM
#define TOY_BLOCKS CELLGEN_IN_BLOCKS
#define TOY_HELD CELLGEN_HELD
#define TOY_TOGETHER CELLGEN_LAUNCH_TOGETHER
#define TOY_CLUSTER CELLGEN_LAUNCH_IN_CLUSTER
#define TOY_THREADS CELLGEN_TOGETHER_BOUNDS
"""
OF_CUDA = (
    r"__\w+__|__syncthreads|blockIdx|threadIdx|blockDim|"
    r"CELLGEN_(CUDA|EL|EN|EA|MY|ST\w+M|IN_B|LAUNCH|TOGETHER)"
)


def spelled(cell: type[Cell]) -> str:
    files = CudaTarget(TOY).render(planned(cell))
    assert isinstance(files, dict)
    return str(files[".cu"])


@pytest.mark.parametrize("cell", [GRU, MLSTM], ids=["gru", "mlstm"])
def test_a_dialect_spells_a_plan_in_its_own_words_alone(cell: type[Cell]) -> None:
    text = spelled(cell)
    assert re.findall(rf"\b(?:{OF_CUDA})\w*", text) == []
    assert "kernel TOY_NAME(" in text
    assert "TOY_ELEMENTS(&run, " in text
    files = CudaTarget().render(planned(cell))
    assert isinstance(files, dict)
    assert text.count("\n") == files[".cu"].count("\n") - 3  # one header in the place of four


@with_cxx
@pytest.mark.parametrize(
    "cell",
    [pytest.param(GRU, id="gru"), pytest.param(MLSTM, id="mlstm", marks=pytest.mark.slow)],
)
def test_what_a_dialect_spells_agrees_with_the_equations(cell: type[Cell], tmp_path: Path) -> None:
    (tmp_path / "toy_device.h").write_text(MACROS)
    (tmp_path / "toy_type.h").write_text('#include "cellgen_cuda_real.cuh"\n')
    texts = {
        f"{cell.definition.name}.cu": spelled(cell),
        "toy_device.h": MACROS,
        "toy_type.h": '#include "cellgen_cuda_real.cuh"\n',
    }
    name, include = cell.definition.name, include_folder()
    sources = SourceFiles.gather(name, texts, tmp_path, include)
    device = in_elements(CudaKernel(planned(cell).interface, sources, emulated=True), "f64")
    shape = (3, 4, 5, 7)
    given, above, sizes = inputs(device, shape), upstream(device, shape), sizes_of(shape)
    host, rng = OnHost(device), np.random.default_rng(2)
    errors = forward_errors(host, cell.definition, given, sizes, "float64")
    errors |= gradient_errors(host, cell.definition, given, above, sizes, rng)
    assert max(errors.values()) < 1e-12, errors  # float64, sums of some tens of terms

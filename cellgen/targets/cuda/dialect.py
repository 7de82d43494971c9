"""The words of a language of devices: what differs between CUDA and its like.

A dialect is this table, and headers that define the functions which texts call (``cg_load``,
``cg_gemm_nn``, ...). What is launched, in what order and on which memory is the plan's
(``schedule/device``), the same for every dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.schedule.device.places import Element
from cellgen.schedule.device.stages import LaunchedOver


@dataclass(frozen=True)
class DeviceDialect:
    """The words of one language.

    ``kernel`` stands before a kernel's name, ``barrier`` is where threads of a block meet,
    ``block`` and ``thread`` are places along two axes of a launch, ``threads`` how many a block has
    along the first, ``my`` the row and the unit of a thread, ``my_entry`` the entry that a thread
    adds up with others. ``shared`` declares a block's memory. ``launch`` are the macros that run a
    kernel, ``together`` the threads that one has whose blocks stay, ``named`` and ``api`` those
    around names and functions of the library.
    """

    name: str
    suffix: str
    headers: tuple[str, ...]
    header_of_type: str
    kernel: str
    barrier: str
    block: tuple[str, str]
    thread: tuple[str, str]
    threads: str
    my: tuple[str, str]
    my_entry: str
    shared: str
    unroll: str
    named: str
    api: str
    bytes: str
    elements: Mapping[Element, str]
    launch: Mapping[LaunchedOver, str]
    launch_stream: str
    launch_blocks: str
    launch_held: str
    launch_together: str
    launch_in_cluster: str
    together: str
    by_thread: str
    by_fragment: str

    def of_type(self, name: str) -> str:
        """A name of which there is one for each type of element."""
        return f"{self.named}({name})"


CUDA = DeviceDialect(
    name="cuda",
    suffix=".cu",
    headers=(
        "cellgen_cuda.cuh",
        "cellgen_cuda_options.cuh",
        "cellgen_cuda_held.cuh",
        "cellgen_persist_choice.cuh",
    ),
    header_of_type="cellgen_cuda_real.cuh",
    kernel="__global__ void",
    barrier="__syncthreads();",
    block=("blockIdx.x", "blockIdx.y"),
    thread=("threadIdx.x", "threadIdx.y"),
    threads="blockDim.x",
    my=("CELLGEN_MY_ROW", "CELLGEN_MY_UNIT"),
    my_entry="CELLGEN_MY_ENTRY",
    shared="CELLGEN_DYNAMIC_SHARED",
    unroll="CELLGEN_UNROLL",
    named="CELLGEN_CUDA_NAME",
    api="CELLGEN_CUDA_API",
    bytes="CELLGEN_CUDA_BYTES",
    elements={
        Element.STORE: "store",
        Element.REAL: "real",
        Element.FLAG: "unsigned char",
        Element.NUMBER: "int32_t",
    },
    launch={
        LaunchedOver.ELEMENTS: "CELLGEN_ELEMENTS",
        LaunchedOver.EACH_ROW: "CELLGEN_EACH_ROW",
        LaunchedOver.EACH_CHUNK: "CELLGEN_EACH_CHUNK",
        LaunchedOver.ENTRIES: "CELLGEN_ENTRIES",
    },
    launch_stream="CELLGEN_STREAM",
    launch_blocks="CELLGEN_IN_BLOCKS",
    launch_held="CELLGEN_HELD",
    launch_together="CELLGEN_LAUNCH_TOGETHER",
    launch_in_cluster="CELLGEN_LAUNCH_IN_CLUSTER",
    together="CELLGEN_TOGETHER_BOUNDS",
    by_thread="cellgen_by_thread",
    by_fragment="cellgen_on_units<store>",
)

"""Kernels whose blocks stay on a device together: proven, then timed beside cuDNN.

    python benchmarks/device_stay.py prove --cells lstm,gru
    python benchmarks/device_stay.py time --cells lstm --tiers device --dtypes bfloat16,float16
    python benchmarks/device_stay.py time --cells lstm --tiers device --tries none prefetch wide
    python benchmarks/device_stay.py time --cells lstm --dtypes float32 --tries none parts tf32
    python benchmarks/device_stay.py prove --cells lstm --dtypes float32 --tries parts
    python benchmarks/device_stay.py both --cells lstm,gru

``prove`` compares each cell that has such kernels with its C kernels in float64: over the device
and in clusters, of each of ``DTYPES``, forward and back, launched and as a graph with equal bits.
``time`` takes the tiers of a cell at the shapes of lab note 14 in turns, and cuDNN's layer of
PyTorch in each element type beside them; ``--tries`` compiles the kernels once more with switches
of ``CELLGEN_CUDA_TRY``, or with products of ``CELLGEN_CUDA_PRODUCTS``. ``both`` takes two
directions of a layer, one after the other and at once in half of the processors each. A line of
JSON for each record, as it comes; ends with 1 where one is not ok. ``--emulated`` proves on the
CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

from device_proof import BARS, FEW, Record, _compare

import cellgen
from cellgen.cells import SHIPPED
from cellgen.errors import DeviceError
from cellgen.pipeline import planned
from cellgen.runtime.device.cuda_abi import ON_UNITS
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.device.model import EMULATED, EMULATED_CAPABILITY
from cellgen.runtime.device.nvcc import PRODUCTS, PRODUCTS_VARIABLE, TRY_VARIABLE
from cellgen.schedule.device.lower import lower_for_device

FIRST = ("lstm", "gru", "gru_reset_before", "slstm_heads", "lstm_projection", "elman")
"""One level of products, two, heads, a product of an element's result: these come first."""
TIERS = ("device", "cluster")
DTYPES = ("float32", *ON_UNITS)
PROVEN = ((3, 4, 5, 12), (6, 33, 9, 40))
"""Steps, rows, inputs, units: two octets and a part of a group; five octets and three groups."""
UNTRIED = "none"
"""Of ``--tries``: kernels as they are."""
ROUNDED = 5e-3
"""What errors TF32 may have: factors lose 2^-12."""
TIMED = ((512, 16, 1024), (100, 32, 256), (100, 64, 512), (1000, 1, 256))
"""Steps, rows, units: those of lab note 14, and one row."""


def staying() -> list[str]:
    """Cells that have such kernels in both directions, those that say most first."""
    names = [cell.definition.name for cell in SHIPPED if _stays(cell)]
    return [n for n in FIRST if n in names] + [n for n in names if n not in FIRST]


def _stays(cell: type) -> bool:
    spelled = planned(cell).in_c
    if spelled.sequence is None:
        return False
    plans = lower_for_device(spelled.sequence, spelled.over_time)
    return all(plan.persistent.persistent is not None for plan in plans)


# --- prove ---------------------------------------------------------------------------------------


def prove(
    names: list[str], dtypes: list[str], tries: list[str], *, emulated: bool
) -> Iterator[Record]:
    """Errors of each cell, tier and element type; what a device does not take is said."""
    shapes = PROVEN[:1] if emulated else PROVEN
    for name, tried in product(names, tries):
        kernel, exact = _tried(name, tried, emulated=emulated), cellgen.load(name)
        with _machine(kernel, emulated=emulated):
            for dtype, tier, shape in product(dtypes, TIERS, shapes):
                if dtype != "float32":  # over more steps roundings of some cells grow beyond a bar
                    shape = (min(shape[0], FEW), *shape[1:])
                record: Record = {"cell": name, "dtype": dtype, "tier": tier, "shape": shape}
                record |= {} if tried == UNTRIED else {"try": tried}
                bar = ROUNDED if (dtype, tried) == ("float32", "tf32") else BARS[dtype]
                try:
                    error = _compare(kernel, exact, dtype, shape, 0, tier, {})
                except DeviceError as refused:
                    taken = "tier does not run" not in str(refused)
                    yield {**record, "refused": str(refused), **({"ok": False} if taken else {})}
                    continue
                yield {**record, "error": error, "ok": error <= bar}


@contextlib.contextmanager
def _machine(kernel: CudaKernel, *, emulated: bool) -> Iterator[None]:
    """Make the emulation a device that has clusters; nothing is done to one that is there."""
    if not emulated:
        yield
        return
    lib = kernel.library().lib
    lib.cellgen_emulation_device(EMULATED[0], 227 << 10)
    lib.cellgen_emulation_machine(1, 0, 90)
    try:
        yield
    finally:
        lib.cellgen_emulation_device(*EMULATED)
        lib.cellgen_emulation_machine(1, 0, EMULATED_CAPABILITY)


# --- time ----------------------------------------------------------------------------------------


def times(
    names: list[str], dtypes: list[str], tiers: list[str], tries: list[str]
) -> Iterator[Record]:
    """Milliseconds of every tier, forward and with backward, as replays of a graph."""
    speed = importlib.import_module("device_speed")  # needs PyTorch
    device = importlib.import_module("device")._device(False)
    for name in names:
        kernels = {tried: _tried(name, tried) for tried in tries}
        for shape, dtype in product(TIMED, dtypes):
            for tier, tried in product(tiers, tries):
                yield {"try": tried} | _timed(speed, kernels[tried], shape, dtype, tier)
            if name in ("lstm", "gru"):
                yield speed._cudnn(name.upper(), shape, dtype, False, device)


def _tried(name: str, tried: str, *, emulated: bool = False) -> CudaKernel:
    """The kernel of a cell, compiled with what is tried."""
    kernel = cellgen.load_cuda(name, emulated=emulated)
    if tried == UNTRIED:
        return kernel
    kernel = CudaKernel(kernel.interface, kernel.sources, emulated=emulated)
    variable = PRODUCTS_VARIABLE if tried in PRODUCTS else TRY_VARIABLE
    os.environ[variable] = tried
    try:
        kernel.build()
    finally:
        del os.environ[variable]
    return kernel


def directions(names: list[str], dtypes: list[str]) -> Iterator[Record]:
    """Milliseconds of two directions, one after the other and at once, as replays of a graph."""
    speed = importlib.import_module("device_speed")  # needs PyTorch
    torch = importlib.import_module("torch")
    for name, shape, dtype in product(names, TIMED, dtypes):
        forward = cellgen.load_cuda(name).sequence_forward
        arrays = {a.name for a in forward.function.arguments if not a.is_scalar}
        given = speed.drawn(forward.function, speed.sizes_of(shape), getattr(torch, dtype), arrays)
        side = torch.cuda.Stream()

        def in_turn(forward: Any = forward, given: Any = given) -> None:
            for reverse in (False, True):
                forward(**given, reverse=reverse)

        def at_once(forward: Any = forward, given: Any = given, side: Any = side) -> None:
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            forward(**given, tier="half")
            with torch.cuda.stream(side):
                forward(**given, reverse=True, tier="half")
            here.wait_stream(side)

        record: Record = {"who": "cellgen", "cell": name, "shape": shape, "dtype": dtype}
        for way, call in (("in_turn", in_turn), ("at_once", at_once)):
            record[f"{way}_graph_ms"] = speed.median_ms(speed.captured(call))
        yield record


def _timed(
    speed: object, kernel: CudaKernel, shape: tuple[int, ...], dtype: str, tier: str
) -> Record:
    torch = importlib.import_module("torch")
    sizes, forward, backward = (
        speed.sizes_of(shape),  # type: ignore[attr-defined]
        kernel.sequence_forward,
        kernel.sequence_backward,
    )
    record: Record = {"who": "cellgen", "cell": kernel.name, "shape": shape, "dtype": dtype}
    names = {a.name for a in forward.function.arguments if not a.is_scalar}
    kind = getattr(torch, dtype)
    given = speed.drawn(forward.function, sizes, kind, names)  # type: ignore[attr-defined]
    above = speed.drawn(backward.function, sizes, kind, {"d_h"})  # type: ignore[attr-defined]
    taken = {a.name for a in backward.function.arguments}

    def both() -> object:
        y = forward(**given, save=True, tier=tier)
        outputs = {n: getattr(y, n) for n in y._fields if n in taken}
        return backward(**given, **outputs, **above, saved=y.saved, tier=tier)

    record["tier"] = tier
    try:
        for mode, call in (("f", lambda: forward(**given, tier=tier)), ("fb", both)):
            record[f"{mode}_graph_ms"] = speed.median_ms(speed.captured(call))  # type: ignore[attr-defined]
    except DeviceError as refused:
        record["refused"] = str(refused)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prove", "time", "both"))
    parser.add_argument("--cells", default="", help="comma-separated; all that stay when left out")
    parser.add_argument("--part", default="1/1", help="of the cells, for example 2/4")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="element types")
    parser.add_argument("--tiers", default=",".join(("auto", *TIERS)), help="of time")
    parser.add_argument("--tries", nargs="+", default=[UNTRIED], help="side by side")
    parser.add_argument("--emulated", action="store_true", help="prove on the CPU")
    options = parser.parse_args()
    number, count = map(int, options.part.split("/"))
    names = (options.cells.split(",") if options.cells else staying())[number - 1 :: count]
    dtypes = options.dtypes.split(",")
    if options.what == "prove":
        records = prove(names, dtypes, options.tries, emulated=options.emulated)
    elif options.what == "both":
        records = directions(names, dtypes)
    else:
        records = times(names, dtypes, options.tiers.split(","), options.tries)
    wrong = ran = 0
    for record in records:
        print(json.dumps(record), flush=True)
        wrong += record.get("ok") is False
        ran += "refused" not in record
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())

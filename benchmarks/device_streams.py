"""Whether launches whose blocks wait for each other ever hold each other up on one device.

    python benchmarks/device_streams.py

Several streams at once launch layers that stay on the device, over it and in clusters, each of more
than half of its processors, beside others that run step by step; then two processes do so at once.
Results are held to those of a stream alone, to the bit. A launch that waits for ever is trapped, or
ends with the part's limit. A line of JSON for each trial; ends with 1 where one is not ok.
``--emulated`` runs a small one on the CPU, where streams take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from device_proof import Record
from device_stay import _machine

import cellgen
from cellgen.errors import DeviceError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.device.kernel import CudaKernel

Shape: TypeAlias = tuple[int, int, int]
MIXES = (
    ("device", "device"),
    ("device", "device", "device", "device"),
    ("cluster", "cluster"),
    ("device", "cluster", "steps"),
)
"""The tiers of streams that run at once."""
SHAPES = ((512, 16, 1024), (100, 64, 512), (100, 32, 256), (1000, 1, 256))
"""Steps, rows, units: some 128, 64, 64 and 32 blocks over the device."""
SMALL = ((4, 3, 24),)
ROUNDS, SMALL_ROUNDS = 40, 2
LIMIT = 200.0
"""Seconds that two processes may take."""


def trials(
    kernel: CudaKernel, shapes: tuple[tuple[int, ...], ...], rounds: int
) -> Iterator[Record]:
    """Each mix of tiers at each shape, in bfloat16, launched and as graphs."""
    ffi, lib = kernel.library().ffi, kernel.library().lib
    streams = []
    for _ in range(max(map(len, MIXES))):
        handle = ffi.new("void **")
        kernel.library().require(lib.cellgen_cuda_stream_create(handle), "making a stream")
        streams.append(int(ffi.cast("uintptr_t", handle[0])))
    for shape in shapes:
        for mix in MIXES:
            record: Record = {"cell": kernel.name, "shape": shape, "streams": mix}
            try:
                yield {**record, **_trial(kernel, shape, mix, streams, rounds)}
            except DeviceError as refused:
                fits = "tier does not run" not in str(refused)
                yield {**record, "refused": str(refused), **({"ok": False} if fits else {})}


def _trial(
    kernel: CudaKernel,
    shape: tuple[int, ...],
    mix: tuple[str, ...],
    streams: list[int],
    rounds: int,
) -> Record:
    """All streams, each with as many calls as there are rounds, before anything is waited for."""
    steps, rows, units = shape
    sizes = {"T": steps, "B": rows, "I": units, "H": units}
    rng, function = np.random.default_rng(0), kernel.sequence_forward
    arrays = {}
    for item in function.function.arguments:
        if not item.is_scalar:
            values = rng.standard_normal([axis_length(axis, sizes) for axis in item.shape])
            array = kernel.array(values / units**0.5, dtype="bfloat16")
            arrays[item.name] = (array, array.numpy())[0]  # it is there, for every stream
    alone = {
        tier: function(**arrays, tier=tier, stream=streams[0], graph=False).h.numpy()
        for tier in dict.fromkeys(mix)
    }
    results = [
        (tier, function(**arrays, tier=tier, stream=stream, graph=bool(number % 2)).h)
        for number in range(rounds)
        for tier, stream in zip(mix, streams, strict=False)
    ]
    wrong = sum(not np.array_equal(h.numpy(), alone[tier]) for tier, h in results)
    return {"calls": len(results), "wrong": wrong, "ok": wrong == 0}


def processes() -> Record:
    """Two processes at once, each with its streams."""
    command = [sys.executable, __file__, "--one"]
    end = time.monotonic() + LIMIT
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        codes = [process.wait(end - time.monotonic()) for process in running]
    except subprocess.TimeoutExpired:
        return {"processes": 2, "ok": False, "limit_s": LIMIT}
    finally:
        for process in running:
            process.kill()
    return {"processes": 2, "statuses": codes, "ok": codes == [0, 0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulated", action="store_true", help="a small trial on the CPU")
    parser.add_argument("--one", action="store_true", help="one process alone")
    options = parser.parse_args()
    small = options.emulated
    shapes, rounds = (SMALL, SMALL_ROUNDS) if small else (SHAPES, ROUNDS)
    kernel, wrong, ran = cellgen.load_cuda("elman" if small else "lstm", emulated=small), 0, 0
    with _machine(kernel, emulated=small):
        for record in trials(kernel, shapes, rounds):
            print(json.dumps(record), flush=True)
            wrong += record.get("ok") is False
            ran += "refused" not in record
    if not small and not options.one:
        record = processes()
        print(json.dumps(record), flush=True)
        wrong += record["ok"] is False
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())

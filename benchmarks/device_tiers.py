"""Time every tier of a cell on a device, beside the one that the cost model takes.

Imported by ``device.py`` where PyTorch is installed. Medians of CUDA events around the replay of
PyTorch's graph of a call. A record is not ok where the model's choice takes more than ``REGRET``
times as long as the best tier: the constants of ``cellgen_cuda_tiers.cuh`` are off then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from device_speed import HEADS, Record, captured, drawn, median_ms

import cellgen
from cellgen.errors import DeviceError
from cellgen.runtime.device.kernel import CudaKernel

CELLS = ("elman", "gru", "lstm", "slstm_heads")
SHAPES = ((100, 1, 32), (100, 32, 64), (100, 8, 128), (100, 64, 128), (100, 256, 64))
"""Steps, rows, units."""
TIERS = ("steps", "whole", "fragments", "auto")
REGRET = 1.25


def tiers(device: str) -> list[Record]:
    """Time all tiers of all cells; one record for each pass, shape and element type."""
    records: list[Record] = []
    for cell, shape, dtype in product(CELLS, SHAPES, ("float32", "bfloat16")):
        for record in _tiers(cellgen.load_cuda(cell), shape, dtype):
            records.append({**record, "device": device})
            print(_line(record), flush=True)
    return records


def _line(record: Record) -> str:
    times = " ".join(f"{tier} {record.get(tier, float('nan')):8.3f}" for tier in TIERS)
    head = f"{record['cell']:12s} {record['pass']:8s} {record['shape']!s:15s} {record['dtype']:8s}"
    return f"{head} ms: {times} regret {record['regret']:.2f}"


def _tiers(kernel: CudaKernel, shape: tuple[int, ...], dtype: str) -> Iterator[Record]:
    steps, rows, units = shape
    sizes = {"T": steps, "B": rows, "I": units, "H": units, **HEADS, "D": units // 4, "K": 4}
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    names = {a.name for a in forward.function.arguments if not a.is_scalar}
    given = drawn(forward.function, sizes, getattr(torch, dtype), names)
    above = drawn(backward.function, sizes, getattr(torch, dtype), {"d_h"})
    taken = {a.name for a in backward.function.arguments}
    for way in ("forward", "backward"):
        record: Record = {"cell": kernel.name, "pass": way, "shape": shape, "dtype": dtype}
        for tier in TIERS:
            if tier == "fragments" and dtype != "bfloat16":
                continue
            y = forward(**given, save=True, tier="steps")
            outputs = {n: getattr(y, n) for n in y._fields if n in taken}
            call = {**given, **outputs, **above, "saved": y.saved, "tier": tier}
            try:
                if way == "forward":
                    record[tier] = median_ms(captured(lambda: forward(**given, tier=tier)))  # noqa: B023
                else:
                    record[tier] = median_ms(captured(lambda: backward(**call)))  # noqa: B023
            except DeviceError as error:
                if "do not fit" not in str(error):
                    raise
        best = min(record[tier] for tier in TIERS if tier in record)  # type: ignore[type-var]
        record["regret"] = record["auto"] / best  # type: ignore[operator]
        yield {**record, "ok": record["regret"] <= REGRET}

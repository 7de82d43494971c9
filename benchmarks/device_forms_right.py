"""Forms in time on a device: every cell, element type and option, compared before they are timed.

    python benchmarks/device_forms_right.py --jobs 8

Each cell and element type has a process of its own, so that a kernel that ends it loses no other,
and so that many kernels compile at once. A call with gradients, without and with a reset, goes
through ``cellgen.torch.function``: its first use compares results and every gradient with the
equations. A line of JSON for each; ends with 1 where one is not ok. ``--cpu`` runs torch's own
operators on the CPU, for tests of this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from device_forms import MEMORIES, SCANS, Record, Shape, arguments, form_of

import cellgen.torch
from cellgen.torch.launched import module_of
from cellgen.torch.registry import known

CELLS = (
    *MEMORIES,
    *SCANS,
    "mamba",
    "kda",
    "delta_product",
    "comba",
    "mamba3",
    "gated_delta_net_2",
    "hgrn2",
    "mlstm_sigmoid",
    "rwkv4",
    "hawk",
)
DTYPES = ("bfloat16", "float32", "float16")
PATIENCE = 200.0
"""Seconds for a cell and element type."""


def compare(name: str, shape: Shape, device: str, dtypes: tuple[str, ...]) -> list[Record]:
    """Run a cell's form in each element type; a line for each as it comes."""
    records: list[Record] = []
    for dtype in dtypes:
        for option in ("", "reset"):
            records.append(_one(name, shape, device, dtype, option))
            print(json.dumps(records[-1]), flush=True)
    return records


def _one(name: str, shape: Shape, device: str, dtype: str, option: str) -> Record:
    about: Record = {"cell": name, **vars(shape), "dtype": dtype, "option": option}
    begun = time.monotonic()
    try:
        given = arguments(name, shape, device, getattr(torch, dtype))
        leaves = [tensor.requires_grad_() for tensor in given.values()]
        options: dict[str, torch.Tensor] = {}
        if option:
            made = torch.Generator().manual_seed(0)
            options[option] = (torch.rand(shape.T, shape.B, generator=made) < 0.02).to(device)
        results = cellgen.torch.function(name, form=form_of(name))(**given, **options)
        output = results[0]
        torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        return about | {"ok": False, "failed": f"{type(error).__name__}: {str(error)[:600]}"}
    by_kernels = module_of(known(name)) is not None and device == "cuda"
    took = round(time.monotonic() - begun, 1)
    return about | {"ok": by_kernels or device == "cpu", "kernels": by_kernels, "seconds": took}


def _in_process(name: str, dtype: str, options: argparse.Namespace) -> bool:
    command = [sys.executable, __file__, "--cells", name, "--dtypes", dtype, "--jobs", "1"]
    command += ["--units", options.units, *(["--cpu"] if options.cpu else [])]
    try:
        status = subprocess.run(command, check=False, timeout=options.patience).returncode
    except subprocess.TimeoutExpired:
        status = None
    if status not in (0, 1):
        ended = "by the limit" if status is None else f"with status {status}"
        said = {"cell": name, "dtype": dtype, "ok": False, "failed": f"the process ended {ended}"}
        print(json.dumps(said), flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", default=",".join(CELLS), help="comma-separated")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="comma-separated")
    parser.add_argument("--units", default="64", help="of a head, comma-separated")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for each")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, at tiny sizes")
    options = parser.parse_args()
    names, dtypes = options.cells.split(","), tuple(options.dtypes.split(","))
    if options.jobs > 1:
        each = [(name, dtype, options) for dtype in dtypes for name in names]
        with ThreadPoolExecutor(options.jobs) as pool:
            return 1 - min(pool.map(lambda one: _in_process(*one), each))
    device = "cpu" if options.cpu else "cuda"
    records: list[Record] = []
    for units in map(int, options.units.split(",")):
        shape = Shape(40, 2, 2, 16) if options.cpu else Shape(2048, 8, 16, units)
        for name in names:
            records += compare(name, shape, device, dtypes)
    return int(any(not record["ok"] for record in records))


if __name__ == "__main__":
    raise SystemExit(main())

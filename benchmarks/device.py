"""Prove and time the CUDA kernels on a device: one command, run where there is one.

    python benchmarks/device.py --save benchmarks/results/cuda.json

1. ``check``: every cell, element type, tier and seed against the C kernels in float64, with and
   without options over time, results in memory full of NaN, twice with equal bits: launch by launch
   and as a graph; functions of one step; arrays with gaps, batch first, windows, the last state
   alone; wrong calls, after which right ones work; tensors of PyTorch on a stream of the caller's.
2. ``sanitize``: a part of that under compute-sanitizer, memcheck and racecheck.
3. ``tiers``: every tier at some shapes, beside the one that the cost model takes.
4. ``bench``: LSTM and GRU, with and without their input product, against cuDNN through PyTorch,
   sLSTM of 12 x 64 units against FlashRNN where it is installed, minGRU against the bandwidth of a
   copy; kernel names are recorded and looked at, times given as multiples of stated limits.

``--emulated`` runs the check on the CPU, for tests of this file. Ends with 1 where anything fails,
or where PyTorch or compute-sanitizer are missing, unless ``--may-miss`` names them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from device_proof import Record, check_cell

import cellgen
from cellgen.api import shipped_names
from cellgen.errors import DeviceError

SANITIZED = ("lstm", "gru", "min_gru", "layer_norm_lstm", "slstm_heads")
STREAMED = ("lstm", "min_gru", "slstm_heads")
TOOLS = ("torch", "compute-sanitizer")
"""What parts need and a machine may lack."""


# --- check ---------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> list[Record]:
    """Compare every cell with its C kernel; one record per cell, element type and what is asked.

    With ``--jobs`` above 1 each cell has a process of its own: a fault loses that cell alone.
    """
    names = options.cells.split(",") if options.cells else list(shipped_names())
    if options.jobs == 1:
        return [record for name in names for record in check_cell(name, options)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda name: _in_process(name, options, Path(folder)), names))
    return [record for records in found for record in records]


def _in_process(name: str, options: argparse.Namespace, folder: Path) -> list[Record]:
    """Check one cell in a process of its own; a record says where that process failed."""
    saved = folder / f"{name}.json"
    command = [sys.executable, __file__, "--only", "check", "--cells", name, "--jobs", "1"]
    command += ["--seeds", str(options.seeds), "--save", str(saved)]
    command += [f"--{flag}" for flag in ("quick", "emulated") if getattr(options, flag)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=options.patience
        )
        status, said = done.returncode, f"{done.stdout}{done.stderr}"[-2000:]
        print(done.stdout, end="", flush=True)
    except subprocess.TimeoutExpired as late:
        status, said = -1, f"no end after {late.timeout} s"
    if saved.is_file():
        return list(json.loads(saved.read_text(encoding="utf-8"))["check"])
    print(f"{name}: status {status}: {said}", flush=True)
    return [{"cell": name, "what": "process", "status": status, "said": said, "ok": False}]


# --- sanitize ------------------------------------------------------------------------------------


def sanitize(options: argparse.Namespace) -> list[Record]:
    """Run a part of the check under compute-sanitizer."""
    if shutil.which("compute-sanitizer") is None:
        return [{"tool": "compute-sanitizer", "missing": "compute-sanitizer"}]
    asked = [(tool, name, options) for tool in ("memcheck", "racecheck") for name in SANITIZED]
    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(lambda a: _sanitized(*a), asked))


def _sanitized(tool: str, name: str, options: argparse.Namespace) -> Record:
    """Run one cell's quick check under one tool."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3"]
    command += ["--report-api-errors", "no", sys.executable]  # wrong calls are part of the check
    command += [__file__, "--only", "check", "--quick", "--cells", name, "--seeds", "1"]
    record: Record = {"tool": tool, "cell": name}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=options.patience
        )
    except subprocess.TimeoutExpired as late:
        print(f"compute-sanitizer {tool} {name}: no end after {late.timeout} s", flush=True)
        return {**record, "said": f"no end after {late.timeout} s", "ok": False}
    print(f"compute-sanitizer {tool} {name}: status {done.returncode}", flush=True)
    if done.returncode == 0:
        return {**record, "status": 0, "ok": True}
    said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    print(said)
    return {**record, "status": done.returncode, "said": said, "ok": False}


# --- parts that need PyTorch ---------------------------------------------------------------------


def _with_torch(run: Callable[[object], list[Record]]) -> list[Record]:
    """Run a part with ``device_speed``; say so where PyTorch or its device is missing."""
    if importlib.util.find_spec("torch") is None:
        return [{"missing": "torch", "why": "not installed"}]
    if not importlib.import_module("torch").cuda.is_available():
        return [{"missing": "torch", "why": "it finds no device"}]
    return run(importlib.import_module("device_speed"))


def streams() -> list[Record]:
    """Tensors of PyTorch on a stream of the caller's."""
    return _with_torch(lambda speed: [speed.check_stream(name) for name in STREAMED])  # type: ignore[attr-defined]


def tiers() -> list[Record]:
    """Time every tier beside the one that is chosen."""
    return _with_torch(lambda _: importlib.import_module("device_tiers").tiers(_device(False)))


def bench(options: argparse.Namespace) -> list[Record]:
    """Time forward, and forward with backward, against what others reach."""
    cells = {"cells": options.cells.split(",")} if options.cells else {}
    rounds = {"rounds": options.rounds} if options.rounds else {}
    return _with_torch(lambda speed: speed.bench(_device(False), **cells, **rounds))  # type: ignore[attr-defined]


# --- the command ---------------------------------------------------------------------------------


def _device(emulated: bool) -> str:
    if emulated:
        return "emulated on the CPU"
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def failures(report: dict[str, object], may_miss: list[str]) -> list[object]:
    """What failed in any part, and what is missing without leave."""
    records = [r for part in report.values() if isinstance(part, list) for r in part]
    failed = [r for r in records if r.get("ok") is False]
    return failed + [r for r in records if "missing" in r and r["missing"] not in may_miss]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("check", "streams", "sanitize", "tiers", "bench"))
    parser.add_argument("--cells", default="", help="comma-separated; all that ship when left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--patience", type=float, default=3600, help="seconds for a cell's process")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of a time, 20 when left out")
    parser.add_argument("--quick", action="store_true", help="small shapes only")
    parser.add_argument("--emulated", action="store_true", help="check on the CPU")
    parser.add_argument("--may-miss", choices=TOOLS, action="append", default=[])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if not options.emulated:
        try:
            cellgen.load_cuda("elman").devices()
        except DeviceError as error:
            print(f"no device to run on: {error}", file=sys.stderr)
            return 2
    parts: dict[str, Callable[[], list[Record]]] = {
        "check": lambda: check(options),
        "streams": streams,
        "sanitize": lambda: sanitize(options),
        "tiers": tiers,
        "bench": lambda: bench(options),
    }
    chosen = [options.only] if options.only else ["check"] if options.emulated else list(parts)
    report: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]),
        "device": _device(options.emulated),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report |= {part: parts[part]() for part in chosen}
    if options.save:
        options.save.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    failed = failures(report, options.may_miss)
    for record in failed:
        print(f"FAILED: {json.dumps(record)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Everything that a GPU should be asked, in order of worth: one command.

    python benchmarks/device_day.py --save day.jsonl

Each part is a process of its own, of at most four minutes; what it prints is written to the file
line by line, as it comes, so that a part that is ended, or a machine that is taken away, loses
nothing of before. ``--ahead`` compiles all kernels and asks nothing: run it where ``nvcc`` is, and
take the cache (CELLGEN_CACHE_DIR) to the device. ``--seconds`` is what there is in all: a part
that may need more than what is left is not begun. ``--list`` says the parts.

Without a device the parts that have an emulated form run in that, on the CPU, and each of the
others is said. Ends with 1 where a part fails or is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import cellgen
from cellgen.api import shipped_names
from cellgen.errors import CellgenError
from cellgen.runtime.device import nvcc

HERE = Path(__file__).parent
LONGEST = 240
"""Seconds that a part may take."""
CLUSTERS = "sm_90"
"""Code for clusters, where nothing else is named: what the kernels are compiled for."""
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
"""What parts may need, by module."""
CHUNKS = 4
"""Parts that all cells are in."""


@dataclass(frozen=True)
class Part:
    """A part: what it answers, a script with its arguments, seconds at most.

    ``emulated`` are the arguments on the CPU, None for a part that a device alone answers;
    ``needs`` is a module of another framework.
    """

    name: str
    answers: str
    command: tuple[str, ...]
    emulated: tuple[str, ...] | None = None
    seconds: int = LONGEST
    needs: str = ""


def _bench(cell: str) -> Part:
    return Part(
        f"bench {cell}",
        f"{cell} beside cuDNN, FlashRNN or a copy, as multiples of stated limits",
        ("device.py", "--only", "bench", "--cells", cell, "--rounds", "10"),
        needs="torch",
    )


PARTS = (
    Part(
        "stay: right",
        "do kernels whose blocks wait for each other run, and are they right",
        ("device_stay.py", "prove", "--cells", "elman,lstm,gru,slstm_heads,gru_reset_before"),
        ("device_stay.py", "prove", "--cells", "elman", "--emulated"),
    ),
    Part(
        "stay: fast",
        "their times at the shapes of lab note 14, beside cuDNN's and step by step",
        ("device_stay.py", "time", "--cells", "lstm,gru"),
        needs="torch",
    ),
    Part(
        "stay: tried",
        "does prefetching, and receiving more at once, pay in an LSTM",
        (
            *("device_stay.py", "time", "--cells", "lstm", "--tiers", "device"),
            *("--dtypes", "bfloat16", "--tries", "none", "prefetch", "wide", "prefetch,wide"),
        ),
        needs="torch",
    ),
    Part(
        "stay: products right",
        "are sums of three parts as near as float32, and TF32 as near as it may be",
        (
            *("device_stay.py", "prove", "--cells", "lstm,gru", "--dtypes", "float32"),
            *("--tries", "parts", "tf32"),
        ),
        (
            *("device_stay.py", "prove", "--cells", "elman", "--dtypes", "float32"),
            *("--tries", "parts", "--emulated"),
        ),
    ),
    Part(
        "stay: products fast",
        "do sums of three parts, or TF32, beat float32 by multiply-adds",
        (
            *("device_stay.py", "time", "--cells", "lstm,gru", "--tiers", "device,cluster"),
            *("--dtypes", "float32", "--tries", "none", "parts", "tf32"),
        ),
        needs="torch",
    ),
    Part(
        "stay: both directions",
        "do two directions at once, in half of the processors each, beat one after the other",
        ("device_stay.py", "both", "--cells", "lstm,gru"),
        needs="torch",
    ),
    Part(
        "PyTorch: both directions",
        "has a layer whose directions go at once the bits of one after the other, and is it faster",
        ("../tests/torch/device_check.py", "--only", "directions"),
        ("../tests/torch/device_check.py", "--only", "directions", "--emulated"),
        needs="torch",
    ),
    Part(
        "stay: streams",
        "do layers that stay, on several streams and in two processes, ever hold each other up",
        ("device_streams.py",),
        ("device_streams.py", "--emulated"),
    ),
    Part(
        "quick check",
        "are other tiers right: some cells, all element types",
        ("device.py", "--only", "check", "--quick", "--cells", "lstm,gru,min_gru,gla,mlstm"),
        ("device.py", "--emulated", "--quick", "--seeds", "1", "--cells", "elman"),
    ),
    Part(
        "forms: right",
        "forms in time: are the kernels of every cell and element type right",
        ("device_forms_right.py", "--jobs", "14"),
        ("device_forms_right.py", "--cpu", "--cells", "gla", "--dtypes", "float32", "--jobs", "1"),
        needs="torch",
    ),
    Part(
        "forms: fast",
        "forms in time: times beside kernels by hand",
        ("device_forms.py", "--times-only", "--save", "forms.json"),
        needs="torch",
    ),
    _bench("lstm"),
    _bench("gru"),
    _bench("slstm_heads"),
    _bench("min_gru"),
    *(
        Part(
            f"stay: all cells, {n} of {CHUNKS}",
            "are these kernels right for every cell that has them",
            ("device_stay.py", "prove", "--part", f"{n}/{CHUNKS}"),
        )
        for n in range(1, CHUNKS + 1)
    ),
    Part(
        "tiers",
        "what the cost model takes beside every tier",
        ("device.py", "--only", "tiers"),
        needs="torch",
    ),
    Part(
        "streams",
        "tensors of PyTorch on a stream of the caller's",
        ("device.py", "--only", "streams"),
        needs="torch",
    ),
    *(
        Part(
            f"check {n} of {CHUNKS}",
            "every cell, element type and tier against the C kernels",
            ("device.py", "--only", "check", "--jobs", "8", "--seeds", "1", "--cells", names),
        )
        for n, names in enumerate(
            (",".join(list(shipped_names())[at::CHUNKS]) for at in range(CHUNKS)), start=1
        )
    ),
    Part(
        "jax",
        "arrays of JAX, on XLA's stream and in its memory: are they right, and how fast",
        ("../tests/jax/device_check.py", "--cells", "gru,sru"),
        ("../tests/jax/device_check.py", "--cells", "elman", "--emulated"),
        needs="jax",
    ),
    Part(
        "sanitize",
        "a part of the check under memcheck and racecheck",
        ("device.py", "--only", "sanitize", "--jobs", "8", "--may-miss", "compute-sanitizer"),
    ),
)


# --- one part ------------------------------------------------------------------------------------


def run_part(command: Sequence[str], seconds: float, write: Callable[[str], None]) -> int | None:
    """Run a command, each line of it written as it comes; its status, None where it was ended."""
    process = subprocess.Popen(
        command,
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_copy, args=(process.stdout, write), daemon=True)
    reader.start()
    try:
        status: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        _end(process)
        reader.join(10)
        if not reader.is_alive():  # else a process of a session of its own has the other end
            process.stdout.close()
    return status


def _copy(lines: IO[str], write: Callable[[str], None]) -> None:
    for line in lines:
        write(line.rstrip("\n"))


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and those that it started, which would hold the device."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- the day -------------------------------------------------------------------------------------


class Day:
    """Runs parts one after the other within a time, and writes what comes."""

    def __init__(self, save: Path | None, seconds: float) -> None:
        self.save, self.end = save, time.monotonic() + seconds
        self.failed: list[str] = []

    def note(self, part: str, **values: object) -> None:
        """Write a record, and say it; the file is whole after each."""
        line = json.dumps({"part": part, **values})
        print(line, flush=True)
        if self.save is not None:
            with self.save.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def run(self, part: Part, arguments: Sequence[str]) -> None:
        """Run a part, unless what is left may not do."""
        left = self.end - time.monotonic()
        if left < part.seconds:
            self.note(part.name, not_run=f"{left:.0f} s are left, it may need {part.seconds}")
            return
        command = [sys.executable, str(HERE / arguments[0]), *arguments[1:]]
        self.note(part.name, answers=part.answers, command=" ".join(arguments))
        begun = time.monotonic()
        status = run_part(command, part.seconds, lambda line: self.note(part.name, line=line))
        took = round(time.monotonic() - begun, 1)
        if status is None:
            self.note(part.name, ended_after=part.seconds)
        else:
            self.note(part.name, status=status, seconds=took)
        if status != 0:
            self.failed.append(part.name)


def is_device() -> bool:
    """Whether the driver has a CUDA device; nothing is compiled to ask it."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return (
        not driver.cuInit(0)
        and not driver.cuDeviceGetCount(ctypes.byref(count))
        and count.value > 0
    )


def compile_ahead(day: Day, names: Sequence[str]) -> None:
    """Compile the kernels of cells, so that the device does not wait for a compiler."""
    for name in names:
        begun = time.monotonic()
        try:
            cellgen.load_cuda(name).build()
        except CellgenError as error:
            day.note("ahead", cell=name, failed=str(error))
            day.failed.append(f"ahead {name}")
            continue
        day.note("ahead", cell=name, seconds=round(time.monotonic() - begun, 1))


def main(parts: Sequence[Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, help="lines of JSON are added to this file")
    parser.add_argument("--seconds", type=float, default=3600, help="what there is in all")
    parser.add_argument("--only", default="", help="parts, comma-separated")
    parser.add_argument("--ahead", action="store_true", help="compile, ask nothing")
    parser.add_argument("--cells", default="", help="with --ahead: these, comma-separated")
    parser.add_argument("--list", action="store_true", help="say the parts")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [part.name for part in parts]
    unknown = [name for name in wanted if name not in {part.name for part in parts}]
    if unknown:
        parser.error(f"--only {unknown[0]!r}: expected one of {', '.join(p.name for p in parts)}")
    if options.list:
        for part in parts:
            print(f"{part.name:24s} {part.seconds:4d} s  {part.answers}")
        return 0
    day = Day(options.save, options.seconds)
    on_device = not options.ahead and is_device()
    if on_device or options.ahead:
        os.environ.setdefault(nvcc.ARCHITECTURE_VARIABLE, CLUSTERS)
    else:  # what the emulation passes for is older, and would be refused
        os.environ.pop(nvcc.ARCHITECTURE_VARIABLE, None)
    if options.ahead:
        compile_ahead(day, options.cells.split(",") if options.cells else list(shipped_names()))
        return 1 if day.failed else 0
    for part in (part for part in parts if part.name in wanted):
        if not on_device and part.emulated is None:
            day.note(part.name, not_run="there is no device", answers=part.answers)
        elif part.needs and importlib.util.find_spec(part.needs) is None:
            missing = f"{FRAMEWORKS[part.needs]} is not installed"
            day.note(part.name, not_run=missing, answers=part.answers)
        else:
            day.run(part, part.command if on_device else (part.emulated or ()))
    return 1 if day.failed else 0


if __name__ == "__main__":
    sys.exit(main())

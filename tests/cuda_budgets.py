"""What nvcc says of a cell's kernels: warnings, registers and spills, held to limits."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cellgen.runtime.device import nvcc
from cellgen.runtime.device.model import REGISTERS
from cellgen.runtime.paths import include_folder

ARCHITECTURES = ("80", "90a")
STRICT = ["-Werror", "all-warnings", "-Xptxas", "-v"]
TOGETHER = 5
"""Cells that one file includes: what the headers share is compiled once for all of them."""

BUDGETS = {
    r"_held_.*cellgen_frameILi8E": 255,
    r"_(forward|reverse)_(block|stream)_": REGISTERS,
    r"_f64|_over_rows_": 192,
    r"": 128,
}
"""Registers of a thread by kernel, the first pattern that its name has. A multiprocessor has 65536,
and blocks have up to 256 threads: 128 registers leave room for two of them, so that one computes
while the other waits for memory; the cost model counts on one. A block that keeps a memory in
registers has a multiprocessor to itself: 256 threads can have 255 of them, 512 have 128. What only
checks (float64) or runs once for all steps (sums over rows) may have three quarters of what one
block of 256 can have."""


SPILLS = {r"_held_f64": 8192, r"_held_.*cellgen_frameILi16E": 3072, r"_held_": 16, r"": 0}
"""Bytes that a thread stores and loads for want of registers. Memories of 128 x 128 are a quarter
of all registers, of doubles a half, and a backward pass has three of them in some cells; of 64 x 64
in float32 one address is stored, in one kernel, where four memories live (gated delta rule)."""


INSTANCE = re.compile(r"^#define CELLGEN_STORE (\w+)$", re.MULTILINE)
"""In a cell's text: what is compiled for one element type."""


@dataclass(frozen=True)
class Entry:
    """What ptxas says of a kernel."""

    name: str
    architecture: str
    registers: int
    spilled: int

    @property
    def spills(self) -> int:
        """Bytes of it that may be stored and loaded."""
        return next(most for part, most in SPILLS.items() if re.search(part, self.name))

    @property
    def budget(self) -> int:
        """Registers of a thread that the cost model and the launch shapes count on."""
        return next(most for part, most in BUDGETS.items() if re.search(part, self.name))


def only(source: str, elements: Sequence[str]) -> str:
    """A cell's text, compiled for some element types."""
    left_out = [suffix for suffix in INSTANCE.findall(source) if suffix not in elements]
    assert len(left_out) + len(elements) == 4
    for suffix in left_out:
        source = re.sub(rf"#define CELLGEN_STORE {suffix}\n.*\n#undef CELLGEN_STORE\n", "", source)
    return source


def compiled(
    place: Path,
    sources: Mapping[str, str],
    *,
    whole: bool = False,
    architectures: Sequence[str] = ARCHITECTURES,
) -> list[Entry]:
    """Compile cells, warnings being errors: device code, or also the host's; what ptxas says of
    each kernel."""
    for name, source in sources.items():
        (place / f"{name}.cu").write_text(source)
    (place / "all.cu").write_text("".join(f'#include "{name}.cu"\n' for name in sources))
    path, *flags = nvcc.compiler().command
    flags = [f for f in flags if not f.startswith("-arch") and f != "-shared"]
    host = ["-Xcompiler", "-Wall,-Wextra", "-c"] if whole else ["-fatbin"]
    of_devices = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in architectures]
    command = [path, *flags, *of_devices, *STRICT, f"-I{include_folder()}", "-I.", *host]
    done = subprocess.run(
        [*command, "all.cu", "-o", "out"], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    found = re.findall(
        r"entry function '(\w+)' for '(\w+)'\n.*\n.*?(\d+) bytes spill stores, (\d+) bytes spill "
        r"loads\n.*Used (\d+) registers",
        done.stderr,
    )
    entries = [Entry(n, arch, int(r), int(one) + int(two)) for n, arch, one, two, r in found]
    assert len(entries) == done.stderr.count("Compiling entry function")
    return entries


def require_budgets(
    entries: Sequence[Entry], source: str, architectures: Sequence[str] = ARCHITECTURES
) -> None:
    """Spills and registers within budget, all kernels there, for each architecture."""
    elements = INSTANCE.findall(source)
    assert {e.architecture for e in entries} == {f"sm_{one}" for one in architectures}
    assert not [e for e in entries if e.spilled > e.spills]
    assert not [e for e in entries if e.registers > e.budget]
    for suffix in {"bf16", "f16"}.intersection(elements):
        by_units = re.compile(rf"_block_{suffix}( |I19cellgen_)by_fragment")
        with_units = [e for e in entries if by_units.search(e.name)]
        assert len(with_units) == len(architectures) * source.count("template <typename way>")

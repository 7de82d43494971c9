"""What nvcc says of every cell that ships: registers and spills, on record with digests of sources.

Two architectures of 45 cells take minutes to compile, so that the ordinary tests compile one group
afresh and hold the others to the record ``cuda_budgets.json``. A record counts for the sources that
it was made of: after a change of a ``.cu`` file or a header, make it anew.

    python -m tests.cuda_budgets         # what changed
    python -m tests.cuda_budgets --all   # everything
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import track

from cellgen.cells import SHIPPED
from cellgen.pipeline import generate
from cellgen.runtime.device import nvcc
from cellgen.runtime.device.model import REGISTERS
from cellgen.runtime.paths import include_folder

HEADERS = "cellgen"
"""Under this name stand the kernels that the headers hold for all cells."""
RECORD = Path(__file__).with_name("cuda_budgets.json")
COMMAND = "python -m tests.cuda_budgets"
ARCHITECTURES = [
    *("-gencode", "arch=compute_80,code=sm_80"),
    *("-gencode", "arch=compute_90a,code=sm_90a"),
]
STRICT = ["-Werror", "all-warnings", "-Xptxas", "-v"]
TOGETHER = 5
"""Cells that one file includes: what the headers share is compiled once for all of them."""

EMULATION = "cellgen_cuda_emulation.h"
"""What other compilers read in the place of CUDA's own headers."""
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"]+)"')
GUARD = re.compile(r"\s*#ifndef (\w+)\n#define \1\n(.*)\n#endif\s*", re.DOTALL)

BUDGETS = {
    r"_(forward|reverse)_(block|stream)_": REGISTERS,
    r"_f64|_over_rows_": 192,
    r"": 128,
}
"""Registers of a thread by kernel, the first pattern that its name has. A multiprocessor has 65536,
and blocks have up to 256 threads: 128 registers leave room for two of them, so that one computes
while the other waits for memory; the cost model counts on one. What only checks (float64) or runs
once for all steps (sums over rows) may have three quarters of what one block of 256 can have."""


@dataclass(frozen=True)
class Entry:
    """What ptxas says of a kernel."""

    name: str
    architecture: str
    registers: int
    spilled: int

    @property
    def budget(self) -> int:
        """Registers of a thread that the cost model and the launch shapes count on."""
        return next(most for part, most in BUDGETS.items() if re.search(part, self.name))


@dataclass(frozen=True)
class Record:
    """What ptxas said of the kernels of one cell, and of which text."""

    digest: str
    nvcc: str
    entries: tuple[Entry, ...]


def sources(names: Sequence[str]) -> dict[str, str]:
    """The ``.cu`` files of cells that ship, as they are generated."""
    return {
        cell.definition.name: generate(cell).text(".cu")
        for cell in SHIPPED
        if cell.definition.name in names
    }


def digest(source: str) -> str:
    """Of all tokens that nvcc reads for a cell: comments and where files end do not count."""
    headers = sorted(path.name for path in include_folder().glob("cellgen_cuda*.cuh"))
    text = "\n".join([source, *(f'#include "{name}"' for name in headers)])
    return hashlib.sha256(expanded(text, {EMULATION}).encode()).hexdigest()[:16]


def expanded(text: str, done: set[str]) -> str:
    """The tokens of a text and of our headers that it includes; a header with a guard stands once.

    Such headers are noted in ``done``.
    """
    parts = []
    for line in COMMENT.sub(" ", text).replace("\\\n", " ").split("\n"):
        found = INCLUDE.match(line)
        if found is None or not (include_folder() / found[1]).is_file():
            parts.append(" ".join(line.split()))
        elif found[1] not in done:
            parts.append(_expanded_header(found[1], done))
    return "\n".join(filter(None, parts))


def _expanded_header(name: str, done: set[str]) -> str:
    text = COMMENT.sub(" ", (include_folder() / name).read_text())
    guarded = GUARD.fullmatch(text)
    if guarded is None:
        return expanded(text, done)
    done.add(name)
    return expanded(guarded[2], done)


def compiled(place: Path, sources: Mapping[str, str], *, whole: bool = False) -> list[Entry]:
    """Compile cells for both architectures, warnings being errors: device code, or also the host's;
    what ptxas says of each kernel."""
    for name, source in sources.items():
        (place / f"{name}.cu").write_text(source)
    (place / "all.cu").write_text("".join(f'#include "{name}.cu"\n' for name in sources))
    path, *flags = nvcc.compiler().command
    flags = [f for f in flags if not f.startswith("-arch") and f != "-shared"]
    host = ["-Xcompiler", "-Wall,-Wextra", "-c"] if whole else ["-fatbin"]
    command = [path, *flags, *ARCHITECTURES, *STRICT, f"-I{include_folder()}", "-I.", *host]
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


def require_budgets(entries: Sequence[Entry], source: str) -> None:
    """No spill, registers within budget, all kernels there, for both architectures."""
    assert {e.architecture for e in entries} == {"sm_80", "sm_90a"}
    assert not [e for e in entries if e.spilled]
    assert not [e for e in entries if e.registers > e.budget]
    with_units = [e for e in entries if re.search(r"_block_bf16( |I19cellgen_)by_fragment", e.name)]
    assert len(with_units) == 2 * source.count("template <typename way>")


def short(mangled: str) -> str:
    """Name of a kernel without its arguments, with its way to multiply; of the headers' kernels,
    which have types as arguments, the whole name."""
    length, rest = re.fullmatch(r"_Z(\d+)(\w+)", mangled).groups()
    name, arguments = rest[: int(length)], rest[int(length) :]
    if name.startswith("cellgen_"):
        return mangled
    way = re.match(r"I\d+cellgen_(by_[a-z]+?)E", arguments)
    return f"{name} {way[1]}" if way else name


def owner(entry: Entry, names: Sequence[str]) -> str:
    """The cell whose kernel it is: the longest name that it begins with; else the headers."""
    fitting = [name for name in names if entry.name.startswith(f"{name}_")]
    return max(fitting, key=len, default=HEADERS)


def records(place: Path, sources: Mapping[str, str], names: Sequence[str]) -> dict[str, Record]:
    """Compile cells together and tell the kernels of each, and of the headers, by their names."""
    entries = [replace(e, name=short(e.name)) for e in compiled(place, sources)]
    assert len({(e.name, e.architecture) for e in entries}) == len(entries)
    texts = {**sources, HEADERS: ""}
    return {
        name: Record(
            digest(text),
            version(),
            tuple(e for e in entries if owner(e, names) == name),
        )
        for name, text in texts.items()
    }


def together(known: Record | None, found: Record) -> Record:
    """What was found, and what is known of the same text beside it: a cell launches some of the
    kernels that the headers hold."""
    if known is None or known.digest != found.digest:
        return found
    own = {(e.name, e.architecture) for e in found.entries}
    others = (e for e in known.entries if (e.name, e.architecture) not in own)
    return replace(found, entries=(*others, *found.entries))


def version() -> str:
    """The line in which nvcc names its release."""
    return next(line for line in nvcc.compiler().version.splitlines() if "release" in line)


def read() -> dict[str, Record]:
    """The record of every cell, by name."""
    return {
        name: Record(
            item["digest"],
            item["nvcc"],
            tuple(
                Entry(kernel, architecture, *figures)
                for kernel, told in item["kernels"].items()
                for architecture, figures in told.items()
            ),
        )
        for name, item in json.loads(RECORD.read_text()).items()
    }


def write(found: Mapping[str, Record]) -> None:
    """One line a kernel, so that a change can be read."""
    cells = []
    for name, record in sorted(found.items()):
        kernels: dict[str, dict[str, list[int]]] = {}
        for e in sorted(record.entries, key=lambda e: (e.name, e.architecture)):
            kernels.setdefault(e.name, {})[e.architecture] = [e.registers, e.spilled]
        lines = [f"  {json.dumps(kernel)}: {json.dumps(told)}" for kernel, told in kernels.items()]
        head = f'"digest": "{record.digest}", "nvcc": {json.dumps(record.nvcc)}, "kernels": {{'
        cells.append(f"{json.dumps(name)}: {{{head}\n" + ",\n".join(lines) + "\n}}")
    RECORD.write_text("{\n" + ",\n".join(cells) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="compile every cell, changed or not")
    args = parser.parse_args()
    every = sources([cell.definition.name for cell in SHIPPED])
    known = {} if args.all or not RECORD.exists() else read()
    kept = {n: r for n, r in known.items() if n in every and r.digest == digest(every[n])}
    if HEADERS in known:
        kept[HEADERS] = known[HEADERS]
    stale = [name for name in every if name not in kept]
    groups = [stale[n : n + TOGETHER] for n in range(0, len(stale), TOGETHER)]
    for group in track(groups, description="compiling for two architectures"):
        with tempfile.TemporaryDirectory() as folder:
            found = records(Path(folder), {name: every[name] for name in group}, list(every))
        kept |= {name: together(kept.get(name), record) for name, record in found.items()}
        write(kept)
    write(kept)
    print(f"{len(stale)} of {len(every)} cells compiled, {RECORD.name} written")


if __name__ == "__main__":
    main()

"""Compile the CUDA source of one cell into a shared library and keep it in the cache.

Input: ``SourceFiles`` (a cell's ``.cu`` and the runtime headers it includes). Output: ``Built``.
The compiler is ``nvcc``: ``CELLGEN_NVCC``, else on PATH, in CUDA_HOME, in /usr/local/cuda, or from
the wheels of the ``[cuda]`` extra. With ``emulated=True`` a C++ compiler makes the library, and it
runs on the CPU as ``cellgen_cuda_emulation.h`` describes: for proofs where there is no device.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step, Tool
from cellgen.runtime.device import remembered
from cellgen.runtime.device.cublas import wheel_folders
from cellgen.runtime.device.cuda_abi import cuda_cdef

VARIABLE = "CELLGEN_NVCC"
CXX_VARIABLE = "CELLGEN_CXX"
ARCHITECTURE_VARIABLE = "CELLGEN_CUDA_ARCH"
ARCHITECTURE = "sm_80"
"""Machine code for Ampere, and PTX that a driver compiles for anything newer."""
OLDEST = 80
"""Compute capability times ten: what the code needs (products of bfloat16 on matrix units)."""
FLAGS = ("-std=c++17", "-O3", "--fmad=false", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden")
"""``--fmad=false``: a fused multiply-add stands where the source says so, as in C."""
EMULATION_FLAGS = (
    "-x",
    "c++",
    "-std=c++17",
    "-O0",
    "-DCELLGEN_EMULATED",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)
TRY_VARIABLE = "CELLGEN_CUDA_TRY"
TRIALS = ("ends", "prefetch", "wide")
"""What kernels that stay on a device may be compiled with, and no device has timed yet: switches of
``cellgen_persist.cuh``."""
PRODUCTS_VARIABLE = "CELLGEN_CUDA_PRODUCTS"
PRODUCTS = ("fma", "parts", "tf32")
"""How kernels that stay on a device multiply float32, by the numbers of
``cellgen_persist_products.cuh``: the first one where nothing is named."""
FIX = (
    f"install the CUDA toolkit, or `pip install 'cellgen-compiler[cuda]'`, or name a compiler: "
    f"{VARIABLE}=/path/to/nvcc"
)
STILL_WORKS = "C kernels of the cell still work"
TOOL = Tool(
    "the CUDA compiler",
    flags=f"{VARIABLE} or {ARCHITECTURE_VARIABLE}",
    other=f"name another compiler: {VARIABLE}=/path/to/nvcc",
    fix=FIX,
    still=STILL_WORKS,
    code="build.nvcc",
)
EMULATOR = Tool(
    "the C++ compiler",
    flags="CELLGEN_CXX",
    other="name another compiler: CELLGEN_CXX=/path/to/c++",
    fix="install one, or name one: CELLGEN_CXX=/path/to/c++",
    still=STILL_WORKS,
    code="build.nvcc",
)
HOST = replace(EMULATOR, code="build.cxx")
"""What compiles the host's half of a cell (``halves``)."""
WHEEL_PLACES = ("cu13/bin", "cuda_nvcc/bin")
"""Where the wheels put nvcc, below the folder ``nvidia`` of site-packages."""


@dataclass(frozen=True)
class Compiler:
    """A compiler of .cu files: its command with flags, and what it says it is."""

    command: tuple[str, ...]
    version: str

    @property
    def facts(self) -> dict[str, object]:
        """What is remembered of it; ``_recalled`` reads it."""
        return {"command": list(self.command), "version": self.version}


def build(sources: SourceFiles, interface: Interface, *, emulated: bool = False) -> Built:
    """Find the cell's library in the cache, or compile and publish it.

    Raises BuildError: no compiler, compiler errors, an unusable cache folder.
    """
    start = time.perf_counter()
    toolchain = emulator() if emulated else compiler(may_recall=True)
    entry = _entry(sources, interface, toolchain, emulated)
    tool = EMULATOR if emulated else TOOL
    path, cached = cache.find_or_make(
        entry,
        sources.files,
        lambda place: _compile(place, sources.name, entry, toolchain, tool),
    )
    if not emulated:
        remembered.keep(remembered_as(), toolchain.facts, is_new=not cached)
        remembered.keep(remembered.WAY, {"way": remembered.NVCC}, is_new=not cached)
    return Built(path, cached, time.perf_counter() - start)


def _compile(place: Path, name: str, entry: str, toolchain: Compiler, tool: Tool) -> str:
    """Compile the sources in a workplace; return the library's file name."""
    file, produced = f"{name}.cu", f"{name}.so"
    command = (*toolchain.command, file, "-Iinclude", "-I.", "-o", produced)
    step = Step(f"compiling {file}", command, produced)
    steps.run(place, name, entry, ((step,),), tool)
    steps.require_loadable(place / produced, name, step)
    return produced


def compiler(*, may_recall: bool = False) -> Compiler:
    """Find nvcc and its flags; ``may_recall``: else what the cache remembers of one, for its keys.

    Raises BuildError: no nvcc, and none that may be recalled.
    """
    path = _path()
    if path is None:
        if may_recall and (last := _recalled(remembered_as())):
            return last
        raise BuildError(
            f"no CUDA compiler: nvcc is not on PATH, in CUDA_HOME, in /usr/local/cuda or among the "
            f"installed wheels; {FIX}",
            code="build.nvcc",
        )
    flags = (*FLAGS, f"-arch={_target()}", *switches(), *_wheel_flags(path))
    return Compiler((path, *flags), _version(path, TOOL))


def switches() -> tuple[str, ...]:
    """What the environment asks of kernels that stay, as flags. Raises BuildError: unknown."""
    return (*trials(), *products())


def products() -> tuple[str, ...]:
    """How they multiply float32, as a flag; none is as always. Raises BuildError: it is unknown."""
    named = os.environ.get(PRODUCTS_VARIABLE, "") or PRODUCTS[0]
    if named not in PRODUCTS:
        raise BuildError(
            f"{PRODUCTS_VARIABLE} is {named!r}, expected one of {', '.join(PRODUCTS)}; correct or "
            f"unset it",
            code="build.nvcc",
        )
    number = PRODUCTS.index(named)
    return (f"-DCELLGEN_PRODUCTS={number}",) if number else ()


def trials() -> tuple[str, ...]:
    """The switches that are named to be tried, as flags. Raises BuildError: one is unknown."""
    named = [name for name in os.environ.get(TRY_VARIABLE, "").split(",") if name]
    if unknown := sorted(set(named).difference(TRIALS)):
        raise BuildError(
            f"{TRY_VARIABLE} names {', '.join(unknown)}, expected some of {', '.join(TRIALS)}; "
            f"correct or unset it",
            code="build.nvcc",
        )
    return tuple(f"-DCELLGEN_TRY_{name.upper()}=1" for name in TRIALS if name in named)


def _target() -> str:
    return os.environ.get(ARCHITECTURE_VARIABLE, "") or ARCHITECTURE


def remembered_as() -> str:
    """By what it is remembered: for another target, and with what is tried, it has other entries.

    Raises BuildError: what is to be tried is unknown.
    """
    return " ".join((remembered.NVCC, _target(), *switches()))


def _recalled(tool: str) -> Compiler | None:
    """What the cache remembers of a compiler."""
    match remembered.recall(tool):
        case {"command": [str(first), *rest], "version": str(version)}:
            return Compiler((first, *map(str, rest)), version)
    return None


def is_there() -> bool:
    """Whether there is an nvcc."""
    return next(candidates(), None) is not None


def _path() -> str | None:
    """The nvcc that is named, or the first that there is. Raises BuildError: it is not there."""
    named = os.environ.get(VARIABLE, "")
    return _named(VARIABLE, named, TOOL) if named else next(candidates(), None)


def oldest() -> int:
    """The oldest compute capability, ten times, that what is compiled runs on."""
    named = re.search(r"_(\d+)", os.environ.get(ARCHITECTURE_VARIABLE, ""))
    return max(OLDEST, int(named[1])) if named else OLDEST


def emulator() -> Compiler:
    """Find a C++ compiler for the emulation. Raises BuildError when there is none."""
    host = cxx()
    return Compiler((*host.command, *EMULATION_FLAGS, *switches()), host.version)


def cxx(*, may_recall: bool = False) -> Compiler:
    """Find a C++ compiler; ``may_recall``: else what the cache remembers of one, for its keys.

    Raises BuildError: there is none, it does not work, CELLGEN_CXX names one that is not there.
    """
    path = _cxx_path()
    if path is None:
        if may_recall and (last := _recalled(remembered.CXX)):
            return last
        raise BuildError(
            f"no C++ compiler: none of g++, c++, clang++ is on PATH; {HOST.fix}", code=HOST.code
        )
    return Compiler((path,), _version(path, HOST))


def has_cxx() -> bool:
    """Whether there is a C++ compiler. Raises BuildError: CELLGEN_CXX names none."""
    return _cxx_path() is not None


def _cxx_path() -> str | None:
    named = os.environ.get(CXX_VARIABLE, "")
    if named:
        return _named(CXX_VARIABLE, named, HOST)
    others = (os.environ.get("CXX", ""), "g++", "c++", "clang++")
    return next((p for p in others if p and shutil.which(p)), None)


def _named(variable: str, named: str, tool: Tool) -> str:
    path = shutil.which(named)
    if path is None:
        raise BuildError(
            f"{variable} names {tool.name} {named!r}, which cannot be found; correct {variable} or "
            f"unset it",
            code=tool.code,
        )
    return path


def candidates() -> Iterator[str]:
    """Where nvcc may be, the likeliest first."""
    on_path = shutil.which("nvcc")
    if on_path:
        yield on_path
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    for home in homes:
        path = Path(home) / "bin" / "nvcc"
        if home and path.is_file():
            yield str(path)
    for folder in wheel_folders(WHEEL_PLACES):
        if (folder / "nvcc").is_file():
            yield str(folder / "nvcc")


def _wheel_flags(path: str) -> tuple[str, ...]:
    """Wheels put the runtime library under lib, where nvcc does not look by itself."""
    folder = Path(path).resolve().parent.parent / "lib"
    return (f"-L{folder}",) if (folder / "libcudart_static.a").is_file() else ()


@lru_cache(maxsize=8)
def _version(path: str, tool: Tool) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{path} does not work: {error}; {tool.fix}", code=tool.code) from error
    return done.stdout.strip()


def _entry(sources: SourceFiles, interface: Interface, toolchain: Compiler, emulated: bool) -> str:
    key = cache.digest(
        [
            *sources.files,
            ("cdef", cuda_cdef(interface)),
            ("abi", str(ABI_VERSION)),
            ("command", shlex.join(toolchain.command)),
            ("version", toolchain.version),
        ]
    )
    return f"{sources.name}_{'emulated' if emulated else 'cuda'}-{key}"

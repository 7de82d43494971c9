"""Where the generated C is compiled for, with what, and how it is run there."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cellgen.runtime.build.sources import DRIVER_SOURCES
from cellgen.runtime.paths import generated_folder, include_folder

FOLDER = Path(__file__).parent
MEANING = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
"""Flags of ``cellgen build`` that say what arithmetic means."""
C11 = ("-x", "c", "-std=c11")
CPP17 = ("-x", "c++", "-std=c++17")
ROOT_OF_ARM = "/usr/aarch64-linux-gnu"
LIBRARIES = ("-lm", "-lpthread")
WINE = ("wine64", "wine", "/usr/lib/wine/wine64")
"""Where Debian's wine64 puts its loader, the last."""


OF_WINE = {
    "WINEDEBUG": "-all",
    "WINEPREFIX": os.environ.get("WINEPREFIX", f"{tempfile.gettempdir()}/cellgen-wine"),
}
"""No messages of what Wine lacks; its folder, which it makes at first, in half a minute."""


class ElsewhereError(Exception):
    """A program that does not compile, or does not run; what was said."""


@dataclass(frozen=True)
class Machine:
    """A compiler with its flags, how its programs run (None: they cannot), and what that needs."""

    name: str
    compiler: tuple[str, ...]
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] | None = ()
    linked: tuple[str, ...] = LIBRARIES
    suffix: str = ""
    like: Machine | None = None
    """Whose results its own are held to; None: those of the kernels."""

    @property
    def missing(self) -> str:
        """What is not installed, "" if all is."""
        words = (self.compiler[:1] or ("the wheel ziglang",)) + (self.runner or ())[:1]
        return ", ".join(word for word in words if shutil.which(word) is None)

    def build(self, name: str, work: Path, language: Sequence[str] = C11) -> Path:
        """Compile a generated cell with main.c and the driver for this machine.

        The driver that a folder holds is used again.

        Raises ElsewhereError.
        """
        folder, include = generated_folder() / name, include_folder()
        places = [f"-I{folder}" for folder in (folder, include)]
        call = [*self.compiler, "-O2", *MEANING, *self.flags, *language, *places]
        cell, main = work / f"{name}.o", work / f"{name}_main.o"
        drivers = {work / f"{stem}.o": include / f"{stem}.c" for stem in DRIVER_SOURCES}
        named = f"-DCELL={name}_cellgen"
        sources = {cell: folder / f"{name}.c", main: FOLDER / "main.c"}
        sources |= {made: source for made, source in drivers.items() if not made.exists()}
        for made, source in sources.items():
            ran([*call, named, "-c", str(source), "-o", str(made)])
        target = work / f"{name}{self.suffix}"
        objects = [str(made) for made in (main, cell, *drivers)]
        ran([*self.compiler, *self.flags, *objects, "-o", str(target), *self.linked])
        return target

    def run(self, program: Path, calls: bytes, *words: str) -> bytes:
        """Make calls there; return what ``main.c`` writes. Raises ElsewhereError."""
        given, found = program.with_suffix(".calls"), program.with_suffix(".results")
        given.write_bytes(calls)
        if self.runner is None:
            raise ElsewhereError(f"{self.name}: programs cannot run here")
        ran([*self.runner, str(program), str(given), str(found), *words])
        return found.read_bytes()


def ran(command: Sequence[str], *, timeout: float = 600) -> str:
    """Run a command; return what it says. Raises ElsewhereError."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            errors="replace",
            env={**os.environ, **OF_WINE},
        )
    except subprocess.TimeoutExpired:
        said = f"no end after {timeout:.0f} s: {shlex.join(command)[:1_000]}"
        raise ElsewhereError(said) from None
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"[:3_000]
        raise ElsewhereError(f"exit {done.returncode}: {shlex.join(command)[:1_000]}\n{said}")
    return done.stderr


def wine() -> str:
    """The program that runs those of Windows; a name that is nowhere if there is none."""
    return next(filter(None, map(shutil.which, WINE)), WINE[0])


def zig() -> tuple[str, ...]:
    """The command of zig's C compiler: ``ZIG``, zig on PATH, or the wheel ziglang; () if none."""
    named = shlex.split(os.environ.get("ZIG", ""))
    if named:
        return (*named, "cc")
    if shutil.which("zig"):
        return ("zig", "cc")
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    return ()


def native() -> tuple[Machine, ...]:
    """Compilers for this machine, with its own instructions."""
    own = ("-march=native",) if platform.machine() == "x86_64" else ("-mcpu=native",)
    return (
        Machine("gcc", ("gcc",), own),
        Machine("clang", ("clang",), own),
        Machine("zig", zig(), own),
    )


def elsewhere() -> tuple[Machine, ...]:
    """Machines that are emulated here, then those that programs are only linked for."""
    node = ("node", "--no-warnings", str(FOLDER / "wasi.mjs"))
    wasm = ("-target", "wasm32-wasi", "-msimd128")
    without_fma = Machine("x86-64 without fma", ("gcc",), ("-march=x86-64",))
    return (
        Machine(*("arm64", ("aarch64-linux-gnu-gcc",)), runner=("qemu-aarch64", "-L", ROOT_OF_ARM)),
        Machine("wasm", zig(), wasm, node, linked=(), suffix=".wasm", like=without_fma),
        Machine("macos-arm64", zig(), ("-target", "aarch64-macos"), None, linked=()),
        Machine(
            *("windows-x86-64", zig(), ("-target", "x86_64-windows-gnu", "-mcpu=x86_64_v3")),
            runner=(wine(),),
            linked=("-lpthread",),
            suffix=".exe",
        ),
    )

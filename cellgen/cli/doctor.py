"""Look at what this machine has for building kernels, and say how to get what is missing.

Input: the environment. Output: ``Finding`` records. Writes nothing but a trial file in the cache.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import cellgen
from cellgen.errors import CellgenError
from cellgen.runtime import paths
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build import compiler as build
from cellgen.runtime.device import cublas, nvcc

TRIAL = "#include <math.h>\n#include <stdint.h>\ndouble trial(double x) { return tanh(x); }\n"
TRIAL_SECONDS = 60.0
EXTRAS = (
    ("matplotlib", "plot", "plots of the examples"),
    ("sklearn", "examples", "the data of examples/digits.py"),
    ("ziglang", "zig", "a C compiler as a wheel, where the system has none"),
)
DEPENDENCIES = ("numpy", "sympy", "jinja2", "cffi", "platformdirs", "typer", "rich")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``ok`` or not, ``required`` or optional, and what to do about it."""

    name: str
    ok: bool
    text: str
    fix: str = ""
    required: bool = True


def examine() -> tuple[Finding, ...]:
    """Look at everything; nothing raises, what fails is a finding."""
    findings = [_python(), *_installation(), *_compiler(), _header(), *_cache(), *_cuda()]
    return (*findings, *(_extra(*extra) for extra in EXTRAS))


def _guarded(name: str, look: Callable[[], str]) -> Finding:
    """A finding from a function that returns what it found or raises a CellgenError."""
    try:
        return Finding(name, True, look())
    except CellgenError as error:
        text, _, fix = Exception.__str__(error).partition("; ")
        return Finding(name, False, text, fix)


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    supported = sys.platform in ("linux", "darwin")
    return Finding("python", supported, text, "" if supported else "use Linux or macOS")


def _installation() -> list[Finding]:
    kind = "checkout" if paths.in_checkout() else "installed package"
    versions = ", ".join(f"{name} {_version(name)}" for name in DEPENDENCIES)
    return [
        Finding("cellgen", True, f"{cellgen.__version__}, {kind} in {paths.PACKAGE.parent}"),
        Finding("libraries", True, versions),
        _guarded("templates", lambda: str(paths.templates_folder())),
        _guarded("generated cells", _generated),
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(missing)"


def _generated() -> str:
    folder = paths.generated_folder()
    count = len(list(folder.glob("*/__init__.py")))
    return f"{count} in {folder}, headers in {paths.include_folder()}"


def _compiler() -> list[Finding]:
    first = _guarded("C compiler", lambda: str(build.compiler()))
    if not first.ok:
        return [first]
    info = build.compiler()
    return [
        Finding("C compiler", True, f"{info.version}, {info.path}"),
        Finding("compiler flags", True, shlex.join(info.flags)),
        Finding("instruction set", True, ", ".join(build.instruction_set(info)) or "baseline"),
        _trial(info),
    ]


def _trial(info: build.CompilerInfo) -> Finding:
    """Compile and link three lines: a compiler without the C library's headers is common."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "trial.c"), Path(folder, "trial.so")
        source.write_text(TRIAL, encoding="utf-8")
        link = build.link_flags()
        command = [*info.command, *info.flags, *link, str(source), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
            )
            problem = "" if done.returncode == 0 else done.stderr.strip() or "it failed"
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    if not problem:
        return Finding("trial compilation", True, "compiles and links")
    fix = "install the C library's headers: Debian and Ubuntu `apt install libc6-dev`, or "
    return Finding("trial compilation", False, problem.splitlines()[0], fix + build.FIX_COMPILER)


def _header() -> Finding:
    path = build.python_header()
    if path is not None:
        return Finding("Python.h", True, str(path))
    return Finding("Python.h", False, "not found", steps.FIX_PYTHON_HEADER)


def _cache() -> list[Finding]:
    def usable() -> str:
        with cache.workplace():
            pass
        return "can be written, private to you"

    found = cache.info()
    text = f"{found.path}, {found.entries} kernels, {size(found.bytes)}"
    return [Finding("cache folder", True, text), _guarded("cache access", usable)]


def _cuda() -> list[Finding]:
    """nvcc and cuBLAS, which only CUDA kernels need."""
    compiler = _guarded("nvcc", _nvcc)
    found = cublas.find()
    text = found or f"not found: {cublas.FALLBACK}"
    return [
        replace(compiler, required=False),
        Finding("cuBLAS", bool(found), text, "" if found else cublas.FIX, required=False),
    ]


def _nvcc() -> str:
    found = nvcc.compiler()
    return f"{found.command[0]}, {found.version.splitlines()[-1]}"


def _extra(module: str, extra: str, purpose: str) -> Finding:
    present = importlib.util.find_spec(module) is not None
    fix = "" if present else f"pip install 'cellgen[{extra}]'"
    text = purpose if present else f"not installed: {purpose}"
    return Finding(f"[{extra}] {module}", present, text, fix, required=False)


def size(count: int) -> str:
    """Write a number of bytes as people do."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"

"""Look at what this machine has for building kernels, and say how to get what is missing.

Input: the environment. Output: ``Finding`` records. Writes nothing but a trial file in the cache.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import cellgen
from cellgen.errors import ArgumentError, BuildError, CellgenError
from cellgen.language.cell.packaged import cell_of
from cellgen.runtime import paths, system
from cellgen.runtime.backend import BACKENDS, DEFAULT, backend
from cellgen.runtime.build import cache
from cellgen.runtime.call import door
from cellgen.runtime.plugins import CELLS, DIALECTS, TARGETS, Plugin, plugins, unreadable
from cellgen.targets import target_of
from cellgen.weights import dialects

EXTRAS = (
    ("jax", "jax", "functions of JAX"),
    ("keras", "keras", "layers of Keras"),
    ("onnx", "onnx", "models of ONNX, written and read"),
    ("safetensors", "weights", "files of weights of other libraries"),
    ("matplotlib", "plot", "plots of the examples"),
    ("sklearn", "examples", "the data of examples/digits.py"),
    ("ziglang", "zig", "a C compiler as a wheel, where the system has none"),
)
DEPENDENCIES = ("numpy", "sympy", "jinja2", "cffi", "latex2mathml", "platformdirs", "typer", "rich")


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
    findings = [_python(), *_installation(), *_toolchains(), _calls(), *_cache()]
    return (*findings, *_plugins(), *(_extra(*extra) for extra in EXTRAS))


def _guarded(name: str, look: Callable[[], str]) -> Finding:
    """A finding from a function that returns what it found or raises a CellgenError."""
    try:
        return Finding(name, True, look())
    except CellgenError as error:
        text, _, fix = Exception.__str__(error).partition("; ")
        return Finding(name, False, text, fix)


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    known = system.SYSTEMS.get(sys.platform)
    if known is None:
        expected = ", ".join(system.SYSTEMS)
        return Finding("python", False, f"{text}, on {sys.platform}", f"use one of {expected}")
    return Finding("python", True, f"{text}; {known}" if known else text)


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


def _toolchains() -> list[Finding]:
    """What each backend needs; only that of the default is required."""
    return [
        replace(_guarded(need.name, need.look), required=name == DEFAULT)
        for name in BACKENDS
        for need in backend(name).toolchain()
    ]


def _calls() -> Finding:
    """Who makes calls: Python, where C cannot."""
    return replace(_guarded("calls", door.described), required=False)


def _cache() -> list[Finding]:
    def usable() -> str:
        with cache.workplace():
            pass
        return "can be written, private to you"

    kernels = cache.info()
    text = f"{kernels.path}, {kernels.entries} kernels, {size(kernels.bytes)}"
    return [Finding("cache folder", True, text), _guarded("cache access", usable)]


def _plugins() -> list[Finding]:
    """What packages bring, each imported; nothing of it is required."""
    rows = [plugin for group in LOOKS for plugin in plugins(group)]
    looked_at = [
        replace(_guarded(plugin.selector, partial(LOOKS[plugin.group], plugin)), required=False)
        for plugin in rows
    ]
    unread = [
        Finding(
            broken.package,
            False,
            f"its entry points cannot be read: {broken.reason}",
            f"update it, or `pip uninstall {broken.package}`",
            required=False,
        )
        for broken in unreadable()
    ]
    return [*looked_at, *unread]


def _cell(plugin: Plugin) -> str:
    return f"{plugin.described}: {cell_of(plugin).definition.origin}"


def _target(plugin: Plugin) -> str:
    """A target of a package, with its tools."""
    if plugin.name in BACKENDS:
        raise plugin.fault(
            f"{plugin.name} is a target of cellgen's own, which is taken", BuildError
        )
    target_of(plugin.name)
    needs = "".join(f", {need.name} {need.look()}" for need in backend(plugin.name).toolchain())
    return f"{plugin.described}{needs}"


def _dialect(plugin: Plugin) -> str:
    if plugin.name in dialects.ROWS:
        raise plugin.fault(
            f"{plugin.name} is a dialect of cellgen's own, which is taken", ArgumentError
        )
    dialects.dialect(plugin.name)
    return plugin.described


LOOKS: Mapping[str, Callable[[Plugin], str]] = {CELLS: _cell, TARGETS: _target, DIALECTS: _dialect}
"""What is looked at of each kind that packages bring."""


def _extra(module: str, extra: str, purpose: str) -> Finding:
    present = importlib.util.find_spec(module) is not None
    fix = "" if present else f"pip install 'cellgen-compiler[{extra}]'"
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

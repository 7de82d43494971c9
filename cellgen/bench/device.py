"""Describe the machine and the versions that figures belong to."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import cellgen
from cellgen.runtime.build import compiler as build

Description = dict[str, str | int | list[str] | dict[str, str]]


def describe(packages: Iterable[str]) -> Description:
    """Look at processor, compiler, and installed versions. Raises BuildError: no compiler."""
    compiler = build.compiler()
    names = dict.fromkeys(("numpy", *packages))
    versions = {name: version for name in names if (version := _version(name))}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "processors": os.cpu_count() or 1,
        "instruction_set": list(build.instruction_set(compiler)),
        "compiler": compiler.version,
        "flags": list(compiler.flags),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cellgen": cellgen.__version__,
        "versions": versions,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """The model's name; on Linux /proc has it, elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

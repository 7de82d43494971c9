"""Packages that tests install: by pip, or by what pip leaves of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXTENDING = Path(__file__).parents[1] / "examples" / "extending"
"""A package that brings a cell, a target and a dialect."""


def metadata(folder: Path, name: str, entries: str, version: str = "1.0") -> None:
    """What pip leaves of an installed package: a name and its entry points."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (place / "entry_points.txt").write_text(entries)


def pip_install(folder: Path, package: Path) -> None:
    """Build a package by the backend that it names, and install it into a folder of its own."""
    options = ["-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

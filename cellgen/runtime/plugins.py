"""What other packages bring: cells, targets and dialects, found by their entry points.

Input: the metadata of what is installed. Output: ``Plugin`` records, and the objects that they
name, imported when they are asked for. Listing imports nothing. A package that cannot be read or
imported is one message that names it, and holds up nothing else.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from cellgen.errors import CellgenError
from cellgen.runtime.imports import whole_imports

CELLS, TARGETS, DIALECTS = "cellgen.cells", "cellgen.targets", "cellgen.dialects"
GROUPS = {CELLS: "cell", TARGETS: "target", DIALECTS: "dialect"}
"""Groups of entry points, and what a message calls one of each."""


@dataclass(frozen=True)
class Plugin:
    """One thing that a package brings: its name there, and where it stands."""

    group: str
    name: str
    package: str
    version: str
    value: str
    """``module:object``, or a module alone."""

    @property
    def selector(self) -> str:
        """How commands and ``load`` name it: ``package:name``."""
        return f"{self.package}:{self.name}"

    @property
    def described(self) -> str:
        """How a message names it."""
        return f"{GROUPS[self.group]} {self.name!r} of the package {self.package} {self.version}"

    def load(self, error: type[CellgenError]) -> object:
        """Import it. Raises ``error``, which names the package and what Python said."""
        try:
            with whole_imports():
                return EntryPoint(self.name, self.value, self.group).load()
        except (Exception, SystemExit) as fault:
            reason = f"{type(fault).__name__}: {str(fault).strip() or 'no message'}"
            raise self.fault(f"{self.value} cannot be imported: {reason}", error) from fault

    def fault(self, what: str, error: type[CellgenError]) -> CellgenError:
        """An error about it: what is wrong, and whose matter it is."""
        return error(
            f"{self.described}: {what}; it is a fault of that package: update it, or remove it "
            f"with `pip uninstall {self.package}`",
            code="package",
        )


@dataclass(frozen=True)
class Unreadable:
    """A package whose list of entry points cannot be read, and why."""

    package: str
    reason: str


def plugins(group: str) -> tuple[Plugin, ...]:
    """What packages bring of a group, by package and name; each name of a package once."""
    rows = {(row.package, row.name): row for row in reversed(list(_rows(group)))}
    return tuple(rows[key] for key in sorted(rows))


def of_package(group: str, package: str) -> tuple[Plugin, ...]:
    """What one package brings of a group; ``my_cells`` and ``My-Cells`` are one package."""
    wanted = normalised(package)
    return tuple(row for row in plugins(group) if normalised(row.package) == wanted)


def named(group: str, name: str) -> Plugin | None:
    """What is brought under a name of its own; None where no package brings it.

    Raises:
        CellgenError: two packages bring it.
    """
    by_name: dict[str, list[Plugin]] = {}
    for row in plugins(group):
        by_name.setdefault(row.name, []).append(row)
    rows = by_name.get(name, [])
    if len(rows) > 1:
        packages = " and ".join(row.package for row in rows)
        raise CellgenError(
            f"{GROUPS[group]} {name!r} is brought by the packages {packages}, expected one; remove "
            f"one of them with pip uninstall",
            code="package",
        )
    return rows[0] if rows else None


def unreadable() -> tuple[Unreadable, ...]:
    """Packages that mean to bring something and whose list of entry points cannot be read."""
    broken = []
    for package in importlib.metadata.distributions():
        try:
            text = package.read_text("entry_points.txt") or ""
        except (OSError, ValueError):
            continue  # nothing says that it means cellgen
        if not any(f"[{group}]" in text for group in GROUPS):
            continue
        try:
            _ = [package.name, *package.entry_points]
        except Exception as error:
            broken.append(Unreadable(_name_of(package), f"{type(error).__name__}: {error}"))
    return tuple(broken)


def normalised(package: str) -> str:
    """A package's name as indexes compare it: ``My_Cells`` is ``my-cells``."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _rows(group: str) -> Iterator[Plugin]:
    for point in _points(group):
        package = point.dist
        if package is not None:
            yield Plugin(group, point.name, _name_of(package), _version_of(package), point.value)


def _points(group: str) -> list[EntryPoint]:
    """Entry points of a group; one package after the other where the list of one is damaged."""
    try:
        return list(importlib.metadata.entry_points(group=group))
    except Exception:  # whatever a damaged list makes of Python's parser
        points = []
        for package in importlib.metadata.distributions():
            try:
                points += [point for point in package.entry_points if point.group == group]
            except Exception:
                continue
        return points


def _name_of(package: importlib.metadata.Distribution) -> str:
    try:
        return package.metadata["Name"] or str(package)
    except Exception:
        return "a package without a name"


def _version_of(package: importlib.metadata.Distribution) -> str:
    try:
        return package.version or "(no version)"
    except Exception:
        return "(no version)"

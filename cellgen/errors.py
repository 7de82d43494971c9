"""Every error that cellgen raises on purpose: one base class, stable codes, one message.

A message names the cell, the value, what was found, what was expected and one thing to do.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


def _require_own_package(package: object) -> None:
    """Refuse to run within the package of another project that is named cellgen as well.

    Its files and these lie in one folder where both were installed, and one ``__init__.py`` is
    left. Raises ImportError.
    """
    if not hasattr(package, "EXPORTS"):
        folder = Path(str(getattr(package, "__file__", ""))).parent
        raise ImportError(
            f"{folder} holds files of another project, the cellgen of the package index, among "
            f"those of cellgen-compiler: pip uninstall cellgen cellgen-compiler, then pip install "
            f"cellgen-compiler"
        )


_require_own_package(sys.modules["cellgen"])


class CellgenError(Exception):
    """Base of all cellgen errors; ``code`` is stable across releases and safe to match on."""

    code: str = "cellgen"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class DeclarationError(CellgenError):
    """A cell's class body is wrong; the message points at the author's own line."""

    code = "declaration"


class DerivationError(CellgenError):
    """A program cannot be derived, simplified, verified or scheduled."""

    code = "derivation"


class BuildError(CellgenError):
    """Generated sources could not be written, compiled, published or loaded."""

    code = "build"


class ArgumentError(CellgenError, ValueError):
    """A kernel was called with an argument whose name, shape, dtype or memory is wrong."""

    code = "argument"


class DeviceError(CellgenError):
    """A device that is missing, too old, out of memory, or refuses a call."""

    code = "device"


class UsageError(CellgenError):
    """A command or function was asked for something that does not exist, such as a cell's name."""

    code = "usage"


@dataclass(frozen=True)
class Failure:
    """One of several cells, or files of cells, with which a command could do nothing, and why."""

    name: str
    error: CellgenError

    def as_dict(self) -> dict[str, object]:
        """Plain data, for ``--json``."""
        return {"cell": self.name, "ok": False, "error": str(self.error)}

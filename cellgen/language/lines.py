"""Where the author wrote something: the file and line that every message points at.

Input: the call stack. Output: ``SourceLine``, and errors that carry one.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from cellgen.errors import DeclarationError

P = ParamSpec("P")
R = TypeVar("R")

_LANGUAGE = {
    __name__,
    "cellgen.language.misuse",
    "cellgen.language.value",
    "types",
}
"""Modules whose frames, with SymPy's, stand between the author's line and us."""
_FOLDERS = (
    "sympy.",
    "cellgen.language.ops.",
    "cellgen.language.cell.",
    "cellgen.program.transforms.",
)


@dataclass(frozen=True)
class SourceLine:
    """A line of the author's file."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        code = self.text
        return f'File "{self.file}", line {self.number}' + (f"\n    {code}" if code else "")


def caller() -> tuple[SourceLine, str]:
    """The author's line on the stack, and the class in whose body it stands (or "")."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_language(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    line = SourceLine(frame.f_code.co_filename, frame.f_lineno)
    return line, getattr(frame.f_locals, "class_name", "")


def _is_language(module: str) -> bool:
    return module in _LANGUAGE or f"{module}.".startswith(_FOLDERS)


def located(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of the language name the author's line and cell in its errors."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except DeclarationError as error:
            message = Exception.__str__(error)
            if "\n  File " in message:
                raise
            line, cell = caller()
            prefix = f"{cell}: " if cell else ""
            raise type(error)(f"{prefix}{message}\n  {line}", code=error.code) from None

    return call

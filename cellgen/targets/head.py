"""What every generated file says first."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from cellgen.language.cell import Definition
from cellgen.runtime.names import spelled


@dataclass(frozen=True)
class Head:
    """Name, documentation, origin and equations of a cell, safe in comments of C and docstrings."""

    name: str
    title: str
    doc: list[str]
    origin: str
    digest: str
    equations: list[str]

    @staticmethod
    def of(definition: Definition, digest: str) -> Head:
        """The head of a cell's files."""
        doc = safe(definition.doc) or f"The cell {definition.class_name}."
        return Head(
            name=definition.name,
            title=safe(doc.split(" (")[0].split(". ")[0].rstrip(".,;:") + "."),
            doc=textwrap.wrap(doc, 96),
            origin=safe(definition.origin).replace(" ", "_"),
            digest=digest,
            equations=[in_ascii(safe(str(equation))) for equation in definition.equations],
        )


_UNSAFE = (("\\", "/"), ("*/", "* /"), ("/*", "/ *"), ('"""', "'''"), ("??", "? ?"))
"""What ends a comment, a docstring or a line, last what another replacement makes."""


def safe(text: str) -> str:
    r"""Make one line of an author's text that ends no comment and no docstring.

    Backslashes, which join lines before comments are looked for, come first: ``*\`` before a slash
    is ``*/``. What no screen shows (NUL, halves of surrogates, marks that turn text around) goes.
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    for unsafe, other in _UNSAFE:
        while unsafe in text:
            text = text.replace(unsafe, other)
    return text


def in_ascii(equation: str) -> str:
    """Spell the names in an equation as C does its arguments."""
    return re.sub(r"[^\W\d]\w*", lambda word: spelled(word[0]) or word[0], equation)

"""How values show themselves in a notebook: as HTML that is made when it is asked for.

``cellgen.report.notebook`` makes it, and is imported then: a kernel that is loaded and called
imports nothing for it.
"""

from __future__ import annotations

import importlib
from html import escape

from cellgen.errors import CellgenError
from cellgen.runtime.imports import whole_imports

MAKER = "cellgen.report.notebook"
"""The module whose ``html`` knows every kind of value."""


def html_of(value: object) -> str:
    """Make the HTML of a value; of one that has none, such as an unfinished cell, its text."""
    with whole_imports():
        maker = importlib.import_module(MAKER)
    try:
        return str(maker.html(value))
    except CellgenError:
        return f"<pre>{escape(repr(value))}</pre>"


def latex_of(value: object) -> str | None:
    """Make the LaTeX of a value; None for one that has none."""
    with whole_imports():
        maker = importlib.import_module(MAKER)
    try:
        return str(maker.latex(value))
    except CellgenError:
        return None


class ShownInNotebooks:
    """A value that notebooks show as HTML."""

    def _repr_html_(self) -> str:
        return html_of(self)

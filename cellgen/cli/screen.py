"""How wide the output is, and how it marks words: what needs no library of tables.

Input: stdout and stderr as they are. Output: columns, and words in bold where a terminal shows it.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

PIPE_WIDTH = 200
"""Columns of tables where stdout is no terminal: wide enough that nothing is cut."""

LEAST_WIDTH = 20
"""Columns that are written for, however narrow a terminal says that it is."""

BOLD, BOLD_RED, GREEN, YELLOW = "1", "1;31", "32", "33"


def columns() -> int | None:
    """Columns of the terminal that stdout is; None where it is none."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, LEAST_WIDTH)


def marked(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, where the stream is a terminal that shows styles; stdout if left out."""
    out = sys.stdout if stream is None else stream
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not out.isatty()
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"

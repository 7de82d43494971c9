"""The order of the pages: that of the index, ``docs/README.md``; others follow by name.

A page that stands in a folder of the documents is in the navigation, whoever wrote it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

Tree: TypeAlias = list[dict[str, "str | Tree"] | str]

INDEX = "README.md"
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "gallery": "Gallery",
    "lab": "Lab notes",
}


def tree(documents: Path) -> Tree:
    """Sections with their pages, as MkDocs wants them."""
    named = re.findall(r"\]\(([^)#:]+\.md)\)", (documents / INDEX).read_text(encoding="utf-8"))
    found: Tree = [{"cellgen": INDEX}]
    for folder, title in SECTIONS.items():
        paths = documents.glob(f"{folder}/*.md")
        pages = sorted(path.relative_to(documents).as_posix() for path in paths)
        rank = {page: named.index(page) if page in named else len(named) for page in pages}
        ordered = sorted(pages, key=lambda page: (not page.endswith(INDEX), rank[page], page))
        if ordered:
            found.append({title: [_entry(folder, page) for page in ordered]})
    return found


def _entry(folder: str, page: str) -> dict[str, str | Tree] | str:
    """A page; one of the gallery by the name of its cell, since cells of a family share a title."""
    if folder != "gallery" or page.endswith(INDEX):
        return page
    return {page.rpartition("/")[2].removesuffix(".md"): page}

"""The order of the pages: that of the index, ``docs/README.md``; others follow by name.

The home page is that of ``home``, the index a page behind it.

Every page of a folder is in the navigation, written or made by the build.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

Tree: TypeAlias = list[dict[str, "str | Tree"] | str]

INDEX = "README.md"
TAGS = "tags.md"
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "gallery": "Gallery",
    "lab": "Lab notes",
}


def tree(documents: Path, pages: Collection[str]) -> Tree:
    """Sections with their pages, as MkDocs wants them."""
    named = re.findall(r"\]\(([^)#:]+\.md)\)", (documents / INDEX).read_text(encoding="utf-8"))
    found: Tree = [{"cellgen": INDEX}]
    for folder, title in SECTIONS.items():
        own = [page for page in pages if page.rpartition("/")[0] == folder]
        rank = {page: named.index(page) if page in named else len(named) for page in own}
        ordered = sorted(own, key=lambda page: (_lead(page), rank[page], page))
        if ordered:
            found.append({title: [_entry(folder, page) for page in ordered]})
    own = [page for page in pages if "/" not in page and page != INDEX]
    return [*found, {"About": [*own]}] if own else found


def _lead(page: str) -> int:
    """The page of a section comes first, then that of its tags."""
    return next((n for n, name in enumerate((INDEX, TAGS)) if page.endswith(name)), 2)


def _entry(folder: str, page: str) -> dict[str, str | Tree] | str:
    """A page; one of the gallery by the name of its cell, since cells of a family share a title."""
    if folder != "gallery" or _lead(page) < 2:
        return page
    return {page.rpartition("/")[2].removesuffix(".md"): page}

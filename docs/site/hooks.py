"""What the build of the site adds to the pages: order, generated parts, sources, the gallery.

MkDocs calls these functions by name (``mkdocs.yml``, ``hooks``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File  # noqa: E402

from docs.site import explorer, home, navigation, parts  # noqa: E402

LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(#[^)\s]*)?(?=\))")
SHOWN = {".py": "python", ".c": "c", ".h": "c", ".json": "json", ".toml": "toml", ".yml": "yaml"}
SOURCES = "source"
CELLS = "reference/cells.md"
TAGS = {"how-to/wheels.md": ["no compiler", "without a compiler"]}
"""What many people ask, which the search then answers with a page before those of cells."""
NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
"""A cell in the table of all, which leads to its page."""


def on_files(files: Any, config: Any) -> Any:
    """Add the gallery, what the first page leads to, the sources that pages link to; order all.

    Pages of a gallery that stand in the checkout are left out: the build makes them.
    """
    for file in [file for file in files if file.src_uri.startswith("gallery/")]:
        files.remove(file)
    for name, text in (explorer.files() | home.files()).items():
        files.append(File.generated(config, name, content=text))
    for path in sorted(_linked(files)):
        name = f"{SOURCES}/{path.relative_to(ROOT).as_posix()}.md"
        files.append(File.generated(config, name, content=_shown(path)))
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = navigation.tree(ROOT / "docs", pages)
    return files


def _linked(files: Any) -> set[Path]:
    """Files of the repository, outside of the documents, that pages link to."""
    linked = set()
    for file in files.documentation_pages():
        targets = LINK.findall(file.content_string)
        page = ROOT / "docs" / file.src_uri
        linked |= {path for target, _ in targets if (path := _outside(page, target))}
    return linked


def _outside(page: Path, target: str) -> Path | None:
    """The file that a link leads to, if it lies in the repository and is no document."""
    path = (page.parent / target).resolve()
    inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs")
    return path if inside and path.is_file() else None


def _shown(path: Path) -> str:
    """A page that holds a source."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{name}`\n\n"
    return f"{head}````{SHOWN.get(path.suffix, 'text')}\n{text}````\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in what is generated, and lead links to sources to the pages that show them."""
    is_first = page.file.src_uri == navigation.INDEX
    markdown = parts.filled(home.page() if is_first else markdown)
    if is_first:
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri in TAGS:
        page.meta["tags"] = TAGS[page.file.src_uri]
    if page.file.src_uri == explorer.PAGE:
        page.meta.update(explorer.META)
    if page.file.src_uri.startswith(SOURCES):
        return markdown
    if page.file.src_uri == CELLS:
        markdown = NAME.sub(r"| [`\1`](../gallery/\1.md) |", markdown)
    place = ROOT / "docs" / page.file.src_uri

    def led(found: re.Match[str]) -> str:
        path = _outside(place, found[1])
        if path is None:
            return found[0]
        up = "../" * (page.file.src_uri.count("/"))
        return f"{up}{SOURCES}/{path.relative_to(ROOT).as_posix()}.md{found[2] or ''}"

    return LINK.sub(led, markdown)

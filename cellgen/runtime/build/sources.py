"""The text of everything that one cell is compiled from.

Input: a generated folder, or texts. Output: ``SourceFiles``: these, and each header and source of
the runtime that they include.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.build import cache

DRIVER = "cellgen_driver"
"""The time driver: the stem of its header."""
ENGINE = f"{DRIVER}_engine"
DRIVER_SOURCES = (f"{DRIVER}_f32", f"{DRIVER}_f64", ENGINE)
"""The stems of its sources: one for each precision, and calls from arrays as they are."""
LINKED_WITH = {f"{DRIVER}.h": tuple(f"{stem}.c" for stem in DRIVER_SOURCES)}
"""Sources that a cell is linked with where it includes a header."""
PLAN = "_plan.inc.h"
"""How the file ends that a generated cell's C includes beside its header: tables."""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@lru_cache(maxsize=256)
def included(text: str) -> tuple[str, ...]:
    """Names of what a text includes; a text of the driver is read with every cell."""
    return tuple(INCLUDE.findall(text))


@dataclass(frozen=True)
class SourceFiles:
    """The text of everything that one cell is compiled from: (relative path, text), sorted.

    ``<name>.c`` and ``<name>.h`` stand at the top, runtime headers under ``include/``. Texts, not
    paths: what is compiled is what the key was made of, even if a file changes meanwhile.
    """

    name: str
    files: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Tell these texts from others."""
        return cache.digest((f"file {name}", text) for name, text in self.files)

    def driver(self) -> SourceFiles | None:
        """The driver among them and what it includes; None where there is none."""
        texts = dict(self.files)
        todo = [f"include/{stem}.c" for stem in DRIVER_SOURCES]
        if not texts.keys() >= set(todo):
            return None
        reached = set(todo)
        while todo:
            names = {f"include/{name}" for name in included(texts[todo.pop()])}
            new = (names & texts.keys()) - reached
            reached |= new
            todo += new
        return SourceFiles(DRIVER, tuple((name, texts[name]) for name in sorted(reached)))

    @classmethod
    def of_driver(cls, include: Path) -> SourceFiles:
        """Read the driver and what it includes, as ``driver`` gives it for any cell.

        Raises BuildError when a file cannot be read.
        """
        texts = {f"include/{stem}.c": _text(include / f"{stem}.c") for stem in DRIVER_SOURCES}
        return cls.gather(DRIVER, texts, None, include)

    @classmethod
    def read(cls, folder: Path, name: str, include: Path | None = None) -> SourceFiles:
        """Read a generated cell; ``include`` is ``folder/../include`` unless given.

        Raises BuildError when the cell's files are missing.
        """
        wanted, source, plan = [f"{name}.c", f"{name}.h"], folder / f"{name}.c", f"{name}{PLAN}"
        if source.is_file() and plan in included(_text(source)):
            wanted.append(plan)
        missing = [file for file in wanted if not (folder / file).is_file()]
        if missing:
            raise BuildError(
                f"{name}: {folder} has no {' and no '.join(missing)}; write the sources of the "
                f"cell with `cellgen build {name}`, or name the folder that holds them"
            )
        texts = {file: _text(folder / file) for file in wanted}
        return cls.gather(name, texts, folder, include or folder.parent / "include")

    @classmethod
    def gather(
        cls, name: str, texts: Mapping[str, str], folder: Path | None, include: Path
    ) -> SourceFiles:
        """Add to the texts of a cell each header that they include, directly or not.

        Headers are looked up in ``folder``, then in ``include``; others are the system's.
        """
        files, known = dict(texts), set[str]()
        places = [(at, prefix, _names(at)) for at, prefix in ((folder, ""), (include, "include/"))]
        todo = list(files)
        while todo:
            new = [name for name in included(files[todo.pop()]) if name not in known]
            known.update(new)
            for header in new:
                for place, prefix, names in places:
                    if place is None or header not in names:
                        continue
                    for file in (header, *LINKED_WITH.get(header, ())):
                        if prefix + file not in files:
                            files[prefix + file] = _text(place / file)
                            todo.append(prefix + file)
                    break
        return cls(name, tuple(sorted(files.items())))


def _names(folder: Path | None) -> Set[str]:
    """Files of a folder; none where there is no such folder."""
    try:
        return set() if folder is None else {e.name for e in os.scandir(folder) if e.is_file()}
    except OSError:
        return set()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"cannot read {path}: {error}") from error

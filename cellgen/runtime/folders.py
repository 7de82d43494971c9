"""Read a generated folder without importing it, which would build its C.

Input: ``generated/<cell>``. Output: its ``Interface`` and ``SourceFiles`` of one target. Of some
texts the folder of cells holds digests alone, a line each in ``<target>.sha256`` as ``sha256sum``
writes it: whoever needs such a text generates it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.build import cache
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.interface_file import FILE, interface_of

LISTED = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<cell>\w+)/(?P<file>[\w.]+)")


@dataclass(frozen=True)
class TextDigest:
    """A text that a folder of cells holds by its digest.

    The name of its file, and its SHA-256 in hexadecimal digits.
    """

    file: str
    digest: str

    @staticmethod
    def of(file: str, text: str) -> TextDigest:
        """The digest of a text."""
        return TextDigest(file, hashlib.sha256(text.encode()).hexdigest())

    @property
    def _key(self) -> str:
        return f"{self.file}-{self.digest[: cache.KEY_DIGITS]}"

    def recall(self) -> str | None:
        """The text, where the cache has it."""
        text = (cache.recall(self._key) or {}).get("text")
        return text if isinstance(text, str) and TextDigest.of(self.file, text) == self else None

    def remember(self, text: str) -> None:
        """Keep the text in the cache, for ``recall``."""
        cache.remember(self._key, {"text": text})


def digest_file(folder: Path, target: str) -> Path:
    """The list of a folder of cells: texts of a target that are held by their digests."""
    return folder / f"{target}.sha256"


def read_listed(folder: Path, target: str) -> dict[str, TextDigest]:
    """The texts of a target that a folder of cells holds by their digests, by cell.

    Raises BuildError for a line that is none of ``sha256sum``.
    """
    file = digest_file(folder, target)
    listed = {}
    for number, line in enumerate(_lines(file), 1):
        row = LISTED.fullmatch(line)
        if row is None:
            raise BuildError(
                f"{file}, line {number}: found {line[:60]!r}, expected a SHA-256, two spaces and "
                f"CELL/FILE; write the list again with `cellgen build`",
                code=f"build.{target}",
            )
        listed[row["cell"]] = TextDigest(row["file"], row["digest"])
    return listed


def _lines(file: Path) -> list[str]:
    """The lines of a file, none where there is no such file. Raises BuildError."""
    try:
        return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"cannot read {file}: {error}") from error


def listed_text(listed: Mapping[str, TextDigest]) -> str:
    """What ``<target>.sha256`` says of some cells."""
    return "".join(f"{row.digest}  {cell}/{row.file}\n" for cell, row in sorted(listed.items()))


def read_files(folder: Path, suffix: str, target: str) -> SourceFiles:
    """Read the file that a target wrote, and the headers that it includes.

    Raises BuildError: the cell is not rendered for this target.
    """
    file = folder / f"{folder.name}{suffix}"
    if not file.is_file():
        raise BuildError(
            f"{folder} has no {file.name}: the cell is not rendered for {target} yet; its C kernel "
            f"works: cellgen.load({folder.name!r})",
            code=f"build.{target}",
        )
    texts = {file.name: file.read_text(encoding="utf-8")}
    return SourceFiles.gather(folder.name, texts, folder, folder.parent / "include")


def read_interface(folder: Path) -> Interface:
    """Read ``interface.json`` of a generated folder. Raises BuildError."""
    file = folder / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{folder} has no {FILE} that can be read ({error}); write the cell again with "
            f"`cellgen build {folder.name}`"
        ) from error
    return interface_of(text, str(file))

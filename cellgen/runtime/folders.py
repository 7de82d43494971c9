"""Read a generated folder without importing it, which would build its C.

Input: ``generated/<cell>``. Output: its ``Interface`` and ``SourceFiles`` of one target.
"""

from __future__ import annotations

from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.interface_file import FILE, interface_of


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

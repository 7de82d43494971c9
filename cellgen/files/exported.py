"""Write an export for small machines into a folder that may hold others.

Input: the texts of its files. Output: files, none of which was anything else's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.files.tree import ORIGIN, OWN, read_text, write

_SIZE = re.compile(r"^#define \w+ (\d+) /\* dimension (\w+) \*/$", re.MULTILINE)


def write_export(
    folder: Path, name: str, files: Mapping[str, str], *, replace: bool = False
) -> list[Path]:
    """Write the files of an export by suffix, all or none; returns their paths.

    Raises:
        BuildError: a file cannot be written, or one of that name holds something else: another
            export, unless ``replace``, or what cellgen did not write.
    """
    texts = {folder / f"{name}{suffix}": text for suffix, text in files.items()}
    for path, text in texts.items():
        before = read_text(path)
        if before == text or not path.exists():
            continue
        is_export = before is not None and OWN[0] in before
        if not (is_export and replace):
            holds = _export_at(path, texts) if is_export else "no export"
            other = ", or replace that one with --replace" if is_export else ""
            raise BuildError(
                f"{path} is there and holds {holds}, which would be lost; give this one a name of "
                f"its own, --name {name}_2, or another folder{other}",
                code="build.write",
            )
    write(texts)
    return list(texts)


def _export_at(path: Path, texts: Mapping[Path, str]) -> str:
    """Say what an export that stands at a path is of, as its header says."""
    header = path.with_suffix(".h")
    text = read_text(header) or ""
    origin = ORIGIN.search(text)
    parts = [origin[1]] if origin else []
    parts += [f"{dim}={size}" for size, dim in _SIZE.findall(text)]
    parts += ["other weights"] if text == texts.get(header) else []
    return f"another export ({', '.join(parts)})"

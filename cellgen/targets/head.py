"""What every generated file says first."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from cellgen.language.cell import Definition


@dataclass(frozen=True)
class Head:
    """Name, documentation, origin and equations of a cell, safe in comments."""

    name: str
    title: str
    doc: list[str]
    origin: str
    digest: str
    equations: list[str]

    @staticmethod
    def of(definition: Definition, digest: str) -> Head:
        doc = " ".join(definition.doc.split()) or f"The cell {definition.class_name}."
        safe = doc.replace("*/", "* /").replace("\\", "/").replace('"""', "'''")
        lines = textwrap.wrap(safe, 96)
        return Head(
            name=definition.name,
            title=safe.split(" (")[0].split(". ")[0].rstrip(".,;:") + ".",
            doc=lines,
            origin=definition.origin,
            digest=digest,
            equations=[str(equation) for equation in definition.equations],
        )

"""Say what generates the texts of a target, in a checkout, where it may change from day to day."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from cellgen.runtime.build import cache
from cellgen.runtime.paths import PACKAGE, in_checkout, templates_folder

STAGES = ("language", "cells", "program", "schedule")
"""What a text of any target follows from, in order of the stages."""


@functools.cache
def generator_digest(target: str) -> str:
    """A digest of the sources that generate a target's texts; "" of an installed package."""
    if not in_checkout():
        return ""
    return cache.digest(
        (str(path.relative_to(PACKAGE.parent)), path.read_text(encoding="utf-8"))
        for path in _sources(target)
    )


def _sources(target: str) -> Iterator[Path]:
    for stage in STAGES:
        yield from sorted((PACKAGE / stage).rglob("*.py"))
    yield from sorted((PACKAGE / "targets").glob("*.py"))
    yield from sorted((PACKAGE / "targets" / target).rglob("*.py"))
    yield from sorted((templates_folder() / target).rglob("*.j2"))

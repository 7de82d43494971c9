"""Compile the C of one cell into a shared object and keep it in the cache.

Input: ``SourceFiles`` (a cell's C, its header and the runtime headers they include) and its
``Interface``. Output: ``Built`` (a path in the cache), which ``library`` loads. There is nothing of
Python in it: every Python of a machine shares it, and other programs load it too.
Not supported: cross compiling.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build import cache, driver, steps
from cellgen.runtime.build.compiler import (
    TOOL,
    CompilerInfo,
    compiled_by,
    link_flags,
    of_cache,
    remember,
)
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step
from cellgen.runtime.system import shared_suffix

LIBRARIES = ("-lm", "-lpthread")


@dataclass(frozen=True)
class Built:
    """A shared object in the cache; ``cached`` tells that no compiler had to run for it."""

    path: Path
    cached: bool
    seconds: float


def build(
    sources: SourceFiles, interface: Interface, meanwhile: Callable[[], object] | None = None
) -> Built:
    """Find the cell's shared object in the cache, or compile and publish it.

    What is in the cache needs no compiler. ``meanwhile`` is called once the cell is compiled and
    only the driver may be left to wait for.
    Raises BuildError: no compiler, compiler errors, an unusable cache folder.
    """
    start = time.perf_counter()
    info = of_cache()
    entry = entry_of(sources, interface, info)
    path = cache.find(entry)
    if path is not None:
        remember(info, is_new=False)
        return Built(path, True, time.perf_counter() - start)
    shared = sources.driver()
    with driver.beside(shared, info) if shared else contextlib.nullcontext():
        path, cached = compiled_by(
            info,
            entry,
            sources.files,
            lambda place: _compile(place, sources.name, entry, info, shared, meanwhile),
        )
    return Built(path, cached, time.perf_counter() - start)


def find(sources: SourceFiles, interface: Interface) -> Path | None:
    """Find the cell's shared object in the cache; None when ``build`` would have to compile it.

    Raises BuildError: no compiler.
    """
    return cache.find(entry_of(sources, interface, of_cache()))


def entry_of(sources: SourceFiles, interface: Interface, info: CompilerInfo) -> str:
    """Name the entry of the cache that holds the shared object of a cell."""
    return f"{interface.name}-{key_of(sources, info)}"


def key_of(sources: SourceFiles, info: CompilerInfo) -> str:
    """Digest all that a shared object depends on."""
    return cache.digest(
        [
            *((f"file {name}", text) for name, text in sources.files),
            ("abi", str(ABI_VERSION)),
            ("linked", repr((link_flags(), LIBRARIES))),
            *info.facts,
        ]
    )


def _compile(
    place: Path,
    name: str,
    entry: str,
    info: CompilerInfo,
    shared: SourceFiles | None,
    meanwhile: Callable[[], object] | None,
) -> str:
    """Compile both precisions side by side and link them with the driver.

    Return the product's file name. Sources without a driver are one translation unit.
    """
    call = (*info.command, *info.flags, "-Iinclude")
    suffixes = driver.PRECISIONS if shared else ("",)
    compiled = [driver.compiling(call, name, suffix) for suffix in suffixes]
    steps.run(place, name, entry, (compiled,), TOOL)
    if meanwhile is not None:
        meanwhile()
    drivers = [str(driver.compiled(shared, info))] if shared else []
    produced = f"{entry}{shared_suffix()}"
    objects = (*(step.product for step in compiled), *drivers)
    command = (*call, *link_flags(), *objects, "-o", produced, *LIBRARIES)
    linked = Step(f"linking {produced}", command, produced)
    steps.run(place, name, entry, ((linked,),), TOOL)
    steps.require_loadable(place / produced, name, linked, f"{name}_cellgen")
    return produced

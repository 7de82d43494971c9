"""Make the kernels of cells: generate their sources, write them, compile them side by side.

Input: cell classes and a folder. Output: ``Outcome`` records, one per cell, in the cells' order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from cellgen.errors import BuildError, CellgenError, Failure
from cellgen.files import tree
from cellgen.language.cell import Cell
from cellgen.pipeline import generate
from cellgen.runtime.backend import DEFAULT, backend
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import stop_all
from cellgen.runtime.folders import TextDigest
from cellgen.runtime.generator import generator_digest
from cellgen.runtime.waiting import as_completed
from cellgen.targets import TARGETS, Source

Progress = Callable[[str, str], None]
"""Told a cell's name and what has been done with it."""
AGAIN_SECONDS = 0.05
"""Between two rounds of stopping compilers, where threads have not ended yet."""


@dataclass(frozen=True)
class Outcome:
    """What became of one cell: files that changed, and the compiled kernel or why there is none."""

    source: Source
    folder: Path
    changed: tuple[Path, ...]
    built: Built | None = None
    error: BuildError | None = None

    @property
    def state(self) -> str:
        """How it ended, in a word."""
        if self.error is not None:
            return "FAILED"
        if self.built is None:
            return "written"
        return "up to date" if self.built.cached else f"compiled in {self.built.seconds:.1f} s"

    def as_dict(self) -> dict[str, object]:
        """Plain data, for ``--json``."""
        return {
            "name": self.source.name,
            "folder": str(self.folder),
            "changed": [str(path) for path in self.changed],
            "object": str(self.built.path) if self.built else None,
            "cached": self.built.cached if self.built else None,
            "seconds": round(self.built.seconds, 3) if self.built else None,
            "error": str(self.error) if self.error else None,
        }


def generate_all(
    cells: Sequence[type[Cell]], progress: Progress, target: str = DEFAULT
) -> tuple[list[Source], list[Failure]]:
    """Generate the sources of some cells, one after the other; and those that cannot be.

    For all targets of cellgen's own, and for one that a package brings where it is asked for.
    """
    sources, failures = [], []
    for cell in cells:
        name, state = cell.definition.name, "generated"
        try:
            sources.append(generate(cell, dict.fromkeys((*TARGETS, target))))
        except CellgenError as error:
            failures.append(Failure(name, error))
            state = "FAILED"
        progress(name, state)
    return sources, failures


def write_all(folder: Path, sources: Sequence[Source], target: str = DEFAULT) -> list[Outcome]:
    """Write cells, as they are built for a target, and what the folder needs beside them.

    A cell that fails does not stop the others.

    Raises:
        BuildError: what the folder needs cannot be written.
    """
    files = tree.support_files(folder) | tree.digest_files(folder, sources)
    tree.write(files | tree.stub_files(folder, sources))
    for source in sources:
        for held in tree.BY_DIGEST:
            for file, text in tree.held_by_digest(source, held).items():
                TextDigest.of(file, text).remember(text, generator_digest(held))
    return [_write(folder, source, target) for source in sources]


def _write(folder: Path, source: Source, target: str) -> Outcome:
    try:
        changed = tree.write_cell(folder, source, target)
    except BuildError as error:
        return Outcome(source, folder / source.name, (), error=error)
    return Outcome(source, folder / source.name, tuple(changed))


def compile_all(
    written: Sequence[Outcome], jobs: int, progress: Progress, target: str = DEFAULT
) -> list[Outcome]:
    """Compile written cells for a target, ``jobs`` at a time, those of the longest texts first.

    So none is left over that one compiler works at alone. A cell that fails does not stop the
    others.

    Raises:
        BuildError: there is no compiler.
    """
    backend(target).toolchain()[0].look()
    finished = {outcome.source.name: outcome for outcome in written if outcome.error}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting: dict[Future[Built], Outcome] = {}
        try:
            unfailed = [outcome for outcome in written if outcome.error is None]
            for outcome in sorted(unfailed, key=lambda o: -_size(o.source, target)):
                waiting[pool.submit(compile_written, outcome, target)] = outcome
            for future in as_completed(waiting):
                outcome = _finished(waiting[future], future)
                finished[outcome.source.name] = outcome
                progress(outcome.source.name, outcome.state)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in waiting):
                stop_all()  # again: a thread may have been about to start the next compiler
                wait(waiting, timeout=AGAIN_SECONDS)
            raise
    return [finished[outcome.source.name] for outcome in written]


def _size(source: Source, target: str) -> int:
    """Characters that a compiler is given, but for headers; none where a target has no text."""
    return sum(map(len, source.of(target).values())) if source.is_spelled(target) else 0


def compile_written(outcome: Outcome, target: str) -> Built:
    """Compile what was written of a cell for a target. Raises BuildError."""
    source, include = outcome.source, outcome.folder.parent / "include"
    files = SourceFiles.gather(source.name, source.of(target), outcome.folder, include)
    return backend(target).build(files, source.interface)


def _finished(outcome: Outcome, future: Future[Built]) -> Outcome:
    try:
        return replace(outcome, built=future.result())
    except BuildError as error:
        return replace(outcome, error=error)

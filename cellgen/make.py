"""Make the kernels of cells: generate their sources, write or compare them, compile side by side.

Input: cell classes and a folder. Output: sources, changed files, compiled objects, by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from cellgen import tree
from cellgen.build import Built, SourceFiles, build, compiler, stop_all
from cellgen.cell import Cell
from cellgen.errors import BuildError
from cellgen.pipeline import generate
from cellgen.render import Source

Progress = Callable[[str, str], None]
"""Told (cell, what has been done with it)."""


def generate_all(cells: Sequence[type[Cell]], progress: Progress) -> list[Source]:
    """Generate the sources of some cells, one after the other."""
    sources = []
    for cell in cells:
        sources.append(generate(cell))
        progress(sources[-1].name, "generated")
    return sources


def write_all(folder: Path, sources: Sequence[Source]) -> dict[str, tuple[Path, ...]]:
    """Write the cells and what the folder needs beside them; return the changed files by cell.

    Raises:
        BuildError: a file cannot be written.
    """
    tree.write(tree.support_files(folder))
    return {source.name: tuple(tree.write(tree.cell_files(folder, source))) for source in sources}


def compile_all(
    folder: Path, sources: Sequence[Source], jobs: int, progress: Progress
) -> dict[str, Built | BuildError]:
    """Compile written cells, ``jobs`` at a time; a cell that fails does not stop the others.

    Raises:
        BuildError: there is no compiler.
    """
    compiler()
    results: dict[str, Built | BuildError] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = {pool.submit(_compile, folder, source): source.name for source in sources}
        try:
            for future in as_completed(waiting):
                name = waiting[future]
                results[name] = outcome = _outcome(future)
                progress(name, _describe(outcome))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    return results


def _compile(folder: Path, source: Source) -> Built:
    files = SourceFiles.read(folder / source.name, source.name, folder / "include")
    return build(files, source.interface)


def _outcome(future: Future[Built]) -> Built | BuildError:
    try:
        return future.result()
    except BuildError as error:
        return error


def _describe(outcome: Built | BuildError) -> str:
    if isinstance(outcome, BuildError):
        return "FAILED"
    return "up to date" if outcome.cached else f"compiled in {outcome.seconds:.1f} s"

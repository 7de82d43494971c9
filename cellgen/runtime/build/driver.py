"""Compile the time driver, which every cell is linked with: once per machine, compiler and flags.

Input: its ``SourceFiles``. Output: the path of its object in the cache. It takes the compiler
longer than a cell does. So where the cache lacks it, it is compiled on a thread of its own while
the cell is derived and compiled; linking waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.compiler import TOOL, CompilerInfo, compiler, joining
from cellgen.runtime.build.sources import DRIVER, DRIVER_SOURCES, ENGINE, SourceFiles
from cellgen.runtime.build.steps import Step, Stoppable
from cellgen.runtime.progress import progress
from cellgen.runtime.system import after_fork_in_child
from cellgen.runtime.waiting import result_of

PRECISIONS = {"f32": "32", "f64": "64"}

AHEAD: dict[str, Future[Path | None]] = {}
"""Entries that threads of this process compile ahead; None where that has come to nothing."""

after_fork_in_child(AHEAD.clear)  # these threads are the parent's


def compiled(files: SourceFiles, info: CompilerInfo) -> Path:
    """Find the driver's object or compile it; wait for it where a thread is at it.

    Raises BuildError.
    """
    entry, began = entry_of(files, info), time.monotonic()
    ahead = AHEAD.get(entry)
    if ahead is not None:
        with progress(f"compiling {DRIVER}", began=began):
            path = result_of(ahead)
        if path is not None:
            return path
    return cache.find_or_make(entry, files.files, lambda place: compile_driver(place, entry, info))[
        0
    ]


@contextmanager
def before_cells(include: Path) -> Iterator[None]:
    """Compile the driver beside the body, in which a cell is derived.

    Nothing is done, and nothing raised, where that is not possible; ``compiled`` says why.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BuildError):
            stack.enter_context(beside(SourceFiles.of_driver(include), compiler()))
        yield


@contextmanager
def beside(files: SourceFiles, info: CompilerInfo) -> Iterator[None]:
    """Compile the driver beside the body, in which ``compiled`` gives it.

    Nothing is done where the cache has it, or anybody is at it. What still runs when the body ends
    is stopped.
    """
    entry = entry_of(files, info)
    stoppable, future = Stoppable(), Future[Path | None]()
    if cache.has(entry) or AHEAD.setdefault(entry, future) is not future:
        yield
        return
    worker = threading.Thread(
        target=_compile_ahead, args=(entry, files, info, stoppable, future), daemon=True
    )
    try:
        try:
            worker.start()
        except RuntimeError:  # no thread can start: too many, or Python is ending
            future.set_result(None)
        yield
    finally:
        AHEAD.pop(entry, None)  # first: what follows may be interrupted
        stoppable.stop()
        if worker.ident is not None:
            worker.join()


def _compile_ahead(
    entry: str,
    files: SourceFiles,
    info: CompilerInfo,
    stoppable: Stoppable,
    future: Future[Path | None],
) -> None:
    """Compile the driver unless another process does; who waits is told what came of it."""
    try:
        future.set_result(
            cache.find_or_make_if_free(
                entry, files.files, lambda place: compile_driver(place, entry, info, stoppable)
            )
        )
    except BaseException as error:
        if stoppable.is_stopped:
            future.set_result(None)
        else:
            future.set_exception(error)


def entry_of(files: SourceFiles, info: CompilerInfo) -> str:
    """Name the entry of the cache that a compiler makes of the sources."""
    texts = ((f"file {name}", text) for name, text in files.files)
    return f"{DRIVER}-{cache.digest([*texts, *info.facts])}"


def compile_driver(
    place: Path, entry: str, info: CompilerInfo, stoppable: Stoppable | None = None
) -> str:
    """Compile its sources side by side, and join them."""
    call = (*info.command, *info.flags, "-Iinclude")
    halves = [compiling(call, f"include/{stem}", "") for stem in DRIVER_SOURCES]
    return joined(place, DRIVER, entry, call, halves, stoppable)


def joined(
    place: Path,
    name: str,
    entry: str,
    call: Sequence[str],
    halves: Sequence[Step],
    stoppable: Stoppable | None = None,
) -> str:
    """Run steps side by side, and join their objects to one file. Raises BuildError."""
    objects = [step.product for step in halves]
    command, product = joining(call, objects, name)
    one = Step(f"joining {' and '.join(objects)}", command, product)
    is_alone = stoppable is None  # otherwise a bar shows what the caller does
    steps.run(place, name, entry, (halves, (one,)), TOOL, bar=is_alone, stoppable=stoppable)
    return one.product


def compiling(call: Sequence[str], name: str, suffix: str) -> Step:
    """Compile a source, or one precision of it where it is written once for both."""
    stem = name.rpartition("/")[2]
    produced = f"{stem}_{suffix}.o" if suffix else f"{stem}.o"
    precision = (f"-DCELLGEN_PRECISION={PRECISIONS[suffix]}",) if suffix else ()
    quick = ("-O1",) if stem == ENGINE else ()  # no loop of it is long
    command = (*call, *quick, *precision, "-c", f"{name}.c", "-o", produced)
    return Step(f"compiling {name}.c{f' ({suffix})' if suffix else ''}", command, produced)

"""Prove several cells, those that ship in processes side by side.

Input: cell classes. Output: a ``Report`` for each, or the ``Failure`` that there was instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeAlias

from cellgen import cells as shipping
from cellgen.errors import CellgenError, DerivationError, Failure
from cellgen.language.cell import Cell, definition_of
from cellgen.proof import check as proof
from cellgen.proof.check.report import Report
from cellgen.runtime.progress import turn_off
from cellgen.runtime.system import most_processes
from cellgen.runtime.waiting import as_completed

HAS_MASKS = hasattr(signal, "pthread_sigmask")
Found: TypeAlias = Report | Failure
Done: TypeAlias = Callable[[str, str], None]
"""Told the name of a cell that is over, and how it ended."""


def check_each(
    cells: Sequence[type[Cell]],
    *,
    seed: int = 0,
    jobs: int = 1,
    say: Callable[[str], None],
    done: Done,
    form: str = "step",
) -> list[Found]:
    """Prove cells, ``jobs`` at a time; return what was found, in their order.

    ``form`` is what ``check`` takes. ``say`` is told what goes on in this process. Cells of an
    author's own are proved in this process, one after the other: another one would have to run
    their file again.
    """
    reports: dict[type[Cell], Found] = {}
    shipped = [cell for cell in cells if shipping.ships(cell)] if jobs > 1 else []
    if len(shipped) > 1:
        reports |= _side_by_side(shipped, seed, jobs, done, form)
    for cell in cells:
        if cell not in reports:
            reports[cell] = _one(cell, seed, say, form)
            done(_name(cell), _state(reports[cell]))
    return [reports[cell] for cell in cells]


def _side_by_side(
    cells: Sequence[type[Cell]], seed: int, jobs: int, done: Done, form: str
) -> dict[type[Cell], Found]:
    reports: dict[type[Cell], Found] = {}
    jobs = most_processes(min(jobs, len(cells)))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin_worker)
    try:
        numbers = {cell: number for number, cell in enumerate(shipping.SHIPPED)}
        with interrupts_wait():
            waiting = {pool.submit(_of_number, numbers[cell], seed, form): cell for cell in cells}
        for future in as_completed(waiting):
            cell = waiting[future]
            reports[cell] = _finished(cell, future)
            done(_name(cell), _state(reports[cell]))
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return reports


def _finished(cell: type[Cell], future: Future[Found]) -> Found:
    try:
        return future.result()
    except BrokenProcessPool:
        name = _name(cell)
        text = f"{name}: a process that proves cells ended early; prove it by itself to see which"
        return Failure(name, DerivationError(f"{text}: cellgen check {name}", code="check.process"))


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold interrupts back, also in processes that start within the body, until they have begun.

    One that came while a worker imports would end it with a traceback.
    """
    if not HAS_MASKS:  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heed_interrupts() -> None:
    """Let an interrupt end a worker without a word; the first process says what there is to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def begin_worker() -> None:
    """Let a process that proves cells end at Ctrl-C, and show no bars."""
    heed_interrupts()
    turn_off()
    threading.Thread(target=_end_with_the_first, daemon=True).start()


def _end_with_the_first() -> None:
    """End this worker where the process that waits for it has been killed: nobody else would."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _of_number(number: int, seed: int, form: str) -> Found:
    return _one(shipping.SHIPPED[number], seed, None, form)


def _one(cell: type[Cell], seed: int, say: Callable[[str], None] | None, form: str) -> Found:
    try:
        return proof.check(cell, seed=seed, progress=say, form=form)
    except CellgenError as error:
        return Failure(_name(cell), error)


def _name(cell: type[Cell]) -> str:
    return definition_of(cell).name


def _state(report: Found) -> str:
    return "ok" if isinstance(report, Report) and report.ok else "FAILED"

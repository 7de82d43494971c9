"""Teams of threads for functions over time: one per process and size, made when first needed.

``threads=`` of a call decides, else the environment variable CELLGEN_NUM_THREADS, else the number
of processors that this process may use. A team has no more threads than that: more would wait for
each other's processors, and results do not depend on how many there are. Calls on one team take
turns. A forked child makes its own.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cellgen import accept
from cellgen.runtime.host.interrupt import calls_waiting
from cellgen.runtime.host.processors import usable_processors
from cellgen.runtime.system import after_fork_in_child

if TYPE_CHECKING:
    from cellgen.runtime.abi import Interface
    from cellgen.runtime.build.library import Library

VARIABLE = "CELLGEN_NUM_THREADS"
MAX_THREADS = 1024
"""What the runtime's team holds."""

ALWAYS = 0x10000
"""CELLGEN_TEAM_ALWAYS of generated/include/cellgen_team.h: threads of a team share every call."""

is_crowding = False
"""Whether teams have as many threads as asked for, and use them all even where one thread would be
faster: what tests need that are about threads, on a machine of few or busy processors."""

TEAMS: dict[tuple[int, int], tuple[object, object]] = {}
"""By threads, and by how many long calls the caller's thread waits for: each has its team."""
_lock = threading.RLock()
"""For one thread at a time; a signal's handler that calls a kernel may come while it is held."""


def thread_count(threads: int | None, label: str) -> int:
    """Return how many threads a call of ``label`` runs on.

    Raises:
        ArgumentError: ``threads`` or CELLGEN_NUM_THREADS is no number from 1 to 1024.
    """
    if type(threads) is int and 0 < threads <= MAX_THREADS:
        return threads
    if threads is None:
        text = os.environ.get(VARIABLE, "")
        if not text:
            return min(usable_processors(), MAX_THREADS)
        return accept.whole_text(
            label,
            VARIABLE,
            text,
            1,
            MAX_THREADS,
            advice="set it to one or unset it, then all processors are used",
        )
    return accept.whole(
        label,
        "threads",
        threads,
        1,
        MAX_THREADS,
        expected=f"a number from 1 to {MAX_THREADS}",
        advice="leave it out for all processors",
    )


def team_size(threads: int | None, label: str) -> int:
    """Return how many threads a call of ``label`` gets: those asked for, if there are processors.

    Raises:
        ArgumentError: as ``thread_count``.
    """
    if threads is None and not os.environ.get(VARIABLE):
        return min(usable_processors(), MAX_THREADS)
    count = thread_count(threads, label)
    return count if count == 1 or is_crowding else min(count, usable_processors())


def threads_team(library: Library, interface: Interface, threads: int) -> object:
    """Return this process's team of a size; NULL (the caller alone) for one thread.

    Raises:
        MemoryError: the threads cannot be created.
    """
    if threads == 1:
        return library.ffi.NULL
    key = threads, calls_waiting()
    with _lock:
        if key not in TEAMS:
            create, destroy = (getattr(library.lib, name) for name in interface.team_symbols)
            team = create(threads | ALWAYS if is_crowding else threads)
            if team == library.ffi.NULL:
                raise MemoryError(f"{interface.name}: a team of {threads} threads cannot be made")
            entry = (library.ffi.cast("void *", team), library)
            if TEAMS.setdefault(key, entry) is not entry:  # a handler was faster
                destroy(team)
        address = TEAMS[key][0]
    return library.ffi.cast("void *", address)


def team_address(library: Library, interface: Interface, threads: int) -> int:
    """Return where the team of ``threads_team`` lies, 0 for one thread; raises as that does."""
    if threads == 1:
        return 0
    known = TEAMS.get((threads, calls_waiting()))
    team = known[0] if known is not None else threads_team(library, interface, threads)
    return int(library.ffi.cast("intptr_t", team))


def _forget_teams() -> None:
    """A forked child has none of its parent's threads."""
    global _lock
    _lock = threading.RLock()
    TEAMS.clear()


after_fork_in_child(_forget_teams)

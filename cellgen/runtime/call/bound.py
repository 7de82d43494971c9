"""A call that has been checked, to be made over and over on the same arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, MutableSequence
from functools import partial

from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.call import compiled
from cellgen.runtime.call import workspace as memory_of_calls
from cellgen.runtime.call.door import become_bound
from cellgen.runtime.call.engine import NULL, EngineCall
from cellgen.runtime.call.frameworks import Adopted, is_foreign
from cellgen.runtime.call.narrow import NarrowCall
from cellgen.runtime.call.owner import defect
from cellgen.runtime.call.workspace import (
    NOTHING,
    AlignedBytes,
    lending,
    per_thread,
    take_workspace,
)
from cellgen.runtime.host.interrupt import heeding_signals
from cellgen.runtime.host.memory import hold
from cellgen.runtime.results import Results
from cellgen.runtime.system import after_fork_in_child


class BoundCall:
    """A call that has been checked, on arrays that stay: ``bound()`` runs it and returns them.

    What is left of a call is the C function: the way to call over and over, where a call takes
    microseconds. ``results`` are the arrays that every ``bound()`` writes, also the first time.
    Change the contents of the arrays that were given; NumPy refuses to resize them. Scalars and
    lengths stay as they were, and arrays that ``pack`` was given must. Workspace and team are those
    of the thread that calls, but for a workspace so large that none is kept. Two threads cannot run
    the same one at once: each binds its own.
    """

    def __init__(
        self,
        label: str,
        call: EngineCall,
        results: Results,
        failure: Callable[[int], CellgenError] | None = None,
        team: Callable[[], object] | None = None,
        stop: MutableSequence[int] | None = None,
        arrays: Iterable[object] = (),
    ) -> None:
        self.results = results
        self._label, self._call = label, call
        self._failure = failure or partial(defect, label, call.dims, call.dtype)
        self._team, self._stop = team, stop
        self._run = call.run
        self._memory: AlignedBytes = NOTHING
        self._narrow: NarrowCall | None = None
        self._after: tuple[Callable[[], object], ...] = ()
        self._is_plain = team is None and stop is None
        self._held = hold(arrays)
        self._is_settled = False
        self._lock = threading.Lock()
        _bound_calls.add(self)

    def in_place_of(self, call: Adopted | NarrowCall) -> BoundCall:
        """Let it stand in the place of a call on arrays of another type or library.

        Numbers of 16 bits are widened before each call, and results rounded after it. Every call
        tells the library that it wrote to results and to those that it was lent for them.

        Raises ArgumentError for a library whose arrays never change: bound calls change them.
        """
        framework = call.framework
        if framework is not None and not framework.mutable:
            raise ArgumentError(
                f"{self._label}.bind: arrays are those of {framework.name}, which do not change, "
                f"and every bound call writes to the same results; bind NumPy's arrays, or call "
                f"{self._label} itself"
            )
        if isinstance(call, NarrowCall):
            self._held = (*self._held, *hold(call.targets.values()))
            if call.copied or call.returned:
                self._narrow, self._is_plain = call, False
                self._after = (call.write,)
        self.results = call.bound(self.results)
        if framework is not None:
            written = (*call.lent, *(array for array in self.results if is_foreign(array)))
            self._after = (*self._after, partial(framework.tell, written))
        return self

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self._call.dims))
        return f"<bound call of {self._label}, dimensions {dims}, {self._call.dtype}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise CellgenError(
            f"{self._label}: a bound call holds addresses of this process's memory and can be "
            f"neither pickled nor copied; send the kernel and bind again where it arrives",
            code="kernel",
        )

    def __call__(self) -> Results:
        """Run.

        Raises MemoryError; ArgumentError for a plan that does not fit; CellgenError where another
        thread is running it.
        """
        if not self._lock.acquire(False):
            raise CellgenError(
                f"{self._label}: this bound call is running already, expected one thread at a "
                f"time, since all write to the same results; bind one for each thread",
                code="kernel",
            )
        try:
            memory = self._memory
            if self._is_plain and memory is per_thread.memory:
                code = self._run(memory.pointer, memory.bytes)
                if not self._is_settled and compiled.EXTENSION.module is not None:
                    self._become_direct()
            else:
                code = self._run_around()
            if code:
                raise self._failure(code)
            for step in self._after:
                step()
        finally:
            self._lock.release()
        return self.results

    def _run_around(self) -> int:
        """Run with all that a call may have: 16 bits, a team, a flag that ends it."""
        if self._narrow is not None:
            self._narrow.read()
        if self._memory is not per_thread.memory:
            self._find_workspace()
        if self._is_plain and not self._is_settled:
            self._become_direct()
        team = NULL if self._team is None else self._team()
        pointer, size = self._memory.pointer, self._memory.bytes
        if self._stop is None:
            return self._run(pointer, size, team)
        self._stop[0] = 0
        with lending(self._memory):
            return heeding_signals(lambda: self._run(pointer, size, team), self._stop, self._label)

    def _become_direct(self) -> None:
        """Let C make calls of threads whose workspace this call has, once C makes any."""
        addresses = self._call.addresses() if self._call.is_run and not self._after else ()
        places = per_thread, *addresses
        self._is_settled = not addresses or become_bound(self, BoundCall.__call__, places)

    def _find_workspace(self) -> None:
        """Take this thread's workspace unless the call has its own. Raises MemoryError."""
        needed = self._call.workspace
        if self._memory is not NOTHING and needed > memory_of_calls.KEPT_WORKSPACE:
            return
        self._memory = take_workspace(self._label, needed, self._call.dims)


_bound_calls: weakref.WeakSet[BoundCall] = weakref.WeakSet()


def _renew_locks() -> None:
    """Let a forked child run bound calls that a thread of its parent was running."""
    for bound in _bound_calls:
        bound._lock = threading.Lock()


after_fork_in_child(_renew_locks)

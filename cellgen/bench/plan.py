"""What a benchmark is to run: cells, peers, shapes, and how long is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cellgen.bench.floor import COPY_BYTES, SGEMM_SIZE
from cellgen.bench.peers import PEERS, Peer
from cellgen.bench.peers.own import kernel_of
from cellgen.bench.problem import Mode, Problem, problem_of
from cellgen.bench.shapes import NAMED, BenchShape

DEFAULT_CELLS = ("lstm", "gru", "gru_reset_before")
MIN_ROUNDS = 7
QUICK_ROUNDS = 3
QUICK_SECONDS = 12.0
"""After which peers are waited for no more: cellgen's own work takes less than the rest of 20."""
QUICK_SGEMM_SIZE, QUICK_COPY_BYTES = 512, 32 << 20

TIMED_SECONDS = 0.02
"""A round calls as often as fits in here, so that the clock's resolution does not matter."""


@dataclass(frozen=True)
class Plan:
    """What to run. Cells are selectors; sizes and seconds are parameters for the tests' sake."""

    cells: tuple[str, ...] = DEFAULT_CELLS
    peers: tuple[Peer, ...] = PEERS
    shapes: tuple[BenchShape, ...] = tuple(NAMED.values())
    modes: tuple[Mode, ...] = tuple(Mode)
    threads: tuple[int, ...] = (1,)
    rounds: int = MIN_ROUNDS
    memory: bool = False
    sgemm_size: int = SGEMM_SIZE
    copy_bytes: int = COPY_BYTES
    timed_seconds: float = TIMED_SECONDS
    limit: float | None = None
    """Seconds that a peer may take for one answer."""
    flush_denormals: bool = False
    limit_by_round: bool = True
    """Whether the machine's rate is measured in every round."""
    seconds: float | None = None
    """Seconds after which no peer is waited for any more."""

    @property
    def count(self) -> int:
        """How many cases the plan has."""
        return len(self.cells) * len(self.modes) * len(self.shapes) * len(self.threads)

    def problems(self) -> Iterator[tuple[Problem, Mode]]:
        """Every problem of the plan, and each mode of it."""
        for selector in self.cells:
            interface = kernel_of(selector).interface
            for mode in self.modes:
                for shape in self.shapes:
                    problem = problem_of(interface, selector, shape)
                    yield replace(problem, flush_denormals=self.flush_denormals), mode


def quick_plan(plan: Plan, *, has_cells: bool = True, has_shapes: bool = True) -> Plan:
    """The plan as a first look at a machine: small measurements, in ``QUICK_SECONDS`` a cell.

    One shape and one cell where none was asked for.
    """
    cells = plan.cells if has_cells else plan.cells[:1]
    return replace(
        plan,
        cells=cells,
        shapes=plan.shapes if has_shapes else (NAMED["W1"],),
        rounds=QUICK_ROUNDS,
        sgemm_size=QUICK_SGEMM_SIZE,
        copy_bytes=QUICK_COPY_BYTES,
        limit_by_round=False,
        seconds=QUICK_SECONDS * len(cells) * len(plan.threads),
    )

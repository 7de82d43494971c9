"""Run a benchmark: check every contestant, then time all of them round by round.

Input: a ``Plan``. Output: a ``BenchReport``. A peer that is missing, fails or differs is
reported, and nothing else suffers from it; only cellgen's own failure ends a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cellgen.bench.device import describe
from cellgen.bench.floor import COPY_BYTES, SGEMM_SIZE, Rates, best_of, floor_of, measure_rates
from cellgen.bench.peers import OWN, PEERS, Peer
from cellgen.bench.peers.own import kernel_of
from cellgen.bench.problem import Array, Arrays, Mode, Problem, problem_of
from cellgen.bench.process import Patience, Worker, WorkerError
from cellgen.bench.report import BenchReport, Case, ContestantEntry, Missing, Status
from cellgen.bench.shapes import NAMED, BenchShape
from cellgen.runtime.progress import progress_between

Progress = Callable[[str], None]
DEFAULT_CELLS = ("lstm", "gru", "gru_reset_before")
MIN_ROUNDS = 7
QUICK_ROUNDS = 3
QUICK_SECONDS = 12.0
"""After which peers are waited for no more: cellgen's own work takes less than the rest of 20."""
QUICK_SGEMM_SIZE, QUICK_COPY_BYTES = 512, 32 << 20

MULTIPLIERS = ("numpy", "torch")
"""Peers whose matrix product has a say in the floor."""

TOLERANCE = 5e-4
"""Largest difference from cellgen's result, relative to the largest entry of an array. float32
sums of up to 16,000 terms over up to 1000 steps differ by some 1e-5; a mistake by 1e-2 or more."""

VANISHING: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("slstm", "slstm_exp", "slstm_heads", "slstm_exp_heads"), ("d_m_prev", "d_b_i")
)
"""Gradients that are zero by the equations. sLSTM's h is c / n: what scales c and n alike, the
first m and the input gate's bias, does not move it when both start from zero."""

TIMED_SECONDS = 0.02
"""A round calls as often as fits in here, so that the clock's resolution does not matter."""

MAX_PRODUCTS = 16
"""Products of a round: as long as cellgen's own measurement, some 2 s at most."""


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


def run(plan: Plan) -> BenchReport:
    """Run all cases, from a program or a notebook: a bar shows which, between measurements alone.

    Raises:
        WorkerError: cellgen's own process failed.
        BuildError: a kernel cannot be compiled.
    """
    with progress_between("timing", plan.count) as bar:
        return measure(plan, bar.say, lambda _: bar.step())


def measure(plan: Plan, say: Progress, done: Callable[[Case], None]) -> BenchReport:
    """Run all cases; ``say`` hears what is going on, ``done`` gets each case when it is over.

    Raises:
        WorkerError: cellgen's own process failed.
        BuildError: a kernel cannot be compiled.
    """
    present = tuple(peer for peer in plan.peers if peer.installed)
    missing = [
        Missing(peer.name, f"not installed: pip install {peer.bringer}")
        for peer in plan.peers
        if not peer.installed
    ]
    rates: list[Rates] = []
    cases: list[Case] = []
    patience = Patience.of(plan.limit, plan.seconds)
    for threads in plan.threads:
        with ExitStack() as stack:
            workers, failed = _start(
                stack, (OWN, *present, *_multipliers(plan, present)), threads, patience, say
            )
            missing += [item for item in failed if item not in missing]
            outcome = _with_workers(plan, workers, threads, say, done)
        rates.append(outcome[0])
        cases += outcome[1]
    packages = [word for peer in plan.peers for word in peer.package.split()]
    return BenchReport(describe(packages), plan.rounds, tuple(rates), tuple(missing), tuple(cases))


def _with_workers(
    plan: Plan, workers: Sequence[Worker], threads: int, say: Progress, done: Callable[[Case], None]
) -> tuple[Rates, list[Case]]:
    """Run all cases of a number of threads between two measurements of the machine."""

    def rates_now() -> Rates:
        say(f"machine, {threads} threads")
        names = () if plan.seconds is not None else MULTIPLIERS
        offering = [w for w in workers if w.peer is OWN or w.peer.name in names]
        return measure_rates(offering, threads, plan.sgemm_size, plan.copy_bytes)

    rates = rates_now()
    contestants = [w for w in workers if w.peer is OWN or w.peer in plan.peers]
    cases = []
    for problem, mode in plan.problems():
        machine = next(w for w in workers if w.peer.name == rates.library)
        cases.append(_case(plan, problem, mode, rates, contestants, machine, say))
        done(cases[-1])
    rates = best_of(best_of(rates, rates_now()), _of_rounds(rates, cases))
    return rates, [_at_rates(case, rates) for case in cases]


def _of_rounds(rates: Rates, cases: Sequence[Case]) -> Rates:
    """The best of all rounds, in which the library that was fastest at first has multiplied."""
    best = max((rate for case in cases for rate in case.sgemm), default=0.0)
    return replace(rates, sgemm={**rates.sgemm, rates.library: max(best, rates.best)})


def _at_rates(case: Case, rates: Rates) -> Case:
    """The case with the floor of the whole run: the machine may have been faster later."""
    floor = case.floor
    return replace(case, floor=floor_of(floor.flops, floor.bytes, floor.copy, rates))


def _multipliers(plan: Plan, present: Sequence[Peer]) -> list[Peer]:
    """NumPy and PyTorch, where installed, have a say in the floor even if they do not compete.

    Not where time is short.
    """
    if plan.seconds is not None:
        return []
    names = {peer.name for peer in present}
    wanted = [peer for peer in PEERS if peer.name in MULTIPLIERS]
    return [peer for peer in wanted if peer.installed and peer.name not in names]


def _start(
    stack: ExitStack, peers: Sequence[Peer], threads: int, patience: Patience, say: Progress
) -> tuple[list[Worker], list[Missing]]:
    """Start all processes, which import side by side; those that fail are missing."""
    started = [
        stack.enter_context(Worker(p, threads, Patience() if p is OWN else patience)) for p in peers
    ]
    workers, failed = [], []
    for worker in started:
        say(f"importing {worker.peer.name}")
        try:
            worker.wait_until_imported()
            workers.append(worker)
        except WorkerError as error:
            if worker.peer is OWN:
                raise
            failed.append(Missing(worker.peer.name, f"cannot be imported: {_plain(error)}"))
    return workers, failed


def _plain(error: WorkerError) -> str:
    """The message without its code and the peer's name."""
    return Exception.__str__(error).partition(": ")[2]


# --- one case ------------------------------------------------------------------------------------


def _case(
    plan: Plan,
    problem: Problem,
    mode: Mode,
    rates: Rates,
    contestants: Sequence[Worker],
    machine: Worker,
    say: Progress,
) -> Case:
    label = f"{problem.cell} {mode} {problem.shape.name}, {rates.threads} threads"
    taking_part = [w for w in contestants if w.peer is OWN or w.peer.takes(problem.cell, mode)]
    say(f"{label}: checking")
    entries = _check(taking_part, problem, mode)
    fit = [w for w in taking_part if entries[w.peer.name].status.is_timed]
    say(f"{label}: timing")
    entries, sgemm = _time(plan, fit, entries, machine if plan.limit_by_round else None)
    for worker in taking_part:
        _if_alive(worker, worker.release)
    if plan.memory and mode is Mode.BOTH:
        say(f"{label}: memory")
        entries = {
            name: _with_memory(entry, problem, mode, rates.threads, taking_part)
            for name, entry in entries.items()
        }
    count = problem.bytes(mode)
    floor = floor_of(problem.flops(mode), count, taking_part[0].copy(count), rates)
    return Case(
        problem.cell,
        mode,
        problem.shape,
        rates.threads,
        floor,
        tuple(entries.values()),
        problem.argument_bytes(mode),
        problem.necessary_bytes(mode),
        sgemm,
    )


def _check(workers: Sequence[Worker], problem: Problem, mode: Mode) -> dict[str, ContestantEntry]:
    """Let every contestant compute the problem once and compare with the first, which is cellgen.

    Raises:
        WorkerError: cellgen's own process failed.
    """
    own, *peers = workers
    own.prepare(problem, mode)
    reference = own.results()
    own.settle()
    entries = {own.peer.name: ContestantEntry(own.peer.name, Status.TIMED, error=0.0)}
    for worker in peers:
        peer = worker.peer
        try:
            worker.prepare(_problem_for(peer, problem), mode)
            zero = VANISHING.get(problem.cell, ())
            entries[peer.name] = compare(peer, worker.results(), reference, zero)
            worker.settle()
        except WorkerError as error:
            entries[peer.name] = ContestantEntry(peer.name, Status.FAILED, text=_plain(error))
    return entries


def _problem_for(peer: Peer, problem: Problem) -> Problem:
    if not peer.instead:
        return problem
    return problem_of(kernel_of(peer.instead).interface, peer.instead, problem.shape)


def compare(
    peer: Peer, results: Arrays, reference: Arrays, vanishing: Collection[str] = ()
) -> ContestantEntry:
    """Judge a peer's results: every name that is expected of it, within the tolerance.

    Gradients that are ``vanishing`` are rounding alone: relative to the largest of all gradients.
    """
    if peer.yardstick:
        return ContestantEntry(peer.name, Status.YARDSTICK, text=peer.note)
    expected = [name for name in reference if name not in peer.lacks]
    absent = [name for name in expected if name not in results]
    if absent:
        text = f"computes no {', '.join(absent)}"
        return ContestantEntry(peer.name, Status.DIFFERS, text=text)
    gradients = [array for name, array in reference.items() if name.startswith("d_")]
    largest = max((float(np.max(np.abs(array), initial=0)) for array in gradients), default=0.0)
    errors = {
        name: difference(results[name], reference[name], largest if name in vanishing else 0.0)
        for name in expected
    }
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] <= TOLERANCE:
        return ContestantEntry(peer.name, Status.TIMED, error=errors[worst], text=peer.note)
    text = f"{worst} differs by {errors[worst]:.1e} of its largest entry, not {TOLERANCE:.0e}"
    return ContestantEntry(peer.name, Status.DIFFERS, error=errors[worst], text=text)


def difference(result: Array, reference: Array, least: float = 0.0) -> float:
    """Largest difference relative to the largest entry, or to ``least`` where that is more.

    Infinite for another shape or a NaN.
    """
    if result.shape != reference.shape:
        return float("inf")
    scale = max(float(np.max(np.abs(reference), initial=np.finfo(np.float32).tiny)), least)
    error = float(np.max(np.abs(result.astype(np.float64) - reference), initial=0)) / scale
    return error if np.isfinite(error) else float("inf")


def _time(  # noqa: C901 - one case a branch
    plan: Plan,
    workers: Sequence[Worker],
    entries: Mapping[str, ContestantEntry],
    machine: Worker | None,
) -> tuple[dict[str, ContestantEntry], tuple[float, ...]]:
    """Time every contestant once a round, another one first in every round.

    The product of ``machine`` begins each round.
    """
    by_name = dict(entries)
    repeats: dict[str, int] = {}
    seconds: dict[str, list[float]] = {worker.peer.name: [] for worker in workers}
    rates: list[float] = []

    def turn(worker: Worker) -> None:
        """Take a turn: the first one finds how many calls make a measurement."""
        name = worker.peer.name
        if name in repeats:
            seconds[name].append(worker.time(repeats[name]))
        else:
            repeats[name] = worker.repeats(plan.timed_seconds)
        worker.settle()

    def multiply(worker: Worker) -> None:
        """Multiply for as long as cellgen was timed in the round before."""
        rate = worker.sgemm(plan.sgemm_size)
        if rate and seconds[OWN.name]:
            needed = seconds[OWN.name][-1] * repeats[OWN.name] * rate / (2.0 * plan.sgemm_size**3)
            rate = worker.sgemm(plan.sgemm_size, min(max(1, round(needed)), MAX_PRODUCTS))
        if rate:
            rates.append(rate)
        worker.settle()

    for number in range(plan.rounds + 1):
        if machine and number and _if_alive(machine, partial(multiply, machine)):
            machine, rates = None, []  # rounds have no rate of their own, then
        first = number % len(workers)
        for worker in (*workers[first:], *workers[:first]):
            entry = by_name[worker.peer.name]
            if entry.status.is_timed:
                failure = _if_alive(worker, partial(turn, worker))
                if failure:
                    by_name[entry.name] = replace(entry, status=Status.FAILED, text=failure)
    timed = {
        name: replace(entry, seconds=tuple(seconds[name])) if entry.status.is_timed else entry
        for name, entry in by_name.items()
    }
    return timed, tuple(rates)


def _if_alive(worker: Worker, ask: Callable[[], None]) -> str:
    """Ask a worker for something; a peer's failure is returned, cellgen's own ends the run."""
    try:
        ask()
    except WorkerError as error:
        if worker.peer is OWN:
            raise
        return _plain(error)
    return ""


def _with_memory(
    entry: ContestantEntry, problem: Problem, mode: Mode, threads: int, workers: Sequence[Worker]
) -> ContestantEntry:
    """Measure the peak in a process of its own, which has done nothing else."""
    if entry.status is not Status.TIMED:
        return entry
    peer = next(worker.peer for worker in workers if worker.peer.name == entry.name)
    with Worker(peer, threads) as worker:
        worker.wait_until_imported()
        return replace(entry, memory=worker.peak(problem, mode))

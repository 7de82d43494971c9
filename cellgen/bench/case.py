"""Measure one case of a benchmark: check every contestant, then time all of them round by round.

Input: a problem, a mode, processes of contestants. Output: a ``Case``. A peer that fails or differs
is reported; cellgen's own failure ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cellgen.bench.floor import Rates, floor_of
from cellgen.bench.peers import OWN, Peer
from cellgen.bench.peers.own import kernel_of
from cellgen.bench.plan import Plan
from cellgen.bench.problem import Array, Arrays, Mode, Problem, problem_of
from cellgen.bench.process import Worker, WorkerError
from cellgen.bench.report import Case, ContestantEntry, Status

Progress = Callable[[str], None]
TOLERANCE = 5e-4
"""Largest difference from cellgen's result, relative to the largest entry of an array. float32
sums of up to 16,000 terms over up to 1000 steps differ by some 1e-5; a mistake by 1e-2 or more."""

VANISHING: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("slstm", "slstm_exp", "slstm_heads", "slstm_exp_heads"), ("d_m_prev", "d_b_i")
)
"""Gradients that are zero by the equations. sLSTM's h is c / n: what scales c and n alike, the
first m and the input gate's bias, does not move it when both start from zero."""

MAX_PRODUCTS = 16
"""Products of a round: as long as cellgen's own measurement, some 2 s at most."""


def measure_case(
    plan: Plan,
    problem: Problem,
    mode: Mode,
    rates: Rates,
    contestants: Sequence[Worker],
    machine: Worker,
    say: Progress,
) -> Case:
    """Check, then time all that are fit, then measure memory where it is asked for.

    Raises:
        WorkerError: cellgen's own process failed.
    """
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
            text = plain_message(error)
            entries[peer.name] = ContestantEntry(peer.name, Status.FAILED, text=text)
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
        return plain_message(error)
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


def plain_message(error: WorkerError) -> str:
    """The message without its code and the peer's name."""
    return Exception.__str__(error).partition(": ")[2]

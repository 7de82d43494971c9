"""Run a benchmark: one process a contestant, the cases one after the other, the machine's rates.

Input: a ``Plan``. Output: a ``BenchReport``. A peer that is missing, fails or differs is
reported, and nothing else suffers from it; only cellgen's own failure ends a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from cellgen.bench.case import Progress, measure_case, plain_message
from cellgen.bench.device import describe
from cellgen.bench.floor import Rates, best_of, floor_of, measure_rates
from cellgen.bench.peers import OWN, PEERS, Peer
from cellgen.bench.plan import Plan as Plan  # a run's argument
from cellgen.bench.process import Patience, Worker, WorkerError
from cellgen.bench.report import BenchReport, Case, Missing
from cellgen.runtime.progress import progress_between

MULTIPLIERS = ("numpy", "torch")
"""Peers whose matrix product has a say in the floor."""


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
        cases.append(measure_case(plan, problem, mode, rates, contestants, machine, say))
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
            failed.append(Missing(worker.peer.name, f"cannot be imported: {plain_message(error)}"))
    return workers, failed

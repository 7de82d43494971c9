"""What a run found: plain records, figures derived from them, and their JSON.

``as_data`` and ``from_data`` are inverse but for derived figures, so that a saved run can be shown
and drawn again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cellgen.bench.floor import Floor, Rates
from cellgen.bench.peers import OWN
from cellgen.bench.problem import Mode
from cellgen.bench.shapes import BenchShape
from cellgen.errors import UsageError
from cellgen.runtime.notebook import ShownInNotebooks

FORMAT = 1


class Status(StrEnum):
    """``TIMED`` is a competitor's; a ``YARDSTICK`` is timed too, and computes something else."""

    TIMED = "timed"
    YARDSTICK = "yardstick"
    DIFFERS = "differs"
    FAILED = "failed"

    @property
    def is_timed(self) -> bool:
        """Whether its seconds count."""
        return self in (Status.TIMED, Status.YARDSTICK)


@dataclass(frozen=True)
class ContestantEntry:
    """One contestant in one case: seconds of a call, by round; bytes at the peak, if measured.

    ``error`` is the largest difference from cellgen's results, relative to an array's largest
    entry; ``text`` says what is wrong, or what the contestant computes less or otherwise.
    """

    name: str
    status: Status
    seconds: tuple[float, ...] = ()
    error: float | None = None
    text: str = ""
    memory: int | None = None

    @property
    def median(self) -> float:
        """Median seconds of a call."""
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        """Least seconds of a call."""
        return min(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """cellgen's time by a peer's, round by round: the median, and its interquartile range."""

    median: float
    spread: float


@dataclass(frozen=True)
class Case:
    """One cell, mode, shape and number of threads: everything in it is comparable.

    ``arguments`` are the bytes that a call is given, ``necessary`` those that it cannot do without:
    results, what is saved, matrices packed once. 0 in a report of an earlier version. ``sgemm`` is
    the machine's rate for a large product in every round; empty where it was not measured.
    """

    cell: str
    mode: Mode
    shape: BenchShape
    threads: int
    floor: Floor
    entries: tuple[ContestantEntry, ...]
    arguments: int = 0
    necessary: int = 0
    sgemm: tuple[float, ...] = ()

    def memory_multiple(self, peak: int) -> float:
        """What a contestant takes beyond its arguments, as a multiple of what is necessary."""
        return (peak - self.arguments) / self.necessary

    @property
    def timed(self) -> tuple[ContestantEntry, ...]:
        """The entries whose seconds count."""
        return tuple(entry for entry in self.entries if entry.status is Status.TIMED)

    @property
    def own(self) -> ContestantEntry:
        """The entry of this library."""
        return next(entry for entry in self.entries if entry.name == OWN.name)

    @property
    def best_peer(self) -> ContestantEntry | None:
        """The fastest other entry, or None."""
        peers = [entry for entry in self.timed if entry.name != OWN.name]
        return min(peers, key=lambda entry: entry.median, default=None)

    def multiple(self, entry: ContestantEntry) -> float:
        """Median over the rounds of a contestant's time by the floor at that round's rate.

        By the floor of the whole run where rounds have no rate of their own.
        """
        if not self.sgemm:
            return entry.median / self.floor.seconds
        rounds = zip(entry.seconds, self.sgemm, strict=True)
        return statistics.median(seconds / self.floor.at(rate) for seconds, rate in rounds)

    def least_multiple(self, entry: ContestantEntry) -> float:
        """The smallest time by the floor at the best rate of the whole run."""
        return entry.minimum / self.floor.seconds

    def ratio(self, peer: ContestantEntry) -> Ratio:
        """How many times as long as a peer's call its own takes, by round."""
        by_round = [a / b for a, b in zip(self.own.seconds, peer.seconds, strict=True)]
        return Ratio(statistics.median(by_round), interquartile_range(by_round))


@dataclass(frozen=True)
class Missing:
    """A peer that could not take part, and what would change that."""

    name: str
    text: str


@dataclass(frozen=True)
class BenchReport(ShownInNotebooks):
    """A whole run: the machine, its rates, who was missing, all cases."""

    device: Mapping[str, Any]
    rounds: int
    rates: tuple[Rates, ...]
    missing: tuple[Missing, ...]
    cases: tuple[Case, ...]


def interquartile_range(values: Sequence[float]) -> float:
    """Of a handful of values; 0 for a single one."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


def as_data(report: BenchReport) -> dict[str, Any]:
    """Turn a report into what JSON holds, with the derived figures beside the measured ones."""
    return {
        "format": FORMAT,
        "device": dict(report.device),
        "rounds": report.rounds,
        "rates": [{**asdict(rates), "best": rates.best} for rates in report.rates],
        "missing": [asdict(missing) for missing in report.missing],
        "cases": [_case_data(case) for case in report.cases],
    }


def _case_data(case: Case) -> dict[str, Any]:
    best = case.best_peer
    return {
        "cell": case.cell,
        "mode": str(case.mode),
        "threads": case.threads,
        "shape": asdict(case.shape),
        "floor": asdict(case.floor),
        "arguments": case.arguments,
        "necessary": case.necessary,
        "sgemm": list(case.sgemm),
        "best_peer": best.name if best else None,
        "entries": [_entry_data(case, entry) for entry in case.entries],
    }


def _entry_data(case: Case, entry: ContestantEntry) -> dict[str, Any]:
    data = asdict(entry) | {"status": str(entry.status), "seconds": list(entry.seconds)}
    if not entry.status.is_timed:
        return data
    data |= {
        "median": entry.median,
        "minimum": entry.minimum,
        "median_multiple": case.multiple(entry),
        "minimum_multiple": case.least_multiple(entry),
    }
    if entry.name != OWN.name:
        data["own_by_this"] = asdict(case.ratio(entry))
    return data


def from_data(data: Mapping[str, Any]) -> BenchReport:
    """Read a report from its JSON.

    Raises:
        UsageError: the data are of another format.
    """
    if data.get("format") != FORMAT:
        raise UsageError(f"this is no result of `cellgen bench` in format {FORMAT}; run it again")
    return BenchReport(
        device=data["device"],
        rounds=data["rounds"],
        rates=tuple(Rates(r["threads"], r["sgemm"], r["copy"]) for r in data["rates"]),
        missing=tuple(Missing(**m) for m in data["missing"]),
        cases=tuple(_case(case) for case in data["cases"]),
    )


def _case(data: Mapping[str, Any]) -> Case:
    entries = tuple(
        ContestantEntry(
            entry["name"],
            Status(entry["status"]),
            tuple(entry["seconds"]),
            entry["error"],
            entry["text"],
            entry["memory"],
        )
        for entry in data["entries"]
    )
    mode, shape, floor = Mode(data["mode"]), BenchShape(**data["shape"]), Floor(**data["floor"])
    sizes = data.get("arguments", 0), data.get("necessary", 0)
    rates = tuple(data.get("sgemm", ()))
    return Case(data["cell"], mode, shape, data["threads"], floor, entries, *sizes, rates)

"""Is speed uniform? Every cell that ships beside the LSTM, bare products, and loops of libraries.

Input: which parts, cells and libraries. Output: a ``Zoo``, runs that each hold a ``BenchReport``
and the multiply-adds of every cell, kept as one JSON. Libraries live in environments of their own,
so a file collects runs: a run replaces the earlier one of the same part and contestants. ``claims``
judges the figures. Not supported: cells of an author's file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cellgen.bench.case import Progress
from cellgen.bench.measure import measure
from cellgen.bench.peers import Peer
from cellgen.bench.plan import Plan
from cellgen.bench.problem import Mode
from cellgen.bench.report import BenchReport, Case, as_data, from_data
from cellgen.bench.shapes import NAMED, BenchShape
from cellgen.cells import SHIPPED
from cellgen.errors import BuildError, UsageError
from cellgen.pipeline import recurrence
from cellgen.program.over_time import unroll
from cellgen.program.recurrence import RecurrenceClass
from cellgen.views.figures import multiply_adds
from cellgen.views.find import find_one

FORMAT = "zoo 1"
SHAPES = (NAMED["W2"], NAMED["W5"])
BUILT_IN = {1: "lstm", 2: "gru_reset_before"}
"""The cell to compare with, by levels of the recurrence: two where a product waits for another."""
LINEAR = ("min_gru", "min_gru_log", "min_lstm")
FUSED = ("layer_norm_lstm", "slstm")
"""Cells that no library has a kernel for: against the best of the loops."""
GEMM = Peer(
    "input GEMM",
    "cellgen.bench.peers.input_gemm",
    cells=LINEAR,
    note="NumPy's BLAS: the products of the input alone",
    yardstick=True,
)
LOOPS = (
    Peer("jax scan", "cellgen.bench.peers.jax_loop", ("jax",), "jax", cells=None),
    Peer("torch loop", "cellgen.bench.peers.torch_loop", ("torch",), "torch", cells=None),
    Peer(
        "torch compiled", "cellgen.bench.peers.torch_compiled_loop", ("torch",), "torch", cells=None
    ),
)
LIMIT = 60.0
"""Seconds that a loop may take to compile; it is left out where it takes longer."""


@dataclass(frozen=True)
class Work:
    """What kind of recurrence a cell is, and its multiply-adds by mode and shape."""

    kind: str
    levels: int
    products: Mapping[str, int]

    def of(self, case: Case) -> int:
        """Multiply-adds of a case."""
        return self.products[_key(case.mode, case.shape)]

    @property
    def built_in(self) -> str:
        """The cell that it is measured by; for levels that no built-in has, the nearest."""
        return BUILT_IN[min(max(self.levels, 1), max(BUILT_IN))]


@dataclass(frozen=True)
class ZooRun:
    """One interleaved measurement: every case of a part, and the command that took it."""

    part: str
    command: str
    contestants: tuple[str, ...]
    report: BenchReport


@dataclass(frozen=True)
class Zoo:
    """All runs that a file collects, and the work in each cell."""

    runs: tuple[ZooRun, ...]
    work: Mapping[str, Work]

    def with_runs(self, runs: Sequence[ZooRun]) -> Zoo:
        """Add runs; of equal part and contestants the later one stays."""
        cases = [case for run in runs for case in run.report.cases]
        shapes = tuple(dict.fromkeys((*SHAPES, *(case.shape for case in cases))))
        of_cases = dict.fromkeys(name for case in cases for name in (case.cell, *BUILT_IN.values()))
        work = {**self.work, **{name: work_of(name, shapes) for name in of_cases}}
        kept = {(run.part, run.contestants): run for run in (*self.runs, *runs)}
        return Zoo(tuple(kept.values()), work)


# --- what to run ---------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Names of the cells that ship."""
    return tuple(cell.definition.name for cell in SHIPPED)


@cache
def work_of(name: str, shapes: tuple[BenchShape, ...] = SHAPES) -> Work:
    """Count a cell's multiply-adds over all steps: forward, and with every gradient."""
    cell = find_one(name)
    programs, over_time = unroll(cell.definition), recurrence(cell)
    once = multiply_adds(programs.forward)
    back = multiply_adds(programs.reverse) + multiply_adds(programs.deferred)
    products = {}
    for shape in shapes:
        sizes = shape.sizes_of(str(dim) for dim in cell.definition.dims)
        for mode, total in ((Mode.FORWARD, once), (Mode.BOTH, once + back)):
            by = {symbol: sizes[str(symbol)] for symbol in total.free_symbols}
            products[_key(mode, shape)] = shape.T * int(total.xreplace(by))
    return Work(over_time.kind.value, over_time.levels, products)


def _key(mode: Mode, shape: BenchShape) -> str:
    return f"{mode} {shape.text}"


def is_dense(work: Work) -> bool:
    """Whether a state reads all units of the state before."""
    return work.kind == RecurrenceClass.DENSE.value


def kernels(cells: Iterable[str]) -> tuple[Peer, ...]:
    """The built-in cells as yardsticks, each for the cells that it measures."""
    chosen = tuple(cells)
    return tuple(
        Peer(
            f"cellgen {name}",
            "cellgen.bench.peers.own",
            cells=tuple(cell for cell in chosen if work_of(cell).built_in == name),
            note="the built-in cell of as many levels",
            yardstick=True,
            instead=name,
        )
        for name in BUILT_IN.values()
    )


def plans(
    parts: Sequence[str],
    cells: Sequence[str],
    loops: Sequence[Peer],
    threads: int,
    rounds: int = 5,
    limit: float = LIMIT,
    shapes: Sequence[BenchShape] = (),
    modes: Sequence[Mode] = (),
) -> dict[str, Plan]:
    """One plan for each part, of the cells that are named.

    Shapes and modes are the part's own where none are given.

    ``uniform``: every cell beside the built-in of its levels and bare products. ``loops``: every
    cell beside the loops at W2 with gradients, without compiled steps, which take long to make.
    ``claims``: the cells without a kernel elsewhere beside all loops, both shapes, with gradients.

    Raises:
        UsageError: a part or a cell that does not exist.
    """
    unknown = [part for part in parts if part not in PARTS] + [c for c in cells if c not in names()]
    if unknown:
        known = f"parts {', '.join(PARTS)} and the cells of `cellgen list`"
        raise UsageError(f"{', '.join(unknown)}: expected {known}")
    wanted = tuple(cells) or names()
    installed = tuple(peer for peer in loops if peer.installed)
    by_part = {}
    for part in dict.fromkeys(parts):
        plan = PARTS[part](wanted, installed)
        by_part[part] = replace(
            plan,
            threads=(threads,),
            rounds=min(rounds, 3) if part == "loops" else rounds,
            limit=limit,
            shapes=tuple(shapes) or plan.shapes,
            modes=tuple(modes) or plan.modes,
            limit_by_round=False,  # kernels and loops are compared with each other
        )
    return {part: plan for part, plan in by_part.items() if plan.cells and plan.peers}


def _uniform(cells: tuple[str, ...], loops: tuple[Peer, ...]) -> Plan:
    return Plan(cells=cells, peers=(*kernels(cells), GEMM), shapes=SHAPES, flush_denormals=True)


def _loops(cells: tuple[str, ...], loops: tuple[Peer, ...]) -> Plan:
    quick = tuple(peer for peer in loops if peer.name != "torch compiled")
    return Plan(
        cells=cells, peers=quick, shapes=SHAPES[:1], modes=(Mode.BOTH,), flush_denormals=True
    )


def _claims(cells: tuple[str, ...], loops: tuple[Peer, ...]) -> Plan:
    fused = tuple(cell for cell in cells if cell in FUSED)
    return Plan(cells=fused, peers=loops, shapes=SHAPES, modes=(Mode.BOTH,), flush_denormals=True)


PARTS: Mapping[str, Callable[[tuple[str, ...], tuple[Peer, ...]], Plan]] = {
    "uniform": _uniform,
    "loops": _loops,
    "claims": _claims,
}


def run(
    chosen: Mapping[str, Plan], command: str, say: Progress, done: Callable[[Case], None]
) -> list[ZooRun]:
    """Measure all plans. Raises as ``measure`` does."""
    runs = []
    for part, plan in chosen.items():
        contestants = tuple(peer.name for peer in plan.peers)
        runs.append(ZooRun(part, command, contestants, measure(plan, say, done)))
    return runs


# --- files ---------------------------------------------------------------------------------------


def zoo_data(zoo: Zoo) -> dict[str, Any]:
    """Turn a zoo into what JSON holds."""
    runs = [
        {
            "part": run.part,
            "command": run.command,
            "contestants": list(run.contestants),
            "report": as_data(run.report),
        }
        for run in zoo.runs
    ]
    return {"format": FORMAT, "runs": runs, "work": {n: asdict(w) for n, w in zoo.work.items()}}


def zoo_from(data: Mapping[str, Any]) -> Zoo:
    """Undo ``zoo_data``. Raises UsageError: data of another format."""
    if data.get("format") != FORMAT:
        raise UsageError(f"this is no result of benchmarks.zoo in format {FORMAT!r}; run it again")
    runs = [
        ZooRun(r["part"], r["command"], tuple(r["contestants"]), from_data(r["report"]))
        for r in data["runs"]
    ]
    return Zoo(tuple(runs), {name: Work(**work) for name, work in data["work"].items()})


def read_zoo(path: Path) -> Zoo:
    """Read a file, an empty zoo where there is none yet. Raises UsageError."""
    if not path.exists():
        return Zoo((), {})
    try:
        return zoo_from(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a result of benchmarks.zoo: {error}") from None


def save_zoo(zoo: Zoo, path: Path) -> None:
    """Write a file. Raises BuildError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(zoo_data(zoo), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None

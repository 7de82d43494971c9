"""Generated Triton kernels under both checks: every access watched, machine code for Hopper run."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen  # noqa: E402
from cellgen.cells import SHIPPED  # noqa: E402
from cellgen.program.chunks import form_over_time  # noqa: E402
from cellgen.program.interpret import shape_sizes  # noqa: E402
from cellgen.proof.machine.launched import check_machine_code  # noqa: E402
from cellgen.proof.watched import Watch, watched  # noqa: E402
from cellgen.torch.chunks.rows import Gaps  # noqa: E402
from cellgen.torch.cuts import size_of  # noqa: E402
from cellgen.torch.passes import PlanRun  # noqa: E402

SIZES = {"B": 2, "I": 3, "H": 40, "P": 40, "N": 1, "K": 12, "D": 20, "R": 4}
"""Units that are no multiple of a warp: masks have to hold."""
SCANS = [
    cell.definition
    for cell in SHIPPED
    if form_over_time(cell.definition).refusal is None
    and not form_over_time(cell.definition).memories
]
MEMORIES = [
    cell.definition
    for cell in SHIPPED
    if form_over_time(cell.definition).memories and cell.definition.name != "mamba"
]
BLOCKS = {"": {"BT": 16, "BK": 16, "BV": 16}}
CUTS = ((5, 1, 2), (7, 2, 2), (9, 3, 4))
"""Steps, segments beside each other, steps loaded ahead: no multiples of each other."""
QUICK = ("min_gru",)
quick_first = pytest.mark.parametrize(
    "definition",
    [pytest.param(d, id=d.name, marks=[] if d.name in QUICK else pytest.mark.slow) for d in SCANS],
)


@cache
def watched_run(name: str, steps: int, segments: int, ahead: int, gaps: bool = False) -> Watch:
    """Both passes of a cell with every load and store watched; with ``gaps`` steps are left out."""
    definition = next(d for d in (*SCANS, *MEMORIES) if d.name == name)
    sizes = {"T": steps, **{str(dim): SIZES[str(dim)] for dim in definition.dims}}
    numbers = np.random.default_rng(0)
    arguments: dict[str, torch.Tensor] = {}
    for value in definition.declared:
        shape = shape_sizes(value, sizes)
        over = (steps,) if value.role.name == "INPUT" else ()
        drawn = numbers.uniform(0.1, 0.9, (*over, *shape))
        arguments[str(value)] = torch.tensor(drawn, dtype=torch.float32)
    module = cellgen.load(name, "triton").module
    valid = torch.tensor(numbers.random((steps, 2)) < 0.7)
    before = Gaps(valid, valid & torch.tensor(numbers.random((steps, 2)) < 0.2)).before
    with watched(name) as watch, np.errstate(all="ignore"):  # lanes that are masked, too
        how = {"segments": segments, "ahead": ahead, "chosen": BLOCKS}
        how |= {"before": before} if gaps else {}
        run = PlanRun(module, dict(sizes), arguments, **how)
        outputs = run.forward()
        back = run.backward({f"d_{n}": torch.ones_like(a) for n, a in outputs.items()})
    for array in (*outputs.values(), *back.values()):
        assert torch.isfinite(array).all()
    return watch


@quick_first
def test_every_access_of_both_passes_is_legal(definition) -> None:
    for cut in CUTS:
        watch = watched_run(definition.name, *cut)
        assert len(watch.launches) >= (4 if cut[1] > 1 else 2)
    watched_run(definition.name, *CUTS[1], gaps=True)


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(d, id=d.name, marks=[] if d.name == "min_gru" else pytest.mark.slow)
        for d in SCANS
    ],
)
def test_machine_code_for_hopper_addresses_what_it_may_and_spills_nothing(definition) -> None:
    reports = check_machine_code(watched_run(definition.name, *CUTS[1]).launches)
    assert len(reports) >= 4
    assert [str(report) for report in reports if report.faults] == []
    assert [str(report) for report in reports if report.uses.stack] == []


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(d, id=d.name, marks=[] if d.name == "gated_delta_net" else pytest.mark.slow)
        for d in MEMORIES
    ],
)
def test_every_access_of_memories_is_legal_and_counted(definition) -> None:
    """A chunk and a remainder, keys and values that fill no block; each read is written once."""
    watched_run(definition.name, 20, 1, 2, gaps=True)
    watch = watched_run(definition.name, 20, 1, 2)
    scans = {kernel for kernel, _ in watch.traffic if kernel.endswith("_scan")}
    assert scans
    assert all(watch.products[scan] > 0 for scan in scans)
    plan, sizes = cellgen.load(definition.name, "triton").module.PLAN, {**SIZES, "T": 20}
    buffers = [one for memory in plan["memories"] for one in memory["buffers"].items()]
    for name in (name for name, buffer in buffers if buffer["role"] == "read"):
        numbers = prod(size_of(axis, sizes) for axis in plan["arrays"][name]["shape"])
        (traffic,) = (
            watch.traffic[s, f"{name}_p"] for s in scans if (s, f"{name}_p") in watch.traffic
        )
        again = traffic.written // (4 * numbers)
        assert again == (2 if definition.name == "rwkv6" else 1)  # its gates are strong: marked

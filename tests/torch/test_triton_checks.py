"""Generated Triton kernels under both checks: every access watched, machine code for Hopper run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

import cellgen  # noqa: E402
from cellgen.cells import SHIPPED  # noqa: E402
from cellgen.program.chunks import form_over_time  # noqa: E402
from cellgen.program.interpret import shape_sizes  # noqa: E402
from cellgen.proof.interpreted import BUILDER  # noqa: E402
from cellgen.proof.machine.launched import check_machine_code  # noqa: E402
from cellgen.proof.watched import Watch, WatchedCall, watched  # noqa: E402
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
with_gaps_or_all = pytest.mark.parametrize(
    "gaps", [pytest.param(False, marks=pytest.mark.slow), True]
)
"""Steps that are left out go through all that others do."""


def watched_run(name: str, steps: int, segments: int, ahead: int, gaps: bool = False) -> Watch:
    """Both passes of a cell with every load and store watched; with ``gaps`` steps are left out."""
    return watched_results(name, steps, segments, ahead, gaps)[0]


@cache
def watched_results(
    name: str, steps: int, segments: int, ahead: int, gaps: bool = False, once: int = 0
) -> tuple[Watch, dict[str, torch.Tensor]]:
    """The same, and all results; segments of ``once`` steps are read once."""
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
        if once:
            plan = (*module.PLAN["forward"], *module.PLAN["backward"])
            settings = {"units": 1, "warps": 1, "ahead": once, "programs": 0, "once": once}
            how["chosen"] = {one["kernel"]: settings for one in plan if one["op"] == "launch"}
        how |= {"before": before} if gaps else {}
        run = PlanRun(module, dict(sizes), arguments, **how)
        outputs = run.forward()
        back = run.backward({f"d_{n}": torch.ones_like(a) for n, a in outputs.items()})
    for array in (*outputs.values(), *back.values()):
        assert torch.isfinite(array).all()
    return watch, {**outputs, **{f"d_{name}": array for name, array in back.items()}}


@quick_first
def test_every_access_of_both_passes_is_legal(definition) -> None:
    for cut in CUTS:
        watch = watched_run(definition.name, *cut)
        assert len(watch.launches) >= (4 if cut[1] > 1 else 2)
    watched_run(definition.name, *CUTS[1], gaps=True)


once_first = pytest.mark.parametrize(
    "definition",
    [
        pytest.param(d, id=d.name, marks=[] if d.name in QUICK else pytest.mark.slow)
        for d in SCANS
        if d.name != "rwkv4"  # a maximum and two sums in one kernel, which is no linear scan
    ],
)
ONCE, SEGMENTS = 4, 6
"""Steps of a segment that is read once; such segments, one of them shorter."""
FORMED, KNOWN = 1, 2
"""What is told of a segment."""


@once_first
@with_gaps_or_all
def test_segments_that_are_read_once_give_the_bits_of_two_launches(definition, gaps: bool) -> None:
    cut = (ONCE * SEGMENTS - 1, SEGMENTS, 2, gaps)
    _, expected = watched_results(definition.name, *cut)
    watch, found = watched_results(definition.name, *cut, once=ONCE)
    once = [call.kernel for call in watch.launches if call.kernel.endswith("_once")]
    assert once
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in found)


@once_first
def test_streams_of_segments_that_are_read_once_are(definition) -> None:
    """What is told of a segment is written once and read once; others are of rows, or weights."""
    steps = ONCE * SEGMENTS - 1
    watch, _ = watched_results(definition.name, steps, SEGMENTS, 2, once=ONCE)
    plan, sizes = cellgen.load(definition.name, "triton").module.PLAN, {**SIZES, "T": steps}
    for one in (*plan["forward"], *plan["backward"]):
        if one["op"] != "launch" or not one["once"]:
            continue
        for pointer, array in one["once_arrays"].items():
            axes, traffic = plan["arrays"][array]["shape"], watch.traffic[one["once"], pointer]
            if "T" in axes:
                numbers = prod(size_of(axis, sizes) for axis in axes)
                assert traffic.read in (0, traffic.distinct_read)
                assert traffic.read + traffic.written <= 4 * numbers
            elif "segments" in axes:
                numbers = prod(size_of(axis, sizes | {"segments": SEGMENTS}) for axis in axes)
                assert max(traffic.read, traffic.written) <= 4 * numbers


@once_first
@with_gaps_or_all
def test_whatever_segments_have_told_by_then_the_bits_are_the_same(
    definition, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that have told what their segment does, and not yet where it ends, are passed by."""
    cut = (ONCE * SEGMENTS - 1, SEGMENTS, 2, gaps)
    _, expected = watched_results(definition.name, *cut)
    numbers, told, passed = np.random.default_rng(1), set[int](), 0
    exchange = BUILDER.create_atomic_rmw

    def slowly(kind: object, at: object, value: object, *rest: object) -> object:
        nonlocal passed
        if int(np.max(value.data)) == KNOWN:
            place = int(np.max(at.data))
            told.add(place)
            if place - 4 in told and numbers.random() < 0.6:  # not the first: all wait for it
                passed += 1
                mask, *orders = rest
                rest = (interpreter.TensorHandle(np.zeros_like(mask.data), mask.dtype), *orders)
        return exchange(kind, at, value, *rest)

    monkeypatch.setattr(BUILDER, "create_atomic_rmw", slowly)
    _, found = watched_results.__wrapped__(definition.name, *cut, once=ONCE)
    assert passed > 1
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_a_program_that_waits_in_vain_goes_on_with_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = cellgen.load("min_gru", "triton").module
    monkeypatch.setattr(module, "POLLS", tl.constexpr(3))
    exchange = BUILDER.create_atomic_rmw

    def in_vain(kind: object, at: object, value: object, *rest: object) -> object:
        mask, *orders = rest
        if int(np.max(value.data)) in (FORMED, KNOWN) and "RELEASE" in str(orders[0]):
            rest = (interpreter.TensorHandle(np.zeros_like(mask.data), mask.dtype), *orders)
        return exchange(kind, at, value, *rest)

    monkeypatch.setattr(BUILDER, "create_atomic_rmw", in_vain)
    weights = {"b_z": torch.ones(3), "b_n": torch.ones(3), "h_prev": torch.ones(1, 3)}
    arrays = {"x": torch.ones(9, 1, 1), "w_z": torch.ones(1, 3), "w_n": torch.ones(1, 3)}
    settings = {"units": 1, "warps": 1, "ahead": ONCE, "programs": 0, "once": ONCE}
    run = PlanRun(
        module,
        {"T": 9, "B": 1, "H": 3, "I": 1},
        arrays | weights,
        chosen={"rows_1": settings},
    )
    with np.errstate(all="ignore"):
        h = run.forward()["h"]
    assert torch.isfinite(h[:ONCE]).all()
    assert torch.isnan(h[ONCE:]).all()


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


def once_launches(name: str, gaps: bool) -> list[WatchedCall]:
    """Launches of kernels that read their segments once."""
    watch, _ = watched_results(name, ONCE * SEGMENTS - 1, SEGMENTS, 2, gaps, once=ONCE)
    return [call for call in watch.launches if call.kernel.endswith("_once")]


@once_first
@with_gaps_or_all
def test_machine_code_that_reads_segments_once_addresses_what_it_may(
    definition, gaps: bool
) -> None:
    reports = check_machine_code(once_launches(definition.name, gaps))
    assert len(reports) >= 2
    assert [str(report) for report in reports if report.faults] == []


@pytest.mark.parametrize(
    ("kernel", "pointer", "kept"),
    [
        ("rows_1_once", "starts_ptr", 4),  # where the first segment ends
        ("rows_1_back_once", "ends_ptr", 2 * 40 * 4 * 2 * (SEGMENTS - 2)),  # the last two are first
    ],
)
def test_machine_code_is_seen_to_look_at_segments_before_it(
    kernel: str, pointer: str, kept: int
) -> None:
    """With less in an array, what the last program finds there of others lies outside."""
    (call,) = (one for one in once_launches("min_gru", gaps=False) if one.kernel == kernel)
    sizes = ((name, kind, kept if name == pointer else n) for name, kind, n in call.arguments)
    (report,) = check_machine_code([replace(call, arguments=tuple(sizes))])
    last = [fault for fault in report.faults if fault.program[2] == SEGMENTS - 1]
    assert last
    assert {fault.kind for fault in last} == {"global"}


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(d, id=d.name, marks=[] if d.name == "hgrn2" else pytest.mark.slow)
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

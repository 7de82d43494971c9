"""Strips of matrices: loops over the same rows of a state are one pass over it, in vectors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.memories import CELLS, GatedDelta, GatedLinear, drawn, step
from cellgen import Cell, Dim, I, Input, State, Weight, api, expand_dims, tanh
from cellgen.cells import MLSTM, SHIPPED
from cellgen.language.ops import outer, transpose
from cellgen.pipeline import generate, time_plans
from cellgen.runtime.build.compiler import FLAGS_VARIABLE
from cellgen.runtime.call.workspace import per_thread
from cellgen.runtime.kernel import Kernel
from cellgen.schedule.lower.plan import LoopPlan, PartPlan, StripPlan, TimePlan
from cellgen.schedule.lower.strips import with_strips
from cellgen.schedule.schedule import Loop
from tests.runtime.call.test_checkpoints import Sequence, equal

D, K, N = Dim("D"), Dim("K"), Dim("N")


def fused(cell: type[Cell]) -> tuple[TimePlan, ...]:
    """The plans of C, forward and backward."""
    return tuple(map(with_strips, time_plans(cell)))


def passes(part: PartPlan) -> int:
    """How many stages go through arrays that are as large as the state."""
    loops = {n: _loops(stage) for n, stage in enumerate(part.stages)}
    return sum(any(len(loop.axes) > 1 for loop in own) for own in loops.values())


def _loops(stage: object) -> tuple[Loop, ...]:
    if isinstance(stage, StripPlan):
        return stage.loops
    return (stage.loop,) if isinstance(stage, LoopPlan) else ()


@pytest.mark.parametrize("cell", CELLS.values())
def test_a_step_goes_through_a_matrix_state_once(cell: type[Cell]) -> None:
    """So does a step backward; what is deferred reads vectors alone, and none of them is kept."""
    forward, backward = fused(cell)
    assert [passes(part) for part in (*forward.parts, *backward.parts)] == [1, 1, 0]
    assert D * K not in [item.width for item in backward.kept]
    wide = [item.name for item in backward.memory if item.width == D * K]
    assert {name.partition("_")[0] for name in wide} == {"d", "now"}  # a pair of gradients; a guard


def test_the_delta_rule_keeps_nothing_as_large_as_the_state_between_its_loops() -> None:
    before, after = time_plans(GatedDelta)[0], fused(GatedDelta)[0]
    wide = [
        [m.name for m in plan.memory if m.name.startswith("forward_") and m.width == D * K]
        for plan in (before, after)
    ]
    assert wide == [["forward_r"], []]
    (stage,) = after.parts[0].stages
    assert isinstance(stage, StripPlan)
    assert [len(loop.axes) for loop in stage.loops] == [2, 0, 2, 0]
    read = [str(load.value) for loop in stage.loops for load in loop.loads if len(loop.axes) == 2]
    assert read.count("s_prev") == 2  # and r is formed of it twice


def test_gradients_that_hand_on_entry_by_entry_are_one_loop() -> None:
    (stage,) = [s for s in fused(GatedLinear)[1].parts[0].stages if isinstance(s, StripPlan)]
    (loop,) = stage.loops
    formed = [str(line.statement.target) for line in loop.lines]
    assert formed[:3] == ["d_s_in", "d_s_total", "d_s_prev"]
    assert [line.view is None for line in loop.lines[:3]] == [True, True, False]


class Turned(Cell):
    """A state that is read across its rows has two places."""

    k, v, s_prev = Input(D), Input(D), State(D, D)
    s = transpose(s_prev) + outer(v, k)
    h = s @ k
    outputs = h, s


def test_a_state_is_written_in_place_where_each_entry_is_read_before() -> None:
    assert [fused(cell)[0].states[0].in_place for cell in CELLS.values()] == [True] * 3
    assert [state.in_place for state in fused(MLSTM)[0].states] == [True, True, False]
    assert [state.in_place for state in fused(Turned)[0].states] == [False]
    assert fused(GatedDelta)[1].states[0].in_place  # its gradient


@pytest.mark.parametrize("name", ["gated delta rule", "gated linear attention"])
def test_rows_and_units_that_fill_no_vector_are_added_too(name: str) -> None:
    kernel = api.compile(CELLS[name])
    for shape in ((4, 3, 23, 37), (3, 2, 3, 5)):
        _agrees_with_numpy(name, kernel, shape)


def _agrees_with_numpy(name: str, kernel: Kernel, shape: tuple[int, ...]) -> None:
    given = drawn(kernel, shape)
    run = kernel.sequence_forward(**given)
    s, shown = given["s_prev"].astype(float), []
    for at in range(shape[0]):
        s, h = step(
            name, np, s, {n: a[at].astype(float) for n, a in given.items() if n != "s_prev"}
        )
        shown.append(h)
    np.testing.assert_allclose(run.h, shown, rtol=0, atol=2e-5)
    np.testing.assert_allclose(run.s[-1], s, rtol=0, atol=2e-5)
    last = kernel.sequence_forward(**given, last_only=True, threads=2)
    np.testing.assert_array_equal(last.h, run.h[-1])
    np.testing.assert_array_equal(last.s_last, run.s_last)


BAND_BYTES = 768 << 10


def test_rows_share_the_memory_of_a_segment_band_by_band() -> None:
    """One thread takes some rows over a segment, forward and back, then the next ones.

    Products are formed ahead of them, what is deferred has all rows, and no bit is another.
    """
    sizes = {"T": 20, "B": 9, "I": 3, "N": 2, "K": 32, "D": 96}
    case, steps = Sequence(api.load("gated_delta_net"), sizes, "float32"), 8
    whole, run = case.gradients(case.run()), case.run(checkpoint=steps)
    touched = {}
    for threads in (1, 2):
        case.gradients(run, threads=threads)
        per_thread.memory.owner[:] = 0xA5
        equal(case.gradients(run, threads=threads), whole)
        touched[threads] = np.count_nonzero(per_thread.memory.owner != 0xA5)
    states = 4 * sizes["B"] * sizes["N"] * sizes["K"] * sizes["D"]  # bytes of those of a step
    assert touched[2] - touched[1] > 0.9 * (steps + 1) * states - BAND_BYTES > 0


BANDS = "-O1 -DCELLGEN_BAND_BYTES={} -DCELLGEN_BAND_SHARE=0"


def _same_in_bands(name: str, dtype: str, steps: int) -> None:
    kernel = api.load(name)
    sizes = {dim: 3 + n % 3 for n, dim in enumerate(kernel.sequence_forward.function.dims)}
    case = Sequence(kernel, sizes | {"T": 29, "B": 19}, dtype)
    equal(case.gradients(case.run(checkpoint=steps)), case.gradients(case.run()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [cell.definition.name for cell in SHIPPED])
def test_bands_change_no_bit_of_any_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (0, 2000):
        monkeypatch.setenv(FLAGS_VARIABLE, BANDS.format(limit))
        for dtype in ("float32", "float64"):
            for steps in (5, 12, 40):
                _same_in_bands(name, dtype, steps)


class ByHead(Cell):
    """A matrix of each head by a weight."""

    x, s_prev = Input(I), State(N, K, D)
    w, u = Weight(I, N, K), Weight(N, D, D)
    s = tanh(s_prev @ u) + expand_dims(x @ w, -1)


def test_a_matrix_by_a_weight_goes_through_tiles() -> None:
    _, _, text = generate(ByHead, ("c",)).text(".c").partition("by_head_sequence_forward: ")
    forward, _, _ = text.partition("by_head_sequence_backward: ")
    assert "cg_gemm_nn(nK, nD, nD, " in forward
    assert "_strip)(" not in forward
    kernel, rng = api.compile(ByHead), np.random.default_rng(0)
    for rows in (1, 13, 40):
        sizes = {"B": 2, "I": 3, "N": 2, "K": rows, "D": 19}
        given = kernel.init(rng, dtype=np.float64, **sizes)
        given["u"] = 0.2 * rng.standard_normal(given["u"].shape)
        given["x"] = rng.standard_normal((5, 2, 3))
        s = given["s_prev"]
        for x in given["x"]:
            s = np.tanh(s @ given["u"]) + np.einsum("bi,ink->bnk", x, given["w"])[..., None]
        found = kernel.sequence_forward(**given).s_last
        np.testing.assert_allclose(found, s, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 13, 40])
def test_gradients_of_a_matrix_by_a_weight_go_through_tiles(rows: int) -> None:
    _, _, backward = generate(ByHead, ("c",)).text(".c").partition("by_head_sequence_backward: ")
    assert "cg_gemm_nt(nK, nD, nD, " in backward
    assert "cg_gemm_tn(nD, nD, nK, " in backward
    kernel, rng = api.compile(ByHead), np.random.default_rng(0)
    T, B, N, D = 20, 3, 2, 19
    given = kernel.init(rng, dtype=np.float64, B=B, I=3, N=N, K=rows, D=D)
    u = given["u"] = 0.2 * rng.standard_normal((N, D, D))
    given["x"], lengths = rng.standard_normal((T, B, 3)), [T, 0, 17]
    run = kernel.sequence_forward(**given, lengths=lengths, save=True)
    d_s = rng.standard_normal(run.s.shape)
    back = {"s": run.s, "saved": run.saved, "d_s": d_s}
    found = kernel.sequence_backward(**given, **back, threads=1)
    many = kernel.sequence_backward(**given, **back, threads=3)
    d_u, d_prev = np.zeros_like(u), np.zeros_like(d_s[0])
    for t in reversed(range(T)):
        valid = (t < np.array(lengths))[:, None, None, None]
        before = run.s[t - 1] if t else np.broadcast_to(given["s_prev"], d_prev.shape)
        d_product = valid * (d_s[t] + d_prev) * (1 - np.tanh(before @ u) ** 2)
        d_u += np.einsum("bnkd,bnke->nde", before, d_product)
        d_prev = np.where(valid, d_product @ u.swapaxes(1, 2), d_prev)
    np.testing.assert_allclose(found.d_u, d_u, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.d_s_prev, d_prev, rtol=1e-11, atol=1e-11)
    assert all(np.array_equal(one, other) for one, other in zip(found, many, strict=True))


def test_a_single_step_goes_through_tiles_too() -> None:
    text = generate(ByHead, ("c",)).text(".c")
    steps, _, _ = text.partition("by_head_sequence_forward: ")
    products = ("nn(nK, nD, nD, ", "nt(nK, nD, nD, ", "tn(nD, nD, nK, ")
    assert all(f"cg_gemm_{product}" in steps for product in products)
    kernel, rng = api.compile(ByHead), np.random.default_rng(0)
    given = kernel.init(rng, dtype=np.float64, B=3, I=3, N=2, K=13, D=19)
    given["x"], given["s_prev"] = rng.standard_normal((3, 3)), rng.standard_normal((3, 2, 13, 19))
    u, upstream = given["u"], rng.standard_normal((3, 2, 13, 19))
    s = np.tanh(given["s_prev"] @ u) + np.einsum("bi,ink->bnk", given["x"], given["w"])[..., None]
    np.testing.assert_allclose(kernel.forward(**given).s, s, rtol=1e-12, atol=1e-13)
    d_product = upstream * (1 - np.tanh(given["s_prev"] @ u) ** 2)
    known = {**given, "s": s, "d_s": upstream}
    for one in (kernel.backward, kernel.weight_gradients):
        names = (argument.name for argument in one.function.arguments)
        known |= one(**{name: known[name] for name in names})._asdict()
    d_u = np.einsum("bnkd,bnke->nde", given["s_prev"], d_product)
    np.testing.assert_allclose(known["d_u"], d_u, rtol=1e-11, atol=1e-11)
    d_prev = d_product @ u.swapaxes(1, 2)
    np.testing.assert_allclose(known["d_s_prev"], d_prev, rtol=1e-11, atol=1e-11)

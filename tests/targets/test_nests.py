"""Sums along any axes of a step: loops that tell the inner axes of a row apart."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from cellgen import Cell, Dim, I, Input, State, Weight, api, mean, sigmoid, sum
from cellgen.cells import MLSTM, RWKV7, GatedDeltaNet, Mamba2
from cellgen.errors import DeclarationError
from cellgen.language.ops import shape_of, units_sum
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import generate, programs_of, schedule_of, time_plans
from cellgen.program.interpret import interpret
from cellgen.proof import check
from cellgen.schedule import BufferKind, Loop, Store
from tests.conftest import DeltaRule, MatrixHeads, draw
from tests.matrix_cells import drawn

D, K = Dim("D"), Dim("K")

SEEDS = [
    *(0, 4, 11),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 124)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_cells_with_matrices_agree_with_the_equations(seed: int) -> None:
    """Step and sequence against the interpreter, every gradient against the complex step."""
    report = check.check(drawn(seed))
    judged = [row for row in report.rows if row.verdict != "skipped"]
    assert [row.name for row in judged if not row.ok] == []
    assert {row.name for row in judged} >= {
        "backward by complex step",
        "C float64 sequence_forward",
        "C sequence_backward with options",
    }


@pytest.mark.parametrize("seed", range(200, 212))
def test_every_drawn_cell_is_scheduled(seed: int) -> None:
    cell = drawn(seed)
    assert schedule_of(cell).functions
    assert len(time_plans(cell)) == 2


@pytest.mark.parametrize("cell", [DeltaRule, MatrixHeads])
def test_matrix_cells_agree_with_the_equations(cell: type[Cell]) -> None:
    report = check.check(cell)
    assert [row.name for row in report.rows if row.verdict != "skipped" and not row.ok] == []


def test_the_delta_rule_is_what_its_equations_say() -> None:
    forward, _ = programs_of(DeltaRule).mathematics
    sizes = {"B": 2, "I": 3, "D": 4, "K": 5}
    given = draw(forward.arguments, sizes=sizes)
    q, k, v, b = (np.tensordot(given["x"], given[w], axes=1) for w in ("w_q", "w_k", "w_v", "w_b"))
    old = np.einsum("bdk,bk->bd", given["s_prev"], k[:, 0])
    step = (1 / (1 + np.exp(-b[:, :, 0]))) * (v[:, :, 0] - old)
    s = given["s_prev"] + np.einsum("bd,bk->bdk", step, k[:, 0])
    found = interpret(forward, given, sizes)
    np.testing.assert_allclose(found["s"], s, rtol=1e-14)
    np.testing.assert_allclose(found["h"][:, :, 0], np.einsum("bdk,bk->bd", s, q[:, 0]), rtol=1e-13)


@pytest.mark.parametrize("cell", [DeltaRule, MatrixHeads])
def test_no_temporary_is_as_large_as_the_matrix(cell: type[Cell]) -> None:
    """What is formed of a matrix and a vector is added up where it is formed."""
    state = next(v for v in cell.definition.declared if v.role is Role.STATE)
    function = schedule_of(cell).functions[0]
    wide = [b.name for b in function.of_kind(BufferKind.WORKSPACE) if b.value.shape == state.shape]
    assert wide == []
    nests = [stage for stage in function.stages if isinstance(stage, Loop) and stage.is_nest]
    assert all(nest.axes == state.shape[1:] for nest in nests)
    stores = {line.store for nest in nests for line in nest.lines}
    assert stores == {Store.WRITE, Store.ADD_UNITS}


def test_sums_are_the_same_for_any_number_of_threads() -> None:
    kernel, rng = api.compile(DeltaRule), np.random.default_rng(3)
    shapes = {"x": (5, 9, 4), "w_q": (4, 1, 5), "w_k": (4, 1, 5), "w_v": (4, 6, 1)}
    shapes |= {"w_b": (4, 1, 1), "s_prev": (9, 6, 5)}
    given = {n: 0.3 * rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    runs = [kernel.sequence_forward(**given, threads=threads, save=True) for threads in (1, 4)]
    np.testing.assert_array_equal(runs[0].h, runs[1].h)
    back = [
        kernel.sequence_backward(
            **given, h=r.h, s=r.s, saved=r.saved, d_h=np.ones_like(r.h), threads=threads
        )
        for r, threads in zip(runs, (1, 4), strict=True)
    ]
    for first, second in zip(*back, strict=True):
        np.testing.assert_array_equal(first, second)


def test_axes_are_named() -> None:
    s = Value("s", (B, D, K), Role.STATE)
    assert shape_of(units_sum(s, axis=D)) == (B, 1, K)
    assert shape_of(units_sum(s, axis=(D, K))) == shape_of(units_sum(s, axis=all)) == (B, 1, 1)
    assert shape_of(mean(s, axis=-2)) == (B, 1, K)
    square = Value("m", (B, D, D), Role.STATE)
    with pytest.raises(DeclarationError, match=r"axis=D\): that dimension is twice in \(B, D, D\)"):
        units_sum(square, axis=D)
    with pytest.raises(DeclarationError, match=r"axis=I\).* whose rows have D, K; name one"):
        units_sum(s, axis=I)
    with pytest.raises(DeclarationError, match=r"axis=B\).* whose rows have D, K"):
        units_sum(s, axis=B)


def test_a_sum_along_an_axis_that_is_not_there_names_the_line() -> None:
    with pytest.raises(DeclarationError, match=r"Lost: sum\(..., axis=I\)") as caught:

        class Lost(Cell):
            x, w, s_prev = Input(I), Weight(I, D, 1), State(D, K)
            s = sigmoid(sum(s_prev, axis=I)) * s_prev + x @ w

    assert "test_nests.py" in str(caught.value)


SIZES = {"nN": 16, "nD": 64, "nK": 64, "nH": 1024}
"""16 heads with a memory of 64 by 64."""
SHARED_LOOP = re.compile(
    r"for \(int64_t axis\d = (0|threadIdx\.x); (?:is_mine && )?axis\d < (\w+);"
)


def terms_of_a_thread(kernel: str) -> int:
    """How many terms one thread of a kernel adds up, one after the other."""
    loops = SHARED_LOOP.findall(kernel)
    return math.prod(SIZES[n] if start == "0" else math.ceil(SIZES[n] / 32) for start, n in loops)


@pytest.mark.parametrize("cell", [Mamba2, GatedDeltaNet, MLSTM, RWKV7])
def test_on_a_device_a_warp_shares_a_sum_to_one_number_a_head(cell: type[Cell]) -> None:
    """Some threads for 16 heads that each add up 64 x 64 numbers wait for memory 4096 times."""
    text = generate(cell, ("cuda",)).text(".cu")
    kernels = [one.partition("\n}\n")[0] for one in text.split("__global__")[1:]]
    sums = [one for one in kernels if "const bool is_mine" in one]
    assert len(sums) >= 4
    assert all("cellgen_entry_total" in one for one in sums)
    per_step = [one for one in kernels if "nest_rows" not in one and "axis" in one]
    assert max(map(terms_of_a_thread, per_step)) <= 64 * 64 // 32

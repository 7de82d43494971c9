"""Plans over time: values that print, chosen by the C, followed to the bit, refused when unfit."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen.cells import SHIPPED
from cellgen.errors import ArgumentError
from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import tanh, units_mean
from cellgen.language.value import H, I
from cellgen.runtime import abi
from cellgen.runtime.build.library import Types
from cellgen.runtime.host.plans import Constants, SequencePlan
from cellgen.runtime.paths import include_folder
from tests.drawing import draw_arrays
from tests.drivers import OBSERVED, OBSERVED_HEADER, SMALL, in_small_parts

DIMS = {"T": 9, "B": 5, "I": 7, "H": 33}


@cache
def kernel(name: str = "gru_block_cell") -> cellgen.Kernel:
    return cellgen.load(name)


def arguments(dims: dict[str, int], name: str = "gru_block_cell") -> dict[str, np.ndarray]:
    return draw_arrays(kernel(name).sequence_forward.function, dims, scale=0.3, dtype="f")


def run(dims: dict[str, int], threads: int, **changes: object) -> list[np.ndarray]:
    """Every result of forward and backward, under the kernel's own plans but for some changes."""
    given, k = arguments(dims), kernel()
    plans = [
        replace(f.plan(threads=threads, **dims), **changes)
        for f in (k.sequence_forward, k.sequence_backward)
    ]
    y = k.sequence_forward(**given, save=True, threads=threads, plan=plans[0])
    outputs = {n: getattr(y, n) for n in ("r", "u", "c", "h")}
    g = k.sequence_backward(
        **given,
        **outputs,
        saved=y.saved,
        d_h=np.ones_like(y.h),
        threads=threads,
        plan=plans[1],
    )
    return [*y[:-1], *g]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"by_units": True},
        {"by_units": True, "hoist": True},
        {"by_units": True, "unpacked": True},
        {"by_units": True, "hoist": True, "window_rows": 10},
        {"by_units": False, "hoist": False, "unpacked": False},
        {"chunk_rows": 5},
        {"chunk_rows": 20},
        {"chunk_rows": 10**6, "window_rows": 10**6},
    ],
    ids=str,
)
def test_no_plan_changes_a_bit(threads, changes):
    for found, expected in zip(run(DIMS, threads, **changes), run(DIMS, 1), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_small_shapes_under_every_choice(steps, rows):
    dims = {**DIMS, "T": steps, "B": rows}
    expected = run(dims, 1)
    for hoist, unpacked in ((False, False), (False, True), (True, False)):
        found = run(dims, 2, by_units=True, hoist=hoist, unpacked=unpacked)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_plan_follows_the_shape():
    plan = kernel().sequence_forward.plan
    assert plan(**{**DIMS, "B": 1}, threads=1).hoist
    assert not plan(**{**DIMS, "B": 64}, threads=1).hoist
    assert plan(**{**DIMS, "B": 1}, threads=2).by_units
    assert not plan(**{**DIMS, "B": 64}, threads=2).by_units
    large = {"T": 9, "I": 512, "H": 512, "threads": 2}  # weights exceed a core's cache
    assert plan(B=31, **large).by_units
    assert not plan(B=32, **large).by_units
    assert plan(B=32, **large | {"T": 1}).unpacked
    larger = plan(B=128, **large | {"H": 1024})  # and what two cores share
    assert (larger.by_units, larger.hoist) == (True, True)
    assert not plan(B=31, **large).hoist
    assert plan(**{**DIMS, "T": 1}, threads=1).unpacked
    assert plan(**DIMS, threads=1, dtype=np.float64).weight_bytes >= 2 * 4 * 40 * 99


@pytest.mark.parametrize("name", ["min_gru", "sru"])
def test_products_that_wait_for_no_state_run_ahead_of_the_loop(name):
    """Threads share units and never meet; a product in every step would change no bit."""
    forward = kernel(name).sequence_forward
    dims = {n: {"T": 50, "B": 5}.get(n, 100) for n in forward.function.dims}
    given = arguments(dims, name)
    own = forward.plan(**dims, threads=2)
    assert (own.by_units, own.hoist) == (True, True)
    assert forward.plan(**dims, threads=1).hoist
    assert not forward.plan(**dims | {"B": 400}, threads=100).by_units  # too few blocks of units
    for batch, few in ((15, True), (16, False)):  # 8 for each thread fill a tile
        found = forward.plan(**dims | {"B": batch}, threads=2)
        assert (found.by_units, found.hoist) == (few, few)
    inside = replace(own, hoist=False)
    rows = replace(own, hoist=False, by_units=False)
    expected = forward(**given, save=True, threads=1)
    for plan in (own, inside, rows, replace(own, window_rows=10)):
        found = forward(**given, save=True, threads=2, plan=plan)
        for one, other in zip(
            found[:-1] + found.saved, expected[:-1] + expected.saved, strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_the_plan_follows_the_constants():
    plan = kernel().sequence_forward.plan
    few = Constants(hoist_rows=0, rows_per_thread=0, weights_in_cache=10**9, window_rows=5)
    found = plan(**DIMS, threads=2, constants=few)
    assert (found.by_units, found.hoist, found.window_rows) == (False, False, 5)
    assert found.by.hoist_rows == 0
    assert found.by.chunk_rows == plan(**DIMS, threads=2).by.chunk_rows > 0
    assert plan(**DIMS, threads=1, constants=Constants(hoist_rows=5)).hoist


def test_a_plan_prints():
    shown = str(kernel().sequence_forward.plan(**DIMS, threads=2))
    assert all(f"{name} = " in shown for name in abi.PLAN)


@pytest.mark.parametrize(
    "changes",
    [
        {"hoist": True, "by_units": False},
        {"unpacked": True, "by_units": False},
        {"hoist": True, "unpacked": True, "by_units": True},
    ],
    ids=str,
)
def test_a_plan_that_threads_cannot_follow_is_refused(changes):
    with pytest.raises(ArgumentError, match="a plan that the function cannot follow"):
        run(DIMS, 2, **changes)


def test_what_is_no_plan_is_refused():
    k = kernel()
    given = arguments(DIMS)
    with pytest.raises(ArgumentError, match="plan is dict, expected a SequencePlan"):
        k.sequence_forward(**given, plan={"threads": 2})
    found = k.sequence_forward(**given, save=True)
    plan = k.sequence_backward.plan(**DIMS)
    with pytest.raises(ArgumentError, match="bp_lim and plan are both given"):
        k.sequence_backward(**given, h=found.h, saved=found.saved, plan=plan, bp_lim=1)


def test_a_sum_over_units_is_not_split():
    k = kernel("layer_norm_gru")
    given = arguments(DIMS, "layer_norm_gru")
    plan = k.sequence_forward.plan(**DIMS, threads=2)
    assert not plan.by_units
    with pytest.raises(ArgumentError, match="a plan that the function cannot follow"):
        k.sequence_forward(**given, threads=2, plan=replace(plan, by_units=True))


@pytest.mark.parametrize("dims", [{"T": 3}, {**DIMS, "K": 2}, {**DIMS, "B": -1}], ids=str)
def test_wrong_dimensions_are_named(dims):
    with pytest.raises(ArgumentError, match="a plan needs the dimensions T, B, I, H"):
        kernel().sequence_forward.plan(**dims)


def test_c_and_python_know_the_same_members():
    headers = ("cellgen.h", "cellgen_options.h")
    text = "\n".join((include_folder() / n).read_text(encoding="utf-8") for n in headers)
    assert f"#define CELLGEN_ABI_VERSION {abi.ABI_VERSION}\n" in text
    members = {"constants": abi.CONSTANTS, "plan": (*abi.PLAN, "by"), "options": abi.OPTIONS}
    for struct, names in members.items():
        body = re.findall(r"typedef struct \{([^}]*)\} cellgen_" + struct, text)[0]
        found = re.findall(
            r"^\s*(?:const )?(?:unsigned )?\w+ \**(?:const \*)?(\w+);", body, re.MULTILINE
        )
        assert tuple(found) == names
    known = Types({})
    for struct, names in members.items():
        assert tuple(n for n, _ in known.typeof(f"cellgen_{struct}").fields) == names
    codes = re.findall(r"^\s*CELLGEN_\w+ = (\d+)", text, re.MULTILINE)
    assert tuple(map(int, codes)) == tuple(abi.ERROR_CODES)
    assert tuple(SequencePlan.__dataclass_fields__) == (*abi.PLAN, "by")


def test_a_single_step_reads_weights_where_they_lie_unless_rows_are_many():
    """768 KiB of recurrent weights, used once: packing them took two fifths of a backward pass."""
    plan = cellgen.load("gru").sequence_backward.plan
    for steps, rows, by_units in ((1, 32, True), (1, 127, True), (1, 128, False), (2, 32, False)):
        found = plan(T=steps, B=rows, I=128, H=256, threads=2)
        assert (found.by_units, found.unpacked) == (by_units, by_units)


@pytest.mark.parametrize(
    ("cell", "units", "rows"),
    [
        ("lstm", 64, 384),
        ("lstm", 128, 192),
        ("lstm", 512, 192),
        ("lstm", 1024, 768),
        ("min_gru", 64, 192),  # no weights in the time loop: all are deferred
    ],
)
def test_chunks_are_longer_where_weights_leave_the_cache_or_are_little_work(cell, units, rows):
    plan = cellgen.load(cell).sequence_backward.plan
    for threads in (1, 2):  # the workspace is as large for any number
        assert plan(T=100, B=12, I=units, H=units, threads=threads).chunk_rows == rows


class Level(Cell):
    """A gate of one unit: the gradient of its bias is a sum over rows of single numbers."""

    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(1)
    h_bar = x @ w + h_prev @ u
    level = tanh(units_mean(h_bar) + b)
    h = tanh(h_bar) * level


def test_sums_over_rows_are_the_same_for_any_threads_and_chunks():
    """Rows are summed in groups of 16, whoever sums them and wherever a chunk of steps ends."""
    dims = {"T": 23, "B": 7, "I": 3, "H": 5}
    k, rng = cellgen.compile(Level), np.random.default_rng(0)
    given = draw_arrays(k.sequence_forward.function, dims, rng, scale=1.0)
    forward, backward = k.sequence_forward, k.sequence_backward
    y = forward(**given, save=True)
    given |= {n: array for n, array in y._asdict().items() if n in ("h", "saved")}
    given["d_h"] = rng.normal(size=y.h.shape)
    wanted = {a.name for a in backward.function.arguments} | {"saved"}
    given = {n: array for n, array in given.items() if n in wanted}
    found = set()
    for threads in (1, 2, 3, 12):
        for rows in (7, 14, 49, 161):
            plan = replace(backward.plan(**dims, threads=threads), chunk_rows=rows)
            g = backward(**given, threads=threads, plan=plan)
            found.add((g.d_b.tobytes(), g.d_w.tobytes()))
    assert len(found) == 1
    whole = backward(**given)
    parts = [backward(**given | {"d_h": given["d_h"] * part}).d_b for part in (0.25, 0.75)]
    np.testing.assert_allclose(sum(parts), whole.d_b, rtol=1e-12)  # linear: sums of 161 terms


IN_MEMORY = Constants(weights_in_cache=1)  # weights of any size: products run ahead of the loop


@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("slstm_heads", "min_gru"))]
)
def test_groups_of_rows_and_slices_of_deep_panels_change_no_bit(name, tmp_path, monkeypatch):
    (cell,) = (c for c in SHIPPED if c.definition.name == name)
    sizes = {"T": 3, "B": 150, "I": 7, "H": 21, "K": 2, "D": 19}  # rows of three groups

    def results(built: cellgen.Kernel, by: Constants) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        forward, backward = built.sequence_forward, built.sequence_backward
        arrays = draw_arrays(forward.function, sizes, rng, optional=False)
        given = draw_arrays(backward.function, sizes, rng, optional=True)
        dims = {n: size for n, size in sizes.items() if n in forward.function.dims}
        found = []
        for threads in (1, 2):
            first, second = (
                f.plan(**dims, threads=threads, constants=by, dtype=np.float64)
                for f in (forward, backward)
            )
            assert threads > 1 or first.hoist == (by == IN_MEMORY)
            y = forward(**arrays, save=True, threads=threads, plan=first)._asdict()
            given |= {n: y[n] for n in ("saved", *map(str, cell.definition.outputs))}
            found.append(y | backward(**arrays, **given, threads=threads, plan=second)._asdict())
        one, two = found
        del one["saved"]
        for key, array in one.items():
            assert array.tobytes() == two[key].tobytes(), f"{key}: 1 thread and 2, {by}"
        return one

    whole = results(cellgen.compile(cell), Constants())
    monkeypatch.setenv("CELLGEN_CFLAGS", OBSERVED)
    parts = in_small_parts(cellgen.compile(cell), tmp_path)
    for by in (Constants(), IN_MEMORY):
        for key, array in results(parts, by).items():
            assert array.tobytes() == whole[key].tobytes(), f"{key}: {by}"


def test_parts_that_a_test_makes_small_have_the_sizes_of_users_before():
    ours = OBSERVED_HEADER.read_text()
    headers = "".join(file.read_text() for file in include_folder().glob("*.h"))
    for name in SMALL:
        macro = rf"^#define CELLGEN_{name.upper()} \(?(\d+(?: << \d+)?)"
        (size,) = re.findall(macro, headers, re.M)
        assert re.search(rf"\bcellgen_{name} = {size}[,;]", ours)

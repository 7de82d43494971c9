"""Functions over time: against the interpreted step, complex-step gradients, themselves."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen import (
    Bias,
    Cell,
    H,
    I,
    Input,
    Scalar,
    State,
    Weight,
    api,
    concat,
    exp,
    sigmoid,
    split,
    sqrt,
    tanh,
    transpose,
)
from cellgen import sum as units_sum
from cellgen.cells import (
    GRU,
    LSTM,
    MGU,
    SHIPPED,
    SLSTM,
    CfC,
    Elman,
    FastGRNN,
    GRUBlockCell,
    GRUResetBefore,
    LayerNormLSTM,
    MinGRU,
    SLSTMHeads,
)
from cellgen.errors import ArgumentError
from cellgen.language.ops import Form, units_mean
from cellgen.language.value import B
from cellgen.pipeline import sequence_of
from cellgen.proof.check import check
from cellgen.proof.over_time import STEP, run_steps
from cellgen.runtime.build.compiler import compiler, instruction_set
from cellgen.runtime.paths import generated_folder, include_folder
from cellgen.schedule.groups import Group
from cellgen.schedule.lower import lower
from cellgen.schedule.lower.plan import GroupPlan
from cellgen.schedule.over_time import (
    Storage,
    deferred_barriers,
    products_together,
    row_by_row,
    step_barriers,
    summed_over_rows,
)
from cellgen.schedule.schedule import BufferKind, Loop, Product, Store
from cellgen.targets.interface import sequence_signatures
from tests.conftest import TYPICAL, relative
from tests.cover import each_of, of_all
from tests.drawing import draw_arrays
from tests.drivers import OBSERVED

# float64: rounding of sums of up to 10^3 terms over up to 30 steps. float32: the same at 6e-8,
# times the growth of a difference over the steps of these random cells (observed: below 2e-5).
TOLERANCE = {np.float64: 1e-11, np.float32: 2e-4}
SHAPES = ((3, 4, 5, 7), (1, 1, 1, 1), (4, 2, 3, 17), (6, 33, 20, 40), (30, 3, 9, 16), (1, 5, 4, 33))
EMPTY = ((0, 2, 3, 4), (2, 0, 3, 4), (3, 2, 0, 4))

cells = pytest.mark.parametrize("cell", each_of(of_all, TYPICAL))


@cache
def kernel_of(cell):
    return cellgen.load(cell.definition.name)


def sizes_of(shape):
    return dict(zip("TBIH", shape, strict=True))


def inputs(kernel, shape, dtype):
    return draw_arrays(kernel.sequence_forward.function, sizes_of(shape), dtype=dtype)


def upstream(kernel, shape, dtype):
    function, sizes = kernel.sequence_backward.function, sizes_of(shape)
    return draw_arrays(function, sizes, 1, dtype=dtype, optional=True)


def outputs_of(cell, result):
    return {str(v.name): getattr(result, str(v.name)) for v in cell.definition.outputs}


def run_step_by_step(cell, arguments, shape):
    """Interpret the declared equations for T steps; complex arguments pass through."""
    sequence = run_steps(cell.definition, arguments, sizes_of(shape))
    return sequence.outputs, sequence.last


def assert_close(name, found, expected, dtype):
    scale = np.max(np.abs(expected), initial=0)
    error = np.max(np.abs(found - expected), initial=0)
    assert error <= TOLERANCE[dtype] * scale, (name, error, scale)


@cells
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_agrees_with_the_equations_step_by_step(cell, dtype, shape):
    kernel = kernel_of(cell)
    arguments = inputs(kernel, shape, dtype)
    result = kernel.sequence_forward(**arguments, threads=2)
    outputs, last = run_step_by_step(
        cell, {n: a.astype(np.float64) for n, a in arguments.items()}, shape
    )
    for name, expected in {**outputs, **last}.items():
        assert_close(name, getattr(result, name), expected, dtype)


@cells
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_every_gradient_agrees_with_the_complex_step(cell, shape):
    kernel, rng = kernel_of(cell), np.random.default_rng(2)
    arguments, given = inputs(kernel, shape, np.float64), upstream(kernel, shape, np.float64)
    result = kernel.sequence_forward(**arguments, save=True, threads=2)
    gradients = kernel.sequence_backward(
        **arguments, **outputs_of(cell, result), **given, saved=result.saved, threads=2
    )
    assert set(gradients._fields) == {f"d_{name}" for name in arguments}
    for name, array in arguments.items():
        direction = rng.standard_normal(array.shape)
        moved = {**arguments, name: array + 1j * STEP * direction}
        outputs, last = run_step_by_step(cell, moved, shape)
        loss = sum(np.sum(a * given[f"d_{n}"]) for n, a in {**outputs, **last}.items())
        expected = np.imag(loss) / STEP
        terms = getattr(gradients, f"d_{name}") * direction
        assert abs(np.sum(terms) - expected) <= 1e-12 * np.sum(np.abs(terms)), name


@cells
def test_float32_gradients_agree_with_float64(cell):
    kernel, shape = kernel_of(cell), (7, 9, 6, 18)
    found = {}
    for dtype in (np.float32, np.float64):
        arguments = {n: a.astype(dtype) for n, a in inputs(kernel, shape, np.float32).items()}
        given = {n: a.astype(dtype) for n, a in upstream(kernel, shape, np.float32).items()}
        result = kernel.sequence_forward(**arguments, save=True)
        found[dtype] = kernel.sequence_backward(
            **arguments, **outputs_of(cell, result), **given, saved=result.saved
        )
    for name in found[np.float32]._fields:
        single, double = (getattr(found[dtype], name) for dtype in (np.float32, np.float64))
        assert_close(name, single, double, np.float32)


@cells
@pytest.mark.parametrize(
    "shape", [(5, 7, 6, 33), (4, 1, 5, 64), (1, 4, 8, 40), (3, 2, 3, 5)], ids=str
)
def test_results_are_bitwise_equal_for_any_number_of_threads(cell, shape):
    """One thread, rows shared, units shared, more threads than rows or units."""
    kernel = kernel_of(cell)
    arguments, given = inputs(kernel, shape, np.float32), upstream(kernel, shape, np.float32)
    runs = []
    for threads in (1, 2, 3, 5):
        result = kernel.sequence_forward(**arguments, save=True, threads=threads)
        gradients = kernel.sequence_backward(
            **arguments,
            **outputs_of(cell, result),
            **given,
            saved=result.saved,
            threads=threads,
        )
        runs.append([a.tobytes() for a in (*result[:-1], *result.saved, *gradients)])
    assert all(run == runs[0] for run in runs)


@cells
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_sequences_batches_and_inputs_are_legal(cell, shape):
    kernel = kernel_of(cell)
    arguments, given = inputs(kernel, shape, np.float32), upstream(kernel, shape, np.float32)
    result = kernel.sequence_forward(**arguments, save=True)
    gradients = kernel.sequence_backward(
        **arguments, **outputs_of(cell, result), **given, saved=result.saved
    )
    if shape[0] == 0:
        for state in cell.definition.states:
            name = str(cell.definition.next_state(state).name)
            assert np.array_equal(getattr(result, f"{name}_last"), arguments[str(state.name)])
            passed = getattr(gradients, f"d_{state.name}")
            assert np.array_equal(passed, given[f"d_{name}_last"])
    for parameter in cell.definition.parameters:
        if shape[0] == 0 or shape[1] == 0:
            assert not np.any(getattr(gradients, f"d_{parameter.name}"))


@pytest.mark.parametrize("cell", [GRU, LSTM, GRUBlockCell], ids=lambda c: c.definition.name)
def test_upstream_gradients_left_out_count_as_zero(cell):
    kernel, shape = kernel_of(cell), (4, 3, 5, 6)
    arguments, given = inputs(kernel, shape, np.float64), upstream(kernel, shape, np.float64)
    result = kernel.sequence_forward(**arguments, save=True)
    call = {**arguments, **outputs_of(cell, result), "saved": result.saved}
    for name in given:
        zeros = {n: a if n == name else np.zeros_like(a) for n, a in given.items()}
        full = kernel.sequence_backward(**call, **zeros)
        alone = kernel.sequence_backward(**call, **{name: given[name]})
        for a, b in zip(full, alone, strict=True):
            np.testing.assert_array_equal(a, b)


def test_saving_changes_no_output_and_is_refused_when_missing():
    kernel, shape = kernel_of(LSTM), (4, 3, 5, 6)
    arguments = inputs(kernel, shape, np.float32)
    plain, saving = (kernel.sequence_forward(**arguments, save=save) for save in (False, True))
    assert plain.saved is None
    assert saving.saved._fields == ("i", "f", "g", "o")
    for name in ("h", "c", "h_last", "c_last"):
        assert np.array_equal(getattr(plain, name), getattr(saving, name))
    with pytest.raises(ArgumentError, match=r"lstm.sequence_backward: saved is missing.*save=True"):
        kernel.sequence_backward(**arguments, h=plain.h, c=plain.c)
    with pytest.raises(ArgumentError, match=r"saved is tuple, expected .* holds \(i, f, g, o\)"):
        kernel.sequence_backward(**arguments, h=plain.h, c=plain.c, saved=(1, 2))


@pytest.mark.parametrize("cell", [LSTM, GRU, GRUResetBefore, SLSTM, FastGRNN, MGU], ids=str)
def test_any_of_what_is_saved_can_be_asked_for_alone(cell):
    """In C, where each array may be NULL: it and the results are as if all were asked for."""
    kernel, shape = kernel_of(cell), (4, 3, 5, 19)
    bound = kernel.sequence_forward.bind(**inputs(kernel, shape, np.float32), save=True)
    expected = [array.copy() for array in (*bound().saved, *bound.results[:-1])]
    words = kernel.library().ffi.cast("uint64_t *", bound._call.addresses()[2])
    function = kernel.sequence_forward.function
    members = [item.name for item in (*function.struct_members, *function.results)]
    places = {name: members.index(name) for name in bound.results.saved._fields}
    for alone in (None, *places):
        pointers = {name: words[place] for name, place in places.items()}
        for name in pointers.keys() - {alone}:
            words[places[name]] = 0
        for array in (*bound.results.saved, *bound.results[:-1]):
            array.fill(7)
        found = bound()
        for name, pointer in pointers.items():
            words[places[name]] = pointer
        names = (*found.saved._fields, *found._fields[:-1])
        for name, array, wanted in zip(names, (*found.saved, *found[:-1]), expected, strict=True):
            if name == alone or name not in pointers:
                np.testing.assert_array_equal(array, wanted, err_msg=name)


def test_nan_and_infinity_stay_in_their_row_and_after_their_step():
    kernel, shape = kernel_of(GRU), (6, 4, 5, 20)
    arguments = inputs(kernel, shape, np.float32)
    clean = kernel.sequence_forward(**arguments)
    arguments["x"][2, 1, 3] = np.nan
    dirty = kernel.sequence_forward(**arguments)
    assert np.isnan(dirty.h[2:, 1]).all()
    assert np.array_equal(dirty.h[:2], clean.h[:2])
    assert np.array_equal(dirty.h[:, [0, 2, 3]], clean.h[:, [0, 2, 3]])
    arguments["x"][2, 1, 3] = np.inf
    assert not np.isnan(kernel.sequence_forward(**arguments).h[:2]).any()


def test_a_row_does_not_depend_on_the_other_rows():
    kernel = kernel_of(LSTM)
    arguments = inputs(kernel, (5, 8, 6, 24), np.float32)
    whole = kernel.sequence_forward(**arguments).h
    alone = {
        n: np.ascontiguousarray(a[:, 2:3] if n == "x" else a[2:3])
        if n in ("x", "h_prev", "c_prev")
        else a
        for n, a in arguments.items()
    }
    assert np.array_equal(kernel.sequence_forward(**alone).h[:, 0], whole[:, 2])


def test_wrong_arguments_are_named():
    kernel = kernel_of(GRU)
    arguments = inputs(kernel, (4, 3, 5, 6), np.float32)
    with pytest.raises(ArgumentError, match="threads is 0, expected a number from 1"):
        kernel.sequence_forward(**arguments, threads=0)
    with pytest.raises(ArgumentError, match=r"x has 2 axes.*expected 3"):
        kernel.sequence_forward(**{**arguments, "x": arguments["x"][0]})
    elman = inputs(kernel_of(Elman), (4, 3, 5, 6), np.float32)  # saves nothing
    with pytest.raises(ArgumentError, match=r"unknown argument 'd_q'; expected d_h, d_h_last$"):
        kernel_of(Elman).sequence_backward(**elman, d_q=arguments["x"])
    with pytest.raises(ArgumentError, match=r"H = 7 from h_prev \(B, H\)"):
        kernel.sequence_forward(**{**arguments, "h_prev": np.zeros((3, 7), np.float32)})
    read_only = np.zeros((4, 3, 6), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match="out h is read-only"):
        kernel.sequence_forward(**arguments, out={"h": read_only})


def test_the_environment_variable_for_threads_is_checked(monkeypatch):
    arguments = inputs(kernel_of(GRU), (2, 3, 5, 6), np.float32)
    monkeypatch.setenv("CELLGEN_NUM_THREADS", "many")
    with pytest.raises(ArgumentError, match="CELLGEN_NUM_THREADS is 'many'"):
        kernel_of(GRU).sequence_forward(**arguments)
    monkeypatch.setenv("CELLGEN_NUM_THREADS", "2")
    kernel_of(GRU).sequence_forward(**arguments)


def test_far_more_threads_than_processors_units_or_rows_change_no_bit():
    kernel, shape = kernel_of(GRU), (3, 2, 5, 20)
    arguments = inputs(kernel, shape, np.float32)
    alone, crowd = (kernel.sequence_forward(**arguments, threads=n) for n in (1, 40))
    np.testing.assert_array_equal(alone.h, crowd.h)
    expected = "gru.sequence_forward: threads is 1025, expected a number from 1 to 1024"
    with pytest.raises(ArgumentError, match=expected):
        kernel.sequence_forward(**arguments, threads=1025)


def test_an_upstream_gradient_of_what_is_no_output_is_refused():
    kernel, shape = kernel_of(LSTM), (3, 2, 5, 6)
    arguments = inputs(kernel, shape, np.float32)
    done = kernel.sequence_forward(**arguments, save=True)
    for name in ("d_i", "d_x_last"):
        with pytest.raises(
            ArgumentError, match=rf"lstm.sequence_backward: unknown argument '{name}'"
        ):
            kernel.sequence_backward(
                **arguments, h=done.h, c=done.c, saved=done.saved, **{name: done.h}
            )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_a_team_of_its_own():
    code = """
import os, numpy as np, cellgen
k = cellgen.load("elman")
a = dict(x=np.ones((3, 8, 4), "f"), h_prev=np.zeros((8, 5), "f"), w=np.ones((4, 5), "f"),
         u=np.ones((5, 5), "f"), b=np.ones(5, "f"))
h = k.sequence_forward(**a, threads=2).h
pid = os.fork()
if pid == 0:
    same = np.array_equal(k.sequence_forward(**a, threads=2).h, h)
    os._exit(0 if same else 3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert np.array_equal(k.sequence_forward(**a, threads=2).h, h)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


# --- structure: counts, not seconds --------------------------------------------------------------


class UnitsOfOneSum(Cell):
    """What reads a sum twice, once in a function."""

    x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)
    s = x @ w + h_prev @ u
    h = sigmoid(s) * s**2 * h_prev


@pytest.mark.parametrize(
    ("cell", "saved"),
    [
        (LSTM, ("i", "f", "g", "o")),  # and c, which is an output: five values per unit
        (GRU, ("z", "r", "s", "n")),  # s is the recurrent product with its bias
        (GRUResetBefore, ("z", "r", "n")),
        (Elman, ()),
        (FastGRNN, ("z", "h_bar")),  # two functions of one sum cost more than one array more
        (UnitsOfOneSum, ("s",)),  # one function of it, and cheap terms, do not
        (GRUBlockCell, ()),  # its outputs are all that the gradients need
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_what_is_saved_is_the_minimum_cut(cell, saved):
    assert tuple(str(v.name) for v in sequence_of(cell).programs.saved) == saved


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        (LSTM, ("d_o_bar", "d_g_bar", "d_i_bar", "d_f_bar")),
        (MinGRU, ("d_n_bar", "d_z_pre")),  # the factors of products, not d_h and z and n_bar again
        (GRUResetBefore, ("d_n_bar", "d_r_bar", "d_z_bar")),  # and not r * h_prev
        (  # the terms of both numbers, not two functions
            FastGRNN,
            ("d_sigmoid_zeta_terms", "d_sigmoid_nu_terms", "d_h_bar_pre", "d_z_pre", "d_s"),
        ),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_what_the_reverse_loop_keeps_is_the_minimum_cut(cell, kept):
    assert set(map(str, sequence_of(cell).programs.kept)) == set(kept)


@pytest.mark.parametrize(
    ("cell", "levels", "slots"),
    [
        (LSTM, 1, [4]),
        (GRU, 1, [4]),
        (GRUResetBefore, 2, [2, 1]),
        (Elman, 1, [1]),
        (CfC, 2, [1, 3]),  # its sum of products is multiplied by a number
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_products_of_a_step_are_one_group_per_level(cell, levels, slots):
    """All gates of a unit share a tile; every loop of the forward step is an epilogue."""
    stages = sequence_of(cell).forward.stages
    assert len(stages) == levels
    assert all(isinstance(stage, Group) and len(stage.loops) == 1 for stage in stages)
    assert [len(stage.slots) for stage in stages] == slots


@pytest.mark.parametrize(
    ("cell", "forward", "reverse"),
    [
        (LSTM, (True,), (True, False)),
        (GRU, (True,), (True, False)),
        (GRUResetBefore, (True, True), (True, True, False)),
        (Elman, (True,), (True, False)),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_threads_that_share_units_meet_once_a_level(cell, forward, reverse):
    """Before a product reads whole rows; units that a thread wrote itself make it wait for none."""
    schedule = sequence_of(cell)
    assert step_barriers(schedule.forward, schedule.programs) == forward
    assert step_barriers(schedule.reverse, schedule.programs) == reverse


def test_weight_gradients_of_neighbours_are_one_stage():
    runs = products_together(sequence_of(LSTM).deferred.stages)
    assert [len(run) for run in runs] == [1, 8, 1]  # sums over rows, [h; x].T @ d of four, d_x
    runs = products_together(sequence_of(SLSTMHeads).deferred.stages)
    assert [len(run) for run in runs] == [1, 4, 4, 1]  # of every head, of the whole


@pytest.mark.parametrize(
    ("cell", "barriers"),
    [
        (LSTM, (False, False, False)),
        (GRUResetBefore, (True, False, False)),  # a product of what stands beside a sum over rows
        (LayerNormLSTM, (False, False, False, False, False, True, False, False)),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_threads_meet_where_one_reads_what_another_wrote_of_many_steps(cell, barriers):
    runs = products_together(sequence_of(cell).deferred.stages)
    assert deferred_barriers(runs) == barriers


def test_a_group_of_rows_goes_through_neighbouring_loops_and_sums():
    """Loops go through a group of rows one after the other; products stand between them."""
    stages = sequence_of(LayerNormLSTM).deferred.stages
    barriers = deferred_barriers(products_together(stages))
    runs = row_by_row(stages, barriers)
    assert runs == ((0, 1, 2), (3,), (4, 5), (6,), (7,))  # between them h.T @ d; x.T @ d and d_x
    summed = {str(buffer.value) for stage in stages for buffer in summed_over_rows(stage)}
    assert summed == {"d_b", *(f"d_{kind}{n}" for kind in ("alpha", "beta") for n in (1, 2, 3))}


class Inner(Cell):
    """A layer of the input alone beside one that is normalised over units."""

    x, h_prev = Input(I), State(H)
    v, b_v, w, w2, u = Weight(I, H), Bias(H), Weight(H, H), Weight(I, H), Weight(H, H)
    e = tanh(x @ v + b_v)
    e_w, x_w2 = e @ w, x @ w2
    n = x_w2 / sqrt(units_mean(x_w2**2) + 1e-5)
    h = tanh(n + e_w + h_prev @ u)


def test_rows_do_not_run_past_a_place_where_threads_meet():
    """A product's rows are shared otherwise than those of the loops after it."""
    stages = sequence_of(Inner).deferred.stages
    runs = products_together(stages)
    barriers = deferred_barriers(runs)
    firsts = [run[0] for run in runs]
    waiting = [n for n, barrier in enumerate(barriers) if barrier and isinstance(firsts[n], Loop)]
    assert [n for n in waiting if isinstance(firsts[n + 1], Loop)]  # loops meet between them
    for run in row_by_row(firsts, barriers):
        assert not any(barriers[number] for number in run[:-1])


@cells
def test_weight_and_input_gradients_wait_until_the_end(cell):
    schedule = sequence_of(cell)
    assert not any(isinstance(stage, Product) for stage in schedule.reverse.stages)
    results = {b.name for b in schedule.deferred.function.of_kind(BufferKind.RESULT)}
    moving = [v for v in cell.definition.declared if v.role.value in ("input", "weight", "bias")]
    if schedule.epilogue:
        results |= {b.name for b in schedule.epilogue.of_kind(BufferKind.RESULT)}
    assert results - {str(v) for v in schedule.programs.totals} == {f"d_{v.name}" for v in moving}


@cells
def test_reverse_steps_read_no_input_and_form_no_product_again(cell):
    part = sequence_of(cell).reverse
    inputs = {v for v in cell.definition.declared if v.role.value == "input"}
    assert not inputs & set(part.function.program.arguments)
    products = [s.traits.product for s in part.function.program.statements if s.traits.product]
    assert not [product for product in products if product.form is Form.NN]


def test_only_kept_adjoints_take_memory_over_time():
    part = sequence_of(LSTM).reverse
    results = part.function.of_kind(BufferKind.RESULT)
    kept = [b.name for b in results if part.storage[b] is Storage.TIME]
    assert sorted(kept) == ["d_f_bar", "d_g_bar", "d_i_bar", "d_o_bar"]
    assert all(isinstance(stage, Group | Loop) for stage in part.stages)


def test_the_gradient_of_a_number_is_shared_by_threads():
    """Rows are added for each unit in groups of rows, units once at the end."""
    schedule = sequence_of(FastGRNN)
    loops = [stage for stage in schedule.deferred.stages if isinstance(stage, Loop)]
    assert {line.store for loop in loops for line in loop.lines} == {Store.ADD_ROWS}
    assert schedule.epilogue
    assert all(s.traits.is_sum for s in schedule.programs.epilogue.statements[:2])


class NormalisedWeights(Cell):
    """Work on weights alone: sums, products, transposes, joins and parts of what they give."""

    x, h_prev, w, k = Input(I), State(H), Weight(I, H), Scalar(0.5)
    u, v, g = Weight(H, 2 * H), Weight(H, H), Weight(1)
    a, b = split(u / sqrt(units_sum(u**2) + 1), 2)
    z_bar, f_bar = split(h_prev @ concat(a, v), 2)
    c_bar = z_bar + x @ w + h_prev @ transpose(v @ v) * exp(-k)
    h = tanh(c_bar) * sigmoid(f_bar) + sigmoid(g) * (h_prev @ b) + h_prev @ v


def test_work_on_weights_alone_is_done_once_a_sequence():
    schedule = sequence_of(NormalisedWeights)
    assert schedule.prologue
    assert schedule.epilogue
    for part in (schedule.forward, schedule.reverse, schedule.deferred):
        for stage in part.stages:
            assert not isinstance(stage, Loop) or stage.space[0] == B
    report = check(NormalisedWeights)
    assert report.ok, str(report)


@pytest.mark.parametrize("sizes", [(5, 7, 6, 3, 40), (1, 3, 4, 2, 33), (6, 1, 3, 4, 16)], ids=str)
def test_heads_run_side_by_side_with_equal_results_for_any_number_of_threads(sizes):
    """Heads of several blocks of units, and of less than one; rows shared, and one row."""
    kernel, sizes = kernel_of(SLSTMHeads), dict(zip("TBIKD", sizes, strict=True))
    rng = np.random.default_rng(0)
    arguments = {
        a.name: 0.5 * rng.standard_normal([sizes[axis] for axis in a.shape])
        for a in kernel.sequence_forward.function.arguments
    }
    arguments["n_prev"] = np.abs(arguments["n_prev"]) + 1
    given, runs = {}, []
    for threads in (1, 2, 3):
        result = kernel.sequence_forward(**arguments, save=True, threads=threads)
        outputs = {name: getattr(result, name) for name in "hcnm"}
        given = given or {f"d_{n}": rng.standard_normal(a.shape) for n, a in outputs.items()}
        gradients = kernel.sequence_backward(
            **arguments, **outputs, **given, saved=result.saved, threads=threads
        )
        runs.append([a.tobytes() for a in (*outputs.values(), *gradients)])
    assert all(run == runs[0] for run in runs)
    for name, array in run_steps(SLSTMHeads.definition, arguments, sizes).outputs.items():
        assert_close(name, outputs[name], array, np.float64)
    for name in ("x", "h_prev", "r_f", "w_z"):
        direction = rng.standard_normal(arguments[name].shape)
        moved = {**arguments, name: arguments[name] + 1j * STEP * direction}
        stepped = run_steps(SLSTMHeads.definition, moved, sizes).outputs
        loss = sum(np.sum(a * given[f"d_{n}"]) for n, a in stepped.items())
        terms = getattr(gradients, f"d_{name}") * direction
        assert abs(np.sum(terms) - np.imag(loss) / STEP) <= 1e-12 * np.sum(np.abs(terms)), name


# --- other instruction sets ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize("optimised", ["-O1", pytest.param("-O3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("march", ["x86-64", pytest.param("haswell", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(LSTM, id="lstm"),
        pytest.param(GRUResetBefore, id="gru_reset_before", marks=pytest.mark.slow),
    ],
)
def test_other_instruction_sets_compute_the_same(cell, march, optimised, monkeypatch):
    """SSE2 without fma, and AVX2 with it; what differs is the rounding of sums of some 40 terms
    over five steps: 1e-6 and 3e-15 at most."""
    if march == "haswell" and "AVX2" not in instruction_set(compiler()):
        pytest.skip("this processor has no AVX2")
    native = kernel_of(cell)
    monkeypatch.setenv("CELLGEN_CFLAGS", f"-march={march} {optimised}")
    other = api.compile(cell)
    assert ("AVX-512F" in instruction_set(compiler())) is False
    given_back = {a.name for a in native.sequence_backward.function.arguments if not a.saved}
    for dtype, bound in ((np.float32, 1e-5), (np.float64, 1e-14)):
        given = inputs(native, (5, 9, 6, 35), dtype)
        results = []
        for kernel in (other, native):
            found = kernel.sequence_forward(**given, save=True, threads=2)
            known = {n: a for n, a in (given | found._asdict()).items() if n in given_back}
            known["d_h"] = np.ones_like(found.h)
            back = kernel.sequence_backward(**known, saved=found.saved, threads=2)
            results.append({**found._asdict(), **back._asdict()})
        for name in results[0].keys() - {"saved"}:
            assert relative(results[0][name], results[1][name]) < bound, name


@cache
def assembly_for_avx2(source: Path) -> str:
    """What GCC makes of a file in float32."""
    command = [*compiler().command, *compiler().flags, "-march=haswell", "-S", "-o", "-"]
    command += ["-DCELLGEN_PRECISION=32", f"-I{include_folder()}", str(source)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize(
    ("cell", "stage", "functions"), [("lstm", 1, 5), ("layer_norm_lstm", 6, 4)]
)
def test_whole_vectors_are_computed_and_stored_without_a_mask(cell, stage, functions):
    """With AVX2 a masked store takes 20 cycles on Zen 3, twelve times as long as another. A stage
    that saves only on demand is two loops; one that also sums units saves always, since of its two
    loops GCC would make one unit by unit. A tile of six rows and two vectors has twelve stores
    besides those of a last vector that is not whole."""
    if "AVX2" not in instruction_set(compiler()) or "clang" in compiler().version:
        pytest.skip("GCC's code for AVX2")
    sources = (generated_folder() / cell / f"{cell}.c", include_folder() / "cellgen_driver_f32.c")
    texts = [assembly_for_avx2(source) for source in sources]

    def body(name: str) -> str:
        text = next(text for text in texts if f"\n{name}:" in text)
        return text[text.index(f"\n{name}:") :].partition(f".size\t{name}")[0]

    loops = body(f"{cell}_sequence_forward_forward_{stage}_f32")
    whole, single = (len(re.findall(op, loops)) for op in (r"vdivps\s+%ymm", r"vdivss\s"))
    assert whole >= functions
    assert single <= whole + 1  # loops for the last units of a row are scalar
    assert not re.findall(r"vmaskmovps\s+%ymm.*\)", loops)
    tile = body("cellgen_tile_6x2_f32")
    assert len(re.findall(r"vmovu?a?ps\s+%ymm\d+, -?\w*\(", tile)) >= 12


# --- what is fetched meanwhile -------------------------------------------------------------------


SHARED_OUT = """
#define CELLGEN_PRECISION 32
#include "cellgen.h"
#include "cellgen_real.h"
#include "cellgen_gemm.h"
#include "cellgen_over_time.inc.h"
/* the first byte of each fetch after `from`, in order, and the k that passed before it */
int64_t share_out(const char *from, int64_t arrays, const int64_t *bytes, int64_t blocks,
                  int64_t tiles, int64_t operands, const int64_t *depths, int64_t *found,
                  int64_t *passed)
{
    cellgen_prefetch prefetch;
    int64_t count = 0, sum = 0, before = 0;
    cellgen_prefetch_nothing(&prefetch);
    for (int64_t at = 0; at < arrays; from += bytes[at++])
        cellgen_prefetch_add(&prefetch, from, bytes[at]);
    for (int64_t at = 0; at < operands; ++at) sum += depths[at];
    cellgen_share_out(&prefetch, blocks, tiles * 6, 6, sum);
    from = prefetch.arrays ? prefetch.rows[0] : from;
    for (int64_t turn = 0; turn < blocks * tiles; ++turn)
        for (int64_t at = 0; at < operands; before += depths[at++]) {
            const int both = turn / tiles == blocks - 1;
            const char *piece = 0;
            int64_t k = 0, run;
            while ((run = cellgen_next_pieces(&prefetch, (depths[at] - k) << both, &piece)) > 0) {
                for (int64_t each = 0; each < run; ++each, piece += 1 << prefetch.shift) {
                    passed[count] = before + k + (both ? each / 2 : each);
                    found[count++] = piece - from;
                }
                k += both ? (run + 1) / 2 : run;
            }
        }
    return count;
}
int64_t fetching_tiles(int64_t rows, int64_t most) { return cellgen_fetching_tiles(rows, most); }
int64_t even_rows(int64_t rows, int64_t most) { return cellgen_even_rows(rows, most); }
"""


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory):
    """The functions that share out what is fetched."""
    folder = tmp_path_factory.mktemp("shared_out")
    (folder / "shim.c").write_text(SHARED_OUT)
    shim, flags = folder / "shim.so", ["-O1", "-fPIC", "-shared", f"-I{include_folder()}"]
    cc = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*cc, *flags, folder / "shim.c", "-o", shim], check=True)
    library = ctypes.CDLL(str(shim))
    for function in (library.share_out, library.fetching_tiles, library.even_rows):
        function.restype = ctypes.c_int64
    return library


@pytest.mark.parametrize(
    ("sizes", "blocks", "tiles", "depths", "whole"),
    [
        ([2048] * 6, 4, 2, [64, 64], True),
        ([2048] * 5, 1, 2, [64], True),  # two pieces a k: no panel is next
        ([2048] * 5, 2, 1, [64], True),
        ([2048] * 7, 2, 1, [64], False),
        ([16384, 16384, 4096, 4096], 3, 4, [64, 64], True),
        ([8192] * 6, 6, 8, [1, 256], True),
        ([8192] * 6, 1, 24, [1, 256], True),
        ([4096, 0, 4096], 4, 1, [128, 0], True),
        ([100, 70, 4096 + 8], 1, 2, [128, 3], True),
        ([1 << 16] * 8, 8, 8, [256, 128], True),
        ([4096] * 4, 2, 2, [16, 16], False),  # more lines than k
        ([0, 0], 3, 3, [0, 0], False),
        ([], 3, 3, [4, 4], False),
    ],
)
def test_what_comes_is_shared_out_among_tiles(sizes, blocks, tiles, depths, whole, shared_out):
    """Each line once at least, in order, none beyond the arrays, and never more than a piece for
    each k, or two in the last block; no sooner than they must, so that they stay near until they
    are used: ``late`` k are enough for all pieces of 32 bytes, but for one a turn and array."""
    turns = blocks * tiles * sum(depths)
    room = 2 * turns + 1
    found, passed = (ctypes.c_int64 * room)(), (ctypes.c_int64 * room)()
    lists = [(ctypes.c_int64 * len(values))(*values) for values in (sizes, depths)]
    place = ctypes.create_string_buffer(1)
    of, to = ctypes.c_int64, ctypes.byref
    numbers = (of(len(sizes)), to(lists[0]), of(blocks), of(tiles), of(len(depths)), to(lists[1]))
    count = shared_out.share_out(place, *numbers, to(found), to(passed))
    assert list(found[:count]) == sorted(found[:count])
    lines = {at // 64 for at in found[:count]}
    needed = set(range(-(-sum(sizes) // 64)))
    assert (bool(needed) and needed <= lines) is whole
    assert max(found[:count], default=0) < max(sum(sizes), 1)
    last = (blocks - 1) * tiles * sum(depths)
    most = Counter(passed[:count])
    assert all(times <= (2 if k >= last else 1) for k, times in most.items())
    late = sum(sizes) // 32 + 2 * len(sizes) + max(depths)
    assert not count or passed[0] >= turns - late


def test_what_would_not_stay_near_is_left_out(shared_out):
    """Of nine arrays of 64 KB, 512 KB come; a small one behind those fits again nowhere."""
    found, passed = (ctypes.c_int64 * (1 << 16))(), (ctypes.c_int64 * (1 << 16))()
    sizes, depths = (ctypes.c_int64 * 9)(*[1 << 16] * 9), (ctypes.c_int64 * 1)(256)
    of, to = ctypes.c_int64, ctypes.byref
    numbers = (of(9), to(sizes), of(8), of(16), of(1), to(depths))
    count = shared_out.share_out(ctypes.create_string_buffer(1), *numbers, to(found), to(passed))
    assert {at // 64 for at in found[:count]} == set(range((8 << 16) // 64))


def test_tiles_of_few_rows_are_not_counted_on(shared_out):
    """How many of the tiles that a loop makes of some rows have four rows and more."""
    for most in range(1, 9):
        for rows in range(40):
            heights, left = [], rows
            while left:
                heights.append(shared_out.even_rows(ctypes.c_int64(left), ctypes.c_int64(most)))
                left -= heights[-1]
            tall = sum(height >= 4 for height in heights)
            found = shared_out.fetching_tiles(ctypes.c_int64(rows), ctypes.c_int64(most))
            assert found == tall, (rows, most)


def counted(cell, monkeypatch):
    """Build a cell that notes what its tiles fetch; a function that gives the lines of a call."""
    monkeypatch.setenv("CELLGEN_CFLAGS", OBSERVED)
    kernel = api.compile(cell)
    library = ctypes.CDLL(str(kernel.build().path))
    count = ctypes.c_int64.in_dll(library, "cellgen_fetches")
    fetched = (ctypes.c_size_t * (1 << 17)).in_dll(library, "cellgen_fetched")

    def lines_of(function, **arguments):
        count.value = 0
        found = function(**arguments, threads=1)
        assert 0 < count.value < 1 << 17
        return found, set(fetched[: count.value])

    return kernel, lines_of


def lines_of_steps(array, begin, end):
    """The cache lines of some steps, less one at each edge, which others may share."""
    at, step = array.ctypes.data, array.strides[0]
    return set(range((at + begin * step) // 64 + 1, (at + end * step) // 64))


FETCHED_SHAPES = ((3, 16, 96, 32), (2, 8, 64, 64), (3, 9, 64, 48), (3, 12, 48, 64))
"""Of 9 rows, tiles of four gates have 5 and 4. Of 7 they have 4 and 3, which fetch nothing: half of
the k for all lines, which then are too many."""


@pytest.mark.slow
@pytest.mark.skipif("AVX-512F" not in instruction_set(compiler()), reason="tiles of four rows")
@pytest.mark.parametrize(
    "cell",
    [
        LSTM,
        *(pytest.param(cell, marks=pytest.mark.slow) for cell in (GRUResetBefore, LayerNormLSTM)),
    ],
    ids=str,
)
def test_steps_fetch_the_lines_that_the_next_one_needs(cell, monkeypatch):
    """Of inputs, states and saved values those after the first step, and none of the first; also
    where lengths say which are valid, and of tiles of 4 and 3 rows the first lines that come."""
    kernel, lines_of = counted(cell, monkeypatch)
    for T, B_, I_, H_ in (*FETCHED_SHAPES, (3, 7, 64, 64)):
        given = inputs(kernel, (T, B_, I_, H_), np.float32)
        for options in ({}, {"lengths": np.full(B_, T)}):
            found, lines = lines_of(kernel.sequence_forward, **given, save=True, **options)
            arrays = {**found._asdict(), **found.saved._asdict(), "x": given["x"]}
            wide = [
                name
                for name, array in arrays.items()
                if isinstance(array, np.ndarray) and array.ndim == 3 and array.shape[-1] > 1
            ]
            assert {"h", "x"} < set(wide)
            came = 0
            for name in wide:
                later = lines_of_steps(arrays[name], 1, T)
                assert len(later) > 4 * (T - 1), name
                missing = len(later - lines)
                came += missing < T
                if B_ != 7:
                    assert missing < T, f"{name}: {missing} of {len(later)} lines"
                assert not lines_of_steps(arrays[name], 0, 1) & lines, name
            assert came > 1


@pytest.mark.skipif("AVX-512F" not in instruction_set(compiler()), reason="tiles of four rows")
@pytest.mark.slow
@pytest.mark.parametrize("cell", [LSTM, GRUResetBefore, FastGRNN], ids=str)
def test_reverse_steps_fetch_the_lines_that_the_next_one_reads(cell, monkeypatch):
    """Upstream gradients and saved values of all steps but the last, where the loop begins and
    nothing has fetched them; states before those steps; inputs, which the deferred part reads. Also
    of row blocks (16 rows, 30 steps), in reverse and with lengths."""
    kernel, lines_of = counted(cell, monkeypatch)
    taken = {a.name for a in kernel.sequence_backward.function.arguments}
    for T, B_, I_, H_ in (*FETCHED_SHAPES, (30, 16, 64, 64)):
        given = inputs(kernel, (T, B_, I_, H_), np.float32)
        for options in ({}, {"reverse": True}, {"lengths": np.full(B_, T)}):
            found = kernel.sequence_forward(**given, save=True, threads=1, **options)
            known = {n: a for n, a in (given | found._asdict()).items() if n in taken}
            known["d_h"] = np.ones_like(found.h)
            _, lines = lines_of(kernel.sequence_backward, **known, saved=found.saved, **options)
            saved = found.saved._asdict()
            states = {n: known[n] for n in ("h", "c") if n in known}
            for name, array in {**saved, **states, "d_h": known["d_h"], "x": given["x"]}.items():
                in_order = name in saved or not options.get("reverse")  # saved as computed
                span = (0, T - 1 - (name in states)) if in_order else (1 + (name in states), T)
                missing = lines_of_steps(array, *span) - lines
                assert len(missing) < T, f"{name}: {len(missing)} lines, {T, B_, I_, H_}, {options}"
                if name in saved or name == "d_h":
                    begin = (T - 1, T) if in_order else (0, 1)
                    assert not lines_of_steps(array, *begin) & lines, name


@pytest.mark.slow
def test_no_cell_that_ships_has_more_than_can_be_fetched() -> None:
    """What is beyond ``CELLGEN_PREFETCH_ARRAYS`` arrays would be left out without a word."""
    header = (include_folder() / "cellgen_gemm.h").read_text()
    (room,) = re.findall(r"CELLGEN_PREFETCH_ARRAYS = (\d+)", header)
    counts = []
    for cell in SHIPPED:
        schedule = sequence_of(cell)
        for plan in lower(schedule, sequence_signatures(schedule)):
            stages = [stage for part in plan.parts for stage in part.stages]
            counts += [len(s.prefetch) for s in stages if isinstance(s, GroupPlan) and s.prefetch]
    assert len(counts) > 45
    assert 0 < min(counts) <= max(counts) <= int(room)

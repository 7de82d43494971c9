"""Regularisers: functions from a cell to a cell, and masks that can be drawn again."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import cellgen
from cellgen import (
    Bias,
    Cell,
    DeclarationError,
    H,
    I,
    Input,
    State,
    Weight,
    exp,
    log_sigmoid,
    maximum,
    sigmoid,
    split,
    tanh,
)
from cellgen.cells import GRU, LSTM, SHIPPED, GRUBlockCell, GRUResetBefore, LSTMPeephole
from cellgen.cells.layer_norm import LayerNormLSTM
from cellgen.cells.minimal import MinGRU
from cellgen.cells.recurrent_highway import RecurrentHighway2Full
from cellgen.cells.slstm import SLSTMHeads
from cellgen.check import check
from cellgen.errors import ArgumentError
from cellgen.masks import Kind, Mask, Varies, draw_masks
from cellgen.over_time import run_steps
from cellgen.pipeline import programs_of, sequence_of
from cellgen.reference import shape_sizes
from cellgen.regularise import (
    dropconnect,
    masks_of,
    recurrent_dropout,
    variational_dropout,
    zoneout,
)
from cellgen.value import Role

SIZES = {"T": 4, "B": 3, "I": 2, "H": 5, "K": 2, "D": 3}


class SLSTM(Cell, name="s_lstm_of_test"):
    """sLSTM with its stabiliser (Beck et al. 2024, arXiv:2405.04517)."""

    x, h_prev, c_prev, n_prev, m_prev = Input(I), State(H), State(H), State(H), State(H)
    w, r, b = Weight(I, 4 * H), Weight(H, 4 * H), Bias(4 * H)
    z_bar, i_bar, f_bar, o_bar = split(x @ w + h_prev @ r + b, 4)
    z, o = tanh(z_bar), sigmoid(o_bar)
    log_f = log_sigmoid(f_bar) + m_prev
    m = maximum(log_f, i_bar)
    i, f = exp(i_bar - m), exp(log_f - m)
    c = f * c_prev + i * z
    n = f * n_prev + i
    h = o * c / n


REGULARISERS = {
    "variational_dropout": variational_dropout,
    "recurrent_dropout": lambda cell: recurrent_dropout(cell, candidate_of(cell)),
    "dropconnect": dropconnect,
    "zoneout": zoneout,
}
CELLS = (*SHIPPED[:11], SLSTM, SLSTMHeads, LayerNormLSTM, RecurrentHighway2Full)
"""Gates before and after the product, one matrix or many, peepholes, sums over units, layers."""


def candidate_of(cell):
    """The last computed value that is no state: any will do for a test."""
    definition = cell.definition
    new = {definition.next_state(state) for state in definition.states}
    inner = [e.target for e in definition.equations if e.target not in new]
    return str(inner[-1].name) if inner else ""


def arguments_of(cell, sizes, seed=0):
    """Inputs over time, initial states and weights, but for masks."""
    rng, definition = np.random.default_rng(seed), cell.definition
    masks = {mask.name for mask in masks_of(cell)}
    arrays = {}
    for value in definition.declared:
        if str(value.name) in masks or value.role is Role.SCALAR:
            continue
        steps = (sizes["T"],) if value.role is Role.INPUT else ()
        arrays[str(value.name)] = rng.normal(size=(*steps, *shape_sizes(value, sizes)))
    return arrays


def run(cell, rate, **options):
    """Interpret a regularised cell with drawn masks; the parent's arguments are the same."""
    drawn = draw_masks(
        masks_of(cell), SIZES, rate, seed=1, steps=SIZES["T"], dtype=np.float64, **options
    )
    return run_steps(cell.definition, {**arguments_of(cell, SIZES), **drawn}, SIZES).results


def has_candidate(cell, name):
    return name != "recurrent_dropout" or candidate_of(cell)


CASES = [
    pytest.param(cell, name, id=f"{name}-{cell.definition.name}")
    for cell in CELLS
    for name in REGULARISERS
    if has_candidate(cell, name)
]


@pytest.mark.parametrize(("cell", "name"), CASES)
def test_no_rate_is_the_cell_itself(cell, name):
    """Masks of p = 0 are exactly 1 (kept: 0), and x * 1 is x to the bit."""
    found, expected = run(REGULARISERS[name](cell), 0.0), run(cell, 0.0)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@pytest.mark.parametrize(("cell", "name"), CASES)
def test_rate_one_is_finite(cell, name):
    for key, array in run(REGULARISERS[name](cell), 1.0).items():
        assert np.isfinite(array).all(), key


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
def test_zoneout_at_rate_one_keeps_every_state(cell):
    zoned = zoneout(cell)
    found, start = run(zoned, 1.0), arguments_of(zoned, SIZES)
    for state in zoned.definition.states:
        new = str(zoned.definition.next_state(state).name)
        np.testing.assert_array_equal(found[f"{new}_last"], start[str(state.name)])


@pytest.mark.parametrize("cell", [GRU, LSTM, GRUBlockCell, SLSTM], ids=lambda c: c.definition.name)
@pytest.mark.parametrize("name", REGULARISERS)
def test_masks_get_no_gradients_and_everything_else_keeps_its_own(cell, name):
    regularised = REGULARISERS[name](cell)
    masks = {f"d_{mask.name}" for mask in masks_of(regularised)}

    def returned(cell):
        return {str(v) for p in programs_of(cell).functions[1:] for v in p.results}

    assert not returned(regularised) & masks
    wanted = {f"d_{v.name}" for v in cell.definition.learning(Role.INPUT, Role.STATE, Role.WEIGHT)}
    assert wanted <= {name.removesuffix("_total") for name in returned(regularised)}


PROVED = (
    zoneout(variational_dropout(LSTM)),
    dropconnect(GRU),
    zoneout(SLSTM, "h", "c"),
    recurrent_dropout(variational_dropout(LayerNormLSTM, states=()), "xw_norm", per_sequence=True),
)


@pytest.mark.parametrize("cell", PROVED, ids=lambda cell: cell.definition.name)
def test_a_regularised_cell_is_proved_like_any_other(cell):
    report = check(cell)
    assert report.ok, str(report)


# --- what the equations become -------------------------------------------------------------------


def equations(cell):
    return [str(equation) for equation in cell.definition.equations]


def test_variational_dropout_masks_what_products_read():
    found = equations(variational_dropout(GRUResetBefore))
    assert any("(h_prev * mask_h) @ u_z" in line for line in found)
    assert any("(x * mask_x) @ w_z" in line for line in found)
    leak = next(line for line in found if line.startswith("h = "))
    assert "mask" not in leak


def test_a_value_that_only_products_read_counts_as_part_of_them():
    class Named(Cell):
        x, h_prev = Input(I), State(H)
        w, u, v = Weight(I, H), Weight(H, H), Weight(H, H)
        r = sigmoid(h_prev @ u)
        rh = r * h_prev
        h = tanh(x @ w + rh @ v) + h_prev

    assert "rh = r * h_prev * mask_h" in [
        line.replace("h_prev * mask_h * r", "r * h_prev * mask_h")
        for line in equations(variational_dropout(Named))
    ]


def test_inputs_and_states_are_chosen_by_name():
    assert [m.name for m in masks_of(variational_dropout(GRU, states=()))] == ["mask_x"]
    assert [m.name for m in masks_of(variational_dropout(GRU, inputs=()))] == ["mask_h"]
    assert [m.name for m in masks_of(variational_dropout(GRU, inputs=(), states=("h",)))] == [
        "mask_h"
    ]


def test_zoneout_forms_other_values_before_units_are_kept():
    """Krueger et al. 2017, equation 7: h reads f * c_prev + i * g, not the kept c."""
    found = equations(zoneout(LSTMPeephole))
    assert "h_raw = tanh(c_raw) * o" in found
    assert any(line.startswith("o = ") and "c_raw" in line for line in found)
    assert "c = c_prev * keep_c + (1 - keep_c) * c_raw" in found


def test_zoneout_of_an_alias():
    """``h = z`` names a new state by another value."""

    class Aliased(Cell):
        x, h_prev = Input(H), State(H)
        z = tanh(x + h_prev)
        h = z

    assert equations(zoneout(Aliased))[-1] == "h = h_prev * keep_h + (1 - keep_h) * z"


def test_dropconnect_takes_the_weights_that_meet_a_state():
    assert [m.name for m in masks_of(dropconnect(GRU))] == ["mask_u_z", "mask_u_r", "mask_u_n"]
    assert [m.name for m in masks_of(dropconnect(GRUBlockCell))] == ["mask_w_ru", "mask_w_c"]
    assert [m.name for m in masks_of(dropconnect(GRU, "w_z"))] == ["mask_w_z"]


def test_regularisers_compose_and_names_stay_apart():
    twice = recurrent_dropout(recurrent_dropout(LSTM, "g"), "g")
    assert [m.name for m in masks_of(twice)] == ["mask_g", "mask_g_2"]
    assert len({m.purpose for m in masks_of(twice)}) == 2


def test_masks_cost_nothing_that_is_saved():
    """Zoneout of a GRU keeps the value before units are kept, and nothing else besides."""
    plain, zoned = sequence_of(GRU).programs.saved, sequence_of(zoneout(GRU)).programs.saved
    assert {str(v) for v in zoned} <= {str(v) for v in plain} | {"h_raw"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zoneout(GRU, "c"), r"zoneout\(GRU\): c is no state; it has h"),
        (lambda: dropconnect(GRU, "u"), r"dropconnect\(GRU\): u is no weight; it has w_z, "),
        (lambda: recurrent_dropout(GRU, "g"), r"it computes no g; it computes z_bar, "),
        (lambda: recurrent_dropout(GRU, "h"), r"h is a new state"),
        (lambda: variational_dropout(MinGRU, states=("h",)), "no product reads h_prev"),
        (lambda: variational_dropout(GRU, inputs=("y",)), r"y is not among its inputs \(x\)"),
        (lambda: dropconnect(MinGRU), "no product reads a state; name the weights"),
    ],
)
def test_a_wrong_name_is_answered_on_the_callers_line(make, message):
    with pytest.raises(DeclarationError, match=message) as caught:
        make()
    assert caught.value.code == "declaration.regulariser"
    assert "test_regularise.py" in str(caught.value)


# --- masks ---------------------------------------------------------------------------------------

STEPWISE = Mask("mask_g", ("H",), Kind.DROPOUT, Varies.STEP_AND_ROW)
BY_ROW = Mask("mask_h", ("H",), Kind.DROPOUT, Varies.ROW)
KEEP = Mask("keep_h", ("H",), Kind.KEEP, Varies.STEP_AND_ROW)
OF_WEIGHTS = Mask("mask_u", ("H", "2*H"), Kind.DROPOUT, Varies.NEVER)
ALL = (STEPWISE, BY_ROW, KEEP, OF_WEIGHTS)


def test_shapes_and_values():
    drawn = draw_masks(ALL, SIZES, 0.25, seed=3, steps=4)
    assert {n: a.shape for n, a in drawn.items()} == {
        "mask_g": (4, 3, 5),
        "mask_h": (3, 5),
        "keep_h": (4, 3, 5),
        "mask_u": (5, 10),
    }
    assert set(np.unique(drawn["mask_g"])) <= {np.float32(0), np.float32(1 / 0.75)}
    assert set(np.unique(drawn["keep_h"])) <= {np.float32(0), np.float32(1)}
    assert all(a.dtype == np.float32 for a in drawn.values())


def test_one_step_is_a_step_of_the_sequence():
    whole = draw_masks(ALL, SIZES, 0.5, seed=3, step=7, steps=6)
    for t in range(6):
        one = draw_masks(ALL, SIZES, 0.5, seed=3, step=7, first=t)
        np.testing.assert_array_equal(one["mask_g"], whole["mask_g"][t])
        np.testing.assert_array_equal(one["mask_h"], whole["mask_h"])


def test_a_run_is_replayed_from_any_step():
    whole = draw_masks(ALL, SIZES, 0.5, seed=3, steps=6)
    rest = draw_masks(ALL, SIZES, 0.5, seed=3, steps=2, first=4)
    np.testing.assert_array_equal(rest["keep_h"], whole["keep_h"][4:])


def test_a_row_does_not_depend_on_how_many_rows_follow():
    few = draw_masks(ALL, {**SIZES, "B": 2}, 0.5, seed=3, steps=4)
    many = draw_masks(ALL, {**SIZES, "B": 9}, 0.5, seed=3, steps=4)
    np.testing.assert_array_equal(few["mask_g"], many["mask_g"][:, :2])


def test_seed_step_time_and_purpose_all_matter():
    sizes = {"B": 64, "H": 64}

    def draw(mask=STEPWISE, **keys):
        return draw_masks([mask], sizes, 0.5, **{"seed": 0, **keys})[mask.name] > 0

    other = Mask("mask_n", ("H",), Kind.DROPOUT, Varies.STEP_AND_ROW)
    base = draw()
    for changed in (draw(seed=1), draw(step=1), draw(first=1), draw(mask=other)):
        # 4096 fair coins agree in 2048 +- 32 places; 8 standard deviations.
        assert abs(int((changed == base).sum()) - 2048) < 8 * 32


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mean_is_what_inference_takes(p):
    sizes = {"B": 200, "H": 200}
    masks = (STEPWISE, KEEP)
    drawn = draw_masks(masks, sizes, p, seed=0, dtype=np.float64)
    expected = draw_masks(masks, sizes, p, seed=0, training=False, dtype=np.float64)
    for name, array in drawn.items():
        # 8 standard errors of 40000 draws; a dropout mask's variance is p / (1 - p).
        spread = np.sqrt(p / (1 - p) if name == "mask_g" else p * (1 - p)) / 200
        assert abs(array.mean() - expected[name].mean()) < 8 * spread
    assert np.all(expected["mask_g"] == 1)
    assert np.all(expected["keep_h"] == p)


def test_rates_at_the_ends_are_exact():
    none = draw_masks(ALL, SIZES, 0, seed=0)
    every = draw_masks(ALL, SIZES, 1, seed=0)
    assert [float(a.min()) for a in none.values()] == [1, 1, 0, 1]
    assert [float(a.max()) for a in every.values()] == [0, 0, 1, 0]


def test_first_bits_stay_what_they_are():
    """A run can be replayed by a later version: these bits are Philox's, and recorded."""
    drawn = draw_masks([KEEP], {"B": 1, "H": 16}, 0.5, seed=2024, step=3)["keep_h"]
    assert "".join(str(int(bit)) for bit in drawn[0]) == RECORDED


RECORDED = "1001010011111100"


def test_empty_batches_and_sequences():
    drawn = draw_masks(ALL, {"B": 0, "H": 3}, 0.5, seed=0, steps=0)
    assert {n: a.shape for n, a in drawn.items()} == {
        "mask_g": (0, 0, 3),
        "mask_h": (0, 3),
        "keep_h": (0, 0, 3),
        "mask_u": (3, 6),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, "the rate of mask_g is 1.5, expected a probability"),
        ({"rate": {"mask_h": 0.5}}, "rate has no mask_g; it has mask_h"),
        ({"seed": -1}, "seed is -1"),
        ({"steps": -1}, "steps is -1"),
        ({"sizes": {"B": 1}}, r"mask_g is \(B, H\), and sizes has no H"),
    ],
)
def test_wrong_arguments_of_masks(options, message):
    keys = {"sizes": SIZES, "rate": 0.5, "seed": 0, **options}
    with pytest.raises(ArgumentError, match=message):
        draw_masks([STEPWISE], **keys)


def test_drawing_imports_no_sympy():
    code = "import sys, cellgen.masks; print('sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_training_run_is_the_same_at_any_number_of_threads():
    cell = PROVED[0]
    kernel = cellgen.compile(cell)
    sizes = {"T": 9, "B": 7, "I": 3, "H": 17}
    arrays = {k: v.astype(np.float32) for k, v in arguments_of(cell, sizes).items()}
    arrays |= draw_masks(masks_of(cell), sizes, 0.5, seed=5, steps=9)
    one, two = (kernel.sequence_forward(**arrays, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one.h, two.h)
    np.testing.assert_array_equal(one.c_last, two.c_last)

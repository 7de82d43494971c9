"""Regularisers: functions from a cell to a cell, and masks that can be drawn again."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen import Cell, DeclarationError, H, I, Input, State, Weight, sigmoid, tanh
from cellgen.cells import (
    AUGRU,
    BRC,
    CIFG,
    GRU,
    JANET,
    LEM,
    LIF,
    LRU,
    LSTM,
    LTC,
    MGU,
    QRNN,
    RAN,
    SHIPPED,
    SLSTM,
    SRU,
    UGRNN,
    AntisymmetricRNN,
    CfC,
    CoRNN,
    Elman,
    ElmanRelu,
    FastGRNN,
    GRUBlockCell,
    GRUResetBefore,
    IndRNN,
    IndRNNRelu,
    LayerNormGRU,
    LayerNormLSTM,
    LiGRU,
    LSTMPeephole,
    LSTMProjection,
    MinGRU,
    MinGRULog,
    MinLSTM,
    MultiplicativeLSTM,
    RecurrentHighway2Full,
    RecurrentHighway3,
    SLSTMExp,
    SLSTMExpHeads,
    SLSTMHeads,
    SRUProjection,
)
from cellgen.errors import ArgumentError
from cellgen.language.value import Role
from cellgen.masks import Kind, Mask, Varies, draw_masks
from cellgen.pipeline import programs_of, sequence_of
from cellgen.program.derive import adjoint, forward
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.proof.check import check
from cellgen.proof.over_time import STEP, run_steps
from cellgen.regularise import (
    dropconnect,
    masks_of,
    recurrent_dropout,
    variational_dropout,
    zoneout,
)
from tests.conftest import ESTABLISHED
from tests.cover import SEVERAL, each_of, of_equations

SIZES = {"T": 3, "B": 3, "I": 2, "H": 4, "K": 2, "D": 3, "M": 3, "P": 2}
BAR = 1e-12
"""Of derived gradients against the complex step, relative to the sum of the sizes of the terms:
4500 spacings of float64; the liquid time-constant network chains six divisions by small sums."""


def called(cell, equation, function):
    """The one call of a function in an equation: a candidate that the author has not named."""
    expression = next(e.expression for e in cell.definition.equations if e.target.name == equation)
    (found,) = expression.atoms(function)
    return found


CANDIDATES = {
    **dict.fromkeys((GRU, GRUResetBefore, LayerNormGRU, AUGRU, MGU, JANET, LiGRU), ("n",)),
    **dict.fromkeys((LSTM, LSTMPeephole, CIFG, LSTMProjection), ("g",)),
    **{cell: ("ci",) for cell in SHIPPED if cell.definition.name.startswith("lstm_block_cell")},
    **dict.fromkeys((SLSTM, SLSTMExp, SLSTMHeads, SLSTMExpHeads, QRNN), ("z",)),
    **dict.fromkeys((LayerNormLSTM, MultiplicativeLSTM), ("g_bar",)),
    **dict.fromkeys((GRUBlockCell, UGRNN), ("c",)),
    MinGRU: ("n_bar",),
    **dict.fromkeys((MinGRULog, MinLSTM), ("n",)),
    SRU: (SRU.x @ SRU.w,),
    SRUProjection: (SRUProjection.x @ SRUProjection.w,),
    RAN: (RAN.x @ RAN.w_c,),
    BRC: (called(BRC, "h", tanh),),
    LEM: (called(LEM, "z", tanh), called(LEM, "y", tanh)),
    AntisymmetricRNN: (called(AntisymmetricRNN, "h", tanh),),
    RecurrentHighway3: ("q_1", "q_2", "q_3"),
    RecurrentHighway2Full: ("q_1", "q_2"),
    LTC: tuple(f"f_{k}" for k in range(1, 7)),
    CoRNN: ("force",),
    FastGRNN: ("h_bar",),
    LRU: (LRU.x @ LRU.b_re, LRU.x @ LRU.b_im),
    LIF: (LIF.x @ LIF.w, LIF.s_prev @ LIF.u),
}
"""What updates the state of every cell that ships, by name, or as it stands in the equations."""

REGULARISERS = {
    "variational_dropout": variational_dropout,
    "recurrent_dropout": lambda cell: recurrent_dropout(cell, *CANDIDATES[cell]),
    "dropconnect": dropconnect,
    "zoneout": zoneout,
}

WITHOUT_MEANING = {
    ("dropconnect", MinGRU): "no weight multiplies a state; name the weights",
    ("dropconnect", MinGRULog): "no weight multiplies a state; name the weights",
    ("dropconnect", MinLSTM): "no weight multiplies a state; name the weights",
    ("dropconnect", QRNN): "no weight multiplies a state; name the weights",
    ("recurrent_dropout", Elman): "h reads the past through h_bar alone",
    ("recurrent_dropout", ElmanRelu): "h reads the past through h_bar alone",
    ("recurrent_dropout", IndRNN): "h reads the past through h_bar alone",
    ("recurrent_dropout", IndRNNRelu): "h reads the past through h_bar alone",
    ("recurrent_dropout", CfC): "h reads the past through g, k alone",
}
"""States that nothing but gates of the input scales; states that are nothing but the candidate."""
CANDIDATES |= dict.fromkeys((Elman, ElmanRelu, IndRNN, IndRNNRelu), ("h_bar",)) | {CfC: ("g", "k")}


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


def masks_for(cell, rate):
    return draw_masks(masks_of(cell), SIZES, rate, seed=1, steps=SIZES["T"], dtype=np.float64)


def run(cell, rate, **given):
    """Interpret a regularised cell with drawn masks; the parent's arguments are the same."""
    arrays = {**arguments_of(cell, SIZES), **masks_for(cell, rate), **given}
    return run_steps(cell.definition, arrays, SIZES).results


@cache
def regularised(cell, name):
    return REGULARISERS[name](cell)


def of_regularised(cell):
    """What a regulariser meets: equations, and candidates by name or as they stand."""
    candidates = CANDIDATES.get(cell, ())
    kinds = {("candidate", isinstance(one, str)) for one in candidates}
    return of_equations(cell) | kinds | {("candidates", min(len(candidates), SEVERAL))}


def cases(*names):
    """Each regulariser on cells that cover, and with the slow tests on the others."""
    return [
        pytest.param(*covered.values, name, id=f"{name}-{covered.id}", marks=covered.marks)
        for name in names
        for covered in each_of(
            of_regularised, [c for c in ESTABLISHED if (name, c) not in WITHOUT_MEANING]
        )
    ]


every_case = pytest.mark.parametrize(("cell", "name"), cases(*REGULARISERS))


@every_case
def test_no_rate_is_the_cell_itself(cell, name):
    """Masks of p = 0 are exactly 1 (kept: 0), and x * 1 is x to the bit."""
    found, expected = run(regularised(cell, name), 0.0), run(cell, 0.0)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@every_case
def test_rate_one_is_finite(cell, name):
    made = regularised(cell, name)
    zeros = {str(s): np.zeros(shape_sizes(s, SIZES)) for s in made.definition.states}
    for states in ({}, zeros):
        for key, array in run(made, 1.0, **states).items():
            assert np.isfinite(array).all(), key


@every_case
def test_gradients_of_a_step_agree_with_the_complex_step_and_are_finite_at_every_rate(cell, name):
    definition = regularised(cell, name).definition
    plain = forward(definition)
    learning = definition.learning(Role.INPUT, Role.STATE, Role.WEIGHT, Role.BIAS)
    wanted = tuple(value for value in learning if value in plain.arguments)
    derived, adjoints = adjoint(plain, definition.outputs, wanted)
    rng = np.random.default_rng(2)
    upstream = {f"d_{v}": rng.normal(size=shape_sizes(v, SIZES)) for v in definition.outputs}
    inputs = {str(value) for value in definition.with_role(Role.INPUT)}

    def step(rate):
        whole = {**definition.defaults, **arguments_of(regularised(cell, name), SIZES)}
        whole |= masks_for(regularised(cell, name), rate)
        return {n: a[0] if n in inputs else a for n, a in whole.items()}

    for rate in (0.0, 1.0):
        for key, array in interpret(derived, {**step(rate), **upstream}, SIZES).items():
            assert np.isfinite(array).all(), (rate, key)
    arrays = step(0.5)
    gradients = interpret(derived, {**arrays, **upstream}, SIZES)
    for value in wanted:
        gradient = gradients[str(adjoints[value])]
        along = rng.normal(size=gradient.shape)
        moved = {**arrays, str(value): arrays[str(value)] + 1j * STEP * along}
        loss = sum(
            np.sum(np.imag(array) / STEP * upstream[f"d_{key}"])
            for key, array in interpret(plain, moved, SIZES).items()
        )
        terms = gradient * along
        size = float(np.sum(np.abs(terms))) or 1.0
        assert abs(np.sum(terms) - loss) <= BAR * size, f"d_{value}"


@pytest.mark.parametrize(
    ("name", "cell"), WITHOUT_MEANING, ids=lambda item: getattr(item, "__name__", item)
)
def test_what_has_no_meaning_for_a_cell_is_said_in_one_line(name, cell):
    with pytest.raises(DeclarationError, match=WITHOUT_MEANING[name, cell]) as caught:
        REGULARISERS[name](cell)
    assert caught.value.code == "declaration.regulariser"


@pytest.mark.parametrize(("cell", "name"), cases("zoneout"))
def test_zoneout_at_rate_one_keeps_every_state(cell, name):
    zoned = regularised(cell, name)
    found, start = run(zoned, 1.0), arguments_of(zoned, SIZES)
    for state in zoned.definition.states:
        new = str(zoned.definition.next_state(state).name)
        np.testing.assert_array_equal(found[f"{new}_last"], start[str(state.name)])


@pytest.mark.parametrize("cell", [GRU, LSTM, GRUBlockCell, SLSTM], ids=lambda c: c.definition.name)
@pytest.mark.parametrize("name", REGULARISERS)
def test_masks_get_no_gradients_and_everything_else_keeps_its_own(cell, name):
    made = regularised(cell, name)
    masks = {f"d_{mask.name}" for mask in masks_of(made)}

    def returned(cell):
        return {str(v) for p in programs_of(cell).functions[1:] for v in p.results}

    assert not returned(made) & masks
    wanted = {f"d_{v.name}" for v in cell.definition.learning(Role.INPUT, Role.STATE, Role.WEIGHT)}
    assert wanted <= {name.removesuffix("_total") for name in returned(made)}


PROVED = (
    zoneout(variational_dropout(recurrent_dropout(MGU, "n", per_sequence=True))),
    dropconnect(zoneout(IndRNN)),
)
PROVED_AT_LENGTH = (
    zoneout(variational_dropout(LSTM)),
    dropconnect(GRU),
    zoneout(SLSTM, "h", "c"),
    recurrent_dropout(variational_dropout(LayerNormLSTM, states=()), "xw_norm", per_sequence=True),
)
"""A kernel takes some ten seconds to compile; every equation is checked above without one."""


@pytest.mark.parametrize(
    "cell",
    [*PROVED, *(pytest.param(cell, marks=pytest.mark.slow) for cell in PROVED_AT_LENGTH)],
    ids=lambda cell: cell.definition.name,
)
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


def test_dropconnect_finds_recurrent_weights_that_are_no_matrix_of_their_own():
    names = {
        cell: [m.name.removeprefix("mask_") for m in masks_of(dropconnect(cell))]
        for cell in (AntisymmetricRNN, IndRNN, BRC, SRU, LRU)
    }
    assert names == {
        AntisymmetricRNN: ["u"],  # a = u - transpose(u) stays antisymmetric
        IndRNN: ["u"],
        BRC: ["u_c", "u_a"],
        SRU: ["v_f", "v_r"],
        LRU: ["lam_re", "lam_im"],  # nu_log = 0 is no cut: exp(-exp(0)) is not 0
    }
    twice = dropconnect(dropconnect(AntisymmetricRNN))
    assert [m.name for m in masks_of(twice)] == ["mask_u", "mask_u_2"]


def test_a_value_of_a_state_that_not_products_alone_read_is_none_to_them():
    class ReadBesides(Cell):
        x, h_prev = Input(H), State(H)
        v, u = Weight(H, H), Weight(H, H)
        z = tanh(h_prev) * x
        h = z + sigmoid(z @ u) + h_prev @ v

    class ReadByProducts(ReadBesides):
        h = sigmoid(ReadBesides.z @ ReadBesides.u) + ReadBesides.h_prev @ ReadBesides.v

    assert [m.name for m in masks_of(dropconnect(ReadBesides))] == ["mask_v"]
    assert [m.name for m in masks_of(dropconnect(ReadByProducts))] == ["mask_v", "mask_u"]


def test_recurrent_dropout_of_an_expression_names_it():
    made = recurrent_dropout(RAN, RAN.x @ RAN.w_c)
    assert [m.name for m in masks_of(made)] == ["mask_c_candidate"]
    found = equations(made)
    assert "c_candidate_raw = x @ w_c" in found
    assert any(line.startswith("c = ") and "w_c" not in line for line in found)


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
        (lambda: recurrent_dropout(LSTM, "g", "g"), r"a candidate is named twice \(g, g\)"),
        (lambda: variational_dropout(GRU, inputs="y"), r"y is not among its inputs \(x\)"),
        (lambda: variational_dropout(MinGRU, states=("h",)), "no product reads h_prev"),
        (lambda: variational_dropout(GRU, inputs=("y",)), r"y is not among its inputs \(x\)"),
        (lambda: recurrent_dropout(GRU), 'name the candidate, such as "g" in LSTM'),
        (lambda: recurrent_dropout(RAN, RAN.x @ RAN.w_i + 1), r"`x @ w_i \+ 1` stands in no"),
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
    drawn = draw_masks(ALL, {"B": 3, "H": 5}, 0.25, seed=3, steps=4)
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
        ({"rate": {"mask_g": 0.5, "mask_gg": 0.1}}, "rate has mask_gg, expected names .*: mask_g"),
        ({"sizes": {"B": 1, "H": -1}}, r"sizes\['H'\] is -1"),
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


def test_masks_are_told_from_a_cell_and_numbers_may_be_numpy_s():
    with pytest.raises(ArgumentError, match=r"pass masks_of\(cell\)"):
        draw_masks(GRU, SIZES, 0.5, seed=0)
    plain = draw_masks([STEPWISE], SIZES, 0.5, seed=3)
    other = draw_masks(iter([STEPWISE]), SIZES, np.float32(0.5), seed=np.int64(3))
    assert plain["mask_g"].tobytes() == other["mask_g"].tobytes()


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
    np.testing.assert_array_equal(one.h_last, two.h_last)

"""Segments of time side by side: bits of step by step, whatever states remember."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh
from cellgen.errors import ArgumentError
from cellgen.runtime.call.segments import Segmentation, SegmentsRun
from cellgen.runtime.kernel import Kernel
from tests.cover import in_turn
from tests.drawing import draw_arrays

STEPS, ROWS = 211, 2
SIZES = {"T": STEPS, "B": ROWS, "I": 3, "H": 5, "K": 3, "D": 4, "N": 3, "P": 3}
SHIPPED = (
    *("ind_rnn", "ind_rnn_relu", "brc", "sru", "sru_projection", "qrnn", "min_gru", "min_lstm"),
    *("rg_lru", "lru", "s5", "rwkv4", "mlstm", "gla", "gru_d", "gru", "lstm"),
    *("para_gru", "para_lstm"),
)
GAINS = {"random": 1.0, "saturated": 8.0}


class Peephole(Cell, name="diagonal_peephole"):
    """Two states of a unit that read each other, with recurrent weights that are diagonal."""

    x, h_prev, c_prev = Input(I), State(H), State(H)
    w_f, w_z, w_o = Weight(I, H), Weight(I, H), Weight(I, H)
    a_f, a_z, a_o, p_f, p_o, b = (Weight(H), Weight(H), Weight(H), Weight(H), Weight(H), Bias(H))

    f = sigmoid(a_f * h_prev + x @ w_f + p_f * c_prev + b)
    c = f * c_prev + (1 - f) * tanh(a_z * h_prev + x @ w_z)
    h = sigmoid(a_o * h_prev + x @ w_o + p_o * c) * tanh(c)

    outputs = h, c


class TwoLevels(Cell, name="two_levels"):
    """Two layers in one cell: the second reads the first through a full product."""

    x, a_prev, b_prev = Input(I), State(H), State(H)
    w, u, q, p = Weight(I, H), Weight(H), Weight(H, H), Weight(H)

    a = tanh(x @ w + u * a_prev)
    b = tanh(a @ q + p * b_prev)

    outputs = b, a


class Remembers(Cell, name="adds_up"):
    """A sum that forgets nothing: no segment is right before the one before it."""

    x, h_prev, w = Input(I), State(H), Weight(I, H)
    h = h_prev + x @ w


OWN = (Peephole, TwoLevels)
CELLS = (*SHIPPED, *(cell.definition.name for cell in OWN))


def kernel_of(name: str) -> Kernel:
    own = {cell.definition.name: cell for cell in (*OWN, Remembers)}
    return cellgen.compile(own[name]) if name in own else cellgen.load(name)


def arguments_of(
    kernel: Kernel, gain: float = 1.0, dtype: type = np.float32, **sizes: int
) -> dict[str, Any]:
    function = kernel.sequence_forward.function
    own = {dim: {**SIZES, **sizes}.get(dim, 4) for dim in function.dims}
    drawn = draw_arrays(function, own, 7)
    weights = {item.name for item in function.arguments if item.is_weight}
    return {n: (a * (gain if n in weights else 1)).astype(dtype) for n, a in drawn.items()}


def assert_equal(found: Any, expected: Any) -> None:
    assert found._fields == expected._fields
    for name in found._fields:
        if name == "saved":
            continue
        one, other = getattr(found, name), getattr(expected, name)
        if other is None:
            assert one is None
            continue
        assert one.shape == other.shape, name
        assert one.strides == other.strides, name
        word = f"u{one.itemsize}"
        np.testing.assert_array_equal(bits(one, word), bits(other, word), err_msg=name)


def bits(array: Any, word: str) -> Any:
    """The bits of numbers: NaN is not any NaN, and 0.0 is not -0.0."""
    return np.ascontiguousarray(array).view(word)


def assert_gradients_are_equal(
    kernel: Kernel, given: dict[str, Any], run: Any, expected: Any
) -> None:
    """What backward passes of two runs give, of the same upstream gradients."""
    backward, rng = kernel.sequence_backward, np.random.default_rng(1)
    takes = {a.name: a for a in backward.function.arguments}
    upstream = {
        n: rng.standard_normal(getattr(expected, a.of).shape).astype(expected[0].dtype)
        for n, a in takes.items()
        if a.role == "upstream"
    }
    both = []
    for one in (run, expected):
        beside = {n: a for n, a in {**given, **one._asdict()}.items() if n in takes}
        both.append(backward(**beside, saved=one.saved, **upstream))
    for name, found, wanted in zip(both[0]._fields, *both, strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize(("name", "gain"), in_turn(CELLS, GAINS.keys()))
def test_results_have_the_bits_of_step_by_step(name: str, gain: str) -> None:
    kernel = kernel_of(name)
    given = arguments_of(kernel, GAINS[gain])
    for count in (1, 2, 7):
        run = kernel.sequence_forward(**given, parallel="segments", segments=count, sweeps=2)
        assert_equal(run, kernel.sequence_forward(**given))
        assert run.parallel.segments == count
        assert run.parallel.sweeps <= 2


@pytest.mark.parametrize("name", ["ind_rnn", "diagonal_peephole", "rwkv4", "gru", "two_levels"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_run_that_saves_has_the_same_gradients(name: str, dtype: type) -> None:
    kernel = kernel_of(name)
    given = arguments_of(kernel, dtype=dtype)
    run, expected = (
        kernel.sequence_forward(**given, save=True, **how)
        for how in ({"parallel": "segments", "segments": 5, "sweeps": 1}, {})
    )
    assert_equal(run, expected)
    assert run.saved.run == expected.saved.run
    assert_gradients_are_equal(kernel, given, run, expected)


RESETS = np.arange(STEPS * ROWS).reshape(STEPS, ROWS) % 37 == 5
OPTIONS: dict[str, dict[str, Any]] = {
    "reverse": {"reverse": True},
    "lengths": {"lengths": np.array([150, 0])},
    "lengths, reverse": {"lengths": np.array([150, 3]), "reverse": True},
    "last_only": {"last_only": True},
    "last_only, lengths": {"last_only": True, "lengths": np.array([STEPS, 77])},
    "two threads": {"threads": 2},
    "flush_denormals": {"flush_denormals": True},
    "reset": {"reset": RESETS},
    "reset, reverse": {"reset": RESETS, "reverse": True},
    "bfloat16": {"products": "bf16"},
}


@pytest.mark.parametrize(
    ("name", "how"),
    in_turn(("ind_rnn", "rwkv4", "lstm_projection", "diagonal_peephole"), OPTIONS.keys()),
)
def test_options_of_a_call_do_what_they_do(name: str, how: str) -> None:
    kernel = kernel_of(name)
    given, options = arguments_of(kernel), OPTIONS[how]
    for save in (False, True):
        found = kernel.sequence_forward(
            **given, **options, save=save, parallel="segments", segments=6
        )
        expected = kernel.sequence_forward(**given, **options, save=save)
        assert_equal(found, expected)
        assert found.parallel.segments == 6
        if save and "last_only" not in options:
            assert_gradients_are_equal(kernel, given, found, expected)


def test_arrays_of_any_layout_are_read_and_written_in_place() -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel)
    expected = kernel.sequence_forward(**given)
    x = np.ascontiguousarray(given.pop("x").swapaxes(0, 1))
    found = kernel.sequence_forward(x=x, **given, batch_first=True, parallel="segments", segments=5)
    assert found.h.flags.c_contiguous
    np.testing.assert_array_equal(found.h, expected.h.swapaxes(0, 1))
    wide = np.full((STEPS, ROWS, 9), np.nan, np.float32)
    out = {"h": wide[:, :, 2:7]}
    found = kernel.sequence_forward(
        x=x.swapaxes(0, 1), **given, out=out, parallel="segments", segments=5
    )
    assert found.h is out["h"]
    np.testing.assert_array_equal(wide[:, :, 2:7], expected.h)
    assert np.isnan(wide[:, :, :2]).all()
    assert np.isnan(wide[:, :, 7:]).all()


@pytest.mark.parametrize("save", [False, True])
def test_last_outputs_of_batch_first_calls_keep_their_shape(save: bool) -> None:
    kernel = kernel_of("rwkv4")
    given = arguments_of(kernel)
    given["x"] = np.ascontiguousarray(given["x"].swapaxes(0, 1))
    how = {"batch_first": True, "last_only": True, "save": save}
    found = kernel.sequence_forward(**given, **how, parallel="segments", segments=6)
    assert_equal(found, kernel.sequence_forward(**given, **how))


def test_packed_weights_are_taken() -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel)
    packed = kernel.pack(**{n: given.pop(n) for n in ("w", "u", "b")})
    found = kernel.sequence_forward(**given, packed=packed, parallel="segments", segments=5)
    assert_equal(found, kernel.sequence_forward(**given, packed=packed))


def test_outputs_that_are_not_wanted_are_none() -> None:
    kernel = kernel_of("diagonal_peephole")
    given = arguments_of(kernel)
    for save in (False, True):
        how = {"outputs": ("c",), "save": save}
        found = kernel.sequence_forward(**given, **how, parallel="segments", segments=5)
        assert found.h is None
        assert_equal(found, kernel.sequence_forward(**given, **how))


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_there_are_no_more_segments_than_steps(steps: int) -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel, T=steps)
    found = kernel.sequence_forward(**given, parallel="segments", segments=1000, sweeps=1000)
    assert_equal(found, kernel.sequence_forward(**given))
    assert found.parallel.segments == max(steps, 1)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"H": 0}, {"I": 0}], ids=["B", "H", "I"])
def test_dimensions_may_be_0(sizes: dict[str, int]) -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel, **sizes)
    found = kernel.sequence_forward(**given, parallel="segments", segments=4)
    assert_equal(found, kernel.sequence_forward(**given))


def test_few_steps_of_many_units_are_one_segment() -> None:
    assert Segmentation().count(1023, 1) == 1
    assert Segmentation().count(100_000, 4096) == 1
    assert Segmentation().count(16384, 1) == 32
    assert Segmentation().count(100_000, 1) == 64
    assert Segmentation().count(16384, 64) == 16
    assert Segmentation(segments=9).count(4, 1) == 4


def test_what_is_remembered_is_stepped_from_the_last_exact_segment() -> None:
    kernel = kernel_of("adds_up")
    given = arguments_of(kernel)
    found = kernel.sequence_forward(**given, parallel="segments", segments=10, sweeps=3)
    assert_equal(found, kernel.sequence_forward(**given))
    # The first pass makes one segment right and each sweep one more, of 21 steps each.
    assert found.parallel == SegmentsRun(10, 3, ROWS * (STEPS - 4 * 21))
    found = kernel.sequence_forward(**given, parallel="segments", segments=10, sweeps=9)
    assert found.parallel == SegmentsRun(10, 9, 0)
    assert_equal(found, kernel.sequence_forward(**given))


def test_a_cell_that_forgets_is_done_after_the_first_pass() -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel)
    given["u"] = np.full_like(given["u"], 0.1)
    found = kernel.sequence_forward(**given, parallel="segments", segments=2)
    assert found.parallel == SegmentsRun(2, 0, 0)


def test_numbers_that_are_none_are_as_step_by_step() -> None:
    kernel = kernel_of("brc")
    given = arguments_of(kernel)
    for value in (np.nan, np.inf, -np.inf):
        given["x"][100, 0] = value
        found = kernel.sequence_forward(**given, parallel="segments", segments=8, sweeps=8)
        expected = kernel.sequence_forward(**given)
        assert np.isnan(expected.h[-1, 0]).all()
        assert not np.isnan(expected.h[:, 1]).any()
        assert_equal(found, expected)
        assert found.parallel.stepped == 0


def test_a_sum_that_overflows_stays_so_within_a_tolerance() -> None:
    kernel = kernel_of("adds_up")
    given = {"x": np.full((80, 1, 1), 0.01, np.float32), "w": np.ones((1, 1), np.float32)}
    given["x"][5], given["x"][6] = 1e38, 3e38
    given["h_prev"] = np.zeros((1, 1), np.float32)
    how = {"parallel": "segments", "segments": 4, "tolerance": 1e-6}
    assert_equal(kernel.sequence_forward(**given, **how), kernel.sequence_forward(**given))


def test_of_several_nans_each_is_the_one_of_step_by_step() -> None:
    kernel = kernel_of("adds_up")
    x = np.full((80, 1, 1), 0.01, np.float32)
    x.view(np.uint32)[[22, 38], 0, 0] = 0xFFC00001, 0x7FC00002
    given = {"x": x, "w": np.ones((1, 1), np.float32), "h_prev": np.zeros((1, 1), np.float32)}
    run = kernel.sequence_forward(**given, parallel="segments", segments=4)
    assert_equal(run, kernel.sequence_forward(**given))


@pytest.mark.parametrize(
    ("how", "dtype", "said"),
    [
        ({"products": "int8", "save": True}, np.float32, "products is 'int8' and save is True"),
        ({"threads": 0}, np.float32, "threads is 0"),
        ({"products": "bf16"}, np.float64, "the arrays are float64, expected float32"),
    ],
    ids=["saved int8", "no threads", "products"],
)
def test_what_no_step_runs_with_is_refused_too(how: Any, dtype: type, said: str) -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel, dtype=dtype)
    with pytest.raises(ArgumentError, match=said):
        kernel.sequence_forward(**given, lengths=[0, 0], parallel="segments", **how)


def test_numbers_of_numpy_and_what_is_left_out_are_as_elsewhere() -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel)
    expected = kernel.sequence_forward(**given)
    usual = {"checkpoint": np.int64(0), "every": np.int64(1)}
    run = kernel.sequence_forward(**given, parallel="segments", **usual)
    assert_equal(run, expected)
    assert run._replace(h=expected.h).parallel == run.parallel
    bound = kernel.sequence_forward.bind(**given, parallel=None, segments=0, sweeps=4)
    assert_equal(bound(), expected)
    with pytest.raises(ArgumentError, match="sweeps"):
        kernel.sequence_forward(**given, sweeps=np.array([1, 2]))
    with pytest.raises(ArgumentError, match="segments is 4 and parallel is None"):
        kernel.sequence_forward.bind(**given, segments=4)
    with pytest.raises(ArgumentError, match=r"measure: parallel is given, expected none"):
        kernel.sequence_forward.measure(**given, parallel="segments")


def test_a_tolerance_ends_sooner_and_bounds_what_is_left() -> None:
    kernel = kernel_of("adds_up")
    given = arguments_of(kernel)
    given["x"] = np.zeros_like(given["x"])
    given["x"][5] = 1e-4
    how = {"parallel": "segments", "segments": 4, "sweeps": 1}
    exact = kernel.sequence_forward(**given, **how)
    near = kernel.sequence_forward(**given, **how, tolerance=1.0)
    assert exact.parallel.stepped > 0
    assert near.parallel == SegmentsRun(4, 0, 0)
    expected = kernel.sequence_forward(**given)
    assert_equal(exact, expected)
    assert 0 < np.abs(near.h - expected.h).max() < 1e-2


def test_results_travel_with_how_they_went() -> None:
    kernel = kernel_of("ind_rnn")
    found = kernel.sequence_forward(**arguments_of(kernel), parallel="segments", segments=4)
    again = pickle.loads(pickle.dumps(found))
    assert_equal(again, found)
    assert again.parallel == found.parallel
    assert isinstance(found.parallel, SegmentsRun)


def test_arrays_of_16_bits_stay_in_16_bits() -> None:
    kernel = kernel_of("ind_rnn")
    given = {n: a.astype(np.float16) for n, a in arguments_of(kernel).items()}
    for save in (False, True):
        found = kernel.sequence_forward(**given, save=save, parallel="segments", segments=4)
        assert found.parallel.segments == 4
        assert found.h.dtype == np.float16
        assert_equal(found, kernel.sequence_forward(**given, save=save))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "word": ({"parallel": "newton"}, "parallel is 'newton', expected one of segments"),
    "switch": ({"parallel": True}, "parallel is True, expected one of segments"),
    "tolerance": ({"tolerance": -1e-6}, "tolerance is -1e-06, expected a finite number, 0 or more"),
    "no number": ({"tolerance": float("nan")}, "tolerance is nan, expected a finite number"),
    "infinity": ({"tolerance": float("inf")}, "tolerance is inf, expected a finite number"),
    "segments": ({"segments": -1}, "segments is -1, expected an integer from 0"),
    "sweeps": ({"sweeps": 1.5}, "sweeps is 1.5, expected an integer from 0"),
    "alone": (
        {"parallel": None, "segments": 4},
        "segments is 4 and parallel is None, expected segments with parallel='segments' alone",
    ),
    "mask": ({"mask": np.ones((STEPS, ROWS), bool)}, "parallel is 'segments' and mask is given"),
    "every": ({"every": 2}, "and every is given, expected none of mask, every, plan"),
    "checkpoint": ({"checkpoint": 8}, "and checkpoint is given"),
    "memory_limit": ({"memory_limit": 10**6}, "and memory_limit is given"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(how: str) -> None:
    kernel = kernel_of("ind_rnn")
    options, message = REFUSED[how]
    with pytest.raises(ArgumentError, match=r"ind_rnn\.sequence_forward: ") as caught:
        kernel.sequence_forward(**arguments_of(kernel), **{"parallel": "segments", **options})
    assert message in str(caught.value)


def test_a_bound_call_takes_no_segments() -> None:
    kernel = kernel_of("ind_rnn")
    with pytest.raises(ArgumentError, match="parallel is given, expected none"):
        kernel.sequence_forward.bind(**arguments_of(kernel), parallel="segments")


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("lif", "s = spike(v - threshold)"),
        ("alif", "s = spike_of_excess("),
        ("izhikevich", "s = spike_from_0("),
    ],
)
def test_a_cell_that_spikes_is_refused_by_its_statement(name: str, statement: str) -> None:
    kernel = kernel_of(name)
    assert kernel.interface.jumps.startswith(statement)
    with pytest.raises(ArgumentError, match="whose states follow each other without steps") as said:
        kernel.sequence_forward(**arguments_of(kernel), parallel="segments")
    assert statement in str(said.value)


def test_a_result_shares_no_memory_with_an_argument() -> None:
    kernel = kernel_of("sru")
    given = arguments_of(kernel, I=5)
    memory = np.zeros((STEPS + 100, ROWS, 5), np.float32)
    given["x"] = memory[:STEPS]
    with pytest.raises(ArgumentError, match="shares memory with the argument x"):
        kernel.sequence_forward(**given, out={"h": memory[100:]}, parallel="segments", segments=8)


def test_shapes_are_checked_as_those_of_a_whole_call() -> None:
    kernel = kernel_of("ind_rnn")
    given = arguments_of(kernel)
    given["h_prev"] = given["h_prev"][:1]
    with pytest.raises(ArgumentError, match="h_prev"):
        kernel.sequence_forward(**given, parallel="segments", segments=4)

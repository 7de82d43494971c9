"""Which steps are valid, and where arrays lie: every option, together, for cells of every kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen import Cell, Dim, H, I, Input, State, Static, Weight, log, tanh
from cellgen.cells import (
    GRU,
    LSTM,
    QRNN,
    Elman,
    GRUBlockCell,
    GRUResetBefore,
    LayerNormLSTM,
    LSTMPeephole,
    MinLSTM,
)
from cellgen.errors import ArgumentError, BuildError
from cellgen.proof.over_time import STEP, forward_errors, gradient_errors, run_steps
from cellgen.runtime.options import NONE, Options
from tests.awkward_cells import AWKWARD
from tests.cover import each_of, of_all
from tests.drawing import draw_arrays

CELLS = (Elman, GRU, GRUResetBefore, GRUBlockCell, LSTM, LSTMPeephole, LayerNormLSTM, MinLSTM)
SHAPE = (7, 5, 3, 18)
SIZES = dict(zip("TBIH", SHAPE, strict=True))
TOLERANCE = 1e-12  # float64, sums of some hundred terms over seven steps
C, D, K = Dim("C"), Dim("D"), Dim("K")

LENGTHS = np.array([7, 3, 0, 5, 1])
RNG = np.random.default_rng(5)
MASK = RNG.random((7, 5)) < 0.6
MASK[:, 2] = False
RESET = RNG.random((7, 5)) < 0.3

CASES = {
    "lengths": Options(lengths=LENGTHS),
    "mask": Options(mask=MASK),
    "mask, zeros": Options(mask=MASK, zero_output_for_mask=True),
    "reset": Options(reset=RESET),
    "reverse": Options(reverse=True),
    "batch first": Options(batch_first=True),
    "lengths in reverse": Options(lengths=LENGTHS, reverse=True),
    "all together": Options(lengths=LENGTHS, mask=MASK, reset=RESET, reverse=True),
    "all together, batch first": Options(
        lengths=LENGTHS, mask=MASK, reset=RESET, reverse=True, batch_first=True
    ),
}

cells = pytest.mark.parametrize("cell", each_of(of_all, CELLS))
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


@cache
def kernel_of(cell):
    return cellgen.load(cell.definition.name)


def swapped(arrays, kernel, options):
    """Arrays over time as the call wants them: (B, T, ...) without gaps where batch-first."""
    if not options.batch_first:
        return arrays
    both = (kernel.sequence_forward.function, kernel.sequence_backward.function)
    members = [item for f in both for item in (*f.arguments, *f.results)]
    timed = {item.name for item in members if item.over_time} | {"mask", "reset"}
    return {
        n: np.ascontiguousarray(a.swapaxes(0, 1)) if n in timed else a for n, a in arrays.items()
    }


def keywords(options, *, backward=False):
    found = {
        name: getattr(options, name)
        for name in ("lengths", "mask", "reset", "reverse", "batch_first", "zero_output_for_mask")
    }
    if options.batch_first:
        for name in ("mask", "reset"):
            if found[name] is not None:
                found[name] = np.ascontiguousarray(found[name].swapaxes(0, 1))
    return found | ({"window": options.window} if backward else {})


def run(cell, options, *, threads=2, dtype=np.float64, padding=None, **backward_only):
    """Forward and backward with everything given; results time-first."""
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES, dtype=dtype)
    given = draw_arrays(kernel.sequence_backward.function, SIZES, 1, dtype=dtype, optional=True)
    if padding is not None:
        arguments["x"] = np.where(padding[:, :, None], arguments["x"], np.nan).astype(dtype)
        inside = np.ones((7, 5), bool)
        if options.lengths is not None:
            inside = np.arange(7)[:, None] < options.lengths
        for name in [n for n in given if not n.endswith("_last")]:
            given[name] = np.where(inside[:, :, None], given[name], np.nan).astype(dtype)
    arguments = swapped(arguments, kernel, options)
    given = swapped(given, kernel, options)
    forward = kernel.sequence_forward(**arguments, save=True, threads=threads, **keywords(options))
    outputs = {str(v.name): getattr(forward, str(v.name)) for v in cell.definition.outputs}
    backward = kernel.sequence_backward(
        **arguments,
        **outputs,
        **given,
        saved=forward.saved,
        threads=threads,
        **(keywords(options, backward=True) | backward_only),
    )
    found = forward._asdict() | backward._asdict()
    del found["saved"]
    if options.batch_first:
        both = (kernel.sequence_forward.function, kernel.sequence_backward.function)
        members = [item for f in both for item in (*f.arguments, *f.results)]
        timed = {item.name for item in members if item.over_time}
        found = {n: a.swapaxes(0, 1) if n in timed else a for n, a in found.items()}
    return found


def truth(cell, options, arguments):
    plain = Options(
        options.lengths,
        options.mask,
        options.reset,
        options.reverse,
        zero_output_for_mask=options.zero_output_for_mask,
    )
    return run_steps(cell.definition, arguments, SIZES, plain).results


@cells
@cases
def test_forward_agrees_with_the_equations_of_the_steps_that_count(cell, options):
    found = run(cell, options)
    for name, expected in truth(
        cell, options, draw_arrays(kernel_of(cell).sequence_forward.function, SIZES)
    ).items():
        assert np.max(np.abs(found[name] - expected)) <= TOLERANCE, name


@cells
@cases
def test_every_gradient_agrees_with_the_complex_step(cell, options):
    kernel, rng = kernel_of(cell), np.random.default_rng(2)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    given = draw_arrays(kernel.sequence_backward.function, SIZES, 1, optional=True)
    found = run(cell, options)
    for name, array in arguments.items():
        direction = rng.standard_normal(array.shape)
        results = truth(cell, options, {**arguments, name: array + 1j * STEP * direction})
        loss = sum(np.sum(a * given[f"d_{n}"]) for n, a in results.items() if f"d_{n}" in given)
        terms = found[f"d_{name}"] * direction
        size = np.sum(np.abs(terms)) + 1e-300
        assert abs(np.sum(terms) - np.imag(loss) / STEP) <= TOLERANCE * size, name


@pytest.mark.parametrize("cell", AWKWARD, ids=lambda cell: cell.definition.name)
def test_awkward_cells_agree_with_the_equations_with_all_options(cell):
    kernel, rng = cellgen.compile(cell), np.random.default_rng(4)
    sizes = {**SIZES, "K": 2, "D": 3, "N": 2, "M": 4}
    given = draw_arrays(kernel.sequence_forward.function, sizes)
    above = draw_arrays(kernel.sequence_backward.function, sizes, 1, optional=True)
    options = CASES["all together, batch first"]
    call = (kernel, cell.definition, given)
    errors = forward_errors(*call, sizes, "float64", options)
    errors |= gradient_errors(*call, above, sizes, rng, options)
    assert max(errors.values()) < TOLERANCE, errors


@cells
@pytest.mark.parametrize("name", ["mask", "all together", "all together, batch first"])
def test_padding_is_never_read(cell, name):
    """NaN in the inputs of masked steps, and in the gradients of outputs beyond a
    length, changes no bit of any result."""
    options = CASES[name]
    valid = MASK if options.lengths is None else MASK & (np.arange(7)[:, None] < LENGTHS)
    clean, dirty = run(cell, options), run(cell, options, padding=valid)
    assert {n: a.tobytes() for n, a in clean.items()} == {n: a.tobytes() for n, a in dirty.items()}


class DividesInTiles(Cell):
    """What follows from a product is divided by what is formed again for all steps, in its tile."""

    x, k, h_prev, w = Input(I, D), Input(D), State(D), Weight(I, K)
    y = log(1.5 + tanh(x @ k)) @ w
    h = h_prev / 2 + k
    outputs = h, y


def test_rows_of_steps_that_do_not_count_are_left_out_of_tiles_that_divide() -> None:
    kernel, rng = cellgen.compile(DividesInTiles), np.random.default_rng(0)
    x, k, w = (rng.normal(size=s) for s in ((3, 2, 4, 3), (3, 2, 3), (4, 5)))
    given = {"x": x, "k": k, "w": w, "h_prev": np.zeros((2, 3))}
    run = kernel.sequence_forward(**given, lengths=[3, 1], save=True)
    d_y = rng.normal(size=run.y.shape)
    found = kernel.sequence_backward(**given, h=run.h, y=run.y, saved=run.saved, d_y=d_y).d_x
    p = np.tanh(np.einsum("tbid,tbd->tbi", x, k))
    expected = ((d_y @ w.T) * (1 - p**2) / (1.5 + p))[..., None] * k[:, :, None]
    expected[1:, 1] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@cells
@pytest.mark.parametrize("name", ["reverse", "all together", "batch first"])
def test_results_are_bitwise_equal_for_any_number_of_threads(cell, name):
    runs = [
        [a.tobytes() for a in run(cell, CASES[name], threads=n, dtype=np.float32).values()]
        for n in (1, 2, 3, 5)
    ]
    assert all(found == runs[0] for found in runs)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", [GRUBlockCell, QRNN], ids=lambda cell: cell.definition.name)
def test_an_output_that_is_no_state_repeats_the_step_before(cell, reverse, window):
    """As Keras repeats outputs: gradients that reach a repetition reach the step that made it."""
    kernel, order = kernel_of(cell), range(7)[:: -1 if reverse else 1]
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    given = draw_arrays(kernel.sequence_backward.function, SIZES, 1, optional=True)
    how = {"mask": MASK, "reverse": reverse, "threads": 2}
    found = kernel.sequence_forward(**arguments, save=True, **how)
    states = {str(state.name).removesuffix("_prev") for state in cell.definition.states}
    names = [str(v.name) for v in cell.definition.outputs if str(v.name) not in states]
    moved = {name: array.copy() for name, array in given.items()}
    repeated = 0
    for row in range(5):
        made, since = None, 0  # the step that made what is shown, and its window
        for count, t in enumerate(order):
            if MASK[t, row]:
                made, since = t, count // window if window else 0
                continue
            for name in names:
                shown = getattr(found, name)[:, row]
                expected = np.zeros_like(shown[t]) if made is None else shown[made]
                np.testing.assert_array_equal(shown[t], expected)
                inside = made is not None and (not window or count // window == since)
                if inside:
                    moved[f"d_{name}"][made, row] += given[f"d_{name}"][t, row]
                moved[f"d_{name}"][t, row] = 0
                repeated += inside
    assert repeated
    outputs = {str(v.name): getattr(found, str(v.name)) for v in cell.definition.outputs}
    first, second = (
        kernel.sequence_backward(
            **arguments, **outputs, **upstream, saved=found.saved, window=window, **how
        )._asdict()
        for upstream in (given, moved)
    )
    for name, array in first.items():
        size = np.max(np.abs(second[name])) or 1.0
        assert np.max(np.abs(array - second[name])) <= TOLERANCE * size, name


def test_outputs_that_a_backward_pass_does_not_read_may_be_batch_first_too():
    """QRNN's d_h needs no h; given all the same, as every cell's outputs may be, it is checked."""
    kernel, sizes = cellgen.load("qrnn"), {"T": 4, "B": 3, "I": 2, "H": 5}
    arguments = draw_arrays(kernel.sequence_forward.function, sizes)
    given = draw_arrays(kernel.sequence_backward.function, sizes, 1, optional=True)

    def gradients(arguments, given, **options):
        found = kernel.sequence_forward(**arguments, save=True, **options)
        outputs = {"h": found.h, "c": found.c}
        return kernel.sequence_backward(
            **arguments, **outputs, **given, saved=found.saved, **options
        )

    first = gradients(arguments, given)
    batch_first = Options(batch_first=True)
    second = gradients(
        swapped(arguments, kernel, batch_first),
        swapped(given, kernel, batch_first),
        batch_first=True,
    )
    np.testing.assert_array_equal(first.d_x, second.d_x.swapaxes(0, 1))
    np.testing.assert_array_equal(first.d_w_z, second.d_w_z)


@cells
def test_options_that_leave_nothing_out_change_no_bit(cell):
    plain = run(cell, NONE)
    for options in (
        Options(lengths=np.full(5, 7)),
        Options(mask=np.ones((7, 5), bool)),
        Options(reset=np.zeros((7, 5), bool)),
    ):
        found = run(cell, options)
        for name, array in plain.items():
            # Gradients of weights are sums over rows; a chunk of steps may begin elsewhere.
            assert np.max(np.abs(found[name] - array)) <= TOLERANCE, name


@cells
def test_reverse_is_forward_on_flipped_arrays(cell):
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    there = kernel.sequence_forward(**arguments, reverse=True)
    back = kernel.sequence_forward(**{**arguments, "x": arguments["x"][::-1].copy()})
    assert np.array_equal(there.h[::-1], back.h)
    assert np.array_equal(there.h_last, back.h_last)


@cells
@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
def test_a_window_is_the_chunked_form_with_carried_state(cell, window):
    """Gradients of chunks that are run one after the other, each from the last one's state."""
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    given = draw_arrays(kernel.sequence_backward.function, SIZES, 1, optional=True)
    states = [str(s.name) for s in cell.definition.states]
    outputs = [str(v.name) for v in cell.definition.outputs]
    whole = kernel.sequence_forward(**arguments, save=True)
    found = kernel.sequence_backward(
        **arguments,
        **{n: getattr(whole, n) for n in outputs},
        **given,
        saved=whole.saved,
        window=window,
    )
    chunks = []
    state = {n: arguments[n] for n in states}
    for start in range(0, 7, window):
        part = slice(start, min(start + window, 7))
        own = {**arguments, **state, "x": arguments["x"][part]}
        forward = kernel.sequence_forward(**own, save=True)
        last = part.stop == 7
        upstream = {
            n: a if n.endswith("_last") else a[part]
            for n, a in given.items()
            if last or not n.endswith("_last")
        }
        chunks.append(
            kernel.sequence_backward(
                **own,
                **{n: getattr(forward, n) for n in outputs},
                **upstream,
                saved=forward.saved,
            )
        )
        state = {n: getattr(forward, f"{n.removesuffix('_prev')}_last") for n in states}
    for name, array in found._asdict().items():
        parts = [getattr(chunk, name) for chunk in chunks]
        if name == "d_x":
            expected = np.concatenate(parts)
        elif name.removeprefix("d_") in states:
            expected = parts[0]
        else:
            expected = sum(parts)
        assert np.max(np.abs(array - expected)) <= TOLERANCE * 10, name


def term_by_term(cell, options, limit):
    """Sum the gradients of each loss term alone, back through the steps that it may reach.

    A term at step t is run from the state before step t - limit, or before the first one of its
    window, a constant unless that is the initial state and t - limit is negative.
    """
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    given = draw_arrays(kernel.sequence_backward.function, SIZES, 1, optional=True)
    states = [str(s.name) for s in cell.definition.states]
    outputs = [str(v.name) for v in cell.definition.outputs]
    flags = {n: f for n in ("mask", "reset") if (f := getattr(options, n)) is not None}
    zero = {"zero_output_for_mask": True}
    total = {f"d_{n}": np.zeros_like(a) for n, a in arguments.items()}
    state = {n: arguments[n] for n in states}
    before = []
    for t in range(7):
        before.append(state)
        now = {n: f[t : t + 1] for n, f in flags.items()}
        one = {**arguments, **state, "x": arguments["x"][t : t + 1]}
        step = kernel.sequence_forward(**one, **now, **zero)
        state = {n: getattr(step, f"{n.removesuffix('_prev')}_last") for n in states}
        chunk = t // options.window * options.window if options.window else 0
        start = max(chunk, t - limit)
        part = slice(start, t + 1)
        own = {**arguments, **before[start], "x": arguments["x"][part]}
        now = {n: f[part] for n, f in flags.items()} | zero
        forward = kernel.sequence_forward(**own, **now, save=True)
        upstream = {n: np.zeros((t + 1 - start, *a.shape[1:])) for n, a in given.items()}
        for n, a in given.items():
            if not n.endswith("_last"):
                upstream[n][-1] = a[t]
            elif t == 6:
                upstream[n] = a
        upstream = {n: a for n, a in upstream.items() if t == 6 or not n.endswith("_last")}
        gradients = kernel.sequence_backward(
            **own,
            **{n: getattr(forward, n) for n in outputs},
            **upstream,
            **now,
            saved=forward.saved,
        )
        for n, a in gradients._asdict().items():
            if n == "d_x":
                total[n][part] += a
            elif n.removeprefix("d_") not in states or (start == 0 and t - limit < 0):
                total[n] += a
    return total


@cells
@pytest.mark.parametrize("limit", [0, 1, 3, 6, 7])
@pytest.mark.parametrize("name", ["none", "mask and reset", "window", "window, mask and reset"])
def test_every_loss_term_reaches_the_given_number_of_states(cell, limit, name):
    options = Options(window=4) if "window" in name else NONE
    if "mask" in name:
        options = replace(options, mask=MASK, reset=RESET, zero_output_for_mask=True)
    expected = term_by_term(cell, options, limit)
    found = run(cell, options, bp_lim=limit)
    for gradient, array in expected.items():
        assert np.max(np.abs(found[gradient] - array)) <= 10 * TOLERANCE, gradient


@cells
@cases
def test_terms_that_reach_every_state_give_the_whole_gradient(cell, options):
    whole, found = run(cell, options), run(cell, options, bp_lim=7)
    for name, array in whole.items():
        assert np.max(np.abs(found[name] - array)) <= 10 * TOLERANCE, name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bp_lim": -1}, "bp_lim is -1, expected a number of steps"),
        ({"bp_lim": 1.5}, "bp_lim is 1.5"),
        ({"bp_lim": 1, "window": -3}, "window is -3, expected a number of steps"),
    ],
)
def test_a_wrong_limit_is_refused(wrong, message):
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    forward = kernel.sequence_forward(**arguments, save=True)
    with pytest.raises(ArgumentError, match=message):
        kernel.sequence_backward(**arguments, h=forward.h, saved=forward.saved, **wrong)


@cells
@pytest.mark.parametrize("threads", [1, 3])
def test_the_backward_pass_leaves_what_was_saved_as_it_is(cell, threads):
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    forward = kernel.sequence_forward(**arguments, save=True, threads=threads)
    before = [array.copy() for array in forward.saved]
    for array in forward.saved:
        array.flags.writeable = False
    outputs = {n: getattr(forward, n) for n in forward._fields if n in reads(kernel)}
    given = {n: a for n, a in arguments.items() if n in reads(kernel)}
    kernel.sequence_backward(**given, **outputs, saved=forward.saved, threads=threads)
    assert all(np.array_equal(a, b) for a, b in zip(forward.saved, before, strict=True))


def reads(kernel):
    """Names that the backward pass takes besides upstream gradients and what was saved."""
    arguments = kernel.sequence_backward.function.arguments
    return {a.name for a in arguments if not a.optional and not a.saved}


@cells
def test_workspace_of_the_backward_pass_does_not_grow_with_steps(cell):
    """Adjoints live for a chunk of steps, some 200 rows."""
    kernel = kernel_of(cell)
    library = kernel.library()
    size = getattr(library.lib, f"{kernel.name}_sequence_backward_workspace_size_f64")
    short, long = (
        size(
            *[(SIZES | {"T": steps})[d] for d in kernel.sequence_backward.function.dims],
            library.ffi.NULL,
        )
        for steps in (200, 20000)
    )
    assert short == long


@cells
@pytest.mark.parametrize("threads", [1, 3])
def test_the_last_state_alone(cell, threads):
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    every = kernel.sequence_forward(**arguments, threads=threads)
    last = kernel.sequence_forward(**arguments, threads=threads, last_only=True)
    for name in every._fields[:-1]:
        if name.endswith("_last"):
            assert np.array_equal(getattr(every, name), getattr(last, name))
        elif f"{name}_last" in every._fields:
            assert getattr(last, name) is None
        else:
            assert np.array_equal(getattr(last, name), getattr(every, name)[-1])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_last_output_that_is_no_state(threads, batch_first):
    """QRNN's h: of each row's last valid step, zeros for a row of length 0."""
    kernel, dims = kernel_of(QRNN), {"T": 5, "B": 3, "I": 4, "H": 20}
    arguments = draw_arrays(kernel.sequence_forward.function, dims)
    if batch_first:
        arguments["x"] = arguments["x"].swapaxes(0, 1)
    how = {"lengths": [5, 0, 2], "batch_first": batch_first, "threads": threads}
    every = kernel.sequence_forward(**arguments, **how).h
    last = kernel.sequence_forward(**arguments, **how, last_only=True).h
    steps = every.swapaxes(0, 1) if batch_first else every
    assert last.shape == (3, 20)
    np.testing.assert_array_equal(last, [steps[4, 0], 0 * steps[0, 1], steps[1, 2]])
    with pytest.raises(ArgumentError, match="out has h, expected final states alone"):
        kernel.sequence_forward(**arguments, **how, last_only=True, out={"h": every})
    none = draw_arrays(kernel.sequence_forward.function, dims | {"T": 0})
    assert not kernel.sequence_forward(**none, last_only=True).h.any()


@pytest.mark.parametrize("threads", [1, 2])
def test_denormal_numbers_are_flushed_on_request_and_in_the_call_alone(threads):
    kernel = kernel_of(Elman)
    arguments = {
        name: np.zeros_like(array, np.float32)
        for name, array in draw_arrays(kernel.sequence_forward.function, SIZES).items()
    }
    tiny = np.float32(1e-39)
    arguments["b"][...] = tiny
    assert np.all(kernel.sequence_forward(**arguments, threads=threads).h[0] == tiny)
    assert not kernel.sequence_forward(**arguments, threads=threads, flush_denormals=True).h.any()
    assert tiny * np.float32(0.5) > 0
    normal = draw_arrays(kernel.sequence_forward.function, SIZES)
    flushed = kernel.sequence_forward(**normal, flush_denormals=True)
    assert np.array_equal(kernel.sequence_forward(**normal).h, flushed.h)


def test_slices_of_larger_arrays_are_read_and_written_in_place():
    """Two directions into the halves of one array, from a slice of a wider input."""
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    wide = np.full((7, 5, 9), np.nan)
    wide[:, :, 4:7] = arguments["x"]
    both = np.full((7, 5, 36), np.nan)
    sliced = {**arguments, "x": wide[:, :, 4:7]}
    one = kernel.sequence_forward(**sliced, out={"h": both[:, :, :18]})
    two = kernel.sequence_forward(**sliced, reverse=True, out={"h": both[:, :, 18:]})
    assert one.h.base is both
    assert np.array_equal(both[:, :, :18], kernel.sequence_forward(**arguments).h)
    assert np.array_equal(both[:, :, 18:], kernel.sequence_forward(**arguments, reverse=True).h)
    assert np.array_equal(two.h_last, both[0, :, 18:])


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_batch_first(rows):
    """One or two rows: products of inputs are formed ahead where rows lie evenly."""
    kernel, sizes = kernel_of(LSTM), {**SIZES, "B": rows, "T": 300}
    arguments = draw_arrays(kernel.sequence_forward.function, sizes)
    expected = kernel.sequence_forward(**arguments, threads=1)
    x = np.ascontiguousarray(arguments["x"].swapaxes(0, 1))
    found = kernel.sequence_forward(**{**arguments, "x": x}, batch_first=True, threads=1)
    assert np.max(np.abs(found.h.swapaxes(0, 1) - expected.h)) <= TOLERANCE


@pytest.mark.parametrize("shape", [(0, 5), (7, 0), (0, 0)])
def test_nothing_to_do(shape):
    kernel = kernel_of(GRU)
    sizes = {**SIZES, "T": shape[0], "B": shape[1]}
    arguments = draw_arrays(kernel.sequence_forward.function, sizes)
    options = {
        "lengths": np.zeros(shape[1], int),
        "mask": np.zeros(shape, bool),
        "reset": np.ones(shape, bool),
        "reverse": True,
    }
    forward = kernel.sequence_forward(**arguments, **options, save=True)
    assert np.array_equal(forward.h_last, arguments["h_prev"])
    backward = kernel.sequence_backward(**arguments, h=forward.h, saved=forward.saved, **options)
    assert not backward.d_u_n.any()


@cells
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", [{}, {"T": 1}, {"B": 1}, {"B": 40}])
def test_packed_weights_give_the_same_bits(cell, threads, sizes):
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, {**SIZES, **sizes})
    timed = {a.name: {"T", "B"} & set(a.shape) for a in kernel.sequence_forward.function.arguments}
    weights = {n: a for n, a in arguments.items() if not timed[n]}
    rest = {n: a for n, a in arguments.items() if timed[n]}
    packed = kernel.pack(**weights)
    expected = kernel.sequence_forward(**arguments, threads=threads)
    for _ in range(2):
        found = kernel.sequence_forward(**rest, packed=packed, threads=threads)
        assert np.array_equal(found.h, expected.h)
    memory = next(iter(packed.layouts.values())).memory
    assert memory.bytes > 0
    library = kernel.library()
    size = getattr(library.lib, f"{kernel.name}_sequence_forward_workspace_size_f64")
    dims = [{**SIZES, **sizes}[d] for d in kernel.sequence_forward.function.dims]
    options = library.ffi.new(
        "cellgen_options *", {"packed": memory.pointer, "packed_bytes": memory.bytes}
    )
    assert size(*dims, library.ffi.NULL) - size(*dims, options) == memory.bytes


@cells
@pytest.mark.parametrize("how", [{}, {"threads": 2}, {"window": 3}, {"bp_lim": 2}])
def test_weights_packed_for_gradients_give_the_same_bits(cell, how):
    kernel = kernel_of(cell)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    timed = {a.name: {"T", "B"} & set(a.shape) for a in kernel.sequence_forward.function.arguments}
    weights = {n: a for n, a in arguments.items() if not timed[n]}
    rest = {n: a for n, a in arguments.items() if timed[n]}
    packed = kernel.pack(**weights)
    done = kernel.sequence_forward(**arguments, save=True)
    given = {n: a for n, a in done._asdict().items() if n not in ("saved", "h_last", "c_last")}
    given |= {"saved": done.saved, f"d_{cell.definition.outputs[0].name}": np.ones_like(done.h)}
    expected = kernel.sequence_backward(**arguments, **given, **how)
    for _ in range(2):
        found = kernel.sequence_backward(**rest, **given, packed=packed, **how)
        for name, one, other in zip(found._fields, found, expected, strict=True):
            assert np.array_equal(one, other), name
    assert {name for name, _ in packed.layouts} == {"sequence_forward", "sequence_backward"}
    assert np.array_equal(kernel.sequence_forward(**rest, packed=packed).h, done.h)


@pytest.mark.parametrize("name", ["antisymmetric_rnn", "fast_grnn", "lru"])
def test_what_is_formed_of_weights_alone_is_packed_with_them(name):
    kernel = cellgen.load(name)
    arguments = draw_arrays(kernel.sequence_forward.function, {**SIZES, "R": 4})
    expected = kernel.sequence_forward(**arguments)
    timed = {a.name: {"T", "B"} & set(a.shape) for a in kernel.sequence_forward.function.arguments}
    packed = kernel.pack(**{n: a for n, a in arguments.items() if not timed[n]})
    rest = {n: a for n, a in arguments.items() if timed[n]}
    found = kernel.sequence_forward(**rest, packed=packed)
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        assert np.array_equal(one, other)


class Decoder(Cell):
    x, h_prev, ctx = Input(I), State(H), Input(C)
    w, u, v = Weight(I, H), Weight(H, H), Weight(C, H)
    h = tanh(x @ w + h_prev @ u + ctx @ v)


class ConstantDecoder(Cell):
    x, h_prev, ctx = Input(I), State(H), Static(C, gradient=True)
    w, u, v = Weight(I, H), Weight(H, H), Weight(C, H)
    h = tanh(x @ w + h_prev @ u + ctx @ v)


@pytest.mark.parametrize("options", [{}, {"lengths": LENGTHS}, {"bp_lim": 3}, {"window": 2}])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_context_is_an_input_that_is_the_same_at_every_step(options, threads):
    """Its gradient is the sum of theirs, from the last step on: a rounding of each sum apart, since
    products run over the rows of other steps."""
    kernels = cellgen.compile(Decoder), cellgen.compile(ConstantDecoder)
    sizes = {**SIZES, "C": 5}
    arguments = draw_arrays(kernels[0].sequence_forward.function, sizes)
    once = arguments["ctx"][0].copy()
    both = {n: a for n, a in options.items() if n == "lengths"}
    found = []
    contexts = np.broadcast_to(once, arguments["ctx"].shape), once
    for kernel, ctx in zip(kernels, contexts, strict=True):
        given = {**arguments, "ctx": ctx, "threads": threads}
        done = kernel.sequence_forward(**given, **both, save=True)
        backward = {**given, "h": done.h, "saved": done.saved, "d_h": np.ones_like(done.h)}
        found.append((done.h, kernel.sequence_backward(**backward, **options)))
    (h, each), (same_h, total) = found
    assert np.array_equal(h, same_h)
    assert total.d_ctx.shape == once.shape
    assert relative_to_largest(total.d_ctx, each.d_ctx.sum(axis=0)) < TOLERANCE
    assert relative_to_largest(total.d_v, each.d_v) < TOLERANCE


def relative_to_largest(found, expected):
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))


def test_a_context_without_steps_or_rows_has_a_gradient_of_zeros():
    kernel = cellgen.compile(ConstantDecoder)
    for steps, rows in ((0, 3), (2, 0)):
        sizes = {"T": steps, "B": rows, "I": 3, "H": 4, "C": 2}
        arguments = draw_arrays(kernel.sequence_forward.function, sizes)
        done = kernel.sequence_forward(**arguments, save=True)
        out = {"d_ctx": np.full((rows, 2), np.nan)}
        found = kernel.sequence_backward(**arguments, h=done.h, saved=done.saved, out=out)
        assert found.d_ctx is out["d_ctx"]
        assert np.array_equal(found.d_ctx, np.zeros((rows, 2)))


def test_an_input_that_is_the_same_at_every_step_is_not_copied():
    kernel = cellgen.compile(Decoder)
    arguments = draw_arrays(kernel.sequence_forward.function, {**SIZES, "C": 5})
    same = np.broadcast_to(arguments["ctx"][0], arguments["ctx"].shape)
    found = []
    for ctx in (same, same.copy()):
        given = {**arguments, "ctx": ctx}
        done = kernel.sequence_forward(**given, save=True)
        upstream = {"d_h": np.ones_like(done.h)}
        gradients = kernel.sequence_backward(**given, h=done.h, saved=done.saved, **upstream)
        found.append([done.h.tobytes(), *(array.tobytes() for array in gradients)])
    assert found[0] == found[1]
    move = np.random.default_rng(1).standard_normal(same.shape[1:])
    stepped = {**arguments, "ctx": same + 1j * STEP * move}
    loss = np.sum(np.imag(run_steps(Decoder.definition, stepped, {**SIZES, "C": 5}).outputs["h"]))
    terms = gradients.d_ctx.sum(axis=0) * move
    assert abs(np.sum(terms) - loss / STEP) <= 1e-12 * np.sum(np.abs(terms))


class Narrow(Cell):
    """Weights of a dimension in whose name stands that of the rows."""

    x, h_prev = Input(I), State(H)
    w, u = Weight(I, Dim("Bottleneck")), Weight(Dim("Bottleneck"), H)
    h = tanh(x @ w @ u + h_prev)


def test_weights_of_a_dimension_named_like_the_rows_are_packed():
    kernel = cellgen.compile(Narrow)
    arguments = draw_arrays(kernel.sequence_forward.function, {**SIZES, "Bottleneck": 2})
    packed = kernel.pack(w=arguments["w"], u=arguments["u"])
    found = kernel.sequence_forward(x=arguments["x"], h_prev=arguments["h_prev"], packed=packed)
    assert np.array_equal(found.h, kernel.sequence_forward(**arguments).h)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, w: k.pack(**{n: a for n, a in w.items() if n != "u_n"}), "u_n is missing"),
        (lambda k, w: k.pack(**w, x=np.zeros((1, 1, 3))), "unknown argument 'x'"),
        (lambda k, w: k.pack(**{**w, "u_n": np.zeros((18, 17))}), "u_n has shape"),
        (lambda k, w: kernel_of(LSTM).sequence_forward(packed=k.pack(**w)), "expected what lstm"),
        (lambda k, w: k.sequence_forward(packed=w), "packed is dict, expected what gru.pack"),
        (
            lambda k, w: k.sequence_forward(packed=k.pack(**w), u_n=w["u_n"].copy()),
            "u_n is another array than the one that was packed",
        ),
    ],
)
def test_wrong_packed_weights_are_refused(change, message):
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    weights = {n: a for n, a in arguments.items() if n not in ("x", "h_prev")}
    with pytest.raises(ArgumentError, match=message):
        change(kernel, weights)


def test_wrong_packed_scalars_are_refused():
    kernel = cellgen.load("sru")
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    weights = {n: a for n, a in arguments.items() if n not in ("x", "c_prev")}
    with pytest.raises(ArgumentError, match=r"pass alpha=1\.732.* \(its default\)"):
        kernel.pack(**weights, alpha="1.5")
    packed = kernel.pack(**weights, alpha=1.5)
    with pytest.raises(ArgumentError, match=r"alpha is 2\.0, not the 1\.5 that was packed"):
        kernel.sequence_forward(**arguments, packed=packed, alpha=2.0)


# --- errors -----------------------------------------------------------------------------------

WRONG = {
    "a length above T": ({"lengths": [7, 8, 1, 1, 1]}, "lengths[1] is 8, expected 0 to T = 7"),
    "a negative length": ({"lengths": [7, 1, 1, -2, 1]}, "lengths[3] is -2, expected 0 to T = 7"),
    "lengths of other rows": ({"lengths": [1, 2]}, "lengths has shape (2,)"),
    "fractional lengths": ({"lengths": [1.5] * 5}, "dtype float64, expected (B,) = (5,) integers"),
    "a mask of numbers": ({"mask": np.ones((7, 5))}, "dtype float64, expected a numpy.ndarray of"),
    "a mask of other steps": ({"mask": np.ones((5, 7), bool)}, "(T, B) = (7, 5)"),
    "a list as reset": ({"reset": [[True]]}, "reset is list, expected a numpy.ndarray of bool"),
    "a list as mask": ({"mask": [[True]]}, "pass np.asarray(mask, dtype=bool) in that shape"),
    "a word for a switch": ({"reverse": "yes"}, "reverse is 'yes', expected True or False"),
    "a number for a switch": ({"batch_first": 1}, "batch_first is 1, expected True or False"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_refused(options, message):
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    with pytest.raises(ArgumentError) as caught:
        kernel.sequence_forward(**arguments, **options)
    assert message in str(caught.value)
    assert "gru.sequence_forward" in str(caught.value)


def test_lengths_of_no_rows_may_be_an_empty_list():
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, {**SIZES, "B": 0})
    found = kernel.sequence_forward(**arguments, lengths=[], reverse=np.True_)
    assert found.h.shape[:2] == (SIZES["T"], 0)


@pytest.mark.parametrize("window", [-1, 2.5, True, "3"])
def test_a_wrong_window_is_refused(window):
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    forward = kernel.sequence_forward(**arguments, save=True)
    with pytest.raises(ArgumentError, match="window is"):
        kernel.sequence_backward(**arguments, h=forward.h, saved=forward.saved, window=window)


def test_the_c_function_itself_refuses_a_length_out_of_range():
    kernel = kernel_of(Elman)
    ffi, lib = kernel.library().ffi, kernel.library().lib
    lengths = ffi.new("int64_t[]", [3, 9])
    options = ffi.new("cellgen_options *", {"lengths": lengths})
    size = lib.elman_sequence_forward_workspace_size_f64(4, 2, 3, 5, options)
    memory, data = np.zeros(size + 64, np.uint8), np.zeros(1000)
    places = {
        a.name: ffi.cast("double *", data.ctypes.data)
        for a in kernel.sequence_forward.function.arguments
    }
    places |= {
        r.name: ffi.cast("double *", np.zeros(1000).ctypes.data)
        for r in kernel.sequence_forward.function.results
    }
    address = memory.ctypes.data + -memory.ctypes.data % 64
    arguments = ffi.new(
        "elman_sequence_forward_args_f64 *",
        {
            **places,
            "workspace": ffi.cast("void *", address),
            "workspace_bytes": size,
            "options": options,
        },
    )
    assert lib.elman_sequence_forward_f64(4, 2, 3, 5, arguments) == 4


def test_a_mask_is_batch_first_where_arrays_are():
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    arguments["x"] = np.ascontiguousarray(arguments["x"].swapaxes(0, 1))
    with pytest.raises(
        ArgumentError, match=r"expected a numpy.ndarray of bool \(B, T\) = \(5, 7\)"
    ):
        kernel.sequence_forward(**arguments, mask=np.ones((7, 5), bool), batch_first=True)


def test_units_that_are_not_contiguous_are_refused():
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    arguments["x"] = np.zeros((7, 5, 6))[:, :, ::2]
    with pytest.raises(ArgumentError, match="x has units that are not contiguous"):
        kernel.sequence_forward(**arguments)


def test_results_whose_rows_share_memory_are_refused():
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    same = np.lib.stride_tricks.as_strided(np.zeros((7, 18)), (7, 5, 18), (18 * 8, 0, 8))
    with pytest.raises(ArgumentError, match="out h has rows that share memory"):
        kernel.sequence_forward(**arguments, out={"h": same})


def test_results_that_interleave_with_an_argument_are_refused():
    kernel = kernel_of(GRU)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    memory = np.zeros((7, 5, 20))
    memory[:, :, :3] = arguments["x"]
    arguments["x"] = memory[:, :, :3]
    with pytest.raises(ArgumentError, match="out h shares memory with the argument x"):
        kernel.sequence_forward(**arguments, out={"h": memory[:, :, 2:]})
    kernel.sequence_forward(**arguments, out={"h": np.zeros((7, 5, 21))[:, :, 3:]})


def test_an_array_named_like_an_option_is_refused():
    from cellgen.runtime.abi import Argument, Function, Interface
    from cellgen.runtime.build.sources import SourceFiles
    from cellgen.runtime.kernel import Kernel

    function = Function(
        "sequence_forward",
        ("T", "B"),
        (Argument("mask", ("T", "B", "1")),),
        (Argument("h", ("T", "B", "1")),),
        True,
        team=True,
    )
    with pytest.raises(BuildError, match="an argument cannot be named 'mask'"):
        Kernel(Interface("small", "0" * 12, (function,)), SourceFiles("small", ()))

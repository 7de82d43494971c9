"""No work is done where no results are, and what 64 bits cannot count is refused at once."""

from __future__ import annotations

import signal
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen import Cell, Dim, H, I, Input, State, Weight, tanh
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call import engine
from tests.within import engine_of

MANY = 1 << 33
VAST = 1 << 57
SECONDS = 120  # in which a call that counts so many steps or units does not come near its end


class Pointwise(Cell):
    """No dense recurrence: its weights have no bytes without inputs, however many units."""

    x, h_prev = Input(I), State(H)
    w = Weight(I, H)
    h = tanh(x @ w + h_prev)


class Narrow(Cell):
    """The gradient of ``w`` has elements where there are no units."""

    x, h_prev = Input(I), State(H)
    w, u = Weight(I, Dim("K")), Weight(Dim("K"), H)
    h = tanh(x @ w @ u + h_prev)


@cache
def kernel_of(name):
    own = {"pointwise": Pointwise, "narrow": Narrow}
    return cellgen.compile(own[name]) if name in own else cellgen.load(name)


@pytest.fixture(autouse=True)
def ends():
    """A signal ends what cannot be interrupted: this process."""
    for name in ("lstm", "gru_reset_before", "min_gru", "pointwise", "narrow"):
        kernel_of(name).build()  # however long it takes
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def arrays(items, sizes):
    """Zeros for what has bytes; nothing is allocated for what has none."""
    return {
        a.name: np.zeros([axis_length(axis, sizes) for axis in a.shape])
        for a in items
        if not a.is_scalar and not a.saved
    }


def both(kernel, sizes, **how):
    """Forward and backward of a whole sequence, by name."""
    given = arrays(kernel.sequence_forward.function.arguments, sizes)
    y = kernel.sequence_forward(**given, save=True, **how)
    items = kernel.sequence_backward.function.arguments
    call = {n: a for n, a in {**given, **y._asdict()}.items() if n in {a.name for a in items}}
    upstream = arrays([a for a in items if a.optional], sizes)
    return y, (kernel.sequence_backward, {**call, **upstream, "saved": y.saved})


@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "min_gru", "pointwise"])
@pytest.mark.parametrize("limit", [{}, {"bp_lim": 2}, {"bp_lim": MANY}, {"window": 5}])
@pytest.mark.parametrize("width", [0, 3])
def test_steps_without_rows_are_not_counted(name, limit, width):
    """Gradients of weights are zeros, whatever memory they are formed in."""
    sizes = {"T": MANY, "B": 0, "I": width, "H": 4}
    y, (backward, call) = both(kernel_of(name), sizes)
    assert y.h.shape == (MANY, 0, 4)
    empty = backward(**call, **limit)
    out = {n: np.full(a.shape, np.nan) for n, a in empty._asdict().items() if a.size}
    found = backward(**call, **limit, out=out, threads=2)
    assert out or not width
    assert not any(array.any() for array in found)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": np.empty((MANY, 0), bool), "zero_output_for_mask": True},
        {"reset": np.empty((MANY, 0), bool), "reverse": True},
        {"lengths": []},
        {"lengths": [], "mask": np.empty((MANY, 0), bool)},
    ],
)
@pytest.mark.parametrize("limit", [{}, {"bp_lim": 2}])
def test_options_of_no_rows_cost_nothing(options, limit):
    sizes = {"T": MANY, "B": 0, "I": 3, "H": 4}
    y, (backward, call) = both(kernel_of("lstm"), sizes, **options)
    assert y.h_last.shape == (0, 4)
    assert not any(array.any() for array in backward(**call, **limit))


def test_flags_are_checked_all_the_same():
    sizes = {"T": MANY, "B": 0, "I": 3, "H": 4}
    _, (backward, call) = both(kernel_of("lstm"), sizes)
    with pytest.raises(ArgumentError, match="mask is of shape"):
        backward(**{**call, "saved": call["saved"]._asdict()}, bp_lim=2, mask=np.ones((3, 1), bool))


def test_bound_and_packed_calls_of_nothing_end():
    kernel = kernel_of("lstm")
    given = arrays(kernel.sequence_forward.function.arguments, {"T": MANY, "B": 0, "I": 3, "H": 4})
    weights = {n: a for n, a in given.items() if n[0] in "wub"}
    rest = {n: a for n, a in given.items() if n not in weights}
    packed = kernel.pack(**weights)
    assert kernel.sequence_forward(**rest, packed=packed).h.shape == (MANY, 0, 4)
    assert kernel.sequence_forward.bind(**given)().h.shape == (MANY, 0, 4)
    batch_first = {**given, "x": given["x"].swapaxes(0, 1)}
    assert kernel.sequence_forward(**batch_first, batch_first=True).h.shape == (0, MANY, 4)


def test_units_without_rows_are_not_counted():
    kernel, sizes = kernel_of("pointwise"), {"T": 3, "B": 0, "I": 0, "H": VAST}
    y, (backward, call) = both(kernel, sizes)
    assert y.h.shape == (3, 0, VAST)
    assert backward(**call).d_w.shape == (0, VAST)
    assert backward(**call, bp_lim=1).d_w.shape == (0, VAST)
    step = {"x": np.empty((0, 0)), "h_prev": np.empty((0, VAST)), "w": np.empty((0, VAST))}
    assert kernel.forward(**step).h.shape == (0, VAST)
    assert kernel.forward.bind(**step)().h.shape == (0, VAST)
    packed = kernel.pack(w=step["w"])
    given = {"x": np.empty((3, 0, 0)), "h_prev": step["h_prev"]}
    assert kernel.sequence_forward(**given, packed=packed).h.shape == (3, 0, VAST)


def test_layers_of_no_rows_end():
    kernel, sizes = kernel_of("lstm"), {"T": MANY, "B": 0, "I": 3, "H": 4}
    given = arrays(kernel.sequence_forward.function.arguments, sizes)
    weights = {n: a for n, a in given.items() if n[0] in "wub"}
    layers = cellgen.Layers(kernel, [[weights, weights]])
    run = layers.forward(given["x"], lengths=[], last_only=True, save=True)
    assert run.output.shape == (0, 8)
    found = layers.backward(run, d_output=np.empty((0, 8)))
    assert not found.d_weights[0][1]["u_i"].any()


def test_arrays_of_more_bytes_than_64_bits_count_are_refused():
    """Where a length of 0 leaves nothing of them: NumPy has no such results either."""
    sizes = {"T": 1 << 40, "B": 0, "I": 0, "H": 1 << 30}
    kernel = kernel_of("pointwise")
    given = arrays(kernel.sequence_forward.function.arguments, sizes)
    message = r"h \(T, B, H\) = \(1099511627776, 0, 1073741824\) has more bytes than 64 bits"
    for call in (kernel.sequence_forward, kernel.sequence_forward.bind):
        with pytest.raises(ArgumentError, match=message):
            call(**given)


def test_a_workspace_that_64_bits_cannot_count_is_refused():
    kernel, sizes = kernel_of("narrow"), {"T": 0, "B": 1 << 57, "I": 1, "H": 0, "K": 1}
    _, (backward, call) = both(kernel, sizes)
    with pytest.raises(ArgumentError, match="the workspace of dimensions T = 0, B = 144115188"):
        backward(**call)


def test_a_call_of_very_many_steps_can_be_interrupted():
    """Also where a step is of no input and a single unit."""
    kernel = kernel_of("pointwise")
    dims = {"T": MANY, "B": 1, "I": 0, "H": 0}
    forward = kernel.sequence_forward
    call = engine_of(forward).bind(forward.function, arrays(forward.function.arguments, dims), {})
    assert kernel.library().engine.work(call.memory) >= engine.LONG

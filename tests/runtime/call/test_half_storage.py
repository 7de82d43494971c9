"""Arrays of 16 bits: what a call with them gives, how much memory it takes, what is refused.

The truth is a call in float32 with the same numbers, each of whose results is rounded once.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, Input, State
from cellgen.errors import ArgumentError, CellgenError
from cellgen.proof.half_storage import storage_errors
from cellgen.runtime.options import BF16, FULL
from tests.by_words import RawFunction
from tests.runtime.call.test_half_precision import (
    CELLS,
    Arrays,
    assert_equal,
    both,
    drawn,
    drawn_bf16,
    rounded,
    upstream,
)

BFLOAT16 = ml_dtypes.bfloat16
TYPES = {BFLOAT16: BF16, np.float16: FULL}
TIMES = (1200, 3, 5, 6)
"""Steps, rows, inputs, units: some windows of steps."""


def narrow_and_wide(cell: str, sizes: tuple[int, ...], dtype: Any) -> tuple[Arrays, Arrays]:
    narrow = {n: a.astype(dtype) for n, a in drawn(cell, *sizes).items()}
    return narrow, {n: a.astype(np.float32) for n, a in narrow.items()}


def turned(arrays: Arrays) -> Arrays:
    """The same batch-first, where an array has steps."""
    return {n: a.swapaxes(0, 1) if a.ndim == 3 else a for n, a in arrays.items()}


def assert_same(found: Any, expected: Any, name: str) -> None:
    """Equal numbers; what is no number is equal too, which NumPy does not see in 16 bits."""
    wide = (array.astype(np.float32) for array in (found, expected))
    np.testing.assert_array_equal(*wide, err_msg=name)


def assert_rounded(found: Any, expected: Any, dtype: Any) -> None:
    """Each result is the expected one, rounded once."""
    for name in set(expected._fields) - {"saved"}:
        array, truth = getattr(found, name), getattr(expected, name)
        assert (array is None) == (truth is None), name
        if truth is not None:
            assert array.dtype == dtype, name
            assert_same(array, truth.astype(dtype), name)


def assert_saved(kernel: Any, found: Any, expected: Any, dtype: Any) -> None:
    """What is saved is rounded once: gates to float16, which has more digits and range enough."""
    gates = {a.name for a in kernel.sequence_forward.function.results if a.bounded}
    for name, truth in expected._asdict().items():
        array, own = getattr(found, name), np.float16 if name in gates else dtype
        assert array.dtype == own, name
        assert_same(array, truth.astype(own), name)


def pair_of_calls(
    cell: str, sizes: tuple[int, ...], dtype: Any, how: dict[str, Any], back: dict[str, Any]
) -> None:
    """A forward and a backward pass beside their calls in float32, on what they were given."""
    kernel, (narrow, wide) = cellgen.load(cell), narrow_and_wide(cell, sizes, dtype)
    first = bool(how.get("batch_first"))
    if first:
        narrow, wide = turned(narrow), turned(wide)
    run = kernel.sequence_forward(**narrow, save=True, **how)
    truth = kernel.sequence_forward(**wide, save=True, products=TYPES[dtype], **how)
    assert_rounded(run, truth, dtype)
    checkpoint = bool(how.get("checkpoint"))
    if checkpoint:
        assert_equal(run.saved._asdict(), truth.saved._asdict())
    else:
        assert_saved(kernel, run.saved, truth.saved, dtype)
    shape = run.h.shape
    d_h = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    known = {**narrow, **run._asdict(), "d_h": d_h}
    given = {n: known[n] for n in names if n in known}
    found = kernel.sequence_backward(**given, saved=run.saved, **back)
    given = {n: a.astype(np.float32) for n, a in given.items()}
    if checkpoint or how.get("every"):
        saved: Any = truth.saved
        if how.get("every"):  # the outputs that it holds are not rounded
            return
        options = {}
    else:
        saved = {n: a.astype(np.float32) for n, a in run.saved._asdict().items()}
        options = {n: v for n, v in how.items() if n != "save"}
    expected = kernel.sequence_backward(
        **given, saved=saved, products=TYPES[dtype], **options, **back
    )
    assert_rounded(found, expected, dtype)


LENGTHS = np.array([1200, 700, 3])
MASK = np.random.default_rng(2).random(TIMES[:2]) > 0.3
RESET = np.random.default_rng(3).random(TIMES[:2]) < 0.1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("cell", CELLS)
def test_all_steps_are_those_of_float32_rounded_once(cell: str, dtype: Any, threads: int) -> None:
    how = {"threads": threads}
    pair_of_calls(cell, TIMES, dtype, how, {})


@pytest.mark.parametrize(
    ("how", "back"),
    [
        ({"lengths": LENGTHS, "mask": MASK, "reset": RESET, "reverse": True}, {"window": 5}),
        ({"mask": MASK, "zero_output_for_mask": True}, {}),
        ({"batch_first": True, "lengths": LENGTHS}, {"gradients": ("d_x", "d_u_n")}),
        ({"reverse": True}, {"per_row": True}),
        ({"checkpoint": 50}, {}),
        ({"checkpoint": 50, "mask": MASK, "reverse": True}, {"per_row": "norms"}),
        ({"every": 7}, {}),
    ],
    ids=lambda how: "-".join(how),
)
def test_options_mean_what_they_mean_in_float32(how: dict[str, Any], back: dict[str, Any]) -> None:
    pair_of_calls("gru", TIMES, BFLOAT16, how, back)


def test_some_outputs_and_the_last_ones_are_rounded_too() -> None:
    kernel, (narrow, wide) = cellgen.load("gru"), narrow_and_wide("gru", TIMES, BFLOAT16)
    for how in ({"every": 7}, {"every": 7, "reverse": True, "mask": MASK}, {"last_only": True}):
        found = kernel.sequence_forward(**narrow, **how)
        expected = kernel.sequence_forward(**wide, products=BF16, **how)
        assert_rounded(found, expected, BFLOAT16)
    how = {"every": 7, "mask": MASK}
    run, truth = (
        kernel.sequence_forward(**arrays, save=True, products=BF16, **how)
        for arrays in (narrow, wide)
    )
    d_h = np.random.default_rng(1).standard_normal(run.h.shape).astype(BFLOAT16)
    given = {n: a for n, a in narrow.items() if n[0] in "xwuh"}
    found = kernel.sequence_backward(**given, d_h=d_h, saved=run.saved)
    all_d_h = np.zeros((TIMES[0], *d_h.shape[1:]), np.float32)
    all_d_h[6::7] = d_h.astype(np.float32)
    whole = kernel.sequence_forward(**narrow, save=True, mask=MASK)
    saved = {n: a.astype(np.float32) for n, a in whole.saved._asdict().items()}
    given = {n: wide[n] for n in given} | {"h": whole.h.astype(np.float32)}
    expected = kernel.sequence_backward(**given, d_h=all_d_h, saved=saved, products=BF16, mask=MASK)
    assert_rounded(found, expected, BFLOAT16)
    assert truth.h.shape == run.h.shape


GUARDED = """
import ctypes, mmap
import ml_dtypes, numpy as np
import cellgen
from cellgen.runtime.call import workspace

protect = ctypes.CDLL(None).mprotect

def guarded(where, size, dims):
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, -(-size // page) * page + page)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + len(memory) - page
    assert protect(ctypes.c_void_p(end), page, 0) == 0
    address = (end - size) // 64 * 64
    return workspace.AlignedBytes(workspace._ffi.cast("void *", address), size, memory, address)

workspace.new_memory, workspace.KEPT_WORKSPACE = guarded, 0
kernel, draw = cellgen.load("gru"), np.random.default_rng(0).standard_normal
sizes = {"T": 40, "B": 1, "I": 300, "H": 8}
x = {
    a.name: draw([sizes[axis] for axis in a.shape]).astype(ml_dtypes.bfloat16)
    for a in kernel.sequence_forward.function.arguments
}
for checkpoint in (3, 7, 40):
    run = kernel.sequence_forward(**x, save=True, checkpoint=checkpoint, threads=1)
    found = kernel.sequence_backward(**x, d_h=run.h, saved=run.saved, threads=1)
    assert np.isfinite(found.d_x.astype(np.float32)).all()
"""
"""Calls whose workspace ends at a page that nobody may read."""


def test_products_that_are_formed_ahead_are_of_the_steps_that_are_held() -> None:
    """Of a segment, in 16 bits: a window of steps is longer, and reads nothing beyond."""
    plan = cellgen.load("gru").sequence_forward.plan(T=40, B=1, I=300, H=8, threads=1)
    assert plan.hoist
    assert plan.window_rows > 7
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- arrays that a caller has -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_results_go_to_arrays_that_are_given(dtype: Any) -> None:
    kernel, (narrow, _) = cellgen.load("gru"), narrow_and_wide("gru", (9, 4, 5, 6), dtype)
    expected = kernel.sequence_forward(**narrow)
    room = np.zeros((9, 4, 12), dtype)
    out = {"h": room[..., ::2][..., :6], "h_last": np.zeros((4, 6), dtype)}
    with pytest.raises(ArgumentError, match="out h has units that are not contiguous"):
        kernel.sequence_forward(**narrow, out=out)
    out["h"] = room[..., 6:]
    found = kernel.sequence_forward(**narrow, out=out)
    assert found.h is out["h"]
    assert found.h_last is out["h_last"]
    assert_rounded(found, expected, dtype)
    assert not room[..., :6].any()
    step = {n: a[0] if n == "x" else a for n, a in narrow.items()}
    h = np.zeros((4, 6), dtype)
    assert kernel.forward(**step, out={"h": h}).h is h
    np.testing.assert_array_equal(h, kernel.forward(**step).h)


def test_bound_calls_read_and_write_arrays_of_16_bits() -> None:
    kernel, (narrow, _) = cellgen.load("lstm"), narrow_and_wide("lstm", (9, 4, 5, 6), BFLOAT16)
    given = {n: a.copy() for n, a in narrow.items()}
    h_last = np.zeros((4, 6), BFLOAT16)
    bound = kernel.sequence_forward.bind(**given, save=True, out={"h_last": h_last})
    step = {n: given[n] if n != "x" else given["x"][0] for n in narrow}
    bound_step = kernel.forward.bind(**step)
    for factor in (1, 2):
        for name, array in narrow.items():
            given[name][...] = array * BFLOAT16(factor)
        found = bound()
        expected = kernel.sequence_forward(**given, save=True)
        assert found is bound.results
        assert found.h_last is h_last
        assert_rounded(found, expected, BFLOAT16)
        assert_equal(found.saved._asdict(), expected.saved._asdict())
        assert_rounded(bound_step(), kernel.forward(**step), BFLOAT16)
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    known = {**given, **found._asdict(), "d_h": found.h}
    back = {n: known[n] for n in names if n in known}
    gradients = kernel.sequence_backward.bind(**back, saved=found.saved)
    expected = kernel.sequence_backward(**back, saved=found.saved)
    assert_rounded(gradients(), expected, BFLOAT16)


def test_a_bound_call_is_running_until_its_results_are_written() -> None:
    """Also those that have gaps, which are written once the kernel has run."""
    kernel, (narrow, _) = cellgen.load("gru"), narrow_and_wide("gru", (2, 3, 4, 5), BFLOAT16)
    arrays = {**narrow, "x": narrow["x"][0], "u_z": np.asfortranarray(narrow["u_z"])}
    h = np.zeros((5, 3), BFLOAT16).T
    bound, runs = kernel.forward.bind(**arrays, out={"h": h}), 0
    written = bound._after

    def again() -> None:
        nonlocal runs
        runs += 1
        with pytest.raises(CellgenError, match="running already"):
            bound()

    bound._after = (again, *written)
    for _ in range(2):
        assert bound().h is h
        arrays["u_z"][...] *= 0.5  # read anew by each call
        arrays["x"][...] *= 0.5
    assert runs == 2
    arrays["u_z"][...] *= 2
    arrays["x"][...] *= 2
    np.testing.assert_array_equal(h, kernel.forward(**arrays).h)


def test_plans_are_measured_on_arrays_of_16_bits() -> None:
    kernel, (narrow, _) = cellgen.load("gru"), narrow_and_wide("gru", (9, 4, 5, 6), BFLOAT16)
    plan = kernel.sequence_forward.measure(**narrow, threads=1)
    found = kernel.sequence_forward(**narrow, threads=1, plan=plan)
    assert_rounded(found, kernel.sequence_forward(**narrow), BFLOAT16)


def test_packed_weights_stay_in_float32() -> None:
    kernel, (narrow, wide) = cellgen.load("gru"), narrow_and_wide("gru", (9, 4, 5, 6), BFLOAT16)
    weights = {a.name for a in kernel.sequence_forward.function.arguments if a.is_weight}
    packed = kernel.pack(**{n: wide[n] for n in weights}, products=BF16)
    found = kernel.sequence_forward(x=narrow["x"], h_prev=narrow["h_prev"], packed=packed)
    assert_rounded(found, kernel.sequence_forward(**narrow), BFLOAT16)


def test_stacks_of_layers_take_arrays_of_16_bits() -> None:
    kernel, (narrow, _) = cellgen.load("gru"), narrow_and_wide("gru", (9, 4, 5, 6), BFLOAT16)
    weights = {
        a.name: narrow[a.name] for a in kernel.sequence_forward.function.arguments if a.is_weight
    }
    layers = cellgen.Layers(kernel, [[weights]])
    run = layers.forward(narrow["x"], save=True)
    given = {**narrow, "h_prev": np.zeros((4, 6), BFLOAT16)}
    alone = kernel.sequence_forward(**given, save=True)
    assert_same(run.output, alone.h, "h")
    d_h = np.ones_like(alone.h)
    found = layers.backward(run, d_h)
    names = {a.name for a in kernel.sequence_backward.function.arguments}
    given = {n: a for n, a in {**given, "h": alone.h, "d_h": d_h}.items() if n in names}
    expected = kernel.sequence_backward(**given, saved=alone.saved)
    assert_same(found.d_input, expected.d_x, "d_x")
    assert_same(found.d_weights[0][0]["w_z"], expected.d_w_z, "d_w_z")


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sequence_forward", "sequence_backward"])
def test_the_workspace_does_not_grow_with_the_number_of_steps(name: str) -> None:
    """What a call in 16 bits holds in float32 are windows: not what grows with T."""
    function = RawFunction(cellgen.load("lstm"), name)
    stored = np.array([a.shape[:1] == ("T",) for a in function.members], np.uint8)
    options = function.options(stored=stored.ctypes.data)
    dims = {"B": 16, "I": 32, "H": 32}

    def size(steps: int, how: Any) -> int:
        known = {"T": steps, **dims}
        return function.workspace_bytes([known[d] for d in function.function.dims], how)

    assert size(100_000, options) == size(1000, options)
    row = sum(16 * 32 for a in function.members if a.shape[:1] == ("T",))
    window = size(1000, options) - size(1000, None)
    plan = getattr(cellgen.load("lstm"), name).plan(T=1000, **dims)
    chunk = plan.chunk_rows * plan.row_blocks // 16
    most = max(256 << 10, 4 * chunk * row)
    assert 0 < window < most + 4 * row + (16 << 10)  # a window, the step before it, the tables


# --- numbers ----------------------------------------------------------------------------------


class Scaled(Cell):
    """A state that is the input times a number."""

    x, h_prev, s = Input(8), State(8), Bias(8)
    h = x * s + 0 * h_prev
    outputs = h


def test_every_number_of_16_bits_is_widened_and_rounded_as_numpy_does() -> None:
    kernel = cellgen.compile(Scaled)
    every = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 1, 8)
    for dtype in TYPES:
        x, none = every.view(dtype), np.zeros((1, 8), dtype)
        for scale in (1.0, 1 / 3, 3.0):
            s = np.full(8, scale, dtype)
            found = kernel.sequence_forward(x=x, s=s, h_prev=none).h
            with np.errstate(all="ignore"):
                product = x.astype(np.float32) * s.astype(np.float32)
                expected = (product + np.float32(0)).astype(dtype)
            np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


# --- how far off ------------------------------------------------------------------------------

PEER_MEANS = {
    "lstm": {
        "h": 2.02e-03,
        "h_last": 2.05e-03,
        "c_last": 2.10e-03,
        "d_x": 3.73e-03,
        "d_h_prev": 3.01e-03,
        "d_c_prev": 3.90e-03,
        "d_w_i": 4.10e-03,
        "d_w_f": 3.89e-03,
        "d_w_g": 3.79e-03,
        "d_w_o": 3.59e-03,
        "d_u_i": 4.24e-03,
        "d_u_f": 4.44e-03,
        "d_u_g": 3.90e-03,
        "d_u_o": 3.79e-03,
        "d_b_i": 4.52e-03,
        "d_b_f": 4.57e-03,
        "d_b_g": 3.59e-03,
        "d_b_o": 2.13e-03,
    },
    "gru": {
        "h": 4.61e-03,
        "h_last": 3.95e-03,
        "d_x": 5.63e-03,
        "d_h_prev": 4.60e-03,
        "d_w_r": 8.14e-03,
        "d_w_z": 6.02e-03,
        "d_w_n": 5.96e-03,
        "d_u_r": 9.62e-03,
        "d_u_z": 9.44e-03,
        "d_u_n": 8.82e-03,
        "d_b_r": 8.09e-03,
        "d_b_z": 5.66e-03,
        "d_b_n": 3.89e-03,
    },
}
"""The root of the mean square of the errors of torch.nn.LSTM and GRU in bfloat16, of that of each
array: ``python -m tests.torch.test_half_precision``, torch 2.13 on a Zen 4."""


def run_in_16_bits(cell: str, arrays: Arrays) -> Arrays:
    """Outputs, final states and gradients of arrays in bfloat16, as float32."""
    narrow = {n: a.astype(BFLOAT16) for n, a in {**arrays, **upstream(arrays)}.items()}
    d_h, kernel = narrow.pop("d_h"), cellgen.load(cell)
    run = kernel.sequence_forward(**narrow, save=True)
    known = {**narrow, **run._asdict(), "d_h": d_h}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    back = kernel.sequence_backward(**{n: known[n] for n in names if n in known}, saved=run.saved)
    found = {**run._asdict(), **back._asdict()}
    return {n: a.astype(np.float32) for n, a in found.items() if n != "saved"}


def mean_errors_of(cell: str, arrays: Arrays, found: Arrays) -> dict[str, float]:
    """The root of the mean square of the difference from float64, of that of each array."""
    exact = both(cell, {n: a.astype(np.float64) for n, a in arrays.items()})
    return {
        n: float(np.sqrt(((a - exact[n]) ** 2).mean() / (exact[n] ** 2).mean()))
        for n, a in found.items()
    }


@pytest.mark.parametrize("cell", CELLS)
def test_no_array_is_further_from_float64_than_that_of_torch_in_bfloat16(cell: str) -> None:
    """Gates saved in bfloat16 would put five gradients of the LSTM further off."""
    arrays = drawn_bf16(cell)
    mine = mean_errors_of(cell, arrays, run_in_16_bits(cell, arrays))
    peers = PEER_MEANS[cell]
    assert {n: (mine[n], peer) for n, peer in peers.items() if mine[n] > peer} == {}


# --- steps, and what is refused ---------------------------------------------------------------


def test_a_step_takes_arrays_of_16_bits() -> None:
    kernel = cellgen.load("gru")
    wide = {n: rounded(a) for n, a in drawn("gru", 1, 3, 4, 5).items()}
    wide["x"] = wide["x"][0]
    found = kernel.forward(**{n: a.astype(BFLOAT16) for n, a in wide.items()}).h
    np.testing.assert_array_equal(found, kernel.forward(**wide).h.astype(BFLOAT16))


def test_a_limit_of_terms_takes_arrays_of_16_bits() -> None:
    kernel, (narrow, wide) = cellgen.load("gru"), narrow_and_wide("gru", (6, 3, 4, 5), BFLOAT16)
    run = kernel.sequence_forward(**narrow, save=True)
    d_h = upstream(wide)["d_h"]
    given = {n: a for n, a in narrow.items() if n[0] in "xwuh"} | {"h": run.h}
    found = kernel.sequence_backward(**given, d_h=d_h.astype(BFLOAT16), saved=run.saved, bp_lim=2)
    given = {n: a.astype(np.float32) for n, a in given.items()}
    saved = {n: a.astype(np.float32) for n, a in run.saved._asdict().items()}
    expected = kernel.sequence_backward(**given, d_h=d_h, saved=saved, bp_lim=2, products=BF16)
    assert_rounded(found, expected, BFLOAT16)


def test_what_cannot_be_is_refused() -> None:
    kernel, (narrow, wide) = cellgen.load("gru"), narrow_and_wide("gru", (2, 3, 4, 5), BFLOAT16)
    forward = kernel.sequence_forward
    with pytest.raises(
        ArgumentError, match=r"w_r is a numpy\.ndarray of float32, but x is bfloat16"
    ):
        forward(**{**narrow, "w_r": wide["w_r"]})
    with pytest.raises(ArgumentError, match=r"out h is a .* of float32, but x is bfloat16; conv"):
        forward(**narrow, out={"h": np.empty((2, 3, 5), np.float32)})
    with pytest.raises(ArgumentError, match=r"out h_last has shape \(3, 6\), expected \(B, H\)"):
        forward(**narrow, out={"h_last": np.empty((3, 6), BFLOAT16)})
    still = np.empty((3, 5), BFLOAT16)
    still.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"out h_last is read-only.*allocate it anew$"):
        forward(**narrow, out={"h_last": still})
    with pytest.raises(ArgumentError, match=r"h_prev is a masked array, expected one without"):
        forward(**{**narrow, "h_prev": np.ma.masked_array(narrow["h_prev"])})
    room = np.ones(54, BFLOAT16)
    same = {**narrow, "x": room[:24].reshape(2, 3, 4)}
    with pytest.raises(ArgumentError, match=r"out h shares memory with the argument x"):
        forward(**same, out={"h": room[23:53].reshape(2, 3, 5)})
    forward(**same, out={"h": room[24:].reshape(2, 3, 5)})  # beside each other
    h = np.empty((2, 3, 5), BFLOAT16)
    with pytest.raises(ArgumentError, match=r"out h shares memory with the result h_last"):
        forward(**narrow, out={"h": h, "h_last": h[1]})
    step = {**narrow, "x": narrow["x"][0]}
    with pytest.raises(ArgumentError, match=r"out h shares memory with the argument h_prev"):
        kernel.forward(**step, out={"h": step["h_prev"]})
    with pytest.raises(ArgumentError, match=r"x has dtype int8, expected float32 or float64"):
        forward(**{n: a.astype(np.int8) for n, a in wide.items()})
    with pytest.raises(ArgumentError, match=r"x has dtype uint16, expected float32 or float64"):
        forward(**{**wide, "x": narrow["x"].view(np.uint16)})
    run = forward(**narrow, save=True)
    given = {n: a for n, a in wide.items() if n[0] in "xwuh"} | {"h": run.h.astype(np.float32)}
    with pytest.raises(ArgumentError, match=r"z has dtype float16, expected float32 or float64"):
        kernel.sequence_backward(**given, d_h=given["h"], saved=run.saved)


# --- the proof of it --------------------------------------------------------------------------


class _OffByOne:
    """A function over time that is off in the last digit of one array of 16 bits."""

    def __init__(self, function: Any) -> None:
        self.function, self._real = function.function, function

    def __call__(self, **given: Any) -> Any:
        found = self._real(**given)
        if given["x"].dtype.kind == "V":
            name = next(n for n in ("d_x", "h") if n in found._fields)
            words = getattr(found, name).view(np.uint16)
            words[(0,) * words.ndim] += 1
        return found


def test_check_finds_an_array_that_is_not_rounded_once() -> None:
    kernel = cellgen.load("gru")
    arrays = drawn("gru", 8, 3, 5, 6)
    upstream = {"d_h": np.ones((8, 3, 6)), "d_h_last": np.ones((3, 6))}
    errors = storage_errors(kernel, arrays, upstream)
    assert not any(error for of_one in errors.values() for error in of_one.values())
    assert {"bfloat16 h", "float16 h_last"} < errors["sequence_forward"].keys()
    assert {"bfloat16 d_x", "float16 d_u_n"} < errors["sequence_backward"].keys()
    wrong: Any = SimpleNamespace(functions={n: _OffByOne(f) for n, f in kernel.functions.items()})
    found = storage_errors(wrong, arrays, upstream)
    assert found["sequence_forward"]["bfloat16 h"] == pytest.approx(1 / 144)
    assert found["sequence_backward"]["float16 d_x"] == pytest.approx(1 / 120)

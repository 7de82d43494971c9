"""Calling kernels: what each wrong argument is told, memory, threads, and what a call costs."""

from __future__ import annotations

import inspect
import pickle
import threading
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import Cell, Input, Scalar, State, log1p
from cellgen import H as H_UNITS
from cellgen.errors import ArgumentError, BuildError, CellgenError
from cellgen.runtime import kernel as kernel_module
from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.call import arguments as checks
from cellgen.runtime.call import workspace as call
from cellgen.runtime.call.views import view_of
from cellgen.runtime.kernel import Kernel, load_folder
from tests.by_hand import small_sources
from tests.drawing import draw_arrays
from tests.within import lock_of

TOY = Path(__file__).parents[2] / "toy" / "toy_cell"
B, I, H = 3, 5, 7
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def toy() -> Kernel:
    return load_folder(TOY)


def arguments(dtype: type = np.float64, B: int = B, I: int = I, H: int = H) -> Arrays:
    shapes = {"x": (B, I), "h_prev": (B, H), "w": (I, H), "b": (2 * H,)}
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def expected(x, h_prev, w, b, alpha=1.0):  # type: ignore[no-untyped-def]
    H = w.shape[1]
    s = x @ w + b[:H]
    return alpha * s + b[H:] * h_prev, s


def refused(kernel: Kernel, function: str = "forward", **given: object) -> str:
    with pytest.raises(ArgumentError) as caught:
        getattr(kernel, function)(**given)
    text = str(caught.value)
    assert text.startswith(f"[argument] toy_cell.{function}: ")
    assert isinstance(caught.value, ValueError)
    return text


def has(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, text


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_forward_equals_numpy_in_both_precisions(toy: Kernel, dtype: type) -> None:
    given = arguments(dtype)
    result = toy.forward(**given, alpha=0.5)
    h, s = expected(**given, alpha=0.5)
    tolerance = 32 * np.finfo(dtype).eps  # sums of 6 terms of size about 1
    assert result.h.dtype == result.s.dtype == dtype
    np.testing.assert_allclose(result.h, h, atol=tolerance)
    np.testing.assert_allclose(result.s, s, atol=tolerance)


def test_results_are_a_named_tuple_that_pickles(toy: Kernel) -> None:
    result = toy.forward(**arguments())
    h, _ = result
    assert type(result).__name__ == "Forward"
    assert result._fields == ("h", "s")
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    np.testing.assert_array_equal(again.h, h)
    assert toy.weight_gradients.result.__name__ == "WeightGradients"


def test_functions_document_themselves(toy: Kernel) -> None:
    assert "x (B, I), h_prev (B, H)" in repr(toy.forward)
    assert "-> h (B, H), s (B, H)" in repr(toy.forward)
    has(toy.backward.__doc__ or "", "d_h: (B, H); gradient of h; counts as zero when left out")
    has(toy.backward.__doc__ or "", "alpha: number, 1.0", "ArgumentError", "b: (2 H)")
    parameters = inspect.signature(toy.backward).parameters
    assert list(parameters) == ["x", "h_prev", "w", "b", "s", "alpha", "d_h", "d_s", "out"]
    assert all(item.kind is item.KEYWORD_ONLY for item in parameters.values())
    assert parameters["alpha"].default == 1.0
    assert parameters["d_h"].default is None
    assert parameters["w"].default is inspect.Parameter.empty
    assert "toy_cell" in repr(toy)


def test_functions_over_time_document_their_options() -> None:
    lstm = cellgen.load("lstm")
    for function, own in (
        (lstm.sequence_forward, ["save", "last_only", "packed"]),
        (lstm.sequence_backward, ["saved", "window", "bp_lim"]),
    ):
        parameters = inspect.signature(function).parameters
        assert not {"i", "f", "g", "o"} & set(parameters)
        assert {*own, "lengths", "mask", "reset", "threads", "plan"} <= set(parameters)
        text = function.__doc__ or ""
        assert all(f"    {name}: " in text for name in own)
    forward = (lstm.sequence_forward.__doc__ or "").partition("Returns")[2]
    has(forward, "saved: with save=True, what the backward pass reads: i (T, B, H)")
    assert "    i: " not in forward
    has(lstm.sequence_backward.__doc__ or "", "d_x: (T, B, I)", "bp_lim: ")


def test_attributes_of_a_kernel(toy: Kernel) -> None:
    assert {"forward", "backward"} <= set(dir(toy))
    with pytest.raises(AttributeError, match="it has forward, backward, weight_gradients"):
        toy.sideways


def test_arguments_are_given_by_name_only(toy: Kernel) -> None:
    values = [*arguments().values()]
    for positional in (values, values[:1]):  # before a call, and after one
        with pytest.raises(ArgumentError) as caught:
            toy.forward(*positional)  # type: ignore[arg-type]
        count = f"{len(positional)} argument{'s' * (len(positional) > 1)} without a name"
        has(
            str(caught.value),
            f"toy_cell.forward: {count}",
            "pass each by name: x=..., h_prev=..., w=",
        )
        toy.forward(**arguments())


@pytest.mark.parametrize("door", ["pack", "sequence_forward.pack", "sequence_forward.bind"])
def test_weights_are_packed_and_bound_by_name_only(door: str) -> None:
    gru = cellgen.load("gru")
    weights = gru.init(np.random.default_rng(0), I=3, H=4)
    call: Any = attrgetter(door)(gru)
    label = "gru.pack" if door.endswith("pack") else "gru.sequence_forward.bind"
    with pytest.raises(
        ArgumentError, match=r"1 argument without a name, the first a dict; "
    ) as caught:
        call(weights)
    has(str(caught.value), f"{label}: ", "w_z=...", "or what this has with ** before it")
    with pytest.raises(ArgumentError, match="2 arguments without a name, the first an array"):
        call(weights["w_z"], weights)


def test_a_kernel_itself_is_no_function(toy: Kernel) -> None:
    x = np.zeros((2, 3), np.float32)
    call: Any = toy
    with pytest.raises(ArgumentError) as caught:
        call(x, h_prev=x)
    has(
        str(caught.value),
        "toy_cell: a kernel is called as kernel(an array (2, 3) of float32, h_prev=...)",
        "expected one of its functions, forward, backward, ",
        "write kernel.forward(x=..., h_prev=..., ",
    )
    call = cellgen.load("lstm")
    with pytest.raises(ArgumentError, match=r"lstm: .*write kernel\.sequence_forward\(x=\.\.\., "):
        call()


def test_a_transposed_weight_and_exchanged_axes_are_told(toy: Kernel) -> None:
    given = arguments()
    has(refused(toy, **{**given, "w": given["w"].T}), "make the two agree: w.T has this shape")
    gru = cellgen.load("gru")
    weights = gru.init(np.random.default_rng(0), B=2, I=3, H=4)
    with pytest.raises(ArgumentError, match=r"arrays are \(T, B, \.\.\.\), and \(B, T"):
        gru.sequence_forward(x=np.zeros((2, 7, 3), np.float32), **weights)
    with pytest.raises(ArgumentError, match=r"agree$"):  # another length is no exchange
        gru.sequence_forward(x=np.zeros((7, 5, 3), np.float32), **weights)


def test_optional_upstream_gradients_count_as_zero(toy: Kernel) -> None:
    given = arguments()
    weights = {"w": given["w"], "b": given["b"]}
    d_h, d_s = np.ones((B, H)), np.full((B, H), 2.0)
    zero = np.zeros((B, H))
    for left_out in ({}, {"d_s": None}):
        first = toy.backward(**weights, d_h=d_h, **left_out)
        second = toy.backward(**weights, d_h=d_h, d_s=zero)
        np.testing.assert_array_equal(first.d_x, second.d_x)
        np.testing.assert_array_equal(first.d_h_prev, second.d_h_prev)
    only = toy.backward(**weights, d_h=None, d_s=d_s, alpha=3.0)
    np.testing.assert_allclose(only.d_x, d_s @ given["w"].T, rtol=1e-13)
    np.testing.assert_array_equal(only.d_h_prev, zero)
    neither = toy.backward(**weights, x=given["x"])
    np.testing.assert_array_equal(neither.d_x, np.zeros((B, I)))


def test_a_number_that_is_an_output_has_an_upstream_gradient_that_may_be_left_out() -> None:
    class OfNumbers(Cell):
        x, h_prev, k = Input(H_UNITS), State(H_UNITS), Scalar(1.0, gradient=True)
        v = log1p(k)
        h = x + h_prev
        outputs = v, h

    kernel, ones = cellgen.compile(OfNumbers), np.ones((2, 3))
    v, h = kernel.forward(x=ones, h_prev=ones, k=1.5)
    assert v.shape == ()
    assert v == np.log1p(1.5)
    given = {"k": 1.5, "d_h": np.ones_like(h)}
    assert kernel.backward(**given).d_k == 0
    assert kernel.backward(**given, d_v=np.array(3.0)).d_k == 3 / (1 + 1.5)


def test_an_unused_argument_is_checked_then_ignored(toy: Kernel) -> None:
    given = arguments()
    call = {"w": given["w"], "b": given["b"], "d_h": np.ones((B, H))}
    plain = toy.backward(**call)
    same = toy.backward(**call, x=np.full((B, I), np.nan), s=None)
    np.testing.assert_array_equal(plain.d_x, same.d_x)
    text = refused(toy, "backward", **call, x=np.ones((B, I + 1)))
    has(text, "x has shape (3, 6)", "(B, I) = (3, 5)")
    has(refused(toy, "backward", **call, x=np.ones((B, I), np.float32)), "x is float32")


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.array(2), np.int64(2)])
def test_a_scalar_is_any_real_number(toy: Kernel, value: float) -> None:
    given = arguments()
    np.testing.assert_array_equal(
        toy.forward(**given, alpha=value).h, toy.forward(**given, alpha=2.0).h
    )


def test_a_scalar_left_out_has_its_default(toy: Kernel) -> None:
    given = arguments()
    np.testing.assert_array_equal(toy.forward(**given).h, toy.forward(**given, alpha=1.0).h)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2", "'2'"),
        (None, "None"),
        (True, "True"),
        (1j, "1j"),
        (np.ones(1), "an array (1,)"),
        (np.array(1j), "an array ()"),
        (10**400, "1000"),
    ],
)
def test_a_scalar_that_is_no_number_is_refused(toy: Kernel, value: object, found: str) -> None:
    has(refused(toy, **arguments(), alpha=value), "scalar alpha is", found, "alpha=1.0")


def test_nan_and_infinity_flow_through(toy: Kernel) -> None:
    given = arguments()
    given["x"][0, 0] = np.nan
    given["h_prev"][1, 2] = np.inf
    result = toy.forward(**given)
    assert np.isnan(result.h[0]).all()
    assert np.isinf(result.h[1, 2])
    assert np.isfinite(result.h[2]).all()
    assert np.isnan(toy.forward(**arguments(), alpha=float("nan")).h).all()


@pytest.mark.parametrize("dims", [(0, I, H), (B, 0, H), (B, I, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("with_out", [False, True])
def test_dimensions_of_zero_and_one_are_legal(
    toy: Kernel, dims: tuple[int, int, int], with_out: bool
) -> None:
    given = arguments(np.float64, *dims)
    shape = (dims[0], dims[2])
    out = (np.empty(shape), np.empty(shape)) if with_out else None
    result = toy.forward(**given, out=out)
    assert result.h.shape == shape
    np.testing.assert_allclose(result.h, expected(**given)[0], rtol=1e-13)


# --- what is refused --------------------------------------------------------------------------


def test_an_unknown_argument_is_refused_with_a_suggestion(toy: Kernel) -> None:
    given = arguments()
    has(refused(toy, **given, h_prv=given["h_prev"]), "'h_prv'", "did you mean 'h_prev'?")
    has(refused(toy, **given, zebra=1), "'zebra'", "expected x, h_prev, w, b, alpha")


def test_a_missing_argument_is_named(toy: Kernel) -> None:
    given = arguments()
    del given["w"]
    has(refused(toy, **given), "argument w is missing", "(I, H)", "pass w=...")
    has(refused(toy, **given, w=None), "argument w is None", "pass w=...")


@pytest.mark.parametrize("value", [[[1.0]], 1.0, "x", np.float32(1), memoryview(b"1234")])
def test_what_is_no_array_is_refused(toy: Kernel, value: object) -> None:
    text = refused(toy, **{**arguments(), "x": value})
    has(text, f"x is {checks.a_type(value)}", "numpy.ndarray", "np.ascontiguousarray")


def test_things_that_look_like_arrays_are_refused(toy: Kernel) -> None:
    class Lookalike:
        dtype = np.dtype(np.float64)
        shape = (B, I)
        flags = np.ones((B, I)).flags

    has(refused(toy, **{**arguments(), "x": Lookalike()}), "Lookalike")
    has(
        refused(toy, **{**arguments(), "x": np.ma.ones((B, I))}),
        "x is a masked array",
        "x.filled(...)",
    )


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.complex128, np.bool_, object])
def test_other_dtypes_are_refused(toy: Kernel, dtype: type) -> None:
    text = refused(toy, **{**arguments(), "w": np.ones((I, H), dtype)})
    has(text, f"w has dtype {np.dtype(dtype)}", "float32 or float64", "w.astype(np.float32)")


def test_mixed_dtypes_name_the_odd_one(toy: Kernel) -> None:
    given = arguments(np.float32)
    text = refused(toy, **{**given, "h_prev": given["h_prev"].astype(np.float64)})
    has(text, "h_prev is float64", "3 other arrays are float32", "h_prev.astype(np.float32)")
    pair = {"x": np.ones((B, I)), "d_s": np.ones((B, H), np.float32)}
    text = refused(toy, "weight_gradients", **pair)
    has(text, "d_s is float32, but x is float64", "d_s.astype(np.float64)")


def test_foreign_byte_order_is_refused(toy: Kernel) -> None:
    given = arguments()
    given["b"] = given["b"].astype(given["b"].dtype.newbyteorder())
    has(refused(toy, **given), "b is float64 in foreign byte order", "b.astype(np.float64)")


def test_a_wrong_rank_is_refused(toy: Kernel) -> None:
    given = arguments()
    text = refused(toy, **{**given, "b": given["b"][None]})
    has(text, "b has 2 axes, shape (1, 14)", "expected 1: (2 H)")


def test_shapes_that_disagree_tell_who_fixed_the_dimension(toy: Kernel) -> None:
    given = arguments()
    text = refused(toy, **{**given, "w": np.ones((I, H + 1))})
    has(text, "w has shape (5, 8)", "(I, H) = (5, 7)", "I = 5 from x (B, I)")
    has(text, "H = 7 from h_prev (B, H)")
    text = refused(toy, **{**given, "h_prev": np.ones((B + 1, H))})
    has(text, "h_prev has shape (4, 7)", "B = 3 from x (B, I)")
    has(refused(toy, **{**given, "b": np.ones(13)}), "b has shape (13,)", "(2 H) = (14,)")


def test_a_dimension_of_two_axes_is_explained_once() -> None:
    gru, zeros = cellgen.load("gru_block_cell"), np.zeros
    weights = {"w_ru": zeros((7, 8)), "w_c": zeros((7, 4)), "b_ru": zeros(8), "b_c": zeros(4)}
    with pytest.raises(ArgumentError) as caught:
        gru.forward(x=zeros((2, 3)), h_prev=zeros((2, 5)), **weights)
    assert str(caught.value).count("H = 5 from h_prev (B, H)") == 1


def test_memory_that_is_not_contiguous_is_refused(toy: Kernel) -> None:
    given = arguments()
    for array in (np.ones((I, B)).T, np.ones((B, 2 * I))[:, ::2], np.ones((B, I + 1))[:, :I]):
        text = refused(toy, **{**given, "x": array})
        has(text, "x is not C-contiguous", "strides", "np.ascontiguousarray(x)")


def test_misaligned_memory_is_refused(toy: Kernel) -> None:
    given = arguments()
    given["x"] = np.zeros(B * I * 8 + 1, np.uint8)[1:].view(np.float64).reshape(B, I)
    has(refused(toy, **given), "x is misaligned", "multiple of 8 bytes", "x.copy()")


def test_a_dimension_that_nothing_tells_is_asked_for(toy: Kernel) -> None:
    given = arguments()
    text = refused(toy, "backward", w=given["w"], b=given["b"])
    has(text, "dimension B", "pass one of x, h_prev, s, d_h, d_s")


def test_a_wrong_call_is_refused_after_a_right_one_too(toy: Kernel) -> None:
    given = arguments()
    toy.forward(**given)
    refused(toy, **{**given, "x": np.ones((B, I + 1))})
    refused(toy, **{**given, "x": np.asfortranarray(given["x"])})
    refused(toy, **given, extra=given["x"])
    toy.forward(**given)


# --- out --------------------------------------------------------------------------------------


def test_results_go_where_out_says(toy: Kernel) -> None:
    given = arguments()
    want = toy.forward(**given)
    h, s = np.empty((B, H)), np.empty((B, H))
    for out in (
        (h, s),
        {"h": h, "s": s},
        type(want)(h, s),
        (h, None),
        {"h": h},
        {"h": h, "s": None},
    ):
        h[:] = 0
        result = toy.forward(**given, out=out)
        assert result.h is h
        np.testing.assert_array_equal(result.h, want.h)
        np.testing.assert_array_equal(result.s, want.s)
    assert toy.forward(**given, out={}).h is not h
    assert toy.forward(**given, out=(None, None)).h is not h


@pytest.mark.parametrize(
    ("out", "parts"),
    [
        ({"hh": np.empty((B, H))}, ("unknown result 'hh'", "did you mean 'h'?")),
        ((np.empty((B, H)),), ("out has 1 entries, expected 2: (h, s)", "None")),
        (np.empty((B, H)), ("out is a numpy.ndarray", "dict or a tuple", "{'h': array}")),
        ({"h": [1.0]}, ("out h is a list",)),
        ({"s": np.empty((B, H), np.float32)}, ("out s is float32", "np.empty((3, 7), np.float64)")),
        ({"s": np.empty((B, H), np.int8)}, ("out s has dtype int8",)),
        ({"s": np.empty((B, I))}, ("out s has shape (3, 5)", "(B, H) = (3, 7)")),
        ({"s": np.empty(H)}, ("out s has 1 axes",)),
        ({"s": np.empty((H, B)).T}, ("out s is not C-contiguous", "np.empty(")),
    ],
)
def test_a_wrong_out_is_refused(toy: Kernel, out: object, parts: tuple[str, ...]) -> None:
    has(refused(toy, **arguments(), out=out), *parts)


def test_a_read_only_out_is_refused(toy: Kernel) -> None:
    h = np.empty((B, H))
    toy.forward(**arguments(), out={"h": h})
    h.flags.writeable = False
    text = refused(toy, **arguments(), out={"h": h})
    has(text, "out h is read-only", "np.empty((3, 7), np.float64)")


def test_read_only_arguments_are_fine(toy: Kernel) -> None:
    given = arguments()
    want = toy.forward(**given)
    for array in given.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(toy.forward(**given).h, want.h)


def test_out_that_overlaps_is_refused(toy: Kernel) -> None:
    given = arguments()
    text = refused(toy, **given, out={"h": given["h_prev"]})
    has(text, "out h shares memory with the argument h_prev", "give another array")
    h = np.empty((B, H))
    text = refused(toy, **given, out=(h, h))
    has(text, "out h shares memory with the result s")
    pool = np.zeros(B * H + 1)
    shifted = (pool[:-1].reshape(B, H), pool[1:].reshape(B, H))
    has(refused(toy, **given, out=shifted), "out h shares memory with the result s")
    given["b"] = pool[-2 * H :]
    has(refused(toy, **given, out={"s": shifted[0]}), "out s shares memory with the argument b")


def test_neighbours_in_memory_do_not_overlap(toy: Kernel) -> None:
    given = arguments()
    want = toy.forward(**given)
    pool = np.empty(3 * B * H)
    pool[B * H : 2 * B * H] = given["h_prev"].ravel()
    parts = [part.reshape(B, H) for part in np.split(pool, 3)]
    result = toy.forward(**{**given, "h_prev": parts[1]}, out=(parts[0], parts[2]))
    np.testing.assert_array_equal(result.h, want.h)


def test_arguments_may_share_memory_with_each_other(toy: Kernel) -> None:
    square = np.ones((4, 4))
    out = (np.empty((4, 4)), np.empty((4, 4)))
    result = toy.forward(x=square, h_prev=square, w=square, b=np.ones(8), out=out)
    np.testing.assert_array_equal(result.h, np.full((4, 4), 6.0))


# --- memory, threads, defects -----------------------------------------------------------------


def test_threads_that_call_at_once_get_the_same_bits(toy: Kernel) -> None:
    given = arguments(np.float32, 64, 32, 48)
    other = {name: array + 1 for name, array in given.items()}
    want = [toy.forward(**given).h, toy.forward(**other).h]
    wrong: list[int] = []

    def call(which: int) -> None:
        for _ in range(50):
            result = toy.forward(**(given, other)[which]).h
            if result.tobytes() != want[which].tobytes():
                wrong.append(which)

    threads = [threading.Thread(target=call, args=(at % 2,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_workspace_is_kept_per_thread_up_to_a_bound(
    toy: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "per_thread", call._PerThread())
    kept = call.per_thread
    toy.forward(**arguments())
    first = kept.memory
    assert first.bytes >= B * H * 8
    toy.forward(**arguments(np.float32))
    assert kept.memory is first
    monkeypatch.setattr(call, "KEPT_WORKSPACE", first.bytes)
    toy.forward(**arguments(np.float64, 2 * B))
    assert kept.memory is first


def test_a_fork_gets_locks_that_nobody_holds(toy: Kernel) -> None:
    before = lock_of(toy)
    kernel_module.renew_locks()
    assert lock_of(toy) is not before
    assert toy.build().path.is_file()


def one_function(code: str, size: str = "0", **change: object) -> Kernel:
    """Make a cell of a single function ``run(x (B)) -> y (B)`` whose C is given."""
    fields: dict[str, object] = {
        "name": "run",
        "dims": ("B",),
        "arguments": (Argument("x", ("B",)),),
        "results": (Argument("y", ("B",)),),
        "workspace": True,
        **change,
    }
    interface = Interface("small", "0" * 12, (Function(**fields),))  # type: ignore[arg-type]
    return Kernel(interface, small_sources(interface, code, size))


@pytest.mark.parametrize(
    ("code", "meaning"), [(1, "is NULL"), (2, "negative"), (3, "workspace"), (77, "unknown")]
)
def test_an_error_code_becomes_an_error(code: int, meaning: str) -> None:
    small = one_function("return (int)args->x[0];")
    with pytest.raises(CellgenError) as caught:
        small.run(x=np.array([float(code)]))
    assert caught.value.code == "kernel"
    has(str(caught.value), "small.run", f"returned {code}", meaning)
    small.run(x=np.zeros(1))


def test_workspace_of_no_bytes_is_still_memory() -> None:
    small = one_function("return args->workspace && args->workspace_bytes >= 0 ? 0 : 3;")
    small.run(x=np.zeros(2))
    thread = threading.Thread(target=lambda: small.run(x=np.zeros(2)))
    thread.start()
    thread.join()


def test_workspace_that_does_not_fit_is_a_memory_error() -> None:
    small = one_function("return 0;", size="nB << 58")
    small.run(x=np.zeros(0))
    with pytest.raises(MemoryError, match=r"small\.run: no memory for a workspace of .* fewer"):
        small.run(x=np.zeros(3))
    with pytest.raises(ArgumentError, match=r"workspace .* smaller dimensions"):
        one_function("return 0;", size="-1").run(x=np.zeros(3))


def test_results_tell_a_dimension_that_arguments_have_in_sums_alone() -> None:
    doubled = Argument("v", ("2*H + 2*K",), used=False)
    shapes = (Argument("u", ("H + K",)), doubled), (Argument("y", ("K",)),)
    function = Function("run", ("H", "K"), *shapes, False)
    given = {"u": np.zeros(7), "v": np.zeros(14)}
    with pytest.raises(ArgumentError) as refusal:
        checks.check_call("small.run", function, given, {})
    has(str(refusal.value), "dimension H", "u (H + K), v (2 H + 2 K)", "pass out={'y': array} (K)")
    del given["v"]
    with pytest.raises(ArgumentError, match=r"pass one of v or out={'y': array} \(K\)"):
        checks.check_call("small.run", function, given, {})
    found = checks.check_call("small.run", function, given, {"y": np.zeros(3)})
    assert found.dims == {"H": 4, "K": 3}
    with pytest.raises(ArgumentError, match=r"no length >= 0 makes H \+ K equal 7"):
        checks.check_call("small.run", function, given, {"y": np.zeros(8)})
    sums = (Argument("u", ("H + K",)), doubled), (Argument("y", ("H + K",)),)
    function = Function("run", ("H", "K"), *sums, False)
    with pytest.raises(ArgumentError, match="pass one of v"):
        checks.check_call("small.run", function, given, {"y": np.zeros(7)})
    with pytest.raises(ArgumentError, match="add an argument to the cell that has it alone"):
        checks.check_call("small.run", function, {**given, "v": np.zeros(14)}, {})


def test_dimensions_come_from_sums_and_multiples_too() -> None:
    function = Function(
        "run",
        ("A", "C"),
        (Argument("u", ("A + 2*C", "1")), Argument("v", ("3*C",))),
        (Argument("y", ("A + C + 1",)),),
        False,
    )
    run = Kernel(Interface("small", "0" * 12, (function,)), TOY).run
    items = [
        checks.Item(item, view_of(np.zeros(shape)), item.name)
        for item, shape in zip(function.arguments, [(9, 1), (6,)], strict=True)
    ]
    assert checks.infer_dims("small.run", items)[0] == {"C": 2, "A": 5}
    with pytest.raises(
        ArgumentError, match=r"v has shape \(7,\).*no length >= 0 makes 3\*C equal 7"
    ):
        run(u=np.zeros((9, 1)), v=np.zeros(7))
    with pytest.raises(ArgumentError, match=r"makes A \+ 2\*C equal 3 with C = 2"):
        run(u=np.zeros((3, 1)), v=np.zeros(6))
    with pytest.raises(ArgumentError, match=r"u has shape \(9, 2\), expected \(A \+ 2 C, 1\)"):
        run(u=np.zeros((9, 2)), v=np.zeros(6))


def test_an_interface_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(BuildError, match="dimension T"):
        one_function("return 0;", dims=("B", "T"))
    with pytest.raises(BuildError, match="'build'"):
        one_function("return 0;", name="build")
    with pytest.raises(BuildError, match="'out'"):
        one_function("return 0;", arguments=(Argument("out", ("B",)),))


def test_a_kernel_builds_when_it_is_first_called() -> None:
    small = one_function("args->y[0] = 2 * args->x[0]; return 0;")
    assert "not built yet" in repr(small)
    assert small.run(x=np.array([4.0])).y[0] == 8.0
    assert "loaded" in repr(small)


def test_a_folder_without_a_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no generated cell \(__init__.py is missing\)"):
        load_folder(tmp_path / "nothing")
    (tmp_path / "__init__.py").write_text("kernel = 3\n")
    with pytest.raises(BuildError, match="defines no `kernel`"):
        load_folder(tmp_path)


def test_a_call_without_any_array_is_refused() -> None:
    function = Function(
        "run", ("B",), (Argument("d_y", ("B",), optional=True),), (Argument("d_x", ("B",)),), False
    )
    run = Kernel(Interface("toy_cell", "0" * 12, (function,)), TOY)
    has(refused(run, "run"), "no array is given, expected some of d_y")


# --- arrays that say something else of themselves ---------------------------------------------


class Liar(np.ndarray):
    """Of its shape, its memory and its type it says what it was told to say."""

    said: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.said or np.asarray(self).shape

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(8 for _ in self.shape)

    @property
    def flags(self) -> object:
        return np.empty(self.shape).flags

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return np.ndarray

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"data": (1, False), "shape": self.shape, "typestr": "<f8", "version": 3}

    def swapaxes(self, *_: int) -> Liar:
        return self


def lying(array: np.ndarray, said: tuple[int, ...] = ()) -> Liar:
    made: Liar = array.view(Liar)
    made.said = said
    return made


@pytest.mark.parametrize("name", ["forward", "sequence_forward"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("options", [{}, {"batch_first": True}])
def test_shapes_are_those_of_the_memory(name: str, known: bool, options: dict[str, bool]) -> None:
    """A subclass of arrays is believed nothing, also where a call of the kind was seen before."""
    function = getattr(cellgen.load("gru"), name)
    options = options if name == "sequence_forward" else {}
    small = draw_arrays(function.function, {"T": 2, "B": 2, "I": 3, "H": 4})
    large = draw_arrays(function.function, {"T": 2, "B": 2, "I": 3, "H": 400})
    if known:
        function(**large, **options)
    for argument in ("u_n", "h_prev"):
        liar = lying(small[argument], large[argument].shape)
        with pytest.raises(ArgumentError, match=r"has shape|no length >= 0"):
            function(**(large | {argument: liar}), **options)
    expected = function(**small, **options).h
    honest = {n: lying(a, large[n].shape) for n, a in small.items()}
    assert np.array_equal(function(**honest, **options).h, expected)


def test_results_are_written_where_the_memory_is() -> None:
    forward = cellgen.load("gru").forward
    arguments = draw_arrays(forward.function, {"B": 2, "I": 3, "H": 4})
    memory = np.empty((2, 4))
    forward(**arguments, out={"h": lying(memory, (2, 400))})
    assert np.array_equal(memory, forward(**arguments).h)
    with pytest.raises(ArgumentError, match=r"out h has shape \(2, 3\)"):
        forward(**arguments, out={"h": lying(np.empty((2, 3)), (2, 4))})


def test_packed_weights_have_the_shapes_of_their_memory() -> None:
    kernel = cellgen.load("gru")
    arguments = draw_arrays(kernel.sequence_forward.function, {"T": 2, "B": 2, "I": 3, "H": 4})
    weights = {n: a for n, a in arguments.items() if n not in ("x", "h_prev")}
    with pytest.raises(ArgumentError, match="u_n has shape"):
        kernel.pack(**{**weights, "u_n": lying(np.zeros((2, 2)), (4, 4))})
    packed = kernel.pack(**{n: lying(a, (1,)) for n, a in weights.items()})
    rest = {n: arguments[n] for n in ("x", "h_prev")}
    expected = kernel.sequence_forward(**arguments).h
    assert np.array_equal(kernel.sequence_forward(**rest, packed=packed).h, expected)


@pytest.mark.parametrize("name", ["mask", "reset", "lengths"])
@pytest.mark.parametrize("limit", [{}, {"bp_lim": 1}])
def test_masked_arrays_are_no_flags(name: str, limit: dict[str, int]) -> None:
    kernel = cellgen.load("gru")
    arguments = draw_arrays(kernel.sequence_forward.function, {"T": 2, "B": 2, "I": 3, "H": 4})
    plain = np.array([1, 2]) if name == "lengths" else np.ones((2, 2), bool)
    masked = np.ma.masked_array(plain, mask=plain == 1)
    with pytest.raises(ArgumentError, match=rf"{name} is a masked array.*{name}\.filled"):
        kernel.sequence_forward(**arguments, **{name: masked})
    y = kernel.sequence_forward(**arguments, save=True)
    given = {**arguments, "h": y.h, "saved": y.saved._asdict()}
    with pytest.raises(ArgumentError, match=rf"{name} is a masked array.*{name}\.filled"):
        kernel.sequence_backward(**given, **{name: masked}, **limit)


def test_flags_have_the_shape_of_their_memory() -> None:
    kernel = cellgen.load("gru")
    arguments = draw_arrays(kernel.sequence_forward.function, {"T": 200, "B": 2, "I": 3, "H": 4})
    liar = lying(np.ones((2, 2), bool), (200, 2))
    with pytest.raises(ArgumentError, match=r"mask is of shape \(2, 2\)"):
        kernel.sequence_forward(**arguments, mask=liar)

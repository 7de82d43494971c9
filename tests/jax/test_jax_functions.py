"""``cellgen.jax.function``: what NumPy's kernels give, to the bit, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet

import cellgen
import cellgen.jax
from cellgen import cells, regularise
from cellgen.errors import ArgumentError
from tests.cover import each_name_of, in_turn, of_equations
from tests.jax.arrays import call, drawn, function

LENGTHS = np.array([3, 1])
MASK = np.array([[True, False], [True, True], [False, True]])


def same(found: tuple, wanted: object) -> None:
    for name, array in found._asdict().items():
        np.testing.assert_array_equal(np.asarray(array), getattr(wanted, name), err_msg=name)


def each_in_turn() -> list[ParameterSet]:
    """Cells that cover, each in one of the types each time; all in both with the slow tests."""
    every, dtypes = each_name_of(of_equations), ("float32", "float64")
    often = in_turn([one.id for one in every if not one.marks], dtypes)
    seldom = product([one.id for one in every if one.marks], dtypes)
    return [*often, *(pytest.param(*one, marks=pytest.mark.slow) for one in seldom)]


@pytest.mark.parametrize(("name", "dtype"), each_in_turn())
def test_every_cell_gives_what_its_kernel_gives_to_the_bit(name: str, dtype: str) -> None:
    cell, kernel = function(name), cellgen.load(name)
    given = drawn(cell, dtype)
    wanted = kernel.sequence_forward(**given, save=True)
    run = jax.jit(lambda a: call(cell, a))
    same(run(given), wanted)
    ups = [np.full_like(getattr(wanted, item.name), 0.5) for item in cell.layout.outputs]
    found = jax.jit(lambda a: jax.vjp(lambda b: tuple(call(cell, b)), a)[1](tuple(ups)))(given)[0]
    read = {a.name for a in kernel.sequence_backward.function.arguments}
    upstream = {f"d_{item.name}": up for item, up in zip(cell.layout.outputs, ups, strict=True)}
    kept = {n: getattr(wanted, n) for n in wanted._fields if n in read and n != "saved"}
    gradients = kernel.sequence_backward(**given, **kept, saved=wanted.saved, **upstream)
    for item in cell.layout.gradients:
        array = np.asarray(found[item.name.removeprefix("d_")])
        np.testing.assert_array_equal(array, getattr(gradients, item.name), err_msg=item.name)


def test_threads_change_no_bit() -> None:
    cell, kernel = function("lstm"), cellgen.load("lstm")
    given = drawn(cell)
    same(call(cell, given, threads=2), kernel.sequence_forward(**given))


def test_tables_may_be_traced() -> None:
    cell, kernel = function("gru"), cellgen.load("gru")
    given = drawn(cell)
    run = jax.jit(lambda a, lengths, mask: call(cell, a, lengths=lengths, mask=mask))
    found = run(given, jnp.asarray(LENGTHS, jnp.int32), jnp.asarray(MASK))
    same(found, kernel.sequence_forward(**given, lengths=LENGTHS, mask=MASK))


def test_batch_first() -> None:
    cell, kernel = function("augru"), cellgen.load("augru")
    given = drawn(cell)
    swapped = given | {name: given[name].swapaxes(0, 1) for name in ("x", "a")}
    found = call(cell, swapped, batch_first=True, mask=MASK.T)
    wanted = kernel.sequence_forward(**given, mask=MASK)
    np.testing.assert_array_equal(found.h, wanted.h.swapaxes(0, 1))
    np.testing.assert_array_equal(found.h_last, wanted.h_last)


def test_a_window_cuts_gradients() -> None:
    cell = function("elman")
    given = drawn(cell, T=4)
    d = jax.grad(lambda a: call(cell, a, window=2).h[2:].sum())(given)["x"]
    assert not d[:2].any()
    assert d[2:].all()


def test_states_that_are_left_out_start_where_the_cell_says() -> None:
    cell = function("slstm")
    given = drawn(cell, "float32")
    params = {name: given[name] for name in cell.params}
    zeros = np.zeros_like(given["h_prev"])
    started = cell(params, given["x"], (zeros, zeros, zeros, np.full_like(zeros, -np.inf)))
    left_out = cell(params, given["x"])
    np.testing.assert_array_equal(left_out.h, started.h)
    some = cell(params, given["x"], {"h_prev": zeros})
    np.testing.assert_array_equal(some.h, started.h)


def test_scalars_are_arguments() -> None:
    cell, kernel = function("janet"), cellgen.load("janet")
    given = drawn(cell)
    same(call(cell, given), kernel.sequence_forward(**given))
    run = jax.jit(lambda a, beta: call(cell, a | {"beta": beta}))
    same(run(given, 2.5), kernel.sequence_forward(**given, beta=2.5))


def test_no_rows_and_no_steps() -> None:
    cell = function("gru")
    for sizes in ({"B": 0}, {"T": 0}):
        given = drawn(cell, **sizes)
        assert call(cell, given).h.shape == (*given["x"].shape[:2], 3)
        d = jax.grad(lambda a: call(cell, a).h_last.sum())(given)
        assert d["w_z"].shape == (2, 3)
        assert not d["w_z"].any()


def test_without_double_precision_arrays_are_float32_and_lengths_int32() -> None:
    cell, kernel = function("gru"), cellgen.load("gru")
    given = drawn(cell, "float32")
    with jax.enable_x64(False):
        found = call(cell, {n: a.astype("float64") for n, a in given.items()}, lengths=LENGTHS)
        assert found.h.dtype == jnp.float32
    same(found, kernel.sequence_forward(**given, lengths=LENGTHS))


def test_functions_compare_hash_and_travel() -> None:
    cell = function("gru")
    assert cell == function("gru")
    assert {cell: 1}[pickle.loads(pickle.dumps(cell))] == 1
    assert copy.deepcopy(cell) == cell
    assert cell != function("lstm")


def wrong(what: str) -> dict[str, object]:
    """What differs in a call of the GRU that is refused."""
    given = drawn(function("gru"))
    return {
        "dtype": {"w_z": given["w_z"].astype("float32")},
        "bfloat16": {"x": jnp.asarray(given["x"], jnp.bfloat16)},
        "integers": {"x": np.ones((3, 2, 2), int)},
        "rank": {"x": given["x"][0]},
        "shape": {"u_r": given["u_r"][1:]},
    }[what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", r"w_z is float32, expected float64, as x is; pass w_z\.astype"),
        ("bfloat16", r"h_prev is float64, expected bfloat16, as x is; pass h_prev\.astype"),
        ("integers", "x is int64, expected float32, float64, bfloat16 or float16"),
        (
            "rank",
            r"x has 2 axes, shape \(2, 2\), expected 3: \(T, B, I\); pass x\[:, None\] for one row",
        ),
        ("shape", r"u_r has shape \(2, 3\), expected \(H, H\) = \(3, 3\) with H = 3 from w_z"),
    ],
)
@pytest.mark.parametrize("how", [lambda run: run, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_wrong_arrays_are_a_type_error(how: object, what: str, message: str) -> None:
    cell = function("gru")
    fixed = drawn(cell) | wrong(what)
    run = how(lambda b: call(cell, fixed | {"b_z": b}).h.sum())
    with pytest.raises(TypeError, match=rf"gru\.sequence_forward: {message}") as caught:
        run(drawn(cell)["b_z"])
    assert isinstance(caught.value, ArgumentError)


def test_a_mask_of_an_array_s_own_is_not_dropped() -> None:
    cell, given = function("gru"), drawn(function("gru"))
    params = {name: given[name] for name in cell.params}
    hidden = np.ma.masked_array(np.asarray(given["x"]), True)
    for x, options, name in (
        (hidden, {}, "x"),
        (hidden, {"batch_first": True}, "x"),
        (given["x"], {"lengths": np.ma.ones(2, int)}, "lengths"),
    ):
        with pytest.raises(ArgumentError, match=f"{name} is a masked array"):
            cell(params, x, None, **options)


def test_wrong_names_and_options() -> None:
    cell, given = function("gru"), drawn(function("gru"))
    params = {name: given[name] for name in cell.params}
    for params_, x, state, options, message in (
        (params | {"w_zz": 1}, given["x"], None, {}, r"params has an unknown name 'w_zz'; did you"),
        (
            {},
            given["x"],
            None,
            {},
            r"w_z is missing, expected an array \(I, H\); put it into param",
        ),
        ([1], given["x"], None, {}, "params is a list, expected a dict with w_z"),
        (params, {"y": given["x"]}, None, {}, "x has an unknown name 'y'"),
        (params, given["x"][0], None, {}, r"x has 2 axes, shape \(2, 2\), expected 3"),
        (params, given["x"][:, 0], None, {"batch_first": True}, r"x has 2 axes, shape \(3, 2\)"),
        (params, given["x"], (1, 2), {}, "state has 2 arrays, expected 1: h_prev"),
        (params, given["x"], None, {"lenghts": 1}, "unknown option 'lenghts'; did you mean"),
        (params, given["x"], None, {"packed": None}, "packed is no option of a function of"),
        (
            params,
            given["x"],
            None,
            {"per_row": True},
            r"per_row is no option .*jax\.vmap over rows",
        ),
        (params, given["x"], None, {"mask": np.ones((3, 2))}, "mask has shape .* dtype float64"),
        (params, given["x"], None, {"lengths": LENGTHS[:1]}, r"lengths has shape \(1,\)"),
    ):
        with pytest.raises(TypeError, match=message):
            cell(params_, x, state, **options)
    with pytest.raises(ValueError, match="window is -1"):
        cell(params, given["x"], window=-1)
    with pytest.raises(ValueError, match="reverse is 2"):
        cell(params, given["x"], reverse=2)


def test_lengths_out_of_range_are_an_error_of_the_program() -> None:
    cell = function("gru")
    error, jitted = (
        jax.errors.JaxRuntimeError,
        jax.jit(lambda n: call(cell, drawn(cell), lengths=n)),
    )
    for run in (lambda n: call(cell, drawn(cell), lengths=n), jitted):
        with pytest.raises(
            error, match=r"gru\.sequence_forward: lengths\[0\] is 4, expected 0 to T = 3"
        ):
            run(np.array([4, 1])).h.block_until_ready()
    with pytest.raises(error, match=r"lengths\[1\] is -1, expected 0 to T = 3"):
        call(cell, drawn(cell), lengths=np.array([3, -1], np.int32)).h.block_until_ready()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_lengths_are_integers_of_any_width(dtype: str) -> None:
    cell = function("gru")
    given = drawn(cell)
    same(call(cell, given, lengths=LENGTHS.astype(dtype)), call(cell, given, lengths=LENGTHS))
    run = jax.jit(lambda lengths: call(cell, given, lengths=lengths))
    same(run(LENGTHS.astype(dtype)), call(cell, given, lengths=LENGTHS))
    with pytest.raises(Exception, match=r"lengths\[0\] is \d+, expected 0 to T = 3"):
        run(np.array([np.iinfo(dtype).max, 1], dtype)).h.block_until_ready()


def test_shapes_of_weights_by_dimensions() -> None:
    assert function("lstm_projection").shapes(I=2, H=3, P=4) == {
        "w": (2, 12),
        "u": (4, 12),
        "b": (12,),
        "w_p": (3, 4),
    }
    assert "beta" not in function("janet").shapes(I=2, H=3)
    with pytest.raises(TypeError, match=r"gru\.shapes: the dimension H is missing; pass H="):
        function("gru").shapes(I=2)


def test_parameters_start_by_the_rules_that_numpy_and_torch_have() -> None:
    cell, sizes = function("lstm"), {"I": 6, "H": 8}
    params = cell.init(jax.random.key(0), **sizes)
    assert {name: array.shape for name, array in params.items()} == cell.shapes(**sizes)
    np.testing.assert_allclose(params["u_g"] @ params["u_g"].T, np.eye(8), atol=1e-5)
    assert (params["b_f"] == 1).all()
    assert not params["b_i"].any()
    assert np.abs(params["w_i"]).max() <= np.sqrt(6 / 14)
    traced = jax.jit(lambda key: cell.init(key, **sizes))(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, traced)
    assert not np.array_equal(params["w_i"], cell.init(jax.random.key(1), **sizes)["w_i"])
    given = {"b_f": np.full(8, 2.0), "w_i": jax.nn.initializers.ones}
    own = cell.init(jax.random.key(0), initial=given, **sizes)
    assert (own["b_f"] == 2).all()
    assert (own["w_i"] == 1).all()
    for initial, said in (
        ({"b": 1.0}, "a name in initial is 'b', expected one of w_i"),
        ({"b_f": np.ones(3)}, r"initial\['b_f'\] has shape \(3,\), expected \(H\) = \(8,\)"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            cell.init(jax.random.key(0), initial=initial, **sizes)
    with pytest.raises(TypeError, match=r"lmu\.init: a \(M, M\) does not learn"):
        function("lmu").init(jax.random.key(0), I=2, H=3, M=2)


def test_masks_of_regularised_cells_are_inputs_without_gradient() -> None:
    declared = regularise.zoneout(cells.Elman)
    cell, kernel = cellgen.jax.function(declared), cellgen.compile(declared)
    given = drawn(cell)
    (mask,) = {*cell.inputs} - {"x"}
    given[mask] = np.asarray(given[mask] > 0, "float64")
    same(call(cell, given), kernel.sequence_forward(**given))
    found = jax.grad(lambda a: call(cell, a).h.sum())(given)
    assert found["x"].any()
    assert not found[mask].any()
    _, along = jax.jvp(
        lambda m: call(cell, given | {mask: m}).h, (given[mask],), (np.ones_like(given[mask]),)
    )
    assert not along.any()


class Freed:
    """PyTorch's tensor, as far as it says of its memory: its storage has none any more."""

    itemsize, nbytes = 4, 48

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, *_: object, **how: object) -> np.ndarray:
        return self.array

    def untyped_storage(self) -> object:
        return SimpleNamespace(nbytes=lambda: 0)

    def storage_offset(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return self.array.size


def test_arrays_without_memory_are_refused() -> None:
    cell = function("gru")
    given = drawn(cell)
    lengths = Freed(np.array([3, 1]))
    with pytest.raises(ArgumentError, match=r"w_z is a .*Freed whose storage has 0 bytes"):
        call(cell, {**given, "w_z": Freed(given["w_z"])})
    with pytest.raises(ArgumentError, match=r"lengths is a .*Freed whose storage has 0 bytes"):
        call(cell, given, lengths=lengths)

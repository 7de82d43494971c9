"""``kernel.shapes`` and ``kernel.init``: dimensions by name, and parameters to begin with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import cellgen
from cellgen import Cell, Dim, H, I, Input, State, Weight, expand_dims, outer, regularise, tanh
from cellgen.cells import Elman
from cellgen.errors import ArgumentError
from cellgen.runtime.initial import Orthogonal, drawn
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.paths import generated_folder
from tests.conftest import SIZES
from tests.cover import each_name_of, of_call

D, K, N, R = Dim("D"), Dim("K"), Dim("N"), Dim("R")

FIXED = {
    "gru_d": {"x_mean": lambda rng, shape: np.zeros(shape)},
    "lmu": {"a": lambda rng, shape: np.eye(*shape), "b": lambda rng, shape: np.ones(shape)},
}


SHIPPED = sorted(path.parent.name for path in generated_folder().glob("*/interface.json"))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some(kernel: Kernel, over_time: bool) -> dict[str, int]:
    function = kernel.functions["sequence_forward" if over_time else "forward"].function
    return {name: SIZES[name] for name in function.dims}


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_every_cell_starts(name: str) -> None:
    kernel = cellgen.load(name)
    sizes = some(kernel, over_time=True)
    fixed = FIXED.get(name)
    arrays = kernel.init(rng(), initial=fixed, **sizes)
    function = kernel.sequence_forward.function
    shapes = kernel.shapes(**sizes)
    items = [item for item in function.arguments if not item.is_scalar]
    assert list(shapes) == [item.name for item in items]
    assert set(arrays) == {i.name for i in items if i.is_weight or i.role == "state"}
    for item_name, array in arrays.items():
        assert array.shape == shapes[item_name]
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert array.flags.owndata
    for item in items:
        if item.role == "state":
            assert np.all(arrays[item.name] == np.float32(item.initial))
    again = kernel.init(rng(), initial=fixed, **sizes)
    other = kernel.init(rng(1), initial=fixed, **sizes)
    assert all(np.array_equal(arrays[n], again[n]) for n in arrays)
    assert not all(np.array_equal(arrays[n], other[n]) for n in arrays)
    wide = kernel.init(rng(), initial=fixed, dtype=np.float64, **sizes)
    assert all(np.array_equal(wide[n].astype(np.float32), arrays[n]) for n in arrays)


def test_what_is_drawn_is_a_call() -> None:
    kernel = cellgen.load("gru")
    arrays = kernel.init(rng(), B=2, I=3, H=4)
    x = rng().standard_normal(kernel.shapes(T=5, B=2, I=3, H=4)["x"], np.float32)
    assert kernel.sequence_forward(x=x, **arrays).h.shape == (5, 2, 4)
    step = kernel.shapes(B=2, I=3, H=4)
    assert step["x"] == (2, 3)
    assert kernel.forward(x=x[0], **arrays).h.shape == (2, 4)
    assert "h_prev" not in kernel.init(rng(), I=3, H=4)


def joint_weights() -> list[np.ndarray]:
    """Weights of a cell whose gates lie side by side in one."""
    arrays = cellgen.load("lstm_projection").init(rng(), I=6, H=8, P=3, dtype=np.float64)
    return list(arrays.values())


def test_a_cell_starts_as_the_field_does() -> None:
    wide = {"I": 6, "H": 8, "dtype": np.float64}
    lstm = cellgen.load("lstm").init(rng(), **wide)
    assert np.all(lstm["b_f"] == 1)
    assert not lstm["b_i"].any()
    assert np.allclose(lstm["u_g"] @ lstm["u_g"].T, np.eye(8))
    assert abs(lstm["w_i"]).max() <= np.sqrt(6 / 14) < 3 * abs(lstm["w_i"]).max()
    joint = cellgen.load("lstm_projection").init(rng(), P=3, **wide)
    assert np.array_equal(joint["b"].reshape(4, 8).sum(1), [0, 8, 0, 0])
    within = next(matrix for matrix in joint_weights() if matrix.shape == (6, 32))
    assert abs(within).max() <= np.sqrt(6 / (6 + 8))  # each gate by itself, whatever 32 / 6 is
    assert abs(within).max() > np.sqrt(6 / (6 + 32))
    square = drawn(Orthogonal(4).of((8, 32)), (8, 32), rng())
    for block in np.split(square, 4, axis=1):
        assert np.allclose(block @ block.T, np.eye(8))
    lru = cellgen.load("lru")
    arrays = lru.init(rng(), **dict.fromkeys(lru.interface.dims, 4))
    assert np.all((np.exp(arrays["nu_log"]) >= 0.0009) & (np.exp(arrays["nu_log"]) <= 0.1001))
    retnet = cellgen.load("retnet")
    decays = retnet.init(rng(), **(dict.fromkeys(retnet.interface.dims, 4) | {"N": 2}))["gamma"]
    assert np.allclose(decays.ravel(), [1 - 2**-5, 1 - 2**-6])


def test_heads_are_orthogonal_each() -> None:
    kernel = cellgen.load("slstm_heads")
    arrays = kernel.init(rng(), dtype=np.float64, I=3, K=2, D=4)
    recurrent = [a for a in arrays.values() if a.ndim == 3 and a.shape[:2] == (2, 4)]
    assert recurrent
    for heads in recurrent:
        for matrix in heads:
            for block in np.split(matrix, matrix.shape[1] // 4, axis=1):
                assert np.allclose(block @ block.T, np.eye(4))


@pytest.mark.parametrize("name", ["gla", "rwkv7", "gated_delta_net", "m2rnn", "mamba3"])
def test_weights_into_heads_keep_the_variance_of_an_input(name: str) -> None:
    kernel = cellgen.load(name)
    wide = dict.fromkeys(kernel.interface.dims, 5) | {"N": 4}
    wide |= {axis: 400 for axis in ("I", "H") if axis in wide}
    shapes, arrays = kernel.shapes(**wide), kernel.init(rng(), **wide)
    into = [item for item, shape in shapes.items() if len(shape) == 3 and shape[0] == 400]
    assert into
    for item in into:
        assert 0.5 < abs(arrays[item]).max() / np.sqrt(6 / 400) <= 1


class OfMatrices(Cell):
    """A matrix of each row by weights: head by head, and from an input's units into heads."""

    x, p, s_prev = Input(N, I), Input(2 * K), State(N, I, D)
    u, w = Weight(N, I, D), Weight(2 * K, N, D)
    s = s_prev + expand_dims(x @ u + p @ w, -2)


def test_a_weight_of_each_head_starts_by_what_a_head_reads() -> None:
    wide = {"N": 2, "I": 300, "K": 100, "D": 10}
    arrays = cellgen.compile(OfMatrices).init(rng(), dtype=np.float64, **wide)
    for name, rows in (("u", 300), ("w", 200)):
        assert 0.9 < abs(arrays[name]).max() / np.sqrt(6 / (rows + 10)) <= 1


class OfAVector(Cell):
    """A matrix of each row by a vector of states, whole and by few numbers."""

    x, h_prev, s_prev = Input(I), State(H), State(N, K, D)
    w, u, a = Weight(I, H), Weight(H, N, D), Weight(H, R)
    b, r = Weight(R, N, K), Weight(N, D, D)
    h = tanh(x @ w + h_prev)
    s = s_prev @ r + outer((h_prev @ a) @ b, h_prev @ u)

    outputs = h, s


def test_a_weight_of_a_state_alone_starts_by_what_it_reads() -> None:
    wide = {"I": 3, "H": 300, "R": 200, "N": 2, "K": 10, "D": 10}
    arrays = cellgen.compile(OfAVector).init(rng(), dtype=np.float64, **wide)
    for name, rows in (("u", 300), ("b", 200)):
        assert 0.9 < abs(arrays[name]).max() / np.sqrt(6 / (rows + 10)) <= 1
    assert np.allclose(arrays["r"][0] @ arrays["r"][0].T, np.eye(10))


def test_rwkv_starts_with_rates_from_slow_to_fast() -> None:
    kernel = cellgen.load("rwkv7")
    arrays = kernel.init(rng(), dtype=np.float64, **dict.fromkeys(kernel.interface.dims, 4))
    rates = arrays["w_0"].ravel()
    assert (rates[0], rates[-1]) == (-6.5, -1.5)
    assert (np.diff(rates) > 0).all()
    assert not arrays["w_a"].any()
    assert not arrays["a_0"].any()
    assert (arrays["alpha"] == 1).all()


@pytest.mark.parametrize("name", ["gated_delta_net", "kda", "comba", "mamba2", "m2rnn"])
def test_memories_that_decay_start_with_long_ones(name: str) -> None:
    kernel = cellgen.load(name)
    arrays = kernel.init(rng(), dtype=np.float64, **dict.fromkeys(kernel.interface.dims, 64))
    bias = next(arrays[item] for item in ("b_a", "b_t", "b_f") if item in arrays)
    kept = np.exp(-np.exp(arrays["a_log"]) * np.log1p(np.exp(bias)))
    assert 0.2 < kept.min() < 0.7
    assert 0.99 < kept.max() < 1


def test_a_regularised_cell_is_given_its_masks_of_weights() -> None:
    cell = regularise.dropconnect(Elman)
    kernel = cellgen.compile(cell)
    mask = next(n for n in kernel.shapes(B=1, I=2, H=3) if n not in {"x", "h_prev", "w", "u", "b"})
    with pytest.raises(ArgumentError, match=f"{mask} .* does not learn"):
        kernel.init(rng(), I=2, H=3)
    ones = kernel.init(rng(), I=2, H=3, initial={mask: lambda r, shape: np.ones(shape)})
    assert np.all(ones[mask] == 1)


def init(**given: object) -> Callable[[Kernel], object]:
    generator = given.pop("rng", rng())
    return lambda kernel: kernel.init(generator, **given)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda k: k.shapes(T=2, B=1, I=3), "lstm.shapes: the dimension H is missing; pass H="),
        (lambda k: k.shapes(B=1), "the dimension I is missing; pass I=..., H="),
        (lambda k: k.shapes(B=1, I=3, H=2, Q=1), "unknown dimension 'Q', expected some of T, B, I"),
        (lambda k: k.shapes(B=1, I=3, H=2.5), "lstm.shapes: H is 2.5, expected an integer from 0"),
        (lambda k: k.shapes(B=1, I=3, H=-1), "H is -1, expected an integer from 0"),
        (init(I=3), "lstm.init: the dimension H is missing; pass H="),
        (init(I=3, H=2, Q=2), "unknown dimension 'Q'"),
        (init(rng=7, I=3, H=2), "rng is 7, expected a numpy.random.Generator; pass np.random.de"),
        (init(I=3, H=2, dtype="f2"), "dtype is 'f2', expected np.float32 or np.float64"),
        (init(I=3, H=2, initial={"b": 1}), "a name in initial is 'b', expected one of w_i"),
        (init(I=3, H=2, initial={"b_f": [1]}), r"has shape \(1,\), expected \(H\) = \(2,\)"),
        (init(I=3, H=2, initial=3), "initial is 3, expected a dict of arrays by name"),
    ],
)
def test_what_does_not_fit_is_one_clear_message(
    call: Callable[[Kernel], object], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        call(cellgen.load("lstm"))


def test_a_dimension_of_no_entries_gives_empty_arrays() -> None:
    kernel = cellgen.load("gru")
    arrays = kernel.init(rng(), B=0, I=0, H=0)
    assert all(array.size == 0 for array in arrays.values())


@pytest.mark.parametrize("units", [10**7, 10**12])
def test_too_many_units_name_the_array_that_has_no_memory(units: int) -> None:
    with pytest.raises(MemoryError, match=r"gru\.init: no memory for \w+ of shape \(.*take fewer"):
        cellgen.load("gru").init(rng(), I=3 if units < 10**9 else units, H=units)

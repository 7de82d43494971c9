"""cellgen.compat.mygrad against mygrad's own GRU, at the bar of the decision "Bars"."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cellgen.compat import mygrad
from cellgen.errors import ArgumentError
from cellgen.proof import goldens
from cellgen.proof.goldens import Measurement
from tests.peers import ROOT, Arrays, Beyond, bars, check_float32, check_float64, expected, measured

FILES = sorted(ROOT.glob("mygrad/*.npz"))
ARGUMENTS = tuple(mygrad.NAMES)
GROUPS = tuple(f"mygrad gru{kind} {way}" for kind in ("", " (sat)") for way in ("fwd", "bwd"))
ORDER = (
    "each pre-activation is one chain of multiply-adds over the input and the state "
    "(decision 'Bits do not depend on threads or plans'), "
    "mygrad's is the sum of two products; {}"
)
BEYOND: Beyond = {
    ("mygrad gru fwd", "worst nrm"): (
        3.5e-7,
        ORDER.format(
            "one entry of gru_c (2.6e-7, bar 2.3e-7); 2.9e-7 with correctly rounded functions"
        ),
    ),
    ("mygrad gru bwd", "worst elt"): (
        1.6e-4,
        "one entry of gru_c_s0's grad.Wr, 5e-5 where others reach 1, "
        "left of 54 terms that cancel: off by 8e-8 (7.6e-5, bar 7.0e-5)",
    ),
    ("mygrad gru (sat) fwd", "median nrm"): (
        2.6e-7,
        ORDER.format(
            "a median of one array (1.7e-7, bar 1.6e-7); 1.7e-7 with correctly rounded functions"
        ),
    ),
    ("mygrad gru (sat) bwd", "worst elt"): (
        2.8e-4,
        "2.0e-4, bar 9.8e-5, with a tanh within 2.5 ulp, as it is "
        "without fma: one h that should be 1 - 6e-8 is 1, and 1 - h^2 is 0",
    ),
}
"""Figures above the bar: what they may be, and why; see ``peers.Beyond``."""


class Tensor:
    """The part of mygrad's Tensor that is looked at."""

    def __init__(self, data: np.ndarray, constant: bool = False) -> None:
        self.data, self.constant = data, constant

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.data


def run(path: Path) -> list[Measurement]:
    """Compare S and every gradient of one file; a float32 file with its float64 twin."""
    z, meta = goldens.read(path)
    constants = meta["attrs"]["constants"]
    given = [Tensor(z[name], name in constants) for name in ARGUMENTS]
    masks = {name: z[f"_drop{name}"] for name in mygrad.MASKS if f"_drop{name}" in z}
    S, backward = mygrad.gru_vjp(
        *given, z.get("s0"), meta["attrs"]["bp_lim"], meta["attrs"]["dropout"], masks=masks or None
    )
    gradients = backward(z["G"])
    found = {"S": S, **{f"grad.{name}": array for name, array in gradients.items()}}
    assert set(found) == expected(meta)
    assert all(array.dtype == meta["dtype"] for array in found.values())
    twin = path.with_name(path.name.replace("_f32.", "_f64."))
    return measured(("mygrad gru",) * 2, meta, found, goldens.read(twin)[0])


@cache
def every(dtype: str) -> list[Measurement]:
    return [item for path in FILES if f"_f{dtype[5:]}." in path.name for item in run(path)]


@pytest.mark.parametrize(("group", "figure", "limit"), bars(GROUPS, BEYOND))
def test_float32_is_within_mygrads_bar(group: str, figure: str, limit: float | None) -> None:
    check_float32(every("float32"), group, figure, limit)


def test_float64_agrees_to_1e_13_of_the_largest_entry() -> None:
    check_float64(every("float64"))
    assert len({item.case for item in every("float32")}) == 14
    assert len({item.case for item in every("float64")}) == 17


# --- semantics -----------------------------------------------------------------------------------

T, N, C, D = 6, 2, 3, 4
SHAPES = {"X": (T, N, C)} | {
    f"{kind}{gate}": shape
    for gate in "zrh"
    for kind, shape in (("U", (C, D)), ("W", (D, D)), ("b", (D,)))
}


def layer(dtype: str = "float64") -> Arrays:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def test_arguments_are_mygrads() -> None:
    names = [*SHAPES, "s0", "bp_lim", "dropout", "constant"]
    assert list(inspect.signature(mygrad.gru).parameters) == names
    assert list(inspect.signature(mygrad.gru_vjp).parameters) == [*names, "masks"]
    assert "".join(SHAPES) == "XUzWzbzUrWrbrUhWhbh"


def test_masks_are_drawn_in_mygrads_order_from_the_global_state() -> None:
    given = layer()
    np.random.seed(3)
    inputs = np.random.binomial(1, 0.6, size=(3, 1, N, D)) / 0.6
    weights = np.random.binomial(1, 0.6, size=(3, D, D)) / 0.6
    after = np.random.random()
    masks = dict(zip(("Uz", "Ur", "Uh", "Wz", "Wr", "Wh"), (*inputs, *weights), strict=True))
    expected_S, _ = mygrad.gru_vjp(**given, masks=masks)
    for run_it in (mygrad.gru, lambda **k: mygrad.gru_vjp(**k)[0]):
        np.random.seed(3)
        np.testing.assert_array_equal(run_it(**given, dropout=0.4), expected_S)
        assert np.random.random() == after


def test_no_dropout_draws_nothing() -> None:
    np.random.seed(3)
    expected_draw = np.random.random()
    np.random.seed(3)
    mygrad.gru_vjp(**layer())
    assert np.random.random() == expected_draw


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("bp_lim", [0, 2, T - 1])
def test_a_window_follows_each_term_of_the_loss_that_far(bp_lim: int, dropout: float) -> None:
    """The window at once equals each step's gradient alone, its upstream cut off by hand."""
    given = layer()
    masks = mygrad.draw_masks(dropout, N, D) if dropout else None
    G = np.random.default_rng(1).normal(size=(T + 1, N, D))
    S, backward = mygrad.gru_vjp(**given, bp_lim=bp_lim, masks=masks)
    found, expected_sum = backward(G), dict.fromkeys(SHAPES, 0.0)
    for t in range(1, T + 1):
        first = max(0, t - 1 - bp_lim)  # the loss term at t sees steps first + 1 ... t
        piece = given | {"X": given["X"][first:t]}
        only = np.zeros((t - first + 1, N, D))
        only[-1] = G[t]
        _, full = mygrad.gru_vjp(**piece, s0=S[first], masks=masks)
        for name, array in full(only).items():
            if name == "X":
                array = np.pad(array, ((first, T - t), (0, 0), (0, 0)))
            expected_sum[name] = expected_sum[name] + array
    for name, array in found.items():
        np.testing.assert_allclose(array, expected_sum[name], rtol=1e-12, atol=1e-13)


def test_the_gradient_of_the_first_state_is_dropped_and_nothing_is_overwritten() -> None:
    given, G = layer(), np.ones((T + 1, N, D))
    _, backward = mygrad.gru_vjp(**given)
    first = backward(G)
    assert (G == 1).all()
    G[0] = np.nan
    for name, array in backward(G).items():
        np.testing.assert_array_equal(array, first[name])


def test_constants_get_no_gradient() -> None:
    given, G = layer(), np.ones((T + 1, N, D))
    assert mygrad.gru_vjp(**given, constant=True)[1](G) == {}
    mixed = given | {"Wz": Tensor(given["Wz"], True), "Uz": Tensor(given["Uz"]), "bh": [0, 1, 2, 3]}
    assert list(mygrad.gru_vjp(**mixed)[1](G)) == [n for n in SHAPES if n not in ("Wz", "bh")]


def test_the_dtype_is_the_largest_and_each_gradient_has_its_own() -> None:
    given = layer("float32")
    assert mygrad.gru(**given, s0=np.zeros((N, D))).dtype == np.float32
    mixed = given | {"Uz": given["Uz"].astype(np.float64), "br": given["br"].astype(np.float16)}
    S, backward = mygrad.gru_vjp(**mixed)
    assert S.dtype == np.float64
    found = backward(np.ones(S.shape, np.float32))
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in mixed.items()
    }
    assert mygrad.gru(**layer("float16")).dtype == np.float16


def test_s0_must_be_an_array_or_a_constant_tensor() -> None:
    given, s0 = layer(), np.ones((N, D))
    S = mygrad.gru(**given, s0=s0)
    np.testing.assert_array_equal(S[0], s0)
    np.testing.assert_array_equal(S, mygrad.gru(**given, s0=Tensor(s0, True)))
    np.testing.assert_array_equal(S, mygrad.gru(**given, s0=Tensor(s0), constant=True))
    for wrong in (s0.tolist(), Tensor(s0)):
        with pytest.raises(ValueError, match=r"s0 is a .*, expected a numpy\.ndarray or a"):
            mygrad.gru(**given, s0=wrong)
    with pytest.raises(ValueError, match="s0 has shape"):
        mygrad.gru(**given, s0=s0[:1, :1])


@pytest.mark.parametrize("bp_lim", [-1, T, 1.0])
def test_a_window_out_of_range_is_an_assertion_error(bp_lim: float) -> None:
    with pytest.raises(AssertionError, match=r"expected None or an integer in \[0, 6\)"):
        mygrad.gru(**layer(), bp_lim=bp_lim)
    with pytest.raises(ArgumentError):
        mygrad.gru_vjp(**layer(), bp_lim=bp_lim)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_out_of_range_is_an_assertion_error(dropout: float) -> None:
    with pytest.raises(AssertionError, match=r"expected a number in \[0, 1\)"):
        mygrad.gru(**layer(), dropout=dropout)


def test_masks_and_gradients_of_wrong_shape_are_refused() -> None:
    given, masks = layer(), mygrad.draw_masks(0.5, N, D)
    with pytest.raises(ArgumentError, match="expected one each for Uz, Ur, Uh, Wz, Wr, Wh"):
        mygrad.gru_vjp(**given, masks={"Uz": masks["Uz"]})
    with pytest.raises(ArgumentError, match="mask Wz has shape"):
        mygrad.gru_vjp(**given, masks=masks | {"Wz": masks["Uz"]})
    _, backward = mygrad.gru_vjp(**given)
    with pytest.raises(ArgumentError, match=r"expected that of S, \(7, 2, 4\)"):
        backward(np.ones((T, N, D)))
    with pytest.raises(ArgumentError, match=r"gru: Uz has shape \(2, 4\), expected \(3, 4\)"):
        mygrad.gru(**(given | {"Uz": given["Uz"][1:]}))
    with pytest.raises(ArgumentError, match=r"gru: Wr has shape \(3, 4\), expected \(4, 4\)"):
        mygrad.gru(**(given | {"Wr": given["Wr"][1:]}))


def test_an_empty_sequence_is_its_first_state() -> None:
    given = layer() | {"X": np.zeros((0, N, C))}
    S, backward = mygrad.gru_vjp(**given, s0=np.ones((N, D)))
    np.testing.assert_array_equal(S, np.ones((1, N, D)))
    assert all((array == 0).all() for array in backward(S).values())

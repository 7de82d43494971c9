"""cellgen.compat.epynn against EpyNN's own layers: outputs, gradients and every cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellgen.compat import epynn
from cellgen.errors import ArgumentError
from cellgen.proof import goldens
from cellgen.proof.goldens import Measurement
from tests.peers import ROOT, Arrays, check_float64, errors, measured

FILES = sorted(ROOT.glob("epynn/*.npz"))
LAYERS = {
    "gru": (epynn.gru, epynn.gru_backward),
    "lstm": (epynn.lstm, epynn.lstm_backward),
    "rnn": (epynn.rnn, epynn.rnn_backward),
}


def run(path: Path, dtype: str) -> tuple[Any, Arrays, Arrays]:
    """Run one file forward and backward; what a file holds, by its names."""
    z, meta = goldens.read(path)
    attributes = meta["attrs"]
    forward, backward = LAYERS[path.name.split("_")[0]]
    parameters = {name: z[name] for name in meta["roles"]["inputs"] if name != "X"}
    options = {
        **attributes["activations"],
        "sequences": attributes["sequences"],
        "LRELU_alpha": attributes["LRELU_alpha"],
        "ELU_alpha": attributes["ELU_alpha"],
        "dtype": dtype,
    }
    A, fc = forward(z["X"], parameters, **options)
    clip = attributes["clip_gradients"]
    dX, gradients, bc = backward(z["X"], parameters, fc, z["dA"], clip_gradients=clip, **options)
    found = {"A": A, "dX": dX, **gradients}
    found |= {f"fc.{name}": array for name, array in fc.items()}
    found |= {f"bc.{name}": array for name, array in bc.items()}
    assert all(array.dtype == dtype for array in found.values())
    roles = meta["roles"]
    names = {*roles["outputs"], *roles["grads"].values(), *roles["extra"]}
    assert set(found) == names | {"fc.X", "fc.A", "bc.dX"}
    return meta, {name: found[name] for name in names}, z


@cache
def every(dtype: str) -> list[Measurement]:
    items = []
    for path in FILES:
        meta, found, z = run(path, dtype)
        items += measured((meta["op"],) * 2, meta, found, z)
    return items


# --- at the bar ----------------------------------------------------------------------------------

SATURATED = {
    "gru_b_seq_sat": {"dUr", "dVr", "dbr", "bc.dr_", "dVhh"},
    "lstm_b_seq_sat": {"dVg"},
}
"""Gradients of gates so near 1 that 1 - r keeps a few digits (1e-10 of 1e-16): EpyNN's own numbers
are off by up to 8e-7 of the largest entry. They are compared with extended precision instead."""

FLOAT32_BARS = {"gru": (2.3e-7, 1.1e-6), "lstm": (4.4e-7, 9.4e-7), "rnn": (6.2e-7, 1.6e-6)}
"""Worst `nrm`, forward and backward: EpyNN has no float32, so twice the figures of the peers that
have, on the same equations: mygrad's GRU, torch.nn.LSTM and torch.nn.RNN (golden/README.md)."""

CACHES_FLOAT32 = 1e-6
"""No peer has figures for caches: 16 ulp of the largest entry, for sums of up to 10 terms."""


GATES_AT_ONE = {"gru": {"r", "z", "hh"}, "lstm": {"g"}, "rnn": set()}
"""Gates of the saturated cases whose derivative 1 - r or 1 - g^2 float32 cannot hold."""


def test_float64_agrees_to_1e_13_of_the_largest_entry() -> None:
    items = every("float64")
    check_float64([i for i in items if i.array not in SATURATED.get(i.case, set())])
    assert {item.case for item in items} == {path.stem for path in FILES}


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs an extended precision")
@pytest.mark.parametrize("case", SATURATED)
def test_saturated_gradients_are_as_close_to_the_truth_as_epynns(case: str) -> None:
    _, found, z = run(ROOT / "epynn" / f"{case}.npz", "float64")
    truth = (gru_truth if case.startswith("gru") else lstm_truth)(z)
    assert SATURATED[case] <= truth.keys()
    for name in SATURATED[case]:
        ours, theirs = (errors(a[name], truth[name])[0] for a in (found, z))
        assert ours <= max(2 * theirs, 1e-13), (name, ours, theirs)  # twice: decision "Bars"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("backward", [False, True], ids=["fwd", "bwd"])
def test_float32_is_within_the_bar_of_the_same_equations(layer: str, backward: bool) -> None:
    items = [i for i in every("float32") if i.case.startswith(layer) and "_sat" not in i.case]
    results = [i for i in items if "." not in i.array and (i.array != "A") == backward]
    worst = max(results, key=lambda item: item.nrm)
    assert worst.nrm <= FLOAT32_BARS[layer][backward], worst
    caches = max((i for i in items if "." in i.array), key=lambda item: item.nrm)
    assert caches.nrm <= CACHES_FLOAT32, caches


@pytest.mark.parametrize("layer", LAYERS)
def test_saturated_float32_is_within_the_bar_of_the_same_equations(layer: str) -> None:
    """Gradients of gates at 1 - 1e-10, where float32 numbers are 6e-8 apart, have no digit of
    their own: their error is taken relative to the largest gradient of the layer."""
    case = f"{layer}_b_seq_sat"
    _, found, z = run(ROOT / "epynn" / f"{case}.npz", "float32")
    bar = FLOAT32_BARS[layer][True]
    parameters = [name for name in found if name[0] == "d"]
    largest = max(float(np.abs(z[name]).max()) for name in parameters)
    for name, array in found.items():
        gate = name.removeprefix("bc.").removeprefix("d").lstrip("UVb").rstrip("_")
        scale = largest if gate in GATES_AT_ONE[layer] else float(np.abs(z[name]).max())
        assert np.abs(array - z[name]).max() <= bar * scale, name


def extended(z: Arrays) -> Arrays:
    return {name: array.astype(np.longdouble) for name, array in z.items() if name[0] in "XUVbd"}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def sums(z: Arrays, steps: list[Any]) -> Arrays:
    """dU, dV, db of each gate from (gate, x, what V multiplies, pre-activation gradient)."""
    found: Arrays = {}
    for gate, x, h, d in steps:
        for name, term in (("U", x.T @ d), ("V", h.T @ d), ("b", d.sum(0, keepdims=True))):
            found[f"d{name}{gate}"] = found.get(f"d{name}{gate}", 0) + term
    return found


def gru_truth(z: Arrays) -> Arrays:
    """The GRU in extended precision; sigmoid' as sigmoid(x) sigmoid(-x), tanh' as 1/cosh^2."""
    g, steps, kept = extended(z), [], []
    h = np.zeros((len(z["X"]), z["Vz"].shape[0]), np.longdouble)

    def bar(gate: str, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        return x @ g[f"U{gate}"] + state @ g[f"V{gate}"] + g[f"b{gate}"]

    for x in g["X"].swapaxes(0, 1):
        r_, z_ = bar("r", x, h), bar("z", x, h)
        hh_ = bar("hh", x, sigmoid(r_) * h)
        kept.append((x, h, r_, z_, hh_))
        h = sigmoid(z_) * h + sigmoid(-z_) * np.tanh(hh_)
    carry = np.zeros_like(h)
    for s, (x, h, r_, z_, hh_) in reversed(list(enumerate(kept))):
        d = g["dA"][:, s] + carry
        dhh = d * sigmoid(-z_) / np.cosh(hh_) ** 2
        dz = d * (h - np.tanh(hh_)) * sigmoid(z_) * sigmoid(-z_)
        back = dhh @ g["Vhh"].T
        dr = back * h * sigmoid(r_) * sigmoid(-r_)
        carry = back * sigmoid(r_) + dz @ g["Vz"].T + d * sigmoid(z_) + dr @ g["Vr"].T
        steps += [("hh", x, sigmoid(r_) * h, dhh), ("z", x, h, dz), ("r", x, h, dr)]
    resets = [dr for gate, _, _, dr in steps if gate == "r"]
    return {**sums(z, steps), "bc.dr_": np.stack(resets[::-1], axis=1)}


def lstm_truth(z: Arrays) -> Arrays:
    """The LSTM in extended precision, derivatives as in ``gru_truth``."""
    g, steps, kept = extended(z), [], []
    h = np.zeros((len(z["X"]), z["Vf"].shape[0]), np.longdouble)
    c = h
    for x in g["X"].swapaxes(0, 1):
        f, i, a, o = (x @ g[f"U{k}"] + h @ g[f"V{k}"] + g[f"b{k}"] for k in "figo")
        new = sigmoid(f) * c + sigmoid(i) * np.tanh(a)
        kept.append((x, h, c, new, f, i, a, o))
        h, c = sigmoid(o) * np.tanh(new), new
    carry, carry_c = np.zeros_like(h), np.zeros_like(h)
    for s, (x, h, c, new, f, i, a, o) in reversed(list(enumerate(kept))):
        d = g["dA"][:, s] + carry
        dc = d * sigmoid(o) / np.cosh(new) ** 2 + carry_c
        gates = {
            "o": d * np.tanh(new) * sigmoid(o) * sigmoid(-o),
            "g": dc * sigmoid(i) / np.cosh(a) ** 2,
            "i": dc * np.tanh(a) * sigmoid(i) * sigmoid(-i),
            "f": dc * c * sigmoid(f) * sigmoid(-f),
        }
        carry = sum(gate @ g[f"V{name}"].T for name, gate in gates.items())
        carry_c = dc * sigmoid(f)
        steps += [(name, x, h, gate) for name, gate in gates.items()]
    return sums(z, steps)


# --- arguments -----------------------------------------------------------------------------------


@pytest.fixture
def layer() -> tuple[np.ndarray, Arrays]:
    rng = np.random.default_rng(0)
    shapes = {"U": (4, 3), "V": (3, 3), "b": (1, 3)}
    return rng.normal(size=(2, 5, 4)), {k: rng.normal(size=s) for k, s in shapes.items()}


def test_defaults_are_epynns(layer: tuple[np.ndarray, Arrays]) -> None:
    X, parameters = layer
    A, fc = epynn.rnn(X, parameters)
    assert list(fc) == ["X", "h_", "h", "hp", "A"]
    dX, clipped, bc = epynn.rnn_backward(X, parameters, fc, np.ones_like(A))
    same_dX, plain, _ = epynn.rnn_backward(X, parameters, fc, np.ones_like(A), clip_gradients=False)
    norm = np.sqrt(sum((a**2).sum() for a in clipped.values()))
    assert norm == pytest.approx(0.25, rel=1e-14)  # the RNN clips by default
    assert np.sqrt(sum((a**2).sum() for a in plain.values())) > 0.25
    np.testing.assert_array_equal(dX, same_dX)
    assert {name: a.shape for name, a in clipped.items()} == {
        "dU": (4, 3), "dV": (3, 3), "db": (1, 3)
    }  # fmt: skip
    assert (bc["dhn"][:, -1] == 0).all()
    np.testing.assert_array_equal(bc["dhn"][:, :-1], bc["dh"][:, 1:])
    np.testing.assert_array_equal(fc["hp"][:, 1:], fc["h"][:, :-1])


def test_small_gradients_are_not_scaled_up(layer: tuple[np.ndarray, Arrays]) -> None:
    X, parameters = layer
    A, fc = epynn.rnn(X, parameters)
    dA = np.full_like(A, 1e-6)
    for clip in (True, False):
        _, gradients, _ = epynn.rnn_backward(X, parameters, fc, dA, clip_gradients=clip)
        np.testing.assert_array_equal(gradients["dU"], _unclipped(X, parameters, fc, dA)["dU"])


def _unclipped(X: np.ndarray, parameters: Arrays, fc: Arrays, dA: np.ndarray) -> Arrays:
    return epynn.rnn_backward(X, parameters, fc, dA, clip_gradients=False)[1]


def test_an_activation_may_be_a_function_and_tanh_never_is_nan(
    layer: tuple[np.ndarray, Arrays],
) -> None:
    X, parameters = layer
    A, _ = epynn.rnn(1e4 * X, parameters, activate=np.tanh)
    assert np.isfinite(A).all()
    assert np.abs(A).max() == 1


def test_arguments_of_wrong_kind_are_refused(layer: tuple[np.ndarray, Arrays]) -> None:
    X, parameters = layer
    A, fc = epynn.rnn(X, parameters)
    with pytest.raises(ArgumentError, match="activate is 'softmax', expected one of identity"):
        epynn.rnn(X, parameters, activate="softmax")
    with pytest.raises(ArgumentError, match="parameters lack V of U, V, b"):
        epynn.rnn(X, {k: v for k, v in parameters.items() if k != "V"})
    with pytest.raises(ArgumentError, match="X has shape"):
        epynn.rnn(X[0], parameters)
    with pytest.raises(ArgumentError, match=r"dA has shape \(2, 3\), expected \(2, 5, 3\)"):
        epynn.rnn_backward(X, parameters, fc, A[:, -1])
    with pytest.raises(ArgumentError, match="fc lacks 'h_'"):
        epynn.rnn_backward(X, parameters, {"h": fc["h"]}, A)
    with pytest.raises(ArgumentError, match="has shape"):
        epynn.rnn(X, parameters | {"U": np.zeros((5, 3))})

"""Hand-written NumPy forwards: what each cell computes, written without the declarations.

Input: a step's arguments by name. Output: a step's outputs by name. Nothing here comes from the
compiler, so that ``check`` compares two independent accounts of the same equations. The functions
take float64 or complex128 (a clip with a stated derivative then passes the imaginary part). A cell
of one's own states its forward as ``reference`` in the class body::

    def reference(x, h_prev, w, u, b):
        return {"h": np.tanh(x @ w + h_prev @ u + b)}

Arguments are given by their names; outputs come back as a dict, a tuple in the order of
``outputs``, or one array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from cellgen.cells import ships
from cellgen.errors import ArgumentError
from cellgen.language.cell import Cell, definition_of
from cellgen.proof.logistic import sigmoid
from cellgen.proof.truths_of_gates import GATES
from cellgen.proof.truths_of_memories import MEMORIES

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = Mapping[str, Array]
Truth: TypeAlias = Callable[[Arrays], dict[str, Array]]


def elman(a: Arrays) -> dict[str, Array]:
    """H = tanh(x w + h' u + b)."""
    return {"h": np.tanh(a["x"] @ a["w"] + a["h_prev"] @ a["u"] + a["b"])}


def elman_relu(a: Arrays) -> dict[str, Array]:
    """H = max(0, x w + h' u + b)."""
    h_bar = a["x"] @ a["w"] + a["h_prev"] @ a["u"] + a["b"]
    return {"h": np.where(h_bar.real > 0, h_bar, 0)}


def gru(a: Arrays) -> dict[str, Array]:
    """Reset gate after the recurrent product: n = tanh(x w_n + b_n + r (h' u_n + c_n))."""
    x, h_prev = a["x"], a["h_prev"]
    z = sigmoid(x @ a["w_z"] + h_prev @ a["u_z"] + a["b_z"])
    r = sigmoid(x @ a["w_r"] + h_prev @ a["u_r"] + a["b_r"])
    n = np.tanh(x @ a["w_n"] + a["b_n"] + r * (h_prev @ a["u_n"] + a["c_n"]))
    return {"h": n + z * (h_prev - n)}


def gru_reset_before(a: Arrays) -> dict[str, Array]:
    """Reset gate before the candidate product: n = tanh(x w_n + (r h') u_n + b_n)."""
    x, h_prev = a["x"], a["h_prev"]
    z = sigmoid(x @ a["w_z"] + h_prev @ a["u_z"] + a["b_z"])
    r = sigmoid(x @ a["w_r"] + h_prev @ a["u_r"] + a["b_r"])
    n = np.tanh(x @ a["w_n"] + (h_prev * r) @ a["u_n"] + a["b_n"])
    return {"h": n + z * (h_prev - n)}


def gru_block_cell(a: Arrays) -> dict[str, Array]:
    """TensorFlow's GRUBlockCell: columns [r | u], rows [x ; h']; u multiplies the old state."""
    x, h_prev = a["x"], a["h_prev"]
    units = h_prev.shape[1]
    gates = sigmoid(np.hstack([x, h_prev]) @ a["w_ru"] + a["b_ru"])
    r, u = gates[:, :units], gates[:, units:]
    c = np.tanh(np.hstack([x, r * h_prev]) @ a["w_c"] + a["b_c"])
    return {"r": r, "u": u, "c": c, "h": c + u * (h_prev - c)}


def lstm(a: Arrays) -> dict[str, Array]:
    """C = f c' + i g; h = o tanh(c)."""
    return _lstm(a, 0.0, 0.0, 0.0)


def lstm_peephole(a: Arrays) -> dict[str, Array]:
    """As ``lstm``, with i and f looking at c' and o at c."""
    return _lstm(a, a["p_i"], a["p_f"], a["p_o"])


def _lstm(
    a: Arrays, p_i: Array | float, p_f: Array | float, p_o: Array | float
) -> dict[str, Array]:
    def product(gate: str) -> Array:
        bar: Array = a["x"] @ a[f"w_{gate}"] + a["h_prev"] @ a[f"u_{gate}"] + a[f"b_{gate}"]
        return bar

    i = sigmoid(product("i") + a["c_prev"] * p_i)
    f = sigmoid(product("f") + a["c_prev"] * p_f)
    c = i * np.tanh(product("g")) + f * a["c_prev"]
    o = sigmoid(product("o") + c * p_o)
    return {"h": np.tanh(c) * o, "c": c}


def lstm_block_cell(a: Arrays, *, peephole: bool, straight_through: bool) -> dict[str, Array]:
    """TensorFlow's LSTMBlockCell: columns [i | ci | f | o]; cell_clip <= 0 means no clip."""
    cs_prev, limit = a["cs_prev"], float(np.real(a["cell_clip"]))
    xh = np.hstack([a["x"], a["h_prev"]]) @ a["w"] + a["b"]
    i_bar, ci_bar, f_bar, o_bar = np.split(xh, 4, axis=1)
    i = sigmoid(i_bar + (cs_prev * a["wci"] if peephole else 0))
    f = sigmoid(f_bar + a["forget_bias"] + (cs_prev * a["wcf"] if peephole else 0))
    ci = np.tanh(ci_bar)
    cs = i * ci + f * cs_prev
    if limit > 0:
        cs = _clip(cs, limit, straight_through)
    o = sigmoid(o_bar + (cs * a["wco"] if peephole else 0))
    co = np.tanh(cs)
    return {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "h": o * co}


def _clip(x: Array, limit: float, straight_through: bool) -> Array:
    clipped: Array = np.minimum(np.maximum(x.real, -limit), limit)
    if np.iscomplexobj(x):
        passes = straight_through | (clipped == x.real)
        clipped = clipped + 1j * np.where(passes, x.imag, 0)
    return clipped


def _block(peephole: bool, straight_through: bool) -> Truth:
    return lambda a: lstm_block_cell(a, peephole=peephole, straight_through=straight_through)


# --- the zoo -------------------------------------------------------------------------------------


def _bar(a: Arrays, gate: str, state: Array) -> Array:
    """The common pre-activation: x w_gate + state u_gate + b_gate."""
    bar: Array = a["x"] @ a[f"w_{gate}"] + state @ a[f"u_{gate}"] + a[f"b_{gate}"]
    return bar


def _mix(gate: Array, on: Array, off: Array) -> Array:
    """``gate on + (1 - gate) off``, with one product."""
    mixed: Array = off + gate * (on - off)
    return mixed


def _remembered(a: Arrays, bars: Array) -> tuple[Array, Array]:
    """Memory and output gate of an LSTM with columns [i | f | g | o]."""
    i, f, g, o = np.split(bars, 4, axis=1)
    return sigmoid(i) * np.tanh(g) + sigmoid(f) * a["c_prev"], sigmoid(o)


def cifg(a: Arrays) -> dict[str, Array]:
    """C = f c' + (1 - f) g; h = o tanh(c)."""
    h_prev = a["h_prev"]
    c = _mix(sigmoid(_bar(a, "f", h_prev)), a["c_prev"], np.tanh(_bar(a, "g", h_prev)))
    return {"h": np.tanh(c) * sigmoid(_bar(a, "o", h_prev)), "c": c}


def lstm_projection(a: Arrays) -> dict[str, Array]:
    """C = f c' + i g; r = (o tanh(c)) w_p."""
    c, o = _remembered(a, a["x"] @ a["w"] + a["r_prev"] @ a["u"] + a["b"])
    return {"r": (np.tanh(c) * o) @ a["w_p"], "c": c}


def multiplicative_lstm(a: Arrays) -> dict[str, Array]:
    """As ``lstm`` with (x w_m)(h' u_m) in place of h'."""
    m = (a["h_prev"] @ a["u_m"]) * (a["x"] @ a["w_m"])
    c, o = _remembered(a, a["x"] @ a["w"] + m @ a["u"] + a["b"])
    return {"h": np.tanh(c) * o, "c": c}


def _normalised(v: Array, gain: Array, bias: Array) -> Array:
    """Layer norm over units; the square without a modulus, so that complex steps pass."""
    centred = v - v.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
    scaled: Array = centred / spread * gain + bias
    return scaled


def layer_norm_lstm(a: Arrays) -> dict[str, Array]:
    """Columns [f | i | o | g] of LN(h' u) + LN(x w) + b; h = o tanh(LN(c))."""
    bars = _normalised(a["h_prev"] @ a["u"], a["alpha1"], a["beta1"]) + a["b"]
    f, i, o, g = np.split(bars + _normalised(a["x"] @ a["w"], a["alpha2"], a["beta2"]), 4, axis=1)
    c = sigmoid(f) * a["c_prev"] + sigmoid(i) * np.tanh(g)
    return {"h": sigmoid(o) * np.tanh(_normalised(c, a["alpha3"], a["beta3"])), "c": c}


def layer_norm_gru(a: Arrays) -> dict[str, Array]:
    """Columns [z | r] of LN(h' u) + LN(x w); n = tanh(LN(x w_n) + r LN(h' u_n))."""
    x, h_prev = a["x"], a["h_prev"]
    bars = _normalised(x @ a["w"], a["alpha2"], a["beta2"])
    z, r = np.split(
        sigmoid(bars + _normalised(h_prev @ a["u"], a["alpha1"], a["beta1"])), 2, axis=1
    )
    s = _normalised(h_prev @ a["u_n"], a["alpha4"], a["beta4"])
    n = np.tanh(r * s + _normalised(x @ a["w_n"], a["alpha3"], a["beta3"]))
    return {"h": _mix(z, n, h_prev)}


def _slstm(a: Arrays, exponential: bool) -> dict[str, Array]:
    """sLSTM, its heads one by one; the larger branch of m by real parts, for complex steps."""

    def product(gate: str) -> Array:
        bar: Array = np.tensordot(a["x"], a[f"w_{gate}"], 1) + recurrent(gate) + a[f"b_{gate}"]
        return bar

    def recurrent(gate: str) -> Array:
        h_prev, r = a["h_prev"], a[f"r_{gate}"]
        if r.ndim == 2:
            return np.asarray(h_prev @ r)
        return np.stack([h_prev[:, head] @ r[head] for head in range(len(r))], axis=1)

    f_bar, i_bar = product("f"), product("i")
    log_f = (f_bar if exponential else np.log(sigmoid(f_bar))) + a["m_prev"]
    m = np.where(log_f.real >= i_bar.real, log_f, i_bar)
    i, f = np.exp(i_bar - m), np.exp(log_f - m)
    c, n = i * np.tanh(product("z")) + f * a["c_prev"], i + f * a["n_prev"]
    return {"h": c / n * sigmoid(product("o")), "c": c, "n": n, "m": m}


def augru(a: Arrays) -> dict[str, Array]:
    """A GRU, reset after the product, whose update gate is multiplied by the score a."""
    h_prev = a["h_prev"]
    u = sigmoid(_bar(a, "u", h_prev)) * a["a"]
    r = sigmoid(_bar(a, "r", h_prev))
    n = np.tanh(a["x"] @ a["w_n"] + a["b_n"] + (h_prev @ a["u_n"]) * r)
    return {"h": _mix(u, n, h_prev)}


def mgu(a: Arrays) -> dict[str, Array]:
    """H = (1 - f) h' + f tanh(x w_n + (f h') u_n + b_n)."""
    h_prev = a["h_prev"]
    f = sigmoid(_bar(a, "f", h_prev))
    return {"h": _mix(f, np.tanh(_bar(a, "n", h_prev * f)), h_prev)}


def janet(a: Arrays) -> dict[str, Array]:
    """H = sig(s) h' + (1 - sig(s - beta)) tanh(...); 1 - sig(v) is sig(-v)."""
    s = _bar(a, "f", a["h_prev"])
    n = np.tanh(_bar(a, "n", a["h_prev"]))
    return {"h": a["h_prev"] * sigmoid(s) + sigmoid(a["beta"] - s) * n}


def li_gru(a: Arrays) -> dict[str, Array]:
    """H = z h' + (1 - z) max(0, x w_n + h' u_n + b_n)."""
    n_bar = _bar(a, "n", a["h_prev"])
    n = np.where(n_bar.real > 0, n_bar, 0)
    return {"h": _mix(sigmoid(_bar(a, "z", a["h_prev"])), a["h_prev"], n)}


def ugrnn(a: Arrays) -> dict[str, Array]:
    """H = g h' + (1 - g) c."""
    c = np.tanh(_bar(a, "c", a["h_prev"]))
    return {"h": _mix(sigmoid(_bar(a, "g", a["h_prev"])), a["h_prev"], c)}


def ran(a: Arrays) -> dict[str, Array]:
    """C = i (x w_c) + f c'; h = tanh(c)."""
    i, f = sigmoid(_bar(a, "i", a["h_prev"])), sigmoid(_bar(a, "f", a["h_prev"]))
    c = f * a["c_prev"] + (a["x"] @ a["w_c"]) * i
    return {"h": np.tanh(c), "c": c}


def brc(a: Arrays) -> dict[str, Array]:
    """H = c h' + (1 - c) tanh(x w + (1 + tanh(x w_a + u_a h')) h')."""
    h_prev = a["h_prev"]
    c = sigmoid(a["x"] @ a["w_c"] + h_prev * a["u_c"])
    drive = np.tanh(a["x"] @ a["w_a"] + h_prev * a["u_a"])
    return {"h": _mix(c, h_prev, np.tanh(a["x"] @ a["w"] + h_prev + drive * h_prev))}


def ind_rnn(a: Arrays) -> dict[str, Array]:
    """H = tanh(x w + u h' + b), u one number per unit."""
    return {"h": np.tanh(a["b"] + a["h_prev"] * a["u"] + a["x"] @ a["w"])}


def ind_rnn_relu(a: Arrays) -> dict[str, Array]:
    """H = max(0, x w + u h' + b)."""
    h_bar = a["b"] + a["h_prev"] * a["u"] + a["x"] @ a["w"]
    return {"h": np.where(h_bar.real > 0, h_bar, 0)}


def _sru(a: Arrays, skip: Array) -> dict[str, Array]:
    c_prev = a["c_prev"]
    f = sigmoid(a["x"] @ a["w_f"] + c_prev * a["v_f"] + a["b_f"])
    r = sigmoid(a["x"] @ a["w_r"] + c_prev * a["v_r"] + a["b_r"])
    c = _mix(f, c_prev, a["x"] @ a["w"])
    return {"h": _mix(r, c, skip), "c": c}


def qrnn(a: Arrays) -> dict[str, Array]:
    """C = f c' + (1 - f) z; h = o c, every gate of x alone."""
    z, f, o = (a["x"] @ a[f"w_{gate}"] + a[f"b_{gate}"] for gate in "zfo")
    c = _mix(sigmoid(f), a["c_prev"], np.tanh(z))
    return {"h": c * sigmoid(o), "c": c}


def _min_gru(a: Arrays, positive: bool) -> dict[str, Array]:
    """H = (1 - z) h' + z n, both of x alone."""
    z, n = sigmoid(a["x"] @ a["w_z"] + a["b_z"]), a["x"] @ a["w_n"] + a["b_n"]
    if positive:
        n = np.where(n.real >= 0, 0.5 + n, sigmoid(n))
    return {"h": _mix(z, n, a["h_prev"])}


def min_lstm(a: Arrays) -> dict[str, Array]:
    """H = (f h' + i n) / (f + i)."""
    f, i, n = (a["x"] @ a[f"w_{gate}"] + a[f"b_{gate}"] for gate in "fin")
    f, i = sigmoid(f), sigmoid(i)
    return {"h": (f * a["h_prev"] + i * n) / (f + i)}


def _recurrent_highway(a: Arrays, depth: int, coupled: bool) -> dict[str, Array]:
    """S <- q t + s c, ``depth`` times; x enters the first."""
    s, gates = a["h_prev"], "ht" if coupled else "htc"
    for layer in range(1, depth + 1):
        bars = {g: s @ a[f"r_{g}_{layer}"] + a[f"b_{g}_{layer}"] for g in gates}
        if layer == 1:
            bars = {g: bar + a["x"] @ a[f"w_{g}"] for g, bar in bars.items()}
        carry = sigmoid(-bars["t"]) if coupled else sigmoid(bars["c"])
        s = np.tanh(bars["h"]) * sigmoid(bars["t"]) + carry * s
    return {"h": s}


def cfc(a: Arrays) -> dict[str, Array]:
    """Backbone q of [x, h']; h = s g + (1 - s) k, s = sigmoid(-f ts)."""
    bars = np.hstack([a["x"], a["h_prev"]]) @ a["w_bb"] + a["b_bb"]
    q = 1.7159 * np.tanh(bars * (2 / 3))
    f, g, k = (q @ a[f"w_{name}"] + a[f"b_{name}"] for name in "fgk")
    return {"h": _mix(sigmoid(-a["ts"] * f), np.tanh(g), np.tanh(k))}


def ltc(a: Arrays) -> dict[str, Array]:
    """Six times h <- (h + d f a) / (1 + d (1/tau + f)), d = ts / 6."""
    h, d = a["h_prev"], a["ts"] / 6
    for _ in range(6):
        f = sigmoid(a["x"] @ a["w"] + h @ a["u"] + a["b"])
        h = (h + d * f * a["a"]) / (1 + d / a["tau"] + d * f)
    return {"h": h}


def co_rnn(a: Arrays) -> dict[str, Array]:
    """Z = z' + dt (tanh(y' w + z' v + x u + b) - gam y' - eps z'); y = y' + dt z."""
    y, z, dt = a["y_prev"], a["z_prev"], a["dt"]
    force = np.tanh(a["x"] @ a["u"] + y @ a["w"] + z @ a["v"] + a["b"])
    z = (1 - dt * a["eps"]) * z + dt * force - dt * a["gam"] * y
    return {"y": y + dt * z, "z": z}


def lem(a: Arrays) -> dict[str, Array]:
    """Z with steps of its own, then y, which looks at the new z."""
    y, z, dt = a["y_prev"], a["z_prev"], a["dt"]

    def drive(name: str, state: Array) -> Array:
        bar: Array = state @ a[f"w_{name}"] + a["x"] @ a[f"v_{name}"] + a[f"b_{name}"]
        return bar

    dt_y, dt_z = dt * sigmoid(drive("1", y)), dt * sigmoid(drive("2", y))
    z = _mix(dt_z, np.tanh(drive("z", y)), z)
    return {"y": _mix(dt_y, np.tanh(drive("y", z)), y), "z": z}


def fast_grnn(a: Arrays) -> dict[str, Array]:
    """H = (sig(zeta) (1 - z) + sig(nu)) tanh(s + b_h) + z h', s = x w + h' u shared."""
    s = a["h_prev"] @ a["u"] + a["x"] @ a["w"]
    z, candidate = sigmoid(s + a["b_z"]), np.tanh(s + a["b_h"])
    rest = sigmoid(a["nu"]) + sigmoid(a["zeta"]) - sigmoid(a["zeta"]) * z
    return {"h": a["h_prev"] * z + rest * candidate}


def antisymmetric_rnn(a: Arrays) -> dict[str, Array]:
    """H = h' + eps tanh(x w + h' (u - u^T - gam 1) + b)."""
    inner = a["u"] - a["u"].T - a["gam"] * np.eye(len(a["u"]))
    return {"h": a["h_prev"] + a["eps"] * np.tanh(a["h_prev"] @ inner + a["x"] @ a["w"] + a["b"])}


def lru(a: Arrays) -> dict[str, Array]:
    """S = lam s' + exp(gamma) x b and y = Re(s c) + d x, in products of 2 by 2 matrices."""
    size, angle = np.exp(-np.exp(a["nu_log"])), np.exp(a["theta_log"])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * size
    before = np.array([a["h_re_prev"], a["h_im_prev"]])
    drive = np.array([a["x"] @ a["b_re"], a["x"] @ a["b_im"]]) * np.exp(a["gamma_log"])
    h_re, h_im = np.einsum("rsh,sbh->rbh", turn, before) + drive
    return {"y": h_re @ a["c_re"] - h_im @ a["c_im"] + a["x"] * a["d"], "h_re": h_re, "h_im": h_im}


def lif(a: Arrays) -> dict[str, Array]:
    """V = decay v' + x w + s' u + b - threshold s'; s = 1 where v > threshold."""
    drive = a["x"] @ a["w"] + a["s_prev"] @ a["u"] + a["b"]
    v = a["decay"] * a["v_prev"] + drive - a["threshold"] * a["s_prev"]
    over = v - a["threshold"]
    s = np.where(over.real > 0, 1.0, 0.0)
    if np.iscomplexobj(over):
        s = s + 1j * over.imag / (1 + 10 * np.abs(over.real)) ** 2
    return {"s": s, "v": v}


TRUTHS: Mapping[str, Truth] = {
    "elman": elman,
    "elman_relu": elman_relu,
    "gru": gru,
    "gru_block_cell": gru_block_cell,
    "gru_reset_before": gru_reset_before,
    "lstm": lstm,
    "lstm_peephole": lstm_peephole,
    "lstm_block_cell": _block(True, True),
    "lstm_block_cell_no_peephole": _block(False, True),
    "lstm_block_cell_exact_clip": _block(True, False),
    "lstm_block_cell_no_peephole_exact_clip": _block(False, False),
    "cifg": cifg,
    "lstm_projection": lstm_projection,
    "layer_norm_lstm": layer_norm_lstm,
    "layer_norm_gru": layer_norm_gru,
    "multiplicative_lstm": multiplicative_lstm,
    "slstm": partial(_slstm, exponential=False),
    "slstm_exp": partial(_slstm, exponential=True),
    "slstm_heads": partial(_slstm, exponential=False),
    "slstm_exp_heads": partial(_slstm, exponential=True),
    "augru": augru,
    "mgu": mgu,
    "janet": janet,
    "li_gru": li_gru,
    "ugrnn": ugrnn,
    "ran": ran,
    "brc": brc,
    "ind_rnn": ind_rnn,
    "ind_rnn_relu": ind_rnn_relu,
    "sru": lambda a: _sru(a, a["alpha"] * a["x"]),
    "sru_projection": lambda a: _sru(a, a["x"] @ a["w_s"]),
    "qrnn": qrnn,
    "min_gru": partial(_min_gru, positive=False),
    "min_gru_log": partial(_min_gru, positive=True),
    "min_lstm": min_lstm,
    "recurrent_highway_3": partial(_recurrent_highway, depth=3, coupled=True),
    "recurrent_highway_2_full": partial(_recurrent_highway, depth=2, coupled=False),
    "cfc": cfc,
    "ltc": ltc,
    "co_rnn": co_rnn,
    "lem": lem,
    "fast_grnn": fast_grnn,
    "antisymmetric_rnn": antisymmetric_rnn,
    "lru": lru,
    "lif": lif,
    **MEMORIES,
    **GATES,
}
"""The forward of every shipped cell, by the cell's name."""


def truth_of(cell: type[Cell]) -> Truth | None:
    """Return a cell's hand-written forward: its own ``reference``, or that of a shipped cell.

    A subclass that re-states an equation does not inherit its parent's ``reference``.
    """
    own = cell.__dict__.get("reference")
    if own is not None:
        return _called_by_names(cell, getattr(own, "__func__", own))
    return TRUTHS.get(definition_of(cell).name) if ships(cell) else None


def _called_by_names(cell: type[Cell], reference: Callable[..., object]) -> Truth:
    definition = definition_of(cell)
    names = [str(value.name) for value in definition.outputs]

    def truth(arguments: Arrays) -> dict[str, Array]:
        try:
            inspect.signature(reference).bind(**arguments)
        except TypeError as error:
            raise ArgumentError(
                f"{definition.name}: reference(...) cannot be called ({error}); it is given "
                f"{', '.join(arguments)} by name"
            ) from None
        results = reference(**arguments)
        if not isinstance(results, Mapping):
            listed = results if isinstance(results, tuple) else (results,)
            results = dict(zip(names, listed, strict=False))
        missing = [name for name in names if name not in results]
        if missing:
            raise ArgumentError(
                f"{definition.name}: reference(...) does not return {', '.join(missing)}; "
                f"return a dict of all outputs ({', '.join(names)}) or a tuple in that order"
            )
        return {name: np.asarray(results[name]) for name in names}

    return truth

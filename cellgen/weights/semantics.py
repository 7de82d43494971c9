"""One step of each library's layer, in that library's own layout, as its documentation has it.

Written apart from the table of dialects: a proof compares the two. ``a`` holds the arrays, x is
(B, I), states are (B, H) in the cell's order, h first; an sLSTM's are (B, K, D), h c n m.
Sources: torch.nn, keras.layers, the kernels of TensorFlow's block cells, the operators of ONNX,
flax, haiku, equinox, xlstm, mygrad and EpyNN, as their documentation states the equations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.weights.grids import Array, Arrays, read_blocks
from cellgen.weights.heads import read_heads
from cellgen.weights.layouts import Dialect, Step

States: TypeAlias = tuple[Array, ...]
_DialectStep: TypeAlias = Callable[[Dialect, Arrays, Array, States], States]

STEPS, ROWS_OF_BATCH = 5, 2
"""How long and over how many rows a proof runs."""


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _lstm(gates: tuple[Array, Array, Array, Array], c: Array) -> States:
    """Input gate, forget gate, candidate, output gate, before their functions."""
    i, f, g, o = gates
    new = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(new), new


def _gru_after(r: Array, z: Array, n_x: Array, n_h: Array, h: Array) -> States:
    n = np.tanh(n_x + _sigmoid(r) * n_h)
    return ((1 - _sigmoid(z)) * n + _sigmoid(z) * h,)


def _only(a: Arrays, start: str) -> Array | float:
    """The array whose name begins so, or no bias."""
    return next((a[name] for name in a if name.startswith(start)), 0.0)


def _torch_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    gates = x @ np.transpose(_only(a, "weight_ih")) + _only(a, "bias_ih")
    gates = gates + h @ np.transpose(_only(a, "weight_hh")) + _only(a, "bias_hh")
    i, f, g, o = np.split(gates, 4, axis=1)
    return _lstm((i, f, g, o), c)


def _torch_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x = x @ np.transpose(_only(a, "weight_ih")) + _only(a, "bias_ih")
    of_h = states[0] @ np.transpose(_only(a, "weight_hh")) + _only(a, "bias_hh")
    r_x, z_x, n_x = np.split(of_x, 3, axis=1)
    r_h, z_h, n_h = np.split(of_h, 3, axis=1)
    return _gru_after(r_x + r_h, z_x + z_h, n_x, n_h, states[0])


def _torch_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x = x @ np.transpose(_only(a, "weight_ih")) + _only(a, "bias_ih")
    of_h = states[0] @ np.transpose(_only(a, "weight_hh")) + _only(a, "bias_hh")
    return (_plain(dialect, of_x + of_h),)


def _plain(dialect: Dialect, bar: Array) -> Array:
    return np.tanh(bar) if dialect.function == "rnn_tanh" else np.maximum(bar, 0)


def _keras_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    z = x @ a["kernel"] + h @ a["recurrent_kernel"] + a.get("bias", np.zeros(()))
    i, f, candidate, o = np.split(z, 4, axis=1)
    return _lstm((i, f, candidate, o), c)


def _keras_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, units = states[0], states[0].shape[1]
    kernel, recurrent = a["kernel"], a["recurrent_kernel"]
    bias = a.get("bias", np.zeros(3 * units))
    if dialect.function == "gru":
        of_input, of_state = bias if bias.ndim == 2 else (bias, np.zeros(3 * units))
        xz, xr, xh = np.split(x @ kernel + of_input, 3, axis=1)
        hz, hr, hh = np.split(h @ recurrent + of_state, 3, axis=1)
        return _gru_after(xr + hr, xz + hz, xh, hh, h)
    xz, xr, xh = np.split(x @ kernel + bias, 3, axis=1)
    z = _sigmoid(xz + h @ recurrent[:, :units])
    r = _sigmoid(xr + h @ recurrent[:, units : 2 * units])
    return (z * h + (1 - z) * np.tanh(xh + (r * h) @ recurrent[:, 2 * units :]),)


def _keras_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    bias = a.get("bias", np.zeros(()))
    return (_plain(dialect, x @ a["kernel"] + states[0] @ a["recurrent_kernel"] + bias),)


def _for_cudnn(a: Arrays, x: Array, h: Array, count: int) -> tuple[list[Array], list[Array]]:
    """Every gate of x and of h, by (H, I) and (H, H) matrices that lie in the kernels' columns."""
    units, biases = h.shape[1], np.split(a["bias"], 2 * count)
    w = [gate.reshape(units, -1) for gate in np.split(a["kernel"], count, axis=1)]
    r = [gate.reshape(units, -1) for gate in np.split(a["recurrent_kernel"], count, axis=1)]
    of_x = [x @ w[at].T + biases[at] for at in range(count)]
    of_h = [h @ r[at].T + biases[count + at] for at in range(count)]
    return of_x, of_h


def _keras_cudnn_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x, of_h = _for_cudnn(a, x, states[0], 4)
    i, f, candidate, o = (one + two for one, two in zip(of_x, of_h, strict=True))
    return _lstm((i, f, candidate, o), states[1])


def _keras_cudnn_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    (z_x, r_x, n_x), (z_h, r_h, n_h) = _for_cudnn(a, x, states[0], 3)
    return _gru_after(r_x + r_h, z_x + z_h, n_x, n_h, states[0])


def _block_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, cs_prev = states
    columns = np.split(np.concatenate([x, h], axis=1) @ a["w"] + a["b"], 4, axis=1)
    order = ("i", "f", "ci", "o") if dialect.name == "tf.BlockLSTMV2" else ("i", "ci", "f", "o")
    gate = dict(zip(order, columns, strict=True))
    wci, wcf, wco = (a.get(name, np.zeros(())) for name in ("wci", "wcf", "wco"))
    i = _sigmoid(gate["i"] + wci * cs_prev)
    f = _sigmoid(gate["f"] + dialect.forget_bias + wcf * cs_prev)
    cs = np.tanh(gate["ci"]) * i + cs_prev * f
    return np.tanh(cs) * _sigmoid(gate["o"] + wco * cs), cs


def _gru_block_cell(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h = states[0]
    r, u = np.split(_sigmoid(np.concatenate([x, h], axis=1) @ a["w_ru"] + a["b_ru"]), 2, axis=1)
    c = np.tanh(np.concatenate([x, r * h], axis=1) @ a["w_c"] + a["b_c"])
    return (u * h + (1 - u) * c,)


def _cudnn_gates(a: Arrays, x: Array, h: Array, count: int) -> tuple[list[Array], list[Array]]:
    of_x = [x @ a[f"weights_{at}"].T + a[f"biases_{at}"] for at in range(count)]
    of_h = [h @ a[f"weights_{at}"].T + a[f"biases_{at}"] for at in range(count, 2 * count)]
    return of_x, of_h


def _cudnn_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x, of_h = _cudnn_gates(a, x, states[0], 4)
    i, f, new, o = (one + two for one, two in zip(of_x, of_h, strict=True))
    return _lstm((i, f, new, o), states[1])


def _cudnn_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x, of_h = _cudnn_gates(a, x, states[0], 3)
    return _gru_after(of_x[0] + of_h[0], of_x[1] + of_h[1], of_x[2], of_h[2], states[0])


def _onnx_parts(dialect: Dialect, a: Arrays) -> tuple[Array, Array, Array, Array]:
    """W, R, and the two halves of B, of this layer's direction."""
    at = dialect.arrays[0].entry
    of_x, of_h = np.split(a["B"][at], 2)
    return a["W"][at], a["R"][at], of_x, of_h


def _onnx_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    (w, r, wb, rb), (h, c) = _onnx_parts(dialect, a), states
    i, o, f, new = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=1)
    p = a["P"][dialect.arrays[0].entry] if "P" in a else np.zeros(3 * h.shape[1])
    p_i, p_o, p_f = np.split(p, 3)
    memory = _sigmoid(f + p_f * c) * c + _sigmoid(i + p_i * c) * np.tanh(new)
    return _sigmoid(o + p_o * memory) * np.tanh(memory), memory


def _onnx_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    (w, r, wb, rb), h = _onnx_parts(dialect, a), states[0]
    w_z, w_r, w_h = np.split(w, 3)
    r_z, r_r, r_h = np.split(r, 3)
    (wb_z, wb_r, wb_h), (rb_z, rb_r, rb_h) = np.split(wb, 3), np.split(rb, 3)
    zt = _sigmoid(x @ w_z.T + h @ r_z.T + wb_z + rb_z)
    rt = _sigmoid(x @ w_r.T + h @ r_r.T + wb_r + rb_r)
    if dialect.function == "gru":
        ht = np.tanh(x @ w_h.T + rt * (h @ r_h.T + rb_h) + wb_h)
    else:
        ht = np.tanh(x @ w_h.T + (rt * h) @ r_h.T + rb_h + wb_h)
    return ((1 - zt) * ht + zt * h,)


def _onnx_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    w, r, wb, rb = _onnx_parts(dialect, a)
    return (_plain(dialect, x @ w.T + states[0] @ r.T + wb + rb),)


def _flax_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    forget = "if_" if "if_/kernel" in a else "if"
    i = x @ a["ii/kernel"] + h @ a["hi/kernel"] + a["hi/bias"]
    f = x @ a[f"{forget}/kernel"] + h @ a["hf/kernel"] + a["hf/bias"]
    g = x @ a["ig/kernel"] + h @ a["hg/kernel"] + a["hg/bias"]
    o = x @ a["io/kernel"] + h @ a["ho/kernel"] + a["ho/bias"]
    return _lstm((i, f, g, o), c)


def _linen_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h = states[0]
    r = x @ a["ir/kernel"] + a["ir/bias"] + h @ a["hr/kernel"]
    z = x @ a["iz/kernel"] + a["iz/bias"] + h @ a["hz/kernel"]
    n_x = x @ a["in/kernel"] + a["in/bias"]
    return _gru_after(r, z, n_x, h @ a["hn/kernel"] + a["hn/bias"], h)


def _linen_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    return (np.tanh(x @ a["i/kernel"] + a["i/bias"] + states[0] @ a["h/kernel"]),)


def _nnx_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    y = x @ a["dense_i/kernel"] + h @ a["dense_h/kernel"] + a["dense_h/bias"]
    i, f, g, o = np.split(y, 4, axis=1)
    return _lstm((i, f, g, o), c)


def _nnx_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    r_x, z_x, n_x = np.split(x @ a["dense_i/kernel"] + a["dense_i/bias"], 3, axis=1)
    r_h, z_h, n_h = np.split(states[0] @ a["dense_h/kernel"], 3, axis=1)
    return _gru_after(r_x + r_h, z_x + z_h, n_x, n_h, states[0])


def _haiku_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    gated = np.concatenate([x, h], axis=1) @ a["linear/w"] + a["linear/b"]
    i, g, f, o = np.split(gated, 4, axis=1)
    return _lstm((i, f + 1, g, o), c)


def _haiku_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, units = states[0], states[0].shape[1]
    z_x, r_x, a_x = np.split(x @ a["w_i"] + a["b"], 3, axis=1)
    z = _sigmoid(z_x + h @ a["w_h"][:, :units])
    r = _sigmoid(r_x + h @ a["w_h"][:, units : 2 * units])
    candidate = np.tanh(a_x + (r * h) @ a["w_h"][:, 2 * units :])
    return ((1 - z) * h + z * candidate,)


def _haiku_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    of_x = x @ a["linear/w"] + a["linear/b"]
    return (np.maximum(of_x + states[0] @ a["linear_1/w"] + a["linear_1/b"], 0),)


def _equinox_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h, c = states
    lin = x @ a["weight_ih"].T + h @ a["weight_hh"].T + a.get("bias", np.zeros(()))
    i, f, g, o = np.split(lin, 4, axis=1)
    return _lstm((i, f, g, o), c)


def _equinox_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    r_x, z_x, n_x = np.split(x @ a["weight_ih"].T + a.get("bias", np.zeros(())), 3, axis=1)
    r_h, z_h, n_h = np.split(states[0] @ a["weight_hh"].T, 3, axis=1)
    n_h = n_h + a.get("bias_n", np.zeros(()))
    return _gru_after(r_x + r_h, z_x + z_h, n_x, n_h, states[0])


def _mygrad_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    s = states[0]
    z = _sigmoid(x @ a["Uz"] + s @ a["Wz"] + a["bz"])
    r = _sigmoid(x @ a["Ur"] + s @ a["Wr"] + a["br"])
    h = np.tanh(x @ a["Uh"] + (r * s) @ a["Wh"] + a["bh"])
    return ((1 - z) * h + z * s,)


def _epynn_gru(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    hp = states[0]
    r = _sigmoid(x @ a["Ur"] + hp @ a["Vr"] + a["br"])
    hh = np.tanh(x @ a["Uhh"] + (r * hp) @ a["Vhh"] + a["bhh"])
    z = _sigmoid(x @ a["Uz"] + hp @ a["Vz"] + a["bz"])
    return (z * hp + (1 - z) * hh,)


def _epynn_lstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    hp, cp = states
    f = x @ a["Uf"] + hp @ a["Vf"] + a["bf"]
    i = x @ a["Ui"] + hp @ a["Vi"] + a["bi"]
    g = x @ a["Ug"] + hp @ a["Vg"] + a["bg"]
    o = x @ a["Uo"] + hp @ a["Vo"] + a["bo"]
    return _lstm((i, f, g, o), cp)


def _epynn_rnn(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    return (np.tanh(x @ a["U"] + states[0] @ a["V"] + a["b"]),)


def _slstm(gates: Mapping[str, Array], states: States) -> States:
    """Beck et al. 2024, equations 8 to 17; the first step's m is its input gate."""
    _, c, n, m = states
    log_f = -np.logaddexp(0, -gates["f"]) + m
    new = np.maximum(log_f, gates["i"])
    i, f = np.exp(gates["i"] - new), np.exp(log_f - new)
    c, n = f * c + i * np.tanh(gates["z"]), f * n + i
    return _sigmoid(gates["o"]) * c / n, c, n, new


def _xlstm(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    h = states[0]
    heads, units = h.shape[1:]
    kernel = a["slstm_cell._recurrent_kernel_"]
    bias = a["slstm_cell._bias_"]
    if kernel.shape == (heads, 4 * units, units):
        kernel = kernel.reshape(heads, 4, units, units).transpose(0, 3, 1, 2)
        bias = bias.reshape(4, heads, units).transpose(1, 0, 2)
    kernel, bias = kernel.reshape(heads, units, 4, units), bias.reshape(heads, 4, units)
    raw = np.einsum("bki,kigo->bkgo", h, kernel) + bias
    cut = x.reshape(len(x), heads, -1)
    linear = [
        np.einsum("bkd,kod->bko", cut, a[f"{name}.weight"])
        for name in ("fgate", "igate", "zgate", "ogate")
    ]
    return _slstm({g: raw[:, :, at] + linear[at] for at, g in enumerate("ifzo")}, states)


def _own(dialect: Dialect, a: Arrays, x: Array, states: States) -> States:
    """The cells that ship, by the names of their declarations."""
    h = states[0]
    if dialect.function == "slstm":
        gates = {
            g: np.einsum("bi,ikd->bkd", x, a[f"w_{g}"])
            + np.einsum("bki,kio->bko", h, a[f"r_{g}"])
            + a[f"b_{g}"]
            for g in "ifzo"
        }
        return _slstm(gates, states)
    bars = {
        end: x @ a[f"w{end}"] + h @ a[f"u{end}"] + a[f"b{end}"]
        for end in ("", "_i", "_f", "_g", "_o", "_z", "_r")
        if f"w{end}" in a
    }
    if dialect.function.startswith("rnn"):
        return (_plain(dialect, bars[""]),)
    if dialect.function == "lstm":
        c, none = states[1], np.zeros(())
        i = _sigmoid(bars["_i"] + a.get("p_i", none) * c)
        f = _sigmoid(bars["_f"] + a.get("p_f", none) * c)
        new = f * c + i * np.tanh(bars["_g"])
        return _sigmoid(bars["_o"] + a.get("p_o", none) * new) * np.tanh(new), new
    of_x = x @ a["w_n"] + a["b_n"]
    if dialect.function == "gru":
        return _gru_after(bars["_r"], bars["_z"], of_x, h @ a["u_n"] + a["c_n"], h)
    z, r = _sigmoid(bars["_z"]), _sigmoid(bars["_r"])
    return ((1 - z) * np.tanh(of_x + (r * h) @ a["u_n"]) + z * h,)


OF: Mapping[str, _DialectStep] = {
    "torch.nn.LSTM": _torch_lstm,
    "torch.nn.LSTMCell": _torch_lstm,
    "torch.nn.GRU": _torch_gru,
    "torch.nn.GRUCell": _torch_gru,
    "torch.nn.RNN": _torch_rnn,
    "torch.nn.RNNCell": _torch_rnn,
    "keras.layers.LSTM": _keras_lstm,
    "keras.layers.GRU": _keras_gru,
    "keras.layers.SimpleRNN": _keras_rnn,
    "keras.layers.CuDNNLSTM": _keras_cudnn_lstm,
    "keras.layers.CuDNNGRU": _keras_cudnn_gru,
    "tf.GRUBlockCell": _gru_block_cell,
    "tf.LSTMBlockCell": _block_lstm,
    "tf.BlockLSTM": _block_lstm,
    "tf.BlockLSTMV2": _block_lstm,
    "tf.CudnnRNN.LSTM": _cudnn_lstm,
    "tf.CudnnRNN.GRU": _cudnn_gru,
    "onnx.LSTM": _onnx_lstm,
    "onnx.GRU": _onnx_gru,
    "onnx.RNN": _onnx_rnn,
    "flax.linen.LSTMCell": _flax_lstm,
    "flax.linen.OptimizedLSTMCell": _flax_lstm,
    "flax.linen.GRUCell": _linen_gru,
    "flax.linen.SimpleCell": _linen_rnn,
    "flax.nnx.LSTMCell": _flax_lstm,
    "flax.nnx.OptimizedLSTMCell": _nnx_lstm,
    "flax.nnx.GRUCell": _nnx_gru,
    "haiku.LSTM": _haiku_lstm,
    "haiku.GRU": _haiku_gru,
    "haiku.VanillaRNN": _haiku_rnn,
    "equinox.nn.LSTMCell": _equinox_lstm,
    "equinox.nn.GRUCell": _equinox_gru,
    "xlstm.sLSTMLayer": _xlstm,
    "mygrad.nnet.layers.gru": _mygrad_gru,
    "epynn.GRU": _epynn_gru,
    "epynn.LSTM": _epynn_lstm,
    "epynn.RNN": _epynn_rnn,
}
"""A library's layer, and its step; what is ``cellgen``'s own goes by the cell's names."""


def run(dialect: Dialect, arrays: Arrays, inputs: Array, states: States) -> States:
    """Run a layer of a library over inputs (T, B, I) from states; return the last states."""
    step = _step_of(dialect)
    for x in inputs:
        states = step(arrays, x, states)
    return states


def _step_of(dialect: Dialect) -> Step:
    """The equations of a dialect's layer. Raises ArgumentError: nobody has stated them."""
    if dialect.step is not None:
        return dialect.step
    step = OF.get(dialect.name, _own if dialect.name.startswith("cellgen.") else None)
    if step is None:
        raise ArgumentError(
            f"dialect {dialect.name!r} states no equations, by which a conversion could be proved; "
            f"give Dialect(..., step=...), or leave prove out"
        )
    return partial(step, dialect)


def largest_difference(one: tuple[Dialect, Arrays], two: tuple[Dialect, Arrays]) -> float:
    """Run two layers over the same drawn inputs, in float64; return how far states differ.

    The difference is the largest of any state after five steps, over the largest of that state.
    """
    one_wide, two_wide = _widened(one[1]), _widened(two[1])
    inputs, states = _drawn(one[0], one_wide)
    first = run(one[0], one_wide, inputs, states)
    second = run(two[0], two_wide, inputs, states)
    differences = [
        float(np.abs(a - b).max() / max(float(np.abs(a).max()), 1e-300))
        for a, b in zip(first, second, strict=True)
    ]
    return float(np.max(differences))  # NaN where one of them is


def _widened(arrays: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _drawn(dialect: Dialect, arrays: Arrays) -> tuple[Array, States]:
    """Inputs (T, B, I) and states of the sizes that the arrays have."""
    blocks = read_heads(dialect, arrays) if dialect.heads else read_blocks(dialect, arrays)
    weight = next(array for block, array in blocks.items() if block[0] == "w")
    draw = np.random.default_rng(0).normal
    shape = (ROWS_OF_BATCH, *weight.shape[1:])
    inputs = draw(size=(STEPS, ROWS_OF_BATCH, weight.shape[0]))
    h = draw(size=shape)
    if dialect.function == "slstm":
        zeros = np.zeros(shape)
        return inputs, (h, zeros, zeros, np.full(shape, -np.inf))
    return inputs, ((h, draw(size=shape)) if dialect.function == "lstm" else (h,))

"""The table of dialects: how each library stacks what a cell declares one by one.

A row of the table is a function of the options that change a layout (``cellgen.weights.layouts``),
as the library's constructor calls them. Two dialects whose ``function`` is the same compute the
same equations.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.weights.layouts import CELLS, SUFFIXES, Dialect, Grid, PackedWeight, side_by_side
from cellgen.weights.packaged import names_of_packages, row_of_package


def _pytorch(
    kind: str, gates: str, function: str, end: str, bias: bool, others: bool = False
) -> Dialect:
    names = {"w": "weight_ih", "u": "weight_hh"}
    names |= {"b": "bias_ih", "c": "bias_hh"} if bias else {}
    arrays = tuple(
        PackedWeight(name + end, side_by_side(block, gates), transposed=block in "wu")
        for block, name in names.items()
    )
    prefixes = tuple(f"{name}_l" for name in names.values()) if others else ()
    return Dialect(f"torch.nn.{kind}", function, arrays, others=prefixes)


def _torch(
    kind: str,
    gates: str,
    function: str,
    layer: int = 0,
    reverse: bool = False,
    bias: bool = True,
) -> Dialect:
    """One layer and direction of several, whose arrays end with its number."""
    end = f"_l{layer}" + ("_reverse" if reverse else "")
    return _pytorch(kind, gates, function, end, bias, others=True)


def _torch_cell(kind: str, gates: str, function: str, bias: bool = True) -> Dialect:
    return _pytorch(kind, gates, function, "", bias)


def _torch_rnn(nonlinearity: str = "tanh", **options: Any) -> Dialect:
    return _torch("RNN", "", _plain("nonlinearity", nonlinearity), **options)


def _torch_rnn_cell(nonlinearity: str = "tanh", **options: Any) -> Dialect:
    return _torch_cell("RNNCell", "", _plain("nonlinearity", nonlinearity), **options)


def _plain(option: str, activation: str) -> str:
    function = f"rnn_{activation}"
    if function not in CELLS:
        raise ArgumentError(
            f"dialect: {option} is {activation!r}, expected 'tanh' or 'relu'; other activations "
            f"have no cell here to go through"
        )
    return function


def _keras(kind: str, gates: str, function: str, bias: Grid | None) -> Dialect:
    arrays = [
        PackedWeight("kernel", side_by_side("w", gates)),
        PackedWeight("recurrent_kernel", side_by_side("u", gates)),
    ]
    if bias is not None:
        arrays.append(PackedWeight("bias", bias))
    return Dialect(f"keras.layers.{kind}", function, tuple(arrays))


def _keras_lstm(use_bias: bool = True) -> Dialect:
    return _keras("LSTM", "ifgo", "lstm", side_by_side("b", "ifgo") if use_bias else None)


def _keras_gru(reset_after: bool = True, use_bias: bool = True) -> Dialect:
    one = side_by_side("b", "zrn")
    two = one + side_by_side("c", "zrn")
    bias = (two if reset_after else one) if use_bias else None
    return _keras("GRU", "zrn", "gru" if reset_after else "gru_reset_before", bias)


def _keras_rnn(activation: str = "tanh", use_bias: bool = True) -> Dialect:
    bias = side_by_side("b", "") if use_bias else None
    return _keras("SimpleRNN", "", _plain("activation", activation), bias)


def _keras_cudnn(kind: str, gates: str, function: str) -> Dialect:
    """Keras 2's layers of cuDNN alone, which hand a gate's numbers to it as they lie.

    cuDNN reads them as (H, I) and (H, H), row by row.
    """
    both = side_by_side("b", gates)[0] + side_by_side("c", gates)[0]
    arrays = (
        PackedWeight("kernel", side_by_side("w", gates), column_major=True),
        PackedWeight("recurrent_kernel", side_by_side("u", gates), column_major=True),
        PackedWeight("bias", (both,)),
    )
    return Dialect(f"keras.layers.{kind}", function, arrays)


def _block_lstm(
    name: str, gates: str, default: float, forget_bias: float | None = None,
    use_peephole: bool = False,
) -> Dialect:  # fmt: skip
    arrays = [
        PackedWeight("w", side_by_side("w", gates) + side_by_side("u", gates)),
        PackedWeight("b", side_by_side("b", gates)),
    ]
    if use_peephole:
        peepholes = {"wci": "p_i", "wcf": "p_f", "wco": "p_o"}
        arrays += [PackedWeight(array, ((block,),)) for array, block in peepholes.items()]
    offset = default if forget_bias is None else float(forget_bias)
    return Dialect(f"tf.{name}", "lstm", tuple(arrays), forget_bias=offset)


def _gru_block_cell() -> Dialect:
    return Dialect(
        "tf.GRUBlockCell",
        "gru_reset_before",
        (
            PackedWeight("w_ru", (("w_r", "w_z"), ("u_r", "u_z"))),
            PackedWeight("w_c", (("w_n",), ("u_n",))),
            PackedWeight("b_ru", side_by_side("b", "rz")),
            PackedWeight("b_c", (("b_n",),)),
        ),
    )


def _cudnn(kind: str, gates: str, function: str) -> Dialect:
    """The canonical arrays of cuDNN, of the input first, as CudnnRNNParamsToCanonical gives."""
    order = [(kind, gate) for kind in "wu" for gate in gates]
    biases = [(kind, gate) for kind in "bc" for gate in gates]
    arrays = [
        PackedWeight(f"weights_{at}", ((f"{kind}_{gate}",),), transposed=True)
        for at, (kind, gate) in enumerate(order)
    ]
    arrays += [
        PackedWeight(f"biases_{at}", ((f"{kind}_{gate}",),))
        for at, (kind, gate) in enumerate(biases)
    ]
    return Dialect(f"tf.CudnnRNN.{kind}", function, tuple(arrays))


def _onnx(kind: str, gates: str, function: str, reverse: bool, peepholes: bool = False) -> Dialect:
    entry = int(reverse)
    both = side_by_side("b", gates)[0] + side_by_side("c", gates)[0]
    grids: dict[str, Grid] = {"W": side_by_side("w", gates), "R": side_by_side("u", gates)}
    grids |= {"B": (both,)} | ({"P": side_by_side("p", "iof")} if peepholes else {})
    arrays = tuple(
        PackedWeight(name, grid, transposed=name in "WR", leading=True, entry=entry)
        for name, grid in grids.items()
    )
    return Dialect(f"onnx.{kind}", function, arrays)


def _onnx_lstm(reverse: bool = False, peepholes: bool = False) -> Dialect:
    return _onnx("LSTM", "iofg", "lstm", reverse, peepholes)


def _onnx_gru(linear_before_reset: int = 0, reverse: bool = False) -> Dialect:
    return _onnx("GRU", "zrn", "gru" if linear_before_reset else "gru_reset_before", reverse)


def _onnx_rnn(activation: str = "tanh", reverse: bool = False) -> Dialect:
    return _onnx("RNN", "", _plain("activation", activation.lower()), reverse)


def _flax_lstm(name: str, forget: str) -> Dialect:
    """Flax keeps a matrix apart for each gate; the bias stands beside the recurrent one."""
    arrays = []
    for gate in "ifgo":
        end = forget if gate == "f" else gate
        arrays += [
            PackedWeight(f"i{end}/kernel", ((f"w_{gate}",),)),
            PackedWeight(f"h{gate}/kernel", ((f"u_{gate}",),)),
            PackedWeight(f"h{gate}/bias", ((f"b_{gate}",),)),
        ]
    return Dialect(name, "lstm", tuple(arrays))


def _linen_gru() -> Dialect:
    arrays = []
    for gate in "rzn":
        arrays += [
            PackedWeight(f"i{gate}/kernel", ((f"w_{gate}",),)),
            PackedWeight(f"i{gate}/bias", ((f"b_{gate}",),)),
            PackedWeight(f"h{gate}/kernel", ((f"u_{gate}",),)),
        ]
    arrays.append(PackedWeight("hn/bias", (("c_n",),)))
    return Dialect("flax.linen.GRUCell", "gru", tuple(arrays))


def _dense(name: str, function: str, gates: str, biased: str) -> Dialect:
    """Two layers, ``dense_i`` of the input and ``dense_h`` of the state, one with a bias."""
    arrays = (
        PackedWeight("dense_i/kernel", side_by_side("w", gates)),
        PackedWeight("dense_h/kernel", side_by_side("u", gates)),
        PackedWeight(f"{biased}/bias", side_by_side("b", gates)),
    )
    return Dialect(name, function, arrays)


def _linen_rnn() -> Dialect:
    arrays = (
        PackedWeight("i/kernel", (("w",),)),
        PackedWeight("i/bias", (("b",),)),
        PackedWeight("h/kernel", (("u",),)),
    )
    return Dialect("flax.linen.SimpleCell", "rnn_tanh", arrays)


def _haiku_lstm() -> Dialect:
    arrays = (
        PackedWeight("linear/w", side_by_side("w", "igfo") + side_by_side("u", "igfo")),
        PackedWeight("linear/b", side_by_side("b", "igfo")),
    )
    return Dialect("haiku.LSTM", "lstm", arrays, forget_bias=1.0)


def _haiku_gru() -> Dialect:
    """Haiku's z is the share of the candidate: that of the other libraries is 1 - z."""
    rows = {kind: ((f"-{kind}_z", f"{kind}_r", f"{kind}_n"),) for kind in "wub"}
    arrays = tuple(
        PackedWeight(name, rows[kind]) for name, kind in (("w_i", "w"), ("w_h", "u"), ("b", "b"))
    )
    return Dialect("haiku.GRU", "gru_reset_before", arrays)


def _haiku_rnn() -> Dialect:
    arrays = (
        PackedWeight("linear/w", (("w",),)),
        PackedWeight("linear/b", (("b",),)),
        PackedWeight("linear_1/w", (("u",),)),
        PackedWeight("linear_1/b", (("c",),)),
    )
    return Dialect("haiku.VanillaRNN", "rnn_relu", arrays)


def _equinox(kind: str, gates: str, function: str, use_bias: bool = True) -> Dialect:
    arrays = [
        PackedWeight("weight_ih", side_by_side("w", gates), transposed=True),
        PackedWeight("weight_hh", side_by_side("u", gates), transposed=True),
    ]
    if use_bias:
        arrays.append(PackedWeight("bias", side_by_side("b", gates)))
        if function == "gru":
            arrays.append(PackedWeight("bias_n", (("c_n",),)))
    return Dialect(f"equinox.nn.{kind}", function, tuple(arrays))


def _gates_apart(
    name: str, function: str, kinds: tuple[str, str, str], gates: Mapping[str, str], rows: bool
) -> Dialect:
    """Three arrays a gate: of the input, of the state, the bias, (1, H) where it is a row."""
    arrays = []
    for gate, end in gates.items():
        suffix = f"_{gate}" if gate else ""
        arrays += [
            PackedWeight(kinds[0] + end, ((f"w{suffix}",),)),
            PackedWeight(kinds[1] + end, ((f"u{suffix}",),)),
            PackedWeight(kinds[2] + end, ((f"b{suffix}",),), leading=rows),
        ]
    return Dialect(name, function, tuple(arrays))


def _xlstm(backend: str = "cuda") -> Dialect:
    """The names of an sLSTMLayer; its blocks are cut by heads (``cellgen.weights.heads``)."""
    if backend not in ("cuda", "vanilla"):
        raise ArgumentError(f"dialect: backend is {backend!r}, expected 'cuda' or 'vanilla'")
    gates = {"fgate": "i", "igate": "f", "zgate": "z", "ogate": "o"}
    arrays = [PackedWeight(f"{at}.weight", ((f"w_{gate}",),)) for at, gate in gates.items()]
    arrays += [
        PackedWeight("slstm_cell._recurrent_kernel_", (tuple(f"r_{gate}" for gate in "ifzo"),)),
        PackedWeight("slstm_cell._bias_", side_by_side("b", "ifzo")),
    ]
    transposed = backend == "vanilla"
    arrays[4] = PackedWeight(arrays[4].name, arrays[4].grid, transposed=transposed)
    arrays[5] = PackedWeight(arrays[5].name, arrays[5].grid, transposed=transposed)
    return Dialect("xlstm.sLSTMLayer", "slstm", tuple(arrays), heads=True)


def _own(cell: str, function: str, peepholes: bool = False) -> Dialect:
    """The names of a shipped cell's own declaration."""
    kinds = "wub" if function != "slstm" else "wrb"
    blocks = [f"{kind}{suffix}" for suffix in SUFFIXES[function] for kind in kinds]
    if function == "gru":
        blocks.append("c_n")
    if peepholes:
        blocks += ["p_i", "p_f", "p_o"]
    arrays = tuple(PackedWeight(block, ((block,),)) for block in blocks)
    return Dialect(f"cellgen.{cell}", function, arrays, heads=function == "slstm")


ROWS: Mapping[str, Callable[..., Dialect]] = {
    "cellgen.lstm": partial(_own, "lstm", "lstm"),
    "cellgen.lstm_peephole": partial(_own, "lstm_peephole", "lstm", True),
    "cellgen.gru": partial(_own, "gru", "gru"),
    "cellgen.gru_reset_before": partial(_own, "gru_reset_before", "gru_reset_before"),
    "cellgen.elman": partial(_own, "elman", "rnn_tanh"),
    "cellgen.elman_relu": partial(_own, "elman_relu", "rnn_relu"),
    "cellgen.slstm_heads": partial(_own, "slstm_heads", "slstm"),
    "torch.nn.LSTM": partial(_torch, "LSTM", "ifgo", "lstm"),
    "torch.nn.LSTMCell": partial(_torch_cell, "LSTMCell", "ifgo", "lstm"),
    "torch.nn.GRU": partial(_torch, "GRU", "rzn", "gru"),
    "torch.nn.GRUCell": partial(_torch_cell, "GRUCell", "rzn", "gru"),
    "torch.nn.RNN": _torch_rnn,
    "torch.nn.RNNCell": _torch_rnn_cell,
    "keras.layers.LSTM": _keras_lstm,
    "keras.layers.GRU": _keras_gru,
    "keras.layers.SimpleRNN": _keras_rnn,
    "keras.layers.CuDNNLSTM": partial(_keras_cudnn, "CuDNNLSTM", "ifgo", "lstm"),
    "keras.layers.CuDNNGRU": partial(_keras_cudnn, "CuDNNGRU", "zrn", "gru"),
    "tf.GRUBlockCell": _gru_block_cell,
    "tf.LSTMBlockCell": partial(_block_lstm, "LSTMBlockCell", "igfo", 1.0),
    "tf.BlockLSTM": partial(_block_lstm, "BlockLSTM", "igfo", 1.0),
    "tf.BlockLSTMV2": partial(_block_lstm, "BlockLSTMV2", "ifgo", 0.0),
    "tf.CudnnRNN.LSTM": partial(_cudnn, "LSTM", "ifgo", "lstm"),
    "tf.CudnnRNN.GRU": partial(_cudnn, "GRU", "rzn", "gru"),
    "onnx.LSTM": _onnx_lstm,
    "onnx.GRU": _onnx_gru,
    "onnx.RNN": _onnx_rnn,
    "flax.linen.LSTMCell": partial(_flax_lstm, "flax.linen.LSTMCell", "f"),
    "flax.linen.OptimizedLSTMCell": partial(_flax_lstm, "flax.linen.OptimizedLSTMCell", "f"),
    "flax.linen.GRUCell": _linen_gru,
    "flax.linen.SimpleCell": _linen_rnn,
    "flax.nnx.LSTMCell": partial(_flax_lstm, "flax.nnx.LSTMCell", "f_"),
    "flax.nnx.OptimizedLSTMCell": partial(
        _dense, "flax.nnx.OptimizedLSTMCell", "lstm", "ifgo", "dense_h"
    ),
    "flax.nnx.GRUCell": partial(_dense, "flax.nnx.GRUCell", "gru", "rzn", "dense_i"),
    "haiku.LSTM": _haiku_lstm,
    "haiku.GRU": _haiku_gru,
    "haiku.VanillaRNN": _haiku_rnn,
    "equinox.nn.LSTMCell": partial(_equinox, "LSTMCell", "ifgo", "lstm"),
    "equinox.nn.GRUCell": partial(_equinox, "GRUCell", "rzn", "gru"),
    "xlstm.sLSTMLayer": _xlstm,
    "mygrad.nnet.layers.gru": partial(
        _gates_apart, "mygrad.nnet.layers.gru", "gru_reset_before", ("U", "W", "b"),
        {"z": "z", "r": "r", "n": "h"}, False,
    ),
    "epynn.GRU": partial(
        _gates_apart, "epynn.GRU", "gru_reset_before", ("U", "V", "b"),
        {"z": "z", "r": "r", "n": "hh"}, True,
    ),
    "epynn.LSTM": partial(
        _gates_apart, "epynn.LSTM", "lstm", ("U", "V", "b"),
        {"f": "f", "i": "i", "g": "g", "o": "o"}, True,
    ),
    "epynn.RNN": partial(
        _gates_apart, "epynn.RNN", "rnn_tanh", ("U", "V", "b"), {"": ""}, True
    ),
}  # fmt: skip
"""The table: a library's layer, and its layout."""


def _any(value: object) -> bool:
    return True


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_offset(value: object) -> bool:
    number = accept.number(value)
    return value is None or (number is not None and isfinite(number))


_FLAG = (_is_flag, "True or False")
_WORD = (lambda value: isinstance(value, str), "a text")
OPTIONS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("bias", "peepholes", "reset_after", "reverse", "use_bias"), _FLAG),
    **dict.fromkeys(("activation", "backend", "nonlinearity"), _WORD),
    "use_peephole": _FLAG,
    "forget_bias": (_is_offset, "a finite number"),
    "layer": (accept.is_whole, "a number from 0"),
    "linear_before_reset": (lambda value: value in (0, 1), "0 or 1"),
}
"""What values of an option are, and how a message says it."""


def dialect(name: str, **options: Any) -> Dialect:
    """Return a dialect by name, with the options that change its layout.

    ``dialect("keras.layers.GRU", reset_after=False)`` and, as one text,
    ``dialect("keras.layers.GRU(reset_after=False)")`` are the same. Raises ArgumentError.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"dialect: name is {name!r}, expected a text such as 'torch.nn.LSTM'")
    name, _, rest = name.partition("(")
    options = _options(name, rest) | options
    row = ROWS.get(name) or row_of_package(name)
    if row is None:
        known = [*ROWS, *names_of_packages()]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ArgumentError(f"dialect {name!r} is not known; {hint}known: {', '.join(known)}")
    for option, value in options.items():
        fits, expected = OPTIONS.get(option, (_any, ""))
        if not fits(value):
            raise ArgumentError(
                f"dialect {name!r}: {option} is {accept.quoted(value)}, expected {expected}"
            )
    try:
        return row(**options)
    except TypeError as error:
        raise ArgumentError(
            f"dialect {name!r}: options {options} do not fit: {error}; leave them out, or look "
            f"them up in docs/reference/weights.md"
        ) from None


def _options(name: str, text: str) -> dict[str, Any]:
    """Read ``reset_after=False)``, the rest of a dialect's name. Raises ArgumentError."""
    if not text:
        return {}
    try:
        call = ast.parse(f"f({text}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise ArgumentError(
            f"dialect {name!r}: cannot read ({text}; write options as in "
            f"'keras.layers.GRU(reset_after=False)'"
        ) from None

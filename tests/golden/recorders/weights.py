"""Compute ``weights/<layer>.npz`` with the libraries themselves; nothing here comes from cellgen.

    jax          (flax, dm-haiku, equinox)
    onnx         (onnx, onnxruntime)
    xlstm        (torch, xlstm; its layer without a convolution)
    xlstm_cuda   (the same)
    tensorflow   (tensorflow-cpu, tf-keras)
    keras        (keras, h5py, a backend): a model in two formats

What only runs on a GPU is held to the same library's layer that runs without one: the library
itself converts the weights (tf_keras's loader of files, xlstm's cells), or hands them to cuDNN's
operator (tf_keras's CuDNN layers), where they are taken down.

One file a layer: ``x`` (T, B, I), the states before (``state_0`` ...) and after (``result_0`` ...)
in the order h, c, and the library's own arrays by its own names, as ``array:<name>``; ``meta`` says
which library made it, and the dialect that names it. float64, ONNX and xlstm float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tests.golden import recorders

T, B, I, H = 4, 2, 3, 4
DRAW = np.random.default_rng(7)


def write(name: str, dialect: str, peer: str, arrays: dict, before: Iterable, after: Iterable, x):
    held = {"meta": json.dumps({"peer": peer, "dialect": dialect}), "x": x}
    held |= {f"array:{key}": value for key, value in arrays.items()}
    held |= {f"state_{at}": state for at, state in enumerate(before)}
    held |= {f"result_{at}": state for at, state in enumerate(after)}
    recorders.write(f"weights/{name}", held)


def drawn(like):
    """Arrays of the same shapes, drawn: biases are not zero either."""
    return {key: 0.5 * DRAW.normal(size=np.shape(value)) for key, value in like.items()}


def jax_libraries() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    _linen()
    _nnx()
    _haiku()
    _equinox()


def _linen() -> None:
    import flax
    import flax.linen as nn
    import jax
    from flax.traverse_util import flatten_dict, unflatten_dict

    for kind, count in (
        ("LSTMCell", 2),
        ("OptimizedLSTMCell", 2),
        ("GRUCell", 1),
        ("SimpleCell", 1),
    ):
        cell = getattr(nn, kind)(H, param_dtype=float)
        x, states = DRAW.normal(size=(T, B, I)), [DRAW.normal(size=(B, H)) for _ in range(count)]
        carry = (states[1], states[0]) if count == 2 else states[0]
        like = flatten_dict(cell.init(jax.random.key(0), carry, x[0])["params"], sep="/")
        arrays = drawn(like)
        params = {"params": unflatten_dict(arrays, sep="/")}
        for step in x:
            carry, _ = cell.apply(params, carry, step)
        after = carry[::-1] if count == 2 else (carry,)
        peer = f"flax {flax.__version__}"
        write(f"linen_{kind}", f"flax.linen.{kind}", peer, arrays, states, after, x)


def _nnx() -> None:
    import flax
    from flax import nnx

    for kind, count in (("LSTMCell", 2), ("OptimizedLSTMCell", 2), ("GRUCell", 1)):
        cell = getattr(nnx, kind)(I, H, param_dtype=float, rngs=nnx.Rngs(0))
        x, states = DRAW.normal(size=(T, B, I)), [DRAW.normal(size=(B, H)) for _ in range(count)]
        arrays = {}
        for path, value in nnx.to_flat_state(nnx.state(cell, nnx.Param)):
            arrays["/".join(map(str, path))] = 0.5 * DRAW.normal(size=value.shape)
            holder = cell
            for part in path[:-1]:
                holder = getattr(holder, part)
            getattr(holder, path[-1])[...] = arrays["/".join(map(str, path))]
        carry = (states[1], states[0]) if count == 2 else states[0]
        for step in x:
            carry, _ = cell(carry, step)
        after = carry[::-1] if count == 2 else (carry,)
        peer = f"flax {flax.__version__}"
        write(f"nnx_{kind}", f"flax.nnx.{kind}", peer, arrays, states, after, x)


def _haiku() -> None:
    import haiku as hk
    import jax

    for kind, count in (("LSTM", 2), ("GRU", 1), ("VanillaRNN", 1)):

        def step(x, state, kind=kind):
            return getattr(hk, kind)(H)(x, state)[1]

        made = hk.without_apply_rng(hk.transform(step))
        x, states = DRAW.normal(size=(T, B, I)), [DRAW.normal(size=(B, H)) for _ in range(count)]
        carry = hk.LSTMState(*states) if count == 2 else states[0]
        params = made.init(jax.random.key(0), x[0], carry)
        flat, arrays = {}, {}
        for module, held in params.items():
            flat[module] = drawn(held)
            end = module.partition("/")[2]
            arrays |= {f"{end}/{k}" if end else k: v for k, v in flat[module].items()}
        for step_x in x:
            carry = made.apply(flat, step_x, carry)
        after = (carry.hidden, carry.cell) if count == 2 else (carry,)
        write(
            f"haiku_{kind}", f"haiku.{kind}", f"dm-haiku {hk.__version__}", arrays, states, after, x
        )


def _equinox() -> None:
    import equinox as eqx
    import jax

    for kind, count in (("LSTMCell", 2), ("GRUCell", 1)):
        cell = getattr(eqx.nn, kind)(I, H, key=jax.random.key(0))
        names = ["weight_ih", "weight_hh", "bias"] + (["bias_n"] if kind == "GRUCell" else [])
        arrays = drawn({name: getattr(cell, name) for name in names})
        cell = eqx.tree_at(
            lambda c, names=names: [getattr(c, name) for name in names], cell, list(arrays.values())
        )
        x, states = DRAW.normal(size=(T, B, I)), [DRAW.normal(size=(B, H)) for _ in range(count)]
        carry = tuple(states) if count == 2 else states[0]
        for step in x:
            carry = jax.vmap(cell)(step, carry)
        after = carry if count == 2 else (carry,)
        peer = f"equinox {eqx.__version__}"
        write(f"equinox_{kind}", f"equinox.nn.{kind}", peer, arrays, states, after, x)


def onnx_operators() -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    cases = (
        ("LSTM", 4, {}, "onnx.LSTM(peepholes=True)"),
        ("GRU", 3, {"linear_before_reset": 0}, "onnx.GRU"),
        ("GRU", 3, {"linear_before_reset": 1}, "onnx.GRU(linear_before_reset=1)"),
        ("RNN", 1, {}, "onnx.RNN"),
    )
    for kind, gates, attributes, dialect in cases:
        shapes = {"W": (1, gates * H, I), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
        count = 2 if kind == "LSTM" else 1
        if kind == "LSTM":
            shapes["P"] = (1, 3 * H)
        arrays = {key: 0.5 * DRAW.normal(size=shape) for key, shape in shapes.items()}
        x, states = DRAW.normal(size=(T, B, I)), [DRAW.normal(size=(B, H)) for _ in range(count)]
        inputs = {"X": x, **arrays, "h0": states[0][None]}
        inputs |= {"c0": states[1][None]} if count == 2 else {}
        order = ["X", "W", "R", "B", "", "h0"] + (["c0", "P"] if kind == "LSTM" else [])
        results = ["", "Y_h"] + (["Y_c"] if count == 2 else [])
        node = helper.make_node(kind, order, results, hidden_size=H, **attributes)
        graph = helper.make_graph(
            [node],
            "layer",
            [
                helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape)
                for k, v in inputs.items()
            ],
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, (1, B, H)) for k in results if k],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        fed = {key: value.astype(np.float32) for key, value in inputs.items()}
        after = [result[0] for result in session.run(None, fed)]
        held = {key: fed[key] for key in arrays}
        name = f"onnx_{kind}_{attributes.get('linear_before_reset', 0)}"
        before = [state.astype(np.float32) for state in states]
        peer = f"onnxruntime {onnxruntime.__version__}"
        write(name, dialect, peer, held, before, after, fed["X"])


def xlstm_layer() -> None:
    import torch
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    heads, units = 2, 3
    config = sLSTMLayerConfig(
        embedding_dim=heads * units, num_heads=heads, conv1d_kernel_size=0, backend="vanilla",
        dtype="float32", enable_automatic_mixed_precision=False,
    )  # fmt: skip
    layer = sLSTMLayer(config)
    names = [f"{gate}.weight" for gate in ("fgate", "igate", "zgate", "ogate")]
    names += ["slstm_cell._recurrent_kernel_", "slstm_cell._bias_"]
    held = {name: p for name, p in layer.named_parameters() if name in names}
    with torch.no_grad():
        for parameter in held.values():
            parameter.copy_(torch.from_numpy(0.5 * DRAW.normal(size=tuple(parameter.shape))))
        x = torch.from_numpy(DRAW.normal(size=(B, T, heads * units))).float()
        cat = torch.cat([layer.fgate(x), layer.igate(x), layer.zgate(x), layer.ogate(x)], dim=-1)
        _, states = layer.slstm_cell(cat)
    after = [state.reshape(B, heads, units).numpy() for state in states]
    zero = np.zeros((B, heads, units), np.float32)
    arrays = {name: parameter.detach().numpy() for name, parameter in held.items()}
    before = (zero, zero, zero, np.full_like(zero, -np.inf))
    dialect = "xlstm.sLSTMLayer(backend='vanilla')"
    write("xlstm_vanilla", dialect, "xlstm 2.0.6", arrays, before, after, x.numpy().swapaxes(0, 1))


def xlstm_cuda() -> None:
    """Draw weights in the CUDA cell's layout; run them by the other cell, converted by both."""
    import torch
    from xlstm.blocks.slstm.cell import sLSTMCell_cuda, sLSTMCellConfig
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    heads, units = 2, 3
    sizes = {"num_heads": heads, "dtype": "float32", "enable_automatic_mixed_precision": False}
    layer = sLSTMLayer(
        sLSTMLayerConfig(
            embedding_dim=heads * units, conv1d_kernel_size=0, backend="vanilla", **sizes
        )
    )
    cell = sLSTMCell_cuda(
        sLSTMCellConfig(hidden_size=heads * units, backend="cuda", **sizes), skip_backend_init=True
    )
    held = {f"slstm_cell.{name}": p for name, p in cell.named_parameters()}
    gates = [f"{gate}.weight" for gate in ("fgate", "igate", "zgate", "ogate")]
    held |= {name: p for name, p in layer.named_parameters() if name in gates}
    other = layer.slstm_cell
    with torch.no_grad():
        for parameter in held.values():
            parameter.copy_(torch.from_numpy(0.5 * DRAW.normal(size=tuple(parameter.shape))))
        kernel = cell._recurrent_kernel_int2ext(cell._recurrent_kernel_)
        other._recurrent_kernel_.copy_(other._recurrent_kernel_ext2int(kernel))
        other._bias_.copy_(other._bias_ext2int(cell._bias_int2ext(cell._bias_)))
        x = torch.from_numpy(DRAW.normal(size=(B, T, heads * units))).float()
        cat = torch.cat([layer.fgate(x), layer.igate(x), layer.zgate(x), layer.ogate(x)], dim=-1)
        _, states = other(cat)
    after = [state.reshape(B, heads, units).numpy() for state in states]
    zero = np.zeros((B, heads, units), np.float32)
    before = (zero, zero, zero, np.full_like(zero, -np.inf))
    arrays = {name: parameter.detach().numpy() for name, parameter in held.items()}
    inputs = x.numpy().swapaxes(0, 1)
    write("xlstm_cuda", "xlstm.sLSTMLayer", "xlstm 2.0.6", arrays, before, after, inputs)


def tensorflow_layers() -> None:
    import tf_keras

    tf_keras.backend.set_floatx("float64")
    for kind, count in (("LSTM", 4), ("GRU", 3)):
        _of_cudnn(kind, count)


def _of_cudnn(kind: str, count: int) -> None:
    """Draw a CuDNN layer's arrays; run what the loader of a file makes of them for a plain layer.

    The parameters that the same layer hands to the operator CudnnRNN are those of the same states.
    """
    import tensorflow as tf
    import tf_keras
    from tf_keras.src.layers.rnn import cudnn_gru, cudnn_lstm
    from tf_keras.src.saving.legacy import hdf5_format

    layer = {"LSTM": cudnn_lstm.CuDNNLSTM, "GRU": cudnn_gru.CuDNNGRU}[kind](H)
    plain = getattr(tf_keras.layers, kind)(H, return_state=True)
    for one in (layer, plain):
        one.build((B, T, I))
    names = [weight.name.partition(":")[0].rpartition("/")[2] for weight in layer.weights]
    arrays = {n: 0.5 * DRAW.normal(size=w.shape) for n, w in zip(names, layer.weights, strict=True)}
    layer.set_weights(list(arrays.values()))
    plain.set_weights(hdf5_format._convert_rnn_weights(plain, list(arrays.values())))
    x = DRAW.normal(size=(T, B, I))
    states = [DRAW.normal(size=(B, H)) for _ in range(2 if kind == "LSTM" else 1)]
    begun = [tf.constant(state) for state in states]
    after = [s.numpy() for s in plain(tf.constant(x.swapaxes(0, 1)), initial_state=begun)[1:]]
    peer = f"tf-keras {tf_keras.__version__}"
    write(f"keras_CuDNN{kind}", f"keras.layers.CuDNN{kind}", peer, arrays, states, after, x)
    canonical = _canonical(
        _handed_to_the_operator(layer, tf.constant(x.swapaxes(0, 1)), begun), count
    )
    peer += f", tensorflow {tf.__version__}"
    write(f"tf_CudnnRNN_{kind}", f"tf.CudnnRNN.{kind}", peer, canonical, states, after, x)


def _handed_to_the_operator(layer, x, states):
    """Take down what a layer hands to CudnnRNNV3, which runs on a GPU alone."""
    from unittest import mock

    import tensorflow.compat.v2 as tf

    nothing = tf.zeros((1, B, H), tf.float64)
    with mock.patch.object(tf.raw_ops, "CudnnRNNV3", return_value=(nothing,) * 5) as operator:
        layer._process_batch(x, states)
    return np.asarray(operator.call_args.kwargs["params"])


def _canonical(flat, count: int) -> dict:
    """Cut cuDNN's parameters: matrices of the input, of the state, then their biases."""
    shapes = [(H, I)] * count + [(H, H)] * count + [(H,)] * (2 * count)
    cuts = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes]))
    assert not cuts.pop().size
    names = [f"{of}_{at}" for of in ("weights", "biases") for at in range(2 * count)]
    return {n: cut.reshape(s) for n, cut, s in zip(names, cuts, shapes, strict=True)}


def keras_model() -> None:
    """One model in the format of Keras 3, which numbers variables, and in the older HDF5."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.GRU(4, return_sequences=True, name="gru"),
        keras.layers.Bidirectional(keras.layers.LSTM(2, name="lstm"), name="both"),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((None, I)), *layers])
    for suffix in ("keras", "h5"):
        model.save(recorders.GOLDEN / f"weights/keras_model.{suffix}")


PARTS: dict[str, Callable[[], None]] = {
    "jax": jax_libraries,
    "onnx": onnx_operators,
    "xlstm": xlstm_layer,
    "xlstm_cuda": xlstm_cuda,
    "tensorflow": tensorflow_layers,
    "keras": keras_model,
}


def record(names: Sequence[str]) -> None:
    """Write the files of some libraries."""
    for name in names:
        PARTS[name]()

"""TensorFlow: BlockLSTM with its own gradient operator, keras.layers.GRU in both variants."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cellgen.bench.gates import stack, unstack
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem

BLOCK = "igfo"
"""BlockLSTM's columns are i, ci, f, o."""

KERAS = "zrn"


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Trace a ``tf.function``; threads are set before the first operator runs."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return (_block_lstm if problem.cell == "lstm" else _keras_gru)(problem, mode)


def _block_lstm(problem: Problem, mode: Mode) -> Prepared:
    arrays = problem.draw()
    T, I, H = problem.shape.T, problem.shape.I, problem.shape.H
    no_peephole = tf.zeros(H)
    arguments = {
        "seq_len_max": tf.constant(T, tf.int64),
        "x": tf.constant(arrays["x"]),
        "cs_prev": tf.constant(arrays["c_prev"]),
        "h_prev": tf.constant(arrays["h_prev"]),
        "w": tf.constant(np.concatenate([stack(arrays, k, BLOCK) for k in ("w", "u")])),
        "wci": no_peephole,
        "wcf": no_peephole,
        "wco": no_peephole,
        "b": tf.constant(stack(arrays, "b", BLOCK)),
    }
    d_h = tf.constant(arrays["d_h"])

    def forward() -> tf.Tensor:
        return tf.raw_ops.BlockLSTM(**arguments, forget_bias=0.0, cell_clip=-1.0).h

    def both() -> tuple[tf.Tensor, tf.Tensor]:
        kept = tf.raw_ops.BlockLSTM(**arguments, forget_bias=0.0, cell_clip=-1.0)
        gradients = tf.raw_ops.BlockLSTMGrad(
            **arguments,
            **kept._asdict(),
            cs_grad=tf.zeros_like(d_h),
            h_grad=d_h,
            use_peephole=False,
        )
        return kept.h, gradients

    def results(outcome: object) -> Arrays:
        if mode is Mode.FORWARD:
            return {"h": np.asarray(outcome)}
        assert isinstance(outcome, tuple)
        d = outcome[1]
        states = {"d_h_prev": d.h_prev_grad.numpy(), "d_c_prev": d.cs_prev_grad.numpy()}
        named = {"h": outcome[0].numpy(), "d_x": d.x_grad.numpy(), **states}
        named |= unstack(d.w_grad.numpy()[:I], "w", BLOCK)
        named |= unstack(d.w_grad.numpy()[I:], "u", BLOCK)
        return named | unstack(d.b_grad.numpy(), "b", BLOCK)

    return Prepared(tf.function(both if mode is Mode.BOTH else forward), results)


def _keras_gru(problem: Problem, mode: Mode) -> Prepared:
    """Batch first, as Keras wants it: arrays are transposed before anything is timed."""
    arrays, after, H = problem.draw(), problem.cell == "gru", problem.shape.H
    x, d_h = (tf.constant(np.swapaxes(arrays[n], 0, 1).copy()) for n in ("x", "d_h"))
    h_0 = tf.constant(arrays["h_prev"])
    layer = tf.keras.layers.GRU(H, return_sequences=True, reset_after=after)
    layer.build(x.shape)
    b = stack(arrays, "b", KERAS)
    if after:
        recurrent = np.zeros_like(b)
        recurrent[2 * H :] = arrays["c_n"]
        b = np.stack([b, recurrent])
    layer.set_weights([stack(arrays, "w", KERAS), stack(arrays, "u", KERAS), b])
    leaves = (x, h_0, *layer.trainable_variables)

    def forward() -> tf.Tensor:
        return layer(x, initial_state=h_0)

    def both() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([x, h_0])
            h = layer(x, initial_state=h_0)
        return h, tape.gradient(h, leaves, output_gradients=d_h)

    def results(outcome: object) -> Arrays:
        if mode is Mode.FORWARD:
            return {"h": np.swapaxes(np.asarray(outcome), 0, 1)}
        assert isinstance(outcome, tuple)
        d_x, d_h_prev, d_w, d_u, d_b = (a.numpy() for a in outcome[1])
        named = {"h": np.swapaxes(outcome[0].numpy(), 0, 1), "d_x": np.swapaxes(d_x, 0, 1)}
        named |= {"d_h_prev": d_h_prev, **unstack(d_w, "w", KERAS), **unstack(d_u, "u", KERAS)}
        if after:
            return {**named, **unstack(d_b[0], "b", KERAS), "d_c_n": d_b[1, 2 * H :]}
        return named | unstack(d_b, "b", KERAS)

    return Prepared(tf.function(both if mode is Mode.BOTH else forward), results)

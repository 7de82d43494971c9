"""The ops over time: BlockLSTM, BlockLSTMV2 and their gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept
from cellgen.compat.tf.arguments import (
    Arrays,
    checked_clip,
    lstm_arrays,
    lstm_kernel,
    named_arrays,
    peephole_gradients,
    rounded,
)
from cellgen.compat.tf.results import Array, BlockLSTM, BlockLSTMGrad
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel

LSTM_OUTPUTS = ("i", "cs", "f", "o", "ci", "co", "h")


def block_lstm(
    seq_len_max: int,
    x: ArrayLike,
    cs_prev: ArrayLike,
    h_prev: ArrayLike,
    w: ArrayLike,
    wci: ArrayLike,
    wcf: ArrayLike,
    wco: ArrayLike,
    b: ArrayLike,
    forget_bias: float = 1,
    cell_clip: float = 3,
    use_peephole: bool = False,
    name: str | None = None,
) -> BlockLSTM:
    """Run an LSTM over ``seq_len_max`` steps of x (T, N, I); every result is 0 from there on.

    The text of TensorFlow's op calls h_prev the state of the peepholes; they see cs_prev.

    Raises:
        ArgumentError: ``seq_len_max`` outside [0, T]; arrays whose shapes or dtypes do not agree.
    """
    arguments, dtype = lstm_arrays(
        "block_lstm", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    steps = _steps("block_lstm", seq_len_max, arguments["x"])
    results = _forward(arguments, steps, use_peephole, forget_bias, cell_clip)
    return BlockLSTM(*rounded(results, dtype))


def block_lstm_grad(
    seq_len_max: int,
    x: ArrayLike,
    cs_prev: ArrayLike,
    h_prev: ArrayLike,
    w: ArrayLike,
    wci: ArrayLike,
    wcf: ArrayLike,
    wco: ArrayLike,
    b: ArrayLike,
    i: ArrayLike,
    cs: ArrayLike,
    f: ArrayLike,
    o: ArrayLike,
    ci: ArrayLike,
    co: ArrayLike,
    h: ArrayLike,
    cs_grad: ArrayLike,
    h_grad: ArrayLike,
    use_peephole: bool,
    name: str | None = None,
    *,
    clip_gradient: str = "straight_through",
    cell_clip: float | None = None,
) -> BlockLSTMGrad:
    """Compute every gradient of ``block_lstm``; outputs as it returned them.

    ``cs_grad`` and ``h_grad`` (T, N, H) are the gradients from outside at every step; those through
    time are added here. From ``seq_len_max`` on they are ignored and x_grad is 0.
    ``clip_gradient="exact"`` needs the ``cell_clip`` of the forward call.

    Raises:
        ArgumentError: ``seq_len_max`` outside [0, T]; arrays whose shapes or dtypes do not agree;
            an exact clip without its bound.
    """
    arguments, dtype = lstm_arrays(
        "block_lstm_grad", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    outputs, _ = named_arrays(
        "block_lstm_grad", i=i, cs=cs, f=f, o=o, ci=ci, co=co, h=h, d_cs=cs_grad, d_h=h_grad
    )
    steps = _steps("block_lstm_grad", seq_len_max, arguments["x"])
    _over_time("block_lstm_grad", outputs, arguments["x"])
    clip = checked_clip("block_lstm_grad", clip_gradient, cell_clip)
    gradients = _backward(
        arguments, outputs, steps, lstm_kernel(use_peephole, clip_gradient), clip, wci
    )
    return BlockLSTMGrad(*rounded(gradients, dtype))


def block_lstm_v2(
    seq_len_max: int,
    x: ArrayLike,
    cs_prev: ArrayLike,
    h_prev: ArrayLike,
    w: ArrayLike,
    wci: ArrayLike,
    wcf: ArrayLike,
    wco: ArrayLike,
    b: ArrayLike,
    cell_clip: float = 0,
    use_peephole: bool = False,
    name: str | None = None,
) -> BlockLSTM:
    """Run ``block_lstm`` with the columns [i | f | ci | o] of w and b, and no forget bias.

    Raises:
        ArgumentError: as ``block_lstm``.
    """
    arguments, dtype = lstm_arrays(
        "block_lstm_v2", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    steps = _steps("block_lstm_v2", seq_len_max, arguments["x"])
    arguments |= {key: _swap_gates("block_lstm_v2", key, arguments[key]) for key in ("w", "b")}
    return BlockLSTM(*rounded(_forward(arguments, steps, use_peephole, 0, cell_clip), dtype))


def block_lstm_grad_v2(
    seq_len_max: int,
    x: ArrayLike,
    cs_prev: ArrayLike,
    h_prev: ArrayLike,
    w: ArrayLike,
    wci: ArrayLike,
    wcf: ArrayLike,
    wco: ArrayLike,
    b: ArrayLike,
    i: ArrayLike,
    cs: ArrayLike,
    f: ArrayLike,
    o: ArrayLike,
    ci: ArrayLike,
    co: ArrayLike,
    h: ArrayLike,
    cs_grad: ArrayLike,
    h_grad: ArrayLike,
    use_peephole: bool,
    name: str | None = None,
    *,
    clip_gradient: str = "straight_through",
    cell_clip: float | None = None,
) -> BlockLSTMGrad:
    """Compute every gradient of ``block_lstm_v2``; w_grad and b_grad in its column order.

    This is TensorFlow's kernel BlockLSTMGradV2, not what ``tf.GradientTape`` calls (see above).

    Raises:
        ArgumentError: as ``block_lstm_grad``.
    """
    label = "block_lstm_grad_v2"
    arguments, dtype = lstm_arrays(
        "block_lstm_grad_v2", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    outputs, _ = named_arrays(
        "block_lstm_grad_v2", i=i, cs=cs, f=f, o=o, ci=ci, co=co, h=h, d_cs=cs_grad, d_h=h_grad
    )
    steps = _steps(label, seq_len_max, arguments["x"])
    _over_time(label, outputs, arguments["x"])
    arguments |= {key: _swap_gates(label, key, arguments[key]) for key in ("w", "b")}
    clip = checked_clip(label, clip_gradient, cell_clip)
    gradients = _backward(
        arguments, outputs, steps, lstm_kernel(use_peephole, clip_gradient), clip, wci
    )
    gradients = gradients._replace(
        w_grad=_swap_gates(label, "w_grad", gradients.w_grad),
        b_grad=_swap_gates(label, "b_grad", gradients.b_grad),
    )
    return BlockLSTMGrad(*rounded(gradients, dtype))


def _forward(
    arguments: Arrays, steps: int, use_peephole: bool, forget_bias: float, cell_clip: float
) -> tuple[Array, ...]:
    """Run the first steps into arrays of zeros that hold all of them."""
    if arguments["cs_prev"].ndim != 2:
        raise ArgumentError(
            f"block_lstm: cs_prev has shape {arguments['cs_prev'].shape}, expected (N, H)"
        )
    time, rows, _ = arguments["x"].shape
    shape = (time, rows, arguments["cs_prev"].shape[-1])
    whole = {name: np.zeros(shape, arguments["x"].dtype) for name in LSTM_OUTPUTS}
    lstm_kernel(use_peephole, "straight_through").sequence_forward(
        **(arguments | {"x": arguments["x"][:steps]}),
        forget_bias=forget_bias,
        cell_clip=cell_clip,
        out={name: array[:steps] for name, array in whole.items()},
    )
    return tuple(whole.values())


def _backward(
    arguments: Arrays, outputs: Arrays, steps: int, kernel: Kernel, clip: float, wci: ArrayLike
) -> BlockLSTMGrad:
    """Differentiate the first steps; x_grad is 0 in the others."""
    x_grad = np.zeros_like(arguments["x"])
    gradients = kernel.sequence_backward(
        **(arguments | {"x": arguments["x"][:steps]}),
        **{name: array[:steps] for name, array in outputs.items()},
        cell_clip=clip,
        out={"d_x": x_grad[:steps]},
    )
    wci_grad, wcf_grad, wco_grad = peephole_gradients(gradients, wci)
    return BlockLSTMGrad(
        x_grad=x_grad,
        cs_prev_grad=gradients.d_cs_prev,
        h_prev_grad=gradients.d_h_prev,
        w_grad=gradients.d_w,
        wci_grad=wci_grad,
        wcf_grad=wcf_grad,
        wco_grad=wco_grad,
        b_grad=gradients.d_b,
    )


def _steps(label: str, seq_len_max: int, x: Array) -> int:
    """Read the number of steps that are used, an int64 scalar in TensorFlow."""
    if x.ndim != 3 or not accept.is_whole(seq_len_max, 0, len(x)):
        steps = x.shape[0] if x.ndim else 0
        raise ArgumentError(
            f"{label}: seq_len_max is {accept.quoted(seq_len_max)} with x of shape {x.shape}, "
            f"expected x (T, N, I) and an integer, 0 <= seq_len_max <= T; pass "
            f"seq_len_max={steps} to use every step"
        )
    return accept.whole(label, "seq_len_max", seq_len_max)


def _over_time(owner: str, outputs: Arrays, x: Array) -> None:
    """Refuse what has not as many steps as x, which the call cuts to the valid ones."""
    for name, array in outputs.items():
        if array.ndim != 3 or array.shape[:2] != x.shape[:2]:
            label = {"d_cs": "cs_grad", "d_h": "h_grad"}.get(name, name)
            raise ArgumentError(
                f"{owner}: {label} has shape {array.shape}, expected (T, N, H) with T = "
                f"{x.shape[0]} and N = {x.shape[1]} from x {x.shape}"
            )


def _swap_gates(label: str, name: str, array: Array) -> Array:
    """Exchange the two middle quarters of the columns: [i | f | ci | o] and [i | ci | f | o]."""
    if not array.ndim or array.shape[-1] % 4:
        raise ArgumentError(
            f"{label}: {name} has shape {array.shape}, expected a last axis of length 4 H"
        )
    gates = array.reshape(*array.shape[:-1], 4, array.shape[-1] // 4)
    return np.ascontiguousarray(gates[..., (0, 2, 1, 3), :]).reshape(array.shape)

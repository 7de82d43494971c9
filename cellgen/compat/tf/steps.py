"""TensorFlow's recurrent raw ops: GRUBlockCell, LSTMBlockCell, BlockLSTM, BlockLSTMV2, gradients.

Input and output: NumPy arrays with the names, order, layouts and defaults of ``tf.raw_ops`` (2.21),
results as named tuples. All arrays of a call are float32, float64 (TensorFlow has none) or float16
(LSTM; computed in float32 and rounded). N batch, I input, H hidden, T time.

    GRU:  w_ru (I + H, 2 H) rows [x ; h_prev], columns [r | u]; w_c (I + H, H); b_ru (2 H), b_c (H)
    LSTM: w (I + H, 4 H) rows [x ; h_prev], columns [i | ci | f | o], in V2 [i | f | ci | o];
          b (4 H) as the columns; wci, wcf, wco (H), ignored without ``use_peephole``;
          cell_clip <= 0 means no clipping

Where TensorFlow 2.21 is wrong or undefined, this is right:

* BlockLSTM leaves i, f, o, ci, co as uninitialised memory from step ``seq_len_max`` on, and ends
  the process when it exceeds T; here they are 0, and that is an error.
* ``tf.GradientTape`` differentiates BlockLSTMV2 with the kernel of the other column order, and has
  no gradient for GRUBlockCell and LSTMBlockCell at all; the functions here belong together.
* LSTMBlockCellGrad may zero wci, wcf and wco in place; nothing is written to an argument here.
* Float32 tanh is exactly 1 from about 8 on, which makes saturated gradients 0; not here.
* The published text of GRUBlockCell misprints its gradient in six places, that of LSTMBlockCell the
  order of the gates; these functions follow the kernels, which are right.

The LSTM gradients treat the clip of cs as the identity, as TensorFlow's do: on purpose, not the
derivative. ``clip_gradient="exact", cell_clip=...`` is the derivative of the forward function.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept
from cellgen.api import load
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel, Results

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]

PEEPHOLES = ("wci", "wcf", "wco")
LSTM_ARGUMENTS = ("x", "cs_prev", "h_prev", "w", *PEEPHOLES, "b")
LSTM_OUTPUTS = ("i", "cs", "f", "o", "ci", "co", "h")
LSTM_MEMBERS: Mapping[tuple[bool, str], str] = {
    (True, "straight_through"): "lstm_block_cell",
    (False, "straight_through"): "lstm_block_cell_no_peephole",
    (True, "exact"): "lstm_block_cell_exact_clip",
    (False, "exact"): "lstm_block_cell_no_peephole_exact_clip",
}
"""The shipped cell by (use_peephole, clip_gradient)."""


class GRUBlockCell(NamedTuple):
    """Gates, candidate and new state, each (N, H)."""

    r: Array
    u: Array
    c: Array
    h: Array


class GRUBlockCellGrad(NamedTuple):
    """Gradients: d_x (N, I), d_h_prev (N, H), d_c_bar (N, H), d_r_bar_u_bar (N, 2 H)."""

    d_x: Array
    d_h_prev: Array
    d_c_bar: Array
    d_r_bar_u_bar: Array


class LSTMBlockCell(NamedTuple):
    """Gates, cell state (clipped), its tanh and the output, each (N, H)."""

    i: Array
    cs: Array
    f: Array
    o: Array
    ci: Array
    co: Array
    h: Array


class LSTMBlockCellGrad(NamedTuple):
    """Gradients: cs_prev_grad (N, H), dicfo (N, 4 H) of the pre-activations, peepholes (H)."""

    cs_prev_grad: Array
    dicfo: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array


class BlockLSTM(NamedTuple):
    """What ``LSTMBlockCell`` returns at every step, each (T, N, H)."""

    i: Array
    cs: Array
    f: Array
    o: Array
    ci: Array
    co: Array
    h: Array


class BlockLSTMGrad(NamedTuple):
    """Gradients by argument: x (T, N, I), cs_prev and h_prev (N, H), then the parameters."""

    x_grad: Array
    cs_prev_grad: Array
    h_prev_grad: Array
    w_grad: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array
    b_grad: Array


# --- one step ------------------------------------------------------------------------------------


def gru_block_cell(
    x: ArrayLike,
    h_prev: ArrayLike,
    w_ru: ArrayLike,
    w_c: ArrayLike,
    b_ru: ArrayLike,
    b_c: ArrayLike,
    name: str | None = None,
) -> GRUBlockCell:
    """Compute one step of a GRU; x (N, I), h_prev (N, H). ``name`` is ignored.

    Raises:
        ArgumentError: arrays whose shapes or dtypes do not agree.
    """
    given, dtype = _arrays(
        "gru_block_cell", x=x, h_prev=h_prev, w_ru=w_ru, w_c=w_c, b_ru=b_ru, b_c=b_c
    )
    found = _kernel("gru_block_cell").forward(**given)
    return GRUBlockCell(*_rounded(found, dtype))


def gru_block_cell_grad(
    x: ArrayLike,
    h_prev: ArrayLike,
    w_ru: ArrayLike,
    w_c: ArrayLike,
    b_ru: ArrayLike,
    b_c: ArrayLike,
    r: ArrayLike,
    u: ArrayLike,
    c: ArrayLike,
    d_h: ArrayLike,
    name: str | None = None,
) -> GRUBlockCellGrad:
    """Compute the gradients of one step of a GRU; r, u, c as it returned them, d_h (N, H).

    Weight gradients follow by ``d_w_ru = [x h_prev]^T d_r_bar_u_bar``, ``d_w_c = [x h_prev.r]^T
    d_c_bar`` and column sums (``load("gru_block_cell").weight_gradients``).

    Raises:
        ArgumentError: arrays whose shapes or dtypes do not agree.
    """
    given, dtype = _arrays(
        "gru_block_cell_grad",
        x=x,
        h_prev=h_prev,
        w_ru=w_ru,
        w_c=w_c,
        b_ru=b_ru,
        b_c=b_c,
        r=r,
        u=u,
        c=c,
        d_h=d_h,
    )
    found = _kernel("gru_block_cell").backward(**given)
    return GRUBlockCellGrad(*_rounded(found, dtype))


def lstm_block_cell(
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
) -> LSTMBlockCell:
    """Compute one step of an LSTM; x (N, I), cs_prev and h_prev (N, H). ``name`` is ignored.

    Raises:
        ArgumentError: arrays whose shapes or dtypes do not agree.
    """
    given, dtype = _lstm_arrays(
        "lstm_block_cell", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    kernel = _lstm(use_peephole, "straight_through")
    found = kernel.forward(**given, forget_bias=forget_bias, cell_clip=cell_clip)
    return LSTMBlockCell(*_rounded(found, dtype))


def lstm_block_cell_grad(
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
    cs_grad: ArrayLike,
    h_grad: ArrayLike,
    use_peephole: bool,
    name: str | None = None,
    *,
    clip_gradient: str = "straight_through",
    cell_clip: float | None = None,
) -> LSTMBlockCellGrad:
    """Compute the gradients of one step of an LSTM; outputs as it returned them, gradients (N, H).

    ``dicfo`` is the gradient of the four pre-activations [i | ci | f | o] (TensorFlow's text says
    otherwise); ``[x_grad h_prev_grad] = dicfo w^T``, ``w_grad = [x h_prev]^T dicfo`` and ``b_grad =
    sum dicfo`` are left to the caller, as there. Peephole gradients are 0 without ``use_peephole``.
    ``clip_gradient="exact"`` needs the ``cell_clip`` of the forward call.

    Raises:
        ArgumentError: arrays whose shapes or dtypes do not agree; an exact clip without its bound.
    """
    given, dtype = _lstm_arrays(
        "lstm_block_cell_grad", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    given |= _arrays(
        "lstm_block_cell_grad", i=i, cs=cs, f=f, o=o, ci=ci, co=co, d_cs=cs_grad, d_h=h_grad
    )[0]
    clip = _clip("lstm_block_cell_grad", clip_gradient, cell_clip)
    found = _lstm(use_peephole, clip_gradient).backward(**given, cell_clip=clip)
    gradients = (found.d_cs_prev, found.d_icfo, *_peephole_gradients(found, wci))
    return LSTMBlockCellGrad(*_rounded(gradients, dtype))


# --- sequences -----------------------------------------------------------------------------------


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
    given, dtype = _lstm_arrays(
        "block_lstm", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    steps = _steps("block_lstm", seq_len_max, given["x"])
    found = _forward(given, steps, use_peephole, forget_bias, cell_clip)
    return BlockLSTM(*_rounded(found, dtype))


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
    given, dtype = _lstm_arrays(
        "block_lstm_grad", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    outputs, _ = _arrays(
        "block_lstm_grad", i=i, cs=cs, f=f, o=o, ci=ci, co=co, h=h, d_cs=cs_grad, d_h=h_grad
    )
    steps = _steps("block_lstm_grad", seq_len_max, given["x"])
    _over_time("block_lstm_grad", outputs, given["x"])
    clip = _clip("block_lstm_grad", clip_gradient, cell_clip)
    found = _backward(given, outputs, steps, _lstm(use_peephole, clip_gradient), clip, wci)
    return BlockLSTMGrad(*_rounded(found, dtype))


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
    given, dtype = _lstm_arrays(
        "block_lstm_v2", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    steps = _steps("block_lstm_v2", seq_len_max, given["x"])
    given |= {key: _swap_gates("block_lstm_v2", key, given[key]) for key in ("w", "b")}
    return BlockLSTM(*_rounded(_forward(given, steps, use_peephole, 0, cell_clip), dtype))


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
    where = "block_lstm_grad_v2"
    given, dtype = _lstm_arrays(
        "block_lstm_grad_v2", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    outputs, _ = _arrays(
        "block_lstm_grad_v2", i=i, cs=cs, f=f, o=o, ci=ci, co=co, h=h, d_cs=cs_grad, d_h=h_grad
    )
    steps = _steps(where, seq_len_max, given["x"])
    _over_time(where, outputs, given["x"])
    given |= {key: _swap_gates(where, key, given[key]) for key in ("w", "b")}
    clip = _clip(where, clip_gradient, cell_clip)
    found = _backward(given, outputs, steps, _lstm(use_peephole, clip_gradient), clip, wci)
    found = found._replace(
        w_grad=_swap_gates(where, "w_grad", found.w_grad),
        b_grad=_swap_gates(where, "b_grad", found.b_grad),
    )
    return BlockLSTMGrad(*_rounded(found, dtype))


def _forward(
    given: Arrays, steps: int, use_peephole: bool, forget_bias: float, cell_clip: float
) -> tuple[Array, ...]:
    """Run the first steps into arrays of zeros that hold all of them."""
    if given["cs_prev"].ndim != 2:
        raise ArgumentError(
            f"block_lstm: cs_prev has shape {given['cs_prev'].shape}, expected (N, H)"
        )
    time, rows, _ = given["x"].shape
    shape = (time, rows, given["cs_prev"].shape[-1])
    whole = {name: np.zeros(shape, given["x"].dtype) for name in LSTM_OUTPUTS}
    _lstm(use_peephole, "straight_through").sequence_forward(
        **(given | {"x": given["x"][:steps]}),
        forget_bias=forget_bias,
        cell_clip=cell_clip,
        out={name: array[:steps] for name, array in whole.items()},
    )
    return tuple(whole.values())


def _backward(
    given: Arrays, outputs: Arrays, steps: int, kernel: Kernel, clip: float, wci: ArrayLike
) -> BlockLSTMGrad:
    """Differentiate the first steps; x_grad is 0 in the others."""
    x_grad = np.zeros_like(given["x"])
    found = kernel.sequence_backward(
        **(given | {"x": given["x"][:steps]}),
        **{name: array[:steps] for name, array in outputs.items()},
        cell_clip=clip,
        out={"d_x": x_grad[:steps]},
    )
    wci_grad, wcf_grad, wco_grad = _peephole_gradients(found, wci)
    return BlockLSTMGrad(
        x_grad=x_grad,
        cs_prev_grad=found.d_cs_prev,
        h_prev_grad=found.d_h_prev,
        w_grad=found.d_w,
        wci_grad=wci_grad,
        wcf_grad=wcf_grad,
        wco_grad=wco_grad,
        b_grad=found.d_b,
    )


# --- arguments and layouts -----------------------------------------------------------------------


@cache
def _kernel(name: str) -> Kernel:
    return load(name)


def _lstm(use_peephole: bool, clip_gradient: str) -> Kernel:
    return _kernel(LSTM_MEMBERS[use_peephole, clip_gradient])


def _arrays(where: str, **given: ArrayLike) -> tuple[Arrays, np.dtype[Any]]:
    """Make arrays contiguous, float16 ones float32; also tell the dtype of the first.

    The kernels tell what is wrong with other dtypes and with shapes.
    """
    arrays = {
        name: np.asarray(accept.array(where, name, array), order="C")
        for name, array in given.items()
    }
    dtype = next(iter(arrays.values())).dtype
    if dtype == np.float16 and all(array.dtype == dtype for array in arrays.values()):
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return arrays, dtype


def _lstm_arrays(
    where: str, use_peephole: bool, arrays: tuple[ArrayLike, ...]
) -> tuple[Arrays, np.dtype[Any]]:
    """Name the arguments of an LSTM; without peepholes their weights are left out."""
    given = dict(zip(LSTM_ARGUMENTS, arrays, strict=True))
    if not accept.flag(where, "use_peephole", use_peephole):
        for name in PEEPHOLES:
            accept.array(where, name, given.pop(name))
    return _arrays(where, **given)


def _rounded(arrays: Results | tuple[Array, ...], dtype: np.dtype[Any]) -> list[Array]:
    return [array.astype(dtype, copy=False) for array in arrays]


def _peephole_gradients(found: Results, wci: ArrayLike) -> list[Array]:
    """The three gradients of the peepholes, zeros where the cell has none."""
    zeros = np.zeros(np.shape(wci), found[0].dtype)
    return [getattr(found, f"d_{name}", zeros) for name in PEEPHOLES]


def _steps(where: str, seq_len_max: int, x: Array) -> int:
    """Read the number of steps that are used, an int64 scalar in TensorFlow."""
    if x.ndim != 3 or not accept.is_whole(seq_len_max, 0, len(x)):
        steps = x.shape[0] if x.ndim else 0
        raise ArgumentError(
            f"{where}: seq_len_max is {accept.shown(seq_len_max)} with x of shape {x.shape}, "
            f"expected x (T, N, I) and an integer, 0 <= seq_len_max <= T; pass "
            f"seq_len_max={steps} to use every step"
        )
    return accept.whole(where, "seq_len_max", seq_len_max)


def _over_time(where: str, outputs: Arrays, x: Array) -> None:
    """Refuse what has not as many steps as x, which the call cuts to those that count."""
    for name, array in outputs.items():
        if array.ndim != 3 or array.shape[:2] != x.shape[:2]:
            label = {"d_cs": "cs_grad", "d_h": "h_grad"}.get(name, name)
            raise ArgumentError(
                f"{where}: {label} has shape {array.shape}, expected (T, N, H) with T = "
                f"{x.shape[0]} and N = {x.shape[1]} from x {x.shape}"
            )


def _clip(where: str, clip_gradient: str, cell_clip: float | None) -> float:
    """Check the choice of the clip's derivative; without a bound there is none (-1)."""
    if not isinstance(clip_gradient, str) or clip_gradient not in ("straight_through", "exact"):
        raise ArgumentError(
            f"{where}: clip_gradient is {accept.shown(clip_gradient)}, expected 'straight_through' "
            f"(TensorFlow's) or 'exact'"
        )
    if clip_gradient == "exact" and cell_clip is None:
        raise ArgumentError(
            f"{where}: clip_gradient='exact' needs the cell_clip of the forward call; pass it"
        )
    return -1.0 if cell_clip is None else accept.real(where, "cell_clip", cell_clip)


def _swap_gates(where: str, name: str, array: Array) -> Array:
    """Exchange the two middle quarters of the columns: [i | f | ci | o] and [i | ci | f | o]."""
    if not array.ndim or array.shape[-1] % 4:
        raise ArgumentError(
            f"{where}: {name} has shape {array.shape}, expected a last axis of length 4 H"
        )
    gates = array.reshape(*array.shape[:-1], 4, array.shape[-1] // 4)
    return np.ascontiguousarray(gates[..., (0, 2, 1, 3), :]).reshape(array.shape)

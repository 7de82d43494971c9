"""The ops of one step: GRUBlockCell, LSTMBlockCell and their gradients."""

from __future__ import annotations

from numpy.typing import ArrayLike

from cellgen.compat.tf.arguments import (
    checked_clip,
    kernel_of,
    lstm_arrays,
    lstm_kernel,
    named_arrays,
    peephole_gradients,
    rounded,
)
from cellgen.compat.tf.results import (
    GRUBlockCell,
    GRUBlockCellGrad,
    LSTMBlockCell,
    LSTMBlockCellGrad,
)


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
    arguments, dtype = named_arrays(
        "gru_block_cell", x=x, h_prev=h_prev, w_ru=w_ru, w_c=w_c, b_ru=b_ru, b_c=b_c
    )
    results = kernel_of("gru_block_cell").forward(**arguments)
    return GRUBlockCell(*rounded(results, dtype))


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
    arguments, dtype = named_arrays(
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
    gradients = kernel_of("gru_block_cell").backward(**arguments)
    return GRUBlockCellGrad(*rounded(gradients, dtype))


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
    arguments, dtype = lstm_arrays(
        "lstm_block_cell", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    kernel = lstm_kernel(use_peephole, "straight_through")
    results = kernel.forward(**arguments, forget_bias=forget_bias, cell_clip=cell_clip)
    return LSTMBlockCell(*rounded(results, dtype))


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
    arguments, dtype = lstm_arrays(
        "lstm_block_cell_grad", use_peephole, (x, cs_prev, h_prev, w, wci, wcf, wco, b)
    )
    arguments |= named_arrays(
        "lstm_block_cell_grad", i=i, cs=cs, f=f, o=o, ci=ci, co=co, d_cs=cs_grad, d_h=h_grad
    )[0]
    clip = checked_clip("lstm_block_cell_grad", clip_gradient, cell_clip)
    results = lstm_kernel(use_peephole, clip_gradient).backward(**arguments, cell_clip=clip)
    gradients = (results.d_cs_prev, results.d_icfo, *peephole_gradients(results, wci))
    return LSTMBlockCellGrad(*rounded(gradients, dtype))

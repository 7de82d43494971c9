"""TensorFlow's LSTMBlockCell, peepholes on and off, with both derivatives of the clip."""

from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Weight
from cellgen.language.ops import clip, concat, sigmoid, split, tanh, where
from cellgen.language.value import H, I


def lstm_block_cell(
    use_peephole: bool = True, clip_gradient: str = "straight_through"
) -> type[Cell]:
    """Return TensorFlow's LSTMBlockCell.

    ``clip_gradient="straight_through"`` treats the clip of the cell state as the identity in the
    backward pass, as TensorFlow's kernel does; ``"exact"`` is the derivative of the forward.
    """
    suffix = ("" if use_peephole else "_no_peephole") + (
        "" if clip_gradient == "straight_through" else "_exact_clip"
    )
    peepholes = "peepholes" if use_peephole else "no peepholes"
    clips = "straight-through" if clip_gradient == "straight_through" else "exact"
    kind = f"{peepholes}, {clips} gradient of the clip"

    class LSTMBlockCell(Cell, name="lstm_block_cell" + suffix):
        __doc__ = f"""Long short-term memory, {kind} (Zaremba, Sutskever & Vinyals 2014,
        arXiv:1409.2329), with the names, fused layout [i | ci | f | o] and run-time attributes of
        TensorFlow's LSTMBlockCell; cell_clip <= 0 means no clipping."""

        x, cs_prev, h_prev = Input(I), State(H), State(H)
        w = Weight(I + H, 4 * H)
        if use_peephole:
            wci, wcf, wco = Weight(H), Weight(H), Weight(H)
        b = Bias(4 * H)
        forget_bias, cell_clip = Scalar(1.0), Scalar(3.0)

        icfo = concat(x, h_prev) @ w + b
        i_bar, ci_bar, f_bar, o_bar = split(icfo, 4)
        i = sigmoid(i_bar + wci * cs_prev if use_peephole else i_bar)
        ci = tanh(ci_bar)
        f = sigmoid(f_bar + forget_bias + (wcf * cs_prev if use_peephole else 0))
        cs_raw = ci * i + cs_prev * f
        cs = where(
            cell_clip > 0, clip(cs_raw, -cell_clip, cell_clip, gradient=clip_gradient), cs_raw
        )
        co = tanh(cs)
        o = sigmoid(o_bar + wco * cs if use_peephole else o_bar)
        h = co * o

        outputs = i, cs, f, o, ci, co, h
        gradients = (cs_prev, icfo, wci, wcf, wco) if use_peephole else (cs_prev, icfo)

    return LSTMBlockCell


LSTMBlockCell = lstm_block_cell()
LSTMBlockCellNoPeephole = lstm_block_cell(use_peephole=False)
LSTMBlockCellExactClip = lstm_block_cell(clip_gradient="exact")
LSTMBlockCellNoPeepholeExactClip = lstm_block_cell(use_peephole=False, clip_gradient="exact")

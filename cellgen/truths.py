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

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from cellgen.cell import Cell, definition_of
from cellgen.cells import SHIPPED
from cellgen.errors import ArgumentError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = Mapping[str, Array]
Truth: TypeAlias = Callable[[Arrays], dict[str, Array]]


def sigmoid(x: Array) -> Array:
    """The logistic function through tanh: another formula than the interpreter's."""
    half: Array = 0.5 * np.tanh(0.5 * x)
    return half + 0.5


def elman(a: Arrays) -> dict[str, Array]:
    """h = tanh(x w + h' u + b)."""
    return {"h": np.tanh(a["x"] @ a["w"] + a["h_prev"] @ a["u"] + a["b"])}


def elman_relu(a: Arrays) -> dict[str, Array]:
    """h = max(0, x w + h' u + b)."""
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
    """c = f c' + i g; h = o tanh(c)."""
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
}
"""The forward of every shipped cell, by the cell's name."""


def truth_of(cell: type[Cell]) -> Truth | None:
    """Return a cell's hand-written forward: its own ``reference``, or that of a shipped cell.

    A subclass that re-states an equation does not inherit its parent's ``reference``.
    """
    own = cell.__dict__.get("reference")
    if own is not None:
        return _called_by_names(cell, getattr(own, "__func__", own))
    return TRUTHS.get(definition_of(cell).name) if cell in SHIPPED else None


def _called_by_names(cell: type[Cell], reference: Callable[..., object]) -> Truth:
    definition = definition_of(cell)
    names = [str(value.name) for value in definition.outputs]

    def truth(arguments: Arrays) -> dict[str, Array]:
        given = reference(**arguments)
        if not isinstance(given, Mapping):
            listed = given if isinstance(given, tuple) else (given,)
            given = dict(zip(names, listed, strict=False))
        missing = [name for name in names if name not in given]
        if missing:
            raise ArgumentError(
                f"{definition.name}: reference(...) does not return {', '.join(missing)}; "
                f"return a dict of all outputs ({', '.join(names)}) or a tuple in that order"
            )
        return {name: np.asarray(given[name]) for name in names}

    return truth

"""Tensors for a call of any cell, drawn, and the cells by what tests ask of them."""

from __future__ import annotations

import torch
from torch import Tensor

import cellgen.torch
from cellgen.api import shipped_names
from cellgen.torch.functional import CellFunction

SIZES = {"T": 3, "B": 2, "I": 2, "H": 3, "K": 2, "D": 2, "M": 3, "P": 2}
SHIPPED = shipped_names()
SEVERAL = ("elman", "gru", "sru")
"""Dense, gated, diagonal with a scalar and an output that is no state."""
STATED = ("alif", "izhikevich", "lif", "phased_lstm")
"""Their derivatives are stated, or they have steps, so that differences tell another story."""
WITH_KINKS = ("elman_relu", "li_gru", "ind_rnn_relu", "slstm_exp", "slstm_exp_heads")


def drawn(
    cell: CellFunction,
    *,
    learns: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **sizes: int,
) -> dict[str, Tensor]:
    """Tensors of a call by name: small numbers, positive where a cell divides by them."""
    made = {}
    own = dict.fromkeys(cell.layout.dims, 2) | SIZES | sizes
    generator = torch.Generator().manual_seed(seed)
    for place, item in enumerate(cell.layout.theta):
        shape = cell.layout.shape(item.name, own)
        value = torch.randn(shape, generator=generator, dtype=dtype) * 0.4
        if item.name in ("tau", "ts", "n_prev"):
            value = value.abs() + 0.5
        made[item.name] = value.requires_grad_(learns and place in cell.layout.learns)
    return made


def by_position(cell: CellFunction, tensors: dict[str, Tensor], **options: object) -> object:
    """The cell as a function of its tensors in order, as torch's checks want it."""
    names = tuple(tensors)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(cell(**dict(zip(names, given, strict=True)), **options))

    return run


def loop(cell: str, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The GRU of cuDNN's kind, and Elman's network, as a loop of torch's own functions."""
    p, h, over_time = tensors, tensors["h_prev"], []
    for x in p["x"]:
        if cell == "elman":
            h = torch.tanh(x @ p["w"] + h @ p["u"] + p["b"])
        else:
            z = torch.sigmoid(x @ p["w_z"] + h @ p["u_z"] + p["b_z"])
            r = torch.sigmoid(x @ p["w_r"] + h @ p["u_r"] + p["b_r"])
            n = torch.tanh(x @ p["w_n"] + p["b_n"] + r * (h @ p["u_n"] + p["c_n"]))
            h = (1 - z) * n + z * h
        over_time.append(h)
    return torch.stack(over_time), h


def function(name: str) -> CellFunction:
    return cellgen.torch.function(name)

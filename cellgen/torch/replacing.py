"""Swap the recurrent layers of an existing model for cellgen's, in place, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cellgen.runtime.call.stored import element_name
from cellgen.torch import recurrent
from cellgen.torch.devices import PLACES
from cellgen.torch.errors import KindError
from cellgen.torch.layers import CellLayers

PAIRS: Mapping[type, type] = {
    getattr(torch.nn, name): getattr(recurrent, name)
    for name in ("GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell")
}
"""Layers of ``torch.nn``, and what takes their place."""


@dataclass(frozen=True)
class Replaced:
    """What ``replace`` or ``restore`` did: layers by their names, and why others stay."""

    swapped: Mapping[str, str]
    kept: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name}: {what}" for name, what in self.swapped.items()]
        lines += [f"{name} stays: {why}" for name, why in self.kept.items()]
        return "\n".join(lines) or "no recurrent layer"


def replace(model: torch.nn.Module) -> Replaced:
    """Swap ``torch.nn``'s recurrent layers in a model for cellgen's; say which, and why not.

    The layers stay the same objects with the same parameters, hooks and modes: optimizers and
    state_dicts that know them do as before. Raises KindError.
    """
    if not isinstance(model, torch.nn.Module):
        raise KindError(
            f"replace: model is a {type(model).__name__}, expected a torch.nn.Module; pass that"
        )
    swapped, kept = {}, {}
    for name, layer in model.named_modules():
        label = name or "the model itself"
        if type(layer) in PAIRS:
            why = _obstacle(layer)
            if why:
                kept[label] = why
            else:
                layer.__class__ = PAIRS[type(layer)]
                layer.prepare()
                kind = type(layer).__name__
                swapped[label] = f"torch.nn.{kind} is cellgen.torch.{kind}"
        elif isinstance(layer, tuple(PAIRS)) and type(layer) not in PAIRS.values():
            parent = next(kind for kind in PAIRS if isinstance(layer, kind)).__name__
            kept[label] = f"{type(layer).__name__} is a class of its own, derived from {parent}"
    return Replaced(swapped, kept)


def restore(model: torch.nn.Module) -> Replaced:
    """Make cellgen's drop-ins in a model layers of ``torch.nn`` again; say which, and why not.

    The way back from ``replace``, for tools that know torch's layers by type. The layers stay the
    same objects with the same parameters. Raises KindError.
    """
    if not isinstance(model, torch.nn.Module):
        raise KindError(
            f"restore: model is a {type(model).__name__}, expected a torch.nn.Module; pass that"
        )
    swapped, kept = {}, {}
    peers = {mine: peer for peer, mine in PAIRS.items()}
    for name, layer in model.named_modules():
        label, kind = name or "the model itself", type(layer)
        if kind in peers:
            layer.__class__ = peers[kind]
            layer.__dict__.pop("_stack", None)
            swapped[label] = f"cellgen.torch.{kind.__name__} is torch.nn.{kind.__name__}"
        elif isinstance(layer, CellLayers):
            kept[label] = f"{layer.label} is a cell's, of which torch.nn has none"
        elif isinstance(layer, tuple(peers)):
            parent = next(mine for mine in peers if isinstance(layer, mine)).__name__
            kept[label] = f"{kind.__name__} is a class of its own, derived from {parent}"
    return Replaced(swapped, kept)


def _obstacle(layer: torch.nn.Module) -> str:
    """Why a layer stays; nothing where it need not."""
    for name, parameter in layer.named_parameters():
        place = PLACES.get(parameter.device.type)
        if place is None or parameter.is_meta:
            return f"{name} is on {parameter.device}, and kernels run on the CPU and on CUDA"
        if parameter.dtype not in place.dtypes:
            kind = element_name(parameter.dtype)
            return f"{name} is {kind}, and kernels are {place.kinds}"
    return ""

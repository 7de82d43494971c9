"""Doors of PyTorch: the function of a cell, and a layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import cellgen.torch
from tests.doors import Arrays, Case, Results


def tensors(arrays: Mapping[str, object], *, learns: bool = False) -> dict[str, object]:
    """Tensors in the place of arrays; other values stay."""
    return {
        n: torch.tensor(a, requires_grad=learns) if hasattr(a, "dtype") else a
        for n, a in arrays.items()
    }


def results_of(
    shown: Mapping[str, Tensor | None], case: Case, learning: Mapping[str, Tensor]
) -> Results:
    """Pass the gradients of a case back from what is shown."""
    names = [name for name, tensor in shown.items() if tensor is not None]
    torch.autograd.backward(
        [shown[n] for n in names], [torch.tensor(case.upstream[n]) for n in names]
    )
    gradients: Arrays = {n: t.grad.numpy() for n, t in learning.items() if t.grad is not None}
    values = {n: None if t is None else t.detach().numpy() for n, t in shown.items()}
    return Results(values, gradients)


def function(case: Case) -> Results:
    """``cellgen.torch.function``; without gradients it gives the same."""
    cell, options = cellgen.torch.function(case.cell), tensors(case.options)
    given = tensors(case.arguments, learns=True)
    shown = cell(**given, **options)._asdict()
    with torch.no_grad():
        alone = cell(**given, **options)._asdict()
    for name, tensor in alone.items():
        assert tensor is shown[name] or torch.equal(tensor, shown[name]), name
    return results_of(shown, case, given)


def layer(case: Case) -> Results:
    """``cellgen.torch.module`` of one layer, with the case's weights."""
    options = tensors(case.options)
    first = {"batch_first": options.pop("batch_first", False)}
    module = cellgen.torch.module(case.cell, case.arguments["x"].shape[-1], 3, **first)
    weights = tensors(case.of_role("weight", "bias"))
    named = dict(module.named_parameters())
    for name, value in weights.items():
        named[name].data.copy_(value)
    own = {n: named[n] for n in weights}
    given = tensors(case.of_role("input", "state"), learns=True)
    states = tuple(given[n][None] for n in case.of_role("state"))
    outputs, _ = module(
        given["x"],
        states if len(states) > 1 else states[0],
        return_outputs=True,
        **options,
    )
    shown = {n: t for n, t in outputs._asdict().items() if not n.endswith("_last")}
    return results_of(shown, case, {**given, **own})

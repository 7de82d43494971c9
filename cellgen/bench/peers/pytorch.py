"""PyTorch: nn.LSTM and nn.GRU; the GRU with the reset before the product as a Python loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cellgen.bench.gates import stack, unstack
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem

ORDERS = {"lstm": "ifgo", "gru": "rzn", "gru_reset_before": "zrn"}
Tensors = tuple[torch.Tensor, ...]


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Make a layer from the weights; gradients are asked for by ``torch.autograd.grad``."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(problem.flush_denormals)
    arrays = problem.draw()
    make = _loop if problem.cell == "gru_reset_before" else _module
    call, leaves, named = make(problem.cell, arrays)
    d_h = torch.from_numpy(arrays["d_h"])

    def forward() -> torch.Tensor:
        with torch.inference_mode():
            return call()

    def both() -> tuple[torch.Tensor, Tensors]:
        h = call()
        return h, torch.autograd.grad(h, leaves, d_h)

    def results(outcome: object) -> Arrays:
        if isinstance(outcome, tuple):
            return {"h": outcome[0].detach().numpy(), **named([g.numpy() for g in outcome[1]])}
        assert isinstance(outcome, torch.Tensor)
        return {"h": outcome.numpy()}

    return Prepared(both if mode is Mode.BOTH else forward, results)


Made = tuple[Callable[[], torch.Tensor], Tensors, Callable[[list[np.ndarray]], Arrays]]


def _module(cell: str, arrays: Arrays) -> Made:
    """nn.LSTM or nn.GRU, time first: transposed weights and two biases, of which c_n needs one."""
    order = ORDERS[cell]
    I, H = arrays["w_n" if cell == "gru" else "w_g"].shape
    layer = (torch.nn.GRU if cell == "gru" else torch.nn.LSTM)(I, H)
    recurrent = np.zeros(len(order) * H, np.float32)
    if cell == "gru":
        recurrent[2 * H :] = arrays["c_n"]
    values = [stack(arrays, "w", order).T, stack(arrays, "u", order).T, stack(arrays, "b", order)]
    parameters = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
    with torch.no_grad():
        for parameter, value in zip(parameters, [*values, recurrent], strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    states = ("h_prev", "c_prev") if cell == "lstm" else ("h_prev",)
    x, *starts = (torch.from_numpy(arrays[n]).requires_grad_() for n in ("x", *states))
    initial = tuple(start[None] for start in starts)

    def named(gradients: list[np.ndarray]) -> Arrays:
        d_x, *d_starts = gradients[: 1 + len(states)]
        d_w, d_u, d_b, d_c = gradients[1 + len(states) :]
        by_name = {"d_x": d_x, **{f"d_{n}": a for n, a in zip(states, d_starts, strict=True)}}
        for kind, gradient in (("w", d_w.T), ("u", d_u.T), ("b", d_b)):
            by_name |= unstack(gradient, kind, order)
        return by_name | ({"d_c_n": d_c[2 * H :]} if cell == "gru" else {})

    call = lambda: layer(x, initial if cell == "lstm" else initial[0])[0]  # noqa: E731
    return call, (x, *starts, *parameters), named


def _loop(cell: str, arrays: Arrays) -> Made:
    """One product for the inputs of all steps, two for each step, as one would write it."""
    order, H = ORDERS[cell], arrays["h_prev"].shape[1]
    u = stack(arrays, "u", order)
    values = (
        arrays["x"],
        arrays["h_prev"],
        stack(arrays, "w", order),
        np.ascontiguousarray(u[:, : 2 * H]),
        np.ascontiguousarray(u[:, 2 * H :]),
        stack(arrays, "b", order),
    )
    leaves = tuple(torch.from_numpy(value).requires_grad_() for value in values)

    def call() -> torch.Tensor:
        x, h, w, u_zr, u_n, b = leaves
        hidden = []
        for a in torch.nn.functional.linear(x, w.T, b).unbind():
            a_zr, a_n = a.split((2 * H, H), dim=1)
            z, r = torch.sigmoid(torch.addmm(a_zr, h, u_zr)).chunk(2, dim=1)
            n = torch.tanh(torch.addmm(a_n, r * h, u_n))
            h = torch.lerp(n, h, z)
            hidden.append(h)
        return torch.stack(hidden)

    def named(gradients: list[np.ndarray]) -> Arrays:
        d_x, d_h_prev, d_w, d_u_zr, d_u_n, d_b = gradients
        by_name = {"d_x": d_x, "d_h_prev": d_h_prev, "d_u_n": d_u_n, **unstack(d_u_zr, "u", "zr")}
        return {**by_name, **unstack(d_w, "w", order), **unstack(d_b, "b", order)}

    return call, leaves, named


def sgemm(n: int, threads: int) -> Callable[[], object]:
    """PyTorch's matrix product (MKL or OpenBLAS)."""
    torch.set_num_threads(threads)
    a, b = torch.full((n, n), 0.5), torch.full((n, n), 0.25)
    c = torch.empty(n, n)
    return lambda: torch.mm(a, b, out=c)

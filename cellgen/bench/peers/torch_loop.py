"""PyTorch: any cell as a Python loop, written from its equations, run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem
from cellgen.targets.python.loop import Functions, loop_of
from cellgen.views.find import find_one

Tensors = tuple[torch.Tensor, ...]
Step = Callable[..., Tensors]


def _compared(test: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    return lambda a, b: test(a, b).to(torch.float32)


def _stop(a: torch.Tensor | float) -> torch.Tensor | float:
    return a.detach() if isinstance(a, torch.Tensor) else a


def _maximum(a: Any, b: Any) -> torch.Tensor:
    return torch.maximum(*_tensors(a, b))


def _minimum(a: Any, b: Any) -> torch.Tensor:
    return torch.minimum(*_tensors(a, b))


def _tensors(a: Any, b: Any) -> Tensors:
    """Both as tensors, where an equation has a number."""
    return torch.as_tensor(a, dtype=torch.float32), torch.as_tensor(b, dtype=torch.float32)


def _first_max(a: torch.Tensor, axes: int) -> torch.Tensor:
    flat = a.reshape(*a.shape[: a.ndim - axes], -1)
    chosen = torch.nn.functional.one_hot(flat.argmax(-1), flat.shape[-1])
    return chosen.to(a.dtype).reshape(a.shape)


FUNCTIONS: Functions = {
    "cg_exp": torch.exp,
    "cg_expm1": torch.expm1,
    "cg_log": torch.log,
    "cg_log1p": torch.log1p,
    "cg_tanh": torch.tanh,
    "cg_sigmoid": torch.sigmoid,
    "cg_softplus": torch.nn.functional.softplus,
    "cg_log_sigmoid": torch.nn.functional.logsigmoid,
    "cg_erf": torch.erf,
    "cg_sqrt": torch.sqrt,
    "cg_sin": torch.sin,
    "cg_cos": torch.cos,
    "cg_pow": torch.pow,
    "cg_abs": torch.abs,
    "cg_sign": torch.sign,
    "cg_floor": torch.floor,
    "cg_round": torch.round,
    "cg_atan2": torch.atan2,
    "cg_relu": torch.relu,
    "cg_hard_sigmoid": torch.nn.functional.hardsigmoid,
    "cg_maximum": _maximum,
    "cg_minimum": _minimum,
    "cg_clip": torch.clamp,
    "cg_gt": _compared(torch.gt),
    "cg_ge": _compared(torch.ge),
    "cg_lt": _compared(torch.lt),
    "cg_le": _compared(torch.le),
    "cg_where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "cg_stop": _stop,
    "cg_concat": torch.cat,
    "cg_sum": lambda a, axes: torch.sum(a, dim=axes, keepdim=True),
    "cg_first_max": _first_max,
    "cg_cumsum": lambda a, axis: torch.cumsum(a, dim=axis),
    "cg_cumprod": lambda a, axis: torch.cumprod(a, dim=axis),
    "cg_cummax": lambda a, axis: torch.cummax(a, dim=axis).values,
    "cg_logcumsumexp": lambda a, axis: torch.logcumsumexp(a, dim=axis),
    "cg_into_heads": lambda a, w: torch.tensordot(a, w, dims=1),
    "cg_heads": lambda a, w: torch.einsum("...kd,kde->...ke", a, w),
}


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Every operation a call of its own."""
    return prepared(problem, mode, threads, lambda step: step)


def prepared(
    problem: Problem, mode: Mode, threads: int, compiled: Callable[[Step], Step]
) -> Prepared:
    """Make the loop over ``compiled(step)``; gradients by ``torch.autograd.grad``."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(problem.flush_denormals)
    tensors = {name: torch.from_numpy(array) for name, array in problem.draw().items()}
    upstream = [tensors.pop(name) for name, _ in problem.upstream]
    wanted = [name.removeprefix("d_") for name, _ in problem.gradients]
    leaves = [tensors[name].requires_grad_(mode is Mode.BOTH) for name in wanted]
    sequence = _sequence(problem, tensors, compiled)
    names = problem.compared[mode]

    def forward() -> tuple[Tensors, Tensors]:
        with torch.inference_mode():
            return sequence(), ()

    def both() -> tuple[Tensors, Tensors]:
        outputs = sequence()
        gradients = torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True)
        return outputs, gradients

    def results(outcome: object) -> Arrays:
        assert isinstance(outcome, tuple)
        arrays = [tensor.detach().numpy() for part in outcome for tensor in part]
        return dict(zip(names, arrays, strict=True))

    return Prepared(both if mode is Mode.BOTH else forward, results)


def _sequence(
    problem: Problem, p: dict[str, torch.Tensor], compiled: Callable[[Step], Step]
) -> Callable[[], Tensors]:
    outputs = problem.compared[Mode.FORWARD]
    loop = loop_of(find_one(problem.selector).definition, problem.sizes, outputs)
    before, step = loop.functions(FUNCTIONS)
    step, count = compiled(step), len(outputs)
    order = [loop.outputs.index(name) for name in outputs]

    def sequence() -> Tensors:
        ahead = before(*(p[name] for name in loop.arguments))
        each, fixed = ahead[: len(loop.each)], ahead[len(loop.each) :]
        states = tuple(p[name] for name in loop.states)
        kept = []
        for now in zip(*(value.unbind() for value in each), strict=True):
            results = step(*now, *states, *fixed)
            kept.append(results[:count])
            states = results[count:]
        columns = list(zip(*kept, strict=True))
        return tuple(torch.stack(columns[index]) for index in order)

    return sequence

"""Run JAX's cases, short sequences: as steps with NumPy around them, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cellgen.proof.goldens.case import Array, Arrays, Attributes, forward, step_gradients
from cellgen.runtime.kernel import Kernel


@dataclass(frozen=True)
class JaxSequence:
    """A file of JAX's by the names of the cell: ``inputs`` tells which each of its arrays has."""

    inputs: Mapping[str, str]
    states: tuple[str, ...]
    arrays: Arrays
    scalars: Mapping[str, float]

    @property
    def over_time(self) -> tuple[str, ...]:
        """Names of the arrays that have steps."""
        return tuple(name for name in ("x", "ts") if name in self.arrays)


def _case(kernel: Kernel, z: Arrays, attributes: Attributes) -> JaxSequence:
    """Name JAX's arrays: ``W_z`` is ``w_z``, ``h0`` the first ``h_prev``; (T, B, .) throughout.

    An array takes the axes that the cell gives it: ``ts`` (T, B) is (T, B, 1), units are (heads,
    units of a head), one head has no axis; one that stacks layers, ``R_h`` (L, H, H), is ``r_h_1``,
    ``r_h_2``, ... Numbers of the file's record that the cell has as run-time scalars are given.
    """
    states = tuple(key[:-1] for key in z if key.endswith("0") and f"cot.{key[:-1]}" in z)
    names = {f"{state}0": f"{state}_prev" for state in states}
    inputs = {key: names.get(key, key.lower()) for key in z if "." not in key}
    axes = {a.name: len(a.shape) for a in kernel.forward.function.arguments}
    arrays = Arrays()
    for key, name in inputs.items():
        if name in axes:
            rank = axes[name] + (name in ("x", "ts"))
            arrays[name] = _with_axes(z[key], rank, int(attributes.get("heads", 1)))
        else:
            arrays |= {f"{name}_{layer}": part for layer, part in enumerate(z[key], start=1)}
    return JaxSequence(
        inputs, states, arrays, {k: v for k, v in attributes.items() if axes.get(k) == 0}
    )


def run_jax(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """JAX's sequences step by step, states and gradients handed on by NumPy; see ``_case``."""
    case = _case(kernel, z, attributes)
    arrays, over_time = dict(case.arrays), case.over_time
    carried = {f"{state}_prev": arrays.pop(f"{state}_prev") for state in case.states}
    weights = {name: array for name, array in arrays.items() if name not in over_time}
    steps = []
    for time in range(len(z["x"])):
        known = {n: arrays[n][time] for n in over_time} | weights | carried | dict(case.scalars)
        outputs = forward(kernel, known)
        steps.append((known, outputs))
        carried = {f"{state}_prev": outputs[state] for state in case.states}
    cotangents = {
        name: z[f"cot.{name}"].reshape(len(steps), *output.shape)
        for name, output in steps[0][1].items()
    }
    results = {
        name: np.stack([outputs[name] for _, outputs in steps]).reshape(z[f"cot.{name}"].shape)
        for name in cotangents
    }
    gradients = _back_through_time(kernel, steps, cotangents, case.states, over_time)
    return {
        **results,
        **{f"grad.{k}": _as_given(n, gradients, z[k]) for k, n in case.inputs.items()},
    }


def run_jax_over_time(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """JAX's sequences by the functions over time; see ``_case``."""
    case = _case(kernel, z, attributes)
    known: dict[str, Array | float] = {**case.arrays, **case.scalars}
    result = kernel.functions["sequence_forward"](out=None, **known, save=True)
    items = kernel.functions["sequence_forward"].function.results
    outputs = {item.name: getattr(result, item.name) for item in items if item.over_time}
    upstream = {f"d_{n}": z[f"cot.{n}"].reshape(a.shape) for n, a in outputs.items()}
    gradients = kernel.functions["sequence_backward"](
        out=None, **known, **outputs, **upstream, saved=result.saved
    )._asdict()
    results = {name: array.reshape(z[f"cot.{name}"].shape) for name, array in outputs.items()}
    return {
        **results,
        **{f"grad.{k}": _as_given(n, gradients, z[k]) for k, n in case.inputs.items()},
    }


def _with_axes(array: Array, rank: int, heads: int) -> Array:
    """A file's array with the cell's axes."""
    if array.ndim > rank:
        return array.reshape(array.shape[array.ndim - rank :])
    if array.ndim < rank and heads > 1:
        return array.reshape(*array.shape[:-1], heads, -1)
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def _as_given(name: str, gradients: Arrays, like: Array) -> Array:
    """The gradient of a file's array, in its own shape."""
    if f"d_{name}" in gradients:
        return gradients[f"d_{name}"].reshape(like.shape)
    layers = range(1, len(like) + 1)
    return np.stack([gradients[f"d_{name}_{layer}"] for layer in layers])


def _back_through_time(
    kernel: Kernel,
    steps: Sequence[tuple[Mapping[str, Array | float], Arrays]],
    cotangents: Arrays,
    states: Sequence[str],
    over_time: Sequence[str],
) -> Arrays:
    """Run the steps backwards: states hand gradients on, weights sum them, inputs keep them."""
    carried = {state: np.zeros_like(steps[0][1][state]) for state in states}
    sums, kept = Arrays(), {name: list[Array]() for name in over_time}
    for time in reversed(range(len(steps))):
        known, outputs = steps[time]
        upstream = {f"d_{s}": a[time] + carried.get(s, 0) for s, a in cotangents.items()}
        of_step = step_gradients(kernel, {**known, **outputs, **upstream})
        carried = {state: of_step[f"d_{state}_prev"] for state in states}
        for name in over_time:
            kept[name].insert(0, of_step[f"d_{name}"])
        for name, array in of_step.items():
            sums[name] = sums[name] + array if name in sums else array
    firsts = {f"d_{state}_prev": array for state, array in carried.items()}
    return {**sums, **firsts, **{f"d_{name}": np.stack(rows) for name, rows in kept.items()}}

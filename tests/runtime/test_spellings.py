"""An author's own names that look derived: results are those of the same cell with others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, H, Input, State, Weight, tanh
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.stacks import Layers

T, B, UNITS = 5, 2, 3
OURS = {"h_prev_last": "c", "x_last": "a"}


class Misleading(Cell):
    """Of its states one looks like a final one, one like the final state of an earlier value."""

    x, x_last_prev, h_prev_last_prev = Input(H), State(H), State(H)
    w, u, b = Weight(H, H), Weight(H, H), Bias(H)
    x_last = tanh(x @ w + h_prev_last_prev @ u + b)
    h_prev_last = x_last * h_prev_last_prev + x_last_prev
    outputs = x_last, h_prev_last


class Plain(Cell):
    """The same with other names."""

    x, a_prev, c_prev = Input(H), State(H), State(H)
    w, u, b = Weight(H, H), Weight(H, H), Bias(H)
    a = tanh(x @ w + c_prev @ u + b)
    c = a * c_prev + a_prev
    outputs = a, c


@cache
def kernels() -> tuple[Kernel, Kernel]:
    return cellgen.compile(Misleading), cellgen.compile(Plain)


def plain(name: str) -> str:
    """What a name of the one cell is in the other."""
    for theirs, ours in OURS.items():
        name = name.replace(theirs, ours)
    return name


def arrays(function: Any) -> dict[str, Any]:
    """Arrays for what a function takes, the same ones for both cells."""
    sizes = {"T": T, "B": B, "H": UNITS}
    rng = np.random.default_rng(4)
    return {
        a.name: rng.standard_normal([sizes[axis] for axis in a.shape]).astype(np.float32)
        for a in function.function.arguments
        if not a.saved and a.role != "output"
    }


def require_same(theirs: Any, ours: Any) -> None:
    assert {plain(name) for name in theirs} == set(ours)
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, ours[plain(name)], name)


@pytest.mark.parametrize("limit", [None, 0, 2])
def test_gradients(limit: int | None) -> None:
    found = []
    for kernel in kernels():
        forward, backward = (
            kernel.functions["sequence_forward"],
            kernel.functions["sequence_backward"],
        )
        run = forward(**arrays(forward), save=True)._asdict()
        saved = run.pop("saved")
        takes = {a.name for a in backward.function.arguments}
        call = arrays(backward) | {n: a for n, a in run.items() if n in takes} | arrays(forward)
        gradients = backward(**call, saved=saved, bp_lim=limit)
        found.append((run, gradients._asdict()))
    for theirs, ours in zip(*found, strict=True):
        require_same(theirs, ours)


@pytest.mark.parametrize("last_only", [False, True])
def test_layers(last_only: bool) -> None:
    found = []
    for kernel in kernels():
        given = arrays(kernel.functions["sequence_forward"])
        weights = {name: given[name] for name in ("w", "u", "b")}
        layers = Layers(kernel, [[weights], [weights]])
        first = layers.forward(given["x"])
        run = layers.forward(given["x"], first.last, save=True, last_only=last_only)
        gradients = layers.backward(run, run.output, run.last)
        found.append(({"y": run.output, "d": gradients.d_input}, run.last, gradients.d_states))
    for theirs, ours in zip(*found, strict=True):
        if isinstance(theirs, dict):
            require_same(theirs, ours)
            continue
        for their_layer, our_layer in zip(theirs, ours, strict=True):
            require_same(dict(their_layer[0]), dict(our_layer[0]))


def test_streams() -> None:
    found = []
    for kernel in kernels():
        given = arrays(kernel.functions["sequence_forward"])
        stream = kernel.stream({name: given[name] for name in ("w", "u", "b")}, rows=B)
        found.append([np.array(stream.step({"x": x})) for x in given["x"]])
    np.testing.assert_array_equal(*found)

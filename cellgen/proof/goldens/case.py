"""Run a peer's case: call the functions of a step with what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from cellgen.runtime.kernel import Kernel, Results

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = dict[str, Array]

Attributes: TypeAlias = Mapping[str, float]

Run: TypeAlias = Callable[[Kernel, Arrays, Attributes], Arrays]


def _given(kernel: Kernel, function: str, known: Mapping[str, Array | float]) -> Results:
    """Call a function with those of the known values that it accepts."""
    called = kernel.functions[function]
    names = [a.name for a in called.function.arguments if a.name in known]
    arguments: dict[str, object] = {name: known[name] for name in names}
    return called(out=None, **arguments)


def step_gradients(kernel: Kernel, known: Mapping[str, Array | float]) -> Arrays:
    """Run backward and what follows it; returns every gradient by name."""
    everything, gradients = dict(known), Arrays()
    for function in ("backward", "input_gradients", "weight_gradients"):
        if function in kernel.functions:
            results = _given(kernel, function, everything)
            gradients |= dict(zip(results._fields, results, strict=True))
            everything |= gradients
    return gradients


def forward(kernel: Kernel, known: Mapping[str, Array | float]) -> Arrays:
    """Run the forward function; returns outputs by name."""
    results = _given(kernel, "forward", known)
    return dict(zip(results._fields, results, strict=True))

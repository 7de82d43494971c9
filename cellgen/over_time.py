"""Run a cell's equations step by step with NumPy: the truth for functions over time.

Input: a ``Definition`` and arrays. Output: outputs over time and final states; complex arguments
give complex-step derivatives through all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cellgen.cell import Definition
from cellgen.derive import forward
from cellgen.kernel import Kernel
from cellgen.reference import Array, interpret
from cellgen.value import Role

STEP = 1e-100
"""Size of the imaginary step: its square is below anything that could be rounded away."""


@dataclass(frozen=True)
class Sequence:
    """Outputs over time by name, and final states by ``<state>_last``."""

    outputs: dict[str, Array]
    last: dict[str, Array]

    @property
    def results(self) -> dict[str, Array]:
        return {**self.outputs, **self.last}


def run_steps(
    definition: Definition, arguments: Mapping[str, Array], sizes: Mapping[str, int]
) -> Sequence:
    """Interpret the equations for ``sizes["T"]`` steps.

    Inputs are (T, B, ...), states the initial ones, scalars the defaults unless given.
    """
    following = {str(s.name): definition.next_state(s) for s in definition.states}
    wanted = tuple(dict.fromkeys((*definition.outputs, *following.values())))
    step = forward(definition.with_outputs(wanted))
    inputs = {str(v.name) for v in definition.with_role(Role.INPUT)}
    collected: dict[str, list[Array]] = {str(v.name): [] for v in definition.outputs}
    state = {name: arguments[name] for name in following}
    for t in range(sizes["T"]):
        now = {n: a[t] if n in inputs else a for n, a in arguments.items() if n not in state}
        values = interpret(step, {**definition.defaults, **now, **state}, sizes)
        for name, steps in collected.items():
            steps.append(values[name])
        state = {name: values[str(new.name)] for name, new in following.items()}
    outputs = {name: np.array(steps) for name, steps in collected.items()}
    last = {f"{new.name}_last": state[name] for name, new in following.items()}
    return Sequence(outputs, last)


def forward_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    dtype: str,
) -> dict[str, float]:
    """Compare ``sequence_forward`` with the equations; errors relative to the largest entry."""
    call = {name: np.asarray(a, dtype, order="C") for name, a in arguments.items()}
    found = kernel.functions["sequence_forward"](out=None, **call)
    wide = {name: a.astype(np.float64) for name, a in call.items()}
    errors = {}
    for name, expected in run_steps(definition, wide, sizes).results.items():
        scale = np.max(np.abs(expected), initial=0) or 1.0
        difference = np.abs(getattr(found, name).astype(np.float64) - expected)
        errors[name] = float(np.max(difference, initial=0) / scale)
    return errors


def gradient_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    upstream: Mapping[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> dict[str, float]:
    """Compare every gradient of ``sequence_backward`` with the complex step, in float64.

    Each gradient is compared along one random direction; errors are relative to the sum of the
    sizes of the terms, since terms of either sign may cancel.
    """
    result = kernel.sequence_forward(**arguments, save=True)
    outputs = {str(v.name): getattr(result, str(v.name)) for v in definition.outputs}
    gradients = kernel.sequence_backward(
        **arguments,
        **outputs,
        **upstream,
        saved=result.saved,
    )
    errors = {}
    for gradient, array in gradients._asdict().items():
        name = gradient.removeprefix("d_")
        direction = rng.standard_normal(array.shape)
        moved = {**arguments, name: arguments[name] + 1j * STEP * direction}
        results = run_steps(definition, moved, sizes).results
        loss = sum(np.sum(a * upstream[f"d_{n}"]) for n, a in results.items())
        terms = array * direction
        size = float(np.sum(np.abs(terms))) or 1.0
        errors[gradient] = float(abs(np.sum(terms) - np.imag(loss) / STEP)) / size
    return errors

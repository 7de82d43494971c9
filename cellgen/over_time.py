"""Run a cell's equations step by step with NumPy: the truth for functions over time.

Input: a ``Definition`` and arrays. Output: outputs over time and final states; complex arguments
give complex-step derivatives through all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cellgen.call_over_time import NONE, Options
from cellgen.cell import Definition
from cellgen.derive import forward
from cellgen.kernel import Kernel
from cellgen.reference import Array, interpret
from cellgen.value import Role

STEP = 1e-100
"""Size of the imaginary step: its square is below anything that could be rounded away."""

NUDGE = 2.0**-20
"""Relative size of the nudges that measure how rounding spreads, as in ``check``."""

PROBES = 2
"""Nudges with independent signs; the largest effect counts."""


@dataclass(frozen=True)
class Sequence:
    """Outputs over time by name, and final states by ``<state>_last``."""

    outputs: dict[str, Array]
    last: dict[str, Array]

    @property
    def results(self) -> dict[str, Array]:
        return {**self.outputs, **self.last}


def run_steps(
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    options: Options = NONE,
) -> Sequence:
    """Interpret the equations for ``sizes["T"]`` steps, those of each row that count.

    Inputs are (T, B, ...), states the initial ones, scalars the defaults unless given.
    """
    following = {str(s.name): definition.next_state(s) for s in definition.states}
    wanted = tuple(dict.fromkeys((*definition.outputs, *following.values())))
    step = forward(definition.with_outputs(wanted))
    inputs = {str(v.name) for v in definition.with_role(Role.INPUT)}
    collected: dict[str, list[Array]] = {str(v.name): [] for v in definition.outputs}
    state = {name: arguments[name] for name in following}
    states_after = {str(new.name): name for name, new in following.items()}
    started = np.zeros(sizes["B"], bool)
    for t in range(sizes["T"])[:: -1 if options.reverse else 1]:
        inside, counts, fresh = _flags_at(options, t, sizes["B"])
        state = {name: _where(fresh, 0 * a, a) for name, a in state.items()}
        now = {n: a for n, a in arguments.items() if n not in state}
        now |= {n: _where(counts, now[n][t], np.zeros_like(now[n][t])) for n in inputs & now.keys()}
        values = interpret(step, {**definition.defaults, **now, **state}, sizes)
        held = inside & ~counts & started & (not options.zero_output_for_mask)
        started |= counts
        for name, steps in collected.items():
            kept = state[states_after[name]] if name in states_after else 0 * values[name]
            steps.append(_where(counts, values[name], _where(held, kept, 0 * kept)))
        state = {
            name: _where(counts, values[str(new.name)], state[name])
            for name, new in following.items()
        }
    outputs = {name: _in_order(steps, options) for name, steps in collected.items()}
    last = {f"{new.name}_last": state[name] for name, new in following.items()}
    return Sequence(outputs, last)


def _keywords(options: Options) -> dict[str, object]:
    """Name the options that both functions take and the interpreter knows."""
    names = ("lengths", "mask", "reset", "reverse", "zero_output_for_mask")
    return {name: getattr(options, name) for name in names}


def _flags_at(options: Options, t: int, rows: int) -> tuple[Array, Array, Array]:
    """Which rows are within their lengths, which count, and which start from zero."""
    inside = np.ones(rows, bool) if options.lengths is None else t < np.asarray(options.lengths)
    counts = inside if options.mask is None else inside & np.asarray(options.mask)[t]
    fresh = counts & (False if options.reset is None else np.asarray(options.reset)[t])
    return inside, counts, fresh


def _where(rows: Array, one: Array, other: Array) -> Array:
    return np.where(rows.reshape(-1, *(1,) * (np.ndim(one) - 1)), one, other)


def _in_order(steps: list[Array], options: Options) -> Array:
    return np.array(steps[::-1] if options.reverse else steps)


def forward_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    dtype: str,
    options: Options = NONE,
) -> dict[str, float]:
    """Compare ``sequence_forward`` with the equations.

    Errors are relative to the largest entry, or to what rounding each argument once can do to it
    where that is more: a division by nearly zero magnifies it.
    """
    call = {name: np.asarray(a, dtype, order="C") for name, a in arguments.items()}
    found = kernel.functions["sequence_forward"](out=None, **call, **_keywords(options))
    wide = {name: a.astype(np.float64) for name, a in call.items()}
    exact = run_steps(definition, wide, sizes, options).results
    scales = {name: _largest(a) for name, a in exact.items()}
    rng = np.random.default_rng(0)
    for _ in range(PROBES):
        nudged = {n: a * (1 + NUDGE * rng.choice([-1, 1], size=a.shape)) for n, a in wide.items()}
        for name, array in run_steps(definition, nudged, sizes, options).results.items():
            scales[name] = max(scales[name], _largest(array - exact[name]) / NUDGE)
    return {
        name: _largest(getattr(found, name).astype(np.float64) - expected) / (scales[name] or 1.0)
        for name, expected in exact.items()
    }


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0))


def gradient_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    upstream: Mapping[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    options: Options = NONE,
) -> dict[str, float]:
    """Compare every gradient of ``sequence_backward`` with the complex step, in float64.

    Each gradient is compared along one random direction; errors are relative to the sum of the
    sizes of the terms, since terms of either sign may cancel.
    """
    chosen = _keywords(options)
    result = kernel.functions["sequence_forward"](out=None, **arguments, **chosen, save=True)
    outputs = {str(v.name): getattr(result, str(v.name)) for v in definition.outputs}
    gradients = kernel.functions["sequence_backward"](
        out=None, **arguments, **outputs, **upstream, **chosen, saved=result.saved
    )
    errors = {}
    for gradient, array in gradients._asdict().items():
        name = gradient.removeprefix("d_")
        direction = rng.standard_normal(array.shape)
        moved = {**arguments, name: arguments[name] + 1j * STEP * direction}
        results = run_steps(definition, moved, sizes, options).results
        loss = sum(np.sum(a * upstream[f"d_{n}"]) for n, a in results.items())
        terms = array * direction
        size = float(np.sum(np.abs(terms))) or 1.0
        errors[gradient] = float(abs(np.sum(terms) - np.imag(loss) / STEP)) / size
    return errors

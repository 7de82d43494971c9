"""Compare gradients of weights row by row with complex steps through the equations of that row.

A row's results depend on its own arguments alone: the loss of one row, moved along a direction of
the weights, tells that row's gradients, and no other's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.language.cell import Definition
from cellgen.program.interpret import STEP
from cellgen.proof.over_time import (
    CONDITION,
    ROUNDED,
    Sequence,
    as_call,
    learned_scalars,
    run_gradients,
    run_steps,
    with_poison,
)
from cellgen.proof.rounding import Array, Nudge, scales_of
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, Options


def row_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    upstream: Mapping[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    options: Options,
) -> dict[str, float]:
    """Return errors of ``per_row`` by gradient, the largest of all rows, in float64.

    Gradients are compared along one direction of all weights at once, relative to the sum of the
    sizes of the terms, or to what rounding can do to it where that is more (``rounding``); those of
    ``per_row="norms"`` with the squares of those of ``per_row=True``.
    """
    arguments = {**learned_scalars(definition), **arguments}
    timed = [f"d_{value.name}" for value in definition.outputs]
    above = with_poison(upstream, timed, options)
    items = {
        item.name: item.of
        for item in kernel.functions[BACKWARD].function.results
        if not {"T", "B"} & set(item.shape)
    }
    if not items:
        return {}

    def gradients(mode: bool | str, nudge: Nudge | None = None) -> dict[str, Array]:
        moved = {n: nudge(np.asarray(a)) if nudge else a for n, a in arguments.items()}
        laid_out = as_call(kernel, moved, options)
        return run_gradients(kernel, definition, laid_out, above, options, {"per_row": mode})

    along = {name: rng.standard_normal(arguments[of].shape) for name, of in items.items()}

    def terms(run: Mapping[str, Array]) -> list[Array]:
        return [(run[n] * along[n]).reshape(sizes["B"], -1) for n in items]

    def sums(run: Mapping[str, Array]) -> Array:
        return np.asarray(sum(term.sum(axis=1) for term in terms(run)))

    rows = gradients(True)
    moved = {of: arguments[of] + 1j * STEP * along[name] for name, of in items.items()}
    moves = _moves_of_rows(run_steps(definition, {**arguments, **moved}, sizes, options), upstream)
    sizes_of_rows = np.asarray(sum(np.abs(term).sum(axis=1) for term in terms(rows)))
    error = np.abs(sums(rows) - moves)
    if (error > ROUNDED * sizes_of_rows).any():
        spread = scales_of(_by_row(sums(rows)), lambda n, _: _by_row(sums(gradients(True, n))), rng)
        sizes_of_rows = np.maximum(sizes_of_rows, np.array([*spread.values()]) / CONDITION)
    worst = _worst(error, sizes_of_rows)
    norms, errors = gradients("norms"), dict[str, float]()
    for name in items:
        squares = (rows[name].reshape(sizes["B"], -1) ** 2).sum(axis=1)
        errors[name] = max(worst, _worst(np.abs(norms[name] - squares), squares))
    return errors


def _moves_of_rows(steps: Sequence, upstream: Mapping[str, Array]) -> Array:
    """How far the loss of each row moves along the direction in which arguments are complex."""
    moves: list[Array] = []
    for name, array in steps.results.items():
        terms = np.moveaxis(np.imag(array) / STEP * upstream[f"d_{name}"], name in steps.outputs, 0)
        moves.append(terms.reshape(len(terms), -1).sum(axis=1))
    return np.asarray(sum(moves))


def _by_row(numbers: Array) -> dict[str, Array]:
    return {str(row): number for row, number in enumerate(numbers)}


def _worst(errors: Array, sizes: Array) -> float:
    """The largest error, in the size of its row; infinite where one is no number."""
    relative = errors / np.where(sizes > 0, sizes, 1.0)
    return float(relative.max()) if np.isfinite(relative).all() else np.inf

"""Compare gradients over time in float32 with those of the kernel in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.proof.half_precision import run_and_gradients
from cellgen.proof.over_time import VALUES
from cellgen.proof.rounding import Array, Nudge, largest, scales_of
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FULL

FLOAT32_ROUNDOFF = 2.0**-24
"""The unit roundoff of float32: half the distance from 1 to the next number."""


def narrow_gradients(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    upstream: Mapping[str, Array],
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return errors by gradient, relative to its largest entry or to what rounding can do to it.

    ``arrays`` and ``upstream`` are numbers that float32 holds. What rounding does is measured with
    the kernel in float64, which is proved against complex steps: every argument is nudged, and
    what the forward pass hands to the backward pass is rounded to float32, which leaves few digits
    of 1 - y where a gate y is near 1 and of states that grow from step to step.
    """
    wide = {n: np.asarray(a, np.float64) for n, a in arrays.items()}
    above = {n: np.asarray(a, np.float64) for n, a in upstream.items()}

    def gradients(
        arguments: Mapping[str, Array], others: Mapping[str, Array], nudge: Nudge | None = None
    ) -> dict[str, Array]:
        return run_and_gradients(kernel, arguments, others, FULL, nudge)[BACKWARD]

    exact = gradients(wide, above)
    scales = scales_of(
        exact,
        lambda nudge, _: gradients(
            {n: nudge(a) for n, a in wide.items()}, {n: nudge(a) for n, a in above.items()}
        ),
        rng,
    )
    for name, array in gradients(wide, above, _rounded).items():
        moved = largest(array - exact[name]) / FLOAT32_ROUNDOFF
        if np.isfinite(moved):  # what overflows float32 is no rounding
            scales[name] = max(scales[name], VALUES * moved)
    narrow = gradients(
        {n: np.asarray(a, np.float32, order="C") for n, a in arrays.items()},
        {n: np.asarray(a, np.float32, order="C") for n, a in upstream.items()},
    )
    least = float(np.finfo(np.float32).tiny)
    errors = {n: largest(narrow[n] - a) / max(scales[n], least) for n, a in exact.items()}
    return {name: error if error >= 0 else np.inf for name, error in errors.items()}


def _rounded(array: Array) -> Array:
    return np.asarray(array.astype(np.float32).astype(array.dtype))

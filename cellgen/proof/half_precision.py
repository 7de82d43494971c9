"""Measure what products of operands in bfloat16 do to a run and to its gradients.

Input: a kernel and arrays. Output: errors by result, of float32 runs with ``products="bf16"``
beside the kernel in float64, which ``check`` has held to the equations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.proof.rounding import Array, Nudge, largest, scales_of
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, BF16, FORWARD, FULL

BF16_ROUNDOFF = 2.0**-8
"""The unit roundoff of bfloat16: half the distance from 1 to the next number."""


def run_and_gradients(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    upstream: Mapping[str, Array],
    products: str,
    nudge: Nudge | None = None,
) -> dict[str, dict[str, Array]]:
    """Run forward and backward; results by name, of each of the two functions.

    What the forward pass hands to the backward pass goes through ``nudge``.
    """
    forward, backward = kernel.functions[FORWARD], kernel.functions[BACKWARD]
    run = forward(out=None, **arrays, save=True, products=products)
    named = {n: a for n, a in run._asdict().items() if n != "saved"}
    saved: object = run.saved
    handed_on = named
    if nudge and isinstance(saved, Saved):
        saved = {n: nudge(a) for n, a in saved._asdict().items()}
        handed_on = {n: a if a is None else nudge(a) for n, a in named.items()}
    known = {**arrays, **handed_on, **upstream}
    names = [a.name for a in backward.function.arguments if not a.saved]
    arguments = {n: known[n] for n in names if n in known}
    gradients = backward(out=None, **arguments, saved=saved, products=products)
    return {FORWARD: named, BACKWARD: gradients._asdict()}


def bf16_errors(
    kernel: Kernel, arrays: Mapping[str, Array], rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """Compare with float64, by function and result.

    Errors are relative to the largest entry, or to what a change of every argument by
    ``BF16_ROUNDOFF``, up or down, can do to it where that is more (``rounding``): the gradients
    of a run that rounded are those of another point, and thresholds may be crossed. What float32
    leaves of terms that cancel for every argument counts as one such unit.
    """
    narrow = {n: np.asarray(a, np.float32, order="C") for n, a in arrays.items()}
    wide = {n: a.astype(np.float64) for n, a in narrow.items()}
    shapes = kernel.functions[FORWARD](out=None, **wide)._asdict()
    drawn = {f"d_{n}": rng.standard_normal(a.shape) for n, a in shapes.items() if a is not None}
    upstream = {n: a.astype(np.float32) for n, a in drawn.items()}
    above = {n: a.astype(np.float64) for n, a in upstream.items()}
    exact = run_and_gradients(kernel, wide, above, FULL)
    in_bf16 = run_and_gradients(kernel, narrow, upstream, BF16)
    plain = run_and_gradients(kernel, narrow, upstream, FULL)
    errors: dict[str, dict[str, float]] = {}
    for way, results in exact.items():
        scales = scales_of(
            results,
            lambda nudge, _, way=way: run_and_gradients(  # type: ignore[misc]
                kernel, {n: nudge(a) for n, a in wide.items()}, above, FULL
            )[way],
            rng,
            by=BF16_ROUNDOFF,
        )
        least = float(np.finfo(np.float32).tiny)
        errors[way] = {}
        for name, array in results.items():
            rounding = largest(plain[way][name] - array) / BF16_ROUNDOFF
            error = largest(in_bf16[way][name] - array) / max(scales[name], rounding, least)
            errors[way][name] = error if error >= 0 else float("inf")
    return errors

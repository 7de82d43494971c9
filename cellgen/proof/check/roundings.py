"""Prove runs that round: products of operands in bfloat16, arrays over time of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.proof.check.kinks import kinks_of
from cellgen.proof.check.points import (
    GRADIENT_SIZES,
    Arguments,
    Subject,
    draw_sequence,
    drawn_upstream,
)
from cellgen.proof.check.report import Row, judged
from cellgen.proof.half_precision import BF16_ROUNDOFF, bf16_errors
from cellgen.proof.half_storage import storage_errors
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD

BF16_BAR = 8 * BF16_ROUNDOFF
"""Operands of products are rounded to bfloat16; the rest is rounded as float32 rounds it. Eight
units: the state that a step hands on is an operand of each of the eight steps."""

KINKED_POINTS = 5
"""Points at most for a cell with thresholds or kinks, which rounded operands may cross."""


def prove_roundings(subject: Subject, kernel: Kernel) -> list[Row]:
    """Prove products in bfloat16, then arrays over time of 16 bits."""
    rows = prove_bf16(subject, kernel, np.random.default_rng(0))
    return rows + _prove_storage(subject, kernel, np.random.default_rng(0))


def prove_bf16(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare products of operands in bfloat16 with the kernel in float64.

    Rounded operands may cross a threshold or a kink, whose far side is another function. Where a
    cell has such, the best of some points counts: what is wrong is so at every point.
    """
    tries = KINKED_POINTS if kinks_of(subject.plain) else 1
    best = bf16_errors(kernel, _arrays(subject, rng), rng)
    for _ in range(tries - 1):
        if _worst(best) <= BF16_BAR:
            break
        best = min(best, bf16_errors(kernel, _arrays(subject, rng), rng), key=_worst)
    note = "T, B = 8, 3; of the rounding of operands"
    return [judged(f"C bf16 {way}", best[way], BF16_BAR, note) for way in (FORWARD, BACKWARD)]


def _prove_storage(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare arrays over time of 16 bits with those of float32, each rounded once: to the bit."""
    arrays = _arrays(subject, rng)
    narrow = {n: a.astype(np.float32) for n, a in arrays.items()}
    shapes = kernel.functions[FORWARD](out=None, **narrow)._asdict()
    upstream = drawn_upstream({n: a for n, a in shapes.items() if a is not None}, rng)
    errors = storage_errors(kernel, arrays, upstream)
    note = "T, B = 8, 3; bfloat16, float16; share of entries that are not float32's, rounded once"
    return [judged(f"C 16 bits {way}", errors[way], 0.0, note) for way in (FORWARD, BACKWARD)]


def _worst(errors: Mapping[str, Mapping[str, float]]) -> float:
    return max(error for of_one in errors.values() for error in of_one.values())


def _arrays(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Arguments of eight steps of three rows."""
    return draw_sequence(subject, (3, *GRADIENT_SIZES[1 : len(subject.definition.dims)]), 8, rng)[1]

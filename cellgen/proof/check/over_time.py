"""Compare the compiled functions over time with the equations step by step."""

from __future__ import annotations

import numpy as np

from cellgen.errors import BuildError
from cellgen.proof.check.errors import raise_to
from cellgen.proof.check.options import prove_options
from cellgen.proof.check.points import (
    GRADIENT_SIZES,
    Subject,
    draw_sequence,
    drawn_upstream,
    wide_lengths,
)
from cellgen.proof.check.report import Row, judged
from cellgen.proof.check.roundings import prove_roundings
from cellgen.proof.over_time import forward_errors, gradient_errors, truth_over_time
from cellgen.proof.precisions import narrow_gradients
from cellgen.proof.threads import differing_bits
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD

SEQUENCE_BARS = {"float32": 2.0**-17, "float64": 2.0**-46, "gradient": 1e-12}
"""As ``C_BARS``, times four: a rounding difference is carried, and may grow, over eight steps."""

NARROW_BAR = 2.0**-16
"""Gradients of float32: twice the bar of a forward pass, which as many roundings follow."""

WIDE_STEPS = 6
FEW_UNITS = ((1, 5), (5, 1))
"""(T, B) beside a point of more than two vectors: one step packs late, one row is hoisted."""

THREADS = 3
"""More than two, so that one has neighbours on both sides; 5 rows and 37 units divide by none."""


def prove_sequences(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare the functions over time with the equations step by step and with complex steps."""
    names = ("C float32 sequence_forward", "C float64 sequence_forward", "C sequence_backward")
    bars = (SEQUENCE_BARS["float32"], SEQUENCE_BARS["float64"], SEQUENCE_BARS["gradient"])
    kernel = subject.kernel
    if isinstance(kernel, BuildError):
        return [Row(n, None, b, "failed", str(kernel)) for n, b in zip(names, bars, strict=True)]
    if FORWARD not in kernel.functions:
        note = "this cell has the functions of a step only; `cellgen explain` says why"
        return [Row(n, None, b, "skipped", note) for n, b in zip(names, bars, strict=True)]
    errors: tuple[dict[str, float], ...] = ({}, {}, {})
    wide = wide_lengths(subject.definition)
    few = GRADIENT_SIZES[1 : len(wide)]
    for steps, lengths in ((WIDE_STEPS, wide), *((t, (b, *few)) for t, b in FEW_UNITS)):
        for worst, new in zip(errors, _errors(subject, kernel, lengths, steps, rng), strict=True):
            for name, error in new.items():
                raise_to(worst, name, error)
    shapes = f"{WIDE_STEPS}, {wide[0]}; " + "; ".join(f"{t}, {b}" for t, b in FEW_UNITS)
    units = ", ".join(f"{d} {n}" for d, n in zip(subject.definition.dims, wide, strict=True))
    note = f"T, B = {shapes}; the first with {units}"
    rows = [judged(n, e, b, note) for n, e, b in zip(names, errors, bars, strict=True)]
    rows += _prove_wide(subject, kernel, units, rng)
    return [*rows, *prove_options(subject, kernel, rng), *prove_roundings(subject, kernel)]


def _errors(
    subject: Subject,
    kernel: Kernel,
    lengths: tuple[int, ...],
    steps: int,
    rng: np.random.Generator,
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Errors of forward passes in either precision, and of gradients."""
    sizes, arrays = draw_sequence(subject, lengths, steps, rng)
    truth = truth_over_time(subject.definition, arrays, sizes)
    narrow, plain = (
        forward_errors(kernel, subject.definition, arrays, sizes, dtype, truth=truth)
        for dtype in ("float32", "float64")
    )
    upstream = drawn_upstream(truth.steps.results, rng)
    gradients = gradient_errors(kernel, subject.definition, arrays, upstream, sizes, rng)
    return narrow, plain, gradients


def _prove_wide(
    subject: Subject, kernel: Kernel, units: str, rng: np.random.Generator
) -> list[Row]:
    """Compare gradients of float32 with those of float64, and three threads with one to the bit."""
    sizes, arrays = draw_sequence(subject, wide_lengths(subject.definition), WIDE_STEPS, rng)
    run = kernel.functions[FORWARD](out=None, **arrays)._asdict()
    upstream = drawn_upstream({n: a for n, a in run.items() if a is not None}, rng)
    narrow = narrow_gradients(kernel, arrays, upstream, rng)
    bits = differing_bits(kernel, arrays, upstream, sizes, THREADS)
    note = f"{THREADS} threads and one, as the plan has it and in other ways; share of entries"
    return [
        judged(f"C float32 {BACKWARD}", narrow, NARROW_BAR, f"beside float64's; {units}"),
        judged(f"C {THREADS} threads", bits, 0.0, f"{note}; {units}"),
    ]

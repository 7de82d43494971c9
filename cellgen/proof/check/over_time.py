"""Compare the compiled functions over time with the equations step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cellgen.errors import BuildError
from cellgen.language.value import Role
from cellgen.proof.check.errors import raise_to
from cellgen.proof.check.kinks import kinks_of
from cellgen.proof.check.points import GRADIENT_SIZES, Arguments, Subject, draw_point, drawn_normal
from cellgen.proof.check.report import Row, judged
from cellgen.proof.half_precision import BF16_ROUNDOFF, bf16_errors
from cellgen.proof.half_storage import storage_errors
from cellgen.proof.over_time import forward_errors, gradient_errors, run_steps
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD, OF_OPTIONS, Options

SEQUENCE_BARS = {"float32": 2.0**-17, "float64": 2.0**-46, "gradient": 1e-12}
"""As ``C_BARS``, times four: a rounding difference is carried, and may grow, over eight steps."""

BF16_BAR = 8 * BF16_ROUNDOFF
"""Operands of products are rounded to bfloat16; the rest is rounded as float32 rounds it. Eight
units: the state that a step hands on is an operand of each of the eight steps."""

KINKED_POINTS = 5
"""Points at most for a cell with thresholds or kinks, which rounded operands may cross."""

SEQUENCE_SHAPES = ((8, 3), (1, 5), (5, 1))
"""(T, B): threads share rows, a single step packs late, a single row is hoisted."""


def prove_sequences(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare the functions over time with the equations step by step and with complex steps."""
    names = ("C float32 sequence_forward", "C float64 sequence_forward", "C sequence_backward")
    bars = (SEQUENCE_BARS["float32"], SEQUENCE_BARS["float64"], SEQUENCE_BARS["gradient"])
    kernel, definition = subject.kernel, subject.definition
    if isinstance(kernel, BuildError):
        return [Row(n, None, b, "failed", str(kernel)) for n, b in zip(names, bars, strict=True)]
    if "sequence_forward" not in kernel.functions:
        note = "this cell has the functions of a step only; `cellgen explain` says why"
        return [Row(n, None, b, "skipped", note) for n, b in zip(names, bars, strict=True)]
    errors: tuple[dict[str, float], ...] = ({}, {}, {})
    lengths = GRADIENT_SIZES[: len(definition.dims)]
    for steps, batch in SEQUENCE_SHAPES:
        point = draw_point(subject, (batch, *lengths[1:]), rng)
        sizes = {**point.sizes, "T": steps}
        arguments = dict(point.arguments)
        for value in definition.with_role(Role.INPUT):
            stacked = [drawn_normal(rng, value, sizes) for _ in range(steps)]
            arguments[str(value.name)] = np.array(stacked)
        scalars = {str(v.name) for v in definition.with_role(Role.SCALAR)}
        arrays = {n: a for n, a in arguments.items() if n not in scalars}
        for index, dtype in enumerate(("float32", "float64")):
            for name, error in forward_errors(kernel, definition, arrays, sizes, dtype).items():
                raise_to(errors[index], name, error)
        shapes = run_steps(definition, arrays, sizes).results
        upstream: Arguments = {
            f"d_{n}": np.asarray(rng.standard_normal(a.shape)) for n, a in shapes.items()
        }
        gradients = gradient_errors(kernel, definition, arrays, upstream, sizes, rng)
        for name, error in gradients.items():
            raise_to(errors[2], name, error)
    note = "T, B = " + "; ".join(f"{t}, {b}" for t, b in SEQUENCE_SHAPES)
    rows = [judged(n, e, b, note) for n, e, b in zip(names, errors, bars, strict=True)]
    rows += _prove_options(subject, kernel, rng)
    rows += _prove_bf16(subject, kernel, np.random.default_rng(0))
    return rows + _prove_storage(subject, kernel, np.random.default_rng(0))


def _prove_storage(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare arrays over time of 16 bits with those of float32, each rounded once: to the bit."""
    arrays = _bf16_arrays(subject, rng)
    wide = {n: a.astype(np.float32) for n, a in arrays.items()}
    shapes = kernel.functions[FORWARD](out=None, **wide)._asdict()
    upstream = {f"d_{n}": rng.standard_normal(a.shape) for n, a in shapes.items() if a is not None}
    errors = storage_errors(kernel, arrays, upstream)
    note = "T, B = 8, 3; bfloat16, float16; share of entries that are not float32's, rounded once"
    return [judged(f"C 16 bits {way}", errors[way], 0.0, note) for way in (FORWARD, BACKWARD)]


def _prove_bf16(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare products of operands in bfloat16 with the kernel in float64.

    Rounded operands may cross a threshold or a kink, whose far side is another function. Where a
    cell has such, the best of some points counts: what is wrong is so at every point.
    """
    tries = KINKED_POINTS if kinks_of(subject.plain) else 1
    best = bf16_errors(kernel, _bf16_arrays(subject, rng), rng)
    for _ in range(tries - 1):
        if _worst(best) <= BF16_BAR:
            break
        best = min(best, bf16_errors(kernel, _bf16_arrays(subject, rng), rng), key=_worst)
    note = "T, B = 8, 3; of the rounding of operands"
    return [judged(f"C bf16 {way}", best[way], BF16_BAR, note) for way in (FORWARD, BACKWARD)]


def _worst(errors: Mapping[str, Mapping[str, float]]) -> float:
    return max(error for of_one in errors.values() for error in of_one.values())


def _bf16_arrays(subject: Subject, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arguments of eight steps of three rows."""
    definition = subject.definition
    point = draw_point(subject, (3, *GRADIENT_SIZES[1 : len(definition.dims)]), rng)
    sizes = {**point.sizes, "T": 8}
    scalars = {str(v.name) for v in definition.with_role(Role.SCALAR)}
    arrays = {n: a for n, a in point.arguments.items() if n not in scalars}
    for value in definition.with_role(Role.INPUT):
        arrays[str(value.name)] = np.array([drawn_normal(rng, value, sizes) for _ in range(8)])
    return arrays


def _prove_options(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare with the equations where many options are given at once.

    Inputs of masked steps are NaN, and upstream gradients of outputs that show nothing: a
    result that depends on one shows it.
    """
    definition = subject.definition
    point = draw_point(subject, (4, *GRADIENT_SIZES[1 : len(definition.dims)]), rng)
    sizes = {**point.sizes, "T": 8}
    mask, reset = rng.random((8, 4)) < 0.7, rng.random((8, 4)) < 0.3
    rows = Options(np.array([8, 5, 0, 3]), mask, reset, reverse=True)
    cases = [(replace(rows, **chosen), limit) for chosen, limit in _tried()]
    valid = mask & (np.arange(8)[:, None] < np.asarray(rows.lengths))
    scalars = {str(v.name) for v in definition.with_role(Role.SCALAR)}
    arrays = {n: a for n, a in point.arguments.items() if n not in scalars}
    for value in definition.with_role(Role.INPUT):
        stacked = np.array([drawn_normal(rng, value, sizes) for _ in range(8)])
        where = valid.reshape(8, 4, *(1,) * (stacked.ndim - 2))
        arrays[str(value.name)] = np.where(where, stacked, np.nan)
    shapes = run_steps(definition, arrays, sizes, rows).results
    upstream: Arguments = {
        f"d_{n}": np.asarray(rng.standard_normal(a.shape)) for n, a in shapes.items()
    }
    found, gradients = dict[str, float](), dict[str, float]()
    for options, limit in cases:
        one = forward_errors(kernel, definition, arrays, sizes, "float64", options)
        two = gradient_errors(kernel, definition, arrays, upstream, sizes, rng, options, limit)
        for errors, new in ((found, one), (gradients, two)):
            for name, error in new.items():
                raise_to(errors, name, error)
    note, nans = "lengths, mask, reset, reverse", "NaN in masked steps"
    return [
        judged(f"C {way} with options", errors, SEQUENCE_BARS[bar], f"{note}; also {more}; {nans}")
        for way, errors, bar, more in (
            (FORWARD, found, "float64", _tried_text(FORWARD)),
            (BACKWARD, gradients, "gradient", f"{_tried_text(BACKWARD)}, bp_lim"),
        )
    ]


def _tried() -> list[tuple[dict[str, Any], int | None]]:
    """The options of each case beside those that say which steps are valid.

    With it how many states a term of the loss reaches where that is tried too: all of them.
    """
    numbers = sorted({number for option in OF_OPTIONS for number in option.tried})
    chosen = [{o.name: o.tried[n] for o in OF_OPTIONS if n in o.tried} for n in numbers]
    return [(one, 8 if index < 2 else None) for index, one in enumerate(chosen)]


def _tried_text(function: str) -> str:
    return ", ".join(o.name for o in OF_OPTIONS if o.tried and function in o.functions)

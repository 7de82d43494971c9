"""Compare the functions over time with the equations where options are given: all, then each alone.

Inputs of masked steps are NaN, and upstream gradients of outputs that show nothing: a result that
depends on one shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cellgen.language.value import Role
from cellgen.proof.check.errors import raise_to
from cellgen.proof.check.points import (
    GRADIENT_SIZES,
    Arguments,
    Array,
    Subject,
    draw_sequence,
    drawn_upstream,
)
from cellgen.proof.check.report import Row, judged
from cellgen.proof.over_time import (
    Truth,
    forward_errors,
    gradient_errors,
    run_steps,
    truth_over_time,
)
from cellgen.proof.per_row import row_errors
from cellgen.runtime.call.signature import shown_steps
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, BY_ROW, FORWARD, NONE, OF_OPTIONS, Options

STEPS, ROWS = 8, 4

FORWARD_BAR, GRADIENT_BAR = 2.0**-46, 1e-12
"""Those of functions over time without options (``SEQUENCE_BARS``)."""


class _Options:
    """The options of one cell under proof, at one point."""

    def __init__(self, subject: Subject, kernel: Kernel, rng: np.random.Generator) -> None:
        self.definition, self.kernel, self.rng = subject.definition, kernel, rng
        lengths = (ROWS, *GRADIENT_SIZES[1 : len(self.definition.dims)])
        self.sizes, self.arrays = draw_sequence(subject, lengths, STEPS, rng)
        self.mask, reset = rng.random((STEPS, ROWS)) < 0.7, rng.random((STEPS, ROWS)) < 0.3
        self.rows = Options(np.array([8, 5, 0, 3]), self.mask, reset, reverse=True)
        self.plain = truth_over_time(self.definition, self.arrays, self.sizes)
        self.upstream = drawn_upstream(self.plain.steps.results, rng)

    def all_together(self) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """Many at once, in some cases; gradients each alone in the first."""
        scales = None
        for number, chosen in enumerate(_tried()):
            options = replace(self.rows, **chosen)
            arrays = self._masked(options)
            if scales is None:
                truth = truth_over_time(self.definition, arrays, self.sizes, options)
                scales = truth.scales
            steps = run_steps(self.definition, arrays, self.sizes, options)
            limit = STEPS if number == 0 else None
            yield self._errors(arrays, options, Truth(steps, scales), limit, together=number > 0)

    def each_alone(self) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """One at a time; zeros of masked steps with a mask, without which they say nothing."""
        for options in _alone(self.rows):
            arrays, truth = self._masked(options), self.plain
            if _changes_steps(options):
                truth = truth_over_time(self.definition, arrays, self.sizes, options)
            elif options.every != 1:
                outputs = {n: a[shown_steps(options)] for n, a in truth.steps.outputs.items()}
                truth = replace(truth, steps=replace(truth.steps, outputs=outputs))
            yield self._errors(arrays, options, truth, None, together=True)
        yield self._errors(self.arrays, NONE, self.plain, STEPS, together=True)

    def by_row(self) -> dict[str, float]:
        """Gradients of weights row by row, where rows end, wait and start anew."""
        call = self.kernel, self.definition, self._masked(self.rows), self.upstream
        return row_errors(*call, self.sizes, self.rng, self.rows)

    def _errors(
        self,
        arrays: Arguments,
        options: Options,
        truth: Truth,
        limit: int | None,
        *,
        together: bool,
    ) -> tuple[dict[str, float], dict[str, float]]:
        call = (self.kernel, self.definition, arrays)
        forward = forward_errors(*call, self.sizes, "float64", options, truth)
        backward = gradient_errors(
            *call, self.upstream, self.sizes, self.rng, options, limit, together=together
        )
        return forward, backward

    def _masked(self, options: Options) -> Arguments:
        """The arguments, inputs being NaN at the steps that options mask."""
        valid = np.ones((STEPS, ROWS), bool) if options.mask is None else np.asarray(options.mask)
        if options.lengths is not None:
            valid = valid & (np.arange(STEPS)[:, None] < np.asarray(options.lengths))
        arrays = dict(self.arrays)
        for value in self.definition.with_role(Role.INPUT):
            stacked: Array = arrays[str(value.name)]
            present = valid.reshape(STEPS, ROWS, *(1,) * (stacked.ndim - 2))
            arrays[str(value.name)] = np.where(present, stacked, np.nan)
        return arrays


def prove_options(subject: Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare with the equations where options are given, all at once and each alone."""
    options = _Options(subject, kernel, rng)
    forward, gradients = dict[str, float](), dict[str, float]()
    for pair in (*options.all_together(), *options.each_alone(), ({}, options.by_row())):
        for errors, new in zip((forward, gradients), pair, strict=True):
            for name, error in new.items():
                raise_to(errors, name, error)
    note = "lengths, mask, reset, reverse"
    return [
        judged(f"C {way} with options", errors, bar, f"{note}, {more}; all together and each alone")
        for way, errors, bar, more in (
            (FORWARD, forward, FORWARD_BAR, _tried_text(FORWARD)),
            (BACKWARD, gradients, GRADIENT_BAR, f"{_tried_text(BACKWARD)}, bp_lim, per_row"),
        )
    ]


def _tried() -> list[dict[str, Any]]:
    """The options of each case beside those that say which steps are valid."""
    numbers = sorted({number for option in OF_OPTIONS for number in option.tried})
    return [{o.name: o.tried[n] for o in OF_OPTIONS if n in o.tried} for n in numbers]


def _alone(rows: Options) -> list[Options]:
    """One option each, of what says which steps are valid or of what is tried beside it."""
    valid = [{name: getattr(rows, name)} for name in ("lengths", "mask", "reset", "reverse")]
    others = [{o.name: next(iter(o.tried.values()))} for o in OF_OPTIONS if o.tried]
    chosen = [Options(**one) for one in (*valid, *others)]
    return [replace(o, mask=rows.mask) if o.zero_output_for_mask else o for o in chosen]


def _changes_steps(options: Options) -> bool:
    """Whether steps are other than those of a run without options."""
    by_row = (getattr(options, o.name) for o in OF_OPTIONS if o.kind == BY_ROW)
    return options.reverse or any(table is not None for table in by_row)


def _tried_text(function: str) -> str:
    return ", ".join(o.name for o in OF_OPTIONS if o.tried and function in o.functions)

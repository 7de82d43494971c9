"""Compare the interpreted forward pass with one written by hand."""

from __future__ import annotations

import numpy as np

from cellgen.program.interpret import interpret
from cellgen.proof.check.errors import FLOAT64_BAR, error_within, raise_to, result_scales
from cellgen.proof.check.points import SCALAR_FACTORS, Subject, draw_point, lengths_by_shape
from cellgen.proof.check.report import Row, judged
from cellgen.proof.truths import truth_of


def prove_forward(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare the program's outputs with the hand-written ones, over shapes."""
    name = "hand-written forward, float64"
    truth = truth_of(subject.cell)
    if truth is None:
        hint = "no hand-written forward; define reference(...) in the class body"
        return [Row(name, None, FLOAT64_BAR, "skipped", hint)]
    program, errors = subject.programs["forward"], dict[str, float]()
    for index, lengths in enumerate(lengths_by_shape(subject.definition, rng)):
        point = draw_point(subject, lengths, rng, SCALAR_FACTORS[index % len(SCALAR_FACTORS)])
        results = interpret(program, point.arguments, point.sizes)
        expected = truth(point.arguments)
        scales = result_scales(program, point.arguments, point.sizes, results, rng)
        for output, array in results.items():
            error = error_within(array, expected[output], scales, output, FLOAT64_BAR)
            raise_to(errors, output, error)
    return [judged(name, errors, FLOAT64_BAR, f"{', '.join(errors)}")]

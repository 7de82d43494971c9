"""Prove a cell: two accounts of the forward, exact gradients, C against the interpreter, goldens.

Input: a cell class. Output: a ``Report``, one row per claim with a figure, a bar and a verdict.
Not supported: kernels that run on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from cellgen.api import compile as compile_cell
from cellgen.errors import BuildError
from cellgen.language.cell import Cell, definition_of
from cellgen.pipeline import programs_of
from cellgen.program.derive import forward as forward_program
from cellgen.proof.check.chunks import prove_chunks
from cellgen.proof.check.forward import prove_forward
from cellgen.proof.check.gradients import prove_gradients
from cellgen.proof.check.kernels import prove_kernels
from cellgen.proof.check.over_time import prove_sequences
from cellgen.proof.check.peers import prove_goldens
from cellgen.proof.check.points import Subject
from cellgen.proof.check.report import Report, Row
from cellgen.proof.check.tangents import prove_tangent
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.progress import progress as call_progress

Progress: TypeAlias = Callable[[str], None]


def check(
    cell: type[Cell], *, seed: int = 0, progress: Progress | None = None, form: str = "step"
) -> Report:
    """Prove one cell; ``progress`` is told the name of each part before it starts.

    With ``form="chunk"`` prove its programs of whole chunks, which no kernel takes part in.

    Raises:
        DeclarationError: what is given is no complete cell.
    """
    name = definition_of(cell).name
    if form == "chunk":
        rows_of_chunks = prove_chunks(definition_of(cell), np.random.default_rng(seed))
        return Report(name, seed, tuple(rows_of_chunks))
    with call_progress(f"{name}: build", 1 + len(_PARTS)) as bar:
        say = progress or bar.say
        programs, plain = programs_of(cell), forward_program(definition_of(cell))
        say(f"{name}: build")
        subject = Subject(cell, programs, plain, _kernel(cell))
        rows: list[Row] = []
        for part, prove in _PARTS:
            bar.step()
            say(f"{name}: {part}")
            rows += prove(subject, np.random.default_rng(seed))
        return Report(name, seed, tuple(rows))


def _kernel(cell: type[Cell]) -> Kernel | BuildError:
    try:
        return compile_cell(cell)
    except BuildError as error:
        return error


_PARTS: tuple[tuple[str, Callable[[Subject, np.random.Generator], list[Row]]], ...] = (
    ("hand-written forward", prove_forward),
    ("complex-step gradients", prove_gradients),
    ("tangent", prove_tangent),
    ("compiled kernels", prove_kernels),
    ("functions over time", prove_sequences),
    ("goldens", prove_goldens),
)

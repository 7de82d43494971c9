"""Doors that need NumPy and a compiler: prepared calls, streams, exports, CUDA's emulation."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cellgen.cells import SHIPPED
from cellgen.language.cell import Cell, definition_of
from cellgen.targets.embedded.request import ExportRequest
from tests.doors import SIZES, Case, Results, by_argument
from tests.embedded import Export


def cell_of(case: Case) -> type[Cell]:
    """The class of a case's cell."""
    return next(cell for cell in SHIPPED if definition_of(cell).name == case.cell)


def checked(case: Case) -> Results:
    """Calls as they are."""
    run = case.kernel.sequence_forward(**case.arguments, **case.options, save=True)._asdict()
    gradients = case.kernel.sequence_backward(**case.backward, saved=run.pop("saved"))
    return Results(run, by_argument(gradients._asdict()))


def prepared(case: Case) -> Results:
    """Calls that are bound once and made twice."""
    forward = case.kernel.sequence_forward.bind(**case.arguments, **case.options, save=True)
    forward()
    run = forward()._asdict()
    backward = case.kernel.sequence_backward.bind(**case.backward, saved=run.pop("saved"))
    backward()
    return Results(run, by_argument(backward()._asdict()))


def stream(case: Case) -> Results:
    """A session that goes on step by step, with a row for each of the batch."""
    weights = case.of_role("weight", "bias")
    shown = {}
    for output in case.shown:
        session = case.kernel.stream(weights, rows=SIZES["B"], output=output)
        shown[output] = np.array([session.step(x).copy() for x in case.arguments["x"]])
    return Results(shown, {})


def embedded(case: Case) -> Results:
    """An export in C99, compiled for this machine."""
    sizes = {name: SIZES[name] for name in "BIH"}
    request = ExportRequest(sizes, train=True, window=SIZES["T"])
    with TemporaryDirectory() as folder:
        export = Export(cell_of(case), request, Path(folder))
        return Results(
            export.forward(case.arguments, SIZES["T"]),
            export.gradients(case.arguments, case.upstream),
        )


def cuda(case: Case) -> Results:
    """The kernels of a GPU, emulated on this machine."""
    from tests.targets.test_cuda import OnHost, emulated  # with what emulation needs

    device = OnHost(emulated(cell_of(case)), case.dtype)
    run = device.sequence_forward(**case.arguments, **case.options, save=True)
    backward = dict(case.backward)
    backward |= {n: getattr(run, n) for n in case.shown if n in backward}
    gradients = device.sequence_backward(**backward, saved=run.saved)
    return Results(
        {n: a for n, a in run._asdict().items() if n != "saved"},
        by_argument(gradients._asdict()),
    )

"""Doors of prebuilt kernels: a package of ``cellgen wheel``, and its bridges to PyTorch and JAX."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np

from cellgen.wheel.levels import MACHINES
from cellgen.wheel.objects import this_machine
from tests.doors import Case, Results, by_argument
from tests.wheel.packages import imported, made

PACKAGE = "prebuilt_for_doors"


@cache
def package() -> ModuleType:
    """The package, built once a process and imported from a folder that goes with it."""
    folder, machine = TemporaryDirectory(), this_machine()
    level = MACHINES[machine][:2][-1]  # the lowest that fuses multiply-adds, so that bits agree
    words = ("elman", "--machine", machine, "--levels", level.name)
    module = imported(made(Path(folder.name), PACKAGE, *words), Path(folder.name))
    module.folder = folder  # type: ignore[attr-defined]
    return module


def prebuilt(case: Case) -> Results:
    """The kernel of the package, called on arrays of NumPy."""
    kernel = getattr(package(), case.cell)
    run = kernel.sequence_forward(**case.arguments, **case.options, save=True)
    gradients = kernel.sequence_backward(**case.backward, saved=run.saved)
    return Results(
        {n: a for n, a in run._asdict().items() if n != "saved"},
        by_argument(gradients._asdict()),
    )


def in_torch(case: Case) -> Results:
    """Its function of tensors, with PyTorch's gradients."""
    from tests.doors.by_torch import results_of, tensors

    bridge = importlib.import_module(f"{package().__name__}.torch")
    given = tensors(case.arguments, learns=True)
    shown = bridge.sequence(getattr(package(), case.cell), **given, **case.options)._asdict()
    return results_of(shown, case, given)


def in_jax(case: Case) -> Results:
    """Its function of JAX's arrays, compiled, with JAX's gradients."""
    import jax

    bridge = importlib.import_module(f"{package().__name__}.jax")

    @jax.jit
    def run(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        kernel = getattr(package(), case.cell)
        return bridge.sequence(kernel, options=case.options, **arrays)._asdict()

    shown, pull = jax.vjp(run, case.arguments)
    (gradients,) = pull({n: case.upstream[n] for n in shown})
    return Results(
        {n: np.asarray(a) for n, a in shown.items()},
        {n: np.asarray(g) for n, g in gradients.items()},
    )

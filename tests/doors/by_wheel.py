"""Doors of prebuilt kernels: a package of ``cellgen wheel``, and its bridges to PyTorch and JAX."""

from __future__ import annotations

import importlib
import sys
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
from typer.testing import CliRunner

from cellgen.cli.commands import app
from tests.doors import Case, Results, by_argument

PACKAGE = "prebuilt_for_doors"


@cache
def package() -> ModuleType:
    """The package, built once a process and imported from a folder that goes with it."""
    folder = TemporaryDirectory()
    words = ["wheel", "elman", "--name", PACKAGE, "--out", folder.name]
    done = CliRunner().invoke(app, [*words, "--machine", "x86_64", "--levels", "v3"])
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(next(Path(folder.name).glob("*.whl"))) as archive:
        archive.extractall(folder.name)
    sys.path.append(folder.name)
    try:
        module = importlib.import_module(PACKAGE)
        module.folder = folder  # type: ignore[attr-defined]
    finally:
        sys.path.remove(folder.name)
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

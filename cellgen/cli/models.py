"""Models of ONNX: ``export --onnx`` writes one, ``import`` reads one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellgen.cli.status import ending
from cellgen.errors import BuildError, UsageError
from cellgen.runtime.progress import progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy as np

    from cellgen.language.cell import Cell

DTYPES = {"float": "float32", "double": "float64"}


def export_onnx(
    cell: type[Cell],
    path: Path,
    weights: Mapping[str, np.ndarray[Any, np.dtype[Any]]] | None,
    dims: Mapping[str, int],
    dtype: str,
) -> None:
    """Write a cell as a model of ONNX. Raises UsageError, ArgumentError, BuildError."""
    export = _package().export
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}: expected float or double")
    sizes = {name: size for name, size in dims.items() if name != "B"}
    with progress(f"exporting {cell.__name__}"):
        model = export(cell, weights, dims=sizes, dtype=DTYPES[dtype])
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))


def import_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to read.")],
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT.py", help="What declares its cells; else it is printed."),
    ] = None,
) -> None:
    """Find LSTM, GRU, RNN and Scan nodes of a model: cells, and a file of weights for each."""
    with ending():
        package = _package()
        with progress(f"reading {model.name}"):
            lines = [package.declared_text(model)] if out is None else package.declare(model, out)
        typer.echo("\n".join(map(str, lines)))


def _package() -> Any:
    """``cellgen.onnx``. Raises UsageError where the package onnx is missing."""
    try:
        import cellgen.onnx
    except ImportError as error:
        raise UsageError(str(error)) from None
    return cellgen.onnx

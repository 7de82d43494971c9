"""What ``export`` writes: a cell for machines and programs that have no cellgen.

Each form is a function of its own; the command asks for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellgen.cli.explained import ONE_CELL
from cellgen.cli.models import export_onnx
from cellgen.cli.status import ending
from cellgen.errors import ArgumentError, BuildError, UsageError
from cellgen.runtime.progress import progress

if TYPE_CHECKING:
    import numpy as np

    from cellgen.language.cell import Cell
    from cellgen.targets.embedded.request import ExportRequest


LimitOption = Annotated[
    int | None, typer.Option(min=0, metavar="BYTES", help="Most that buffers, constants may take.")
]


def export(  # noqa: PLR0913, PLR0917 - one argument an option
    cell: Annotated[str, typer.Argument(metavar=ONE_CELL, help="The cell to export.")],
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The folder that is written into.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="C99 for small machines, every size a constant.")
    ] = False,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE.onnx", help="A model of ONNX.")
    ] = None,
    dims: Annotated[
        str, typer.Option(metavar="I=8,H=32", help="A size for each dimension; B=1 if left out.")
    ] = "",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float or double.")] = "float",
    train: Annotated[bool, typer.Option("--train", help="With a whole training step.")] = False,
    window: Annotated[
        int, typer.Option(metavar="T", help="Steps that gradients pass through.")
    ] = 16,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="sgd (momentum) or adam.")] = "sgd",
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights, as a constant array.")
    ] = None,
    limit_ram: LimitOption = None,
    limit_flash: LimitOption = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Of files and functions; the cell's if left out.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Write over another export of that name.")
    ] = False,
) -> None:
    """Write a cell for programs without cellgen: --embedded, C99 without an allocation; --onnx."""
    with ending():
        from cellgen.views.find import find_one

        if embedded == (onnx is not None):
            raise UsageError("say what to export: --embedded, or --onnx FILE.onnx")
        if onnx is not None:
            own = (out, train, window, optimizer, limit_ram, limit_flash, name, replace)
            if own != (None, False, 16, "sgd", None, None, "", False):
                raise UsageError("--onnx takes --weights, --dims and --dtype alone")
            values = read_weights(weights) if weights else None
            export_onnx(find_one(cell), onnx, values, sizes_of(dims), dtype)
            return
        choices = (dims, dtype, train, window, optimizer, weights, limit_ram, limit_flash)
        export_embedded(find_one(cell), Embedded(*choices, name, replace), out)


@dataclass(frozen=True)
class Embedded:
    """What the command line says of an export for small machines."""

    dims: str
    dtype: str
    train: bool
    window: int
    optimizer: str
    weights: Path | None
    limit_ram: int | None
    limit_flash: int | None
    name: str
    replace: bool

    def request(self) -> ExportRequest:
        """The same, checked but for what hangs on the cell. Raises UsageError."""
        from cellgen.targets.embedded.request import ExportRequest

        if not self.train and (self.window, self.optimizer) != (16, "sgd"):
            raise UsageError("--window and --optimizer decide nothing without --train; give both")
        weights = read_weights(self.weights) if self.weights else {}
        sizes = sizes_of(self.dims)
        choices = (self.dtype, self.train, self.window, self.optimizer)
        return ExportRequest(sizes, *choices, weights, self.name)


def export_embedded(cell: type[Cell], options: Embedded, out: Path | None) -> None:
    """Write a header and a body in C99 into a folder. Raises UsageError, BuildError."""
    from cellgen.cli import terminal
    from cellgen.files.exported import write_export
    from cellgen.language.cell import definition_of
    from cellgen.pipeline import planned
    from cellgen.targets.embedded.limits import Limits
    from cellgen.targets.embedded.source import EmbeddedTarget
    from cellgen.targets.target import NotYet

    if out is None:
        raise UsageError("export --embedded writes two files into a folder; name it, last: OUT/")
    limits = Limits(options.limit_ram, options.limit_flash)
    target, name = EmbeddedTarget(options.request(), limits), definition_of(cell).name
    with progress(f"exporting {name}"):
        plan = planned(cell)
        files = target.render(plan)
    if isinstance(files, NotYet):
        raise BuildError(f"{name}: {files.reason}", code="build.embedded")
    paths = write_export(out, options.name or name, files, replace=options.replace)
    typer.echo("\n".join(map(str, paths)))
    for line in target.explain(plan):
        terminal.note(line)


def sizes_of(dims: str) -> dict[str, int]:
    """Read ``B=1,I=8,H=32``. Raises UsageError.

    >>> sizes_of("I=8, H=32")
    {'I': 8, 'H': 32}
    """
    from cellgen import accept

    sizes: dict[str, int] = {}
    for piece in filter(None, (piece.strip() for piece in dims.split(","))):
        name, sign, size = (part.strip() for part in piece.partition("="))
        length = accept.digits(size)
        if not sign or length is None or not name:
            raise UsageError(
                f"--dims {accept.quoted(dims)}: {accept.quoted(piece)} is no size; write "
                f"B=1,I=8,H=32"
            )
        if name in sizes:
            raise UsageError(f"--dims {accept.quoted(dims)}: {name} has two sizes; give one")
        sizes[name] = length
    return sizes


def read_weights(path: Path) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
    """Read arrays by name from a file of a kind that ``weights.load`` knows. Raises UsageError."""
    from cellgen.weights import load

    try:
        return load(path)
    except ArgumentError as error:
        raise UsageError(f"--weights {path}: {error.args[0]}") from None

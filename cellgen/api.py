"""What a program calls: load a kernel by name, compile one from a class.

``load`` and ``compile`` import SymPy and Jinja2 only when something has to be generated.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from cellgen import accept
from cellgen.errors import BuildError
from cellgen.runtime.build.compiler import SourceFiles
from cellgen.runtime.device.kernel import CudaKernel, read_interface
from cellgen.runtime.imports import whole_imports
from cellgen.runtime.kernel import Kernel, load_folder
from cellgen.runtime.paths import generated_folder, include_folder

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.targets import Source


def shipped_names() -> tuple[str, ...]:
    """Names of the cells whose generated sources are installed."""
    folder = generated_folder()
    return tuple(sorted(path.parent.name for path in folder.glob("*/__init__.py")))


def load(name: str) -> Kernel:
    """Return the kernel of a cell that ships, compiled on first use: ``load("lstm")``.

    Works from any folder; needs a C compiler only if the kernel is not in the cache.

    Raises:
        BuildError: no such cell, or its sources cannot be compiled.
    """
    _require_shipped(name)
    return load_folder(generated_folder() / name)


def _require_shipped(name: str) -> None:
    names = shipped_names()
    accept.word("load", "name", name, "that of a cell", error=BuildError, code="build.unknown")
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise BuildError(
            f"no generated cell is named {name!r}; {hint}known: {', '.join(names)}. "
            f"For a cell of your own use cellgen.compile(MyCell) or `cellgen build my_cells.py`",
            code="build.unknown",
        )


def compile(cell: type[Cell]) -> Kernel:
    """Generate, compile and return the kernel of a cell class.

    The sources are kept in the cache beside the object; equal cells are compiled once.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: the sources cannot be compiled.
    """
    source = _generated(cell)
    texts = source.of("c")
    sources = SourceFiles.gather(source.name, texts, None, include_folder())
    kernel = Kernel(source.interface, sources)
    kernel.build()
    return kernel


def _generated(cell: type[Cell]) -> Source:
    """Generate a cell's sources, importing what that needs. Raises DeclarationError."""
    with whole_imports():
        from cellgen.pipeline import generate

        return generate(cell)


def load_cuda(name: str, *, emulated: bool = False) -> CudaKernel:
    """Return the CUDA kernel of a cell that ships; compiled with nvcc when it is first called.

    With ``emulated`` it runs on the CPU, slowly, to prove what the device would compute.

    Raises:
        BuildError: no such cell, or it is not rendered for CUDA.
    """
    _require_shipped(name)
    accept.flag("load_cuda", "emulated", emulated)
    return _cuda_kernel(generated_folder() / name, emulated)


def compile_cuda(cell: type[Cell], *, emulated: bool = False) -> CudaKernel:
    """Generate the CUDA kernel of a cell class; compiled with nvcc when it is first called.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: the cell is not rendered for CUDA yet; the message says why.
    """
    accept.flag("compile_cuda", "emulated", emulated)
    source = _generated(cell)
    texts = source.of("cuda")
    sources = SourceFiles.gather(source.name, texts, None, include_folder())
    return CudaKernel(source.interface, sources, emulated=emulated)


def _cuda_kernel(folder: Path, emulated: bool) -> CudaKernel:
    """The CUDA kernel of a generated folder, without building its C."""
    file = folder / f"{folder.name}.cu"
    if not file.is_file():
        raise BuildError(
            f"{folder} has no {file.name}: the cell is not rendered for CUDA yet; its C kernel "
            f"works: cellgen.load({folder.name!r})",
            code="build.cuda",
        )
    sources = SourceFiles.gather(
        folder.name,
        {file.name: file.read_text(encoding="utf-8")},
        folder,
        folder.parent / "include",
    )
    return CudaKernel(read_interface(folder / "__init__.py"), sources, emulated=emulated)


def write(cell: type[Cell], folder: Path) -> list[Path]:
    """Write a cell's generated files to ``folder/<cell>/``; returns those that changed.

    Raises:
        BuildError: a file cannot be written; names it and the reason.
    """
    with whole_imports():
        from cellgen.files import tree

    place = accept.path("write", "folder", folder, error=BuildError)
    return tree.write(tree.cell_files(place, _generated(cell)))

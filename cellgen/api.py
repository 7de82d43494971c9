"""What a program calls: load a kernel by name, compile one from a class.

``load`` and ``compile`` import SymPy and Jinja2 only when something has to be generated, and CUDA
only when it is the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from cellgen import accept
from cellgen.errors import BuildError
from cellgen.runtime.backend import DEFAULT, AnyKernel, Backend, backend, backend_names
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.folders import TextDigest, read_interface, read_listed
from cellgen.runtime.generator import generator_digest
from cellgen.runtime.imports import whole_imports
from cellgen.runtime.paths import generated_folder, include_folder, is_shipped, shipped_names
from cellgen.runtime.progress import progress

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.runtime.device.kernel import CudaKernel
    from cellgen.runtime.kernel import Kernel
    from cellgen.targets import Source

STALE = "build.digest"
"""The code of the error for a text that is not the one whose digest is listed."""


@overload
def load(name: str, target: Literal["c"] = "c", *, emulated: Literal[False] = False) -> Kernel: ...
@overload
def load(name: str, target: Literal["cuda"], *, emulated: bool = False) -> CudaKernel: ...
@overload
def load(name: str, target: str, *, emulated: bool = False) -> AnyKernel: ...
def load(name: str, target: str = DEFAULT, *, emulated: bool = False) -> AnyKernel:
    """Return the kernel of a cell that ships, compiled on first use: ``load("lstm")``.

    Works from any folder; needs a compiler only if the kernel is not in the cache. ``target`` is
    ``"c"``, ``"cuda"`` or one that a package brings; with ``emulated`` a CUDA kernel runs on the
    CPU, slowly, to prove what the device would compute. ``load("my-cells:Gated")`` is ``compile``
    of a cell that the package ``my-cells`` brings.

    Raises:
        BuildError: no such cell or target, the cell is not rendered for the target, its sources
            cannot be compiled, or the package that brings it is at fault.
    """
    runs = _backend("load", target, emulated)
    if isinstance(name, str) and ":" in name:
        return compile(packaged_cell(name), runs.name, emulated=emulated)
    _require_shipped(name)
    folder = generated_folder()
    listed = read_listed(folder, runs.name).get(name)
    if listed is None:
        return runs.load(folder / name, emulated=bool(emulated))
    with runs.preparing():
        files = {listed.file: _listed_text(name, runs.name, listed)}
        sources = SourceFiles.gather(name, files, None, include_folder())
        return runs.kernel(read_interface(folder / name), sources, emulated=bool(emulated))


def _listed_text(name: str, target: str, listed: TextDigest) -> str:
    """The text of a cell that ships by its digest: from the cache, else generated for it.

    What the cache has counts as long as nothing has changed that generates it: a list that is older
    than its templates is an error, not a text of theirs that once was.
    """
    by = generator_digest(target)
    text = listed.recall(by)
    if text is not None:
        return text
    with whole_imports():
        from cellgen.cells import SHIPPED

        cell = next(cell for cell in SHIPPED if cell.definition.name == name)
    text = sources_of(cell, target).of(target)[listed.file]
    if TextDigest.of(listed.file, text) != listed:
        raise BuildError(
            f"{name}: what is generated for {target} is not what the list of digests "
            f"{generated_folder() / f'{target}.sha256'} says; write the cell again with `cellgen "
            f"build {name}`, or install cellgen-compiler again",
            code=STALE,
        )
    listed.remember(text, by)
    return text


def _backend(label: str, target: object, emulated: object) -> Backend:
    """The backend that a caller asks for. Raises BuildError, ArgumentError."""
    known = accept.choice(label, "target", target, backend_names(target), error=BuildError)
    chosen = backend(known)
    if accept.flag(label, "emulated", emulated) and not chosen.emulates:
        raise BuildError(
            f"{label}: emulated is True, but target {known!r} has no emulation; leave it out",
            code="build.target",
        )
    return chosen


def packaged_cell(selector: str) -> type[Cell]:
    """Import a cell that another package brings: ``packaged_cell("my-cells:Gated")``.

    Raises:
        BuildError: no such package or cell, or the package is at fault.
    """
    with whole_imports():
        from cellgen.language.cell import packaged

        return packaged.packaged_cell(selector, BuildError)


def _require_shipped(name: str) -> None:
    accept.word("load", "name", name, "that of a cell", error=BuildError, code="build.unknown")
    if not is_shipped(name):
        names = shipped_names()
        raise BuildError(
            f"no generated cell is named {name!r}; {accept.nearest(name, names)}`cellgen list` "
            f"names the {len(names)} there are. For a cell of your own use "
            f"cellgen.compile(MyCell) or `cellgen build my_cells.py`",
            code="build.unknown",
        )


@overload
def compile(
    cell: type[Cell], target: Literal["c"] = "c", *, emulated: Literal[False] = False
) -> Kernel: ...
@overload
def compile(cell: type[Cell], target: Literal["cuda"], *, emulated: bool = False) -> CudaKernel: ...
@overload
def compile(cell: type[Cell], target: str, *, emulated: bool = False) -> AnyKernel: ...
def compile(cell: type[Cell], target: str = DEFAULT, *, emulated: bool = False) -> AnyKernel:
    """Generate, compile and return the kernel of a cell class: ``compile(MyCell)``.

    The sources are kept in the cache beside the object; equal cells are compiled once. C is
    compiled here, CUDA when it is first called. ``target`` and ``emulated`` as in ``load``.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: no such target, the cell is not rendered for it yet (the message says why), or
            the sources cannot be compiled.
    """
    runs = _backend("compile", target, emulated)
    with runs.preparing():
        source = sources_of(cell, runs.name)
        files = SourceFiles.gather(source.name, source.of(runs.name), None, include_folder())
        return runs.kernel(source.interface, files, emulated=bool(emulated))


def sources_of(cell: type[Cell], *targets: str) -> Source:
    """Generate a cell's sources for some targets, for all where none is named.

    What that needs is imported here. Raises DeclarationError.
    """
    name = getattr(cell, "__name__", "a cell")
    with progress(f"deriving and generating {name}"), whole_imports():
        from cellgen.pipeline import generate

        return generate(cell, targets)


def load_cuda(name: str, *, emulated: bool = False) -> CudaKernel:
    """``load(name, "cuda")``: the CUDA kernel of a cell that ships.

    Raises:
        BuildError: no such cell, or it is not rendered for CUDA.
    """
    return load(name, "cuda", emulated=emulated)


def compile_cuda(cell: type[Cell], *, emulated: bool = False) -> CudaKernel:
    """``compile(cell, "cuda")``: the CUDA kernel of a cell class.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: the cell is not rendered for CUDA yet; the message says why.
    """
    return compile(cell, "cuda", emulated=emulated)


def write(cell: type[Cell], folder: Path) -> list[Path]:
    """Write a cell's generated files to ``folder/<cell>/``; returns those that changed.

    Raises:
        BuildError: a file cannot be written, or is there and is not of cellgen; names it.
    """
    with whole_imports():
        from cellgen.files import tree

    root = accept.path("write", "folder", folder, error=BuildError)
    return tree.write_cell(root, sources_of(cell))

"""Find cells: among those that ship, in an author's file, or in a package that brings cells.

Input: ``lstm``, ``LSTM``, ``my_cells.py``, ``my_cells.py:MyCell`` or ``package:MyCell``. Output:
Cell classes.
An error of Python in the author's file becomes one message with the author's line and, where the
cause is known, what to write instead.
"""

from __future__ import annotations

import linecache
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import cast

import cellgen.cells
from cellgen import accept
from cellgen.errors import CellgenError, DeclarationError, Failure, UsageError
from cellgen.language.cell import Cell, CellMeta
from cellgen.language.cell.packaged import packaged_cell
from cellgen.language.lines import SourceLine
from cellgen.language.misuse import explanation
from cellgen.runtime.folders import origin_of

Cells = tuple[type[Cell], ...]


def find_each(selectors: Sequence[str]) -> tuple[Cells, list[Failure]]:
    """Return the cells that are named, all that ship when none is, each once.

    And what was named and cannot be had: a cell that no one knows, a file that fails or defines no
    cell.

    Raises:
        UsageError: two cells of one name.
    """
    if not selectors:
        return shipped(), []
    cells: dict[type[Cell], None] = {}
    failures = []
    for selector in dict.fromkeys(selectors):
        try:
            cells |= dict.fromkeys(_select(selector))
        except CellgenError as error:
            failures.append(Failure(selector, error))
    _refuse_equal_names(cells)
    return tuple(cells), failures


def find_one(selector: str) -> type[Cell]:
    """Return the one cell that is named; a file with several needs ``FILE:NAME``.

    Raises:
        UsageError: no such cell or file, or several.
        DeclarationError: a file that cannot be run, or that defines no cell.
    """
    cells = _select(selector)
    if len(cells) > 1:
        names = ", ".join(cell.__name__ for cell in cells)
        raise UsageError(
            f"{selector} defines {len(cells)} cells ({names}); name one: "
            f"{selector}:{cells[-1].__name__}"
        )
    return cells[0]


def shipped() -> Cells:
    """Return every cell that ships; to import all of them takes a second."""
    return cellgen.cells.SHIPPED


def is_file(selector: str) -> bool:
    """Tell whether a selector means an author's file rather than a cell that ships."""
    path = _split(selector)[0]
    return path.endswith(".py") or "/" in path or Path(path).is_file()


def is_packaged(selector: str) -> bool:
    """Tell whether a selector means a cell that another package brings: ``package:name``."""
    return ":" in selector and not is_file(selector)


def _select(selector: str) -> Cells:
    if is_packaged(selector):
        return (packaged_cell(selector, UsageError),)
    if not is_file(selector):
        return (_shipped(selector),)
    path, name = _split(selector)
    cells = load_file(Path(path))
    return (_among(name, cells, f"no cell in {path}"),) if name else cells


def _shipped(name: str) -> type[Cell]:
    """Find a cell that ships; one that is called as its folder is, without the others."""
    module, _, class_name = origin_of(name).partition(":")
    if module.startswith(f"{cellgen.cells.__name__}."):
        with suppress(ImportError, AttributeError):  # sources that are not of today's cells
            cell: type[Cell] = getattr(import_module(module), class_name)
            if cell.definition.name == name:
                return cell
    return _among(name, shipped(), "no cell that ships")


def _split(selector: str) -> tuple[str, str]:
    path, colon, name = selector.rpartition(":")
    return (path, name) if colon else (name, "")


def _among(name: str, cells: Cells, nothing: str) -> type[Cell]:
    """Pick a cell by its name (``lstm``) or its class name (``LSTM``)."""
    for cell in cells:
        if name in (cell.definition.name, cell.__name__):
            return cell
    names = [cell.definition.name for cell in cells]
    hint = accept.nearest(name, names)
    known = f"known: {', '.join(names)}"
    if not nothing.endswith(".py"):
        known = f"`cellgen list` names all {len(names)}; a file of your own ends in .py"
        if Path(f"{name}.py").is_file():
            hint = f"did you mean the file {name}.py? "
        elif name and Path(name).is_dir():
            raise UsageError(f"{nothing} is named {name!r}, and {_is_folder(Path(name))}")
    raise UsageError(f"{nothing} is named {name!r}; {hint}{known}")


def _refuse_equal_names(cells: Iterable[type[Cell]]) -> None:
    first: dict[str, type[Cell]] = {}
    for cell in cells:
        name = cell.definition.name
        if name in first:
            raise UsageError(
                f"two cells are named {name!r}: {first[name].definition.origin} and "
                f"{cell.definition.origin}; give one another name: "
                f'class {cell.__name__}(Cell, name="...")'
            )
        first[name] = cell


# --- an author's file ----------------------------------------------------------------------------


def load_file(path: Path) -> Cells:
    """Run an author's file and return the cells that it defines, in the order of writing.

    Raises:
        UsageError: the file does not exist or cannot be read.
        DeclarationError: the file fails, or defines no cell; shows the author's line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {_unreadable(path, error)}") from None
    cells = _defined_by(_run(path, text))
    if not cells:
        raise DeclarationError(
            f"{path} defines no cell; a cell is `class MyCell(Cell):` with Cell from cellgen, at "
            f"the top of the file or assigned there",
            code="declaration.file",
        )
    _refuse_equal_names(cells)
    return cells


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, and what to do."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text; save it as UTF-8"
    if path.is_dir():
        return _is_folder(path)
    if isinstance(error, FileNotFoundError):
        beside = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        close = accept.nearest(path.name, beside)
        return (
            f"there is no such file in {path.absolute().parent}; {close}correct the path, or begin "
            f"a cell: cellgen new my_cell"
        )
    return f"{error.strerror}; let yourself read it, or name another file"


def _is_folder(path: Path) -> str:
    """Say that a path is a folder, and which file of it to name."""
    files = sorted(p.name for p in path.glob("*.py"))
    return f"it is a folder; name a file of it, as {path / (files or ['my_cells.py'])[0]}"


def _run(path: Path, text: str) -> types.ModuleType:
    """Execute a file as a module named after it; siblings can be imported, no .pyc is written."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    with _importable(module, path.parent):
        try:
            exec(compile(text, str(path), "exec"), module.__dict__)
        except CellgenError as error:
            raise _located(error, path) from None
        except (Exception, SystemExit) as error:
            raise _explained(error, path, text) from None
    return module


@contextmanager
def _importable(module: types.ModuleType, folder: Path) -> Iterator[None]:
    """Let a file see itself in ``sys.modules`` and its own folder on ``sys.path`` while it runs."""
    before, place = sys.modules.get(module.__name__), str(folder.resolve())
    sys.modules[module.__name__] = module
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        if before is not None:
            sys.modules[module.__name__] = before


def _defined_by(module: types.ModuleType) -> Cells:
    """Cells bound in a module that no other module defines, without unfinished ones."""
    cells: dict[type[Cell], None] = {}
    for item in list(vars(module).values()):
        if isinstance(item, CellMeta) and item is not Cell and not _is_imported(item, module):
            cell = cast("type[Cell]", item)
            if not cell.definition.is_partial:
                cells[cell] = None
    return tuple(cells)


def _is_imported(cell: CellMeta, module: types.ModuleType) -> bool:
    """A cell of another module stands in that module; one that a factory made for us does not."""
    home = cell.definition_owner.rpartition(":")[0]
    if home == module.__name__:
        return False
    return any(item is cell for item in vars(sys.modules.get(home, module)).values())


# --- errors in an author's file ------------------------------------------------------------------


def _author_line(error: BaseException, path: Path) -> SourceLine | None:
    """The innermost line of the author's file on the stack of an error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return SourceLine(str(path), error.lineno or 1)
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if frame.filename == str(path)]
    return SourceLine(str(path), numbers[-1] or 1) if numbers else None


def _located(error: CellgenError, path: Path) -> CellgenError:
    """Add the author's line to an error of cellgen that does not show one."""
    message, line = Exception.__str__(error), _author_line(error, path)
    if line is None or f'File "{path}"' in message:
        return error
    return type(error)(f"{message}\n  {line}", code=error.code)


def _explained(error: BaseException, path: Path, text: str) -> DeclarationError:
    """Say what Python said, what is known to cause it, and where."""
    line = _author_line(error, path)
    message = explanation(error, line, text)
    line_or_file = f"\n  {line}" if line else f"\n  in {path}"
    return DeclarationError(message + line_or_file, code="declaration.python")

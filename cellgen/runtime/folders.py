"""Read a generated folder without importing it, which would build its C.

Input: ``generated/<cell>``. Output: its ``Interface`` and ``SourceFiles`` of one target.
"""

from __future__ import annotations

import ast
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.build.compiler import SourceFiles


def read_files(folder: Path, suffix: str, target: str) -> SourceFiles:
    """Read the file that a target wrote, and the headers that it includes.

    Raises BuildError: the cell is not rendered for this target.
    """
    file = folder / f"{folder.name}{suffix}"
    if not file.is_file():
        raise BuildError(
            f"{folder} has no {file.name}: the cell is not rendered for {target} yet; its C kernel "
            f"works: cellgen.load({folder.name!r})",
            code=f"build.{target}",
        )
    texts = {file.name: file.read_text(encoding="utf-8")}
    return SourceFiles.gather(folder.name, texts, folder, folder.parent / "include")


def read_interface(file: Path) -> Interface:
    """Read the interface in a generated ``__init__.py``. Raises BuildError."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "interface":
            code = compile(ast.Expression(node.value), str(file), "eval")
            records = {"Argument": Argument, "Function": Function, "Interface": Interface}
            interface = eval(code, {"__builtins__": {}, **records})
            assert isinstance(interface, Interface)
            return interface
    raise BuildError(f"{file} defines no interface, so it is not a generated cell")

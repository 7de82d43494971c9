"""Find ``templates/`` and ``generated/``: the one place that knows where they stand.

Input: the place of this package. Output: folders.
In a checkout (or an editable install of one) both stand beside the package folder, at the root
of the repository; in a wheel they are package data: ``cellgen/_data/templates``, ``.../generated``.
"""

from __future__ import annotations

import os
from pathlib import Path

from cellgen.errors import BuildError

PACKAGE = Path(__file__).resolve().parent.parent


def in_checkout(package: Path = PACKAGE) -> bool:
    """Tell whether the package folder stands in a checkout of the repository."""
    root = package.parent
    return (root / "pyproject.toml").is_file() and (root / "templates").is_dir()


def templates_folder(package: Path = PACKAGE) -> Path:
    """Find the folder of templates; raise BuildError when it is missing."""
    return _folder("templates", package)


def generated_folder(package: Path = PACKAGE) -> Path:
    """Find the folder of the generated cells that ship; raise BuildError when it is missing."""
    return _folder("generated", package)


def include_folder(package: Path = PACKAGE) -> Path:
    """Find the folder of the runtime headers; raise BuildError when it is missing."""
    return _folder("generated/include", package)


def shipped_names() -> tuple[str, ...]:
    """Names of the cells whose generated sources are installed."""
    return tuple(sorted(path.parent.name for path in generated_folder().glob("*/__init__.py")))


def is_shipped(name: str) -> bool:
    """Whether the generated sources of a cell of that name are installed."""
    folder = generated_folder()
    return name in os.listdir(folder) and (folder / name / "__init__.py").is_file()


def _folder(name: str, package: Path) -> Path:
    root = package.parent if in_checkout(package) else package / "_data"
    path = root / name
    if not path.is_dir():
        raise BuildError(
            f"the installation of cellgen is incomplete: {path} is missing; "
            "install again (`pip install --force-reinstall cellgen-compiler`), "
            "or work in a complete checkout of the repository"
        )
    return path

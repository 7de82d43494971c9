"""Compile a source of C for Python's own interface and NumPy's, once per machine, Python and NumPy.

Input: the path of one file. Output: its shared object in the cache, or the module that it is.
To compile it takes the headers of Python and NumPy beside a C compiler. Not supported: Windows,
Pythons other than CPython.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from cellgen.errors import BuildError
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.compiler import (
    TOOL,
    CompilerInfo,
    compiled_by,
    link_flags,
    of_cache,
)
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step, Stoppable
from cellgen.runtime.paths import include_folder
from cellgen.runtime.system import is_windows, shared_suffix

FLAGS = ("-O1", "-std=gnu11", "-fPIC", "-fvisibility=hidden")
FIX_HEADERS = (
    "install Python's headers: Debian and Ubuntu `apt install python3-dev`, Fedora `dnf install "
    "python3-devel`"
)
FIX_NUMPY = "install NumPy from its wheel, which has them: `pip install --force-reinstall numpy`"


def find(source: Path) -> Path | None:
    """Find the shared object of a source in the cache; None where it would have to be compiled.

    Raises BuildError: no compiler, and none was remembered.
    """
    return cache.find(_recipe_of(source).entry)


def build(source: Path) -> Path:
    """Find the shared object of a source in the cache, or compile and publish it.

    Nothing is drawn meanwhile. Raises BuildError: no compiler, no headers, what the compiler says.
    """
    recipe = _recipe_of(source)
    return compiled_by(recipe.compiler, recipe.entry, recipe.files.files, recipe.compile)[0]


def build_if_free(source: Path, stoppable: Stoppable) -> Path | None:
    """Find it or compile it as ``build`` does, unless somebody else is at it: None then, at once.

    Raises BuildError, also where ``stoppable`` is stopped.
    """
    recipe = _recipe_of(source)
    return cache.find_or_make_if_free(
        recipe.entry, recipe.files.files, lambda place: recipe.compile(place, stoppable)
    )


def require_promising(source: Path) -> None:
    """Raise BuildError where a source cannot compile: no headers, or it failed within a day."""
    _headers()
    place = cache.failed(_recipe_of(source).entry)
    if place is not None:
        raise BuildError(
            f"{source.name} did not compile a short time ago ({place} has the log); correct what "
            f"it says, then `cellgen cache clear`"
        )


def load(name: str, path: Path) -> ModuleType:
    """Load the module ``name`` from a path that ``find`` or ``build`` returned.

    Raises BuildError.
    """
    loader = ExtensionFileLoader(name, str(path))
    try:
        module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"cannot load {path}: {error}; {steps.FIX_LOADING}") from error
    return module


@dataclass(frozen=True)
class _Recipe:
    """A source, its text and headers, its compiler, and its entry in the cache."""

    source: Path
    files: SourceFiles
    compiler: CompilerInfo
    entry: str

    def compile(self, place: Path, stoppable: Stoppable | None = None) -> str:
        """Compile it in a workplace; return the product's file name. Raises BuildError."""
        name, produced = self.source.stem, f"{self.entry}{shared_suffix()}"
        includes = ("-Iinclude", *(f"-I{folder}" for folder in _headers()))
        call = (*self.compiler.command, *FLAGS, *link_flags(), *includes)
        command = (*call, self.source.name, "-o", produced)
        step = Step(f"compiling {self.source.name}", command, produced)
        steps.run(place, name, self.entry, ((step,),), TOOL, bar=False, stoppable=stoppable)
        steps.require_loadable(place / produced, name, step, f"PyInit_{name}")
        return produced


def _recipe_of(source: Path) -> _Recipe:
    """What is known of a source before it is compiled; headers are not asked for.

    Raises BuildError.
    """
    text = {source.name: source.read_text(encoding="utf-8")}
    files = SourceFiles.gather(source.stem, text, source.parent, include_folder())
    info = of_cache()
    facts = [
        *info.facts,
        ("command", repr((FLAGS, link_flags()))),
        ("python", "\n".join((sys.version, sys.base_prefix, EXTENSION_SUFFIXES[0]))),
        ("numpy", np.__version__),
        *files.files,
    ]
    return _Recipe(source, files, info, f"{source.stem}-{cache.digest(facts)}")


def _headers() -> list[Path]:
    """The folders of Python's and NumPy's headers. Raises BuildError where there are none."""
    if is_windows():
        raise BuildError(
            "extensions in C are not built on Windows, where they would need Python's import "
            "library; unset CELLGEN_CALLS: Python makes all calls, with the same results"
        )
    if sys.implementation.name != "cpython":
        raise BuildError(
            f"extensions in C are for CPython, found {sys.implementation.name}; use CPython"
        )
    named = dict.fromkeys(sysconfig.get_path(part) for part in ("include", "platinclude"))
    python, numpy = [Path(name) for name in named], Path(np.get_include())
    for file in ("Python.h", "pyconfig.h"):
        if not any((folder / file).is_file() for folder in python):
            raise BuildError(f"no {file} in {' or '.join(map(str, python))}; {FIX_HEADERS}")
    if not (numpy / "numpy" / "arrayobject.h").is_file():
        raise BuildError(f"no numpy/arrayobject.h in {numpy}; {FIX_NUMPY}")
    return [*python, numpy]

"""Compile a source of C for Python's own interface and NumPy's, once per machine, Python and NumPy.

Input: the path of one file. Output: its shared object in the cache, or the module that it is.
It needs the headers of Python and NumPy beside a C compiler. Not supported: Windows, Pythons other
than CPython.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader, ModuleSpec
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
from cellgen.runtime.paths import include_folder
from cellgen.runtime.system import is_windows, shared_suffix

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden")
FIX_HEADERS = (
    "install Python's headers: Debian and Ubuntu `apt install python3-dev`, Fedora `dnf install "
    "python3-devel`"
)
FIX_NUMPY = "install NumPy from its wheel, which has them: `pip install --force-reinstall numpy`"


def find(source: Path) -> Path | None:
    """Find the shared object of a source in the cache; None where it would have to be compiled.

    Raises BuildError: no compiler, no headers.
    """
    return cache.find(_described(source)[1])


def build(source: Path) -> Path:
    """Find the shared object of a source in the cache, or compile and publish it.

    Nothing is drawn meanwhile. Raises BuildError: no compiler, no headers, what the compiler says.
    """
    info, entry, files, call = _described(source)
    name, produced = source.stem, f"{entry}{shared_suffix()}"

    def compiled(place: Path) -> str:
        step = steps.Step(f"compiling {source.name}", (*call, "-o", produced), produced)
        steps.run(place, name, entry, ((step,),), TOOL, bar=False)
        steps.require_loadable(place / produced, name, step, f"PyInit_{name}")
        return produced

    return compiled_by(info, entry, files.files, compiled)[0]


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


def _described(source: Path) -> tuple[CompilerInfo, str, SourceFiles, tuple[str, ...]]:
    """The compiler of a source, its entry, its text and headers, and the command.

    Raises BuildError.
    """
    folders = _headers()
    info, text = of_cache(), {source.name: source.read_text(encoding="utf-8")}
    files = SourceFiles.gather(source.stem, text, source.parent, include_folder())
    includes = ["-Iinclude", *(f"-I{folder}" for folder in folders)]
    call = (*info.command, *FLAGS, *link_flags(), *includes, source.name)
    facts = [
        *info.facts,
        ("command", repr(call)),
        ("python", f"{sys.version}\n{sysconfig.get_config_var('SOABI')}"),
        ("numpy", np.__version__),
        *files.files,
    ]
    return info, f"{source.stem}-{cache.digest(facts)}", files, call


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

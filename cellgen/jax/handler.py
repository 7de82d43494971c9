"""The handler of XLA's typed FFI: compiled once, registered once, told which cells there are.

Input: ``handler.c``. Output: the target ``TARGET`` of ``jax.ffi.ffi_call``, for CPUs and for
devices of CUDA, which need not be there.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import jax

from cellgen.errors import BuildError, CellgenError
from cellgen.jax import launching
from cellgen.jax.platforms import TARGET, is_emulated
from cellgen.jax.registry import KnownInJax, find
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.compiler import TOOL, CompilerInfo, compiled_by, link_flags, of_cache
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step
from cellgen.runtime.host.threads import team_size
from cellgen.runtime.paths import include_folder
from cellgen.runtime.system import shared_suffix

NAME = "cellgen_jax"
SOURCE = Path(__file__).with_name("handler.c")

SYMBOLS = (
    *("cellgen_jax_add", "cellgen_jax_set", "cellgen_jax_on_device", "cellgen_jax_scratch"),
    *("cellgen_call", "cellgen_device_call"),
)

_Finder = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
_added: set[str] = set()


def add(known: KnownInJax) -> None:
    """Let programs call a cell, built if need be. Raises BuildError."""
    if known.text in _added:
        return
    if not _handler().cellgen_jax_add(known.text.encode(), _descriptor(known)):
        raise MemoryError(f"{known.text}: there is no memory for its name")
    _added.add(known.text)


def _descriptor(known: KnownInJax) -> int:
    """The address of the cell's descriptor in C."""
    return known.kernel.library().descriptor


def _find(text: bytes) -> int:
    """Find a cell that a program names, as one does that another process made; 0: it is unknown."""
    try:
        known = find(text.decode())
        add(known)
        return _descriptor(known)
    except (CellgenError, MemoryError):
        return 0


def _launch(call: object) -> int:
    """Launch a call on a device; 1 where that fails."""
    return launching.launch(call, _handler().cellgen_jax_scratch, emulated=is_emulated())


_finder, _launcher = _Finder(_find), launching.Launcher(_launch)
"""What C calls; they must live as long as the process."""


@functools.cache
def _handler() -> ctypes.CDLL:
    """Load and register the handler, compiled if the cache does not have it. Raises BuildError."""
    library = ctypes.CDLL(str(build()))
    library.cellgen_jax_add.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    library.cellgen_jax_set.argtypes = (_Finder, ctypes.c_int64)
    library.cellgen_jax_set(_finder, team_size(None, "cellgen.jax"))
    library.cellgen_jax_on_device.argtypes = (launching.Launcher,)
    library.cellgen_jax_on_device(_launcher)
    library.cellgen_jax_scratch.argtypes = (launching.Call, ctypes.c_int64)
    library.cellgen_jax_scratch.restype = ctypes.c_void_p
    entries = {"cpu": library.cellgen_call, "CUDA": library.cellgen_device_call}
    for platform, entry in entries.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(entry), platform=platform)
    return library


def register() -> None:
    """Make the target known to XLA. Raises BuildError."""
    _handler()


def build() -> Path:
    """Find the handler's library in the cache, or compile and publish it. Raises BuildError."""
    sources, folder = _sources()
    compiler = of_cache()
    entry = f"{NAME}-{_key(sources, folder, compiler)}"

    def compiled(place: Path) -> str:
        produced = f"{NAME}{shared_suffix()}"
        call = (*compiler.command, *compiler.flags, "-Iinclude", f"-I{folder}", *link_flags())
        command = (*call, SOURCE.name, "-o", produced, "-lpthread")
        step = Step(f"compiling {SOURCE.name}", command, produced)
        steps.run(place, NAME, entry, ((step,),), TOOL)
        steps.require_loadable(place / produced, NAME, step, *SYMBOLS)
        return produced

    return compiled_by(compiler, entry, sources.files, compiled)[0]


def _sources() -> tuple[SourceFiles, Path]:
    """The handler's texts, and where XLA's header stands. Raises BuildError."""
    folder = Path(jax.ffi.include_dir())
    if not (folder / "xla/ffi/api/c_api.h").is_file():
        raise BuildError(
            f"{NAME}: {folder} has no xla/ffi/api/c_api.h, which jaxlib brings; install jaxlib "
            f"again (pip install --force-reinstall jaxlib)"
        )
    texts = {SOURCE.name: SOURCE.read_text(encoding="utf-8")}
    return SourceFiles.gather(NAME, texts, SOURCE.parent, include_folder()), folder


def _key(sources: SourceFiles, folder: Path, compiler: CompilerInfo) -> str:
    header = (folder / "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    return cache.digest(
        [
            *((f"file {name}", text) for name, text in sources.files),
            ("header", header),
            *compiler.facts,
        ]
    )

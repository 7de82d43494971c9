"""Compile and load torch's two operators in C: one shared object for every cell.

It needs a C compiler and libtorch's stable C interface, of torch 2.10 on; neither headers of torch
nor C++. Where it cannot be had, the operators are Python: the same results, some 100 us a call
later. CELLGEN_TORCH_OPERATORS=python asks for those.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cellgen import accept
from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.compiler import TOOL, compiled_by, link_flags, of_cache
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.host.processors import usable_processors
from cellgen.runtime.paths import include_folder
from cellgen.torch.layout import Layout
from cellgen.torch.registry import find

NAME = "cellgen_torch"
VARIABLE = "CELLGEN_TORCH_OPERATORS"
SOURCE = Path(__file__).parent / "shim.c"
FLAGS = ("-O2", "-fvisibility=default", "-fexceptions", "-pthread")
"""Behind those of kernels, so that numbers of 16 bits are widened and rounded as fast.

``-fexceptions``: a fault leaves the operator as an exception of C++.
"""

WRAPS = "libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE"
"""The library of torch that makes objects of Python of its tensors, and the function's name."""

log = logging.getLogger("cellgen")

Finder = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


def register(forward: str, backward: str) -> bool:
    """Give torch the operators in C, by their names with overload.

    Return whether it has them; the log says why not.
    """
    if accept.word_from_environment(VARIABLE, ("python",)):
        return False
    try:
        shared = ctypes.CDLL(str(_built()))
        version = _version()
        if shared.cellgen_torch_abi() != ABI_VERSION:
            raise BuildError(f"{NAME} is of another ABI than {ABI_VERSION}; `cellgen cache clear`")
        usable = ctypes.c_uint32(usable_processors())
        names = forward.encode(), backward.encode()
        code = shared.cellgen_torch_register(
            ctypes.c_uint64(version), usable, _finder(shared), *names
        )
        if code:
            raise BuildError(f"{NAME}: torch refused the operators ({code})")
    except (BuildError, OSError, AttributeError) as error:
        log.warning("torch's operators are Python, some 100 us a call slower: %s", error)
        return False
    _loaded.append(shared)
    return True


_loaded: list[ctypes.CDLL] = []
"""The shared object, once torch has its operators."""


class Functions(NamedTuple):
    """The functions of ``direct.c``, which says what they take."""

    direct: Callable[..., Any]
    back: Callable[..., Any]
    plan: Callable[..., Any]
    track: Callable[..., Any]
    track_back: Callable[..., Any]


def direct() -> Callable[..., Any] | None:
    """Return the function of ``direct.c`` that runs a forward pass, None where it cannot be had."""
    every = functions()
    return None if every is None else every.direct


def back() -> Callable[..., Any] | None:
    """Return the one that runs a backward pass, None where it cannot be had."""
    every = functions()
    return None if every is None else every.back


@functools.cache
def functions() -> Functions | None:
    """Return the functions of ``direct.c``, None where they cannot be had."""
    handles: Any = getattr(torch._C, "_aoti", None)
    try:
        objects = (
            handles.unsafe_alloc_void_ptrs_from_tensors,
            handles.alloc_tensors_by_stealing_from_void_ptrs,
            *(torch.Tensor.is_neg, "requires_grad", torch.Tensor, torch.nn.Parameter, None, False),
        )
        make = ctypes.PyDLL(_loaded[0]._name).cellgen_torch_direct
        make.argtypes, make.restype = [ctypes.py_object], ctypes.py_object
        every = Functions(*make(objects))
        _shorten()
    except (AttributeError, IndexError, OSError, ValueError) as error:
        log.debug("calls go through torch's dispatcher: %s", error)
        return None
    return every


def _shorten() -> None:
    """Let ``direct.c`` look for shorter ways between objects and tensors, by some of each kind."""
    plain = torch.zeros(2)
    tensors = [plain, plain[1:], torch.nn.Parameter(plain), torch.zeros(1, requires_grad=True) * 2]
    try:
        shared = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / WRAPS[0]))
        wrap = ctypes.cast(getattr(shared, WRAPS[1]), ctypes.c_void_p)
    except (AttributeError, OSError):
        wrap = ctypes.c_void_p()
    shorten = ctypes.PyDLL(_loaded[0]._name).cellgen_torch_shorten
    shorten.argtypes, shorten.restype = [ctypes.py_object, ctypes.c_void_p], None
    shorten(tensors, wrap)


def number_of(text: str) -> int:
    """Return what the operators in C know a cell by in this process; 0 where they do not."""
    if not _loaded:
        return 0
    look_up = _loaded[0].cellgen_torch_cell
    look_up.argtypes, look_up.restype = [ctypes.c_char_p], ctypes.c_void_p
    return look_up(text.encode()) or 0


def _version() -> int:
    """The version of torch as its stable interface has it: a byte for each number."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 10):
        raise BuildError(f"torch is {torch.__version__}, expected 2.10 or newer for operators in C")
    return major << 56 | minor << 48


_kept: list[Callable[[bytes], int]] = []
"""What C holds an address of."""


def _finder(shared: ctypes.CDLL) -> Callable[[bytes], int]:
    """What C calls for a cell that it does not know: it finds the cell and adds it."""

    def find_cell(text: bytes) -> int:
        try:
            known = find(text.decode())
            descriptor = ctypes.c_void_p(known.kernel.library().descriptor)
            code = _add(shared, text, descriptor, known.layout)
        except Exception as error:  # no exception passes through C: who called finds it again
            log.warning("torch's operators do not know %s: %s", text.decode(), error)
            return 1
        return code

    finder = Finder(find_cell)
    _kept.append(finder)
    return finder


def _add(shared: ctypes.CDLL, text: bytes, cell: ctypes.c_void_p, layout: Layout) -> int:
    kept = (*layout.outputs, *layout.saved)
    lists = (layout.theta, layout.scalars, kept, layout.upstream, layout.gradients)
    names = [_texts([item.name for item in items]) for items in lists]
    counts = (
        *(len(layout.theta), len(layout.scalars), len(layout.outputs), len(layout.saved)),
        *(len(layout.upstream), len(layout.gradients)),
    )
    code: int = shared.cellgen_torch_add(text, cell, _numbers(counts), *names)
    return code


def _texts(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(names) + 1))(*(name.encode() for name in names))


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * (len(values) + 1))(*values)


@functools.cache
def _built() -> Path:
    """Find the shared object in the cache, or compile it. Raises BuildError."""
    if not sys.platform.startswith("linux"):
        raise BuildError(f"{NAME}: operators in C are for Linux, found {sys.platform}")
    compiler = of_cache()
    text = {SOURCE.name: SOURCE.read_text(encoding="utf-8")}
    sources = SourceFiles.gather(NAME, text, SOURCE.parent, include_folder())
    libraries = Path(torch.__file__).parent / "lib"
    facts = [
        *compiler.facts,
        ("own flags", repr(FLAGS)),
        ("torch", f"{torch.__version__}\n{libraries}"),
    ]
    entry = f"{NAME}-{cache.digest([*sources.files, *facts])}"

    def compiled(place: Path) -> str:
        produced = f"{entry}.so"
        command = (
            *compiler.command,
            *compiler.flags,
            *FLAGS,
            *link_flags(),
            "-Iinclude",
            SOURCE.name,
            "-o",
            produced,
        )
        linked = (*command, f"-L{libraries}", "-ltorch_cpu", "-l:libstdc++.so.6")
        step = steps.Step(f"compiling {NAME}", linked, produced)
        steps.run(place, NAME, entry, ((step,),), TOOL)
        return produced

    return compiled_by(compiler, entry, sources.files, compiled)[0]

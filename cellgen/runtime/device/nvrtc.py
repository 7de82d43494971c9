"""Compile kernels of CUDA in this process: NVRTC, the library that PyTorch brings as a wheel.

Input: a text, the headers that it includes, an architecture. Output: an image for the driver,
machine code (cubin) for a device that the library knows, else PTX. It needs no device, no nvcc, no
header of CUDA and no other compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.build import cache
from cellgen.runtime.device import remembered
from cellgen.runtime.device.cublas import wheel_folders

NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
BUILTINS = "libnvrtc-builtins.so.*"
"""What it opens by its bare name when it compiles, where no search path leads in a wheel."""
WHEEL_PLACES = ("cu13/lib", "cuda_nvrtc/lib")
"""Where wheels put it, below the folder ``nvidia`` of site-packages: CUDA 13, CUDA 12."""
OLDEST = (12, 0)
TEGRA = frozenset((72, 87, 101, 110))
"""Capabilities of boards whose machine code no other device runs, nor they another's: in NVIDIA's
table Xavier, Orin, and Thor, whose number is another one from CUDA 13 on."""
FIX = (
    "install it (`pip install nvidia-cuda-nvrtc`, with CUDA 12 `nvidia-cuda-nvrtc-cu12`), "
    "or take nvcc: CELLGEN_CUDA_COMPILER=nvcc"
)
SYSTEM_HEADERS = {
    "stdint.h": """#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define UINTPTR_MAX 0xffffffffffffffffUL
#define INT64_MIN (-0x7fffffffffffffffL - 1)
#define UINT64_MAX 0xffffffffffffffffUL
""",
    "math.h": """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define __builtin_nanf(text) NAN
""",
    "string.h": "#pragma once\n",
}
"""What generated text takes of C's headers: NVRTC has none. Functions are its own."""


@dataclass(frozen=True)
class Nvrtc:
    """The library, loaded, and what it says it is; ``library`` is None for one remembered."""

    library: ctypes.CDLL | None
    path: str
    version: tuple[int, int]
    architectures: tuple[int, ...]
    """Compute capabilities, ten times, ascending."""

    @property
    def facts(self) -> dict[str, object]:
        """What is remembered of it."""
        known = list(self.architectures)
        return {"path": self.path, "version": list(self.version), "architectures": known}

    @property
    def toolkit(self) -> int:
        """The version as CUDA's headers count."""
        return self.version[0] * 1000 + self.version[1] * 10

    def architecture(self, capability: int) -> str:
        """What to compile for: a device's machine code, or PTX where it is newer than NVRTC.

        Raises BuildError: the device is older than all that NVRTC compiles for.
        """
        if capability in self.architectures:
            return f"sm_{capability}"
        older = [known for known in self.architectures if known <= capability]
        if not older:
            raise BuildError(
                f"NVRTC {self} compiles for {self.named_architectures()}, and the device is "
                f"sm_{capability}; use a newer device",
                code="build.nvrtc",
            )
        return f"compute_{older[-1]}"

    def runnable(self, capability: int) -> tuple[str, ...]:
        """What a device takes of images that are there, the best first.

        Its own machine code, that of an older device of its generation, PTX of any older one.
        """
        older = [known for known in reversed(self.architectures) if known <= capability]
        machine = [f"sm_{known}" for known in older if _runs(known, capability)]
        own = (f"sm_{capability}", f"sm_{capability}a")
        return (*dict.fromkeys((*own, *machine)), *(f"compute_{known}" for known in older))

    def named(self, architecture: str, capability: int) -> str:
        """An architecture that a user named, for a device: PTX where its code would not run there.

        Machine code runs on devices of its generation that are not older. Raises BuildError: not
        one of NVRTC's.
        """
        known = self.require(architecture)
        machine = re.fullmatch(r"sm_(\d+)", known)
        if machine is None or int(machine[1]) > capability or _runs(int(machine[1]), capability):
            return known
        return portable(known)

    def require(self, architecture: str) -> str:
        """An architecture that a user named. Raises BuildError: not one of NVRTC's."""
        match = re.fullmatch(r"(?:sm|compute)_(\d+)[af]?", architecture)
        if match is None or int(match[1]) not in self.architectures:
            raise BuildError(
                f"CELLGEN_CUDA_ARCH is {architecture!r}, and NVRTC {self} compiles for "
                f"{self.named_architectures()}; name one of these, or unset it: then it is the "
                f"device's",
                code="build.nvrtc",
            )
        return architecture

    def named_architectures(self) -> str:
        """The architectures, for messages."""
        return ", ".join(f"sm_{known}" for known in self.architectures)

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    def compiled(
        self,
        name: str,
        text: str,
        headers: Mapping[str, str],
        architecture: str,
        flags: Sequence[str],
    ) -> bytes:
        """The image of a text, which includes of ``headers`` alone; the library is there.

        Raises BuildError with what NVRTC says.
        """
        lib, program = self.library, ctypes.c_void_p()
        assert lib is not None
        self._ask(
            lib.nvrtcCreateProgram(
                ctypes.byref(program),
                text.encode(),
                name.encode(),
                len(headers),
                _texts(headers.values()),
                _texts(headers),
            ),
            "making a program",
        )
        try:
            options = (f"--gpu-architecture={architecture}", *flags)
            code = lib.nvrtcCompileProgram(program, len(options), _texts(options))
            if code:
                said = self._read(program, "ProgramLog").decode(errors="replace")
                raise BuildError(self._refusal(name, architecture, code, said), code="build.nvrtc")
            return self._read(program, "CUBIN" if architecture.startswith("sm_") else "PTX")
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def lacking(self, kernels: str, architecture: str) -> BuildError:
        """What to say where kernels are not in the cache, and the library is one remembered."""
        return BuildError(
            f"compiling {kernels} for {architecture}: they are not in the kernel cache "
            f"{cache.folder()}, and NVRTC {self} is not here to compile them; {FIX}. C kernels "
            f"of the cell still work",
            code="build.nvrtc",
        )

    def _refusal(self, name: str, architecture: str, code: int, said: str) -> str:
        lines = [line for line in said.strip("\0").splitlines() if line.strip()]
        first = next((at for at, line in enumerate(lines) if "error" in line.lower()), 0)
        cause = lines[first].strip() if lines else self._text(code)
        return "\n".join(
            [
                f"{name}: NVRTC {self} does not compile its kernels for {architecture}: {cause}; "
                f"take nvcc if you have it: CELLGEN_CUDA_COMPILER=nvcc",
                f"  library: {self.path}",
                *(f"  | {line}" for line in lines[first : first + 12]),
                "  C kernels of the cell still work.",
            ]
        )

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        assert self.library is not None
        size = ctypes.c_size_t()
        ask_size, ask = (getattr(self.library, f"nvrtcGet{what}{end}") for end in ("Size", ""))
        self._ask(ask_size(program, ctypes.byref(size)), f"asking for the {what}")
        into = ctypes.create_string_buffer(size.value)
        self._ask(ask(program, into), f"asking for the {what}")
        return into.raw

    def _ask(self, code: int, doing: str) -> None:
        if code:
            raise BuildError(
                f"NVRTC {self}, {doing}: {self._text(code)}; {FIX}", code="build.nvrtc"
            )

    def _text(self, code: int) -> str:
        assert self.library is not None
        said = self.library.nvrtcGetErrorString
        said.restype = ctypes.c_char_p
        return str(said(code).decode())


def portable(architecture: str) -> str:
    """The PTX in place of machine code; what runs on one architecture alone (``sm_90a``) stays."""
    return re.sub(r"^sm_(\d+)$", r"compute_\1", architecture)


def _runs(code: int, capability: int) -> bool:
    """Whether a device runs machine code of an architecture: its generation, and not a newer one.

    Of Tegra, only its own.
    """
    same = code // 10 == capability // 10 and code <= capability
    return code == capability or (same and not {code, capability} & TEGRA)


def find() -> Nvrtc | None:
    """The library, of those that can be loaded the first; None where there is none."""
    return next((opened for path in candidates() if (opened := _opened(path))), None)


def known() -> tuple[Nvrtc, ...]:
    """The library; where there is none, each that the cache remembers, for its keys.

    Raises BuildError: there is none and none is remembered, or it is too old.
    """
    return (tuple(_recalled()) if find() is None else ()) or (required(),)


def required() -> Nvrtc:
    """The library. Raises BuildError: there is none, or it is too old."""
    nvrtc = find()
    if nvrtc is None:
        raise BuildError(
            f"no NVRTC: {' and '.join(NAMES)} are not loaded, among the installed wheels, in "
            f"CUDA_HOME or where the system looks; {FIX}",
            code="build.nvrtc",
        )
    if nvrtc.version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise BuildError(
            f"NVRTC {nvrtc} ({nvrtc.path}) is too old, expected {wanted} or newer; {FIX}",
            code="build.nvrtc",
        )
    return nvrtc


def _recalled() -> Iterator[Nvrtc]:
    for facts in remembered.recall_releases(remembered.NVRTC):
        match facts:
            case {"path": str(path), "version": [int(a), int(b)], "architectures": [*known]}:
                yield Nvrtc(None, path, (a, b), tuple(n for n in known if isinstance(n, int)))


def candidates() -> Iterator[str]:
    """What to load, in order: of wheels, of conda, of CUDA_HOME, then where the system looks."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    condas = dict.fromkeys((sys.prefix, os.environ.get("CONDA_PREFIX", "")))
    folders = [
        *wheel_folders(WHEEL_PLACES),
        *(Path(prefix) / "lib" for prefix in condas if prefix),
        *(Path(home) / "lib64" for home in homes if home),
    ]
    for folder in folders:
        for name in NAMES:
            if (folder / name).is_file():
                yield str(folder / name)
    yield from NAMES


@lru_cache(maxsize=8)
def _opened(path: str) -> Nvrtc | None:
    """Load a library and what it opens itself later; None where it cannot be."""
    try:
        if "/" in path:
            for needed in sorted(Path(path).parent.glob(BUILTINS)):
                ctypes.CDLL(str(needed))
        library = ctypes.CDLL(path)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(architectures)
    except (OSError, AttributeError):
        return None
    return Nvrtc(library, path, (major.value, minor.value), tuple(sorted(architectures)))


def _texts(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)

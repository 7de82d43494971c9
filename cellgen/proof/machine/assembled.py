"""Turn PTX into machine code and its text with NVIDIA's tools; no device takes part."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cellgen.errors import BuildError

LIMIT_S = 120
TOOLS = ("backends", "nvidia", "bin")
"""Where Triton's wheel has NVIDIA's tools."""


@dataclass(frozen=True)
class Assembled:
    """What ``ptxas`` makes of PTX: machine code, registers a thread, bytes spilt to memory."""

    cubin: bytes
    registers: int
    spilled: int
    """Bytes that are written to the stack because registers ran out."""


@dataclass(frozen=True)
class Resources:
    """What a kernel takes of a multiprocessor, for a thread: registers, and bytes of stack.

    Kernels of Triton have no arrays on the stack: what lies there was spilt.
    """

    registers: int
    stack: int


def tool(name: str) -> str:
    """Find a tool of NVIDIA's: in Triton's wheel, or on PATH. Raises BuildError."""
    spec = find_spec("triton")
    inside = Path(spec.origin).parent.joinpath(*TOOLS, name) if spec and spec.origin else None
    path = str(inside) if inside and inside.is_file() else shutil.which(name)
    if path is None:
        raise BuildError(
            f"no {name}: neither Triton's wheel nor PATH has one; pip install triton, or the CUDA "
            f"toolkit",
            code="build.nvcc",
        )
    return path


def assemble(ptx: str, *, ptxas: str | None = None, arch: str = "sm_90a") -> Assembled:
    """Run ``ptxas`` (a path, else the newer of Triton's) on one kernel. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        source, to = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        command = [ptxas or _newest(), "-v", "--gpu-name", arch, str(source), "-o", str(to)]
        said = _run(command)
        return Assembled(to.read_bytes(), *_numbers(said))


def _newest() -> str:
    """Triton brings a newer ``ptxas``, named after the devices that it was first needed for."""
    try:
        return tool("ptxas-blackwell")
    except BuildError:
        return tool("ptxas")


def resources(cubin: bytes) -> Resources:
    """Read what machine code uses. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        said = _run([tool("cuobjdump"), "--dump-resource-usage", str(path)], wants_output=True)
    match = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if match is None:
        raise BuildError(f"cuobjdump does not say what is used: {said[:200]}", code="build.nvcc")
    return Resources(int(match[1]), int(match[2]))


def _numbers(said: str) -> tuple[int, int]:
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    if registers is None or spilled is None:
        raise BuildError(f"ptxas does not say what it used: {said[:200]}", code="build.nvcc")
    return int(registers[1]), int(spilled[1])


def disassemble(cubin: bytes, *, nvdisasm: str | None = None) -> str:
    """Print the machine code of a cubin. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _run([nvdisasm or tool("nvdisasm"), "-c", str(path)], wants_output=True)


def _run(command: list[str], *, wants_output: bool = False) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=True, errors="replace"
        )
    except subprocess.CalledProcessError as error:
        raise BuildError(
            f"{command[0]}: {error.stderr.strip()[:500]}", code="build.nvcc"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} does not work: {error}", code="build.nvcc") from error
    return done.stdout if wants_output else done.stderr

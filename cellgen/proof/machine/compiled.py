"""Compile kernels of Triton for a device that need not be there.

Input: files that hold kernels, and how each is specialised. Output: PTX and machine code for NVIDIA
devices, assembly for AMD's. It is done in a process of its own: in one whose Triton interprets
kernels, none can be compiled.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cellgen.errors import BuildError

LIMIT_S = 600
HOPPER = ("cuda", 90, 32)
"""Back end, architecture, lanes of a warp."""
MI300 = ("hip", "gfx942", 64)
Target = tuple[str, int | str, int]


@dataclass(frozen=True)
class SpecialisedKernel:
    """A kernel of a file, with all that its machine code depends on.

    ``signature``: types of what a launch hands over, in Triton's words (``*bf16``, ``i32``), by
    parameter and in its order; ``constants``: those that are fixed. Pointers are multiples of 16.
    """

    path: str
    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, int | bool | str | None]
    warps: int
    stages: int
    multiples: tuple[str, ...] = ()
    """Numbers that are multiples of 16, as Triton finds at a call."""


@dataclass(frozen=True)
class CompiledKernel:
    """What Triton made: text for the assembler, machine code, bytes of shared memory."""

    text: str
    binary: bytes
    shared: int


def compile_kernels(
    kernels: Sequence[SpecialisedKernel], target: Target = HOPPER
) -> list[CompiledKernel]:
    """Compile some kernels, in order. Raises BuildError with what Triton says."""
    request = json.dumps({"target": target, "kernels": [asdict(kernel) for kernel in kernels]})
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "cellgen.proof.machine.compiled"]
    try:
        done = subprocess.run(
            command,
            input=request,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
            env=environment,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()[-1500:]
        raise BuildError(f"Triton cannot compile a kernel: {said}", code="build.triton") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"Triton does not compile: {error}", code="build.triton") from error
    answer = json.loads(done.stdout.splitlines()[-1])
    return [CompiledKernel(t, base64.b64decode(b), s) for t, b, s in answer]


def _kernel(path: str, name: str, modules: dict[str, object]) -> Any:
    if path not in modules:
        spec = importlib.util.spec_from_file_location(f"kernels_{len(modules)}", path)
        if spec is None or spec.loader is None:
            raise BuildError(f"{path} is no Python module", code="build.triton")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        modules[path] = module
    return getattr(modules[path], name)


def _constant(value: object) -> object:
    """A constant from how it is written: a type of Triton by its name."""
    import triton.language as tl

    types = {"fp32": tl.float32, "fp64": tl.float64, "bf16": tl.bfloat16, "fp16": tl.float16}
    return types.get(value, value) if isinstance(value, str) else value


def _compile(fn: Any, request: Mapping[str, Any], target: Target) -> tuple[str, str, int]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: _constant(value) for name, value in request["constants"].items()}
    signature = {
        n: "constexpr" if n in constants else request["signature"][n] for n in fn.arg_names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(fn.arg_names)
        if signature[n].startswith("*") or n in request["multiples"]
    }
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": request["warps"], "num_stages": request["stages"]}
    kernel = triton.compile(source, target=GPUTarget(*target), options=options)
    text, binary = ("ptx", "cubin") if target[0] == "cuda" else ("amdgcn", "hsaco")
    code = base64.b64encode(kernel.asm[binary]).decode()
    return kernel.asm[text], code, int(kernel.metadata.shared)


def main() -> None:
    """Answer one request on standard input."""
    request = json.load(sys.stdin)
    backend, arch, lanes = request["target"]
    modules: dict[str, object] = {}
    answer = [
        _compile(_kernel(one["path"], one["kernel"], modules), one, (backend, arch, lanes))
        for one in request["kernels"]
    ]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

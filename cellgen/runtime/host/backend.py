"""The backend of C: the machine's compiler, and kernels that run on threads of the CPU."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime import paths
from cellgen.runtime.abi import Interface
from cellgen.runtime.backend import AnyKernel, Backend, Need
from cellgen.runtime.build import compiler, driver, half, shared_object, survey
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.kernel import Kernel, load_folder
from cellgen.runtime.system import shared_suffix

TRIAL = "#include <math.h>\n#include <stdint.h>\ndouble trial(double x) { return tanh(x); }\n"
TRIAL_SECONDS = 60.0


@dataclass(frozen=True)
class HostBackend:
    """Kernels of C.

    They are compiled at once where a class is given; those of a folder when it is loaded.
    """

    name: str = "c"
    precisions: tuple[str, ...] = ("float32", "float64")
    threads: bool = True
    devices: tuple[str, ...] = ()
    emulates: bool = False

    def toolchain(self) -> tuple[Need, ...]:
        """The compiler, and what it can do."""
        needs = (Need("C compiler", _compiler),)
        try:
            compiler.compiler()
        except BuildError:
            return needs  # nothing can be asked of a compiler that is not there
        facts = (
            Need("compiler flags", lambda: shlex.join(compiler.compiler().flags)),
            Need("instruction set", _instruction_set),
            Need("micro-kernel", _micro_kernel),
            Need("products in bfloat16", _half_products),
            Need("compilers", lambda: "; ".join(survey.compilers()) or "no other"),
            Need("trial compilation", _trial),
        )
        return (*needs, *facts)

    def preparing(self) -> AbstractContextManager[None]:
        """Compile the time driver beside the body."""
        return driver.before_cells(paths.include_folder())

    def build(self, files: SourceFiles, interface: Interface) -> Built:
        """Compile the shared object of a cell unless the cache has it."""
        return shared_object.build(files, interface)

    def kernel(self, interface: Interface, files: SourceFiles, *, emulated: bool) -> Kernel:
        """Compile a cell and return its kernel."""
        kernel = Kernel(interface, files)
        kernel.build()
        return kernel

    def load(self, folder: Path, *, emulated: bool) -> Kernel:
        """Import the folder and return its kernel."""
        return load_folder(folder)

    def weigh(
        self, kernel: AnyKernel, sizes: Mapping[str, int], dtype: str, device: str
    ) -> list[str]:
        """Nothing: ``plan`` of a function says what is chosen for a shape."""
        return []


BACKEND: Backend = HostBackend()


def _compiler() -> str:
    info = compiler.compiler()
    return f"{info.version}, {info.path}"


def _instruction_set() -> str:
    return ", ".join(compiler.instruction_set(compiler.compiler())) or "baseline"


def _micro_kernel() -> str:
    return survey.micro_kernel(compiler.compiler(), paths.include_folder())


def _half_products() -> str:
    return str(half.half_products(compiler.compiler(), paths.include_folder()))


def _trial() -> str:
    """Compile and link three lines: a compiler without the C library's headers is common."""
    info = compiler.compiler()
    with tempfile.TemporaryDirectory() as folder:
        source, product = Path(folder, "trial.c"), Path(folder, f"trial{shared_suffix()}")
        source.write_text(TRIAL, encoding="utf-8")
        link = compiler.link_flags()
        command = [*info.command, *info.flags, *link, str(source), "-o", str(product), "-lm"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
            )
            problem = "" if done.returncode == 0 else done.stderr.strip() or "it failed"
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    if not problem:
        return "compiles and links"
    said = problem.splitlines()[0].replace("; ", ", ")
    fix = "install the C library's headers: Debian and Ubuntu `apt install libc6-dev`, or "
    raise BuildError(f"{said}; {fix}{compiler.FIX_COMPILER}")

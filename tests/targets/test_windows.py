"""Kernels of Windows under Wine beside those of Linux; cellgen's way to a DLL.

Needs zig, and Debian's wine64 for what runs. No Windows was at hand.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.runtime.paths import include_folder
from tests.elsewhere.calls import calls_of, compare
from tests.elsewhere.machines import C11, FOLDER, Machine, elsewhere, ran, zig
from tests.without_posix import without_posix

WINDOWS = next(machine for machine in elsewhere() if machine.name == "windows-x86-64")
PATIENT = {"CELLGEN_BUILD_TIMEOUT": "2900"}
"""zig compiles the C library of a target when it is first linked for."""
SHAPE = {"T": 40, "B": 16, "I": 48, "H": 80}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not zig(), reason="zig is not installed: pip install ziglang"),
]
under_wine = pytest.mark.skipif(bool(WINDOWS.missing), reason=f"{WINDOWS.missing} is missing")


def require_equal(cell: str, machine: Machine, program: Path, *words: str) -> None:
    """Every function, on one thread and on two: float32 to the bit, float64 within the bounds."""
    made = calls_of(cell, (SHAPE, SHAPE))
    compared = compare(made, machine.run(program, b"".join(one.text for one in made), *words))
    single = [one for one in compared if one.label.endswith("f32")]
    assert {one.label.split()[1] for one in single} >= {"forward", "sequence_backward"}
    assert [one.label for one in single if one.equal != one.arrays] == []
    assert [one.label for one in compared if not one.ok] == []


@under_wine
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_program_has_the_bits_of_linux(cell: str, tmp_path: Path) -> None:
    require_equal(cell, WINDOWS, WINDOWS.build(cell, tmp_path))


COMPILED = """
    from cellgen.runtime.build import shared_object, steps
    from cellgen.runtime.build.sources import SourceFiles
    from cellgen.runtime.folders import read_interface
    from cellgen.runtime.paths import generated_folder

    steps.require_loadable = lambda *_: None  # this Python loads no DLL
    folder = generated_folder() / sys.argv[1]
    sources = SourceFiles.read(folder, sys.argv[1])
    print(shared_object.build(sources, read_interface(folder)).path)
"""
CALLED = """
    import numpy as np
    import cellgen
    from cellgen.runtime.build import cache

    kernel, rng = cellgen.load(sys.argv[1]), np.random.default_rng(0)
    given = kernel.init(rng, B=5, I=3, H=4)
    given["x"] = rng.standard_normal((6, 5, 3), np.float32)
    y = kernel.sequence_forward(**given, threads=2, save=True)
    g = kernel.sequence_backward(**given, h=y.h, saved=y.saved, d_h=np.ones_like(y.h), threads=2)
    print(kernel.build().path)
    print(y.h.tobytes().hex(), g.d_x.tobytes().hex())
    print(cellgen.load(sys.argv[1]).build().cached, cache.clear().entries > 0, end=" ")
    print(cache.info().entries)
"""


def dll(cell: str, tmp_path: Path) -> Path:
    """The DLL that cellgen compiles where it takes this system for Windows."""
    command = shlex.join([*zig(), "-target", "x86_64-windows-gnu"])
    own = {"CELLGEN_CACHE_DIR": str(tmp_path / "cache"), **PATIENT}
    return Path(without_posix(COMPILED, cell, timeout=3000, CELLGEN_CC=command, **own))


@under_wine
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_dll_of_cellgens_own_making_is_loaded_and_has_the_bits_of_linux(
    cell: str, tmp_path: Path
) -> None:
    path = dll(cell, tmp_path)
    assert path.suffix == ".dll"
    assert path.read_bytes()[:2] == b"MZ"
    program = tmp_path / "calls.exe"
    named = ["-DFROM_DLL", f"-DCELL={cell}_cellgen", f"-I{include_folder()}"]
    compiler = [*WINDOWS.compiler, *WINDOWS.flags, "-O1", *C11, *named]
    ran([*compiler, str(FOLDER / "main.c"), "-o", str(program)])
    require_equal(cell, WINDOWS, program, str(path))


def test_kernels_are_built_loaded_and_called_without_what_posix_has(tmp_path: Path) -> None:
    """By zig, for the system that is here, since no Python of Windows is."""
    own = {"CELLGEN_CC": "", "CC": "", "CELLGEN_CACHE_DIR": str(tmp_path / "cache")}
    path, numbers, state = without_posix(CALLED, "elman", timeout=3000, **own, **PATIENT).split(
        "\n"
    )
    assert path.endswith(".dll")
    assert state == "True True 0"
    assert numbers == expected()


def expected() -> str:
    """The same by the kernel that is compiled here."""
    kernel, rng = cellgen.load("elman"), np.random.default_rng(0)
    given = kernel.init(rng, B=5, I=3, H=4)
    given["x"] = rng.standard_normal((6, 5, 3), np.float32)
    y = kernel.sequence_forward(**given, save=True)
    g = kernel.sequence_backward(**given, h=y.h, saved=y.saved, d_h=np.ones_like(y.h))
    return f"{y.h.tobytes().hex()} {g.d_x.tobytes().hex()}"

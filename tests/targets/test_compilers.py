"""Generated C under other compilers: a slice of ``python -m tests.compilers``."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from cellgen.errors import BuildError
from cellgen.runtime.build import survey
from cellgen.runtime.build.compiler import CompilerInfo
from cellgen.runtime.paths import include_folder
from tests import compilers
from tests.elsewhere.calls import Made, calls_of, compare
from tests.elsewhere.machines import ElsewhereError, Machine, native

SYNTAX = ("-fsyntax-only", "-Wno-unused-command-line-argument")
"""No code is made: warnings of the optimiser are those of ``python -m tests.compilers``."""


def present(machine: Machine) -> Machine:
    if machine.missing:
        pytest.skip(f"{machine.missing} is not installed")
    return machine


def any_compiler() -> Machine:
    found = [machine for machine in native() if not machine.missing]
    if not found:
        pytest.skip("no C compiler")
    return found[0]


@pytest.mark.parametrize("language", compilers.LANGUAGES)
@pytest.mark.parametrize("machine", native(), ids=lambda machine: machine.name)
def test_the_driver_and_cells_compile_without_a_warning(machine, language, tmp_path) -> None:
    flags = compilers.LANGUAGES[language]
    headers = compilers.all_headers(tmp_path, compilers.QUICK)
    waits = machine.name == "zig"  # for an object in any case
    more, cells = ((), compilers.QUICK[:1]) if waits else (SYNTAX, compilers.QUICK)
    for source in (*map(compilers.source_of, (*compilers.DRIVER, *cells)), headers):
        compilers.compile_strictly(present(machine), flags, source, *more)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="AMX, and who permits it"
)
@pytest.mark.parametrize(
    ("language", "has_amx"),
    [
        (("-x", "c", "-std=gnu11"), 1),
        (compilers.C11, 1),
        ((*compilers.C11, "-D_POSIX_C_SOURCE=200809L"), 0),
        ((*compilers.C11, "-D_POSIX_C_SOURCE=200809L", "-D_DEFAULT_SOURCE"), 1),
    ],
)
def test_amx_is_used_where_its_permission_can_be_asked_for(language, has_amx, tmp_path) -> None:
    """POSIX alone does not declare how: the driver compiles, and goes another way."""
    source = tmp_path / "driver.c"
    test = f'_Static_assert(CELLGEN_AMX == {has_amx}, "AMX");'
    source.write_text(f'#include "{compilers.DRIVER[0]}.c"\n{test}\n')
    flags = ("-march=sapphirerapids", f"-I{include_folder()}", *SYNTAX)
    compilers.compile_strictly(any_compiler(), language, source, *flags)


def test_cells_compile_without_gnu_c() -> None:
    for name in compilers.QUICK:
        source = compilers.source_of(name)
        compilers.compile_strictly(
            any_compiler(), compilers.C11, source, *compilers.PLAIN, *SYNTAX[:1]
        )


def test_a_warning_is_found(tmp_path: Path) -> None:
    source = tmp_path / "unused.c"
    source.write_text(
        "int f(int used, int unused);\nint f(int used, int unused) { return used; }\n"
    )
    with pytest.raises(ElsewhereError, match="unused"):
        compilers.compile_strictly(any_compiler(), compilers.C11, source, *SYNTAX)


@pytest.mark.parametrize("name", [*compilers.DRIVER, "gru"])
def test_a_compiler_without_gnu_c_is_given_none(name: str) -> None:
    assert compilers.gnu_left(any_compiler(), compilers.source_of(name)) == []


@pytest.mark.parametrize(
    "line", ["int a __attribute__((unused));", "__builtin_prefetch(p);", "int b = ({ 1; });"]
)
def test_gnu_c_is_found(line: str) -> None:
    assert compilers.GNU.search(line)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize(
    ("march", "expected"),
    [
        ("x86-64", "16-byte vectors without fma: 4 float or 2 double a vector, 16 registers"),
        ("haswell", "AVX2 with FMA: 8 float or 4 double a vector, 16 registers"),
        ("skylake-avx512", "AVX-512: 16 float or 8 double a vector, 32 registers"),
    ],
)
def test_the_micro_kernel_is_named(march: str, expected: str) -> None:
    command = present(native()[0]).compiler
    info = CompilerInfo(command, "", "", (f"-march={march}",), "")
    assert survey.micro_kernel(info, include_folder()).startswith(expected)
    with pytest.raises(BuildError, match=r"cellgen_gemm\.h"):
        survey.micro_kernel(info, include_folder().parent)


@pytest.fixture(scope="module")
def made() -> list[Made]:
    return calls_of("elman", [{"T": 3, "B": 2, "I": 5, "H": 7}])


def returned(made: list[Made]) -> bytearray:
    """What main.c would write if everything were the same there."""
    text = bytearray()
    for one in made:
        text += np.int64(one.code).tobytes()
        for _, array in one.results:
            text += array.tobytes() + bytes(-array.nbytes % 8)
    return text


def test_results_from_elsewhere_are_held_to_those_from_here(made: list[Made]) -> None:
    compared = compare(made, bytes(returned(made)))
    assert all(one.ok and one.equal == one.arrays for one in compared)
    assert {one.label.split()[1] for one in compared} >= {
        *("forward", "backward", "weight_gradients", "sequence_forward", "sequence_backward"),
    }


def test_a_difference_elsewhere_is_found(made: list[Made]) -> None:
    found = returned(made)
    last = made[-1].results[-1][1]
    assert last.dtype == np.float64
    moved = last.reshape(-1).copy()
    moved[0] += 1e-12 * np.abs(last).max()
    found[-last.nbytes :] = moved.tobytes()
    compared = compare(made, bytes(found))
    assert [one.ok for one in compared] == [True] * (len(made) - 1) + [False]
    with pytest.raises(AssertionError, match="code 3 elsewhere"):
        compare(made, np.int64(3).tobytes() + bytes(returned(made))[8:])


@pytest.mark.slow
@pytest.mark.parametrize("name", compilers.EQUAL)
@pytest.mark.parametrize("machine", native(), ids=lambda machine: machine.name)
def test_every_compiler_gives_the_same_results(machine, name, tmp_path) -> None:
    compilers.equal(present(machine), name, tmp_path)

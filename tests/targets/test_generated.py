"""Generated sources: committed, deterministic, clean for compilers, usable without Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cellgen import Cell, api
from cellgen.cells import SHIPPED, GRUBlockCell
from cellgen.pipeline import generate, programs_of
from cellgen.program.interpret import interpret
from cellgen.runtime.abi import PRECISIONS, Interface
from cellgen.runtime.build import driver
from cellgen.runtime.build.compiler import compiler, instruction_set
from cellgen.runtime.build.sources import DRIVER_SOURCES, SourceFiles
from cellgen.runtime.paths import generated_folder, include_folder
from tests.conftest import CELLS, SIZES, VARIANTS, draw, every_cell, relative
from tests.cover import cover, in_turn, of_equations

ROOT = Path(__file__).parents[2]
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-pedantic"]
LANGUAGES = {
    "gcc": ["-x", "c", "-std=c99", "-D_POSIX_C_SOURCE=200809L"],
    "clang": ["-x", "c", "-std=c99", "-D_POSIX_C_SOURCE=200809L"],
    "g++": ["-x", "c++", "-std=c++17"],
    "clang++": ["-x", "c++", "-std=c++17"],
}

SEVERAL = 5
"""As many of the cells that cover by equations are written once more each time."""
LIBRARY = set(
    """
    exp expm1 log log1p tanh sqrt sqrtf sin cos pow erf fabs copysign copysignf
    powf sinf cosf fma fmaf
    memcpy memset memmove memcmp __stack_chk_fail __memcpy_chk __memset_chk
    """.split()  # noqa: SIM905
)
"""What kernels call: libm and memory functions."""
DRIVER = {
    f"cellgen_{function}_{suffix}"
    for function in (
        *("run_forward", "run_backward", "workspace_size", "choose", "packed_size", "pack"),
        *("product_nn", "product_nt", "product_tn"),
    )
    for suffix in ("f32", "f64")
} | {
    f"cellgen_driver_{name}"
    for name in ("team_of", "team_create", "team_destroy", "call_empty", "engine")
}
"""What the time driver gives to every cell."""
TEAM = set(
    """
    calloc free getpid sched_yield sysconf syscall clock_gettime sigfillset sigemptyset
    """.split()  # noqa: SIM905
)
"""What <cell>_team_create and _destroy call beside pthread_*."""
ENGINE = {"malloc", "free"}
"""What the engine calls for numbers that it widens or rounds, until its call ends."""
ENVIRONMENT = {"getenv", "strcmp"}
"""How the way of products in bfloat16 is chosen; where there is AMX the system is asked, too."""


def compilers() -> list[str]:
    return [name for name in LANGUAGES if shutil.which(name)]


TILES_OF_FLOAT = ("pairs", "int8")


def symbols(interface: Interface) -> set[str]:
    found = set(interface.team_symbols) if interface.has_team else set()
    found |= {interface.descriptor_symbol, f"{interface.name}_signatures"}
    for suffix, _ in PRECISIONS:
        found.add(f"{interface.name}_entries_{suffix}")
        for function in interface.functions:
            names = interface.symbols(function, suffix)
            found |= {names.call} | ({names.workspace_size} if function.workspace else set())
            found |= {names.plan, names.pack, names.packed_size} if function.team else set()
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells, shipped or not, written as ``cellgen build`` writes them."""
    folder = tmp_path_factory.mktemp("generated")
    for cell in CELLS:
        api.write(cell, folder)
    return folder


def test_every_shipped_cell_and_no_other_is_committed() -> None:
    assert set(api.shipped_names()) == {cell.definition.name for cell in SHIPPED}


@pytest.mark.parametrize("name", api.shipped_names())
def test_every_table_says_what_its_columns_are(name: str) -> None:
    """In a comment above it, or beside each line of one row that takes several."""
    folder = generated_folder() / name
    tables = 0
    for path in (folder / f"{name}.c", folder / f"{name}_plan.inc.h"):
        lines = path.read_text().splitlines()
        for place, line in enumerate(lines):
            if re.match(r" *(static )?const [\w *()]+(\[\])? = \{", line):
                tables += 1
                has_columns = lines[place - 1].startswith("/* ")
                assert has_columns or "/* " in lines[place + 1], f"{path.name}: {line}"
    assert tables > 10


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_what_a_person_reads_of_a_cell_is_no_longer_than_600_lines(name: str) -> None:
    """Its C; what is a table stands in a file of its own."""
    text = (generated_folder() / name / f"{name}.c").read_text()
    assert text.count("\n") <= 600


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(cover({cell: of_equations(cell) for cell in SHIPPED})[:SEVERAL], id="some"),
        pytest.param(SHIPPED, id="all", marks=pytest.mark.slow),
    ],
)
def test_sources_are_byte_identical_under_any_hash_seed_and_order_of_cells(
    chosen: Sequence[type[Cell]], tmp_path: Path
) -> None:
    """A process with another seed writes what is committed, in the opposite order.

    So neither hashes nor SymPy's caches show: with the seed of another process and in the order of
    the catalogue, ``cellgen build --check`` of ``.ci/run`` finds the same of all cells.
    """
    code = (
        "import sys; from pathlib import Path; from cellgen import api; from cellgen.cells import "
        "SHIPPED\nfor cell in reversed(SHIPPED):\n"
        "    if cell.definition.name in sys.argv[2:]: api.write(cell, Path(sys.argv[1]))"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    names = [cell.definition.name for cell in chosen]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path), *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
    )
    for cell in chosen:
        name = cell.definition.name
        folders = tmp_path / name, generated_folder() / name
        found, committed = ({p.name: p.read_bytes() for p in files(f)} for f in folders)
        assert sorted(found) == sorted(committed)
        for file, content in found.items():
            assert content == committed[file], f"{name}/{file} differs: run `cellgen build`"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    assert len(api.write(GRUBlockCell, tmp_path)) == 6
    assert api.write(GRUBlockCell, tmp_path) == []


@pytest.mark.parametrize(
    ("cell", "compiler"),
    in_turn({cell.definition.name: cell for cell in CELLS}, compilers()),
)
def test_sources_compile_without_a_warning(cell: type[Cell], compiler: str, written: Path) -> None:
    name = cell.definition.name
    command = [compiler, *LANGUAGES[compiler], *STRICT, "-fsyntax-only", f"-I{include_folder()}"]
    done = subprocess.run(
        [*command, str(written / name / f"{name}.c")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize("cell", [GRUBlockCell, *VARIANTS[:2]], ids=lambda c: c.definition.name)
def test_objects_export_the_interface_and_call_nothing_but_libm_memory_and_threads(
    cell: type[Cell], written: Path, tmp_path: Path
) -> None:
    if shutil.which("cc") is None or shutil.which("nm") is None:
        pytest.skip("no cc or nm")
    name = cell.definition.name
    target = tmp_path / "cell.o"
    source = written / name / f"{name}.c"
    subprocess.run(
        ["cc", "-O0", "-c", str(source), f"-I{include_folder()}", "-o", str(target)], check=True
    )
    lines = subprocess.run(["nm", "-g", target], capture_output=True, text=True, check=True).stdout
    entries = [line.split()[-2:] for line in lines.splitlines()]
    exported = {symbol.removeprefix("_") for kind, symbol in entries if kind != "U"}
    undefined = {symbol for kind, symbol in entries if kind == "U"}
    assert exported == symbols(generate(cell).interface)
    threads = {symbol for symbol in undefined if symbol.startswith("pthread_")}
    assert not threads
    assert undefined <= LIBRARY | DRIVER


@pytest.fixture(scope="module")
def plain_driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of the time driver, compiled without a flag."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    sources = [include_folder() / f"{stem}.c" for stem in DRIVER_SOURCES]
    subprocess.run(["cc", "-c", *sources], check=True, cwd=folder)
    return [str(folder / f"{stem}.o") for stem in DRIVER_SOURCES]


def test_the_driver_exports_what_cells_call_and_calls_nothing_but_memory_and_threads(
    plain_driver: list[str],
) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    command = ["nm", "-g", *plain_driver]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    entries = [line.split()[-2:] for line in lines.splitlines() if len(line.split()) > 1]
    exported = {symbol.removeprefix("_") for kind, symbol in entries if kind != "U"}
    undefined = {symbol for kind, symbol in entries if kind == "U"} - exported
    threads = {symbol for symbol in undefined if symbol.startswith("pthread_")}
    assert {name for name in exported if not name.startswith("cellgen_column_")} == DRIVER
    assert undefined - threads <= LIBRARY | TEAM | ENGINE | ENVIRONMENT


def test_the_two_objects_of_the_driver_share_tiles_and_lack_nothing_together() -> None:
    """As kernels are built: that of double has the tiles of bfloat16 and int8 of float's."""
    if shutil.which("cc") is None or shutil.which("nm") is None:
        pytest.skip("no cc or nm")
    target = driver.compiled(SourceFiles.of_driver(include_folder()), compiler())
    lines = subprocess.run(["nm", "-g", target], capture_output=True, text=True, check=True).stdout
    entries = [line.split()[-2:] for line in lines.splitlines()]
    exported = {symbol.removeprefix("_") for kind, symbol in entries if kind != "U"}
    has_pairs = "AVX-512BF16" in instruction_set(compiler())
    kinds = [kind for kind in TILES_OF_FLOAT if kind != "pairs" or has_pairs]
    shared = {f"cellgen_column_{width}_{kind}" for width in range(1, 9) for kind in kinds}
    assert exported == DRIVER | shared
    assert not {symbol for kind, symbol in entries if kind == "U" and "cellgen" in symbol}


@every_cell
def test_sources_read_as_written_by_hand(cell: type[Cell], written: Path) -> None:
    text = (written / cell.definition.name / f"{cell.definition.name}.c").read_text()
    assert not re.search(r"_tmp|\btmp\d|\bt\d+\b", text)
    assert not re.search(r"\b(malloc|calloc|free|printf|Py_\w+|PyObject)\b", text)
    assert "((" not in _loops(text).replace("((real)", "(")
    assert not re.search(r" \((\w+)\)[ ;]", _loops(text).replace("(void)", "")), "(name) alone"
    assert not re.search(r"\t|[ ]+\n", text)


def _loops(text: str) -> str:
    """The statements of pointwise loops: what is printed from equations."""
    return "\n".join(re.findall(r"^ +(?:const real \w+|\w+\[unit\]) \+?= .*;$", text, re.MULTILINE))


MAIN = """
#include "gru_block_cell.h"
#include <stdio.h>
#include <stdlib.h>

static float *read_array(FILE *file, size_t count)
{
    float *array = malloc(count * sizeof(float));
    if (!array || fread(array, sizeof(float), count, file) != count) exit(3);
    return array;
}

int main(int count, char **names)
{
    const int64_t nB = 3, nI = 2, nH = 4;
    FILE *file = count == 3 ? fopen(names[1], "rb") : NULL;
    if (!file) return 2;
    gru_block_cell_forward_args_f32 args = {0};
    args.x = read_array(file, nB * nI);
    args.h_prev = read_array(file, nB * nH);
    args.w_ru = read_array(file, (nI + nH) * 2 * nH);
    args.w_c = read_array(file, (nI + nH) * nH);
    args.b_ru = read_array(file, 2 * nH);
    args.b_c = read_array(file, nH);
    float results[4][3 * 4];
    args.r = results[0];
    args.u = results[1];
    args.c = results[2];
    args.h = results[3];
    if (gru_block_cell_forward_f32(nB, nI, nH, &args) != CELLGEN_WORKSPACE_TOO_SMALL) return 4;
    args.workspace_bytes = gru_block_cell_forward_workspace_size_f32(nB, nI, nH);
    args.workspace = malloc(args.workspace_bytes);
    const int error = gru_block_cell_forward_f32(nB, nI, nH, &args);
    if (error != CELLGEN_OK) return error;
    FILE *target = fopen(names[2], "wb");
    return fwrite(results, sizeof results, 1, target) == 1 && fclose(target) == 0 ? 0 : 5;
}
"""


def test_c_program_without_python_computes_what_the_kernel_computes(
    plain_driver: list[str], tmp_path: Path
) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    folder = generated_folder() / "gru_block_cell"
    include = [f"-I{folder}", f"-I{include_folder()}"]
    sources = [folder / "gru_block_cell.c", *plain_driver]
    subprocess.run(
        ["cc", "main.c", *sources, *include, "-lm", "-lpthread", "-omain"],
        cwd=tmp_path,
        check=True,
    )
    forward = programs_of(GRUBlockCell)["forward"]
    given = {name: array.astype(np.float32) for name, array in draw(forward.arguments).items()}
    order = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c")
    (tmp_path / "in").write_bytes(b"".join(given[name].tobytes() for name in order))
    subprocess.run(
        [str(tmp_path / "main"), str(tmp_path / "in"), str(tmp_path / "out")], check=True
    )
    r, u, c, h = np.frombuffer((tmp_path / "out").read_bytes(), np.float32).reshape(4, 3, 4)
    kernel = api.load("gru_block_cell").forward(**given)
    exact = interpret(forward, given, {"B": 3, "I": 2, "H": 4, "T": 1})
    for name, array in zip("rucH".lower(), (r, u, c, h), strict=True):
        # The same C; flags differ (vector width, fma), so sums of 6 terms round differently.
        assert relative(array, getattr(kernel, name)) < 4e-7
        assert relative(array, exact[name]) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cell", VARIANTS, ids=lambda cell: cell.definition.name)
def test_kernels_of_variants_agree_with_the_interpreter(cell: type[Cell], dtype: type) -> None:
    kernel = api.compile(cell)
    programs = programs_of(cell)
    for sizes in (SIZES, dict.fromkeys(SIZES, 1)):
        first, full = programs.mathematics
        inputs = draw((*first.arguments, *full.optional), sizes=sizes)
        known = {n: np.asarray(a, dtype=dtype) if a.ndim else float(a) for n, a in inputs.items()}
        for program in programs.functions:
            names = {str(v) for v in programs.accepted[program.function]} & set(known)
            found = getattr(kernel, program.function)(**{n: known[n] for n in sorted(names)})
            exact = interpret(program, known, sizes)
            for result in program.results:
                array = getattr(found, str(result))
                # 64 roundings of the precision: exponentials, divisions and sums one on another.
                np.testing.assert_allclose(
                    array,
                    exact[str(result)],
                    rtol=64 * np.finfo(dtype).eps,
                    atol=64 * np.finfo(dtype).eps,
                )
                known.setdefault(str(result), np.asarray(array))

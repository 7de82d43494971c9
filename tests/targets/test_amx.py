"""Products in bfloat16 on AMX, emulated on every machine; beside hardware where there is any."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cellgen
from cellgen.cells import SHIPPED
from cellgen.runtime.build import driver
from cellgen.runtime.build.compiler import FLAGS_VARIABLE, compiler
from cellgen.runtime.build.half import VARIABLE, half_products
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BF16, INT8
from cellgen.runtime.paths import generated_folder, include_folder
from tests.drivers import EMULATED, OBSERVED, in_small_parts, with_its_own_driver
from tests.runtime.call.test_half_precision import Arrays, drawn, rounded, upstream

SOURCE = Path(__file__).with_name("amx.c")
SIZES = ((5, 3, 32, 24), (4, 20, 33, 17), (3, 40, 16, 40), (40, 1, 7, 16), (1, 33, 24, 40))
"""T, B, I, H: groups of 32 rows end within steps, rows fill no tile, K and N no group."""
AXES = {"slstm_heads": {"K": 2, "D": 18}, "lstm_projection": {"P": 20}}
"""Lengths of axes that a cell has besides; its threads divide work as its plan says alone."""


@pytest.fixture(autouse=True)
def machines_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@cache
def has_amx() -> bool:
    return half_products(compiler(), include_folder()).way == "amx"


def needs_amx() -> None:
    if not has_amx():
        pytest.skip("no AMX-BF16 that this process may use")


def program(folder: Path, *flags: str, source: Path = SOURCE) -> Path:
    """Instructions and products of tests/targets/amx.c, or another program."""
    info, made = compiler(), folder / "amx"
    command = [*info.command, *info.flags, "-D_DEFAULT_SOURCE", *flags, f"-I{include_folder()}"]
    subprocess.run([*command, str(source), "-o", str(made), "-lm"], check=True)
    return made


QUICKLY = "-O1"
"""No optimiser decides a bit of products; both programs hold them to what is described."""


@pytest.fixture(scope="module")
def emulated_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("emulated"), EMULATED, QUICKLY)


@pytest.fixture(scope="module")
def program_of_hardware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_amx()
    return program(tmp_path_factory.mktemp("hardware"), QUICKLY)


CHOSEN = """
#include <stdio.h>
#include "cellgen_bf16_way.h"
int main(void)
{
    const char *why;
    const int way = cellgen_choose_bf16(&why);
    return printf("%d %s\\n", way, why) < 0;
}
"""


@pytest.fixture(scope="module")
def without_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which way is chosen where the compiler's target has no AVX512-BF16."""
    folder = tmp_path_factory.mktemp("without_pairs")
    source = folder / "chosen.c"
    source.write_text(CHOSEN)
    return program(folder, EMULATED, "-U__AVX512BF16__", source=source)


# --- instructions -----------------------------------------------------------------------------


def said(made: Path, *words: str) -> str:
    done = subprocess.run([str(made), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_product_is_the_chain_that_is_described(emulated_program: Path) -> None:
    """For any rows, columns and depth; nothing beside a result is written."""
    assert said(emulated_program).count("\n") == 9  # eight kinds of operands, and products


def test_hardware_gives_the_bits_of_the_emulation(
    emulated_program: Path, program_of_hardware: Path
) -> None:
    assert said(program_of_hardware) == said(emulated_program)


def test_a_process_that_is_refused_tiles_goes_another_way(program_of_hardware: Path) -> None:
    """Linux refuses them where a signal stack has no room for what they are saved to."""
    done = subprocess.run(
        [str(program_of_hardware), "small"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == (
        "3 the system does not permit AMX, and vdpbf16ps is slower than fused multiply-adds\n"
    )


@pytest.mark.parametrize(
    ("what", "message"),
    [("released", "a tile is not configured"), ("unfit", "three tiles do not fit each other")],
)
def test_what_hardware_answers_with_a_signal_ends_the_emulation(
    what: str, message: str, emulated_program: Path
) -> None:
    command = [str(emulated_program), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert message in done.stderr


# --- the choice of a way ----------------------------------------------------------------------

CHOOSING_AT_ONCE = """
#include <stdlib.h>
static int cellgen_bf16_way(void);
static int asked, other;
static const char *environment(const char *name)
{
    (void)name;
    if (asked++) return "float32";
    other = cellgen_bf16_way(); /* of a thread that comes in between */
    return "amx";
}
#define getenv environment
#include "cellgen_bf16_way.h"
int main(void)
{
    const int first = cellgen_bf16_way();
    if (first != other || other != CELLGEN_BF16_FLOATS) return 1;
    return cellgen_bf16_way() != other || asked != 2;
}
"""


def test_threads_that_choose_at_once_get_the_way_that_was_first(tmp_path: Path) -> None:
    source = tmp_path / "at_once.c"
    source.write_text(CHOOSING_AT_ONCE)
    done = subprocess.run([str(program(tmp_path, EMULATED, source=source))], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("named", "way"),
    [
        ("", "1 the processor has AMX-BF16, and the system permits it"),
        ("bfloat", "1 the processor has AMX-BF16, and the system permits it"),
        ("float32", "3 CELLGEN_BF16 says so"),
        ("avx512", "3 CELLGEN_BF16 leaves AMX out, and the compiler's target has no AVX512-BF16"),
    ],
)
def test_a_way_is_chosen_by_name_and_another_name_counts_as_none(
    named: str, way: str, without_pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    assert said(without_pairs) == f"{way}\n"


# --- calls ------------------------------------------------------------------------------------


def built(monkeypatch: pytest.MonkeyPatch, name: str) -> Kernel:
    """A kernel whose time driver is ``OBSERVED``."""
    (cell,) = (c for c in SHIPPED if c.definition.name == name)
    monkeypatch.setenv(FLAGS_VARIABLE, OBSERVED)
    return cellgen.compile(cell)


def output(run: Any) -> str:
    """The first of a run's outputs: what has a gradient from above."""
    return str(run._fields[0])


def digest(*results: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for of in results:
        for name, array in sorted(of.items()):
            if isinstance(array, np.ndarray):
                found.update(name.encode())
                found.update(np.ascontiguousarray(array).view(np.uint8).tobytes())
    return found.hexdigest()


def gradients(kernel: Kernel, arrays: Arrays, run: Any, **how: Any) -> dict[str, Any]:
    name = output(run)
    top = np.asarray(getattr(run, name))
    known = {**arrays, **run._asdict()}
    known[f"d_{name}"] = rounded(np.random.default_rng(1).standard_normal(top.shape))
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    call = {n: known[n].astype(top.dtype) for n in names if n in known}
    found = kernel.sequence_backward(**call, saved=run.saved, products=BF16, **how)
    return dict(found._asdict())


def calls(kernel: Kernel, of: tuple[int, ...], threads: int, **how: Any) -> Iterator[str]:
    """Digests of the same call by every plan, chunk and checkpoint."""
    name, rows = kernel.name, of[1]
    arrays = drawn(name, *of, **AXES.get(name, {}))
    axes = {**dict(zip("TBIH", of, strict=True)), **AXES.get(name, {})}
    sizes = {n: axes[n] for n in kernel.sequence_backward.function.dims}
    saving = {"save": True, "products": BF16, "threads": threads, **how}
    run = kernel.sequence_forward(**arrays, **saving)
    outputs = run._asdict()
    plan = kernel.sequence_backward.plan(threads=threads, **sizes)
    yield digest(outputs, gradients(kernel, arrays, run, threads=threads))
    for by_units in (False, True) if threads > 1 and name not in AXES else (plan.by_units,):
        for chunk in (rows, 3 * rows, 7 * rows):
            own = replace(plan, chunk_rows=chunk, by_units=by_units, unpacked=False, hoist=False)
            yield digest(outputs, gradients(kernel, arrays, run, threads=threads, plan=own))
    for steps_of_segment in (1, 3, 7):
        again = kernel.sequence_forward(**arrays, **saving, checkpoint=steps_of_segment)
        yield digest(outputs, gradients(kernel, arrays, again, threads=threads))


@pytest.mark.parametrize(
    ("name", "cases", "how"),
    [
        pytest.param("lstm", SIZES, {}, id="lstm"),
        pytest.param("gru", SIZES, {}, id="gru", marks=pytest.mark.slow),
        pytest.param("slstm_heads", SIZES[1:2], {}, id="heads", marks=pytest.mark.slow),
        pytest.param("lstm_projection", SIZES[1:2], {}, id="projection", marks=pytest.mark.slow),
        pytest.param("gru", ((7, 5, 33, 17),), {"lengths": [7, 2, 5, 0, 3]}, id="lengths"),
    ],
)
def test_emulated_calls_have_the_same_bits_for_any_threads_chunks_and_checkpoints(
    name: str,
    cases: tuple[tuple[int, ...], ...],
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of 32 rows begin at fixed places: what a chunk does not finish is carried on."""
    kernel = built(monkeypatch, name)
    whole: dict[tuple[int, ...], set[str]] = {}
    for sizes in cases:
        whole[sizes] = {d for threads in (1, 2, 3) for d in calls(kernel, sizes, threads, **how)}
        assert len(whole[sizes]) == 1, sizes
    if has_amx():
        own = cellgen.load(name)
        for sizes, digests in whole.items():
            assert set(calls(own, sizes, 2, **how)) == digests, sizes


@pytest.mark.parametrize("wanted", [("d_x",), ("d_u_f", "d_b_o"), ("d_w_i", "d_h_prev")])
def test_emulated_gradients_have_the_same_bits_where_others_are_left_out(
    wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arrays = built(monkeypatch, "lstm"), drawn("lstm", 6, 7, 20, 24)
    for threads in (1, 2):
        run = kernel.sequence_forward(**arrays, save=True, products=BF16, threads=threads)
        every = gradients(kernel, arrays, run, threads=threads)
        some = gradients(kernel, arrays, run, threads=threads, gradients=wanted)
        assert {name for name, array in some.items() if array is not None} == set(wanted)
        for name in wanted:
            np.testing.assert_array_equal(some[name], every[name], err_msg=name)


def test_windows_of_arrays_in_bfloat16_carry_groups_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 16 bits are widened a window at a time; one of all steps gives the same bits."""
    arrays = {n: a.astype(ml_dtypes.bfloat16) for n, a in drawn("gru", 23, 3, 8, 16).items()}
    found = set()
    for kernel in (
        built(monkeypatch, "gru"),
        in_small_parts(built(monkeypatch, "gru"), tmp_path),
    ):
        for threads in (1, 2):
            run = kernel.sequence_forward(**arrays, save=True, products=BF16, threads=threads)
            sizes = {"T": 23, "B": 3, "I": 8, "H": 16}
            plan = replace(kernel.sequence_backward.plan(threads=threads, **sizes), chunk_rows=3)
            back = gradients(kernel, arrays, run, threads=threads, plan=plan)
            found.add(digest(run._asdict(), back))
    assert len(found) == 1


def test_gradients_row_by_row_are_those_of_each_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, arrays = built(monkeypatch, "lstm"), drawn("lstm", 37, 3, 6, 8)
    for how in ({}, {"checkpoint": 5}):
        run = kernel.sequence_forward(**arrays, save=True, products=BF16, **how)
        rows = gradients(kernel, arrays, run, per_row=True)
        for row in range(3):
            one = {n: a[:, row : row + 1].copy() for n, a in arrays.items() if a.ndim == 3}
            one |= {n: arrays[n][row : row + 1] for n in ("h_prev", "c_prev")}
            own = {**arrays, **one}
            alone = kernel.sequence_forward(**own, save=True, products=BF16)
            d_h = upstream(arrays)["d_h"][:, row : row + 1].copy()
            known = {**own, **alone._asdict(), "d_h": d_h}
            names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
            found = kernel.sequence_backward(
                **{n: known[n] for n in names if n in known}, saved=alone.saved, products=BF16
            )
            for name in ("d_w_i", "d_u_o"):
                np.testing.assert_array_equal(rows[name][row], getattr(found, name))


def test_emulated_results_are_as_near_as_those_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another order of additions: the same rounded operands, sums within float32's roundoff."""
    arrays = drawn("lstm", 6, 9, 20, 24)
    found = []
    for way in ("", "float32"):
        kernel = with_its_own_driver(built(monkeypatch, "lstm"), tmp_path / way)
        monkeypatch.setenv(VARIABLE, way)
        run = kernel.sequence_forward(**arrays, save=True, products=BF16)
        found.append({**run._asdict(), **gradients(kernel, arrays, run)})
    tiles, floats = found
    del tiles["saved"]
    assert digest(tiles) != digest(floats)
    for name, array in tiles.items():
        # a state near half-way between two bfloat16 may be rounded to either
        np.testing.assert_allclose(array, floats[name], rtol=0, atol=2e-3 * np.abs(array).max())


def test_weights_in_int8_have_the_bits_of_rows_in_fixed_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sums of bytes are exact, on AMX as without it."""
    sizes = (*SIZES, (2, 70, 130, 30), (3, 4, 64, 128))
    found: dict[str, list[str]] = {}
    for way in ("", "float32"):
        kernel = with_its_own_driver(built(monkeypatch, "lstm"), tmp_path / way)
        monkeypatch.setenv(VARIABLE, way)
        found[way] = [
            digest(
                kernel.sequence_forward(**drawn("lstm", *of), products=INT8, threads=t)._asdict()
            )
            for of in sizes
            for t in (1, 2)
        ]
    assert found[""] == found["float32"]
    assert found[""][::2] == found[""][1::2]
    if has_amx():
        monkeypatch.delenv(VARIABLE)
        kernel = cellgen.load("lstm")
        for of, expected in zip(sizes, found[""][::2], strict=True):
            run = kernel.sequence_forward(**drawn("lstm", *of), products=INT8)
            assert digest(run._asdict()) == expected, of


# --- memory -----------------------------------------------------------------------------------

WITHIN_ITS_WORKSPACE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "min_gru.h"
#include "cellgen_team.h"
enum { T = 8, B = 60, I = 8, H = 512, BEHIND = 1 << 22 };
static float zeros[T * B * H];
int main(int count, char **words)
{
    cellgen_options options = {0};
    options.products = CELLGEN_PRODUCTS_BF16;
    const int64_t bytes = min_gru_sequence_forward_workspace_size_f32(T, B, I, H, &options);
    char *workspace = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64 + BEHIND);
    memset(workspace + bytes, 0x5a, BEHIND);
    min_gru_sequence_forward_args_f32 args = {
        .x = zeros, .h_prev = zeros, .w_z = zeros, .b_z = zeros, .w_n = zeros, .b_n = zeros,
        .h = zeros, .h_last = calloc(B * H, sizeof(float)), .workspace = workspace,
        .workspace_bytes = bytes, .team = cellgen_team_create(atoi(words[count - 1])),
        .options = &options};
    const int code = min_gru_sequence_forward_f32(T, B, I, H, &args);
    int64_t over = 0;
    for (int64_t i = 0; i < BEHIND; ++i) over += workspace[bytes + i] != 0x5a;
    printf("%d %d\\n", code, (int)over);
    return 0;
}
"""


def test_threads_write_nothing_behind_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is that of any number of threads; they choose windows of steps by shape alone."""
    source, folder = tmp_path / "workspace.c", generated_folder() / "min_gru"
    source.write_text(WITHIN_ITS_WORKSPACE)
    monkeypatch.setenv(FLAGS_VARIABLE, OBSERVED)
    joined = driver.compiled(SourceFiles.of_driver(include_folder()), compiler())
    files = (f"-I{folder}", str(folder / "min_gru.c"), str(joined), "-lpthread")
    made = program(tmp_path, *files, source=source)
    assert [said(made, threads) for threads in "148"] == ["0 0\n"] * 3

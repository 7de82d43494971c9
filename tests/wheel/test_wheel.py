"""Wheels of prebuilt kernels: NumPy alone, no compiler, the bits of a kernel compiled here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import cellgen
from cellgen import api
from cellgen.cells import Elman
from cellgen.cli.commands import app
from cellgen.errors import BuildError, UsageError
from cellgen.wheel import levels, make, objects, pack
from cellgen.wheel.pack import Naming
from cellgen.wheel.packed.loader import Objects
from tests.wheel import across, bits
from tests.wheel.conftest import OWN, PACKAGE

DOCS = Path(__file__).parents[2] / "docs"
ALONE = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np, {name} as built
shapes = dict(x=(4, 2, 3), h_prev=(2, 5), w=(3, 5), u=(5, 5), b=(5,))
ones = {{name: np.ones(shape, np.float32) for name, shape in shapes.items()}}
y = built.elman.sequence_forward(**ones)
print(built.level, y.h_last.shape, sorted({{"cellgen", "sympy", "cffi"}} & set(sys.modules)))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or objects.this_machine() != "x86_64", reason="levels of x86-64"
)


def _alone(folder: Path, name: str = PACKAGE, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a kernel in a Python that sees NumPy and a package, without a program on PATH."""
    site = folder / "numpy-alone"
    site.mkdir(exist_ok=True)
    own = Path(np.__file__).parents[1]
    for found in (own / "numpy", own / "numpy.libs"):
        if found.is_dir() and not (site / found.name).exists():
            (site / found.name).symlink_to(found)
    call = [sys.executable, "-I", "-S", "-c", ALONE.format(name=name), str(folder), str(site)]
    environment = {"PATH": "/nonexistent", **variables}
    return subprocess.run(call, capture_output=True, text=True, env=environment, check=False)


def test_kernels_run_with_numpy_alone_and_no_program_on_path(unpacked: Path) -> None:
    done = _alone(unpacked)
    assert (done.stdout, done.stderr) == ("v3 (2, 5) []\n", "")


def test_a_variable_names_a_lower_level_and_no_higher_one(unpacked: Path) -> None:
    assert _alone(unpacked, CELLGEN_LEVEL="v2").stdout == "v2 (2, 5) []\n"
    said = _alone(unpacked, CELLGEN_LEVEL="v4").stderr
    assert "CELLGEN_LEVEL is 'v4', expected a level that this package and the processor" in said
    assert "have, one of v2, v3; correct or unset it" in said


@pytest.mark.parametrize(
    ("system", "fix"),
    [("darwin", "compile its cells here with cellgen"), ("linux", "build them for it with `cellg")],
)
def test_what_is_for_another_machine_says_what_to_do(
    system: str, fix: str, unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ImportError, match=f"this is {system} on riscv64; {fix}"):
        Objects(unpacked / PACKAGE)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_those_of_a_kernel_that_is_compiled_here(package: ModuleType, dtype: type) -> None:
    found = list(bits.compared(cellgen.compile(Elman), package.elman, dtype))
    assert len(found) > 20
    assert [name for name, is_same in found if not is_same] == []


def test_products_of_int8_are_near_those_of_a_kernel_that_is_compiled_here(
    package: ModuleType,
) -> None:
    found = dict(bits.rounded(cellgen.compile(Elman), package.elman))
    assert found.keys() == {"int8.h", "int8.h_last"}
    assert all(found.values())


def test_the_lowest_level_is_near_a_kernel_that_is_compiled_here(unpacked: Path) -> None:
    path = os.pathsep.join((str(unpacked), str(Path(__file__).parents[2])))
    environment = {**os.environ, "PYTHONPATH": path, "CELLGEN_LEVEL": "v2"}
    call = [sys.executable, "-m", "tests.wheel.bits", PACKAGE, "v2", "elman"]
    said = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_near_is_within_roundings() -> None:
    one = np.ones(3, np.float32)
    assert bits.near(one, one + np.float32(4e-6), one)
    assert not bits.near(one, one + np.float32(1e-5), one)
    assert bits.near(one, one + np.float32(1e-5), one + np.float32(3e-6))
    assert not bits.near(one, one[:2], one)


def test_a_cell_of_ones_own_has_its_scalars(package: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    local = cellgen.compile(make_cell(tmp_path / "own.py"))
    assert all(same for _, same in bits.compared(local, package.gated, np.float64))
    draw = np.random.default_rng(0).normal
    given = {"x": draw(size=(6, 2, 3)), "h_prev": draw(size=(2, 4)), "w": draw(size=(7, 4))}
    for leak in (0.5, 2):
        ours = local.sequence_forward(**given, leak=leak, save=True)
        y = package.gated.sequence_forward(**given, leak=leak, save=True)
        np.testing.assert_array_equal(ours.h, y.h)
        up = {"d_h": np.ones_like(y.h)}
        g = package.gated.sequence_backward(**given, **up, h=y.h, saved=y.saved)
        expected = local.sequence_backward(**given, **up, h=ours.h, saved=ours.saved)
        np.testing.assert_array_equal(expected.d_w, g.d_w)


def make_cell(path: Path) -> type[cellgen.Cell]:
    from cellgen.views.find import find_one

    return find_one(str(path))


ARRAYS = {"x": (4, 2, 3), "h_prev": (2, 5), "w": (3, 5), "u": (5, 5), "b": (5,)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"u": (5, 4)}, "u is (5, 4), expected (H, H) with T = 4, B = 2, I = 3, H = 5; axis 1 "),
        ({"u": (1,) * 12}, "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), expected (H, H); reshape it"),
        ({"u": None, "b": None}, "elman.sequence_forward: u, b missing; pass u=..., b=..."),
        ({"y": (1,)}, "takes no 'y'; it takes x, h_prev, w, u, b; options are lengths, mask, "),
        ({"x": (4, 2)}, "x is (4, 2), expected (T, B, I); reshape it"),
        ({"lengths": (3,)}, "lengths is float32 (3,), expected (2,) of integers"),
        ({"lengths": [5, 1]}, "lengths has a row of fewer than 0 or more than T steps"),
        ({"mask": np.ones((2, 4), bool)}, "mask is bool (2, 4), expected (4, 2) of bool"),
        ({"products": "half"}, "products is 'half', expected full, bf16, int8"),
        ({"threads": 0}, "threads is 0, expected a number from 1 to 1024"),
        ({"products": np.ones(2)}, "products is array([1., 1.]), expected full, bf16, int8"),
        ({"w": np.ones((3, 5))}, "is float32, w is float64; expected all float32 or all float64"),
        ({"w": np.ones((3, 5), np.float16)}, "is float32, w is float16; expected all float32 or"),
        ({"w": np.ones((3, 5), ">f4")}, "b is float32, w is >f4; expected all float32 or all "),
        ({"x": np.ma.ones((4, 2, 3), np.float32)}, "x is a masked array; pass it filled"),
        ({"x": [[1.0], 2.0]}, "elman.sequence_forward: x is no array: "),
        ({"lengths": [[1], 2]}, "elman.sequence_forward: lengths is no array: "),
        ({"saved": 3}, "saved is a int, expected what a run with save=True has"),
        ({"x": np.ones((4, 2, 3), np.int32)}, "expected all float32 or all float64"),
    ],
)
def test_a_call_that_does_not_fit_is_one_message(
    package: ModuleType, change: dict[str, object], said: str
) -> None:
    stated = {
        name: np.ones(value, np.float32) if isinstance(value, tuple) else value
        for name, value in {**ARRAYS, **change}.items()
    }
    with pytest.raises(package.KernelError) as error:
        package.elman.sequence_forward(**stated)
    assert said in str(error.value)
    with pytest.raises(package.KernelError, match="has no option 'reverse': one step"):
        package.elman.forward(reverse=True)


def test_gradients_are_of_the_lengths_that_the_run_had(package: ModuleType) -> None:
    given = {name: np.ones(shape, np.float32) for name, shape in ARRAYS.items()}
    lengths, kernel = np.array([4, 3]), package.elman
    y = kernel.sequence_forward(**given, lengths=lengths, save=True)
    upstream = {**given, "h": y.h, "d_h": np.ones_like(y.h), "saved": y.saved}
    expected = kernel.sequence_backward(**upstream)
    lengths[:] = 1
    np.testing.assert_array_equal(kernel.sequence_backward(**upstream).d_x, expected.d_x)


def test_results_do_not_depend_on_threads(package: ModuleType) -> None:
    given = drawn()
    runs = [package.elman.sequence_forward(**given, threads=n).h for n in (1, 2, 3, 7)]
    for h in runs:
        np.testing.assert_array_equal(h, runs[0])


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_arrays_of_16_bits_have_the_bits_of_a_kernel_that_is_compiled_here(
    package: ModuleType, element: str
) -> None:
    """Products of bfloat16 are compared in float32: sums in it depend on the processor."""
    if element == "bfloat16":
        pytest.importorskip("ml_dtypes")
    local, built = cellgen.compile(Elman), package.elman
    functions = {f.name: f for f in local.interface.functions}

    def narrow(function: str, seed: int = 5) -> dict[str, np.ndarray]:
        arrays = bits.drawn(local.interface, functions[function], np.float32, seed)
        return {name: array.astype(element) for name, array in arrays.items()}

    step = narrow("forward")
    np.testing.assert_array_equal(built.forward(**step).h, local.forward(**step).h)
    given = narrow("sequence_forward")
    upstream = {n: a for n, a in narrow("sequence_backward", 6).items() if n.startswith("d_")}
    stated = {"lengths": np.arange(5) * 2, "reverse": True, "products": "full"}
    found = []
    for kernel in (local, built):
        y = kernel.sequence_forward(**given, **stated, save=True)
        g = kernel.sequence_backward(**given, **upstream, h=y.h, saved=y.saved, products="full")
        found.append({"h": y.h, "h_last": y.h_last, **g._asdict()})
    for name, array in found[1].items():
        assert array.dtype == found[0][name].dtype == np.dtype(element), name
        assert bits.equal(array, found[0][name]), name


def test_products_of_bfloat16_arrays_are_in_bfloat16(package: ModuleType) -> None:
    pytest.importorskip("ml_dtypes")
    given = {n: a.astype("bfloat16") for n, a in drawn().items()}
    run = package.elman.sequence_forward
    wide = {n: a.astype(np.float32) for n, a in given.items()}
    expected = run(**wide, products="bf16").h.astype("bfloat16")
    assert bits.equal(run(**given).h, expected)
    assert not bits.equal(run(**given, products="full").h, expected)


def drawn() -> dict[str, np.ndarray]:
    """Arguments of a run whose products are sums of many terms."""
    sizes = {"x": (20, 64, 32), "h_prev": (64, 64), "w": (32, 64), "u": (64, 64), "b": (64,)}
    draw = np.random.default_rng(0).standard_normal
    return {name: draw(shape, np.float32) for name, shape in sizes.items()}


def test_arrays_that_lie_apart_are_read_where_they_lie(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over time, and flags; others are copied."""
    given, mask = drawn(), np.arange(20 * 64).reshape(20, 64) % 3 == 0
    expected = package.elman.sequence_forward(**given, mask=mask).h
    copied, require = [], np.require

    def counted(array: np.ndarray, *words: object) -> np.ndarray:
        copied.append(array.shape)
        return require(array, *words)

    monkeypatch.setattr(np, "require", counted)
    rows_first = np.ascontiguousarray(given["x"].swapaxes(0, 1)).swapaxes(0, 1)
    backwards = np.ascontiguousarray(given["x"][::-1])[::-1]
    flags = np.asfortranarray(mask)
    for x in (rows_first, backwards):
        h = package.elman.sequence_forward(**{**given, "x": x}, mask=flags).h
        np.testing.assert_array_equal(h, expected)
    assert copied == []
    others = {"w": np.asfortranarray(given["w"]), "h_prev": np.asfortranarray(given["h_prev"])}
    h = package.elman.sequence_forward(**{**given, **others}, mask=mask).h
    np.testing.assert_array_equal(h, expected)
    assert sorted(copied) == [(32, 64), (64, 64)]


def test_pip_knows_the_name_of_a_package_with_two_underscores() -> None:
    assert Naming("a__b_", "1.0").distribution == "a-b"


def test_steps_of_no_rows_and_no_steps_are_computed(package: ModuleType) -> None:
    for shapes in ({"x": (0, 2, 3)}, {"x": (4, 0, 3), "h_prev": (0, 5)}):
        given = {n: np.ones(s, np.float32) for n, s in {**ARRAYS, **shapes}.items()}
        assert package.elman.sequence_forward(**given).h.shape == (*shapes["x"][:2], 5)


def test_a_call_without_results_runs_nothing(package: ModuleType) -> None:
    """NumPy has arrays of no bytes and any length, whose rows a kernel would count."""
    shapes = {"x": (0, 0, 2**60), "h_prev": (0, 0), "w": (2**60, 0), "u": (0, 0), "b": (0,)}
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert package.elman.sequence_forward(**given).h.shape == (0, 0, 0)


READ = ("abi", "cells", "machines", "probes", "sha256")


def test_a_damaged_object_and_one_of_another_abi_are_refused(unpacked: Path) -> None:
    (folder,) = unpacked.glob(f"{PACKAGE}/x86_64-v3")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert f"{file} is not what was packed: it is damaged" in _alone(unpacked).stderr
    file.write_bytes(whole)
    manifest = unpacked / PACKAGE / "manifest.json"
    facts = json.loads(manifest.read_text())
    for change, said in (
        ({"abi": 1}, f"elman is of ABI {facts['abi']}, expected 1"),
        ({"cells": {**facts["cells"], "elman": "0"}}, "elman has the equations"),
        ({"machines": {"riscv64": []}}, "has kernels for Linux on riscv64, and this is linux on"),
    ):
        manifest.write_text(json.dumps({**facts, **change}))
        assert said in _alone(unpacked).stderr
    for text in ("{", "[" * 100_000):
        manifest.write_text(text)
        assert "is incomplete" in _alone(unpacked).stderr
    (machine,) = facts["machines"]
    for wrong in (
        *({n: v for n, v in facts.items() if n != key} for key in facts if key in READ),
        *({**facts, key: None} for key in READ),
        {**facts, "machines": {machine: []}},
        {**facts, "machines": {machine: [{"level": "v2"}]}},
    ):
        manifest.write_text(json.dumps(wrong))
        with pytest.raises(ImportError, match="is incomplete"):
            Objects(manifest.parent)


def test_equal_input_gives_equal_bytes(wheel: Path, tmp_path: Path) -> None:
    naming, cells = Naming("again", "1.0"), make.sources_of([Elman])
    planned = make.plan(["x86_64"], "v3")
    for part in ("one", "two"):
        make.make(naming, cells, planned, tmp_path / part, for_c=False, say=lambda *_: None)
    one, two = (next((tmp_path / part).iterdir()) for part in ("one", "two"))
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        assert {item.date_time for item in archive.infolist()} == {pack.EPOCH}


@pytest.mark.slow
def test_pip_installs_it(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True)
    site = Path(next((tmp_path / "venv" / "lib").glob("python*/site-packages")))
    (site / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    code = f"import {PACKAGE}; print({PACKAGE}.levels)"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "('v2', 'v3')\n"


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "my-kernels"], "expected a name that `import` takes, my_kernels"),
        (["--name", "numpy"], "--name numpy would hide the package of that name"),
        (["--release", "one"], "--release 'one': expected one as 1.0.2"),
        (["--name", "__"], "expected a name that `import` takes"),
        (["--name", "json"], "--name json is a module of Python's own"),
        (["--name", "NumPy"], "--name NumPy would hide the package of that name"),
        (["--release", "\u0661.0"], "expected one as 1.0.2"),
        (["--machine", "x86_64", "--levels", "base"], "--levels base: x86_64 has none of these"),
        (["--machine", "riscv64"], "--machine riscv64: expected one of x86_64, aarch64"),
        (["--levels", "v5"], "'v5' is no level, expected v2, v3, v4, amx, base"),
        (["--c", "--levels", "v3"], "--c needs the level v2, for programs on any processor"),
        (["--machine", "aarch64"], "ziglang wheel, which is not installed"),
    ],
)
def test_what_the_command_cannot_do_is_one_message(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "has_zig", lambda: False)
    done = CliRunner().invoke(app, ["wheel", "elman", "--out", str(tmp_path), *words])
    assert done.exit_code in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_cell_cannot_have_a_name_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        OWN.replace("class Gated(Cell)", 'class T(Cell, name="torch")')
    )
    with pytest.raises(UsageError, match="has a 'torch' of its own"):
        make.sources_of([make_cell(tmp_path / "own.py")])


def test_other_systems_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BuildError, match="wheels of kernels are for Linux, and this is win32"):
        make.plan([], "")


def test_levels_are_numbered_as_the_probe_counts() -> None:
    for machine, every in levels.MACHINES.items():
        assert [level.number for level in every] == list(range(1, len(every) + 1)), machine


# --- every cell, other machines ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", api.shipped_names())
def test_every_cell_has_the_results_of_one_compiled_here(name: str, tmp_path: Path) -> None:
    words = ["wheel", name, "--name", "one_cell", "--out", str(tmp_path), "--machine", "x86_64"]
    done = CliRunner().invoke(app, [*words, "--levels", "v2,v3,v4,amx"])
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path)
    reached = subprocess.run(
        [sys.executable, "-c", "import one_cell; print(one_cell.levels, one_cell.level)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ).stdout.split()
    every = ("v2", "v3", "v4", "amx")
    for level in every[: every.index(reached[-1]) + 1]:
        path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
        call = [sys.executable, "-m", "tests.wheel.bits", "one_cell", level]
        environment = {**os.environ, "PYTHONPATH": path, "CELLGEN_LEVEL": level}
        if level == "v3":  # what a machine of that level compiles for
            environment["CELLGEN_CFLAGS"] = "-march=haswell"
        said = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
        assert said.returncode == 0, said.stdout + said.stderr
    if reached[-1] in every[every.index("v4") :]:
        call = [sys.executable, "-m", "tests.wheel.across", "one_cell"]
        environment = {**os.environ, "PYTHONPATH": path}
        said = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
        assert said.returncode == 0, said.stdout + said.stderr


def test_the_page_says_how_many_cells_agree_across_levels_and_which_do_not() -> None:
    page = " ".join((DOCS / "how-to" / "wheels.md").read_text(encoding="utf-8").split())
    shipped = api.shipped_names()
    differing = across.ALL | across.SOME
    assert differing < {*shipped}
    agree = f"Across levels v3 and v4 agree in {len(shipped) - len(differing)} of {len(shipped)}"
    most, some = (_listed(names) for names in (across.ALL, across.SOME))
    assert f"{agree} cells; sums over units run in the lanes of vectors, so that {most}" in page
    assert f"and a gradient or two of {some}." in page


def _listed(names: Iterable[str]) -> str:
    *first, last = (f"`{name}`" for name in sorted(names))
    return f"{', '.join(first)} and {last}"

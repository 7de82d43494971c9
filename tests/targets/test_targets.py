"""Targets and backends: two tables, one API."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.nodes
import numpy as np
import pytest
from typer.testing import CliRunner

import cellgen
from cellgen import Cell, H, Input, State, api, softplus
from cellgen.cells import LSTM, Elman, MinGRU
from cellgen.cli.commands import app
from cellgen.errors import BuildError
from cellgen.pipeline import programs_of
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.runtime.backend import BACKENDS, DEFAULT, backend
from cellgen.runtime.build import cache
from cellgen.runtime.kernel import Kernel
from cellgen.targets import TARGETS
from tests.packages import EXTENDING, metadata

ROOT = Path(__file__).parents[2]


def test_every_target_has_a_backend_of_its_name() -> None:
    assert list(TARGETS) == list(BACKENDS)
    for name, target in TARGETS.items():
        assert (target.name, backend(name).name) == (name, name)
        assert backend(name).toolchain()
    assert DEFAULT in BACKENDS


def test_no_two_targets_write_the_same_file() -> None:
    suffixes = [suffix for target in TARGETS.values() for suffix in target.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    for name, target in TARGETS.items():
        written = api.sources_of(MinGRU, name).of(name)
        assert set(written) == {f"min_gru{suffix}" for suffix in target.suffixes}


@pytest.mark.parametrize(
    ("use", "imported"),
    [
        ("cellgen.load('elman').build()", []),
        ("cellgen.load; cellgen.compile; cellgen.load_cuda; cellgen.Layers; cellgen.Kernel", []),
        # rendering knows the structs of a .cu, which are plain data
        ("from cellgen.cells import Elman; cellgen.compile(Elman)", ["cuda_abi"]),
    ],
)
def test_what_is_not_for_cuda_imports_no_backend_of_it(use: str, imported: list[str]) -> None:
    code = f"import sys, cellgen, cellgen.api; {use}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "cellgen.runtime.backend" in loaded
    device = "cellgen.runtime.device."
    found = [name.removeprefix(device) for name in loaded if name.startswith(device)]
    assert found == imported


def test_loading_a_cuda_kernel_imports_no_compiler_of_cells() -> None:
    code = "import sys, cellgen; cellgen.load('elman', 'cuda'); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "cellgen.runtime.device.kernel" in loaded
    assert not loaded & {"sympy", "jinja2", "cellgen.targets"}


def test_the_target_is_c_where_none_is_named() -> None:
    assert isinstance(cellgen.load("elman"), Kernel)
    assert cellgen.load("elman", "c").interface == cellgen.load("elman").interface
    assert cellgen.compile(Elman, target="c").digest() == cellgen.compile(Elman).digest()


def test_a_kernel_is_the_same_under_both_spellings_of_cuda() -> None:
    one, other = cellgen.load("elman", "cuda", emulated=True), cellgen.load_cuda("elman")
    assert (one.interface, one.digest()) == (other.interface, other.digest())
    assert (one.emulated, other.emulated) == (True, False)
    one, other = cellgen.compile(Elman, "cuda"), cellgen.compile_cuda(Elman, emulated=True)
    assert (one.interface, one.digest()) == (other.interface, other.digest())
    assert (one.emulated, other.emulated) == (False, True)


@pytest.mark.parametrize("target", ["metal", "C", "", 3, None])
def test_a_target_that_is_not_there_is_said_with_those_that_are(target: str) -> None:
    for name, call in (
        ("load", lambda: cellgen.load("lstm", target)),
        ("compile", lambda: cellgen.compile(LSTM, target=target)),
    ):
        with pytest.raises(
            BuildError, match=f"{name}: target is .*, expected one of c, cuda, triton"
        ):
            call()


def test_a_target_without_an_emulation_refuses_to_emulate() -> None:
    with pytest.raises(BuildError, match="load: emulated is True, but target 'c' has no emulation"):
        cellgen.load("lstm", emulated=True)  # type: ignore[call-overload]


# --- a target that is only here ------------------------------------------------------------------


class Soft(Cell):
    """Has a function that the toy target does not spell."""

    x, h_prev = Input(H), State(H)
    h = softplus(x + h_prev)


@pytest.fixture
def numpy_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package brings a target, and the cache is empty."""
    monkeypatch.syspath_prepend(str(EXTENDING))
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    entry = "[cellgen.targets]\nnumpy = cellgen_extras.numpy_target\n"
    metadata(tmp_path / "installed", "cellgen-extras", entry)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


def run(*command: str) -> str:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("numpy_target")
@pytest.mark.parametrize("cell", [Elman, LSTM])
def test_a_new_target_is_built_and_called_as_the_others_are(cell: type[Cell]) -> None:
    kernel = cellgen.compile(cell, target="numpy")
    assert kernel.name == cell.definition.name
    assert not kernel.build().cached
    assert cellgen.compile(cell, "numpy").build().cached
    sizes, rng = {"B": 3, "I": 4, "H": 5}, np.random.default_rng(0)
    values: dict[str, np.ndarray] = {}
    for program in programs_of(cell).functions:
        for value in program.arguments:
            drawn = rng.standard_normal(shape_sizes(value, sizes))
            values.setdefault(str(value.name), drawn)
        expected = interpret(program, values, sizes)
        made = getattr(kernel, program.function)(**values)
        assert made._fields == tuple(expected)
        for name, array in expected.items():
            np.testing.assert_allclose(getattr(made, name), array, 1e-12, 1e-14, err_msg=name)
        values |= expected


@pytest.mark.usefixtures("numpy_target")
def test_a_new_target_is_written_and_loaded_as_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("build", "elman", "--target", "numpy", "--out", str(tmp_path))
    assert (tmp_path / "elman/elman_numpy.py").is_file()
    monkeypatch.setattr(api, "generated_folder", lambda: tmp_path)
    made = cellgen.load("elman", target="numpy").forward(
        x=np.ones((2, 3)), h_prev=np.zeros((2, 4)), w=np.ones((3, 4)), u=np.eye(4), b=np.ones(4)
    )
    np.testing.assert_allclose(made.h, np.full((2, 4), np.tanh(4.0)), 1e-15)
    (tmp_path / "elman/elman_numpy.py").unlink()
    with pytest.raises(BuildError, match=r"no elman_numpy.py: .* cellgen.compile of its"):
        cellgen.load("elman", target="numpy")


@pytest.mark.usefixtures("numpy_target")
def test_a_cell_that_a_target_cannot_spell_says_why_and_has_the_others(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="soft: NumPy has no softplus here") as caught:
        cellgen.compile(Soft, target="numpy")
    assert caught.value.code == "build.numpy"
    written = {path.name for path in api.write(Soft, tmp_path)}
    c = {"soft.c", "soft.h", "soft_plan.inc.h"}
    assert written == {*c, "soft.cu", "interface.json", "__init__.py", "__init__.pyi"}


@pytest.mark.usefixtures("numpy_target")
def test_commands_know_a_new_target(tmp_path: Path) -> None:
    out = str(tmp_path / "generated")
    built = json.loads(run("build", "elman", "--target", "numpy", "--out", out, "--json"))
    assert built[0]["object"].endswith("module.py")
    lines = run("explain", "elman", "--target", "numpy").splitlines()
    assert lines == ["forward: 4 lines", "backward: 3 lines", "weight_gradients: 3 lines"]
    shape = ("--shape", "9,2,3,4", "--dtype", "float64", "--device", "here")
    weighed = run("explain", "elman", "--target", "numpy", *shape)
    assert "at T = 9, B = 2, I = 3, H = 4; float64:\nhere: elman of 4 units" in weighed
    found = {f["name"]: f for f in json.loads(run("doctor", "--json"))["findings"]}
    row = found["cellgen-extras:numpy"]
    assert row["ok"]
    assert row["text"].endswith(f", NumPy {np.__version__}")
    assert not row["required"]


@pytest.mark.usefixtures("numpy_target")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--threads 2", "--threads is of targets on the host; leave it out for numpy"),
        ("--dtype float32", "--dtype 'float32': expected one of float64"),
        ("--dtype float64 --device h200", "--device 'h200': expected one of here"),
    ],
)
def test_explain_asks_the_backend_what_it_knows(options: str, said: str) -> None:
    done = CliRunner().invoke(app, ["explain", "elman", "--target", "numpy", *options.split()])
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.usefixtures("numpy_target")
def test_a_file_of_a_target_that_is_gone_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("build", "elman", "--target", "numpy", "--out", str(tmp_path))
    done = CliRunner().invoke(app, ["build", "elman", "--check", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    shutil.rmtree(tmp_path / "installed")
    done = CliRunner().invoke(app, ["build", "elman", "--check", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "elman_numpy.py is no longer generated; remove it" in done.output


def test_show_prints_the_plan_of_a_device_where_it_is_asked_for() -> None:
    """What the .cu takes from it stands there: arrays, strides, products ahead, the tier."""
    runner = CliRunner()
    shown = runner.invoke(app, ["show", "gru", "--schedule", "--target", "cuda"]).output
    plain = runner.invoke(app, ["show", "gru", "--schedule"]).output
    assert shown.startswith(plain.rstrip())
    own = shown[len(plain.rstrip()) :]
    assert "gru.sequence_forward on a device" in own
    assert "  array forward_1_sums: T * B * 4*H in the type of sums\n" in own
    assert "  strides: h_step, h_row\n" in own
    assert "  row after row: x\n" in own
    assert "  all steps at once: x @ [w_n, w_z, w_r]\n" in own
    assert "  one launch for all steps: block\n" in own
    assert runner.invoke(app, ["show", "gru", "--target", "cuda"]).exit_code == 2


READ_FROM_TABLES = ("running.py", "triton/names.py")
ASKING = ("startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix")
BRACKETS = {
    ("cuda/places.py", "factor"),  # a length is bracketed where it is a factor
    ("cuda/source.py", "_not_yet"),  # the code of an error
}


def test_no_text_of_a_target_is_searched() -> None:
    """Arrays, strides and tiers come from plans; a printed line is never looked into.

    ``running`` reads what rows of the operator table say in C, and ``triton/names`` which names
    templates have for themselves: no printed lines.
    """
    targets = ROOT / "cellgen/targets"
    for path in sorted({*targets.rglob("*.py")} - {targets / f for f in READ_FROM_TABLES}):
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"\bre\.(search|findall|finditer)\b|\.findall\(", source), path


@pytest.mark.parametrize("target", ["c", "cuda", "embedded"])
def test_a_target_does_not_ask_how_a_text_begins_or_what_it_holds(target: str) -> None:
    targets, asked = ROOT / "cellgen/targets", set[tuple[str, str]]()
    for path in sorted((targets / target).glob("*.py")):
        name = str(path.relative_to(targets))
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        ]
        for function in functions:
            for node in ast.walk(function):
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if is_call and node.func.attr in ASKING:
                    asked.add((name, function.name))
    assert asked <= BRACKETS


def test_a_template_does_not_ask_what_a_text_holds() -> None:
    """``"__shared__" in line`` would; ``name in names`` asks for a member of a list."""
    for path in sorted((ROOT / "templates").rglob("*.j2")):
        tree = jinja2.Environment().parse(path.read_text(encoding="utf-8"))
        for node in tree.find_all(jinja2.nodes.Compare):
            asks = any(operand.op in ("in", "notin") for operand in node.ops)
            assert not (asks and isinstance(node.expr, jinja2.nodes.Const)), (path, node.lineno)

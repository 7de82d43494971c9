"""The command line: results, exit codes, streams, an author's file and its errors."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import cellgen
from cellgen.cells import SHIPPED
from cellgen.cli import commands as cli
from cellgen.cli import doctor, listing
from cellgen.cli.main import AT_ONCE
from cellgen.errors import DerivationError
from cellgen.files import tree
from cellgen.language.ops import OPERATORS, POINTWISE, Pointwise
from cellgen.proof import check
from cellgen.proof.check import Report, Row
from cellgen.runtime.build import cache
from cellgen.runtime.paths import generated_folder
from cellgen.views.families import FAMILIES, by_family
from cellgen.views.find import find_each, find_one
from tests.conftest import TYPICAL, heed_ctrl_c
from tests.cover import each_name_of, each_of, of_all, of_equations

SHIPPED_NAMES = [cell.definition.name for cell in SHIPPED]
ROOT = Path(cellgen.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])

MINIMAL = '''\
from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh
from cellgen.cells import GRU, Elman
from cellgen.cells.gru_reset_before import gru_reset_before


class Minimal(Elman):
    """Simple recurrent network with a leak (Jaeger 2001)."""

    h = 0.5 * Elman.h_prev + 0.5 * tanh(Elman.h_bar)
'''


@pytest.fixture
def run(monkeypatch):
    """Run a command in this process, where Rich believes in no terminal."""
    for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    runner = CliRunner()
    return lambda *words: runner.invoke(cli.app, list(words))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder outside the checkout, which the command runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "my_cells.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name


def python(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cellgen", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# --- help, list, show ----------------------------------------------------------------------------


def test_help_names_every_command_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom cellgen.cli.commands import app\n"
        "r = CliRunner().invoke(app, ['--help'])\nprint(r.output)\n"
        "assert r.exit_code == 0\n"
        "assert not {'sympy', 'jinja2', 'numpy', 'cffi'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("list", "show", "build", "check", "doctor", "cache"):
        assert command in done.stdout


def test_version(run):
    assert run("--version").output.strip() == f"cellgen {cellgen.__version__}"


def test_an_unknown_command_is_wrong_usage(run):
    assert run("frobnicate").exit_code == 2


def test_list_names_every_cell_once_by_family(run):
    result = run("list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(named) == sorted(SHIPPED_NAMES)
    assert [line for line in lines if not line.startswith("  ")] == [*FAMILIES]
    assert not result.stderr
    assert all(len(line.split()) > 1 for line in lines if line.startswith("  "))


def test_a_wrong_name_suggests_three(run):
    result = run("show", "min_gr")
    assert result.exit_code == 2
    three = "did you mean 'min_gru', 'min_gru_log' or 'li_gru'"
    assert three in result.stderr
    assert "`cellgen list` names all" in result.stderr
    with pytest.raises(cellgen.BuildError, match=three):
        cellgen.load("min_gr")
    assert "did you mean" not in run("show", "qqqqqqqq").stderr


def test_lines_of_a_list_fit_a_terminal():
    for cells in by_family().values():
        for width in (80, 60, 40, 20):
            shown = list(listing.lines(cells, width))
            assert [line.split()[0] for line in shown] == [*cells]
            longest = max(map(len, cells)) + 2
            assert all(len(line) <= max(width, longest) for line in shown)
    assert list(listing.lines({"a": "one two three"}, 16)) == ["  a  one two ..."]


def test_a_list_imports_nothing_but_python_and_itself():
    """Neither the command line nor NumPy: it is there at once."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom cellgen.cli.main import main\n"
        "sys.argv[1:] = ['list']\nmain()\n"
        "added = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "others = added - set(sys.stdlib_module_names) - {'cellgen'}\n"
        "own = sum(name.startswith('cellgen') for name in sys.modules)\n"
        "sys.exit(f'{sorted(others)}, {own} of cellgen' if others or own > 20 else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", AT_ONCE, ids="-".join)
def test_what_is_answered_at_once_is_what_the_command_line_answers(run, words, capsys):
    AT_ONCE[words]()
    assert capsys.readouterr().out == run(*words).stdout
    assert python(*words, cwd=ROOT).stdout == run(*words).stdout


def test_titles_are_the_first_sentences_of_generated_packages():
    titles = {name: title for cells in by_family().values() for name, title in cells.items()}
    for name, title in titles.items():
        package = ast.parse((generated_folder() / name / "__init__.py").read_text("utf-8"))
        assert title == ast.get_docstring(package).partition("\n")[0].rstrip(".")


def test_list_as_json_has_states_parameters_and_source(run):
    entries = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in entries] == SHIPPED_NAMES
    lstm = next(entry for entry in entries if entry["name"] == "lstm_block_cell")
    assert lstm["states"] == ["cs_prev", "h_prev"]
    assert lstm["parameters"] == ["w", "wci", "wcf", "wco", "b"]
    assert all(entry["source"] for entry in entries)


def test_list_works_without_a_compiler(run, monkeypatch):
    monkeypatch.setenv("CELLGEN_CC", "/nowhere/cc")
    result = run("list", "--json")
    assert result.exit_code == 0
    assert {entry["built"] for entry in json.loads(result.stdout)} == {None}


@pytest.mark.parametrize("name", each_name_of(of_all, TYPICAL))
def test_show_prints_forward_and_backward_with_shapes(run, name):
    result = run("show", name)
    assert result.exit_code == 0
    for part in ("forward(", "backward(", "weight_gradients(", "(B, H)"):
        assert part in result.stdout
    assert result.stderr == ""


def test_show_writes_equations_as_a_paper_would(run):
    shown = run("show", "gru_block_cell").stdout
    assert "r_bar_u_bar = concat(x, h_prev) @ w_ru + b_ru" in shown
    assert "d_x = d_c_bar @ w_c[:I].T + d_r_bar_u_bar @ w_ru[:I].T" in shown
    assert "d_c_bar = d_c_total * (1 - c**2)" in shown


@pytest.mark.parametrize("cell", each_of(of_equations))
def test_every_name_that_show_reads_is_an_argument_or_stated_above(cell):
    from cellgen.pipeline import programs_of
    from cellgen.views.show import sections

    functions = {"sum", "axis", *OPERATORS, *POINTWISE, *(str(d) for d in cell.definition.dims)}
    for equation in cell.definition.equations:  # activations of the author's own
        functions |= {node.row.name for node in equation.expression.atoms(Pointwise)}
    for section in sections(programs_of(cell)):
        known = functions | {str(value) for value in section.arguments} | {"T"}
        for line in section.lines:
            words = re.findall(r"(?<![\w.])[A-Za-z_]\w*", line.text)  # 1e-05 holds none
            assert set(words) <= known, line
            known.add(str(line.target))
        assert {str(value) for value in section.results} <= known


def test_show_takes_a_class_name_and_other_forms(run):
    assert run("show", "GRUBlockCell").stdout == run("show", "gru_block_cell").stdout
    assert "product" in run("show", "gru", "--schedule").stdout
    data = json.loads(run("show", "gru", "--json").stdout)
    assert data["functions"][0]["results"] == ["h"]


def test_latex_is_balanced_and_has_one_block_for_each_function(run):
    latex = run("show", "lstm_block_cell", "--latex").stdout
    assert latex.count(r"\begin{align*}") == latex.count(r"\end{align*}") == 4
    assert latex.count(r"\left") == latex.count(r"\right")
    assert latex.count("{") == latex.count("}")
    assert not re.search(r"_\{[^{}]*\}_\{", latex), "two subscripts on one letter"


@pytest.mark.parametrize("name", each_name_of(of_all, TYPICAL))
def test_picture_is_valid_svg_with_every_value_of_the_author(run, folder, name):
    result = run("show", name, "--svg", "picture.svg")
    assert result.stdout == "picture.svg\n"
    texts = [node.text or "" for node in ET.parse(folder / "picture.svg").iter() if node.text]
    definition = next(cell.definition for cell in SHIPPED if cell.definition.name == name)
    for value in (*definition.declared, *(e.target for e in definition.equations)):
        assert any(words.split()[0] == str(value) for words in texts if words.strip()), value
    first = (folder / "picture.svg").read_text()
    run("show", name, "--svg", "again.svg")
    assert (folder / "again.svg").read_text() == first


def test_picture_boxes_do_not_overlap():
    from cellgen.cells import LSTMBlockCell
    from cellgen.program.derive import forward
    from cellgen.views.graph import graph_lines
    from cellgen.views.graph_layout import arrange

    nodes, edges = graph_lines(LSTMBlockCell.definition, forward(LSTMBlockCell.definition))
    placed = arrange([node.box for node in nodes], edges)
    for node in nodes:
        x, y = placed.centres[node.key]
        assert x - node.width / 2 + 1e-6 >= 0
        assert x + node.width / 2 <= placed.width + 1e-6
        for other in nodes:
            if other is not node:
                dx, dy = x - placed.centres[other.key][0], y - placed.centres[other.key][1]
                apart = abs(dx) >= (node.width + other.width) / 2
                assert apart or abs(dy) >= (node.height + other.height) / 2
    assert all(placed.centres[a][0] < placed.centres[b][0] for a, b in edges)


def test_show_with_two_forms_or_an_unwritable_picture(run, folder):
    assert run("show", "gru", "--latex", "--json").exit_code == 2
    result = run("show", "gru", "--svg", "no/such/folder.svg")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


# --- an author's file ----------------------------------------------------------------------------


def test_a_file_gives_its_own_cells_and_not_those_it_imports(folder):

    text = MINIMAL + "\nMine = gru_reset_before(name='mine')\nBase = GRU.replaced('h', 'h_raw')\n"
    cells, _ = find_each([write(folder, text)])
    assert [cell.definition.name for cell in cells] == ["minimal", "mine"]
    assert cells[0].definition.origin == "my_cells:Minimal"
    assert find_one("my_cells.py:mine").definition.name == "mine"


def test_a_file_may_begin_with_a_byte_order_mark(run, folder):
    (folder / "my_cells.py").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert run("show", "my_cells.py").exit_code == 0


def test_show_needs_one_cell_of_a_file(run, folder):
    write(folder, MINIMAL + "\nMine = gru_reset_before(name='mine')\n")
    result = run("show", "my_cells.py")
    assert result.exit_code == 2
    assert "name one: my_cells.py:GRUResetBefore" in result.stderr
    assert run("show", "my_cells.py:Minimal").exit_code == 0


def test_a_path_that_is_no_file_says_what_to_do(run, folder):
    """A missing file, a folder, a file named without its ending, a text that is not UTF-8."""
    write(folder, MINIMAL, "gated.py")
    (folder / "cells").mkdir()
    (folder / "latin.py").write_bytes("# ä".encode("latin-1"))
    for selector, *parts in (
        ("gatd.py", "no such file in", folder, "did you mean 'gated.py'", "cellgen new my_cell"),
        ("cells/none.py", "no such file in", folder / "cells", "correct the path"),
        ("cells/", "cannot read cells: it is a folder; name a file of it, as cells/my_cells.py"),
        ("cells", "it is a folder; name a file of it"),
        (".", "it is a folder; name a file of it, as gated.py"),
        ("gated", "did you mean the file gated.py?"),
        ("latin.py", "it is no UTF-8 text; save it as UTF-8"),
    ):
        result = run("show", selector)
        assert result.exit_code == 2
        for part in parts:
            assert str(part) in result.stderr, (selector, result.stderr)


def test_a_file_can_import_its_neighbours(run, folder):
    write(folder, "leak = 0.25\n", "numbers_of_mine.py")
    write(folder, "from numbers_of_mine import leak\n" + MINIMAL.replace("0.5", "leak"))
    assert "0.25 * " in run("show", "my_cells.py").stdout


HEAD = """\
from cellgen import *


class Bad(Cell):
    x, h_prev = Input(I), State(H)
    w = Weight(I, H)
"""
BAD_FILES = {
    "matmul of expressions": (
        HEAD + "    h = tanh((2 * x) @ (w * w))\n",
        7,
        ("for @", "name one side first", "matmul("),
    ),
    "comprehension": (
        HEAD + "    a = [x @ w for _ in range(2)]\n    h = a[0]\n",
        7,
        ("a comprehension in a class body cannot see", "such as"),
    ),
    "syntax": (HEAD.replace("(Cell):", "(Cell)"), 4, ("SyntaxError", "class Bad(Cell)")),
    "missing import": (
        HEAD.replace("import *", "import Cell, H, I, Input, State"),
        6,
        ("NameError", "add it: from cellgen import Weight"),
    ),
    "state read before it is made": (
        HEAD + "    h = tanh(x @ w + h)\n",
        7,
        ("name 'h' is not defined; the value before the step is h_prev",),
    ),
    "tuple for a state": (
        HEAD + "    h = (tanh(x @ w),)\n",
        7,
        ("h is (tanh(", "expected one expression: it is the new value of the state h_prev"),
    ),
    "number for a state": (HEAD + "    h = 0\n", 7, ("h is 0, expected one expression",)),
    "typing error": (HEAD + "    h = tanhh(x @ w)\n", 7, ("did you mean tanh?",)),
    "numpy function": (
        "import numpy as np\n" + HEAD + "    h = np.tanh(x @ w)\n",
        8,
        ("an equation uses cellgen's own",),
    ),
    "math function": (
        "import math\n" + HEAD + "    h = math.tanh(x)\n",
        8,
        ("an equation uses cellgen's own",),
    ),
    "if": (HEAD + "    h = x @ w if x > 0 else h_prev\n", 7, ("where(x > 0, x @ w, h_prev)",)),
    "shapes": (HEAD.replace("Weight(I, H)", "Weight(H, H)") + "    h = x @ w\n", 7, ("(B, I)",)),
    "no equation for the state": (HEAD + "    a = x @ w\n", 5, ("h_prev",)),
    "any other": ("x = 1\nraise OSError('the disk is on fire')\n", 2, ("the disk is on fire",)),
    "exit": ("import sys\nsys.exit(3)\n", 2, ("SystemExit",)),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_an_error_in_a_file_is_one_message_with_the_authors_line(run, folder, case):
    text, line, parts = BAD_FILES[case]
    result = run("show", write(folder, text))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f'File "my_cells.py", line {line}' in result.stderr
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_without_cells_a_missing_file_and_a_wrong_name(run, folder):
    assert run("show", write(folder, "x = 1\n")).exit_code == 1
    assert run("show", "nothing.py").exit_code == 2
    result = run("show", "lsmt")
    assert result.exit_code == 2
    assert "did you mean 'lstm', 'slstm' or 'mlstm'?" in result.stderr
    assert "did you mean 'gru', " in run("show", "Gru").stderr
    write(folder, MINIMAL)
    assert "known: minimal" in run("show", "my_cells.py:Maximal").stderr


def test_two_cells_of_one_name_are_refused(run, folder):
    text = MINIMAL + "\nA = gru_reset_before(name='mine')\nB = gru_reset_before(name='mine')\n"
    result = run("build", write(folder, text))
    assert result.exit_code == 2
    assert "two cells are named 'mine'" in result.stderr


# --- build ---------------------------------------------------------------------------------------


def test_build_makes_a_folder_that_works_alone(run, folder):
    result = run("build", write(folder, MINIMAL))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("generated/minimal: ")
    assert "compiling minimal" in result.stderr
    assert (folder / "generated/include/cellgen.h").is_file()
    code = "from generated import minimal; print(minimal.kernel.name)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout == "minimal\n", done.stderr

    again = json.loads(run("build", "my_cells.py", "--json").stdout)
    assert again[0]["cached"] is True
    assert again[0]["changed"] == []
    assert run("build", "--check", "my_cells.py").exit_code == 0


def test_build_check_prints_a_diff_and_writes_nothing(run, folder):
    source = write(folder, MINIMAL)
    tree.write(tree.support_files(Path("generated")))
    missing = run("build", "--check", source)
    assert missing.exit_code == 1
    assert "+++ generated/minimal/minimal.c (generated)" in missing.stdout
    assert not (folder / "generated/minimal").exists()

    from cellgen.files.make import write_all
    from cellgen.pipeline import generate

    write_all(Path("generated"), [generate(cell) for cell in find_each([source])[0]])
    assert run("build", "--check", source).exit_code == 0
    path = folder / "generated/minimal/minimal.h"
    path.write_text(path.read_text().replace("minimal_forward", "minimal_foreword"))
    (folder / "generated/minimal/other.cu").write_text("old")
    changed = run("build", "--check", source)
    assert changed.exit_code == 1
    assert "-" in changed.stdout
    assert "foreword" in changed.stdout
    assert "generated/minimal/other.cu is no longer generated" in changed.stdout
    data = json.loads(run("build", "--check", source, "--json").stdout)
    assert [d["path"] for d in data["differences"]] == [
        "generated/minimal/minimal.h",
        "generated/minimal/other.cu",
    ]
    assert "foreword" in path.read_text()


def test_a_cell_that_no_longer_ships_is_noticed(run, folder, monkeypatch):
    out, two = folder / "out", SHIPPED[:2]  # as if these were all
    others = {cell.definition.name for cell in SHIPPED[2:]}
    left_out = shutil.ignore_patterns("__pycache__", *others)
    shutil.copytree(ROOT / "generated", out, ignore=left_out)
    monkeypatch.setattr("cellgen.cells.SHIPPED", two)
    result = run("build", "--check", "--out", str(out))
    assert result.exit_code == 1
    assert "cuda.sha256" in result.stdout
    rows = (out / "cuda.sha256").read_text().splitlines(keepends=True)
    names = {cell.definition.name for cell in two}
    kept = [row for row in rows if row.split("  ")[1].split("/")[0] in names]
    (out / "cuda.sha256").write_text("".join(kept))
    assert run("build", "--check", "--out", str(out)).exit_code == 0
    shutil.copytree(ROOT / "generated" / "gru", out / "old_gru")
    result = run("build", "--check", "--out", str(out))
    assert result.exit_code == 1
    assert "out/old_gru is of a cell that no longer ships" in result.stdout


def test_what_is_committed_is_what_is_generated(run, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = run("build", "--check")
    assert result.exit_code == 0, result.stdout[:4000]


def test_an_authors_cell_does_not_replace_a_shipped_one(run, folder, monkeypatch):
    path = folder / write(folder, MINIMAL.replace("class Minimal", "class LSTM"))
    monkeypatch.chdir(ROOT)
    result = run("build", str(path))
    assert result.exit_code == 2
    assert "lstm is the name of a cell that ships" in result.stderr


def test_without_a_compiler_the_sources_are_still_written(run, folder, monkeypatch):
    monkeypatch.setenv("CELLGEN_CC", "/nowhere/cc")
    result = run("build", write(folder, MINIMAL))
    assert result.exit_code == 1
    assert "/nowhere/cc" in result.stderr
    assert (folder / "generated/minimal/minimal.c").is_file()


def test_a_compiler_that_fails_is_reported_with_its_command(run, folder, monkeypatch):
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("CELLGEN_CFLAGS", "-include no_such_header.h")
    result = run("build", write(folder, MINIMAL))
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_written(run, folder):
    (folder / "taken").write_text("a file")
    result = run("build", write(folder, MINIMAL), "--out", "taken/here")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


# --- several cells, of which some fail -----------------------------------------------------------

FAULTY = MINIMAL.replace("Elman.h_prev + ", "Elman.h_prev @ ")


@pytest.fixture
def several(folder):
    """A file that fails, one with two cells, one that does not exist, and a cell that ships."""
    write(folder, FAULTY, "faulty.py")
    two = MINIMAL + MINIMAL[MINIMAL.index("class") :].replace("class Minimal", "class Second")
    write(folder, two, "two.py")
    return ("faulty.py", "two.py", "missing.py", "elman")


def faults_are_told(result) -> None:
    assert result.exit_code == 1
    assert 'File "faulty.py", line 9' in result.stderr
    assert "cannot read missing.py" in result.stderr
    assert "second: this one cannot be derived" in result.stderr
    assert "Traceback" not in result.output


def unlike_second(function):
    """A function of a cell that fails for the cell named ``second``."""

    def call(cell, *args, **options):
        if cell.definition.name == "second":
            raise DerivationError("second: this one cannot be derived")
        return function(cell, *args, **options)

    return call


def test_check_goes_through_all_cells_and_reports_each(run, several, monkeypatch):
    good = unlike_second(lambda cell, **_: Report(cell.definition.name, 0, _report("ok").rows))
    monkeypatch.setattr(check, "check", good)
    result = run("check", *several)
    faults_are_told(result)
    assert "2 of 2 cells proved" in result.stdout
    assert "checking second: FAILED" in result.stderr
    reports = json.loads(run("check", "--json", *several).stdout)
    assert [(report["cell"], report["ok"]) for report in reports] == [
        *(("minimal", True), ("elman", True)),
        *(("faulty.py", False), ("missing.py", False), ("second", False)),
    ]
    assert "cannot be derived" in reports[-1]["error"]


def test_build_goes_through_all_cells_and_reports_each(run, several, folder, monkeypatch):
    from cellgen.files import make

    monkeypatch.setattr(make, "generate", unlike_second(make.generate))
    (folder / "generated").mkdir()
    (folder / "generated/minimal").write_text("a file where a folder should be")
    result = run("build", *several)
    faults_are_told(result)
    assert "generated/minimal/minimal.h cannot be written" in result.stderr
    assert re.search("generated/elman: (compiled|up to date)", result.stdout)
    (folder / "generated/minimal").unlink()
    compared = run("build", "--check", *several)
    faults_are_told(compared)
    assert "minimal.c (generated)" in compared.stdout
    assert "elman.c (generated)" not in compared.stdout


def test_bench_leaves_out_cells_that_fail_and_says_so(run, several, monkeypatch):
    from cellgen.cli import bench

    timed = []
    monkeypatch.setattr(
        bench,
        "kernel_of",
        lambda name: unlike_second(lambda cell: SimpleNamespace(build=lambda: None))(
            find_one(name)
        ),
    )
    monkeypatch.setattr(bench, "run", lambda plan: timed.append(plan.cells))
    monkeypatch.setattr(bench, "show", lambda report, as_json: print("a report"))
    result = run("bench", *several)
    faults_are_told(result)
    assert timed == [("two.py:Minimal", "elman")]
    assert "a report" in result.stdout
    assert run("bench", "missing.py").exit_code == 2
    assert len(timed) == 1


# --- check, doctor, cache ------------------------------------------------------------------------


def _report(verdict: str) -> Report:
    return Report("lstm", 0, (Row("a claim [of lists]", 1e-16, 1e-13, verdict, "x, [h]"),))


@pytest.mark.parametrize(("verdict", "status"), [("ok", 0), ("failed", 1), ("skipped", 0)])
def test_check_prints_a_table_and_ends_with_the_verdict(run, monkeypatch, verdict, status):
    monkeypatch.setattr(check, "check", lambda cell, **options: _report(verdict))
    result = run("check", "lstm")
    assert result.exit_code == status
    assert "a claim [of lists]" in result.stdout
    assert "1.0e-16" in result.stdout
    assert verdict in result.stdout
    data = json.loads(run("check", "lstm", "--json").stdout)
    assert data[0]["rows"][0]["verdict"] == verdict


def test_check_proves_an_authors_cell(run, folder):
    result = run("check", write(folder, MINIMAL), "--json")
    assert result.exit_code == 0, result.stdout
    report = json.loads(result.stdout)[0]
    assert report["cell"] == "minimal"
    assert any(row["name"].startswith("C float64") for row in report["rows"])


def test_doctor_is_content_here(run):
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "C compiler" in result.stdout
    data = json.loads(run("doctor", "--json").stdout)
    assert data["ok"]
    names = {finding["name"] for finding in data["findings"]}
    assert {
        "compiler flags",
        "instruction set",
        "micro-kernel",
        "compilers",
        "cache access",
    } <= names


def test_doctor_says_what_cuda_kernels_have_and_what_runs_without_it(run, monkeypatch):
    monkeypatch.setattr("cellgen.runtime.device.cublas.candidates", lambda: iter(()))
    monkeypatch.setattr("cellgen.runtime.device.nvcc.candidates", lambda: iter(()))
    result = run("doctor", "--json")
    assert result.exit_code == 0
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert "no CUDA compiler: nvcc is not on PATH" in found["nvcc"]["text"]
    assert "cellgen-compiler[cuda]" in found["nvcc"]["fix"]
    assert "products of the runtime header run instead" in found["cuBLAS"]["text"]
    assert found["cuBLAS"]["fix"] == "pip install 'cellgen-compiler[cublas]'"
    monkeypatch.setattr("cellgen.runtime.device.cublas.candidates", lambda: iter(["libm.so.6"]))
    found = {f["name"]: f for f in json.loads(run("doctor", "--json").stdout)["findings"]}
    assert found["cuBLAS"] == {**found["cuBLAS"], "ok": True, "text": "libm.so.6"}


def test_doctor_says_which_extra_brings_what_is_missing(run, monkeypatch):
    def missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("cellgen.runtime.triton.backend.importlib.metadata.version", missing)
    fixes = {finding.name: finding.fix for finding in doctor.examine()}
    assert fixes["torch"] == "pip install 'cellgen-compiler[torch]'"
    assert fixes["triton"] == "pip install triton"
    named = {extra for _, extra, _ in doctor.EXTRAS}
    assert {"jax", "keras", "onnx", "weights"} <= named <= EXTRAS
    for module, extra, _ in doctor.EXTRAS:
        assert fixes[f"[{extra}] {module}"] == f"pip install 'cellgen-compiler[{extra}]'"


def test_doctor_says_how_to_get_a_compiler(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CELLGEN_CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "cellgen.runtime.build.compiler.importlib.util.find_spec", lambda name: None
    )
    result = run("doctor")
    assert result.exit_code == 1
    assert "apt install gcc" in result.stdout


def test_doctor_notices_a_cache_that_others_can_write(run, monkeypatch, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    result = run("doctor")
    assert result.exit_code == 1
    assert "chmod 700" in result.stdout


def test_cache_info_and_clear(run, monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    cache.prepare()
    data = json.loads(run("cache", "info", "--json").stdout)
    assert data == {"path": str(tmp_path / "cache"), "kernels": 0, "bytes": 0}
    kept = tmp_path / f"cache/kernels/x-{'0' * cache.KEY_DIGITS}"
    kept.mkdir()
    (kept / "x.so").write_bytes(b"12345")
    assert "1 kernels, 5 B" in run("cache", "info").stdout
    assert "removed 1 kernels" in run("cache", "clear").stdout
    assert json.loads(run("cache", "info", "--json").stdout)["kernels"] == 0


# --- streams and signals -------------------------------------------------------------------------


def test_a_pipe_gets_no_colour_and_results_only(tmp_path):
    done = python("show", "elman", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    wrong = python("shwo", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "\x1b" not in wrong.stderr


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path):
    write(tmp_path, MINIMAL)
    compiler = tmp_path / "slowcc"
    compiler.write_text(
        '#!/bin/sh\nfor word in "$@"; do\n'
        "  case $word in -o) touch started; exec sleep 60;; esac\n"
        'done\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "cellgen", "build", "my_cells.py"],
        cwd=tmp_path,
        preexec_fn=heed_ctrl_c,
        env={
            **os.environ,
            "CELLGEN_CC": str(compiler),
            "CELLGEN_CACHE_DIR": str(tmp_path / "cache"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("cache/building/*/started")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_all", "status"), [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)]
)
def test_a_signal_ends_a_proof_side_by_side_with_a_status_and_no_traceback(number, to_all, status):
    process, errors = proving_side_by_side()
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == status
    # rich 13.0 ends its progress with an empty line where nobody looks at it.
    assert re.sub("checking .*\n", "", errors + rest).lstrip("\n") == "cellgen: interrupted\n"
    assert_group_is_gone(process.pid)


HELD_BY_C = """
import ctypes
import cellgen.cli.main as command

library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
command.PATIENCE = 0.2
lock = lambda: library.pthread_mutex_lock(mutex)
command._command = lambda: lambda: (print("waits", flush=True), lock(), lock())
command.main()
"""
"""A command that never returns from C: it waits for a lock that it has."""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc's locks")
def test_sigterm_ends_a_command_that_c_keeps():
    process = subprocess.Popen([sys.executable, "-c", HELD_BY_C], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waits\n"
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_workers_end_with_a_proof_that_is_killed():
    process, _ = proving_side_by_side()
    process.kill()
    process.communicate(timeout=60)  # workers have its stderr
    assert_group_is_gone(process.pid)


def proving_side_by_side() -> tuple[subprocess.Popen[str], str]:
    """A proof of several cells whose first is over, and what it said of that."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cellgen", "check", "elman", "lstm", "gru", "ltc", "-j", "2"],
        preexec_fn=heed_ctrl_c,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "checking" in first
    return process, first


def assert_group_is_gone(leader: int) -> None:
    """No process is left of those that a leader of a session began."""
    deadline = time.monotonic() + 20
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(leader, 0)
            time.sleep(0.1)
        pytest.fail("processes are left")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full")
@pytest.mark.parametrize("command", ["list", "--version"])
def test_output_that_cannot_be_written_is_said_in_a_line(command) -> None:
    words = [sys.executable, "-m", "cellgen", command]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "cellgen: the output cannot be written: No space left on device\n"
    ended = ["bash", "-c", 'exec 3> >(exec true); sleep 0.2; exec "$@" >&3', "bash", *words]
    assert subprocess.run(ended, capture_output=True, text=True, check=False).stderr == ""
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    assert subprocess.run(closed, capture_output=True, text=True, check=False).stderr == ""

"""What other packages bring, by packages that are really installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import cellgen
from cellgen import weights
from cellgen.cells import GRUResetBefore
from cellgen.cli import commands, doctor
from cellgen.errors import ArgumentError, BuildError, CellgenError
from cellgen.runtime import plugins
from cellgen.views.find import find_each, find_one
from tests import documents
from tests.packages import EXTENDING, metadata, pip_install

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which packages of a test are installed."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip into a folder of its own."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("installed")
    pip_install(folder, EXTENDING)
    return folder


def in_process(code: str, *folders: Path) -> str:
    path = os.pathsep.join([*map(str, folders), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


Command = Callable[..., Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run a command in this process, which finds what is installed in a folder, and work there."""
    before = {*sys.modules}
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: str, folder: Path, code: int = 0) -> Any:
        with monkeypatch.context() as within:
            within.syspath_prepend(str(folder))
            within.chdir(folder)
            done = CliRunner().invoke(commands.app, words)
        assert done.exit_code == code, done.output
        return done

    yield run
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "cellgen_extras":
            del sys.modules[name]


# --- the example, installed ----------------------------------------------------------------------


def test_a_package_brings_a_cell_a_target_and_a_dialect(extras: Path) -> None:
    printed = in_process(
        """
import numpy as np
import cellgen
from cellgen import weights

gated = cellgen.load("cellgen_extras:Gated")
rng = np.random.default_rng(0)
init = gated.init(rng, I=3, H=4, dtype=np.float64)
x, h = rng.standard_normal((2, 3)), rng.standard_normal((2, 4))
one = gated.forward(x=x, h_prev=h, **init).h
other = cellgen.load("Cellgen.Extras:Gated", "numpy").forward(x=x, h_prev=h, **init).h
print(gated.name, np.abs(one - other).max() < 1e-14)
gru = {"weight_ih_l0": rng.standard_normal((12, 3)), "weight_hh_l0": rng.standard_normal((12, 4))}
arrays = {"matrix": rng.standard_normal((7, 12)), "offset": rng.standard_normal(12)}
to = weights.convert(arrays, "extras.GRU", "keras.layers.GRU(reset_after=False)", prove=True)
back = weights.convert(to, "keras.layers.GRU(reset_after=False)", "extras.GRU", prove=True)
print(to.difference < 1e-14, all((back[n] == arrays[n]).all() for n in arrays))
""",
        extras,
    )
    assert printed.split() == ["gated", "True", "True", "True"]


def test_a_list_names_cells_of_packages_and_imports_none(extras: Path, command: Command) -> None:
    printed = in_process(
        "import sys; sys.argv = ['cellgen', 'list']; from cellgen.cli.main import main; main()",
        extras,
    )
    assert (
        "package cellgen-extras 1.0\n  cellgen-extras:Gated  cellgen_extras.cells:Gated" in printed
    )
    loaded = in_process(
        "import sys; from cellgen.cli.listing import packaged_cells; packaged_cells();"
        "print(*sys.modules)",
        extras,
    ).split()
    assert not {"cellgen_extras", "sympy"} & {*loaded}
    entries = json.loads(command("list", "--json", folder=extras).stdout)
    assert entries[-1]["name"] == "cellgen-extras:Gated"
    assert entries[-1]["states"] == ["h_prev"]


def test_every_command_that_takes_a_cell_takes_one_of_a_package(
    extras: Path, command: Command
) -> None:
    name = "cellgen-extras:Gated"
    assert "f = sigmoid(" in command("show", name, folder=extras).stdout
    assert "gated" in command("explain", name, folder=extras).stdout
    out = ["--out", "generated"]
    built = command("build", name, "--target", "numpy", *out, "--json", folder=extras).stdout
    assert json.loads(built)[0]["object"].endswith("module.py")
    assert (extras / "generated/gated/gated_numpy.py").is_file()
    # The file is the target's, which stays installed: it is not stale.
    command("build", name, "--check", *out, folder=extras)
    command("export", name, "small", "--embedded", "--dims", "I=2,H=3", folder=extras)
    wrong = command("show", "cellgen-extras:Gatet", folder=extras, code=2).stderr
    assert "did you mean 'Gated'?" in wrong
    wrong = command("show", "cellgen-extra:Gated", folder=extras, code=2).stderr
    assert "did you mean 'cellgen-extras'?" in wrong


def test_the_doctor_knows_what_packages_bring(extras: Path, command: Command) -> None:
    findings = {
        row["name"]: row
        for row in json.loads(command("doctor", "--json", folder=extras).stdout)["findings"]
    }
    for name in ("Gated", "numpy", "extras.GRU"):
        row = findings[f"cellgen-extras:{name}"]
        assert (row["ok"], row["required"]) == (True, False)


# --- packages that are at fault ------------------------------------------------------------------

BROKEN = {
    "gone": ("no_such_module:Cell", "ModuleNotFoundError: No module named 'no_such_module'"),
    "raises": ("raises_at_import:Cell", "RuntimeError: wrong version of everything"),
    "exits": ("exits_at_import:Cell", "SystemExit: 3"),
    "misspelt": ("fine_module:Missing", "AttributeError"),
    "none": ("fine_module:NUMBER", "is 3, expected a subclass of Cell"),
    "base": ("cellgen:Cell", "expected a subclass of Cell"),
    "syntax": ("half_written:Cell", "SyntaxError"),
}


@pytest.fixture
def broken(packages: Path) -> Path:
    (packages / "raises_at_import.py").write_text(
        "raise RuntimeError('wrong version of everything')"
    )
    (packages / "exits_at_import.py").write_text("raise SystemExit(3)")
    (packages / "fine_module.py").write_text("NUMBER = 3\n")
    (packages / "half_written.py").write_text("class Cell(:\n")
    lines = [f"{name} = {value}" for name, (value, _) in BROKEN.items()]
    for kind in ("cells", "targets", "dialects"):
        metadata(packages, f"broken-{kind}", "\n".join([f"[cellgen.{kind}]", *lines, ""]))
    return packages


@pytest.mark.parametrize("name", BROKEN)
def test_a_cell_that_cannot_be_had_is_one_message_that_names_its_package(
    broken: Path, name: str
) -> None:
    with pytest.raises(BuildError) as caught:
        cellgen.load(f"broken-cells:{name}")
    message = str(caught.value)
    assert f"cell {name!r} of the package broken-cells 1.0: " in message
    assert BROKEN[name][1] in message
    assert "`pip uninstall broken-cells`" in message
    assert caught.value.code == "package"


def test_a_cell_in_a_file_is_for_commands() -> None:
    with pytest.raises(BuildError, match=r"in a file, .*: cellgen\.compile\(Own\)"):
        cellgen.load("my_cells.py:Own")


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "base"])
def test_a_target_and_a_dialect_that_cannot_be_had_name_their_packages(
    broken: Path, name: str
) -> None:
    for call, package in (
        (lambda: cellgen.load("elman", name), "broken-targets"),
        (lambda: weights.dialect(name), "broken-dialects"),
    ):
        with pytest.raises(CellgenError, match=f"of the package {package} 1.0: ") as caught:
            call()
        assert caught.value.code == "package"


def test_what_is_broken_holds_up_nothing_else(broken: Path, command: Command) -> None:
    assert cellgen.load("elman").name == "elman"
    assert weights.dialect("torch.nn.GRU").name == "torch.nn.GRU"
    printed = command("list", folder=broken).stdout
    assert "broken-cells:gone" in printed
    listed = command("list", "--json", folder=broken)
    assert len(json.loads(listed.stdout)) == len(cellgen.cells.SHIPPED)
    assert listed.stderr.count("of the package broken-cells 1.0") == len(BROKEN)
    cells, failures = find_each(["elman", "broken-cells:gone"])
    assert [cell.__name__ for cell in cells] == ["Elman"]
    assert [failure.name for failure in failures] == ["broken-cells:gone"]


def test_a_list_of_entry_points_that_cannot_be_read_hides_no_other(packages: Path) -> None:
    metadata(packages, "damaged", "[cellgen.cells]\nno equals sign\n")
    metadata(packages, "whole", "[cellgen.cells]\nGRU = cellgen.cells:GRUResetBefore\n")
    assert [row.selector for row in plugins.plugins(plugins.CELLS)] == ["whole:GRU"]
    assert find_one("whole:GRU") is GRUResetBefore
    assert [row.package for row in plugins.unreadable()] == ["damaged"]


def test_two_packages_of_one_target_are_said(packages: Path) -> None:
    for name in ("first", "second"):
        metadata(packages, name, "[cellgen.targets]\nnumpy = somewhere\n")
    with pytest.raises(CellgenError, match="is brought by the packages first and second"):
        cellgen.load("elman", "numpy")


def test_a_target_of_cellgens_name_takes_nothing_over(packages: Path) -> None:
    metadata(packages, "taker", "[cellgen.targets]\nc = no_such_module\n")
    assert cellgen.load("elman", "c").name == "elman"
    with pytest.raises(BuildError, match="expected one of c, cuda, triton"):
        cellgen.load("elman", "metal")


def test_the_doctor_tells_of_a_dialect_that_nothing_reaches(packages: Path) -> None:
    """Its name is one of cellgen's own, which stays what it is."""
    metadata(packages, "taker", "[cellgen.dialects]\ntorch.nn.GRU = no_such_module\n")
    findings = {finding.name: finding for finding in doctor.examine()}
    row = findings["taker:torch.nn.GRU"]
    assert (row.ok, row.required) == (False, False)
    assert "torch.nn.GRU is a dialect of cellgen's own, which is taken" in row.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Dialect('a', 'transformer', ())", "function is 'transformer', expected one of"),
        ("return Dialect('a', 'rnn_tanh', (PackedWeight('k', (('w',),)),))", "u of rnn_tanh has"),
        ("return Dialect('a', 'rnn_tanh', (PackedWeight('k', (('q',),)),))", "q is no block of"),
        ("return Dialect('a', 'rnn_tanh', (PackedWeight('k', (('w', 'w', 'u'),)),))", "w of rnn"),
        ("return Dialect('a', ['gru'], ())", "function is"),
        ("return Dialect('a', 'rnn_tanh', None)", "arrays is None, expected a tuple"),
        ("return Dialect('a', 'rnn_tanh', (3,))", "expected a tuple of PackedWeight"),
        ("return 3", "returns 3, expected a cellgen.weights.Dialect"),
        ("return {}[1]", "raises KeyError: 1"),
    ],
)
def test_the_layout_of_a_package_is_looked_at(
    packages: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    (packages / "layouts_of.py").write_text(
        f"from cellgen.weights import Dialect, PackedWeight\ndef a():\n    {body}\n"
    )
    metadata(packages, "layouts", '[cellgen.dialects]\n"a" = layouts_of:a\nb = layouts_of:a\n')
    monkeypatch.delitem(sys.modules, "layouts_of", raising=False)
    with pytest.raises(ArgumentError, match=message):
        weights.dialect("b")


def test_a_layout_without_equations_converts_and_refuses_to_be_proved(packages: Path) -> None:
    (packages / "plain_layout.py").write_text(
        "from cellgen.weights import Dialect, PackedWeight\n"
        "def a():\n"
        "    return Dialect('plain', 'rnn_tanh', (PackedWeight('k', (('w',), ('u',))),))\n"
    )
    metadata(packages, "plain", "[cellgen.dialects]\nplain = plain_layout:a\n")
    arrays = {"k": np.ones((7, 4))}
    assert weights.convert(arrays, "plain", "cellgen.elman")["u"].shape == (4, 4)
    with pytest.raises(ArgumentError, match="states no equations"):
        weights.convert(arrays, "plain", "cellgen.elman", prove=True)


def test_the_page_shows_the_example_as_it_is() -> None:
    """Each file by its name, so that they can be written from the page alone."""
    shown = {block.title: block.text for block in documents.blocks("how-to/extending.md")}
    files = [path for path in EXTENDING.rglob("*") if path.suffix in (".py", ".toml")]
    assert shown == {
        path.relative_to(EXTENDING).as_posix(): path.read_text(encoding="utf-8")
        for path in files
        if path.name != "__init__.py"
    }

"""What the README and the documents say is so: examples run, outputs are real, commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from cellgen.views.catalogue import catalogue
from cellgen.views.families import FAMILIES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"\d\.\de[-+]\d\d|\d+(?:\.\d+)? (?:s|KiB|MiB)\b")
TABLE = "| cell | what it is | states | source |\n|---|---|---|---|\n"


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@cache
def output_of(command: str) -> str:
    """Run a command of the README with this Python, from the root of the repository."""
    words = shlex.split(command)
    python = ["-m", "cellgen"] if words[0] == "cellgen" else []
    done = subprocess.run(
        [sys.executable, *python, *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def simplified(line: str) -> str:
    """A line without what depends on the machine: figures, and the width of columns."""
    return " ".join(FIGURE.sub("#", line).split())


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_example_runs(number, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = compile(blocks("python")[number], f"README.md, Python example {number + 1}", "exec")
    exec(code, {"__name__": f"readme_{number + 1}"})


def _console_cases() -> list[tuple[str, str]]:
    cases = []
    for block in blocks("console"):
        command, _, shown = block.partition("\n")
        cases.append((command.removeprefix("$ "), shown))
    return cases


@pytest.mark.parametrize(("command", "shown"), _console_cases(), ids=lambda text: text[:20])
def test_shown_output_is_what_the_command_prints(command, shown):
    printed = [simplified(line) for line in output_of(command).splitlines()]
    for line in filter(str.strip, shown.splitlines()):
        assert any(found.startswith(simplified(line)) for found in printed), line


def test_shown_c_is_what_is_generated():
    from cellgen.pipeline import generate
    from cellgen.views.find import find_one

    body = generate(find_one(str(ROOT / "examples/own_cell.py"))).text(".c")
    for block in blocks("c"):
        assert block in body


def test_own_cell_of_the_readme_is_the_example():
    example = (ROOT / "examples/own_cell.py").read_text(encoding="utf-8")
    body = re.search(r"class MGU\(Cell\):.*?f \* c\n", README, re.DOTALL)
    assert body
    for line in body[0].splitlines():
        assert line in example or '"""' in line


def test_commands_named_in_the_readme_exist():
    known = set(re.findall(r"│ (\w+) ", output_of("cellgen --help"))) or {"list"}
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    text = "\n".join([*blocks("sh"), *re.findall(r"`(cellgen [^`]*)`", README + page)])
    for command in re.findall(r"(?:^|[\s/])cellgen (\w+)", text):
        assert command in {*known, "list", "show", "build", "check", "doctor", "cache"}, command
    for path in re.findall(r"python (\S+\.py)", README):
        assert (ROOT / path).is_file(), path
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_table_of_cells_is_the_catalogue():
    rows = "".join(
        f"| `{e.name}` | {e.text} | {', '.join(f'`{s}`' for s in e.states)} | {e.source} |\n"
        for e in catalogue()
    )
    assert TABLE + rows in (ROOT / "docs/reference/cells.md").read_text(encoding="utf-8")


def test_a_family_of_the_readme_names_every_cell_once():
    section = README[README.index("## Cells") : README.index("## Limits")]
    names = re.findall(r"`(\w+)`", section)
    assert sorted(names) == sorted(e.name for e in catalogue())
    assert names == [name for line in FAMILIES.values() for name in line.split()]
    assert all(f"| {family} |" in section for family in FAMILIES)


def test_the_readme_is_for_the_first_ten_minutes():
    assert README.count("\n") <= 180


def test_every_code_of_the_language_is_documented():
    document = (ROOT / "docs/reference/language.md").read_text(encoding="utf-8")
    used: set[str] = set()
    for path in (ROOT / "cellgen").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'"(declaration\.[a-z]+)"', source))
    documented = set(re.findall(r"`(declaration\.[a-z]+)`", document))
    assert used == documented


def test_nothing_published_names_a_machine():
    published = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("*.md")]
    for path in [*published, *ROOT.glob(".ci/*")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/home/|/root/|/work/|localhost|/opt/", text), path


def test_the_bridges_are_tested_at_every_landing():
    """Files of tests that leave themselves out where another framework is missing."""
    missing = re.compile(
        r'^(\w+ = )?pytest.importorskip\("(torch|jax|onnx|triton)"|^ +collect_ignore_glob', re.M
    )
    bridges = [p for p in ROOT.glob("tests/**/*.py") if missing.search(p.read_text("utf-8"))]
    assert {path.parent.name for path in bridges} >= {"torch", "jax", "onnx"}
    suites = (ROOT / ".ci/suites").read_text(encoding="utf-8")
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.search(r'for name in \$BRIDGES; do\n.*\n.*\n +"\$\{name\}_suite" "not slow"', run)
    assert re.search(r"^begin suites\n(.*\n)*finish suites$", run, re.M)
    names = re.search(r'^BRIDGES="([\w ]+)"$', suites, re.M)
    bodies = [re.search(rf"{name}_suite\(\) {{([^}}]*)}}", suites)[1] for name in names[1].split()]
    places = re.findall(r" tests/[\w/*.]+", "".join(bodies))
    tested = {path for place in places for path in ROOT.glob(place.strip())}
    assert [path for path in bridges if not tested & {path, *path.parents}] == []


def test_the_distribution_is_named_as_the_package_index_has_it():
    """``cellgen`` there is another project's; an extra of it would fetch that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "cellgen-compiler"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.splitlines()] or [*ROOT.rglob("*")]
    suffixes = {".py", ".md", ".toml", ".ipynb", ".j2", ".yml", ""}
    extras = "|".join(project["project"]["optional-dependencies"])
    wrong = re.compile(
        rf"(?<!-)\bcellgen\\?\[({extras}|{{extra}})\b|"
        r"(?<!un)install (-\S+ )*'?cellgen['`\"\s]|cellgen-\*"
    )
    found = []
    for path in paths:
        if path.suffix in suffixes and path.is_file() and path != Path(__file__):
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{path.relative_to(ROOT)}: {one[0]}" for one in wrong.finditer(text)]
    assert found == []


def test_files_of_the_other_project_are_told_at_the_first_import(tmp_path):
    """Its ``__init__.py`` was installed over this one."""
    ours = ROOT / "cellgen"
    shutil.copytree(ours, tmp_path / "cellgen", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cellgen" / "__init__.py").write_text("__version__ = '0.3'\n")
    done = subprocess.run(
        [sys.executable, "-c", "import cellgen.cli.main"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert "holds files of another project" in last
    assert "pip install cellgen-compiler" in last


def test_links_between_documents_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")]
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_the_index_names_every_document():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    there = {
        path.relative_to(ROOT / "docs").as_posix()
        for path in ROOT.glob("docs/*/*.md")
        if path.parent.name != "gallery"
    }
    assert sorted(name for name in there if f"]({name})" not in index) == []


def test_measurements_are_lab_notes_and_the_page_of_benchmarks_is_short():
    text = (ROOT / "docs/how-to/benchmarks.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    for note in ROOT.glob("docs/lab/*.md"):
        assert re.match(r"\d{4}-[a-z-]+\.md", note.name), note
        written = note.read_text(encoding="utf-8")
        assert written.startswith(f"# {note.name[:4]} "), note
        assert "**Question.**" in written, note


def test_every_variable_of_the_environment_is_documented():
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    named = re.compile(r"""(?:environ(?:\.get\(|\[)|VARIABLE\w* = )"(CELLGEN_\w+)\"""")
    used = {
        name
        for path in (ROOT / "cellgen").rglob("*.py")
        for name in named.findall(path.read_text(encoding="utf-8"))
    }
    assert len(used) >= 10
    assert sorted(name for name in used if f"`{name}`" not in page) == []

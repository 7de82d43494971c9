"""Run what a page of the documents shows: every block of code, in order, in a folder of its own.

Python blocks of a page share their names. A block with ``title="FILE"`` is written to that file,
too. ``console`` is commands with what they print, ``sh`` commands; what takes minutes or a network
is not run but looked at: the command and its options exist (``NOT_RUN``). C without a title stands
in a file that is generated. ``text`` right behind a block that printed is what it printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

from cellgen.cli.commands import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = ROOT / "docs"
BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
FIGURE = re.compile(r"\d\.\de[-+]\d\d|\d+(?:\.\d+)? (?:s|ms|KiB|MiB)\b")
LANGUAGES = {"python", "console", "sh", "c", "cmake", "text", "math"}
NOT_RUN = (
    "pip ",
    "git ",
    "python3 -m venv",
    "python -m benchmarks.",
    "python benchmarks/",
    "python -m docs.build",
    "python -m tests.",
    "aarch64-linux-gnu-gcc ",
    "qemu-aarch64 ",
    "zig cc ",
    "node ",
    "cellgen bench",
    "cellgen check",
    "cellgen build",
    "cellgen report",
    "cellgen convert",
    ".ci/",
    ".venv/",
    "source ",
)
"""Beginnings of commands that are looked at alone: they take minutes or a network."""


@dataclass(frozen=True)
class Block:
    """A block of code as it stands on a page."""

    language: str
    title: str
    text: str
    line: int
    follows: bool
    """Whether nothing stands between the block before and this one."""


@dataclass
class Page:
    """A page that is being run: its folder, its names, and what the last block printed."""

    path: Path
    folder: Path
    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""


def pages() -> list[str]:
    """Every page that is written by hand: ``cellgen gallery`` may have put others beside them."""
    found = (path.relative_to(DOCUMENTS).as_posix() for path in DOCUMENTS.rglob("*.md"))
    return sorted(name for name in found if name.partition("/")[0] not in {"gallery", "assets"})


def blocks(page: str) -> list[Block]:
    text = (DOCUMENTS / page).read_text(encoding="utf-8")
    found, end = [], -1
    for match in BLOCK.finditer(text):
        language, _, rest = match[2].strip().partition(" ")
        title = TITLE.search(rest)
        body = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE) if match[1] else match[3]
        line = text.count("\n", 0, match.start()) + 2
        follows = end >= 0 and not text[end : match.start()].strip()
        found.append(Block(language, title[1] if title else "", body, line, follows))
        end = match.end()
    return found


def imported(page: str) -> set[str]:
    """Modules that the Python blocks of a page import, by their first names."""
    text = "\n".join(block.text for block in blocks(page) if block.language == "python")
    found = re.findall(r"^\s*(?:import|from) ([\w., ]+)", text, re.MULTILINE)
    names = [name.split()[0] for words in found for name in words.split(" import")[0].split(",")]
    return {"torch" if n == "cellgen.torch" else "jax" if n == "cellgen.jax" else n for n in names}


def run(page: str, folder: Path) -> None:
    """Run every block of a page; an assertion says what is not as the page shows it."""
    place = Page(DOCUMENTS / page, folder)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        for block in blocks(page):
            _run(block, place, f"docs/{page}, line {block.line}")
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)


def _run(block: Block, page: Page, label: str) -> None:
    assert block.language in LANGUAGES, f"{label}: a block of {block.language or 'no language'}"
    if block.title:
        file = page.folder / block.title
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
    if block.language == "python":
        page.printed = _python(block, page, label)
    elif block.language == "console":
        page.printed = _console(block.text, label)
    elif block.language == "sh":
        page.printed = "".join(_command(line, label) for line in _commands(block.text))
    elif block.language == "c" and not block.title:
        assert any(block.text in text for text in _generated()), f"{label}: no such C"
    elif block.language == "text" and block.follows and page.printed:
        for line in filter(str.strip, block.text.splitlines()):
            assert line.strip() in page.printed, f"{label}: {line!r} was not printed"


def _python(block: Block, page: Page, label: str) -> str:
    # Lines are kept, so that a cell's equations are found in this file by their number.
    source = page.folder / f"{page.path.stem}_{block.line}.py"
    source.write_text(block.text, encoding="utf-8")
    page.names.setdefault("__name__", page.path.stem.replace("-", "_"))
    caught = io.StringIO()
    with contextlib.redirect_stdout(caught):
        exec(compile(block.text, str(source), "exec", dont_inherit=True), page.names)
    return caught.getvalue()


def _console(text: str, label: str) -> str:
    """Run each ``$ command`` and find the lines below it in what it prints."""
    printed = ""
    for command, shown in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE):
        printed = _command(command, label)
        if printed:
            lines = [_simplified(line) for line in printed.splitlines()]
            for line in filter(str.strip, shown.splitlines()):
                wanted = _simplified(line)
                assert any(found.startswith(wanted) for found in lines), f"{label}: {line!r}"
    return printed


def _simplified(line: str) -> str:
    """A line without what depends on the machine: figures, and the width of columns."""
    return " ".join(FIGURE.sub("#", line).split())


def _commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        command = line.partition(" #")[0].strip()
        if command:
            yield command


def _command(command: str, label: str) -> str:
    """Run a command and give what it prints; of those that are not run, look whether they exist."""
    if command.startswith(NOT_RUN):
        _exists(command, label)
        return ""
    words = shlex.split(command)
    if words[0] == "cellgen":
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{label}: {command}: {done.output}"
        return done.stdout
    environment = {**os.environ, "CELLGEN": str(ROOT), "PYTHONPATH": str(ROOT)}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = command.replace("-O3", "-O1")
    shell = subprocess.run(
        ["bash", "-ec", command], capture_output=True, text=True, env=environment, check=False
    )
    assert shell.returncode == 0, f"{label}: {command}: {shell.stderr}"
    return shell.stdout


def _exists(command: str, label: str) -> None:
    words = shlex.split(command)
    if words[0] == "cellgen":
        usage = _help(words[1])
        for word in words[2:]:
            option = word.partition("=")[0]
            assert not word.startswith("--") or option in usage, f"{label}: {command}: {option}"
    elif words[:2] == ["python", "-m"]:
        path = ROOT.joinpath(*words[2].split("."))
        assert path.with_suffix(".py").is_file() or path.is_dir(), f"{label}: {command}"
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), f"{label}: {command}"
    elif words[0].startswith(".ci/"):
        assert (ROOT / words[0]).is_file(), f"{label}: {command}"
    for extra in re.findall(r"\[([\w,]+)\]", command) if words[0] == "pip" else []:
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", declared, re.MULTILINE), f"{label}: no extra {name}"


@cache
def _help(command: str) -> str:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0, command
    return done.output


@cache
def _generated() -> tuple[str, ...]:
    return tuple(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "generated").rglob("*.[ch]"))
    )

"""The time driver is compiled while a cell is derived: once, stopped with it, failing with it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import cellgen
from cellgen import H, I, Input, State, Weight, api, tanh
from cellgen.errors import BuildError, DeclarationError
from cellgen.language.cell import Cell
from cellgen.runtime.build import cache, driver, locks
from cellgen.runtime.build.compiler import CompilerInfo
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import DRIVER, DRIVER_SOURCES, SourceFiles
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.paths import generated_folder, include_folder

FILES = SourceFiles(
    DRIVER, tuple((f"include/{stem}.c", f"int {stem};\n") for stem in DRIVER_SOURCES)
)
FOUND = CompilerInfo(("cc",), "/usr/bin/cc", "cc", (), "")


class Short(Cell):
    x, h_prev, w = Input(I), State(H), Weight(I, H)
    h = tanh(x @ w + h_prev)


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads on which the driver has been compiled, by a function that writes it."""
    threads: list[str] = []

    def written(place: Path, *ignored: object) -> str:
        threads.append(threading.current_thread().name)
        (place / "driver.o").write_bytes(b"\x7fELF")
        return "driver.o"

    monkeypatch.setattr(driver, "compile_driver", written)
    return threads


def script(path: Path, text: str) -> CompilerInfo:
    """A compiler that is a program of a shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return CompilerInfo((str(path),), str(path), "a script", (), "")


def left_over(tmp_path: Path) -> list[str]:
    """What failed and unfinished builds have left in the cache."""
    parts = (tmp_path / "cache" / part for part in (cache.BUILDING, cache.FAILED, cache.KERNELS))
    return [path.name for part in parts for path in part.iterdir()]


def test_it_is_compiled_once_on_a_thread_of_its_own(compilations: list[str]) -> None:
    with driver.beside(FILES, FOUND):
        first = driver.compiled(FILES, FOUND)
    assert first.read_bytes() == b"\x7fELF"
    assert driver.compiled(FILES, FOUND) == first
    assert len(compilations) == 1
    assert compilations[0] != threading.current_thread().name


def test_nothing_is_compiled_where_the_cache_has_it(compilations: list[str]) -> None:
    driver.compiled(FILES, FOUND)
    with driver.beside(FILES, FOUND), driver.beside(FILES, FOUND):
        driver.compiled(FILES, FOUND)
    assert compilations == [threading.current_thread().name]


def test_who_begins_within_another_shares_what_that_one_compiles(compilations: list[str]) -> None:
    with driver.beside(FILES, FOUND), driver.beside(FILES, FOUND):
        driver.compiled(FILES, FOUND)
    assert len(compilations) == 1


def test_nothing_begins_while_another_process_is_at_it(compilations: list[str]) -> None:
    lock = cache.prepare() / cache.LOCKS / driver.entry_of(FILES, FOUND)
    with locks.hold(lock, "a test"):
        with driver.beside(FILES, FOUND):
            assert driver.AHEAD[driver.entry_of(FILES, FOUND)].result(60) is None
        assert compilations == []
    driver.compiled(FILES, FOUND)
    assert compilations == [threading.current_thread().name]


def test_where_no_thread_can_start_it_is_compiled_when_it_is_wanted(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with driver.beside(FILES, FOUND):
        assert driver.compiled(FILES, FOUND).read_bytes() == b"\x7fELF"
    assert compilations == [threading.current_thread().name]


def test_a_compiler_that_fails_is_run_once_and_said_where_the_driver_is_wanted(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    found = script(tmp_path / "failing", f'echo "$3" >> {runs}; echo "error: no" >&2; exit 3')
    said = pytest.raises(BuildError, match=r"cellgen_driver: compiling .*: error: no; correct")
    with said, driver.beside(FILES, found):
        driver.compiled(FILES, found)
    precisions = runs.read_text().split()
    assert sorted(set(precisions)) == sorted(precisions)


@pytest.mark.parametrize("ended", [DeclarationError("a cell"), KeyboardInterrupt()], ids=str)
def test_what_ends_the_body_ends_the_compiler_and_leaves_nothing(
    tmp_path: Path, ended: BaseException
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    found = script(tmp_path / "slow", f"echo $$ > {started}; exec sleep 60")
    processes: list[int] = []

    def begin_and_end() -> None:
        with driver.beside(FILES, found):
            processes.append(int(started.read_text().split()[0]))
            raise ended

    with pytest.raises(type(ended)):
        begin_and_end()
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)
    assert left_over(tmp_path) == []
    assert driver.AHEAD == {}


def test_nobody_is_given_what_was_begun_before_an_interruption(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        joined(thread)
        raise KeyboardInterrupt

    joined = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt), driver.beside(FILES, FOUND):
        pass
    assert driver.AHEAD == {}


def test_compile_begins_it_before_the_cell_is_derived(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    generated = api.sources_of

    def look(cell: type[Cell], *targets: str) -> object:
        begun.extend(driver.AHEAD)
        return generated(cell, *targets)

    monkeypatch.setattr(api, "sources_of", look)
    monkeypatch.setattr(Kernel, "build", lambda kernel: Built(Path(), True, 0.0))
    cellgen.compile(Short)
    assert [name.rpartition("-")[0] for name in begun] == ["cellgen_driver"]


def test_a_wrong_declaration_is_said_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_CC", "no_such_compiler")
    with pytest.raises(DeclarationError):
        cellgen.compile(object)
    with pytest.raises(BuildError, match="no_such_compiler"):
        cellgen.compile(Short)


@pytest.mark.parametrize("cell", ["lstm", "delta_net"])
def test_every_cell_is_linked_with_the_same_driver(cell: str) -> None:
    """Whatever else a cell includes: the object is compiled once for all of them."""
    files = SourceFiles.read(generated_folder() / cell, cell)
    assert files.driver() == SourceFiles.of_driver(include_folder())

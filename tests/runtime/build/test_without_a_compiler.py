"""What the cache holds runs where no compiler is: images in stages, functions in a cloud."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.errors import BuildError
from cellgen.runtime.build import cache, compiler, driver
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.paths import include_folder

ARGUMENTS = {
    "x": np.ones((3, 2, 4), np.float32),
    "h_prev": np.zeros((2, 5), np.float32),
    "w": np.full((4, 5), 0.1, np.float32),
    "u": np.full((5, 5), 0.2, np.float32),
    "b": np.full(5, 0.3, np.float32),
}
PROGRAM = """
import pickle, sys
import numpy as np
import cellgen
kernel, arguments = pickle.load(open(sys.argv[1], "rb"))
sys.stdout.buffer.write(kernel.sequence_forward(**arguments).h.tobytes())
loaded = cellgen.load("elman")
one, two = (k.sequence_forward(**arguments).h for k in (loaded, kernel))
assert np.array_equal(one, two)
if len(sys.argv) > 2:
    cellgen.load(sys.argv[2])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a cache that holds one kernel, and the kernel as another process takes it."""
    path = tmp_path_factory.mktemp("bare")
    with pytest.MonkeyPatch.context() as patch:
        for name in compiler.COMPILER_VARIABLES:
            patch.delenv(name, raising=False)
        patch.setattr("tests.conftest.QUICK_FLAGS", ())  # as the other process has it
        joined = driver.compiled(SourceFiles.of_driver(include_folder()), compiler.of_cache())
        kept = path / "cache" / cache.KERNELS
        for place in (kept.parent, kept):
            place.mkdir(0o700)
        shutil.copytree(joined.parent, kept / joined.parent.name)  # to compile it takes long
        patch.setenv(cache.VARIABLE, str(path / "cache"))
        (path / "kernel.pickle").write_bytes(pickle.dumps((cellgen.load("elman"), ARGUMENTS)))
        (path / "h").write_bytes(cellgen.load("elman").sequence_forward(**ARGUMENTS).h.tobytes())
        yield path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program where no other program is found, with another home."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "kernel.pickle"), *words],
        env={**os.environ, "PATH": str(folder), "HOME": str(folder / "nobody")},
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_a_cached_kernel_runs_without_a_compiler_in_folders_that_cannot_be_written(
    folder: Path,
) -> None:
    folders = [path for path in (folder / "cache").rglob("*") if path.is_dir()]
    for path in folders:
        path.chmod(0o500)
    try:
        done = run(folder)
    finally:
        for path in folders:
            path.chmod(0o700)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == (folder / "h").read_bytes()


def last() -> Path:
    return cache.folder() / cache.COMPILERS / f"{compiler.last_key()}.json"


def test_a_compiler_that_is_asked_alone_is_not_the_last_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = last().read_text()
    with monkeypatch.context() as other:
        other.setenv("CELLGEN_CC", "cc -fno-plt")
        assert compiler.of_cache().command == ("cc", "-fno-plt")
        assert last().read_text() == before
    done = run(folder)
    assert done.returncode == 0, done.stderr.decode()


def test_the_last_compiler_is_that_of_the_last_new_entry(folder: Path) -> None:
    own = compiler.of_cache()
    other = replace(own, command=("another",))

    def produced(place: Path) -> str:
        (place / "one.so").write_bytes(b"one")
        return "one.so"

    entries = [f"one-{digit * cache.KEY_DIGITS}" for digit in "12"]
    for info, entry, named in (
        (other, entries[0], other),
        (own, entries[1], own),
        (other, entries[0], own),  # is there
    ):
        path, is_cached = compiler.compiled_by(info, entry, (), produced)
        assert path.read_bytes() == b"one"
        assert is_cached == (named != info)
        assert compiler._read(cache.recall(compiler.last_key())) == named


def test_a_kernel_that_is_there_has_its_compiler_remembered(folder: Path) -> None:
    last().unlink()
    cellgen.load("elman").sequence_forward(**ARGUMENTS)
    done = run(folder)
    assert done.returncode == 0, done.stderr.decode()


def test_what_is_not_in_the_cache_says_so(folder: Path) -> None:
    done = run(folder, "gru")
    said = done.stderr.decode()
    assert done.returncode != 0
    for part in ("gru", "is not in the kernel cache", str(folder / "cache"), "apt install gcc"):
        assert part in said


def test_a_kernel_of_another_processor_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    assert compiler.of_cache().version
    monkeypatch.setattr(compiler, "processor_lines", lambda: ["flags: none"])
    with pytest.raises(BuildError, match="no C compiler"):
        compiler.of_cache()


def test_files_of_root_are_taken_by_other_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image is built by root and runs as somebody else."""
    status = os.stat(folder)
    monkeypatch.setattr(cache.system, "user", lambda: status.st_uid + 1)
    assert bool(cache.exposure(folder)) == (status.st_uid != 0)

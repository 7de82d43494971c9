"""Systems that lack what POSIX has: everything is imported, built and locked without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cellgen.cli import doctor
from cellgen.runtime import system
from cellgen.runtime.build import compiler
from cellgen.wheel import objects
from tests.without_posix import without_posix


def test_the_compiler_and_the_runtime_are_imported() -> None:
    text = """
        import importlib, pkgutil
        import cellgen

        APART = ("bench", "torch", "jax", "keras", "onnx", "compat", "proof", "weights", "__main__")
        count = 0
        for module in pkgutil.walk_packages(cellgen.__path__, "cellgen."):
            of_peers = module.name in ("cellgen.wheel.packed.torch", "cellgen.wheel.packed.jax")
            if module.name.split(".")[1] not in APART and not of_peers:
                importlib.import_module(module.name)
                count += 1
        print(count)
    """
    assert int(without_posix(text)) > 200


@pytest.mark.parametrize("windows", [True, False])
def test_what_is_built_is_published_once_and_found(windows: bool, tmp_path: Path) -> None:
    """With locks of Windows, and with none."""
    text = """
        from pathlib import Path
        from cellgen.runtime.build import cache, locks

        os.environ["CELLGEN_CACHE_DIR"] = sys.argv[1]
        lock = Path(sys.argv[1]) / "lock"
        with cache.building("cell-1"), cache.workplace() as place:
            (place / "object.so").write_text("machine code")
            there = cache.publish(place, "cell-1", "object.so")
            cache.sweep()
            print(place.exists(), there == cache.find("cell-1"), there.read_text())
        print(place.exists())
        with locks.hold(lock, "a test") as is_held:
            print(is_held, locks.is_held(lock), locks._holder(lock).endswith("(a test)"))
    """
    lines = without_posix(text, tmp_path / "cache", windows=windows).split("\n")
    assert lines == ["True True machine code", "False", f"{windows} {windows} {windows}"]


def test_a_build_folder_of_this_machine_stays_where_nobody_may_ask_for_its_process() -> None:
    text = """
        from cellgen.runtime import system

        print(system.is_running(os.getpid()), system.user())
    """
    assert without_posix(text) == "None None"


def test_here_processes_and_locks_are_asked(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert system.is_running(ended.pid) is False
    path = tmp_path / "lock"
    with path.open("w") as first, path.open() as second:
        assert system.lock(first.fileno())
        assert not system.lock(second.fileno())
        system.unlock(first.fileno())
        assert system.lock(second.fileno())


def test_words_of_a_command_keep_the_folders_of_windows() -> None:
    text = r"""
        from cellgen.runtime import system

        print(system.words_of(r'"C:\Program Files\zig.exe" cc -O3'))
        print(system.shared_suffix(), system.empty_source(), system.program_suffix())
    """
    lines = without_posix(text).split("\n")
    assert lines == [r"['C:\\Program Files\\zig.exe', 'cc', '-O3']", ".dll - .exe"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "no C compiler: on Windows kernels are compiled by zig alone, which comes as a wheel"),
        ("cl.exe", "CELLGEN_CC names the C compiler cl.exe, which is not `zig cc`; on Windows"),
    ],
)
def test_another_compiler_than_zig_is_one_message(command: str, said: str, tmp_path: Path) -> None:
    text = """
        import importlib.util, shutil
        from cellgen.errors import BuildError
        from cellgen.runtime.build import compiler

        importlib.util.find_spec = lambda name: None
        shutil.which = lambda name: name
        try:
            compiler.compiler()
        except BuildError as error:
            print(error)
    """
    variables = {"CELLGEN_CACHE_DIR": str(tmp_path), "CELLGEN_CC": command, "CC": ""}
    assert said in without_posix(text, **variables)


HIDDEN_IN_HALVES = {
    "one.c": "int one(void) { return 1; }",
    "two.c": "int two(void) { return 2; }",
    "cell.c": """
int one(void), two(void);
__attribute__((visibility("default"))) int three(void) { return one() + two(); }
""",
}


@pytest.mark.skipif(not objects.has_zig(), reason="ziglang is not installed")
def test_what_is_hidden_in_halves_for_macos_is_seen_by_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left for the loader to look for."""
    monkeypatch.setattr(sys, "platform", system.MACOS)
    call = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos"]
    for name, text in HIDDEN_IN_HALVES.items():
        (tmp_path / name).write_text(text)
        ran([*call, "-fvisibility=hidden", "-c", name], tmp_path)
    command, product = compiler.joining(call, ["one.o", "two.o"], "halves")
    ran([*command], tmp_path)
    flag, *_ = compiler.link_flags()
    ran([*call, flag, "cell.o", product, "-o", "cell.so"], tmp_path)
    assert (tmp_path / "cell.so").read_bytes().startswith(b"\xcf\xfa\xed\xfe")


def ran(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("platform", [system.MACOS, system.WINDOWS])
def test_halves_are_joined_in_an_archive_where_objects_cannot_be(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    zig = ("python", "-m", "ziglang")
    archive = ("ar", "rcs", "driver.a", "a.o", "b.o")
    for call, expected in (
        ((*zig, "cc", "-O3"), (*zig, *archive)),
        (("clang", "-O3"), archive),
        (("cc", "-O3"), archive),
    ):
        assert compiler.joining(call, ["a.o", "b.o"], "driver") == (expected, "driver.a")


def test_what_is_in_use_stays_when_the_cache_is_cleared(tmp_path: Path) -> None:
    """Windows neither removes nor replaces a DLL that a process has loaded."""
    text = """
        import shutil
        from pathlib import Path
        from cellgen.runtime import system
        from cellgen.runtime.build import cache

        system.IN_USE_SECONDS = 0.0
        entry = "cell-" + "a" * cache.KEY_DIGITS
        with cache.workplace() as place:
            (place / "object.dll").write_text("machine code")
            there = cache.publish(place, entry, "object.dll")
        replaced, removed = os.replace, shutil.rmtree

        def refuse(path, *others, **more):
            if Path(path).name == entry or entry in str(others):
                raise PermissionError(13, "in use", str(path))
            (replaced if others else removed)(path, *others, **more)

        shutil.rmtree = os.replace = refuse
        cache.clear()
        print(there.exists())
        with cache.workplace() as place:
            (place / "object.dll").write_text("machine code")
            print(cache.publish(place, entry, "object.dll") == there)
    """
    said = without_posix(text, CELLGEN_CACHE_DIR=str(tmp_path / "cache"))
    assert said.split("\n") == ["True", "True"]


def test_a_file_that_is_open_elsewhere_for_a_moment_is_put_in_place(tmp_path: Path) -> None:
    text = """
        from pathlib import Path
        from cellgen.runtime import system

        source, target = Path(sys.argv[1], "a"), Path(sys.argv[1], "b")
        source.write_text("text")
        replaced, refused = os.replace, []

        def once(*paths):
            if not refused:
                refused.append(paths)
                raise PermissionError(13, "in use")
            replaced(*paths)

        os.replace = once
        system.replace(source, target)
        print(target.read_text(), len(refused))
    """
    assert without_posix(text, tmp_path) == "text 1"


def test_doctor_says_what_is_not_known_of_a_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (ok, part) in {
        "linux": (True, sys.executable),
        "darwin": (True, "nobody has run cellgen on macOS"),
        "win32": (True, "experimental"),
        "aix": (False, "on aix"),
    }.items():
        monkeypatch.setattr(sys, "platform", name)
        finding = doctor._python()
        assert finding.ok == ok
        assert part in finding.text

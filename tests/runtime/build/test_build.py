"""Compiling and loading: keys, races, kills, and what each failure tells the user."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellgen.errors import BuildError
from cellgen.runtime import paths
from cellgen.runtime.abi import Interface
from cellgen.runtime.build import cache, shared_object, steps
from cellgen.runtime.build import compiler as build_module
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.library import load
from cellgen.runtime.build.shared_object import Built, build
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.device import nvcc
from cellgen.runtime.kernel import load_folder
from tests.conftest import heed_ctrl_c

ROOT = Path(__file__).parents[3]
TOY = Path(__file__).parents[2] / "toy"
Script = Callable[[str], Path]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(path))
    for name in ("CELLGEN_CC", "CC", "CELLGEN_CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    build_module.compiler_of.cache_clear()
    return path


@pytest.fixture(scope="module")
def interface(tmp_path_factory: pytest.TempPathFactory) -> Interface:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return load_folder(TOY / "toy_cell").interface


@pytest.fixture
def sources() -> SourceFiles:
    return SourceFiles.read(TOY / "toy_cell", "toy_cell")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Make a compiler that answers probes truly, and runs some shell lines in place of -c."""
    pids = tmp_path / "pids"

    def make(lines: str) -> Path:
        real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        path = tmp_path / "fake-cc"
        path.unlink(missing_ok=True)  # one that still runs is busy
        path.write_text(
            f'#!/bin/sh\ncase " $* " in\n  *" -### "*|*" -E "*|*" --version "*) ;;\n'
            f'  *" -c "*) echo $$ >> {pids}\n{lines}\n  ;;\nesac\nexec {real} "$@"\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("CELLGEN_CC", str(path))
        return pids

    yield make
    for pid in pids.read_text().split() if pids.exists() else []:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(pid), signal.SIGKILL)


def script(text: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text), str(TOY / "toy_cell")],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
        **options,  # type: ignore[call-overload]
    )


LOAD = """
    import sys
    from pathlib import Path
    from cellgen.runtime.kernel import load_folder
    kernel = load_folder(Path(sys.argv[1]))
"""
CALL = f"""{LOAD}
    import numpy as np
    one = np.ones((2, 2))
    print(kernel.build().cached, kernel.forward(x=one, h_prev=one, w=one, b=np.ones(4)).h.sum())
"""


ELSE_REAL = 'case " $* " in *" toy_cell.c "*) exit 0;; esac'
"""What a fake compiler does after it has made a wrong object of the cell alone."""


def failure(sources: SourceFiles, interface: Interface) -> str:
    with pytest.raises(BuildError) as caught:
        build(sources, interface)
    return str(caught.value)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


# --- building and loading ---------------------------------------------------------------------


def test_a_build_is_loaded_and_then_found(
    sources: SourceFiles, interface: Interface, folder: Path
) -> None:
    first = build(sources, interface)
    assert not first.cached
    library = load(first.path, interface)
    assert library.ffi.sizeof("toy_cell_forward_args_f32") == 72
    assert library.lib.toy_cell_forward_workspace_size_f32(2, 3, 4) == 32
    with pytest.raises(AttributeError, match="no function 'toy_cell_onward_f32'; it has toy_cell_"):
        library.lib.toy_cell_onward_f32
    second = build(sources, interface)
    assert second.cached
    assert second.path == first.path
    assert list((folder / "building").iterdir()) == []
    assert cache.info().entries == 1


def test_nothing_but_the_descriptor_is_exported_and_nothing_of_python_is_wanted(
    sources: SourceFiles, interface: Interface
) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    path = build(sources, interface).path
    listing = subprocess.run(
        [nm, "-D", "--defined-only", path], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert names - {"_init", "_fini"} == {"toy_cell_cellgen"}
    wanted = subprocess.run([nm, "-D", "-u", path], check=True, capture_output=True, text=True)
    assert "Py" not in wanted.stdout


def test_what_does_not_fit_its_interface_is_refused(
    sources: SourceFiles, interface: Interface
) -> None:
    path = build(sources, interface).path
    for change in ({"digest": "f" * 12}, {"functions": interface.functions[:2]}):
        other = dataclasses.replace(interface, **change)
        with pytest.raises(BuildError, match=r"do not fit the interface; .*cellgen build toy_cell"):
            load(path, other)
    with pytest.raises(BuildError, match=r"cannot load .*undefined symbol: gru_cellgen"):
        load(path, dataclasses.replace(interface, name="gru"))


def test_loading_a_built_kernel_imports_no_compiler_of_any_kind() -> None:
    script(LOAD).communicate()
    process = script(
        f"""{LOAD}
    import subprocess
    def refuse(*args, **kwargs):
        raise AssertionError("a process was started")
    subprocess.Popen.__init__ = refuse
    import numpy as np
    one = np.ones((2, 2))
    kernel.forward(x=one, h_prev=one, w=one, b=np.ones(4))
    assert kernel.build().cached
    for name in ("sympy", "jinja2", "cffi", "pycparser", "rich"):
        assert name not in sys.modules, name
    """
    )
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert output == ""


def test_two_processes_that_build_at_once_both_succeed(folder: Path) -> None:
    processes = [script(CALL) for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert output.split()[1] == "16.0"
    assert cache.info().entries == 1
    assert list((folder / "building").iterdir()) == []


@pytest.mark.parametrize(
    "file", ["include/toy_mini.h", "toy_cell/toy_body.h", "toy_cell/toy_cell.c"]
)
def test_a_change_in_any_file_means_another_key(
    tmp_path: Path, sources: SourceFiles, interface: Interface, file: str
) -> None:
    key = shared_object.key_of(sources, compiler())
    shutil.copytree(TOY, tmp_path / "toy")
    copy = SourceFiles.read(tmp_path / "toy" / "toy_cell", "toy_cell")
    assert shared_object.key_of(copy, compiler()) == key
    with (tmp_path / "toy" / file).open("a") as stream:
        stream.write("/* changed */\n")
    changed = SourceFiles.read(tmp_path / "toy" / "toy_cell", "toy_cell")
    assert shared_object.key_of(changed, compiler()) != key


def test_a_changed_header_is_compiled_again(tmp_path: Path, interface: Interface) -> None:
    shutil.copytree(TOY, tmp_path / "toy")
    toy = tmp_path / "toy" / "toy_cell"
    first = build(SourceFiles.read(toy, "toy_cell"), interface)
    with (tmp_path / "toy" / "include" / "toy_mini.h").open("a") as stream:
        stream.write("/* changed */\n")
    second = build(SourceFiles.read(toy, "toy_cell"), interface)
    assert not second.cached
    assert second.path != first.path
    assert load(second.path, interface).lib is not load(first.path, interface).lib
    unrelated = tmp_path / "toy" / "include" / "unrelated.h"
    unrelated.write_text("")
    assert build(SourceFiles.read(toy, "toy_cell"), interface).cached


def test_a_truncated_object_is_built_again(sources: SourceFiles, interface: Interface) -> None:
    first = build(sources, interface)
    os.truncate(first.path, first.path.stat().st_size // 2)
    second = build(sources, interface)
    assert not second.cached
    load(second.path, interface)


def test_an_object_that_cannot_be_loaded_is_explained(tmp_path: Path, interface: Interface) -> None:
    path = tmp_path / "x.so"
    path.write_text("no machine code")
    with pytest.raises(BuildError, match=r"cannot load .*noexec.*CELLGEN_CACHE_DIR"):
        load(path, interface)


# --- killed and interrupted builds ------------------------------------------------------------


def test_a_killed_build_leaves_nothing_that_is_loaded(
    sources: SourceFiles, interface: Interface, folder: Path, fake: Script, tmp_path: Path
) -> None:
    pids = fake("sleep 60")
    process = script(LOAD)
    wait_for(pids.exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(list((folder / "building").iterdir())) == 1
    assert cache.info().entries == 0
    fake("true")
    built = build(sources, interface)
    assert not built.cached
    load(built.path, interface)
    assert list((folder / "building").iterdir()) == []  # swept by the build after
    cache.sweep()
    assert list((folder / "locks").iterdir()) == []


def test_ctrl_c_ends_the_compilers_too(folder: Path, fake: Script) -> None:
    pids = fake("sleep 60")
    process = script(LOAD)
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: is_gone(int(pid)))  # type: ignore[misc]
    assert list((folder / "building").iterdir()) == []


def test_a_compiler_that_hangs_is_ended(
    sources: SourceFiles, interface: Interface, fake: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = fake("sleep 60")
    monkeypatch.setenv("CELLGEN_BUILD_TIMEOUT", "1")
    text = failure(sources, interface)
    assert "took longer than 1 s (CELLGEN_BUILD_TIMEOUT)" in text
    for pid in pids.read_text().split() if pids.exists() else []:
        wait_for(lambda pid=pid: is_gone(int(pid)))  # type: ignore[misc]
    monkeypatch.setenv("CELLGEN_BUILD_TIMEOUT", "soon")
    assert "expected a number of seconds" in failure(sources, interface)


# --- failures ---------------------------------------------------------------------------------


def test_no_compiler_names_the_ways_to_get_one(
    sources: SourceFiles, interface: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = failure(sources, interface)
    for part in (
        "no C compiler",
        "apt install gcc",
        "xcode-select --install",
        "cellgen-compiler[zig]",
    ):
        assert part in text
    assert "need no compiler" in text


@pytest.mark.parametrize("variable", ["CELLGEN_CC", "CC"])
def test_a_named_compiler_that_is_missing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/no/such/cc -m64")
    with pytest.raises(BuildError, match=rf"{variable} names the C compiler '/no/such/cc'"):
        compiler()


def test_a_named_compiler_may_have_a_space_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my cc"
    path.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    assert compiler().command == (str(path),)


def test_a_compiler_that_does_not_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_CC", shutil.which("false") or "/bin/false")
    with pytest.raises(
        BuildError, match=r"does not work: it said nothing; .*\n.*false -O3 .*-dM -E"
    ):
        compiler()
    monkeypatch.delenv("CELLGEN_CC")
    monkeypatch.setenv("CELLGEN_CFLAGS", "--no-such-flag")
    with pytest.raises(
        BuildError, match=r"not work: .*option .--no-such-flag.*; correct CELLGEN_CFL"
    ):
        compiler()


def test_the_ziglang_wheel_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    assert build_module.command_of() == (sys.executable, "-m", "ziglang", "cc")


def test_diagnostics_of_the_compiler_are_shown(
    interface: Interface, sources: SourceFiles, folder: Path
) -> None:
    files = dict(sources.files)
    files["toy_cell.c"] += "\nint wrong = no_such_thing;\n"
    text = failure(SourceFiles("toy_cell", tuple(files.items())), interface)
    assert "-c toy_cell.c -o toy_cell.o" in text
    line = files["toy_cell.c"].count("\n")
    first = f"[build] toy_cell: compiling toy_cell.c failed: toy_cell.c:{line}:13: error: "
    assert text.startswith(first)
    assert "it ended with status 1" in text
    assert f"| toy_cell.c:{line}:13: error:" in text
    assert "no_such_thing" in text
    (kept,) = (folder / "failed").iterdir()
    assert str(kept) in text
    assert "int wrong" in (kept / "toy_cell.c").read_text()
    assert "no_such_thing" in (kept / "log.txt").read_text()
    assert "need no compiler" in text
    assert list((folder / "building").iterdir()) == []


def test_a_long_log_is_cut(sources: SourceFiles, interface: Interface, fake: Script) -> None:
    fake("for i in $(seq 50); do echo line $i; done; echo boom: error: bad; seq 50; exit 3")
    text = failure(sources, interface)
    assert "status 3" in text
    assert "line 50" not in text
    assert "| boom: error: bad" in text
    assert text.count("  | ") == steps.DIAGNOSTIC_LINES


def test_a_disk_that_fills_during_the_build_is_explained(
    sources: SourceFiles, interface: Interface, folder: Path, fake: Script
) -> None:
    fake("echo 'fatal error: cannot write: No space left on device'; exit 1")
    text = failure(sources, interface)
    first = text.splitlines()[0]
    assert "toy_cell: compiling toy_cell.c failed: " in first
    assert f"cannot write to {folder}: fatal error: cannot write: No space left on device" in first
    assert "CELLGEN_CACHE_DIR=" in first
    assert list((folder / "failed").iterdir()) == []


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ("kill -9 $$", "the compiler was ended by signal 9 (SIGKILL); free memory"),
        (
            "echo 'gcc: fatal error: Killed signal terminated program cc1'; exit 1",
            "gcc: fatal error: Killed signal terminated program cc1; free memory",
        ),
        (
            "echo 'note: x'; echo 'cc1: out of memory allocating 65536 bytes'; exit 1",
            "cc1: out of memory allocating 65536 bytes; free memory",
        ),
        (
            'echo "cc1: fatal error: opening x.s: Permission denied"; exit 1',
            "cc1: fatal error: opening x.s: Permission denied; give the compiler leave",
        ),
        (
            "echo \"gcc: error: unrecognized command-line option '-fno'\"; exit 1",
            "gcc: error: unrecognized command-line option '-fno'; correct CELLGEN_CFLAGS",
        ),
        (
            "echo \"cc1: error: bad value ('x') for '-march=' switch\"; exit 1",
            "cc1: error: bad value ('x') for '-march=' switch; correct CELLGEN_CFLAGS",
        ),
        (
            "echo 'toy_cell.c:3:10: fatal error: stdint.h: No such file or directory'; exit 1",
            "fatal error: stdint.h: No such file or directory; install the package",
        ),
        (
            "echo \"gcc: error trying to exec 'cc1': execvp: No such file or directory\"; exit 1",
            "execvp: No such file or directory; the compiler is not complete: install one",
        ),
        ("exit 4", "it ended with status 4; correct CELLGEN_CFLAGS or CELLGEN_CC"),
        (
            "echo 'x.c: In function f:'; echo 'x.c:9:1: error: unknown type name y'; exit 1",
            "failed: x.c:9:1: error: unknown type name y; correct CELLGEN_CFLAGS or",
        ),
        ("exit 0", "it ended with status 0, but did not write toy_cell.o"),
        (f": > toy_cell.o; {ELSE_REAL}", "status 0, but toy_cell.o is empty"),
        (f"echo x > toy_cell.o; {ELSE_REAL}", "but toy_cell.o is no object file: it begins with"),
    ],
)
def test_the_first_line_says_what_a_user_can_act_on(
    sources: SourceFiles, interface: Interface, folder: Path, fake: Script, lines: str, first: str
) -> None:
    fake(lines)
    text = failure(sources, interface)
    line = text.splitlines()[0]
    assert "toy_cell: compiling toy_cell.c failed: " in line
    assert first in line
    assert cache.info().entries == 0
    assert list((folder / "building").iterdir()) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("exit 0", "it ended with status 0, but did not write toy_cell-"),
        ("printf '\\177ELFx' > $out; exit 0", "cannot be loaded: "),
        ('"$real" "$@"; truncate -s 9000 $out; exit 0', "cannot be loaded: "),
        (
            "echo 'int x;' | \"$real\" -shared -x c - -o $out; exit 0",
            "undefined symbol: toy_cell_cellgen",
        ),
    ],
)
def test_a_linker_whose_product_is_no_module_is_named_and_nothing_is_published(
    sources: SourceFiles,
    interface: Interface,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    reason: str,
) -> None:
    path = tmp_path / "fake-ld"
    path.write_text(
        f"#!/bin/sh\nreal={shutil.which('cc')}\n"
        'case " $* " in *" -o "*".so "*) for word; do case "$last" in -o) out=$word;; esac; '
        f'last=$word; done\n{link};; esac\nexec "$real" "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CELLGEN_CC", str(path))
    line = failure(sources, interface).splitlines()[0]
    assert "toy_cell: linking toy_cell-" in line
    assert reason in line
    assert cache.info().entries == 0


def test_a_full_disk_is_named_and_nothing_stays_on_it(
    interface: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcc's own words do not fit on the disk that it has filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs", str(disk)]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        monkeypatch.setenv("CELLGEN_CACHE_DIR", str(disk / "cache"))
        monkeypatch.setenv("CELLGEN_CFLAGS", "-O0 -g")
        lines = "\n".join(f"double f{n}(double x) {{ return x + {n}; }}" for n in range(3000))
        files = {"toy_cell.c": lines, "toy_cell.h": "#include <stdint.h>\n"}
        text = failure(SourceFiles("toy_cell", tuple(files.items())), interface)
        first = text.splitlines()[0]
        assert "No space left on device" in first or f"{disk / 'cache'} is full" in first
        assert "free some space, or name a folder on another disk: CELLGEN_CACHE_DIR=" in first
        assert "CELLGEN_CFLAGS" not in first
        left = [path for path in disk.rglob("*") if path.is_file() and path.stat().st_size > 10_000]
        assert left == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_build_imports_no_parser_and_no_header_of_python_is_needed() -> None:
    process = script(
        f"""{LOAD}
    assert not kernel.build().cached
    assert not {{"cffi", "pycparser"}} & set(sys.modules)
    """
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def test_a_cache_that_cannot_be_written_is_explained(
    sources: SourceFiles, interface: Interface, folder: Path
) -> None:
    folder.write_text("")
    text = failure(sources, interface)
    assert f"cannot write to the kernel cache {folder}: what stands there is a file" in text
    assert "CELLGEN_CACHE_DIR=" in text


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gru: .* has no gru\.c and no gru\.h; .*cellgen build"):
        SourceFiles.read(tmp_path, "gru")
    (tmp_path / "gru.c").write_bytes(b"\xff\xfe")
    (tmp_path / "gru.h").write_text("")
    with pytest.raises(BuildError, match=r"cannot read .*gru\.c"):
        SourceFiles.read(tmp_path, "gru")


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ("exit 0", "it ended with status 0, but did not write toy_cell.so"),
        ("printf '\\177ELFx' > toy_cell.so", "toy_cell.so cannot be loaded: "),
        (
            "echo \"nvcc fatal   : Unknown option '-x'\"; exit 1",
            "nvcc fatal   : Unknown option '-x'; correct CELLGEN_NVCC or CELLGEN_CUDA_ARCH",
        ),
        ("kill -9 $$", "the compiler was ended by signal 9 (SIGKILL); free memory"),
        (
            "echo 'toy_cell.cu(3): error: expected a x'; exit 2",
            "toy_cell.cu(3): error: expected a x; correct CELLGEN_NVCC",
        ),
    ],
)
def test_a_cuda_compiler_is_held_to_the_same(
    interface: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, first: str
) -> None:
    path = tmp_path / "fake-nvcc"
    path.write_text(f'#!/bin/sh\ncase "$*" in --version) echo 1; exit 0;; esac\n{lines}\n')
    path.chmod(0o755)
    monkeypatch.setenv("CELLGEN_NVCC", str(path))
    with pytest.raises(BuildError) as caught:
        nvcc.build(SourceFiles("toy_cell", (("toy_cell.cu", "int x;\n"),)), interface)
    line = str(caught.value).splitlines()[0]
    assert "toy_cell: compiling toy_cell.cu failed: " in line
    assert first in line
    assert cache.info().entries == 0


# --- the compiler -----------------------------------------------------------------------------


def test_headers_are_found_through_headers(sources: SourceFiles) -> None:
    names = [name for name, _ in sources.files]
    parts = ("bind", "call", "compiler", "descriptor", "engine", "half", "numbers", "options")
    engine = [
        "include/cellgen_call_options.inc.h",
        "include/cellgen_driver_engine.c",
        "include/cellgen_signature.h",
    ]
    shared = ["include/cellgen.h", *engine, *(f"include/cellgen_{part}.h" for part in parts)]
    own = ["include/toy_mini.h", "toy_body.h", "toy_cell.c", "toy_cell.h", "toy_described.h"]
    assert names == [*sorted(shared), *own]


def test_flags_keep_ieee_arithmetic_and_users_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = compiler().flags
    assert {"-O3", "-fPIC", "-std=gnu11", "-ffp-contract=off"} <= set(flags)
    assert "-ffast-math" not in flags
    monkeypatch.setenv("CELLGEN_CFLAGS", "-DUSER=1 '-DTEXT=a b'")
    changed = compiler()
    assert changed.flags == (*flags, "-DUSER=1", "-DTEXT=a b")


@pytest.mark.parametrize("flags", ["-O1 -ffast-math", "-Ofast", "-fno-fast-math -ffast-math"])
def test_flags_under_which_arithmetic_is_another_are_refused(
    flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCC's make every array of the process forget denormals, from the first kernel on."""
    monkeypatch.setenv("CELLGEN_CFLAGS", flags)
    with pytest.raises(BuildError, match=r"CELLGEN_CFLAGS has -[fO]\S*fast"):
        compiler()
    for undone in ("-ffast-math -fno-fast-math", "-fno-signed-zeros -fsigned-zeros"):
        monkeypatch.setenv("CELLGEN_CFLAGS", undone)
        assert set(undone.split()) <= set(compiler().flags)
    monkeypatch.delenv("CELLGEN_CFLAGS")
    monkeypatch.setenv("CELLGEN_CC", f"cc {flags}")
    with pytest.raises(BuildError, match=r"the compiler's command has -[fO]\S*fast"):
        compiler()


def test_the_choice_of_functions_is_part_of_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = compiler().flags
    for choice, expected in (
        ("default", ()),
        ("fast", ("-DCELLGEN_FAST_MATH",)),
        ("exact", ("-DCELLGEN_EXACT_MATH",)),
    ):
        monkeypatch.setenv("CELLGEN_MATH", choice)
        assert compiler().flags == (*flags, *expected)
    monkeypatch.setenv("CELLGEN_MATH", "quick")
    with pytest.raises(BuildError, match="CELLGEN_MATH is 'quick', expected one of default, exact"):
        compiler()


def test_flags_that_the_compiler_rejects_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old-cc"
    path.write_text(
        '#!/bin/sh\ncase " $* " in *-march=native*|*-fno-trapping*) exit 1;; esac\nexec cc "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CELLGEN_CC", str(path))
    flags = compiler().flags
    assert "-march=native" not in flags
    assert "-fno-trapping-math" not in flags
    assert "-fno-math-errno" in flags


def test_what_is_known_of_a_compiler_is_remembered_until_it_changes(
    fake: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("true")
    first = compiler()
    build_module.compiler_of.cache_clear()
    asked: list[object] = []
    real = build_module.ask
    monkeypatch.setattr(
        build_module, "ask", lambda *args, **more: asked.append(args) or real(*args, **more)
    )
    assert compiler() == first
    assert asked == []
    fake("true # another compiler")
    build_module.compiler_of.cache_clear()
    compiler()
    assert asked != []


@pytest.mark.parametrize("flag", ["-include {}", "@{}"])
def test_a_file_that_flags_name_is_part_of_the_key(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled with another content of it is not loaded, nor what macros do not show."""
    file = tmp_path / "named"
    monkeypatch.setenv("CELLGEN_CFLAGS", flag.format(file))
    found = []
    for text in ("-DONE=1", "-DONE=2", "-DTWO=1", "-fwrapv", "-ftrapv"):
        file.write_text("static int x;" * (2 + len(found)) if "-i" in flag else text)
        build_module.compiler_of.cache_clear()
        found.append(compiler().facts)
    assert len(set(found)) == len(found)


def test_a_compiler_behind_a_script_is_watched_too(fake: Script, folder: Path) -> None:
    fake("true")
    compiler()
    (path,) = (folder / "compilers").iterdir()  # of one that is asked alone nothing else is kept
    known = path.stem
    assert build_module.recalled(known) == compiler()
    text = path.read_text()
    assert "cc1" in text or "clang" in text
    path.write_text(text.replace("cc1", "gone").replace("clang", "gone"))
    assert build_module.recalled(known) is None


# --- paths ------------------------------------------------------------------------------------


def test_folders_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    assert paths.in_checkout()
    assert paths.templates_folder() == ROOT / "templates"
    assert paths.generated_folder() == ROOT / "generated"
    assert paths.include_folder() == ROOT / "generated" / "include"
    package = tmp_path / "site-packages" / "cellgen"
    (package / "_data" / "templates").mkdir(parents=True)
    (package / "_data" / "generated").mkdir()
    assert not paths.in_checkout(package)
    assert paths.templates_folder(package) == package / "_data" / "templates"
    with pytest.raises(BuildError, match=r"incomplete: .*generated/include is missing"):
        paths.include_folder(package)


def test_built_tells_what_happened(sources: SourceFiles, interface: Interface) -> None:
    built = build(sources, interface)
    assert isinstance(built, Built)
    assert built.seconds > 0

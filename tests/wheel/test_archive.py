"""Prebuilt kernels for C and C++: CMake and pkg-config find them, glibc takes a level."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cellgen.cells import GRU, Elman
from cellgen.wheel import make, objects
from cellgen.wheel.pack import Naming

HERE = Path(__file__).parent
PRINTED = "code 0, h_last 0.4324 0.2000 -0.1335\n"
NAMING = Naming("elman_net", "1.0.2")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or objects.this_machine() != "x86_64", reason="levels of x86-64"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two cells, unpacked."""
    folder = tmp_path_factory.mktemp("archive")
    planned = make.plan(["x86_64"], "v2,v3")
    cells = make.sources_of([Elman, GRU])
    (path,) = make.make(NAMING, cells, planned, folder, for_c=True, say=lambda *_: None)
    assert path.name == "elman_net-1.0.2-linux-x86_64.tar.gz"
    with tarfile.open(path) as archive:
        archive.extractall(folder)
    return folder / "elman_net-1.0.2"


def _run(program: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [program], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_it_has_headers_of_its_cells_and_exports_their_functions(root: Path) -> None:
    assert {"elman.h", "gru.h", "cellgen.h"} <= {path.name for path in (root / "include").iterdir()}
    names = subprocess.run(
        ["nm", "-D", "--defined-only", root / "lib" / "libelman_net.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    symbols = re.findall(r" T (\w+)", names)
    assert "gru_sequence_backward_f64" in symbols
    assert [symbol for symbol in symbols if not symbol.startswith(("elman_", "gru_"))] == []


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_a_program_in_cplusplus_is_built_by_cmake(root: Path, tmp_path: Path) -> None:
    call = ["cmake", "-S", HERE, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={root}"]
    subprocess.run(call, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    assert _run(tmp_path / "main") == PRINTED
    wanted = (HERE / "CMakeLists.txt").read_text().replace(" 1.0 ", " 1.1 ")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "CMakeLists.txt").write_text(wanted)
    newer = subprocess.run(
        ["cmake", "-S", tmp_path / "newer", "-B", tmp_path / "no", f"-DCMAKE_PREFIX_PATH={root}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert newer.returncode != 0
    assert "version: 1.0.2" in newer.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config")
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_program_is_built_by_pkg_config(root: Path, tmp_path: Path) -> None:
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "cellgen-elman_net"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PKG_CONFIG_PATH": str(root / "lib" / "pkgconfig")},
    ).stdout.split()
    program = tmp_path / "main"
    subprocess.run(["c++", "-std=c++17", HERE / "main.cpp", *flags, "-o", program], check=True)
    assert _run(program) == PRINTED
    loaded = _run(program, LD_TRACE_LOADED_OBJECTS="1")
    folder = re.search(r"libelman_net\.so => (\S+)", loaded)
    assert folder is not None
    newest = "glibc-hwcaps/x86-64-v3/libelman_net.so"
    assert Path(folder[1]).resolve() == (root / "lib" / newest).resolve()

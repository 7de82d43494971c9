"""The wheel of arm64: what zig cross-compiles runs under qemu-user with the results of here."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from cellgen.cells import GRU, Elman
from cellgen.runtime.paths import include_folder
from cellgen.wheel import make, objects
from cellgen.wheel.pack import Naming
from tests.elsewhere.calls import calls_of, compare
from tests.elsewhere.machines import C11, FOLDER, ROOT_OF_ARM, Machine, elsewhere, ran, zig

ARM64 = next(machine for machine in elsewhere() if machine.name == "arm64")
CELLS = ("elman", "gru")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not objects.has_zig(), reason="ziglang is not installed"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one shared object of a wheel for arm64."""
    folder = tmp_path_factory.mktemp("arm64")
    make.make(
        Naming("of_arm", "1.0"),
        make.sources_of([Elman, GRU]),
        make.plan(["aarch64"], ""),
        folder,
        for_c=False,
        say=lambda *_: None,
    )
    (path,) = folder.iterdir()
    assert path.name == "of_arm-1.0-py3-none-manylinux_2_17_aarch64.whl"
    with zipfile.ZipFile(path) as archive:
        return Path(archive.extract("of_arm/aarch64-base/libof_arm.so", folder))


def test_arm64_is_compiled_by_zig(library: Path) -> None:
    data = library.read_bytes()
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[18:20], "little") == 183  # EM_AARCH64


@pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or not Path(ROOT_OF_ARM).is_dir(),
    reason="qemu-user, or arm64's C library, is not installed",
)
@pytest.mark.parametrize("cell", CELLS)
def test_every_function_has_the_results_of_here(library: Path, cell: str, tmp_path: Path) -> None:
    """Both precisions, two shapes, one thread and two, within the bounds between machines."""
    program = tmp_path / cell
    named = [f"-DCELL={cell}_cellgen", f"-I{include_folder()}"]
    command = [*zig(), "-target", "aarch64-linux-gnu.2.17", "-O1", *C11, *named]
    linked = ["-x", "none", str(library), f"-Wl,-rpath,{library.parent}", "-o", str(program)]
    ran([*command, str(FOLDER / "main.c"), *linked])
    machine = Machine("arm64", (), runner=ARM64.runner)
    made = calls_of(cell)
    compared = compare(made, machine.run(program, b"".join(one.text for one in made)))
    assert {one.label.split()[1] for one in compared} >= {"forward", "sequence_backward"}
    assert [one.label for one in compared if not one.ok] == []

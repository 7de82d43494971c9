"""Limits of the fixed tables of torch's operators, and allocations that fail; without torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import cellgen
from cellgen.runtime.paths import include_folder

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SHIM = Path(cellgen.__file__).parent / "torch"
MOST = int(re.search(r"MOST = (\d+)", (SHIM / "shim.h").read_text())[1])  # type: ignore[index]
REFUSED = 2
"""What ``cellgen_torch_add`` returns where there is no memory, or no place in a table."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled so that whatever is written beyond a table ends it."""
    built = tmp_path_factory.mktemp("torch_cells") / "torch_cells"
    flags = ["-std=gnu11", "-O0", "-g1", "-w", "-fsanitize=address,undefined"]
    source = Path(__file__).with_name("torch_cells.c")
    command = ["cc", *flags, f"-I{SHIM}", f"-I{include_folder()}", str(source), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "asan" in done.stderr:
        pytest.skip("no AddressSanitizer")
    assert not done.returncode, done.stderr
    return built


def added(program: Path, members: int, unread: int = 0, failing: int = -1) -> tuple[int, bool, int]:
    """What the call returns, whether the cell is known after it, and how often it allocated."""
    done = subprocess.run(
        [str(program), str(members), str(unread), str(failing)],
        env={"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=True,
    )
    code, known, allocations = map(int, done.stdout.split())
    return code, bool(known), allocations


def test_a_cell_of_as_many_members_as_a_call_has_place_for_is_known_and_of_one_more_not(
    program: Path,
) -> None:
    for members in (2, MOST - 1, MOST):
        assert added(program, members)[:2] == (0, True), members
    for members in (MOST + 1, 2 * MOST):
        assert added(program, members)[:2] == (REFUSED, False), members


def test_so_is_one_of_as_many_arguments_read_or_not(program: Path) -> None:
    assert added(program, 5, MOST - 4)[:2] == (0, True)
    assert added(program, 5, MOST - 3)[:2] == (REFUSED, False)


def test_a_cell_is_not_known_where_an_allocation_fails(program: Path) -> None:
    _, _, allocations = added(program, 5)
    codes = [added(program, 5, failing=number)[:2] for number in range(allocations)]
    assert all(found in ((REFUSED, False), (0, True)) for found in codes)
    assert codes.count((0, True)) <= 1  # of a table without entries, which nobody reads

"""Writing generated files: whole or not at all, also when several processes do it at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cellgen.errors import BuildError
from cellgen.files import tree

ROOT = Path(__file__).parent.parent
TEXT = "int x;\n" * 20_000

WRITE = """
    import sys
    from pathlib import Path
    from cellgen.files import tree
    folder, number = Path(sys.argv[1]), sys.argv[2]
    sys.stdin.readline()
    for turn in range(15):
        text = f"{number} {turn}\\n" * 20_000
        tree.write({folder / name: text for name in ("cell.c", "cell.h")})
        for name in ("cell.c", "cell.h"):
            lines = tree.read_text(folder / name).splitlines()
            assert len(lines) == 20_000 and len(set(lines)) == 1, "a part was read"
"""


def test_writers_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITE), str(tmp_path / "cell"), str(number)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    assert sorted(path.name for path in (tmp_path / "cell").iterdir()) == ["cell.c", "cell.h"]


def test_what_is_written_has_the_users_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        tree.write({tmp_path / "cell.c": TEXT})
    finally:
        os.umask(before)
    assert (tmp_path / "cell.c").stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(BuildError, match=r"cell\.c cannot be written: No space left on device"):
        tree.write({tmp_path / "cell.c": TEXT})
    assert list(tmp_path.iterdir()) == []

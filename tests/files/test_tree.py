"""Writing generated files: whole or not at all, also when several processes do it at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cellgen.cells import GRU, Elman
from cellgen.errors import BuildError
from cellgen.files import tree
from cellgen.files.make import write_all
from cellgen.pipeline import generate

ROOT = Path(__file__).parents[2]
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
            read = tree.read_text(folder / name)
            assert read == read[: read.index("\\n") + 1] * 20_000, "a part was read"
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
        for number in range(2)
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


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    source = generate(Elman)
    (tmp_path / "__init__.py").write_text("MINE = 1\n")
    written = write_all(tmp_path, [source], "cuda")
    assert [one.error for one in written] == [None]
    assert (tmp_path / "__init__.py").read_text() == "MINE = 1\n"
    assert tree.differences(tmp_path, [source], whole=False) == []
    assert sorted(source.files) == sorted(p.name for p in tree.cell_files(tmp_path, source, "cuda"))
    for name in source.files:  # generated ones are written again, also where they were edited
        path = tmp_path / "elman" / name
        path.write_text(path.read_text() + "edited\n")
    assert len(tree.write_cell(tmp_path, source, "cuda")) == len(source.files)
    for text in ("x = 1\n", "caf\xe9"):
        path = tmp_path / "elman" / "__init__.py"
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(BuildError, match=r"elman/__init__\.py is there and not of cellgen"):
            tree.write_cell(tmp_path, source)
        assert path.read_bytes() == text.encode("latin-1")


def test_a_text_that_is_held_by_its_digest_is_compared_by_it(tmp_path: Path) -> None:
    elman, gru = generate(Elman), generate(GRU)
    write_all(tmp_path, [elman, gru])
    assert [path.parent.name for path in tmp_path.glob("*/*.cu")] == ["gru"]
    file = tmp_path / "cuda.sha256"
    row = file.read_text()
    assert row.endswith("  elman/elman.cu\n")
    file.write_text("0" * 64 + row[64:])
    (changed,) = tree.differences(tmp_path, [elman, gru], whole=False)
    assert changed.path == file
    tree.write(tree.digest_files(tmp_path, [gru]))  # the rows of other cells stay
    assert file.read_text() == "0" * 64 + row[64:]
    assert [path.name for path in write_all(tmp_path, [elman])[0].changed] == []
    assert file.read_text() == row


def test_a_folder_whose_name_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="File name too long"):
        tree.write({tmp_path / ("x" * 300) / "cell.c": TEXT})

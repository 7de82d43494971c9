"""The cache of compiled kernels: private, atomic, verified, and clear about what stops it."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgen.errors import BuildError
from cellgen.runtime.build import cache, locks

ENTRY = "cell-0123456789abcdef0123"
KEY = "f" * cache.KEY_DIGITS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(path))
    return path


def publish(text: str = "machine code", entry: str = ENTRY) -> Path:
    with cache.workplace() as place:
        (place / "object.so").write_text(text)
        return cache.publish(place, entry, "object.so")


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


# --- publishing and finding -------------------------------------------------------------------


def test_what_is_published_is_found(folder: Path) -> None:
    assert cache.find(ENTRY) is None
    path = publish()
    assert cache.find(ENTRY) == path
    assert path.read_text() == "machine code"
    assert path.is_relative_to(folder / "kernels" / ENTRY)
    assert list((folder / "building").iterdir()) == []


def test_everything_in_the_cache_is_private(folder: Path) -> None:
    before = os.umask(0o002)
    try:
        publish()
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_first_of_two_publishers_wins_and_both_succeed() -> None:
    first = publish("one")
    second = publish("two")
    assert first == second
    assert second.read_text() == "one"


def test_publishers_at_once_all_get_a_verified_path() -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(publish())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {cache.find(ENTRY)}
    assert len(found) == 8


@pytest.mark.parametrize(
    "damage",
    ["truncate", "alter", "no manifest", "bad manifest", "nested too deep", "no object"],
)
def test_a_damaged_entry_is_not_found_and_is_replaced(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = publish()
    manifest = path.parent / "manifest.json"
    match damage:
        case "truncate":
            os.truncate(path, 3)
        case "alter":
            path.write_text("MACHINE CODE")
        case "no manifest":
            manifest.unlink()
        case "bad manifest":
            manifest.write_text("{")
        case "nested too deep":
            manifest.write_text("[" * 100_000)
        case "no object":
            path.unlink()
    with caplog.at_level(logging.WARNING, "cellgen"):
        assert cache.find(ENTRY) is None
    assert "not loading" in warnings_of(caplog)
    assert "building it again" in warnings_of(caplog)
    assert publish("again").read_text() == "again"
    assert cache.find(ENTRY) == path


def test_a_manifest_cannot_point_out_of_its_entry(tmp_path: Path) -> None:
    path = publish()
    manifest = path.parent / "manifest.json"
    outside = tmp_path / "object.so"
    outside.write_text("machine code")
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "object": str(outside)}))
    assert cache.find(ENTRY) == path


@pytest.mark.parametrize("name", ["object.so", "manifest.json", ENTRY, "kernels"])
def test_what_another_user_owns_is_not_found(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = publish()
    real = os.stat

    def stat(target: object, *args: object, **kwargs: object) -> os.stat_result:
        status = real(target, *args, **kwargs)  # type: ignore[arg-type, call-overload]
        if os.fspath(target).endswith(f"/{name}"):  # type: ignore[call-overload]
            return os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))
        return status

    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "stat", stat)
        assert cache.find(ENTRY) is None
    assert "belongs to user" in warnings_of(caplog)
    assert cache.find(ENTRY) == path


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_another_user_can_write_is_not_found(
    mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    publish().chmod(mode)
    assert cache.find(ENTRY) is None
    assert "can be written by other users" in warnings_of(caplog)


def test_an_open_cache_folder_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(BuildError, match=r"chmod 700 .*CELLGEN_CACHE_DIR="):
        publish()


# --- folders that cannot be written -----------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("")
    with pytest.raises(BuildError) as caught:
        publish()
    assert str(folder) in str(caught.value)
    assert "what stands there is a file" in str(caught.value)
    assert "CELLGEN_CACHE_DIR=" in str(caught.value)
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(folder / "deeper"))
    with pytest.raises(BuildError, match="what stands above it is a file"):
        publish()


@pytest.mark.parametrize(
    ("number", "text"), [(errno.EROFS, "Read-only file system"), (errno.EACCES, "Permission")]
)
def test_a_read_only_folder_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(BuildError) as caught:
        publish()
    for part in (str(folder), text, "CELLGEN_CACHE_DIR=/a/folder"):
        assert part in str(caught.value)


@pytest.mark.parametrize("where", ["mkdtemp", "replace"])
def test_a_full_disk_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile if where == "mkdtemp" else os, where, full)
    with pytest.raises(BuildError) as caught:
        publish()
    for part in (str(folder), "No space left on device", "free some space", "CELLGEN_CACHE_DIR="):
        assert part in str(caught.value)


def test_a_cache_that_exists_is_read_without_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = publish()

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "open", refuse)
    assert cache.find(ENTRY) == path


# --- leftovers --------------------------------------------------------------------------------


def leave(folder: Path, pid: int, age: float, node: str | None = None) -> Path:
    cache.prepare()
    prefix = f"{node or locks.node()}-{pid}-"
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder / "building"))
    (path / "cell.c").write_text("int x;")
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


@pytest.fixture
def dead() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_old_leftovers_of_dead_processes_are_swept(folder: Path, dead: int) -> None:
    old = leave(folder, dead, 2 * cache.A_DAY)
    publish()
    assert not old.exists()


def test_leftovers_of_a_dead_process_are_swept_by_the_next_build(folder: Path, dead: int) -> None:
    young = leave(folder, dead, 0)
    elsewhere = leave(folder, dead, cache.A_DAY / 2, "elsewhere")
    elsewhere_old = leave(folder, dead, 2 * cache.A_DAY, "elsewhere")
    publish()
    assert not young.exists()
    assert elsewhere.exists()
    assert not elsewhere_old.exists()


def test_living_builds_are_left_alone_whatever_their_number(folder: Path, dead: int) -> None:
    """A process of another container may have the number of one that is gone here."""
    alive = leave(folder, os.getpid(), 2 * cache.A_DAY)
    numbered = leave(folder, dead, 2 * cache.A_DAY)
    with locks.marked(numbered):
        publish()
        assert numbered.exists()
    assert alive.exists()
    publish("another", "other-1")
    assert not numbered.exists()


def test_a_folder_whose_number_lives_on_in_another_process_is_swept(folder: Path) -> None:
    with cache.workplace() as place:
        publish()
        assert place.exists()
        kept = folder / "kept"
        place.rename(kept)
    kept.rename(place)  # as a process leaves it that is killed
    publish("another", "other-1")
    assert not place.exists()


def test_locks_that_nobody_holds_are_swept(folder: Path) -> None:
    cache.prepare()
    left, held = (folder / "locks" / name for name in (f"left-{KEY}", f"held-{KEY}"))
    left.touch()
    with locks.hold(held, "a test"):
        publish()
        assert held.exists()
    assert not left.exists()


def test_names_of_nodes_cannot_confuse_the_sweep(
    folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks.system, "node", lambda: "a-b/c")
    assert locks.node() == "a_b_c"
    alive = leave(folder, os.getpid(), 2 * cache.A_DAY)
    assert cache.is_dead(alive) is False
    assert cache.is_dead(folder / f"a_b_c-{dead}-x") is True
    assert cache.is_dead(folder / f"elsewhere-{os.getpid()}-x") is None
    assert cache.is_dead(folder / "rubbish") is None


def test_a_failed_build_is_kept_once(folder: Path) -> None:
    for text in ("first", "second"):
        with cache.workplace() as place:
            (place / "log.txt").write_text(text)
            kept = cache.keep_failed(place, ENTRY)
    assert kept == folder / "failed" / ENTRY
    assert (kept / "log.txt").read_text() == "second"


# --- facts, keys, information -----------------------------------------------------------------


def test_facts_are_recalled_from_private_files_only(folder: Path) -> None:
    assert cache.recall("key") is None
    cache.remember("key", {"a": [1, "b"]})
    assert cache.recall("key") == {"a": [1, "b"]}
    path = folder / "compilers" / "key.json"
    path.chmod(0o666)
    assert cache.recall("key") is None
    path.chmod(0o600)
    for text in ("[1]", "{", "", "[" * 100_000):
        path.write_text(text)
        assert cache.recall("key") is None


def test_facts_need_no_cache_that_can_be_written(folder: Path) -> None:
    folder.write_text("")
    cache.remember("key", {"a": 1})
    assert cache.recall("key") is None


def test_a_digest_keeps_labels_and_texts_apart() -> None:
    keys = {
        cache.digest([("a", "bc")]),
        cache.digest([("ab", "c")]),
        cache.digest([("a", "b"), ("", "c")]),
        cache.digest([("a", "b"), ("c", "")]),
        cache.digest([]),
    }
    assert len(keys) == 5
    assert all(len(key) == cache.KEY_DIGITS for key in keys)


def test_info_counts_and_clear_removes(folder: Path, dead: int) -> None:
    assert cache.info() == cache.Info(folder, 0, 0)
    publish("x" * 1000)
    publish("y", f"other-{KEY}")
    cache.remember(KEY, {})
    cache.remember(f"plan-{KEY}", {})
    leave(folder, dead, 0)
    alive = leave(folder, os.getpid(), 0)
    info = cache.info()
    assert info.entries == 2
    assert 1000 < info.bytes < 2000
    (folder / "letter.txt").write_text("not ours")
    assert cache.clear().entries == 2
    assert cache.find(ENTRY) is None
    assert cache.info().entries == 0
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == ["cell.c", "letter.txt", "lock"]
    assert alive.exists()


def test_files_of_others_stay_in_folders_of_the_same_names(folder: Path) -> None:
    cache.prepare()
    parts = (cache.KERNELS, cache.FAILED, cache.COMPILERS, cache.BUILDING, cache.LOCKS)
    names = ("notes.txt", "gauss.cl", "project-1", f"{KEY}.txt", f"cell-{KEY}0")
    theirs = [folder / part / name for part in parts for name in names]
    for path in theirs:
        path.mkdir()
        (path / "mine").write_text("mine")
        os.utime(path, (0, 0))
    publish()
    assert cache.clear().entries == 1
    assert cache.info() == cache.Info(folder, 0, 0)
    left = sorted(path.parent for path in folder.rglob("*") if path.name == "mine")
    assert left == sorted(theirs)
    assert cache.find(ENTRY) is None


def test_clearing_what_is_not_there_is_no_error(folder: Path) -> None:
    assert cache.clear() == cache.Info(folder, 0, 0)
    assert not folder.exists()


def test_the_cache_folder_is_the_users_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELLGEN_CACHE_DIR")
    assert cache.folder().name == "cellgen"
    monkeypatch.setenv("CELLGEN_CACHE_DIR", "~/somewhere")
    assert cache.folder() == Path.home() / "somewhere"

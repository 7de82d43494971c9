"""Keep compiled kernels on disk: keys, the folder, atomic publishing, verified finding.

Input: bytes to key on, and finished files in a private folder. Output: paths of verified files.
Layout of the cache folder (0700; ``CELLGEN_CACHE_DIR`` moves it)::

    kernels/<cell>-<key>/   the shared object and manifest.json (its size and SHA-256)
    building/<node>-<pid>-*/  builds in progress; never loaded, swept by the next build once their
                            process is gone (a day later where it ran on another machine)
    locks/<cell>-<key>      held by the process that compiles that entry
    failed/<cell>-<key>/    sources and log of the last failed build of that key
    compilers/<key>.json    what was found out about a compiler

Not supported: sharing one cache folder between users (an object that another user could have
written is never loaded).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from cellgen.errors import BuildError
from cellgen.runtime import system
from cellgen.runtime.build import locks

VARIABLE = "CELLGEN_CACHE_DIR"
KERNELS, BUILDING, FAILED, COMPILERS = "kernels", "building", "failed", "compilers"
PARTS = (KERNELS, FAILED, COMPILERS)
LOCKS, LOCK = "locks", "lock"
HELD = "held"
"""A file in build folders that their process holds: whether it lives needs no guess."""
MANIFEST = "manifest.json"
KEY_DIGITS = 20
OWN = re.compile(rf"(^|-)[0-9a-f]{{{KEY_DIGITS}}}(\.json)?$")
PLACE = re.compile(r"[A-Za-z0-9._]+-[0-9]+-[a-z0-9_]{8}")
"""How entries and build folders are named."""
A_DAY = 86_400.0
UNREADABLE = (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError)
"""What reading a damaged file of JSON may raise; the last of one that nests too deep."""
ATTEMPTS = 10
"""Times that an entry is put in place, where others do the same without the lock."""

log = logging.getLogger("cellgen")


@dataclass(frozen=True)
class Info:
    """Where the cache is, how many kernels it holds, and the bytes of all its files."""

    path: Path
    entries: int
    bytes: int


def folder() -> Path:
    """Name the cache folder, which may not exist yet. Raises BuildError for a name of none."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Path(named).expanduser().absolute()
        except (OSError, RuntimeError) as error:  # no such user, no working folder
            raise BuildError(
                f"{VARIABLE} is {named!r}, which names no folder ({error}); name one: "
                f"{VARIABLE}=/a/folder/of/your/own"
            ) from error
    return Path(platformdirs.user_cache_dir("cellgen", appauthor=False))


def digest(parts: Iterable[tuple[str, str]]) -> str:
    """Digest labelled texts; labels and lengths are part of it, so no two lists run together."""
    total = hashlib.sha256()
    for label, text in parts:
        data = text.encode("utf-8", "surrogateescape")
        total.update(f"{label}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()[:KEY_DIGITS]


def prepare() -> Path:
    """Make the cache folder, private to the user, and return it.

    Raises BuildError when it cannot be made or is open to other users.
    """
    path = folder()
    with explained():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = exposure(path)
        if reason:
            raise BuildError(
                f"the kernel cache {path} is not used: {reason}; "
                f"make it private (`chmod 700 {path}`) or name another folder: "
                f"{VARIABLE}=/a/folder/of/your/own"
            )
        for part in (KERNELS, BUILDING, FAILED, COMPILERS, LOCKS):
            (path / part).mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def explained() -> Iterator[None]:
    """Turn an OSError of the body into one BuildError that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        raise unusable(error) from error


def unusable(error: OSError) -> BuildError:
    """Explain why the cache folder cannot be written."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EEXIST:
        reason = "what stands there is a file, expected a folder"
    elif error.errno == errno.ENOTDIR:
        reason = "what stands above it is a file, expected a folder"
    detail = f" ({error.filename})" if error.filename else ""
    remedy = "free some space, or name" if error.errno == errno.ENOSPC else "name"
    return BuildError(
        f"cannot write to the kernel cache {folder()}: {reason}{detail}; "
        f"{remedy} a folder that can be written: {VARIABLE}=/a/folder/of/your/own"
    )


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a fresh private folder for one build; whatever is left in it at the end is removed."""
    root = prepare() / BUILDING
    with explained():
        sweep()
        place = Path(tempfile.mkdtemp(prefix=f"{locks.node()}-{os.getpid()}-", dir=root))
    with locks.marked(place) as is_held:
        try:
            if is_held:
                with explained():
                    (place / HELD).touch()
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def building(entry: str) -> Iterator[None]:
    """Let one process at a time build an entry; the others find it when their turn comes.

    Who waits too long builds it too. Raises BuildError when the cache cannot be written.
    """
    path = prepare() / LOCKS / entry
    with contextlib.ExitStack() as stack:
        with explained():
            stack.enter_context(locks.hold(path, f"building {entry}"))
        yield


def find_or_make(
    entry: str, files: Sequence[tuple[str, str]], make: Callable[[Path], str]
) -> tuple[Path, bool]:
    """Find an entry, or have it made; return its path, and whether it was there.

    ``make`` is given a workplace with ``files``, (relative path, text), and returns the name of the
    file that it produced there. Raises BuildError when the cache cannot be written, and what
    ``make`` raises.
    """
    path = find(entry)
    if path is not None:
        return path, True
    with building(entry):
        return _find_or_make(entry, files, make)


def find_or_make_if_free(
    entry: str, files: Sequence[tuple[str, str]], make: Callable[[Path], str]
) -> Path | None:
    """Find an entry, or have it made as ``find_or_make`` does, unless somebody else is at it.

    Then, and where there are no locks, None at once.
    """
    path = prepare() / LOCKS / entry
    with locks.hold_if_free(path, f"building {entry}") as is_held:
        return _find_or_make(entry, files, make)[0] if is_held else None


def _find_or_make(
    entry: str, files: Sequence[tuple[str, str]], make: Callable[[Path], str]
) -> tuple[Path, bool]:
    path = find(entry)  # another process may have built it before this one had the lock
    if path is not None:
        return path, True
    with workplace() as place:
        with explained():
            _write(place, files)
        return publish(place, entry, make(place)), False


def _write(place: Path, files: Sequence[tuple[str, str]]) -> None:
    for name, text in files:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def publish(place: Path, entry: str, produced: str) -> Path:
    """Move the file ``produced`` of a workplace into the cache as ``entry``; return its new path.

    Of two processes that publish one entry the first wins and both get a path that holds.
    Raises BuildError when the cache cannot be written.
    """
    with explained():
        ready = place / "entry"
        ready.mkdir(mode=0o700)
        system.replace(place / produced, ready / produced)
        manifest = json.dumps({"object": produced, **_measure(ready / produced)}, indent=1)
        (ready / MANIFEST).write_text(manifest, encoding="utf-8")
        for path in (ready / produced, ready / MANIFEST):
            path.chmod(0o600)
        with _publishing():
            return _put(place, entry, produced)


def _put(place: Path, entry: str, produced: str) -> Path:
    """Put an entry in its place, unless a good one is there; right without a lock as well."""
    target = folder() / KERNELS / entry
    for attempt in range(ATTEMPTS):
        present = find(entry)
        if present is not None:
            return present
        try:
            if target.exists():
                system.replace(target, place / f"refused {attempt}")
            system.replace(place / "entry", target)
            break
        except OSError as error:
            is_there = system.is_windows() and error.errno == errno.EACCES
            others = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not (is_there or error.errno in others) or attempt == ATTEMPTS - 1:
                raise
    return target / produced


def has(entry: str) -> bool:
    """Tell whether something stands under an entry; ``find`` looks at it."""
    return os.path.exists(folder() / KERNELS / entry)  # False for a name that no file can have


def find(entry: str) -> Path | None:
    """Find the object of an entry; None when it is absent, damaged or open to other users."""
    root = folder()
    path = root / KERNELS / entry
    try:
        if not path.exists():
            return None
        for part in (root, root / KERNELS, path, path / MANIFEST):
            _require(not (reason := exposure(part)), reason)
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        produced = path / Path(manifest.pop("object")).name
        _require(not (reason := exposure(produced)), reason)
        _require(_measure(produced) == manifest, f"{produced.name} is not what was published")
    except UNREADABLE as error:
        log.warning("not loading %s: %s; building it again", path, error)
        return None
    return produced


def keep_failed(place: Path, entry: str) -> Path:
    """Move a workplace to the failed builds, in place of an earlier one; return its new path."""
    target = folder() / FAILED / entry
    with explained(), _publishing():
        shutil.rmtree(target, ignore_errors=True)
        system.replace(place, target)
    return target


def failed(entry: str) -> Path | None:
    """Where the last build of an entry is kept, if it failed within a day; else None."""
    path = folder() / FAILED / entry
    return path if path.exists() and not _is_older(path, A_DAY) else None


def recall(key: str) -> dict[str, object] | None:
    """Read what ``remember`` stored under a key; None when there is nothing to trust."""
    path = folder() / COMPILERS / f"{key}.json"
    try:
        if any(exposure(part) for part in (folder(), path.parent, path)):
            return None
        facts = json.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE:
        return None
    return facts if isinstance(facts, dict) else None


def recalled(prefix: str) -> list[dict[str, object]]:
    """Read everything that ``remember`` stored under keys that begin alike, in their order."""
    try:
        keys = sorted(path.stem for path in (folder() / COMPILERS).glob(f"{prefix}*.json"))
    except (BuildError, OSError):
        return []
    return [facts for facts in map(recall, keys) if facts is not None]


def remember(key: str, facts: dict[str, object]) -> None:
    """Store facts under a key, atomically; a cache that cannot be written is no error here."""
    try:
        with workplace() as place:
            path = place / "facts.json"
            path.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            path.chmod(0o600)
            system.replace(path, folder() / COMPILERS / f"{key}.json")
    except (BuildError, OSError) as error:
        log.debug("not remembered: %s", error)


def info() -> Info:
    """Measure the cache: what is named as its own."""
    path = folder()
    own = [p for part in PARTS for p in _children(path / part) if _is_entry(p)]
    places = [p for p in _children(path / BUILDING) if PLACE.fullmatch(p.name)]
    kernels = sum(p.parent.name == KERNELS for p in own)
    return Info(path, kernels, sum(map(_bytes, (*own, *places))))


def clear() -> Info:
    """Remove everything but builds in progress; return what was there. Raises BuildError.

    Files that are not named as those of the cache are somebody else's: they stay. So does, on
    Windows, what a process has loaded; the log names it.
    """
    before = info()
    with explained():
        for part in PARTS:
            for path in filter(_is_entry, _children(before.path / part)):
                _remove(path)
        sweep(older_than=0.0)
    return before


def _remove(path: Path) -> None:
    """Remove an entry, unless Windows has it loaded. Raises OSError."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except PermissionError:
        if not system.is_windows():
            raise
        log.warning("%s is in use by a process and stays", path)


def sweep(older_than: float = A_DAY) -> None:
    """Remove what dead processes left: build folders, and lock files that nobody holds.

    Folders of processes that this machine does not know go when they are so many seconds old.
    """
    for path in _children(folder() / BUILDING):
        if not PLACE.fullmatch(path.name):
            continue
        dead = is_dead(path)
        age = older_than if dead is None else 0.0
        if dead is not False and _is_older(path, age) and not locks.is_held(path):
            shutil.rmtree(path, ignore_errors=True)
    for path in filter(_is_entry, _children(folder() / LOCKS)):
        locks.remove(path)


def _is_entry(path: Path) -> bool:
    """Whether a name is one that the cache gives: it ends with a key."""
    return OWN.search(path.name) is not None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def exposure(path: Path) -> str:
    """Say how another user could have written a file or folder; empty when none could."""
    status = os.stat(path)
    own = system.user()
    if own is None:
        return ""  # here files have no owner and mode that say who may write
    if status.st_uid not in (own, 0):  # whoever is root needs no file to be trusted
        return f"{path} belongs to user {status.st_uid}, not to you ({own})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _measure(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@contextmanager
def _publishing() -> Iterator[None]:
    """Hold the lock under which entries change."""
    with locks.hold(folder() / LOCK, "changing the kernel cache"):
        yield


def is_dead(path: Path) -> bool | None:
    """Tell whether the process of a build folder is gone; None: one of another machine."""
    node, _, rest = path.name.partition("-")
    pid = rest.partition("-")[0]
    if node != locks.node() or not pid.isdigit():
        return None
    if (path / HELD).exists():
        return not locks.is_held(path)
    is_running = system.is_running(int(pid))
    return None if is_running is None else not is_running


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime >= seconds
    except OSError:
        return False


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _bytes(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(_bytes(part) for part in _children(path))
        return path.stat().st_size
    except OSError:
        return 0

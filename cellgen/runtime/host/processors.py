"""How many processors this process may use: its affinity, and the quota of its control groups.

A container as a rule limits time, not processors: with a quota of 200 ms in 100 it may run on all
of a machine's 64, and is stopped for the rest of each period once its threads have used that up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath


def usable_processors() -> int:
    """Return how many threads can run at a time: as many as affinity and quota allow, 1 or more."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    quota = own_quota()
    return allowed if quota is None else min(allowed, whole_processors(quota))


def whole_processors(quota: float) -> int:
    """Round a quota to the nearest number of threads: of 1.1, a second one would mostly wait.

    >>> [whole_processors(quota) for quota in (0.2, 1.1, 1.5, 4.0)]
    [1, 1, 2, 4]
    """
    return max(1, int(quota + 0.5))


@cache
def own_quota() -> float | None:
    """The quota of this process, read once: it takes longer than a call of a small kernel."""
    return cpu_quota(Path("/"))


def cpu_quota(root: Path) -> float | None:
    """Return the processors' time that control groups grant for each second; None: no limit.

    Versions 1 and 2 are read; a group has what the smallest quota from it up to the root says.
    ``root`` is the folder that holds ``proc``; places where groups are mounted are seen from it.
    """
    quotas = [quota for folder in _group_folders(root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _group_folders(root: Path) -> Iterator[Path]:
    """The folders of this process's groups that may hold a quota, and of those above them."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        is_unified = number == "0" and not controllers
        if not (is_unified or "cpu" in controllers.split(",")):
            continue
        for top, point in _mounts(mounts, is_unified=is_unified):
            inside = _below(group, top)
            folder = root / point.lstrip("/")
            yield folder
            for part in inside.parts:
                folder /= part
                yield folder


def _mounts(lines: list[str], *, is_unified: bool) -> Iterator[tuple[str, str]]:
    """Which group is mounted where: of version 2, or of version 1 with the controller ``cpu``."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_cpu = kind[0] == "cgroup" and "cpu" in kind[2].split(",")
        if kind[0] == "cgroup2" if is_unified else is_cpu:
            yield fields[3].replace("\\040", " "), fields[4].replace("\\040", " ")


def _below(group: str, top: str) -> PurePosixPath:
    """The way from a mounted group to one in it; none to one that is not seen from here."""
    try:
        return PurePosixPath(group).relative_to(top)
    except ValueError:
        return PurePosixPath()


def _quota_of(folder: Path) -> float | None:
    """Read ``cpu.max`` (version 2), or ``cpu.cfs_quota_us`` and its period (version 1)."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None

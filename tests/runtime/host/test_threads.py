"""How many threads a call gets, how they wait for each other, and when one alone is faster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.runtime.host import processors, threads
from cellgen.runtime.host.processors import cpu_quota, usable_processors
from cellgen.runtime.paths import include_folder
from tests.drawing import draw_arrays

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or shutil.which("cc") is None,
    reason="needs affinity and a C compiler",
)

MEETINGS = r"""
#define _GNU_SOURCE
#include "cellgen_team.h"
#include <stdio.h>

static int values[64], wrong;
static void task(int thread, int threads, void *context)
{
    cellgen_team *const team = (cellgen_team *)context;
    for (int round = 0; round < 50; ++round) {
        values[thread] = round;
        cellgen_team_barrier(team, thread);
        for (int other = 0; other < threads; ++other)
            if (values[other] != round)
                __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
        cellgen_team_barrier(team, thread);
    }
}

int main(int count, char **argument)
{
    cellgen_team *const team = cellgen_team_create(atoi(argument[1]));
    int alone = 0, total = 0;
    for (; total < atoi(argument[2]); ++total) {
        cellgen_team *const now = cellgen_team_worth(team);
        alone += now == NULL;
        cellgen_team_run(now, task, now);
    }
    const int size = cellgen_team_size(team);
    const unsigned sleeps = team ? cellgen_team_sleeps(team) : 0;
    cellgen_team_destroy(team);
    printf("%d %d %u %d %d", count > 0 && wrong, size, sleeps, alone, total);
    return 0;
}
"""
"""Threads meet 100 times a region; printed: mistakes, size, sleeps, regions of the caller alone."""

POOR = r"""
#include "cellgen_team.h"
#include <stdio.h>

int main(void)
{
    cellgen_team *const team = cellgen_team_create(2);
    team->spent = 80;
    team->parts[1].spent = 20; /* what waiting took is taken away where it was */
    printf("%d %d", cellgen_team_was_poor(team, 200), cellgen_team_was_poor(team, 201));
    cellgen_team_destroy(team);
    return 0;
}
"""


def compiled(source: str, folder: Path) -> str:
    (folder / "main.c").write_text(source)
    flags = ["-O1", f"-I{include_folder()}", "-lpthread"]
    subprocess.run(["cc", "main.c", "-o", "main", *flags], cwd=folder, check=True)
    return str(folder / "main")


def step_barriers(program: str, asked: int, regions: int) -> tuple[int, ...]:
    """Run on a single processor; see ``MEETINGS``."""
    one = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [program, str(asked), str(regions)],
        preexec_fn=lambda: os.sched_setaffinity(0, {one}),
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, done.stdout.split()))


@needs_affinity
def test_threads_that_share_a_processor_sleep_until_all_have_come(tmp_path):
    """Nobody looks on while another wants the processor: at nearly every barrier one sleeps."""
    program = compiled(MEETINGS, tmp_path)
    for asked in (2, 5):
        wrong, size, sleeps, alone, _ = step_barriers(program, asked | threads.ALWAYS, 3)
        assert (wrong, size, alone) == (0, asked, 0)
        assert sleeps > 3 * 100 // 2


@needs_affinity
def test_a_team_that_only_waits_leaves_the_work_to_its_caller(tmp_path):
    """Tried again now and then, for a twentieth of the time."""
    program = compiled(MEETINGS, tmp_path)
    for asked in (2, 4):
        wrong, size, _, alone, total = step_barriers(program, asked, 400)
        assert (wrong, size, total) == (0, asked, 400)
        assert alone > 300


@needs_affinity
def test_zero_threads_are_one_for_each_processor_that_may_be_used(tmp_path):
    assert step_barriers(compiled(MEETINGS, tmp_path), 0, 1)[1] == 1


@needs_affinity
def test_a_region_is_poor_that_took_twice_the_processors_time_of_its_work(tmp_path):
    program = compiled(POOR, tmp_path)
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"0 1"


# --- what this process may use ----------------------------------------------------------------


def tree(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write what the kernel of a machine would tell of control groups."""
    for name, text in {
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": mounts,
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "25 1 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "31 30 0:28 {} /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
CPU = "sys/fs/cgroup/cpu,cpuacct"
NO_LIMIT = {f"{CPU}/cpu.cfs_quota_us": "-1\n", f"{CPU}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", V2, {"sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5),
        (
            "0::/a/b\n",
            V2,
            {
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "150000 50000\n",
            },
            3.0,
        ),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "nonsense\n"}, None),
        ("0::/a\n", "", {"sys/fs/cgroup/a/cpu.max": "100000 100000\n"}, None),
        (
            "4:cpu,cpuacct:/docker/x\n",
            V1.format("/"),
            {
                **NO_LIMIT,
                f"{CPU}/docker/x/cpu.cfs_quota_us": "300000\n",
                f"{CPU}/docker/x/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (  # within the container its own group is the root of what it sees
            "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
            V1.format("/docker/x"),
            {f"{CPU}/cpu.cfs_quota_us": "120000\n", f"{CPU}/cpu.cfs_period_us": "100000\n"},
            1.2,
        ),
        ("4:cpu,cpuacct:/\n0::/\n", V1.format("/") + V2, NO_LIMIT, None),
    ],
)
def test_the_quota_of_control_groups_is_read_up_to_their_root(
    groups, mounts, files, expected, tmp_path
):
    assert cpu_quota(tree(tmp_path, groups, mounts, files)) == expected


def test_no_control_groups_are_no_limit(tmp_path):
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "expected"), [(8, None, 8), (8, 2.5, 3), (8, 0.3, 1), (2, 16.0, 2)]
)
def test_affinity_and_quota_say_how_many_processors_there_are(
    allowed, quota, expected, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    monkeypatch.setattr(processors, "own_quota", lambda: quota)
    assert usable_processors() == expected
    monkeypatch.delenv("CELLGEN_NUM_THREADS", raising=False)
    assert threads.thread_count(None, "a call") == expected


def test_a_call_takes_no_more_threads_than_there_are_processors(monkeypatch):
    monkeypatch.setattr(threads, "is_crowding", False)
    monkeypatch.setattr(threads, "usable_processors", lambda: 2)
    assert [threads.team_size(n, "a call") for n in (1, 2, 3, 64)] == [1, 2, 2, 2]
    monkeypatch.setenv("CELLGEN_NUM_THREADS", "64")
    assert threads.team_size(None, "a call") == 2
    monkeypatch.setattr(threads, "TEAMS", {})
    kernel = cellgen.load("gru")
    arrays = draw_arrays(kernel.sequence_forward.function, {"T": 4, "B": 3, "I": 5, "H": 6})
    alone = kernel.sequence_forward(**arrays, threads=1)
    crowd = kernel.sequence_forward(**arrays, threads=64)
    kernel.sequence_forward.bind(**arrays, threads=64)()
    np.testing.assert_array_equal(alone.h, crowd.h)
    assert {size for size, _ in threads.TEAMS} == {2}


def busy_processors() -> list[subprocess.Popen[bytes]]:
    """One process that always works for every processor there is."""
    forever = [sys.executable, "-c", "while True: pass"]
    return [subprocess.Popen(forever) for _ in os.sched_getaffinity(0)]


@needs_affinity
@pytest.mark.slow
@pytest.mark.parametrize("asked", [2, 4, 64])
@pytest.mark.parametrize("bound", [False, True])
def test_any_number_of_threads_on_busy_processors_takes_little_longer_than_one(asked, bound):
    """At most three times as long, in the median of blocks of calls; one that waits for threads
    which have no processor takes a hundred times as long."""
    script = BLOCKS.format(asked=asked, bound=bound)
    others = busy_processors()
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
    finally:
        for process in others:
            process.kill()
            process.wait()
    one, many = map(float, done.stdout.split())
    assert many <= 3 * one


BLOCKS = """
import os, time
import numpy as np
import cellgen
from tests.drawing import draw_arrays

if {bound}:
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
kernel = cellgen.load("gru")
arrays = draw_arrays(kernel.sequence_forward.function, {{"T": 100, "B": 8, "I": 16, "H": 16}})
blocks = {{1: [], {asked}: []}}
for block in range(40):
    for threads, times in blocks.items():
        begin = time.perf_counter()
        for call in range(25):
            kernel.sequence_forward(**arrays, threads=threads)
        times.append(time.perf_counter() - begin)
print(*(np.median(times) for times in blocks.values()))
"""

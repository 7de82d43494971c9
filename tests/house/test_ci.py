"""``.ci/run``: what runs beside other work fails the run, and ends with it."""

from __future__ import annotations

import os
import select
import subprocess

import pytest

from tests.mutants import ROOT

LIMIT = 20
"""Seconds after which a process that should have ended has not."""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("beside() { sleep 60; }\nbegin beside\nfalse", 1, ""),
        ("beside() { bash -c 'echo in; exit 3'; sleep 60; }\nbegin beside\nfinish beside", 3, "in"),
        ("beside() { cat; echo in; }\nbegin beside\nfinish beside\nsay passed", 0, "passed"),
    ],
    ids=["the run fails", "the job fails", "both pass"],
)
def test_jobs_fail_the_run_and_end_with_it(script: str, code: int, said: str) -> None:
    """All that a job started has ended: it holds a pipe no longer."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    jobs, _, _ = text.partition("tools()")
    here, there = os.pipe()
    done = subprocess.run(
        ["bash", "-c", jobs + script],
        pass_fds=[there],
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        ended, _, _ = select.select([pipe], [], [], LIMIT)
    assert ended
    assert done.returncode == code
    assert said in done.stdout

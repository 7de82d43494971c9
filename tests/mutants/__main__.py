"""Plant mistakes and see who notices: ``python -m tests.mutants [--seed N] [--jobs N] [--suites]``.

``cellgen check`` proves a few cells with each; ``--suites`` asks tests about those that it lets
pass; ``--named`` leaves out those that are drawn, ``--list`` says what they are. Exit code 1 where
a named one that changes numbers lives. Kernels are compiled at -O1; forty mutants take a quarter
of an hour of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import Mutant, copy_of_checkout, drawn, named

LONGEST = 600.0
"""Processor time of a proof or a suite in seconds; one that takes more does not end."""
STILL = 120.0
"""Seconds without any of it, after which threads wait for each other."""
LOOK = 5.0
"""Seconds between two looks at it."""

SUITES = {
    "generated/include": "test_sequences test_options test_row_blocks test_strips test_threads",
    "templates": "test_render test_sequences",
    "cellgen/program": "test_derive test_simplify test_unroll test_program test_budgets",
    "cellgen/schedule": "test_schedule test_plans test_budgets test_row_blocks test_sequences",
    "cellgen/targets": "test_targets test_render test_strips test_sequences",
}
"""Tests that are asked about mutants of a folder."""


@dataclass(frozen=True)
class Verdict:
    """Who noticed a mutant, in words; nobody where it is empty.

    ``changes`` is False where the C that is generated of its cells, and of their tangents, is the
    same as without it: a condition that holds for none of them, a part that is not used.
    """

    mutant: Mutant
    proof: str
    suite: str
    changes: bool = True


class Workplace:
    """A copy of the checkout in which one mutant at a time is planted."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = copy_of_checkout(folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "CELLGEN_CACHE_DIR": str(cache),
            "CELLGEN_CFLAGS": "-O1",
        }

    def verdict(self, mutant: Mutant, *, suites: bool) -> Verdict:
        """Plant one, ask, and take it out again."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(text))
        try:
            proof = self._run("-m", "tests.mutants.prove", *mutant.cells)
            suite = self._suite(mutant) if suites and not proof else ""
            generated = "" if proof or suite or path.suffix == ".h" else self._sources(mutant)
        finally:
            self._write(path, text)
        return Verdict(mutant, proof, suite, not generated or generated != self._sources(mutant))

    def _sources(self, mutant: Mutant) -> str:
        """A digest of what is generated of the cells of a mutant; nothing where that fails."""
        words = [sys.executable, "-m", "tests.mutants.prove", "--sources", *mutant.cells]
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, check=False
        )
        return done.stdout.decode().strip()

    def _write(self, path: Path, text: str) -> None:
        """Write a source; byte code of one that is as long, from the same second, is stale."""
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _suite(self, mutant: Mutant) -> str:
        """Ask tests, of kernels as a compiler with the mistake generates them."""
        said = ""
        try:
            if not mutant.file.startswith("generated/"):
                said = self._run("-m", "tests.mutants.prove", "--write")
            return said or self._tests(mutant)
        finally:
            copy_of_checkout(self.folder, ("generated",))

    def _tests(self, mutant: Mutant) -> str:
        names = next(v for folder, v in SUITES.items() if mutant.file.startswith(folder))
        files = [str(*self.folder.glob(f"tests/**/{name}.py")) for name in names.split()]
        return self._run("-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *files)

    def _run(self, *words: str) -> str:
        """Run Python on the copy; return what it said where it failed, else nothing."""
        return told((sys.executable, *words), self.folder, self.environment)


def told(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return what a command says where it fails or does not end, else nothing.

    A machine that does much else is no reason to stop it: processor time is counted, on Linux.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    spent, since, begun = 0.0, time.monotonic(), processor_time(process.pid)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said = process.communicate(timeout=LOOK)[0]
            break
        before, spent = spent, processor_time(process.pid) - begun
        since = since if spent == before else time.monotonic()
        if spent > LONGEST or time.monotonic() - since > STILL:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"takes longer than {LONGEST:g} s" if spent > LONGEST else "stands still"
    lines = said.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    last = lines[-1] if lines else ""
    return "" if process.returncode == 0 else (failed or [last or f"exit {process.returncode}"])[0]


def processor_time(ancestor: int) -> float:
    """Seconds of a process and of those that it started, on Linux; elsewhere a clock's."""
    if not Path("/proc/self/stat").exists():
        return time.monotonic()
    parent, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parent[int(path.parent.name)] = int(words[1])
            ticks[int(path.parent.name)] = sum(map(int, words[11:15]))  # and of ended children
    own = {ancestor}
    while more := {p for p, by in parent.items() if by in own} - own:
        own |= more
    return sum(ticks.get(p, 0) for p in own) / os.sysconf("SC_CLK_TCK")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--suites", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(words)
    mutants = [*named(), *(() if options.named else drawn(options.seed))]
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        verdicts = _judged(mutants, Path(folder), options.jobs, options.suites)
    killed = sum(bool(v.proof) for v in verdicts)
    seen = sum(bool(v.proof or v.suite) for v in verdicts)
    changing = sum(v.changes for v in verdicts)
    print(f"{killed} of {changing} noticed by cellgen check, {seen} by it or by tests")
    print(f"{len(verdicts) - changing} change nothing that is generated of their cells")
    return int(
        any(v.mutant.name and v.mutant.file.endswith(".h") and not v.proof for v in verdicts)
    )


def _judged(mutants: Sequence[Mutant], folder: Path, jobs: int, suites: bool) -> list[Verdict]:
    free: SimpleQueue[Workplace] = SimpleQueue()
    for number in range(jobs):
        free.put(Workplace(folder / str(number), folder / "cache"))

    def judge(mutant: Mutant) -> Verdict:
        place, began = free.get(), time.perf_counter()
        try:
            found = place.verdict(mutant, suites=suites)
        finally:
            free.put(place)
        who = f"check: {found.proof}" if found.proof else f"tests: {found.suite or '-'}"
        who = who if found.changes else "changes nothing that is generated of its cells"
        print(f"{time.perf_counter() - began:5.0f} s  {mutant}\n         {who}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(judge, mutants))


if __name__ == "__main__":
    sys.exit(main())

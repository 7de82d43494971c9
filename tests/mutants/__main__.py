"""Plant mistakes and see who notices: ``python -m tests.mutants [--seed N] [--jobs N] [--suites]``.

``cellgen check`` proves a few cells with each; ``--suites`` asks tests about those that it lets
pass; ``--named`` leaves out those that are drawn, ``--list`` says what they are. Exit code 1 where
a named one that changes numbers lives. Kernels are compiled at -O1; forty mutants take a quarter
of an hour of one core.

``--tests`` asks quick tests alone, about mutants of every folder: those of its own folder first,
then neighbours, ``--seconds`` of processor time each. ``--cache`` names a folder of compiled
kernels that it may read and fill.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
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

from tests.mutants import (
    SHARES,
    SHARES_OF_TESTS,
    Mutant,
    copy_of_checkout,
    drawn,
    named,
    named_for_tests,
)

LONGEST = 600.0
"""Processor time of a proof or a suite in seconds; one that takes more does not end."""
TOO_LONG = "takes longer"
STILL = 120.0
"""Seconds without any of it, after which threads wait for each other."""
LOOK = 5.0
"""Seconds between two looks at it."""

SUITES = {
    "generated/include": "runtime/call targets proof",
    "templates": "targets runtime/call",
    "cellgen/language": "language program proof",
    "cellgen/program": "program schedule proof",
    "cellgen/schedule": "schedule targets runtime/call",
    "cellgen/targets": "targets schedule runtime/call",
    "cellgen/runtime": "runtime doors cli",
}
"""Folders of tests that are asked about mutants of a folder, after those of its own name."""


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

    def __init__(self, folder: Path, cache: Path, seconds: float = 240) -> None:
        self.seconds = seconds
        self.folder = copy_of_checkout(folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "CELLGEN_CACHE_DIR": str(cache),
            "CELLGEN_CFLAGS": "-O1",
        }

    def verdict(self, mutant: Mutant, *, proofs: bool, suites: bool) -> Verdict:
        """Plant one, ask, and take it out again."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(text))
        try:
            proof = self.run("-m", "tests.mutants.prove", *mutant.cells) if proofs else ""
            suite = self._suite(mutant) if suites and not proof else ""
            generated = "" if proof or suite or path.suffix == ".h" else self.sources(mutant)
        finally:
            self._write(path, text)
        return Verdict(mutant, proof, suite, not generated or generated != self.sources(mutant))

    def sources(self, mutant: Mutant) -> str:
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
        """Ask tests of the mutant's folder, then neighbours about what is generated with it."""
        try:
            for number, folder in enumerate(folders_of_tests(self.folder, mutant.file)):
                said = ""
                if number == 1 and not mutant.file.startswith(("generated/", "cellgen/runtime/")):
                    said = self.run("-m", "tests.mutants.prove", "--write")
                said = said or self._tests(folder, mutant.file)
                if said:
                    return said
            return ""
        finally:
            copy_of_checkout(self.folder, ("generated",))

    def _tests(self, folder: Path, file: str) -> str:
        """Ask the quick tests of a folder: of files named after the source first, then short ones.

        Those that have not ended in their time have not noticed it.
        """
        words = set(re.findall(r"[a-z]+", file))

        def rank(path: Path) -> tuple[int, int]:
            return -len(words & set(path.stem.split("_"))), path.stat().st_size

        files = map(str, sorted(folder.rglob("test_*.py"), key=rank))
        asked = ("-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *files)
        said = self.run(*asked, longest=self.seconds, flags="")
        if not said.startswith(TOO_LONG):
            return said
        print(f"        {folder.relative_to(self.folder)}: {said}, not through", flush=True)
        return ""

    def run(self, *words: str, longest: float = 0, flags: str = "-O1") -> str:
        """Run Python on the copy; return what it said where it failed, else nothing."""
        environment = {**self.environment, "CELLGEN_CFLAGS": flags}
        return told((sys.executable, *words), self.folder, environment, longest)


def folders_of_tests(checkout: Path, file: str) -> list[Path]:
    """Folders of tests about a source: the nearest of its own name, then its neighbours."""
    tests = checkout / "tests"
    names = [folder.removeprefix("cellgen/") for folder in map(str, Path(file).parents)]
    own = [tests / name for name in names if name != "." and any((tests / name).glob("test_*.py"))]
    others = next(v for folder, v in SUITES.items() if file.startswith(folder)).split()
    return list(dict.fromkeys((*own[:1], *(tests / name for name in others))))


def told(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], longest: float = 0
) -> str:
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
    longest = longest or LONGEST
    spent, since, begun = 0.0, time.monotonic(), processor_time(process.pid)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said = process.communicate(timeout=LOOK)[0]
            break
        before, spent = spent, processor_time(process.pid) - begun
        since = since if spent == before else time.monotonic()
        if spent > longest or time.monotonic() - since > STILL:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{TOO_LONG} than {longest:g} s" if spent > longest else "stands still"
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
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(words)
    first, shares = (named_for_tests, SHARES_OF_TESTS) if options.tests else (named, SHARES)
    mutants = [*first(), *(() if options.named else drawn(options.seed, shares))]
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        verdicts = _judged(mutants, Path(folder), options)
    killed = sum(bool(v.proof) for v in verdicts)
    seen = sum(bool(v.proof or v.suite) for v in verdicts)
    changing = sum(v.changes for v in verdicts)
    print(f"{killed} of {changing} noticed by cellgen check, {seen} by it or by tests")
    print(f"{len(verdicts) - changing} change nothing that is generated of their cells")
    return int(
        any(v.mutant.name and v.mutant.file.endswith(".h") and not v.proof for v in verdicts)
    )


def _judged(mutants: Sequence[Mutant], folder: Path, options: argparse.Namespace) -> list[Verdict]:
    free: SimpleQueue[Workplace] = SimpleQueue()
    cache = options.cache or folder / "cache"
    for number in range(options.jobs):
        free.put(Workplace(folder / str(number), cache, options.seconds))

    def judge(mutant: Mutant) -> Verdict:
        place, began = free.get(), time.perf_counter()
        try:
            suites = options.suites or options.tests
            found = place.verdict(mutant, proofs=not options.tests, suites=suites)
        finally:
            free.put(place)
        who = f"check: {found.proof}" if found.proof else f"tests: {found.suite or '-'}"
        who = who if found.changes else "changes nothing that is generated of its cells"
        print(f"{time.perf_counter() - began:5.0f} s  {mutant}\n         {who}", flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(judge, mutants))


if __name__ == "__main__":
    sys.exit(main())

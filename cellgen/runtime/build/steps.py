"""Run the external steps of a build: compilers and linkers, whose products are checked.

Input: ``Step`` records and a workplace. Output: files there, or a BuildError whose first line names
the step, what went wrong, in the tool's own words where it said something, and what to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cellgen.errors import BuildError
from cellgen.runtime import system
from cellgen.runtime.build import cache, locks
from cellgen.runtime.progress import progress
from cellgen.runtime.waiting import interrupts_held_back

TIMEOUT_VARIABLE = "CELLGEN_BUILD_TIMEOUT"
TIMEOUT_SECONDS = 600.0
DIAGNOSTIC_LINES = 10
LOAD_SECONDS = 60.0
FEW_BYTES = 1 << 20
"""A disk with less space than this is full: what a build leaves there would not fit."""

FIX_LIBRARY = (
    "install the package that has it (the C library's own: Debian and Ubuntu "
    "`apt install libc6-dev`, Fedora `dnf install glibc-devel`)"
)
FIX_MEMORY = "free memory, or build fewer cells at a time (`cellgen build --jobs 1`)"
FIX_SPACE = f"free some space, or name a folder on another disk: {cache.VARIABLE}=/a/folder"
FIX_LOADING = (
    f"if the folder forbids execution (`noexec`), name another: "
    f"{cache.VARIABLE}=/a/folder/of/your/own"
)

OBJECT_MAGIC = (
    b"\x7fELF",
    b"\xcf\xfa\xed\xfe",  # Mach-O, 64 bits
    b"\xca\xfe\xba\xbe",  # Mach-O of several processors
    b"d\x86",  # COFF of x86-64
    b"d\xaa",  # COFF of arm64
    b"MZ",  # a DLL
    b"!<arch>\n",
    b"BC\xc0\xde",  # LLVM's bitcode, with -flto
    b"\xde\xc0\x17\x0b",
)
"""How files begin that a linker or a loader takes."""

LOAD_LIBRARY = """
import sys, ctypes
print("ready", flush=True)
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    library[name]
print("loaded", flush=True)
"""


@dataclass(frozen=True)
class Tool:
    """What runs steps, for messages: its name, and what its user can change.

    ``flags`` tells where its flags come from, ``other`` how to name another one, ``fix`` how to
    get one, ``still`` what works without it, ``code`` is that of errors.
    """

    name: str
    flags: str
    other: str
    fix: str
    still: str
    code: str = "build"


@dataclass(frozen=True)
class Step:
    """An external command, what it does in a word, and the file that it must make."""

    text: str
    command: tuple[str, ...]
    product: str


@dataclass(frozen=True)
class _Failed:
    """A step that failed: what its command wrote, and how it ended."""

    step: Step
    output: str
    reason: str
    signal: int = 0


@dataclass(frozen=True)
class _Cause:
    """Words of a compiler that its user can act on, and how."""

    pattern: re.Pattern[str]
    remedy: str


FULL = re.compile(r"No space left on device|Disk quota exceeded")
KILLED = re.compile(
    r"[Kk]illed (signal|\(program)|command: Killed|terminated (by|with) signal|"
    r"signal terminated program"
)
CAUSES = (
    _Cause(
        re.compile(r"out of memory|memory exhausted|Cannot allocate memory|bad_alloc", re.I),
        FIX_MEMORY,
    ),
    _Cause(
        re.compile(r"Permission denied|Operation not permitted|Read-only file system"),
        "give the compiler leave to read and write there, or name another folder: "
        f"{cache.VARIABLE}=/a/folder/of/your/own",
    ),
    _Cause(
        re.compile(
            r"^(?!\S+:\d+:).*(unrecognized .*option|[Uu]nknown (option|argument|value|target)|"
            r"unsupported (option|argument)|bad value|unknown CPU|is not defined for option)",
            re.M,
        ),
        "correct {flags}",
    ),
    _Cause(re.compile(r"fatal error: .*(No such file or directory|file not found)"), FIX_LIBRARY),
    _Cause(re.compile(r"cannot find -l|library not found for -l|cannot open .*crt"), FIX_LIBRARY),
    _Cause(
        re.compile(r"error trying to exec|cannot execute|posix_spawn|installation problem"),
        "the compiler is not complete: {fix}",
    ),
)
"""In order: the first whose words stand in the output is taken."""


class Stoppable:
    """Commands of one caller that another thread may stop: those at work, and any to come."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Take in a command that has started."""
        self._running.add(process)
        if self.is_stopped:
            _stop(process)

    def stop(self) -> None:
        """Kill every command at work."""
        self.is_stopped = True
        for process in tuple(self._running):
            _stop(process)


def run(
    place: Path,
    name: str,
    entry: str,
    rounds: Sequence[Sequence[Step]],
    tool: Tool,
    *,
    bar: bool = True,
    stoppable: Stoppable | None = None,
) -> None:
    """Run rounds of steps in a workplace, those of a round side by side, with a ``bar`` or without.

    However this ends (Ctrl-C included), no process of them is left running. Raises BuildError.
    """
    deadline = time.monotonic() + timeout()
    stoppable = stoppable or Stoppable()
    with progress(f"compiling {name}") if bar else contextlib.nullcontext():
        for steps in rounds:
            failed = _run(place, steps, tool, deadline, stoppable)
            if stoppable.is_stopped:
                raise BuildError(f"{name}: stopped")
            if failed is not None:
                raise _failure(place, name, entry, failed, tool)


def timeout() -> float:
    """Seconds that a build may take. Raises BuildError for a variable that says none."""
    return locks.seconds(TIMEOUT_VARIABLE, TIMEOUT_SECONDS)


def at_work() -> int:
    """How many commands run in this process's builds."""
    return sum(process.poll() is None for process in tuple(_running))


def stop_all() -> None:
    """Kill every compiler at work and end all waiting for locks.

    Threads that wait for one end with a BuildError.
    """
    locks.give_up()
    for process in tuple(_running):
        _stop(process)


def require_loadable(path: Path, name: str, step: Step, *symbols: str) -> None:
    """Load a product in a process of its own, and find some symbols. Raises BuildError otherwise.

    Nothing is said where no such process can be started, as in a program that embeds Python.
    """
    program = sys.executable or ""
    if not Path(program).name.startswith(("python", "pypy")):
        return
    command = [program, "-I", "-S", "-c", LOAD_LIBRARY, str(path), *symbols]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    said = done.stdout.split()
    if "ready" not in said or "loaded" in said:
        return
    reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode < 0:
        reason = f"that ended a process by {_signal_text(-done.returncode)}"
    raise BuildError(
        f"{name}: {step.text} failed: {step.command[0]} ended with status 0, and "
        f"{step.product} cannot be loaded: {reason}; {FIX_LOADING}; else use another compiler"
    )


# --- running ----------------------------------------------------------------------------------


def _run(
    place: Path, steps: Sequence[Step], tool: Tool, deadline: float, stoppable: Stoppable
) -> _Failed | None:
    """Run steps side by side; return the first that fails."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(place)}
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_started(place, s, tool, environment)) for s in steps]
        for process, _ in running:
            stoppable.add(process)
        for step, (process, log) in zip(steps, running, strict=True):
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
                reason = f"it ended with status {status}" if status else ""
            except subprocess.TimeoutExpired:
                status = 0
                reason = f"it took longer than {timeout():g} s ({TIMEOUT_VARIABLE})"
            if status < 0:
                reason = f"it was ended by {_signal_text(-status)}"
            if not reason and (lack := _lack(place, step)):
                reason = f"it ended with status 0, {lack}"
            if reason:
                return _Failed(step, _text(log), reason, max(0, -status))
    return None


@contextlib.contextmanager
def _started(
    place: Path, step: Step, tool: Tool, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a command in a process group of its own, which is killed at the end."""
    with cache.explained():
        log = _log(place)
    with log, contextlib.ExitStack() as stack:
        with interrupts_held_back():  # within it a process would start unknown to us
            process = _open(place, step, tool, environment, log)
            _running.add(process)
            stack.callback(_end, process)
        yield process, log


def _open(
    place: Path, step: Step, tool: Tool, environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            step.command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=system.own_group(),
        )
    except FileNotFoundError as error:
        raise BuildError(
            f"{step.text}: it is not in the kernel cache {cache.folder()}, and {tool.name} "
            f"{step.command[0]!r} is not here to compile it; {tool.fix}. {tool.still}"
        ) from error
    except OSError as error:
        raise BuildError(
            f"cannot run {tool.name} {step.command[0]!r}: {error.strerror}; {tool.fix}. "
            f"{tool.still}"
        ) from error


_running: set[subprocess.Popen[bytes]] = set()
"""Compilers at work in any thread."""


def _end(process: subprocess.Popen[bytes]) -> None:
    _running.discard(process)
    _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            system.kill_with_children(process)
        process.wait()


def _log(place: Path) -> IO[bytes]:
    """A file for what a command writes, in memory where the system has such files.

    A full disk does not take the words that say so.
    """
    try:
        return os.fdopen(os.memfd_create("cellgen-log"), "w+b")
    except (AttributeError, OSError):  # macOS, old kernels
        return tempfile.TemporaryFile(dir=place)


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode("utf-8", "replace")


def _lack(place: Path, step: Step) -> str:
    """Say what is wrong with the product of a step; empty when it looks right."""
    try:
        with open(place / step.product, "rb") as file:
            start = file.read(max(map(len, OBJECT_MAGIC)))
    except FileNotFoundError:
        return f"but did not write {step.product}"
    if not start:
        return f"but {step.product} is empty"
    if not start.startswith(OBJECT_MAGIC):
        return f"but {step.product} is no object file: it begins with {start!r}"
    return ""


def _signal_text(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


# --- explaining -------------------------------------------------------------------------------


def _failure(place: Path, name: str, entry: str, failed: _Failed, tool: Tool) -> BuildError:
    """Say what happened, and keep sources and log where the disk has room."""
    step, is_full = failed.step, _is_full(place)
    cause, remedy = _explain(failed, tool, is_full=is_full)
    kept = "" if is_full or FULL.search(failed.output) else _kept(place, entry, failed)
    lines = [
        f"{name}: {step.text} failed: {cause}; {remedy}",
        f"  ended:   {failed.reason}",
        f"  command: {shlex.join(step.command)}",
    ]
    if kept:
        lines.append(f"  in:      {kept} (sources and log.txt are kept)")
    lines += [f"  | {line}" for line in _diagnostics(failed.output)]
    return BuildError("\n".join([*lines, f"  {tool.still}."]), code=tool.code)


def _explain(failed: _Failed, tool: Tool, *, is_full: bool) -> tuple[str, str]:
    """What went wrong, in the tool's own words where it has some, and what to do."""
    output = failed.output
    if FULL.search(output):
        return f"cannot write to {cache.folder()}: {_line(FULL, output)}", FIX_SPACE
    has_said = "error" in output.lower()
    if is_full and (failed.signal or KILLED.search(output) or not has_said):
        return f"{failed.reason}, and the disk of {cache.folder()} is full", FIX_SPACE
    if failed.signal:
        return f"the compiler was ended by {_signal_text(failed.signal)}", FIX_MEMORY
    for cause in (_Cause(KILLED, FIX_MEMORY), *CAUSES):
        if cause.pattern.search(output):
            remedy = cause.remedy.format(flags=tool.flags, fix=tool.fix)
            return _line(cause.pattern, output), remedy
    said = _diagnostics(output)[0].strip() if has_said else failed.reason
    return said, f"correct {tool.flags}, or {tool.other}"


def explain_output(output: str, tool: Tool) -> tuple[str, str]:
    """What a tool's output says is wrong, and what to do: for questions that it does not answer."""
    empty = Step("", ("",), "")
    return _explain(_Failed(empty, output, "it said nothing"), tool, is_full=False)


def _line(pattern: re.Pattern[str], output: str) -> str:
    """The line of the output in which a pattern stands."""
    match = pattern.search(output)
    at = match.end() if match else 0
    return output[output.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()


def _diagnostics(output: str) -> list[str]:
    """Pick the first diagnostics: from the first error on."""
    lines = [line for line in output.splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if "error" in line.lower()), 0)
    return lines[first : first + DIAGNOSTIC_LINES]


def _is_full(place: Path) -> bool:
    try:
        free, has_room_for_files = system.space_left(place)
    except OSError:
        return False
    return free < FEW_BYTES or not has_room_for_files


def _kept(place: Path, entry: str, failed: _Failed) -> Path | None:
    """Keep a failed build with its log; None when the cache cannot be written."""
    try:
        log = f"{shlex.join(failed.step.command)}\n{failed.output}"
        (place / "log.txt").write_text(log, encoding="utf-8")
        return cache.keep_failed(place, entry)
    except (OSError, BuildError):
        return None

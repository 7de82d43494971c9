"""Find the C compiler of this machine, and the flags that it accepts.

Input: environment variables and PATH. Output: ``CompilerInfo``, remembered in the cache.
On Windows that is zig's. Not supported: cross compiling.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime import system
from cellgen.runtime.abi import ABI_VERSION
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.steps import Tool

STILL_WORKS = (
    "Declaring cells, `cellgen show`, `cellgen check` and the NumPy reference need no compiler"
)
FIX_COMPILER = (
    "install one: Debian and Ubuntu `apt install gcc`, Fedora `dnf install gcc`, macOS "
    "`xcode-select --install`, anywhere `pip install cellgen-compiler[zig]`; "
    "or name one: CELLGEN_CC=/path/to/cc"
)
FIX_WINDOWS = (
    "on Windows kernels are compiled by zig alone, which comes as a wheel: "
    "`pip install cellgen-compiler[zig]`"
)
ZIG_CC = "cc"
"""How zig is told to be a C compiler."""
PREDEFINED = ("-dM", "-E", "-x", "c")
REQUIRED_FLAGS = ("-O3", "-fPIC", "-std=gnu11")
OPTIONAL_FLAGS = (
    ("-march=native", "-mcpu=native"),
    ("-fno-math-errno",),
    ("-fno-trapping-math",),
    ("-ffp-contract=off",),
    ("-Werror=overflow",),  # a constant that would lose its value is no warning
    ("-fopenmp-simd",),  # sums over units in vectors: a pragma, no library
    ("--param=max-unswitch-insns=500",),  # a loop for callers that keep values, one for others
    ("-fvisibility=hidden",),
)
"""Alternatives in order of preference; the first that the compiler accepts is taken, or none."""
WIDE_VECTORS = ("-mprefer-vector-width=512",)
WIDE_VECTORS_MACRO = "__AVX512F__"
VECTOR_MACROS = (
    ("__SSE4_2__", "SSE4.2"),
    ("__AVX__", "AVX"),
    ("__AVX2__", "AVX2"),
    ("__FMA__", "FMA"),
    ("__AVX512F__", "AVX-512F"),
    ("__AVX512DQ__", "AVX-512DQ"),
    ("__AVX512BF16__", "AVX-512BF16"),
    ("__AMX_BF16__", "AMX-BF16"),
    ("__ARM_NEON", "NEON"),
    ("__ARM_FEATURE_SVE", "SVE"),
)
LINK_FLAGS = {system.MACOS: ("-dynamiclib", "-undefined", "dynamic_lookup")}
LINK_FLAGS_ELSEWHERE = ("-shared",)

COMPILER_VARIABLES = ("CELLGEN_CC", "CC")
FLAGS_VARIABLE = "CELLGEN_CFLAGS"
INEXACT_FLAGS = (
    *("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations"),
    *("-fassociative-math", "-freciprocal-math", "-fno-signed-zeros"),
)
"""Flags under which arithmetic is another."""
MATH_VARIABLE = "CELLGEN_MATH"
MATH_FLAGS = {
    "": (),
    "default": (),
    "exact": ("-DCELLGEN_EXACT_MATH",),
    "fast": ("-DCELLGEN_FAST_MATH",),
}
"""What tanh, exp and their kind are in float32: within 3 ulp; libm's in double, rounded once; or a
rational tanh, 8 ulp, and a sigmoid that is accurate absolutely only."""
PROBE_SECONDS = 60.0
WATCHED_VARIABLES = (
    *COMPILER_VARIABLES,
    FLAGS_VARIABLE,
    MATH_VARIABLE,
    "PATH",
    "CPATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "CCC_OVERRIDE_OPTIONS",
    "SDKROOT",
    "MACOSX_DEPLOYMENT_TARGET",
    "DEVELOPER_DIR",
)
"""Environment variables that can change which compiler runs and what it makes of its flags."""

TOOL = Tool(
    "the C compiler",
    flags=f"{FLAGS_VARIABLE} or {COMPILER_VARIABLES[0]}",
    other=f"name another compiler: {COMPILER_VARIABLES[0]}=/path/to/cc",
    fix=FIX_COMPILER,
    still=STILL_WORKS,
)


@dataclass(frozen=True)
class CompilerInfo:
    """A C compiler: its command, what it says it is, what it resolves ``flags`` to (a digest)."""

    command: tuple[str, ...]
    path: str
    version: str
    flags: tuple[str, ...]
    fingerprint: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """What the key of anything that it compiles is made of, beside the texts."""
        return (
            ("compiler", f"{self.path}\n{shlex.join(self.command)}\n{self.version}"),
            ("flags", repr(self.flags)),
            ("fingerprint", self.fingerprint),
        )


def compiler() -> CompilerInfo:
    """Find the C compiler and the flags it accepts; asked once per process and environment.

    ``CELLGEN_CC``, then ``CC``, then cc, gcc, clang on PATH, then the ``ziglang`` wheel. Facts are
    remembered in the cache for as long as compiler, machine and environment stay what they were.
    Raises BuildError when there is none, or the named one is missing or does not work.
    """
    return compiler_of(tuple((name, os.environ.get(name, "")) for name in WATCHED_VARIABLES))


def of_cache() -> CompilerInfo:
    """The C compiler; where there is none, one that has compiled on a processor like this.

    That is the one of the last new entry. What the cache holds of it loads without a compiler: it
    is asked for keys, not to run.
    Raises BuildError: no compiler, and none was remembered.
    """
    if not any(_words(name) for name in COMPILER_VARIABLES) and _found_command() is None:
        known = _read(cache.recall(last_key()))
        if known is not None:
            return known
    return compiler()


def compiled_by(
    info: CompilerInfo,
    entry: str,
    files: Sequence[tuple[str, str]],
    make: Callable[[Path], str],
) -> tuple[Path, bool]:
    """Find an entry of a compiler in the cache, or have it compiled; see ``cache.find_or_make``."""
    path, is_cached = cache.find_or_make(entry, files, make)
    remember(info, is_new=not is_cached)
    return path, is_cached


def remember(info: CompilerInfo, *, is_new: bool) -> None:
    """Remember whose an entry of the cache is, for ``of_cache``: the last that is new decides."""
    key = last_key()
    last = _read(cache.recall(key))
    if last is None or (is_new and last != info):
        cache.remember(key, _facts(info))


def instruction_set(info: CompilerInfo) -> tuple[str, ...]:
    """Name the vector instructions that a compiler's flags allow: ``AVX2``, ``FMA``, ``NEON``."""
    macros = _macros(info.command, info.flags) or ""
    defined = {line.split()[1] for line in macros.splitlines() if line.startswith("#define ")}
    return tuple(name for macro, name in VECTOR_MACROS if macro in defined)


def joining(call: Sequence[str], objects: Sequence[str], name: str) -> tuple[tuple[str, ...], str]:
    """The command that makes one file of several objects, and the file: ``<name>.o``.

    Objects of Windows cannot be linked into one, and on macOS what is hidden would be seen by
    nobody else afterwards: there it is an archive, ``<name>.a``.
    """
    if system.joins_in_archives():
        product = f"{name}.a"
        before = call[: list(call).index(ZIG_CC)] if _is_zig(call) else ()
        return (*before, "ar", "rcs", product, *objects), product
    return (*call, "-r", "-nostdlib", *objects, "-o", f"{name}.o"), f"{name}.o"


def link_flags() -> tuple[str, ...]:
    """Flags that make a shared object on this system."""
    return LINK_FLAGS.get(sys.platform, LINK_FLAGS_ELSEWHERE)


@functools.lru_cache(maxsize=16)
def compiler_of(environment: tuple[tuple[str, str], ...]) -> CompilerInfo:
    """Find the compiler of an environment: its variables, by name. Raises BuildError."""
    command = command_of()
    _check_system(command)
    _check_arithmetic(command)
    files = _witnesses([shutil.which(part) or "" for part in command])
    key = cache.digest(
        [
            ("abi", str(ABI_VERSION)),
            ("command", shlex.join(command)),
            ("files", files),
            *_named_files(command),
            ("environment", json.dumps(environment)),
            ("machine", _machine()),
            ("flags", repr((REQUIRED_FLAGS, OPTIONAL_FLAGS, WIDE_VECTORS))),
        ]
    )
    info = recalled(key)
    if info is None:
        info, used = _probe(command)
        facts = {**_facts(info), "programs": used, "witnesses": _witnesses(used)}
        cache.remember(key, facts)
    return info


def _facts(info: CompilerInfo) -> dict[str, object]:
    """What is remembered of a compiler; ``_read`` reads it."""
    return {field.name: getattr(info, field.name) for field in fields(info)}


def last_key() -> str:
    """Where the last compiler of this processor is remembered, whatever else the machine has."""
    return cache.digest(
        [
            ("abi", str(ABI_VERSION)),
            ("last", "\n".join((sys.platform, platform.machine(), *processor_lines()))),
            *((name, os.environ.get(name, "")) for name in (FLAGS_VARIABLE, MATH_VARIABLE)),
            ("flags", repr((REQUIRED_FLAGS, OPTIONAL_FLAGS, WIDE_VECTORS))),
        ]
    )


def command_of() -> tuple[str, ...]:
    """Resolve the compiler's command; a named compiler that is missing is an error."""
    for variable in COMPILER_VARIABLES:
        words = _words(variable)
        if words:
            if shutil.which(words[0]) is None:
                raise BuildError(
                    f"{variable} names the C compiler {words[0]!r}, which cannot be found; "
                    f"correct {variable} or unset it"
                )
            return words
    command = _found_command()
    if command is None:
        if system.is_windows():
            raise BuildError(f"no C compiler: {FIX_WINDOWS}. {STILL_WORKS}")
        raise BuildError(
            f"no C compiler: none of cc, gcc, clang is on PATH and the ziglang wheel is not "
            f"installed; {FIX_COMPILER}. {STILL_WORKS}"
        )
    return command


def _found_command() -> tuple[str, ...] | None:
    """The command of a compiler that nobody named; None when there is none."""
    for name in () if system.is_windows() else ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", ZIG_CC)
    return None


def _words(variable: str) -> tuple[str, ...]:
    """Split an environment variable as a shell does. Raises BuildError."""
    text = os.environ.get(variable, "")
    if variable in COMPILER_VARIABLES and os.path.isfile(text):  # a path with a space in it
        return (text,)
    try:
        return tuple(system.words_of(text))
    except ValueError as error:
        raise BuildError(
            f"{variable} is {text!r}, which a shell could not split into words "
            f"({str(error).lower()}); close its quotes, or unset it"
        ) from error


def _probe(command: tuple[str, ...]) -> tuple[CompilerInfo, list[str]]:
    """Ask a compiler what it is and which flags it takes; also list the programs it runs."""
    extra = _math_flags() + _words(FLAGS_VARIABLE)
    flags = REQUIRED_FLAGS + tuple(first for first, *_ in OPTIONAL_FLAGS)
    macros = _macros(command, flags)
    if macros is None:
        flags = _accepted_flags(command)
        macros = _macros(command, flags) or ""
    if WIDE_VECTORS_MACRO in macros and _macros(command, flags + WIDE_VECTORS) is not None:
        flags += WIDE_VECTORS
    flags += extra
    macros = _macros(command, flags)
    version = ask([*command, "--version"])
    if macros is None:
        raise _useless(command, [*command, *flags, *PREDEFINED, system.empty_source()])
    if version is None:
        raise _useless(command, [*command, "--version"])
    path = os.path.realpath(shutil.which(command[0]) or command[0])
    fingerprint = cache.digest([("macros", macros), ("path", path), *_named_files(command)])
    info = CompilerInfo(command, path, _first_line(version), flags, fingerprint)
    return info, _programs(command, flags)


def _check_system(command: tuple[str, ...]) -> None:
    """Refuse what is no zig on Windows. Raises BuildError."""
    if system.is_windows() and not _is_zig(command):
        named = next((name for name in COMPILER_VARIABLES if _words(name)), "")
        raise BuildError(
            f"{named} names the C compiler {shlex.join(command)}, which is not `zig cc`; "
            f"{FIX_WINDOWS}, and unset {named}. {STILL_WORKS}"
        )


def _is_zig(command: Sequence[str]) -> bool:
    return ZIG_CC in command and any("zig" in word for word in command)


def _check_arithmetic(command: tuple[str, ...]) -> None:
    """Refuse flags that let a compiler forget NaN, infinities and the order of sums.

    With GCC's, a kernel that is loaded makes its process count denormals as zeros, too.

    Raises:
        BuildError: naming the flag, and what has it.
    """
    flags = (*command, *_words(FLAGS_VARIABLE))
    for place, flag in enumerate(flags):
        undone = flag.replace("-fno-", "-f") if "-fno-" in flag else flag.replace("-f", "-fno-", 1)
        if flag in INEXACT_FLAGS and (undone == flag or undone not in flags[place:]):
            owner = "the compiler's command" if place < len(command) else FLAGS_VARIABLE
            raise BuildError(
                f"{owner} has {flag}, with which kernels would not keep NaN, infinities "
                f"and the order of sums; leave it out ({MATH_VARIABLE}=fast has faster functions)"
            )


def _useless(command: tuple[str, ...], question: Sequence[str]) -> BuildError:
    """Explain that a compiler does not answer, in its own words."""
    said = ask(question, errors=True, failing=True) or ""
    cause, remedy = steps.explain_output(said, TOOL)
    return BuildError(
        f"the C compiler {shlex.join(command)} does not work: {cause}; {remedy}\n"
        f"  command: {shlex.join(question)}\n"
        f"  To get one, {FIX_COMPILER}. {STILL_WORKS}."
    )


def _named_files(command: tuple[str, ...]) -> list[tuple[str, str]]:
    """The files that flags name (``-include FILE``, ``@FILE``, ``-specs=FILE``), with texts."""
    words = (*command[1:], *_words(FLAGS_VARIABLE))
    parts = {part for w in words for part in (w, w.removeprefix("@"), w.partition("=")[2])}
    files = (name for name in sorted(parts) if os.path.isfile(name) and os.access(name, os.R_OK))
    return [(name, Path(name).read_bytes().decode("latin-1")) for name in files]


def _math_flags() -> tuple[str, ...]:
    """Translate the choice of functions into flags. Raises BuildError for an unknown one."""
    choice = os.environ.get(MATH_VARIABLE, "")
    if choice not in MATH_FLAGS:
        known = ", ".join(name for name in MATH_FLAGS if name)
        raise BuildError(
            f"{MATH_VARIABLE} is {choice!r}, expected one of {known}; correct or unset it"
        )
    return MATH_FLAGS[choice]


def _accepted_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """Try the optional flags one by one."""
    flags: tuple[str, ...] = REQUIRED_FLAGS
    for alternatives in OPTIONAL_FLAGS:
        for flag in alternatives:
            if _macros(command, (*flags, flag)) is not None:
                flags = (*flags, flag)
                break
    return flags


def _macros(command: tuple[str, ...], flags: Sequence[str]) -> str | None:
    """List the predefined macros under some flags; None when the compiler rejects them."""
    return ask([*command, *flags, *PREDEFINED, system.empty_source()])


def _programs(command: tuple[str, ...], flags: Sequence[str]) -> list[str]:
    """List the files that the compiler driver would run (cc1 behind gcc, gcc behind a script)."""
    empty = ("-c", "-x", "c", system.empty_source())
    plan = ask([*command, *flags, "-###", *empty], errors=True) or ""
    words = [word.strip('"') for line in plan.splitlines() for word in line.split()[:1]]
    return [shutil.which(part) or "" for part in command] + [
        word for word in words if os.path.isabs(word) and os.path.isfile(word)
    ]


def ask(command: Sequence[str], *, errors: bool = False, failing: bool = False) -> str | None:
    """Run a compiler for its answer; None when it fails, unless what it says then is wanted."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            timeout=PROBE_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if failing or done.returncode == 0 else None


def recalled(key: str) -> CompilerInfo | None:
    """Read what an earlier process found out, if every program it looked at is unchanged."""
    facts = cache.recall(key)
    match facts:
        case {"programs": [*programs], "witnesses": witnesses} if witnesses == _witnesses(
            [str(name) for name in programs]
        ):
            return _read(facts)
    return None


def _read(facts: dict[str, object] | None) -> CompilerInfo | None:
    """A compiler as it is remembered; None for anything else."""
    match facts:
        case {
            "command": [*command],
            "path": str(path),
            "version": str(version),
            "flags": [*flags],
            "fingerprint": str(fingerprint),
        }:
            words = tuple(str(word) for word in command)
            return CompilerInfo(words, path, version, tuple(map(str, flags)), fingerprint)
    return None


def _witnesses(names: Sequence[str]) -> str:
    """Describe files so that a change shows: path, real path, size, time of change."""
    described = []
    for name in sorted(set(filter(None, names))):
        with contextlib.suppress(OSError):
            status = os.stat(name)
            described.append([name, os.path.realpath(name), status.st_size, status.st_mtime_ns])
    return json.dumps(described)


def _machine() -> str:
    """Describe the machine closely enough that ``-march=native`` cannot mean something else."""
    return "\n".join([*system.description(), str(os.cpu_count()), *processor_lines()])


def processor_lines() -> list[str]:
    """Describe the processor as its system does."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                break
            if line.split(":")[0].strip() in CPU_FIELDS:
                lines.append(line)
    return lines or [platform.processor()]


CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "cache size"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown version")

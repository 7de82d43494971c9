"""Compile generated C under every compiler found: ``python -m tests.compilers [--all] [CELL...]``.

gcc, clang and zig (on PATH, the wheel ziglang, or a command in ``ZIG``), as C11 and as C++17:

    warnings   every generated source and the time driver, with WARNINGS; every header at once
    plain      the same as if the compiler had no GNU C, of which the preprocessor leaves nothing
    equal      a program of each compiler makes every call of a cell: the results are the kernel's
    linked     programs for macOS on arm64 and Windows on x86-64, which cannot run here

Without ``--all`` warnings are those of two cells. A compiler that is missing is named and left out.
Exit code 1 where anything is found.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cellgen.runtime.paths import generated_folder, include_folder
from tests.elsewhere.__main__ import CELLS, run, told
from tests.elsewhere.machines import C11, CPP17, ElsewhereError, Machine, elsewhere, native, ran

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
"""None is left out on the command line. cellgen_real.h turns two off: a pragma that means sums in
vectors where OpenMP's are known, and clang's remark that it made no vectors of a loop that may."""
PLAIN = ("-DCELLGEN_PLAIN", "-Wno-unused-parameter")
"""As if the compiler had no GNU C, which has no standard word for a parameter that is not used."""
LANGUAGES = {"C11": C11, "C++17": CPP17}
C_ALONE = (("C11", C11),)
QUICK = ("gru", "mlstm")
EQUAL = ("gru", "mlstm", "min_gru")
"""Two products a step, a matrix memory, no recurrent product."""
DRIVER = ("cellgen_driver_f32", "cellgen_driver_f64", "cellgen_driver_engine")

GNU = re.compile(
    r"__attribute__|__builtin_(?!inff|nanf|huge_val)|__asm|__atomic_|__sync_|__extension__"
    r"|__typeof|\(\{"
)
"""What only GNU C has; its pragmas any compiler may ignore. INFINITY, NAN and HUGE_VAL of the
system's headers are built-in functions under gcc."""


def source_of(name: str) -> Path:
    """The C of a cell, or of the driver in one precision."""
    if name in DRIVER:
        return include_folder() / f"{name}.c"
    return generated_folder() / name / f"{name}.c"


def compile_strictly(machine: Machine, language: Sequence[str], source: Path, *more: str) -> None:
    """Compile one source; a warning is an ElsewhereError."""
    places = [f"-I{include_folder()}", f"-I{source.parent}"]
    call = [*machine.compiler, "-O1", *machine.flags, *WARNINGS, *language, *more, *places]
    with tempfile.TemporaryDirectory() as work:
        said = ran([*call, "-c", str(source), "-o", f"{work}/{source.stem}.o"])
    if "warning" in said:
        raise ElsewhereError(f"{machine.name}: {source}\n{said[:2000]}")


def all_headers(work: Path, names: Sequence[str] = CELLS) -> Path:
    """A source that includes the header of every cell."""
    source = work / "headers.c"
    folders = ((generated_folder() / name / f"{name}.h").as_posix() for name in names)
    text = "".join(f'#include "{header}"\n' for header in folders)
    source.write_text(f"{text}\nint used = CELLGEN_OK;\n")
    return source


def gnu_left(machine: Machine, source: Path) -> list[str]:
    """Lines of ours that need GNU C, although the compiler is said to have none of it."""
    plain = ("-DCELLGEN_PLAIN", f"-I{include_folder()}", f"-I{source.parent}")
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "text.i"
        ran([*machine.compiler, "-E", *C11, *plain, str(source), "-o", str(made)])
        lines = made.read_text().splitlines()
    found, place = [], ""
    ours = (str(generated_folder()), str(include_folder()))
    for line in lines:
        marker = re.match(r'#\s+(?:line )?\d+ "([^"]*)"', line)
        if marker:
            place = marker[1]
        elif place.startswith(ours) and GNU.search(line):
            found.append(f"{Path(place).name}: {line.strip()}")
    return found


def equal(machine: Machine, name: str, work: Path, language: Sequence[str] = C11) -> str:
    """Run a cell's program; return how it compares. Raises where it is beyond the bounds."""
    compared = run(machine, name, work, language)
    for one in compared:
        if not one.ok:
            raise ElsewhereError(f"{machine.name}: {one.label}: {one.largest} > {one.bound}")
    return told(machine, name, compared)


def _tasks(names: Sequence[str], work: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every check with its name."""
    found = [machine for machine in native() if not machine.missing]
    headers = all_headers(work)
    for machine in found:
        for language, flags in LANGUAGES.items():
            for source in (headers, *map(source_of, (*DRIVER, *names))):
                label = f"warnings {machine.name:6s} {language:6s} {source.stem}"
                yield label, partial(compile_strictly, machine, flags, source)
    for name in (*DRIVER, *names):
        yield f"plain {found[0].name} {name}", partial(plain, found[0], source_of(name))


def plain(machine: Machine, source: Path) -> None:
    """Compile without GNU C; what is left of it is an ElsewhereError."""
    left = gnu_left(machine, source)
    if left:
        raise ElsewhereError(f"{source.name} needs GNU C:\n" + "\n".join(left[:20]))
    for language in LANGUAGES.values():
        compile_strictly(machine, language, source, *PLAIN)


def _programs(work: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Programs that run here, of C and of C++, and such that are only linked."""
    for machine in (*native(), *elsewhere()):
        runs = machine.runner == ()
        if machine.missing or not (runs or machine.runner is None):
            continue
        for name in EQUAL:
            for language, flags in LANGUAGES.items() if runs and name == EQUAL[0] else C_ALONE:
                folder = work / f"{machine.name}_{language}"
                folder.mkdir(exist_ok=True)
                label = f"{'equal' if runs else 'linked'} {machine.name} {language} {name}"
                make = equal if runs else Machine.build
                yield label, partial(make, machine, name, folder, flags)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compilers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], help="whose warnings")
    parser.add_argument("--all", action="store_true", help="warnings of every cell")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    for machine in native():
        if machine.missing:
            print(f"left out: {machine.name}, {machine.missing} is missing", flush=True)
    names, failures = given.cells or (CELLS if given.all else QUICK), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        work = Path(folder)
        runs = [(label, pool.submit(task)) for label, task in _tasks(names, work)]
        results = [(label, run.result) for label, run in runs]
        results += list(_programs(work))
        for label, result in results:
            try:
                said = result()
                print(f"{label}: {said if isinstance(said, str) else 'ok'}", flush=True)
            except (ElsewhereError, AssertionError) as error:
                failures += 1
                print(f"{label}: {error}", flush=True)
    print(f"{len(results) - failures} of {len(results)} clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

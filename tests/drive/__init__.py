"""Drive generated cells from C: write main.c from a cell's interface, compile, run.

Input: an ``Interface`` and the folder of generated sources. Output: the text that the program
prints; ``DriveError`` with what the compiler, a sanitizer or ``drive.h`` says where one complains.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cellgen.runtime.abi import PRECISIONS, Argument, Function, Interface, axis_terms, term_dims
from cellgen.runtime.build.sources import DRIVER_SOURCES

FOLDER = Path(__file__).parent
TEAMS = (2, 3, 5)
"""Threads of the teams that every function over time runs on, beside none: rows and units divide
unevenly, and there are more threads than rows or blocks of units."""

SHAPES = {
    4: (
        *((3, 4, 5, 7), (1, 1, 1, 1), (24, 17, 3, 6), (3, 4, 35, 70), (5, 7, 6, 33)),
        *((2, 3, 4, 17), (1, 5, 4, 40), (4, 1, 9, 64), (13, 64, 2, 3), (2, 17, 35, 20)),
    ),
    3: ((4, 5, 7), (1, 1, 1), (7, 6, 33), (33, 20, 16)),
}
"""T, B, I, H of functions over time; B, I, H of one step: units within and beyond whole vectors,
so many that every thread packs its operands of weight gradients, two and four row blocks, and
threads that share rows, where operands of the stages of a step differ in width."""
OTHERS = {"P": 37}
"""Other dimensions but those of 3."""
EMPTY = {
    4: ((0, 2, 3, 4), (2, 0, 3, 4), (3, 2, 0, 4), (3, 2, 4, 0), (0, 0, 0, 0)),
    3: ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)),
}
"""No steps, no rows, no inputs, no units."""

MOVED = {"ts": 0.75, "tau": 0.75, "sqrt_sqrt_pre": 0.75, "sqrt_sqrt_pre_2": 0.75}
"""What is added to the numbers of some arrays: times that passed, time constants and deviations
are positive. With others the denominators of the LTC and of TTT-Linear pass through 0, and their
gradients grow beyond any float."""

INTERPOSED = ("-DDRIVE_COUNT", "-Wl,--wrap=mmap,--wrap=pthread_create")
"""Flags with which the program counts allocations."""


class DriveError(Exception):
    """A program that does not compile, crashes, or finds a mistake."""


@dataclass(frozen=True)
class Driver:
    """One cell compiled with main.c; ``quick``: only three shapes and an empty one.

    ``runner``: the command that runs programs of another machine, none for this one's.
    ``joined``: an object of the time driver; without one it is compiled with ``flags``.
    """

    interface: Interface
    flags: tuple[str, ...]
    compiler: str = "cc"
    quick: bool = False
    runner: tuple[str, ...] = ()
    joined: Path | None = None

    def run(self, source: Path, include: Path, work: Path, **environment: str) -> str:
        """Compile ``source`` with main.c in ``work`` and run it; return what it prints.

        Raises DriveError.
        """
        (work / "main.c").write_text(main_text(self.interface, quick=self.quick))
        name = self.interface.name
        places = [f"-I{folder}" for folder in (FOLDER, source.parent, include)]
        target = work / name
        files = [str(work / "main.c"), str(source), *self._time_driver(include)]
        command = [self.compiler, "-std=gnu11", *self.flags, *places, *files, "-o", str(target)]
        _run([*command, "-lm", "-lpthread"], {}, f"{name}: cannot compile")
        return _run([*self.runner, str(target)], environment, f"{name}: {' '.join(self.flags)}")

    def _time_driver(self, include: Path) -> list[str]:
        """The time driver's objects: compiled once for all cells with these flags and sources.

        Both precisions are compiled side by side.
        """
        if self.joined:
            return [str(self.joined)]
        texts = [path.read_bytes() for path in sorted(include.glob("*.[ch]*"))]
        said = repr((self.compiler, self.flags)).encode()
        name = hashlib.sha256(b"".join([said, *texts])).hexdigest()[:20]
        folder = Path(tempfile.gettempdir()) / f"cellgen_drive_{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        with _COMPILING, ThreadPoolExecutor() as pool:
            halves = [
                pool.submit(self._half, include / f"{stem}.c", folder / f"{name}_{stem}.o")
                for stem in DRIVER_SOURCES
            ]
            return [str(half.result()) for half in halves]

    def _half(self, source: Path, found: Path) -> Path:
        """Find the time driver's object in one precision, or compile it."""
        if found.exists():
            return found
        made = found.with_suffix(f".{os.getpid()}.o")
        flags = [flag for flag in self.flags if not flag.startswith("-Wl,")]
        command = [self.compiler, "-std=gnu11", *flags, f"-I{source.parent}"]
        command += ["-c", str(source), "-o", str(made)]
        _run(command, {}, "the time driver: cannot compile")
        made.replace(found)
        return found


_COMPILING = threading.Lock()


def _run(command: Sequence[str], environment: dict[str, str], what: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise DriveError(f"{what}: exit {done.returncode}\n{done.stdout}{done.stderr}"[:3_000])
    return done.stdout


def main_text(interface: Interface, *, quick: bool = False) -> str:
    """Write main.c: a table of members per function, and the shapes to drive it with."""
    lines = [
        '#include "drive.h"',
        '#include "cellgen_team.h"',
        f'#include "{interface.name}.h"',
        "",
    ]
    calls = []
    for function in interface.functions:
        for suffix, c_type in PRECISIONS:
            lines += _table(interface, function, suffix, c_type)
            for shape in _shapes(function, quick):
                sizes = f"(const int64_t[DRIVE_DIMS]){{{', '.join(map(str, shape))}}}"
                calls.append(f"    drive(&{function.name}_{suffix}, {sizes}, teams);")
                if function.name == "sequence_backward":
                    both = f"&sequence_forward_{suffix}, &sequence_backward_{suffix}"
                    calls.append(f"    drive_segments({both}, {sizes}, teams);")
    lines += ["int main(void)", "{"]
    if interface.has_team:
        create, destroy = interface.team_symbols
        made = ", ".join(f"{create}({threads} | CELLGEN_TEAM_ALWAYS)" for threads in TEAMS)
        lines += [f"    void *const teams[] = {{{made}, NULL}};", *calls]
        lines += ["    for (int team = 0; teams[team]; ++team)", f"        {destroy}(teams[team]);"]
    else:
        lines += ["    void *const teams[] = {NULL};", *calls]
    lines += ['    printf("%lld calls\\n", (long long)drive_calls);', "    return 0;", "}", ""]
    return "\n".join(lines)


def _shapes(function: Function, quick: bool) -> Iterator[tuple[int, ...]]:
    """Sizes for the dimensions of a function, by name: a shape's letters are T, B, I, H."""
    order = "TBIH" if "T" in function.dims else "BIH"
    chosen, empty = SHAPES[len(order)], EMPTY[len(order)]
    for shape in (*chosen[:3], *empty[:1]) if quick else (*chosen, *empty):
        sizes = dict(zip(order, shape, strict=True))
        yield tuple({**OTHERS, **sizes}.get(name, 3) for name in function.dims)


def _table(interface: Interface, function: Function, suffix: str, c_type: str) -> list[str]:
    """Write the members of one struct of arguments, and calls that take sizes as an array."""
    names = interface.symbols(function, suffix)
    stem = f"{function.name}_{suffix}"
    sizes = ", ".join(f"sizes[{place}]" for place in range(len(function.dims)))
    members = list(_members(function))
    counts = [
        (name, what, axes)
        for name, _, argument in members
        if argument is not None and not argument.is_scalar
        for what, axes in (("count", argument.shape), ("width", argument.shape[2:]))
        if what == "count" or argument.over_time
    ]
    lines = [
        f"static int64_t {stem}_{name}_{what}(const int64_t *sizes)\n"
        f"{{\n    (void)sizes;\n    return {_product(axes, function.dims)};\n}}"
        for name, what, axes in counts
    ]
    lines.append(f"static const drive_member {stem}_members[] = {{")
    for name, kind, argument in members:
        counted = argument is not None and not argument.is_scalar
        count = f"{stem}_{name}_count" if counted else "NULL"
        value = MOVED.get(name, 0.0) if counted else 0.0
        value = argument.default if argument is not None and argument.is_scalar else value
        offset = f"offsetof({names.struct}, {name})"
        timed = argument is not None and argument.over_time
        width = f"{stem}_{name}_width" if timed else "NULL"
        is_saved = int(argument is not None and argument.saved)
        is_result = argument is not None and argument in function.results
        backward = function.name == "sequence_backward" and is_result
        is_summed = int(backward and not {"T", "B"} & set(argument.shape if argument else ()))
        is_final = int(argument is not None and argument.role == "final")
        flags = f"{is_saved}, {is_summed}, {is_final}"
        member = f'"{name}", {kind}, {offset}, {count}, {value}, {width}, {flags}'
        lines.append(f"    {{{member}}},")
    lines += ["};", f"static int {stem}_call(const int64_t *sizes, const void *args)", "{"]
    lines += [f"    return {names.call}({sizes}, (const {names.struct} *)args);", "}"]
    workspace = "NULL"
    if function.workspace:
        workspace = f"{stem}_workspace"
        lines += [f"static int64_t {workspace}(const int64_t *sizes, const void *options)", "{"]
        options = ", (const cellgen_options *)options" if function.team else ""
        lines += [
            "    (void)options;",
            f"    return {names.workspace_size}({sizes}{options});",
            "}",
        ]
    lines += [
        f'static const drive_function {stem} = {{"{names.call}", sizeof({c_type}), '
        f"sizeof({names.struct}), {stem}_call, {workspace}, {len(function.dims)}, "
        f"{int(function.team)}, {int(function.name == 'sequence_backward')}, "
        f"{len(members)}, {stem}_members}};",
        "",
    ]
    return lines


def _members(function: Function) -> Iterator[tuple[str, str, Argument | None]]:
    for argument in function.struct_members:
        kind = "SCALAR" if argument.is_scalar else "OPTIONAL" if argument.optional else "ARGUMENT"
        yield argument.name, f"DRIVE_{kind}", argument
    for result in function.results:
        kind = "SAVED" if result.saved else "GRADIENT" if result.optional else "RESULT"
        yield result.name, f"DRIVE_{kind}", result
    if function.workspace:
        yield "workspace", "DRIVE_WORKSPACE", None
        yield "workspace_bytes", "DRIVE_WORKSPACE_BYTES", None
    if function.team:
        yield "team", "DRIVE_TEAM", None
        yield "options", "DRIVE_OPTIONS", None


def _product(shape: tuple[str, ...], dims: tuple[str, ...]) -> str:
    axes = []
    for axis in shape:
        terms = [
            " * ".join([str(factor), *(f"sizes[{dims.index(dim)}]" for dim in term_dims(name))])
            for factor, name in axis_terms(axis)
        ]
        axes.append(f"({' + '.join(terms)})")
    return " * ".join(axes) or "1"

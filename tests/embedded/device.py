"""Exports on a Cortex-M4F under QEMU: results beside the desktop's, bytes and instructions.

Needs Debian's ``gcc-arm-none-eabi``, ``libnewlib-arm-none-eabi`` and ``qemu-system-arm``.
``python -m tests.embedded.device`` prints the table of docs/how-to/embedded.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cellgen.cells import SHIPPED
from cellgen.language.cell import Cell, definition_of
from cellgen.language.value import Role
from cellgen.runtime.names import c_name
from cellgen.targets.embedded.request import ExportRequest
from tests.embedded import FLAGS, Case, Export, asked_for, case, write

BOARD = Path(__file__).parents[2] / "examples/embedded/board"
CHIP = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
GCC, QEMU = "arm-none-eabi-gcc", "qemu-system-arm"
EMULATOR = (
    *(QEMU, "-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native", "-icount", "shift=0", "-kernel"),
)
HAS_BOARD = shutil.which(GCC) is not None and shutil.which(QEMU) is not None
STEPS = 50
"""Steps that instructions are counted over."""


def build(folder: Path, body: Path, main: Path, flags: Sequence[str] = ("-Os",)) -> Path:
    """Compile an export as every machine's compiler must, and a program around it."""
    strict = (GCC, *CHIP, *FLAGS, *flags, "-fno-math-errno", "-c", body, "-o", folder / "cell.o")
    subprocess.run(strict, check=True)
    image = folder / "program.elf"
    around = (GCC, *CHIP, "-std=gnu99", "-Wall", "-Wextra", "-O2", "-fno-strict-aliasing")
    linked = ("-nostartfiles", "-T", BOARD / "board.ld", "-lm", "-lc", "-lgcc", "-o", image)
    sources = (main, BOARD / "board.c", folder / "cell.o")
    subprocess.run((*around, f"-I{BOARD}", f"-I{body.parent}", *sources, *linked), check=True)
    return image


def run(image: Path) -> list[str]:
    """Run a program on the emulated board; the lines that it says."""
    done = subprocess.run(
        (*EMULATOR, image), capture_output=True, text=True, timeout=300, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"the board ended with {done.returncode}: {said}")
    return said.splitlines()


def sizes(path: Path) -> tuple[int, int]:
    """Bytes of code and constants, and of data, of an object or a program."""
    done = subprocess.run(("arm-none-eabi-size", path), capture_output=True, text=True, check=True)
    text, data, bss = map(int, done.stdout.splitlines()[1].split()[:3])
    return text, data + bss


def symbols(path: Path) -> set[str]:
    """What an object calls and does not have."""
    done = subprocess.run(
        ("arm-none-eabi-nm", "-u", path), capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in done.stdout.splitlines()}


def bits(name: str, array: np.ndarray) -> str:
    """Spell an array of float32 as words."""
    words = np.ascontiguousarray(array, np.float32).view(np.uint32).ravel().tolist()
    listed = ", ".join(f"0x{word:08x}u" for word in words) or "0"
    return f"static const uint32_t {name}[] = {{{listed}}};"


def main_of(export: Export, given: Case) -> str:
    """A program that runs, forms gradients and trains, and says the bits of all results."""
    name, arguments = export.name, []
    lines = ['#include "board.h"', f'#include "{name}.h"', "#include <string.h>"]
    named = {c_name(n): np.asarray(a) for n, a in given.arguments.items()}
    scalars = {c_name(n): v for n, v in {**export.definition.defaults, **given.arguments}.items()}
    start = []
    prologue = export.layout.cell.prologue
    for value in export.layout.cell.arguments:
        own = str(value.name)
        if value.role is Role.SCALAR:
            lines.append(bits(f"given_{own}", np.asarray(float(scalars[own]))))
            arguments.append(f"*(const float *)given_{own}")
            if prologue and value in prologue.arguments:
                start.append(arguments[-1])
        else:
            lines.append(bits(f"given_{own}", named[own]))
            arguments.append(f"(const float *)given_{own}")
    lines.append(bits("upstream", export.packed(export.layout.window, given.upstream)))
    lines.append(bits("begin", export.weights(given.arguments)))
    outputs = [m.name for m in export.layout.outputs.members]
    results = ", ".join(f"results.{output}" for output in outputs)
    call, begin = ", ".join(arguments), "".join(f", {one}" for one in start)
    lines.append(f"""
static {name}_weights weights;
static {name}_memory memory;
static {name}_training training;
static {name}_window results;

static float loss(const {name}_window *outputs, {name}_window *d_outputs, void *context)
{{
    (void)outputs;
    (void)context;
    memcpy(d_outputs, upstream, sizeof *d_outputs);
    return 1.5f;
}}

int main(void)
{{
    memcpy(&weights, begin, sizeof weights);
    {name}_start(&weights, &memory{begin});
    {name}_sequence(&weights, &memory, {name.upper()}_T, {call}, {results});
    board_say_bits(&results, sizeof results / 4);
    {name}_train_start(&training);
    {name}_train_gradients(&weights, &training, {call}, loss, 0);
    board_say_bits(&training.gradients, sizeof training.gradients / 4);
    {name}_train_start(&training);
    for (int each = 0; each < 2; ++each)
        if ({name}_train(&weights, &training, {call}, loss, 0, 0.01f) != 1.5f) return 1;
    board_say_bits(&weights, sizeof weights / 4);
    return 0;
}}
""")
    return "\n".join(lines)


def on_board(cell: type[Cell], folder: Path, flags: Sequence[str] = ("-Os",)):
    """Outputs, gradients and trained weights on the board, and on the desktop, as one array each.

    The third result is what the object of the export calls.
    """
    given = case(cell)
    asked = asked_for(given, "float", train=True)
    export = Export(cell, asked, folder)
    main = folder / "main.c"
    main.write_text(main_of(export, given), encoding="utf-8")
    said = run(build(folder, folder / f"{export.name}.c", main, flags))
    found = [
        np.array([int(word, 16) for word in line.split()], np.uint32).view(np.float32)
        for line in said
    ]
    forward = export.forward(given.arguments, given.sizes["T"])
    gradients = export.gradients(given.arguments, given.upstream)
    expected = [
        export.packed(export.layout.window, forward),
        np.concatenate([g.ravel() for g in gradients.values()]),
        export.trained(given.arguments, given.upstream, (0.01, 0.01)),
    ]
    return found, expected, symbols(folder / "cell.o")


def counting_main(name: str, train: bool, given: str) -> str:
    """A program that counts instructions of a step, or of a training step."""
    what = f"{name}_step(&weights, &memory, x{given})"
    if train:
        what = f"{name}_train(&weights, &training, x{given}, loss, 0, 0.01f)"
    loss = f"""
static {name}_training training;

static float loss(const {name}_window *outputs, {name}_window *d_outputs, void *context)
{{
    (void)context;
    for (int each = 0; each < (int)(sizeof *d_outputs / 4); ++each)
        ((float *)d_outputs)[each] = ((const float *)outputs)[each];
    return 0;
}}
"""
    return f"""#include "board.h"
#include "{name}.h"

static {name}_weights weights;
static {name}_memory memory;
static float x[{name.upper()}_I * {name.upper() + "_T" if train else "1"}];
{loss if train else ""}
int main(void)
{{
    for (int each = 0; each < (int)(sizeof weights / 4); ++each)
        ((float *)&weights)[each] = (float)(each % 7 - 3) * 0.1f;
    for (int each = 0; each < (int)(sizeof x / 4); ++each) x[each] = (float)(each % 5 - 2) * 0.5f;
    {name}_start(&weights, &memory);
    {f"{name}_train_start(&training);" if train else ""}
    board_paint_stack();
    board_count_from_here();
    for (int each = 0; each < {STEPS}; ++each) {what};
    board_say_number("instructions", board_instructions() / {STEPS});
    board_say_number("stack", board_stack_used());
    return 0;
}}
"""


def measured(name: str, sizes_: dict[str, int], train: bool, flags: Sequence[str]):
    """Bytes of code, and of each struct, of stack, and instructions."""
    cell = next(c for c in SHIPPED if definition_of(c).name == name)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        asked = ExportRequest(sizes_, train=train)
        body, main = write(cell, asked, folder), folder / "main.c"
        export = Export(cell, asked, folder)
        scalars = [
            f", {float(export.definition.defaults[str(v.name)])!r}f"
            for v in export.layout.cell.arguments
            if v.role is Role.SCALAR
        ]
        main.write_text(counting_main(name, train, "".join(scalars)), encoding="utf-8")
        said = dict(line.split() for line in run(build(folder, body, main, flags)))
        return {
            "code": sizes(folder / "cell.o")[0],
            **export.bytes,
            **{what: int(count) for what, count in said.items()},
        }


TABLE = (
    ("gru", {"I": 8, "H": 32}),
    ("fast_grnn", {"I": 8, "H": 16}),
)


def table(flags: Sequence[str]) -> list[str]:
    """The table of the documents, in Markdown."""
    lines = [
        "| cell | | code | weights | buffers | stack | instructions |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, sizes_ in TABLE:
        for train in (False, True):
            found = measured(name, sizes_, train, flags)
            buffers = found["training"] if train else found["memory"]
            what = "a training step, T = 16" if train else "a step"
            lines.append(
                f"| `{name}` {sizes_['I']}x{sizes_['H']} | {what} | {found['code']} | "
                f"{found['weights']} | {buffers} | {found['stack']} | {found['instructions']:,} |"
            )
    return lines


if __name__ == "__main__":
    given_flags = tuple(sys.argv[1:]) or ("-Os",)
    print("\n".join(table(given_flags)))

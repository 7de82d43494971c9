"""Count what "one call, one plan" is measured by: files that a call enters, records of its options.

Run ``python -m tests.count_paths`` for the table of docs/explanation/architecture.md, with what is
counted as words for these rows, or with ``--list`` for the files and records behind each figure.

- Files that a NumPy call enters: those of the package in which Python runs a function during a
  checked call of a function that has been called, made by C and by Python; and those whose
  functions can be reached from ``lstm_sequence_forward_f32`` by the names that bodies of functions
  call.
- Records of a call's options: classes and structs, or texts that are parsed, with three options
  or more.
- Files that carry an option: those of the package and the headers where its keyword stands as a
  name, an attribute, a keyword or a text by itself; not in comments and docstrings. The proofs,
  which try every option, do not count.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, INCLUDE = ROOT / "cellgen", ROOT / "generated/include"
CELL = ROOT / "generated/lstm/lstm.c"
ENTRY = "lstm_sequence_forward"

OPTION_NAMES = frozenset(
    [
        "reverse",
        "hold",
        "zero_output_for_mask",
        "last",
        "last_only",
        "outputs",
        "hidden",
        "partial",
        "every",
        "window",
        "per_row",
        "products",
        "checkpoint",
        "segment",
        "memory_limit",
        "flush",
        "flush_denormals",
        "batch_first",
        "mask",
        "reset",
    ]
)
"""Options of functions over time, and what they are called on the way to C."""
FEWEST = 3
"""Options that make a record one of a call's options."""
CALLS = ("cellgen/runtime", "cellgen/torch", "cellgen/jax", "cellgen/frameworks")


# --- files that a call enters -------------------------------------------------------------------


def python_files(*, in_c: bool) -> list[str]:
    """The files of the package that a checked call of NumPy enters, not the first one."""
    os.environ["CELLGEN_CALLS"] = "python"
    import numpy as np

    import cellgen
    from cellgen.runtime.call.compiled import EXTENSION

    EXTENSION.module = EXTENSION.require() if in_c else None
    loaded = cellgen.load("lstm")
    forward = cellgen.Kernel(loaded.interface, loaded.sources()).sequence_forward
    rng, items = np.random.default_rng(0), forward.function.arguments

    def drawn(steps: int) -> dict[str, np.ndarray]:
        sizes = {"T": steps, "B": 3, "I": 4, "H": 5}
        shapes = {item.name: [eval_axis(axis, sizes) for axis in item.shape] for item in items}
        return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}

    for _ in range(2):  # the first has the engine read, and the workspace made
        forward(**drawn(3))
    arguments, entered = drawn(3), set[str]()

    def note(frame: object, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    sys.setprofile(note)
    try:
        forward(**arguments)
    finally:
        sys.setprofile(None)
    inside = (Path(name) for name in entered if Path(name).is_relative_to(PACKAGE))
    return sorted(str(path.relative_to(ROOT)) for path in inside)


def eval_axis(axis: str, sizes: Mapping[str, int]) -> int:
    """The length of an axis."""
    from cellgen.runtime.abi import axis_length

    return axis_length(axis, dict(sizes))


FUNCTION = re.compile(
    r"^(?:CELLGEN_\w+ |static |inline |const |extern )*[\w ]+[ *]+"
    r"(?:CG_\w+\()?(\w+)\)?\([^;{}]*\)\s*\{",
    re.M,
)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def c_files() -> list[str]:
    """The files of C whose functions a forward pass over time can reach."""
    bodies: dict[str, list[tuple[str, str]]] = {}
    for path in _included():
        text = COMMENT.sub(" ", path.read_text(encoding="utf-8"))
        for found in FUNCTION.finditer(text):
            name = str(path.relative_to(ROOT))
            bodies.setdefault(found[1], []).append((name, _block(text, found.end())))
    reached, waiting = set[str](), [name for name in bodies if name.startswith(ENTRY)]
    waiting += ["cg_run_forward"]
    files = {str(CELL.relative_to(ROOT))}
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for file, body in bodies.get(name, ()):
            files.add(file)
            waiting += [called for called in re.findall(r"\w+", body) if called in bodies]
    return sorted(files)


def _included() -> list[Path]:
    """The files that a kernel is compiled from: its own, the driver's, and what they include."""
    waiting, found = [CELL, *sorted(INCLUDE.glob("*.c"))], list[Path]()
    while waiting:
        path = waiting.pop(0)
        if path in found or not path.exists():
            continue
        found.append(path)
        names = re.findall(r'#include "(\w+[\w.]*)"', path.read_text(encoding="utf-8"))
        waiting += [folder / name for name in names for folder in (path.parent, INCLUDE)]
    return found


def _block(text: str, start: int) -> str:
    """What stands between a brace and the one that closes it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start:end]


# --- records of options -------------------------------------------------------------------------


def _package() -> Iterator[Path]:
    for folder in CALLS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def records() -> list[str]:
    """The records of a call's options in the package and in C."""
    found = []
    for path in _package():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and len(OPTION_NAMES & _fields(node)) >= FEWEST:
                found.append(f"{path.relative_to(ROOT)} {node.name}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = set(re.findall(r"(?:int|bool) (\w+)", node.value))
                if len(OPTION_NAMES & names) >= FEWEST:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} (text)")
    sources = sorted([*INCLUDE.glob("*.[hc]*"), *PACKAGE.rglob("*.[hc]")])
    for path in sources:
        text = COMMENT.sub(" ", path.read_text(encoding="utf-8"))
        for match in re.finditer(r"typedef struct\s*\w*\s*\{(.*?)\}\s*(\w+);", text, re.S):
            if len(OPTION_NAMES & set(re.findall(r"(\w+)\s*[;,]", match[1]))) >= FEWEST:
                found.append(f"{path.relative_to(ROOT)} {match[2]}")
    return found


def _fields(node: ast.ClassDef) -> set[str]:
    return {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


# --- files of an option -------------------------------------------------------------------------


def files_of(option: str) -> list[str]:
    """The files of the package and the headers that carry an option."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if option not in text or "options" not in text or path.is_relative_to(PACKAGE / "proof"):
            continue
        if any(option in _names(node) for node in ast.walk(ast.parse(text))):
            found.append(path)
    for path in sorted([*INCLUDE.glob("*.[hc]*"), *PACKAGE.rglob("*.[hc]")]):
        text = COMMENT.sub(" ", path.read_text(encoding="utf-8"))
        if re.search(rf"(?:->|\.|\b){option}\b", text):
            found.append(path)
    return [str(path.relative_to(ROOT)) for path in found]


def _names(node: ast.AST) -> tuple[object, ...]:
    """What a node names: an attribute, a keyword, a field or argument, or a text by itself."""
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    if isinstance(node, ast.keyword | ast.arg):
        return (node.arg,)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return (node.value,) if isinstance(node, ast.Constant) else ()


# --- targets ------------------------------------------------------------------------------------


def lowerings() -> list[str]:
    """Folders that plan a time loop from where a schedule says that its buffers live."""
    folders = [
        folder
        for parent in ("schedule", "targets")
        for folder in sorted((PACKAGE / parent).iterdir())
        if folder.is_dir()
    ]
    reading = re.compile(r"import [^\n]*\bStorage\b|\bStorage\.")
    return [
        str(folder.relative_to(ROOT))
        for folder in folders
        if any(reading.search(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    ]


MEASURES = {
    "files of Python that a NumPy call enters": partial(python_files, in_c=True),
    "files of Python that one enters which Python makes": partial(python_files, in_c=False),
    "files of C that it can reach": c_files,
    "records of a call's options": records,
    "files that carry the option `every`": lambda: files_of("every"),
    "files that carry the option `zero_output_for_mask`": lambda: files_of("zero_output_for_mask"),
    "lowerings of a time loop": lowerings,
}


def table(measures: Mapping[str, Callable[[], list[str]]] = MEASURES) -> str:
    """The figures as they stand in the documentation."""
    rows = [f"| {name} | {len(count())} |" for name, count in measures.items()]
    return "\n".join(["| what | count |", "|---|---|", *rows])


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--list"]
    chosen = {what: count for what, count in MEASURES.items() if not words or what in words}
    print(table(chosen))
    for what, count in chosen.items() if "--list" in sys.argv else ():
        print(f"\n{what}:", *count(), sep="\n  ")

"""Take scalar functions out of the runtime headers: those that some C calls, and what they call.

Input: the names of functions that a body calls. Output: definitions for one precision, under the
export's name, in the order of the headers. Fused multiply-adds are written as two operations and
``tanh`` and ``sigmoid`` are those of time loops, so that every machine gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from cellgen.runtime.paths import include_folder

HEADERS = ("cellgen_math.h", "cellgen_rows.h", "cellgen_running.h")
"""Where functions are defined, in the order in which they read each other."""

SUFFIXES = {"float": "f32", "double": "f64"}
_LIBM = {
    "float": ("float", "fabsf", "floorf", "rintf", "atan2f"),
    "double": ("double", "fabs", "floor", "rint", "atan2"),
}
_TEMPLATE = re.compile(r"#define CELLGEN_(?:SELECTIONS|ROWS)\((.*?)\)\s*\\\n(.*?)\nCELLGEN_", re.S)
_FUNCTION = re.compile(
    r"(?P<comment>/\*(?:(?!\*/).)*\*/\n)?"
    r"CELLGEN_MATH (?P<type>\w+) (?P<name>cellgen_\w+?)_(?P<suffix>f32|f64)\(",
    re.S,
)
_CONSTANT = re.compile(r"^#define (CELLGEN_[A-Z0-9_]+) .*$", re.M)
_NAME = re.compile(
    r"\bcellgen_(?:quick_)?(?P<function>\w+?)_f(?:32|64)\b(?P<is_call>(?=\())?"
    r"|\b(?P<constant>CELLGEN_[A-Z0-9_]+)\b"
)


def definitions(calls: Collection[str], dtype: str, export: str) -> list[str]:
    """Return what calls need: constants, then functions, each as a text under the export's name."""
    known = _known(dtype)
    needed = {name for name in calls if name in known}
    pending = list(needed)
    while pending:
        for name in _calls(known[pending.pop()]):
            if name in known and name not in needed:
                needed.add(name)
                pending.append(name)
    functions = [text for name, text in known.items() if name in needed]
    reads = {name["constant"] for text in functions for name in _NAME.finditer(text)}
    constants = [line for name, line in _constants() if name in reads]
    texts = [spelled(text, export) for text in functions]
    return (["\n".join(constants)] if constants else []) + texts


def spelled(definition: str, export: str) -> str:
    """The text of a function in an export, whose own it is where it is defined and called.

    >>> spelled("float cellgen_tanh_f32(float x)", "gru")
    'float gru_cg_tanh(float x)'
    """

    def named(name: re.Match[str]) -> str:
        own = f"{export}_" if name["is_call"] is not None else ""
        return name["constant"] or f"{own}cg_{name['function']}"

    return _NAME.sub(named, definition)


@cache
def _calls(definition: str) -> frozenset[str]:
    """The functions that a definition calls, and its own name."""
    names = _NAME.finditer(definition)
    return frozenset(name["function"] for name in names if name["is_call"] is not None)


@cache
def _constants() -> tuple[tuple[str, str], ...]:
    text = _plain((include_folder() / HEADERS[0]).read_text(encoding="utf-8"))
    return tuple((constant[1], constant[0]) for constant in _CONSTANT.finditer(text))


@cache
def _known(dtype: str) -> dict[str, str]:
    """The text of every function of a precision; the quick one where there are two."""
    suffix, known = SUFFIXES[dtype], dict[str, str]()
    for header in HEADERS:
        text = _expanded(_plain((include_folder() / header).read_text(encoding="utf-8")), dtype)
        for start in _FUNCTION.finditer(text):
            if start["suffix"] != suffix:
                continue
            short = start["name"].removeprefix("cellgen_")
            body = text[start.start() : _end_of(text, start.end())]
            if short.startswith("quick_"):
                short = short.removeprefix("quick_")
                if f"cellgen_{short}_{suffix}(" in body:
                    continue  # the same function by another name
            known[short] = _for_any_machine(body)
    return known


def _for_any_machine(body: str) -> str:
    """A definition without what a compiler, or a machine, is told in the header."""
    body = body.replace("CELLGEN_MATH ", "static ").replace("int64_t", "int")
    return body.replace(", rounded once where the machine has the instruction */", " */")


def _end_of(text: str, start: int) -> int:
    """Where the function ends whose arguments begin at ``start``."""
    depth, place = 0, text.index("{", start)
    while True:
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        place += 1
        if depth == 0:
            return place


def _expanded(text: str, dtype: str) -> str:
    """Write out the macros that define functions for both precisions."""

    def written(macro: re.Match[str]) -> str:
        names = [name.strip() for name in macro[1].split(",")]
        values = [SUFFIXES[dtype], *_LIBM[dtype]]
        body = re.sub(r"[ \t]*\\\n", "\n", macro[2].rstrip().rstrip("\\") + "\n")
        for name, value in zip(names[1:], values[1:], strict=False):
            body = re.sub(rf"\b{name}\b", value, body)
        body = re.sub(r"^    ", "", body.replace(f"##{names[0]}", values[0]), flags=re.M)
        return f"{body}\nCELLGEN_"

    return _TEMPLATE.sub(written, text)


def _plain(text: str) -> str:
    """Keep the branches of a compiler that has no fused multiply-add and was told nothing."""
    lines, states = [], [True]
    for line in re.sub(r"\\\n", "\\\\\n", text).split("\n"):
        word = line.strip().partition(" ")[0]
        if word in ("#if", "#ifndef", "#ifdef"):
            states.append(_holds(line))
        elif word in ("#else", "#elif"):
            states[-1] = not states[-1] and (word == "#else" or _holds(line))
        elif word == "#endif":
            states.pop()
        elif all(states):
            lines.append(line)
    return "\n".join(lines)


def _holds(line: str) -> bool:
    """Whether a condition of the headers holds: no macro is defined but the guards."""
    return "#ifndef" in line or line.strip() == "#if !defined(CELLGEN_HAS_FMA)"

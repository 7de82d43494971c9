"""Take scalar functions out of the runtime headers: those that some C calls, and what they call.

Input: the names of functions that a body calls. Output: definitions for one precision, under the
export's name, in the order of the headers. A header is read once, into words (``words_of``). Fused
multiply-adds are written as two operations and ``tanh`` and ``sigmoid`` are those of time loops, so
that every machine gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

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


@dataclass(frozen=True)
class FunctionName:
    """A function of the headers by its short name, where a text defines, calls or mentions it."""

    name: str
    is_call: bool

    def spelled(self, export: str) -> str:
        """Its name in an export, whose own it is where it is defined and called."""
        return f"{export}_cg_{self.name}" if self.is_call else f"cg_{self.name}"


@dataclass(frozen=True)
class ConstantName:
    """A constant of the headers, where a text reads it."""

    name: str

    def spelled(self, export: str) -> str:
        """Its name, which is the same in every export."""
        return self.name


@dataclass(frozen=True)
class HeaderText:
    """A text between names, as the header has it."""

    text: str

    def spelled(self, export: str) -> str:
        """The text."""
        return self.text


Word: TypeAlias = FunctionName | ConstantName | HeaderText


@dataclass(frozen=True)
class Definition99:
    """A function under its short name: its words, names and what stands between them."""

    name: str
    words: tuple[Word, ...]

    @property
    def calls(self) -> frozenset[str]:
        """The functions that it calls, itself left out."""
        names = {w.name for w in self.words if isinstance(w, FunctionName) and w.is_call}
        return frozenset(names - {self.name})

    @property
    def constants(self) -> frozenset[str]:
        """The constants that it reads."""
        return frozenset(w.name for w in self.words if isinstance(w, ConstantName))

    def spelled(self, export: str) -> str:
        """Its text in an export of that name."""
        return "".join(word.spelled(export) for word in self.words)


def definitions(calls: Collection[str], dtype: str, export: str) -> list[str]:
    """Return what calls need: constants, then functions, each as a text under the export's name."""
    known = _known(dtype)
    needed = {name for name in calls if name in known}
    pending = list(needed)
    while pending:
        for name in known[pending.pop()].calls:
            if name in known and name not in needed:
                needed.add(name)
                pending.append(name)
    functions = [one for name, one in known.items() if name in needed]
    reads = {name for one in functions for name in one.constants}
    constants = [line for name, line in _constants() if name in reads]
    texts = [one.spelled(export) for one in functions]
    return (["\n".join(constants)] if constants else []) + texts


def words_of(text: str) -> tuple[Word, ...]:
    """Take the definition of a function in the headers apart.

    >>> [word.spelled("gru") for word in words_of("float cellgen_tanh_f32(float x)")]
    ['float ', 'gru_cg_tanh', '(float x)']
    """
    words: list[Word] = []
    end = 0
    for name in _NAME.finditer(text):
        words.append(HeaderText(text[end : name.start()]))
        if name["constant"]:
            words.append(ConstantName(name["constant"]))
        else:
            words.append(FunctionName(name["function"], name["is_call"] is not None))
        end = name.end()
    return (*words, HeaderText(text[end:]))


@cache
def _constants() -> tuple[tuple[str, str], ...]:
    text = _plain((include_folder() / HEADERS[0]).read_text(encoding="utf-8"))
    return tuple((constant[1], constant[0]) for constant in _CONSTANT.finditer(text))


@cache
def _known(dtype: str) -> dict[str, Definition99]:
    """Every function of a precision by its short name; the quick one where there are two."""
    suffix, known = SUFFIXES[dtype], dict[str, Definition99]()
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
            known[short] = Definition99(short, words_of(_for_any_machine(body)))
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

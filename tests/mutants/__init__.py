"""Mutants: cellgen with one mistake planted, and who notices.

A mutant is a place in a source and what stands there instead: four are named, for what only a
certain proof sees; the others are drawn, by a seed, from rules such as ``+`` in place of ``-``.
Each is made in a copy of the checkout, so that nothing of it stays.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COPIED = ("cellgen", "templates", "tests", "generated", "pyproject.toml")
"""What a copy has: a proof generates its kernels; tests load those of ``generated``, and choose by
what is there which cells cover others."""

CELLS = ("gru", "qrnn", "delta_net", "layer_norm_gru")
"""Whose proofs are asked: gates, an output that is no state, a matrix of a row, sums over units."""


@dataclass(frozen=True)
class Mutant:
    """``old`` at a place of a file becomes ``new``. ``cells`` are those whose proofs are asked."""

    file: str
    place: int
    old: str
    new: str
    cells: tuple[str, ...] = CELLS
    name: str = ""

    def __str__(self) -> str:
        line = (ROOT / self.file).read_text(encoding="utf-8")[: self.place].count("\n") + 1
        said = self.name or f"{' '.join(self.old.split())} -> {' '.join(self.new.split())}"
        return f"{self.file}:{line} {said}"

    def applied(self, text: str) -> str:
        """The text of the file with the mistake. Raises ValueError where the place is another."""
        if text[self.place : self.place + len(self.old)] != self.old:
            raise ValueError(f"{self.file} has no {self.old!r} at {self.place}")
        return text[: self.place] + self.new + text[self.place + len(self.old) :]


def _named(
    name: str, file: str, line: str, old: str, new: str, cells: tuple[str, ...] = CELLS
) -> Mutant:
    """A mutant of the one line of a file. Raises ValueError where it stands not once."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if text.count(line) != 1 or line.count(old) != 1:
        raise ValueError(f"{name}: {file} has {line!r} {text.count(line)} times, expected once")
    return Mutant(file, text.index(line) + line.index(old), old, new, cells, name)


def named() -> tuple[Mutant, ...]:
    """Mistakes that small sizes, options given together, or one thread hide; and wasted work."""
    headers = "generated/include"
    return (
        _named(
            "halves of a vector are subtracted",
            f"{headers}/cellgen_vectors.h",
            "for (int i = 0; i < width; ++i) part[i] += part[i + width];",
            "+=",
            "-=",
            ("delta_net",),
        ),
        _named(
            "threads do not meet after a stage",
            f"{headers}/cellgen_steps.inc.h",
            "if (barrier && (stage->barrier || (watched && i + 1 == part->stages)))",
            "barrier && (stage",
            "barrier && 0 && (stage",
            ("gru_block_cell",),
        ),
        _named(
            "a reverse run is not gathered",
            f"{headers}/cellgen_place.inc.h",
            "b->modes.gather = b->at.validity || !evenly_strided || b->modes.rows != CG_BATCH",
            " || !evenly_strided",
            "",
            ("gru",),
        ),
        _named(
            "an exponential of a head is computed for every entry of its matrix",
            "cellgen/program/rewrites/inlined.py",
            "and (len(target.shape) < 3 or target.shape == readers[0].target.shape)",
            "len(target.shape) < 3",
            "True",
            ("mlstm",),
        ),
    )


def named_for_tests() -> tuple[Mutant, ...]:
    """Mistakes in what a composition and a row compute, which no cell that ships is made of."""
    return (
        _named(
            "a logarithm of two exponentials by their sum, as chunks combine it",
            "cellgen/language/ops/running.py",
            "below = choose(is_infinite, 0, -absolute(after - before))",
            "after - before",
            "after + before",
        ),
        _named(
            "a logarithm of two exponentials by their sum",
            "cellgen/language/ops/composed.py",
            "below = where(is_infinite, 0, least - largest)",
            "least - largest",
            "least + largest",
        ),
    )


RULES = {
    "c": (
        (r"(?<=[\w\])] )\+(?= [\w(])", "-"),
        (r"(?<=[\w\])] )-(?= [\w(])", "+"),
        (r"(?<=[\w\])] )<(?= [\w(])", "<="),
        (r"(?<=[\w\])] )>(?= [\w(])", ">="),
        (r"(?<=[\w\])] )==(?= [\w(])", "!="),
        (r"&&", "||"),
        (r"\|\|", "&&"),
        (r" \+ 1\b", ""),
        (r" - 1\b", ""),
        (r"\bcellgen_team_barrier\([^;]*\);", ";"),
    ),
    "py": (
        (r"(?<=[\w\])] )\+(?= [\w(])", "-"),
        (r"(?<=[\w\])] )-(?= [\w(])", "+"),
        (r"(?<=[\w\])] )==(?= [\w(\"'])", "!="),
        (r"(?<=[\w\])] )<(?= [\w(])", "<="),
        (r"(?<=[\w\])] )and(?= [\w(])", "or"),
        (r"(?<=[\w\])] )or(?= [\w(])", "and"),
        (r"\bnot in\b", "in"),
        (r"\bif not (?=\w)", "if "),
        (r"(?<!strict=)(?<!frozen=)\bTrue\b", "False"),
        (r"\b1\b(?=[\])])", "0"),
    ),
    "j2": (
        (r"(?<=[\w\])}] )\+(?= [\w({])", "-"),
        (r"\bif not (?=\w)", "if "),
        (r"(?<=[\w\])}] )==(?= [\w({])", "!="),
        (r"(?<=[\w\])}] )<(?= [\w({])", "<="),
        (r" \+ 1\b", ""),
    ),
}
"""Patterns, and what stands there instead, by language."""

PLACES = {
    "driver": ("c", ("generated/include/*.h",), ("cuda", "alone", "compiler", "team.h", "int8")),
    "templates": ("j2", ("templates/c/*.j2",), ()),
    "compiler": (
        "py",
        (
            "cellgen/program/**/*.py",
            "cellgen/schedule/**/*.py",
            "cellgen/targets/*.py",
            "cellgen/targets/c/*.py",
        ),
        ("/online", "/traces", "/probes", "/regularise", "/head.py", "/chunks", "/recurrence"),
    ),
    "program": ("py", ("cellgen/program/**/*.py",), ()),
    "schedule": ("py", ("cellgen/schedule/**/*.py",), ()),
    "c": ("py", ("cellgen/targets/*.py", "cellgen/targets/c/*.py"), ()),
    "cuda": ("py", ("cellgen/targets/cuda/*.py",), ()),
    "runtime": ("py", ("cellgen/runtime/**/*.py",), ()),
    "language": ("py", ("cellgen/language/*.py", "cellgen/language/cell/*.py"), ()),
    "operators": ("py", ("cellgen/language/ops/*.py",), ()),
    "headers": ("c", ("generated/include/*.h", "generated/include/*.cuh"), ()),
}
"""Where mutants are drawn, in which language, and what is left out: of those that proofs are asked
about, what no proof of C runs."""

SHARES = {"driver": 14, "templates": 4, "compiler": 22}
SHARES_OF_TESTS = {
    "program": 4,
    "schedule": 4,
    "c": 3,
    "cuda": 3,
    "runtime": 4,
    "language": 3,
    "operators": 3,
    "headers": 3,
}


def drawn(seed: int, shares: Mapping[str, int] = SHARES) -> Iterator[Mutant]:
    """Draw mutants: so many of each kind of source, each of another line."""
    for kind, count in shares.items():
        rng = random.Random(f"{seed} {kind}")
        every = list(_places(kind))
        rng.shuffle(every)
        lines: set[str] = set()
        for mutant in every:
            where = str(mutant).split()[0]
            if len(lines) < count and where not in lines:
                lines.add(where)
                yield mutant


@cache
def _places(kind: str) -> tuple[Mutant, ...]:
    """One place for each rule and line that it fits, comments and texts apart."""
    return tuple(_found(kind))


def _found(kind: str) -> Iterator[Mutant]:
    language, patterns, left_out = PLACES[kind]
    files = sorted({p for pattern in patterns for p in ROOT.glob(pattern)})
    for path in files:
        file = path.relative_to(ROOT).as_posix()
        if any(part in f"/{file}" for part in left_out):
            continue
        text = path.read_text(encoding="utf-8")
        bare = _without_prose(text, language)
        for pattern, new in RULES[language]:
            for found in re.finditer(pattern, bare):
                yield Mutant(file, found.start(), text[found.start() : found.end()], new)


_PROSE = {
    "c": r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*#[^\n]*",
    "py": r'""".*?"""|#[^\n]*|f?"(?:\\.|[^"\\\n])*"|^from [^\n]*|raise [^\n]*',
    "j2": r"\{#.*?#\}|/\*.*?\*/",
}


def _without_prose(text: str, language: str) -> str:
    """The text with blanks in place of comments, texts and directives."""
    flags = re.DOTALL | re.MULTILINE
    return re.sub(_PROSE[language], lambda f: re.sub(r"[^\n]", " ", f[0]), text, flags=flags)


def copy_of_checkout(folder: Path, names: Sequence[str] = COPIED) -> Path:
    """Copy what proofs and tests need into a folder, over what is there of the same name."""
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)
    return folder

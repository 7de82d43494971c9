"""Kernels are the same whatever an author calls things: no name of theirs meets one of an author.

Two modules of one cell, with tame names and with names that templates use, are compared word for
word: within each kernel one name stands for one, both ways.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize

import pytest

from cellgen.pipeline import generate
from cellgen.targets.triton.names import is_taken, template_words
from tests.targets.hostile_cells import TEXTS, may_be_named, named, slots

FORMED = ("{}_p", "{}_first", "{}_states", "{}_added_0", "{}_then", "{}_carry", "{}_ptr", "{}_at")
"""What kernels form of a name, as names of others."""
ARRAYS = ("marks", "rows_marks", "rows_0", "rows_0_ends", "x_shares", "step_before", "h_shares")
HOSTILE = sorted(
    {
        *(word for word in template_words() if word.isidentifier() and may_be_named(word)),
        *filter(may_be_named, (*ARRAYS, "tl", "math", "range", "min", "max", "lambda_", "λ")),
    }
)


QUICK = TEXTS[:1]
of_each = pytest.mark.parametrize(
    "text",
    [
        pytest.param(t, id=t.split()[1][:-7], marks=[] if t in QUICK else pytest.mark.slow)
        for t in TEXTS
    ],
)


def tame(text: str) -> dict[str, str]:
    """Names that no template has."""
    return {slot: f"{'size' if slot.isupper() else 'value'}{slot.lower()}" for slot in slots(text)}


def words_of(function: str) -> list[str]:
    """What a kernel consists of, without comments and its docstring."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(function).readline)
    return [t.string for t in tokens if t.type not in skipped and '"""' not in t.string]


def kernels_of(module: str) -> list[list[str]]:
    tree = ast.parse(module)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len({function.name for function in functions}) == len(functions)
    return [words_of(ast.get_source_segment(module, function) or "") for function in functions]


def assert_renamed(text: str, names: dict[str, str]) -> None:
    """Hold kernels to those of tame names, but for names, one for one."""
    modules = [generate(named(text, n), ["triton"]).text("_triton.py") for n in (tame(text), names)]
    plain, hostile = map(kernels_of, modules)
    assert len(plain) == len(hostile)
    for theirs, ours in zip(plain, hostile, strict=True):
        assert len(theirs) == len(ours), (theirs[1], names)
        pairs = {(a, b) for a, b in zip(theirs, ours, strict=True)}
        changed = [(a, b) for a, b in pairs if a != b]
        assert all(a.isidentifier() for a, _ in changed), (theirs[1], changed)
        for side in zip(*pairs, strict=True):
            assert len(set(side)) == len(side), (theirs[1], [p for p in changed if p[0] != p[1]])
    plans = [ast.literal_eval(module.partition("PLAN = ")[2]) for module in modules]
    first, second = ([len(p["arrays"]), *(len(m["buffers"]) for m in p["memories"])] for p in plans)
    assert first == second, names


@of_each
def test_names_of_templates_meet_none_of_an_author(text: str) -> None:
    """A fourth of all names for each cell; dimensions in the order that parameters have."""
    every, place = slots(text), TEXTS.index(text)
    dims = sorted(slot for slot in every if slot.isupper())
    others = [slot for slot in every if slot not in dims]
    mine = HOSTILE[place :: len(TEXTS)]
    for n in range(0, len(mine), len(every)):
        chosen = mine[n : n + len(every)]
        names = zip([*dims, *others], chosen, strict=False)
        assert_renamed(text, tame(text) | dict(names))


@of_each
def test_what_kernels_form_of_a_name_meets_none_of_an_author(text: str) -> None:
    """``s`` and ``s_p``: a variable of one is no parameter of the other."""
    states = [slot for slot in slots(text) if "{" + slot + "}_prev" in text]
    others = [slot for slot in slots(text) if slot not in states and not slot.isupper()]
    state = tame(text)[states[-1]]
    taken = [form.format(state) for form in FORMED]
    assert_renamed(text, tame(text) | dict(zip(others, taken, strict=False)))


def test_every_identifier_of_a_template_is_reserved() -> None:
    words = [word for word in template_words() if word.isidentifier() and not word.startswith("_")]
    assert {"tl", "ck", "S", "step", "held", "begins", "G_last", "unit"} <= set(words)
    free = [w for w in words if not w.startswith("d_") and not is_taken(w)]
    assert not [word for word in free if not keyword.iskeyword(word)]

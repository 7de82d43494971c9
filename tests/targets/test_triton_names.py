"""Kernels are the same whatever an author calls things: no name of theirs meets one of an author.

Two modules of one cell, with tame names and with names that templates use, are compared word for
word: within each kernel one name stands for one, both ways.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from cellgen.pipeline import generate
from cellgen.program.chunks import form_over_time
from cellgen.targets.triton.names import is_taken, template_words
from tests.targets.hostile_cells import TEXTS, may_be_named, named, slots

pytestmark = pytest.mark.of_numpy
SUMMED = re.compile(r"(_terms|_total)?(_\d+)?$")
"""How values end that a backward pass forms for a gradient."""
ARRAYS = ("marks", "rows_marks", "rows_0", "rows_0_ends", "x_shares", "step_before", "h_shares")
HOSTILE = sorted(
    {
        *(word for word in template_words() if word.isidentifier() and may_be_named(word)),
        *filter(may_be_named, (*ARRAYS, "tl", "math", "range", "min", "max", "lambda_", "λ")),
    }
)
of_each = pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=[pytest.mark.slow][: name != "Scan"])
        for name, text in TEXTS.items()
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
    every, place = slots(text), [*TEXTS.values()].index(text)
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
    formed = [w for w in own_words(text) if w.startswith(f"{state}_") and may_be_named(w)]
    assert len(formed) > len(others), formed
    for n in range(0, len(formed), len(others)):
        chosen = zip(others, formed[n : n + len(others)], strict=False)
        assert_renamed(text, tame(text) | dict(chosen))


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXTS.items()])
def test_every_identifier_of_a_kernel_is_a_value_or_reserved(text: str) -> None:
    words = own_words(text)
    assert {"tl", "step"} <= {*words}
    assert not [word for word in words if not is_taken(word)]


def own_words(text: str) -> list[str]:
    """What kernels of a cell with tame names call their own; pointers with and without ``_p``.

    A gradient is taken as what it is of: ``variable`` renames ``d_s`` as it does ``s``.
    """
    cell = named(text, tame(text))
    module = generate(cell, ["triton"]).text("_triton.py")
    plan = module.partition("PLAN = ")[2]
    kernels = [
        node
        for node in ast.parse(module).body
        if isinstance(node, ast.FunctionDef) and repr(node.name) in plan
    ]
    words = {word for kernel in kernels for word in identifiers(kernel)}
    words |= {word.removesuffix("_p").removesuffix("_ptr") for word in words}
    form = form_over_time(cell.definition)
    programs = [*form.pre.values(), *filter(None, [form.post])]
    values = {str(one.target) for program in programs for one in program.statements}
    values |= {*tame(text).values(), *ast.literal_eval(plan)["arrays"]}
    of = {w: SUMMED.sub("", w.removeprefix("d_")) if w.startswith("d_") else w for w in words}
    own = {w.removeprefix("d_") for w in words - values if of[w] not in values}
    return sorted(w for w in own if not w.startswith("_"))


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.arg):
            yield node.id if isinstance(node, ast.Name) else node.arg

"""Rendering: templates and contexts fit exactly; what an author writes cannot break the text."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from cellgen import Bias, Cell, H, I, Input, State, Weight, tanh
from cellgen.cells import (
    GRU,
    LSTM,
    LTC,
    MGU,
    Elman,
    FastGRNN,
    GRUBlockCell,
    LayerNormLSTM,
)
from cellgen.errors import DerivationError
from cellgen.language.value import B, Role, Value
from cellgen.pipeline import generate, schedule_of, sequence_of
from cellgen.runtime.interface_file import interface_of
from cellgen.runtime.names import c_name
from cellgen.runtime.paths import include_folder, templates_folder
from cellgen.targets import PlannedCell, render, templates
from cellgen.targets.c import descriptor, sequence
from cellgen.targets.c.loops import Inverses
from cellgen.targets.c.source import BodyContext, HeaderContext, PlanContext
from cellgen.targets.c.tables import COLUMNS
from cellgen.targets.c_expressions import c_expression
from cellgen.targets.source import InitContext
from cellgen.targets.templates import check_template

CONTEXTS = {
    "c/cell.c.j2": BodyContext,
    "c/cell.h.j2": HeaderContext,
    "c/plan.inc.h.j2": PlanContext,
    "c/init.py.j2": InitContext,
}


def keys(context: type) -> set[str]:
    return {item.name for item in dataclasses.fields(context)}


@pytest.mark.parametrize("template", CONTEXTS)
def test_templates_read_exactly_what_their_context_has(template: str) -> None:
    check_template(template, keys(CONTEXTS[template]))


@pytest.mark.parametrize("template", CONTEXTS)
@pytest.mark.parametrize("change", ["a key without use", "a variable without key"])
def test_templates_and_contexts_that_differ_are_refused(template: str, change: str) -> None:
    found = keys(CONTEXTS[template])
    wrong = found | {"surplus"} if change == "a key without use" else found - {"head"}
    with pytest.raises(DerivationError, match=f"template {template} reads") as caught:
        check_template(template, wrong)
    assert caught.value.code == "render.template"


def test_every_template_that_takes_a_context_is_in_the_table() -> None:
    parts = {
        "stages.j2",
        "sequence.j2",
        "descriptor.j2",
    }  # macros: their arguments are documented there
    found = {path.name for path in (templates_folder() / "c").glob("*.j2")}
    assert found - parts == {Path(name).name for name in CONTEXTS}


def test_broken_templates_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(templates_folder(), tmp_path / "templates")
    body = tmp_path / "templates" / "c" / "cell.c.j2"
    monkeypatch.setattr(templates, "templates_folder", lambda: tmp_path / "templates")
    original = body.read_text()
    body.write_text(original + "{{ surprise }}")
    with pytest.raises(DerivationError, match="surprise"):
        generate(GRUBlockCell)
    # A missing attribute is no free variable; StrictUndefined refuses it.
    body.write_text(original + "{{ head.surprise }}")
    templates.environment_of.cache_clear()
    with pytest.raises(jinja2.UndefinedError, match="surprise"):
        generate(GRUBlockCell)
    templates.environment_of.cache_clear()


def test_templates_hold_no_arithmetic_and_no_type_tests() -> None:
    for path in sorted((templates_folder() / "c").glob("*.j2")):
        tree = jinja2.Environment().parse(path.read_text(encoding="utf-8"))
        for node in tree.find_all((jinja2.nodes.Mul, jinja2.nodes.Div, jinja2.nodes.Sub)):
            pytest.fail(f"{path.name}:{node.lineno} computes")
        for node in tree.find_all(jinja2.nodes.Test):
            assert node.name in ("defined", "none"), f"{path.name}:{node.lineno} tests {node.name}"


def test_no_value_has_the_name_of_a_variable_of_the_templates() -> None:
    """In every function that has variables for a cell's values, of C and of CUDA, each other name
    is one that a value does not have in C."""

    class Zz(Cell):
        zz_x, zz_prev = Input(I), State(H)
        zz_w, zz_u, zz_b = Weight(I, H), Weight(H, H), Bias(H)
        zz_bar = zz_x @ zz_w + zz_prev @ zz_u + zz_b
        zz = tanh(zz_bar)

    source = generate(Zz)
    ours = set[str]()
    locals_of_cells = re.compile(r"^ +(const )?real \*?zz", flags=re.MULTILINE)
    for text in (source.text(".c"), source.text(".cu")):
        body = re.sub(r"/\*(?:.|\n)*?\*/|^#[^\n]*", "", text, flags=re.MULTILINE)
        functions = [
            f for f in re.split(r"^}.*\n", body, flags=re.MULTILINE) if locals_of_cells.search(f)
        ]
        assert len(functions) >= 4
        for function in functions:  # elsewhere the cell's names are members of structs
            words = set(re.findall(r"(?<![\w>.:])(?<!template )[A-Za-z]\w*", function))
            ours |= {word for word in words if "zz" not in word}
    ours -= {"adjoints", "step_validity", "step_resets"}  # of the workspace: names that are free
    assert {"tile", "begin", "nH", "block_rows"} <= ours
    assert sorted(word for word in ours if c_name(word) == word) == []


@pytest.mark.parametrize(
    "doc",
    [
        r"c = f *\odot c_prev",
        "*\\ int evil(void) { return 1; } /\\*",
        "*??/ int evil(void) { return 1; } /*",
        "*" + "\\" * 3 + "/ int evil;",
        "*\\\n/ int evil;",
        '""" + evil + """',
        'ends in a quote "',
        '\\"""',
        "a NUL \0, half a surrogate \ud800, \u202e turned around \x1b[2J",
        "",
    ],
)
def test_nothing_in_a_docstring_or_a_file_name_leaves_its_comment(doc: str) -> None:
    """Neither by its own characters, nor by what a preprocessor makes of them first: trigraphs are
    replaced, lines that end in a backslash joined."""
    calm, hostile = (
        render(
            PlannedCell.of(
                dataclasses.replace(Elman.definition, doc=text, origin=f"{text}:Elman"),
                schedule_of(Elman),
                sequence_of(Elman),
            )
        )
        for text in ("Calm.", doc)
    )
    for name, text in hostile.files.items():
        text.encode()
        assert "\0" not in text
        if name.endswith((".py", ".pyi")):
            plain = _without_docstring(calm.files[name])
            assert ast.dump(_without_docstring(text)) == ast.dump(plain)
        elif name == "interface.json":
            assert interface_of(text, name) == hostile.interface == calm.interface
        else:
            assert _without_comments(text) == _without_comments(calm.files[name])


def _without_docstring(text: str) -> ast.Module:
    module = ast.parse(text)
    assert ast.get_docstring(module)
    return ast.Module(module.body[1:], [])


def _without_comments(text: str) -> str:
    """What a C compiler sees: trigraphs, joined lines, comments."""
    joined = text.replace("??/", "\\").replace("\\\n", "")
    return re.sub(r"/\*.*?\*/", "", joined, flags=re.DOTALL)


def test_docstrings_cannot_end_a_comment_or_a_string() -> None:
    class Hostile(Cell):
        '''Ends */ a comment, a """string""" and a line \\'''

        h_prev = State(H)
        h = tanh(h_prev)

    source = generate(Hostile)
    assert source.text(".h").index("*/") == source.text(".h").index("not this file. */") + 15
    compile(source.init, "init.py", "exec")


def test_headers_name_origin_and_digest_and_nothing_of_the_machine() -> None:
    source = generate(GRUBlockCell)
    for content in source.files.values():
        assert "cellgen.cells.gru_block_cell:GRUBlockCell" in content
        assert source.interface.digest in content
        assert str(Path(__file__).parents[2]) not in content


def test_what_divides_a_whole_row_is_inverted_once() -> None:
    """A division for each unit takes as long as ten products."""
    a, b = Value("a", (B, H), Role.TEMPORARY), Value("b", (B, H), Role.TEMPORARY)
    scale = Value("scale", (B, 1), Role.TEMPORARY)
    whole = (a - scale / H) / (scale**2 * H) + tanh(b / scale) / b
    inverses = Inverses({scale}, [whole])
    assert {str(name): c_expression(value) for value, name in inverses.names.items()} == {
        "inverse1": "1 / (scale * scale * (real)nH)",
        "inverse2": "1 / scale",
    }
    found = c_expression(inverses.used_in(whole))
    assert found == "(a - scale / (real)nH) * inverse1 + cg_tanh(b * inverse2) / b"
    assert c_name("inverse1") == "inverse1_"


@pytest.mark.parametrize(
    ("cell", "asked", "always"),
    [
        (LSTM, ["f", "g", "i", "o"], ["c", "h"]),
        (GRU, ["n", "r", "s", "z"], ["h"]),
        (MGU, ["n"], ["f", "h"]),  # its other product reads f
        (FastGRNN, ["h_bar", "z"], ["h"]),
        (Elman, [], ["h"]),
        (  # beside a sum over units: what a loop cannot leave out and be made of vectors
            LayerNormLSTM,
            ["tanh_tanh_pre"],
            ["c", "h", "sigmoid_f_bar", "sigmoid_i_bar", "tanh_g_bar"],
        ),
    ],
    ids=str,
)
def test_what_is_saved_is_written_only_if_asked_for(cell, asked, always) -> None:
    """A store for each unit that nobody reads took a tenth of a GRU's forward pass; what another
    stage of the step reads, states and outputs are written always."""
    body = generate(cell, ("c",)).text(".c")
    begin = body.index("_sequence_forward_forward_1)")
    forward = body[begin : body.index("/* ---- ", begin)]
    stores = re.findall(r"^ *(if \(keeps\) )?(\w+)_row(?:_\d)?\[unit\] = ", forward, re.MULTILINE)
    assert sorted({name for condition, name in stores if condition}) == asked
    assert {name for condition, name in stores if not condition} >= set(always)
    assert not {name for condition, name in stores if not condition} & set(asked)
    assert ("const int keeps = " in forward) == bool(asked)


STRUCT = re.compile(r"typedef struct \{\n((?:.|\n)*?)\n\} (\w+);")
MEMBER = re.compile(r"(?:const )?\w+ \*?(\w+(?:, \w+)*);")


def test_what_stands_above_a_table_are_the_members_of_its_struct() -> None:
    text = (include_folder() / "cellgen_driver.h").read_text()
    bodies = {
        name: re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL) for body, name in STRUCT.findall(text)
    }
    members = {name: ", ".join(MEMBER.findall(body)) for name, body in bodies.items()}
    columns = {kind: names.split(";")[0] for kind, names in COLUMNS.items()}
    assert columns == {kind: members[kind] for kind in columns}


@pytest.mark.parametrize("cell", [GRU, LSTM, LTC], ids=lambda cell: cell.definition.name)
def test_every_table_of_a_plan_says_what_its_columns_are(cell: type[Cell]) -> None:
    plan = generate(cell, ("c",)).text("_plan.inc.h")
    lines = plan.splitlines()
    tables = [
        n for n, line in enumerate(lines) if re.match(r"static const (cellgen|int16_t)", line)
    ]
    of_values = [n for n in tables if re.search(r" \w+_(values|dims)\[", lines[n])]
    assert len(tables) - len(of_values) > 20
    for number in set(tables) - set(of_values):
        assert lines[number - 1].startswith("/* "), lines[number]
    stages = plan.count("CELLGEN_IS_")
    assert plan.count("/* kind, barrier */") == stages
    members = cell.definition.with_role(Role.WEIGHT)
    assert all(re.search(rf"\}}, /\* \d+ {value.name} \*/", plan) for value in members)


def test_the_c_of_a_cell_is_what_a_person_reads() -> None:
    """Equations, each beside its loop; tables stand in a file of their own."""
    body = generate(GRU, ("c",)).text(".c")
    assert body.count("\n") <= 600
    assert "static const cellgen_" not in body
    assert '#include "gru_plan.inc.h"' in body


def test_a_cell_beyond_the_limits_of_the_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "USES", 4)
    with pytest.raises(
        DerivationError, match=r"lstm\.\w+: \d+ arrays in one stage, expected at most 4"
    ):
        generate(LSTM)


def test_python_and_c_know_the_same_limits() -> None:
    header = (include_folder() / "cellgen_driver.h").read_text()
    found = {n: int(v) for n, v in re.findall(r"#define CELLGEN_(\w+)_MAX (\d+)", header)}
    assert found == {
        "DIMS": sequence.DIMENSIONS,
        "EXTENTS": sequence.LENGTHS,
        "MEMORY": sequence.MEMORY,
        "USES": sequence.USES,
        "WORDS": descriptor.MEMBERS + 4,
    }

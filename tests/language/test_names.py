"""Names: what a cell may call its values, and what it is told otherwise."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess

import pytest

from cellgen import Cell, H, Input, State, Weight, cumsum, max, sigmoid, softmax, tangent, tanh
from cellgen.errors import DeclarationError
from cellgen.language.names import (
    cell_name,
    check_argument,
    check_cell_name,
    check_identifier,
    check_name,
    snake_case,
)
from cellgen.proof.check import check
from cellgen.runtime.abi import c_dim
from cellgen.runtime.call.backward import SequenceBackward
from cellgen.runtime.call.forward import SequenceForward
from cellgen.runtime.call.function import KernelFunction
from cellgen.runtime.device.function import CudaFunction
from cellgen.runtime.names import OPTIONS, c_member, c_name, reserved_by, spelled
from cellgen.runtime.options import ROWS
from cellgen.runtime.paths import include_folder
from tests.name_cells import TAKEN


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("lambda", "Python"),
        ("match", "Python"),
        ("int", "C"),
        ("tanh", "C"),
        ("template", "C++"),
        ("and_eq", "C++"),
        ("threadIdx", "CUDA"),
        ("I", "common C macros"),
        ("linux", "common C macros"),
        ("unix", "common C macros"),
        ("isless", "common C macros"),
        ("si_pid", "common C macros"),
        ("NAN", "C for macros"),
        ("UINT8_MAX", "C for macros"),
        ("M_PIf", "C for macros"),
        ("SYS_read", "C for macros"),
        ("pthread_once", "C for macros and threads"),
    ],
)
def test_reserved_names_are_refused_with_the_owner_and_a_name_that_would_do(
    name: str, owner: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        check_name(name, "weight")
    text = str(caught.value)
    assert text.startswith("[declaration.name] weight ")
    assert f"{name!r} is reserved by {owner}" in text
    suggestion = re.search(r"for example to '(\w+)'", text)
    assert suggestion is not None
    check_name(suggestion[1], "weight")


@pytest.mark.parametrize(
    "name", ["", "1x", "_x", "x_", "x__y", "x 1", "größe", "x-y", "x\n", "_", "h_"]
)
def test_names_that_are_no_identifiers_everywhere_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="is no valid name: use ASCII or Greek letters"):
        check_identifier(name, "input")


def test_derived_prefix_is_refused_with_a_name_that_would_do() -> None:
    with pytest.raises(DeclarationError, match=r"'d_x' starts with d_, .* to 'x_value'"):
        check_name("d_x", "input")


@pytest.mark.parametrize(
    "name",
    ["x", "h_prev", "W1", "W_z", "U", "c_bar", "gamma", "s_1", "d", "reset", "step", "nH", "cg_x"],
)
def test_names_of_papers_are_accepted(name: str) -> None:
    check_name(name, "weight")


@pytest.mark.parametrize("name", ["α", "Σ", "λ_prev", "w_Δ", "Δt", "lambda_", "int_", "dot2_max_"])
def test_greek_letters_and_the_habit_for_reserved_words_are_accepted(name: str) -> None:
    check_name(name, "weight")
    assert re.fullmatch(r"[A-Za-z]\w*", c_name(name), re.ASCII)
    assert re.fullmatch(r"[A-Za-z]\w*", c_member(name), re.ASCII)


def test_names_in_c_are_what_the_author_wrote_unless_c_needs_them() -> None:
    """Of structs, members of the same name stand in the way, and macros; of variables, others."""
    both = {"h_prev": "h_prev", "W1": "W1", "real": "real_", "cg_tanh": "cg_tanh_", "int_": "int_"}
    both |= {"α": "alpha", "Σ": "Sigma", "λ": "lambda", "lambda_": "lambda", "Δt": "Deltat"}
    members = {"row": "row", "tile": "tile", "nH": "nH", "x_time": "x_time", "options": "options_"}
    variables = {"row": "row_", "tile": "tile_", "nH": "nH_", "x_time": "x_time_", "reset": "reset"}
    assert {name: c_member(name) for name in (*both, *members)} == both | members
    assert {name: c_name(name) for name in (*both, *variables)} == both | variables


class Spelled(Cell):
    """Values that are named otherwise in C, beside routines along units."""

    x, h_prev, lambda_ = Input(H), State(H), Weight(H)
    α = softmax(x * lambda_)
    row = max(α)
    int_ = cumsum(α)
    h = tanh(h_prev * row + sigmoid(int_) * max(int_) * tanh(int_ + x))


@pytest.mark.parametrize("made", [Spelled, tangent(Spelled)], ids=["cell", "tangent"])
def test_names_in_c_beside_sums_along_units(made: type[Cell]) -> None:
    report = check(made)
    assert [row.name for row in report.rows if row.verdict == "failed"] == []


def test_two_names_are_one_in_c_only_where_they_are_two_spellings_of_one() -> None:
    accepted = [*TAKEN, *(f"{name}_prev" for name in TAKEN), *(f"d_{name}" for name in TAKEN)]
    for spelling in (c_name, c_member):
        found: dict[str, str] = {}
        for name in accepted:
            assert spelled(found.setdefault(spelling(name), name)) == spelled(name)
            assert spelling(spelling(name)) == spelling(name)
    dims = {c_dim(name) for name in (*TAKEN, "H", "ow", "one", "eeded")}
    assert len(dims) == len(TAKEN) + 4
    assert dims.isdisjoint(c_name(name) for name in (*accepted, "nH", "now", "none", "n_ow"))


@pytest.mark.parametrize("language", ["c", "c++"])
def test_no_value_has_the_name_of_a_macro_of_the_runtime_headers(language: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    headers = ("cellgen_gemm.h", "cellgen_team.h", "math.h", "stdlib.h", "string.h")
    lines = "#define CELLGEN_PRECISION 32\n#include <cellgen_real.h>\n"
    lines += "".join(f"#include <{header}>\n" for header in headers)
    done = subprocess.run(
        [compiler, "-dM", "-E", "-x", language, f"-I{include_folder()}", "-"],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    macros = set(re.findall(r"^#define ([A-Za-z]\w*)", done.stdout, re.MULTILINE))
    assert "real" in macros
    for word in macros:
        assert reserved_by(word) is not None or word not in (c_name(word), c_member(word))


def test_argument_names_that_are_options_of_the_calls_are_refused_where_they_are_written() -> None:
    for name in OPTIONS:
        check_name(name, "value")
        with pytest.raises(
            DeclarationError, match=f"'{name}' is an argument of the kernel's funct"
        ):
            check_argument(name, "weight")
    keywords = {*ROWS, "out"}
    for function in (SequenceForward, SequenceBackward, KernelFunction, CudaFunction):
        given = inspect.signature(function.__call__).parameters.values()
        keywords |= {p.name for p in given if p.kind is p.KEYWORD_ONLY}
    assert keywords == set(OPTIONS)


def test_cells_are_not_named_like_headers_and_functions_of_the_runtime() -> None:
    for name in ("cellgen", "cellgen_team", "cg_tile", "math", "string", "double", "σ"):
        with pytest.raises(DeclarationError, match=f"cell {name!r}"):
            check_cell_name(name)
    names = {"Cellgen": "cellgen_cell", "Math": "math_cell", "Exp": "exp_cell", "Σ": "sigma"}
    assert {name: cell_name(name) for name in names} == names
    for name in names.values():
        check_cell_name(name)
    assert not [path for path in include_folder().glob("*") if path.stem.endswith("_cell")]


def test_cell_names_follow_class_names() -> None:
    names = {"GRUBlockCell": "gru_block_cell", "LSTM": "lstm", "SLSTM": "slstm", "CfC": "cf_c"}
    assert {name: snake_case(name) for name in names} == names

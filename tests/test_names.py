"""Names: what a cell may call its values, and what it is told otherwise."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from cellgen.errors import DeclarationError
from cellgen.language.names import check_identifier, check_name, reserved_by, snake_case
from cellgen.runtime.paths import include_folder


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
        ("pthread_once", "C for macros and threads"),
        ("row", "cellgen"),
        ("zeros", "cellgen"),
        ("needed", "cellgen"),
        ("nH", "cellgen"),
        ("cg_tanh", "cellgen"),
        ("definition_owner", "cellgen"),
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


@pytest.mark.parametrize("name", ["", "1x", "_x", "x_", "x__y", "x 1", "größe", "x-y", "x\n"])
def test_names_that_are_no_identifiers_everywhere_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="is no valid name: use ASCII letters"):
        check_identifier(name, "input")


def test_derived_prefix_is_refused_with_a_name_that_would_do() -> None:
    with pytest.raises(DeclarationError, match=r"'d_x' starts with d_, .* to 'x_value'"):
        check_name("d_x", "input")


@pytest.mark.parametrize("name", ["x", "h_prev", "W1", "W_z", "U", "c_bar", "gamma", "s_1", "d"])
def test_names_of_papers_are_accepted(name: str) -> None:
    check_name(name, "weight")


@pytest.mark.parametrize("language", ["c", "c++"])
def test_no_macro_of_the_runtime_headers_is_accepted_as_a_name(language: str) -> None:
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
    assert sorted(name for name in macros if reserved_by(name) is None) == []


def test_cell_names_follow_class_names() -> None:
    names = {"GRUBlockCell": "gru_block_cell", "LSTM": "lstm", "SLSTM": "slstm", "CfC": "cf_c"}
    assert {name: snake_case(name) for name in names} == names

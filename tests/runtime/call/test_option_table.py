"""An option of functions over time is one row of one table."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

import cellgen
from cellgen.runtime.build.library import Types
from cellgen.runtime.device.cuda_abi import cuda_cdef
from cellgen.runtime.names import OPTIONS
from cellgen.runtime.numbers import NUMBERED, as_numbers, c_numbers, from_numbers, torch_arguments
from cellgen.runtime.options import (
    BACKWARD,
    BY_TYPE,
    FORWARD,
    NONE,
    OF_OPTIONS,
    ROWS,
    SWITCH,
    TABLE,
    Options,
    c_members,
    taken_by,
)
from cellgen.runtime.paths import PACKAGE, include_folder, templates_folder
from cellgen.runtime.stacks import OPTIONS as OF_STACKS
from cellgen.targets.c.options import NUMBERS_HEADER, numbers_header

MOST_FILES = 4
"""Files of the package and its templates that may name an option: the table, and its meaning.
Proofs, which try options, do not count."""


def files_that_name(word: str) -> list[str]:
    folders = ((PACKAGE, "*.py"), (templates_folder(), "*.j2"))
    paths = [path for folder, kind in folders for path in sorted(folder.rglob(kind))]
    paths = [path for path in paths if not path.is_relative_to(Path(PACKAGE) / "proof")]
    named = re.compile(rf"\b{word}\b")
    return [
        path.relative_to(Path(PACKAGE).parent).as_posix()
        for path in paths
        if named.search(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("name", ["last_only"])
def test_an_option_stands_in_few_files(name: str) -> None:
    found = files_that_name(name)
    assert "cellgen/runtime/options.py" in found
    assert len(found) <= MOST_FILES, found


@pytest.mark.parametrize("function", [FORWARD, BACKWARD])
def test_signature_and_help_are_those_of_the_table(function: str) -> None:
    found = cellgen.load("gru").functions[function]
    parameters = inspect.signature(found).parameters
    arguments = [a.name for a in found.function.arguments if not a.saved]
    assert list(parameters) == [*arguments, "out", *(o.name for o in taken_by(function))]
    for option in taken_by(function):
        assert parameters[option.name].default == option.default_in(function)
        assert f"    {option.name}: {option.text}\n" in (found.__doc__ or "")


def test_no_argument_of_a_cell_has_the_name_of_an_option() -> None:
    assert set(ROWS) < set(OPTIONS)


def test_members_of_the_structs_are_those_of_the_table() -> None:
    found = {name: field.type for name, field in Types({}).typeof("cellgen_options").fields}
    assert list(found) == [member.name for member in c_members()]
    for member in c_members():
        assert (
            found[member.name].cname.split()
            == member.c_type.replace("const ", "").replace("**", "* *").split()
        )
    on_device = cuda_cdef(cellgen.load("gru").interface)
    for member in c_members():
        assert member.declared in on_device


def test_numbers_are_what_c_reads() -> None:
    usual = c_numbers(NONE)
    names = (
        *("reverse", "hold", "last", "partial", "every", "window", "per_row", "products"),
        *("checkpoint", "flush"),
    )
    assert usual == dict(zip(names, (0, 1, 0, 0, 1, 0, 0, 0, 0, 0), strict=True))
    chosen = Options(reverse=True, zero_output_for_mask=True, window=7)
    assert {n: v for n, v in c_numbers(chosen).items() if v != usual[n]} == {
        "reverse": 1,
        "hold": 0,
        "window": 7,
    }


def test_what_bridges_hand_on_is_what_the_call_said() -> None:
    names = ("h", "c")
    chosen = Options(
        reverse=True,
        zero_output_for_mask=True,
        outputs=("c",),
        every=3,
        window=4,
        products=BY_TYPE,
        checkpoint=5,
        flush_denormals=True,
    )
    numbers = as_numbers(chosen, 0b10)
    assert len(numbers) == len(NUMBERED) == torch_arguments().count(",") + 1
    assert from_numbers(numbers, names) == chosen
    for products in ("full", "bf16", "int8"):
        alone = replace(NONE, products=products)
        assert from_numbers(as_numbers(alone), names) == alone


def test_the_header_of_numbers_is_that_of_the_table() -> None:
    header = (include_folder() / NUMBERS_HEADER).read_text(encoding="utf-8")
    assert header == numbers_header()
    members = re.findall(r"options->(\w+) = ", header)
    assert members == [option.c[0].name for option in NUMBERED]


def test_every_option_of_a_call_says_what_becomes_of_it() -> None:
    assert [f.name for f in fields(Options)] == [o.name for o in OF_OPTIONS]
    assert len(ROWS) == len(TABLE)
    for option in TABLE:
        assert option.text, option
        assert option.functions, option
        if option.kind == SWITCH:
            assert option.default is False, option
    # What is tried by no case of `cellgen check`: the arrays and the order, which every case has,
    # and what changes no result.
    untried = {o.name for o in OF_OPTIONS if not o.tried}
    proved_elsewhere = {"per_row", "gradients", "products", "outputs"} & untried
    assert untried - proved_elsewhere == {
        *("lengths", "mask", "reset", "reverse"),
        *("plan", "packed", "flush_denormals", "memory_limit"),
    }


def test_a_stack_takes_what_the_table_says() -> None:
    assert set(OF_STACKS) == {o.name for o in TABLE if o.layers}
    assert "plan" not in OF_STACKS

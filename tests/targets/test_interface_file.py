"""``interface.json``: what a kernel takes, as a file that says it all and is held to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellgen.cells import Elman
from cellgen.errors import BuildError
from cellgen.pipeline import generate
from cellgen.runtime.folders import read_interface
from cellgen.runtime.interface_file import interface_of
from tests.conftest import VARIANTS
from tests.cover import each_of, of_interface


@pytest.mark.parametrize(
    "cell", [*each_of(of_interface), *VARIANTS], ids=lambda cell: cell.definition.name
)
def test_what_is_written_is_read_as_it_was(cell) -> None:
    source = generate(cell, ["c"])
    text = source.files["interface.json"]
    assert interface_of(text, "here") == source.interface
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def changed(**fields: object) -> str:
    found = json.loads(generate(Elman, ["c"]).files["interface.json"])
    return json.dumps({**found, **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 100_000, "RecursionError"),
        ("{}", "KeyError: 'abi'"),
        (changed(abi=3), "is of ABI 3, expected"),
        (changed(functions=[{"name": "forward"}]), "KeyError"),
        (changed(functions=[3]), "interface of a cell"),
        (changed(functions=7), "interface of a cell"),
    ],
)
def test_what_is_no_interface_is_refused_with_the_remedy(text: str, said: str) -> None:
    with pytest.raises(BuildError, match=said) as caught:
        interface_of(text, "a/interface.json")
    assert "a/interface.json" in str(caught.value)
    assert "cellgen build" in str(caught.value)


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"has no interface.json that can be read .*cellgen build"):
        read_interface(tmp_path)

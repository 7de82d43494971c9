"""A call's options are one record, and few files carry an option: what a new one costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.count_paths import files_of, lowerings, records

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
RECORDS = {
    "cellgen/runtime/options.py Options",
    "generated/include/cellgen_numbers.h cellgen_numbers",
    "generated/include/cellgen_options.h cellgen_options",
}
"""The record in Python, and what is generated of it."""


def counted(what: str) -> int:
    """What the documentation says."""
    found = re.search(
        rf"^\| {re.escape(what)} \| \d+ \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.M
    )
    assert found is not None, what
    return int(found[1])


def test_a_call_has_one_record_of_options() -> None:
    assert {*records()} == RECORDS
    assert counted("records of a call's options") == len(RECORDS)


def test_one_folder_lowers_a_time_loop() -> None:
    assert lowerings() == ["cellgen/schedule/lower"]
    assert counted("lowerings of a time loop") == 1


@pytest.mark.parametrize("option", ["every", "zero_output_for_mask"])
def test_an_option_is_carried_by_as_few_files_as_the_documentation_says(option: str) -> None:
    assert len(files_of(option)) <= counted(f"files that carry the option `{option}`")


def test_a_call_enters_as_few_files_as_the_documentation_says() -> None:
    """In a process of its own. A call that fits forms no message."""
    measures = (
        "files of Python that a NumPy call enters",
        "files of Python that one enters which Python makes",
        "files of C that it can reach",
    )
    command = (sys.executable, "-m", "tests.count_paths", "--list", *measures)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures = dict(re.findall(r"^\| (files of .+ that .+?) \| (\d+) \|$", done.stdout, re.M))
    assert {*figures} == {*measures}
    for what, count in figures.items():
        assert int(count) <= counted(what), what
    assert "cellgen/runtime/call/faults.py" not in done.stdout

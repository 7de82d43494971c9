"""Kernels called from C: nothing is allocated, nothing read or written beyond what is given.

The program of ``tests/drive`` also runs under sanitizers: ``python -m tests.sanitize``. Here it
runs without, and must find mistakes that are put into the sources on purpose.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cellgen.cells import Elman, GRUBlockCell
from cellgen.pipeline import generate
from cellgen.runtime.paths import generated_folder, include_folder
from tests.conftest import Contexts
from tests.drive import INTERPOSED, DriveError, Driver
from tests.sanitize import ENVIRONMENT

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

FAST = ("-O0", "-ffp-contract=off", "-march=native")
COUNTING = (*FAST, *INTERPOSED)
MISTAKES = {
    "an allocation by another thread": (
        COUNTING,
        "    const int by_units = memory->by_units;",
        "    void *volatile bytes = thread == 2 ? malloc(64) : NULL;\n    free(bytes);\n"
        "    const int by_units = memory->by_units;",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): \d+ allocations in a call",
    ),
    "a workspace that is too small": (
        FAST,
        "    return 64 + CELLGEN_NAME(",
        "    return -64 + CELLGEN_NAME(",
        r"exit -\d+",  # a signal
    ),
    "a result that is not written": (
        FAST,
        "    for (int64_t row = own_begin; row < own_end; ++row) {",
        "    for (int64_t row = own_begin; row < own_end - 1; ++row) {",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): h_last\[21\] is NaN",
    ),
    "a workspace that is not measured": (
        FAST,
        "    if (args->workspace_bytes < needed || !args->workspace) return",
        "    if (!args->workspace) return",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): a byte too few: returned 0, expected 3",
    ),
    "a race": (
        ("-O0", "-g", "-fsanitize=thread"),
        "    cellgen_team_barrier(memory->team, thread);\n\n    const int by_units",
        "    const int by_units",
        r"data race",
    ),
}
"""What is wrong: flags, a text of the source, what stands there instead, what must be said."""


def run(cell, source: Path, flags: tuple[str, ...], work: Path) -> str:
    driver = Driver(generate(cell).interface, flags, quick=True)
    return driver.run(source, include_folder(), work, **ENVIRONMENT)


@pytest.mark.parametrize("cell", [Elman, GRUBlockCell, Contexts], ids=lambda c: c.definition.name)
def test_kernels_allocate_nothing_and_stay_within_their_arrays(cell, tmp_path):
    """Guard pages behind and before every array, read-only arguments, counted allocations."""
    name = cell.definition.name
    for file, text in generate(cell).files.items():
        (tmp_path / file).write_text(text)
    said = run(cell, tmp_path / f"{name}.c", COUNTING, tmp_path)
    assert int(said.split()[0]) > 500


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_kernel_are_found(mistake, tmp_path):
    flags, right, wrong, message = MISTAKES[mistake]
    folder = generated_folder() / "elman"
    text = (folder / "elman.c").read_text()
    assert right in text
    (tmp_path / "elman.c").write_text(text.replace(right, wrong))
    shutil.copy(folder / "elman.h", tmp_path)
    with pytest.raises(DriveError, match=message):
        run(Elman, tmp_path / "elman.c", flags, tmp_path)

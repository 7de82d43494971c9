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
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.driver import compiled
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.paths import generated_folder, include_folder
from tests.conftest import Contexts
from tests.cover import each_time
from tests.drive import INTERPOSED, DriveError, Driver
from tests.sanitize import ENVIRONMENT

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

FAST = ("-O0", "-ffp-contract=off", "-march=native")
COUNTING = (*FAST, *INTERPOSED)
PLAIN = ("-O0", "-ffp-contract=off")
"""The driver compiles in a third of the time; what it must find is no matter of vectors."""
MISTAKES = {
    "an allocation by another thread": (
        (*PLAIN, *INTERPOSED),
        "cellgen_forward.inc.h",
        "    int64_t turn = 0;",
        "    int64_t turn = 0;\n    void *volatile bytes = thread == 2 ? malloc(64) : NULL;\n"
        "    free(bytes);",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): \d+ allocations in a call",
    ),
    "a workspace that is too small": (
        PLAIN,
        "cellgen_row_block.inc.h",
        "    return bytes;\n}\n\nCELLGEN_STATIC int64_t cg_band_rows(",
        "    return bytes / 2;\n}\n\nCELLGEN_STATIC int64_t cg_band_rows(",
        r"exit -\d+",  # a signal
    ),
    "a result that is not written": (
        PLAIN,
        "cellgen_forward.inc.h",
        "    cg_final_states(b, own.own_begin, own.own_end);",
        "    cg_final_states(b, own.own_begin, own.own_end - 1);",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): h_last\[21\] is NaN",
    ),
    "a workspace that is not measured": (
        PLAIN,
        "cellgen_needs.inc.h",
        "    return space->bytes < 64 + bytes;",
        "    return 0;",
        r"elman_sequence_forward_f32\(3, 4, 5, 7\): a byte too few: returned 0, expected 3",
    ),
    "a race": (
        ("-O0", "-g", "-fsanitize=thread"),
        "cellgen_forward.inc.h",
        "cg_prepare_forward(b, thread, threads);\n    cellgen_team_barrier(b->team, thread);\n",
        "cg_prepare_forward(b, thread, threads);\n",
        r"data race|differs from the first call's",
    ),
}
"""What is wrong: flags, a file of the driver, a text of it, what stands there instead, what must
be said."""
FOUND_EACH_TIME = "a result that is not written"
"""Each takes a driver of its own: that mistakes are found is asked of the others by slow tests."""


def run(cell, source: Path, flags: tuple[str, ...], work: Path, include: Path | None = None) -> str:
    """With the time driver that users have, unless a folder has another."""
    users = None if include else compiled(SourceFiles.of_driver(include_folder()), compiler())
    driver = Driver(generate(cell).interface, flags, quick=True, joined=users)
    return driver.run(source, include or include_folder(), work, **ENVIRONMENT)


@pytest.mark.parametrize(
    "cell",
    [*(pytest.param(cell, marks=pytest.mark.slow) for cell in (Elman, GRUBlockCell)), Contexts],
    ids=lambda cell: cell.definition.name,
)
def test_kernels_allocate_nothing_and_stay_within_their_arrays(cell, tmp_path):
    """Guard pages behind and before every array, read-only arguments, counted allocations."""
    name = cell.definition.name
    for file, text in generate(cell).files.items():
        (tmp_path / file).write_text(text)
    said = run(cell, tmp_path / f"{name}.c", COUNTING, tmp_path)
    assert int(said.split()[0]) > 500


@pytest.mark.parametrize(
    "mistake",
    each_time((FOUND_EACH_TIME,), MISTAKES),
)
def test_mistakes_in_the_driver_are_found(mistake, tmp_path):
    flags, file, right, wrong, message = MISTAKES[mistake]
    include = tmp_path / "include"
    shutil.copytree(include_folder(), include)
    text = (include / file).read_text()
    assert right in text
    (include / file).write_text(text.replace(right, wrong))
    with pytest.raises(DriveError, match=message):
        run(Elman, generated_folder() / "elman" / "elman.c", flags, tmp_path, include)

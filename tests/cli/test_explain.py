"""``cellgen explain``: the plan of a cell over time prints, with figures that can be counted."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import cellgen
from cellgen.cells import (
    GRU,
    LIF,
    LSTM,
    GatedLinearAttention,
    GRUBlockCell,
    IndRNN,
    LSTMPeephole,
    Mamba,
    MinGRU,
)
from cellgen.cli.commands import app
from cellgen.cli.status import USAGE
from cellgen.errors import UsageError
from cellgen.language.value import B, H, I
from cellgen.pipeline import recurrence, sequence_of
from cellgen.runtime.host.plans import Constants
from cellgen.views.explain import explain, shape_of
from cellgen.views.explanation import ExplainedShape
from cellgen.views.figures import multiply_adds
from cellgen.views.on_device import on_device_section
from cellgen.views.segments import on_device
from tests.conftest import VARIANTS, Contexts
from tests.cover import each_of, of_all

SIZES = {"T": 100, "B": 32, "I": 128, "H": 256}


def rows(explanation, title):
    return [row.what for s in explanation.sections if s.title.startswith(title) for row in s.rows]


@pytest.mark.parametrize(
    "cell", [*each_of(of_all), *VARIANTS], ids=lambda cell: cell.definition.name
)
def test_every_cell_explains_itself(cell):
    found = explain(cell)
    text = str(found)
    assert found.recurrence == recurrence(cell)
    assert f"{found.recurrence.kind.value}, {found.recurrence.levels_text}" in text
    assert all(state.reason[:40] in " ".join(text.split()) for state in found.recurrence.states)
    assert max(map(len, text.splitlines())) <= 100
    json.dumps(found.as_dict())


def test_configurations_of_a_device_are_counted_and_where_the_choice_comes_from_is_said():
    """Scans, memories by their widths, more keys than lists are for, a cell without kernels."""
    scan, source = rows(explain(MinGRU), "form over time on")
    assert scan.startswith("rows_1: up to 15 configurations")
    assert source == "taken until then: the first of each list"
    lists = rows(explain(GatedLinearAttention), "form over time on")
    assert "23 up to 64, 22 up to 128, 10 up to 256, of 4 kernels" in lists[0]
    assert "more than 256 keys or values: one configuration" in lists[1]
    for keys, expected in ((100, "22 up to 128, of 4"), (512, "one configuration of small blocks")):
        sizes = {"K": keys, "D": 64}
        section = on_device_section(GatedLinearAttention, sizes)
        assert [expected in row.what for row in section.rows] == [True, False]
    assert rows(explain(Mamba), "form over time on") == ["none: torch's own operators"]
    (row,) = on_device_section(Mamba, {}).rows
    assert row.why.startswith("mamba: s_prev is a vector for each row and head")


def test_what_is_saved_is_counted():
    """LSTM keeps four gates, the GRU of cuDNN four values, the block cell what it returns."""
    for cell, values in ((LSTM, "4*H"), (GRU, "4*H")):
        (line,) = [row for row in rows(explain(cell), "kept") if row.startswith("saved: ")]
        assert line.endswith(f": {values} values a step and row")
    assert "saved: nothing" in rows(explain(GRUBlockCell), "kept")


def test_gradients_of_what_is_the_same_at_every_step_are_sums_over_steps():
    deferred = rows(explain(Contexts), "once, over")
    assert deferred[-1] == "sums over steps d_ctx, d_gain, d_shift"


def test_groups_and_reasons_of_a_gru():
    found = explain(GRU)
    (group,) = rows(found, "every step, forward")
    assert group.startswith("GEMM group, 4 slots of H units: x @ [")
    assert all(f"{w}_{gate}" in group for w in "wu" for gate in "zrn")
    assert "may be formed ahead" in " ".join(str(found).split())
    deferred = " ".join(rows(found, "once, over"))
    assert all(f"d_{name}" in deferred for name in ("w_z", "u_z", "w_n", "u_n"))


def test_figures_of_a_shape_are_the_kernels():
    """LSTM: 2 * 100 * 32 * 4 H (I + H) operations forward, twice that backward; four saved."""
    kernel = cellgen.load("lstm")
    found = rows(explain(LSTM, ExplainedShape(SIZES, threads=2), kernel), "figures at")
    products = 2 * 100 * 32 * 4 * 256 * (128 + 256)
    assert f"forward: {products / 1e9:.3g} Gflop" in found
    assert f"backward: {2 * products / 1e9:.3g} Gflop" in found
    assert "saved: 4 KiB a step and row, 12.5 MiB in all" in found
    library = kernel.library()
    for way in ("forward", "backward"):
        size = getattr(library.lib, f"lstm_sequence_{way}_workspace_size_f32")
        mebibytes = size(*SIZES.values(), library.ffi.NULL) / 2**20
        (line,) = [row for row in found if row.startswith(f"sequence_{way}: ")]
        assert line.endswith(f"; {mebibytes:.3g} MiB of workspace")


def test_multiply_adds_are_those_of_the_equations():
    programs = sequence_of(LSTM).programs
    assert (multiply_adds(programs.forward) - 4 * B * (I * H + H * H)).expand() == 0
    backward = multiply_adds(programs.reverse) + multiply_adds(programs.deferred)
    assert (backward - 8 * B * (I * H + H * H)).expand() == 0
    assert multiply_adds(sequence_of(MinGRU).programs.reverse) == 0


def test_a_shape_adds_figures_and_choices():
    kernel = cellgen.load("gru_block_cell")
    found = explain(GRUBlockCell, ExplainedShape(SIZES, threads=2), kernel)
    text = str(found)
    # 3 H (I + H) multiply-adds of 2 flops for 3200 rows
    assert "forward: 1.89 Gflop" in text
    plan = found.plans["sequence_forward"]
    assert plan == kernel.sequence_forward.plan(**SIZES, threads=2)
    assert "threads = 2, by_units = False" in text
    assert "32 rows are enough to hide that 1.12 MiB of weights come from afar" in text
    assert "row_blocks = 1" in text
    json.dumps(found.as_dict())
    small = ExplainedShape({"T": 1000, "B": 16, "I": 64, "H": 64}, threads=2)
    text = str(explain(GRUBlockCell, small, kernel))
    assert "row_blocks = 2: 16 rows in 2 blocks, each summed apart" in text


@pytest.mark.parametrize(
    ("changes", "threads", "reason"),
    [
        ({"B": 8}, 2, "1.12 MiB of weights do not fit a core's cache (768 KiB)"),
        ({"B": 1}, 2, "1 row for 2 threads is fewer than 3 for each"),
        ({"B": 2}, 1, "a tile of 2 rows is bound by reading weights, one of 192 is not"),
        ({"B": 64, "H": 64, "I": 64}, 2, "64 rows are enough"),
        ({"T": 1, "H": 64, "I": 64}, 2, "one step of 32 rows is too little to pack 96 KiB for"),
        ({"T": 1}, 1, "one step: 1.12 MiB are read where they lie, not packed"),
        ({}, 1, "nothing is shared"),
        ({}, 1, "32 rows fill a tile by themselves (more than 3)"),
    ],
)
def test_every_choice_has_its_reason(changes, threads, reason):
    kernel = cellgen.load("gru_block_cell")
    found = explain(GRUBlockCell, ExplainedShape({**SIZES, **changes}, threads), kernel)
    assert any(row.why == reason or reason in row.why for s in found.sections for row in s.rows)


def test_constants_of_another_machine():
    kernel = cellgen.load("gru_block_cell")
    large = Constants(weights_in_cache=2**30)
    found = explain(GRUBlockCell, ExplainedShape(SIZES, threads=2), kernel, large)
    assert not found.plans["sequence_forward"].by_units


@pytest.mark.parametrize(
    "text", ["100,32", "100,32,128,x", "100,32,128,-1", "1,2,3,4,5", "1,2,3," + "9" * 5000]
)
def test_a_wrong_shape_names_the_dimensions(text):
    function = next(f for f in cellgen.load("gru").interface.functions if f.team)
    with pytest.raises(UsageError, match="expected T,B,I,H, for example 100,32,128,128"):
        shape_of(function, text, 1, "float32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "float16"], "expected one of float32, float64"),
        (["--threads", "2"], "--threads decides nothing without --shape"),
        (["--shape", "3"], "expected T,B,I,H"),
    ],
)
def test_wrong_options_are_answered(options, message):
    done = CliRunner().invoke(app, ["explain", "gru_block_cell", *options])
    assert done.exit_code == USAGE
    assert message in done.stderr


def test_the_command_prints_text_and_json():
    plain = CliRunner().invoke(app, ["explain", "lstm_peephole"])
    assert plain.stdout == f"{explain(LSTMPeephole)}\n"
    found = CliRunner().invoke(app, ["explain", "lstm_peephole", "--json"])
    assert json.loads(found.stdout)["class"] == "dense"


@pytest.mark.parametrize("limit", [None, 10**9, 2_000_000])
def test_memory_over_time_says_what_is_chosen_and_what_it_costs(limit):
    """GRU: z, r, s, n are saved; a segment has h too; a forward pass more has 3 H (I + H)."""
    kernel = cellgen.load("gru")
    sizes = {"T": 100_000, "B": 4, "I": 64, "H": 64}
    found = rows(explain(GRU, ExplainedShape(sizes, 1, memory_limit=limit), kernel), "memory over")
    more = f"{100_000 * 4 * 3 * 64 * (64 + 64):,} multiply-adds in products more"
    saving = f"every step saves: {4 * 64 * 4 * 4 * 100_000 / 2**20:.3g} MiB"
    chosen, other, last = found
    if limit == 2_000_000:
        chosen, other = other, chosen
        assert other.startswith("chosen: checkpoints every 204 steps")
        assert chosen.startswith(saving)
    else:
        assert chosen.startswith(f"chosen: {saving}")
    assert other.endswith(more)
    assert "1 KiB and a segment with 5 KiB a step" in other
    assert last == "no step in reverse"
    with pytest.raises(UsageError, match=r"memory_limit is 9 bytes, expected 1,453,056 at least"):
        explain(GRU, ExplainedShape(sizes, 1, memory_limit=9), kernel)


def test_segments_of_time_are_explained_with_when_they_pay():
    title = "segments of time side by side"
    kernel = cellgen.load("ind_rnn")

    def at(**sizes):
        shape = ExplainedShape({"T": 65536, "B": 1, "I": 4, "H": 8} | sizes, threads=1)
        return rows(explain(IndRNN, shape, kernel), title)[-1]

    assert at() == (
        "at this shape: 64 segments of 1,024 steps a row; it pays where the cell forgets within a "
        "segment"
    )
    assert "it does not pay" in at(H=64)
    assert "it does not pay" in at(B=2)
    assert "it does not pay" in at(T=4096)
    assert at(T=1000) == "at this shape: one segment, step by step"
    dense = cellgen.load("gru")

    def of_gru(**sizes):
        shape = ExplainedShape({"T": 16384, "B": 1, "I": 4, "H": 64} | sizes, threads=1)
        return rows(explain(GRU, shape, dense), title)[-1]

    for sizes in ({}, {"H": 256, "T": 8192}, {"H": 32, "T": 8192}):
        assert of_gru(**sizes).endswith(
            "steps a row; with tolerance=1e-6 it pays where the cell forgets within a segment"
        )
    assert of_gru(H=8).endswith("steps a row; it pays where the cell forgets within a segment")
    for sizes in ({"H": 16}, {"T": 4096}, {"B": 2}, {"H": 512, "T": 65536}):
        assert "it does not pay" in of_gru(**sizes) or "one segment" in of_gru(**sizes)
    assert rows(explain(LIF), title) == ["refused: `s = spike(v - threshold)` jumps"]
    assert rows(explain(GRU), title)[-1].startswith("units read each other: from some 64 units")
    assert len(rows(explain(IndRNN), title)) == 1


def test_segments_on_a_device_are_explained_with_when_they_pay():
    functions = cellgen.load("ind_rnn").interface.functions

    def at(cell=IndRNN, **sizes):
        return on_device(cell.definition, functions, {"T": 4096, "B": 1, "I": 4, "H": 64} | sizes)

    assert at()[1] == "  they pay where the cell forgets within a segment"
    assert at(H=2048)[1].endswith("; segments=N cuts this shape, which is one where left out")
    for sizes in ({"T": 999}, {"H": 8000}, {"B": 125}):
        assert at(**sizes)[1] == "  they do not pay"
    assert "from 1,000 steps on, below some 8,000 numbers" in at(B=3)[2]
    assert at(B=3)[2].endswith("over all rows (192 here)")
    assert at(LIF)[1] == "  refused: `s = spike(v - threshold)` jumps"

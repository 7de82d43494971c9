"""Pages about cells: whole, self-contained, well-formed, and safe from what an author writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib
import numpy as np
import pytest
from typer.testing import CliRunner

import cellgen
from cellgen.bench.report import BenchReport
from cellgen.bench.shapes import NAMED
from cellgen.cells import GRU, LMU, SHIPPED, Elman, MinGRU
from cellgen.cli import report as command
from cellgen.cli.commands import app
from cellgen.errors import ArgumentError, UsageError
from cellgen.language.cell import Cell
from cellgen.pipeline import sequence_of, time_plans
from cellgen.proof.check import Report, Row
from cellgen.report.cell import ReportFindings, cell_section
from cellgen.report.chart import ChartLine, log_chart
from cellgen.report.comparison import compare
from cellgen.report.mathml import mathml
from cellgen.report.memory import STEPS, memory_lines
from cellgen.report.page import ReportPage
from cellgen.report.timeline import timeline_of
from cellgen.targets.interface import sequence_signatures
from cellgen.views.find import find_one

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "cpu-2-threads.json"
W2 = NAMED["W2"]

HOSTILE = '''
from cellgen import *

class Hostile(Cell):
    """A <script>alert(1)</script> & 'cell' </style><img src=//x.example/y> (N. <i>2020</i>)."""
    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = tanh(x @ w + h_prev @ u + b)
'''
ROWS = (
    Row("C against NumPy", 1e-15, 1e-13, "ok", "h, <b>d_x</b>"),
    Row("kernels", None, None, "failed", "<script>no compiler</script>"),
)


def parsed(page: str) -> Element:
    """Read a page as a browser does; any error of its syntax is one of the test."""
    return html5lib.HTMLParser(strict=True).parse(page)


def addresses(page: str) -> set[str]:
    """What a browser would fetch, but for pictures that stand in the page."""
    names = ("src", "href", "action", "data", "poster", "srcset")
    read = [e.attrib[name] for e in parsed(page).iter() for name in names if name in e.attrib]
    read += re.findall(r"url\(([^)]*)\)", page)
    return {found for found in read if not found.startswith(("#", "data:image/svg+xml;base64,"))}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> type[Cell]:
    path = tmp_path_factory.mktemp("cells") / "hostile.py"
    path.write_text(HOSTILE, encoding="utf-8")
    return find_one(str(path))


@pytest.fixture(scope="module")
def page(hostile: type[Cell]) -> str:
    result = command.read(RESULT)
    proof = Report("gru", 0, ROWS)
    cells = (GRU, hostile)
    sections = tuple(
        cell_section(cell, ReportFindings(W2, proof=proof, results=(result,))) for cell in cells
    )
    comparison = compare(cells, W2, {"gru": proof}, [result])
    return ReportPage("Two <cells>", "", sections, comparison, ()).html()


def test_a_page_is_well_formed_html(page: str) -> None:
    parsed(page)


def test_a_page_needs_nothing_else(page: str) -> None:
    assert addresses(page) == set()
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page


def test_nothing_that_an_author_writes_becomes_markup(page: str) -> None:
    assert "<script" not in page
    assert "<img src=//" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;script&gt;no compiler&lt;/script&gt;" in page
    assert "<title>Two &lt;cells&gt;</title>" in page
    assert page.count("</style>") == 1


def test_a_page_has_every_part(page: str) -> None:
    headings = re.findall(r"<h3>(.*?)</h3>", page)
    for part in (
        "Equations",
        "Graph of a step",
        "Derivation",
        "Plan over time",
        "Memory over time",
        "Speed",
        "Proof",
    ):
        assert part in headings
    assert "<h2>Side by side</h2>" in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_equations_are_mathml_for_every_cell() -> None:
    from cellgen.pipeline import programs_of
    from cellgen.report.equations import functions_of

    for cell in SHIPPED[::20]:
        for function in functions_of(programs_of(cell)):
            for row in function.rows:
                assert row.target.startswith("<math"), row
                assert row.expression.startswith("<math"), row


def test_latex_that_cannot_be_read_is_shown_as_it_is() -> None:
    assert mathml(r"\left(<b>") == r"<code>\left(&lt;b&gt;</code>"


def test_fractions_have_their_full_size() -> None:
    assert mathml(r"\frac{1}{x}").startswith('<math displaystyle="true"><mrow><mfrac>')


def test_brackets_grow_only_around_what_is_tall() -> None:
    assert "stretchy" not in mathml(r"\left(x\right)").replace('stretchy="false"', "")
    assert 'stretchy="true"' in mathml(r"\left(\frac{1}{x}\right)")


def test_the_timeline_is_the_plan() -> None:
    timeline = timeline_of(sequence_of(GRU), time_plans(GRU))
    phases = {phase.title: phase for phase in timeline.phases}
    assert list(phases) == [
        "Before the steps",
        "Forward",
        "In reverse",
        "Behind the reverse loop",
        "After the steps",
    ]
    (step,) = phases["Forward"].stages
    assert step.products == ("x @ [w_n, w_z, w_r]", "h_prev @ [u_z, u_r, u_n]")
    assert step.notes[0] == "products of x may be formed ahead, for a window of steps"
    late = [stage.kind for stage in phases["Behind the reverse loop"].stages]
    assert late == ["equations", "weight gradients", "products in tiles"]
    saved, outputs, kept = timeline.kept
    assert (len(saved.values), saved.size) == (4, "4*H a step and row")
    assert (len(outputs.values), len(kept.values)) == (1, 4)
    assert [lane.key for lane in timeline.lanes] == ["once", "forward", "reverse", "deferred"]
    for lane in timeline.lanes:
        assert all(0 <= start < end <= 100 for start, end in lane.bars)


def test_memory_over_time_is_that_of_the_interface() -> None:
    schedule = sequence_of(GRU)
    functions = sequence_signatures(schedule)
    lines = memory_lines(schedule, functions, W2.sizes_of(functions[0].dims), None)
    saved, fewest, outputs, every = lines
    row = 4 * W2.B * W2.H
    assert saved.points == tuple((steps, 4 * row * steps) for steps in STEPS)
    assert outputs.points == tuple((steps, row * steps) for steps in STEPS)
    assert every.points[0][1] > saved.points[0][1]
    assert fewest.points[0] == saved.points[0]
    assert fewest.points[-1][1] < saved.points[-1][1] / 40


def test_workspace_is_what_the_kernel_answers() -> None:
    schedule, kernel = sequence_of(Elman), cellgen.load("elman")
    functions = sequence_signatures(schedule)
    lines = memory_lines(schedule, functions, W2.sizes_of(functions[0].dims), kernel)
    names = [line.name for line in lines]
    assert names[-2:] == ["workspace, forward", "workspace, backward"]
    assert lines[-1].points[-1][1] < lines[-1].points[-2][1] * 2  # does not grow with T


def test_the_least_that_checkpoints_need_is_what_a_call_asks_for() -> None:
    kernel, schedule = cellgen.load("gru"), sequence_of(GRU)
    functions = sequence_signatures(schedule)
    sizes = {"B": 2, "I": 3, "H": 4}
    lines = memory_lines(schedule, functions, sizes, None)
    points = {line.name: dict(line.points) for line in lines}["the same from checkpoints"]
    sizes["T"] = 100
    given = {
        item.name: np.zeros([sizes[axis] for axis in item.shape], np.float32)
        for item in kernel.sequence_forward.function.arguments
    }
    with pytest.raises(ArgumentError, match=f"expected {points[100]:,} at least"):
        kernel.sequence_forward(**given, save=True, memory_limit=points[100] - 1)
    kernel.sequence_forward(**given, save=True, memory_limit=points[100])


def test_a_cell_that_saves_nothing_has_no_line_of_it() -> None:
    schedule = sequence_of(LMU)
    functions = sequence_signatures(schedule)
    lines = memory_lines(schedule, functions, W2.sizes_of(functions[0].dims), None)
    assert [line.name for line in lines] == ["outputs", "every value of the equations"]


def test_a_chart_is_the_same_bytes_each_time() -> None:
    line = ChartLine("a <b>", ((1, 8), (10, 64)))
    first, again = (log_chart([line], "T", str, str, "it") for _ in range(2))
    assert first == again
    assert "a &lt;b&gt;" in first


def test_the_command_proves_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proved = []

    def check_each(cells, *, seed, jobs, say, done):
        proved.extend(cells)
        return [Report(cell.definition.name, seed, ROWS) for cell in cells]

    monkeypatch.setattr(command, "check_each", check_each)
    out = tmp_path / "there" / "page.html"
    done = CliRunner().invoke(app, ["report", "elman", "nothing_like_it", "--out", str(out)])
    assert done.exit_code == 2, done.output
    assert "nothing_like_it" in done.stderr
    assert proved == [Elman]
    assert done.stdout == f"{out}\n"
    page = out.read_text(encoding="utf-8")
    parsed(page)
    assert "workspace, backward" in page
    assert '<span class="verdict failed">' in page


def test_a_shape_is_one(tmp_path: Path) -> None:
    assert command.shape_of("10,2,3,4").H == 4
    with pytest.raises(UsageError, match="expected one"):
        command.shape_of("W1,W2")


def test_a_benchmark_has_a_page(tmp_path: Path) -> None:
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    data["cases"] = [case for case in data["cases"] if case["cell"] == "gru"][:2]
    (tmp_path / "kept.json").write_text(json.dumps(data))
    out = tmp_path / "page.html"
    words = ["bench", "--from", str(tmp_path / "kept.json"), "--report", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    page = out.read_text(encoding="utf-8")
    parsed(page)
    assert page.index("<h2>Benchmark</h2>") < page.index('<article id="gru">')
    found = command.read(tmp_path / "kept.json")
    assert page.count('class="bar own"') == len(found.cases) == 2
    for case in found.cases:
        assert f"T, B, I, H = {case.shape.T}, " in page


def test_times_are_compared_within_a_run(tmp_path: Path) -> None:
    result: BenchReport = command.read(RESULT)
    comparison = compare((GRU, MinGRU), W2, {}, [result])
    assert comparison.times == ()  # MinGRU is not in it
    assert [row[0] for row in comparison.rows] == ["gru", "min_gru"]
    assert comparison.rows[0][3:6] == ("3*H**2 + 3*H*I", "6*H**2 + 6*H*I", "4*H")


def test_a_shape_that_is_none_is_told_by_the_option_s_name() -> None:
    words = ["report", "gru", "--no-prove", "--out", "never.html", "--shape", "0,1,1,1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "--shape: '0,1,1,1' is neither" in done.output

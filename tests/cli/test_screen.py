"""What the command line prints fits the terminal: nothing is cut, headings are bold."""

from __future__ import annotations

import sys

import pytest

from cellgen.cells import GRU, LSTM, MLSTM, GatedLinearAttention
from cellgen.cli import screen, terminal
from cellgen.cli.doctor import Finding
from cellgen.pipeline import programs_of
from cellgen.proof.check import Report, Row
from cellgen.views import chunks
from cellgen.views import show as views
from cellgen.views.explain import explain
from cellgen.views.layout import broken, columns_of, fitted

WIDTHS = (80, 60, 40)
NOTE = "T, B = 6, 5; 1; the first zero_output_for_mask, which is one word; " * 3
REPORT = Report(
    "any", 0,
    (
        Row("C float32 sequence_forward with options", 1.2e-7, 3.4e-6, "ok", NOTE),
        Row("C 3 threads", None, None, "skipped", "no threads here"),
        Row("a claim", 1.0, 0.5, "failed"),
    ),
)  # fmt: skip


@pytest.fixture
def is_terminal(monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def letters(text: str) -> list[str]:
    """All but blanks and marks of comments, in an order that columns do not change."""
    return sorted("".join(text.replace("#", "").split()))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cell", [LSTM, MLSTM], ids=lambda cell: cell.__name__)
def test_equations_fit_and_lose_no_word(cell, width):
    programs = programs_of(cell)
    text = views.as_text(programs, width)
    assert max(map(len, text.splitlines())) <= width
    whole = views.as_text(programs)
    assert letters(text) == letters(whole)
    assert max(map(len, whole.splitlines())) > 100


def test_chunks_and_plans_fit():
    assert max(map(len, chunks.as_text(GatedLinearAttention.definition, 80).splitlines())) <= 80
    for width in WIDTHS:
        assert max(map(len, explain(GRU).text(width).splitlines())) <= width


def test_a_line_is_broken_where_the_fewest_brackets_are_open():
    line = "  h = sigmoid(x @ w_i + h_prev @ u_i) * c + tanh(x @ w_g + h_prev @ u_g)"
    assert broken(line, 50) == [
        "  h = sigmoid(x @ w_i + h_prev @ u_i) * c",
        "      + tanh(x @ w_g + h_prev @ u_g)",
    ]
    assert broken("a" * 50, 20) == ["a" * 50]
    assert broken("", 20) == [""]
    assert fitted("  one\n\ntwo", 20) == "  one\n\ntwo"


def test_columns_break_their_first_and_keep_the_others():
    rows = [
        ("a = bbbbbbbbbb + cccccccccc + dddddddddd", "(B, H)", "recomputed"),
        ("a = b", "(B,)", ""),
    ]
    assert columns_of(rows, 53) == [
        "a = bbbbbbbbbb + cccccccccc",
        "    + dddddddddd                   (B, H)  recomputed",
        "a = b                              (B,)",
    ]
    assert columns_of(rows, 32) == [
        "a = bbbbbbbbbb + cccccccccc",
        "    + dddddddddd",
        "    (B, H)  recomputed",
        "a = b",
        "    (B,)",
    ]
    assert columns_of([], 32) == columns_of([]) == []


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_claims_fit_and_say_all(width):
    lines = list(terminal.claims(REPORT, width))
    assert max(map(len, lines)) <= width
    expected = " ".join(f"{row.name} {row.verdict} {row.note}" for row in REPORT.rows)
    head = "claim error bar verdict over"
    figures = "1.2e-07 3.4e-06 1.0e+00 5.0e-01"
    assert letters(" ".join(lines)) == letters(f"{head} {expected} {figures}")


@pytest.mark.parametrize("width", WIDTHS)
def test_what_the_doctor_found_fits_and_says_all(width, capsys, monkeypatch):
    flags = "-O3 -fPIC -std=gnu11 -march=native -fno-math-errno -fopenmp-simd"
    findings = [
        Finding("compiler flags", True, flags),
        Finding("my-package:extras.GRU", False, "no such module", "pip uninstall my-package"),
        Finding("torch", False, "torch is not installed", "pip install torch", required=False),
    ]
    monkeypatch.setattr(terminal, "columns", lambda: width)
    terminal.print_findings(findings)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    said = "".join(f"{f.name}{f.text}{f.fix}" for f in findings)
    assert letters(printed) == letters(f"ok missing absent {said}")
    monkeypatch.setattr(terminal, "columns", lambda: None)
    terminal.print_findings(findings)
    assert f"ok       compiler flags        {flags}\n" in capsys.readouterr().out


def test_headings_are_bold_on_a_terminal_alone(is_terminal, monkeypatch):
    text = "forward(x) -> h\n  # one step\n\nrecurrence: dense"
    assert terminal.with_headings(text) == (
        "\x1b[1mforward\x1b[0m(x) -> h\n  # one step\n\n\x1b[1mrecurrence\x1b[0m: dense"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.with_headings(text) == text


def test_columns_are_the_terminals(is_terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "77")
    assert screen.columns() == 77
    monkeypatch.setenv("COLUMNS", "3")
    assert screen.columns() == screen.LEAST_WIDTH
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert screen.columns() is None

"""Pages of `cellgen report` and fragments of notebooks in a browser: no error, they fit.

Needs what ``test_site`` needs but for the extra ``[docs]``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cellgen
from cellgen.cells import GRU
from cellgen.cli.commands import app
from cellgen.pipeline import sequence_of
from tests.in_browser.test_site import CHROMIUM, DESK, PHONE, WIDER, browser, opened

__all__ = ["browser"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
CELLS = ("gru", "slstm_heads", "lmu", "mamba2", "lif")
"""Levels, heads, a state of its own width, a matrix, and a step that switches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    page = str(place / "report.html")
    done = CliRunner().invoke(app, ["report", *CELLS, "--no-prove", "--out", page])
    assert done.exit_code == 0, done.output
    values = (GRU, sequence_of(GRU), cellgen.load("gru"))
    fragments = "<hr>".join(value._repr_html_() for value in values)
    text = f'<!DOCTYPE html><meta charset="utf-8"><title>notebook</title><body>{fragments}'
    (place / "notebook.html").write_text(text, encoding="utf-8")
    return place


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["report.html", "notebook.html"])
def test_a_page_fits_fetches_nothing_and_logs_no_error(browser, folder, page, width, scheme):
    with opened(browser, folder, page, width, scheme) as tab:
        tab.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
        assert tab.evaluate(WIDER) == []
        kept = os.environ.get("CELLGEN_SCREENSHOTS")
        if kept:
            path = Path(kept) / f"{Path(page).stem}-{width}-{scheme}.png"
            tab.screenshot(path=path, full_page=True)


def test_ink_and_paper_change_places_with_the_scheme(browser, folder):
    colours = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    found = []
    for scheme in ("light", "dark"):
        with opened(browser, folder, "report.html", DESK, scheme) as tab:
            found.append(tab.eval_on_selector("body", colours))
    (ink, paper), (dark_ink, dark_paper) = (
        [sum(map(int, c[4:-1].split(", ")[:3])) for c in pair] for pair in found
    )
    assert ink < paper
    assert dark_ink > dark_paper


def test_formulas_are_drawn(browser, folder):
    with opened(browser, folder, "report.html") as tab:
        sizes = tab.eval_on_selector_all(
            "table.equations math", "all => all.map(m => m.getBoundingClientRect().width)"
        )
        shown = [size for size in sizes if size]
        assert len(shown) > 100
        errors = tab.locator("math merror").count()
        assert errors == 0


def test_a_link_of_the_comparison_leads_to_its_cell(browser, folder):
    with opened(browser, folder, "report.html") as tab:
        tab.click("table.wrapped a[href='#lmu']")
        top = tab.eval_on_selector("#lmu", "e => e.getBoundingClientRect().top")
        assert abs(top) < 40

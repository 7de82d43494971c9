"""The gallery: a page for every cell, made by the code of show, explain and picture."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cellgen import Cell
from cellgen.cells import LSTM, SHIPPED, Elman, MinGRU
from cellgen.cli import gallery
from cellgen.cli.commands import app
from cellgen.errors import BuildError, DerivationError, UsageError
from tests.cover import each_of, of_equations

FOLDER = Path(__file__).parents[2] / "docs" / "gallery"
"""Where pages stand, so that their links lead to the declarations."""


@cache
def results() -> gallery.KeptResults:
    return gallery.kept_results()


@cache
def page(cell: type[Cell]) -> str:
    """The text of a cell's page, with what was measured."""
    return gallery.page(cell, results())[f"{cell.definition.name}.md"]


@pytest.mark.parametrize("cell", each_of(of_equations))
def test_every_cell_has_a_page_whose_links_lead_somewhere(cell):
    name, text = cell.definition.name, page(cell)
    assert text.startswith(f"# {cell.definition.class_name}\n")
    assert all(f"\n## {part}\n" in text for part in ("Equations", "Use", "Derivation", "Plan"))
    pages = {gallery.INDEX, f"{name}.svg"}
    others = {f"{other.definition.name}.md" for other in SHIPPED}
    links = {link for link in re.findall(r"\]\(([^)#:]+)\)", text) if "/" in link or "." in link}
    assert pages < links
    assert all((FOLDER / link).resolve().is_file() for link in links - pages - others)


def test_the_index_lists_every_cell():
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \|", gallery.index(SHIPPED), re.MULTILINE)
    assert listed == [cell.definition.name for cell in SHIPPED]


def test_pages_are_made_and_not_committed():
    ignored = (FOLDER.parents[1] / ".gitignore").read_text(encoding="utf-8")
    assert "/docs/gallery/\n" in ignored


def test_a_page_has_every_part():
    text = page(LSTM)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        *("## Equations", "## Use", "## Derivation", "## Plan", "## Speed", "## See also")
    ]
    assert r"\begin{align*}" in text
    assert r"\partial" in text.partition("## Derivation")[2].partition("## Plan")[0]
    assert "[cifg](cifg.md)" in text.partition("## See also")[2]
    assert "d_h_prev = " in text
    assert "recurrence\n  dense, 1 level a step" in text
    assert "| 100, 32, 128, 256 | 2 | forward |" in text


def test_every_measured_cell_has_its_speed_and_how_it_was_measured():
    measured = [c for c in SHIPPED if c.definition.name in results().zoo.work]
    assert len(measured) >= 45
    for cell in measured:
        text = page(cell)
        speed = text.partition("## Speed")[2]
        assert "`python -m benchmarks.zoo" in speed, cell
        assert "--into" not in speed
        assert "| 100, 32, 128, 256 | 2 | forward+backward |" in speed, cell


def test_speed_is_relative_to_the_built_in_cell_of_as_many_levels():
    text = page(MinGRU)
    assert "| T, B, I, H | threads | pass | ms | floor | by `lstm` |" in text


def test_speed_is_left_out_where_it_was_not_measured():
    assert "## Speed" not in gallery.page(MinGRU)["min_gru.md"]


def test_what_differs_is_told_and_written(tmp_path: Path) -> None:
    pages, failures = gallery.files((Elman,), gallery.NOT_MEASURED)
    assert failures == []
    gallery.write(tmp_path, pages)
    assert gallery.differences(tmp_path, pages) == []
    (tmp_path / "elman.md").write_text('old\n`cellgen.load("elman")`, declared in [here]\n')
    (tmp_path / "gone.svg").write_text("<svg><title>gone: one step, forward</title></svg>")
    found = gallery.differences(tmp_path, pages)
    assert [difference.path.name for difference in found] == ["elman.md", "gone.svg"]
    assert "-old" in found[0].text
    gallery.write(tmp_path, pages)
    assert gallery.differences(tmp_path, pages) == []


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    pages, _ = gallery.files((Elman,), gallery.NOT_MEASURED)
    notes = {name: tmp_path / name for name in ("notes.md", "logo.svg", "lstm.md")}
    for path in notes.values():
        path.write_text("mine")
    gallery.write(tmp_path, pages)
    assert gallery.differences(tmp_path, pages) == []
    for name in pages:
        (tmp_path / name).write_text("mine")
        with pytest.raises(UsageError, match=f"{name} is there and no page of a gallery"):
            gallery.write(tmp_path, pages)
        (tmp_path / name).unlink()
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def test_a_cell_without_a_page_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = gallery.page

    def page(cell: type[Cell], results: gallery.KeptResults) -> dict[str, str]:
        if cell is MinGRU:
            raise DerivationError("min_gru: a fault")
        return made(cell, results)

    monkeypatch.setattr(gallery, "page", page)
    monkeypatch.setattr("cellgen.cells.SHIPPED", (MinGRU, Elman))
    (tmp_path / "min_gru.md").write_text("the old page")
    for words in (("gallery",), ("gallery", "--check")):
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
        assert result.exit_code == 1
        assert "min_gru: a fault" in result.stderr
        assert "(elman.md)" in (tmp_path / "README.md").read_text()
        assert (tmp_path / "min_gru.md").read_text() == "the old page"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"):
        gallery.write(tmp_path / "file", {"a.md": ""})


def test_outside_a_checkout_a_folder_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "in_checkout", lambda: False)
    assert gallery.gallery_folder(Path("there")) == Path("there")
    with pytest.raises(UsageError, match="name a folder: --out DIR"):
        gallery.gallery_folder(None)


def test_progress_is_told_of_each_page_and_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(cell: type[Cell], results: gallery.KeptResults) -> dict[str, str]:
        if cell is MinGRU:
            raise DerivationError("min_gru: a fault")
        return {}

    monkeypatch.setattr(gallery, "page", page)
    told: list[tuple[str, str]] = []
    gallery.files((MinGRU, Elman), gallery.NOT_MEASURED, lambda *said: told.append(said))
    assert told == [("min_gru", "FAILED"), ("elman", "written")]


@pytest.mark.parametrize("name", ["gru", "augru", "lmu"])
def test_the_code_of_a_page_runs(name: str) -> None:
    """NumPy's; the others in environments that have them (``tests/torch``, ``tests/jax``)."""
    cell = next(cell for cell in SHIPPED if cell.definition.name == name)
    code = re.findall(r"```python\n(.*?)```", page(cell), re.DOTALL)
    assert len(code) == 3
    names: dict[str, object] = {}
    exec(code[0], names)
    assert all(np.isfinite(array).all() for array in names["y"] if isinstance(array, np.ndarray))


def test_a_paper_is_linked():
    text = page(MinGRU)
    assert re.search(r"\[arXiv:(\d{4}\.\d+)\]\(https://arxiv\.org/abs/\1\)", text)

"""Documents: every block of every page runs, pages are reached, pictures and lists are current."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from docs.site import explorer, navigation, parts, stages
from tests import documents

DOCUMENTS = documents.DOCUMENTS

SLOW = {
    "how-to/cuda.md": "compiles the emulation of a device",
    "how-to/derivatives.md": "compiles two tangents",
    "how-to/embedded.md": "exports a cell and compiles it",
    "how-to/online.md": "compiles two kernels",
    "how-to/plain-c.md": "compiles the driver",
    "how-to/wheels.md": "compiles the driver at two levels",
    "how-to/porting.md": "compiles cells of EpyNN's",
    "tutorial/first-cell.md": "trains",
}
"""Pages that take more than a second."""

NEEDS = {"torch", "jax", "keras", "flax", "equinox", "onnx", "onnxruntime", "tensorflow", "tf2onnx"}
"""Modules that need not be installed; their suites (`.ci/frameworks`) run these pages."""


def _case(page: str) -> object:
    marks = [pytest.mark.slow] if page in SLOW else []
    marks += [] if documents.imported(page) & NEEDS else [pytest.mark.of_numpy]
    return pytest.param(page, marks=marks, id=page)


@pytest.mark.parametrize("page", [_case(page) for page in documents.pages()])
def test_every_block_of_a_page_runs_and_shows_what_is_so(page: str, tmp_path: Path) -> None:
    missing = sorted(
        name for name in documents.imported(page) & NEEDS if importlib.util.find_spec(name) is None
    )
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    documents.run(page, tmp_path)


def test_lists_of_special_pages_hold_no_page_that_is_gone() -> None:
    assert set(SLOW) <= set(documents.pages())


def test_a_block_that_is_not_so_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(documents, "DOCUMENTS", tmp_path)
    for text in (
        "```python\nassert False\n```\n",
        "```\nno language\n```\n",
        "```c\nint no_such_thing(void);\n```\n",
        "```console\n$ cellgen cache info\nno such line\n```\n",
        "```sh\ncellgen bench --no-such-option\n```\n",
        "```sh\nfalse\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
    ):
        page.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError):
            documents.run("page.md", tmp_path)


# --- the site ------------------------------------------------------------------------------------


def _listed(tree: navigation.Tree) -> list[str]:
    found = []
    for entry in tree:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            found += _listed(value) if isinstance(value, list) else [value]
    return found


def test_every_page_stands_in_the_navigation_once() -> None:
    made = ["gallery/README.md", "gallery/lstm.md"]
    listed = _listed(navigation.tree(DOCUMENTS, [*documents.pages(), *made]))
    assert sorted(listed) == sorted([*documents.pages(), *made])


def test_every_extra_for_users_stands_on_the_page_about_installation() -> None:
    text = (DOCUMENTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(tomllib.loads(text)["project"]["optional-dependencies"])
    page = (DOCUMENTS / "how-to" / "installation.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in page.split("\n") if line.startswith("|"))
    assert set(re.findall(r"\[(\w+)\][`,]", table)) == extras - {"dev", "docs"}


def test_every_generated_part_is_asked_for_and_holds_something() -> None:
    asked = {
        name
        for page in documents.pages()
        for name in parts.MARK.findall((DOCUMENTS / page).read_text(encoding="utf-8"))
    }
    assert asked == set(parts.PARTS)
    for make in parts.PARTS.values():
        assert make().count("\n") > 5


def test_what_stands_in_the_repository_for_generated_parts_is_current() -> None:
    for page in parts.pages():
        text = page.read_text(encoding="utf-8")
        assert text == parts.written(text), f"old: run `{parts.COMMAND}`"


def test_a_generated_part_takes_the_place_of_what_stands_in_the_repository() -> None:
    page = "before\n<!-- generated: return-codes -->\nold\n<!-- end -->\n\nafter\n"
    made = parts.filled(page)
    assert "old" not in made
    assert made.startswith("before\n| code |")
    assert made.endswith("\n\nafter\n")


def test_tables_of_options_and_errors_are_whole() -> None:
    from cellgen.runtime.options import TABLE

    assert all(f"| `{option.name}` |" in parts.options() for option in TABLE)
    shown = parts.error_codes()
    assert "`build.unknown`" in shown
    assert "`derivation.verify`" in shown
    assert "`CELLGEN_STOPPED` | 6 |" in parts.return_codes()


def test_every_name_of_the_interface_says_what_it_is() -> None:
    rows = [row for part in (parts.operators, parts.interface_names) for row in part().split("\n")]
    assert len(rows) > 80
    for row in rows:
        assert not row.endswith("|  |"), row
        assert "Base of the pointwise" not in row, row


def test_the_interface_names_what_there_is() -> None:
    import cellgen

    for names in parts.INTERFACE.values():
        for name in names:
            module, _, thing = name.rpartition(".")
            if module.split(".")[1] in {"torch", "jax"}:
                path = Path(cellgen.__file__).parent.joinpath(*module.split(".")[1:])
                assert f"def {thing}(" in path.with_suffix(".py").read_text(encoding="utf-8")
            else:
                assert hasattr(importlib.import_module(module), thing), name


def test_pictures_of_the_gate_are_current() -> None:
    for name, picture in stages.pictures().items():
        there = (DOCUMENTS / "explanation" / name).read_text(encoding="utf-8")
        assert there == picture, "old: run `python -m docs.site.stages`"


def test_cells_of_the_gallery_have_what_the_page_shows() -> None:
    cells = {cell["name"]: cell for cell in map(explorer.cell_data, _some_cells())}
    lstm = cells["lstm"]
    assert lstm["saved"] == {"formula": "4·H", "number": 1024, "names": ["i", "f", "g", "o"]}
    assert lstm["products"]["forward"]["number"] == 4 * (256 * 256 + 128 * 256)
    assert lstm["year"] == 1997
    assert lstm["levels"] == 1
    assert not lstm["heads"]
    assert cells["slstm_heads"]["heads"]
    assert any(entry["mode"] == "forward+backward" for entry in lstm["speed"])


def _some_cells() -> list[object]:
    from cellgen.cells import LSTM, SHIPPED

    return [LSTM, *(cell for cell in SHIPPED if cell.definition.name == "slstm_heads")]


def test_a_year_is_that_of_the_source() -> None:
    assert explorer.year("Feng et al. 2024, arXiv:2410.01201") == 2024
    assert explorer.year("Le, Jaitly & Hinton, arXiv:1504.00941") == 2015
    assert explorer.year("") is None


def test_nothing_in_the_site_is_fetched() -> None:
    for path in [*(DOCUMENTS / "site").rglob("*.*"), DOCUMENTS / "assets" / "site.css"]:
        if path.suffix in {".html", ".css", ".js"}:
            assert not re.search(r"https?://", path.read_text(encoding="utf-8")), path
    for sheet in (DOCUMENTS / "assets").rglob("*.css"):
        for target in re.findall(r"url\(([^)]*)\)", sheet.read_text(encoding="utf-8")):
            assert (sheet.parent / target).is_file(), target

"""The notebooks run from their first cell to their last, and are kept without what they showed."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PICTURES = {"own_cell": 0, "training": 4, "gradients": 3, "memory_task": 2}
"""Notebooks, and how many pictures each draws."""

FRAMEWORKS = {"torch_training": "torch", "jax_training": "jax"}
"""Notebooks that need a framework; its suite runs them without a server of notebooks."""

NOTEBOOKS = (*PICTURES, *FRAMEWORKS)


def kept(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*NOTEBOOKS}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_results(name: str) -> None:
    notebook = kept(name)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert notebook["cells"][0]["source"][0].startswith("# ")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        ast.parse("".join(cell["source"]))
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_files_that_a_notebook_names_exist(name: str) -> None:
    for cell in kept(name)["cells"]:
        text = "".join(cell["source"])
        for word in text.replace("(", " ").replace(")", " ").split():
            if word.endswith(".ipynb"):
                assert (FOLDER / word).is_file(), word


def run_code(name: str) -> None:
    """Run the code of a notebook, each cell after the other; its own assertions hold its claims."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(kept(name)["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'cellgen-compiler[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{before}" if before else str(ROOT))
    notebook = nbformat.reads(json.dumps(kept(name)), as_version=4)
    where = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=1200, resources=where).execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    kinds = [kind for out in shown for kind in out.get("data", {})]
    assert kinds.count("image/png") == PICTURES[name]
    assert [out.text for out in shown if out.get("name") == "stderr"] == []
    if name in ("own_cell", "gradients"):
        assert any("<math" in out.get("data", {}).get("text/html", "") for out in shown)
        assert "text/latex" in kinds

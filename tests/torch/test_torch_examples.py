"""The example in torch has the losses of torch's layers; the page of docs shows what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.house.test_notebooks import run_code

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "model",
    ["layer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("own", "penalty"))],
)
def test_the_losses_of_the_example_are_those_of_torch(model: str) -> None:
    done = subprocess.run(
        [sys.executable, "examples/torch_text.py", "--model", model, "--updates", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{model} +3 updates: loss .* largest difference", done.stdout)


def test_a_decoder_that_attends_and_reads_what_it_wrote_learns_as_its_loop() -> None:
    done = subprocess.run(
        [sys.executable, "examples/torch_decoder.py", "--updates", "8", "--dtype", "float64"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+)", done.stdout)[0])
    assert last < 0.95 * first


def test_the_code_of_the_page_runs() -> None:
    page = (ROOT / "docs/how-to/torch.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}  # a block goes on from those before it, as a reader does
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)


def generation(*how: str) -> tuple[list[float], str]:
    """First and last loss, and the text behind the prompt."""
    done = subprocess.run(
        [sys.executable, "examples/torch_generation.py", "--dtype", "float64", *how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n", 1)
    return [float(number) for number in re.findall(r"\d+\.\d+", first)], rest


def test_a_model_in_chunks_learns_as_in_steps_and_generates_the_same() -> None:
    """Rounding of 1e-16 grows over updates: losses agree to what is printed, 1e-4."""
    how = ("--updates", "8", "--characters", "8")
    in_chunks, text = generation("--form", "chunk", *how)
    in_steps, same = generation("--form", "step", *how)
    assert in_chunks == in_steps
    assert in_chunks[1] < 0.9 * in_chunks[0]
    assert text == same
    assert text.startswith("PYTHON SOFTWARE FOUNDATION LICENSE ")


def test_the_notebook_trains() -> None:
    run_code("torch_training")

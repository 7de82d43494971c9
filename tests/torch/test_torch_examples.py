"""The example in torch has the losses of torch's layers; the page of docs shows what runs."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.house.test_notebooks import run_code

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example by its name and words as a script of this process; what it prints."""

    def made(example: str, *words: str) -> str:
        path = ROOT / "examples" / f"{example}.py"
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, "argv", [str(path), *words])
        codes = []
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            codes.append(ended.code)
        assert codes in ([], [0])
        return capsys.readouterr().out

    return made


@pytest.mark.parametrize(
    "model",
    ["layer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("own", "penalty"))],
)
def test_the_losses_of_the_example_are_those_of_torch(model: str, run: Run) -> None:
    said = run("torch_text", "--model", model, "--updates", "3")
    assert re.search(rf"{model} +3 updates: loss .* largest difference", said)


def test_a_decoder_that_attends_and_reads_what_it_wrote_learns_as_its_loop(run: Run) -> None:
    said = run("torch_decoder", "--updates", "4", "--dtype", "float64")
    first, last = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+)", said)[0])
    assert last < 0.95 * first


def generation(run: Run, *how: str) -> tuple[list[float], str]:
    """First and last loss, and the text behind the prompt."""
    first, rest = run("torch_generation", "--dtype", "float64", *how).split("\n", 1)
    return [float(number) for number in re.findall(r"\d+\.\d+", first)], rest


def test_a_model_in_chunks_learns_as_in_steps_and_generates_the_same(run: Run) -> None:
    """Rounding of 1e-16 grows over updates: losses agree to what is printed, 1e-4."""
    how = ("--updates", "4", "--characters", "6")
    in_chunks, text = generation(run, "--form", "chunk", *how)
    in_steps, same = generation(run, "--form", "step", *how)
    assert in_chunks == in_steps
    assert in_chunks[1] < 0.9 * in_chunks[0]
    assert text == same
    assert text.startswith("PYTHON SOFTWARE FOUNDATION LICENSE ")


def test_the_notebook_trains() -> None:
    run_code("torch_training")

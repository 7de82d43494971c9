"""The example in torch has the losses of torch's layers; the page of docs shows what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("model", ["layer", "own", pytest.param("penalty", marks=pytest.mark.slow)])
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


def test_the_code_of_the_page_runs() -> None:
    page = (ROOT / "docs/how-to/torch.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}  # a block goes on from those before it, as a reader does
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)

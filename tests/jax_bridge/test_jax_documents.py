"""What docs/how-to/jax.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/how-to/jax.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_document_runs(number: int) -> None:
    code = compile(BLOCKS[number], f"docs/how-to/jax.md, Python example {number + 1}", "exec")
    with jax.enable_x64(False):
        exec(code, {"__name__": f"jax_{number + 1}"})

"""What docs/how-to/jax.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/how-to/jax.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_document_run_one_after_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, object] = {"__name__": "document"}
    with jax.enable_x64(False):
        for number, block in enumerate(BLOCKS, 1):
            exec(compile(block, f"docs/how-to/jax.md, Python example {number}", "exec"), names)
    shown = re.findall(r"^print.*# (.*)$", "\n".join(BLOCKS), re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == shown

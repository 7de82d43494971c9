"""Cells that are compiled side by side: an interrupt ends every compiler, those to come too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cellgen.cells import Elman, ElmanRelu
from cellgen.errors import BuildError
from cellgen.files import make
from cellgen.pipeline import generate
from cellgen.runtime.build import steps
from cellgen.runtime.build.compiler import TOOL


def test_a_compiler_that_starts_after_an_interrupt_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell is over, which is when the interrupt comes; the thread of the other starts later."""
    place = tmp_path / "place"
    place.mkdir()
    ended, has_begun, has_stopped = tmp_path / "ended", threading.Event(), threading.Event()
    slow = steps.Step("compiling", ("sh", "-c", f"sleep 10; touch {ended}"), "none")

    def compiles(outcome: make.Outcome, _: str) -> None:
        if outcome.source.name == "elman":
            raise BuildError("it fails")
        has_begun.set()
        assert has_stopped.wait(60)
        steps.run(place, "elman_relu", "entry", ((slow,),), TOOL, shown=False)

    def stops() -> None:
        steps.stop_all()
        has_stopped.set()

    def interrupts(*_: str) -> None:
        assert has_begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(make, "_compile", compiles)
    monkeypatch.setattr(make, "stop_all", stops)
    written = [make.Outcome(generate(c), tmp_path, ()) for c in (Elman, ElmanRelu)]
    with pytest.raises(KeyboardInterrupt):
        make.compile_all(written, 2, interrupts)
    assert not ended.exists()

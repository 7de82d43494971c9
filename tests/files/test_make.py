"""Cells that are compiled side by side: their order; an interrupt ends every compiler, those to
come too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cellgen.cells import GRU, Elman, ElmanRelu, SLSTMHeads
from cellgen.cli.commands import app
from cellgen.errors import BuildError
from cellgen.files import make
from cellgen.pipeline import generate
from cellgen.runtime.build import steps
from cellgen.runtime.build.compiler import TOOL
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.host.backend import HostBackend


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

    monkeypatch.setattr(make, "compile_written", compiles)
    monkeypatch.setattr(make, "stop_all", stops)
    written = [make.Outcome(generate(c), tmp_path, ()) for c in (Elman, ElmanRelu)]
    with pytest.raises(KeyboardInterrupt):
        make.compile_all(written, 2, interrupts)
    assert not ended.exists()


def test_the_longest_texts_are_compiled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes a compiler longest is not left over to the end, where others have nothing."""
    begun: list[str] = []

    def compiles(outcome: make.Outcome, target: str) -> Built:
        begun.append(outcome.source.name)
        return Built(tmp_path, False, 0.0)

    monkeypatch.setattr(make, "compile_written", compiles)
    written = [make.Outcome(generate(c), tmp_path, ()) for c in (Elman, SLSTMHeads, GRU)]
    outcomes = make.compile_all(written, 1, lambda *_: None)
    assert begun == ["slstm_heads", "gru", "elman"]
    assert [outcome.source.name for outcome in outcomes] == ["elman", "slstm_heads", "gru"]


def test_what_all_kernels_need_is_begun_before_cells_are_derived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    @contextmanager
    def preparing(_: HostBackend) -> Iterator[None]:
        happened.append("begun")
        yield
        happened.append("ended")

    def generates(cells: object, *_: object) -> tuple[list[object], list[object]]:
        happened.append("derived")
        return [], []

    monkeypatch.setattr(HostBackend, "preparing", preparing)
    monkeypatch.setattr(make, "generate_all", generates)
    for words in ([], ["--check"]):
        CliRunner().invoke(app, ["build", "elman", "--out", str(tmp_path), *words])
    assert happened == ["begun", "derived", "ended", "derived"]

"""What tests of the bridge to PyTorch share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def graphs_of_this_run(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep what torch compiles where all tests of this run find it, and no other run does.

    What it has compiled for other versions of the operators is not this one's.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))

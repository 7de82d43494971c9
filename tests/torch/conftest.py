"""What tests of the bridge to PyTorch share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.conftest import asks_for_slow_tests


def pytest_configure(config: pytest.Config) -> None:
    """Have inductor write code of no vectors, unless slow tests are asked for.

    It compiles ten programs to find out which of this machine's vectors its compiler knows.
    """
    if not asks_for_slow_tests(config.option.markexpr):
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")


@pytest.fixture(autouse=True, scope="session")
def the_interpreter_of_triton_is_quick() -> Iterator[None]:
    """Let it keep what it finds, where there is one."""
    if find_spec("triton") is None:
        yield
        return
    from tests.quick_interpreter import quickly  # it imports triton

    with quickly():
        yield


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

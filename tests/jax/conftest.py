"""Two devices on one CPU, double precision, quick machine code: JAX is told before it starts.

XLA's own passes run as ever; LLVM's expensive ones were a seventh of the time of these tests.
"""

from __future__ import annotations

import os

import pytest

FLAG = "--xla_force_host_platform_device_count=2"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()

try:
    import jax
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_NUM_THREADS", "1")

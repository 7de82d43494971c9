"""The benchmark of forms on a device runs its tiny part here, and says what it did not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_without_a_device_a_tiny_part_runs_and_the_rest_is_said(tmp_path: Path) -> None:
    saved = tmp_path / "forms.json"
    command = [sys.executable, "benchmarks/device_forms.py", "--cpu", "--save", str(saved)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads(saved.read_text())
    errors = {r["cell"]: r["error"] for r in records if "error" in r}
    assert errors.keys() == {"gla", "min_gru"}
    assert max(errors.values()) < 1e-5  # float32, 40 steps
    sides = {r["who"] for r in records if "ms" in r}
    assert sides >= {"copy of as many bytes", "whole cell, chunk, both", "whole cell, scan, both"}
    assert records[-1]["not run"].startswith("all shapes and peers on a device")
    assert any("fla" in str(r.get("not run")) for r in records)
    assert "| gla | 40, 2, 2, 16 |" in done.stdout


@pytest.mark.parametrize("name", [pytest.param("gla", marks=pytest.mark.slow), "min_gru"])
def test_on_a_device_kernels_of_memories_and_of_scans_are_sides(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend("benchmarks")
    import device_forms

    sides: dict[str, device_forms.Call] = {}
    monkeypatch.setattr(device_forms, "error_of", lambda *_: {})
    monkeypatch.setattr(device_forms, "interleaved", lambda calls, *_: sides.update(calls) or ())
    list(device_forms.part(name, device_forms.TINY[0], "meta", 1, steps=False))
    assert sides.keys() >= {"whole cell, Triton, forward", "whole cell, Triton, both"}
    gradients = device_forms.by_triton(name, device_forms.TINY[0], "cpu", torch.float32)[1]()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())

"""The command behind the tables of lab note 19 runs on a few steps, and holds arrays in float32."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def test_what_kernels_lose_is_said_of_every_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend("benchmarks")
    import rounding_of_memories as command

    command_line = ["rounding_of_memories.py", "gla", "--quick"]
    monkeypatch.setattr("sys.argv", [*command_line, "--wide", "saved"])
    command.main()
    (line,) = capsys.readouterr().out.splitlines()
    rates = {n: float(rate) for n, rate in re.findall(r"(\w+) ([\d.]+) of", line)}
    assert line.startswith("draw 0 (open): ")
    assert rates.keys() >= {"h", "s_last", "d_x", "d_w_q", "d_s_prev"}
    assert max(rates.values()) < 10.0
    monkeypatch.setattr("sys.argv", [*command_line, "--wide", "nothing"])
    with pytest.raises(SystemExit, match="gla: --wide names 'nothing', which --list does not"):
        command.main()

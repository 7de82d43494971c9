"""A list of digests that is not of what is generated: said by the call, not worked around."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen.torch  # noqa: E402
from cellgen import api  # noqa: E402
from cellgen.errors import BuildError  # noqa: E402
from cellgen.runtime.folders import TextDigest  # noqa: E402
from cellgen.torch import launched  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402


def test_a_list_of_digests_that_is_stale_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cellgen.torch.function("retnet", form="chunk")
    tensors = drawn(cell, T=3, B=1, N=1, K=2, D=2, I=2)
    stale = {"retnet": TextDigest.of("retnet_triton.py", "of other templates")}
    own = api.read_listed
    monkeypatch.setattr(
        api, "read_listed", lambda f, t: {**own(f, t), **(stale if t == "triton" else {})}
    )
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    launched.module_of.cache_clear()
    with pytest.raises(
        BuildError, match=r"retnet: .*triton\.sha256 says; .*`cellgen build retnet`"
    ):
        cell(**tensors)
    launched.module_of.cache_clear()

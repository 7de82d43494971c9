"""What tests keep of Triton's interpreter changes no bit and no access, and ends with them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen.torch  # noqa: E402
from cellgen.proof.watched import watched  # noqa: E402
from cellgen.torch import launched  # noqa: E402
from cellgen.torch.passes import PlanRun  # noqa: E402
from tests import quick_interpreter as quick  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402

SMALL = {"T": 6, "B": 2, "H": 3, "I": 2, "N": 1, "K": 2, "D": 2}


def run(name: str) -> tuple[dict[str, object], object]:
    """Results and gradients of both passes of a cell's kernels, and the bytes of each argument."""
    cell = cellgen.torch.function(name)
    arrays = {n: t.detach() for n, t in drawn(cell, dtype=torch.float32, **SMALL).items()}
    sizes = dict(cell.layout.sizes([*arrays.values()]))
    with watched(name) as watch, np.errstate(all="ignore"):  # lanes that are masked, too
        kernels = PlanRun(launched.module_of(cell.known), sizes, arrays)
        results = kernels.forward()
        back = kernels.backward({f"d_{n}": torch.ones_like(a) for n, a in results.items()})
    return {**results, **back}, watch.traffic


@pytest.mark.parametrize("name", ["min_gru", "gla"])
def test_kernels_give_the_same_bits_and_read_the_same(name: str) -> None:
    found, traffic = run(name)
    with quick.as_triton_does():
        expected, own_traffic = run(name)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert traffic == own_traffic


def test_triton_is_left_as_it_was() -> None:
    with quick.as_triton_does(), quick.quickly():
        assert all(vars(place)[n] is not f for place, own in quick.OWN for n, f in own.items())
    with quick.as_triton_does():
        assert all(vars(place)[n] is f for place, own in quick.OWN for n, f in own.items())

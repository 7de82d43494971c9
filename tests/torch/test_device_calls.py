"""What a call of a layer on a device costs the host: Python functions of cellgen, counted."""

from __future__ import annotations

import contextlib
import shutil
import sys
from types import FrameType

import pytest

torch = pytest.importorskip("torch")

from cellgen.torch import RNN  # noqa: E402
from cellgen.torch.errors import TensorError  # noqa: E402
from tests.torch.emulated import emulated_device  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
MOST = {False: 115, True: 215}
"""Functions of a call like an earlier one: forward alone, forward and ``backward()``."""


def count(trains: bool) -> int:
    """Functions of cellgen that a call enters, where there were some of its kind before."""
    layer, x, entered = RNN(5, 6), torch.randn(4, 3, 5), 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal entered
        entered += event == "call" and "/cellgen/" in frame.f_code.co_filename

    def call() -> None:
        outputs = layer(x)[0].sum()
        if trains:
            outputs.backward()

    with emulated_device(), contextlib.nullcontext() if trains else torch.no_grad():
        for _ in range(3):
            call()
        sys.setprofile(note)
        call()
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("trains", [False, True])
def test_a_call_like_an_earlier_one_is_looked_up(trains: bool) -> None:
    assert 0 < count(trains) <= MOST[trains]


def test_what_a_plan_depends_on_is_in_its_key() -> None:
    """Shapes, types, options and tables, one call after another, as each alone gives."""
    torch.manual_seed(3)
    layer = RNN(5, 6)
    calls = []
    for steps, rows in ((4, 3), (5, 3), (4, 2), (4, 3)):
        x = torch.randn(steps, rows, 5)
        lengths = torch.randint(1, steps + 1, (rows,))
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        calls += [(layer, x), (layer, packed)]
    calls += [(layer.double(), calls[0][1].double())]

    def results() -> list[torch.Tensor]:
        every: list[torch.Tensor] = []
        for at, (one, given) in enumerate(calls):
            one = one.double() if at == len(calls) - 1 else one.float()
            one.zero_grad(set_to_none=True)
            outputs, last = one(given)
            data = outputs.data if isinstance(given, torch.nn.utils.rnn.PackedSequence) else outputs
            (data.square().sum() + last.sum()).backward()
            gradients = [p.grad.clone() for p in one.parameters()]
            every += [data.detach(), last.detach(), *gradients]
        return every

    wanted = results()
    with emulated_device():
        for got in (results(), results()):
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_what_a_plan_does_not_depend_on_is_looked_at_in_each_call() -> None:
    """A storage that was freed after calls of the kind is refused, by its name."""
    layer, x = RNN(5, 6), torch.randn(4, 3, 5)
    with emulated_device(), torch.no_grad():
        for _ in range(2):
            layer(x)
        x.untyped_storage().resize_(8)
        with pytest.raises(TensorError, match=r"x is a torch.Tensor whose storage has 8 bytes"):
            layer(x)

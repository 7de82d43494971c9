"""What a call of a layer on a device costs the host: Python functions of cellgen, counted."""

from __future__ import annotations

import contextlib
import shutil
import sys
from types import FrameType

import pytest

torch = pytest.importorskip("torch")

import cellgen.torch  # noqa: E402
from cellgen.torch import RNN  # noqa: E402
from cellgen.torch.errors import TensorError  # noqa: E402
from tests.torch.emulated import emulated_device  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
MOST = {False: 120, True: 228}
"""Functions entered in a call like an earlier one, forward alone, forward and ``backward()``: 118
and 226."""


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
        try:
            call()
        finally:
            sys.setprofile(None)
    return entered


@pytest.mark.parametrize("trains", [False, True])
def test_a_call_like_an_earlier_one_is_looked_up(trains: bool) -> None:
    assert 0 < count(trains) <= MOST[trains]


def test_what_a_plan_depends_on_is_in_its_key() -> None:
    """Shapes, types, options, tables, gradients: a call gives what it does after no other."""
    torch.manual_seed(3)
    cell, calls = cellgen.torch.function("elman"), []
    single, double = torch.float32, torch.float64
    for steps, rows, dtype in ((4, 3, double), (5, 3, double), (4, 2, double), (4, 3, single)):
        shapes = {"x": (steps, rows, 5), "h_prev": (rows, 6), "w": (5, 6), "u": (6, 6), "b": (6,)}
        tensors = {
            n: (0.3 * torch.randn(s, dtype=dtype)).requires_grad_() for n, s in shapes.items()
        }
        lengths = torch.randint(1, steps, (rows,))
        for options in ({}, {"lengths": lengths}, {"reverse": True}, {"window": 2}):
            calls += [(tensors, options, True), (tensors, options, False)]

    def results() -> list[torch.Tensor]:
        every: list[torch.Tensor] = []
        for tensors, options, learns in calls:
            with torch.set_grad_enabled(learns):
                shown = cell(**tensors, **options)
            every += [tensor.detach() for tensor in shown]
            if learns:
                loss = sum(tensor.square().sum() for tensor in shown)
                every += torch.autograd.grad(loss, [*tensors.values()])
        return every

    wanted = results()
    with emulated_device():
        for got in (results(), results()):
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other)


def test_what_a_plan_does_not_depend_on_is_looked_at_in_each_call() -> None:
    """A storage that was freed after calls of the kind is refused, by its name."""
    layer, x = RNN(5, 6), torch.randn(4, 3, 5)
    with emulated_device(), torch.no_grad():
        for _ in range(2):
            layer(x)
        x.untyped_storage().resize_(8)
        with pytest.raises(TensorError, match=r"x is a torch.Tensor whose storage has 8 bytes"):
            layer(x)

"""Both directions of a layer on a device at once: which tier, which stream, who waits for whom."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cellgen.torch  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402
from cellgen.runtime.device.settings import PERSISTENT, tier_of_run  # noqa: E402
from cellgen.runtime.directions import DIRECTIONS_VARIABLE  # noqa: E402
from cellgen.torch.errors import DeviceRunError  # noqa: E402
from cellgen.torch.registry import find  # noqa: E402
from cellgen.torch.run_device import DeviceRunner  # noqa: E402
from cellgen.torch.streams import STREAMS, CudaStreams, in_tier  # noqa: E402
from tests.torch.emulated import emulated_device  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


class OneOf:
    """One of two streams, which writes down what waits for it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def wait_stream(self, other: OneOf) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


class Noted(CudaStreams):
    """Streams that take notes: what is launched where, who waits, what is kept for whom."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.kept: list[tuple[str, Any]] = []
        self.now, self.other = OneOf("here", self.notes), OneOf("beside", self.notes)

    def current(self, device: Any) -> Any:
        return self.now

    def beside(self, device: Any) -> Any:
        return self.other

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def keep(self, tensors: Iterable[Any], stream: Any) -> None:
        self.kept += [(stream.name, t) for t in tensors if isinstance(t, torch.Tensor)]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Streams of the emulation that take notes, of launches and their tiers too."""
    noted, launcher = Noted(), DeviceRunner.launcher
    monkeypatch.setitem(STREAMS, "cpu", noted)

    def launching(runner: DeviceRunner, name: str) -> Any:
        launch = launcher(runner, name)

        class Noting:
            bind = launch.bind

            def __call__(self, *arguments: Any) -> None:
                noted.notes.append(f"{noted.now.name} runs {name} by {arguments[-1]}")
                launch(*arguments)

        return Noting()

    monkeypatch.setattr(DeviceRunner, "launcher", launching)
    return noted


def trained(layer: torch.nn.Module, x: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Output, states and gradients."""
    x = x.detach().requires_grad_()
    output, state = layer(x, **options)
    states = state if isinstance(state, tuple) else (state,)
    loss = output.sin().sum() + sum(one.cos().sum() for one in states)
    return [output, *states, *torch.autograd.grad(loss, [x, *layer.parameters()])]


def layer_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(1)
    if kind == "drop-in":
        return cellgen.torch.RNN(3, 4, 2, bidirectional=True)
    return cellgen.torch.module("elman", 3, 4, 2, bidirectional=True)


@pytest.mark.parametrize("kind", ["module", "drop-in"])
def test_both_directions_have_the_bits_of_one_after_the_other(
    kind: str, streams: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = layer_of(kind), torch.randn(5, 2, 3)
    options = {} if kind == "drop-in" else {"lengths": torch.tensor([5, 3])}
    with emulated_device():
        with in_tier("half"):
            wanted = trained(layer, x, **options)
        streams.notes.clear(), streams.kept.clear()
        monkeypatch.setenv(DIRECTIONS_VARIABLE, "both")
        found = trained(layer, x, **options)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    forward = [
        "beside waits for here",
        "here runs sequence_forward by half",
        "beside runs sequence_forward by half",
        "here waits for beside",
    ]
    assert streams.notes == [*forward * 2, *["here runs sequence_backward by half"] * 4]
    beside = [one for name, one in streams.kept if name == "beside"]
    assert any(torch.equal(one, x) for one in beside)
    if options:
        assert any(torch.equal(one, options["lengths"]) for one in beside)


@pytest.mark.parametrize("say", ["turns", None])
def test_directions_take_turns_unless_a_process_asks(
    say: str | None, streams: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    if say:
        monkeypatch.setenv(DIRECTIONS_VARIABLE, say)
    with emulated_device():
        layer_of("module")(torch.randn(5, 2, 3))
    assert streams.notes == ["here runs sequence_forward by auto"] * 4
    assert not streams.kept


def test_where_an_operator_is_recorded_directions_take_turns(
    streams: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do layers in one direction, and segments of time."""
    monkeypatch.setenv(DIRECTIONS_VARIABLE, "both")
    layer, x = layer_of("module"), torch.randn(9, 2, 3)
    weights = dict(layer.named_parameters())
    with emulated_device():
        torch.func.grad(lambda x: torch.func.functional_call(layer, weights, (x,))[0].sum())(x)
        torch.compile(layer, backend="eager")(x)
        layer(x, parallel="segments", segments=2)
        cellgen.torch.RNN(3, 4)(x)
        assert all(note.endswith("auto") for note in streams.notes)


def test_nothing_stays_in_half_of_a_device_where_nothing_is_to_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PERSISTENT, raising=False)
    assert (tier_of_run("auto"), tier_of_run("half")) == ("together", "half")
    monkeypatch.setenv(PERSISTENT, "0")
    assert (tier_of_run("auto"), tier_of_run("half")) == ("auto", "auto")


def test_a_direction_that_fails_leaves_no_stream_behind(
    streams: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTIONS_VARIABLE, "both")
    layer, x = layer_of("module"), torch.randn(5, 2, 3)
    with emulated_device():
        lib = find("elman").device_runner(emulated=True).kernel.library().lib
        lib.cellgen_emulation_fail(b"launch", 1)
        try:
            with pytest.raises(DeviceRunError, match=r"elman.sequence_forward: on device 0"):
                layer(x)
        finally:
            lib.cellgen_emulation_fail(b"", 0)
        assert streams.notes[-1] == "here waits for beside"
        streams.notes.clear()
        layer(x, lengths=torch.tensor([5, 3]))
    assert streams.notes[0] == "beside waits for here"


def test_another_word_is_refused_on_a_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTIONS_VARIABLE, "two")
    layer, x = layer_of("module"), torch.randn(5, 2, 3)
    layer(x)
    with (
        emulated_device(),
        pytest.raises(ArgumentError, match=r"CELLGEN_CUDA_DIRECTIONS is 'two'.* turns, both"),
    ):
        layer(x)


@pytest.mark.slow
def test_both_directions_of_a_layer_that_stays_have_the_bits_of_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is told of half of the processors, and its blocks fit there."""
    from tests.targets.test_persistent import machine, staying

    runner = find("elman").device_runner(emulated=True)
    kernel = staying()
    monkeypatch.setattr(runner, "kernel", kernel)
    monkeypatch.setattr(runner, "_launchers", {})
    torch.manual_seed(1)
    layer, x = cellgen.torch.module("elman", 5, 12, bidirectional=True), torch.randn(9, 33, 5)
    with emulated_device(), machine(kernel, processors=8), torch.no_grad():
        with in_tier("half"):
            wanted = layer(x)
        whole = layer(x)
        monkeypatch.setenv(DIRECTIONS_VARIABLE, "both")
        found = layer(x)
    assert torch.equal(found[0], wanted[0])
    assert not torch.equal(found[0], whole[0])

"""Cells on tensors of a device: the way to the CUDA kernels, in their emulation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen.frameworks.selection import ON_TENSORS  # noqa: E402
from cellgen.runtime.numbers import as_numbers  # noqa: E402
from cellgen.torch import schemas  # noqa: E402
from cellgen.torch.errors import DeviceRunError, TensorError  # noqa: E402
from cellgen.torch.registry import find  # noqa: E402
from tests.torch.drawn import drawn, function  # noqa: E402
from tests.torch.emulated import emulated_device  # noqa: E402

BARS = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 0.05, torch.float16: 0.00625}
"""Of sums over three steps of some products of small numbers."""


def launches(run: object) -> int:
    """How many blocks the emulation of Elman's kernel runs meanwhile."""
    library = find("elman").device_runner(emulated=True).kernel.library()
    before = library.lib.cellgen_emulation_count(0)
    run()
    return int(library.lib.cellgen_emulation_count(0) - before)


def step(layer: torch.nn.Module, x: torch.Tensor, **options: object) -> list[torch.Tensor]:
    """Output, state and gradients."""
    x = x.detach().requires_grad_()
    output, state = layer(x, **options)
    loss = output.sin().sum() + state.cos().sum()
    return [output, state, *torch.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.fixture
def layer() -> torch.nn.Module:
    torch.manual_seed(1)
    return cellgen.torch.module("elman", 3, 4, 2, bidirectional=True)


@pytest.mark.parametrize("dtype", BARS)
def test_layers_train_on_a_device_as_on_the_cpu(layer: torch.nn.Module, dtype: object) -> None:
    x = torch.randn(2, 3, 3).transpose(0, 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rounded = copy.deepcopy(layer).to(dtype)
    expected = step(copy.deepcopy(rounded).to(wide), x.to(dtype).to(wide))
    with emulated_device():
        found: list[torch.Tensor] = []
        assert launches(lambda: found.extend(step(rounded, x.to(dtype))))
    bar = BARS[dtype]
    for one, other in zip(expected, found, strict=True):
        assert other.dtype == dtype
        torch.testing.assert_close(
            other.to(wide), one, rtol=bar, atol=bar * float(one.detach().abs().max())
        )


def test_lengths_mask_and_reset_of_a_device(layer: torch.nn.Module) -> None:
    x, mask = torch.randn(5, 2, 3), torch.tensor([[True, True, False, True, True]] * 2).T
    options = {"lengths": torch.tensor([5, 3]), "mask": mask, "reset": mask.roll(1, 0)}
    expected = step(layer, x, **options)
    with emulated_device():
        found = step(layer, x, **options)
        beyond = layer(x, lengths=torch.tensor([9, 3]))[0]  # counts as T: nothing looks at it
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        beyond, layer(x, lengths=torch.tensor([5, 3]))[0], rtol=1e-5, atol=1e-5
    )


def test_packed_sequences_of_a_device(layer: torch.nn.Module) -> None:
    pack = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(5, 2, 3), torch.tensor([2, 5]), enforce_sorted=False
    )
    expected = layer(pack)[0].data
    with emulated_device():
        torch.testing.assert_close(layer(pack)[0].data, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", ["min_gru", pytest.param("qrnn", marks=pytest.mark.slow)])
def test_a_pass_of_no_steps_reads_nothing_over_time(cell: str) -> None:
    """A tensor without elements is nowhere: a stream that reads ahead would end the process."""
    run = cellgen.torch.function(cell)
    sizes = dict.fromkeys(run.layout.dims, 3) | {"T": 0, "B": 2}
    given = {i.name: torch.ones(run.layout.shape(i.name, sizes)) for i in run.layout.theta}
    state = given["c_prev" if cell == "qrnn" else "h_prev"].requires_grad_()
    with emulated_device():
        (given["x"].requires_grad_().sum() + sum(one.sum() for one in run(**given))).backward()
    assert torch.equal(state.grad, torch.ones_like(state))


def test_only_wanted_gradients_come_back_and_empty_batches_pass() -> None:
    cell = function("elman")
    tensors = drawn(cell, dtype=torch.float32)
    tensors["u"] = tensors["u"].detach()
    expected = torch.autograd.grad(cell(**tensors).h.sum(), [tensors["w"], tensors["b"]])
    with emulated_device():
        found = torch.autograd.grad(cell(**tensors).h.sum(), [tensors["w"], tensors["b"]])
        none = cell(**{**tensors, "x": torch.zeros(3, 0, 2), "h_prev": torch.zeros(0, 3)})
        assert none.h.shape == (3, 0, 3)
        torch.autograd.grad(none.h.sum(), tensors["w"])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [{"last_only": True}, {"every": 2}, {"outputs": ()}])
def test_parts_of_outputs_are_shown_on_a_device(asked: dict[str, object]) -> None:
    cell = function("elman")
    tensors = drawn(cell, dtype=torch.float32)
    expected = cell(**tensors, **asked)
    with emulated_device():
        found = cell(**tensors, **asked)
        with torch.no_grad():
            plain = cell(**tensors, **asked)
        with pytest.raises(TensorError, match=r"checkpoint is given, .* leave it out"):
            cell(**tensors, checkpoint=2)
    for one, *others in zip(expected, found, plain, strict=True):
        assert all((other is None) == (one is None) for other in others)
        if one is not None:
            torch.testing.assert_close(others, [one] * 2, rtol=1e-5, atol=1e-6)


def test_a_device_refuses_options_of_operators_by_their_names() -> None:
    theta = [tensor.detach() for tensor in drawn(function("elman")).values()]
    forward, backward = (
        getattr(getattr(torch.ops.cellgen, name), schemas.OVERLOAD)
        for name in ("forward", "backward")
    )
    plain, last, by_row = (
        as_numbers(replace(ON_TENSORS, **option))
        for option in ({}, {"last_only": True}, {"per_row": True})
    )
    with emulated_device():
        kept = forward("elman", theta, [], True, [], 0, *plain)
        with pytest.raises(TensorError, match=r"last_only is given, .* of all steps; leave it out"):
            forward("elman", theta, [], False, [], 0, *last)
        with pytest.raises(TensorError, match=r"per_row is given, .* over rows; leave it out"):
            backward("elman", theta, [], kept, [kept[0]], 1, -1, [], 0, *by_row)


def test_gradients_of_single_samples_of_a_device() -> None:
    cell = function("elman")
    tensors = {name: tensor.detach() for name, tensor in drawn(cell).items()}

    def loss(u: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        own = {"u": u, "x": x[:, None], "h_prev": tensors["h_prev"][:1]}
        return cell(**tensors | own).h.sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))
    expected = each(tensors["u"], tensors["x"])
    with emulated_device():
        found = each(tensors["u"], tensors["x"])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_derivatives_of_derivatives_of_a_device() -> None:
    cell = function("elman")
    tensors = drawn(cell)

    def slope() -> tuple[torch.Tensor, ...]:
        (along,) = torch.autograd.grad(cell(**tensors).h.sum(), tensors["x"], create_graph=True)
        return torch.autograd.grad(along.square().sum(), [tensors["x"], tensors["u"]])

    expected = slope()
    with emulated_device():
        found = slope()
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_the_precision_that_is_asked_for(
    layer: torch.nn.Module, dtype: torch.dtype
) -> None:
    x = torch.randn(3, 2, 3)
    with emulated_device(), torch.autocast("cpu", dtype):
        low = layer(x)[0]
    assert low.dtype == dtype
    torch.testing.assert_close(low.float(), layer(x)[0], rtol=BARS[dtype], atol=BARS[dtype])


def test_a_failing_device_and_options_it_lacks_are_clear_words(layer: torch.nn.Module) -> None:
    cell, x = function("elman"), torch.randn(3, 2, 3)
    with emulated_device():
        library = find("elman").device_runner(emulated=True).kernel.library()
        library.lib.cellgen_emulation_fail(b"launch", 1)
        try:
            with pytest.raises(DeviceRunError, match=r"elman.sequence_forward: on device 0") as hit:
                layer(x)
        finally:
            library.lib.cellgen_emulation_fail(b"", 0)
        assert isinstance(hit.value, RuntimeError)
        with pytest.raises(TensorError, match=r"flush_denormals is given, .* leave it out"):
            cell(**drawn(cell, dtype=torch.float32), flush_denormals=True)


def lying(device: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Tensors of a device that is not there: without memory, for what looks at shapes."""
    tensors = drawn(function("elman"), learns=False)
    return {n: torch.empty(t.shape, dtype=dtype, device=device) for n, t in tensors.items()}


def test_devices_without_kernels_and_several_devices_are_refused_by_name() -> None:
    cell = function("elman")
    with FakeTensorMode():
        there = lying("cuda")
        assert cell(**there).h.device.type == "cuda"  # operators know shapes there
        with pytest.raises(TensorError, match=r"u is on cpu, but x is on cuda:0; pass u.to\('cuda"):
            cell(**there | {"u": lying("cpu")["u"]})
        with pytest.raises(TensorError, match="mask is on cpu, but x is on cuda:0"):
            cell(**there, mask=torch.ones(3, 2, dtype=torch.bool))
        with pytest.raises(TensorError, match="x is int16, expected float32, float64, bfloat16 or"):
            cell(**lying("cuda", torch.int16))
        with pytest.raises(TensorError, match=r"x is on xpu.*, expected the CPU or a device of C"):
            cell(**lying("xpu"))


def test_drop_ins_and_replace_know_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.RNNBase, "reset_parameters", lambda layer: None)
    with FakeTensorMode(), torch.backends.cudnn.flags(enabled=False), torch.no_grad():
        peer = torch.nn.GRU(3, 4, device="cuda")
        assert "torch.nn.GRU is cellgen" in str(cellgen.torch.replace(peer))
        assert peer(torch.empty(5, 2, 3, device="cuda"))[0].shape == (5, 2, 4)
        half = torch.nn.GRU(3, 4, device="cuda", dtype=torch.float16)
        assert "torch.nn.GRU is cellgen" in str(cellgen.torch.replace(half))
        far = torch.nn.GRU(3, 4, device="xpu")
        assert "is on xpu" in str(cellgen.torch.replace(far))


def test_a_number_beyond_float32_is_infinite_as_in_c() -> None:
    cell = function("janet")
    tensors = {**drawn(cell, dtype=torch.float32, learns=False), "beta": 1e300}
    expected = cell(**tensors)
    assert not expected[0].equal(cell(**{**tensors, "beta": 1.0})[0])
    with emulated_device():
        found = cell(**tensors)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)

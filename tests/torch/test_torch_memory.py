"""Tensors whose memory is gone, cut short or was never there are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import cellgen  # noqa: E402
import cellgen.torch  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402
from tests.torch import drawn, emulated  # noqa: E402

T, B, I, H = 3, 2, 2, 3


def freed(tensor: Tensor) -> Tensor:
    """The same shape, its storage resized to nothing, as FSDP leaves parameters."""
    found = tensor.detach().clone()
    found.untyped_storage().resize_(0)
    return found


def freed_behind_a_view(tensor: Tensor) -> Tensor:
    """The same, as a view that begins behind the start, so that its address is not 0."""
    found = tensor.new_zeros(tensor.numel() + 7)[7:].view(tensor.shape)
    found.untyped_storage().resize_(0)
    return found


def cut_short(tensor: Tensor) -> Tensor:
    """The same shape, in a storage that ends before the last entry."""
    found = tensor.detach().clone()
    found.untyped_storage().resize_(found.nbytes - 1)
    return found


def cut_short_with_gaps(tensor: Tensor) -> Tensor:
    """The same where entries do not lie side by side."""
    apart = torch.zeros(2 * tensor.numel(), dtype=tensor.dtype)
    found = apart.view(*tensor.shape, 2)[..., 0]
    found.untyped_storage().resize_((2 * tensor.numel() - 2) * tensor.itemsize)
    return found


KINDS = (freed, freed_behind_a_view, cut_short, cut_short_with_gaps)
Spoil = Callable[[Tensor], Tensor]


def zeros_without_memory(tensor: Tensor) -> Tensor:
    return torch._efficientzerotensor(tuple(tensor.shape), dtype=tensor.dtype)


def given(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return drawn.drawn(drawn.function("gru"), learns=False, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["x", "w_z", "h_prev"])
@pytest.mark.parametrize("spoil", KINDS)
def test_kernels_refuse_them(spoil: Spoil, name: str, dtype: torch.dtype) -> None:
    tensors = given(dtype)
    tensors[name] = spoil(tensors[name])
    with pytest.raises(ArgumentError, match=rf"{name} is a torch\.Tensor whose storage has"):
        cellgen.load("gru").sequence_forward(**tensors)


@pytest.mark.parametrize("spoil", KINDS)
def test_kernels_refuse_to_write_to_them(spoil: Spoil) -> None:
    kernel, tensors = cellgen.load("gru"), given()
    out = {"h": spoil(torch.zeros(T, B, H))}
    with pytest.raises(ArgumentError, match=r"out h is a torch\.Tensor whose storage has"):
        kernel.sequence_forward(**tensors, out=out)
    with pytest.raises(ArgumentError, match="stands for zeros, expected memory to write to"):
        kernel.sequence_forward(**tensors, out={"h": zeros_without_memory(torch.zeros(T, B, H))})


@pytest.mark.parametrize("spoil", KINDS)
def test_lengths_masks_and_what_is_saved_are_refused_by_kernels(spoil: Spoil) -> None:
    kernel, tensors = cellgen.load("gru"), given()
    with pytest.raises(ArgumentError, match=r"lengths is a .* whose storage has"):
        kernel.sequence_forward(**tensors, lengths=spoil(torch.full((B,), T)))
    kept = kernel.sequence_forward(**tensors, save=True)
    with pytest.raises(ArgumentError, match=r"h is a .* whose storage has"):
        kernel.sequence_backward(**tensors, h=spoil(kept.h), saved=kept.saved, d_h=kept.h)


@pytest.mark.parametrize("name", ["x", "w_z", "h_prev"])
def test_kernels_refuse_tensors_that_never_had_memory(name: str) -> None:
    tensors = given()
    tensors[name] = FakeTensorMode().from_tensor(tensors[name])
    with pytest.raises(ArgumentError, match=f"{name} is a .*FakeTensor, which has a shape and no"):
        cellgen.load("gru").sequence_forward(**tensors)


def test_weights_are_not_converted_without_memory() -> None:
    from cellgen import weights

    state = torch.nn.GRU(I, H).state_dict()
    assert weights.convert(state, "torch.nn.GRU", "keras.layers.GRU")
    state["weight_hh_l0"] = freed(state["weight_hh_l0"])
    with pytest.raises(ArgumentError, match=r"weight_hh_l0 is a .* whose storage has"):
        weights.convert(state, "torch.nn.GRU", "keras.layers.GRU")


@pytest.mark.parametrize("name", ["x", "w_z", "h_prev"])
@pytest.mark.parametrize("spoil", KINDS)
def test_functions_refuse_them(spoil: Spoil, name: str) -> None:
    cell = drawn.function("gru")
    for learns in (True, False):
        tensors = drawn.drawn(cell, learns=learns, dtype=torch.float32)
        tensors[name] = spoil(tensors[name])
        with pytest.raises(RuntimeError, match=f"{name} is a .* whose storage has"):
            cell(**tensors)
    with pytest.raises(RuntimeError, match=r"lengths is a .* whose storage has"):
        cell(**given(), lengths=spoil(torch.full((B,), T)))
    with emulated.emulated_device(), pytest.raises(RuntimeError, match=f"{name} is a .* whose sto"):
        cell(**tensors)


@pytest.mark.parametrize("spoil", KINDS)
@pytest.mark.parametrize("learns", [True, False])
def test_layers_and_cells_refuse_them(learns: bool, spoil: Spoil) -> None:
    x, state = torch.zeros(T, B, I), torch.zeros(1, B, H)
    with torch.set_grad_enabled(learns):
        for layer in (cellgen.torch.module("gru", I, H), cellgen.torch.GRU(I, H)):
            layer(x, state)
            for call in ((spoil(x), state), (x, spoil(state))):
                with pytest.raises(RuntimeError, match="storage"):
                    layer(*call)
        cell = cellgen.torch.GRUCell(I, H)
        for call in ((spoil(x[0]), state[0]), (x[0], spoil(state[0]))):
            with pytest.raises(RuntimeError, match="storage"):
                cell(*call)


def test_a_parameter_that_is_freed_between_the_two_passes_is_refused() -> None:
    layer = cellgen.torch.module("gru", I, H)
    output, _ = layer(torch.zeros(T, B, I))
    layer.w_z.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        output.sum().backward()


@pytest.mark.parametrize("name", ["x", "w_z", "h_prev"])
def test_zeros_without_memory_are_zeros(name: str) -> None:
    """As torch makes them of derivatives that are zero."""
    kernel, cell = cellgen.load("gru"), drawn.function("gru")
    tensors = drawn.drawn(cell, dtype=torch.float32)
    plain = {n: t.detach() for n, t in tensors.items()}
    zeros = {name: torch.zeros_like(plain[name])}
    without = {name: zeros_without_memory(plain[name])}
    wanted = kernel.sequence_forward(**plain | zeros)
    assert torch.equal(kernel.sequence_forward(**plain | without).h, wanted.h)
    assert torch.equal(cell(**plain | without).h, wanted.h)
    others = [tensor for other, tensor in tensors.items() if other != name]
    losses = [cell(**tensors | one).h.square().sum() for one in (zeros, without)]
    one, other = (torch.autograd.grad(loss, others) for loss in losses)
    assert all(map(torch.equal, one, other))


def test_layers_and_cells_take_zeros_without_memory() -> None:
    x, state = torch.zeros(T, B, I), torch.zeros(1, B, H)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            for layer in (cellgen.torch.module("gru", I, H), cellgen.torch.GRU(I, H)):
                found = layer(zeros_without_memory(x), zeros_without_memory(state))[0]
                assert torch.equal(found, layer(x, state)[0])
            cell = cellgen.torch.LSTMCell(I, H)
            zeros = zeros_without_memory(state[0])
            found = cell(zeros_without_memory(x[0]), (zeros, zeros))
            assert all(map(torch.equal, found, cell(x[0], (state[0], state[0]))))

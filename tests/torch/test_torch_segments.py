"""Segments of time side by side through PyTorch: what is refused, and derivatives of every kind."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import cellgen.torch  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402
from cellgen.torch import derivatives  # noqa: E402
from cellgen.torch import segments_on_device as on_device  # noqa: E402
from cellgen.torch.errors import KindError, TensorError  # noqa: E402
from cellgen.torch.segments_on_device import CutCall  # noqa: E402
from tests.torch.emulated import emulated_device  # noqa: E402

pytestmark = [  # torch's own, of jit and of what it compiles
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SEGMENTS = {"parallel": "segments", "segments": 4, "sweeps": 9}


def tensors(
    cell: str, dtype: torch.dtype = torch.float64, rows: int = 2
) -> dict[str, torch.Tensor]:
    """Tensors of a call over 12 steps."""
    torch.manual_seed(0)
    layout = cellgen.torch.function(cell).layout
    sizes = dict.fromkeys(layout.dims, 3) | {"T": 12, "B": rows}
    return {
        item.name: torch.randn(layout.shape(item.name, sizes), dtype=dtype) * 0.4
        for item in layout.theta
    }


@pytest.mark.parametrize(
    ("cell", "how", "said"),
    [
        ("lif", {}, r"`s = spike\(v - threshold\)` jumps"),
        ("elman", {"mask": torch.ones(12, 2, dtype=torch.bool)}, "and mask is given"),
        ("elman", {"every": 2}, "and every is given"),
        ("elman", {"checkpoint": 4}, "and checkpoint is given"),
        ("elman", {"memory_limit": 10**6}, "and memory_limit is given"),
        ("elman", {"parallel": "newton"}, "expected one of segments"),
        ("elman", {"parallel": None}, "segments is 4 and parallel is None"),
        ("min_gru", {"form": "auto"}, "form is 'auto', expected the form 'step' with it"),
    ],
)
def test_what_does_not_go_with_segments_is_refused(cell: str, how: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        cellgen.torch.function(cell)(**tensors(cell), **{**SEGMENTS, **how})


def test_tensors_of_16_bits_are_refused_with_the_reason() -> None:
    with pytest.raises(ArgumentError, match="the arrays are bfloat16, expected float32 or float64"):
        cellgen.torch.function("elman")(**tensors("elman", torch.bfloat16), **SEGMENTS)


def test_tensors_without_values_are_refused_by_their_device() -> None:
    given = {name: tensor.to("meta") for name, tensor in tensors("elman").items()}
    with pytest.raises(
        TensorError, match="the tensors are on meta, expected tensors of the CPU or of"
    ):
        cellgen.torch.function("elman")(**given, **SEGMENTS)


def test_a_wrong_shape_is_said_as_without_segments() -> None:
    given = tensors("elman")
    given["u"] = given["u"][:2]
    with pytest.raises(TensorError, match="u has shape"):
        cellgen.torch.function("elman")(**given, **SEGMENTS)


def test_a_traced_graph_has_no_segments() -> None:
    given, cell = tensors("elman"), cellgen.torch.function("elman")

    def run(x: torch.Tensor) -> torch.Tensor:
        return cell(**{**given, "x": x}, **SEGMENTS).h

    with pytest.raises(KindError, match="in a graph that is traced or exported"):
        torch.jit.trace(run, (given["x"],))


def test_a_compiled_program_calls_them() -> None:
    given, cell = tensors("elman"), cellgen.torch.function("elman")

    def run(x: torch.Tensor) -> torch.Tensor:
        return (cell(**{**given, "x": 2 * x}, **SEGMENTS).h * 3).sum()

    found, wanted = (x.requires_grad_() for x in (given["x"].clone(), given["x"].clone()))
    torch.compile(run, backend="eager")(found).backward()
    run(wanted).backward()
    assert torch.equal(found.grad, wanted.grad)


def test_derivatives_of_transforms_are_those_of_steps() -> None:
    given, cell = tensors("elman"), cellgen.torch.function("elman")
    others = {n: tensor for n, tensor in given.items() if n != "x"}

    def loss(x: torch.Tensor, **how: Any) -> torch.Tensor:
        return (cell(x=x, **others, **how).h ** 2).sum()

    x = given["x"]
    pairs = torch.stack([x, x + 1])
    for transform in (
        torch.func.grad,
        torch.func.vmap,
        lambda f: torch.func.vmap(torch.func.grad(f)),
    ):
        operand = x if transform is torch.func.grad else pairs
        wanted = transform(loss)(operand)
        assert torch.equal(transform(lambda one: loss(one, **SEGMENTS))(operand), wanted)
    _, wanted = torch.func.jvp(loss, (x,), (x,))
    _, found = torch.func.jvp(lambda one: loss(one, **SEGMENTS), (x,), (x,))
    assert torch.equal(found, wanted)
    hessians = [
        torch.autograd.functional.hvp(lambda one, how=how: loss(one, **how), x, x)[1]
        for how in ({}, SEGMENTS)
    ]
    assert torch.equal(*hessians)


@pytest.mark.parametrize("packed", [False, True])
def test_layers_in_both_directions_run_in_segments(packed: bool) -> None:
    torch.manual_seed(0)
    layer = cellgen.torch.module("qrnn", 3, 3, num_layers=2, bidirectional=True)
    x: Any = torch.randn(12, 2, 3)
    if packed:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, [12, 9])
    found, last = layer(x, **SEGMENTS, last_only=True)
    wanted, states = layer(x, last_only=True)
    assert torch.equal(found, wanted)
    assert torch.equal(last, states)
    with pytest.raises(ArgumentError, match="mask is given"):
        layer(torch.randn(12, 2, 3), mask=torch.ones(12, 2, dtype=torch.bool), **SEGMENTS)


LENGTHS = {"lengths": torch.tensor([12, 3, 0, 8, 6, 1, 11])}
RESET = {"reset": torch.arange(12 * 7).reshape(12, 7) % 11 == 3}


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("elman", {}),
        ("min_gru", LENGTHS),
        ("elman", {"reverse": True}),
        ("lstm", {**LENGTHS, **RESET}),
        ("elman", {**LENGTHS, **RESET, "reverse": True}),
        pytest.param("ind_rnn", {}, marks=pytest.mark.slow),
        pytest.param("s5", {**LENGTHS, **RESET}, marks=pytest.mark.slow),
    ],
    ids=["", "lengths", "in reverse", "of rows", "of rows, in reverse", "of units", "of pairs"],
)
def test_on_a_device_segments_are_rows_of_its_kernels(cell: str, options: dict[str, Any]) -> None:
    """The emulation of CUDA: outputs and gradients have the bits of its steps, and a tail too."""
    run, given = cellgen.torch.function(cell), tensors(cell, rows=7)

    def trained(**how: Any) -> list[torch.Tensor]:
        leaves = {n: tensor.clone().requires_grad_() for n, tensor in given.items()}
        outputs = run(**leaves, **options, **how)
        sum(one.square().sum() for one in outputs).backward()
        return [*outputs, *(leaf.grad for leaf in leaves.values())]

    with emulated_device():
        wanted = trained()
        for segments, sweeps in ((4, 9), (5, 1), (3, 0), (12, 4)):
            found = trained(parallel="segments", segments=segments, sweeps=sweeps)
            assert all(map(torch.equal, wanted, found)), (segments, sweeps)


def test_on_a_device_a_tolerance_ends_sooner_and_a_call_shows_what_it_says() -> None:
    run, given = cellgen.torch.function("min_gru"), tensors("min_gru")
    with emulated_device():
        runs = []
        for tolerance in (0, 0.1, 1.0):
            with mock.patch.object(
                CutCall, "run_again", autospec=True, side_effect=CutCall.run_again
            ) as again:
                near = run(**given, **SEGMENTS, tolerance=tolerance).h
            runs.append(again.call_count)
            torch.testing.assert_close(near, run(**given).h, atol=2 * tolerance, rtol=0)
        assert runs == [3, 1, 0]  # a minGRU is linear in its state: one sweep of Jacobians is exact
        for shown in ({"last_only": True}, {"batch_first": True, "x": given["x"].transpose(0, 1)}):
            whole, cut = (run(**{**given, **shown, **how}) for how in ({}, SEGMENTS))
            assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True) if a is not None)


def trained_on_a_device(
    cell: str, given: dict[str, torch.Tensor], **options: Any
) -> tuple[torch.Tensor, ...]:
    """Outputs of a call, then the gradients that there are."""
    leaves = {n: tensor.clone().requires_grad_() for n, tensor in given.items()}
    outputs = cellgen.torch.function(cell)(**leaves, **options)
    sum(one.square().sum() for one in outputs).backward()
    gradients = (leaf.grad for leaf in leaves.values() if leaf.grad is not None)
    return (*(one.detach() for one in outputs), *gradients)


@pytest.mark.parametrize(
    ("cell", "segments", "options"),
    [
        ("para_lstm", 5, {}),
        ("min_gru", 4, {**LENGTHS, **RESET}),
        ("min_gru", 5, {**LENGTHS, **RESET, "reverse": True}),
        pytest.param("ind_rnn", 4, LENGTHS, marks=pytest.mark.slow),
        pytest.param("qrnn", 5, {"reverse": True}, marks=pytest.mark.slow),
        pytest.param("s5", 4, {**LENGTHS, "reverse": True}, marks=pytest.mark.slow),
        pytest.param("retnet", 4, {}, marks=pytest.mark.slow),
        pytest.param("para_lstm", 12, {**LENGTHS, **RESET}, marks=pytest.mark.slow),
    ],
)
def test_on_a_device_gradients_with_a_tolerance_are_a_scan_over_segments(
    cell: str, segments: int, options: dict[str, Any]
) -> None:
    """One call without what is behind, one a state, one of all gradients, and one of a tail."""
    given, cut = tensors(cell, rows=7), {"parallel": "segments", "segments": segments, "sweeps": 9}
    states = len(cellgen.torch.function(cell).layout.forward.states)
    with emulated_device():
        wanted = trained_on_a_device(cell, given, **options)
        with mock.patch.object(derivatives, "run_backward", wraps=derivatives.run_backward) as back:
            found = trained_on_a_device(cell, given, **options, **cut, tolerance=1e-14)
    assert back.call_count == states + 2 + (12 % segments > 0)
    for one, due in zip(found, wanted, strict=True):
        assert (one - due).abs().max() <= 4e-15 * due.abs().max()


@pytest.mark.parametrize(
    ("cell", "tolerance", "options"),
    [("min_gru", 0, {}), ("elman", 1e-300, {}), ("min_gru", 1e-300, {"window": 5})],
    ids=["to the bit", "units that are read", "truncated"],
)
def test_on_a_device_other_gradients_go_step_by_step(
    cell: str, tolerance: float, options: dict[str, Any]
) -> None:
    given = tensors(cell, rows=3)
    with emulated_device():
        wanted = trained_on_a_device(cell, given, **options)
        found = trained_on_a_device(cell, given, **options, **SEGMENTS, tolerance=tolerance)
    assert all(map(torch.equal, found, wanted))


def test_on_a_device_a_gradient_of_zero_stays_so_where_products_of_jacobians_are_infinite() -> None:
    """Six steps of a segment multiply by 1e55 each, and the loss is of steps before them."""
    given = {name: torch.zeros_like(one) for name, one in tensors("ind_rnn").items()}
    given["u"] += 1e55
    gradients = []
    with emulated_device():
        for how in ({}, {"parallel": "segments", "segments": 2, "tolerance": 1e-9}):
            leaves = {n: tensor.clone().requires_grad_() for n, tensor in given.items()}
            cellgen.torch.function("ind_rnn")(**leaves, **how).h[3].sum().backward()
            gradients.append([leaf.grad for leaf in leaves.values()])
    assert all(map(torch.equal, *gradients))
    assert all(one.isfinite().all() for one in gradients[0])


def test_on_a_device_a_tolerance_carries_jacobians_through_memory_that_is_longer() -> None:
    """A state that forgets a hundredth a step: segments of 4 alone take a sweep each."""
    given = tensors("ind_rnn", rows=2)
    given["x"] = given["x"].repeat(4, 1, 1)
    given["u"] = torch.full_like(given["u"], 0.99)
    cut = {"parallel": "segments", "segments": 12, "tolerance": 1e-9, "sweeps": 11}
    sweeps = {}
    with emulated_device():
        run = cellgen.torch.function("ind_rnn")
        due = run(**given)
        for way, carries in (("carried", True), ("alone", False)):
            linear = mock.patch.object(on_device, "are_linear", return_value=carries)
            again = mock.patch.object(
                CutCall, "run_again", autospec=True, side_effect=CutCall.run_again
            )
            with linear, again as calls:
                near = run(**given, **cut)
            sweeps[way] = calls.call_count
            assert (near.h - due.h).abs().max() <= 1e-7
    assert sweeps["carried"] <= 4 < 8 <= sweeps["alone"], sweeps


def test_on_a_device_carried_jacobians_of_nan_and_infinite_numbers_give_what_steps_give() -> None:
    given = tensors("ind_rnn", rows=3)
    given["x"][5, 1, 0], given["x"][2, 2, 1] = float("nan"), float("inf")
    given["h_prev"][0] = 1e300
    with emulated_device():
        run = cellgen.torch.function("ind_rnn")
        due = run(**given)
        for segments, sweeps in ((4, 9), (6, 1), (12, 3)):
            cut = {"parallel": "segments", "segments": segments, "sweeps": sweeps}
            near = run(**given, **cut, tolerance=1e-12)
            for one, wanted in zip(near, due, strict=True):
                torch.testing.assert_close(one, wanted, rtol=0, atol=1e-10, equal_nan=True)


def test_on_a_device_what_sweeps_leave_is_stepped_from_a_segment_that_is_right_to_the_bit() -> None:
    """States that x fills forget at once, so that segments 1 to 4 are near and not to the bit."""
    given = tensors("ind_rnn", rows=2)
    given["x"] = given["x"].repeat(4, 1, 1)
    given["x"][:16], given["b"][:] = 5, 0
    given["u"][:], given["w"][:] = 0.99, torch.eye(3)
    cut = {"parallel": "segments", "segments": 12, "tolerance": 1e-3, "sweeps": 1}
    with emulated_device():
        run = cellgen.torch.function("ind_rnn")
        assert torch.equal(run(**given, **cut).h, run(**given).h)


def test_on_a_device_nan_of_another_sign_follows_from_nan() -> None:
    given = tensors("ind_rnn", rows=3)
    given["x"][2, 1, 0], given["x"][3, 1, 0] = float("inf"), -float("inf")
    given["u"] *= float("inf")
    cut = {"parallel": "segments", "segments": 6, "tolerance": 1e-12, "sweeps": 9}
    with emulated_device():
        run = cellgen.torch.function("ind_rnn")
        with mock.patch.object(
            CutCall, "run_again", autospec=True, side_effect=CutCall.run_again
        ) as again:
            near = run(**given, **cut).h
        torch.testing.assert_close(near, run(**given).h, rtol=0, atol=0, equal_nan=True)
    assert again.call_count <= 5


def test_on_a_device_no_rows_have_no_segments() -> None:
    with emulated_device():
        run = cellgen.torch.function("min_gru")
        given = {n: one[:, :0] if n == "x" else one for n, one in tensors("min_gru").items()}
        given["h_prev"] = given["h_prev"][:0]
        assert run(**given, **SEGMENTS).h.shape == (12, 0, 3)

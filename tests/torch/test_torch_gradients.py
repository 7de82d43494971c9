"""Gradients of cells as functions of tensors: of the first and second order, both modes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

from cellgen import cells  # noqa: E402
from tests.cover import each_name_of, of_call  # noqa: E402
from tests.torch.drawn import SEVERAL, SHIPPED, STATED, by_position, drawn, function, loop  # noqa: E402

pytestmark = [  # torch's own, by release
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
]

OPTIONS = {
    "lengths": {"lengths": torch.tensor([3, 1])},
    "mask": {"mask": torch.tensor([[True, False], [True, True], [False, True]])},
    "reset": {"reset": torch.tensor([[False, False], [True, False], [False, True]])},
    "reverse": {"reverse": True},
    "zeros": {
        "mask": torch.tensor([[True, False], [True, True], [False, True]]),
        "zero_output_for_mask": True,
    },
}

PLAIN = tuple(cell for cell in cells.SHIPPED if cell.definition.name not in STATED)


@pytest.mark.parametrize("name", each_name_of(of_call, PLAIN))
def test_the_gradient_of_every_cell_is_that_of_differences(name: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    run = by_position(cell, tensors)
    assert gradcheck(run, tuple(tensors.values()), fast_mode=name != "gru")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_gradients_follow_which_steps_count(name: str, option: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    run = by_position(cell, tensors, **OPTIONS[option])
    assert gradcheck(run, tuple(tensors.values()), fast_mode=True)
    assert gradgradcheck(run, tuple(tensors.values()), fast_mode=True)


@pytest.mark.parametrize("name", ["gru", "elman"])
def test_a_cell_gives_what_a_loop_of_torch_gives(name: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    found, wanted = cell(**tensors), loop(name, tensors)
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-12, atol=1e-14)
    each = tuple(tensors.values())
    torch.testing.assert_close(
        torch.autograd.grad(found[0].sin().sum(), each),
        torch.autograd.grad(wanted[0].sin().sum(), each),
        rtol=1e-11,
        atol=1e-13,
    )


@pytest.mark.parametrize("name", SEVERAL)
def test_second_derivatives_are_those_of_differences(name: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    assert gradgradcheck(by_position(cell, tensors), tuple(tensors.values()), fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*SHIPPED} - {*STATED}))
def test_second_derivatives_of_every_cell_are_those_of_differences(name: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    run, each = by_position(cell, tensors), tuple(tensors.values())
    assert gradcheck(run, each, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(run, each, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_forward_mode_agrees_with_reverse_mode(name: str) -> None:
    cell = function(name)
    tensors = drawn(cell)
    run, each = by_position(cell, tensors), tuple(tensors.values())
    assert gradcheck(run, each, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(run, each, fast_mode=True, check_fwd_over_rev=True)


def test_third_derivatives_are_those_of_differences() -> None:
    cell = function("elman")
    tensors = drawn(cell, T=2, B=1, I=1, H=2)

    def second(*each: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(tensors, each, strict=True))
        first = torch.autograd.grad(cell(**given).h.sin().sum(), each, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), each, create_graph=True)

    assert gradcheck(second, tuple(tensors.values()), fast_mode=True)


def test_a_gradient_penalty_moves_along_inputs_alone() -> None:
    """The tangent along inputs has two products where that along everything has three."""
    cell = function("elman")
    tensors = drawn(cell)

    def penalised(run: object) -> tuple[torch.Tensor, ...]:
        (g,) = torch.autograd.grad(run().sin().sum(), tensors["x"], create_graph=True)
        return torch.autograd.grad((g.norm() - 1) ** 2, tuple(tensors.values()))

    found = penalised(lambda: cell(**tensors).h)
    assert "/by:x" in " ".join(known_texts())
    wanted = penalised(lambda: loop("elman", tensors)[0])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def known_texts() -> list[str]:
    from cellgen.torch import registry

    return list(registry.REGISTRY.texts())


def test_truncated_gradients_are_not_differentiated() -> None:
    cell = function("elman")
    tensors = drawn(cell)
    (g,) = torch.autograd.grad(cell(**tensors, window=2).h.sum(), tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="window is 2, expected 0"):
        g.sum().backward()


def test_a_window_cuts_gradients() -> None:
    cell = function("elman")
    tensors = drawn(cell, T=4)
    cell(**tensors, window=2).h[2:].sum().backward()
    assert not tensors["x"].grad[:2].any()
    assert tensors["x"].grad[2:].all()


def test_saved_tensors_are_freed_and_guarded() -> None:
    cell = function("gru")
    tensors = drawn(cell)
    y = cell(**tensors).h.sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    y = cell(**tensors).h.sum()
    with torch.no_grad():
        tensors["w_z"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()

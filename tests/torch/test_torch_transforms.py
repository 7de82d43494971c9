"""``torch.func`` over cells: every transform gives what it gives of a loop of torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen import Cell, H, Input, State, Weight, tanh  # noqa: E402
from cellgen.torch import derivatives  # noqa: E402
from tests.torch.drawn import drawn, function, loop  # noqa: E402

pytestmark = [  # torch's own, by release
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
]

Run = Callable[..., torch.Tensor]


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return drawn(function("gru"), learns=False)


def both(tensors: dict[str, torch.Tensor], what: Callable[[Run], object]) -> None:
    """Compare what is made of a cell with what is made of the loop."""
    gru = function("gru")
    found = what(lambda **given: gru(**{**tensors, **given}).h)
    wanted = what(lambda **given: loop("gru", {**tensors, **given})[0])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_grad(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        both(tensors, lambda run, n=name: grad(lambda a: run(**{n: a}).sin().sum())(tensors[n]))


def test_vjp(tensors: dict[str, torch.Tensor]) -> None:
    u = torch.randn(3, 2, 3, dtype=torch.float64)
    both(tensors, lambda run: vjp(lambda x: run(x=x), tensors["x"])[1](u))


def test_jvp(tensors: dict[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        v = torch.randn_like(value)
        both(tensors, lambda run, n=name, a=value, v=v: jvp(lambda a: run(**{n: a}), (a,), (v,)))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The cells whose forward pass runs, and whether it saves."""
    found: list[tuple[str, bool]] = []
    run = derivatives.run_forward

    def counted(call: Any, *tensors: Any, save: bool) -> Any:
        found.append((call.known.text, save))
        return run(call, *tensors, save=save)

    monkeypatch.setattr(derivatives, "run_forward", counted)
    return found


def test_forward_mode_alone_is_one_call_of_the_tangent_that_saves_nothing(
    kernels: list[tuple[str, bool]],
) -> None:
    own, elman = drawn(function("elman"), learns=False), function("elman")
    x, v, once = own["x"], torch.randn_like(own["x"]), [("elman/by:x", False)]
    run = lambda x: elman(**{**own, "x": x}).h
    _, wanted = jvp(lambda x: loop("elman", {**own, "x": x})[0], (x,), (v,))
    h, found = jvp(run, (x,), (v,))
    assert kernels == once
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(h, run(x))
    with forward_ad.dual_level():
        dual = run(forward_ad.make_dual(x, v))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, wanted)
    assert kernels == once * 2
    jacfwd(run)(x)
    assert kernels == once * 3


def test_forward_mode_saves_where_a_gradient_follows(kernels: list[tuple[str, bool]]) -> None:
    own, elman = drawn(function("elman"), learns=False), function("elman")
    x, v = own["x"], torch.randn_like(own["x"])
    loss = lambda x: elman(**{**own, "x": x}).h.square().sum()
    along = lambda x: jvp(loss, (x,), (v,))[1]
    wanted = jvp(grad(loss), (x,), (v,))[1]
    kernels.clear()
    torch.testing.assert_close(grad(along)(x), wanted)
    assert kernels == [("elman", True), ("elman/by:x", True)]
    learns = x.clone().requires_grad_()
    along(learns).backward()  # autograd around a transform
    torch.testing.assert_close(learns.grad, wanted)


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(tensors: dict[str, torch.Tensor], jacobian: Callable[..., object]) -> None:
    both(tensors, lambda run: jacobian(lambda x: run(x=x))(tensors["x"]))


def test_hessian(tensors: dict[str, torch.Tensor]) -> None:
    both(tensors, lambda run: hessian(lambda x: run(x=x).sin().sum())(tensors["x"]))
    both(tensors, lambda run: hessian(lambda b: run(b_r=b).sin().sum())(tensors["b_r"]))


def test_hessian_vector_product_of_weights(tensors: dict[str, torch.Tensor]) -> None:
    v = torch.randn_like(tensors["u_n"])
    both(
        tensors,
        lambda run: jvp(grad(lambda u: run(u_n=u).sin().sum()), (tensors["u_n"],), (v,)),
    )


def test_hessian_vector_product_of_autograd(tensors: dict[str, torch.Tensor]) -> None:
    x, v = tensors["x"], torch.randn_like(tensors["x"])
    elman = function("elman")
    own = drawn(elman, learns=False)
    hvp = torch.autograd.functional.hvp
    found = hvp(lambda x: elman(**{**own, "x": x}).h.sin().sum(), x, v)
    wanted = hvp(lambda x: loop("elman", {**own, "x": x})[0].sin().sum(), x, v)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_vmap_over_inputs_and_states(tensors: dict[str, torch.Tensor]) -> None:
    xs = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    hs = torch.randn(2, 4, 3, dtype=torch.float64)
    both(tensors, lambda run: vmap(lambda x: run(x=x))(xs))
    both(tensors, lambda run: vmap(lambda x, h: run(x=x, h_prev=h), in_dims=(0, 1))(xs, hs))


def test_vmap_over_weights(tensors: dict[str, torch.Tensor]) -> None:
    many = torch.randn(4, *tensors["w_z"].shape, dtype=torch.float64)
    both(tensors, lambda run: vmap(lambda w: run(w_z=w))(many))


def test_vmap_over_lengths() -> None:
    gru = function("gru")
    tensors = drawn(gru, learns=False)
    lengths = torch.tensor([[3, 1], [0, 2]])
    found = vmap(lambda n: gru(**tensors, lengths=n).h)(lengths)
    wanted = torch.stack([gru(**tensors, lengths=n).h for n in lengths])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_gradients_of_single_samples(tensors: dict[str, torch.Tensor]) -> None:
    def of_one(run: Run) -> Callable[..., torch.Tensor]:
        return lambda w, x, h: run(w_z=w, x=x[:, None], h_prev=h[None]).sin().sum()

    both(
        tensors,
        lambda run: vmap(grad(of_one(run)), in_dims=(None, 1, 0))(
            tensors["w_z"], tensors["x"], tensors["h_prev"]
        ),
    )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["gru", "lstm", "delta_net"])
def test_gradients_of_single_samples_are_one_call(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = function(name)
    tensors = drawn(cell, learns=False)
    shared = {item.name: tensors[item.name] for item in cell.layout.theta if "B" not in item.shape}
    own = {n: t for n, t in tensors.items() if n not in shared}
    axes = {item.name: item.shape.index("B") for item in cell.layout.theta if item.name in own}
    many = {n: torch.stack([t.narrow(axes[n], 0, 1)] * 3, 0) for n, t in own.items()}
    many = {
        n: torch.randn(3, *[rows if k == axes[n] else size for k, size in enumerate(t.shape[1:])],
                       dtype=t.dtype)
        for n, t in many.items()
    }  # fmt: skip
    lengths = torch.randint(0, 4, (3, rows))

    def loss(shared: dict, own: dict, lengths: torch.Tensor) -> torch.Tensor:
        results = cell(**shared, **own, lengths=lengths, reverse=True)
        return sum(result.sin().sum() for result in results)

    calls = []
    whole = derivatives.backward_by_row
    monkeypatch.setattr(
        derivatives, "backward_by_row", lambda *given: calls.append(1) or whole(*given)
    )
    each = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0, 0))(shared, many, lengths)
    assert calls == [1]
    for member in range(3):
        own = {n: t[member] for n, t in many.items()}
        wanted = grad(loss, argnums=(0, 1))(shared, own, lengths[member])
        for found, alone in zip(each, wanted, strict=True):
            for n, gradient in alone.items():
                torch.testing.assert_close(found[n][member], gradient, rtol=1e-13, atol=1e-14)


def test_gradients_of_single_samples_are_differentiated_again() -> None:
    gru = function("gru")
    tensors = drawn(gru, learns=False)
    x = tensors.pop("x")

    def penalty(w: torch.Tensor) -> torch.Tensor:
        given = tensors | {"h_prev": tensors["h_prev"][:1], "w_z": w}

        def loss(u: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return gru(**given | {"u_z": u}, x=x[:, None]).h.sin().sum()

        return vmap(grad(loss), in_dims=(None, 1))(tensors["u_z"], x).pow(2).sum()

    w = tensors["w_z"].clone().requires_grad_()
    assert torch.autograd.gradcheck(penalty, (w,))
    torch.testing.assert_close(
        grad(penalty)(tensors["w_z"]), torch.autograd.grad(penalty(w), w)[0], rtol=1e-12, atol=0
    )


def test_gradients_of_single_samples_of_a_module() -> None:
    layer = cellgen.torch.module("lstm", 3, 5).double()
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    weights = dict(layer.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, weights, (x[:, None],))[0].pow(2).sum()

    each = vmap(grad(loss), in_dims=(None, 1))(weights, x)
    layer(x)[0].pow(2).sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad, rtol=1e-10, atol=1e-12)


def test_transforms_over_a_stack_of_modules() -> None:
    layers = [cellgen.torch.module("elman", 3, 4) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(layers)
    x = torch.randn(5, 2, 3)
    found = vmap(lambda weights: functional_call(layers[0], weights, (x,))[0])(stacked)
    torch.testing.assert_close(found, torch.stack([layer(x)[0] for layer in layers]))


class Still(Cell):
    """A state that nothing reaches stands still along inputs."""

    x, h_prev, k_prev, w = Input(H), State(H), State(H), Weight(H, H)
    h = tanh(x @ w + h_prev)
    k = k_prev / 2


def test_a_state_that_stands_still_has_derivatives_of_0() -> None:
    f = cellgen.torch.function(Still)
    x, w = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(f(x=x, w=w))

    along = torch.randn_like(x)
    outputs, dots = jvp(run, (x,), (along,))
    step = torch.complex(x, 1e-100 * along)
    h, expected = torch.zeros(2, 3, dtype=torch.complex128), []
    for row in step:
        h = torch.tanh(row @ w.to(h.dtype) + h)
        expected.append(h.imag / 1e-100)
    torch.testing.assert_close(dots[0], torch.stack(expected))
    assert not dots[1].any()
    assert dots[1].shape == outputs[1].shape
    assert torch.autograd.gradgradcheck(lambda x: run(x)[0], x.requires_grad_())


def test_vmap_of_no_calls_is_empty(tensors: dict[str, torch.Tensor]) -> None:
    none = {name: torch.stack([tensor] * 2)[:0] for name, tensor in tensors.items()}
    gru = function("gru")
    for name in ("x", "w_z"):
        others = {n: t for n, t in tensors.items() if n != name}
        run = lambda a, n=name, o=others: gru(**{**o, n: a}).h
        assert vmap(run)(none[name]).shape == (0, 3, 2, 3)
        alone = grad(lambda a, run=run: run(a).sum())
        assert vmap(alone)(none[name]).shape == none[name].shape
    of_weights = grad(lambda w, x: gru(**{**tensors, "w_z": w, "x": x}).h.sum())
    shape = (0, *tensors["w_z"].shape)
    assert vmap(of_weights, in_dims=(None, 0))(tensors["w_z"], none["x"]).shape == shape

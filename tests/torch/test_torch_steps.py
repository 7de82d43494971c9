"""Drop-in cells take the direct way: the same numbers, and only where nothing would come of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

import cellgen  # noqa: E402
import cellgen.torch  # noqa: E402
from cellgen.torch import native  # noqa: E402
from tests.torch.counted import counted, declined  # noqa: E402

pytestmark = [
    pytest.mark.skipif(native.direct() is None, reason="operators here are Python"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of its trace
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
KINDS = ("LSTMCell", "GRUCell", "RNNCell")
STEPS, ROWS, I, H = 4, 3, 5, 7


def pair(kind: str, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    peer = getattr(torch.nn, kind)(I, H, **options)
    mine = getattr(cellgen.torch, kind)(I, H, **options)
    mine.load_state_dict(peer.state_dict())
    return peer, mine


def rollout(cell: torch.nn.Module, steps: Tensor, state: Any = None) -> Tensor:
    """Outputs of all steps, and the last state."""
    found = []
    for x in steps:
        state = cell(x, state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack([*found, *(state if isinstance(state, tuple) else (state,))])


def gradients(cell: torch.nn.Module, steps: Tensor, state: Any = None) -> list[Tensor]:
    given = steps.detach().requires_grad_()
    learning = [given, *(p for p in cell.parameters() if p.requires_grad)]
    return [*torch.autograd.grad(rollout(cell, given, state).sin().sum(), learning)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_have_the_bits_of_operators(kind: str, dtype: torch.dtype) -> None:
    _, cell = pair(kind, dtype=dtype)
    steps, state = torch.randn(STEPS, ROWS, I, dtype=dtype), torch.randn(ROWS, H, dtype=dtype)
    for start in (None, (state, 2 * state) if kind == "LSTMCell" else state):
        with torch.no_grad(), counted("direct") as taken:
            found = rollout(cell, steps, start)
        assert taken == [True] * STEPS
        with counted("track") as taken, counted("track_back") as back:
            own = gradients(cell, steps, start)
        assert taken == back == [True] * STEPS
        with declined():
            with torch.no_grad():
                assert torch.equal(rollout(cell, steps, start), found)
            assert all(map(torch.equal, own, gradients(cell, steps, start)))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kind: str) -> None:
    peer, mine = pair(kind)
    steps = torch.randn(STEPS, ROWS, I)
    torch.testing.assert_close(rollout(mine, steps), rollout(peer, steps))
    for own, other in zip(gradients(mine, steps), gradients(peer, steps), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-5)


def apart(x: Tensor) -> Tensor:
    """The same rows, every second of more memory."""
    return torch.stack([x, x], 1)[:, 0]


def across(x: Tensor) -> Tensor:
    """The same rows, their units far apart."""
    return x.T.contiguous().T


@pytest.mark.parametrize("lie", [apart, across])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_lie_anywhere(kind: str, lie: Callable[[Tensor], Tensor]) -> None:
    _, cell = pair(kind)
    x = torch.randn(ROWS, I)
    state = torch.randn(ROWS, H)
    plain, other = ((s, s) if kind == "LSTMCell" else s for s in (state, lie(state)))
    for learns in (True, False):
        with torch.set_grad_enabled(learns), counted("direct", "track") as taken:
            one, two = rollout(cell, [x], plain), rollout(cell, [lie(x)], other)
            assert taken == [True] * 2
            assert torch.equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_nobody_wants_are_not_formed(kind: str) -> None:
    _, cell = pair(kind)
    steps = torch.randn(STEPS, ROWS, I)
    every = gradients(cell, steps)
    names = [name for name, _ in cell.named_parameters()]
    for frozen in names:
        own = copy.deepcopy(cell)
        getattr(own, frozen).requires_grad_(False)
        with counted("track_back") as taken:
            found = gradients(own, steps)
        assert taken == [True] * STEPS
        kept = [g for g, name in zip(every[1:], names, strict=True) if name != frozen]
        assert all(map(torch.equal, found, [every[0], *kept]))
    own.requires_grad_(False)
    with counted("direct") as taken:
        assert not rollout(own, steps).requires_grad
    assert taken == [True] * STEPS


@pytest.mark.parametrize(
    "kind", ["LSTMCell", *(pytest.param(n, marks=pytest.mark.slow) for n in KINDS[1:])]
)
def test_derivatives_of_derivatives(kind: str) -> None:
    _, cell = pair(kind, dtype=torch.float64)
    steps = torch.randn(2, 2, I, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rollout(cell, x), (steps,))
    assert torch.autograd.gradgradcheck(lambda x: rollout(cell, x), (steps,))


def test_tools_around_a_step() -> None:
    """Hooks of saved tensors, checkpoints, copies, and results that are changed in place."""
    peer, cell = pair("LSTMCell")
    steps = torch.randn(STEPS, ROWS, I)
    wanted = gradients(cell, steps)
    with torch.autograd.graph.save_on_cpu():
        assert all(map(torch.equal, gradients(cell, steps), wanted))
    again = pickle.loads(pickle.dumps(copy.deepcopy(cell)))
    assert all(map(torch.equal, gradients(again, steps), wanted))
    given = steps.detach().requires_grad_()
    checkpoint = torch.utils.checkpoint.checkpoint
    found = checkpoint(lambda x: rollout(cell, x), given, use_reentrant=False).sin().sum()
    assert torch.equal(torch.autograd.grad(found, given)[0], wanted[0])
    h, _ = cell(steps[0])
    h.relu_()
    other, _ = peer(steps[0])
    torch.testing.assert_close(
        torch.autograd.grad(h.sum(), cell.weight_ih),
        torch.autograd.grad(other.relu().sum(), peer.weight_ih),
    )


HOLES = [(None, 1), (1, None), (None, None)]
"""Which of two states are there."""


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("holes", HOLES)
@pytest.mark.parametrize("what", ["LSTMCell", "LSTM", "LSTM of 2", "module", "module of 2"])
def test_states_are_all_there_or_none(
    what: str, holes: tuple[int | None, ...], learns: bool
) -> None:
    kind, _, count = what.partition(" of ")
    layers = int(count or 1)
    rows = (ROWS,) if kind == "LSTMCell" else (layers, ROWS)
    layer = {
        "LSTMCell": lambda: cellgen.torch.LSTMCell(I, H),
        "LSTM": lambda: cellgen.torch.LSTM(I, H, layers),
        "module": lambda: cellgen.torch.module("lstm", I, H, layers),
    }[kind]()
    x = torch.randn(ROWS, I) if kind == "LSTMCell" else torch.randn(STEPS, ROWS, I)
    states = tuple(None if hole is None else torch.randn(*rows, H) for hole in holes)
    name, place = "state" if kind == "module" else "hx", holes.index(None)
    words = rf"{kind}.*: {name}\[{place}\] is None, expected a torch.Tensor; pass all states"
    with torch.set_grad_enabled(learns), pytest.raises(cellgen.ArgumentError, match=words):
        layer(x, states)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_hook_gives_back_may_lie_anywhere(kind: str) -> None:
    _, cell = pair(kind)
    x = torch.randn(ROWS, I)

    def slopes(change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), change):
            return gradients(cell, x.unsqueeze(0))

    def only_kept(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        sizes = [p.shape for p in cell.parameters()]
        return lambda t: change(t) if t.dim() == 1 and t.shape not in sizes else t

    gaps = slopes(lambda t: torch.stack([t, t + 1], -1)[..., 0])
    assert all(map(torch.equal, gaps, slopes(lambda t: t)))
    one = slopes(only_kept(lambda t: t[:1].expand_as(t)))
    assert all(map(torch.equal, one, slopes(only_kept(lambda t: t[:1].repeat(len(t))))))
    assert not torch.equal(one[0], gaps[0])
    for change in (
        lambda t: t[:-16],
        lambda t: torch.cat([t, t]),
        lambda t: t[None],
        lambda t: t.double(),
        lambda t: t.to("meta"),
    ):
        with pytest.raises(RuntimeError, match=r"what a call keeps is .* expected \(\d+,\) of"):
            slopes(only_kept(change))


class OfConstant(torch.nn.Module):
    """A frozen layer that reads the same input at every call."""

    def __init__(self, layer: torch.nn.Module, x: Tensor) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.register_buffer("x", x)

    def forward(self, h: Tensor, c: Tensor | None = None) -> Tensor:
        found = self.layer(self.x, h if c is None else (h, c))
        return found[0] if isinstance(self.layer, torch.nn.LSTMCell) else found


@pytest.mark.parametrize("kind", [*KINDS, "GRU", "LSTM", "module"])
def test_a_frozen_layer_is_traced_by_its_state_alone(kind: str) -> None:
    over_time = kind not in KINDS
    make = getattr(cellgen.torch, kind)
    layer = make("gru", I, H) if kind == "module" else make(I, H)
    model = OfConstant(layer, torch.randn(STEPS, ROWS, I) if over_time else torch.randn(ROWS, I))
    states = [torch.randn(*(1,) * over_time, ROWS, H)] * (2 if kind.startswith("LSTM") else 1)
    constant = {} if len(states) == 2 else {"c": None}
    traced = torch.fx.symbolic_trace(model, concrete_args=constant)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer"]
    torch.testing.assert_close(traced(*states), model(*states), rtol=0, atol=0)


def test_the_mode_of_an_rnn_may_change() -> None:
    peer, mine = pair("RNNCell")
    x = torch.randn(ROWS, I)
    for nonlinearity in ("relu", "tanh"):
        peer.nonlinearity = mine.nonlinearity = nonlinearity
        torch.testing.assert_close(mine(x), peer(x))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_usual_goes_the_long_way(kind: str) -> None:
    peer, mine = pair(kind)
    x = torch.randn(ROWS, I)

    def first(found: Any) -> Tensor:
        return found[0] if isinstance(found, tuple) else found

    def same(run: Callable[[torch.nn.Module], Any]) -> None:
        with counted("direct") as taken:
            own = first(run(mine))
        assert True not in taken[:1]
        torch.testing.assert_close(own, first(run(peer)), atol=2e-2, rtol=2e-2)

    with torch.no_grad():
        rows = torch.vmap(lambda row: first(mine(row)))(x)
        torch.testing.assert_close(rows, first(mine(x)))
        same(lambda c: torch.jit.trace(c, (x,), check_trace=False)(x))
        same(lambda c: copy.deepcopy(c).bfloat16()(x.bfloat16()))
        same(lambda c: parametrizations.weight_norm(copy.deepcopy(c), "weight_hh")(x))
    for fault in (torch.randn(ROWS, I + 1), torch.randn(2, ROWS, I), x.double()):
        with pytest.raises((RuntimeError, ValueError)):
            mine(fault)
    for fault in (torch.randn(ROWS, H + 1), torch.randn(ROWS + 1, H), torch.randn(H)):
        with pytest.raises(RuntimeError):
            mine(x, (fault, fault) if kind == "LSTMCell" else fault)


def test_batches_without_rows() -> None:
    peer, mine = pair("GRUCell")
    x = torch.zeros(0, I)
    assert mine(x).shape == (0, H)
    mine(x).sum().backward()
    peer(x).sum().backward()
    assert torch.equal(mine.weight_ih.grad, peer.weight_ih.grad)

"""Tensors of 16 bits through the operators: the numbers of the kernel's own calls, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

import cellgen  # noqa: E402
import cellgen.torch  # noqa: E402
from cellgen.frameworks.selection import ON_TENSORS  # noqa: E402
from cellgen.runtime.numbers import as_numbers  # noqa: E402
from cellgen.torch import operators, schemas  # noqa: E402
from tests.cover import each_time  # noqa: E402
from tests.doors.by_torch import tensors  # noqa: E402
from tests.doors.narrow import (  # noqa: E402
    CELLS,
    MASK,
    OPTIONS,
    SIZES,
    TABLES,
    cell_of,
    of_backward,
)
from tests.torch.drawn import SHIPPED, drawn, function  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
FORWARD = getattr(torch.ops.cellgen.forward, schemas.OVERLOAD)
BACKWARD = getattr(torch.ops.cellgen.backward, schemas.OVERLOAD)
USUAL = ([], 0, *as_numbers(ON_TENSORS))
DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def fresh(graphs_of_this_run: None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def narrow(name: str, dtype: torch.dtype, **sizes: int) -> dict[str, torch.Tensor]:
    """Tensors of a call in 16 bits; what learns requires a gradient."""
    cell = function(name)
    made = drawn(cell, learns=False, dtype=torch.float32, **(SIZES | sizes))
    learns = {cell.names[place] for place in cell.layout.learns}
    return {n: tensor.to(dtype).requires_grad_(n in learns) for n, tensor in made.items()}


def assert_same(found: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    """Equal bits; of what is no number, that it is none."""
    assert found.dtype == wanted.dtype, name
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True, msg=name)


def as_the_kernel_does(
    name: str, given: dict[str, torch.Tensor], options: Mapping[str, Any]
) -> None:
    """A forward and a backward pass beside the kernel's own functions on the same tensors."""
    kernel, cell, how = cellgen.load(name), function(name), tensors(options)
    plain = {n: tensor.detach() for n, tensor in given.items()}
    scalars = {n: float(t) for n, t in plain.items() if t.dim() == 0}
    plain = {n: tensor for n, tensor in plain.items() if n not in scalars}
    run = kernel.sequence_forward(**plain, **scalars, save=True, **how)
    found = cell(**given, **how)
    shown = {field: value for field, value in found._asdict().items() if value is not None}
    for field, value in shown.items():
        assert_same(value, getattr(run, field), field)
    first, value = next(iter(shown.items()))
    alone = getattr(cell(**plain, **scalars, **how), first)
    assert_same(alone, getattr(run, first), "without a graph")
    up = torch.randn(value.shape).to(value.dtype)
    learning = [n for n, tensor in given.items() if tensor.requires_grad]
    gradients = torch.autograd.grad(value, [given[n] for n in learning], up)
    known = {**plain, **scalars, **run._asdict(), f"d_{first}": up}
    wanted = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    known = {n: known[n] for n in wanted if known.get(n) is not None}
    expected = kernel.sequence_backward(**known, saved=run.saved, **of_backward(how))
    for n, gradient in zip(learning, gradients, strict=True):
        of_scalar = given[n].dim() == 0
        truth = getattr(expected, f"d_{n}")
        assert_same(gradient, torch.as_tensor(truth).to(given[n].dtype) if of_scalar else truth, n)


# --- the same numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", each_time(CELLS, SHIPPED))
def test_results_are_those_of_the_kernels_own_calls(name: str, dtype: torch.dtype) -> None:
    as_the_kernel_does(name, narrow(name, dtype), {"mask": MASK})


@pytest.mark.parametrize("how", OPTIONS, ids="-".join)
def test_options_mean_what_they_mean_to_the_kernel(how: dict[str, Any]) -> None:
    name = cell_of(how)
    as_the_kernel_does(name, narrow(name, torch.bfloat16), how)


def test_a_part_of_the_outputs_and_other_strides() -> None:
    cell, kernel = function("lstm"), cellgen.load("lstm")
    given = narrow("lstm", torch.bfloat16, I=4)
    plain = {n: tensor.detach() for n, tensor in given.items()}
    plain["x"] = plain["x"].transpose(0, 1).contiguous().transpose(0, 1)
    plain["w_f"] = plain["w_f"].T.contiguous().T
    plain["h_prev"] = plain["h_prev"].expand_as(plain["h_prev"])
    for options in ({"every": 7}, {"last_only": True, "mask": MASK}, {"outputs": ("c",)}):
        how = tensors(options)
        found, wanted = cell(**plain, **how), kernel.sequence_forward(**plain, **how)
        for field in set(found._fields) & set(wanted._fields):
            if getattr(found, field) is not None and getattr(wanted, field) is not None:
                assert_same(getattr(found, field), getattr(wanted, field), field)
        trained = cell(**{**plain, "w_f": given["w_f"]}, **how)
        for one, two in zip(trained, found, strict=True):
            assert one is None or torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", each_time(CELLS, SHIPPED))
def test_operators_in_python_give_the_same(name: str, dtype: torch.dtype) -> None:
    theta = [tensor.detach() for tensor in narrow(name, dtype).values()]
    scalars = [*function(name).scalars.values()]
    segments = as_numbers(replace(ON_TENSORS, checkpoint=6))
    for options in (USUAL, ([*tensors(TABLES).values()], 7, *segments)):
        found = FORWARD(name, theta, scalars, True, *options)
        wanted = operators.forward_in_python(name, theta, scalars, True, *options)
        fake = operators.forward_shapes(name, theta, scalars, True, *options)
        assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in fake]
        count = len(function(name).layout.outputs)
        assert {t.dtype for t in found[count:]} <= {dtype, torch.float16, torch.float32}
        kept = found if options is USUAL else found[count:]
        upstream = [torch.randn(found[0].shape).to(dtype)]
        arguments = (name, theta, scalars, kept, upstream, 1, -1, *options)
        pairs = zip(
            (*found, *BACKWARD(*arguments)),
            (*wanted, *operators.backward_in_python(*arguments)),
            strict=True,
        )
        for place, (one, two) in enumerate(pairs):
            assert_same(one, two, str(place))


# --- what torch does with them ----------------------------------------------------------------


def test_opcheck() -> None:
    theta = [*narrow("gru", torch.bfloat16, T=3).values()]
    torch.library.opcheck(FORWARD, ("gru", theta, [], True, *USUAL))
    with torch.no_grad():
        kept = FORWARD("gru", theta, [], True, *USUAL)
    arguments = ("gru", theta, [], kept, [torch.ones_like(kept[0])], 1, -1, *USUAL)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(BACKWARD, arguments, test_utils=checks)


def test_compiled_layers_give_the_same() -> None:
    layer = cellgen.torch.module("lstm", 3, 4, 2, bidirectional=True, dtype=torch.bfloat16)
    x = torch.randn(6, 2, 3).bfloat16()
    lengths = torch.tensor([6, 4])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for run in (layer, compiled):
        layer.zero_grad()
        output, state = run(x, lengths=lengths)
        (output.float().sum() + state[0].float().sum()).backward()
        found.append([output, *state, *(p.grad for p in layer.parameters())])
    for one, two in zip(*found, strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, two)
    with torch._subclasses.FakeTensorMode():
        fake = cellgen.torch.module("gru", 3, 4, dtype=torch.float16)
        output, state = fake(torch.empty(5, 2, 3, dtype=torch.float16))
    assert (output.dtype, state.dtype) == (torch.float16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivatives_of_any_order_are_near_those_of_float32(dtype: torch.dtype) -> None:
    cell = function("elman")
    given = {n: t.detach() for n, t in narrow("elman", dtype, T=5).items()}
    bar = {torch.bfloat16: 0.05, torch.float16: 0.005}[dtype]  # some units of 2^-8, of 2^-11
    along = {n: torch.randn(t.shape).to(dtype) for n, t in given.items()}
    found = []
    for kind in (dtype, torch.float32):
        own = {n: tensor.to(kind) for n, tensor in given.items()}
        dots = {n: tensor.to(kind) for n, tensor in along.items()}

        def loss(own: dict[str, torch.Tensor]) -> torch.Tensor:
            return cell(**own).h.float().sin().sum()

        def sample(x: torch.Tensor, own: dict[str, torch.Tensor] = own) -> torch.Tensor:
            return cell(**{**own, "x": x.unsqueeze(1), "h_prev": own["h_prev"][:1]}).h.float().sum()

        _, along_loss = torch.func.jvp(torch.func.grad(loss), (own,), (dots,))
        rows = torch.func.vmap(torch.func.grad(sample), 1)(own["x"])
        twice = {n: tensor.clone().requires_grad_() for n, tensor in own.items()}
        gradients = torch.autograd.grad(loss(twice), [*twice.values()], create_graph=True)
        again = sum(gradient.float().square().sum() for gradient in gradients)
        found.append([*along_loss.values(), rows, *torch.autograd.grad(again, [*twice.values()])])
    for mine, truth in zip(*found, strict=True):
        assert mine.dtype == dtype
        assert (mine.float() - truth).norm() < bar * truth.norm()


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_drop_ins_in_bfloat16_are_near_torch(kind: str) -> None:
    peer = getattr(torch.nn, kind)(3, 4, 2, bidirectional=True).bfloat16()
    mine = copy.deepcopy(peer)
    assert cellgen.torch.replace(mine).swapped
    x = torch.randn(5, 2, 3).bfloat16()
    for given in (x, x[:, 0], pack_padded_sequence(x, [5, 3])):
        found, wanted = mine(given)[0], peer(given)[0]
        found, wanted = (y if torch.is_tensor(y) else y.data for y in (found, wanted))
        torch.testing.assert_close(found, wanted, rtol=0, atol=2**-7)
        assert found.dtype == torch.bfloat16
    mine(x)[0].float().sum().backward()
    assert {p.grad.dtype for p in mine.parameters()} == {torch.bfloat16}
    cell = getattr(cellgen.torch, f"{kind}Cell")(3, 4).half()
    step = cell(x[0].half())
    assert {t.dtype for t in (step if isinstance(step, tuple) else (step,))} == {torch.float16}


def test_autocast_runs_in_what_it_asks_for() -> None:
    x = torch.randn(5, 2, 3)
    for dtype in DTYPES:
        for layer in (
            cellgen.torch.GRU(3, 4),
            cellgen.torch.LSTM(3, 4),
            cellgen.torch.module("mgu", 3, 4),
        ):
            with torch.autocast("cpu", dtype):
                output, state = layer(x)
            low = copy.deepcopy(layer).to(dtype)(x.to(dtype))[0]
            assert torch.equal(output, low)
            assert {t.dtype for t in (state if isinstance(state, tuple) else (state,))} == {dtype}
            output.float().sum().backward()
            assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}


def test_training_in_bfloat16_learns() -> None:
    model = cellgen.torch.module("gru", 2, 16).bfloat16()
    tell = torch.nn.Linear(16, 1).bfloat16()
    copies = [p.detach().float() for p in (*model.parameters(), *tell.parameters())]
    optimiser = torch.optim.Adam(copies, lr=0.01)
    x = torch.randn(20, 32, 2).bfloat16()
    truth = x[..., :1].float().cumsum(0).tanh()
    losses = []
    for _ in range(60):
        loss = (tell(model(x)[0]).float() - truth).square().mean()
        loss.backward()
        for own, parameter in zip(copies, (*model.parameters(), *tell.parameters()), strict=True):
            own.grad = parameter.grad.float()
            parameter.grad = None
        optimiser.step()
        with torch.no_grad():
            for own, parameter in zip(
                copies, (*model.parameters(), *tell.parameters()), strict=True
            ):
                parameter.copy_(own)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_mixtures_are_refused_in_words() -> None:
    cell, given = function("gru"), narrow("gru", torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"w_z is float32, expected bfloat16, as x is"):
        cell(**{**given, "w_z": given["w_z"].float()})
    with pytest.raises(RuntimeError, match=r"w_z is float16, expected bfloat16, as x is"):
        cell(**{**given, "w_z": given["w_z"].half()})
    with pytest.raises(RuntimeError, match="x is int8, expected float32, float64, bfloat16 or flo"):
        cell(**{**given, "x": given["x"].to(torch.int8)})
    theta = [t.detach() for t in given.values()]
    theta[2] = theta[2].float()
    with pytest.raises(RuntimeError, match="another rank, dtype or device"):
        FORWARD("gru", theta, [], False, *USUAL)
    kept = FORWARD("gru", [t.detach() for t in given.values()], [], True, *USUAL)
    kept = [t.to(torch.bfloat16) for t in kept]
    with pytest.raises(RuntimeError, match="another rank, dtype or device"):
        BACKWARD("gru", [t.detach() for t in given.values()], [], kept, kept[:1], 1, -1, *USUAL)

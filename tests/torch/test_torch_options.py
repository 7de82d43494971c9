"""Options that say what is shown and kept: derivatives, transforms, layers, and misuse.

Values and gradients of each option are those of the kernel: ``tests/doors``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import cellgen  # noqa: E402
import cellgen.torch  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402
from cellgen.frameworks.selection import options_of  # noqa: E402
from cellgen.torch import operators, schemas  # noqa: E402
from cellgen.torch.derivatives import Call  # noqa: E402
from cellgen.torch.registry import find  # noqa: E402
from tests.doors import OPTIONS, TABLES  # noqa: E402
from tests.doors.by_torch import tensors  # noqa: E402
from tests.torch.drawn import drawn, function  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize("option", ["every, checkpoint", "outputs, checkpoint", "limit"])
def test_operators_in_python_give_the_same(option: str) -> None:
    cell = function("sru")
    theta = [t.detach() for t in drawn(cell, T=7).values()]
    options = OPTIONS[option]
    outputs = () if "outputs" in options else None
    stated = {"every": options.get("every", 1), "outputs": outputs, "checkpoint": 2}
    shown = options_of(cell.layout, tuple(stated.items()))
    call = Call(find("sru"), (), shown)
    how = ([], 0, *call.numbers)
    scalars = [*cell.scalars.values()]
    arguments = ("sru", theta, scalars, True, *how)
    kept = torch.ops.cellgen.forward(*arguments)
    for one, other in zip(kept, operators.forward_in_python(*arguments), strict=True):
        assert torch.equal(one, other)
    count = call.outputs
    arguments = ("sru", theta, scalars, kept[count:], [kept[0]], 1, -1, *how)
    found = torch.ops.cellgen.backward(*arguments)
    for one, other in zip(found, operators.backward_in_python(*arguments), strict=True):
        assert torch.equal(one, other)
    checks = ("test_schema", "test_faketensor")
    backward = getattr(torch.ops.cellgen.backward, schemas.OVERLOAD)
    torch.library.opcheck(backward, arguments, test_utils=checks)


def loss(cell: object, given: Mapping[str, Tensor], options: Mapping[str, object]) -> Tensor:
    return sum((v**2).sum() for v in cell(**given, **options) if v is not None)


@pytest.mark.parametrize(
    "option",
    [
        "every, checkpoint",
        "last",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("outputs, checkpoint", "limit")),
    ],
)
def test_second_derivatives_and_transforms(option: str) -> None:
    cell = function("sru")
    given = drawn(cell, T=5, learns=False)
    options = {"last_only": True} if option == "last" else OPTIONS[option]

    def plain(x: Tensor) -> Tensor:
        y = cell(**{**given, "x": x})
        if option == "last":
            return (y.h[-1] ** 2).sum() + (y.c_last**2).sum()
        every = options.get("every", 1)
        over_time = (
            [y.h] if "outputs" in options else [v for n, v in y._asdict().items() if n != "c_last"]
        )
        return sum((v[every - 1 :: every] ** 2).sum() for v in over_time) + (y.c_last**2).sum()

    def asked(x: Tensor) -> Tensor:
        return loss(cell, {**given, "x": x}, options)

    x, v = given["x"], torch.ones_like(given["x"])
    xs = torch.stack([x, 2 * x])
    for run in (
        lambda f: torch.func.jvp(f, (x,), (v,)),
        lambda f: torch.func.jvp(torch.func.grad(f), (x,), (v,)),
        lambda f: torch.func.vmap(torch.func.grad(f))(xs),
        lambda f: torch.autograd.functional.hvp(f, x, v),
    ):
        torch.testing.assert_close(run(asked), run(plain), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "option",
    ["every, checkpoint", *(pytest.param(n, marks=pytest.mark.slow) for n in ("limit", "last"))],
)
def test_a_compiled_call_is_one_graph(option: str, backend: str, graphs_of_this_run: None) -> None:
    """The graph is the same for every backend; machine code of a layer: ``test_torch_compile``."""
    torch._dynamo.reset()
    cell = function("sru")
    options = {"last_only": True} if option == "last" else OPTIONS[option]
    compiled = torch.compile(
        lambda given: loss(cell, given, options), fullgraph=True, backend=backend
    )
    for steps in (7, 6):
        given, again = drawn(cell, T=steps), drawn(cell, T=steps)
        found, wanted = compiled(given), loss(cell, again, options)
        assert torch.equal(found, wanted) or torch.allclose(found, wanted, rtol=1e-14)
        found.backward(), wanted.backward()
        for name, tensor in given.items():
            if tensor.grad is not None:
                torch.testing.assert_close(tensor.grad, again[name].grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every is 0, expected a number of steps, 1 for all or more"),
        ({"checkpoint": -1}, "checkpoint is -1"),
        ({"last_only": 1}, "last_only is 1, expected True or False"),
        ({"outputs": "h"}, "outputs is 'h', expected a tuple of some of h, c"),
        ({"outputs": ("z",)}, "expected a tuple of some of h, c"),
        ({"products": "bf17"}, "products is 'bf17', expected one of 'full', 'bf16'"),
        ({"products": "int8"}, "products is 'int8', which calls of frameworks do not have"),
        ({"products": "bf16"}, "products is 'bf16' and the tensors are float64"),
        ({"memory_limit": 10}, "memory_limit is 10 bytes, expected"),
        ({"memory_limit": 1000, "checkpoint": 3}, "are both given"),
        ({"last_only": True, "every": 2}, "are both given"),
        ({"plan": None}, "plan is no option of a function of torch"),
    ],
)
def test_what_cannot_be_asked_for(options: Mapping[str, object], message: str) -> None:
    cell = function("sru")
    with pytest.raises(ArgumentError, match=message):
        cell(**drawn(cell), **options)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_pass_options_on(bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = cellgen.torch.module("sru", 4, 4, 2 - bidirectional, bidirectional=bidirectional)
    x = torch.randn(7, 2, 4)

    def run(**options: object) -> tuple[list[Tensor], list[Tensor]]:
        layer.zero_grad()
        outputs, state = layer(x, return_outputs=True, **options)
        shown = [output for output in (*outputs, state) if output is not None]
        (outputs.h.sin().sum() + state.sum()).backward()
        return shown, [parameter.grad for parameter in layer.parameters()]

    (h, c, state), gradients = run()
    for options, wanted in (
        ({"checkpoint": 2}, [h, c, state]),
        ({"memory_limit": 20_000, "outputs": ("h",)}, [h, state]),
        ({"outputs": ["h"], "checkpoint": 3}, [h, state]),
    ):
        shown, found = run(**options)
        for one, other in zip([*shown, *found], [*wanted, *gradients], strict=True):
            assert torch.equal(one, other)
    shown, _ = run(every=3, checkpoint=2)
    assert all(torch.equal(one, o) for one, o in zip(shown, (h[2::3], c[2::3], state), strict=True))
    with torch.no_grad():
        last, _ = layer(x, last_only=True)
        one_row, _ = layer(x[:, 0], last_only=True)
        packed = torch.nn.utils.rnn.pack_sequence([x[:4, 0], x[:, 1]], enforce_sorted=False)
        of_packed, _ = layer(packed, last_only=True)
    ends = (h[-1, :, :4], h[0, :, 4:]) if bidirectional else (h[-1],)
    assert torch.equal(last, torch.cat(ends, -1))
    torch.testing.assert_close(one_row, last[0])
    assert torch.equal(of_packed[1], last[1])
    with pytest.raises(ArgumentError, match="every is given with a PackedSequence"):
        layer(packed, every=2)


class EndsInLast(cellgen.Cell):
    """An output ``y`` beside an output ``y_last``, a state, which is no final state of it."""

    x, y_last_prev = cellgen.Input(cellgen.I), cellgen.State(cellgen.H)
    w, u = cellgen.Weight(cellgen.I, cellgen.H), cellgen.Weight(cellgen.H, cellgen.H)
    y = cellgen.tanh(x @ w)
    y_last = cellgen.tanh(y_last_prev @ u + y)
    outputs = y, y_last


def test_checkpoints_hold_outputs_that_are_no_states_however_they_are_called() -> None:
    """A masked step repeats them: of the step before a segment, too."""
    torch.manual_seed(0)
    sizes = ((7, 2, 3), (2, 4), (3, 4), (4, 4))
    given = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    named = dict(zip(("x", "y_last_prev", "w", "u"), given, strict=True))
    cell, found = cellgen.torch.function(EndsInLast), []
    for checkpoint in (0, 2):
        made = cell(**named, **tensors(TABLES["mask"]), checkpoint=checkpoint)
        loss = (made.y * torch.arange(56.0).reshape(7, 2, 4)).sum() + made.y_last.sin().sum()
        found.append(torch.autograd.grad(loss, given))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)

"""Calls without torch's dispatcher: the same numbers, and only where nothing would come of it."""

from __future__ import annotations

import copy
import ctypes
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen.torch import direct, native  # noqa: E402
from tests.torch.counted import counted  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402
from tests.within import stack_of  # noqa: E402

pytestmark = [
    pytest.mark.skipif(native.direct() is None, reason="operators here are Python"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of its trace
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Seen(TorchDispatchMode):
    """What a mode sees: the operators of a call, which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def same(run: Callable[[], Any], calls: int) -> None:
    """Assert that direct calls give what the operators give, to the bit."""
    with torch.no_grad():
        with counted("direct") as taken:
            mine = run()
        with Seen() as seen:
            wanted = run()
    assert taken == [True] * calls
    assert sum("cellgen.forward" in name for name in seen.names) == calls
    torch.testing.assert_close(mine, wanted, rtol=0, atol=0)
    for one, other in zip(
        torch.utils._pytree.tree_leaves(mine), torch.utils._pytree.tree_leaves(wanted), strict=True
    ):
        assert one.shape == other.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_a_layer_gives_what_its_operators_give(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = getattr(cellgen.torch, kind)(3, 5, dtype=dtype)
    x = torch.randn(4, 2, 3, dtype=dtype)
    state = torch.randn(1, 2, 5, dtype=dtype)
    same(lambda: layer(x), 1)
    same(lambda: layer(x, (state, state) if kind == "LSTM" else state), 1)
    same(lambda: layer(x.transpose(0, 1).contiguous().transpose(0, 1)), 1)
    same(
        lambda: layer(torch.randn(2, 4, 3, dtype=dtype).mT.reshape(2, 3, 4).permute(2, 0, 1) * 0), 1
    )


def test_layers_in_both_directions_give_what_their_operators_give() -> None:
    torch.manual_seed(0)
    layer = cellgen.torch.LSTM(3, 5, 2, bidirectional=True, proj_size=4, batch_first=True)
    x, h, c = torch.randn(2, 6, 3), torch.randn(4, 2, 4), torch.randn(4, 2, 5)
    same(lambda: layer(x), 4)
    same(lambda: layer(x, (h, c)), 4)
    own = cellgen.torch.module("gru", 3, 5, 2, bidirectional=True, batch_first=True)
    same(lambda: own(x), 4)
    same(lambda: own(x, torch.ones(4, 2, 5)), 4)


def test_a_state_starts_where_the_cell_says() -> None:
    class Starts(cellgen.Cell):
        x, h_prev = cellgen.Input(cellgen.H), cellgen.State(cellgen.H, initial=0.25)
        w = cellgen.Weight(cellgen.H, cellgen.H)

        h = cellgen.tanh(x + h_prev @ w)

    layer = cellgen.torch.module(Starts, 4, 4)
    same(lambda: layer(torch.zeros(3, 2, 4)), 1)


def test_a_training_step_saves_what_its_operators_save() -> None:
    layer = cellgen.torch.GRU(3, 5)
    x = torch.randn(4, 2, 3)

    def gradients() -> Any:
        layer.zero_grad()
        layer(x)[0].sin().sum().backward()
        return [p.grad for p in layer.parameters()]

    mine = gradients()
    with Seen() as seen:
        wanted = gradients()
    assert any("cellgen.forward" in name for name in seen.names)
    torch.testing.assert_close(mine, wanted, rtol=0, atol=0)


def gradients_of(layer: Any, x: Any, state: Any) -> list[Any]:
    """The gradients of a layer's input, states and parameters."""
    given = [x.clone().requires_grad_()]
    states = state if isinstance(state, tuple) else () if state is None else (state,)
    given += [each.clone().requires_grad_() for each in states]
    own = tuple(given[1:]) if len(given) > 2 else given[1] if len(given) == 2 else None
    output, last = layer(given[0], own)
    lasts = last if isinstance(last, tuple) else (last,)
    total = output.sin().sum() + sum(each.cos().sum() for each in lasts)
    return list(torch.autograd.grad(total, [*given, *layer.parameters()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN", "window"])
def test_a_backward_pass_gives_what_its_operator_gives(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    own: dict[str, Any] = {"bidirectional": True, "dtype": dtype, "batch_first": True}
    if kind == "window":
        layer = cellgen.torch.module("gru", 3, 5, 2, window=2, **own)
    else:
        layer = getattr(cellgen.torch, kind)(3, 5, 2, **own)
    x, state = torch.randn(2, 6, 3, dtype=dtype), torch.randn(4, 2, 5, dtype=dtype)
    for states in (None, (state, state) if kind == "LSTM" else state):
        with counted("track", "track_back") as taken:
            mine = gradients_of(layer, x, states)
        assert taken == [True] * 8
        with Seen() as seen:
            wanted = gradients_of(layer, x, states)
        assert sum("cellgen.backward" in name for name in seen.names) == 4
        torch.testing.assert_close(mine, wanted, rtol=0, atol=0)


def test_options_that_are_numbers_go_without_the_dispatcher() -> None:
    torch.manual_seed(0)
    cell = cellgen.torch.function("gru")
    sizes = {"T": 5, "B": 2, "I": 3, "H": 4}
    given = {
        item.name: torch.randn(*(sizes[axis] for axis in item.shape)).requires_grad_()
        for item in cell.layout.theta
    }
    for options in ({"every": 2}, {"last_only": True}, {"checkpoint": 2}, {"reverse": True}):
        found = []
        for _ in range(2):
            outputs = cell(**given, **options)
            total = sum(each.sin().sum() for each in outputs if each is not None)
            found.append((outputs, torch.autograd.grad(total, list(given.values()))))
            if len(found) == 1:
                seen = Seen()
                seen.__enter__()
        seen.__exit__(None, None, None)
        assert {"forward", "backward"} <= {name.split(".")[1] for name in seen.names}
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_gradient_of_a_layer_may_be_differentiated_again() -> None:
    layer = cellgen.torch.GRU(3, 4, dtype=torch.float64)
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    state = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, state: layer(x, state)[0].sum(), (x, state))
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[1].sum(), (x,))


@pytest.mark.parametrize("kind", ["layer", "function"])
def test_a_backward_pass_carries_tangents_of_upstream_gradients(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    if kind == "layer":
        output = cellgen.torch.GRU(4, 6, dtype=torch.float64)(x, torch.randn(1, 3, 6).double())[0]
    else:
        cell = cellgen.torch.function("gru")
        output = cell(**drawn(cell, T=5, B=3, I=4, H=6, learns=False) | {"x": x}).h
    upstream, along = torch.randn_like(output), torch.randn_like(output)
    wanted = [torch.autograd.grad(output, x, u, retain_graph=True)[0] for u in (upstream, along)]
    with torch.autograd.forward_ad.dual_level():
        moving = torch.autograd.forward_ad.make_dual(upstream, along)
        found = torch.autograd.forward_ad.unpack_dual(torch.autograd.grad(output, x, moving)[0])
        assert found.tangent is not None
        torch.testing.assert_close(found.primal, wanted[0])
        torch.testing.assert_close(found.tangent, wanted[1])


@pytest.mark.parametrize("every", [6, 9])
def test_outputs_of_no_steps_are_empty(every: int) -> None:
    cell = cellgen.torch.function("gru")
    whole, shown = (drawn(cell, T=5, B=3, I=4, H=6, dtype=torch.float32) for _ in range(2))
    expected = cell(**whole)
    with torch.no_grad(), Seen():  # by operators
        assert cell(**shown, every=every).h.shape == (0, 3, 6)
    with torch.no_grad():
        assert cell(**shown, every=every).h.shape == (0, 3, 6)
    found = cell(**shown, every=every)
    assert found.h.shape == (0, 3, 6)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0)
    expected[1].sum().backward()
    (found[1].sum() + found.h.sum()).backward()
    for name, one in shown.items():
        torch.testing.assert_close(one.grad, whole[name].grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    "what", ["mode", "function mode", "autocast", "vmap", "profiler", "trace", "compile"]
)
def test_whatever_is_at_work_sees_an_operator(what: str) -> None:
    layer, x = cellgen.torch.GRU(3, 5), torch.randn(4, 2, 3)
    wanted = layer(x)[0]
    with torch.no_grad(), counted("direct") as taken:
        if what == "mode":
            with Seen():
                found = layer(x)[0]
        elif what == "function mode":
            with torch.device("cpu"):
                found = layer(x)[0]
        elif what == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                found = layer(x)[0]
        elif what == "vmap":
            found = torch.func.vmap(lambda one: layer(one)[0])(x.unsqueeze(0))[0]
        elif what == "profiler":
            with torch.profiler.profile() as profile:
                found = layer(x)[0]
            assert any("cellgen::forward" in event.name for event in profile.events())
        elif what == "trace":
            traced = torch.jit.trace(layer, (x,), check_trace=False)  # a check runs it once more
            assert "cellgen::forward" in str(traced.inlined_graph)
            found = traced(x)[0]
        else:
            found = torch.compile(layer, backend="eager", fullgraph=True)(x)[0]
    assert not any(taken)
    exact = {"rtol": 0.02, "atol": 0.01} if what == "autocast" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found.float(), wanted.detach(), **exact)


def test_tensors_that_are_not_plain_go_to_the_operators() -> None:
    layer = cellgen.torch.GRU(3, 5)
    x = torch.complex(torch.zeros(4, 2, 3), torch.randn(4, 2, 3)).conj().imag
    assert x.is_neg()

    class Own(torch.Tensor):
        pass

    with torch.no_grad():
        wanted = layer(x.clone())[0]
        with counted("direct") as taken:
            found = layer(x)[0], layer(x.clone().as_subclass(Own))[0]
    assert not any(taken)
    for one in found:
        torch.testing.assert_close(torch.Tensor(one), wanted, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of prototypes
@pytest.mark.parametrize("kind", ["sparse", "nested", "mkldnn", "meta", "zero"])
def test_what_has_no_memory_of_numbers_is_left_to_torch(kind: str) -> None:
    layer, x = cellgen.torch.GRU(3, 5), torch.randn(4, 2, 3)
    given = {
        "sparse": lambda: x.to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([*x]),
        "mkldnn": lambda: x.to_mkldnn(),
        "meta": lambda: x.to("meta"),
        "zero": lambda: torch._efficientzerotensor(4, 2, 3),
    }[kind]()
    run = native.direct()
    with torch.no_grad():
        layer(x)
        usual = stack_of(layer).only
        weights, number = usual.parameters(layer._parameters), usual.call.direct.number
        for flags in (direct.DETACHED, direct.OF_LAYER | direct.DETACHED):
            assert run(number, flags, [given, None, *weights], (), ()) is None
        assert run(number, flags, [x, None, given, *weights[1:]], (), ()) is None


def test_a_tensor_that_learns_is_tracked() -> None:
    layer = cellgen.torch.GRU(3, 5).requires_grad_(False)
    x = torch.randn(4, 2, 3)
    assert not layer(x)[0].requires_grad
    for given in ((x.clone().requires_grad_(),), (x, torch.zeros(1, 2, 5, requires_grad=True))):
        assert layer(*given)[0].requires_grad
    layer.bias_hh_l0.requires_grad_(True)
    assert layer(x)[0].requires_grad


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((torch.zeros(4, 2, 7),), "input.size"),
        ((torch.zeros(4, 2, 3), torch.zeros(2, 2, 5)), "hidden size"),
        ((torch.zeros(0, 2, 3),), "sequence length"),
        ((torch.zeros(4, 2, 3), torch.zeros(2, 5)), "3-D"),
        ((torch.zeros(4, 2, 3, dtype=torch.float64),), "dtype"),
    ],
)
def test_what_is_wrong_is_said_as_ever(given: Any, words: str) -> None:
    layer, peer = cellgen.torch.GRU(3, 5), torch.nn.GRU(3, 5)
    with torch.no_grad():
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            peer(*given)
        with pytest.raises(type(wanted.value)) as found:
            layer(*given)
    assert words in str(found.value)
    assert str(found.value) == str(wanted.value)


def test_calls_leave_nothing_behind() -> None:
    layer, x = cellgen.torch.GRU(3, 5), torch.randn(4, 2, 3)
    wrong, state = torch.randn(4, 2, 7), torch.zeros(1, 2, 5)
    tensors = x, wrong, state, *layer.parameters()
    before = [one._use_count() for one in tensors]
    with torch.no_grad():
        for _ in range(3):
            layer(x), layer(x, state), layer(x.transpose(0, 1).contiguous().transpose(0, 1))
            assert stack_of(layer).run(wrong, None, layer._parameters, False) is None
    assert [one._use_count() for one in tensors] == before
    own = cellgen.torch.module("elman", 3, 5)
    with torch.no_grad():
        own(x)
        torch.utils.swap_tensors(own.w, torch.nn.Parameter(torch.zeros_like(own.w)))
        assert torch.equal(own(x)[0], own(x * 2)[0])


def test_a_copy_and_what_is_unpickled_call_anew() -> None:
    layer, x = cellgen.torch.LSTM(3, 5), torch.randn(4, 2, 3)
    with torch.no_grad():
        wanted = layer(x)[0]
        for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert stack_of(again) is None
            torch.testing.assert_close(again(x)[0], wanted, rtol=0, atol=0)


def test_a_module_that_an_older_version_pickled_whole_runs() -> None:
    """It has what ``module`` is made with, parameters, and nothing that follows from the cell."""
    facts = ("cell", "sizes", "num_layers", "roles", "batch_first", "bidirectional", "dropout")
    facts += ("window", "rate", "initial", "scalars", "input_size", "hidden_size")
    facts += ("layer_sizes", "output_size")
    plain = vars(torch.nn.Module())
    for name in ("lem", "lstm"):
        layer, x = cellgen.torch.module(name, 3, 5), torch.randn(4, 2, 3)
        wanted = layer(x)[0]
        again = pickle.loads(pickle.dumps(layer))
        for other in {*vars(again)} - {*facts, *plain}:
            delattr(again, other)
        for learns in (True, False):
            with torch.set_grad_enabled(learns):
                torch.testing.assert_close(again(x)[0], wanted, rtol=0, atol=0)


def test_options_of_a_layer_may_change_between_calls() -> None:
    layer, x = cellgen.torch.module("lem", 3, 5), torch.randn(6, 2, 3)

    def found(layer: Any) -> list[torch.Tensor]:
        output, _ = layer(x)
        return [output, *torch.autograd.grad(output.sum(), list(layer.parameters()))]

    first = found(layer)
    for window, dt in ((1, 1.0), (2, 0.5), (0, 0.5)):
        layer.window, layer.scalars["dt"] = window, dt
        other = cellgen.torch.module("lem", 3, 5, window=window, dt=dt)
        other.load_state_dict(layer.state_dict())
        again = found(layer)
        torch.testing.assert_close(again, found(other), rtol=0, atol=0)
        assert not torch.equal(again[1], first[1])
    for name, value in (("window", 1.5), ("window", -1), ("scalars", {"dt": "x"})):
        layer.window, layer.scalars = 0, {}
        setattr(layer, name, value)
        with pytest.raises(cellgen.ArgumentError, match=name.rstrip("s")):
            layer(x)


def test_threads_call_at_once() -> None:
    layer = cellgen.torch.GRU(8, 16)
    x = torch.randn(16, 20, 2, 8)
    with torch.no_grad():
        wanted = [layer(one)[0] for one in x]

        def run(one: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return layer(one)[0]

        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(run, x)]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert direct.is_quiet()


def test_no_shorter_way_to_tensors_gives_the_same() -> None:
    torch.manual_seed(0)
    layer, x, state = cellgen.torch.LSTM(3, 5), torch.randn(4, 2, 3), torch.randn(1, 2, 5)
    shortest = gradients_of(layer, x, (state, state))
    shorten = ctypes.PyDLL(native._loaded[0]._name).cellgen_torch_shorten
    shorten.argtypes, shorten.restype = [ctypes.py_object, ctypes.c_void_p], None
    shorten([], None)  # what no tensors show, nothing makes: torch is asked each time
    try:
        with counted("track", "track_back") as taken:
            found = gradients_of(layer, x, (state, state))
        assert taken == [True] * 2
        assert all(map(torch.equal, found, shortest))
        with torch.no_grad(), counted("direct") as taken:
            assert layer(x, None)[0].shape == (4, 2, 5)
        assert taken == [True]
    finally:
        native._shorten()


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_autograd_keeps_what_is_read_and_one_tensor(kind: str) -> None:
    layer, x = getattr(cellgen.torch, kind)(3, 5), torch.randn(4, 2, 3)
    kept: list[Tensor] = []

    def packed(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        layer(x)
    reads = 2 if kind == "LSTM" else 1  # of an LSTM the states over time, too
    assert len(kept) == 1 + len([*layer.parameters()]) + reads + 1


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_results_that_no_gradient_reads_may_be_written(kind: str) -> None:
    layer, x = getattr(cellgen.torch, kind)(3, 5), torch.randn(4, 2, 3)
    output, last = layer(x)
    with torch.no_grad():
        (last[0] if kind == "LSTM" else last).zero_()
    output.sum().backward(retain_graph=True)
    with torch.no_grad():
        output.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_hook_gives_back_of_a_layer_may_lie_anywhere(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = cellgen.torch.GRU(3, 5, dtype=dtype), torch.randn(4, 2, 3, dtype=dtype)
    sizes = {p.shape for p in layer.parameters()}

    def slopes(change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        of_kept = lambda t: change(t) if t.dim() == 1 and t.shape not in sizes else t
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), of_kept):
            return gradients_of(layer, x, None)

    plain = gradients_of(layer, x, None)
    for change in (lambda t: t, lambda t: torch.stack([t, t], -1)[..., 0]):
        assert all(map(torch.equal, slopes(change), plain))
    for wrong in (lambda t: t[:-16], lambda t: t[None], lambda t: t.int()):
        with pytest.raises(RuntimeError, match=r"what a call keeps is .* expected \(\d+,\) of"):
            slopes(wrong)


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_hook_may_round_the_numbers_that_a_layer_keeps(kind: str, dtype: torch.dtype) -> None:
    """Of what lies in one tensor in several types it sees bytes, which it does not round."""
    torch.manual_seed(0)
    layer, x = getattr(cellgen.torch, kind)(3, 5, dtype=dtype), torch.randn(4, 2, 3, dtype=dtype)
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.to(other) if tensor.is_floating_point() else tensor

    plain = gradients_of(layer, x, None)
    with torch.autograd.graph.saved_tensors_hooks(
        rounded, lambda t: t.to(dtype) if t.is_floating_point() else t
    ):
        found = gradients_of(layer, x, None)
    torch.testing.assert_close(found, plain, atol=0.03, rtol=0.03)

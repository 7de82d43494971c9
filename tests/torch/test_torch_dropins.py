"""Drop-ins for ``torch.nn``: what torch gives, layer by layer, and the same errors."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

import cellgen.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),  # torch's, of itself
    pytest.mark.filterwarnings("ignore:dropout option adds:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning"),
]

KINDS = {
    "gru": ("GRU", {}),
    "lstm": ("LSTM", {}),
    "projection": ("LSTM", {"proj_size": 2}),
    "tanh": ("RNN", {}),
    "relu": ("RNN", {"nonlinearity": "relu"}),
}
FORMS = tuple(itertools.product((1, 2), (False, True), (False, True), (False, True)))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def pair(kind: str, **options: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    """torch's layer and cellgen's, with the same parameters."""
    name, own = KINDS[kind]
    peer = getattr(torch.nn, name)(3, 4, **own, **options)
    mine = getattr(cellgen.torch, name)(3, 4, **own, **options)
    mine.load_state_dict(peer.state_dict())
    return peer, mine


def assert_equal_results_and_gradients(
    peer: torch.nn.Module, mine: torch.nn.Module, x: object, hx: object
) -> None:
    """Within float32's rounding of sums of a few dozen terms."""
    wanted, found = peer(x, hx), mine(x, hx)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)
    for layer, (y, last) in ((peer, wanted), (mine, found)):
        layer.zero_grad()
        y = y.data if isinstance(y, torch.nn.utils.rnn.PackedSequence) else y
        states = (last,) if isinstance(last, torch.Tensor) else last
        (y.sin().sum() + sum(s.pow(2).sum() for s in states)).backward()
    for (name, one), two in zip(peer.named_parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-5, msg=name)


def states(kind: str, count: int, *rows: int) -> object:
    widths = {"projection": (2, 4), "lstm": (4, 4)}.get(kind, (4,))
    made = tuple(torch.randn(count, *rows, wide) for wide in widths)
    return made if len(made) > 1 else made[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_every_layer_is_that_of_torch(kind: str) -> None:
    for layers, both, first, bias in FORMS:
        compare_form(kind, layers, both, first, bias)


@pytest.mark.parametrize("kind", KINDS)
def test_results_gradients_and_parameters_are_those_of_torch(kind: str) -> None:
    compare_form(kind, 1, False, False, True)
    compare_form(kind, 2, True, True, False)


def compare_form(kind: str, layers: int, both: bool, first: bool, bias: bool) -> None:
    options = {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    peer, mine = pair(kind, **options)
    assert repr(mine) == repr(peer)
    assert [*mine.state_dict()] == [*peer.state_dict()]
    for hx in (None, states(kind, layers * (1 + both), 5 if first else 6)):
        assert_equal_results_and_gradients(peer, mine, torch.randn(5, 6, 3), hx)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_and_packed_ones(kind: str) -> None:
    peer, mine = pair(kind, num_layers=2, bidirectional=True)
    for hx in (None, states(kind, 4)):
        assert_equal_results_and_gradients(peer, mine, torch.randn(5, 3), hx)
    x, lengths = torch.randn(7, 4, 3), torch.tensor([3, 7, 1, 3])
    for hx in (None, states(kind, 4, 4)):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        assert_equal_results_and_gradients(peer, mine, packed, hx)
    packed = pack_padded_sequence(x[:, [1, 0, 3, 2]], lengths[[1, 0, 3, 2]])
    assert_equal_results_and_gradients(peer, mine, packed, None)


@pytest.mark.parametrize("kind", ["gru", "lstm", "tanh"])
def test_constructors_take_what_those_of_torch_take(kind: str) -> None:
    name, _ = KINDS[kind]
    peer, mine = getattr(torch.nn, name), getattr(cellgen.torch, name)
    for arguments, named in (((3, 4, 2), {"dtype": torch.float64}), ((3, 4), {"device": "meta"})):
        one, two = peer(*arguments, **named), mine(*arguments, **named)
        shapes = [(n, p.shape, p.dtype, p.device) for n, p in one.named_parameters()]
        assert [(n, p.shape, p.dtype, p.device) for n, p in two.named_parameters()] == shapes
        assert two(torch.empty(5, 2, 3, **named))[0].shape == (5, 2, 4)
    if name == "RNN":
        assert mine(3, 4, 1, "relu").nonlinearity == "relu"
    mine(3, 4).flatten_parameters()
    assert len(mine(3, 4, 2).all_weights) == 2
    torch.manual_seed(0)
    one = peer(3, 4)
    torch.manual_seed(0)
    assert torch.equal(mine(3, 4).weight_hh_l0, one.weight_hh_l0)


def faults(kind: str) -> list[tuple[object, object]]:
    good = torch.randn(5, 2, 3)
    return [
        (torch.randn(5, 2, 4), None),
        (torch.randn(5, 2, 3, 1), None),
        (torch.randn(3), None),
        (good.long(), None),
        (good.double(), None),
        (good, states(kind, 2, 2)),
        (good, states(kind, 1, 3)),
        (good[:, 0], states(kind, 1, 2)),
        ([[1.0]], None),
        (good[:0], None),
        (good[:0, 0], None),
        (good, [states(kind, 1, 2)] if kind in ("gru", "tanh", "relu") else ()),
        (good, 3.0),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_torch(kind: str) -> None:
    peer, mine = pair(kind)
    for x, hx in faults(kind):
        with pytest.raises(Exception) as wanted:  # noqa: PT011 - whatever torch raises
            peer(x, hx)
        with pytest.raises(wanted.type) as found:
            mine(x, hx)
        assert str(found.value) == str(wanted.value)
    for arguments in ((3, 0), (3, 4, 0), (3, 4.0)):
        with pytest.raises((ValueError, TypeError)) as wanted:
            type(peer)(*arguments)
        with pytest.raises(wanted.type) as found:
            type(mine)(*arguments)
        assert str(found.value) == str(wanted.value)


def test_options_that_torch_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="proj_size"):
        cellgen.torch.GRU(3, 4, proj_size=2)
    with pytest.raises(ValueError, match="proj_size"):
        cellgen.torch.RNN(3, 4, proj_size=2)
    with pytest.raises(ValueError, match="nonlinearity"):
        cellgen.torch.RNN(3, 4, nonlinearity="sin")


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "RNNCell"])
def test_cells_are_those_of_torch(name: str) -> None:
    for bias in (True, False):
        peer, mine = getattr(torch.nn, name)(3, 4, bias), getattr(cellgen.torch, name)(3, 4, bias)
        mine.load_state_dict(peer.state_dict())
        assert repr(mine) == repr(peer)
        both = name == "LSTMCell"
        for rows in ((2,), ()):
            x, h = torch.randn(*rows, 3), torch.randn(*rows, 4)
            for hx in (None, (h, h * 2) if both else h):
                torch.testing.assert_close(mine(x, hx), peer(x, hx), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"inconsistent|[Ee]xpected"):
        mine(torch.randn(2, 5))
    compiled = torch.compile(mine, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(torch.ones(2, 3)), mine(torch.ones(2, 3)))


@pytest.mark.parametrize("kind", ["gru", "projection"])
def test_a_seed_draws_the_dropout_of_torch(kind: str) -> None:
    x = torch.randn(5, 4, 3)
    packed = pack_padded_sequence(x, torch.tensor([3, 5, 1, 3]), enforce_sorted=False)
    for first, given in ((False, x), (True, x), (True, x[0]), (False, packed), (True, packed)):
        results = []
        options = {"num_layers": 3, "bidirectional": True, "dropout": 0.5, "batch_first": first}
        for layer in pair(kind, **options):
            torch.manual_seed(1)
            results.append(layer(given))
        torch.testing.assert_close(*results, rtol=1e-5, atol=2e-6)


def test_dropout_is_between_layers_in_training_alone() -> None:
    peer, mine = pair("lstm", num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    torch.manual_seed(1)
    one = mine(x)[0]
    assert not torch.equal(mine(x)[0], one)
    peer.eval(), mine.eval()
    torch.testing.assert_close(mine(x)[0], peer(x)[0])


def test_drop_ins_compile_differentiate_twice_and_travel() -> None:
    layer = cellgen.torch.GRU(3, 4, batch_first=True).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    elman = cellgen.torch.RNN(3, 4).double()
    assert torch.autograd.gradgradcheck(lambda x: elman(x)[0], (x,), fast_mode=True)
    again = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert torch.equal(again(x)[0], layer(x)[0])


def test_a_layer_that_was_loaded_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for layer, x in (
        (cellgen.torch.GRU(3, 4), torch.randn(5, 2, 3)),
        (cellgen.torch.GRUCell(3, 4), torch.randn(2, 3)),
    ):
        text = pickle.dumps(layer)
        monkeypatch.setattr("cellgen.torch.recurrent._cells", {})  # as in another process
        compiled = torch.compile(pickle.loads(text), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), layer(x))


def test_traced_layers_are_saved_and_run_sequences_of_other_sizes() -> None:
    layer = cellgen.torch.LSTM(3, 4, 2)
    traced = torch.jit.trace(layer, (torch.randn(5, 2, 3),))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    x = torch.randn(7, 3, 3)
    again = torch.jit.load(file)
    torch.testing.assert_close(again(x), layer(x))
    for found in (again, layer):
        found(x)[0].sin().sum().backward()
    for one, two in zip(again.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_what_has_no_kernel_goes_the_way_of_torch() -> None:
    peer, mine = pair("gru")
    x = torch.randn(5, 2, 3, dtype=torch.complex64)
    for layer in (peer, mine):
        with pytest.raises(ValueError, match=r"RNN input dtype .torch.complex64. does not"):
            layer(x)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = torch.nn.Linear(3, 3)
        self.inner = torch.nn.Sequential(torch.nn.LSTM(3, 4, 2), torch.nn.ReLU())
        self.step = torch.nn.GRUCell(4, 3)
        self.half = torch.nn.GRU(3, 3, dtype=torch.complex64)
        self.own = Own(3, 3)


class Own(torch.nn.GRU):
    pass


def test_layers_of_a_model_are_replaced_in_place() -> None:
    model = Model()
    lstm, x = model.inner[0], torch.randn(5, 2, 3)
    wanted, known = lstm(x)[0], [*model.parameters()]
    seen: list[torch.Tensor] = []
    lstm.register_forward_hook(lambda layer, given, result: seen.append(result[0]))
    found = cellgen.torch.replace(model)
    assert found.swapped == {
        "inner.0": "torch.nn.LSTM is cellgen.torch.LSTM",
        "step": "torch.nn.GRUCell is cellgen.torch.GRUCell",
    }
    assert "weight_ih_l0 is complex64" in found.kept["half"]
    assert "a class of its own, derived from GRU" in found.kept["own"]
    assert "half stays: " in str(found)
    assert model.inner[0] is lstm
    assert isinstance(lstm, cellgen.torch.LSTM)
    torch.testing.assert_close(lstm(x)[0], wanted)
    assert len(seen) == 1
    assert all(one is two for one, two in zip(model.parameters(), known, strict=True))
    assert cellgen.torch.replace(model).swapped == {}
    alone = torch.nn.GRU(3, 4)
    assert [*cellgen.torch.replace(alone).swapped] == ["the model itself"]
    assert type(alone) is cellgen.torch.GRU
    with pytest.raises(TypeError, match="model is a list"):
        cellgen.torch.replace([alone])


def test_only_the_import_of_a_layer_changes() -> None:
    for name in ("GRU", "LSTM", "RNN"):
        mine = inspect.signature(getattr(cellgen.torch, name).forward)
        assert [*mine.parameters] == ["self", "input", "hx"]

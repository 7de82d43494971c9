"""Tools of torch that know its layers by type: fx, skip_init, quantisation, ONNX, the way back."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen import Bias, Cell, Input, Scalar, State, Weight, tanh  # noqa: E402
from cellgen.language import value as language  # noqa: E402
from cellgen.torch import tools  # noqa: E402

LAYERS, CELLS = ("GRU", "LSTM", "RNN"), ("GRUCell", "LSTMCell", "RNNCell")
I, H = 3, 4


class Model(torch.nn.Module):
    """Layers, a cell in a loop over the last outputs, and a cell of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(I, H, 2, batch_first=True)
        self.cell = torch.nn.GRUCell(H, H)
        self.head = torch.nn.Linear(H, 2)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        output, (last, _) = self.rnn(x, (h, h))
        return self.head(self.cell(self.cell(output[:, -1], last[0])))


def model() -> tuple[Model, Model]:
    """One of torch's layers, and the same with cellgen's."""
    torch.manual_seed(0)
    peer = Model().eval()
    mine = copy.deepcopy(peer)
    cellgen.torch.replace(mine)
    return peer, mine


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 5, I), torch.randn(2, 2, H)


def test_fx_keeps_layers_and_cells_whole() -> None:
    peer, mine = model()
    graph = torch.fx.symbolic_trace(mine)
    whole = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert whole == ["rnn", "cell", "cell", "head"]
    x, h = inputs()
    torch.testing.assert_close(graph(x, h), peer(x, h))
    graph(x, h).sum().backward()
    assert graph.rnn.weight_ih_l0.grad is mine.rnn.weight_ih_l0.grad
    more = torch.cat([x, x], 1)
    torch.testing.assert_close(graph(more, h), peer(more, h))


@pytest.mark.parametrize("kind", CELLS)
def test_fx_keeps_every_cell_whole(kind: str) -> None:
    holder = torch.nn.Sequential(getattr(cellgen.torch, kind)(I, H))
    graph, x = torch.fx.symbolic_trace(holder), torch.randn(2, I)
    for found, wanted in zip(graph(x), holder(x), strict=True):
        assert torch.equal(found, wanted)


def test_fx_keeps_layers_of_any_cell_whole_with_their_options() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = cellgen.torch.module("augru", I, H)

        def forward(self, x: Tensor, a: Tensor, lengths: Tensor) -> Tensor:
            return self.layer(x, a=a, lengths=lengths)[0]

    own = Masked()
    graph = torch.fx.symbolic_trace(own)
    given = torch.randn(5, 2, I), torch.rand(5, 2, 1), torch.tensor([5, 2])
    assert torch.equal(graph(*given), own(*given))


@pytest.mark.parametrize("make", [
    lambda: cellgen.torch.GRU(I, H),
    lambda: cellgen.torch.LSTMCell(I, H),
    lambda: cellgen.torch.module("gru", I, H),
])  # fmt: skip
def test_fx_asks_for_a_model_around_a_layer(make: Any) -> None:
    with pytest.raises(TypeError, match=r"keeps whole, expected a model that holds it; trace"):
        torch.fx.symbolic_trace(make())


@pytest.mark.parametrize("kind", [*LAYERS, *CELLS])
def test_layers_are_made_without_numbers(kind: str) -> None:
    """``skip_init`` takes torch's cells by their signatures; here layers have signatures too."""
    mine = getattr(cellgen.torch, kind)
    made = torch.nn.utils.skip_init(mine, I, H, dtype=torch.float64)
    peer = getattr(torch.nn, kind)(I, H, dtype=torch.float64)
    made.load_state_dict(peer.state_dict())
    x = torch.randn(2, I, dtype=torch.float64)
    x = x if kind in CELLS else x[None]
    for one, other in zip(made(x), peer(x), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", CELLS)
def test_cells_have_the_signatures_of_torch(kind: str) -> None:
    mine, peer = getattr(cellgen.torch, kind), getattr(torch.nn, kind)
    assert inspect.signature(mine) == inspect.signature(peer)


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_have_the_signatures_that_torch_documents(kind: str) -> None:
    """Every argument by its place is the one that its name says."""
    mine, peer = getattr(cellgen.torch, kind), getattr(torch.nn, kind)
    signature = inspect.signature(mine)
    told = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5}
    told |= {"bidirectional": True, "proj_size": 2, "nonlinearity": "relu"}
    named = {name: value for name, value in told.items() if name in signature.parameters}
    by_place = signature.bind(I, H, **named).args
    for kinds in (mine, peer):
        one, other = kinds(*by_place), kinds(I, H, **named)
        assert repr(one) == repr(other)
        assert all(getattr(one, n) == v for n, v in named.items() if n != "nonlinearity")


class Packed(torch.nn.Module):
    """A layer over sequences of several lengths."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its trace
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_are_traced_without_warnings_for_other_lengths(
    bidirectional: bool,
) -> None:
    own = Packed(cellgen.torch.LSTM(I, H, 2, bidirectional=bidirectional))
    traced = torch.jit.trace(
        own, (torch.randn(5, 3, I), torch.tensor([5, 2, 4])), check_trace=False
    )
    for x, lengths in ((torch.randn(9, 2, I), [4, 9]), (torch.randn(3, 4, I), [3, 1, 2, 3])):
        given = x, torch.tensor(lengths)
        assert torch.equal(traced(*given), own(*given))


def iterations(layer: torch.nn.Module, name: str, calls: int) -> tuple[int, Tensor]:
    """Steps of the power iteration of a spectral norm in some calls, and the last output."""
    torch.manual_seed(1)
    normed = torch.nn.utils.parametrizations.spectral_norm(layer, name)
    with mock.patch.object(
        torch.nn.utils.parametrizations._SpectralNorm, "_power_method", autospec=True,
        side_effect=torch.nn.utils.parametrizations._SpectralNorm._power_method,
    ) as stepped:  # fmt: skip
        for _ in range(calls):
            output = normed(torch.ones(2, 1, I))[0]
    return stepped.call_count, output


def test_a_normed_weight_is_formed_once_a_call() -> None:
    torch.manual_seed(0)
    peer = torch.nn.GRU(I, H)
    mine = copy.deepcopy(peer)
    cellgen.torch.replace(mine)
    count, found = iterations(mine, "weight_hh_l0", 30)
    assert count == 30
    torch.testing.assert_close(found, iterations(peer, "weight_hh_l0", 30)[1])
    assert iterations(cellgen.torch.module("gru", I, H), "u_z", 3)[0] == 3


def test_restore_is_the_way_back() -> None:
    peer, mine = model()
    x, h = inputs()
    weights = mine.rnn.weight_ih_l0
    mine(x, h)
    found = cellgen.torch.restore(mine)
    assert found.swapped == {
        "rnn": "cellgen.torch.LSTM is torch.nn.LSTM",
        "cell": "cellgen.torch.GRUCell is torch.nn.GRUCell",
    }
    assert (type(mine.rnn), type(mine.cell)) == (torch.nn.LSTM, torch.nn.GRUCell)
    assert mine.rnn.weight_ih_l0 is weights
    assert torch.equal(mine(x, h), peer(x, h))
    assert torch.equal(pickle.loads(pickle.dumps(mine))(x, h), peer(x, h))
    assert cellgen.torch.replace(mine).swapped.keys() == found.swapped.keys()

    class Own(cellgen.torch.GRU):
        pass

    others = torch.nn.ModuleDict({"own": Own(I, H), "any": cellgen.torch.module("mgu", I, H)})
    assert cellgen.torch.restore(others).kept == {
        "own": "Own is a class of its own, derived from GRU",
        "any": "module(mgu) is a cell's, of which torch.nn has none",
    }
    with pytest.raises(TypeError, match="restore: model is a int, expected a torch"):
        cellgen.torch.restore(3)


def quantised(given: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    """What the tool makes of a model, and what is said of cellgen's layers meanwhile."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = torch.ao.quantization.quantize_dynamic(given, {torch.nn.LSTM, torch.nn.Linear})
    return found, [str(one.message) for one in said if "cellgen" in str(one.message)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of quantised tensors
def test_quantisation_says_what_it_leaves() -> None:
    peer, mine = model()
    x, h = inputs()
    tools.say_precision.cache_clear()
    found, said = quantised(mine)
    assert [text.partition(" as it is")[0] for text in said] == [
        "torch.ao.quantization leaves cellgen.torch.LSTM",
        "torch.ao.quantization leaves cellgen.torch.GRUCell",
    ]
    assert all("cellgen.torch.restore(model)" in text for text in said)
    assert type(found.rnn) is cellgen.torch.LSTM
    torch.testing.assert_close(found(x, h), peer(x, h), atol=0.05, rtol=0.05)
    cellgen.torch.restore(mine)
    found, said = quantised(mine)
    assert type(found.rnn).__module__.startswith("torch.ao.nn.quantized")
    assert said == []


@pytest.mark.parametrize("dynamo", [False, True])
def test_drop_ins_are_exported_to_onnx_as_layers_of_torch_are(dynamo: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    peer, mine = model()
    x, h = inputs()
    session = runtime.InferenceSession(exported(mine, (x, h), dynamo))
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {n: a.numpy() for n, a in zip(names, (x, h), strict=True)})[0]
    torch.testing.assert_close(torch.from_numpy(found), peer(x, h), atol=1e-5, rtol=1e-5)


class Leaky(Cell):
    """A cell of one's own, whose second output stands behind its state."""

    x, h_prev = Input(language.I), State(language.H)
    w, u, b = Weight(language.I, language.H), Weight(language.H, language.H), Bias(language.H)
    leak = Scalar(0.5)
    h = leak * h_prev + tanh(x @ w + h_prev @ u + b)


class WithLengths(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        output, last = self.layer(x, lengths=lengths)
        return output, last if isinstance(last, tuple) else (last,)


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        pytest.param(
            *("mgu", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param("lstm", {}, marks=pytest.mark.slow),
        pytest.param("gla", {"N": 2, "K": 3, "D": 2}, marks=pytest.mark.slow),
        (Leaky, {"leak": 0.25, "bidirectional": True, "batch_first": True}),
    ],
    ids=["two layers", "lstm", "gla", "own"],
)
def test_layers_of_any_cell_are_exported_to_onnx_as_scans(
    cell: Any, options: dict[str, Any]
) -> None:
    """For any number of steps and rows, whatever the example's were, and lengths of rows."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = WithLengths(cellgen.torch.module(cell, I, H, **options)).eval()
    axes = (1, 0) if options.get("batch_first") else (0, 1)
    steps, rows = torch.export.Dim("T"), torch.export.Dim("B")
    dynamic = ({axes[0]: steps, axes[1]: rows}, {0: rows})
    example = torch.randn(4, 3, I), torch.ones(4 if axes[0] else 3, dtype=torch.int64)
    file = exported(model, example, True, dynamic_shapes=dynamic)
    kinds = [node.op_type for node in onnx_model(file).graph.node]
    assert kinds.count("Scan") == options.get("num_layers", 1) * (1 + ("bidirectional" in options))
    assert not {node.domain for node in onnx_model(file).graph.node} - {""}

    x, lengths = torch.randn(*((5, 7) if axes[0] else (7, 5)), I), torch.tensor([7, 0, 3, 1, 6])
    session = runtime.InferenceSession(file)
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {n: a.numpy() for n, a in zip(names, (x, lengths), strict=True)})
    expected, last = model(x, lengths)
    for one, other in zip(found, (expected, *last), strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, atol=1e-5, rtol=1e-5)


def test_what_has_no_translation_to_onnx_is_said() -> None:
    pytest.importorskip("onnxscript")
    layer = cellgen.torch.module("mgu", I, H)
    with pytest.raises(Exception, match=r"dynamo=False has no translation") as said:
        exported(torch.nn.Sequential(layer), (torch.randn(5, 2, I),), False)
    assert "pass dynamo=True" in str(said.value)

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(x.shape[:2], dtype=torch.bool)
            return self.layer(x, mask=mask)[0]

    with pytest.raises(Exception, match=r"Failed to export|no translation of mask") as said:
        exported(Masked(), (torch.randn(5, 2, I),), True)
    assert "no translation of mask" in f"{said.value} {said.value.__cause__}"


def onnx_model(file: bytes) -> Any:
    return pytest.importorskip("onnx").load_from_string(file)


def exported(
    given: torch.nn.Module, arguments: tuple[Tensor, ...], dynamo: bool, **options: Any
) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its exporters
        if dynamo:
            program = torch.onnx.export(given, arguments, dynamo=True, verbose=False, **options)
            return program.model_proto.SerializeToString()
        file = io.BytesIO()
        torch.onnx.export(given, arguments, file, dynamo=False, opset_version=17)
        return file.getvalue()

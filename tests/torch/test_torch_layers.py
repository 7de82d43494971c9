"""``cellgen.torch.module``: layers of any cell, as torch's users know layers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen import Cell, H, Input, State, Weight, cells, regularise  # noqa: E402
from cellgen.language.value import Dim  # noqa: E402
from cellgen.torch.roles import roles_of  # noqa: E402
from tests.cover import each_name_of, of_call  # noqa: E402
from tests.torch.drawn import STATED, function  # noqa: E402

DIMS = {
    "lstm_projection": {"P": 3},
    "cfc": {"M": 5},
    "slstm_heads": {"K": 2, "D": 3},
    "slstm_exp_heads": {"K": 2, "D": 3},
}
FIXED = {
    "gru_d": {"x_mean": torch.nn.init.zeros_},
    "lmu": {"a": torch.nn.init.eye_, "b": torch.nn.init.ones_},
}
LENGTHS = torch.tensor([7, 3, 5])


def layers(name: str, number: int = 1, **options: object) -> cellgen.torch.CellLayers:
    layout = function(name).layout
    roles = roles_of(layout, ())
    sizes = dict.fromkeys(layout.dims, 2) | {"H": 6, "I": 4} | DIMS.get(name, {})
    wide = roles.input_width(sizes)
    hidden = sizes["H"] if "H" in layout.dims else roles.output_width(sizes)
    others = {dim: sizes[dim] for dim in layout.dims if dim not in ("T", "B", "I", "H")}
    options = {"initial": FIXED.get(name), **options}
    return cellgen.torch.module(name, wide, hidden, number, **others, **options)


def feeds_itself(layer: cellgen.torch.CellLayers) -> bool:
    """Whether a layer takes any width, so that it reads both directions of the one before."""
    return layer.roles.input.shape[2:] == ("I",) and not any(
        "I" in state.shape for state in layer.roles.states
    )


def others(layer: cellgen.torch.CellLayers) -> dict[str, torch.Tensor]:
    sizes = layer.sizes | {"T": 7, "B": 3}
    shapes = {i.name: layer.cell.layout.shape(i.name, sizes) for i in layer.roles.shared}
    return {name: torch.rand(shape) + 0.1 for name, shape in shapes.items()}


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_every_cell_is_a_layer_that_learns_and_travels(name: str) -> None:
    both = feeds_itself(layers(name))
    layer = layers(name, 1 + both, bidirectional=both)
    x = torch.randn(7, 3, layer.input_size, requires_grad=True)
    if len(layer.roles.input.shape) > 3:
        sizes = {**layer.sizes, "T": 7, "B": 3}
        x = torch.randn(layer.cell.layout.shape(layer.roles.input.name, sizes), requires_grad=True)
    given = others(layer)
    y, _ = layer(x, lengths=LENGTHS, **given)
    assert y.shape == (7, 3, (1 + both) * layer.output_size)
    y.sin().sum().backward()
    learning = [p for p in layer.parameters() if p.requires_grad]
    assert all(torch.isfinite(p.grad).all() for p in learning)
    assert sum(p.grad.abs().sum() for p in learning) > 0 or name in STATED
    again = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert torch.equal(again(x, lengths=LENGTHS, **given)[0], y)
    kept = io.BytesIO()
    torch.save(layer.state_dict(), kept)
    kept.seek(0)
    fresh = layers(name, 1 + both, bidirectional=both)
    fresh.load_state_dict(torch.load(kept))
    assert torch.equal(fresh(x, lengths=LENGTHS, **given)[0], y)


class Hiding(Cell):
    """A cell with a weight that is called as what layers have themselves."""

    x, h_prev = Input(H), State(H)
    rate = Weight(H)

    h = x + rate * h_prev


def test_a_weight_that_would_hide_an_attribute_of_the_layer_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"module\(hiding\): the weight 'rate' would hide .* rename"
    ):
        cellgen.torch.module(Hiding, 4, 4)


def test_parameters_have_the_names_of_the_declaration() -> None:
    layer = cellgen.torch.module(cells.MGU, 3, 4)
    assert [*layer.state_dict()] == ["w_f", "u_f", "b_f", "w_n", "u_n", "b_n"]
    several = cellgen.torch.module("elman", 3, 4, 2, bidirectional=True)
    assert {"w", "w_reverse", "u_l1", "b_l1_reverse"} < {*several.state_dict()}
    assert several.w_l1.shape == (8, 4)


def test_layers_are_calls_of_the_cell() -> None:
    layer = cellgen.torch.module("lstm", 3, 4, 2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    state = (torch.randn(4, 2, 4), torch.randn(4, 2, 4))
    y, (h, c) = layer(x, state)
    lstm, input_ = function("lstm"), x
    for number in range(2):
        sides = []
        for reverse in (False, True):
            place = 2 * number + reverse
            suffix = (f"_l{number}" if number else "") + ("_reverse" if reverse else "")
            weights = {
                item.name: getattr(layer, item.name + suffix) for item in layer.roles.parameters
            }
            one = lstm(
                x=input_, h_prev=state[0][place], c_prev=state[1][place], reverse=reverse, **weights
            )
            torch.testing.assert_close((h[place], c[place]), (one.h_last, one.c_last))
            sides.append(one.h)
        input_ = torch.cat(sides, -1)
    assert torch.equal(y, input_)


def test_batch_first_and_one_sequence_without_rows() -> None:
    torch.manual_seed(1)
    layer = cellgen.torch.module("gru", 3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)
    mask = torch.rand(2, 5) > 0.3
    y, h = layer(x, mask=mask)
    layer.batch_first = False
    y_time, h_time = layer(x.transpose(0, 1).contiguous(), mask=mask.T.contiguous())
    assert torch.equal(y, y_time.transpose(0, 1))
    assert torch.equal(h, h_time)
    single, last = layer(x[0])
    assert single.shape == (5, 4)
    assert last.shape == (1, 4)
    assert torch.equal(single, layer(x[0][:, None])[0][:, 0])


def test_packed_sequences_go_in_and_come_out() -> None:
    layer = cellgen.torch.module("lstm", 3, 4, 2, bidirectional=True)
    rows = [torch.randn(n, 3) for n in (3, 7, 5)]
    x, lengths = pad_sequence(rows), torch.tensor([3, 7, 5])
    state = (torch.randn(4, 3, 4), torch.randn(4, 3, 4))
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, last = layer(packed, state)
    wanted, wanted_last = layer(x, state, lengths=lengths)
    torch.testing.assert_close(pad_packed_sequence(y)[0], wanted)
    torch.testing.assert_close(last, wanted_last)
    in_order = pack_padded_sequence(x[:, [1, 2, 0]], lengths[[1, 2, 0]])
    torch.testing.assert_close(
        pad_packed_sequence(layer(in_order)[0])[0][:, 2, :], y_of_row(layer, rows[0], 7)
    )
    with pytest.raises(TypeError, match="lengths is given with a PackedSequence"):
        layer(packed, lengths=lengths)
    for table in ("mask", "reset"):
        with pytest.raises(TypeError, match=f"{table} is given with a PackedSequence"):
            layer(packed, **{table: torch.ones(7, 3, dtype=torch.bool)})


def y_of_row(layer: torch.nn.Module, row: torch.Tensor, steps: int) -> torch.Tensor:
    y = layer(row)[0]
    return torch.cat([y, y.new_zeros(steps - len(y), y.shape[1])])


def test_every_output_on_request() -> None:
    layer = cellgen.torch.module("lstm", 3, 4)
    outputs, _ = layer(torch.randn(5, 2, 3), return_outputs=True)
    assert outputs._fields == ("h", "c")
    assert outputs.c.shape == (5, 2, 4)


def test_states_start_where_the_cell_says() -> None:
    layer = cellgen.torch.module("slstm", 3, 4)
    x = torch.randn(5, 2, 3)
    zeros = [torch.zeros(1, 2, 4)] * 3
    started = (*zeros, torch.full((1, 2, 4), -torch.inf))
    assert torch.equal(layer(x)[0], layer(x, started)[0])


def test_other_inputs_and_scalars_by_name() -> None:
    layer = cellgen.torch.module("augru", 3, 4)
    x = torch.randn(5, 2, 3)
    assert torch.equal(layer(x, a=torch.zeros(5, 2, 1))[0], torch.zeros(5, 2, 4))
    with pytest.raises(TypeError, match=r"module\(augru\): a is missing, expected a tensor"):
        layer(x)
    plain = cellgen.torch.module("janet", 3, 4)
    moved = cellgen.torch.module("janet", 3, 4, beta=3.0)
    moved.load_state_dict(plain.state_dict())
    assert "beta=3.0" in repr(moved)
    assert not torch.equal(plain(x)[0], moved(x)[0])
    assert torch.equal(plain(x, beta=3.0)[0], moved(x)[0])
    assert torch.equal(plain(x)[0], moved(x, beta=1.0)[0])
    assert torch.equal(plain(x[:, 0], beta=3.0)[0], moved(x[:, 0])[0])


def test_what_a_layer_has_itself_is_refused_by_name() -> None:
    layer, x = cellgen.torch.module("gru", 3, 4), torch.randn(5, 2, 3)
    for name, value, advice in (
        ("w_z", torch.zeros(3, 4), "the layer has it as its input or its parameter"),
        ("h_prev", torch.zeros(2, 4), "pass state="),
        ("window", 2, "it is said when the layer is made"),
        ("foo", 2, "it takes none by name"),
    ):
        with pytest.raises(TypeError, match=rf"module\(gru\): unknown argument '{name}'; {advice}"):
            layer(x, **{name: value})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"rate": 0.5}, "rate is 0.5, but the cell has no masks"),
        ({"rate": 7}, "rate is 7, expected a number from 0 to 1"),
        ({"initial": {"w": torch.nn.init.ones_}}, "initial has 'w', which is no parameter"),
        ({"initial": {"w_z": 3}}, "the rule of w_z in initial is 3, expected a tensor"),
        ({"initial": [3]}, "initial is .3., expected a dict of rules"),
    ],
)
def test_what_a_layer_would_not_read_is_refused(option: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=rf"module\(gru\): {message}"):
        cellgen.torch.module("gru", 3, 4, **option)


def test_rates_by_name_are_those_of_masks() -> None:
    cell = regularise.zoneout(cells.Elman)
    with pytest.raises(ValueError, match="rate has 'x', which is no mask of the cell; expected"):
        cellgen.torch.module(cell, 3, 4, rate={"x": 0.5})


def test_inputs_that_are_no_tensors_of_their_rank_are_named() -> None:
    layer, x = cellgen.torch.module("augru", 3, 4), torch.randn(5, 2, 3)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(5, 1)] * 2)
    for given, other, message in (
        (x.tolist(), x, r"x is a list, expected a torch.Tensor \(T, B, I\)"),
        (x, packed, r"a is a PackedSequence.*; pass pad_packed_sequence\(a\)\[0\]"),
    ):
        with pytest.raises(TypeError, match=message):
            layer(given, a=other)
    with pytest.raises(RuntimeError, match=r"x has 4 axes, shape \(1, 5, 2, 3\), expected 3"):
        cellgen.torch.module("gru", 3, 4)(x[None])
    with pytest.raises(TypeError, match="x is a ndarray"):
        function("gru")(x=x.numpy())
    with pytest.raises(TypeError, match="state holds 1 tensors, expected 2"):
        cellgen.torch.module("lstm", 3, 4)(x, 3.0)


def test_dropout_between_layers_in_training_alone() -> None:
    layer = cellgen.torch.module("elman", 3, 4, 2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_masks_of_regularised_cells_are_drawn_in_training() -> None:
    cell = regularise.zoneout(regularise.variational_dropout(cells.Elman))
    layer = cellgen.torch.module(cell, 3, 4, 2, rate=0.3)
    assert [*layer.state_dict()][:3] == ["w", "u", "b"]
    x = torch.randn(5, 2, 3)
    torch.manual_seed(0)
    one = layer(x)[0]
    torch.manual_seed(0)
    assert torch.equal(layer(x)[0], one)
    assert not torch.equal(layer(x)[0], one)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_forget_gates_start_open_and_weights_of_states_orthogonal() -> None:
    layer = cellgen.torch.module("lstm", 3, 16)
    assert layer.b_f.eq(1).all()
    assert not layer.b_i.any()
    torch.testing.assert_close(layer.u_g @ layer.u_g.T, torch.eye(16), atol=1e-5, rtol=0)
    joint = cellgen.torch.module("lstm_projection", 3, 4, P=2)
    assert joint.b.chunk(4)[1].eq(1).all()
    assert joint.b.sum() == 4
    own = cellgen.torch.module("lstm", 3, 4, initial={"b_f": lambda t: t.fill_(2.0)})
    assert own.b_f.eq(2).all()
    before = own.w_f.detach().clone()
    own.reset_parameters()
    assert not torch.equal(own.w_f, before)


def test_what_does_not_learn_is_given() -> None:
    class Masked(cellgen.Cell, name="masked"):
        x, h_prev = cellgen.Input(cellgen.I), cellgen.State(cellgen.H)
        w, m = cellgen.Weight(cellgen.I, cellgen.H), cellgen.Weight(cellgen.H, gradient=False)
        h = cellgen.tanh(x @ w + m * h_prev)

    said = r"module\(masked\): m \(H\) does not learn .*; pass initial={'m': a tensor, or a fu"
    with pytest.raises(TypeError, match=said):
        cellgen.torch.module(Masked, 3, 4)
    numbers = torch.tensor([1.0, 0.0, 1.0, 0.5])
    layer = cellgen.torch.module(Masked, 3, 4, 2, initial={"m": numbers})
    assert torch.equal(layer.m, numbers)
    assert torch.equal(layer.m_l1, numbers)
    assert not layer.m.requires_grad
    wanted = numbers.clone()
    numbers.zero_()
    again = copy.deepcopy(layer)
    again.reset_parameters()
    assert torch.equal(again.m, wanted)
    ruled = cellgen.torch.module(Masked, 3, 4, initial={"m": torch.nn.init.ones_})
    assert ruled.m.eq(1).all()
    empty = cellgen.torch.module(Masked, 3, 4, device="meta").to_empty(device="cpu")
    empty.load_state_dict(ruled.state_dict())
    assert empty.m.eq(1).all()
    with pytest.raises(RuntimeError, match=r"numbers of shape \(2,\) .* of shape \(4,\)"):
        cellgen.torch.module(Masked, 3, 4, initial={"m": torch.ones(2)})
    decays = cellgen.torch.module("retnet", 4, 8, N=2, K=3, D=4).gamma.flatten()
    torch.testing.assert_close(decays, torch.tensor([1 - 2**-5, 1 - 2**-6]))


class Ring(cellgen.Cell, name="ring"):
    """What nothing but a state is as long as: a ring of J earlier values."""

    J = Dim("J")
    x, w = cellgen.Input(cellgen.I), cellgen.Weight(cellgen.I, cellgen.H)
    ring_prev, h_prev = cellgen.State(J, initial=0.5), cellgen.State(cellgen.H)
    h = cellgen.tanh(x @ w + h_prev + cellgen.sum(ring_prev))
    ring = 0.5 * ring_prev


@pytest.mark.parametrize("batch_first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_layer_knows_its_dimensions(batch_first: bool) -> None:
    layer = cellgen.torch.module(Ring, 4, 8, 2, J=3, batch_first=batch_first, bidirectional=True)
    x = torch.randn(2, 5, 4) if batch_first else torch.randn(5, 2, 4)
    state = (torch.full((4, 2, 3), 0.5), torch.zeros(4, 2, 8))
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            y, last = layer(x)
            wanted, wanted_last = layer(x, state)
            assert torch.equal(y, wanted)
            assert all(map(torch.equal, last, wanted_last))
    single = layer(x[0] if batch_first else x[:, 0])[0]
    torch.testing.assert_close(single, y[0] if batch_first else y[:, 0])
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(n, 4) for n in (5, 3)])
    assert layer(packed)[1][0].shape == (4, 2, 3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x)[0], y)


@pytest.mark.parametrize(
    ("name", "shape", "state", "message"),
    [
        ("lstm", (5, 2, 3), ((1, 2, 4), (1, 2, 5)), r"state[1] (c_prev) has shape (1, 2, 5), "
         "expected (layers x directions, B, H) = (1, 2, 4), with B = 2 of x, H = 4 of the layer"),
        ("gru", (5, 2, 3), ((2, 2, 4),), "state has shape (2, 2, 4), expected (layers x"),
        ("gru", (5, 2, 3), ((1, 3, 4),), "state has shape (1, 3, 4), expected (layers x"),
        ("gru", (5, 3), ((1, 2, 4),), "state has shape (1, 2, 4), expected (layers x directions, "
         "H) = (1, 4), with H = 4 of the layer"),
        ("gru", (5, 2, 7), (), "x has shape (5, 2, 7), expected (T, B, I) = (5, 2, 3), with"),
        ("gru", (5, 7), (), "x has shape (5, 7), expected (T, I) = (5, 3), with T = 5 of x, I = 3"),
        ("gru", (5,), (), "x has 1 axes, shape (5,), expected 3: (T, B, I), or one less without B"),
    ],
)  # fmt: skip
def test_messages_speak_of_the_arguments_of_a_layer(
    name: str, shape: tuple[int, ...], state: tuple[tuple[int, ...], ...], message: str
) -> None:
    layer = cellgen.torch.module(name, 3, 4)
    states = tuple(map(torch.zeros, state))
    given = states if len(states) > 1 else states[0] if states else None
    for learns in (True, False):
        with torch.set_grad_enabled(learns), pytest.raises(RuntimeError) as said:
            layer(torch.randn(shape), given)
        assert f"module({name}): {message}" in str(said.value)


def test_messages_speak_of_batch_first_and_other_inputs() -> None:
    layer = cellgen.torch.module("augru", 3, 4, batch_first=True)
    with pytest.raises(RuntimeError, match=r"x has shape \(2, 5, 7\), expected \(B, T, I\) = "):
        layer(torch.randn(2, 5, 7), a=torch.zeros(2, 5, 1))
    with pytest.raises(RuntimeError, match=r"a has shape \(5, 2, 1\), expected \(B, T, 1\) = "):
        layer(torch.randn(2, 5, 3), a=torch.zeros(5, 2, 1))


def test_modules_move_between_precisions_and_share_memory() -> None:
    layer = cellgen.torch.module("gru", 3, 4).double()
    assert layer(torch.randn(5, 2, 3, dtype=torch.float64))[0].dtype == torch.float64
    layer.share_memory()
    assert layer.w_z.is_shared()
    assert cellgen.torch.module("gru", 3, 4, dtype=torch.float64).w_z.dtype == torch.float64
    assert cellgen.torch.module("gru", 3, 4, device="meta").w_z.is_meta


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((3,), TypeError, "hidden_size"),
        ((3, 0), ValueError, "hidden_size is 0, expected an integer from 1"),
        ((3, 4, 0), ValueError, "num_layers is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    arguments: tuple[int, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        cellgen.torch.module("gru", *arguments)


def test_dimensions_by_name_are_asked_for() -> None:
    with pytest.raises(TypeError, match="the dimension P is missing"):
        cellgen.torch.module("lstm_projection", 3, 4)
    with pytest.raises(TypeError, match="unknown argument 'Q'"):
        cellgen.torch.module("lstm", 3, 4, Q=2)
    with pytest.raises(TypeError, match="'num_layer'; did you mean 'num_layers'"):
        cellgen.torch.module("lstm", 3, 4, num_layer=2)
    advice = r"layer\.to\(torch\.float64\) or x\.to\(torch\.float32\)$"
    with pytest.raises(ValueError, match=advice):
        cellgen.torch.module("gru", 3, 4)(torch.zeros(5, 2, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="input_size is 3, expected 4"):
        cellgen.torch.module("sru", 3, 4)
    with pytest.raises(RuntimeError, match="hidden_size is 5, expected 6"):
        cellgen.torch.module("slstm_heads", 3, 5, K=2, D=3)


def test_empty_sequences_and_batches() -> None:
    layer = cellgen.torch.module("gru", 3, 4)
    y, h = layer(torch.randn(0, 2, 3), torch.ones(1, 2, 4))
    assert y.shape == (0, 2, 4)
    assert h.eq(1).all()
    assert layer(torch.randn(5, 0, 3))[0].shape == (5, 0, 4)
    layer(torch.randn(0, 2, 3))[1].sum().backward()
    assert not layer.w_z.grad.any()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.float8_e4m3fn, "float32", 3])
def test_a_dtype_that_no_kernel_computes_in_is_refused(dtype):
    with pytest.raises(
        TypeError, match=r"module\(gru\): dtype is .* expected one of torch\.float32"
    ):
        cellgen.torch.module("gru", 3, 4, dtype=dtype)

"""Forms in time: layers of whole chunks give what steps give, with every option and derivative."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen import (  # noqa: E402
    Cell,
    Dim,
    I,
    Input,
    State,
    Weight,
    activation,
    expand_dims,
    outer,
    sigmoid,
)
from cellgen.errors import ArgumentError, DerivationError  # noqa: E402
from cellgen.torch.functional import CellFunction  # noqa: E402
from tests.program.test_chunk_programs import OWN  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
CHUNKS = (
    *("delta_net", "gated_delta_net", "gla", "mamba", "mamba2", "mlstm", "retnet"),
    *("rwkv6", "rwkv7", "rwkv4"),
    *("kda", "gated_delta_net_2", "delta_product", "hgrn2", "mlstm_sigmoid", "comba", "mamba3"),
)
SCANS = ("lru", "min_gru", "min_gru_log", "min_lstm", "qrnn", "rg_lru", "hawk", "s5")
QUICK = ("gated_delta_net", "mlstm", "rwkv7", "rwkv4", "s5")
"""An erased read; a scan, then a memory and a column of it; keys that decay; a delay; pairs."""
STEPS, ROWS, LENGTH = 21, 3, 8
"""No multiple of a chunk."""
BAR = 1e-12

MASK = torch.rand(STEPS, ROWS, generator=torch.Generator().manual_seed(1)) < 0.7
RESET = torch.rand(STEPS, ROWS, generator=torch.Generator().manual_seed(2)) < 0.2
LENGTHS = torch.tensor([STEPS, 0, STEPS - 9])
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "tables": {"lengths": LENGTHS, "mask": MASK, "reset": RESET},
    "reverse": {"lengths": LENGTHS, "mask": MASK, "reset": RESET, "reverse": True},
    "zeros": {"mask": MASK, "zero_output_for_mask": True, "every": 3},
    "last": {"lengths": LENGTHS, "last_only": True},
    "reset": {"reset": RESET, "every": 4, "reverse": True},
    "outputs": {"outputs": ()},
}


def formed(name: str | type[Cell], **how: object) -> CellFunction:
    return cellgen.torch.function(name, **{"form": "auto", "chunk": LENGTH, **how})


def arguments(cell: CellFunction, **how: object) -> dict[str, Tensor]:
    tensors = drawn(cell, T=STEPS, B=ROWS, **how)
    if "gamma" in tensors:
        tensors["gamma"] = tensors["gamma"].abs()
    return tensors


def shown(cell: CellFunction, result: object) -> dict[str, Tensor]:
    """What both forms give: of memories what they are at the end."""
    unformed = cell.known.chunked.unformed
    named = result._asdict().items()
    return {n: v for n, v in named if v is not None and n not in unformed}


def gradients(results: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    torch.manual_seed(3)
    learning = {n: t for n, t in tensors.items() if t.requires_grad}
    upstream = [torch.randn_like(v) for v in results.values()]
    every = torch.autograd.grad(
        [*results.values()], [*learning.values()], upstream, materialize_grads=True
    )
    return dict(zip(learning, every, strict=True))


def farthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    pairs = [(value.detach(), expected[name].detach()) for name, value in found.items()]
    return max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)


def spoiled(tensors: dict[str, Tensor], options: Mapping[str, object]) -> dict[str, Tensor]:
    """Inputs that are no numbers at steps that are left out."""
    valid = torch.ones(STEPS, ROWS, dtype=torch.bool)
    if "lengths" in options:
        valid = valid & (torch.arange(STEPS)[:, None] < LENGTHS)
    if "mask" in options:
        valid = valid & MASK
    x = tensors["x"].detach()
    x = torch.where(valid[:, :, None], x, torch.nan).requires_grad_()
    return {**tensors, "x": x}


def often(name: str, case: str) -> bool:
    """Plain calls and calls with all tables, and the other options in turn."""
    others = [*OPTIONS][3:]
    return case not in others or others.index(case) % 3 == [*QUICK].index(name) % 3


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(
            *(name, case),
            marks=() if name in QUICK and often(name, case) else pytest.mark.slow,
        )
        for name in (*CHUNKS, *SCANS)
        for case in OPTIONS
    ],
)
def test_a_form_gives_what_steps_give(name: str, case: str) -> None:
    cell, options = formed(name), OPTIONS[case]
    assert cell.form == ("chunk" if name in CHUNKS and name != "rwkv4" else "scan")
    tensors = spoiled(arguments(cell), options)
    result = cell(**tensors, **options)
    assert result.form == cell.form
    found = shown(cell, result)
    expected = cell(**tensors, **options, form="step")
    assert expected.form == "step"
    expected = shown(cell, expected)
    assert farthest(found, expected) <= BAR
    assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


@pytest.mark.parametrize("own", OWN, ids=lambda cell: cell.definition.name)
def test_a_cell_of_ones_own_does(own: type[Cell]) -> None:
    cell = formed(own)
    tensors = arguments(cell)
    found, expected = (shown(cell, cell(**tensors, form=form)) for form in ("auto", "step"))
    assert farthest(found, expected) <= BAR
    assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


def test_a_cell_of_ones_own_has_resets_and_scalars_that_learn() -> None:
    cell = formed(OWN[1])
    tensors = arguments(cell)
    found, expected = (
        shown(cell, cell(**tensors, mask=MASK, reset=RESET, form=form)) for form in ("auto", "step")
    )
    assert farthest(found, expected) <= BAR
    assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


# --- the choice of a form ------------------------------------------------------------------------


def test_steps_are_the_default_and_keep_their_bits() -> None:
    plain = cellgen.torch.function("gla")
    tensors = arguments(plain)
    assert plain.form == "step"
    first, second = plain(**tensors), formed("gla")(**tensors, form="step")
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert first.form == second.form == "step"


def test_a_cell_without_a_form_says_which_statement_forbids_it() -> None:
    for form in ("chunk", "scan"):
        with pytest.raises(ArgumentError, match=r"lstm\.\w+: form is .*`h_prev @ u_o` mixes units"):
            cellgen.torch.function("lstm", form=form)
    cell = cellgen.torch.function("lstm", form="auto")
    assert cell.form == "step"
    assert cell(**drawn(cell)).form == "step"


@pytest.mark.parametrize(
    ("name", "form", "message"),
    [
        ("gla", "scan", "form is 'scan', but the cell has a memory, which goes in chunks; pass"),
        ("min_gru", "chunk", "form is 'chunk', but the cell is scans alone; pass form='scan'"),
        ("gla", "chunks", "form is 'chunks', expected one of 'step', 'chunk', 'scan', 'auto'"),
        ("gla", None, "form is None, expected one of"),
    ],
)
def test_a_form_that_is_none_of_the_cells_is_refused(name: str, form: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cellgen.torch.function(name, form=form)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 4}, "window is 4 with form='chunk'; gradients go through all steps of a chunk"),
        ({"checkpoint": 4}, "checkpoint is 4 with form='chunk'; torch keeps what gradients"),
        ({"memory_limit": 1 << 20}, "memory_limit is 1048576 with form='chunk'"),
        ({"flush_denormals": True}, "flush_denormals is True with form='chunk'"),
        ({"outputs": ("s",)}, "outputs names 's' with form='chunk', .* read s_last"),
        ({"every": 2, "last_only": True}, "last_only and every=2 are both given"),
        ({"lengths": torch.tensor([5, 99, 1])}, r"lengths\[1\] is 99, expected 0 to T = 21"),
        ({"mask": MASK[:4]}, r"mask has shape \(4, 3\)"),
        ({"form": "scan"}, "form is 'scan', but the cell has a memory"),
        ({"frm": "step"}, "unknown argument 'frm'; did you mean 'form'"),
    ],
)
def test_options_that_a_form_has_not_are_refused(options: dict[str, object], message: str) -> None:
    cell = formed("gla")
    with pytest.raises(ArgumentError, match=message):
        cell(**arguments(cell), **options)


def test_what_is_left_to_us_takes_one_step_as_a_step() -> None:
    cell = formed("gla")
    tensors = arguments(cell)
    one = {**tensors, "x": tensors["x"][:1]}
    assert cell(**one).form == "step"
    assert cell(**one, form="chunk").form == "chunk"
    assert cell(**{**tensors, "x": tensors["x"][:0]}).h.shape[0] == 0


def test_a_negative_decay_is_refused() -> None:
    cell = formed("retnet")
    tensors = arguments(cell)
    tensors["gamma"] = tensors["gamma"] - 2
    with pytest.raises(ArgumentError, match=r"retnet: gamma is -\S+ somewhere, expected numbers"):
        cell(**tensors)


HALVED = activation("halved", numpy=lambda x: x / 2, derivative=lambda y, x: 0.5, c="({0} / 2)")


VALUE, KEY = Dim("P"), Dim("K")


class DecayedByInput(Cell):
    """A memory that an input decays."""

    x, f, s_prev = Input(I), Input(1), State(KEY, VALUE)
    w_k, w_v = Weight(I, KEY), Weight(I, VALUE)
    s = expand_dims(f, -1) * s_prev + outer(x @ w_k, x @ w_v)
    h = (x @ w_k) @ s
    outputs = h, s


@pytest.mark.parametrize("table", ["lengths", "mask"])
def test_a_decay_may_be_negative_at_steps_that_are_left_out(table: str) -> None:
    cell = cellgen.torch.function(DecayedByInput, form="chunk")
    tensors = drawn(cell, T=4, B=2, I=2, K=2, P=2, learns=False)
    tensors["f"] = tensors["f"].abs()
    tensors["f"][2:, 1] = -1.0
    lengths = torch.tensor([4, 2])
    mask = torch.arange(4).unsqueeze(1) < lengths
    options = {"lengths": lengths} if table == "lengths" else {"mask": mask}
    apart = cell(**tensors, **options).h - cell(**tensors, **options, form="step").h
    assert float(apart.abs().max()) < BAR
    with pytest.raises(ArgumentError, match="f is -1 somewhere, expected numbers"):
        cell(**tensors)


class Halved(Cell):
    """A scan whose gate is a function of one's own."""

    x, h_prev = Input(I), State(I)
    w = Weight(I, I)
    h = sigmoid(HALVED(x @ w)) * h_prev + x
    outputs = h


def test_a_function_of_ones_own_is_refused_by_its_name() -> None:
    cell = formed(Halved)
    with pytest.raises(DerivationError, match="halved is a function of one's own"):
        cell(**arguments(cell))
    assert cell(**arguments(cell), form="step").form == "step"


# --- types, transforms, compilers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "bar"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize(
    "name", ["gated_delta_net", pytest.param("gla", marks=pytest.mark.slow), "s5"]
)
def test_narrow_types_are_computed_in_float32(name: str, dtype: torch.dtype, bar: float) -> None:
    """Beside float64: roundings of arrays, 2^-24, 2^-9 and 2^-11, and of bfloat16's products."""
    cell = formed(name)
    wide = arguments(cell)
    narrow = {n: t.detach().to(dtype).requires_grad_() for n, t in wide.items()}
    found, expected = shown(cell, cell(**narrow)), shown(cell, cell(**wide))
    assert {v.dtype for v in found.values()} == {dtype}
    assert farthest(found, expected) <= bar
    again = gradients({n: v.double() for n, v in found.items()}, narrow)
    assert {v.dtype for v in again.values()} == {dtype}
    assert farthest(again, gradients(expected, wide)) <= 3 * bar


def test_products_may_be_in_bfloat16() -> None:
    cell = formed("gla")
    tensors = {n: t.detach().float() for n, t in arguments(cell).items()}
    full, rounded = cell(**tensors).h, cell(**tensors, products="bf16").h
    assert rounded.dtype == torch.float32
    assert 1e-5 < farthest({"h": rounded}, {"h": full}) < 1e-2


def test_autocast_gives_its_type() -> None:
    cell = formed("gla")
    tensors = {n: t.detach().float() for n, t in arguments(cell).items()}
    with torch.autocast("cpu", torch.bfloat16):
        found = cell(**tensors)
    assert found.h.dtype == torch.bfloat16
    assert farthest({"h": found.h.float()}, {"h": cell(**tensors).h}) < 3e-2


def test_gates_of_any_strength() -> None:
    """Down to e^-16000 a step, in a chunk of more steps than a block of exact decays has."""
    cell = formed("gla", chunk=40)
    tensors = drawn(cell, T=45, B=2)
    tensors["w_a"] = (tensors["w_a"] * 0).detach().requires_grad_()
    strong = torch.full_like(tensors["b_a"], 4.0)
    strong[-1] = -16000.0
    tensors["b_a"] = strong.requires_grad_()
    found, expected = (shown(cell, cell(**tensors, form=form)) for form in ("chunk", "step"))
    assert farthest(found, expected) <= BAR
    assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


@pytest.mark.parametrize(
    "name",
    ["gla", *(pytest.param(n, marks=pytest.mark.slow) for n in ("min_lstm", "gated_delta_net"))],
)
def test_second_derivatives_are_those_of_steps(name: str) -> None:
    cell = formed(name)

    def second(form: str) -> dict[str, Tensor]:
        tensors = drawn(cell, T=11, B=2)
        result = cell(**tensors, form=form)[0]
        first = torch.autograd.grad((result**3).sum(), [*tensors.values()], create_graph=True)
        total = sum((g**2).sum() for g in first)
        return dict(zip(tensors, torch.autograd.grad(total, [*tensors.values()]), strict=True))

    assert farthest(second("auto"), second("step")) <= BAR


def test_transforms_of_torch_func() -> None:
    cell = formed("gla")
    tensors = {n: t.detach() for n, t in arguments(cell).items()}

    def loss(x: Tensor, w: Tensor, form: str) -> Tensor:
        return cell(**{**tensors, "x": x, "w_q": w}, mask=MASK, form=form).h.square().sum()

    x, w = tensors["x"], tensors["w_q"]
    for form in ("grad", "jvp", "per row"):
        made = [_transformed(form, loss, x, w, own) for own in ("chunk", "step")]
        assert farthest({"": made[0]}, {"": made[1]}) <= BAR


def _transformed(kind: str, loss: object, x: Tensor, w: Tensor, form: str) -> Tensor:
    if kind == "grad":
        return torch.func.grad(loss)(x, w, form)
    if kind == "jvp":
        return torch.func.jvp(lambda x: loss(x, w, form), (x,), (torch.ones_like(x),))[1]
    several = torch.stack([w, 2 * w, -w])
    return torch.func.vmap(torch.func.grad(loss, 1), (None, 0, None))(x, several, form)


@pytest.mark.parametrize("name", ["gla", pytest.param("mlstm", marks=pytest.mark.slow)])
def test_torch_compiles_the_whole_graph(name: str) -> None:
    cell = formed(name)
    tensors = arguments(cell)
    compiled = torch.compile(
        lambda tensors: tuple(cell(**tensors, mask=MASK)), fullgraph=True, backend="aot_eager"
    )
    found = [v for v in compiled(tensors) if v is not None]
    expected = [v for v in cell(**tensors, mask=MASK) if v is not None]
    assert farthest(dict(enumerate(found)), dict(enumerate(expected))) <= BAR
    first = torch.autograd.grad(found[0].sum(), tensors["x"])
    assert torch.allclose(first[0], torch.autograd.grad(expected[0].sum(), tensors["x"])[0])


def test_torch_exports_a_layer() -> None:
    layer = cellgen.torch.module("gla", 4, 4, form="chunk", chunk=LENGTH, N=2, K=3, D=2)
    x = torch.randn(STEPS, 2, 4)
    program = torch.export.export(layer, (x,))
    assert torch.allclose(program.module()(x)[0], layer(x)[0], atol=1e-6)


def test_a_function_is_pickled_with_its_form() -> None:
    again = pickle.loads(pickle.dumps(formed("gla", form="chunk")))
    assert (again.form, again.chunk) == ("chunk", LENGTH)


# --- layers --------------------------------------------------------------------------------------


def layers(name: str, **how: object) -> cellgen.torch.layers.CellLayers:
    torch.manual_seed(0)
    return cellgen.torch.module(name, 4, 4, chunk=LENGTH, dtype=torch.float64, **how)


def test_layers_have_the_form() -> None:
    sizes = {"num_layers": 2, "bidirectional": True, "N": 2, "K": 3, "D": 2}
    layer = layers("gla", form="chunk", **sizes)
    assert layer.form == "chunk"
    assert "form=chunk" in str(layer)
    x = torch.randn(STEPS, ROWS, 4, dtype=torch.float64)
    found, expected = layer(x), layer(x, form="step")
    for a, b in zip(found, expected, strict=True):
        assert farthest({"": a}, {"": b}) <= BAR
    assert torch.equal(expected[0], layers("gla", **sizes)(x)[0])  # steps keep their bits


def test_layers_take_packed_sequences() -> None:
    layer = layers("min_gru", form="scan")
    x = torch.randn(STEPS, ROWS, 4, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([9, 21, 4]), enforce_sorted=False)
    found, expected = layer(packed), layer(packed, form="step")
    rows = [pad_packed_sequence(one[0])[0] for one in (found, expected)]
    assert farthest({"": rows[0]}, {"": rows[1]}) <= BAR
    assert farthest({"": found[1]}, {"": expected[1]}) <= BAR


@pytest.mark.parametrize("name", ["gla", "rwkv7"])
def test_a_prompt_in_chunks_and_generation_in_steps_are_steps_alone(name: str) -> None:
    cell = formed(name)
    tensors = {n: t.detach() for n, t in arguments(cell).items()}
    whole = cell(**tensors, form="step")
    prompt = cell(**{**tensors, "x": tensors["x"][:13]})
    assert prompt.form == "chunk"
    states = dict(zip(cell.states, (getattr(prompt, n) for n in cell.finals), strict=True))
    outputs = [prompt[0]]
    for step in tensors["x"][13:]:
        one = cell(**{**tensors, **states, "x": step[None]})
        assert one.form == "step"
        states = dict(zip(cell.states, (getattr(one, n) for n in cell.finals), strict=True))
        outputs.append(one[0])
    assert farthest({"": torch.cat(outputs)}, {"": whole[0]}) <= BAR
    for state, final in zip(cell.states, cell.finals, strict=True):
        assert farthest({"": states[state]}, {"": getattr(whole, final)}) <= BAR

"""Cells under ``torch.compile``, ``torch.export`` and what else runs or traces a graph."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen.frameworks.selection import ON_TENSORS  # noqa: E402
from cellgen.runtime.numbers import as_numbers  # noqa: E402
from cellgen.torch import schemas  # noqa: E402
from cellgen.torch.derivatives import Call  # noqa: E402
from tests.cover import each_time  # noqa: E402
from tests.torch.drawn import drawn, function  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
FORWARD = getattr(torch.ops.cellgen.forward, schemas.OVERLOAD)
BACKWARD = getattr(torch.ops.cellgen.backward, schemas.OVERLOAD)
"""What follows the options: products, checkpoint, every, hidden, last."""
USUAL = ([], 0, *as_numbers(ON_TENSORS))


@pytest.fixture(autouse=True)
def fresh(graphs_of_this_run: None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


TWO_BOTH_WAYS = {"num_layers": 2, "bidirectional": True}


class Tagger(torch.nn.Module):
    """A layer among others, as a model has it."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.read = torch.nn.Linear(3, 4)
        self.layer = cellgen.torch.module("lstm", 4, 5, **options)
        self.tell = torch.nn.Linear(5 * (1 + self.layer.bidirectional), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tell(self.layer(self.read(x))[0])


def gradients(model: torch.nn.Module, run: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    run(x).sin().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", each_time(("gru",), ("gru", "lstm", "slstm_heads", "lif")))
def test_opcheck(name: str) -> None:
    cell = function(name)
    theta = [*drawn(cell).values()]
    scalars = [*cell.scalars.values()]
    torch.library.opcheck(FORWARD, (name, theta, scalars, True, *USUAL))
    with torch.no_grad():
        kept = FORWARD(name, theta, scalars, True, *USUAL)
    upstream = [torch.randn_like(kept[0])]
    arguments = (name, theta, scalars, kept, upstream, 1, -1, *USUAL)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(BACKWARD, arguments, test_utils=checks)


def test_opcheck_of_steps_that_do_not_count() -> None:
    theta = [t.detach() for t in drawn(function("gru")).values()]
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    tables = [torch.tensor([3, 1]), mask, ~mask]
    switches = {"reverse": True, "zero_output_for_mask": True, "flush_denormals": True}
    numbers = as_numbers(replace(ON_TENSORS, **switches))
    arguments = ("gru", theta, [], False, tables, 7, *numbers)
    torch.library.opcheck(FORWARD, arguments)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("inductor", {}),
        pytest.param("inductor", TWO_BOTH_WAYS, marks=pytest.mark.slow),
        pytest.param("aot_eager", TWO_BOTH_WAYS, marks=pytest.mark.slow),
    ],
    ids=["inductor", "inductor, two layers", "aot_eager, two layers"],
)
def test_compiled_in_one_graph_with_gradients(backend: str, options: dict[str, Any]) -> None:
    """Machine code each time for one layer: that of four costs three times as much."""
    model = Tagger(**options)
    x = torch.randn(6, 2, 3)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(gradients(model, compiled, x), gradients(model, model, x))


def test_shapes_may_change_without_compiling_anew() -> None:
    model = Tagger(batch_first=True)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for rows, steps in ((8, 6), (5, 4), (9, 7)):
        x = torch.randn(rows, steps, 3)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(graphs) == 1


def test_options_are_part_of_a_compiled_call() -> None:
    layer = cellgen.torch.module("gru", 3, 4, batch_first=True)

    def run(x: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return layer(x, lengths=lengths, mask=mask, reset=mask)[0]

    given = torch.randn(2, 5, 3), torch.tensor([5, 2]), torch.rand(2, 5) > 0.4
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), run(*given))


def test_forward_mode_within_a_compiled_graph_is_refused_not_wrong() -> None:
    cell = function("gru")
    tensors = drawn(cell, learns=False)

    def along(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda x: cell(**{**tensors, "x": x}).h, (x,), (v,))[1]

    v = torch.randn_like(tensors["x"])
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(along, fullgraph=True, backend="eager")(tensors["x"], v)
    found = torch.compile(along, backend="eager")(tensors["x"], v)
    torch.testing.assert_close(found, along(tensors["x"], v))


def test_graphs_on_disk_are_those_of_the_schema() -> None:
    """torch finds them by the text of a graph, where the schemas' digest stands."""
    overload = schemas.overload_of(schemas.FORWARD, schemas.BACKWARD)
    other = schemas.overload_of(schemas.FORWARD, schemas.BACKWARD.replace("int wanted, ", ""))
    assert FORWARD._overloadname == BACKWARD._overloadname == overload != other
    seen = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.append(graph.code)
        return graph

    torch.compile(Tagger(), fullgraph=True, backend=backend)(torch.randn(4, 3, 3))
    assert f"torch.ops.cellgen.forward.{overload}(" in seen[0]


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_call_has_no_empty_list_of_tensors(strict: bool) -> None:
    """AOTInductor, to which exported programs go, hands operators None for such a list."""
    layer = cellgen.torch.module("gru", 3, 4)
    with torch.no_grad():
        program = torch.export.export(layer, (torch.randn(5, 2, 3),), strict=strict)
    (call,) = (node for node in program.graph.nodes if "cellgen.forward" in str(node.target))
    assert len(call.args[4]) == 1
    assert call.args[5] == 0  # which of lengths, mask and reset it is: none


@pytest.mark.slow  # a minute of a C++ compiler
def test_a_package_of_aot_inductor_gives_the_same_in_another_process(tmp_path: Path) -> None:
    layer, file = cellgen.torch.module("gru", 3, 4), str(tmp_path / "gru.pt2")
    steps, rows = torch.export.Dim("T", min=2, max=64), torch.export.Dim("B", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(
            layer, (torch.randn(5, 2, 3),), dynamic_shapes={"x": {0: steps, 1: rows}}, strict=False
        )
    torch._inductor.aoti_compile_and_package(program, package_path=file)
    x = torch.randn(7, 3, 3)
    torch.save((x, layer(x)[0].detach()), tmp_path / "given.pt")
    code = (
        "import torch, cellgen.torch; "
        f"x, y = torch.load({str(tmp_path / 'given.pt')!r}); "
        f"found = torch._inductor.aoti_load_package({file!r})(x)[0]; "
        "torch.testing.assert_close(found, y, rtol=0, atol=0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exported_saved_loaded_and_run_at_other_shapes() -> None:
    model = Tagger().eval()
    steps, rows = torch.export.Dim("T", min=1), torch.export.Dim("B", min=1)
    program = torch.export.export(
        model, (torch.randn(4, 3, 3),), dynamic_shapes=({0: steps, 1: rows},)
    )
    called = [node for node in program.graph.nodes if node.target is FORWARD]
    assert [node.args[0] for node in called] == ["lstm"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((6, 5, 3), (1, 1, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(loaded(x), model(x))


def test_checkpoints_and_hooks_of_saved_tensors() -> None:
    model = Tagger(num_layers=2)
    x = torch.randn(6, 2, 3, requires_grad=True)
    wanted = gradients(model, model, x)
    found = gradients(model, lambda x: checkpoint(model, x, use_reentrant=False), x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)

    def on_cpu(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    torch.testing.assert_close(gradients(model, on_cpu, x), wanted, rtol=0, atol=0)


def test_compiled_autograd() -> None:
    model = Tagger()
    x = torch.randn(6, 2, 3)
    wanted = gradients(model, model, x)
    compiler = torch.compile(backend="eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        found = gradients(model, model, x)
    torch.testing.assert_close(found, wanted)


def test_tensors_without_memory_have_shapes() -> None:
    layer = cellgen.torch.module("lstm", 3, 4, 2, device="meta")
    y, (h, c) = layer(torch.empty(5, 2, 3, device="meta"))
    assert y.is_meta
    assert (y.shape, h.shape, c.shape) == ((5, 2, 4), (2, 2, 4), (2, 2, 4))
    with torch._subclasses.FakeTensorMode():
        fake = cellgen.torch.module("gru", 3, 4)
        assert fake(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)


def test_autocast_runs_a_model_in_bfloat16() -> None:
    model = Tagger()
    x = torch.randn(6, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = model.layer(model.read(x))
        assert y.dtype == torch.bfloat16
        assert model(x).dtype == torch.bfloat16
        gradients(model, model, x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))


def test_gaps_between_rows_and_units() -> None:
    cell = function("gru")
    tensors = drawn(cell, T=5, B=4)
    wanted = cell(**tensors)
    other = {name: value.detach().clone() for name, value in tensors.items()}
    other["x"] = tensors["x"].detach().transpose(0, 2).contiguous().transpose(0, 2)
    other["w_z"] = other["w_z"].T.contiguous().T
    other = {name: value.requires_grad_() for name, value in other.items()}
    found = cell(**other)
    assert torch.equal(found.h, wanted.h)
    up = torch.randn(4, 5, 3, dtype=torch.float64).transpose(0, 1)
    for one, two in zip(
        torch.autograd.grad(wanted.h, [*tensors.values()], up),
        torch.autograd.grad(found.h, [*other.values()], up),
        strict=True,
    ):
        assert torch.equal(one, two)
    every = drawn(cell, T=10, B=8, learns=False)
    view = every | {"x": every["x"][::2, ::2], "h_prev": every["h_prev"][::2]}
    dense = {name: value.contiguous() for name, value in view.items()}
    assert torch.equal(cell(**view).h, cell(**dense).h)
    spread = torch.autograd.grad(
        cell(**{**dense, "w_z": dense["w_z"].requires_grad_()}).h.sum(), dense["w_z"]
    )
    assert spread[0].any()


def test_inference_mode_and_frozen_weights() -> None:
    model = Tagger()
    x = torch.randn(6, 2, 3)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), model(x.clone()))
    for parameter in model.layer.parameters():
        parameter.requires_grad_(False)
    model(x).sum().backward()
    assert model.read.weight.grad.any()
    assert model.layer.w_i.grad is None


def wrong(name: str) -> tuple[dict[str, torch.Tensor], type[Exception], str]:
    """A call with one fault: what it raises, and what the message says."""
    tensors = drawn(function("gru"), learns=False, dtype=torch.float32)
    sparse = tensors["u_z"].to_sparse()
    faults = {
        "dtype": (
            {"w_z": tensors["w_z"].double()},
            RuntimeError,
            "w_z is float64, expected float32",
        ),
        "integers": ({"x": tensors["x"].int()}, RuntimeError, "x is int32, expected float32, "),
        "rank": ({"x": tensors["x"][0]}, RuntimeError, "x has 2 axes, shape (2, 2), expected 3"),
        "shape": ({"b_n": torch.zeros(4)}, RuntimeError, "b_n has shape (4,), expected (H) = (3,)"),
        "device": ({"u_r": tensors["u_r"].to("meta")}, RuntimeError, "u_r is on meta, but x is on"),
        "layout": ({"u_z": sparse}, RuntimeError, "u_z has the layout torch.sparse_coo"),
        "lengths": (
            {"lengths": torch.tensor([3.0, 1.0])},
            RuntimeError,
            "lengths has shape (2,) and",
        ),
        "mask": ({"mask": torch.ones(2, 3).bool()}, RuntimeError, "mask has shape (2, 3)"),
    }
    change, kind, message = faults[name]
    return tensors | change, kind, message


@pytest.mark.parametrize(
    "name", ["dtype", "integers", "rank", "shape", "device", "layout", "lengths", "mask"]
)
def test_a_wrong_tensor_is_named_eager_and_compiled_alike(name: str) -> None:
    cell = function("gru")
    tensors, kind, message = wrong(name)
    with pytest.raises(kind, match=re.escape(message)) as found:
        cell(**tensors)
    assert isinstance(found.value, cellgen.ArgumentError)
    if name != "layout":  # Dynamo has no sparse tensors
        compiled = torch.compile(lambda given: cell(**given), backend="eager", fullgraph=True)
        with pytest.raises(RuntimeError, match=re.escape(message)):
            compiled(tensors)


def test_what_is_no_tensor_is_a_type_error() -> None:
    cell = function("gru")
    tensors = drawn(cell, learns=False)
    with pytest.raises(TypeError, match=r"w_z is a list, expected a torch\.Tensor"):
        cell(**{**tensors, "w_z": [[1.0]]})
    with pytest.raises(TypeError, match="unknown argument 'w_x'; did you mean"):
        cell(**tensors, w_x=tensors["w_z"])
    with pytest.raises(TypeError, match="w_n is missing"):
        cell(**{**tensors, "w_n": None})


def test_lengths_beyond_the_steps_are_refused() -> None:
    cell = function("gru")
    tensors = drawn(cell, learns=False)
    with pytest.raises(ValueError, match=r"lengths\[0\] is 4, expected 0 to T = 3"):
        cell(**tensors, lengths=torch.tensor([4, 1]))
    run = torch.compile(lambda n: cell(**tensors, lengths=n).h, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"lengths\[1\] is -1, expected 0 to T = 3"):
        run(torch.tensor([3, -1]))
    with pytest.raises(RuntimeError, match=r"lengths\[3\] is 9, expected 0 to T = 3"):
        torch.func.vmap(lambda n: cell(**tensors, lengths=n).h)(torch.tensor([[3, 1], [0, 9]]))


@pytest.mark.parametrize("table", ["lengths", "mask", "reset"])
def test_tables_are_tensors_where_the_others_are(table: str) -> None:
    cell = function("gru")
    tensors = drawn(cell)
    made = torch.tensor([3, 1]) if table == "lengths" else torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=f"{table} is on meta, but x is on cpu"):
        cell(**tensors, **{table: made.to("meta")})
    with pytest.raises(TypeError, match=rf"{table} is a list, expected a torch\.Tensor"):
        cell(**tensors, **{table: made.tolist()})
    flat = torch.ones(2, dtype=torch.float32 if table == "lengths" else torch.bool)
    transposed = {n: t.transpose(0, 1) if n == "x" else t for n, t in tensors.items()}
    with pytest.raises(RuntimeError, match=rf"{table} has shape \(2,\)"):
        cell(**transposed, **{table: flat}, batch_first=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("window", -1), ("window", 2.5), ("reverse", 3), ("reverse", "no"), ("batch_first", "no")],
)
def test_options_that_are_none_are_a_value_error(option: str, value: object) -> None:
    cell = function("gru")
    with pytest.raises(ValueError, match=f"{option} is {value!r}, expected"):
        cell(**drawn(cell), **{option: value})


def test_scalars_that_do_not_learn_are_plain_numbers() -> None:
    cell = function("janet")
    tensors = drawn(cell)
    wanted = cell(**tensors, beta=2.0).h
    for value in (2, np.float32(2), torch.tensor(2.0)):
        assert torch.equal(cell(**tensors, beta=value).h, wanted)
    with pytest.raises(RuntimeError, match=r"beta requires a gradient.*pass beta\.detach\(\)"):
        cell(**tensors, beta=torch.tensor(2.0, requires_grad=True))
    for value in ("2", None, torch.ones(2)):
        with pytest.raises(ValueError, match=r"scalar beta is .* expected one real number"):
            cell(**tensors, beta=value)


def test_options_of_plain_calls_say_what_stands_for_them() -> None:
    cell = function("gru")
    with pytest.raises(TypeError, match=r"bp_lim is no option .*use window="):
        cell(**drawn(cell), bp_lim=2)
    with pytest.raises(TypeError, match=r"per_row is no option .*torch\.func\.vmap"):
        cell(**drawn(cell), per_row=True)


def test_defaults_of_a_call_are_what_the_least_torch_traces() -> None:
    """Dynamo of torch 2.10 to 2.12 takes no default that is an object of a class of ours."""
    defaults = [f.default for f in fields(Call) if f.init and f.default is not MISSING]
    assert {type(default) for default in defaults} <= {bool, int, type(None)}

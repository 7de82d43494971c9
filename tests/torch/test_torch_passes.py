"""Cells by Triton's interpreter: both passes against the programs of chunks in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen  # noqa: E402
from cellgen.cells import SHIPPED  # noqa: E402
from cellgen.program.chunks import form_over_time  # noqa: E402
from cellgen.program.interpret import shape_sizes  # noqa: E402
from cellgen.proof.over_chunks import ChunkRun  # noqa: E402
from cellgen.proof.watched import watched  # noqa: E402
from cellgen.torch.passes import PlanRun  # noqa: E402
from tests.targets.hostile_cells import TEXTS, named, slots  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")
"""Of lanes behind the last unit, and of branches that are not taken."""
SIZES = {"T": 5, "B": 2, "I": 3, "H": 36, "P": 36, "N": 2, "D": 5, "K": 4, "R": 3}
QUICK = ("min_gru", "lru", "rwkv4", "gla")
CELLS = [
    cell.definition
    for cell in SHIPPED
    if form_over_time(cell.definition).refusal is None and cell.definition.name != "mamba"
]
SCANS = [definition for definition in CELLS if not form_over_time(definition).memories]
EXACT = 1e-12
"""Float64, sums in another order."""
SINGLE = 2e-5
"""Float32 against float64, with RWKV-4's quotient of two sums."""

NAMES = {
    "Scan": "x=tl s=s t=step w=row u=at b=begins z=steps n=count h=there D=unit",
    "Decays": "x=held s=S w=w_p u=marks y=late z=first q=ck k=G v=cv g=g h=t",
    "Erases": "x=inside s=X w=valid u=slot y=c z=r q=step k=tl v=v b=P h=seen",
    "Column": "x=late n=x s=S w=d u=r y=c a=g k=ck v=cv h=blocks",
}
"""Names that kernels have uses for, by the slots of a cell's text."""


def kernel_of(definition):
    return cellgen.load(definition.name, "triton").module


def drawn(definition, seed=0, sizes=SIZES):
    """Arguments and sizes: states positive for quotients of sums, no gate saturated."""
    numbers = np.random.default_rng(seed)
    sizes = {"T": sizes["T"], **{str(dim): sizes[str(dim)] for dim in definition.dims}}
    arguments = {}
    for value in definition.declared:
        shape = shape_sizes(value, sizes)
        steps = (sizes["T"],) if value.role.name == "INPUT" else ()
        is_matrix = not value.is_batched and len(shape) > 1
        least, most = (-0.4, 0.4) if is_matrix else (0.1, 0.9)
        arguments[str(value)] = numbers.uniform(least, most, (*steps, *shape))
    return arguments, sizes


def compared(definition, dtype, segments, module=None, sizes=SIZES):
    """The largest difference, by the largest number of each result, forward and back."""
    arguments, sizes = drawn(definition, sizes=sizes)
    reference = ChunkRun(definition, arguments, sizes)
    steps = reference.forward()
    expected = {**steps.outputs, **reference.last}
    numbers = np.random.default_rng(1)
    upstream = {f"d_{name}": numbers.normal(size=a.shape) for name, a in expected.items()}
    gradients = reference.backward(upstream)
    tensors = {name: torch.tensor(a, dtype=dtype) for name, a in arguments.items()}
    module = module or kernel_of(definition)
    run = PlanRun(module, dict(sizes), tensors, segments=segments, ahead=2)
    formed = run.forward()
    given = {name: torch.tensor(a, dtype=dtype) for name, a in upstream.items()}
    back = run.backward(given)
    assert back.keys() == gradients.keys()
    pairs = [(formed[n], a) for n, a in expected.items()]
    pairs += [(back[n], a) for n, a in gradients.items()]
    return max(
        float(np.abs(x.double().numpy().reshape(a.shape) - a).max() / np.abs(a).max())
        for x, a in pairs
    )


@pytest.mark.parametrize(
    "definition",
    [pytest.param(d, id=d.name, marks=[] if d.name in QUICK else pytest.mark.slow) for d in CELLS],
)
def test_both_passes_are_those_of_the_programs_of_chunks(definition) -> None:
    assert compared(definition, torch.float64, 1) < EXACT


@pytest.mark.parametrize(
    "definition",
    [pytest.param(d, id=d.name, marks=[] if d.name == "lru" else pytest.mark.slow) for d in SCANS],
)
def test_segments_beside_each_other_give_the_same(definition) -> None:
    assert compared(definition, torch.float64, 2) < EXACT


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow][: n != "Scan"]) for n in TEXTS]
)
def test_names_that_kernels_use_change_no_number(name) -> None:
    names = {slot: slot for slot in slots(TEXTS[name]) if slot.isupper()}
    names |= dict(pair.split("=") for pair in NAMES[name].split())
    cell = named(TEXTS[name], names)
    sizes = {**SIZES, "unit": 36, "I": 3}
    module = cellgen.compile(cell, "triton").module
    for segments in (1, 2):
        assert compared(cell.definition, torch.float64, segments, module, sizes) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("definition", CELLS, ids=lambda d: d.name)
def test_float32_is_as_near_as_its_digits(definition) -> None:
    assert compared(definition, torch.float32, 1) < SINGLE


def test_a_scan_reads_each_stream_once_and_writes_each_output_once() -> None:
    """minGRU: two streams, two biases and a first state in; all states and the last one out."""
    definition = next(d for d in SCANS if d.name == "min_gru")
    arguments, sizes = drawn(definition)
    tensors = {name: torch.tensor(a, dtype=torch.float32) for name, a in arguments.items()}
    run = PlanRun(kernel_of(definition), dict(sizes), tensors, segments=1, ahead=2)
    with watched("min_gru") as watch:
        run.forward()
    row, steps, bias = 4 * sizes["B"] * sizes["H"], sizes["T"], 4 * sizes["B"] * sizes["H"]
    assert watch.bytes("rows_1") == ((2 * steps + 1) * row + 2 * bias, (steps + 1) * row)


def test_a_gate_of_a_head_is_not_rounded() -> None:
    """mLSTM's stabiliser is the larger of two: rounded to bfloat16, the other may be the larger."""
    definition = next(one for one in CELLS if one.name == "mlstm")
    arguments, sizes = drawn(definition)
    tensors = {name: torch.tensor(a, dtype=torch.bfloat16) for name, a in arguments.items()}
    gates = tensors["x"].float() @ tensors["w_i"].float().reshape(sizes["I"], -1)
    run = PlanRun(kernel_of(definition), dict(sizes), tensors)
    run.operations([one for one in run.plan["forward"] if one["op"] == "product"])
    assert (run.arrays["x_w_i"].reshape(gates.shape) - gates).abs().max() < 1e-6
    assert (gates.bfloat16() - gates).abs().max() > 1e-4
    assert run.arrays["x_w_q"].dtype == torch.bfloat16

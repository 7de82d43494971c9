"""Models broken in one to three places are read as onnxruntime runs them, or refused by name.

Nothing ends in another error than cellgen's, and nothing hangs. What is read is compared with
onnxruntime, where that takes the model too: a node's operands and results, as the model has them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import cellgen.onnx
from cellgen.cells import MGU
from cellgen.errors import CellgenError
from cellgen.onnx.finding import RecurrentNode, recurrent
from cellgen.onnx.operators import INPUTS
from cellgen.onnx.reading import opened
from tests.onnx.models import of_body, of_operator
from tests.onnx.mutants import mutant
from tests.onnx.sessions import draw, run

FILES = Path(__file__).parent / "files"
SECONDS = 60
"""After which a model is said to hang; the slowest takes two."""
BAR = 1e-3
"""Of the largest entry: weights of a mutant may be of any size."""
KINDS = {
    TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64, TensorProto.BOOL: np.bool_,
}  # fmt: skip


@cache
def models() -> tuple[ModelProto, ...]:
    """What exporters wrote, and a node of each kind."""
    own = [
        of_operator(
            "LSTM", directions=2, direction="bidirectional", peepholes=True, lengths=(5, 3)
        )[0],
        of_operator("GRU", activations=["Sigmoid", "LeakyRelu"], activation_alpha=[0.3])[0],
        cellgen.onnx.export(MGU, draw(MGU).of("float32").weights, lengths=True),
        of_body(
            [
                helper.make_node("Add", ["x", "s"], ["s_new"]),
                helper.make_node("Mul", ["x", "s_new"], ["y"]),
            ],
            outputs=("y",),
        ),
    ]
    return (*(onnx.load(path) for path in sorted(FILES.glob("*.onnx"))), *own)


class Peer:
    """onnxruntime in a process of its own, since some mutants end it."""

    def __init__(self) -> None:
        self.pool = self.started()

    def started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def run(self, model, given):
        """What a model gives; None where onnxruntime refuses it, or ends."""
        try:
            return self.pool.submit(answer, model.SerializeToString(), given).result()
        except BrokenProcessPool:
            self.pool = self.started()
            return None


def answer(model: bytes, given):
    onnxruntime.set_default_logger_severity(4)
    try:
        return run(onnx.load_from_string(model), given)
    except Exception:  # of onnxruntime, which refuses it
        return None


peer = cache(Peer)


@contextmanager
def limited(seed):
    """Stop what hangs."""

    def stop(*_):
        raise AssertionError(f"mutant {seed} is not read in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(seed) -> str:
    """What becomes of a mutant: read, read and compared, or refused."""
    model = mutant(models()[seed % len(models())], seed)
    with limited(seed):
        try:
            layers = cellgen.onnx.read(model)
        except CellgenError as error:
            said = str(error)
            assert "\n" not in said, (seed, said)
            assert len(said) < 2000, (seed, said)
            assert ") cannot be read: " not in said, (seed, said)  # nothing looked for this
            return "refused"
        return compared(model, layers, seed)


def compared(model, layers, seed) -> str:
    """Compare the layers of a model's own graph with onnxruntime."""
    graph = opened(model)
    ones = [one for one in recurrent(graph) if isinstance(one, RecurrentNode)]
    names = [n for one in ones if one.graph is graph for n in (*one.node.input, *one.node.output)]
    for layer in layers:
        names += getattr(getattr(layer, "body", None), "statics", ())
    shown = ModelProto()
    shown.CopyFrom(graph.model)
    own = {value.name for value in (*shown.graph.input, *shown.graph.output)}
    more = [n for n in dict.fromkeys(names) if n and n not in own]
    shown.graph.output.extend(map(helper.make_empty_tensor_value_info, more))
    given = inputs(shown, seed)
    found = peer().run(shown, given)
    if found is None:
        return "read"
    every = {**given, **found}
    for one, layer in zip(ones, layers, strict=True):
        if one.graph is graph and not gives_twice(one.node):
            compare_one(one.node, layer, every, seed)
    return "compared"


def gives_twice(node) -> bool:
    """Whether a body gives one value twice: what onnxruntime writes then is not that value."""
    names = [v.name for a in node.attribute if a.name == "body" for v in a.g.output]
    return len(set(names)) < len(names)


def inputs(model, seed) -> dict[str, np.ndarray]:
    """Drawn inputs of a model; free axes have length 4, and integers may be lengths of rows.

    Of a row without steps onnxruntime gives zeros as the last state, not the first one.
    """
    rng, held = np.random.default_rng(seed), {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [min(a.dim_value, 64) if a.HasField("dim_value") else 4 for a in kind.shape.dim]
        if value.name not in held:
            array = rng.standard_normal([max(n, 0) for n in shape])
            whole = KINDS.get(kind.elem_type, np.float32)
            array = rng.integers(1, 5, array.shape) if whole in (np.int32, np.int64) else array
            found[value.name] = array.astype(whole)
    return found


def compare_one(node, layer, every, seed) -> None:
    try:
        if node.op_type == "Scan":
            around = {name: every[name] for name in layer.body.statics}
            takes = [every[name] for name in node.input]
            found = layer.run(*takes, around=around, interpreted=True)
        else:
            named = dict(zip(INPUTS, node.input, strict=False))
            order = ("X", "sequence_lens", "initial_h", "initial_c")
            found = layer.run(*(every.get(named.get(n, "")) for n in order), interpreted=True)
    except CellgenError:
        return
    for name, array in zip(node.output, found, strict=False):
        if name:
            assert array.shape == every[name].shape, (seed, name, array.shape, every[name].shape)
            scale = np.abs(every[name][np.isfinite(every[name])]).max(initial=1.0)
            np.testing.assert_allclose(
                array / scale, every[name] / scale, atol=BAR, err_msg=f"{seed} {name}"
            )


def hold(seeds) -> Counter:
    return Counter(map(outcome, seeds))


def test_some_mutants_are_read_rightly_or_refused():
    count = hold(range(120))
    assert min(count["refused"], count["compared"]) > 20, count


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 10_000, 1000))
def test_ten_thousand_mutants_are_read_rightly_or_refused(start):
    count = hold(range(start, start + 1000))
    assert min(count["refused"], count["compared"]) > 200, count

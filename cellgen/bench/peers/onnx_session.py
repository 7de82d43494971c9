"""ONNX Runtime: one LSTM or GRU operator in a session bound to its arrays; forward only."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from cellgen.bench.gates import stack
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Array, Arrays, Mode, Problem

ORDERS = {"lstm": "iofg", "gru": "zrn", "gru_reset_before": "zrn"}
OPSET, IR_VERSION = 14, 8
"""Old enough for every ONNX Runtime of the last years; the operators have not changed since."""


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Build a model with the weights as constants, as for deployment."""
    arrays = problem.draw()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        _model(problem.cell, arrays), options, providers=["CPUExecutionProvider"]
    )
    inputs = {"X": arrays["x"], "h_0": arrays["h_prev"][None]}
    if problem.cell == "lstm":
        inputs["c_0"] = arrays["c_prev"][None]

    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    T, B, _ = arrays["x"].shape
    shape = [T, 1, B, arrays["h_prev"].shape[1]]
    output = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cpu")
    binding.bind_ortvalue_output("Y", output)

    def run() -> object:
        session.run_with_iobinding(binding)
        return output

    return Prepared(run, lambda _: {"h": output.numpy()[:, 0]})


def _weights(cell: str, arrays: Arrays) -> dict[str, Array]:
    """W (1, gates H, I), R (1, gates H, H), B (1, 2 gates H) of the operators."""
    order, b = ORDERS[cell], stack(arrays, "b", ORDERS[cell])
    recurrent = np.zeros_like(b)
    if cell == "gru":
        recurrent[-len(arrays["c_n"]) :] = arrays["c_n"]
    return {
        "W": np.ascontiguousarray(stack(arrays, "w", order).T[None]),
        "R": np.ascontiguousarray(stack(arrays, "u", order).T[None]),
        "B": np.concatenate([b, recurrent])[None],
    }


def _model(cell: str, arrays: Arrays) -> bytes:
    T, B, I = arrays["x"].shape
    H = arrays["h_prev"].shape[1]
    states = ["h_0", "c_0"] if cell == "lstm" else ["h_0"]
    attributes = {"hidden_size": H}
    if cell != "lstm":
        attributes["linear_before_reset"] = int(cell == "gru")
    node = helper.make_node(
        "LSTM" if cell == "lstm" else "GRU",
        ["X", "W", "R", "B", "", *states],
        ["Y"],
        **attributes,
    )
    inputs = [("X", [T, B, I]), *((state, [1, B, H]) for state in states)]
    graph = helper.make_graph(
        [node],
        cell,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [T, 1, B, H])],
        [numpy_helper.from_array(a, n) for n, a in _weights(cell, arrays).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    serialized: bytes = model.SerializeToString()
    return serialized

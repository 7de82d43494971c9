"""Write a cell over time as a model of ONNX.

Input: a cell and its weights. Output: a ``ModelProto`` that onnxruntime runs: steps and rows are
free, (T, B, ...), all other axes are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.language.cell import Cell, Definition, definition_of
from cellgen.language.names import Names
from cellgen.language.value import Role, Value
from cellgen.onnx import scan, standard
from cellgen.onnx.graph import IR_VERSION, OPSET, Array, GraphWriter, typed
from cellgen.onnx.recognise import Standard, recognised
from cellgen.onnx.request import (
    DIRECTIONS,
    ModelRequest,
    dtype_of,
    outputs_of,
    parameters_of,
    sizes_of,
    weights_of,
)

Weights = Mapping[str, Array]
FORMS = ("auto", "standard", "scan")


def export(
    cell: type[Cell],
    weights: Weights | Sequence[Weights] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    dtype: object = "float32",
    direction: str = "forward",
    initial: bool = True,
    lengths: bool = False,
    outputs: Sequence[str] | None = None,
    form: str = "auto",
) -> ModelProto:
    """Return a model of ONNX that runs a cell over time.

    ``weights`` are arrays by the names of the cell's weights, biases and scalars (which have
    defaults); two such dicts where ``direction`` is ``"bidirectional"``, of the direction forward
    and of the one in reverse. Without them they are inputs of the model, and ``dims`` gives the
    dimensions. The model takes inputs (T, B, ...) and statics (B, ...) by their names, with
    ``lengths`` also ``sequence_lens`` (B) int32, and initial states (B, ...), which start as the
    cell says where ``initial`` is False. It gives ``outputs`` over time (T, B, ...) and final
    states ``<state>_last`` (B, ...). With two directions states and results have an axis for them,
    as those of ONNX's LSTM: (T, 2, B, ...) and (2, B, ...). Outputs beyond a length are zeros.

    Where the cell is exactly ONNX's LSTM, GRU or RNN, weights are given, and no output is named but
    the hidden state, nor formed behind the states, the model holds that operator; else, and in
    float64, which onnxruntime runs none of them in, a ``Scan`` over standard operators.
    ``form="standard"`` asks for the former, ``form="scan"`` for the latter.

    Raises:
        ArgumentError: a weight that is missing, unknown, or of another shape; a dimension that
            nothing tells.
        UsageError: an output that the cell does not have, a function that ONNX cannot express, a
            standard operator that the cell is not.
    """
    definition = definition_of(cell)
    label = f"export of {definition.name}"
    if not definition.with_role(Role.INPUT):
        raise UsageError(f"{label}: it has no input, so that nothing tells the number of steps")
    accept.choice(label, "direction", direction, DIRECTIONS)
    accept.choice(label, "form", form, FORMS)
    kind = dtype_of(label, dtype)
    arrays = weights_of(definition, weights, len(DIRECTIONS[direction]), kind)
    request = ModelRequest(
        definition,
        arrays,
        sizes_of(definition, arrays, dims),
        kind,
        direction,
        accept.flag(label, "initial", initial),
        _lengths(definition, lengths),
        outputs_of(definition, outputs),
    )
    model = _model(request, _operator(request, form))
    onnx.checker.check_model(model, full_check=True)
    return model


def _lengths(definition: Definition, lengths: object) -> bool:
    """Whether lengths are asked for. Raises UsageError where a value has the name of that input."""
    label = f"export of {definition.name}"
    wanted = accept.flag(label, "lengths", lengths)
    if wanted and "sequence_lens" in {str(value.name) for value in definition.declared}:
        raise UsageError(
            f"{label}: it has a value named sequence_lens, as the input that lengths=True adds; "
            f"rename the value"
        )
    return wanted


def _operator(request: ModelRequest, form: str) -> Standard | None:
    """The operator of ONNX that the model is to hold, or None for a ``Scan``."""
    if form == "scan" or (form == "auto" and request.dtype != "float32"):
        return None
    operator = recognised(request.definition) if request.has_weights else None
    if operator is not None and request.wanted <= {standard.hidden(request, operator)}:
        return operator
    if form == "standard":
        why = "its weights are inputs of the model; pass weights"
        if request.has_weights or not parameters_of(request.definition):
            why = "it is none of ONNX's LSTM, GRU and RNN"
        if operator is not None:
            hidden = standard.hidden(request, operator)
            why = f"ONNX's {operator.op} gives {hidden} alone over time, no "
            why += ", ".join(sorted(str(v) for v in request.wanted - {hidden}))
        raise UsageError(
            f"{request.label}: form is 'standard', but {why}; leave form out for a Scan"
        )
    return None


def _model(request: ModelRequest, operator: Standard | None) -> ModelProto:
    definition = request.definition
    results = [*definition.outputs, *map(definition.next_state, definition.states)]
    taken = [str(v.name) for v in (*definition.declared, *results)]
    taken += [f"{name}_reverse" for name in taken] + [f"{v.name}_last" for v in results]
    writer = GraphWriter(request.dtype, Names([*taken, "sequence_lens"]))
    if operator is not None:
        takes, gives = _standard_graph(request, operator, writer)
    else:
        takes, gives = _scan_graph(request, writer)
    graph = helper.make_graph(
        writer.nodes,
        definition.name,
        takes,
        gives,
        writer.initializers,
        doc_string=" ".join(definition.doc.split()),
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="cellgen",
    )


def _standard_graph(
    request: ModelRequest, operator: Standard, writer: GraphWriter
) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
    """Write an operator of ONNX; what the graph takes and gives."""
    definition, states = request.definition, {}
    steps = str(definition.with_role(Role.INPUT)[0].name)
    for state in definition.states:
        if request.initial and request.is_bidirectional:
            states[state] = str(state.name)
        elif request.initial or definition.initial_of(state):
            each = [_initial(request, writer, state, n, steps) for n in range(len(request.weights))]
            wide = [writer.node("Unsqueeze", [name, writer.whole(0)]) for name in each]
            states[state] = wide[0] if len(wide) == 1 else writer.node("Concat", wide, axis=0)
    return inputs_of_graph(request), standard.write(request, operator, writer, states)


def _scan_graph(
    request: ModelRequest, writer: GraphWriter
) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
    """Write each direction as a ``Scan``, and join them; what the graph takes and gives."""
    definition = request.definition
    takes = inputs_of_graph(request)
    steps = str(definition.with_role(Role.INPUT)[0].name)
    valid = scan.valid_steps(writer, steps) if request.lengths else ""
    spreads = []
    for number, arrays in enumerate(request.weights):
        for value, name in scan.parameter_names(request, number).items():
            if arrays:
                writer.parameter(arrays[str(value.name)], name)
            else:
                takes.append(typed(name, request.dtype, request.lengths_of(value)))
        states = {s: _initial(request, writer, s, number, steps) for s in definition.states}
        spreads.append(scan.scanned(request, writer, number, states, valid))
    gives = []
    two = [2] if request.is_bidirectional else []
    for value in spreads[0].outputs:
        _joined(writer, [s.outputs[value] for s in spreads], 1, str(value.name))
        rows = request.lengths_of(value)
        gives.append(typed(str(value.name), request.dtype, ["T", *two, *rows]))
    for state in definition.states:
        name = f"{definition.next_state(state).name}_last"
        _joined(writer, [s.finals[state] for s in spreads], 0, name)
        gives.append(typed(name, request.dtype, [*two, *request.lengths_of(state)]))
    return takes, gives


def inputs_of_graph(request: ModelRequest) -> list[ValueInfoProto]:
    """What a model takes beside weights: sequences, statics, lengths, initial states."""
    definition = request.definition
    takes = [
        typed(str(v.name), request.dtype, ["T", *request.lengths_of(v)])
        for v in definition.with_role(Role.INPUT)
    ]
    takes += [
        typed(str(v.name), request.dtype, request.lengths_of(v))
        for v in definition.with_role(Role.STATIC)
    ]
    if request.lengths:
        takes.append(typed("sequence_lens", "int32", ["B"]))
    if request.initial:
        two = [2] if request.is_bidirectional else []
        takes += [
            typed(str(s.name), request.dtype, [*two, *request.lengths_of(s)])
            for s in definition.states
        ]
    return takes


def _initial(
    request: ModelRequest, writer: GraphWriter, state: Value, number: int, steps: str
) -> str:
    """The name of a state where a direction starts."""
    if request.initial and not request.is_bidirectional:
        return str(state.name)
    if request.initial:
        place = writer.constant(np.asarray(number), "direction")
        return writer.node("Gather", [str(state.name), place], f"{state.name}_start", axis=0)
    rows = writer.node("Slice", [writer.node("Shape", [steps]), writer.whole(1), writer.whole(2)])
    units = [n for n in request.lengths_of(state) if isinstance(n, int)]
    shape = writer.node("Concat", [rows, writer.whole(*units)], "start_shape", axis=0)
    start = writer.number(request.definition.initial_of(state))
    return writer.node("Expand", [start, shape], f"{state.name}_start")


def _joined(writer: GraphWriter, sources: Sequence[str], axis: int, name: str) -> None:
    """Give the one direction its name, or join two along an axis of their own."""
    if len(sources) == 1:
        writer.result(sources[0], name)
        return
    wide = [writer.node("Unsqueeze", [source, writer.whole(axis)]) for source in sources]
    writer.result(writer.node("Concat", wide, axis=axis), name)

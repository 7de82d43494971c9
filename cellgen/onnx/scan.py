"""A cell over time as a ``Scan`` of ONNX over standard operators.

Input: ``ModelRequest``. Output: nodes in the graph of a model, whose results are outputs over time
(T, B, ...) and final states (B, ...); with two directions they have an axis for them as ONNX's own
operators have, (T, 2, B, ...) and (2, B, ...). The body sees the weights of the graph around it.
Steps beyond a row's length keep its states and give zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, helper

from cellgen.language.value import Role, Value
from cellgen.onnx.graph import GraphWriter, typed
from cellgen.onnx.request import ModelRequest, parameters_of
from cellgen.onnx.spelling import Speller
from cellgen.program.derive import forward

STEP = "_t"
"""What the names of values of one step end in: those of the graph are of whole sequences."""


@dataclass(frozen=True)
class Spread:
    """What one direction of a cell gives, by the names in the graph."""

    outputs: Mapping[Value, str]
    finals: Mapping[Value, str]


def scanned(
    request: ModelRequest, writer: GraphWriter, number: int, states: Mapping[Value, str], valid: str
) -> Spread:
    """Write one direction: a ``Scan`` from initial states that have names in the graph.

    Inputs and statics are inputs of the graph under their own names, weights under theirs, with
    ``_reverse`` for the second of two directions; ``valid`` (T, B) names the valid steps,
    empty where all do.
    """
    definition = request.definition
    inputs = definition.with_role(Role.INPUT)
    outputs = definition.outputs if request.outputs is None else request.outputs
    body = _body(request, writer, parameter_names(request, number))
    backward = int(request.reversed_in[number])
    counted = len(inputs) + request.lengths
    names = [f"{definition.next_state(state).name}_end" for state in definition.states]
    results = writer.several(
        "Scan",
        [*states.values(), *(str(v.name) for v in inputs), *([valid] if valid else [])],
        [*names, *(f"{v.name}_steps" for v in outputs)],
        f"{definition.name}{'_reverse' if number else ''}",
        body=body,
        num_scan_inputs=counted,
        scan_input_directions=[backward] * counted,
        scan_output_directions=[backward] * len(outputs),
    )
    finals = dict(zip(definition.states, results, strict=False))
    return Spread(dict(zip(outputs, results[len(finals) :], strict=True)), finals)


def parameter_names(request: ModelRequest, number: int) -> dict[Value, str]:
    """What weights, biases and scalars of a direction are called in the graph.

    Those of the second end in ``_reverse``, once more where a value of the cell has that name.
    """
    suffix = "_reverse" if number else ""
    own = {str(value.name) for value in request.definition.declared}
    while number and not own.isdisjoint(f"{name}{suffix}" for name in own):
        suffix += "_reverse"
    return {v: f"{v.name}{suffix}" for v in parameters_of(request.definition)}


def _body(
    request: ModelRequest, around: GraphWriter, parameters: Mapping[Value, str]
) -> GraphProto:
    """One step: states, inputs and perhaps whether it is valid, to new states and outputs."""
    definition = request.definition
    following = {state: definition.next_state(state) for state in definition.states}
    outputs = definition.outputs if request.outputs is None else request.outputs
    wanted = tuple(dict.fromkeys((*outputs, *following.values())))
    program = forward(definition.with_outputs(wanted))
    writer = GraphWriter(request.dtype, around.names)
    inputs = definition.with_role(Role.INPUT)
    ports = {v: writer.names.fresh(f"{v.name}{STEP}") for v in (*following, *inputs)}
    statics = {v: str(v.name) for v in definition.with_role(Role.STATIC)}
    known = {**parameters, **statics, **ports}
    speller = Speller(definition.name, writer, request.sizes, known)
    for statement in program.statements:
        speller.write(statement, STEP)
    new = {state: speller.known[value] for state, value in following.items()}
    spelled = {value: speller.known[value] for value in outputs}
    takes = [typed(name, request.dtype, request.lengths_of(v)) for v, name in ports.items()]
    if request.lengths:
        valid = writer.names.fresh(f"valid{STEP}")
        takes.append(typed(valid, "bool", ["B"]))
        new = {v: _chosen(writer, valid, v, name, ports[v]) for v, name in new.items()}
        zero = writer.number(0.0)
        spelled = {v: _chosen(writer, valid, v, name, zero) for v, name in spelled.items()}
    gives = [_own(writer, name, f"{following[v].name}_next") for v, name in new.items()]
    gives += [_own(writer, name, f"{v.name}_out") for v, name in spelled.items()]
    shapes = [request.lengths_of(v) for v in (*new, *spelled)]
    results = [typed(n, request.dtype, shape) for n, shape in zip(gives, shapes, strict=True)]
    name = f"{definition.name}_step"
    return helper.make_graph(writer.nodes, name, takes, results, writer.initializers)


def _chosen(writer: GraphWriter, valid: str, value: Value, new: str, old: str) -> str:
    """The new value of rows whose step is valid, the old one of the others."""
    behind = len(value.shape) - 1
    wide = writer.node("Reshape", [valid, writer.whole(0, *[1] * behind)], "valid_rows")
    return writer.node("Where", [wide, new, old], f"{value.name}_chosen")


def _own(writer: GraphWriter, source: str, name: str) -> str:
    """A result of a body is a value of its own, even where it is an input, or another result."""
    return writer.several("Identity", [source], [name], "")[0]


def valid_steps(writer: GraphWriter, steps: str) -> str:
    """Write the steps before each row's length, (T, B), from a sequence (T, B, ...)."""
    write = writer.node
    shape = write("Shape", [steps])
    count = write("Gather", [shape, writer.constant(np.asarray(0), "first")], axis=0)
    number = [writer.constant(np.asarray(n), "bound") for n in (0, 1)]
    every = write("Range", [number[0], count, number[1]], "steps")
    places = write("Unsqueeze", [every, writer.whole(1)])
    lengths = write("Cast", ["sequence_lens"], "lengths", to=7)
    return write("Less", [places, lengths], "valid")

"""A cell over time as ONNX's own LSTM, GRU or RNN.

Input: ``ModelRequest`` and the ``Standard`` that the cell is. Output: one node in the graph of a
model, with its weights in ONNX's layout: W (D, gates H, I), R (D, gates H, H), B (D, 2 gates H) and
P (D, 3 H), D being the number of directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ValueInfoProto
from sympy import Expr, Integer

from cellgen.language.ops import broadcast
from cellgen.language.value import Role, Value
from cellgen.onnx.graph import Array, Attribute, GraphWriter, typed
from cellgen.onnx.recognise import Gate, GateProduct, Standard
from cellgen.onnx.request import ModelRequest
from cellgen.program.interpret import axis_size, interpret
from cellgen.program.ssa import Program, Statement

OUTPUTS = ("Y", "Y_h", "Y_c")


def hidden(request: ModelRequest, standard: Standard) -> Value:
    """The output over time that the operator gives."""
    return request.definition.next_state(standard.states[0])


def write(
    request: ModelRequest, standard: Standard, writer: GraphWriter, states: Mapping[Value, str]
) -> list[ValueInfoProto]:
    """Write the node; ``states`` (D, B, H) are initial ones by name, empty where they are zeros.

    Returns what the graph gives.
    """
    definition = request.definition
    arrays = [_Arrays(request, standard, weights).arrays for weights in request.weights]
    names = dict.fromkeys(("W", "R", "B", "P"), "")
    for name in arrays[0]:
        names[name] = writer.names.fresh(name)
        writer.parameter(np.stack([one[name] for one in arrays]).astype(request.dtype), names[name])
    x = str(definition.with_role(Role.INPUT)[0].name)
    lengths = "sequence_lens" if request.lengths else ""
    initial = [states.get(state, "") for state in standard.states]
    operands = [x, names["W"], names["R"], names["B"], lengths, *initial, names["P"]]
    while not operands[-1]:
        operands.pop()
    wanted = request.outputs != ()
    kept = ["Y" if wanted else "", *OUTPUTS[1 : 1 + len(standard.states)]]
    own = _attributes(request, standard)
    results = writer.several(standard.op, operands, kept, definition.name, **own)
    for place, name in enumerate(initial, start=1):
        if request.lengths and name:
            results[place] = _kept(writer, results[place], name)
    return _results(request, standard, writer, results)


def _kept(writer: GraphWriter, final: str, initial: str) -> str:
    """The final state of rows with steps, the initial one of those without, (D, B, H)."""
    zero = writer.constant(np.asarray(0, np.int32), "none")
    some = writer.node("Greater", ["sequence_lens", zero], "has_steps")
    return writer.node("Where", [writer.node("Unsqueeze", [some, writer.whole(1)]), final, initial])


def _results(
    request: ModelRequest, standard: Standard, writer: GraphWriter, results: Sequence[str]
) -> list[ValueInfoProto]:
    """Name what the node gives as a ``Scan`` would, one direction without an axis of its own."""
    definition, gives = request.definition, []
    two = [2] if request.is_bidirectional else []
    every = [(results[0], str(hidden(request, standard).name), 1)] if results[0] else []
    for state, result in zip(standard.states, results[1:], strict=True):
        every.append((result, f"{definition.next_state(state).name}_last", 0))
    for source, name, axis in every:
        if not request.is_bidirectional:
            source = writer.node("Squeeze", [source, writer.whole(axis)])
        writer.result(source, name)
        steps = ["T"] if axis else []
        rows = request.lengths_of(standard.states[0])
        gives.append(typed(name, request.dtype, [*steps, *two, *rows]))
    return gives


def _attributes(request: ModelRequest, standard: Standard) -> Mapping[str, Attribute]:
    directions = len(request.weights)
    names = [applied.row.name for applied in standard.activations]
    alphas = [n for applied in standard.activations for n in applied.numbers[0]]
    betas = [n for applied in standard.activations for n in applied.numbers[1]]
    attributes: dict[str, Attribute] = {
        "hidden_size": axis_size(standard.states[0].shape[1], request.sizes),
        "direction": request.direction,
        "activations": names * directions,
        **standard.attributes,
    }
    if alphas:
        attributes["activation_alpha"] = alphas * directions
    if betas:
        attributes["activation_beta"] = betas * directions
    return attributes


class _Arrays:
    """The operator's arrays of one direction, of the values of a cell's parameters."""

    def __init__(
        self, request: ModelRequest, standard: Standard, weights: Mapping[str, Array]
    ) -> None:
        self.request = request
        self.standard = standard
        self.weights = weights
        self.units = standard.states[0].shape[1:]

    @property
    def arrays(self) -> dict[str, Array]:
        """W, R and, where the cell has some, B and P, without the axis of directions."""
        gates = self.standard.gates
        arrays = {
            "W": np.concatenate([self._columns(gate.of_input).T for gate in gates]),
            "R": np.concatenate([self._columns(gate.of_state).T for gate in gates]),
        }
        if any(gate.bias or gate.recurrent_bias for gate in gates):
            own = [self._sum(gate.bias) for gate in gates]
            arrays["B"] = np.concatenate(
                [*own, *(self._sum(gate.recurrent_bias) for gate in gates)]
            )
        if any(gate.peephole is not None for gate in gates):
            arrays["P"] = np.concatenate([self._peephole(gate) for gate in gates[:3]])
        return arrays

    def _columns(self, product: GateProduct) -> Array:
        weight = self._value(product.weight)
        if product.columns is None:
            return weight
        start, size = (axis_size(n, self.request.sizes) for n in product.columns)
        return weight[:, start : start + size]

    def _peephole(self, gate: Gate) -> Array:
        return self._sum(() if gate.peephole is None else (gate.peephole,))

    def _sum(self, terms: Sequence[Expr]) -> Array:
        """A sum (H) of terms of parameters."""
        total = sum(terms, Integer(0))
        values = sorted(total.atoms(Value), key=str)
        shape = broadcast((self.units, *(value.shape for value in values)))  # (1, H) is a row
        target = Value("total", shape, Role.TEMPORARY)
        program = Program("export", "sum", tuple(values), (Statement(target, total),), (target,))
        results = interpret(
            program, {str(v.name): self._value(v) for v in values}, self.request.sizes
        )
        return results["total"].reshape(-1)

    def _value(self, value: Value) -> Array:
        """A parameter, or what is computed of parameters."""
        if str(value.name) in self.weights:
            return self.weights[str(value.name)]
        part = self.standard.program.restrict("weights", [value], ())
        return interpret(part, self.weights, self.request.sizes)[str(value.name)]

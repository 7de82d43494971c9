"""Read the body of a ``Scan``, node by node, as the declaration of a cell and its weights.

Input: a ``Scan`` node. Output: ``Body``. The first axis of every state and sequence is that of
rows. Constants are weights, constants without axes of the graph around are scalars; what else the
body reads from there has rows and is a static.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
from sympy import Integer

from cellgen.errors import UsageError
from cellgen.language.value import B, Role, Shape
from cellgen.onnx.across import ACROSS
from cellgen.onnx.bodies import Body, Port
from cellgen.onnx.calls import NodeCall
from cellgen.onnx.folding import BodyConstants
from cellgen.onnx.forms import DOMAINS, attributes, called, short
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import Axes, ModelGraph, require_opset, shape_of_type
from cellgen.onnx.rows import ROWS
from cellgen.onnx.scan_form import goes_back, require_counts
from cellgen.onnx.source import declared
from cellgen.onnx.terms import LONGEST, BodyTerm, StepText, named_as


def read_body(graph: ModelGraph, node: NodeProto, name: str) -> Body:
    """Read a ``Scan``. Raises UsageError, which has the node's ``name``."""
    require_opset(graph, node)
    return _Reader(graph, node, f"{graph.label}: {name}").body()


def _starts(
    graph: ModelGraph, node: NodeProto, states: Sequence[Port]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Initial states that stand in the model, and names of those that its inputs make."""
    starts: dict[str, Array] = {}
    from_inputs: dict[str, str] = {}
    for port, around in zip(states, node.input, strict=False):
        find = graph.constant if port.single else partial(graph.start, rows=0)
        array = find(around, node)
        if array is None:
            from_inputs[f"{port.name}_prev"] = around
        else:
            starts[f"{port.name}_prev"] = port.widened(array, 0)
    return starts, from_inputs


def _unknown(label: str, node: NodeProto) -> str:
    """What is wrong of a node whose operator has no row, and which rows are near."""
    near = difflib.get_close_matches(node.op_type, ROWS, n=3, cutoff=0.4)
    known = f"near it are {', '.join(near)}" if near else f"it has {', '.join(sorted(ROWS))}"
    domain = "" if node.domain in DOMAINS else f" of the domain {node.domain}"
    return (
        f"{label}: {called(node)}: the language has no {node.op_type}{domain}; {known}; "
        f"compose it of those before the model is saved"
    )


class _Reader:
    """Goes through the nodes of a body, in order."""

    def __init__(self, graph: ModelGraph, node: NodeProto, label: str) -> None:
        self.graph = graph
        self.node = node
        self.label = label
        self.options = attributes(graph.label, node, graph.opset)
        self.proto = self.options["body"]
        count = int(self.options["num_scan_inputs"])
        require_counts(self.label, node, self.options)
        self.states = self.proto.input[: len(self.proto.input) - count]
        self.sequences = self.proto.input[len(self.states) :]
        self.dtype = _dtype_of(self.proto)
        self.step = StepText(self.dtype)
        self.terms: dict[str, BodyTerm] = {}
        self.statics: dict[str, str] = {}
        self.constants = BodyConstants(graph, node, self.proto, label)
        self.targets: dict[str, str] = {}
        self.single = False

    def body(self) -> Body:
        """Read all of it."""
        self.single = self._is_single()
        states = self._declared_states()
        inputs = self._declared_inputs()
        outputs = self._named_outputs(states)
        for node in self.proto.node:
            self._add(node)
        self._closed(states)
        outputs_of_body = self._outputs(outputs)
        names = dict.fromkeys(
            (*(port.name for port in outputs_of_body), *(port.name for port in states))
        )
        lines = [*self._declarations(), "", *self.step.lines, ""]
        lines.append(f"outputs = {', '.join(names)}{',' * (len(names) == 1)}")
        starts, from_inputs = _starts(self.graph, self.node, states)
        reverse = goes_back(self.label, self.options)
        return Body(
            self.label, tuple(lines), self.step.weights, reverse, self.dtype, tuple(states),
            tuple(inputs), tuple(outputs_of_body), self.statics, starts, from_inputs,
        )  # fmt: skip

    def _declarations(self) -> list[str]:
        """Lines of declarations: what moves, then what is the same at every step."""
        fixed = ("Weight", "Bias", "Scalar")
        kinds = self.step.declared
        rest = {n: k for n, k in kinds.items() if k.startswith(fixed)}
        return [*declared({n: k for n, k in kinds.items() if n not in rest}), *declared(rest)]

    # --- what it takes and gives ----------------------------------------------------------------

    def _axes(self, kind: TypeProto, name: str, around: str, dropped: int | None) -> Axes:
        """Axes of a state or a sequence's step: of the body's type, or as they are around it."""
        shape = shape_of_type(kind)
        if shape is None:
            shape = self.graph.shapes.get(around)
            if shape is not None and dropped is not None:
                shape = tuple(n for k, n in enumerate(shape) if k != dropped % len(shape))
        if shape is None:
            raise UsageError(
                f"{self.label}: nothing says how many axes {name!r} has; save the model with the "
                f"types of its body's inputs"
            )
        return shape

    def _is_single(self) -> bool:
        """Whether nothing has an axis of rows: every axis but that of steps has a length."""
        every = [self._axes(v.type, v.name, around, None) for v, around in self._started]
        return all(len(axes) < 2 and all(isinstance(n, int) for n in axes) for axes in every)

    def _shape(self, name: str, axes: Axes) -> tuple[Shape, bool]:
        """The shape of a value with rows, and whether it has no other axis."""
        if self.single and all(isinstance(n, int) for n in axes):
            return (B, *(Integer(n) for n in axes or (1,))), not axes
        if not axes:
            raise UsageError(f"{self.label}: {name!r} has no axes; expected one of rows, the first")
        if any(not isinstance(n, int) for n in axes[1:]):
            raise UsageError(
                f"{self.label}: {name!r} has axes {axes}; expected lengths for all but the first"
            )
        if len(axes) == 1 and isinstance(axes[0], int):
            raise UsageError(
                f"{self.label}: {name!r} has one axis of length {axes[0]}; expected one of rows, "
                f"and one of units: (B, {axes[0]})"
            )
        return (B, *(Integer(n) for n in axes[1:] or (1,))), len(axes) == 1

    @property
    def _started(self) -> list[tuple[ValueInfoProto, str]]:
        """States of the body, and the names of where they start."""
        return list(zip(self.states, self.node.input, strict=False))

    def _declared_states(self) -> list[Port]:
        ports = []
        for value, around in self._started:
            axes = self._axes(value.type, value.name, around, None)
            shape, flat = self._shape(value.name, axes)
            plain = named_as(value.name)
            name = self.step.names.like(plain.removesuffix("_prev") or plain)
            self.step.names.fresh(f"{name}_prev")
            kind = f"State({', '.join(map(str, shape[1:]))})"
            own = self.step.declare(f"{name}_prev", kind, shape, Role.STATE)
            self.terms[value.name] = BodyTerm(value.name, f"{name}_prev", own, flat=flat)
            ports.append(Port(name, 0, flat, self.single))
        return ports

    def _declared_inputs(self) -> list[Port]:
        ports = []
        axes_of_steps = self.options.get("scan_input_axes") or [0] * len(self.sequences)
        names = list(self.node.input)[len(self.states) :]
        for value, around, axis in zip(self.sequences, names, axes_of_steps, strict=True):
            if not self.constants.uses[value.name]:
                ports.append(Port("", int(axis)))
                continue
            axes = self._axes(value.type, value.name, around, int(axis))
            _require_axis(f"{self.label}: scan_input_axes", value.name, int(axis), len(axes) + 1)
            shape, flat = self._shape(value.name, axes)
            name = self.step.names.like(named_as(value.name))
            fixed = value.type.tensor_type.elem_type == TensorProto.BOOL
            lengths = ", ".join(map(str, shape[1:]))
            kind = f"Input({lengths}{', gradient=False' if fixed else ''})"
            own = self.step.declare(name, kind, shape, Role.INPUT)
            self.terms[value.name] = BodyTerm(value.name, name, own, flat=flat)
            ports.append(Port(name, int(axis), flat, self.single))
        if not any(port.name for port in ports):
            raise UsageError(f"{self.label}: its body reads none of its sequences")
        return ports

    def _named_outputs(self, states: Sequence[Port]) -> list[tuple[str, int]]:
        """Choose names of new states before they are formed; outputs by what they are."""
        for port, value in zip(states, self.proto.output, strict=False):
            source = self.constants.source(value.name)
            if source in self.constants.makers and source not in self.targets:
                self.targets[source] = port.name
        outputs = list(self.proto.output)[len(states) :]
        axes = self.options.get("scan_output_axes") or [0] * len(outputs)
        for value in outputs:
            source = self.constants.source(value.name)
            if source in self.constants.makers and source not in self.targets:
                self.targets[source] = self.step.names.like(named_as(source))
        return [(value.name, int(axis)) for value, axis in zip(outputs, axes, strict=True)]

    def _closed(self, states: Sequence[Port]) -> None:
        """Write new states that are no results of nodes of their own."""
        for port, value in zip(states, self.proto.output, strict=False):
            source = self.constants.source(value.name)
            if self.targets.get(source) != port.name:
                term = self._term(source, self.node)
                self.step.lines.append(f"{port.name} = {self.step.number(term)}")

    def _outputs(self, outputs: Sequence[tuple[str, int]]) -> list[Port]:
        ports: list[Port] = []
        for name, axis in outputs:
            source = self.constants.source(name)
            term = self._term(source, self.node)
            if len(term.shape) > 1 and term.shape[0] != B:
                raise UsageError(f"{self.label}: its result {short(name)!r} has no axis of rows")
            own = self.targets.get(source, "")
            if not own:
                own = self.step.write(BodyTerm(name, self.step.number(term), term.meaning)).text
                self.targets[source] = own
            port = Port(own, axis, term.flat, self.single)
            rank = len(term.shape) + 1 - term.flat - self.single
            _require_axis(f"{self.label}: scan_output_axes", name, axis, rank)
            ports.append(port)
        return ports

    # --- nodes ----------------------------------------------------------------------------------

    def _add(self, node: NodeProto) -> None:
        if node.op_type == "Identity" and node.domain in DOMAINS:
            return
        if not node.output or all(self.constants.uses[name] == 0 for name in node.output):
            return
        if self.constants.fold(node):
            return
        self.constants.note_integers(node)
        row = ROWS.get(node.op_type) if node.domain in DOMAINS else None
        if self.single and node.op_type in ACROSS:
            raise UsageError(
                f"{self.label}: {called(node)}: its states have no axis of rows; expected (B, ...)"
            )
        if row is None:
            raise UsageError(_unknown(self.label, node))
        operands = [self._term(self.constants.source(n), node) if n else None for n in node.input]
        options = attributes(self.label, node, self.graph.opset)
        try:
            formed = row(NodeCall(self.step, node, operands, options, self.graph.opset))
            for term, name in zip(formed, node.output, strict=False):
                self._keep(term, name)
        except UsageError as error:
            said = Exception.__str__(error)
            raise UsageError(f"{self.label}: {called(node)}: {said}") from None

    def _keep(self, term: BodyTerm, name: str) -> None:
        """Write an equation for a result, unless it is short and read once."""
        target = self.targets.get(name, "")
        if target:
            term = self.step.write(term, target)
        elif self.constants.uses[name] > 1 or len(term.text) > LONGEST:
            term = self.step.write(term)
        self.terms[name] = term

    # --- values ---------------------------------------------------------------------------------

    def _term(self, name: str, reader: NodeProto) -> BodyTerm:
        if name not in self.terms:
            self.terms[name] = self._read(name, reader)
        return self.terms[name]

    def _read(self, name: str, reader: NodeProto) -> BodyTerm:
        """A value that no node of the body makes: a constant, or what is around."""
        array = self.constants.array(name)
        if array is None and name in self.constants.makers:
            raise UsageError(
                f"{self.label}: {called(reader)} reads {short(name)!r} before it is made"
            )
        is_own = name in self.constants.own or name in self.constants.makers
        if array is not None and not array.shape and not is_own and array.dtype.kind == "f":
            return self.step.scalar(name, array)
        if array is not None:
            return BodyTerm(name, array=array)
        return self._static(name, reader)

    def _static(self, name: str, reader: NodeProto) -> BodyTerm:
        """A value of the graph around that depends on its inputs, and has rows."""
        axes = self.graph.shapes.get(name)
        if axes is None or len(axes) < 2 or any(not isinstance(n, int) for n in axes[1:]):
            raise UsageError(
                f"{self.label}: {called(reader)} reads {short(name)!r}, which depends on the "
                f"model's inputs, and its axes {axes} are not (rows, lengths ...)"
            )
        rows = sorted({str(self._axes(v.type, v.name, n, None)[0]) for v, n in self._started})
        if isinstance(axes[0], int) and str(axes[0]) not in rows:
            raise UsageError(
                f"{self.label}: {called(reader)} reads the weight {short(name)!r}, {axes}, which "
                f"depends on the model's inputs; expected an initializer, or rows {', '.join(rows)}"
            )
        shape, flat = self._shape(name, axes)
        own = self.step.names.like(named_as(name))
        kind = f"Static({', '.join(map(str, shape[1:]))})"
        value = self.step.declare(own, kind, shape, Role.STATIC)
        self.statics[name] = own
        return BodyTerm(name, own, value, flat=flat)


def _dtype_of(body: GraphProto) -> str:
    """float64 where an input of a body has it."""
    kinds = [value.type.tensor_type.elem_type for value in body.input]
    return "float64" if TensorProto.DOUBLE in kinds else "float32"


def _require_axis(option: str, name: str, axis: int, rank: int) -> None:
    """Refuse an axis of steps that no array of so many axes has. Raises UsageError."""
    if not -rank <= axis < rank:
        raise UsageError(
            f"{option} is {axis} for {short(name)!r}, which has {rank} axes with that of steps; "
            f"expected {-rank} to {rank - 1}"
        )

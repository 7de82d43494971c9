"""A ``Loop`` over one sequence as the ``Scan`` that it is.

Input: a ``Loop`` as exporters write one for a layer over time: it counts its steps, takes the entry
of that number of sequences around it, and ends with them. Output: a ``Scan`` of the same results,
without what counts and what stays the same. That it counts and ends so is tried: at two short
lengths, and at one beyond which no sequence goes.
Not supported: loops that end by what they compute, entries in any other order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from cellgen.errors import UsageError
from cellgen.onnx.folding import needed
from cellgen.onnx.forms import DOMAINS, attributes, called, short
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import FREE, LEAST, ModelGraph

COUNTED = (TensorProto.INT32, TensorProto.INT64)
"""Types of what counts steps."""
BY_ENTRY = frozenset((
    "Add", "And", "Cast", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
    "Max", "Min", "Mul", "Neg", "Not", "Or", "Sub",
))  # fmt: skip
"""What counts and compares: of several numbers the same as of each."""
LONGEST = 10**6
"""Steps of the longest sequence: a limit from there on ends none."""
DENSE = 1024
"""Steps up to which each is tried; after them powers of two and those beside them."""
_TRUE = np.asarray(True)


class LoopError(UsageError):
    """A loop that does not go over sequences: none of a cell."""


def scan_of(graph: ModelGraph, node: NodeProto) -> NodeProto:
    """The ``Scan`` that a ``Loop`` is. Raises LoopError, which names the node."""
    return _Loop(graph, node).scan()


@dataclass(frozen=True)
class _LoopState:
    """A value that a loop carries: in the body, where it starts, and what it becomes."""

    value: ValueInfoProto
    start: str
    result: str
    final: str


class _Loop:
    """One loop, while it is looked at."""

    def __init__(self, graph: ModelGraph, node: NodeProto) -> None:
        self.graph = graph
        self.node = node
        body: GraphProto = attributes(graph.label, node, graph.opset)["body"]
        self.body = body
        if graph.opset < LEAST["Scan"]:
            raise self._none(f"opset {graph.opset}; expected {LEAST['Scan']} or newer")
        count = len(node.input) - 2
        if len(body.input) != count + 2 or not 0 <= count < len(body.output):
            raise self._none("its body takes and gives other numbers of values")
        if len(node.output) != len(body.output) - 1:
            raise self._none("its body gives another number of results")
        self.number, self.condition = (value.name for value in body.input[:2])
        self.carried = [
            _LoopState(value, start, result.name, final)
            for value, start, result, final in zip(
                body.input[2:], node.input[2:], body.output[1:], node.output, strict=False
            )
        ]
        self.results = list(zip(body.output[1 + count :], node.output[count:], strict=True))
        self.aliases = self._aliases()
        self.same = {c.value.name: c.start for c in self.carried if self._is_same(c)}
        self.counters = [
            c for c in self.carried if c.value.name not in self.same and _counts(c.value)
        ]

    def _none(self, why: str) -> LoopError:
        return LoopError(
            f"{self.graph.label}: {called(self.node)} does not go over a sequence: {why}"
        )

    def _aliases(self) -> Mapping[str, str]:
        """Names of what nodes give that change nothing, and what they stand for."""
        aliases: dict[str, str] = {}
        for node in self.body.node:
            if node.op_type == "Identity" and node.domain in DOMAINS and len(node.input) == 1:
                aliases[node.output[0]] = aliases.get(node.input[0], node.input[0])
        return aliases

    def _source(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _is_same(self, carried: _LoopState) -> bool:
        """Whether a value is the same in every step."""
        return bool(self._source(carried.result) == carried.value.name)

    # --- its steps, tried -----------------------------------------------------------------------

    def _sequences(self) -> dict[str, tuple[NodeProto, str]]:
        """Entries of sequences around by their names: the node, and the sequence."""
        inner = self.graph.within(self.body)
        every: dict[str, tuple[NodeProto, str]] = {}
        for node in needed(self.body):
            if node.op_type != "Gather" or node.domain not in DOMAINS or len(node.input) != 2:
                continue
            source = self._source(node.input[0])
            source = self.same.get(source, source)
            axis = attributes(self.graph.label, node, self.graph.opset).get("axis", 0)
            is_around = source not in inner.producers and source not in inner.inputs
            if is_around and axis == 0 and self.graph.constant(source, node) is None:
                every[node.output[0]] = (node, source)
        return every

    def _goes_back(self, sequences: Mapping[str, tuple[NodeProto, str]]) -> bool:
        """Whether it goes from the last entry to the first. Raises LoopError for neither."""
        ways = {self._tried(list(sequences.values()), free) for free in (*FREE, LONGEST)}
        if len(ways) != 1:
            raise self._none("the order of its steps depends on their number")
        return ways.pop()

    def _tried(self, sequences: Sequence[tuple[NodeProto, str]], free: int) -> bool:
        """Go through the steps of sequences of some length: what counts, and when it ends."""
        lengths = {self._length(source, free) for _, source in sequences}
        steps = min(lengths)
        if len(lengths) != 1 or not 0 < steps <= LONGEST:
            raise self._none(f"its sequences have {sorted(lengths)} steps")
        around = (self._around(n, free) if n else None for n in self.node.input[:2])
        limit, begins = around
        if begins is not None and not begins:
            raise self._none("it ends before its sequences do, without a step")
        if limit is not None and limit < steps:
            raise self._none(f"it ends before its sequences do, after {limit} steps of {steps}")
        every = _some_of(steps)
        first = {c.value.name: self._around(c.start, free) for c in self.counters}
        alone = self._computed({self.number: every[:1], self.condition: _TRUE, **first}, free)
        values, after = {}, {}
        for counter in self.counters:
            name, begin = counter.value.name, first[counter.value.name]
            by = alone(counter.result, 1) - begin
            values[name] = (begin + every * by).astype(begin.dtype)
            after[counter.result] = (begin + (every + 1) * by).astype(begin.dtype)
        computed = self._computed({self.number: every, self.condition: _TRUE, **values}, free)
        if any(
            not np.array_equal(computed(name, every.size), array) for name, array in after.items()
        ):
            raise self._none("what it counts with is no count")
        goes_on = computed(self.body.output[0].name, every.size).astype(bool)
        if not goes_on[:-1].all() or (goes_on[-1] and limit != steps):
            raise self._none("it does not end with its sequences")
        orders = [computed(node.input[1], every.size) for node, _ in sequences]
        for order, back in ((every, False), (steps - 1 - every, True)):
            if all(np.array_equal(one, order) for one in orders):
                return back
        raise self._none("it takes entries of its sequences in another order")

    def _computed(self, moving: Mapping[str, Array], free: int) -> Callable[[str, int], Array]:
        """What a body computes of numbers that count, entry by entry: of all steps at once."""
        inner = self.graph.within(self.body)
        inner.known.update({(name, free): array for name, array in moving.items()})
        mixed = self._mixed(set(moving))

        def computed(name: str) -> Array | None:
            for same in self._made_of(name) & self.same.keys():
                array = self.graph.counted(self.same[same], self.node, free)
                if array is not None:
                    inner.known[same, free] = array
            return inner.counted(name, self.node, free)

        def value(name: str, steps: int) -> Array:
            array = None if name in mixed else computed(name)
            if array is None or array.shape not in ((), (1,), (steps,)):
                raise self._none("how many steps it has depends on what it computes")
            return np.broadcast_to(array, (steps,))

        return value

    def _made_of(self, name: str) -> set[str]:
        """What a value of the body is computed of, itself among it."""
        producers = {output: node for node in self.body.node for output in node.output}
        names: set[str] = set()
        stack = [name]
        while stack:
            one = stack.pop()
            if one not in names:
                names.add(one)
                stack += producers[one].input if one in producers else ()
        return names

    def _mixed(self, moving: set[str]) -> set[str]:
        """Values of a body of which one step's may be made of another step's numbers."""
        mixed: set[str] = set()
        for node in self.body.node:
            reads = set(node.input)
            if moving.isdisjoint(reads) and mixed.isdisjoint(reads):
                continue
            is_plain = mixed.isdisjoint(reads) and node.op_type in BY_ENTRY
            (moving if is_plain else mixed).update(node.output)
        return mixed

    def _length(self, source: str, free: int) -> int:
        axes = self.graph.shapes.get(source)
        if not axes:
            raise self._none(f"nothing says how many axes {short(source)!r} has")
        return axes[0] if isinstance(axes[0], int) else free

    def _around(self, name: str, free: int) -> Array:
        """A number around the loop."""
        array = self.graph.counted(name, self.node, free)
        if array is None or array.size != 1:
            raise self._none("how many steps it has depends on what it computes")
        return array.reshape(())

    # --- what it becomes ------------------------------------------------------------------------

    def scan(self) -> NodeProto:
        """The ``Scan``."""
        sequences = self._sequences()
        if not sequences:
            raise self._none("it reads no entries of a sequence around it")
        back = int(self._goes_back(sequences))
        counting = {c.value.name for c in self.counters}
        states = [c for c in self.carried if c.value.name not in {*self.same, *counting}]
        body = GraphProto(name=self.body.name)
        body.input.extend(c.value for c in states)
        body.input.extend(self._entry(name, source) for name, (_, source) in sequences.items())
        body.output.extend(self._outputs(states))
        body.initializer.extend(self.body.initializer)
        body.sparse_initializer.extend(self.body.sparse_initializer)
        same = [helper.make_node("Identity", [start], [name]) for name, start in self.same.items()]
        rest = [node for node in self.body.node if node.output[0] not in sequences]
        body.node.extend([*same, *rest])
        nodes = needed(body)
        body.ClearField("node")
        body.node.extend(nodes)
        read = {name for node in nodes for name in node.input} | {v.name for v in body.output}
        if not read.isdisjoint({self.number, self.condition, *counting}):
            raise self._none("what it computes depends on the number of the step")
        return helper.make_node(
            "Scan",
            [*(c.start for c in states), *(source for _, source in sequences.values())],
            [*(c.final for c in states), *(final for _, final in self.results)],
            name=self.node.name or next((n for n in self.node.output if n), ""),
            body=body,
            num_scan_inputs=len(sequences),
            scan_input_directions=[back] * len(sequences),
        )

    def _entry(self, name: str, source: str) -> ValueInfoProto:
        """What a step takes of a sequence; its axes are those of the sequence."""
        for value in self.body.value_info:
            if value.name == name:
                return value
        kind = self.carried[0].value.type.tensor_type.elem_type if self.carried else 1
        axes = self.graph.shapes[source][1:]
        return helper.make_tensor_value_info(name, kind, list(axes))

    def _outputs(self, states: Sequence[_LoopState]) -> Iterator[ValueInfoProto]:
        results = {value.name: value for value in self.body.output}
        yield from (results[c.result] for c in states)
        yield from (value for value, _ in self.results)


def _some_of(steps: int) -> Array:
    """The steps that are tried, the first and the last among them, in their order."""
    if steps <= DENSE:
        return np.arange(steps)
    powers = 2 ** np.arange(steps.bit_length())
    beside = np.concatenate([powers - 1, powers, powers + 1])
    near_end = steps - 1 - np.concatenate([np.arange(DENSE), beside])
    tried = np.concatenate([np.arange(DENSE), beside, near_end])
    return np.unique(tried[(tried >= 0) & (tried < steps)])


def _counts(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return kind.elem_type in COUNTED and len(kind.shape.dim) == 0

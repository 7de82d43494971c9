"""Cells of a model: found, declared, run as the nodes run, and written down.

Input: a file of ONNX. Output: ``Layer``, one for each recurrent node, which runs as the node does;
``Imported``, one for each of its directions: a cell, its weights and the text of its declaration.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError, CellgenError, DeclarationError, UsageError
from cellgen.language.cell import Cell
from cellgen.onnx import operators
from cellgen.onnx.bodies import Body
from cellgen.onnx.finding import OtherLoop, RecurrentNode, recurrent
from cellgen.onnx.forms import short
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import opened, stem
from cellgen.onnx.running import Run, step_by_step, through_kernel
from cellgen.onnx.scan_reader import read_body
from cellgen.onnx.source import CellNames, ClassText, class_name, defined, module
from cellgen.runtime.npz import write_npz
from cellgen.runtime.paths import shipped_names

KINDS = "LSTM, GRU, RNN, Scan, DynamicQuantizeLSTM, or Loop over a sequence"
UNREAD = "__derived__ = True  # parts of a split may be left unread, as in the model"


@dataclass(frozen=True)
class Imported:
    """One direction of a node as a cell: ``cell, weights = imported``.

    ``name`` is a name of its own, that of the node in small letters; ``text`` declares the cell;
    ``reverse`` tells that the node goes from the last step to the first. ``starts`` are initial
    states that stand in the model, (B, ...) or (1, ...) where all rows start alike, and ``lengths``
    (B) the valid steps of each row; ``from_inputs`` names the model's values, which its inputs
    make, that are other initial states, or lengths. States in neither start at zeros.
    """

    name: str
    node: str
    cell: type[Cell]
    weights: Mapping[str, Array]
    text: ClassText
    reverse: bool
    starts: Mapping[str, Array]
    lengths: Array | None
    from_inputs: Mapping[str, str]

    def __iter__(self) -> Iterator[object]:
        """Give the cell, then its weights. Raises UsageError where the model holds more."""
        if self.carried:
            names = ", ".join(self.carried)
            raise UsageError(
                f"node {short(self.node)!r}: the model holds {names} beside its weights, which "
                f"`cell, weights = ...` would drop; read .cell, .weights, .starts and .lengths of "
                f"what load gives"
            )
        return iter((self.cell, dict(self.weights)))

    @property
    def carried(self) -> dict[str, Array]:
        """Arguments that are no weights and stand in the model: initial states and lengths."""
        return {**self.starts, **({} if self.lengths is None else {"lengths": self.lengths})}


@dataclass(frozen=True)
class OperatorLayer:
    """An LSTM, GRU or RNN node."""

    read: operators.Recurrent
    directions: tuple[Imported, ...]

    def run(
        self,
        X: object,
        sequence_lens: object = None,
        initial_h: object = None,
        initial_c: object = None,
        *,
        interpreted: bool = False,
    ) -> tuple[Array, ...]:
        """Run as the node runs: X (T, B, I), or (B, T, I) with its layout 1.

        What is left out is what stands in the model, else zeros and all steps; what the model's
        inputs make has to be passed.
        Returns Y (T, D, B, H), Y_h (D, B, H) and, of an LSTM, Y_c, or (B, T, D, H) and (B, D, H).
        With ``interpreted`` NumPy runs the equations and nothing is compiled.
        """
        label, rows_first = self.read.label, bool(self.read.options.get("layout", 0))
        x = accept.array(label, "X", X)
        x = np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)
        x = np.swapaxes(x, 0, 1) if rows_first else x
        lengths = self._lengths(sequence_lens, x)
        states = {"h_prev": (initial_h, "initial_h"), "c_prev": (initial_c, "initial_c")}
        count = 2 if self.read.operator == "LSTM" else 1
        steps, finals = [], []
        for place, direction in enumerate(self.directions):
            arguments = {"x": x}
            for name, (state, called_) in list(states.items())[:count]:
                start = self._start(state, called_, x, rows_first)
                arguments[name] = start[place]
            run = step_by_step if interpreted else through_kernel
            results = run(direction.cell, direction.weights, arguments, lengths, direction.reverse)
            steps.append(results["h"])
            finals.append(
                [results[f"{name.removesuffix('_prev')}_last"] for name in arguments if name != "x"]
            )
        last = [np.stack(each) for each in zip(*finals, strict=True)]
        outputs = [np.stack(steps, axis=1), *last]
        if rows_first:
            outputs = [np.moveaxis(outputs[0], 2, 0), *(np.swapaxes(one, 0, 1) for one in last)]
        return tuple(outputs)

    def _lengths(self, stated: object, x: Array) -> Array | None:
        """Steps of each row: what is given, or what stands in the model."""
        lengths = self._operand("sequence_lens", stated, "(B,)")
        if lengths is None:
            return None
        label, most = self.read.label, len(x)
        array = accept.shaped(label, "sequence_lens", lengths, x.shape[1:2], meaning="(B,)")
        if array.dtype.kind not in "iu" or np.any((array < 0) | (array > most)):
            raise ArgumentError(
                f"{label}: sequence_lens is {accept.quoted(lengths)}, expected integers from 0 to "
                f"{most}, the number of steps"
            )
        return array.astype(np.int64)

    def _start(self, stated: object, name: str, x: Array, rows_first: bool) -> Array:
        """An initial state (D, B, H): what is given, what stands in the model, or zeros."""
        state = self._operand(name, stated, "(B, D, H)" if rows_first else "(D, B, H)")
        shape = (len(self.directions), x.shape[1], self.read.units)
        if state is None:
            return np.zeros(shape, x.dtype)
        array = accept.array(self.read.label, name, state)
        array = np.swapaxes(array, 0, 1) if rows_first and array.ndim == 3 else array
        if stated is None and array.shape[1] == 1:  # every row starts alike
            array = np.repeat(array, shape[1], 1)
        return accept.shaped(self.read.label, name, array, shape, x.dtype)

    def _operand(self, name: str, stated: object, shape: str) -> object:
        """What is given, else what stands in the model. Raises UsageError for what inputs make."""
        if stated is None and name in self.read.from_inputs:
            raise UsageError(
                f"{self.read.label}: {name} is {short(self.read.from_inputs[name])!r}, which "
                f"depends on the model's inputs; pass {name}=..., {shape}"
            )
        return self.read.initial.get(name) if stated is None else stated


@dataclass(frozen=True)
class ScanLayer:
    """A ``Scan`` node, or a ``Loop`` over sequences.

    Of a loop, what counts its steps and what stays the same is left out of states and results.
    """

    body: Body
    directions: tuple[Imported, ...]

    def run(
        self, *inputs: object, around: Mapping[str, object] | None = None, interpreted: bool = False
    ) -> tuple[Array, ...]:
        """Run as the node runs: initial states, then sequences; returns final states, then outputs.

        A state that is None starts where the model says.
        ``around`` gives values of the graph around the body that depend on the model's inputs, by
        their names there.
        """
        body, (only,) = self.body, self.directions
        arrays = body.arguments(inputs, around or {})
        run: Run = step_by_step if interpreted else through_kernel
        return body.results(run(only.cell, only.weights, arrays, None, only.reverse))


def read(source: object) -> list[OperatorLayer | ScanLayer]:
    """Return the recurrent nodes of a model, in order: a path, or a ``ModelProto``.

    Raises:
        UsageError: a file that is none, a node with an operator, a type or weights that a cell
            cannot have; the message names the node.
    """
    graph = opened(source)
    taken = CellNames(shipped_names())
    layers: list[OperatorLayer | ScanLayer] = []
    others: list[str] = []
    for one in recurrent(graph):
        if isinstance(one, OtherLoop):
            others.append(one.why)
            continue
        name = taken.like(one.node.name or one.node.op_type)
        read_one = _scan if one.node.op_type == "Scan" else _operator
        try:
            layers.append(read_one(one, name, taken))
        except Exception as error:
            raise _refusal(one, error) from error
    if not layers:
        raise UsageError(
            f"{graph.label} has no node {KINDS}; expected one at least"
            + (f"; {others[0]}" if others else "")
        )
    return layers


def _refusal(node: RecurrentNode, error: Exception) -> CellgenError:
    """The one error for a node that is no cell, or is broken in whatever way: it names the node."""
    label = node.graph.label
    if not isinstance(error, CellgenError):
        return UsageError(f"{label}: {node.name} cannot be read: {accept.reason(error)}")
    said = Exception.__str__(error)
    if isinstance(error, UsageError) and "node '" in said:
        return error
    first, *rest = said.removeprefix(f"{label}: ").splitlines()
    line = f" (in {rest[-1].strip()})" if rest else ""
    return UsageError(f"{label}: {node.name}: {first}{line}")


def load(source: object) -> list[Imported]:
    """Return the cells of a model with their weights, one for each direction of a node.

    Each can be taken apart: ``for cell, weights in load("model.onnx")``. Raises as ``read``.
    """
    return [direction for layer in read(source) for direction in layer.directions]


def _operator(one: RecurrentNode, name: str, taken: CellNames) -> OperatorLayer:
    graph, node = one.graph, one.node
    recurrent = operators.read_node(graph, node)
    directions: list[Imported] = []
    for place, reverse in enumerate(recurrent.reversed_in):
        own = name if not place else taken.fresh(f"{name}_reverse")
        lines = operators.lines(recurrent, place)
        text = ClassText(class_name(own), own, f"{_said(one)}.", lines)
        weights, rest = operators.weights(recurrent, place), _rest(recurrent, place)
        if place and lines == directions[0].text.lines:  # the same cell in the other direction
            other = replace(directions[0], name=own, weights=weights, reverse=reverse)
            directions.append(replace(other, starts=rest[0]))
            continue
        cell = defined(text, graph.label)
        directions.append(Imported(own, node.name, cell, weights, text, reverse, *rest))
    return OperatorLayer(recurrent, tuple(directions))


def _rest(
    read: operators.Recurrent, place: int
) -> tuple[dict[str, Array], Array | None, dict[str, str]]:
    """What a direction takes beside inputs and weights: starts, lengths, and what is asked for."""
    names = {"h_prev": "initial_h", "c_prev": "initial_c", "lengths": "sequence_lens"}
    axis = 1 if read.options.get("layout", 0) else 0
    starts = {
        own: read.initial[name].take(place, axis)
        for own, name in names.items()
        if own != "lengths" and name in read.initial
    }
    from_inputs = {
        own: read.from_inputs[name] for own, name in names.items() if name in read.from_inputs
    }
    return _nonzero(starts), read.initial.get("sequence_lens"), from_inputs


def _nonzero(starts: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in starts.items() if np.any(array)}


def _scan(one: RecurrentNode, name: str, taken: CellNames) -> ScanLayer:
    graph, node = one.graph, one.node
    body = read_body(graph, node, one.name)
    text = ClassText(class_name(name), name, f"{_said(one)}.", body.lines)
    try:
        cell = defined(text, graph.label)
    except DeclarationError as error:
        if error.code != "declaration.split":
            raise
        text = replace(text, lines=(UNREAD, "", *body.lines))
        cell = defined(text, graph.label)
    only = Imported(
        name, node.name, cell, body.weights, text, body.reverse,
        _nonzero(body.starts), None, body.from_inputs,
    )  # fmt: skip
    return ScanLayer(body, (only,))


def _said(one: RecurrentNode) -> str:
    """What a declaration says of itself."""
    return f"The {one.name} of {one.graph.label}"


def declared_text(source: object) -> str:
    """The text of a file that declares the cells of a model, equal ones once."""
    layers = load(source)
    return module(_said_of(source, layers, None), _texts(layers).values())


def declare(source: object, out: object) -> list[Path]:
    """Write the cells of a model: OUT.py declares them, an .npz for each holds its weights.

    Equal cells are declared once. Weights are named by the declaration. Initial states and lengths
    that stand in the model are in an .npz of their own. Returns what was written.
    """
    layers = load(source)
    path = accept.path("cellgen.onnx.declare", "out", out, error=UsageError)
    _write(path, module(_said_of(source, layers, path), _texts(layers).values()).encode())
    written = [path]
    for one in layers:
        place = _weights_path(path, one, layers)
        _write(place, _archive(one.weights))
        written.append(place)
        if one.carried:
            place = place.with_suffix(".arguments.npz")
            _write(place, _archive(one.carried))
            written.append(place)
    return written


def _texts(layers: Sequence[Imported]) -> dict[str, ClassText]:
    """What declares each cell, by what the cell is."""
    texts: dict[str, ClassText] = {}
    for one in layers:
        texts.setdefault(one.text.body, one.text)
    return texts


def _weights_path(path: Path, one: Imported, every: Sequence[Imported]) -> Path:
    return path.with_suffix(".npz" if len(every) == 1 else f".{one.name}.npz")


def _said_of(source: object, layers: Sequence[Imported], path: Path | None) -> str:
    """The first lines of a file: which cell is what, and where its weights are."""
    texts = _texts(layers)
    lines = [f"Cells of the model {stem(source)}:", ""]
    for one in layers:
        cell = texts[one.text.body].class_name
        what = f"node {one.node!r}{', in reverse' if one.reverse else ''}"
        place = _weights_path(path, one, layers) if path else None
        label = f", weights in {place.name}" if place else ""
        lines.append(f"{cell}: {what}{label}")
        if one.carried:
            own = f", in {place.with_suffix('.arguments.npz').name}" if place else ""
            lines.append(f"  arguments that stand in the model{own}: {', '.join(one.carried)}")
        for name, value in one.from_inputs.items():
            lines.append(f"  {name} is {short(value)!r} of the model, which its inputs make")
    return "\n".join([*lines, ""])


def _archive(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an .npz."""
    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None

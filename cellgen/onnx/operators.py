"""LSTM, GRU and RNN nodes of a model as cells with their weights.

Input: a node. Output: for each direction the text of a declaration and its weights; a node with
other attributes is another text. Layouts and equations are those of ONNX's operators; where their
text leaves something open (which numbers an activation takes, what ``clip`` and ``input_forget``
do) they are onnxruntime's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import NodeProto

from cellgen.errors import UsageError
from cellgen.onnx.activations import ACTIVATIONS, Activation, Applied
from cellgen.onnx.forms import SAME_FORM, attributes, called, short
from cellgen.onnx.graph import Array
from cellgen.onnx.quantized import dequantized
from cellgen.onnx.reading import ModelGraph, require_opset
from cellgen.onnx.source import declared, number, tidy

GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
"""Gates in the order of their rows in W and R."""
LETTERS = {"LSTM": "iofg", "GRU": "zrn", "RNN": ""}
"""What the gates are called in declarations."""
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


@dataclass(frozen=True)
class Recurrent:
    """A node, read: arrays of weights with their axis of directions, and attributes.

    ``initial`` are initial states and lengths that stand in the model; a state with one row starts
    every row. ``from_inputs`` names the values of the graph that the model's inputs make, by
    operand.
    """

    label: str
    operator: str
    arrays: Mapping[str, Array]
    initial: Mapping[str, Array]
    from_inputs: Mapping[str, str]
    options: Mapping[str, Any]
    activations: tuple[tuple[Applied, ...], ...]

    @property
    def reversed_in(self) -> tuple[bool, ...]:
        """For each direction, whether it goes from the last step to the first."""
        return DIRECTIONS[self.options.get("direction", "forward")]

    @property
    def dtype(self) -> str:
        """The precision of the weights."""
        return str(np.result_type(*self.arrays.values()))

    @property
    def units(self) -> int:
        """The number of hidden units."""
        return int(self.arrays["R"].shape[-1])


def read_node(graph: ModelGraph, node: NodeProto) -> Recurrent:
    """Read a node. Raises UsageError for what is missing, dynamic, or unknown."""
    require_opset(graph, node)
    label = f"{graph.label}: {called(node)}"
    options = attributes(graph.label, node, graph.opset)
    _require_known(label, options)
    operands = dict(zip(INPUTS, node.input, strict=False))
    arrays: dict[str, Array] = {}
    for name in ("W", "R", "B", "P"):
        if operands.get(name):
            array = graph.constant(operands[name], node)
            if array is None:
                raise UsageError(
                    f"{label}: the weight {name} ({short(operands[name])!r}) is computed from "
                    f"inputs of the model; expected an initializer: a cell's weights are the same "
                    f"in every call"
                )
            arrays[name] = array
    initial: dict[str, Array] = {}
    from_inputs: dict[str, str] = {}
    for name in ("initial_h", "initial_c", "sequence_lens"):
        operand = operands.get(name)
        if operand:
            array = _start(graph, node, name, operand, bool(options.get("layout", 0)))
            from_inputs.update({name: operand} if array is None else {})
            initial.update({} if array is None else {name: array})
    operator = SAME_FORM.get(node.op_type, node.op_type)
    recurrent = Recurrent(
        label,
        operator,
        _floats(label, dequantized(graph, node, arrays)),
        initial,
        from_inputs,
        options,
        (),
    )
    _require_shapes(recurrent)
    return replace(recurrent, activations=tuple(_activations(recurrent)))


def _start(
    graph: ModelGraph, node: NodeProto, name: str, operand: str, rows_first: bool
) -> Array | None:
    """An initial state or lengths that stand in the model; None where inputs make them."""
    if name == "sequence_lens":
        return graph.constant(operand, node)
    return graph.start(operand, node, 0 if rows_first else 1)


def _floats(label: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Weights in float32 or float64. Raises UsageError for what is none."""
    for name, array in arrays.items():
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise UsageError(f"{label}: {name} is of {array.dtype}, expected floating numbers")
    return {n: np.asarray(a, np.result_type(a, np.float32)) for n, a in arrays.items()}


def _require_known(label: str, options: Mapping[str, Any]) -> None:
    """Refuse attributes that no LSTM, GRU or RNN may have."""
    direction = options.get("direction", "forward")
    if direction not in DIRECTIONS:
        raise UsageError(
            f"{label}: direction is {short(direction)!r}, expected one of {', '.join(DIRECTIONS)}"
        )
    if options.get("layout", 0) not in (0, 1):
        raise UsageError(f"{label}: layout is {options['layout']}, expected 0 or 1")
    if not options.get("clip", 1.0) > 0:
        raise UsageError(f"{label}: clip is {options['clip']}, expected a positive number")
    if options.get("hidden_size", 1) < 1:
        raise UsageError(f"{label}: hidden_size is {options['hidden_size']}, expected 1 or more")


def _require_shapes(read: Recurrent) -> None:
    """Refuse arrays whose axes do not fit each other."""
    lacking = [name for name in ("W", "R") if name not in read.arrays]
    if lacking:
        raise UsageError(f"{read.label}: the input {lacking[0]} is left out; it holds weights")
    for name, array in read.arrays.items():
        if name in ("W", "R") and (array.ndim != 3 or not array.size):
            raise UsageError(
                f"{read.label}: {name} has shape {array.shape}, expected three axes: directions, "
                f"rows of gates, columns"
            )
    directions, gates = len(read.reversed_in), len(GATES[read.operator])
    units = int(read.options.get("hidden_size", read.units))
    rows = gates * units
    expected = {
        "W": (directions, rows, read.arrays["W"].shape[-1]),
        "R": (directions, rows, units),
        "B": (directions, 2 * rows),
        "P": (directions, 3 * units),
    }
    for name, array in read.arrays.items():
        if array.shape != expected[name]:
            raise UsageError(
                f"{read.label}: {name} has shape {array.shape}, expected {expected[name]} with "
                f"{directions} direction{'s' * (directions > 1)} and hidden_size {units}"
            )
    rows_first = bool(read.options.get("layout", 0))
    for name, array in read.initial.items():
        batch = array.shape[0 if rows_first or array.ndim < 2 else 1] if array.ndim else 0
        state = (batch, directions, units) if rows_first else (directions, batch, units)
        shape = (batch,) if name == "sequence_lens" else state
        if array.shape != shape:
            raise UsageError(f"{read.label}: {name} has shape {array.shape}, expected {shape}")


def _activations(read: Recurrent) -> Iterator[tuple[Applied, ...]]:
    """For each direction its activations; each takes the next number if it has any."""
    directions, defaults = len(read.reversed_in), DEFAULTS[read.operator]
    names = read.options.get("activations") or defaults * directions
    if len(names) != len(defaults) * directions:
        raise UsageError(
            f"{read.label}: {len(names)} activations, expected {len(defaults) * directions}: "
            f"{len(defaults)} for each of {directions} directions"
        )
    alphas = list(read.options.get("activation_alpha") or ())
    betas = list(read.options.get("activation_beta") or ())
    every = []
    for name in names:
        row = ACTIVATIONS.get(name.lower())
        if row is None:
            known = [row.name for row in ACTIVATIONS.values()]
            close = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"{read.label}: the activation {name!r} is none of ONNX's; "
                + (f"did you mean {close[0]!r}?" if close else f"they are {', '.join(known)}")
            )
        every.append(Applied(row, *_numbers(read.label, row, alphas, betas)))
    for start in range(0, len(every), len(defaults)):
        yield tuple(every[start : start + len(defaults)])


def _numbers(
    label: str, row: Activation, alphas: list[float], betas: list[float]
) -> tuple[float | None, float | None]:
    """The next of the numbers that an activation takes, else its defaults."""
    numbers: list[float | None] = []
    for default, stated, name in ((row.alpha, alphas, "alpha"), (row.beta, betas, "beta")):
        if default and not stated and row.is_open:
            raise UsageError(
                f"{label}: the activation {row.name} has no activation_{name}, which ONNX and "
                f"onnxruntime read in different ways ({default} and 0); give the number"
            )
        numbers.append(None if default is None else stated.pop(0) if stated else default)
    return numbers[0], numbers[1]


# --- declarations --------------------------------------------------------------------------------


def lines(read: Recurrent, direction: int) -> tuple[str, ...]:
    """The body of the class of one direction."""
    write = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[read.operator]
    return tuple(write(read, read.activations[direction]))


def weights(read: Recurrent, direction: int) -> dict[str, Array]:
    """The weights of one direction by the names of the declaration."""
    arrays: dict[str, Array] = {}
    for place, letter in _letters(read):
        rows = slice(place * read.units, (place + 1) * read.units)
        arrays[f"w{letter}"] = np.ascontiguousarray(read.arrays["W"][direction, rows].T)
        arrays[f"u{letter}"] = np.ascontiguousarray(read.arrays["R"][direction, rows].T)
        if "B" in read.arrays:
            own, other = np.split(read.arrays["B"][direction], 2)
            if letter == "_n" and read.options.get("linear_before_reset"):
                arrays["b_n"], arrays["c_n"] = own[rows], other[rows]
            else:
                arrays[f"b{letter}"] = own[rows] + other[rows]
    if "P" in read.arrays:
        for name, part in zip(_peepholes(read), _parts(read, direction), strict=True):
            if name:
                arrays[name] = part
    return arrays


def _parts(read: Recurrent, direction: int) -> list[Array]:
    return np.split(read.arrays["P"][direction], 3)


def _peepholes(read: Recurrent) -> tuple[str, str, str]:
    """Names in the order of P; one that is coupled to another gate has none."""
    coupled = bool(read.options.get("input_forget"))
    return ("p_i", "p_o", "" if coupled else "p_f")


def _letters(read: Recurrent) -> Iterator[tuple[int, str]]:
    """Places of gates and the ends of their weights' names; not a gate that another one is."""
    letters = LETTERS[read.operator] or " "
    for place, letter in enumerate(letters):
        if not (letter == "f" and read.options.get("input_forget")):
            yield place, f"_{letter}".strip().rstrip("_")


def _head(read: Recurrent, states: Sequence[str]) -> list[str]:
    """Declarations of input, states and weights."""
    first = declared({"x": "Input(I)", **{f"{s}_prev": "State(H)" for s in states}})
    for _, letter in _letters(read):
        kinds = {f"w{letter}": "Weight(I, H)", f"u{letter}": "Weight(H, H)"}
        if "B" in read.arrays:
            kinds[f"b{letter}"] = "Bias(H)"
            if letter == "_n" and read.options.get("linear_before_reset"):
                kinds["c_n"] = "Bias(H)"
        first += declared(kinds)
    if "P" in read.arrays:
        first += declared({name: "Weight(H)" for name in _peepholes(read) if name})
    return [*first, ""]


def _bar(read: Recurrent, letter: str, more: str = "") -> str:
    """A pre-activation, clipped where the node says so."""
    bias = f" + b{letter}" if "B" in read.arrays else ""
    return _clipped(read, f"x @ w{letter} + h_prev @ u{letter}{bias}{more}")


def _clipped(read: Recurrent, text: str) -> str:
    limit = read.options.get("clip", 0.0)
    most = number(limit, read.dtype)
    return f"clip({text}, -{most}, {most})" if 0 < limit < np.inf else text


def _act(read: Recurrent, applied: Applied, x: str) -> str:
    a, b = (None if n is None else number(n, read.dtype) for n in (applied.alpha, applied.beta))
    return tidy(applied.row.text.format(x=x, a=a, b=b))


def _rnn(read: Recurrent, activations: Sequence[Applied]) -> Iterator[str]:
    yield from _head(read, ["h"])
    yield f"h_bar = {_bar(read, '')}"
    yield _equation("h", _act(read, activations[0], "h_bar"))


def _gru(read: Recurrent, activations: Sequence[Applied]) -> Iterator[str]:
    f, g = activations
    yield from _head(read, ["h"])
    for letter in "zr":
        yield f"{letter}_bar = {_bar(read, f'_{letter}')}"
        yield _equation(letter, _act(read, f, f"{letter}_bar"))
    bias = " + b_n" if "B" in read.arrays else ""
    if read.options.get("linear_before_reset"):
        inner = "(h_prev @ u_n + c_n)" if bias else "(h_prev @ u_n)"
        yield f"n_bar = {_clipped(read, f'x @ w_n{bias} + r * {inner}')}"
    else:
        yield f"n_bar = {_clipped(read, f'x @ w_n + (r * h_prev) @ u_n{bias}')}"
    yield _equation("n", _act(read, g, "n_bar"))
    yield "h = (1 - z) * n + z * h_prev"


def _lstm(read: Recurrent, activations: Sequence[Applied]) -> Iterator[str]:
    f, g, h = activations
    coupled = bool(read.options.get("input_forget"))
    sees = {"i": "c_prev", "f": "c_prev", "o": "c"} if "P" in read.arrays else {}
    yield from _head(read, ["h", "c"])

    def gate(letter: str) -> Iterator[str]:
        more = f" + p_{letter} * {sees[letter]}" if letter in sees else ""
        yield f"{letter}_bar = {_bar(read, f'_{letter}', more)}"
        yield _equation(letter, _act(read, g if letter == "g" else f, f"{letter}_bar"))

    yield from gate("i")
    if coupled:
        yield "f = 1 - i"
    else:
        yield from gate("f")
    yield from gate("g")
    yield "c = f * c_prev + i * g"
    yield from gate("o")
    squashed = _act(read, h, "c")
    yield f"h = {tidy(f'o * ({squashed})')}"
    yield ""
    yield "outputs = h, c"


def _equation(name: str, text: str) -> str:
    """An equation; a plain name would be another name for one value."""
    return f"{name} = keep({text})" if text.isidentifier() else f"{name} = {text}"

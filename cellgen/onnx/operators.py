"""LSTM, GRU and RNN nodes of a model as cells with their weights.

Input: a node. Output: for each direction the text of a declaration and its weights; a node with
other attributes is another text. Layouts and equations are those of ONNX's operators; where their
text leaves something open (which numbers an activation takes, what ``clip`` and ``input_forget``
do) they are onnxruntime's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from cellgen.errors import UsageError
from cellgen.onnx.activations import ACTIVATIONS, Activation, Applied
from cellgen.onnx.graph import Array
from cellgen.onnx.reading import ModelGraph, attributes, called, require_opset
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
    """A node, read: arrays of weights with their axis of directions, and attributes."""

    where: str
    operator: str
    arrays: Mapping[str, Array]
    initial: Mapping[str, Array]
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
    where = f"{graph.where}: {called(node)}"
    given = dict(zip(INPUTS, node.input, strict=False))
    arrays = {}
    for name in ("W", "R", "B", "P"):
        if given.get(name):
            array = graph.constant(given[name], node)
            if array is None:
                raise UsageError(
                    f"{where}: the weight {name} ({given[name]!r}) is computed from inputs of the "
                    f"model; expected an initializer: a cell's weights are the same in every call"
                )
            arrays[name] = np.asarray(array, np.result_type(array, np.float32))
    initial = {}
    for name in ("initial_h", "initial_c", "sequence_lens"):
        found = graph.constant(given[name], node) if given.get(name) else None
        if found is not None:
            initial[name] = found
    options = attributes(node)
    _require_known(where, options)
    made = Recurrent(where, node.op_type, arrays, initial, options, ())
    _require_shapes(made)
    activations = tuple(_activations(made))
    return Recurrent(where, node.op_type, arrays, initial, options, activations)


_KNOWN = (
    *("activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size"),
    *("input_forget", "layout", "linear_before_reset"),
)


def _require_known(where: str, options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _KNOWN:
            raise UsageError(
                f"{where}: unknown attribute {name!r}; expected some of {', '.join(_KNOWN)}"
            )
    direction = options.get("direction", "forward")
    if direction not in DIRECTIONS:
        raise UsageError(
            f"{where}: direction is {direction!r}, expected one of {', '.join(DIRECTIONS)}"
        )


def _require_shapes(read: Recurrent) -> None:
    """Refuse arrays whose axes do not fit each other."""
    lacking = [name for name in ("W", "R") if name not in read.arrays]
    if lacking:
        raise UsageError(f"{read.where}: the input {lacking[0]} is left out; it holds weights")
    for name, array in read.arrays.items():
        if name in ("W", "R") and array.ndim != 3:
            raise UsageError(
                f"{read.where}: {name} has shape {array.shape}, expected three axes: directions, "
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
                f"{read.where}: {name} has shape {array.shape}, expected {expected[name]} with "
                f"{directions} direction{'s' * (directions > 1)} and hidden_size {units}"
            )


def _activations(read: Recurrent) -> Iterator[tuple[Applied, ...]]:
    """For each direction its activations; each takes the next number if it has any."""
    directions, defaults = len(read.reversed_in), DEFAULTS[read.operator]
    names = read.options.get("activations") or defaults * directions
    if len(names) != len(defaults) * directions:
        raise UsageError(
            f"{read.where}: {len(names)} activations, expected {len(defaults) * directions}: "
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
                f"{read.where}: the activation {name!r} is none of ONNX's; "
                + (f"did you mean {close[0]!r}?" if close else f"they are {', '.join(known)}")
            )
        every.append(Applied(row, *_numbers(read.where, row, alphas, betas)))
    for start in range(0, len(every), len(defaults)):
        yield tuple(every[start : start + len(defaults)])


def _numbers(
    where: str, row: Activation, alphas: list[float], betas: list[float]
) -> tuple[float | None, float | None]:
    """The next of the numbers that an activation takes, else its defaults."""
    found: list[float | None] = []
    for default, given, name in ((row.alpha, alphas, "alpha"), (row.beta, betas, "beta")):
        if default and not given and row.is_open:
            raise UsageError(
                f"{where}: the activation {row.name} has no activation_{name}, which ONNX and "
                f"onnxruntime read in different ways ({default} and 0); give the number"
            )
        found.append(None if default is None else given.pop(0) if given else default)
    return found[0], found[1]


# --- declarations --------------------------------------------------------------------------------


def lines(read: Recurrent, direction: int) -> tuple[str, ...]:
    """The body of the class of one direction."""
    write = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[read.operator]
    return tuple(write(read, read.activations[direction]))


def weights(read: Recurrent, direction: int) -> dict[str, Array]:
    """The weights of one direction by the names of the declaration."""
    found: dict[str, Array] = {}
    for place, letter in _letters(read):
        rows = slice(place * read.units, (place + 1) * read.units)
        found[f"w{letter}"] = np.ascontiguousarray(read.arrays["W"][direction, rows].T)
        found[f"u{letter}"] = np.ascontiguousarray(read.arrays["R"][direction, rows].T)
        if "B" in read.arrays:
            own, other = np.split(read.arrays["B"][direction], 2)
            if letter == "_n" and read.options.get("linear_before_reset"):
                found["b_n"], found["c_n"] = own[rows], other[rows]
            else:
                found[f"b{letter}"] = own[rows] + other[rows]
    if "P" in read.arrays:
        for name, part in zip(_peepholes(read), _parts(read, direction), strict=True):
            if name:
                found[name] = part
    return found


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
    return f"clip({text}, -{most}, {most})" if limit > 0 else text


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

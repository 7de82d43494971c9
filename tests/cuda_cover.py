"""Which cells use, between them, all operators and what any of them uses of the runtime of CUDA.

Compiling the emulation of one cell takes five seconds. Two cells whose sources call the same
functions, of the same operators, go through the same code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

import cellgen
from cellgen.cells import LSTM, QRNN, SHIPPED, SLSTMHeads
from cellgen.language.cell import Cell, Definition
from cellgen.language.value import Value
from cellgen.pipeline import generate
from cellgen.runtime.paths import include_folder
from tests.cover import Traits, operators_of

COVERING = (
    *("elman_relu", "layer_norm_gru", "slstm_heads", "lru", "lif", "stated", "contexts"),
    *("running_heads", "matrix_heads", "along"),
)
"""Cells that are compiled for the emulation each time, by name; the others with the slow tests.
They are the ``cover`` of the established ones and those of the tests, which a test computes."""

BESIDE = ("by_weight",)
"""Compiled each time as well: a matrix of each row by a weight, for which the runtime has no name
of its own."""

FEATURES: Mapping[str, Callable[[Definition], bool]] = {
    "several states": lambda cell: len(cell.states) > 1,
    "an output that is no state": lambda cell: bool(beside_states(cell)),
    "heads": lambda cell: any(len(state.shape) > 2 for state in cell.states),
}
"""What options over time treat apart: a masked step keeps states, and repeats other outputs."""

OPTION_CELLS = (LSTM, QRNN, SLSTMHeads)
"""Cells with which options are tested each time: between them they have every feature."""


IN_ANY_ORDER = {
    "mlstm": r"d_(x|[wb]_[if])",
    **dict.fromkeys(("gated_delta_net", "comba"), r"d_(x|w_a|b_a|a_log)"),
}
"""Gradients that come of sums over both axes of a memory, by cell: a block that has the memory in
registers adds those up in an order of its own, so that rounding alone may differ between tiers."""


def in_any_order(cell: type[Cell], name: str) -> bool:
    """Whether a gradient may differ between tiers by rounding."""
    return bool(re.fullmatch(IN_ANY_ORDER.get(cell.definition.name, "nothing"), name))


def beside_states(definition: Definition) -> list[Value]:
    """Outputs that are the new value of no state."""
    after = [definition.next_state(state) for state in definition.states]
    return [output for output in definition.outputs if output not in after]


def is_covering(cell: type[Cell]) -> bool:
    """Whether a cell runs each time."""
    return cell.definition.name in (*COVERING, *BESIDE)


def used(cell: type[Cell]) -> Traits:
    """What decides through which code a cell goes.

    Names of the runtime's headers in its source, and the operators of its equations. Numbers of
    states, inputs and outputs are those of the cells with which options and layouts are tested.
    """
    words = set(re.findall(r"\b(?:cellgen|CELLGEN|cg)_\w+", _text(cell))) & _of_runtime()
    return operators_of(cell) | {("name", word) for word in words}


def _text(cell: type[Cell]) -> str:
    name = f"{cell.definition.name}.cu"
    if cell in SHIPPED:
        return dict(cellgen.load_cuda(cell.definition.name).sources.files)[name]
    return generate(cell, ["cuda"]).files[name]


@cache
def _of_runtime() -> frozenset[str]:
    folder = include_folder()
    files = (*folder.glob("*.cuh"), folder / "cellgen_math.h")
    return frozenset(re.findall(r"\w+", "".join(path.read_text() for path in files)))

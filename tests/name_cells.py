"""Cells that use every name which generated code has a use for, in every role."""

from __future__ import annotations

import types
from typing import Any, cast

from cellgen import Cell, Dim, H, Input, Scalar, State, Static, Weight, sigmoid, sum, tanh
from cellgen.runtime.names import LOCALS, OPTIONS, reserved_by

TAKEN = sorted(
    {
        *LOCALS,
        *OPTIONS,
        *("options", "workspace_bytes", "hold", "last", "strides", "strided", "blas", "nothing"),
        *("definition", "definition_owner", "replaced", "mro", "kernel", "interface", "reference"),
        *("nT", "nB", "nI", "nH", "n_ow", "int64_t", "uint32_t", "size_t", "terms1", "inverse1"),
        *("cg_tanh", "cg_series", "cellgen_validity", "CELLGEN_x", "tile_0", "forward_1"),
        *("validity", "is_valid"),
        *("series_x", "x_time", "stage_x", "x_pair", "now", "none", "needed", "x_rows", "own_x"),
        *("lambda_", "int_", "exp_", "max_", "α", "Σ", "Δt", "count", "index", "self", "fields"),
    }
)
"""What templates, headers, structs, Python or a reader's alphabet have a use for."""
TAKEN = [n for n in TAKEN if reserved_by(n) is None and n not in ("outputs", "gradients")]
"""Without what is a statement of its own in the body of a class."""
ARGUMENTS = [name for name in TAKEN if name not in (*OPTIONS, "real")]
DIMS = (Dim("ow"), Dim("one"), Dim("eeded"), Dim("H_rows"), Dim("μ"))


TURNS = 12


def cell_of_names(turn: int, most: int = 99) -> type[Cell]:
    """A cell named ``Cellgen`` that uses each name once: a twelfth as inputs, as states, as statics
    and as weights each (at ``most`` so many), and what is left for values; others at each
    ``turn``."""
    parts = [ARGUMENTS[(turn + place) % TURNS :: TURNS] for place in range(4)]
    inputs, statics, weights, states = (part[:most] for part in parts)
    states = [name for name in states if not name.endswith("_")]  # h_prev, then h

    def body(own: dict[str, Any]) -> None:
        size = {name: DIMS[place % len(DIMS)] for place, name in enumerate(inputs)}
        total = None
        for name in inputs:
            own[name] = Input(size[name])
            own[f"{name.rstrip('_')}_w"] = Weight(size[name], H)
            product = own[name] @ own[f"{name.rstrip('_')}_w"]
            total = product if total is None else total + product
        for name in states:
            own[f"{name}_prev"] = State(H)
        for name in weights:
            own[name] = Weight(H)
        for name in statics:
            own[name] = Static(H, gradient=True)
        own["real"] = Scalar(0.5, gradient=True)
        own["total"] = total
        last = own["total"]
        for place, name in enumerate((*weights, *statics)):
            last = sigmoid(last + own[name]) if place % 5 == 0 else last + own[name]
        own["gathered"] = tanh(last / 8)
        ahead = own["gathered"]
        for name in (n for n in TAKEN if n not in own and n not in states):
            own[name] = tanh(ahead + 0.25 * own["gathered"])
            ahead = own[name]
        own["norm"] = sum(ahead * ahead) / H + 1
        for name in states:
            before = own[f"{name}_prev"]
            own[name] = tanh(before * ahead / own["norm"] + own["gathered"] * own["real"])
        own["outputs"] = [own[name] for name in states]

    return cast("type[Cell]", types.new_class("Cellgen", (Cell,), {}, body))

"""Both directions of a layer on a device at once, on a stream each, in half of its processors each.

Input: the calls of a layer's two directions. Output: their results, for which the caller's stream
waits. A process asks for it (``CELLGEN_CUDA_DIRECTIONS=both``); no device has timed it. What is
compiled, exported, traced or transformed, and forms other than step by step, take turns all the
same: there a call is an operator alone, whose tier is always open.

A backward pass runs on the stream of its forward pass, which is autograd's rule, and in its tier,
which it is told. Until the two are joined again, memory that a kernel of either stream reads is
kept from others by its record on that stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cellgen import accept
from cellgen.runtime.call.segments import KEYWORDS
from cellgen.runtime.directions import BOTH, DIRECTIONS, DIRECTIONS_VARIABLE, HALF
from cellgen.torch.devices import CUDA, PLACES
from cellgen.torch.forms import STEP
from cellgen.torch.functional import CellFunction
from cellgen.torch.modes import is_transforming
from cellgen.torch.streams import STREAMS, in_tier

Results: TypeAlias = "Sequence[Tensor | None]"


def are_at_once(cell: CellFunction, x: Tensor, stated: Mapping[str, Any]) -> bool:
    """Whether the two directions of a layer go at once. Raises ArgumentError.

    ``stated`` are the options of its calls.
    """
    if torch.compiler.is_compiling() or DIRECTIONS_VARIABLE not in os.environ:
        return False
    place = PLACES.get(x.device.type)
    if place is None or place.target != CUDA.target:
        return False
    word = os.environ[DIRECTIONS_VARIABLE]
    label = cell.layout.label
    if accept.choice(label, DIRECTIONS_VARIABLE, word, DIRECTIONS) != BOTH or _is_recorded():
        return False
    form = stated.get("form") or cell.form
    return form == STEP and KEYWORDS.isdisjoint(stated)


def _is_recorded() -> bool:
    """Whether a call is looked at by a trace, a transform or a mode, which take it for its own."""
    own = torch._C
    return bool(own._is_tracing() or is_transforming() or own._len_torch_dispatch_stack())


def run_at_once(device: torch.device, calls: Sequence[Callable[[], Results]]) -> list[Results]:
    """Run two calls on a stream each; the current one has waited for both, on errors too."""
    streams = STREAMS[device.type]
    here, beside = streams.current(device), streams.beside(device)
    beside.wait_stream(here)
    try:
        with in_tier(HALF):
            first = calls[0]()
            with streams.on(beside):
                second = calls[1]()
    finally:
        here.wait_stream(beside)
    streams.keep(second, here)
    return [first, second]

"""What a call shows of outputs of all steps, where its gradient needs them all.

Input: outputs of a call that saves. Output: those of the call itself. Linear in the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from cellgen.frameworks.selection import is_last
from cellgen.jax.calls import JaxCall
from cellgen.runtime.call.signature import part_of


def show(call: JaxCall, tables: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Show what ``call`` does of the outputs of ``call.saving``."""
    saving = call.saving
    if call == saving:
        return list(outputs)
    outputs_formed, steps = iter(outputs), part_of(call.options, saving.options)
    selected = []
    for place, item in enumerate(call.known.layout.outputs):
        if saving.hidden >> place & 1:
            continue
        output = next(outputs_formed)
        if call.hidden >> place & 1:
            continue
        if item.over_time and is_last(call.options):
            output = last_step(
                output, dict(zip(call.tables, tables, strict=True)), call.options.reverse
            )
        elif item.over_time and steps is not None:
            output = output[steps]
        selected.append(output)
    return selected


def last_step(output: Any, tables: dict[str, Any], reverse: bool) -> Any:
    """An output (T, B, ...) at the last valid step of each row, zeros where none is."""
    steps, rows = output.shape[:2]
    if steps == 0:
        return jnp.zeros_like(output, shape=output.shape[1:])
    if not {"lengths", "mask"} & tables.keys():
        return output[0 if reverse else -1]
    order = jnp.arange(steps)[:, None]
    valid = jnp.ones((steps, rows), bool)
    if "lengths" in tables:
        valid &= order < tables["lengths"]
    if "mask" in tables:
        valid &= tables["mask"]
    last = jnp.where(valid, steps - 1 - order if reverse else order, -1).max(0)
    step = jnp.clip(steps - 1 - last if reverse else last, 0, steps - 1)
    at_last = output[step, jnp.arange(rows)]
    return jnp.where((last >= 0).reshape(-1, *(1,) * (at_last.ndim - 1)), at_last, 0)

"""Run an imported cell over time: through its kernel, or its equations with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.api import compile as compile_cell
from cellgen.language.cell import Cell
from cellgen.language.value import Role
from cellgen.onnx.graph import Array
from cellgen.program.interpret import shape_sizes
from cellgen.proof.over_time import run_steps
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import Options

Run = Callable[
    [type[Cell], Mapping[str, Array], Mapping[str, Array], Array | None, bool], dict[str, Array]
]
"""A cell, its weights, its other arguments, lengths, whether in reverse; gives results by name."""


@lru_cache(maxsize=64)
def _kernel(cell: type[Cell]) -> Kernel:
    return compile_cell(cell)


def _results(cell: type[Cell]) -> list[str]:
    definition = cell.definition
    finals = [f"{definition.next_state(state).name}_last" for state in definition.states]
    return [*(str(output.name) for output in definition.outputs), *finals]


def through_kernel(
    cell: type[Cell],
    weights: Mapping[str, Array],
    arguments: Mapping[str, Array],
    lengths: Array | None,
    reverse: bool,
) -> dict[str, Array]:
    """Call the kernel of a cell, in the precision of what is given."""
    dtype = next(iter(arguments.values())).dtype
    scalars = {str(v.name) for v in cell.definition.with_role(Role.SCALAR)}
    arrays: dict[str, Any] = {n: np.asarray(a, dtype, order="C") for n, a in weights.items()}
    arrays |= {n: np.asarray(a, dtype, order="C") for n, a in arguments.items()}
    for name in scalars & arrays.keys():
        arrays[name] = float(accept.array(str(cell), name, arrays[name]))
    if lengths is not None:
        arrays["lengths"] = np.asarray(lengths, np.int64)
    results = _kernel(cell).sequence_forward(**arrays, reverse=reverse)
    return {name: getattr(results, name) for name in _results(cell)}


def step_by_step(
    cell: type[Cell],
    weights: Mapping[str, Array],
    arguments: Mapping[str, Array],
    lengths: Array | None,
    reverse: bool,
) -> dict[str, Array]:
    """Interpret the equations in float64."""
    definition = cell.definition
    arrays = {n: np.asarray(a, np.float64) for n, a in {**weights, **arguments}.items()}
    sizes: dict[str, int] = {}
    for value in definition.declared:
        shape = arrays[str(value.name)].shape if str(value.name) in arrays else ()
        axes = shape[1:] if value.role is Role.INPUT else shape
        for axis, length in zip(value.shape, axes, strict=False):
            if axis.is_Symbol:
                sizes[str(axis)] = length
    sizes["T"] = len(arrays[str(definition.with_role(Role.INPUT)[0].name)])
    results = run_steps(
        definition, arrays, sizes, Options(lengths=lengths, reverse=reverse)
    ).results
    none = {str(v.name): np.zeros((0, *shape_sizes(v, sizes))) for v in definition.outputs}
    results = results if sizes["T"] else {**results, **none}
    return {name: results[name] for name in _results(cell)}

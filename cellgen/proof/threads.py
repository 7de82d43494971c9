"""Compare runs over time of several threads with those of one: equal to the bit.

Threads share rows or units of a step, products of inputs are formed ahead or not, what is deferred
comes in longer or shorter chunks: every plan that the number of threads allows is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cellgen.errors import CellgenError
from cellgen.runtime.abi import ERROR_CODES, UNFIT_PLAN
from cellgen.runtime.call.over_time import TimeFunction
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.host.tuning import candidates
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD
from cellgen.runtime.results import Array


def differing_bits(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    upstream: Mapping[str, Array],
    sizes: Mapping[str, int],
    threads: int,
) -> dict[str, float]:
    """Return the share of entries that differ from those of one thread, by precision and result."""
    errors: dict[str, float] = {}
    for dtype in ("float32", "float64"):
        narrow = {n: np.asarray(a, dtype, order="C") for n, a in arrays.items()}
        above = {n: np.asarray(a, dtype, order="C") for n, a in upstream.items()}
        for name, share in _of_one(kernel, narrow, above, sizes, threads).items():
            errors[f"{dtype} {name}"] = share
    return errors


def _of_one(
    kernel: Kernel,
    arguments: dict[str, Array],
    upstream: dict[str, Array],
    sizes: Mapping[str, int],
    threads: int,
) -> dict[str, float]:
    forward, backward = kernel.functions[FORWARD], kernel.functions[BACKWARD]
    run = forward(out=None, **arguments, save=True, threads=1)
    read = {item.name for item in backward.function.arguments if not item.saved}
    known = {**arguments, **run._asdict(), **upstream}
    calls = (
        (FORWARD, arguments, {"save": True}),
        (BACKWARD, {n: a for n, a in known.items() if n in read}, {"saved": run.saved}),
    )
    errors: dict[str, float] = {}
    for way, arrays, how in calls:
        function = kernel.functions[way]
        alone = _arrays(function(out=None, **arrays, **how, threads=1)._asdict())
        for plan in _plans(kernel, way, arrays, sizes, threads):
            try:
                result = function(out=None, **arrays, **how, threads=threads, plan=plan)
            except CellgenError as error:
                if ERROR_CODES[UNFIT_PLAN] in str(error):  # sums over units need whole rows
                    continue
                raise
            for name, array in _arrays(result._asdict()).items():
                errors[name] = max(errors.get(name, 0.0), _share(array, alone[name]))
    return errors


def _plans(
    kernel: Kernel,
    way: str,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    threads: int,
) -> tuple[SequencePlan, ...]:
    function = kernel.functions[way]
    assert isinstance(function, TimeFunction)
    dims: dict[str, Any] = {name: sizes[name] for name in function.function.dims}
    plan = function.plan(threads=threads, dtype=next(iter(arrays.values())).dtype, **dims)
    return candidates(plan, sizes["T"], sizes["B"], chunked=way == BACKWARD)


def _arrays(results: Mapping[str, object]) -> dict[str, Array]:
    """Results by name, what is saved too."""
    saved = results.get("saved")
    kept = saved._asdict() if isinstance(saved, Saved) else {}
    return {n: a for n, a in {**kept, **results}.items() if isinstance(a, np.ndarray)}


def _share(one: Array, other: Array) -> float:
    """The share of entries whose bits differ."""
    bits = f"u{one.dtype.itemsize}"
    unequal = np.ascontiguousarray(one).view(bits) != np.ascontiguousarray(other).view(bits)
    return float(np.mean(unequal)) if unequal.size else 0.0

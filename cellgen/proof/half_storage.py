"""Compare calls whose arrays over time have 16 bits with those of float32.

Input: a kernel and arrays. Output: by function and result the share of entries that are not those
of float32, which ``check`` has held to the equations, rounded once. Such arrays are as the driver
sees them, so that bfloat16 needs no library that has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellgen.proof.rounding import Array
from cellgen.runtime.call.arguments import has_steps
from cellgen.runtime.call.narrow import PRODUCTS
from cellgen.runtime.call.saved import Saved
from cellgen.runtime.call.stored import NUMBERS, element_of, rounded, widened
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, FORWARD
from cellgen.runtime.results import Results


def storage_errors(
    kernel: Kernel, arrays: Mapping[str, Array], upstream: Mapping[str, Array]
) -> dict[str, dict[str, float]]:
    """Return the share of entries that differ, by function and result, of either type."""
    errors: dict[str, dict[str, float]] = {FORWARD: {}, BACKWARD: {}}
    for element, products in PRODUCTS.items():
        _forward_and_backward(errors, kernel, {**arrays, **upstream}, element, products)
    return errors


def _forward_and_backward(
    errors: dict[str, dict[str, float]],
    kernel: Kernel,
    arrays: Mapping[str, Array],
    element: str,
    products: str,
) -> None:
    """Run both functions in 16 bits, and in float32 on what these were given."""
    forward, backward = kernel.functions[FORWARD], kernel.functions[BACKWARD]
    items = (*forward.function.arguments, *backward.function.arguments)
    narrow = {i.name for i in items if has_steps(i)}
    stored = {
        n: rounded(a.astype(np.float32), element) if n in narrow else a.astype(np.float32)
        for n, a in arrays.items()
    }
    wide = {n: widened(a) for n, a in stored.items()}
    own = {i.name for i in forward.function.arguments}
    run = forward(out=None, **_some(stored, own), save=True, products=products)
    truth = forward(out=None, **_some(wide, own), save=True, products=products)
    kept, exact = _kept(run), _kept(truth)
    _compare(errors[FORWARD], element, {**run._asdict(), **kept}, {**truth._asdict(), **exact})
    read = {i.name for i in backward.function.arguments if not i.saved}
    seen = {n: a for n, a in run._asdict().items() if n != "saved"}
    gradients = backward(
        out=None, **_some({**stored, **seen}, read), saved=run.saved, products=products
    )
    saved = {n: widened(a) for n, a in kept.items()}
    seen = {n: widened(a) for n, a in seen.items()}
    again = backward(out=None, **_some({**wide, **seen}, read), saved=saved, products=products)
    _compare(errors[BACKWARD], element, gradients._asdict(), again._asdict())


def _kept(run: Results) -> Mapping[str, Array]:
    assert isinstance(run.saved, Saved)
    return run.saved._asdict()


def _some(arrays: Mapping[str, Array], names: set[str]) -> dict[str, Array]:
    return {n: a for n, a in arrays.items() if n in names}


def _compare(
    errors: dict[str, float], element: str, actual: Mapping[str, Array], exact: Mapping[str, Array]
) -> None:
    """Count entries that are not the exact ones, rounded where the array has 16 bits."""
    for name, array in actual.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fV":
            continue
        truth = exact[name]
        if array.dtype in NUMBERS:
            truth = widened(rounded(truth, element_of(array)))
        same = np.equal(widened(array), truth) | (np.isnan(widened(array)) & np.isnan(truth))
        errors[f"{element} {name}"] = 1 - float(np.mean(same)) if same.size else 0.0

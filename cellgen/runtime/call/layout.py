"""Where arrays over time lie: elements from step to step and from row to row.

Arrays over time are (T, B, ...) with units side by side; steps and rows may lie any distance apart,
so that batch-first arrays and slices of larger ones are read and written in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.runtime.call.arguments import as_base
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.results import Array


def swap_time_and_batch(names: Collection[str], arrays: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
    """Look at the arrays of some names with their first two axes swapped."""
    return {
        name: array.swapaxes(0, 1)
        if name in names and isinstance(array, np.ndarray) and array.ndim > 1
        else array
        for name, array in ((name, as_base(array)) for name, array in arrays.items())
    }


@named_in_memory_errors(str)
def refuse_shared(
    label: str, arguments: Mapping[str, object], results: Mapping[str, Array]
) -> None:
    """Raise ArgumentError where a result shares an element with another array of the call."""
    inputs = [(n, a) for n, a in arguments.items() if isinstance(a, np.ndarray)]
    for name, result in results.items():
        others, owns = [(n, a) for n, a in results.items() if n != name], result.flags.owndata
        for kind, arrays in (("argument", inputs), ("result", others)):
            for other, array in arrays:
                if owns and array is not result and array.flags.owndata:
                    continue  # each has memory of its own
                if np.may_share_memory(result, array) and np.shares_memory(result, array):
                    raise ArgumentError(
                        f"{label}: out {name} shares memory with the {kind} {other}, expected "
                        f"memory of its own (results are written while arguments are read); give "
                        f"another array"
                    )

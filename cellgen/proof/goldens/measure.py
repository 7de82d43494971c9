"""Compare kernels with numbers that the peer libraries computed: TensorFlow, PyTorch, JAX.

Input: a kernel and the files of ``tests/golden``. Output: ``Measurement``, one per array. A peer's
case is one step (TensorFlow, PyTorch's cells) or a short sequence (JAX), which is run here in two
ways: as steps with NumPy around them, forward in time, then back through backward and
weight_gradients; and over time, by sequence_forward and sequence_backward.
Not supported: the peers' sequence functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cellgen.proof.goldens.case import Array, Arrays
from cellgen.proof.goldens.files import accuracy, folder, read
from cellgen.proof.goldens.table import OVER_TIME, PEERS, PeerCases
from cellgen.runtime.kernel import Kernel

FLOAT64_BAR = 1e-13
"""Decision "Bars": float64 agrees relative to the largest entry of the array."""

SMALL = 1e-3
"""Share of the largest entry that ``elt`` adds to each entry, as golden/README.md does."""


@dataclass(frozen=True)
class Measurement:
    """One array of one case: ``nrm`` is relative to the largest entry, ``elt`` entry by entry.

    ``group`` is the peer's row in the accuracy table; ``peer_nrm`` and ``peer_elt`` are the errors
    of the peer's own float32 run on this array (None where the peer has none).
    """

    group: str
    case: str
    array: str
    nrm: float
    elt: float
    peer_nrm: float | None
    peer_elt: float | None


def measure(kernel: Kernel, name: str, dtype: str, *, over_time: bool = False) -> list[Measurement]:
    """Compare a kernel with every case of its peers, in float32 or float64.

    With ``over_time``, sequences are run by the functions over time, and steps are left out. The
    reference is the peer's own float64 run, or the float64 evaluation that a file carries. A
    float16 case is computed in float32 and rounded.
    """
    root = folder()
    measurements: list[Measurement] = []
    for peer in PEERS.get(name, ()):
        run = OVER_TIME.get(peer.run) if over_time else peer.run
        if run is None:
            continue
        for path in sorted(root.glob(f"{peer.files}.npz")) if root else ():
            measurements += _measure_file(kernel, replace(peer, run=run), path, dtype)
    return measurements


def _measure_file(kernel: Kernel, peer: PeerCases, path: Path, dtype: str) -> Iterator[Measurement]:
    z, meta = read(path)
    wrong = any(meta["attrs"].get(key) != value for key, value in peer.attributes)
    twin = path.with_name(path.name.replace("_f32.", "_f64."))
    is_twin = path.name != twin.name
    if (
        wrong
        or path.name.endswith("_f64.npz")
        or (dtype == "float64" and meta["dtype"] == "float16")
    ):
        return
    inputs = [*meta["roles"]["inputs"], *meta["roles"]["cotangents"].values()]
    arrays = {key: z[key].astype(dtype) for key in inputs}
    reference = read(twin)[0] if is_twin else _reference(z, peer.exact)
    for array, value in peer.run(kernel, arrays, meta["attrs"]).items():
        if array in reference:
            rounded = value.astype(meta["dtype"]) if dtype == "float32" else value
            yield _measurement(meta, array, rounded, reference[array])


def _reference(z: Arrays, exact: bool) -> Arrays:
    """Pick the float64 evaluation inside a TensorFlow file."""
    reference = {k.removeprefix("ref64."): a for k, a in z.items() if k.startswith("ref64.")}
    if exact:
        reference |= {k.removeprefix("true64."): a for k, a in z.items() if k.startswith("true64.")}
    return reference


def _measurement(meta: Any, array: str, value: Array, reference: Array) -> Measurement:
    group, op, case = _group(meta, array)
    peer = accuracy().get(op, {}).get(case, {}).get(array, (None, None))
    nrm, elt = _errors(value.astype(np.float64), reference)
    return Measurement(group, case, array, nrm, elt, *peer)


def _errors(value: Array, reference: Array) -> tuple[float, float]:
    """The two errors of golden/README.md; infinite where something is not finite."""
    difference, size = np.abs(value - reference), np.abs(reference)
    largest = float(size.max())
    if largest == 0 or not np.isfinite(difference).all():
        wrong = np.inf if difference.any() else 0.0
        return wrong, wrong
    return float(difference.max()) / largest, float((difference / (size + SMALL * largest)).max())


def _group(meta: Any, array: str) -> tuple[str, str, str]:
    """Name the row of the accuracy table, its op, and the case without its dtype."""
    case = str(meta["case"]).removesuffix("_f32")
    ops = str(meta["op"]).split("+")
    half = " float16" if meta["dtype"] == "float16" else ""
    is_gradient = array not in meta["roles"]["outputs"]
    op = ops[-1 if is_gradient else 0] + half
    saturated = " (sat)" if case.endswith("_sat") else ""
    return f"{op}{saturated} {'bwd' if is_gradient else 'fwd'}", op, case

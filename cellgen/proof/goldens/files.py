"""Read the golden files; a checkout has them, a wheel does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cellgen.proof.goldens.case import Arrays
from cellgen.runtime.paths import PACKAGE, in_checkout


def folder() -> Path | None:
    """Return the folder of golden files, or None outside a checkout."""
    path = PACKAGE.parent / "tests" / "golden"
    return path if in_checkout() and (path / "index.json").is_file() else None


def read(path: Path) -> tuple[Arrays, Any]:
    """Read a golden file: its arrays, and its meta record."""
    with np.load(path) as z:
        return {k: z[k] for k in z.files if k != "meta"}, json.loads(str(z["meta"]))


@lru_cache(maxsize=1)
def accuracy() -> Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]:
    """Errors of the peers' own float32 runs: {op: {case: {array: (nrm, elt)}}}."""
    root = folder()
    return json.loads((root / "accuracy.json").read_text(encoding="utf-8")) if root else {}


@lru_cache(maxsize=1)
def peer_worst() -> Mapping[str, tuple[float, float]]:
    """The peers' worst float32 errors (nrm, elt) by group: the table of golden/README.md."""
    worst: dict[str, tuple[float, float]] = {}
    for op, cases in accuracy().items():
        for case, arrays in cases.items():
            for array, (nrm, elt) in arrays.items():
                group = f"{op}{' (sat)' if case.endswith('_sat') else ''} {_direction(op, array)}"
                known = worst.get(group, (0.0, 0.0))
                worst[group] = max(known[0], nrm), max(known[1], elt)
    return worst


def _direction(op: str, array: str) -> str:
    return "bwd" if "Grad" in op or array.startswith("grad.") else "fwd"

"""cellgen.compat.mygrad against mygrad's own GRU, at the bar of decision 23."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from peers import ROOT, Arrays, bars, check_float32, check_float64, expected, measured

from cellgen import goldens
from cellgen.compat import mygrad
from cellgen.errors import ArgumentError
from cellgen.goldens import Measurement

FILES = sorted(ROOT.glob("mygrad/*.npz"))
ARGUMENTS = tuple(mygrad.NAMES)
GROUPS = tuple(f"mygrad gru{kind} {way}" for kind in ("", " (sat)") for way in ("fwd", "bwd"))
BEYOND: Mapping[tuple[str, str], str] = {}


class Tensor:
    """The part of mygrad's Tensor that is looked at."""

    def __init__(self, data: np.ndarray, constant: bool = False) -> None:
        self.data, self.constant = data, constant

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.data


def run(path: Path) -> list[Measurement]:
    """Compare S and every gradient of one file; a float32 file with its float64 twin."""
    z, meta = goldens.read(path)
    constants = meta["attrs"]["constants"]
    given = [Tensor(z[name], name in constants) for name in ARGUMENTS]
    masks = {name: z[f"_drop{name}"] for name in mygrad.MASKS if f"_drop{name}" in z}
    S, backward = mygrad.gru_vjp(
        *given, z.get("s0"), meta["attrs"]["bp_lim"], meta["attrs"]["dropout"], masks=masks or None
    )
    gradients = backward(z["G"])
    found = {"S": S, **{f"grad.{name}": array for name, array in gradients.items()}}
    assert set(found) == expected(meta)
    assert all(array.dtype == meta["dtype"] for array in found.values())
    twin = path.with_name(path.name.replace("_f32.", "_f64."))
    return measured(("mygrad gru",) * 2, meta, found, goldens.read(twin)[0])


@cache
def every(dtype: str) -> list[Measurement]:
    return [item for path in FILES if f"_f{dtype[5:]}." in path.name for item in run(path)]


@pytest.mark.parametrize(("group", "figure"), bars(GROUPS, BEYOND))
def test_float32_is_within_mygrads_bar(group: str, figure: str) -> None:
    check_float32(every("float32"), group, figure)


def test_float64_agrees_to_1e_13_of_the_largest_entry() -> None:
    check_float64(every("float64"))
    assert len({item.case for item in every("float32")}) == 14
    assert len({item.case for item in every("float64")}) == 17

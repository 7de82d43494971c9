"""An option means the same through every door: results and gradients of NumPy's checked call.

``DOORS`` is the list of all doors. Each suite runs those whose modules it has.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cellgen.runtime.options import TABLE
from tests.doors import CELLS, OPTIONS, TABLES, Case, Door, Results

FEW = (("gru", "all"), ("sru", "lengths"), ("sru", "mask"))
"""Pairs for doors that compile a program for every case."""
PREBUILT = tuple(("elman", tables) for tables in TABLES)
"""Of a package with one small cell."""
ALONE = tuple((cell, "all") for cell in CELLS)

ELSEWHERE = frozenset(
    (
        *("save", "saved", "threads", "plan", "packed", "gradients", "per_row", "window", "bp_lim"),
        *("tolerance",),
    )
)
"""Options that some doors lack, have by other words or always give: tried by tests of their own."""


def door(path: str) -> Callable[[Case], Results]:
    """The function of a door, imported where it is called: its modules may be missing."""
    module, _, name = path.rpartition(".")
    return lambda case: getattr(import_module(f"tests.doors.{module}"), name)(case)


DOORS = (
    Door("checked", door("by_numpy.checked"), ("segments", "segments, reset")),
    Door(
        "prepared",
        door("by_numpy.prepared"),
        (
            *("plain", "reset", "checkpoint", "every, checkpoint", "outputs", "products"),
            *("last, checkpoint", "batch first", "batch first, every", "batch first, last, reset"),
        ),
    ),
    Door("stream", door("by_numpy.stream"), ("plain",), pairs=ALONE, afresh=True, gradients=""),
    Door(
        "embedded",
        door("by_numpy.embedded"),
        ("plain",),
        tolerance=1e-5,
        pairs=(("gru", "all"),),
        afresh=True,
        gradients="weights",
    ),
    Door(
        "cuda",
        door("by_numpy.cuda"),
        ("plain", "reset", "every", "batch first", "batch first, every"),
        tolerance=1e-5,
        pairs=(("lstm", "lengths"), ("lstm", "mask")),
    ),
    Door("torch", door("by_torch.function"), tuple(o for o in OPTIONS if o != "plain"), ("torch",)),
    Door(
        "layer",
        door("by_torch.layer"),
        (
            *("plain", "checkpoint", "every", "outputs, checkpoint", "segments"),
            *("last", "last, checkpoint", "batch first", "batch first, last, reset"),
        ),
        ("torch",),
        pairs=ALONE,
        afresh=True,
    ),
    Door(
        "jax",
        door("by_jax.function"),
        (
            *(
                "reset",
                "flush",
                "checkpoint",
                "limit",
                "every",
                "every, checkpoint",
                "outputs, checkpoint",
            ),
            *("products", "products, checkpoint", "segments", "segments, reset"),
            *("last", "last, checkpoint", "batch first", "batch first, every"),
            *("batch first, outputs", "batch first, last, reset"),
        ),
        ("jax",),
        pairs=FEW,
        in_turn=True,
    ),
    Door(
        "onnx",
        door("by_onnx.model"),
        ("plain",),
        ("onnxruntime",),
        tolerance=1e-5,
        pairs=tuple((cell, tables) for cell in CELLS for tables in ("all", "lengths")),
        gradients="",
    ),
    Door("wheel", door("by_wheel.prebuilt"), ("plain", "reset"), pairs=PREBUILT),
    Door(
        "wheel in torch",
        door("by_wheel.in_torch"),
        ("plain", "reset"),
        ("torch",),
        pairs=PREBUILT,
    ),
    Door(
        "wheel in jax",
        door("by_wheel.in_jax"),
        ("plain",),
        ("jax",),
        pairs=PREBUILT[1:],
    ),
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("door", "case"),
    [
        pytest.param(
            *(d, case),
            marks=[pytest.mark.of_numpy] * (not d.needs) + [pytest.mark.slow] * d.is_seldom(case),
            id=f"{d}: {case}",
        )
        for d in DOORS
        if d.is_there
        for case in d.cases()
    ],
)
def test_a_call_gives_what_the_kernel_gives(door: Door, case: Case) -> None:
    results, expected = door.run(case), case.expected
    assert results.shown.keys() == expected.shown.keys()
    for name, array in expected.shown.items():
        agree(door, results.shown[name], array, name)
    wanted = {"": set(), "all": {*expected.gradients}, "weights": {*case.of_role("weight", "bias")}}
    assert {*results.gradients} == wanted[door.gradients] & {*expected.gradients}
    for name, array in results.gradients.items():
        agree(door, array, expected.gradients[name], name)


def agree(door: Door, found: np.ndarray | None, wanted: np.ndarray | None, name: str) -> None:
    """Hold an array to the kernel's: its bits, or within what a door may differ by."""
    assert (found is None) == (wanted is None), name
    if wanted is None:
        return
    assert found.shape == wanted.shape, name
    if door.tolerance:
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        assert float(np.abs(found - wanted).max(initial=0)) <= door.tolerance * scale, name
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.of_numpy
def test_every_option_has_a_case_and_every_door_a_suite() -> None:
    assert {name for d in DOORS for name in d.options} == {*OPTIONS}
    tried = {name for options in (*OPTIONS.values(), *TABLES.values()) for name in options}
    assert {option.name for option in TABLE} - tried == ELSEWHERE
    assert len({d.name for d in DOORS}) == len(DOORS)
    assert {tables for d in DOORS for _, tables in d.pairs} == {*TABLES}
    suites = (Path(__file__).parents[2] / ".ci" / "suites").read_text(encoding="utf-8")
    for d in DOORS:
        for module in d.needs:
            suite = suites.partition(f"{module.removesuffix('runtime')}_suite()")[2]
            assert "tests/doors" in suite.partition("}")[0], d

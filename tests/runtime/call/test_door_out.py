"""Results that C writes to arrays of the caller: those of ``out``, or none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.call.test_door import (
    ARRAYS,
    by_python,
    called,
    extension_in_c,
    given,
    kernel,
    require_same,
    taught,
)

__all__ = ["extension_in_c"]

FUNCTIONS = "forward", "backward", "sequence_forward", "sequence_backward"
AS_GOOD = {"metadata", "from a pickle", "a view in the middle"}
"""Arrays that results are written to as they are."""
OPTIONS: list[dict[str, Any]] = [
    {"reverse": True},
    {"every": 2},
    {"outputs": ("h",)},
    {"save": True},
    {"save": True, "reverse": True},
    {"mask": np.array([[True, False], [False, True], [True, True]])},
    {"lengths": np.array([1, 3])},
    {"reset": np.array([[False, True], [True, False], [False, False]]), "flush_denormals": True},
]


def ordinary(which: str) -> tuple[Any, dict[str, Any]]:
    """A function that C calls, and arguments of a call."""
    function: Any = kernel("gru").functions[which]
    call = given(function.function)
    taught(function, call)
    return function, call


def spoilt(results: Any) -> dict[str, Any]:
    """Arrays like those of a call, which it has to write to."""
    found = results._asdict()
    return {n: np.full_like(a, np.nan) for n, a in found.items() if isinstance(a, np.ndarray)}


def require_written(function: Any, call: dict[str, Any], out: Any) -> None:
    """C writes to the arrays that are given, and returns these."""
    own = out if isinstance(out, dict) else dict(zip(function.result._fields, out, strict=False))
    found, in_c = called(function, {**call, "out": out})
    assert in_c
    require_same(found, by_python(function, call))
    for name, array in own.items():
        assert array is None or getattr(found, name) is array


@pytest.mark.parametrize("which", FUNCTIONS)
def test_results_are_written_where_the_caller_says(which: str) -> None:
    function, call = ordinary(which)
    out = spoilt(by_python(function, call))
    require_written(function, call, out)
    require_written(function, call, tuple(spoilt(by_python(function, call)).values()))
    name = next(iter(out))
    require_written(function, call, {name: np.full_like(out[name], np.nan)})
    require_written(function, call, {name: None})
    require_written(function, call, {})
    require_written(function, call, (*[None] * (len(out) - 1), out[[*out][-1]]))
    if "saved" not in function.result._fields:
        require_written(function, call, by_python(function, call))  # what an earlier call gave


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("batch_first", [False, True])
def test_options_write_there_too(options: dict[str, Any], batch_first: bool) -> None:
    function, call = ordinary("sequence_forward")
    swapped = {"x": np.ascontiguousarray(call["x"].swapaxes(0, 1)), "batch_first": True}
    call |= swapped if batch_first else {}
    tables = {n: v.swapaxes(0, 1) for n, v in options.items() if n in ("mask", "reset")}
    call |= {**options, **tables} if batch_first else options
    require_written(function, call, spoilt(by_python(function, call)))


def test_the_gradients_of_a_run_are_written_there() -> None:
    function, call = ordinary("sequence_backward")
    forward, own = ordinary("sequence_forward")
    results = forward(save=True, **own)
    call = {n: a for n, a in call.items() if n not in results.saved._fields} | {
        "h": results.h,
        "saved": results.saved,
    }
    require_written(function, call, spoilt(by_python(function, call)))
    rows = {**call, "per_row": True}
    require_written(function, rows, spoilt(by_python(function, rows)))
    for read in (*results.saved, results.h, call["d_h"]):
        require_refused(function, {**call, "out": {"d_h_prev": read[0]}})


def require_refused(function: Any, call: dict[str, Any]) -> None:
    """C leaves a call alone, and Python says what is wrong with it."""
    found, in_c = called(function, call)
    assert not in_c
    assert isinstance(found, Exception)
    require_same(found, by_python(function, call))


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("which", ["forward", "sequence_forward"])
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_other_arrays_are_pythons_to_write_to(which: str, kind: str) -> None:
    function, call = ordinary(which)
    expected = by_python(function, call)
    name = function.result._fields[0]
    array = ARRAYS[kind](np.full_like(getattr(expected, name), 7))
    found, in_c = called(function, {**call, "out": {name: array}})
    assert in_c == (kind in AS_GOOD or array is None)
    if in_c:
        assert array is None or getattr(found, name) is array
        require_same(found, expected)
    else:
        require_same(found, by_python(function, {**call, "out": {name: array}}))


def _twice(call: dict[str, Any], results: dict[str, Any]) -> Any:
    flat = np.zeros(results["h"].size + 1, np.float32)
    rows = results["h_last"].size
    return {"h": flat[:-1].reshape(results["h"].shape), "h_last": flat[-rows:].reshape(2, 4)}


def _over_a_view(call: dict[str, Any], results: dict[str, Any]) -> Any:
    memory = np.zeros((4, *call["x"].shape[1:]), np.float32)
    call["x"] = memory[:0:-1]  # from its last row back
    return {"h_last": memory.ravel()[-8:].reshape(2, 4)}


def _over_a_table(call: dict[str, Any], results: dict[str, Any]) -> Any:
    call["mask"] = np.ones((3, 8), bool)[:, ::4]
    return {"h_last": call["mask"].base.view(np.uint8).ravel()[-8:]}


REFUSED: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "an argument": lambda call, results: {"h_last": call["h_prev"]},
    "a part of an argument": lambda call, results: {"h_last": call["u_z"][:2]},
    "an argument from its end": _over_a_view,
    "two results in one": lambda call, results: {"h": results["h"], "h_last": results["h"][-1]},
    "two results side by side": _twice,
    "an unknown name": lambda call, results: {"h": results["h"], "y": results["h_last"]},
    "a name that is none": lambda call, results: {1: results["h"]},
    "a name that no text has": lambda call, results: {"\ud800": results["h"]},
    "a name that goes on": lambda call, results: {"h\0": results["h"]},
    "names that go on": lambda call, results: {f"h\0{k}": results["h"].copy() for k in range(999)},
    "what is saved": lambda call, results: {"z": results["h"]},
    "too many": lambda call, results: (*results.values(), None),
    "too few": lambda call, results: (results["h"],),
    "a list": lambda call, results: [*results.values()],
    "an array": lambda call, results: results["h"],
    "another shape": lambda call, results: {"h": results["h"][:-1], "h_last": results["h_last"]},
    "another dtype": lambda call, results: {"h": results["h"].astype(float)},
    "memory of a table": _over_a_table,
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_be_written_to_is_pythons(how: str) -> None:
    function, call = ordinary("sequence_forward")
    results = spoilt(by_python(function, call))
    require_refused(function, {**call, "out": REFUSED[how](call, results)} | call)


@pytest.mark.parametrize("options", [{"last_only": True}, {"outputs": ()}], ids=["last", "none"])
def test_a_result_that_is_not_formed_is_pythons(options: dict[str, Any]) -> None:
    function, call = ordinary("sequence_forward")
    results = spoilt(by_python(function, call))
    require_refused(function, {**call, **options, "out": {"h": results["h"]}})


def test_nothing_of_what_is_written_to_leaks() -> None:
    function, call = ordinary("sequence_forward")
    out = spoilt(by_python(function, call))
    pair = tuple(out.values())
    bad = {**out, "h_last": call["h_prev"]}

    def counts() -> list[int]:
        return [sys.getrefcount(each) for each in (out, pair, bad, *pair)]

    for each in (out, pair):
        function(**call, out=each)
    before = counts()
    for _ in range(50):
        for each in (out, pair):
            function(**call, out=each)
        with pytest.raises(Exception, match="shares memory"):
            function(**call, out=bad)
    assert counts() == before

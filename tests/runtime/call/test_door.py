"""Calls that C makes: as Python makes them, or not at all.

Each test compares a call that C may make with the same call made by Python. What is out of the
ordinary has to come back from C untouched, so that Python makes it, or says what is wrong with it.
"""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.build import extension
from cellgen.runtime.call import compiled, door
from cellgen.runtime.call import function as function_module
from cellgen.runtime.call.bound import BoundCall
from cellgen.runtime.call.compiled import EXTENSION, Extension
from cellgen.runtime.call.door import Door
from cellgen.runtime.call.forward import SequenceForward
from cellgen.runtime.call.function import KernelFunction
from cellgen.runtime.call.saved import Saved, make_saved
from cellgen.runtime.call.workspace import per_thread
from cellgen.runtime.host import threads as threads_of_calls
from cellgen.runtime.kernel import Kernel
from tests.awkward_cells import cell_of_states
from tests.cover import in_turn
from tests.within import door_of, kernel_behind, lock_of, set_door

SIZES = {"T": 3, "B": 2, "I": 5, "H": 4}
INTERFACES = sorted((Path(__file__).parents[3] / "generated").glob("*/interface.json"))
NAMES = ("gru", "lstm", "antisymmetric_rnn")
"""Gates in one weight and in many, one state and two, run-time scalars."""


@pytest.fixture(autouse=True)
def extension_in_c(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let this process make calls in C from the second of a kind on."""
    monkeypatch.setattr(EXTENSION, "module", loaded())
    return loaded()


@cache
def loaded() -> ModuleType:
    return Extension().require()


@cache
def kernel(name: str) -> Kernel:
    return cellgen.load(name)


def given(function: Function, dtype: Any = np.float32, **sizes: int) -> dict[str, Any]:
    """Arrays for every argument of a function."""
    lengths, rng = {**SIZES, **sizes}, np.random.default_rng(3)
    return {
        a.name: rng.normal(size=[axis_length(x, lengths) for x in a.shape]).astype(dtype)
        for a in function.arguments
        if not a.is_scalar
    }


class Watched(Door):
    """A door that tells which calls C made; one that is closed lets it make none."""

    def __init__(self, function: Any, call: dict[str, Any], *, closed: bool = False) -> None:
        self.calls: list[bool] = []
        self._closed, self.own_door = closed, door_of(function)
        packed = getattr(call.get("packed"), "doors", {})
        self.own_door = (
            packed.get(function, self.own_door) if call.get("packed") is not None else self.own_door
        )

    @property
    def make(self) -> Any:
        """As the door's own."""
        make = self.own_door.make
        if make is None or self._closed:
            return None

        def watched(*args: object) -> Any:
            found = make(*args)
            self.calls.append(found is not None)
            return found

        return watched

    @make.setter
    def make(self, _: object) -> None:
        pass

    def open(self, packed: Any = None) -> None:
        """As the door's own."""
        self.own_door.open(packed)


def through(function: Any, call: dict[str, Any], *, closed: bool = False) -> tuple[Any, bool]:
    """Make a call; return its results or its error, and whether C made it."""
    watched, own = Watched(function, call, closed=closed), door_of(function)
    doors = getattr(call.get("packed"), "doors", None)
    if doors is not None:
        watched.own_door = doors.setdefault(
            function, Door(kernel_behind(function), function.function, function.result)
        )
        doors[function] = watched
    else:
        set_door(function, watched)
    try:
        found: Any = function(**call)
    except Exception as error:
        found = error
    finally:
        set_door(function, own)
        if doors is not None:
            doors[function] = watched.own_door
    return found, bool(watched.calls) and watched.calls[-1]


def called(function: Any, call: dict[str, Any]) -> tuple[Any, bool]:
    """Make a call by C if C makes it."""
    return through(function, call)


def by_python(function: Any, call: dict[str, Any]) -> Any:
    """Make a call as Python does."""
    return through(function, call, closed=True)[0]


def taught(function: Any, call: dict[str, Any]) -> None:
    """Make a call twice: C makes the second one of a function."""
    function(**call)
    assert called(function, call)[1], "C does not make an ordinary call"


def require_same(found: Any, expected: Any) -> None:
    """Two outcomes are alike in everything that a caller sees."""
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
        return
    assert found._fields == expected._fields
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if isinstance(other, Saved):
            assert one.run._replace(options=None) == other.run._replace(options=None)
            for name, value in vars(other.run.options).items():
                mine = getattr(one.run.options, name)
                assert type(mine) is type(value), name
                assert np.array_equal(mine, value), name
            assert one._fields == other._fields
            assert [a.tobytes() for a in one] == [a.tobytes() for a in other]
            assert [(a.dtype, a.shape) for a in one] == [(a.dtype, a.shape) for a in other]
        elif other is not None:
            assert (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
            assert one.flags.writeable
            assert one.tobytes() == other.tobytes()


def functions(name: str) -> Iterator[Any]:
    """The functions of a cell that need nothing of another one."""
    for function in kernel(name).functions.values():
        if function.__name__ != "sequence_backward":
            yield function


T, B = SIZES["T"], SIZES["B"]
HALVES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
STEPS: list[dict[str, Any]] = [
    {},
    {"reverse": True},
    {"flush_denormals": True},
    {"lengths": np.array([T, 1])},
    {"mask": np.array([[True, False], [False, True], [True, True]])},
    {"reset": np.array([[False, True], [False, False], [True, False]])},
    {"mask": np.array([[True, False], [False, True], [True, True]]), "zero_output_for_mask": True},
    {"mask": np.ones((B, T), bool).T, "reverse": True, "lengths": np.array([2, 0])},
    {"products": "bf16"},
]
"""Options of which steps are valid, and how they are computed."""
SHOWN: list[dict[str, Any]] = [
    {},
    {"every": 2},
    {"last_only": True},
    {"outputs": ()},
    {"outputs": ("h",)},
    {"outputs": ("h",), "last_only": True},
    {"checkpoint": 2},
]
"""Options of what a forward pass shows and keeps; without ``save`` the last says nothing."""


def first_axes(call: dict[str, Any], function: Any) -> dict[str, Any]:
    """The same call with batches first."""
    timed = {a.name for a in function.function.arguments if a.over_time} | {"mask", "reset"}
    swapped = {n: a.swapaxes(0, 1).copy() if n in timed else a for n, a in call.items()}
    return {**swapped, "batch_first": True}


# --- the same results ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c_gives_the_results_that_python_gives(name: str, dtype: type) -> None:
    for function in functions(name):
        call = given(function.function, dtype)
        taught(function, call)
        for _ in range(2):
            call = {n: a + np.float32(0.25) for n, a in call.items()}
            found, in_c = called(function, call)
            assert in_c
            require_same(found, by_python(function, call))


@pytest.mark.slow
def test_c_gives_the_results_that_python_gives_for_every_cell() -> None:
    for folder in sorted((Path(__file__).parents[3] / "generated").glob("*/interface.json")):
        for function in functions(folder.parent.name):
            call = given(function.function, B=2, I=4, H=4, D=3, K=2, N=2, P=3, M=5, R=2)
            taught(function, call)
            require_same(called(function, call)[0], by_python(function, call))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_16_bits_are_widened_and_rounded_as_in_python(
    name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(kernel(name).forward, given(kernel(name).forward.function))
    for steps in ({}, *STEPS[3:5], {"products": "bf16"}, {"products": "full"}):
        for more in ({}, *SHOWN[1:3], {"save": True}, {"products": "int8"}):
            function: Any = kernel(name).functions["sequence_forward"]
            call = {**given(function.function, dtype), **steps, **more, "threads": 1}
            for each in (call, first_axes(call, function)):
                expected = by_python(function, each)
                found, in_c = called(function, each)
                assert in_c, (steps, more)
                require_same(found, expected)
    step: Any = kernel(name).functions["forward"]
    back: Any = kernel(name).functions["backward"]
    for function in (step, back):
        call = given(function.function, dtype)
        expected = by_python(function, call)
        with monkeypatch.context() as patch:
            patch.setattr(function_module, "converted", None)  # which is Python's
            require_same(function(**call), expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_16_bits_are_those_of_python(name: str, dtype: Any) -> None:
    backward: Any = kernel(name).functions["sequence_backward"]
    function: Any = kernel(name).functions["sequence_forward"]
    for steps in (*STEPS[:5], {"products": "full"}):
        call = given(function.function, dtype)
        run = function(**call, **steps, save=True, threads=1)
        for changes in ({}, {"per_row": True}, {"every": 2}, {"products": "full"}):
            wanted = upstream_of(backward, call, run, dtype=dtype, **changes)
            expected = by_python(backward, wanted)
            found, in_c = called(backward, wanted)
            assert in_c, (steps, changes)
            require_same(found, expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results_of_16_bits_are_written_where_out_says(dtype: Any) -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(function.function, dtype), "threads": 1}
    fresh = function(**call)
    taught(function, call)
    for dims in (T, T + 1):
        out = {"h": np.zeros((dims, B, 4), dtype), "h_last": np.zeros((B, 4), dtype)}
        found, in_c = called(function, {**call, "out": out})
        assert in_c == (dims == T)
        if in_c:
            assert found.h is out["h"]
            assert found.h_last is out["h_last"]
            assert [a.tobytes() for a in found[:2]] == [a.tobytes() for a in fresh[:2]]


def test_numbers_of_16_bits_keep_their_extremes() -> None:
    """Infinities, subnormal numbers, and what is beyond the range of float16."""
    function: Any = kernel("gru").functions["forward"]
    numbers = np.array([np.inf, -np.inf, 6e-8, -6e-8, 65504, 1e-40, 0.0, -0.0], np.float32)
    for dtype in HALVES:
        call = given(function.function, dtype, I=8, H=8)
        with np.errstate(over="ignore"):
            call["x"][0], call["h_prev"][0] = numbers.astype(dtype), numbers[::-1].astype(dtype)
        expected = by_python(function, call)
        require_same(called(function, call)[0], expected)


def test_scalars_left_out_and_given_enter_the_struct() -> None:
    for function in functions("antisymmetric_rnn"):
        plain = given(function.function)
        for scalars in ({}, {"eps": 0.3}, {"gam": 0.7, "eps": 0.2}, {"eps": float("nan")}):
            taught(function, {**scalars, **plain})
            call = {**{n: value / 2 for n, value in scalars.items()}, **plain}
            found, in_c = called(function, call)
            assert in_c
            require_same(found, by_python(function, call))


@pytest.mark.parametrize("name", NAMES)
def test_absent_gradients_and_ignored_arguments_are_as_python_has_them(name: str) -> None:
    function: Any = kernel(name).functions["backward"]
    call = given(function.function, B=2, I=3, H=4)
    optional = [a.name for a in function.function.arguments if a.optional or not a.used]
    assert optional
    function(**call)
    for left in optional:
        for change in ({left: None}, {}):
            less = {**{n: a for n, a in call.items() if n != left}, **change}
            expected = by_python(function, less)
            if isinstance(expected, Exception):
                continue  # it alone tells a dimension
            found, in_c = called(function, less)
            assert in_c
            require_same(found, expected)
        wrong = {**call, left: call[left][..., :-1].copy()}
        require_same(called(function, wrong)[0], by_python(function, wrong))


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_teams_are_those_of_pythons_calls(
    threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_of_calls, "is_crowding", True)
    function: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(function.function, B=5), "threads": threads}
    taught(function, call)
    found, in_c = called(function, call)
    assert in_c
    require_same(found, by_python(function, call))


@pytest.mark.parametrize("steps", STEPS, ids=lambda options: ", ".join(options) or "all steps")
@pytest.mark.parametrize("name", NAMES)
def test_options_mean_what_they_mean_in_python(name: str, steps: dict[str, Any]) -> None:
    function: Any = kernel(name).functions["sequence_forward"]
    function(**given(function.function))
    for shown in SHOWN:
        for save in (False, True):
            call = {**given(function.function), **steps, **shown, "save": save, "threads": 1}
            for each in (call, first_axes(call, function)):
                expected = by_python(function, each)  # has as much workspace as it takes
                found, in_c = called(function, each)
                assert in_c or (save and shown and "checkpoint" not in shown), each.keys()
                require_same(found, expected)


def test_c_forms_a_part_of_more_results_than_bits_of_a_number() -> None:
    """Python makes the calls that leave out an output beyond them."""
    function: Any = cellgen.compile(cell_of_states(64)).functions["sequence_forward"]
    call = given(function.function)
    taught(function, call)
    for shown in ({"outputs": ("h3",)}, {"outputs": ()}, {"last_only": True}):
        found, in_c = called(function, {**call, **shown})
        assert not in_c
        require_same(found, by_python(function, {**call, **shown}))


@pytest.mark.parametrize("steps", STEPS, ids=lambda options: ", ".join(options) or "all steps")
@pytest.mark.parametrize("name", NAMES)
def test_a_backward_pass_goes_by_its_run(name: str, steps: dict[str, Any]) -> None:
    backward: Any = kernel(name).functions["sequence_backward"]
    function: Any = kernel(name).functions["sequence_forward"]
    backward(**upstream_of(backward, *run_of(function, steps, {})))
    for changes in ({}, {"window": 2}, {"per_row": True}, {"per_row": "norms"}, {"every": 2}):
        call = upstream_of(backward, *run_of(function, steps, {}), **changes)
        expected = by_python(backward, call)
        found, in_c = called(backward, call)
        hard = "norms" in changes.values() or "products" in steps
        assert in_c or hard, (steps, changes)
        require_same(found, expected)
    for stated in ({**steps, "reverse": True}, {"lengths": np.array([T, T])}, {"eps": 0.9}):
        call = {**upstream_of(backward, *run_of(function, steps, {})), **stated}
        require_same(called(backward, call)[0], by_python(backward, call))


@pytest.mark.parametrize(
    ("steps", "name", "dtype"),
    in_turn(
        {f"{', '.join(options) or 'all steps'} {k}": options for k, options in enumerate(STEPS)},
        NAMES,
        {np.dtype(kind).name: kind for kind in (np.float32, np.float64, *HALVES)},
    ),
)
def test_a_backward_pass_goes_on_from_checkpoints(
    name: str, steps: dict[str, Any], dtype: Any
) -> None:
    if dtype == np.float64 and "products" in steps:
        return
    backward: Any = kernel(name).functions["sequence_backward"]
    function: Any = kernel(name).functions["sequence_forward"]
    for more in ({"checkpoint": 1}, {"checkpoint": 2, "every": 2}, {"checkpoint": 5}):
        call = given(function.function, dtype)
        run = function(**call, **steps, **more, save=True, threads=1)
        kept = {n: value for n, value in more.items() if n == "every"}
        wanted = upstream_of(backward, call, run, dtype=dtype, **kept)
        for changes in ({}, {"window": 2}, {"per_row": True}, {"h": None}):
            each = {**wanted, **changes}
            expected = by_python(backward, each)
            found, in_c = called(backward, each)
            assert in_c, (steps, more, changes)
            require_same(found, expected)


@pytest.mark.parametrize("tables", [{}, {"mask": np.ones((T, B), bool)}], ids=str)
def test_checkpoints_of_a_masked_run_hold_outputs_that_are_no_states(tables: Any) -> None:
    function: Any = kernel("sru").functions["sequence_forward"]
    call = given(function.function)
    function(**call)
    function(**call, checkpoint=2, save=True)  # of calls alike but for tables C has made one
    each = {**call, **tables, "checkpoint": 2, "save": True, "threads": 1}
    found, in_c = called(function, each)
    assert in_c
    assert ("h_prev" in found.saved._fields) == bool(tables)
    require_same(found, by_python(function, each))


def test_checkpoints_of_another_call_are_pythons() -> None:
    backward: Any = kernel("gru").functions["sequence_backward"]
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    run = function(**call, checkpoint=2, save=True)
    wanted = upstream_of(backward, call, run)
    taught(backward, wanted)
    (states,) = run.saved

    def of(*arrays: np.ndarray, **options: Any) -> Any:
        own = run.saved.run
        own = own._replace(options=replace(own.options, **options))
        return make_saved(run.saved._fields, arrays, own)

    others = [
        of(states.astype(np.float64)),
        of(states[:, :, ::2]),
        of(np.asfortranarray(states)),
        of(states, states),
        of(states, checkpoint=1),
        of(states, checkpoint=20),
    ]
    for saved in (*others, run.saved._replace(h_prev=states)):
        changed = {**wanted, "saved": saved}
        assert not called(backward, changed)[1]
    for left in ("h_prev", "x", "b_z"):
        less = {n: a for n, a in wanted.items() if n != left}
        found, in_c = called(backward, less)
        assert not in_c
        require_same(found, by_python(backward, less))


def test_options_that_are_none_are_as_the_run_had_them() -> None:
    backward: Any = kernel("gru").functions["sequence_backward"]
    function: Any = kernel("gru").functions["sequence_forward"]
    taught(backward, upstream_of(backward, *run_of(function, {}, {})))
    call = given(function.function, T=3, B=3)
    run = function(**call, batch_first=True, save=True)
    wanted = {**given(backward.function, T=3, B=3), **call, "h": run.h, "saved": run.saved}
    wanted = {n: a for n, a in wanted.items() if n not in run.saved._fields}
    expected = by_python(backward, wanted)
    for names in (("batch_first",), ("every",), ("every", "batch_first")):
        stated = {**wanted, **dict.fromkeys(names)}
        found, in_c = called(backward, stated)
        assert in_c
        require_same(found, expected)
        require_same(by_python(backward, stated), expected)


def test_products_of_a_backward_pass_are_those_that_it_has() -> None:
    backward: Any = kernel("gru").functions["sequence_backward"]
    function: Any = kernel("gru").functions["sequence_forward"]
    wanted = upstream_of(backward, *run_of(function, {}, {}))
    taught(backward, wanted)
    for products, is_cs in (("full", True), ("bf16", True), ("int8", False)):
        stated = {**wanted, "products": products}
        expected = by_python(backward, stated)
        found, in_c = called(backward, stated)
        assert in_c == is_cs
        assert isinstance(found, ArgumentError) != is_cs
        require_same(found, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("products", ["full", "bf16"])
def test_a_run_is_made_again_with_its_own_products(name: str, products: str) -> None:
    """Weights of 16 bits are widened for either pass that does not read them as they are."""
    backward: Any = kernel(name).functions["sequence_backward"]
    function: Any = kernel(name).functions["sequence_forward"]
    dtype = HALVES[0]
    call = {n: a * dtype.type(0.25) for n, a in given(function.function, dtype).items()}
    of_steps, again = (
        function(**call, products=products, save=True, threads=1, **more)
        for more in ({}, {"checkpoint": 1})
    )
    for own in ("full", "bf16"):
        wanted = upstream_of(backward, call, of_steps, dtype=dtype, products=own)
        expected = by_python(backward, wanted)
        wanted |= {"saved": again.saved}
        backward(**wanted)
        found, in_c = called(backward, wanted)
        assert in_c
        require_same(found, by_python(backward, wanted))
        require_same(backward.bind(**wanted)(), found)
        for one, other in zip(found, expected, strict=True):
            scale = np.abs(other.astype(float)).max() + 1
            assert np.abs(one.astype(float) - other.astype(float)).max() <= scale / 32


def test_lengths_of_a_run_are_those_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others write to them while it runs."""
    of: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(of.function, T=2000, H=8), "save": True, "threads": 1}
    lengths = np.array([2000, 3])

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        lengths[...] = 1
        return np.empty(shape, dtype)

    monkeypatch.setattr(door, "empty", empty)
    function = SequenceForward(kernel("gru"), of.function)
    function(**call)
    expected = by_python(function, {**call, "lengths": lengths.copy()})
    found, in_c = called(function, {**call, "lengths": lengths})
    assert in_c
    assert lengths.tolist() == [1, 1]
    require_same(found, expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *HALVES], ids=str)
@pytest.mark.parametrize("checkpoint", [0, 2])
def test_results_are_not_written_over_what_a_run_saved(dtype: Any, checkpoint: int) -> None:
    backward: Any = kernel("gru").functions["sequence_backward"]
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function, dtype)
    run = function(**call, save=True, threads=1, checkpoint=checkpoint)
    wanted = upstream_of(backward, call, run, dtype=dtype)
    backward(**wanted)
    bits = run.saved[0].view(np.uint8).reshape(-1)
    own = bits[: call["h_prev"].nbytes].view(dtype).reshape(call["h_prev"].shape)
    for out in ({"d_h_prev": own}, (None, own, *[None] * (len(backward.result._fields) - 2))):
        found, in_c = called(backward, {**wanted, "out": out})
        assert not in_c
        assert isinstance(found, ArgumentError)
        assert re.search(r"out d_h_prev shares memory with the argument (saved )?", str(found))
        require_same(by_python(backward, {**wanted, "out": out}), found)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shown", [{"every": 2}, {"outputs": ()}, {"last_only": True}])
def test_runs_that_show_a_part_of_what_they_save_are_cs(
    shown: dict[str, Any], batch_first: bool
) -> None:
    backward: Any = kernel("gru").functions["sequence_backward"]
    function: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(function.function, T=B, B=B), **shown, "batch_first": batch_first}
    call |= {"save": True, "threads": 1, "lengths": np.array([B, 1], np.int32)}
    taught(function, {n: a for n, a in call.items() if n not in shown})
    expected = by_python(function, call)
    found, in_c = called(function, call)
    assert in_c
    require_same(found, expected)
    taught(backward, upstream_of(backward, *run_of(function, {}, {})))
    rest = {n: a for n, a in call.items() if n not in ("save", "threads", "batch_first", "lengths")}
    arrays = {n: a for n, a in rest.items() if n not in shown}
    wanted = {**arrays, "d_h_last": found.h_last, "saved": found.saved, "threads": 1}
    if found.h is not None:
        wanted |= {"h": found.h, "d_h": found.h}
    of_python = by_python(backward, {**wanted, "saved": expected.saved})
    mine, in_c = called(backward, wanted)
    assert in_c
    require_same(mine, of_python)


@pytest.mark.parametrize("which", ["backward", "sequence_backward"])
def test_gradients_that_are_wanted_are_cs(which: str) -> None:
    function: Any = kernel("gru").functions[which]
    call = {**given(function.function), **({"threads": 1} if which != "backward" else {})}
    names = function.result._fields
    taught(function, call)
    for wanted in ((), names[:1], names[1:3], names, names[::-1], names[:1] * 2, None):
        stated = {**call, "gradients": wanted}
        found, in_c = called(function, stated)
        assert in_c, wanted
        require_same(found, by_python(function, stated))
    own = np.empty_like(found[0])
    found, in_c = called(function, {**call, "gradients": names[:1], "out": {names[0]: own}})
    assert in_c
    assert found[0] is own
    for wanted in ([*names[:1]], ("x",), names[0], names[1:2]):
        stated = {**call, "gradients": wanted, "out": {names[0]: own}}
        found, in_c = called(function, stated)
        assert not in_c, wanted
        require_same(found, by_python(function, stated))


@pytest.mark.parametrize("products", ["full", "bf16"])
@pytest.mark.parametrize("which", ["sequence_forward", "sequence_backward"])
def test_weights_that_are_packed_are_cs(which: str, products: str) -> None:
    function: Any = kernel("gru").functions[which]
    call = {**given(function.function), "threads": 1}
    weights = {a.name for a in function.function.arguments if a.is_weight}
    packed = kernel("gru").pack(**{n: call[n] for n in weights}, products=products)
    alone = {**{n: a for n, a in call.items() if n not in weights}, "packed": packed}
    expected = by_python(function, {**call, "products": products})
    function(**alone)
    found, in_c = called(function, alone)
    assert in_c
    require_same(found, expected)
    other = "bf16" if products == "full" else "full"
    found, in_c = called(function, {**alone, "products": other})
    assert not in_c
    assert isinstance(found, ArgumentError)


def run_of(function: Any, steps: dict[str, Any], more: dict[str, Any]) -> tuple[Any, Any]:
    call = given(function.function)
    return call, function(**call, **steps, **more, save=True)


def upstream_of(
    backward: Any, call: Any, found: Any, dtype: Any = np.float32, **changes: Any
) -> dict[str, Any]:
    """The call of a backward pass of a run."""
    every = changes.get("every", 1)
    all_of = {**call, **found._asdict(), **given(backward.function, dtype)}
    arrays = {**all_of, **call, **{n: a for n, a in found._asdict().items() if a is not None}}
    taken = {a.name: a for a in backward.function.arguments if not (a.saved or a.is_scalar)}
    arguments = {n: arrays[n] for n in taken}
    for n, item in taken.items():
        if item.optional and item.over_time:
            arguments[n] = arguments[n][every - 1 :: every].copy()
    return {**arguments, "saved": found.saved, "threads": 1, **changes}


@pytest.mark.slow
@pytest.mark.parametrize("name", [folder.parent.name for folder in INTERFACES])
def test_every_cell_has_every_option(name: str) -> None:
    sizes = {"B": 2, "I": 4, "H": 4, "D": 3, "K": 2, "N": 2, "P": 3, "M": 5, "R": 2}
    function: Any = kernel(name).functions["sequence_forward"]
    plain = {n: np.abs(a) * np.float32(0.1) for n, a in given(function.function, **sizes).items()}
    function(**plain)
    for steps in STEPS:
        for shown in SHOWN:
            if "outputs" in shown and "h" not in shown["outputs"] + tuple(function.result._fields):
                continue
            for save in (False, True):
                call = {**plain, **steps, **shown, "save": save, "threads": 1}
                require_same(called(function, call)[0], by_python(function, call))


def test_options_that_are_none_are_pythons() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(function.function), "reverse": False, "mask": None, "every": 1}
    taught(function, call)
    changes: list[dict[str, Any]] = [
        {"reverse": None},
        {"reverse": 0},
        {"every": 0},
        {"every": True},
        {"every": 2, "last_only": True},
        {"products": "int8", "save": True},
        {"products": "half"},
        {"outputs": ["h"]},
        {"outputs": ("x",)},
        {"lengths": np.array([T + 1, 0])},
        {"lengths": np.array([-1, 0])},
        {"lengths": [T, 1]},
        {"lengths": np.array([T, 1, 1])},
        {"lengths": np.array([T, 1.0])},
        {"mask": np.ones((T, B), np.uint8)},
        {"mask": np.ones((T + 1, B), bool)},
        {"checkpoint": -1},
        {"memory_limit": 1 << 30},
    ]
    for changed in changes:
        found, in_c = called(function, {**call, **changed})
        assert not in_c, changed
        require_same(found, by_python(function, {**call, **changed}))


def test_steps_and_rows_may_lie_anywhere() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    taught(function, call)
    x = call["x"]
    wide = np.zeros((2 * T, 2 * B, SIZES["I"]), np.float32)
    for lies in (x[::-1], x[:, ::-1], np.broadcast_to(x[:1], x.shape), wide[::2, ::2]):
        found, in_c = called(function, {**call, "x": lies})
        assert in_c
        require_same(found, by_python(function, {**call, "x": lies}))


@pytest.mark.parametrize("name", ["gru", "antisymmetric_rnn"])
def test_packed_weights_are_ordinary_too(name: str) -> None:
    function: Any = kernel(name).functions["sequence_forward"]
    call = given(function.function)
    scalars = {} if name == "gru" else {"eps": 0.3}
    weights = {n: call.pop(n) for n in weights_of(name)}
    one, other = (kernel(name).pack(**weights, **scalars) for _ in range(2))
    for packed in (one, other, one):
        taught(function, {**call, "packed": packed})
        call = {n: a + np.float32(0.25) for n, a in call.items()}
        found, in_c = called(function, {**call, "packed": packed})
        assert in_c
        require_same(found, by_python(function, {**call, "packed": packed}))
        require_same(found, by_python(function, {**call, **weights, **scalars}))
    first, array = next(iter(weights.items()))
    changes: list[dict[str, Any]] = [
        {"packed": 1},
        {"packed": kernel("lstm").pack(**weights_of("lstm"))},
        {first: array},
        {first: array.copy()},
        {"x": call["x"][..., :-1].copy()},
        {"products": "bf16"},
    ]
    for change in changes:
        changed = {**call, "packed": one, **change}
        found, in_c = called(function, changed)
        assert not in_c
        require_same(found, by_python(function, changed))
    found, in_c = called(function, {**call, "packed": one, "save": True, "reverse": True})
    assert in_c
    require_same(found, by_python(function, {**call, "packed": one, "save": True, "reverse": True}))
    assert called(function, {**call, "packed": one})[1]
    array.shape = (*array.shape[::-1], 1)
    found, in_c = called(function, {**call, "packed": one})
    assert not in_c
    assert isinstance(found, ArgumentError)


def test_calls_that_python_makes_make_no_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    packed = kernel("gru").pack(**weights_of("gru"))
    taught(function, call)
    made: list[object] = []
    monkeypatch.setattr(Door, "_made", lambda *parts: made.append(parts))
    weights = {n: a for n, a in packed.arguments.items() if n in call}
    expected = by_python(function, call)
    for _ in range(3):
        require_same(function(**{**call, **weights}, packed=packed), expected)
    assert not made
    assert not packed.doors


def test_zeros_of_both_signs_are_two_scalars() -> None:
    function: Any = cellgen.load("antisymmetric_rnn").functions["sequence_forward"]
    call = given(function.function)
    for _ in range(2):  # by Python, then by C
        for eps in (0.0, -0.0):
            scalars = dict(function(**call, eps=eps, save=True).saved.run.scalars)
            assert str(scalars["eps"]) == str(eps)
    assert called(function, {**call, "eps": 0.0, "save": True})[1]
    known = len(function._described)
    for _ in range(3):
        function(**call, eps=float("nan"), save=True)
    assert len(function._described) == known + 1


def weights_of(name: str) -> dict[str, Any]:
    function = kernel(name).functions["sequence_forward"].function
    weights = {a.name for a in function.arguments if a.is_weight}
    return {n: array for n, array in given(function).items() if n in weights}


def test_packed_weights_go_when_nobody_has_them() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    weights = {n: call.pop(n) for n in weights_of("gru")}
    packed = kernel("gru").pack(**weights)
    taught(function, {**call, "packed": packed})
    gone = weakref.ref(packed), weakref.ref(weights.popitem()[1])
    weights.clear()
    del packed
    assert [each() for each in gone] == [None, None]


def test_a_call_of_other_sizes_is_cs_at_once() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    taught(function, given(function.function))
    for rows in range(1, 70, 7):
        call = given(function.function, B=rows, T=rows % 5 + 1)
        expected = by_python(function, call)  # has as much workspace as it takes
        found, in_c = called(function, call)
        assert in_c
        require_same(found, expected)


def test_names_may_be_made_at_run_time_and_stand_in_any_order() -> None:
    function: Any = kernel("gru").functions["forward"]
    call = given(function.function)
    taught(function, call)
    fresh = {"".join(name): array for name, array in call.items()}
    assert called(function, fresh)[1]
    turned = dict(reversed(call.items()))
    assert called(function, turned)[1]


# --- what is out of the ordinary -----------------------------------------------------------------


class Sub(np.ndarray):
    """A subclass that says nothing of its own."""


class Name(str):
    """A name that is equal to nothing."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class Convertible:
    """What becomes an array when asked."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


def misaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    made = raw[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def read_only(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.flags.writeable = False
    return made


def with_metadata(array: np.ndarray) -> np.ndarray:
    return array.astype(np.dtype(array.dtype, metadata={"unit": "m"}))


ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "Fortran order": np.asfortranarray,
    "a transposed view": lambda a: a.T.copy().T,
    "negative strides": lambda a: a[::-1],
    "gaps": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "swapped bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "swapped bytes, not converted": lambda a: a.view(a.dtype.newbyteorder()),
    "float16": lambda a: a.astype(np.float16),
    "float64": lambda a: a.astype(np.float64),
    "int32": lambda a: a.astype(np.int32),
    "complex": lambda a: a.astype(np.complex64),
    "objects": lambda a: a.astype(object),
    "structured": lambda a: a.view([("value", a.dtype)]),
    "bytes": lambda a: a.view(np.uint8),
    "0-d": lambda a: np.float32(1).reshape(()),
    "a scalar": lambda a: np.float32(1),
    "one axis more": lambda a: a[None],
    "one axis less": lambda a: a.ravel(),
    "many axes": lambda a: a.reshape(*(1,) * 29, *a.shape),
    "one row more": lambda a: np.concatenate([a, a[:1]]),
    "no rows": lambda a: a[:0],
    "huge": lambda a: np.broadcast_to(a[:1], (2**40, *a.shape[1:])),
    "huge and empty": lambda a: np.empty((0, 2**60), a.dtype),
    "a list": lambda a: a.tolist(),
    "a tuple": tuple,
    "None": lambda a: None,
    "a number": lambda a: 1.0,
    "text": lambda a: "x",
    "a subclass": lambda a: a.view(Sub),
    "a matrix": lambda a: np.asmatrix(a.reshape(len(a), -1)),
    "a mask": lambda a: np.ma.masked_array(a, a > 0),
    "records": lambda a: a.view(np.recarray),
    "__array__": Convertible,
    "a memoryview": memoryview,
    "misaligned": misaligned,
    "read-only": read_only,
    "metadata": with_metadata,
    "from a pickle": lambda a: pickle.loads(pickle.dumps(a)),
    "a view in the middle": lambda a: np.concatenate([a, a, a])[len(a) : 2 * len(a)],
}
AS_GOOD = {"read-only", "metadata", "from a pickle", "a view in the middle"}
"""What is ordinary: C makes these calls."""


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("which", ["forward", "sequence_forward"])
def test_other_arrays_are_pythons(which: str, kind: str) -> None:
    function: Any = kernel("gru").functions[which]
    call = given(function.function)
    taught(function, call)
    for name in ("x", "h_prev", next(a.name for a in function.function.arguments if a.is_weight)):
        other = {**call, name: ARRAYS[kind](call[name])}
        found, in_c = called(function, other)
        assert in_c or kind not in AS_GOOD, name
        assert not (in_c and isinstance(found, Exception))
        require_same(found, by_python(function, other))
    found, in_c = called(function, call)
    assert in_c  # what came between has changed nothing
    require_same(found, by_python(function, call))


@pytest.mark.parametrize("which", ["forward", "sequence_forward"])
def test_other_calls_are_pythons(which: str) -> None:
    function: Any = kernel("gru").functions[which]
    call = given(function.function)
    taught(function, call)
    first = next(iter(call))
    result = by_python(function, call)[0]
    changes: list[dict[Any, Any]] = [
        {"out": {function.result._fields[0]: result[..., :-1]}},
        {"out": {function.result._fields[0]: read_only(result)}},
        {"out": {function.result._fields[0]: call["h_prev"]}},
        {"out": []},
        {"x_": call[first]},
        {"gradients": []},
        {"gradients": ("h",)},
        {"threads": 0},
        {"threads": True},
        {"threads": "1"},
        {"save": 1},
        {"reverse": {}},
        {"mask": [[]]},
        {Name(first): call[first]},
    ]
    for change in changes:
        found, in_c = called(function, {**call, **change})
        assert not in_c, change
        require_same(found, by_python(function, {**call, **change}))
    for name in call:
        less = {n: a for n, a in call.items() if n != name}
        found, in_c = called(function, less)
        assert not in_c
        require_same(found, by_python(function, less))
        renamed = {Name(n) if n == name else n: a for n, a in call.items()}
        found, in_c = called(function, renamed)
        assert not in_c
        require_same(found, by_python(function, renamed))


def test_an_array_reshaped_in_place_is_looked_at_anew() -> None:
    function: Any = kernel("gru").functions["forward"]
    call = given(function.function)
    taught(function, call)
    call["x"].shape = call["x"].shape[::-1]
    found, in_c = called(function, call)
    assert not in_c
    assert isinstance(found, ArgumentError)


def test_calls_without_elements_are_pythons() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    for sizes in ({"B": 0}, {"T": 0, "B": 0}, {"H": 0}, {"I": 0}):
        call = given(function.function, **sizes)
        expected = by_python(function, call)
        for _ in range(3):
            require_same(called(function, call)[0], expected)


def test_scalars_that_are_no_floats_are_pythons() -> None:
    function: Any = kernel("antisymmetric_rnn").functions["forward"]
    call = {**given(function.function), "eps": 0.5}
    taught(function, call)
    for value in (1, True, np.float32(0.5), np.float64(0.5), np.array(0.5), None, "0.5", [0.5]):
        found, in_c = called(function, {**call, "eps": value})
        assert not in_c
        require_same(found, by_python(function, {**call, "eps": value}))


def test_a_long_call_stays_one_that_a_signal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgen.runtime.call.engine.LONG", 0)
    function: Any = kernel("lstm").functions["sequence_forward"]
    call = given(function.function, B=7)
    for _ in range(3):
        assert not called(function, call)[1]


def test_a_workspace_that_is_too_small_is_pythons() -> None:
    """Each thread has its own, and its first call finds none."""
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    taught(function, call)
    seen: list[bool] = []

    def work() -> None:
        seen.extend(called(function, call)[1] for _ in range(2))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]


def test_keywords_are_compared_by_identity_alone() -> None:
    """Python compares those of a call with the names of a signature by text, C with other names."""
    for name in NAMES:
        for function in kernel(name).functions.values():
            calls = [vars(kind).get("__call__") for kind in type(function).__mro__]
            written = [call for call in calls if isinstance(call, FunctionType)]
            assert written
            assert all(call.__code__.co_kwonlyargcount == 0 for call in written)
            for item in (*function.function.arguments, *function.function.results):
                assert item.name is sys.intern(item.name.encode().decode())


@pytest.mark.parametrize("which", ["forward", "sequence_forward"])
def test_bound_calls_are_cs_from_the_second_one_on(which: str) -> None:
    function: Any = kernel("gru").functions[which]
    call = given(function.function)
    taught(function, call)
    more = {"threads": 1} if which == "sequence_forward" else {}
    bound, expected = function.bind(**call, **more), by_python(function, call)
    assert type(bound) is BoundCall
    for _ in range(3):
        results = bound()
        assert results is bound.results
        require_same(results, expected)
        assert type(bound) is not BoundCall
        assert isinstance(bound, BoundCall)
        for result in results:
            if result is not None:
                result[...] = 0
    frames: list[str] = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name))
    bound()
    sys.setprofile(None)
    assert "__call__" not in frames
    with pytest.raises(TypeError, match="argument"):
        bound(1)
    assert lock_of(bound).acquire(blocking=False)
    with pytest.raises(CellgenError, match="running already"):
        bound()
    lock_of(bound).release()
    results[0][...] = 0
    thread = threading.Thread(target=bound)  # whose workspace is another
    thread.start()
    thread.join()
    require_same(bound.results, expected)
    require_same(bound(), expected)
    assert repr(bound).startswith("<bound call of gru.")
    with pytest.raises(CellgenError, match="neither pickled"):
        copy.copy(bound)


def test_bound_calls_are_c_s_from_when_there_is_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not look for it once it has been looked for."""
    looked = list[str]()
    monkeypatch.setattr(extension, "find", lambda _: looked.append("find"))
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    monkeypatch.setattr(compiled, "EXTENSION", found := Extension())
    monkeypatch.setenv(compiled.VARIABLE, "")
    function: Any = kernel("gru").functions["forward"]
    bound = function.bind(**given(function.function))
    for _ in range(3):
        bound()
    assert (looked, type(bound)) == (["find"], BoundCall)
    found.module = loaded()
    bound()
    assert isinstance(bound, loaded().Bound)


@pytest.mark.parametrize("how", [{"threads": 2}, {"dtype": np.float16}], ids=str)
def test_other_bound_calls_are_pythons(how: dict[str, Any]) -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function, how.get("dtype", np.float32))
    function(**call)
    bound = function.bind(**call, threads=how.get("threads", 1))
    for _ in range(3):
        require_same(bound(), by_python(function, call))
    assert type(bound) is BoundCall


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_functions_are_called_without_a_frame_of_python(name: str) -> None:
    """What is wrong, and what C does not take, is Python's all the same."""
    own = kernel(name)
    forward, step = own.sequence_forward, own.forward
    own_arrays = given(forward.function)
    expected = forward(**own_arrays, threads=1)
    for _ in range(3):
        forward(**own_arrays, threads=1)
        step(**given(step.function))
    for function in (forward, step):
        kind = type(function)
        assert not isinstance(vars(kind)["__call__"], FunctionType)
        assert isinstance(function, KernelFunction)
        assert kind.__name__ == kind.__mro__[1].__name__
        assert copy.copy(function) is getattr(kernel_behind(function), function.__name__)
    seen = list[str]()
    sys.setprofile(lambda frame, event, _: seen.append(event + frame.f_code.co_name))
    found = forward(**own_arrays, threads=1)
    sys.setprofile(None)
    assert "call__call__" not in seen
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(one, other)
    for options in ({}, {"threads": 2}, {"threads": 1, "save": True}, {"threads": 1, "out": None}):
        other = forward(**own_arrays, **options)
        np.testing.assert_array_equal(other[0], expected[0])
        assert (other.saved is not None) == options.get("save", False)
    with pytest.raises(ArgumentError, match="1 argument without a name, the first 1"):
        forward(1)
    with pytest.raises(ArgumentError, match="unknown argument 'nonsense'"):
        forward(**own_arrays, threads=1, nonsense=2)
    with pytest.raises(ArgumentError, match="threads is 0"):
        forward(**own_arrays, threads=0)
    with pytest.raises(ArgumentError, match="save is 3"):
        forward(**own_arrays, threads=1, save=3)
    with pytest.raises(ArgumentError, match="is missing"):
        forward()


@pytest.mark.parametrize("name", ["forward", "sequence_forward"])
def test_a_class_with_a_call_of_its_own_keeps_it(name: str) -> None:
    """Be it made from the class of a function that Python calls, or from that of one C calls."""
    own = kernel("gru").functions[name]
    arguments = given(own.function) | ({"threads": 1} if name == "sequence_forward" else {})
    for _ in range(3):
        own(**arguments)
    direct, plain, *_ = type(own).__mro__
    for kind in (direct, plain):
        calls = list[int]()

        class Watched(kind):  # type: ignore[misc, valid-type]
            def __call__(self, /, **arguments: object) -> object:
                calls.append(len(arguments))  # noqa: B023
                return super().__call__(**arguments)

        for made, count in ((Watched, 4), (kind, 0)):
            function = made(kernel_behind(own), own.function)
            calls.clear()
            for _ in range(4):
                results = function(**arguments)
            assert door_of(function).make is not None
            assert len(calls) == count
            np.testing.assert_array_equal(results[0], own(**arguments)[0])


class Unequal(str):
    """A keyword whose comparison raises."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = str.__hash__


def test_what_a_keyword_raises_when_it_is_compared_reaches_the_caller() -> None:
    forward = kernel("gru").sequence_forward
    own_arrays = given(forward.function)
    for _ in range(3):
        forward(**own_arrays, threads=1)
    with pytest.raises(ZeroDivisionError):
        forward(**own_arrays, **{Unequal("threads"): 1})


# --- memory, threads, the collector --------------------------------------------------------------


def door_by_hand(module: ModuleType, function: Any, empty: Any = np.empty, **changes: Any) -> Any:
    """A door by hand, of two arrays and no results that a caller sees."""
    own = Door(kernel_behind(function), function.function, function.result)
    library = kernel_behind(function).library()
    parts = {
        "cell": library.descriptor,
        "name": function.__name__,
        "forward": None,
        "keep": library,
        "named": function.result,
        "empty": empty,
        "keywords": tuple(own._keywords(None)),
        "fields": function.result._fields,
        "saves": (),
        "last": 0,
        "packed": None,
    }
    return module.door(*{**parts, **changes}.values())


def test_nothing_leaks(extension_in_c: ModuleType) -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function)
    taught(function, call)
    wrong = {**call, "x": call["x"][..., :-1].copy()}
    long = {**call, "lengths": np.array([1, 2]), "mask": np.ones((T, B), bool), "every": 2}
    watched = [*call.values(), *call, np.dtype(np.float32), function.result, None, *wrong.values()]
    watched += [long["lengths"], long["mask"]]
    half = {name: array.astype(np.float16) for name, array in call.items()}
    watched += half.values()
    function(**long, threads=1)  # grows the workspace
    function(**half, threads=1)
    make = door_of(function).make
    address, size = per_thread.memory.address, per_thread.memory.bytes

    def work(count: int) -> None:
        for _ in range(count):
            function(**call, threads=1)
            function(**call, threads=1, save=True)
            function(**call, threads=1, save=True, checkpoint=1)
            assert make(half, True, address, size, 0, -1, None) is not None
            assert (
                make({**half, "h_prev": call["h_prev"]}, True, address, size, 0, -1, None) is None
            )
            assert make(wrong, False, address, size, 0, -1, None) is None
            assert make(call, False, address, -1, 0, -1, None) is None
            assert make(call, True, address, size, 0, -1, (1, 2)) is None
            assert make(long, False, address, size, 0, -1, None) is not None

    work(1000)
    gc.collect()
    before = [sys.getrefcount(value) for value in watched], sys.getallocatedblocks()
    work(20_000)
    gc.collect()
    after = [sys.getrefcount(value) for value in watched], sys.getallocatedblocks()
    assert all(abs(one - other) < 20 for one, other in zip(before[0], after[0], strict=True))
    assert abs(after[1] - before[1]) < 200


def test_a_call_without_memory_is_pythons(extension_in_c: ModuleType) -> None:
    def none(*_: object) -> None:
        raise MemoryError

    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function, T=100, B=100)
    function(**call, threads=1)
    address, size = per_thread.memory.address, per_thread.memory.bytes
    own, poor = (door_by_hand(extension_in_c, function, each) for each in (np.empty, none))
    before = references = 0
    for turn in range(100):
        if turn == 10:
            before, references = sys.getallocatedblocks(), sys.getrefcount(call["x"])
        assert poor.make(call, False, address, size, 0, -1, None) is None
        assert own.make(call, False, address, size, 0, -1, None) is not None
    after = sys.getallocatedblocks(), sys.getrefcount(call["x"])
    assert after[0] - before < 100
    assert after[1] == references


@pytest.mark.parametrize("save", [False, True])
def test_what_a_signal_raises_is_raised(extension_in_c: ModuleType, save: bool) -> None:
    """Handlers of signals run where Python makes memory for large results."""
    function: Any = kernel("gru").functions["sequence_forward"]
    call = given(function.function, T=100, B=100)
    function(**call, threads=1, save=True)
    address, size = per_thread.memory.address, per_thread.memory.bytes
    raised: list[BaseException] = [KeyboardInterrupt("Ctrl-C"), TimeoutError("too long")]
    for error in raised:
        times: list[int] = []

        def empty(*parts: Any, error: BaseException = error, times: Any = times) -> Any:
            times.append(1)
            if len(times) == 1 + save:
                raise error
            return np.empty(*parts)

        made = door_by_hand(extension_in_c, function, empty).make
        references = sys.getrefcount(call["x"])
        with pytest.raises(type(error), match=str(error)):
            made(call, save, address, size, 0, -1, None)
        after = sys.getrefcount(call["x"])
        assert after == references
        assert len(times) == 1 + save
        assert made({**call, "every": 1 << 70}, save, address, size, 0, -1, None) is None
        assert made(call, save, address, size, 0, -1, None) is not None


def test_what_is_described_badly_is_refused(extension_in_c: ModuleType) -> None:
    module, function = extension_in_c, kernel("gru").functions["sequence_forward"]
    wrong: list[dict[str, Any]] = [
        {"name": "sideways"},
        {"named": list},
        {"keywords": ((1, 2),)},
        {"keywords": (("y", 0, 0, 0, False, None),)},
        {"keywords": (("every", 3, 99, 0, False, None),)},
        {"packed": (1, 2)},
    ]
    for change in wrong:
        with pytest.raises(TypeError):
            door_by_hand(module, function, **change)
    door = door_by_hand(module, function)
    for arguments in ((), ([], False, 0, 0, 0, 0, None), ({}, False, "0", 0, 0, 0, None)):
        with pytest.raises(TypeError):
            door.make(*arguments)
    with pytest.raises(TypeError):
        type(door)()


def test_other_threads_run_while_a_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgen.runtime.call.engine.LONG", 1 << 60)
    function: Any = kernel("lstm").functions["sequence_forward"]
    call = {**given(function.function, T=20_000, B=4, H=32), "threads": 1}
    taught(function, call)
    thread = threading.Thread(target=lambda: [function(**call) for _ in range(3)])
    thread.start()
    seen = 0
    while thread.is_alive():
        time.sleep(0.005)
        seen += 1
    assert seen > 5


def test_threads_that_call_at_once_get_the_same_bits() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    calls = [given(function.function, B=rows) for rows in (1, 2, 3, 4)]
    expected = [by_python(function, call) for call in calls]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            at = (number + turn) % len(calls)
            found = function(**calls[at], threads=1)
            if any(
                a.tobytes() != b.tobytes()
                for a, b in zip(found[:-1], expected[at][:-1], strict=True)
            ):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_collector_may_run_calls_of_its_own() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call, other = given(function.function), given(function.function, B=40)
    taught(function, call)
    expected, runs = by_python(function, call), 0

    def collecting(phase: str, info: object) -> None:
        nonlocal runs
        runs += 1
        gc.callbacks.remove(collecting)
        function(**other)
        gc.callbacks.append(collecting)

    threshold = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        found = [function(**call) for _ in range(200)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    assert runs
    for each in found:
        require_same(each, expected)

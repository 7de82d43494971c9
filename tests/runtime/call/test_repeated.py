"""Calls that C makes because they look like earlier ones: as Python makes them, or not at all.

Each test compares a call that C may make with the same call made by Python. What is out of the
ordinary has to come back from C untouched, so that Python makes it, or says what is wrong with it.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import logging
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cli import doctor
from cellgen.errors import ArgumentError, BuildError
from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.build import extension
from cellgen.runtime.call import repeated
from cellgen.runtime.call.repeated import (
    ARRAY,
    COMPILE_AFTER,
    EXTENSION,
    KEPT_KINDS,
    LOOK_AFTER,
    MOST_AXES,
    Extension,
)
from cellgen.runtime.call.workspace import per_thread
from cellgen.runtime.host import threads as threads_of_calls
from cellgen.runtime.kernel import Kernel
from tests.runtime.call.test_kernel import toy as toy  # a fixture

SIZES = {"T": 3, "B": 2, "I": 5, "H": 4}
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


def repeats_of(function: Any, call: dict[str, Any]) -> Any:
    """What a call may be made by: its function's, those of packed weights, or none."""
    if call.get("packed") is None:
        return function._repeats
    return getattr(call["packed"], "repeats", {}).get(function)


def called(function: Any, call: dict[str, Any]) -> tuple[Any, bool]:
    """Make a call; return its results or its error, and whether C made it."""
    repeats, made = repeats_of(function, call), []
    make = None if repeats is None else repeats.make

    def watched(*args: object) -> Any:
        made.append(make(*args))
        return made[-1]

    if repeats is not None:
        repeats.make = watched
    try:
        found: Any = function(**call)
    except Exception as error:
        found = error
    finally:
        if repeats is not None and repeats.make is watched:
            repeats.make = make
    return found, bool(made) and made[-1] is not None


def by_python(function: Any, call: dict[str, Any]) -> Any:
    """Make a call as Python does where nothing is remembered."""
    repeats = repeats_of(function, call)
    kinds = () if repeats is None else repeats.kinds
    try:
        if repeats is not None:
            repeats.kinds = ()
        return function(**call)
    except Exception as error:
        return error
    finally:
        if repeats is not None:
            repeats.kinds = kinds


def taught(function: Any, call: dict[str, Any]) -> None:
    """Make a call twice: C makes the second one."""
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
        if other is not None:
            assert (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
            assert one.flags == other.flags
            assert one.base is None
            assert one.tobytes() == other.tobytes()


def functions(name: str) -> Iterator[Any]:
    """The functions of a cell whose calls C makes."""
    for function in kernel(name).functions.values():
        if function.__name__ != "sequence_backward":
            yield function


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


def test_scalars_left_out_and_given_enter_the_struct() -> None:
    for function in functions("antisymmetric_rnn"):
        plain = given(function.function)
        for scalars in ({}, {"eps": 0.3}, {"gam": 0.7, "eps": 0.2}, {"eps": float("nan")}):
            taught(function, {**scalars, **plain})
            call = {**{n: value / 2 for n, value in scalars.items()}, **plain}
            found, in_c = called(function, call)
            assert in_c
            require_same(found, by_python(function, call))


def test_absent_gradients_and_ignored_arguments_are_as_python_has_them(toy: Kernel) -> None:
    function: Any = toy.functions["backward"]
    call = given(function.function, B=2, I=3, H=4)
    optional = [a.name for a in function.function.arguments if a.optional or not a.used]
    assert optional
    for name in optional:
        for change in ({name: None}, {}):
            less = {**{n: a for n, a in call.items() if n != name}, **change}
            if isinstance(by_python(function, less), Exception):
                continue  # it alone tells a dimension
            taught(function, less)
            found, in_c = called(function, less)
            assert in_c
            require_same(found, by_python(function, less))


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


def test_options_at_their_defaults_are_ordinary() -> None:
    function: Any = kernel("gru").functions["sequence_forward"]
    call = {**given(function.function), "reverse": False, "mask": None, "every": 1}
    taught(function, call)
    for changed in ({"reverse": None}, {"reverse": True}, {"reverse": 0}, {"every": 2}):
        found, in_c = called(function, {**call, **changed})
        assert not in_c
        require_same(found, by_python(function, {**call, **changed}))


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
        {"save": True},
    ]
    for change in changes:
        changed = {**call, "packed": one, **change}
        found, in_c = called(function, changed)
        assert not in_c
        expected = by_python(function, changed)
        if "save" in change:
            found, expected = (each._replace(saved=None) for each in (found, expected))
        require_same(found, expected)
    assert called(function, {**call, "packed": one})[1]
    array.shape = (*array.shape[::-1], 1)
    found, in_c = called(function, {**call, "packed": one})
    assert not in_c
    assert isinstance(found, ArgumentError)


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


def test_several_kinds_are_kept_and_others_come_back() -> None:
    function: Any = kernel("gru").functions["forward"]
    calls = [given(function.function, B=rows) for rows in range(1, KEPT_KINDS + 3)]
    for call in calls:
        taught(function, call)
    described = list(function._repeats._known.values())
    assert len(function._repeats.kinds) == KEPT_KINDS
    for call in reversed(calls):
        require_same(called(function, call)[0], by_python(function, call))
        assert called(function, call)[1]
    assert list(function._repeats._known.values()) == described  # none is described twice


def test_names_may_be_made_at_run_time_and_stand_in_any_order() -> None:
    function: Any = kernel("gru").functions["forward"]
    call = given(function.function)
    taught(function, call)
    fresh = {"".join(name): array for name, array in call.items()}
    assert called(function, fresh)[1]
    turned = dict(reversed(call.items()))
    assert not called(function, turned)[1]
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
        assert in_c == (kind in AS_GOOD), name
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
        {"out": {function.result._fields[0]: np.empty_like(result)}},
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
    monkeypatch.setattr("cellgen.runtime.call.prepared.LONG", 0)
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


# --- memory, threads, the collector --------------------------------------------------------------


def test_nothing_leaks(extension_in_c: ModuleType) -> None:
    function: Any = kernel("gru").functions["forward"]
    call = {**given(function.function)}
    taught(function, call)
    wrong = {**call, "x": call["x"][:, :-1].copy()}
    watched = [*call.values(), *call, np.dtype(np.float32), function.result, None, *wrong.values()]
    kinds, make = function._repeats.kinds, function._repeats.make
    address, size = per_thread.memory.address, per_thread.memory.bytes

    def work(count: int) -> None:
        for _ in range(count):
            function(**call)
            make(kinds, wrong, address, size, 0)
            make(kinds, call, address, -1, 0)

    work(1000)
    gc.collect()
    before = [sys.getrefcount(value) for value in watched], sys.getallocatedblocks()
    work(100_000)
    gc.collect()
    after = [sys.getrefcount(value) for value in watched], sys.getallocatedblocks()
    assert all(abs(one - other) < 20 for one, other in zip(before[0], after[0], strict=True))
    assert abs(after[1] - before[1]) < 200


def by_hand(
    module: ModuleType,
    call: int,
    dims: int = 0,
    shape: tuple[int, ...] = (2,),
    named: type = tuple,
) -> Any:
    """A kind of call of any C function: of ``x``, with one result."""
    item = ("x", ARRAY, 0, (3,), None)
    made = (("y", ARRAY, 1, shape, None),)
    dtype = np.dtype(np.float32)
    return module.kind(call, dims, None, dtype, named, 1, bytes(16), -1, -1, -1, (item,), made)


LIBC = ctypes.CDLL(None)


def pointer(name: str) -> int:
    found = ctypes.cast(LIBC[name], ctypes.c_void_p).value
    assert found is not None
    return found


def test_a_call_without_memory_or_with_an_error_is_pythons(extension_in_c: ModuleType) -> None:
    module, call = extension_in_c, {"x": np.zeros(3, np.float32)}
    large = by_hand(module, pointer("getpid"), shape=(2**55,))
    wrong = by_hand(module, pointer("getpid"))  # any number but 0 is an error
    right = by_hand(module, pointer("sched_yield"))
    before, references = sys.getallocatedblocks(), sys.getrefcount(call["x"])
    for _ in range(1000):
        assert module.make((large,), call, 0, 0, 0) is None
        assert module.make((wrong,), call, 0, 0, 0) is None
        assert module.make((large, right), call, 0, 0, 0) is None
        (made,) = module.make((right,), call, 0, 0, 0)
        assert made.shape == (2,)
    del made
    after = sys.getallocatedblocks(), sys.getrefcount(call["x"])
    assert after[0] - before < 100
    assert after[1] == references


def test_a_kind_that_was_described_badly_is_refused(extension_in_c: ModuleType) -> None:
    module = extension_in_c
    for shape in ((1,) * (MOST_AXES + 1), ("1",), (2**70,)):
        with pytest.raises((TypeError, OverflowError)):
            by_hand(module, 1, shape=shape)
    with pytest.raises(TypeError):
        by_hand(module, 1, named=list)
    with pytest.raises(TypeError):
        module.make((), {}, 0, 0)
    with pytest.raises(TypeError):
        module.make((), [], 0, 0, 0)
    with pytest.raises(TypeError):
        module.make((), {}, "0", 0, 0)
    assert module.make((1, None), {}, 0, 0, 0) is None
    with pytest.raises(TypeError):
        type(by_hand(module, 1))()


def test_other_threads_run_while_a_kernel_does(extension_in_c: ModuleType) -> None:
    module, call = extension_in_c, {"x": np.zeros(3, np.float32)}
    sleeps = by_hand(module, pointer("usleep"), dims=300_000)  # microseconds
    thread = threading.Thread(target=module.make, args=((sleeps,), call, 0, 0, 0))
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


def test_another_thread_may_forget_what_is_known_of_calls() -> None:
    """As where it is too much: between two instructions of a call that has been made."""

    class Forgetting(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            self.clear()

    function: Any = kernel("gru").functions["sequence_forward"]
    function._repeats._known = Forgetting()
    taught(function, given(function.function, B=7))


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


# --- when there is an extension ------------------------------------------------------------------


def counted(made: list[str], monkeypatch: pytest.MonkeyPatch) -> Extension:
    """An extension that tells of what is done for it, and is never found."""
    monkeypatch.delenv(repeated.VARIABLE, raising=False)
    monkeypatch.setattr(extension, "find", lambda _: made.append("find"))
    monkeypatch.setattr(extension, "build", lambda _: made.append("build"))
    return Extension()


def settled() -> None:
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith(repeated.THREAD):
            thread.join()


def test_it_is_looked_for_and_compiled_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    found = counted(made, monkeypatch)
    for _ in range(LOOK_AFTER):
        found.count()
    assert made == []
    found.count()
    settled()
    assert made == ["find"]
    for _ in range(COMPILE_AFTER - LOOK_AFTER - 1):
        found.count()
    assert made == ["find"]
    found.count()
    settled()
    assert made == ["find", "build"]


def test_a_process_that_gets_no_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[str] = []
    found = counted(made, monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert [found.count() for _ in range(2 * LOOK_AFTER)] == [None] * 2 * LOOK_AFTER
    assert made == []


@pytest.mark.parametrize(("asked", "expected"), [("python", []), ("c", ["build"])])
def test_the_environment_decides(
    asked: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    found = counted(made, monkeypatch)
    monkeypatch.setenv(repeated.VARIABLE, asked)
    for _ in range(2 * LOOK_AFTER):
        found.count()
    settled()
    assert made == expected


def test_without_headers_python_makes_all_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildError, match=r"no Python.h in .*; install Python's headers"):
        extension.build(repeated.SOURCE)
    with pytest.raises(BuildError, match=r"no Python.h"):
        extension.find(repeated.SOURCE)
    monkeypatch.setenv(repeated.VARIABLE, "c")
    found = Extension()
    monkeypatch.setattr(repeated, "EXTENSION", found)
    function: Any = cellgen.load("gru").functions["forward"]
    call = given(function.function)
    with caplog.at_level(logging.INFO, "cellgen"):
        for _ in range(3):
            result, in_c = called(function, call)
            assert not in_c
    require_same(result, by_python(kernel("gru").functions["forward"], call))
    assert found.module is None
    assert caplog.text.count("calls are made by Python: [build] no Python.h") == 1


def test_a_source_that_does_not_compile_is_said_once_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong.c").write_text("#include <Python.h>\n#error no\n")
    monkeypatch.setattr(repeated, "SOURCE", tmp_path / "wrong.c")
    monkeypatch.setenv(repeated.VARIABLE, "c")
    found = Extension()
    with caplog.at_level(logging.INFO, "cellgen"):
        assert [found.count() for _ in range(3)] == [None, None, None]
    assert caplog.text.count("compiling wrong.c failed") == 1


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "not.so").write_bytes(b"\x7fELF")
    with pytest.raises(BuildError, match="cannot load"):
        extension.load("cellgen_repeated", tmp_path / "not.so")


def test_doctor_says_who_makes_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor._calls
    assert "_calls()" in inspect.getsource(doctor.examine)
    monkeypatch.delenv(repeated.VARIABLE)
    assert found().text.startswith("C, cellgen_repeated-")
    monkeypatch.setattr(extension, "find", lambda _: None)
    assert found().text.startswith("C, once a process has made 30,000; CELLGEN_CALLS=c")
    monkeypatch.setenv(repeated.VARIABLE, "python")
    assert found().text == "Python, as CELLGEN_CALLS says"
    monkeypatch.undo()
    monkeypatch.delenv(repeated.VARIABLE)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    absent = found()
    assert (absent.ok, absent.required) == (False, False)
    assert f"no Python.h in {tmp_path}" in absent.text
    assert "apt install python3-dev" in absent.fix

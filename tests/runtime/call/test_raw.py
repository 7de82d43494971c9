"""Calls by addresses: the same bits as checked calls, empty and absent arrays, counts."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import cellgen
from cellgen import Cell, H, I, Input, Scalar, State, Static, Weight, tanh
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import NO_GAPS, axis_length
from cellgen.runtime.call import workspace
from cellgen.runtime.kernel import Kernel
from tests.by_words import RawFunction

DIMS = {"T": 5, "B": 3, "I": 4, "H": 6}


class Leaky(Cell):
    """A cell with a scalar and a static: a number and a constant row in its struct."""

    x, h_prev, s = Input(I), State(H), Static(H)
    w, u, k = Weight(I, H), Weight(H, H), Scalar(0.25)
    n = tanh(x @ w + h_prev @ u + s)
    h = k * h_prev + (1 - k) * n
    outputs = h


@pytest.fixture(scope="module", params=["gru", "lstm", "own"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if request.param == "own":
        made = cellgen.compile(Leaky)
        assert isinstance(made, Kernel)
        return made
    return cellgen.load(request.param)


def draw(raw: RawFunction, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """An array for each member of the struct; results are not a number until they are written."""
    numbers = np.random.default_rng(7)
    arrays = {}
    for item in raw.members:
        shape = tuple(axis_length(axis, sizes) for axis in item.shape)
        arrays[item.name] = numbers.uniform(0.1, 0.9, shape).astype(raw.dtype)
    for item in raw.function.results:
        arrays[item.name].fill(np.nan)
    return arrays


def words_of(raw: RawFunction, arrays: dict[str, np.ndarray]) -> list[int | float]:
    return [
        float(arrays[item.name]) if item.is_scalar else arrays[item.name].ctypes.data
        for item in raw.members
    ]


def checked(
    kernel: Kernel, raw: RawFunction, arrays: dict[str, np.ndarray], **options: object
) -> dict[str, np.ndarray]:
    """The results of a call by names, and what it saves."""
    arguments: dict[str, object] = {}
    saved = {}
    for item in raw.function.struct_members:
        given = float(arrays[item.name]) if item.is_scalar else arrays[item.name]
        (saved if item.saved else arguments)[item.name] = given
    if saved:
        options["saved"] = saved
    if any(item.saved for item in raw.function.results):
        options["save"] = True
    made = kernel.functions[raw.function.name](**arguments, **options)
    found = made._asdict()
    kept = found.pop("saved", None)
    return found if kept is None else found | kept._asdict()


@pytest.mark.parametrize("name", ["backward", "sequence_forward"])
def test_a_workspace_too_large_to_keep_lives_through_the_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread keeps it, and the call has its address alone."""
    raw = RawFunction(cellgen.load("gru"), name)
    arrays = draw(raw, DIMS)
    owners: list[weakref.ref[np.ndarray]] = []
    real, run = workspace.new_memory, raw.run

    def watched(label: str, size: int, dims: tuple[int, ...]) -> workspace.AlignedBytes:
        made = real(label, size, dims)
        owners.append(weakref.ref(made.owner))
        return made

    def running(numbers: object, struct: bytes) -> int:
        assert [owner() is not None for owner in owners] == [True]
        return run(numbers, struct)

    monkeypatch.setattr(workspace, "KEPT_WORKSPACE", -1)
    monkeypatch.setattr(workspace, "new_memory", watched)
    monkeypatch.setattr(workspace.per_thread, "memory", workspace.NOTHING)
    raw.run = running
    raw([DIMS[dim] for dim in raw.function.dims], words_of(raw, arrays), threads=1)
    assert owners[0]() is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["forward", "backward", "sequence_forward", "sequence_backward"])
def test_a_call_by_addresses_gives_the_bits_of_a_checked_one(kernel, name, dtype) -> None:
    raw = RawFunction(kernel, name, dtype)
    arrays = draw(raw, DIMS)
    raw([DIMS[dim] for dim in raw.function.dims], words_of(raw, arrays))
    expected = checked(kernel, raw, arrays)
    for item in raw.function.results:
        assert np.array_equal(arrays[item.name], expected[item.name]), item.name


def test_arrays_without_elements_may_have_no_address(kernel: Kernel) -> None:
    raw = RawFunction(kernel, "sequence_forward")
    arrays = draw(raw, DIMS | {"T": 0})
    words = words_of(raw, arrays)
    none = [
        0 if item.shape and not arrays[item.name].size else word
        for item, word in zip(raw.members, words, strict=True)
    ]
    assert none != words
    raw([0, *(DIMS[dim] for dim in raw.function.dims[1:])], none)
    assert np.array_equal(arrays["h_last"], arrays["h_prev"])


def test_what_is_not_wanted_is_not_written_and_what_is_absent_counts_as_zero() -> None:
    kernel = cellgen.load("gru")
    raw = RawFunction(kernel, "sequence_forward")
    arrays, sizes = draw(raw, DIMS), [DIMS[dim] for dim in raw.function.dims]
    raw(sizes, words_of(raw, arrays))
    whole = arrays["h"].copy()
    arrays["h"].fill(np.nan)
    saved = {item.name for item in raw.function.results if item.saved}
    words = [
        0 if item.name in saved else word
        for item, word in zip(raw.members, words_of(raw, arrays), strict=True)
    ]
    raw(sizes, words)
    assert np.array_equal(arrays["h"], whole)

    back = RawFunction(kernel, "sequence_backward")
    given = draw(back, DIMS)
    words = words_of(back, given)
    words[back.places["d_h"]] = 0
    back(sizes, words)
    found = given["d_x"].copy()
    given["d_h"].fill(0)
    back(sizes, words_of(back, given))
    assert np.array_equal(found, given["d_x"])


def test_options_are_words_by_name(kernel: Kernel) -> None:
    raw = RawFunction(kernel, "sequence_forward")
    arrays = draw(raw, DIMS)
    lengths, reset = np.array([5, 2, 0]), np.zeros((5, 3), bool)
    reset[3] = True
    options = raw.options(lengths=lengths.ctypes.data, reset=reset.ctypes.data, reverse=1)
    raw([DIMS[dim] for dim in raw.function.dims], words_of(raw, arrays), options, threads=2)
    expected = checked(kernel, raw, arrays, lengths=lengths, reset=reset, reverse=True)
    for item in raw.function.results:
        if not item.saved:
            assert np.array_equal(arrays[item.name], expected[item.name]), item.name


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("name", ["sequence_forward", "sequence_backward"])
def test_arrays_without_gaps_need_no_strides(
    kernel: Kernel, name: str, rows: int, threads: int
) -> None:
    """One array has gaps: the others are as their own strides say, and so is a mask."""
    raw, sizes = RawFunction(kernel, name), {**DIMS, "B": rows}
    mask = np.random.default_rng(3).random((sizes["T"], rows)) < 0.8
    arrays = draw(raw, sizes)
    results = [item.name for item in raw.function.results]
    apart = np.zeros((sizes["T"], 2 * rows, sizes["I"]), raw.dtype)[:, ::2]
    apart[...] = arrays["x"]
    arrays["x"] = apart

    def strides_of(array: np.ndarray) -> tuple[int, ...]:
        return tuple(n // array.itemsize for n in array.strides[:2])

    def run(*, says_all: bool) -> dict[str, np.ndarray]:
        arrays.update({n: np.full_like(arrays[n], np.nan) for n in results})
        timed = [*(arrays[item.name] for item in raw.members if item.over_time), mask, mask]
        pairs = (strides_of(a) if says_all or a is apart else NO_GAPS for a in timed)
        strides = np.array([*pairs], np.int64)
        options = raw.options(strides=strides.ctypes.data, mask=mask.ctypes.data)
        raw([sizes[dim] for dim in raw.function.dims], words_of(raw, arrays), options, threads)
        return {n: arrays[n] for n in results}

    expected, found = run(says_all=True), run(says_all=False)
    assert not any(np.isnan(array).any() for array in expected.values())
    for result in results:
        np.testing.assert_array_equal(found[result], expected[result], result)


def test_wrong_counts_names_and_functions_are_named(kernel: Kernel) -> None:
    raw = RawFunction(kernel, "sequence_forward")
    sizes, words = [DIMS[dim] for dim in raw.function.dims], words_of(raw, draw(raw, DIMS))
    with pytest.raises(ArgumentError, match=r"found 3 dimensions and .* expected 4 \(T, B, I, H\)"):
        raw(sizes[1:], words)
    with pytest.raises(ArgumentError, match=rf"found 4 dimensions and {len(words) - 1} words"):
        raw(sizes, words[1:])
    with pytest.raises(ArgumentError, match="a required pointer is NULL"):
        raw(sizes, [0, *words[1:]])
    with pytest.raises(ArgumentError, match="leave out backwards"):
        raw.options(backwards=1)
    with pytest.raises(ArgumentError, match="expected no call of it"):
        RawFunction(kernel, "forward").options(reverse=1)
    with pytest.raises(ArgumentError, match="no function is named 'onward'"):
        RawFunction(kernel, "onward")


@pytest.mark.parametrize("cell", ["gru", "lstm", "slstm_exp", "lru", "sru"])
@pytest.mark.parametrize("counted", ["all", "lengths", "mask", "reset"])
def test_every_element_of_every_result_is_written(cell: str, counted: str) -> None:
    """What is saved is dense and the same for the same call, where steps are masked too."""
    raw = RawFunction(cellgen.load(cell), "sequence_forward")
    for steps, rows, threads in ((5, 3, 1), (40, 20, 2)):
        sizes = dict.fromkeys(raw.function.dims, 4) | {"T": steps, "B": rows, "I": 5, "H": 8}
        numbers, arrays = np.random.default_rng(2), draw(raw, sizes)
        tables = {
            "all": None,
            "lengths": numbers.integers(0, steps + 1, rows),
            "mask": numbers.random((steps, rows)) < 0.5,
            "reset": numbers.random((steps, rows)) < 0.3,
        }
        table = tables[counted]
        options = None if table is None else raw.options(**{counted: table.ctypes.data})
        raw([sizes[dim] for dim in raw.function.dims], words_of(raw, arrays), options, threads)
        for item in raw.function.results:
            assert not np.isnan(arrays[item.name]).any(), item.name

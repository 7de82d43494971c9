"""Calls on a device: the engine binds them; the checks that have the words see what it refuses."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from cellgen import api
from cellgen.cells import LSTM, AntisymmetricRNN, Elman
from cellgen.errors import ArgumentError
from cellgen.runtime.device import function as device_function
from cellgen.runtime.device.kernel import CudaKernel
from tests.conftest import relative
from tests.targets.test_cuda import (
    TOLERANCE,
    Arrays,
    ByCapsule,
    Lent,
    OnHost,
    emulated,
    emulated_in,
    inputs,
    lent,
    upstream,
    with_cxx,
)

SHAPE = (3, 4, 5, 6)


class Checks:
    """How many calls were checked since the last look."""

    def __init__(self) -> None:
        self.count = 0

    def new(self) -> int:
        found, self.count = self.count, 0
        return found


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    counted, check = Checks(), device_function.check_call

    def check_call(*args: object) -> object:
        counted.count += 1
        return check(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(device_function, "check_call", check_call)
    return counted


@pytest.fixture
def elman() -> tuple[CudaKernel, Arrays]:
    kernel = emulated(Elman)
    return kernel, inputs(kernel, SHAPE)


def on_device(kernel: CudaKernel, given: Arrays, dtype: str = "") -> dict[str, object]:
    return {name: kernel.array(array, dtype=dtype) for name, array in given.items()}


@with_cxx
def test_calls_are_bound_by_the_engine_and_read_their_own_arrays(checks: Checks) -> None:
    """Forward and backward; other arrays of the same kind, other streams, graphs or not."""
    kernel = emulated(LSTM)
    given, above = inputs(kernel, SHAPE), upstream(kernel, SHAPE)
    for number in range(4):
        drawn = {n: a * (1 + number) for n, a in given.items()}
        call, stream = on_device(kernel, drawn), 4096 * number
        found = kernel.sequence_forward(**call, save=True, stream=stream)
        known = {**call, "h": found.h, "c": found.c, **on_device(kernel, above)}
        gradients = kernel.sequence_backward(**known, saved=found.saved)
        assert checks.new() == 0
        device = OnHost(kernel)
        expected = device.sequence_forward(**drawn, save=True, tier="steps")
        arrays = {**drawn, "h": expected.h, "c": expected.c, **above}
        exact = device.sequence_backward(**arrays, saved=expected.saved._asdict(), tier="steps")
        checks.new()
        assert np.array_equal(found.h.numpy(), expected.h)
        assert np.array_equal(found.saved[0].numpy(), expected.saved[0].numpy())
        for name in exact._fields:
            assert np.array_equal(getattr(gradients, name).numpy(), getattr(exact, name)), name


def variants(kernel: CudaKernel, given: Arrays) -> list[tuple[dict[str, object], str, Arrays]]:
    """Calls of as many kinds: what is passed, a dtype, and the same for a plain call."""
    shorter = {**given, "x": given["x"][:2]}
    turned = np.ascontiguousarray(given["x"].swapaxes(0, 1))
    apart = Lent(turned).array.swapaxes(0, 1)
    mask = np.random.default_rng(0).random((3, 4)) < 0.5
    narrow = {n: a.astype(np.float32) for n, a in given.items()}
    lengths = np.array([3, 0, 1, 2])
    tables = {"lengths": kernel.array(lengths), "mask": kernel.array(mask)}
    plain = on_device(kernel, given)
    return [
        (plain, "float64", given),
        (on_device(kernel, shorter), "float64", shorter),
        (on_device(kernel, narrow), "float32", narrow),
        (lent(given), "float64", given),
        ({**lent(given), "x": Lent(apart)}, "float64", given),
        ({**plain, "x": kernel.array(turned), "batch_first": True}, "float64", given),
        ({**plain, "reverse": True}, "float64", {**given, "reverse": True}),
        ({**plain, **tables}, "float64", {**given, "lengths": lengths, "mask": mask}),
        ({**plain, "every": 2}, "float64", {**given, "every": 2}),
        ({**plain, "last_only": True}, "float64", {**given, "last_only": True}),
        ({n: ByCapsule(a) for n, a in narrow.items()}, "float32", narrow),
    ]


@with_cxx
def test_calls_of_many_kinds_in_turns_have_the_bits_of_plain_ones(
    elman: tuple[CudaKernel, Arrays], checks: Checks
) -> None:
    kernel, given = elman
    calls = variants(kernel, given)
    expected = [
        OnHost(kernel, dtype).sequence_forward(**plain, tier="steps") for _, dtype, plain in calls
    ]
    checks.new()
    for _ in range(3):
        for number, ((call, _, _), exact) in enumerate(zip(calls, expected, strict=True)):
            found = kernel.sequence_forward(**call)
            assert checks.new() == 0, number
            pairs = [(getattr(found, n), getattr(exact, n)) for n in ("h", "h_last")]
            for one, other in pairs:
                assert (one is None) == (other is None), number
                if one is not None:
                    turned = (
                        other.swapaxes(0, 1) if "batch_first" in call and other.ndim > 2 else other
                    )
                    assert np.array_equal(one.numpy(), turned), number


@with_cxx
def test_results_that_are_given_are_written_where_they_are_each_time(
    elman: tuple[CudaKernel, Arrays], checks: Checks
) -> None:
    kernel, given = elman
    expected = OnHost(kernel).sequence_forward(**given)
    checks.new()
    for number in range(3):
        rooms = [np.full((3, 4, 6), np.nan), np.full((4, 6), np.nan)]
        out = tuple(map(Lent, rooms)) if number else {"h": Lent(rooms[0]), "h_last": Lent(rooms[1])}
        kernel.sequence_forward(**lent(given), out=out)
        assert checks.new() == 1  # whether results share memory
        for room, exact in zip(rooms, expected[:2], strict=True):
            assert np.array_equal(room, exact)


@with_cxx
def test_steps_that_count_are_those_of_each_call_and_go_to_its_backward_pass(
    elman: tuple[CudaKernel, Arrays], checks: Checks
) -> None:
    kernel, given = elman
    call, above = on_device(kernel, given), on_device(kernel, upstream(kernel, SHAPE))
    for lengths in ([3, 3, 3, 3], [0, 1, 2, 3], [2, 0, 0, 1]):
        table = kernel.array(np.array(lengths))
        found = kernel.sequence_forward(**call, lengths=table, save=True)
        assert found.saved.run.options.lengths is table
        brought = kernel.sequence_backward(**call, h=found.h, **above, saved=found.saved)
        assert checks.new() == 0
        again = kernel.sequence_backward(
            **call, h=found.h, **above, lengths=table, saved=found.saved._asdict()
        )
        for one, other in zip(brought, again, strict=True):
            assert np.array_equal(one.numpy(), other.numpy())
        other_table = kernel.array(np.array(lengths))
        with pytest.raises(ArgumentError, match="lengths is another array than the run that"):
            kernel.sequence_backward(
                **call, h=found.h, **above, lengths=other_table, saved=found.saved
            )
        checks.new()


@with_cxx
def test_scalars_are_those_of_each_call(checks: Checks) -> None:
    kernel, exact = emulated_in(AntisymmetricRNN, "f64"), api.load("antisymmetric_rnn")
    given, above = inputs(kernel, SHAPE), upstream(kernel, SHAPE)
    call = on_device(kernel, given)
    outputs = [n for n in kernel.sequence_forward._fields if not n.endswith("_last")]
    for eps in (0.5, 1.5, np.float32(2.5), 4):
        expected = exact.sequence_forward(**given, eps=eps)
        found = kernel.sequence_forward(**call, eps=eps, save=True)
        assert checks.new() == 0
        assert relative(found.h.numpy(), expected.h) < TOLERANCE["float64"]
        known = {**call, **{n: getattr(found, n) for n in outputs}, **on_device(kernel, above)}
        taken = {a.name for a in kernel.sequence_backward.function.arguments}
        known = {n: a for n, a in known.items() if n in taken}
        kernel.sequence_backward(**known, saved=found.saved)
        assert checks.new() == 0
        for wrong in (2 * eps, None):
            with pytest.raises(ArgumentError, match="eps is "):
                kernel.sequence_backward(**known, saved=found.saved, eps=wrong)
        checks.new()


def misplaced(array: np.ndarray) -> Lent:
    return Lent(array, data=(array.ctypes.data + 4, False))


FAULTS: tuple[Callable[[Arrays], Mapping[str, object]], ...] = (
    lambda given: {"x": None},
    lambda given: {"y": Lent(np.zeros(3))},
    lambda given: {"x": given["x"]},
    lambda given: {"x": misplaced(given["x"])},
    lambda given: {"out": {"h": misplaced(np.zeros((3, 4, 6)))}},
    lambda given: {"out": {"h": Lent(np.zeros((3, 4, 6)), data=(4096, True))}},
    lambda given: {"w": Lent(np.zeros((5, 12))[:, ::2])},
    lambda given: {"w": Lent(np.zeros((5, 6), np.float32))},
    lambda given: {"w": ByCapsule(np.zeros((5, 6)), device=1)},
    lambda given: {"w": ByCapsule(np.zeros((5, 6)), kind=1)},
    lambda given: {"w": Lent(np.zeros((5, 7)))},
    lambda given: {"x": Lent(np.zeros((1,) * 12))},
    lambda given: {"x": Lent(np.zeros((0, 4, 5)), shape=(1 << 63, 0, 5))},
    lambda given: {"last_only": True, "out": {"h": Lent(np.zeros((3, 4, 6)))}},
    lambda given: {"batch_first": 1},
    lambda given: {"batch_first": 0},
    lambda given: {"reverse": 1.0},
    lambda given: {"every": True},
    lambda given: {"save": 1},
    lambda given: {"save": 0},
    lambda given: {"graph": 0},
    lambda given: {"tier": "quick"},
    lambda given: {"tier": "fragments"},
    lambda given: {"stream": "fast"},
    lambda given: {"outputs": ("y",)},
    lambda given: {"lengths": Lent(np.array([1, 2]))},
    lambda given: {"window": 3},
    lambda given: {"saved": (1, 2)},
    lambda given: {"out": [1]},
    lambda given: {"out": (None,)},
)


@with_cxx
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{number}" for number in range(len(FAULTS))])
def test_errors_after_calls_of_many_kinds_have_the_words_of_a_first_call(
    elman: tuple[CudaKernel, Arrays], fault: Callable[[Arrays], Mapping[str, object]]
) -> None:
    kernel, given = elman

    def said() -> str:
        with pytest.raises(ArgumentError) as raised:
            kernel.sequence_forward(**{**lent(given), **fault(given)})
        return re.sub("0x[0-9a-f]+", "an address", str(raised.value))

    first = said()
    options = ({}, {"batch_first": False}, {"reverse": True}, {"every": 1}, {"save": True})
    for _ in range(2):
        for option in (*options, {"out": {"h": Lent(np.zeros((3, 4, 6)))}}, {"graph": False}):
            kernel.sequence_forward(**lent(given), **option)
    assert said() == first
    kernel.sequence_forward(**lent(given))


@with_cxx
def test_a_result_that_shares_memory_is_refused_as_on_the_host(
    elman: tuple[CudaKernel, Arrays],
) -> None:
    kernel, given = elman
    room = np.zeros((3, 4, 12))
    beside = {"h": Lent(room[:, :, :6]), "h_last": Lent(np.zeros((4, 6)))}
    kernel.sequence_forward(**lent({**given, "x": room[:, :, 6:11]}), out=beside)
    with pytest.raises(ArgumentError, match="out h shares memory with the argument x"):
        kernel.sequence_forward(**lent({**given, "x": room[:, :, 5:10]}), out=beside)
    inside = {**beside, "h_last": Lent(room.reshape(-1)[24:48].reshape(4, 6))}
    with pytest.raises(ArgumentError, match="out h shares memory with the result h_last"):
        kernel.sequence_forward(**lent(given), out=inside)


@with_cxx
def test_where_an_array_lies_that_does_not_say_so_is_asked_at_each_call(
    elman: tuple[CudaKernel, Arrays], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, given = elman
    kernel.sequence_forward(**lent(given))
    monkeypatch.setattr(kernel.library(), "device_of", lambda address: -1)
    with pytest.raises(ArgumentError, match="x lies in the host's memory; move it to the device"):
        kernel.sequence_forward(**lent(given))


class Kind(NamedTuple):
    """A type of elements, as PyTorch's say what they are."""

    dtype: np.dtype[np.generic]

    def __str__(self) -> str:
        return f"torch.{self.dtype}"


class Tensor(ByCapsule):
    """As PyTorch's tensors are asked; says that it is on a device."""

    layout, is_cuda, requires_grad = "strided", True, False

    def __init__(self, array: np.ndarray, device: int = 0) -> None:
        super().__init__(array, device)
        self.shape, self.dtype = array.shape, Kind(array.dtype)

    def __dlpack__(self, *, stream: object = None) -> object:
        if self.requires_grad:
            raise BufferError("it requires a gradient")
        return super().__dlpack__(stream=stream)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def get_device(self) -> int:
        return self.device

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def new_empty(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(np.full(shape, np.nan))

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(nbytes=lambda: self.array.nbytes)

    def storage_offset(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def numel(self) -> int:
        return self.array.size

    @property
    def itemsize(self) -> int:
        return self.array.itemsize

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


Tensor.__module__ = "torch"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PyTorch in name; the devices whose current stream it was asked for."""
    devices = list[int]()

    def current_stream(device: int) -> object:
        devices.append(device)
        return SimpleNamespace(cuda_stream=5)

    cuda = SimpleNamespace(
        current_stream=current_stream,
        ExternalStream=lambda handle, device: handle,
        stream=lambda _: threading.Lock(),
    )
    torch = SimpleNamespace(cuda=cuda, Tensor=Tensor, strided="strided")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return devices


@with_cxx
def test_tensors_of_pytorch_are_asked_themselves_on_its_own_stream(
    elman: tuple[CudaKernel, Arrays], asked: list[int], checks: Checks
) -> None:
    """On another stream DLPack makes that one wait; what requires a gradient DLPack refuses."""
    kernel, given = elman
    expected = OnHost(kernel).sequence_forward(**given).h
    turned = np.ascontiguousarray(given["x"].swapaxes(0, 1)).swapaxes(0, 1)
    for _ in range(3):
        for x in (given["x"], turned):
            tensors = {n: Tensor(a) for n, a in {**given, "x": x}.items()}
            checks.new()
            asked.clear()
            found = kernel.sequence_forward(**tensors)
            assert np.array_equal(found.h.array, expected)
            assert checks.new() == 0
            streams = [s for t in tensors.values() for s in t.streams]
            assert streams == []
            assert len(asked) <= 3
    kernel.sequence_forward(**tensors, stream=6)
    assert [t.streams for t in tensors.values()] == [[6]] * len(tensors)
    tensors["w"].requires_grad = True
    with pytest.raises(ArgumentError, match="w cannot be lent: it requires a gradient"):
        kernel.sequence_forward(**tensors)
    tensors["w"].requires_grad, tensors["w"].device = False, 1
    with pytest.raises(ArgumentError, match="w is on device 1 and x on device 0"):
        kernel.sequence_forward(**tensors)

"""Arrays of other libraries in host memory are taken without a copy; results are of their kind."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import cellgen
from cellgen import accept
from cellgen.errors import ArgumentError
from tests.drawing import draw_arrays

SIZES = {"T": 4, "B": 3, "I": 5, "H": 6}
drawn = partial(draw_arrays, sizes=SIZES, dtype="f")


class Tensor:
    """An array of a library that is none: it lends its memory, and has no more to say."""

    requires_grad = False
    device = (1, 0)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **how: object) -> object:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(from_dlpack=Tensor)


class OtherTensor(Tensor):
    """Of yet another library."""

    __module__ = "another_library"


class Tracer(Tensor):
    """What JAX hands to a function that it traces."""

    __module__ = "jax.core"

    def __dlpack_device__(self) -> tuple[int, int]:
        raise AttributeError("no attribute __dlpack_device__")


class Parameter(Tensor):
    """A class of the same library beside its tensors."""


def kernel() -> cellgen.Kernel:
    return cellgen.load("gru")


def lent(arrays):
    return {n: Tensor(a) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def test_a_step_takes_them_and_gives_them() -> None:
    forward = kernel().forward
    given = drawn(forward.function)
    found, expected = forward(**lent(given)), forward(**given)
    assert type(found.h) is Tensor
    assert np.array_equal(found.h.array, expected.h)


def test_nothing_is_copied() -> None:
    forward = kernel().forward
    given = drawn(forward.function)
    out = Tensor(np.zeros((3, 6), given["x"].dtype))
    found = forward(**lent(given), out={"h": out})
    assert np.shares_memory(found.h.array, out.array)
    assert out.array.any()


def test_a_sequence_takes_them_with_every_option() -> None:
    sequence, back = kernel().sequence_forward, kernel().sequence_backward
    given, mask = drawn(sequence.function), np.ones((4, 3), bool)
    mask[1, 2] = False
    for options in ({}, {"mask": mask}, {"mask": Tensor(mask), "reverse": True}, {"every": 2}):
        plain = {n: a.array if isinstance(a, Tensor) else a for n, a in options.items()}
        found = sequence(**lent(given), **options, save=True)
        expected = sequence(**given, **plain, save=True)
        assert np.array_equal(found.h.array, expected.h)
        assert np.array_equal(found.h_last.array, expected.h_last)
        d_h = np.ones_like(expected.h)
        gradients = back(**lent(given), h=found.h, d_h=Tensor(d_h), saved=found.saved)
        others = back(**given, h=expected.h, d_h=d_h, saved=expected.saved)
        for one, other in zip(gradients, others, strict=True):
            assert np.array_equal(one.array, other)
    batch = {**given, "x": np.ascontiguousarray(given["x"].swapaxes(0, 1))}
    found = sequence(**lent(batch), batch_first=True)
    assert np.array_equal(found.h.array.swapaxes(0, 1), sequence(**given).h)


def test_packed_weights_and_what_is_saved_by_name_are_theirs_too() -> None:
    sequence, back = kernel().sequence_forward, kernel().sequence_backward
    given = drawn(sequence.function)
    weights = {a.name for a in sequence.function.arguments if a.is_weight}
    packed = kernel().pack(**{n: Tensor(given[n]) for n in weights})
    rest = {n: Tensor(a) for n, a in given.items() if n not in weights}
    found, expected = sequence(**rest, packed=packed), sequence(**given, save=True)
    assert np.array_equal(found.h.array, expected.h)
    saved = {n: Tensor(a) for n, a in expected.saved._asdict().items()}
    gradients = back(**lent(given), h=Tensor(expected.h), saved=saved)
    assert np.array_equal(
        gradients.d_x.array, back(**given, h=expected.h, saved=expected.saved).d_x
    )


def refused(message: str, **changes: object) -> None:
    forward = kernel().forward
    with pytest.raises(ArgumentError, match=message):
        forward(**{**lent(drawn(forward.function)), **changes})


@pytest.mark.parametrize("batch_first", [False, True])
def test_results_that_show_a_part_of_what_is_saved_have_no_gaps(*, batch_first: bool) -> None:
    forward = kernel().sequence_forward
    given = drawn(forward.function)
    if batch_first:
        given["x"] = np.ascontiguousarray(given["x"].swapaxes(0, 1))
    how = {"save": True, "every": 2, "batch_first": batch_first}
    found, wanted = forward(**lent(given), **how), forward(**given, **how)
    assert np.array_equal(found.h.array, wanted.h)
    shown = found.h.array
    assert shown.flags.c_contiguous or shown.swapaxes(0, 1).flags.c_contiguous


def test_a_mixture_is_refused() -> None:
    array = np.zeros((5, 6), np.float32)
    refused(r"w_z is a numpy.ndarray and x a \S*test_frameworks\.Tensor, exp", w_z=array)
    refused(
        "w_z is a .*OtherTensor and x a .*Tensor, expected arrays of one", w_z=OtherTensor(array)
    )
    forward = kernel().forward
    given = drawn(forward.function)
    with pytest.raises(ArgumentError, match=r"w_z is a .*Tensor, expected a numpy\.ndarray"):
        forward(**{**given, "w_z": Tensor(given["w_z"])})


def test_classes_of_one_library_are_no_mixture() -> None:
    forward = kernel().forward
    given = drawn(forward.function)
    found = forward(**{**lent(given), "w_z": Parameter(given["w_z"])})
    assert np.array_equal(found.h.array, forward(**given).h)


def test_memory_that_holds_the_negative_is_refused() -> None:
    negative = Tensor(np.zeros((3, 5), np.float32))
    negative.is_neg = lambda: True
    refused(r"x is a .*Tensor whose memory holds its negative.*pass x\.resolve_neg\(\)", x=negative)


class Emptied(Tensor):
    """It lends the address 0."""

    def __dlpack__(self, **how: object) -> object:
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value = None
        return capsule


class Freed(Tensor):
    """PyTorch's tensor, as far as it says of its memory: less than its entries take."""

    itemsize, nbytes = 4, 60

    def untyped_storage(self) -> object:
        return SimpleNamespace(nbytes=lambda: 16)

    def storage_offset(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return 15


def test_an_array_without_memory_is_refused() -> None:
    zeros = np.zeros((3, 5), np.float32)
    refused(r"x is a .*Emptied \(3, 5\) that lends no memory", x=Emptied(zeros))
    refused(r"x is a .*Freed whose storage has 16 bytes, but its entries take 64", x=Freed(zeros))
    with pytest.raises(ArgumentError, match=r"x is a .*Freed whose storage has 16 bytes"):
        accept.array("here", "x", Freed(zeros))


def test_an_array_without_entries_needs_no_memory() -> None:
    none = np.zeros((0, 5), np.float32)
    given = {
        **drawn(kernel().forward.function),
        "x": none,
        "h_prev": np.zeros((0, 6), np.float32),
    }
    wrapped = {**lent(given), "x": Emptied(none)}
    assert kernel().forward(**wrapped).h.array.shape == (0, 6)


def test_an_array_without_numbers_is_refused_with_what_takes_it() -> None:
    tracer = Tracer(np.zeros((3, 5), np.float32))
    refused(
        r"x is a jax\.core\.Tracer that cannot be read.*; within jit.* use cellgen\.jax", x=tracer
    )


def test_a_gradient_is_not_dropped() -> None:
    wanted = Tensor(np.zeros((3, 5), np.float32))
    wanted.requires_grad = True
    refused(
        r"x is a .*Tensor that requires a gradient.*pass x\.detach\(\), or use cellgen", x=wanted
    )


def test_arrays_elsewhere_are_refused() -> None:
    away = Tensor(np.zeros((3, 5), np.float32))
    away.device = (2, 0)
    refused(r"x is a .*Tensor on a device, expected .*host's memory", x=away)


def test_checks_are_those_of_numpys_arrays() -> None:
    refused("x has 1 axes, shape", x=Tensor(np.zeros(3, np.float32)))
    refused("x has dtype int32, expected float32 or float64", x=Tensor(np.zeros((3, 5), np.int32)))


def test_bound_calls_are_for_arrays_that_may_change() -> None:
    forward = kernel().forward
    with pytest.raises(ArgumentError, match="which do not change, and every bound call writes"):
        forward.bind(**lent(drawn(forward.function)))


def test_tensors_of_pytorch_go_in_and_come_out() -> None:
    torch = pytest.importorskip("torch")
    forward = kernel().sequence_forward
    given = drawn(forward.function)
    tensors = {n: torch.from_numpy(a) for n, a in given.items()}
    found, expected = forward(**tensors), forward(**given)
    assert isinstance(found.h, torch.Tensor)
    assert np.array_equal(found.h.numpy(), expected.h)
    bound = forward.bind(**tensors)
    tensors["x"] *= 0.5
    assert np.array_equal(bound().h.numpy(), forward(**given).h)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        forward(**{**tensors, "x": tensors["x"].requires_grad_()})
    with pytest.raises(ArgumentError, match=r"x is a torch\.Tensor that cannot be read"):
        forward(**{**tensors, "x": tensors["x"].detach().to_sparse()})


def test_a_bound_backward_pass_takes_tensors_that_are_saved_by_name() -> None:
    torch = pytest.importorskip("torch")
    back, given = kernel().sequence_backward, drawn(kernel().sequence_forward.function)
    run = kernel().sequence_forward(**given, save=True)
    expected = back(**given, h=run.h, saved=run.saved)
    arrays = ({**given, "h": run.h}, run.saved._asdict())
    tensors, saved = ({n: torch.from_numpy(a) for n, a in each.items()} for each in arrays)
    found = back.bind(**tensors, saved=saved)()
    assert np.array_equal(found.d_x.numpy(), expected.d_x)


def test_arrays_of_jax_go_in_and_come_out() -> None:
    jax = pytest.importorskip("jax")
    forward = kernel().sequence_forward
    given = drawn(forward.function)
    found = forward(**{n: jax.numpy.asarray(a) for n, a in given.items()})
    assert isinstance(found.h, jax.Array)
    assert np.array_equal(np.asarray(found.h), forward(**given).h)
    shown = forward(**{n: jax.numpy.asarray(a) for n, a in given.items()}, save=True, every=2)
    assert np.array_equal(np.asarray(shown.h), forward(**given).h[1::2])

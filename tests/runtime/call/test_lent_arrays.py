"""Arrays that other libraries lend: strides that are absent, None, NULL, dense, or with gaps."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from cellgen.runtime.call.views import DLTensor, view_of_capsule, view_of_interface

DENSE = np.arange(24.0).reshape(2, 3, 4)
GAPS = np.arange(48.0).reshape(2, 3, 8)[:, :, :4]
ABSENT = object()


def lent(array: np.ndarray, strides: object) -> object:
    interface = {"shape": array.shape, "typestr": "<f8", "data": (array.ctypes.data, False)}
    if strides is not ABSENT:
        interface["strides"] = strides
    return SimpleNamespace(__cuda_array_interface__={**interface, "version": 3})


@pytest.mark.parametrize(
    "strides", [ABSENT, None, (96, 32, 8), [96, 32, 8]], ids=["absent", "None", "dense", "a list"]
)
def test_an_array_without_strides_or_with_those_of_none_is_dense(strides: object) -> None:
    view = view_of_interface("here", "x", lent(DENSE, strides), ("float64",))
    assert view.contiguous
    assert view.strides is None
    assert (view.pointer, view.shape, view.apart) == (DENSE.ctypes.data, (2, 3, 4), (12, 4, 1))


def test_an_array_whose_strides_leave_gaps_is_read_with_them() -> None:
    view = view_of_interface("here", "x", lent(GAPS, GAPS.strides), ("float64",))
    assert not view.contiguous
    assert view.strides == GAPS.strides


def test_strides_of_an_axis_of_one_or_of_an_empty_array_say_nothing() -> None:
    one = np.zeros((2, 1, 4))
    for strides in ((32, 999, 8), (32, -8, 8)):
        assert view_of_interface("here", "x", lent(one, strides), ("float64",)).strides is None
    none = np.zeros((0, 3, 4))
    assert view_of_interface("here", "x", lent(none, (7, 7, 7)), ("float64",)).strides is None


def capsule_of(array: np.ndarray, *, has_strides: bool) -> object:
    """NumPy's capsule, whose strides a producer may leave NULL where there are no gaps."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
    if not has_strides:
        tensor.strides = ctypes.POINTER(ctypes.c_int64)()
    return capsule


@pytest.mark.parametrize("has_strides", [True, False])
def test_a_capsule_without_strides_is_dense(has_strides: bool) -> None:
    view = view_of_capsule(capsule_of(DENSE, has_strides=has_strides), 0, "another")
    assert view.strides is None
    assert (view.pointer, view.shape) == (DENSE.ctypes.data, (2, 3, 4))


def test_a_capsule_whose_strides_leave_gaps_is_read_with_them() -> None:
    view = view_of_capsule(capsule_of(GAPS, has_strides=True), 0, "another")
    assert view.strides == GAPS.strides

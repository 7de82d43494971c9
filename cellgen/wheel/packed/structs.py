"""Structs of C that prebuilt kernels are called by: ``cellgen_descriptor.h``, ``cellgen_engine.h``.

Members are those of C, in its order.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_void_p,
)

from cellgen.wheel.packed.numbers import NAMES

AXES = 9
"""The most axes of an array: those of a value, and rows before them."""
NOWHERE = -1
"""In the place of a member that an array is not."""
NO_GAPS = -(1 << 63), 0
"""Strides of a table without gaps (``CELLGEN_NO_GAPS``)."""


class _Term(Structure):
    _fields_ = (("factor", c_int64), ("dim", c_int64 * 3))


class _Axis(Structure):
    _fields_ = (("terms", c_int64), ("term", POINTER(_Term)))


class ValueRecord(Structure):
    """A member of a function's arguments."""

    _fields_ = (
        *(("name", c_char_p), ("of", c_char_p), ("role", c_int64), ("flags", c_int64)),
        *(("value", c_double), ("axes", c_int64), ("axis", POINTER(_Axis) * 8)),
    )


class SignatureRecord(Structure):
    """What a function takes."""

    _fields_ = (
        *(("name", c_char_p), ("text", c_char_p), ("dims", c_int64), ("dim", POINTER(c_int64))),
        *(("arguments", c_int64), ("members", c_int64), ("member", POINTER(ValueRecord))),
        *(("has_workspace", c_int64), ("has_team", c_int64)),
    )


class ArrayRecord(Structure):
    """An array of a call."""

    _fields_ = (
        *(("value", c_void_p), ("member", c_int64), ("again", c_int64), ("data", c_void_p)),
        *(("kind", c_int64), ("rank", c_int64), ("has_gaps", c_int64)),
        *(("length", c_int64 * AXES), ("stride", c_int64 * AXES)),
    )


class ScalarRecord(Structure):
    """A number that a cell takes."""

    _fields_ = (("member", c_int64), ("again", c_int64), ("number", c_double))


class NumbersRecord(Structure):
    """Options of a call that are numbers."""

    _fields_ = tuple((name, c_int64) for name in NAMES)


class RequestRecord(Structure):
    """What a call is beside its arrays."""

    _fields_ = (
        *(("function", c_int64), ("is_double", c_int64), ("narrow", c_int64), ("saves", c_int64)),
        *(("say", NumbersRecord), ("scalars", c_int64), ("scalar", POINTER(ScalarRecord))),
        *(("again", c_int64), ("again_flush", c_int64), ("again_products", c_int64)),
        *(("lengths", c_void_p), ("flags", c_void_p * 2), ("flag_stride", c_int64 * 2 * 2)),
        *(("packed", c_void_p), ("packed_bytes", c_int64)),
        *(("packed_again", c_void_p), ("packed_again_bytes", c_int64)),
        *(("plan", c_void_p), ("stop", c_void_p), ("checkpoints", c_void_p)),
    )


class FaultRecord(Structure):
    """Which array is refused, and why."""

    _fields_ = tuple((name, c_int64) for name in ("reason", "array", "axis", "expected"))


class EngineRecord(Structure):
    """What makes calls from arrays as they are; other threads go on while ``run`` does."""

    _fields_ = (
        ("bytes", c_int64),
        ("bind", PYFUNCTYPE(c_int, *[c_void_p] * 4, c_int64, c_void_p)),
        ("fault", PYFUNCTYPE(None, c_void_p, c_void_p, c_void_p)),
        ("results", PYFUNCTYPE(c_int64, c_void_p, c_void_p)),
        ("work", c_void_p),
        ("prepare", PYFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int64)),
        ("size", PYFUNCTYPE(c_int64, c_void_p)),
        ("run", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64, c_void_p)),
        ("end", PYFUNCTYPE(None, c_void_p)),
        ("words", c_void_p),
    )


class CellRecord(Structure):
    """A cell's descriptor."""

    _fields_ = (
        *(("abi", c_int64), ("name", c_char_p), ("digest", c_char_p)),
        *(("dims", c_int64), ("dim", POINTER(c_char_p))),
        *(("functions", c_int64), ("function", POINTER(SignatureRecord))),
        *(("precisions", c_int64), ("precision", c_void_p)),
        ("team", CFUNCTYPE(c_void_p, c_int)),
        *(("team_create", c_void_p), ("team_destroy", c_void_p)),
        ("engine", POINTER(EngineRecord)),
    )

"""cellgen's messages as the exceptions that torch raises for the same faults.

A wrong shape, dtype, device or layout is a RuntimeError, what is no tensor a TypeError, an option
of a wrong value a ValueError; each is an ArgumentError, too.
"""

from __future__ import annotations

from cellgen.errors import ArgumentError, DeviceError


class TensorError(ArgumentError, RuntimeError):
    """A tensor whose shape, dtype, device or layout a cell cannot take."""


class KindError(ArgumentError, TypeError):
    """A value of another type than the one that is taken there, or a name that a cell lacks."""


class DeviceRunError(DeviceError, RuntimeError):
    """A device that is missing, too old, or refuses a call."""


class WrongKernelsError(DeviceRunError):
    """Kernels that are farther from the equations than a bar."""


class DeclinedError(Exception):
    """C does not make this call."""

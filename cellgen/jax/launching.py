"""Launch kernels of CUDA for the handler of XLA: on its stream, in memory of its own allocator.

Input: what ``handler_device.inc.h`` found in a program's call. Output: none; kernels are launched,
and nothing is waited for but run-time scalars, which kernels take as numbers and programs as
arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from cellgen.jax.registry import find
from cellgen.runtime.backend import WordsOfCall
from cellgen.runtime.call.arguments import has_elements


class XlaCall(ctypes.Structure):
    """A call as ``handler_device.inc.h`` has it."""

    _fields_ = (
        ("cell", ctypes.c_char_p),
        ("function", ctypes.c_char_p),
        ("element", ctypes.c_char_p),
        ("size", ctypes.POINTER(ctypes.c_int64)),
        ("member", ctypes.POINTER(ctypes.c_uint64)),
        ("options", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int64),
        ("text", ctypes.c_void_p),
        ("text_bytes", ctypes.c_int64),
        ("frame", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
    )


Call = ctypes.POINTER(XlaCall)
Launcher = ctypes.CFUNCTYPE(ctypes.c_int, Call)
Scratch = Callable[[object, int], "int | None"]
"""Gives the address of so many bytes of the device until the call has returned."""


def launch(call: object, scratch: Scratch, *, emulated: bool) -> int:
    """Launch a call; 1, with the reason as its text, where that fails."""
    of = call.contents  # type: ignore[attr-defined]
    try:
        _launch(of, lambda size: scratch(call, size), emulated)
    except BaseException as error:  # C has no exceptions
        said = f"{error}".encode()[: of.text_bytes - 1].decode(errors="ignore").encode()
        ctypes.memmove(of.text, said + b"\0", len(said) + 1)
        return 1
    return 0


def _launch(of: XlaCall, scratch: Callable[[int], int | None], emulated: bool) -> None:
    known, name, element = find(of.cell.decode()), of.function.decode(), of.element.decode()
    function = next(f for f in known.kernel.interface.functions if f.name == name)
    stream, label = of.stream or 0, f"{known.kernel.name}.{name}"

    def workspace(size: int) -> int:
        address = scratch(size)
        if not address:
            raise MemoryError(
                f"{label}: XLA gives no {size:,} bytes of device {of.device} for the workspace; "
                f"fewer rows or steps at a time, or free arrays"
            )
        return address

    dims = tuple(of.size[: len(function.dims)])
    if not has_elements(function.results, dict(zip(function.dims, dims, strict=True))):
        return
    kernel, numbers = known.kernel_of(emulated=emulated), ctypes.cast(of.member, _NUMBERS)
    for place, item in enumerate(function.struct_members):
        if item.is_scalar:
            address, usual = of.member[place], item.default or 0.0
            number = kernel.number(address, element, of.device, stream) if address else usual
            numbers[place] = number
    words = WordsOfCall(dims, ctypes.addressof(of.member.contents), of.options or 0)
    known.launcher(name, emulated=emulated)(element, of.device, words, stream, workspace)


_NUMBERS = ctypes.POINTER(ctypes.c_double)

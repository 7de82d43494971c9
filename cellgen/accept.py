"""The one gate for what callers hand in: numbers, flags, words, lists, names and arrays.

Input: a value of any kind, and what it must be. Output: a plain Python value, or a NumPy array;
else an ArgumentError (or another of cellgen's errors, ``error``) that says where, what, what was
found, what was expected and what to do. A value is looked at by its type alone: nothing that it
defines itself, such as ``__index__``, ``__len__`` or ``__repr__``, is trusted or may raise its own
error.
``label`` is the function as a message begins with it: ``gru.sequence_forward``.
Not supported: arrays on devices.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cellgen.errors import ArgumentError, CellgenError

Array: TypeAlias = np.ndarray

LARGEST = 2**63 - 1
"""The largest integer that the C holds: of every dimension, count and limit."""
MOST_CHARACTERS = 60
"""Characters of a value that a message shows."""
MOST_BITS = 10_000
"""Bits of an integer up to which its digits are shown: Python writes 4300 digits."""
_REAL_KINDS = "biuf"
"""NumPy's kinds of dtypes that hold real numbers."""


def quoted(value: object) -> str:
    """Write a value for a message: short, in one line, whatever its own ``repr`` does."""
    if isinstance(value, np.ndarray):
        base = np.asarray(value)
        return _cut(f"an array {base.shape} of {base.dtype}", 2 * MOST_CHARACTERS)
    if isinstance(value, int) and int.bit_length(value) > MOST_BITS:
        return f"an integer of {int.bit_length(value)} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a value that cannot be written
        return f"an object of type {type_name(value)}"
    return _cut(text, MOST_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def type_name(value: object) -> str:
    """Name the type of a value, with its module unless Python has it built in."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def a_type(value: object) -> str:
    """Name the type of a value with its article: ``a list``, ``an int``."""
    name = type_name(value)
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def plain(value: object) -> bool | int | float | None:  # noqa: PLR0911 - one case a return
    """The Python number that a value is, or holds as its one entry; None where it is none."""
    if isinstance(value, np.generic | np.ndarray):
        base = np.asarray(value)
        if base.ndim or isinstance(value, np.ma.MaskedArray):
            return None
        if base.dtype.kind in "biu":
            number: bool | int = base.item()
            return number
        return float(base) if base.dtype.kind == "f" else None
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return None


def flag(
    label: str, name: str, value: object, *, error: type[CellgenError] = ArgumentError
) -> bool:
    """Return an option that is on or off. Raises ``error``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise error(f"{label}: {name} is {quoted(value)}, expected True or False")


def is_whole(value: object, least: int = 0, most: int = LARGEST) -> bool:
    """Tell whether a value is an integer within bounds; True and False are none."""
    integer = _integer(value)
    return integer is not None and least <= integer <= most


def _integer(value: object) -> int | None:
    plain_value = plain(value)
    if isinstance(plain_value, int) and not isinstance(plain_value, bool):
        return plain_value
    return None


def whole(
    label: str,
    name: str,
    value: object,
    least: int = 0,
    most: int = LARGEST,
    *,
    expected: str = "",
    advice: str = "",
) -> int:
    """Return an integer from ``least`` to ``most``. Raises ArgumentError.

    ``expected`` stands in the message for the bounds, ``advice`` says what to do.
    """
    integer = _integer(value)
    if integer is not None and least <= integer <= most:
        return integer
    largest = "2**63 - 1" if most == LARGEST else str(most)
    wanted = expected or f"an integer from {least} to {largest}"
    if expected and most == LARGEST and integer is not None and integer > most:
        wanted += f", at most {largest}"
    raise ArgumentError(f"{label}: {name} is {quoted(value)}, expected {wanted}{_then(advice)}")


def whole_text(label: str, name: str, text: str, least: int, most: int, *, advice: str) -> int:
    """Return an integer from an environment variable. Raises ArgumentError."""
    integer = digits(text)
    if integer is not None and least <= integer <= most:
        return integer
    raise ArgumentError(
        f"{label}: {name} is {quoted(text)}, expected a number from {least} to {most}; {advice}"
    )


def digits(text: str, most: int = LARGEST) -> int | None:
    """The integer up to ``most`` that a text writes in plain digits; None where it writes none."""
    plain_text = text.strip()
    if not (plain_text.isascii() and plain_text.isdigit() and len(plain_text) <= len(str(most))):
        return None
    integer = int(plain_text)
    return integer if integer <= most else None


def word_from_environment(variable: str, known: Iterable[str]) -> str:
    """The word that an environment variable holds, or nothing. Raises ArgumentError."""
    text, words = os.environ.get(variable, ""), tuple(known)
    if text and text not in words:
        raise ArgumentError(
            f"{variable} is {quoted(text)}, expected {' or '.join(words)}; correct or unset it"
        )
    return text


def number(value: object) -> float | None:
    """The real number that a value is, as a float; None where it is none or no float holds it."""
    plain_value = value if isinstance(value, Fraction) else plain(value)
    if plain_value is None or isinstance(plain_value, bool):
        return None
    try:
        return float(plain_value)
    except OverflowError:
        return None


def real(
    label: str,
    name: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    expected: str = "",
    advice: str = "",
) -> float:
    """Return a real number from ``least`` to ``most``; NaN is none. Raises ArgumentError."""
    real_number = number(value)
    if real_number is not None and least <= real_number <= most:
        return real_number
    wanted = expected or (
        "one real number" if (least, most) == (-math.inf, math.inf) else f"{least:g} to {most:g}"
    )
    raise ArgumentError(f"{label}: {name} is {quoted(value)}, expected {wanted}{_then(advice)}")


def word(
    label: str,
    name: str,
    value: object,
    what: str,
    *,
    error: type[CellgenError] = ArgumentError,
    code: str | None = None,
) -> str:
    """Return a text as Python's own ``str``. Raises ``error``."""
    if isinstance(value, str):
        return str.__str__(value)
    raise error(f"{label}: {name} is {quoted(value)}, expected {what}", code=code)


def choice(
    label: str,
    name: str,
    value: object,
    known: Iterable[str],
    *,
    error: type[CellgenError] = ArgumentError,
) -> str:
    """Return a word that is one of several. Raises ``error``."""
    words = tuple(known)
    if isinstance(value, str) and str.__str__(value) in words:
        return str.__str__(value)
    raise error(f"{label}: {name} is {quoted(value)}, expected one of {', '.join(words)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask whether one of the three names that are most like another is meant; nothing if none is.

    >>> nearest("grru", ["gru", "lstm", "mgu", "min_gru"])
    "did you mean 'gru', 'mgu' or 'min_gru'? "
    """
    small = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), small, n=3, cutoff=0.5)
    close = [repr(small[one]) for one in matches]
    if not close:
        return ""
    *others, last = close
    return f"did you mean {', '.join(others)} or {last}? " if others else f"did you mean {last}? "


def items(label: str, name: str, value: object, what: str) -> list[object]:
    """Return the items of a list, a tuple or an array; a text or dict is none.

    Raises ArgumentError.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, np.ndarray) and np.asarray(value).ndim:
        return list(np.asarray(value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        try:
            return list(value)
        except Exception as fault:  # of a sequence that is none
            raise ArgumentError(
                f"{label}: {name} is a {type_name(value)} that cannot be gone through "
                f"({reason(fault)}), expected {what}; pass a list"
            ) from fault
    raise ArgumentError(f"{label}: {name} is {quoted(value)}, expected {what}; pass a list")


def names(label: str, name: str, value: object, what: str) -> dict[str, object]:
    """Return a mapping from names as a dict. Raises ArgumentError."""
    if not isinstance(value, Mapping):
        raise ArgumentError(
            f"{label}: {name} is {quoted(value)}, expected a dict of {what} by name"
        )
    try:
        entries = dict(value.items())
    except Exception as fault:  # of a mapping that is none
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} that cannot be read ({reason(fault)}), "
            f"expected a dict of {what} by name"
        ) from fault
    for key in entries:
        if not isinstance(key, str):
            raise ArgumentError(
                f"{label}: {name} has the key {quoted(key)}, expected names of {what}"
            )
    return entries


def refuse_masked(label: str, name: str, value: object) -> None:
    """Refuse an array with a mask of its own, which would be lost. Raises ArgumentError."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"{label}: {name} is a masked array, expected one without a mask of its own, which "
            f"would be ignored; pass {name}.filled(...) with what counts where it hides something"
        )


def array(label: str, name: str, value: object) -> Array:
    """Return what NumPy reads as an array of real numbers, as it is where it is one.

    Raises ArgumentError: nothing that NumPy can read, or entries that are no real numbers.
    """
    refuse_masked(label, name, value)
    value = in_memory(label, name, value)
    try:
        numbers = np.asarray(value)
    except MemoryError:
        raise
    except Exception as fault:  # NumPy's own, or what a foreign array raises
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} that NumPy cannot read as an array "
            f"({reason(fault)}); pass a numpy.ndarray"
        ) from fault
    if numbers.dtype.kind not in _REAL_KINDS:
        seen = f"dtype {numbers.dtype}" if numbers.ndim else quoted(value)
        raise ArgumentError(
            f"{label}: {name} is {type_name(value)} ({seen}), expected an array of real numbers"
        )
    return numbers


def in_memory(
    label: str, name: str, value: Any, *, error: type[CellgenError] = ArgumentError
) -> Any:
    """Return an array as it is where its memory holds all its entries; zeros where it says so.

    Tensors of PyTorch alone can lack memory, and say so: what they view can be cut short behind
    them (FSDP frees parameters so), and a FakeTensor never has any. Raises ``error``.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "untyped_storage"):
        return value
    if getattr(value, "fake_mode", None) is not None:
        raise error(
            f"{label}: {name} is a {type_name(value)}, which has a shape and no numbers, expected "
            f"numbers in memory; pass a real tensor"
        )
    if stands_for_zeros(value):
        return value.clone()
    lacks = lacking(value)
    if lacks:
        raise error(f"{label}: {name} {lacks}")
    return value


def stands_for_zeros(tensor: Any) -> bool:
    """Whether a tensor of PyTorch's is zeros without memory, as derivatives are of constants."""
    return getattr(tensor, "_is_zerotensor", bool)() is True


def lacking(tensor: Any) -> str:
    """Say what is wrong of a tensor of PyTorch whose storage ends before its entries do."""
    try:
        held = tensor.untyped_storage().nbytes()
        offset = tensor.storage_offset() * tensor.itemsize
        if tensor.is_contiguous():
            read = offset + tensor.nbytes
        else:
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            read = offset + tensor.itemsize * (1 + sum((n - 1) * step for n, step in steps))
    except (NotImplementedError, RuntimeError):  # it is sparse, or has no memory of its own
        return ""
    if read <= held or not tensor.numel():
        return ""
    return (
        f"is a {type_name(tensor)} whose storage has {held} bytes, but its entries take {read}, "
        f"expected all of them in memory (FSDP frees parameters between calls); pass it while it "
        f"has its memory, or a clone made then"
    )


def shaped(
    label: str,
    name: str,
    value: object,
    shape: tuple[int, ...],
    dtype: np.dtype[np.floating] | None = None,
    *,
    meaning: str = "",
) -> Array:
    """Return an array of real numbers of one shape, contiguous, in a dtype if one is given.

    ``meaning`` says what the shape is. Raises ArgumentError.
    """
    numbers = array(label, name, value)
    if numbers.shape != shape:
        raise ArgumentError(
            f"{label}: {name} has shape {numbers.shape}, expected {shape}"
            f"{meaning and f', {meaning}'}"
        )
    return np.asarray(numbers, dtype, order="C")


def float_dtype(label: str, value: object) -> np.dtype[np.floating]:
    """Return a dtype that kernels compute in. Raises ArgumentError."""
    try:
        dtype = np.dtype(value)  # type: ignore[call-overload]
    except Exception:  # NumPy's own, or that of an object which says it is a dtype
        dtype = None
    for known in (np.dtype(np.float32), np.dtype(np.float64)):
        if dtype is not None and dtype == known:  # to NumPy None is float64
            return known
    raise ArgumentError(
        f"{label}: dtype is {quoted(value)}, expected np.float32 or np.float64 in native order"
    )


def path(label: str, name: str, value: object, *, error: type[CellgenError]) -> Path:
    """Return a path from a text or a path, in full. Raises ``error`` where none can be there."""
    try:
        if isinstance(value, str | os.PathLike):
            location = Path(value)
            location.exists()
            return location.resolve()
        said = ""
    except (OSError, ValueError, RuntimeError, TypeError) as fault:  # too long, or no characters
        said = f" ({reason(fault)})"
    raise error(f"{label}: {name} is {quoted(value)}, expected the path of a folder or file{said}")


def reason(fault: BaseException) -> str:
    """Write the error of someone else in one line."""
    try:
        said = " ".join(str(fault).split())
    except Exception:  # an error that cannot be written
        said = ""
    return f"{type(fault).__name__}: {said[:160]}" if said else type(fault).__name__


def _then(advice: str) -> str:
    return f"; {advice}" if advice else ""

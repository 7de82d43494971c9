"""Arrays of other libraries in the host's memory: PyTorch's tensors, JAX's arrays, and their like.

Input: the arrays of a call, anything with ``__dlpack__``. Output: NumPy's arrays of the same
memory, and the ``Framework`` that results are given back to. Nothing is copied but results for JAX
that are small, since its arrays begin at cache lines, or have gaps, which its arrays have not. A
mixture is refused, and a tensor that requires a gradient: results of a call carry none, and to drop
it silently would be worse. So is a tensor of PyTorch's whose memory holds its negative, and one
without memory, of which DLPack says nothing; one that stands for zeros is zeros.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cellgen.accept import in_memory, reason, stands_for_zeros, type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.call.stored import BFLOAT16, NUMBERS, STORED, element_of, in_numpy
from cellgen.runtime.call.views import library_of
from cellgen.runtime.options import ROWS
from cellgen.runtime.results import Array, Results

IN_HOST_MEMORY = (1, 3)
"""Device types of DLPack: the host's memory, and such of it that devices can reach."""


_WITHIN = {
    "jax": "; within jit, grad and vmap use cellgen.jax",
    "jaxlib": "; within jit, grad and vmap use cellgen.jax",
    "torch": "; within torch.func and torch.compile use cellgen.torch",
}
"""What to do about an array that stands for numbers which are not there yet, by its library."""


@dataclass(frozen=True)
class Framework:
    """A library whose arrays a call was given; ``give`` makes its array of NumPy's memory.

    Arrays of one that is ``mutable`` may change while somebody looks at them; ``wrote`` tells the
    library that a kernel wrote to one.
    """

    name: str
    give: Callable[[Array], object]
    mutable: bool = False
    wrote: Callable[[Any], object] | None = None

    def tell(self, written: Sequence[Any]) -> None:
        """Let the library know which of its arrays a call wrote to."""
        if self.wrote is not None:
            for array in written:
                self.wrote(array)

    def named(self, results: Results) -> Results:
        """Results of a call as arrays of this library; what is saved stays as it is."""
        lent = [self.give(np.asarray(a)) if isinstance(a, np.ndarray) else a for a in results]
        return tuple.__new__(type(results), lent)


def is_foreign(value: object) -> bool:
    """Whether a value is an array of another library than NumPy."""
    return not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__")


def as_numpy(label: str, name: str, value: Any) -> Array:
    """Look at another library's array as NumPy's, in its memory. Raises ArgumentError."""
    if getattr(value, "requires_grad", False) is True:
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} that requires a gradient, which this call "
            f"would drop; pass {name}.detach(), or use cellgen.torch"
        )
    if getattr(value, "is_neg", bool)() is True:
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} whose memory holds its negative, expected "
            f"numbers as they are; pass {name}.resolve_neg()"
        )
    value = in_memory(label, name, value)
    try:
        kind, _ = value.__dlpack_device__()
        if int(kind) not in IN_HOST_MEMORY:
            raise ArgumentError(
                f"{label}: {name} is a {type_name(value)} on a device, expected one in the host's "
                f"memory; move it there, or load the kernel with target='cuda'"
            )
        is_wide = element_of(value) != BFLOAT16
        array = _borrowed(label, name, value) if is_wide else _bfloat16(label, name, value)
    except ArgumentError:
        raise
    except Exception as fault:  # of NumPy, or of the other library
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} that cannot be read without a copy "
            f"({reason(fault)}); expected float32 or float64 in the host's memory"
            f"{_WITHIN.get(library_of(value), '')}"
        ) from fault
    return array


def _borrowed(label: str, name: str, value: Any) -> Array:
    """Look at memory that an array lends. Raises ArgumentError where it lends an address of 0."""
    array = np.from_dlpack(value)
    if array.flags.owndata and array.size:  # then NumPy has taken memory of its own
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} {array.shape} that lends no memory, "
            f"expected numbers in the host's memory; pass an array that has them"
        )
    return array


def has_foreign(arguments: Mapping[str, object]) -> bool:
    """Whether the arrays of a call are another library's, as its first one tells."""
    for value in arguments.values():
        if type(value) is np.ndarray:
            return False
        if is_foreign(value):
            return True
    return False


@dataclass(frozen=True)
class Adopted:
    """A call with NumPy's arrays in place of another library's; of ``out`` they are ``lent``."""

    framework: Framework
    arguments: dict[str, Any]
    out: Any
    lent: tuple[Any, ...] = ()

    def results(self, results: Results) -> Results:
        """Results of the call as arrays of the library, which hears what the call wrote to."""
        self.framework.tell(self.lent)
        return self.framework.named(results)

    def bound(self, results: Results) -> Results:
        """Results of a call that is made over and over, in the memory that they have."""
        return self.framework.named(results)


def adopt(label: str, arguments: Mapping[str, object], out: object = None) -> Adopted:
    """Look at the arrays of a call as NumPy's, those of ``out`` too.

    Raises ArgumentError: arrays of two libraries, or one that cannot be read without a copy.
    """
    first, model = next((n, a) for n, a in arguments.items() if is_foreign(a))
    library = library_of(model)

    def adopted(name: str, value: object, *, is_option: bool = False) -> Any:
        if is_foreign(value) and (is_option or library_of(value) == library):
            return as_numpy(label, name, value)
        if is_option or not (is_foreign(value) or isinstance(value, np.ndarray)):
            return value
        raise ArgumentError(
            f"{label}: {name} is a {type_name(value)} and {first} a {type_name(model)}, expected "
            f"arrays of one library; convert {name}"
        )

    as_arrays = {n: adopted(n, a, is_option=n in ROWS) for n, a in arguments.items()}
    saved = arguments.get("saved")
    if isinstance(saved, Mapping):
        as_arrays["saved"] = {n: adopted(f"saved {n}", a, is_option=True) for n, a in saved.items()}
    taken: Any = out
    written: list[Any] = []
    if isinstance(out, Mapping):
        taken = {name: adopted(f"out {name}", array) for name, array in out.items()}
        written = [array for array in out.values() if is_foreign(array)]
    elif isinstance(out, tuple):
        taken = tuple(adopted(f"out[{place}]", array) for place, array in enumerate(out))
        written = [array for array in out if is_foreign(array)]
    for array in written:
        if stands_for_zeros(array):
            raise ArgumentError(
                f"{label}: a result of out is a {type_name(array)} that stands for zeros, expected "
                f"memory to write to; pass a clone of it"
            )
    return Adopted(_framework_of(model), as_arrays, taken, tuple(written))


def _framework_of(array: Any) -> Framework:
    name = library_of(array)
    module = sys.modules.get(name)
    if name == "torch" and module is not None:
        return Framework(
            name, partial(_tensor, module), mutable=True, wrote=partial(_count_version, module)
        )
    if hasattr(array, "__array_namespace__"):
        space = array.__array_namespace__()
        return Framework(name, partial(_array_of, space))
    return Framework(name, getattr(module, "from_dlpack", _as_it_is))


def _bfloat16(label: str, name: str, value: Any) -> Array:
    """Look at numbers of bfloat16, which DLPack has no word for that NumPy knows."""
    library = sys.modules.get(library_of(value))
    if library is not None and hasattr(library, "int16") and hasattr(value, "view"):
        with suppress(TypeError):  # of others than PyTorch
            words = _borrowed(label, name, value.view(library.int16))
            return words.view(STORED[BFLOAT16])
    return np.asarray(value).view(STORED[BFLOAT16])


def _count_version(torch: Any, tensor: Any) -> None:
    """Let autograd notice that a tensor changed which it may have kept for a backward pass."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _tensor(torch: Any, array: Array) -> object:
    if array.dtype not in NUMBERS:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(getattr(torch, element_of(array)))


def _array_of(space: Any, array: Array) -> object:
    if array.dtype in NUMBERS:
        return space.asarray(in_numpy(array))
    return space.from_dlpack(_without_gaps(array))


def _without_gaps(array: Array) -> Array:
    """The same array, its axes in any order; a copy where a part of more memory is shown."""
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return array if array.transpose(axes).flags.c_contiguous else np.ascontiguousarray(array)


def _as_it_is(array: Array) -> Array:
    return array

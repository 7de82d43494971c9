"""Call a kernel by addresses: what a binding to another library has when it has checked already.

Input: dimensions and the members of a function's C struct as words, in its order. Output: none;
results are written where the words point. Nothing of NumPy runs, nothing is checked but counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import ERROR_CODES, OPTIONS, Argument
from cellgen.runtime.build.library import DIMS
from cellgen.runtime.call.arguments import DTYPES
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.call.workspace import NOTHING, AlignedBytes, Pointer, take_workspace
from cellgen.runtime.host.threads import team_size, threads_team

KEPT_SIZES = 1024
"""Shapes whose workspace a function remembers."""


class RawFunction:
    """One function of a kernel in one precision, called by addresses.

    ``members`` are the arguments of the C struct in its order, then the results; ``places`` tells
    the place of each by name. A call gives one word for each of them:

    - an array: its address, an integer. Entries lie side by side in C order, of this function's
      dtype, in memory that stays where it is during the call. Results must not overlap anything.
    - a run-time scalar (``is_scalar``): a number.
    - 0 stands for what is left out: an ``optional`` upstream gradient, which counts as zero, and a
      ``saved`` result that is not wanted. An array without elements may be 0 too.

    Workspace and team are those of the thread that calls. The lock of the interpreter is released
    during the call. A call cannot be interrupted but by ``stop`` of its options. Addresses and
    dimensions are the caller's promise: a wrong one reads or writes memory that is not there.

    Raises ArgumentError for a function or a dtype that the kernel does not have; BuildError.
    """

    def __init__(self, kernel: Owner, name: str, dtype: object = np.float32) -> None:
        by_name = {item.name: item for item in kernel.interface.functions}
        if name not in by_name:
            raise ArgumentError(
                f"{kernel.name}: no function is named {accept.quoted(name)}, expected one of "
                f"{', '.join(by_name)}; correct the name"
            )
        self.function = function = by_name[name]
        self.label = f"{kernel.name}.{name}"
        self.dtype = accept.float_dtype(self.label, dtype)
        self.members: tuple[Argument, ...] = (*function.struct_members, *function.results)
        self.places = {item.name: place for place, item in enumerate(self.members)}
        self._library = library = kernel.library()
        self._interface = kernel.interface
        self._ffi: Any = library.ffi
        suffix, _ = DTYPES[self.dtype]
        entry = library.entry(name, suffix)
        self.run = entry.call
        self._size = entry.size if function.workspace else None
        codes = "".join("d" if item.is_scalar else "P" for item in self.members)
        tail = ("Pq" if function.workspace else "") + ("PP" if function.team else "")
        self._pack = Struct(f"@{codes}{tail}").pack
        self._known: dict[tuple[int, ...], tuple[Pointer, int]] = {}
        self._count, self._rank = len(self.members), len(function.dims)
        self._has_team = function.team

    def __repr__(self) -> str:
        return f"<raw function {self.label}, {self.dtype}: {', '.join(self.places)}>"

    def __call__(
        self,
        dims: Sequence[int],
        words: Sequence[int | float],
        options: Pointer = None,
        threads: int | None = None,
    ) -> None:
        """Run on ``dims`` (in the order of ``function.dims``) and ``words`` (of ``members``).

        ``options`` comes from ``self.options``; ``threads`` is as in a checked call.

        Raises ArgumentError for another number of words or dimensions, or what C refuses;
        MemoryError.
        """
        sizes = tuple(dims)
        if len(words) != self._count or len(sizes) != self._rank:
            raise self._miscounted(sizes, words)
        known = self._known.get(sizes)
        numbers, size = self._look(sizes) if known is None else known
        if options is not None:
            size = self.workspace_bytes(sizes, options)
        memory = NOTHING if self._size is None else take_workspace(self.label, size, sizes)
        tail = self._tail(memory, options, threads)  # addresses: the memory lives as long as we do
        code = self.run(numbers, self._pack(*words, *tail))
        if code:
            raise ArgumentError(
                f"{self.label}: the compiled function returned {code}: "
                f"{ERROR_CODES.get(code, 'an unknown error code')} (dimensions {sizes}, "
                f"{self.dtype}); correct the words, dimensions or options of the call"
            )

    def _look(self, dims: tuple[int, ...]) -> tuple[Pointer, int]:
        """Put dimensions into C, and ask for the workspace of calls without options."""
        if len(self._known) >= KEPT_SIZES:
            self._known.clear()
        size = self._ffi.make(DIMS, dims), self.workspace_bytes(dims)
        self._known[dims] = size
        return size

    def _tail(self, memory: AlignedBytes, options: Pointer, threads: int | None) -> tuple[int, ...]:
        """Return what follows the members: workspace, its bytes, team, options."""
        tail: tuple[int, ...] = () if self._size is None else (memory.address, memory.bytes)
        if self._has_team:
            if threads != 1:
                threads = team_size(threads, self.label)
            if threads == 1 and options is None:
                return (*tail, 0, 0)
            team = threads_team(self._library, self._interface, threads)
            return (*tail, _address(self._ffi, team), _address(self._ffi, options))
        return tail

    def struct(self, words: Sequence[int | float], options: Pointer) -> bytes:
        """Fill the struct of a call without workspace and team: ``forward`` of other options.

        A backward pass with checkpoints runs it once more. Raises ArgumentError for another number
        of words.
        """
        if len(words) != self._count:
            raise self._miscounted((), words)
        return self._pack(*words, 0, 0, 0, _address(self._ffi, options))

    def workspace_bytes(self, dims: Sequence[int], options: Pointer = None) -> int:
        """Return the bytes of workspace of a call, which it finds by itself.

        Raises ArgumentError where 64 bits do not hold them.
        """
        if self._size is None:
            return 0
        ffi = self._ffi
        size: int = self._size(ffi.make(DIMS, dims), ffi.NULL if options is None else options)
        if size < 0:
            raise ArgumentError(
                f"{self.label}: the workspace for dimensions {tuple(dims)} has no size that 64 "
                f"bits can hold; call it with smaller dimensions"
            )
        return size

    def options(self, **words: int) -> Pointer:
        """Make the options of a call over time: members of ``cellgen_options`` by name.

        Arrays (``lengths``, ``mask``, ``reset``, ``strides``, ``packed``, ``plan``, ``stop``,
        ``checkpoints``, ``forward``, ``stored``) are addresses, the others integers; what is left
        out is 0, but ``hold``, which is 1. They may serve many calls; what they point to must live
        as long.

        Raises ArgumentError for another name, or a function that takes no options.
        """
        unknown = sorted(set(words) - set(OPTIONS))
        if unknown or not self.function.team:
            raise ArgumentError(
                f"{self.label}: options are {', '.join(words) or 'none'}, expected "
                f"{'some of ' + ', '.join(OPTIONS) if self.function.team else 'no call of it'}; "
                f"leave out {', '.join(unknown) or 'options'}"
            )
        ffi, options = self._ffi, self._ffi.new("cellgen_options *")
        types = {name: field.type for name, field in ffi.typeof("cellgen_options").fields}
        for name, word in {"hold": 1, **words}.items():
            is_pointer = types[name].kind == "pointer"
            setattr(options, name, ffi.cast(types[name], word) if is_pointer else word)
        return options

    def _miscounted(self, dims: tuple[int, ...], words: Sequence[int | float]) -> ArgumentError:
        return ArgumentError(
            f"{self.label}: found {len(dims)} dimensions and {len(words)} words, expected "
            f"{len(self.function.dims)} ({', '.join(self.function.dims)}) and "
            f"{len(self.members)} ({', '.join(self.places)}); give one for each"
        )


def _address(ffi: Any, pointer: Pointer) -> int:
    return 0 if pointer is None else int(ffi.cast("intptr_t", pointer))

"""How a function over time runs, as a value: what depends on the shape and the threads.

Input: dimensions, threads, a machine's figures. Output: ``SequencePlan``, which prints and can be
passed to a call. The C chooses (``<cell>_<function>_plan``); nothing here decides. Whatever a plan
says, results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import CONSTANTS, PLAN, Function, Interface
from cellgen.runtime.host.threads import thread_count

if TYPE_CHECKING:
    import cffi

    from cellgen.runtime.build.compiler import Library


@dataclass(frozen=True)
class Constants:
    """Figures of a machine that plans are chosen by; a negative one is as the kernel was compiled.

    ``hoist_rows``: rows up to which products of inputs are formed ahead of the time loop.
    ``rows_per_thread``: with fewer rows for each thread, threads share units. ``weights_in_cache``:
    bytes of weights that stay in a core's second-level cache. ``window_rows``, ``chunk_rows``: rows
    of a window of products formed ahead, and of a chunk of what is deferred.
    """

    hoist_rows: int = -1
    rows_per_thread: int = -1
    weights_in_cache: int = -1
    window_rows: int = -1
    chunk_rows: int = -1


@dataclass(frozen=True)
class SequencePlan:
    """The plan of one function over time for one shape.

    ``by_units``: threads share the units of a step and meet after each stage, else its rows and
    meet never. ``hoist``: products of inputs are formed ahead, for a window of steps.
    ``unpacked``: weights are read where they lie, not packed ahead. ``bands`` of rows are summed
    apart from each other: by shape and precision alone, another number fits no call.
    ``weight_bytes``: packed weights of the time loop. ``by``: the constants that it was chosen by.
    """

    threads: int
    by_units: bool
    hoist: bool
    unpacked: bool
    window_rows: int
    chunk_rows: int
    bands: int
    weight_bytes: int
    by: Constants = Constants()

    def __str__(self) -> str:
        return ", ".join(f"{name} = {getattr(self, name)}" for name in PLAN)

    def as_c(self, ffi: cffi.FFI) -> object:
        """The C struct, for a call."""
        numbers = [int(getattr(self, name)) for name in PLAN]
        return ffi.new("cellgen_plan *", [*numbers, list(astuple(self.by))])


def choose(
    library: Library,
    interface: Interface,
    function: Function,
    suffix: str,
    dims: Mapping[str, int],
    threads: int | None,
    constants: Constants | None = None,
) -> SequencePlan:
    """Ask the compiled kernel for its plan.

    Raises:
        ArgumentError: a dimension that is missing, unknown or negative, or a wrong thread count.
    """
    where = f"{interface.name}.{function.name}"
    if sorted(dims) != sorted(function.dims) or any(size < 0 for size in dims.values()):
        given = ", ".join(f"{name}={size}" for name, size in dims.items()) or "none"
        raise ArgumentError(
            f"{where}: a plan needs the dimensions {', '.join(function.dims)}, each 0 or more; "
            f"found {given}"
        )
    ffi = library.ffi
    found = ffi.new("cellgen_plan *")
    figures = ffi.NULL if constants is None else ffi.new("cellgen_constants *", astuple(constants))
    call = getattr(library.lib, interface.symbols(function, suffix).plan)
    call(*(dims[name] for name in function.dims), thread_count(threads, where), figures, found)
    return SequencePlan(
        found.threads,
        bool(found.by_units),
        bool(found.hoist),
        bool(found.unpacked),
        found.window_rows,
        found.chunk_rows,
        found.bands,
        found.weight_bytes,
        Constants(*(getattr(found.by, name) for name in CONSTANTS)),
    )


assert tuple(Constants.__dataclass_fields__) == CONSTANTS
assert tuple(SequencePlan.__dataclass_fields__) == (*PLAN, "by")

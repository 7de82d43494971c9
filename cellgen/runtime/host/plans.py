"""How a function over time runs, as a value: what depends on the shape and the threads.

Input: dimensions, threads, a machine's figures. Output: ``SequencePlan``, which prints and can be
passed to a call. The C chooses (``<cell>_<function>_plan``); nothing here decides. Whatever a plan
says, results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import CONSTANTS, PLAN, Function, Interface
from cellgen.runtime.build.library import DIMS
from cellgen.runtime.host.threads import thread_count
from cellgen.runtime.notebook import ShownInNotebooks

if TYPE_CHECKING:
    from cellgen.runtime.build.library import Library, Types


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
class SequencePlan(ShownInNotebooks):
    """The plan of one function over time for one shape.

    ``by_units``: threads share the units of a step and meet after each stage, else its rows and
    meet never. ``hoist``: products of inputs are formed ahead, for a window of steps.
    ``unpacked``: weights are read where they lie, not packed ahead. ``row_blocks`` are summed
    apart from each other: by shape and precision alone, another number fits no call.
    ``weight_bytes``: packed weights of the time loop. ``by``: the constants that it was chosen by.
    """

    threads: int
    by_units: bool
    hoist: bool
    unpacked: bool
    window_rows: int
    chunk_rows: int
    row_blocks: int
    weight_bytes: int
    by: Constants = Constants()

    def __str__(self) -> str:
        return ", ".join(f"{name} = {getattr(self, name)}" for name in PLAN)

    def checked(self, label: str) -> SequencePlan:
        """The same plan of plain numbers. Raises ArgumentError for one that C cannot hold."""
        values = {name: (f"plan.{name}", getattr(self, name)) for name in PLAN}
        switches = {n: values.pop(n) for n in ("by_units", "hoist", "unpacked")}
        fields: dict[str, Any] = {n: accept.flag(label, *item) for n, item in switches.items()}
        fields |= {n: accept.whole(label, *item, -accept.LARGEST) for n, item in values.items()}
        return SequencePlan(**fields, by=Constants(*_figures(label, self.by)))

    def as_c(self, ffi: Types) -> object:
        """The C struct, for a call."""
        numbers = [int(getattr(self, name)) for name in PLAN]
        return ffi.new("cellgen_plan *", [*numbers, list(astuple(self.by))])


def _figures(label: str, constants: object) -> list[int]:
    """The members of the C struct of constants. Raises ArgumentError."""
    if not isinstance(constants, Constants):
        raise ArgumentError(
            f"{label}: constants are {accept.quoted(constants)}, expected Constants; pass "
            f"cellgen.plans.Constants(...), or leave them out"
        )
    return [
        accept.whole(label, f"constants.{name}", getattr(constants, name), -accept.LARGEST)
        for name in CONSTANTS
    ]


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
    label = f"{interface.name}.{function.name}"
    fitting = all(accept.is_whole(size) for size in dims.values())
    if sorted(dims) != sorted(function.dims) or not fitting:
        listed = ", ".join(f"{n}={accept.quoted(size)}" for n, size in dims.items()) or "none"
        form = ", ".join(f"{name}=..." for name in function.dims)
        raise ArgumentError(
            f"{label}: a plan needs the dimensions {', '.join(function.dims)}, each an integer "
            f"from 0 to 2**63 - 1; found {listed}; write plan({form})"
        )
    sizes = [accept.whole(label, name, dims[name]) for name in function.dims]
    ffi = library.ffi
    struct = ffi.new("cellgen_plan *")
    figures: object = ffi.NULL
    if constants is not None:
        figures = ffi.new("cellgen_constants *", _figures(label, constants))
    call = library.entry(function.name, suffix).plan
    call(ffi.make(DIMS, sizes), thread_count(threads, label), figures, struct)
    return SequencePlan(
        struct.threads,
        bool(struct.by_units),
        bool(struct.hoist),
        bool(struct.unpacked),
        struct.window_rows,
        struct.chunk_rows,
        struct.row_blocks,
        struct.weight_bytes,
        Constants(*(getattr(struct.by, name) for name in CONSTANTS)),
    )


assert tuple(Constants.__dataclass_fields__) == CONSTANTS
assert tuple(SequencePlan.__dataclass_fields__) == (*PLAN, "by")

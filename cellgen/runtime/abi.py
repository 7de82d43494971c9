"""The interface of generated kernels as plain data: names, shapes, structs.

Input: nothing (records read from ``interface.json`` or made by ``render``).
Output: ``Interface``, and the names and members that it has in C.
Imports neither SymPy nor Jinja2: loading a built kernel needs only this, ``build`` and ``kernel``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from cellgen.runtime.names import c_member, final_of, spelled
from cellgen.runtime.options import c_members

ABI_VERSION = 21
"""Bumped whenever the meaning of a struct, a function or an error code changes; part of the cache
key."""

_POWER = re.compile(r"(\w+)\*\*(\d+)")

PRECISIONS = (("f32", "float"), ("f64", "double"))
"""Symbol suffix and C type of each instantiation; NumPy dtypes are float32 and float64."""

NO_GAPS = (-(1 << 63), 0)
"""Strides of an array without gaps, ``CELLGEN_NO_GAPS``."""

UNFIT_PLAN = 5
"""What a function over time returns that was given a plan which it cannot follow."""

STOPPED = 6
"""What a function over time returns that ended early because its caller asked it to."""

ERROR_CODES = {
    0: "no error",
    1: "a required pointer is NULL",
    2: "a dimension is negative",
    3: "the workspace is missing or too small",
    4: "a row has fewer than 0 or more than T steps",
    UNFIT_PLAN: "a plan that the function cannot follow with this shape and number of threads",
    STOPPED: "the caller asked it to stop; results are incomplete",
    7: "packed weights are of fewer bytes than these dimensions need",
}
"""Return values of kernel functions, as ``generated/include/cellgen.h`` defines them."""


EVERY = " // "
"""What stands in an axis of every so many-th step, ``T // 4``."""

ROLES = (
    *("input", "state", "static", "weight", "bias", "scalar", "output", "final", "intermediate"),
    *("saved", "upstream", "gradient"),
)
"""What a value of a function is; their order is that of ``cellgen_role`` in
generated/include/cellgen_descriptor.h."""


@dataclass(frozen=True)
class Argument:
    """One argument or result: ``shape`` holds axis lengths such as ``"B"``, ``"2*H"``, ``"I + H"``.

    ``default`` is set for run-time scalars only (shape ``()``); ``optional`` marks an upstream
    gradient that counts as zero when left out, and a result that is formed only where it is wanted;
    ``used`` is False for a name that a call may give for symmetry with ``forward`` (it is checked,
    then ignored, and is absent from the C struct).
    ``saved`` marks what ``sequence_forward`` keeps for ``sequence_backward``: a result that is
    formed on request, an argument that comes from it. Such a one is ``bounded`` where its equation
    ends in a bounded function: a gate. ``operand`` marks a weight of functions over time that
    products alone read, so that products in bfloat16 take it in bfloat16. ``initial`` is where a
    state starts.
    ``role`` is one of ``ROLES``; ``of`` names what a gradient is of, and for a final state the one
    before the first step. ``follows`` names the state of which an output is the next value.
    """

    name: str
    shape: tuple[str, ...]
    text: str = ""
    default: float | None = None
    optional: bool = False
    used: bool = True
    saved: bool = False
    bounded: bool = False
    operand: bool = False
    initial: float = 0.0
    role: str = ""
    of: str = ""
    follows: str = ""

    def __post_init__(self) -> None:
        """Let the name be the object that a keyword of that name is, as ``look_up`` in C hopes."""
        object.__setattr__(self, "name", sys.intern(self.name))

    @cached_property
    def is_scalar(self) -> bool:
        """Whether it is a number with a default."""
        return self.default is not None

    @property
    def is_weight(self) -> bool:
        """Whether it is the same array for every step and row: a weight or a bias."""
        return not self.is_scalar and not {"T", "B"} & set(self.shape)

    @cached_property
    def over_time(self) -> bool:
        """Whether it is (T, B, ...) at the caller's strides: steps and rows any distance apart."""
        return self.shape[:1] != () and self.shape[0].split(EVERY)[0] == "T" and not self.saved


@dataclass(frozen=True)
class Function:
    """One kernel function: ``dims`` in call order, arguments, results.

    It also says whether it needs memory, and whether it takes a team of threads.
    """

    name: str
    dims: tuple[str, ...]
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    workspace: bool
    text: str = ""
    team: bool = False

    @property
    def states(self) -> dict[str, str]:
        """States, and what a step makes of them: ``{"h_prev": "h"}``."""
        after = {a.follows: a.name for a in (*self.arguments, *self.results) if a.follows}
        return {a.name: after[a.name] for a in self.arguments if a.name in after}

    @property
    def finals(self) -> dict[str, str]:
        """Final states, and what steps make of them: ``{"h_last": "h"}``."""
        return {final_of(name): name for name in self.states.values()}

    @property
    def struct_members(self) -> tuple[Argument, ...]:
        """Arguments in the order of the C struct; results follow, then the workspace."""
        return tuple(argument for argument in self.arguments if argument.used)


@dataclass(frozen=True)
class Interface:
    """All functions of one generated cell; ``digest`` identifies the mathematics (12 digits).

    ``directions`` are those of a tangent: of what moves, and the direction it moves along.
    ``jumps`` is the statement by which a state jumps, nothing where none does. ``units_apart``:
    a unit of a state follows from that unit of the states alone, so that of n states a step's
    Jacobian has n x n numbers a unit.
    """

    name: str
    digest: str
    functions: tuple[Function, ...]
    directions: tuple[tuple[str, str], ...] = ()
    jumps: str = ""
    units_apart: bool = False

    @property
    def has_team(self) -> bool:
        """Whether any function takes a team of threads."""
        return any(function.team for function in self.functions)

    @property
    def team_symbols(self) -> tuple[str, str]:
        """C names of the functions that create and destroy a team."""
        return f"{self.name}_team_create", f"{self.name}_team_destroy"

    @property
    def descriptor_symbol(self) -> str:
        """The C name of the function that returns the cell's descriptor."""
        return f"{self.name}_cellgen"

    @property
    def dims(self) -> tuple[str, ...]:
        """Every dimension of its functions, in the order of the longest call."""
        sorted_dims = sorted((f.dims for f in self.functions), key=len, reverse=True)
        return tuple(dict.fromkeys(dim for dims in sorted_dims for dim in dims))

    def symbols(self, function: Function, suffix: str) -> Symbols:
        """Names in C of a function, in a precision."""
        stem = f"{self.name}_{function.name}"
        return Symbols(
            call=f"{stem}_{suffix}",
            struct=f"{stem}_args_{suffix}",
            workspace_size=f"{stem}_workspace_size_{suffix}",
            plan=f"{stem}_plan_{suffix}",
            pack=f"{stem}_pack_{suffix}",
            packed_size=f"{stem}_packed_size_{suffix}",
        )


@dataclass(frozen=True)
class Symbols:
    """The C names of one function in one precision."""

    call: str
    struct: str
    workspace_size: str
    plan: str
    pack: str
    packed_size: str


@cache
def axis_terms(axis: str) -> tuple[tuple[int, str], ...]:
    """Split an axis length into (coefficient, dimension) terms; a constant has dimension ``""``.

    Several dimensions of a term stay together, as ``term_dims`` takes them apart.

    >>> axis_terms("I + 2*H")
    ((1, 'I'), (2, 'H'))
    >>> axis_terms("1"), axis_terms("3*D**2*N")
    (((1, ''),), ((3, 'D*D*N'),))
    """
    terms = []
    for part in _POWER.sub(lambda match: "*".join([match[1]] * int(match[2])), axis).split("+"):
        factor, _, names = part.strip().partition("*")
        is_count = factor.isdigit()
        terms.append((int(factor), names) if is_count else (1, part.strip()))
    return tuple(terms)


def term_dims(names: str) -> tuple[str, ...]:
    """Dimensions that a term multiplies; a constant has none.

    >>> term_dims("D*N"), term_dims("")
    (('D', 'N'), ())
    """
    return tuple(names.split("*")) if names else ()


def terms_length(terms: Iterable[tuple[int, str]], dims: Mapping[str, int]) -> int:
    """Add up terms for given dimensions; plain loops, which Dynamo can trace."""
    total = 0
    for factor, names in terms:
        if names in dims:  # most are one dimension, which takes no text apart
            total += factor * dims[names]
            continue
        length = factor
        for name in term_dims(names):
            length *= dims[name]
        total += length
    return total


def axis_length(axis: str, dims: dict[str, int]) -> int:
    """Evaluate an axis length for given dimensions."""
    return terms_length(axis_terms(axis), dims)


def c_dim(name: str) -> str:
    """Spell a dimension in C: ``H`` is ``nH``, ``steps`` is ``n_steps_``.

    A bare ``I`` is a macro of <complex.h>; ``now`` and ``none`` are other variables.
    """
    name = spelled(name)
    return f"n{name}" if name[0].isupper() else f"n_{name}_"


def c_parameters(function: Function) -> str:
    """The dimensions as parameters in C."""
    return ", ".join(f"int64_t {c_dim(name)}" for name in function.dims)


def size_parameters(function: Function) -> str:
    """Spell the parameters of a workspace's size: dimensions, and options over time."""
    return c_parameters(function) + (", const cellgen_options *options" if function.team else "")


def plan_parameters(function: Function) -> str:
    """Spell the parameters of what chooses the plan of a function over time."""
    extra = "int64_t threads, const cellgen_constants *constants, cellgen_plan *plan"
    return f"{c_parameters(function)}, {extra}"


def shape_comment(argument: Argument) -> str:
    """Spell a shape as comments in C do."""
    return f"({', '.join(map(spelled, argument.shape))})"


def struct_members(function: Function) -> Iterator[tuple[str, str]]:
    """Yield (C name, kind) of each struct member, in order; every one is a word of eight bytes.

    A kind is ``array``, ``scalar``, ``memory`` (an address of no type), ``bytes`` or ``options``.
    """
    for argument in function.struct_members:
        yield c_member(argument.name), "scalar" if argument.is_scalar else "array"
    for result in function.results:
        yield c_member(result.name), "array"
    if function.workspace:
        yield "workspace", "memory"
        yield "workspace_bytes", "bytes"
    if function.team:
        yield "team", "memory"
        yield "options", "options"


def struct_lines(function: Function, c_type: str) -> Iterator[tuple[str, str]]:
    """Yield (declaration, comment) of each struct member, in order; C has none without members.

    Every member is a word of eight bytes: run-time scalars are doubles in either precision.
    """
    if not (function.struct_members or function.results or function.workspace or function.team):
        yield "int nothing;", "neither read nor written"
    for argument in function.struct_members:
        shape = shape_comment(argument) if argument.shape else "scalar"
        note = f"{shape}{', NULL counts as zero' if argument.optional else ''}"
        kind = "double" if argument.is_scalar else f"const {c_type} *"
        yield f"{kind}{' ' if argument.is_scalar else ''}{c_member(argument.name)};", note
    for result in function.results:
        note = ", NULL: not wanted" if result.saved or result.optional else ""
        yield f"{c_type} *{c_member(result.name)};", shape_comment(result) + note
    if function.workspace:
        yield "void *workspace;", f"aligned to {WORKSPACE_ALIGNMENT} bytes"
        yield "int64_t workspace_bytes;", "at least ..._workspace_size(...)"
    if function.team:
        yield "void *team;", "a cellgen_team, NULL: the caller alone"
        yield "const cellgen_options *options;", "which steps are valid; NULL: all of them"


CONSTANTS = ("hoist_rows", "rows_per_thread", "weights_in_cache", "window_rows", "chunk_rows")
"""Members of ``cellgen_constants`` in generated/include/cellgen.h, in order."""

PLAN = (
    "threads",
    "by_units",
    "hoist",
    "unpacked",
    "window_rows",
    "chunk_rows",
    "row_blocks",
    "weight_bytes",
)
"""Members of ``cellgen_plan`` there, in order; the constants that it was chosen by follow."""

OPTIONS = tuple(member.name for member in c_members())
"""Members of ``cellgen_options`` in generated/include/cellgen_options.h, in order."""

WORKSPACE_ALIGNMENT = 64
"""Bytes; one cache line and one AVX-512 register."""

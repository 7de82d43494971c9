"""The data of a schedule: buffers, views of them, and the stages of each function.

A stage is a ``Product`` (one matrix product into memory, possibly added onto what is there), a
``Loop`` (pointwise statements and sums over one index space) or a ``Routine`` (what is neither).
Targets spell these; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from sympy import Expr, Integer, Mul

from cellgen.errors import DerivationError
from cellgen.language.notation import text
from cellgen.language.ops import Form, Operator
from cellgen.language.value import Dim, Shape, Value, format_axis, format_shape
from cellgen.program.ssa import Program, Statement


def flat(shape: Shape) -> Shape:
    """How an array of three axes or more lies in memory: all but the first are one."""
    return (shape[0], Mul(*shape[1:])) if len(shape) > 2 else shape


class BufferKind(Enum):
    """Who owns a buffer and whether it is there."""

    ARGUMENT = "argument"
    OPTIONAL = "optional"
    SCALAR = "scalar"
    RESULT = "result"
    WORKSPACE = "workspace"


@dataclass(frozen=True)
class Buffer:
    """One array in memory, row-major and contiguous."""

    value: Value
    kind: BufferKind

    @property
    def name(self) -> str:
        """The value's name."""
        return str(self.value.name)

    @cached_property
    def shape(self) -> Shape:
        """The value's shape, all inner axes side by side."""
        return flat(self.value.shape)

    @property
    def row(self) -> Expr:
        """The length of a row: of its last axis, 1 of a number."""
        return self.shape[-1] if self.shape else Integer(1)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name} {format_shape(self.shape)}"


@dataclass(frozen=True)
class View:
    """Where a value lives: a rectangle of a buffer, from ``start`` in every axis.

    A value that is the transpose of the rectangle is ``transposed``; only loops read such views.
    """

    buffer: Buffer
    start: tuple[Expr, ...]
    shape: Shape
    transposed: bool = False

    @property
    def row_stride(self) -> Expr:
        """Elements from one row to the next."""
        return self.buffer.shape[-1]

    @property
    def is_narrow(self) -> bool:
        """Whether its rows are parts of the buffer's, and do not lie side by side."""
        return len(self.shape) == 2 and self.shape[1] != self.buffer.shape[1]

    def part(self, axis: int, start: Expr, size: Expr) -> View:
        """Return the view of a part along an axis."""
        moved = tuple(s + start if i == axis else s for i, s in enumerate(self.start))
        shape = tuple(size if i == axis else s for i, s in enumerate(self.shape))
        return View(self.buffer, moved, shape)

    def __str__(self) -> str:
        transposed = ".T" if self.transposed else ""
        if self.shape == self.buffer.shape:
            return f"{self.buffer.name}{transposed}"
        cuts = [
            f"{'' if s == 0 else format_axis(s)}:{format_axis(s + n)}"
            for s, n in zip(self.start, self.shape, strict=True)
        ]
        return f"{self.buffer.name}[{', '.join(cuts)}]{transposed}"


class Access(Enum):
    """How a loop over (rows, units) walks an operand."""

    ELEMENT = "one per row and unit"
    COLUMN = "one per unit and row"
    UNIT = "one per unit"
    ROW = "one per row"
    SCALAR = "one"
    AXES = "one along some axes"


@dataclass(frozen=True)
class Walk:
    """How a nest goes through an array.

    Along rows, and by how many elements along each of its inner axes; 0 where the array has no such
    axis.
    """

    rows: bool
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class Load:
    """A value read from memory in a loop; ``walk`` tells how where the access is ``AXES``."""

    value: Value
    view: View
    access: Access
    walk: Walk | None = None


class Store(Enum):
    """What a loop does with a statement's value."""

    LOCAL = "keep"
    WRITE = "write"
    ADD_ROWS = "add up over rows"
    ADD_UNITS = "add up over units"
    ADD_ALL = "add up"


@dataclass(frozen=True)
class Line:
    """One pointwise statement of a loop; ``view`` is where it goes unless it stays local.

    With an adding store the statement's target is the sum, its expression one term; ``origin`` is
    the program's own statement. In a nest ``walk`` tells how it goes through the target.
    """

    statement: Statement
    store: Store
    view: View | None
    used: bool
    origin: Statement
    walk: Walk | None = None


@dataclass(frozen=True)
class Loop:
    """Pointwise work over one index space: (rows, units), (units,) or ().

    A nest tells inner axes apart, of which the units are the product: ``axes``.
    """

    space: Shape
    loads: tuple[Load, ...]
    lines: tuple[Line, ...]
    axes: Shape = ()

    @property
    def is_nest(self) -> bool:
        """Whether it tells the inner axes of a row apart."""
        return bool(self.axes)

    def __str__(self) -> str:
        body = "\n".join(f"      {line.origin}    {line.store.value}" for line in self.lines)
        space = (self.space[0], *self.axes) if self.axes else self.space
        return f"    loop {format_shape(space)}\n{body}"


@dataclass(frozen=True)
class Product:
    """One matrix product, ``target (+)= a b``; ``form`` says which operand is transposed.

    With ``heads``, that many products side by side: ``weights`` is then the shape (inner, columns)
    of one head's weights.
    """

    form: Form
    target: View
    a: View
    b: View
    accumulate: bool
    statement: Statement
    heads: Expr | None = None
    weights: Shape = ()

    @property
    def is_outer(self) -> bool:
        """Whether it sums over rows: ``a.T @ b``."""
        return self.form is Form.TN

    @property
    def is_transposed(self) -> bool:
        """Whether the weight is read transposed."""
        return self.form is Form.NT

    def __str__(self) -> str:
        return f"    {'onto ' if self.accumulate else ''}product {self.statement}"


@dataclass(frozen=True)
class Routine:
    """What is neither a product nor a loop: ``target = row(*operands)`` for each row and head.

    ``units`` are those of a head, each of so many elements, ``after``; ``by_row`` says whether
    there are rows at all.
    """

    row: Operator
    target: View
    operands: tuple[View, ...]
    rows: Expr
    heads: Expr
    units: Expr
    after: Expr
    by_row: bool
    statement: Statement

    def __str__(self) -> str:
        return f"    routine {self.statement}"


Stage: TypeAlias = Product | Loop | Routine


@dataclass(frozen=True)
class PlannedFunction:
    """One kernel function: its program, the buffers it touches and its stages in order."""

    program: Program
    accepted: tuple[Value, ...]
    dims: tuple[Dim, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.program.function

    def of_kind(self, *kinds: BufferKind) -> tuple[Buffer, ...]:
        """Buffers of some kinds, in order."""
        return tuple(buffer for buffer in self.buffers if buffer.kind in kinds)

    @property
    def zeros(self) -> Expr | None:
        """Length of a row of zeros that stands in for missing optional arguments, or None."""
        lengths = sorted({buffer.row for buffer in self.of_kind(BufferKind.OPTIONAL)}, key=str)
        return sum(lengths[1:], start=lengths[0]) if lengths else None

    @property
    def needs_workspace(self) -> bool:
        """Whether it needs memory of its own."""
        return bool(self.of_kind(BufferKind.WORKSPACE)) or self.zeros is not None

    def verify(self) -> None:
        """Check that everything read has been written and every result is written.

        Raises:
            DerivationError: naming the function and the value.
        """
        written = {b for b in self.buffers if b.kind in _GIVEN}
        for stage in self.stages:
            for view in reads(stage):
                if view.buffer not in written:
                    raise self._fault(f"{view} is read before it is written")
            for load, view in _mixed(stage):
                raise self._fault(f"{load} is read in the loop that writes {view}")
            written.update(view.buffer for view in writes(stage))
        missing = [b.name for b in self.of_kind(BufferKind.RESULT) if b not in written]
        if missing:
            raise self._fault(f"{', '.join(missing)} is never written")

    def _fault(self, what: str) -> DerivationError:
        return fault_of_plan(f"{self.program.cell}.{self.name}", what)

    def __str__(self) -> str:
        lines = [f"  {self.name}"]
        lines += [f"    {buffer}" for buffer in self.buffers]
        lines += [str(stage) for stage in self.stages]
        return "\n".join(lines)


_GIVEN = (BufferKind.ARGUMENT, BufferKind.OPTIONAL, BufferKind.SCALAR)


def fault_of_plan(function: str, what: str) -> DerivationError:
    """The error of a plan that a verifier refuses: the fault is the compiler's."""
    return DerivationError(
        f"{function}: {what}; this is a fault of cellgen: please report it with the declaration",
        code="schedule.verify",
    )


def reads(stage: Stage) -> Iterator[View]:
    """What a stage reads, but for what it writes itself."""
    if isinstance(stage, Product):
        yield from (stage.a, stage.b)
        if stage.accumulate:
            yield stage.target
        return
    if isinstance(stage, Routine):
        yield from stage.operands
        return
    own = {line.view.buffer for line in stage.lines if line.view is not None}
    yield from (load.view for load in stage.loads if load.view.buffer not in own)


def _mixed(stage: Stage) -> Iterator[tuple[View, View]]:
    """What a loop reads of memory that it writes: units of either may come first."""
    if isinstance(stage, Loop):
        written = [line.view for line in stage.lines if line.view is not None]
        for load in stage.loads:
            for view in written:
                if load.view.buffer == view.buffer and not _apart(load.view, view):
                    yield load.view, view


def _apart(a: View, b: View) -> bool:
    """Whether two views of one buffer share no entry, whatever the dimensions are."""
    for own, other, length, size in zip(a.start, b.start, a.shape, b.shape, strict=True):
        for gap in (other - own - length, own - other - size):
            if all(count >= 0 for count in gap.as_coefficients_dict().values()):
                return True
    return False


def views(stage: Stage) -> tuple[View, ...]:
    """Everything that a stage touches in memory."""
    if isinstance(stage, Product):
        return (stage.target, stage.a, stage.b)
    if isinstance(stage, Routine):
        return (stage.target, *stage.operands)
    written = [line.view for line in stage.lines if line.view is not None]
    return (*written, *(load.view for load in stage.loads))


def writes(stage: Stage) -> Iterator[View]:
    """What a stage puts into memory."""
    if isinstance(stage, Product | Routine):
        yield stage.target
        return
    yield from (line.view for line in stage.lines if line.view is not None)


@dataclass(frozen=True)
class Schedule:
    """All functions of one cell, ready to be rendered for any target.

    ``sources`` tells what each gradient, given or returned, is the gradient of.
    """

    cell: str
    digest: str
    functions: tuple[PlannedFunction, ...]
    sources: Mapping[Value, Value] = field(default_factory=dict)

    def verify(self) -> None:
        """Check every function; raises ``DerivationError``."""
        for function in self.functions:
            function.verify()

    def __str__(self) -> str:
        return "\n".join([f"{self.cell} {self.digest}", *(str(f) for f in self.functions)])


def describe(statement: Statement) -> str:
    """The equation of a statement, as comments and plans print it."""
    return f"{statement.target} = {text(statement.expression)}"

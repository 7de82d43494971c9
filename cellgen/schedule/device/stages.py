"""What a device launches, as values: loops as kernels, products, routines, sums over steps.

A loop becomes one kernel for what it writes, and one for each kind of sum over rows: sums have a
fixed order and no atomics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sympy import Add, Expr

from cellgen.errors import DerivationError
from cellgen.language.value import Value
from cellgen.schedule.device.places import ZERO, DevicePlace, Matrix
from cellgen.schedule.groups import Term, Weight
from cellgen.schedule.schedule import (
    Buffer,
    Line,
    Load,
    Loop,
    Product,
    Routine,
    Store,
    View,
    Walk,
)


class LaunchedOver(Enum):
    """What a kernel is launched over."""

    ELEMENTS = "elements"
    EACH_ROW = "each_row"
    EACH_CHUNK = "each_chunk"
    ENTRIES = "entries"


@dataclass(frozen=True)
class LoopKernel:
    """One kernel of a loop: the lines that it needs, and those that it adds up, of ``sums``.

    ``walk`` is that of the sums of a nest: a thread adds up one entry of each. ``chunks`` are
    arrays of the workspace for the shares of chunks of rows, one for each sum over rows.
    """

    kind: LaunchedOver
    lines: tuple[Line, ...]
    sums: Store | None = None
    walk: Walk | None = None
    number: int = 0
    chunks: tuple[str, ...] = ()

    def adds(self, line: Line) -> bool:
        """Whether a line is one of the sums."""
        return line.store is self.sums and line.walk == (self.walk or line.walk)

    @property
    def summed(self) -> tuple[Line, ...]:
        """The sums."""
        return tuple(line for line in self.lines if self.adds(line))

    @property
    def over_rows(self) -> bool:
        """Whether the sums go over rows, chunk by chunk first."""
        return self.sums in (Store.ADD_ROWS, Store.ADD_ALL)

    @property
    def written(self) -> tuple[Line, ...]:
        """Lines whose value this kernel stores element by element."""
        if self.kind in (LaunchedOver.EACH_CHUNK, LaunchedOver.ENTRIES):
            return ()
        return tuple(line for line in self.lines if line.store is Store.WRITE)

    def loads(self, loop: Loop) -> tuple[Load, ...]:
        """What of the loop's operands its lines read."""
        return loads_for(self.lines, loop)


@dataclass(frozen=True)
class DeviceLoop:
    """A loop in a launch for each kernel, of one step or of ``all_steps``.

    ``leaves_out``: what masked rows make is zero. ``group`` names the products whose sums it reads
    unit by unit.
    """

    name: str
    loop: Loop
    kernels: tuple[LoopKernel, ...]
    places: Mapping[Buffer, DevicePlace]
    all_steps: bool = False
    leaves_out: bool = False
    group: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that its places name."""
        return names_of(self.places.values())

    def __str__(self) -> str:
        return "; ".join(str(line.origin) for line in self.loop.lines)


@dataclass(frozen=True)
class DeviceRoutine:
    """Work on whole rows: so many, a product of lengths."""

    routine: Routine
    rows: tuple[Expr, ...]
    places: Mapping[Buffer, DevicePlace]

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that its places name."""
        return names_of(self.places.values())

    def __str__(self) -> str:
        return str(self.routine).strip()


@dataclass(frozen=True)
class WholeProduct:
    """A product of a single step, as the schedule has it."""

    product: Product
    places: Mapping[Buffer, DevicePlace]

    def __str__(self) -> str:
        return str(self.product).strip()


@dataclass(frozen=True)
class Panel:
    """Weights side by side: where they lie, or an array of the workspace that they are packed in.

    ``transposed`` where they lie (units, K). Rows are ``stride`` apart.
    """

    place: Matrix | str
    stride: Expr
    transposed: bool

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace that it names."""
        return frozenset({self.place}) if isinstance(self.place, str) else self.place.place.names


@dataclass(frozen=True)
class PanelCopy:
    """Weights copied to a panel, (rows, columns) from a row and a column of it on.

    Of heads, slot number ``slot`` of so many elements each, ``heads`` rows of ``columns``.
    """

    panel: str
    source: Matrix
    rows: Expr
    columns: Expr
    stride: Expr
    above: Expr = ZERO
    beside: Expr = ZERO
    transposed: bool = False
    slot: int = 0
    by_head: bool = False


@dataclass(frozen=True)
class DeviceProduct:
    """An operand times weights of neighbouring slots, of a step or of all steps.

    ``width`` are the units of a slot, all ``heads`` that have weights of their own side by side.
    ``targets`` are what its slots form, side by side from ``sums`` on; ``onto`` adds to what is
    there. ``group`` names products of a step whose sums one loop reads; others are of all steps.
    """

    terms: tuple[tuple[Term, tuple[Weight, ...]], ...]
    width: Expr
    heads: Expr | None
    operand: Matrix
    panel: Panel
    sums: Matrix
    targets: tuple[View, ...]
    onto: bool
    all_steps: bool = True
    group: str = ""

    @property
    def in_tier(self) -> Matrix:
        """The operand of a step in a kernel over all steps."""
        return Matrix(self.operand.view, self.operand.place.unguarded)

    @property
    def slots(self) -> int:
        """How many slots it forms."""
        return len(self.targets)

    @property
    def units(self) -> Expr:
        """Units of a slot; with heads, of one head."""
        return self.width if self.heads is None else self.width / self.heads

    @property
    def inner(self) -> Expr:
        """The contracted length; with heads, of one head."""
        return Add(*(term.inner for term, _ in self.terms))

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that a step names, its weights left out."""
        return self.operand.place.names | self.sums.place.names

    @property
    def names_in_tier(self) -> frozenset[str]:
        """The same in a kernel over all steps, with its weights, which it is given."""
        return self.in_tier.place.names | self.panel.names | self.sums.place.names

    def __str__(self) -> str:
        return "; ".join(product_in_words(term, weights) for term, weights in self.terms)


@dataclass(frozen=True)
class SumOfProducts:
    """A sum of so many products; ``begun`` by a loop, which stores the term before them."""

    value: Value
    products: int
    begun: bool


@dataclass(frozen=True)
class Cleared:
    """Columns of sums over all steps that begin at zero: those of a view."""

    array: str
    column: Expr
    width: Expr
    stride: Expr
    view: View


@dataclass(frozen=True)
class WeightGradients:
    """Weight gradients of one left operand, over all steps: one product.

    Of several they are formed in ``joint``, an array of the workspace, and copied from there.
    """

    products: tuple[Product, ...]
    left: Matrix
    right: Matrix
    targets: tuple[Matrix, ...]
    joint: str = ""

    @property
    def operands(self) -> tuple[Matrix, ...]:
        """What it reads and writes."""
        return (self.left, self.right, *self.targets)

    @property
    def widths(self) -> list[Expr]:
        """Columns of each."""
        return [product.target.shape[1] for product in self.products]

    def __str__(self) -> str:
        return "; ".join(f"{p.target} = {p.a}.T @ {p.b}" for p in self.products)


@dataclass(frozen=True)
class StepsShare:
    """The gradient of what is constant over time: the steps' shares added up."""

    buffer: Buffer
    shares: DevicePlace

    def __str__(self) -> str:
        return f"{self.buffer.name}: shares of all steps"


AheadStage: TypeAlias = Cleared | DeviceProduct
"""What is done for all steps before the loop over them."""
StepStage: TypeAlias = DeviceProduct | DeviceLoop | DeviceRoutine
"""A stage that runs in every step."""
OnceStage: TypeAlias = WholeProduct | DeviceLoop | DeviceRoutine
DeferredStage: TypeAlias = DeviceProduct | DeviceLoop | DeviceRoutine | WeightGradients | StepsShare


def loads_for(lines: Iterable[Line], loop: Loop) -> tuple[Load, ...]:
    """What of a loop's operands some lines of it read."""
    read = {value for line in lines for value in line.statement.operands}
    return tuple(load for load in loop.loads if load.value in read)


def names_of(places: Iterable[DevicePlace]) -> frozenset[str]:
    """Arrays of the workspace and strides that some places name."""
    own = tuple(places)
    kept = [place.kept for place in own if place.kept is not None]
    return frozenset[str]().union(*(place.names for place in (*own, *kept)))


def places_in_tier(stages: Iterable[StepStage]) -> Mapping[Buffer, DevicePlace]:
    """Where what the loops of a step touch lies in a kernel over all steps."""
    loops = (stage for stage in stages if isinstance(stage, DeviceLoop))
    return {buffer: p.unguarded for loop in loops for buffer, p in loop.places.items()}


def product_in_words(term: Term, weights: Sequence[Weight]) -> str:
    """An operand and the weights of its slots."""
    listed = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in weights)
    return f"{term.operand} @ [{listed}]"


def not_rendered(cell: str, stage: object) -> DerivationError:
    """The error for a stage that has no spelling on a device."""
    return DerivationError(
        f"{cell}: `{str(stage).strip()}` is not rendered for CUDA yet", code="cuda.stage"
    )

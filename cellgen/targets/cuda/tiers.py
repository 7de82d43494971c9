"""Spell kernels that run all steps of a part in one launch, where a part allows it.

Input: what a part does in every step (products, loops). Output: ``TierContext`` for
``kernels.j2``. Two tiers stand above one launch per level and step:

- ``stream``: no product and one loop in a step. A thread takes one unit of one row through all
  steps, its state in a register: one pass over memory. What some steps read does not wait for the
  state: it is read while the steps before them run, so that none waits for memory.
- ``block``: loops without sums between units. A block takes some rows through all steps, the
  recurrent weights in its shared memory; blocks never meet. Of heads, a block takes one: those
  read nothing of each other. Its products run thread by thread, or, of bfloat16, on matrix units:
  one kernel, instantiated for both ways of ``cellgen_cuda_blocks.cuh``.

Which tier runs is chosen by the host at run time, by capacity and the cost model of
``cellgen_cuda_tiers.cuh``; a part that has no tier says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellgen.language.value import B, Value
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.schedule import Loop, Routine, Store
from cellgen.targets.c_expressions import c_axis
from cellgen.targets.cuda.kernels import AheadLoad, ElementLines, elements_of
from cellgen.targets.cuda.memory import MemoryContext
from cellgen.targets.cuda.places import Places, factor

MOST_SLOTS = 8
"""Sums that a thread of a block holds in registers; more would spill."""
MOST_AHEAD, DEEPEST = 18, 8
"""Values that a thread of a stream reads ahead of their use, in registers twice, with what is the
same at every step; and of so many steps."""


@dataclass(frozen=True)
class StepProduct:
    """A product in every step, as C texts: operand, weights, sums.

    With ``heads``, sizes are of one head; ``width`` is that of a slot, all heads side by side.
    ``uses`` are the workspace arrays and the strides that the texts name; so in what follows.
    """

    comment: str
    slots: int
    units: str
    inner: str
    operand: tuple[str, str]
    weights: tuple[str, str]
    transposed: bool
    sums: tuple[str, str]
    onto: bool
    uses: frozenset[str]
    group: str = ""
    heads: str = ""
    width: str = ""

    @property
    def sizes(self) -> str:
        """C text: slots, units and inner length of the weights that a block holds."""
        return f"{self.slots}, {self.units}, {self.inner}"


@dataclass(frozen=True)
class StepLoop:
    """A loop in every step; ``group`` names the products whose sums it reads unit by unit."""

    stem: str
    loop: Loop
    group: str = ""


StepItem = StepProduct | StepLoop | Routine


@dataclass(frozen=True)
class Carried:
    """A state, or the gradient of one, in a register: read as ``read``, renewed from ``made``.

    ``first`` is the C text of where it lies before the first step, ``last`` of where it goes after
    the last one, or nothing. ``rounded`` says that the next step reads what memory would hold.
    """

    read: Value
    made: Value
    first: str
    last: str
    rounded: bool
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Passed:
    """Where a step leaves the gradient for the step before, as C texts; ``units`` of a block."""

    pointer: str
    stride: str
    units: str
    uses: frozenset[str]


@dataclass(frozen=True)
class TierItem:
    """A stage of a kernel over time: ``product`` or ``loop`` is set.

    No barrier follows a product whose sums the same thread reads next.
    """

    product: StepProduct | None = None
    loop: ElementLines | None = None
    barrier: bool = True

    @property
    def uses(self) -> frozenset[str]:
        """Arrays and strides that its texts name."""
        own = self.product or self.loop
        return own.uses if own else frozenset()


@dataclass(frozen=True)
class TierContext:
    """A kernel over time; ``steps`` is the head of its loop.

    With ``heads``, a block has one of them, whose units are ``head_units``. ``passed`` is cleared
    in a backward pass where a window of steps begins.
    """

    name: str
    kind: str
    arguments: str
    dims: list[str]
    memory: list[MemoryContext]
    steps: str
    items: list[TierItem]
    carried: list[CarriedLines] = field(default_factory=list)
    strides: list[tuple[str, str]] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    backward: bool = False
    heads: str = ""
    head_units: str = ""

    @property
    def products(self) -> list[StepProduct]:
        """The products, in order."""
        return [item.product for item in self.items if item.product is not None]

    @property
    def ahead(self) -> list[AheadLoad]:
        """What a stream reads in every step."""
        loops = [item.loop for item in self.items if item.loop is not None]
        return [read for loop in loops for read in loop.reads if not read.steady]

    @property
    def depth(self) -> int:
        """Of how many steps a stream reads at once: a power of two."""
        loops = [item.loop for item in self.items if item.loop is not None]
        room = MOST_AHEAD - sum(read.steady for loop in loops for read in loop.reads)
        fits = [d for d in (2, 4, 8) if d <= DEEPEST and d * len(self.ahead) <= room]
        return max(fits, default=1)

    @property
    def shared(self) -> str:
        """C text: elements of weights that a block holds."""
        sizes = [f"{factor(p.inner)} * {p.slots} * {factor(p.units)}" for p in self.products]
        return " + ".join(sizes) or "(int64_t)0"

    @property
    def fragments(self) -> str:
        """C text: the same in whole tiles of matrix units."""
        resident = [f"cellgen_by_fragment::resident({p.sizes})" for p in self.products]
        return " + ".join(resident) or "(int64_t)0"

    @property
    def widest(self) -> list[str]:
        """C texts: units of each stage."""
        units = [p.units for p in self.products]
        units += [item.loop.units for item in self.items if item.loop is not None]
        return list(dict.fromkeys(units))

    @property
    def call(self) -> str:
        """The arguments of a launch after those of the tier."""
        return ", ".join([*self.dims, "*args", *(array.name for array in self.memory)])


@dataclass(frozen=True)
class CarriedLines:
    """A state in a register, as C texts."""

    name: str
    first: str
    renewed: str
    last: str
    uses: frozenset[str]


@dataclass(frozen=True)
class TierChoice:
    """The kernel over time of a part, or why it has none."""

    kernel: TierContext | None
    reason: str


@dataclass(frozen=True)
class TierPlan:
    """Which tier a part has: ``stream``, ``block``, or "" for the reason that is said.

    With ``heads``, a block has one of them, of so many units (C texts).
    """

    kind: str
    reason: str = ""
    heads: str = ""
    head_units: str = ""


def plan_tier(items: Sequence[StepItem], carried: Sequence[Carried]) -> TierPlan:
    """Decide which tier a part has; nothing is spelled."""
    if reason := _refusal(items):
        return TierPlan("", reason)
    loops = [item for item in items if isinstance(item, StepLoop)]
    if len(items) == len(loops) == 1 and _all_formed(loops[0].loop, carried):
        return TierPlan("stream")
    first = next((item for item in items if isinstance(item, StepProduct)), None)
    return TierPlan("block", "", first.heads, first.units) if first else TierPlan("block")


def choose(
    stem: str,
    struct: str,
    signature: Signature,
    items: Sequence[StepItem],
    places: Places,
    carried: Sequence[Carried],
    passed: Sequence[Passed],
    memory: Sequence[MemoryContext],
    strides: Mapping[str, str],
) -> TierChoice:
    """Spell the best tier that a part allows."""
    tier = plan_tier(items, carried)
    if not tier.kind:
        return TierChoice(None, tier.reason)
    loops = [item for item in items if isinstance(item, StepLoop)]
    streams, heads, head_units = tier.kind == "stream", tier.heads, tier.head_units
    backward = signature.name != "sequence_forward"
    spelled = [
        _item(item, places, {c.read for c in carried} if streams else set(), carried)
        for item in items
    ]
    spelled = [
        replace(stage, barrier=not _same_thread(item, following))
        for stage, item, following in zip(spelled, items, (*items[1:], None), strict=True)
    ]
    lines = _carried_lines(loops[0].loop, carried) if streams else []
    if heads:
        spelled = [_of_one_head(stage, head_units) for stage in spelled]
    cuts = [replace(p, units=head_units if heads else p.units) for p in passed if not streams]
    uses = {name for found in (spelled, lines, cuts) for item in found for name in item.uses}
    kernel = TierContext(
        name=f"{stem}_{tier.kind}",
        kind=tier.kind,
        arguments=struct,
        dims=[c_dim(dim) for dim in signature.dims],
        memory=[array for array in memory if array.name in uses],
        steps="int64_t step = nT - 1; step >= 0; --step"
        if backward
        else "int64_t step = 0; step < nT; ++step",
        items=spelled,
        carried=lines,
        strides=[(name, text) for name, text in strides.items() if name in uses],
        passed=cuts,
        backward=backward,
        heads=heads,
        head_units=head_units if heads else "",
    )
    return TierChoice(kernel, "")


def _of_one_head(stage: TierItem, units: str) -> TierItem:
    """A stage of a block that has one head: loops run over its units."""
    if stage.loop is None:
        return stage
    return replace(stage, loop=replace(stage.loop, units=units))


def _same_thread(item: StepItem, following: StepItem | None) -> bool:
    """Whether what follows reads the sums of a product at the same row and unit only."""
    if not isinstance(item, StepProduct) or isinstance(following, Routine | None):
        return False
    return bool(item.group) and item.group == following.group


def _refusal(items: Sequence[StepItem]) -> str:  # noqa: PLR0911 - one case a return
    """Say why a part cannot run in one launch, or nothing."""
    by_head = {item.heads for item in items if isinstance(item, StepProduct)}
    widths = {item.width for item in items if isinstance(item, StepProduct)}
    if len(by_head) > 1:
        return "some products go head by head and others mix all heads"
    for item in items:
        if isinstance(item, Routine):
            return "work over the units of whole heads in every step"
        if isinstance(item, StepProduct):
            if item.slots > MOST_SLOTS:
                return f"{item.slots} sums for each unit would not stay in registers"
            continue
        if item.loop.is_nest:
            return "values that differ along some of several inner axes in every step"
        stores = {line.store for line in item.loop.lines}
        if stores - {Store.LOCAL, Store.WRITE}:
            return "a sum over units in every step needs whole rows"
        if len(item.loop.space) != 2 or item.loop.space[0] != B:
            return "work without batch rows in every step"
        if by_head - {""} and {c_axis(item.loop.space[-1])} != widths:
            return "the units of its stages are not those of its heads"
    return ""


def _all_formed(loop: Loop, carried: Sequence[Carried]) -> bool:
    """Whether one loop makes every new state, unit by unit of the old one."""
    made = {line.statement.target for line in loop.lines}
    return all(c.made in made and c.made.shape == loop.space for c in carried)


def _item(
    item: StepItem, places: Places, in_registers: set[Value], carried: Sequence[Carried]
) -> TierItem:
    assert not isinstance(item, Routine)
    if isinstance(item, StepProduct):
        return TierItem(product=item)
    # A gradient that stays in its register needs no memory; a state is an output or saved.
    unwritten = {c.made for c in carried if in_registers and not c.rounded}
    return TierItem(loop=elements_of(item.stem, item.loop, places, in_registers, unwritten))


def _carried_lines(loop: Loop, carried: Sequence[Carried]) -> list[CarriedLines]:
    read = {load.value for load in loop.loads}
    lines = []
    for c in carried:
        made = str(c.made.name)
        renewed = f"cg_as_stored<store>({made})" if c.rounded else made
        if c.read in read or c.last:
            lines.append(CarriedLines(str(c.read.name), c.first, renewed, c.last, c.uses))
    return lines


def explanation(choices: Mapping[str, TierChoice]) -> list[str]:
    """Say for each function over time how it may run, and why."""
    lines = []
    for part, choice in choices.items():
        if choice.kernel is None:
            lines.append(f"{part}: one launch for each level and step, because {choice.reason}")
        elif choice.kernel.kind == "stream":
            lines.append(f"{part}: a thread takes a unit of a row through all steps, one launch")
        else:
            taken = "rows of one head" if choice.kernel.heads else "rows"
            lines.append(
                f"{part}: a block takes {taken} through all steps in one launch where "
                f"{choice.kernel.shared} weights fit its shared memory and the model says it is "
                f"faster; else one launch for each level and step"
            )
            lines.append(_with_matrix_units(choice.kernel))
    return lines


def _with_matrix_units(kernel: TierContext) -> str:
    """Say when a block uses matrix units, and with which precision."""
    sums = ", ".join(f"{p.slots} x {p.units} sums over {p.inner}" for p in kernel.products)
    return (
        f"    of bfloat16, with matrix units (mma m16n8k16: factors as stored, sums in float32) "
        f"for {sums}, in whole tiles of 8 units, 16 factors and 8 rows, where that fits and the "
        f"model says it is faster; of float32 and float64, never: their factors would lose bits"
    )

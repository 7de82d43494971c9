"""What a function over time does on a device: frozen, printable, the same for every device.

A ``TimePlan``, and what passes make of it for launches. Output of ``lower_for_device``, input of a
target, which spells it and decides nothing:
``cellgen show CELL --schedule --target cuda`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr

from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.held import HeldTier
from cellgen.schedule.device.over_time import ArraysOverTime
from cellgen.schedule.device.persistent import PersistentChoice
from cellgen.schedule.device.places import (
    ZERO,
    DeviceMemory,
    DevicePlace,
    Element,
    IfGiven,
    Moment,
    RowsOfArray,
    row_width,
)
from cellgen.schedule.device.stacked import Neighbours
from cellgen.schedule.device.stages import (
    AheadStage,
    DeferredStage,
    DeviceLoop,
    DeviceProduct,
    OnceStage,
    PanelCopy,
    StepStage,
    SumOfProducts,
)
from cellgen.schedule.device.tiers import TierChoice, TierKind
from cellgen.schedule.lower.plan import PartPlan, TimePlan
from cellgen.schedule.schedule import PlannedFunction, View


@dataclass(frozen=True)
class DeviceState:
    """A state on a device: where a step leaves it, where it lies after the last step.

    ``carries`` are the rows of the gradients between two steps, in a backward pass.
    """

    link: StateLink
    left: RowsOfArray | IfGiven | None = None
    last: RowsOfArray | IfGiven | None = None
    carries: RowsOfArray | None = None

    def carried(self, at: Moment | None) -> RowsOfArray:
        """Rows of the gradient that reaches a step, in a backward pass."""
        assert self.carries is not None
        return replace(self.carries, at=at)

    @property
    def over_time(self) -> bool:
        """Whether the caller says how far its steps and rows lie apart."""
        return isinstance(self.last, RowsOfArray) and self.last.strides is not None


@dataclass(frozen=True)
class KeptOverTime:
    """What the deferred part reads of the loop, side by side in one array over time."""

    element: Element
    order: tuple[Value, ...] = ()
    memory: str = ""
    stride: Expr = ZERO

    def place(self, value: Value, step: Moment | None = None) -> DevicePlace:
        """Where a value that is kept lies, at a step or from the first one on."""
        before = self.order[: self.order.index(value)]
        start = sum((row_width(v) for v in before), start=ZERO)
        return DevicePlace.in_memory(self.memory, self.stride, self.element, step, start)

    def neighbours(self, part: PartPlan) -> Neighbours:
        """The views that lie side by side, in order."""
        buffers = {place.buffer.value: place.buffer for place in part.places}
        own = (buffers[value] for value in self.order if value in buffers)
        return Neighbours([View(b, tuple(ZERO for _ in b.shape), b.shape) for b in own])


@dataclass(frozen=True)
class DeviceTimePlan:
    """The plan of one function over time: ``time`` is what all targets share.

    ``strides`` are the strides of arrays over time that steps read. ``prologue`` and ``packed``
    run once, ``ahead`` serves every step at once, ``steps`` run in each; of a backward pass,
    ``deferred`` follows over the rows of all steps, then ``epilogue``. ``tier`` is the kernel over
    all steps, or why there is none, ``persistent`` the one whose blocks are on the device together.
    ``sums`` are those of products, ``once`` says where lies what is the same at every step.
    ``kept`` has what products read of the loop, ``terms`` what is only added up, in full.
    """

    time: TimePlan
    options: ArraysOverTime
    memory: tuple[DeviceMemory, ...]
    once: Mapping[Value, DevicePlace]
    sums: tuple[SumOfProducts, ...]
    strides: tuple[str, ...] = ()
    prologue: tuple[OnceStage, ...] = ()
    packed: tuple[PanelCopy, ...] = ()
    ahead: tuple[AheadStage, ...] = ()
    steps: tuple[StepStage, ...] = ()
    states: tuple[DeviceState, ...] = ()
    tier: TierChoice = field(default_factory=TierChoice)
    persistent: PersistentChoice = field(default_factory=PersistentChoice)
    kept: KeptOverTime = KeptOverTime(Element.STORE)
    terms: KeptOverTime = KeptOverTime(Element.REAL)
    deferred: tuple[DeferredStage, ...] = ()
    epilogue: tuple[OnceStage, ...] = ()

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return self.time.cell

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.time.function

    @property
    def stepped(self) -> PartPlan:
        """What runs at every step."""
        return self.time.parts[0]

    def state(self, previous: Value) -> DeviceState:
        """A state by its value before a step."""
        return next(state for state in self.states if state.link.previous == previous)

    def kept_place(self, value: Value, step: Moment | None = None) -> DevicePlace:
        """Where a value that the deferred part reads of the loop lies."""
        own = self.kept if value in self.kept.order else self.terms
        return own.place(value, step)

    @property
    def is_backward(self) -> bool:
        """Whether it gives gradients."""
        return self.time.backward

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.cell}.{self.function} on a device"
        yield from (f"  array {array}" for array in self.memory)
        yield f"  strides: {', '.join(self.strides) or 'none'}"
        yield f"  row after row: {', '.join(self.options.whole) or 'none'}"
        products = (stage for stage in self.ahead if isinstance(stage, DeviceProduct))
        yield from (f"  all steps at once: {product}" for product in products)
        yield from self._stages("in every step", self.steps)
        yield from self._stages("after all steps", self.deferred)
        yield from self._tier()
        yield from self._persistent()

    def _stages(
        self, when: str, stages: tuple[StepStage, ...] | tuple[DeferredStage, ...]
    ) -> Iterator[str]:
        if stages:
            yield f"  {when}"
        for stage in stages:
            count = f" ({len(stage.kernels)} kernels)" if isinstance(stage, DeviceLoop) else ""
            yield f"    {stage}{count}"
            if isinstance(stage, DeviceProduct):
                yield f"      from {stage.operand.place}; to {stage.sums.place}"

    def _tier(self) -> Iterator[str]:
        tier = self.tier.tier
        if self.tier.held is not None:
            yield from self._held(self.tier.held)
            return
        if tier is None:
            yield f"  one launch for each level and step: {self.tier.reason}"
            return
        heads = " of one head" if tier.heads is not None else ""
        yield f"  one launch for all steps: {tier.kind.value}{heads}"
        arrays = [array.name for array in self.memory if array.name in tier.names]
        yield f"    arrays: {', '.join(arrays) or 'none'}"
        yield f"    strides: {', '.join(self.strides_of_tier) or 'none'}"
        barriers = sum(stage.barrier for stage in tier.stages)
        if tier.kind is TierKind.BLOCK:
            yield f"    {len(tier.stages)} stages, {barriers} barriers in a step"

    def _held(self, tier: HeldTier) -> Iterator[str]:
        yield "  one launch for all steps: held, one head of a row in registers"
        for array in tier.arrays.values():
            place = f" ({array.place})" if array.place is not None else ""
            holder = array.holder.value if array.is_held else "stored"
            yield f"    {array.buffer.name}: {array.origin.value}{place}, {holder}"
        for stage in tier.stages:
            yield f"    {'barrier; ' if stage.barrier else ''}{stage}"

    def _persistent(self) -> Iterator[str]:
        own = self.persistent.persistent
        if own is None:
            yield f"  no blocks that stay on the device: {self.persistent.reason}"
            return
        values = ", ".join(map(str, own.channels))
        yield f"  blocks that stay on the device: {own.levels} levels, between them {values}"

    @property
    def strides_of_persistent(self) -> tuple[str, ...]:
        """The strides that the kernel reads whose blocks are on the device together."""
        own = self.persistent.persistent
        return self._strides_among(own.names if own else frozenset())

    @property
    def strides_of_tier(self) -> tuple[str, ...]:
        """The strides that the kernel over all steps reads."""
        tier = self.tier.tier or self.tier.held
        return self._strides_among(tier.names if tier else frozenset())

    def _strides_among(self, names: frozenset[str]) -> tuple[str, ...]:
        strides = (name for array in self.options.arrays for name in array.strides)
        return tuple(name for name in strides if name in names)


@dataclass(frozen=True)
class DeviceStepPlan:
    """The plan of a function of one step: its workspace, its stages."""

    function: PlannedFunction
    memory: tuple[DeviceMemory, ...]
    stages: tuple[OnceStage, ...]

"""Spell kernels that run all steps of a part in one launch, where its plan has one.

Input: ``Tier``. Output: ``TierContext`` for ``kernels.j2``. A stream reads what the next steps need
while the steps before them run. The products of a block run thread by thread, or, of 16 bits, on
matrix units: one kernel, instantiated for both ways of ``cellgen_cuda_blocks.cuh``. The host's cost
model is that of ``cellgen_cuda_tiers.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.schedule.device.held import HeldTier
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import DeviceProduct
from cellgen.schedule.device.tiers import Carried, Passed, Tier, TierKind, TierStage
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.kernels import AheadLoad, ElementLines, elements_of
from cellgen.targets.cuda.options import OptionLines
from cellgen.targets.cuda.places import matrix, rows_at
from cellgen.targets.cuda.products import panel
from cellgen.targets.cuda.step import ArrayContext


@dataclass(frozen=True)
class ProductLines:
    """A product in every step, as C texts: operand, weights, sums.

    Of heads, sizes are of one head; ``width`` is that of a slot, all heads side by side.
    ``elements``: how many weights a block holds.
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
    width: str
    elements: str

    @property
    def sizes(self) -> str:
        """Slots, units and inner length of the weights that a block holds."""
        return f"{self.slots}, {self.units}, {self.inner}"


@dataclass(frozen=True)
class StageLines:
    """A stage of a kernel over time: ``product`` or ``loop`` is set."""

    product: ProductLines | None
    loop: ElementLines | None
    barrier: bool


@dataclass(frozen=True)
class CarriedLines:
    """A state in a register, as C texts."""

    name: str
    first: str
    renewed: str
    last: str


@dataclass(frozen=True)
class PassedLines:
    """Where a step leaves the gradient for the step before, as C texts; ``units`` of a block."""

    pointer: str
    stride: str
    units: str


@dataclass(frozen=True)
class TierContext:
    """A ``Tier``, as C texts."""

    name: str
    kind: str
    arguments: str
    dims: list[str]
    memory: list[ArrayContext]
    items: list[StageLines]
    widest: list[str]
    depth: int
    carried: list[CarriedLines] = field(default_factory=list)
    strides: list[tuple[str, str]] = field(default_factory=list)
    passed: list[PassedLines] = field(default_factory=list)
    backward: bool = False
    heads: str = ""
    head_units: str = ""

    @property
    def steps(self) -> str:
        """The head of the loop over steps."""
        return steps_of(self.backward)

    @property
    def products(self) -> list[ProductLines]:
        """The products, in order."""
        return [item.product for item in self.items if item.product is not None]

    @property
    def ahead(self) -> list[AheadLoad]:
        """What a stream reads in every step."""
        loops = [item.loop for item in self.items if item.loop is not None]
        return [read for loop in loops for read in loop.reads if not read.steady]

    @property
    def shared(self) -> str:
        """Elements of weights that a block holds."""
        return shared(self.products)

    @property
    def fragments(self) -> str:
        """The same in whole tiles of matrix units."""
        resident = [f"cellgen_by_fragment::resident({p.sizes})" for p in self.products]
        return " + ".join(resident) or "(int64_t)0"

    @property
    def call(self) -> str:
        """The arguments of a launch after those of the tier."""
        return ", ".join([*self.dims, "*args", *(array.name for array in self.memory)])


def steps_of(backward: bool) -> str:
    """The head of a loop over steps."""
    if backward:
        return "int64_t step = nT - 1; step >= 0; --step"
    return "int64_t step = 0; step < nT; ++step"


def shared(products: Iterable[ProductLines]) -> str:
    """C text: elements of the weights of some products."""
    return " + ".join(p.elements for p in products) or "(int64_t)0"


def spell_tier(
    plan: DeviceTimePlan,
    signature: Signature,
    memory: Iterable[ArrayContext],
    words: DeviceDialect,
) -> TierContext | None:
    """Spell the kernel over all steps of a plan, if it has one."""
    tier = plan.tier.tier
    if tier is None:
        return None
    part = "reverse" if plan.is_backward else "forward"
    strides = OptionLines(plan.options).strides()
    heads = tier.heads is not None
    return TierContext(
        name=f"{plan.cell}_{part}_{tier.kind.value}",
        kind=tier.kind.value,
        arguments=f"{plan.cell}_{words.name}_{plan.function}_args",
        dims=[c_dim(dim) for dim in signature.dims],
        memory=[array for array in memory if array.name in tier.names],
        items=[_stage(stage, words) for stage in tier.stages],
        widest=[c_axis(units) for units in tier.widest],
        depth=tier.depth,
        carried=[_carried(one) for one in tier.carried],
        strides=[(name, strides[name]) for name in plan.strides_of_tier],
        passed=[_passed(one) for one in tier.passed],
        backward=plan.is_backward,
        heads=c_factor(tier.heads) if heads else "",
        head_units=c_axis(tier.head_units) if heads else "",
    )


def _stage(stage: TierStage, words: DeviceDialect) -> StageLines:
    if isinstance(stage.work, DeviceProduct):
        return StageLines(_product(stage.work), None, stage.barrier)
    return StageLines(None, elements_of(stage.work, words), stage.barrier)


def _product(stage: DeviceProduct) -> ProductLines:
    return ProductLines(
        str(stage),
        stage.slots,
        c_axis(stage.units),
        c_axis(stage.inner),
        matrix(stage.in_tier),
        panel(stage.panel),
        stage.panel.transposed,
        matrix(stage.sums),
        stage.onto,
        c_axis(stage.width),
        f"{c_factor(stage.inner)} * {stage.slots} * {c_factor(stage.units)}",
    )


def _carried(state: Carried) -> CarriedLines:
    first, name, left = state.first, str(state.read.name), str(state.new.name)
    width = c_axis(first.stride) if first.of_caller else c_factor(first.stride)
    last = ""
    if state.last is not None:
        last = f"cg_store(cg_rows({rows_at(state.last)}, {width}), row, unit, {name})"
    return CarriedLines(
        name,
        f"cg_load(cg_in({rows_at(first)}, {width}), row, unit)",
        f"cg_as_stored<store>({left})" if state.rounded else left,
        last,
    )


def _passed(one: Passed) -> PassedLines:
    return PassedLines(rows_at(one.rows), c_factor(one.rows.stride), c_axis(one.units))


def explanation(plans: Iterable[DeviceTimePlan]) -> list[str]:
    """Say for each function over time how it may run, and why."""
    lines = []
    for plan in plans:
        tier = plan.tier.tier
        if plan.tier.held is not None:
            lines.append(_of_held(plan.function, plan.tier.held))
        elif tier is None:
            lines.append(
                f"{plan.function}: one launch for each level and step, because {plan.tier.reason}"
            )
        elif tier.kind is TierKind.STREAM:
            lines.append(
                f"{plan.function}: a thread takes a unit of a row through all steps, one launch"
            )
        else:
            lines += _of_block(plan.function, tier)
    return lines


def _of_held(function: str, tier: HeldTier) -> str:
    first, last = map(c_axis, tier.axes)
    read = [name for name, is_written in tier.of_states if not is_written]
    written = [name for name, is_written in tier.of_states if is_written]
    done = [
        f"{verb} {' and '.join(names)}"
        for verb, names in (("reads", read), ("writes", written))
        if names
    ]
    return (
        f"{function}: a block keeps the memory of a head, {first} x {last}, in registers through "
        f"all steps in one launch, where both are at most 128 and every step is valid (a step "
        f"{', '.join(done) or 'touches none in arrays'}); else one launch for each level and step"
    )


def _of_block(function: str, tier: Tier) -> list[str]:
    """Say when a block takes rows, and when with matrix units, with which precision."""
    products = [_product(stage) for stage in tier.products]
    taken = "rows of one head" if tier.heads is not None else "rows"
    sums = ", ".join(f"{p.slots} x {p.units} sums over {p.inner}" for p in products)
    return [
        f"{function}: a block takes {taken} through all steps in one launch where "
        f"{shared(products)} weights fit its shared memory and the model says it is "
        f"faster; else one launch for each level and step",
        f"    of 16 bits, with matrix units (mma m16n8k16: factors as stored, sums in float32) "
        f"for {sums}, in whole tiles of 8 units, 16 factors and 8 rows, where that fits and the "
        f"model says it is faster; of float32 and float64, never: their factors would lose bits",
    ]

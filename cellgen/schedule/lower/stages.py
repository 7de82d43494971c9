"""Form the parts of a plan: the stages of each, and where their arrays lie.

Pass: a part of the schedule -> ``PartPlan``, in which nothing is left out, fetched or waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr

from cellgen.schedule.groups import Group, GroupedStage, views_read
from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import length
from cellgen.schedule.lower.places import Places, places_of
from cellgen.schedule.lower.plan import (
    GroupPlan,
    LoopPlan,
    OutersPlan,
    PartPlan,
    ProductPlan,
    RoutinePlan,
    StagePlan,
)
from cellgen.schedule.lower.products import form_group, offset, widest
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.lower.sums import Operand, Outer
from cellgen.schedule.lower.touched import begins_with_product, loaded, stored
from cellgen.schedule.over_time import summed_over_rows, waits_for_no_state
from cellgen.schedule.schedule import Loop, Product, View


def form_part(function: FunctionOverTime, name: str) -> PartPlan:
    """Form the part ``forward``, ``reverse`` or ``deferred`` of a function."""
    part, former = function.part(name), StageFormer(function, name)
    stages = tuple(
        former.stage(f"{name}_{number}", run)
        for number, run in enumerate(function.runs(name), start=1)
    )
    free = waits_for_no_state(part, function.programs)
    group = next((s for s in stages if isinstance(s, GroupPlan)), None) if free else None
    return PartPlan(
        name,
        places_of(stages),
        stages,
        (),
        part.can_split_units and not function.by_step,
        group.units if group else None,
        group.granularity if group else 0,
    )


@dataclass(frozen=True)
class StageFormer:
    """Forms the stages of one part."""

    function: FunctionOverTime
    name: str

    @property
    def places(self) -> Places:
        """Where the buffers of the part lie."""
        return Places(self.function, self.name)

    def stage(self, name: str, run: Sequence[GroupedStage]) -> StagePlan:
        """Form one stage, or weight gradients that are one stage."""
        products = [stage for stage in run if isinstance(stage, Product)]
        if products and not self.function.by_step:
            return self._outers(name, products)
        (stage,) = run
        if isinstance(stage, Group):
            granularity = self.granularity(widest(stage))
            return form_group(self.function, self.places, name, stage, granularity)
        if isinstance(stage, Loop):
            return self._loop(name, stage)
        uses = self.places.uses((v.buffer for v in views_read(stage)), [stage.target.buffer])
        if isinstance(stage, Product):
            return ProductPlan(name, stage, uses, stage.target.shape[-1])
        return RoutinePlan(name, stage, uses, stage.units)

    def granularity(self, slots: int) -> int:
        """Units that a thread takes at a time.

        As many in all stages of a step, so that its units stay its own.
        """
        if self.function.in_chunks(self.name):
            return slots
        stages = self.function.part(self.name).stages
        return min((widest(stage) for stage in stages if isinstance(stage, Group)), default=0)

    def _loop(self, name: str, loop: Loop) -> LoopPlan:
        in_chunks = self.function.in_chunks(self.name)
        sums = summed_over_rows(loop) if in_chunks else ()
        written = [buffer for buffer in stored(loop) if buffer not in sums]
        return LoopPlan(
            name,
            loop,
            self.places.uses(loaded(loop), written, sums),
            (),
            loop.space[-1],
            self.granularity(0),
            down=bool(sums),
            leaves_out=in_chunks and leaves_out_rows(loop),
        )

    def _outers(self, name: str, products: Sequence[Product]) -> OutersPlan:
        """Weight gradients: every operand once, and the products of which it is part."""
        heads, part = products[0].heads, self.function.part(self.name)
        lefts: dict[tuple[View, Expr], Operand] = {}
        rights: dict[tuple[View, Expr], Operand] = {}
        outers: list[Outer] = []
        for stage in products:
            a, b, c = stage.a, stage.b, stage.target
            rows, columns = c.shape if heads is None else stage.weights
            for operands, view, count in ((lefts, a, rows), (rights, b, columns)):
                step = None if heads is None else count
                operands.setdefault((view, count), Operand(view.buffer, offset(view), count, step))
            outers.append(
                Outer(
                    list(lefts).index((a, rows)),
                    list(rights).index((b, columns)),
                    stage,
                    offset(c),
                    c.row_stride if heads is None else columns,
                    None if heads is None else length((rows, columns)),
                    not stage.accumulate and begins_with_product(part, c.buffer),
                )
            )
        uses = self.places.uses(
            [view.buffer for stage in products for view in (stage.a, stage.b)],
            [stage.target.buffer for stage in products],
        )
        return OutersPlan(
            name, uses, heads, tuple(lefts.values()), tuple(rights.values()), tuple(outers)
        )

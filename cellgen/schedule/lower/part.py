"""Lower one part of a function over time: its stages, and where their arrays lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sympy import Expr

from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.lower.memory import length
from cellgen.schedule.lower.places import Places
from cellgen.schedule.lower.plan import (
    GroupPlan,
    LoopPlan,
    Operand,
    Outer,
    OutersPlan,
    PartPlan,
    Place,
    RoutinePlan,
    StagePlan,
    StageRows,
)
from cellgen.schedule.lower.products import lower_group, offset, widest
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.lower.touched import (
    begins_with_product,
    loaded,
    read_from_memory,
    stored,
    written_beside_sums,
)
from cellgen.schedule.on_request import wanted_by
from cellgen.schedule.over_time import (
    Part,
    deferred_barriers,
    mixes_rows,
    products_together,
    row_by_row,
    step_barriers,
    summed_over_rows,
    waits_for_no_state,
)
from cellgen.schedule.schedule import Buffer, Loop, Product, Routine, View

if TYPE_CHECKING:
    from cellgen.schedule.lower.function import Lowering


def lower_part(owner: Lowering, name: str) -> PartPlan:
    """Lower the part ``forward``, ``reverse`` or ``deferred`` of a function."""
    part = owner.part(name)
    lowering = PartLowering(owner, name, part)
    if name == "deferred":
        runs = products_together(part.stages)
        barriers = deferred_barriers(runs)
    else:
        runs = tuple((stage,) for stage in part.stages)
        barriers = step_barriers(part, owner.schedule.programs)
    stages = tuple(
        lowering.stage(number, run, barrier=barrier)
        for number, (run, barrier) in enumerate(zip(runs, barriers, strict=True), start=1)
    )
    free = waits_for_no_state(part, owner.schedule.programs)
    group = next((s for s in stages if isinstance(s, GroupPlan)), None) if free else None
    return PartPlan(
        name,
        lowering.places.all,
        stages,
        _stage_rows(runs, barriers) if name == "deferred" else (),
        part.can_split_units,
        group.units if group else None,
        group.granularity if group else 0,
    )


def _stage_rows(
    stages: Sequence[Sequence[GroupedStage]], barriers: Sequence[bool]
) -> tuple[StageRows, ...]:
    """Neighbouring stages that a group of rows goes through at a time, and others one by one."""
    return tuple(
        StageRows(run[0], len(run), not mixes_rows(stages[run[0]][0]))
        for run in row_by_row([stage[0] for stage in stages], barriers)
    )


class PartLowering:
    """Lowers the stages of one part."""

    def __init__(self, owner: Lowering, name: str, part: Part) -> None:
        self.owner, self.name, self.part = owner, name, part
        self.places = Places(owner, name, part)
        self.for_caller = self._for_caller()
        slots = [widest(stage) for stage in part.stages if isinstance(stage, Group)]
        self.shared_slots = None if name == "deferred" else min(slots, default=0)

    def stage(self, number: int, run: Sequence[GroupedStage], *, barrier: bool) -> StagePlan:
        """Lower one stage, or weight gradients that are one stage.

        These are left out one by one, other stages where nobody wants any of the results for which
        alone they run.
        """
        found = self._stage(number, run)
        if isinstance(found, OutersPlan):
            return replace(found, barrier=barrier)
        wants = tuple(str(value.name) for value in wanted_by(run[0], self.owner.requested))
        return replace(found, barrier=barrier, wants=wants)

    def _stage(self, number: int, run: Sequence[GroupedStage]) -> StagePlan:
        name = f"{self.name}_{number}"
        products = [stage for stage in run if isinstance(stage, Product)]
        if products:
            return self._outers(name, products)
        (stage,) = run
        if isinstance(stage, Group):
            return lower_group(self, name, stage)
        if isinstance(stage, Loop):
            return self._loop(name, stage)
        assert isinstance(stage, Routine)
        uses = self.uses([view.buffer for view in stage.operands], [stage.target.buffer])
        return RoutinePlan(name, stage, uses, stage.units)

    def _for_caller(self) -> frozenset[Buffer]:
        """What a forward pass saves and reads from memory in no step: written only if asked for.

        Forward pass without saving, two threads, by the same that writes what nobody reads: GRU
        0.90 (1000, 16, 64, 64) and 0.97 (100, 32, 128, 256). Not beside a sum over units: GCC makes
        no second loop there, and masked stores took 1.6 times as long (layer-norm LSTM, AVX2).
        """
        if self.name != "forward":
            return frozenset()
        programs = self.owner.schedule.programs
        after = {link.next for link in programs.links}
        read = read_from_memory(self.part.stages)
        beside = written_beside_sums(self.part.stages)
        return frozenset(
            buffer
            for buffer in self.part.function.buffers
            if buffer.value in programs.saved
            and buffer.value not in after
            and buffer not in read
            and buffer not in beside
        )

    def keeps(self, written: Iterable[Buffer]) -> tuple[str, ...]:
        """What of all that is written nobody but the caller wants.

        Where any of it is given, what is not goes to scratch memory.
        """
        wanted = [buffer for buffer in dict.fromkeys(written) if buffer in self.for_caller]
        return tuple(buffer.name for buffer in wanted)

    def granularity(self, slots: int) -> int:
        """Units that a thread takes at a time.

        As many in all stages of a step, so that its units stay its own.
        """
        return slots if self.shared_slots is None else self.shared_slots

    def uses(self, reads: Iterable[Buffer], written: Iterable[Buffer]) -> tuple[Place, ...]:
        """The places of what a stage reads and writes, each once."""
        return tuple(self.places.of(buffer) for buffer in dict.fromkeys([*reads, *written]))

    def _loop(self, name: str, loop: Loop) -> LoopPlan:
        sums = summed_over_rows(loop)
        written = [buffer for buffer in stored(loop) if buffer not in sums]
        of_groups = tuple(self.places.sum_of_group(buffer) for buffer in sums)
        return LoopPlan(
            name,
            loop,
            self.uses(loaded(loop), written) + of_groups,
            self.keeps(written),
            loop.space[-1],
            self.granularity(0),
            down=bool(sums),
            leaves_out=self.name == "deferred" and leaves_out_rows(loop),
        )

    def _outers(self, name: str, products: Sequence[Product]) -> OutersPlan:
        """Weight gradients: every operand once, and the products of which it is part."""
        heads = products[0].heads
        lefts: dict[tuple[View, Expr], Operand] = {}
        rights: dict[tuple[View, Expr], Operand] = {}
        outers: list[Outer] = []
        for stage in products:
            a, b, c = stage.a, stage.b, stage.target
            rows, columns = c.shape if heads is None else stage.weights
            for found, view, count, pack in ((lefts, a, rows, True), (rights, b, columns, False)):
                if (view, count) not in found:
                    after = self.owner.product_block(rows) if pack else None
                    step = None if heads is None else count
                    found[view, count] = Operand(view.buffer, offset(view), count, step, after)
            outers.append(
                Outer(
                    list(lefts).index((a, rows)),
                    list(rights).index((b, columns)),
                    c.buffer,
                    offset(c),
                    c.row_stride if heads is None else columns,
                    None if heads is None else length((rows, columns)),
                    not stage.accumulate and begins_with_product(self.part, c.buffer),
                    f"{c} += {a}.T @ {b}",
                )
            )
        uses = self.uses(
            [view.buffer for stage in products for view in (stage.a, stage.b)],
            [stage.target.buffer for stage in products],
        )
        return OutersPlan(
            name, uses, heads, tuple(lefts.values()), tuple(rights.values()), tuple(outers)
        )

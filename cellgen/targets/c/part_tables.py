"""Spell the parts of a time plan: their places and stages, and what each stage multiplies.

Input: ``PartPlan``. Output: rows of the tables that the driver reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellgen.runtime.names import c_name
from cellgen.schedule.lower.plan import (
    GroupPlan,
    LoopPlan,
    OutersPlan,
    PanelProduct,
    PartPlan,
    Prefetch,
    RoutinePlan,
    StagePlan,
    StripPlan,
    Weights,
)
from cellgen.schedule.schedule import Buffer
from cellgen.targets.c.equations import numbered
from cellgen.targets.c.tables import NONE, PlanTables, row

_NO_GROUP = (0, 0, NONE, NONE, NONE, 0, NONE, *(0,) * 5, *(0,) * 6)
_NO_OUTERS = (0,) * 6


class PartTables:
    """Spells the parts of one function."""

    def __init__(self, tables: PlanTables) -> None:
        self.tables = tables

    def part_row(self, part: PartPlan) -> str:
        """Spell one part, and add the tables of its places and stages."""
        places = numbered(part.places)
        numbers = {place.buffer: number for number, place in enumerate(places)}
        stages = [self._stage_row(stage, numbers) for stage in part.stages]
        return row(
            len(places),
            len(stages),
            len(part.rows),
            int(part.can_split),
            self.tables.length(part.free_units),
            part.free_granularity,
            self.tables.table(
                "cellgen_place", f"{part.name}_places", map(self.tables.place_row, places)
            ),
            self.tables.table("cg_stage", f"{part.name}_stages", stages),
            self.tables.table(
                "cellgen_stage_rows",
                f"{part.name}_rows",
                (row(item.first, item.count, int(item.by_rows)) for item in part.rows),
            ),
        )

    def _stage_row(self, stage: StagePlan, numbers: dict[Buffer, int]) -> str:
        uses = [numbers[place.buffer] for place in numbered(stage.uses)]
        used = self.tables.table("int16_t", f"{stage.name}_uses", map(str, uses))
        if isinstance(stage, OutersPlan):
            head = _row_head(
                "CELLGEN_IS_PRODUCTS", stage, NONE, self.tables.length(stage.heads), 0, "0"
            )
            return row(*head, len(uses), used, 0, 0, 0, 0, *_NO_GROUP, *self._outers(stage))
        equations = f"CELLGEN_NAME({self.tables.stem}_{stage.name})"
        if not isinstance(stage, GroupPlan):
            units, granularity = self.tables.length(stage.units), getattr(stage, "granularity", 0)
            head = _row_head("CELLGEN_IS_LOOP", stage, units, NONE, granularity, equations)
            keeps = self._keeps(stage.name, getattr(stage, "keeps", ()))
            return row(*head, len(uses), used, *keeps, *self._wants(stage), *_NO_GROUP, *_NO_OUTERS)
        units, heads = self.tables.length(stage.units), self.tables.length(stage.heads)
        head = _row_head("CELLGEN_IS_GROUP", stage, units, heads, stage.granularity, equations)
        keeps = self._keeps(stage.name, stage.keeps)
        return row(
            *head, len(uses), used, *keeps, *self._wants(stage), *self._group(stage), *_NO_OUTERS
        )

    def _keeps(self, name: str, keeps: Sequence[str]) -> tuple[int, str]:
        members = (str(self.tables.member[c_name(member)]) for member in keeps)
        return len(keeps), self.tables.table("int16_t", f"{name}_keeps", members)

    def _wants(self, stage: GroupPlan | LoopPlan | RoutinePlan | StripPlan) -> tuple[int, str]:
        members = (str(self.tables.member[c_name(member)]) for member in stage.wants)
        return len(stage.wants), self.tables.table("int16_t", f"{stage.name}_wants", members)

    def _group(self, stage: GroupPlan) -> list[object]:
        use = {place.buffer: number for number, place in enumerate(numbered(stage.uses))}
        weights: list[str] = []
        runs: list[str] = []
        for run in stage.runs:
            runs.append(self._run_row(run, use[run.operand], len(weights)))
            weights += map(self._weight_row, run.weights)
        prefetches = map(self._prefetch_row, stage.prefetch)
        in_place = [f"{use[b]}, {self.tables.length(column)}" for b, column in stage.in_place]
        name = stage.name
        return [
            len(stage.group.slots),
            stage.widest,
            self.tables.length(stage.depth),
            self.tables.length(stage.group.units),
            self.tables.memory[stage.whole],
            int(stage.free),
            self.tables.length(stage.fetching_depth),
            len(runs),
            len(stage.chains),
            len(stage.prefetch),
            len(in_place),
            len(stage.zeroed),
            self.tables.table("cellgen_run", f"{name}_runs", runs),
            self.tables.table("cellgen_weight", f"{name}_weights", weights),
            self.tables.table("cellgen_chain", f"{name}_chains", (row(*c) for c in stage.chains)),
            self.tables.table("cellgen_prefetch_row", f"{name}_prefetch", prefetches),
            self.tables.table("int16_t", f"{name}_in_place", in_place),
            self.tables.table("int16_t", f"{name}_zeroed", map(str, stage.zeroed)),
        ]

    def _run_row(self, run: PanelProduct, operand: int, first_weight: int) -> str:
        return row(
            operand,
            self.tables.length(run.offset),
            self.tables.length(run.inner),
            int(run.by_head),
            run.slots,
            run.first_slot,
            self.tables.memory[run.panel],
            self.tables.memory_of(run.ahead),
            len(run.weights),
            first_weight,
        )

    def _weight_row(self, weight: Weights) -> str:
        return row(
            *self.tables.either(weight.of, weight.in_memory),
            self.tables.length(weight.offset),
            self.tables.length(weight.stride),
            self.tables.length(weight.head_step),
            int(weight.transposed),
            weight.slot,
            int(weight.begins),
        )

    def _prefetch_row(self, item: Prefetch) -> str:
        return row(
            self.tables.series[item.name] if item.strided else NONE,
            NONE if item.strided else self.tables.member[c_name(item.name)],
            self.tables.length(item.width),
            item.later,
        )

    def _outers(self, stage: OutersPlan) -> list[object]:
        use = {place.buffer: number for number, place in enumerate(numbered(stage.uses))}
        lefts = [
            row(
                use[o.buffer],
                self.tables.length(o.offset),
                self.tables.length(o.length),
                self.tables.length(o.head_step),
                self.tables.length(o.packed_after),
            )
            for o in stage.lefts
        ]
        rights = [
            row(
                use[o.buffer],
                self.tables.length(o.offset),
                self.tables.length(o.length),
                self.tables.length(o.head_step),
            )
            for o in stage.rights
        ]
        outers = [
            row(
                o.left,
                o.right,
                use[o.target],
                self.tables.length(o.offset),
                self.tables.length(o.stride),
                self.tables.length(o.head_step),
                int(o.begins),
            )
            for o in stage.outers
        ]
        name = stage.name
        return [
            len(lefts),
            len(rights),
            len(outers),
            self.tables.table("cellgen_left_row", f"{name}_lefts", lefts),
            self.tables.table("cellgen_right_row", f"{name}_rights", rights),
            self.tables.table("cellgen_outer_row", f"{name}_outers", outers),
        ]


def _row_head(
    kind: str, stage: StagePlan, units: int, heads: int, granularity: int, equations: str
) -> tuple[object, ...]:
    """What every stage's row begins with."""
    return kind, int(stage.barrier), units, heads, granularity, equations

"""Spell the parts of a time plan: their places and stages, and what each stage multiplies.

Input: ``PartPlan``. Output: rows of the tables that the driver reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.runtime.names import c_name
from cellgen.schedule.lower.plan import (
    GroupPlan,
    OutersPlan,
    PanelProduct,
    PartPlan,
    Prefetch,
    ProductPlan,
    StagePlan,
    Weights,
)
from cellgen.schedule.lower.sums import Operand
from cellgen.schedule.schedule import Buffer
from cellgen.targets.c.equations import numbered
from cellgen.targets.c.tables import NONE, PlanTables, Table, row


class PartTables:
    """Spells the parts of one function."""

    def __init__(self, tables: PlanTables) -> None:
        self.tables = tables

    def part_row(self, part: PartPlan) -> str:
        """Spell one part, and add the tables of its places and stages."""
        places = numbered(part.places)
        numbers = {place.buffer: number for number, place in enumerate(places)}
        stages = [line for stage in part.stages for line in self._stage_lines(stage, numbers)]
        return row(
            len(places),
            len(part.stages),
            len(part.rows),
            int(part.can_split),
            self.tables.length(part.free_units),
            part.free_granularity,
            self.tables.table(
                "cellgen_place",
                f"{part.name}_places",
                map(self.tables.place_row, places),
                (place.buffer.name for place in places),
            ),
            self.tables.add(
                Table("cg_stage", f"{self.tables.stem}_{part.name}_stages", "", stages)
            ),
            self.tables.table(
                "cellgen_stage_rows",
                f"{part.name}_rows",
                (row(item.first, item.count, int(item.by_rows)) for item in part.rows),
            ),
        )

    def _stage_lines(self, stage: StagePlan, numbers: dict[Buffer, int]) -> list[str]:
        """The row of a stage, a few members a line, their names behind them."""
        assert not isinstance(stage, ProductPlan)  # of plans by step alone
        uses = [numbers[place.buffer] for place in numbered(stage.uses)]
        used = self.tables.numbers(f"{stage.name}_uses", "places", uses)
        equations = f"CELLGEN_NAME({self.tables.stem}_{stage.name})"
        if isinstance(stage, OutersPlan):
            heads = self.tables.length(stage.heads)
            kind, equations, extents = "PRODUCTS", "0", (NONE, heads, 0)
        elif isinstance(stage, GroupPlan):
            units, heads = self.tables.length(stage.units), self.tables.length(stage.heads)
            kind, extents = "GROUP", (units, heads, stage.granularity)
        else:
            units, granularity = self.tables.length(stage.units), getattr(stage, "granularity", 0)
            kind, extents = "LOOP", (units, NONE, granularity)
        keeps = self._keeps(stage.name, getattr(stage, "keeps", ()))
        wants = self.tables.wants(stage.name, getattr(stage, "wants", ()))
        if isinstance(stage, OutersPlan):
            products = self._outers(stage)
        else:
            group = self._group(stage) if isinstance(stage, GroupPlan) else ["CELLGEN_NO_GROUP,"]
            products = [*group, "CELLGEN_NO_WEIGHT_GRADIENTS,"]
        return [
            f"{{ /* {stage.name} */",
            *_named("kind, barrier", f"CELLGEN_IS_{kind}", int(stage.barrier)),
            *_named("units, heads, granularity", *extents),
            *_named("equations", equations),
            *_named("uses, use", len(uses), used),
            *_named("keeps, keep, wants, want", *keeps, *wants),
            *(f"    {line}" for line in products),
            "},",
        ]

    def _keeps(self, name: str, keeps: Sequence[str]) -> tuple[int, str]:
        members = (self.tables.member[c_name(member)] for member in keeps)
        return len(keeps), self.tables.numbers(f"{name}_keeps", "members", members)

    def _group(self, stage: GroupPlan) -> list[str]:
        use = {place.buffer: number for number, place in enumerate(numbered(stage.uses))}
        weights: list[Weights] = []
        runs: list[str] = []
        for run in stage.runs:
            runs.append(self._run_row(run, use[run.operand], len(weights)))
            weights += run.weights
        in_place = [f"{use[b]}, {self.tables.length(column)}" for b, column in stage.in_place]
        name, length, table = stage.name, self.tables.length, self.tables.table
        sizes = (
            *(len(stage.group.slots), stage.widest, length(stage.depth)),
            *(length(stage.group.units), self.tables.memory[stage.whole], int(stage.free)),
            length(stage.fetching_depth),
        )
        counts = (len(runs), len(stage.chains), len(stage.prefetch), len(in_place))
        rows = [
            table("cellgen_run", f"{name}_runs", runs, (f"{r.operand.name}" for r in stage.runs)),
            table(
                "cellgen_weight",
                f"{name}_weights",
                map(self._weight_row, weights),
                (weight.of for weight in weights),
            ),
            table("cellgen_chain", f"{name}_chains", (row(*c) for c in stage.chains)),
            table(
                "cellgen_prefetch_row",
                f"{name}_prefetch",
                map(self._prefetch_row, stage.prefetch),
                (item.name for item in stage.prefetch),
            ),
            self.tables.numbers(f"{name}_in_place", "use, extent", in_place),
            self.tables.numbers(f"{name}_zeroed", "slots", stage.zeroed),
        ]
        return [
            _line("slots, widest, depth, all_units, whole, is_free, fetching_depth", *sizes),
            _line("runs, chains, prefetches, in_places, zeroed", *counts, len(stage.zeroed)),
            *map(_line, ("run", "weight", "chain", "prefetched", "in_place", "zero"), rows),
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

    def _outers(self, stage: OutersPlan) -> list[str]:
        use = {place.buffer: number for number, place in enumerate(numbered(stage.uses))}
        length, table, name = self.tables.length, self.tables.table, stage.name
        lefts = [
            row(
                *(use[o.buffer], length(o.offset), length(o.length), length(o.head_step)),
                length(o.packed_after),
            )
            for o in stage.lefts
        ]
        rights = [
            row(use[o.buffer], length(o.offset), length(o.length), length(o.head_step))
            for o in stage.rights
        ]
        outers = [
            row(
                *(o.left, o.right, use[o.target]),
                *(length(o.offset), length(o.stride), length(o.head_step), int(o.begins)),
            )
            for o in stage.outers
        ]
        rows = [
            table("cellgen_left_row", f"{name}_lefts", lefts, _names(stage.lefts)),
            table("cellgen_right_row", f"{name}_rights", rights, _names(stage.rights)),
            table(
                "cellgen_outer_row",
                f"{name}_outers",
                outers,
                (o.target.name for o in stage.outers),
            ),
        ]
        return [
            "CELLGEN_NO_GROUP,",
            _line("lefts, rights, outers", len(lefts), len(rights), len(outers)),
            *map(_line, ("left", "right", "outer"), rows),
        ]


def _names(operands: Iterable[Operand]) -> list[str]:
    return [operand.buffer.name for operand in operands]


def _line(names: str, *values: object) -> str:
    """Members of a struct, their names behind them."""
    return f"{', '.join(map(str, values))}, /* {names} */"


def _named(names: str, *values: object) -> list[str]:
    return [f"    {_line(names, *values)}"]

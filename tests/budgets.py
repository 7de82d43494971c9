"""What the loop over time of each cell that ships costs, as counts: ``python -m tests.budgets``
writes them anew.

Of each part: functions that are expensive, by the shape that they are computed for, and arrays that
its loops read. A count that grows is a kernel that does more; one that falls is a gain to record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cellgen.cells import SHIPPED
from cellgen.language.cell import Cell
from cellgen.language.ops import Pointwise
from cellgen.language.value import format_shape
from cellgen.pipeline import sequence_of
from cellgen.program.ssa import Statement
from cellgen.schedule.groups import Group, GroupedStage
from cellgen.schedule.over_time import Part
from cellgen.schedule.schedule import Loop

RECORD = Path(__file__).parent / "budgets.json"

Counts = Mapping[str, Mapping[str, object]]


def counts(cell: type[Cell]) -> Counts:
    """Counts of a cell by part: the steps forward, in reverse, and what is deferred."""
    schedule = sequence_of(cell)
    parts = {"forward": schedule.forward, "reverse": schedule.reverse}
    return {name: _of(part) for name, part in (*parts.items(), ("deferred", schedule.deferred))}


def _of(part: Part) -> Mapping[str, object]:
    loops = list(_loops(part.stages))
    statements = (line.statement for loop in loops for line in loop.lines)
    return {
        "functions": dict(sorted(expensive(statements).items())),
        "arrays": [len(loop.loads) for loop in loops],
    }


def _loops(stages: Iterable[GroupedStage]) -> Iterator[Loop]:
    """The loops of some stages, and those that run on the tiles of a group of products."""
    for stage in stages:
        if isinstance(stage, Loop):
            yield stage
        elif isinstance(stage, Group):
            yield from stage.loops


def expensive(statements: Iterable[Statement]) -> Counter[str]:
    """Transcendental functions and roots, by the shape of the loop in which they are computed."""
    found: Counter[str] = Counter()
    for statement in statements:
        nodes = statement.expression.atoms(Pointwise)
        for node in nodes:
            if node.row.transcendental:
                found[format_shape(statement.target.shape)] += 1
    return found


def recorded() -> Mapping[str, Counts]:
    """The record: counts by cell."""
    found: Mapping[str, Counts] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def main() -> None:
    lines = [f"{json.dumps(c.definition.name)}: {json.dumps(counts(c))}" for c in SHIPPED]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Put an export together: its header and its body.

Input: ``PlannedCell`` and ``ExportRequest``. Output: the texts of ``<cell>.h`` and ``<cell>.c``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cellgen.errors import UsageError
from cellgen.targets.embedded.layout import MemoryLayout
from cellgen.targets.embedded.limits import Limits
from cellgen.targets.embedded.plan import ExportPlan
from cellgen.targets.embedded.request import ExportRequest
from cellgen.targets.embedded.writer import ExportWriter
from cellgen.targets.target import Files, NotYet, PlannedCell


@dataclass(frozen=True)
class EmbeddedTarget:
    """One header and one body in C99 for given sizes; has no backend."""

    request: ExportRequest
    limits: Limits = field(default_factory=Limits)
    name: str = "embedded"
    suffixes: tuple[str, ...] = (".h", ".c")

    def render(self, cell: PlannedCell) -> Files | NotYet:
        """Spell a cell. Raises UsageError: sizes or weights that do not fit it, or limits."""
        layout = self.layout(cell)
        if layout is None:
            return NotYet("it has the functions of one step only, an export needs those over time")
        request = self.request.checked(cell.definition)
        if request.train and layout.cell.train is None:
            raise UsageError(f"{cell.definition.name}: nothing of it learns; leave out --train")
        self.limits.check(cell.definition.name, request, layout.bytes_of)
        writer = ExportWriter(cell, layout, request)
        return {".h": writer.header(), ".c": writer.body()}

    def explain(self, cell: PlannedCell) -> list[str]:
        """What the structs of the export take."""
        layout = self.layout(cell)
        if layout is None:
            return []
        counts = layout.bytes_of(self.request.checked(cell.definition))
        return [f"{name}: {count} bytes" for name, count in counts.items()]

    def plans(self, cell: PlannedCell) -> list[str]:
        """The plans by step."""
        layout = self.layout(cell)
        if layout is None:
            return []
        run, train = layout.cell.run, layout.cell.train
        return [str(run.forward), *([str(train.forward), str(train.backward)] if train else [])]

    def layout(self, cell: PlannedCell) -> MemoryLayout | None:
        """The memory of an export; None for a cell that has the functions of one step only."""
        sequence = cell.in_c.sequence
        if sequence is None:
            return None
        plan = ExportPlan.of(sequence.programs, train=self.request.train)
        return MemoryLayout(plan, self.request.optimizer if plan.train else "")

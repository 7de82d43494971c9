"""Spell a time plan as the tables that the driver reads.

Input: ``TimePlan``. Output: initialisers of the structs of ``cellgen_driver.h``, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sympy import Expr, expand

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import c_name, final_of, gradient_of
from cellgen.schedule.lower.plan import (
    How,
    Place,
    Rows,
    Series,
    State,
    TimePlan,
    When,
    WorkspaceArray,
)
from cellgen.schedule.lower.sums import RowArray, RowSum, StepsTotal, Total
from cellgen.targets.c_expressions import c_axis, c_start

NONE = -1
LINE = 100

_ROWS = {
    Rows.ONE: "ONE_ROW",
    Rows.BATCH: "BATCH_ROWS",
    Rows.TWO_BATCHES: "TWO_BATCHES",
    Rows.CHUNK: "CHUNK_OF_ROWS",
    Rows.GROUPS: "SUM_GROUPS",
    Rows.PANELS: "PANELS",
    Rows.AHEAD: "AHEAD",
    Rows.BATCH_SLOTS: "BATCH_SLOTS",
    Rows.CHUNK_SLOTS: "CHUNK_SLOTS",
}
_WHEN = {
    When.ALWAYS: "ALWAYS",
    When.TABLES: "WITH_TABLES",
    When.LAST: "IF_LAST",
    When.GUARDED: "IF_GUARDED",
    When.GATHERED: "IF_GATHERED",
    When.ROW_BLOCK: "OF_A_ROW_BLOCK",
    When.UNPACKED: "IF_UNPACKED",
}
_HOW = {
    How.MEMBER: "CELLGEN_AT_MEMBER",
    How.MEMORY: "CELLGEN_AT_MEMORY",
    How.SERIES: "CELLGEN_AT_SERIES",
    How.STAGED: "CELLGEN_AT_STAGED",
    How.ACROSS: "CELLGEN_AT_ACROSS",
    How.IN_PLACE: "CELLGEN_IN_PLACE",
    How.BEFORE: "CELLGEN_AT_BEFORE",
    How.CARRY: "CELLGEN_AT_CARRY",
    How.PASSED: "CELLGEN_AT_PASSED",
    How.SAVED: "CELLGEN_AT_SAVED",
    How.PAIR: "CELLGEN_AT_PAIR",
    How.KEPT: "CELLGEN_AT_KEPT",
    How.SUMS: "CELLGEN_AT_SUMS",
}


COLUMNS = {
    "cellgen_member": "flags, width",
    "cellgen_series_row": "member, width, strides, flags, stage, later, only, rows",
    "cellgen_link": (
        "width, flags, series, initial, last, passed, upstream, saved, pair, now, rows, start"
    ),
    "cellgen_memory": (
        "rows, when, width, is_packed, slots, units, widest, heads; "
        "CELLGEN_PANEL: width, slots, units, widest, heads"
    ),
    "cellgen_place": "how, of, width, other, is_optional",
    "cellgen_weight": "member, memory, offset, stride, head_step, transposed, slot, begins",
    "cellgen_run": (
        "use, offset, inner, by_head, slots, first_slot, panel, ahead, weights, first_weight"
    ),
    "cellgen_chain": "first, runs",
    "cellgen_prefetch_row": "series, member, width, later",
    "cellgen_left_row": "use, offset, rows, head_step, packed_after",
    "cellgen_right_row": "use, offset, columns, head_step",
    "cellgen_outer_row": "left, right, use, offset, stride, head_step, begins",
    "cellgen_total": "member, memory, count, begun, is_batched, own, wants, want",
    "cellgen_sum": "member, memory, count, groups",
    "cellgen_steps_total": "member, memory, summand, width",
    "cellgen_kept": "memory, width, member",
    "cellgen_made": "member, by",
    "cellgen_stage_rows": "first, stages, by_rows",
    "cg_part": ("places, stages, runs, can_split, free_units, free_granularity, place, stage, run"),
}
"""Members of the structs of ``cellgen_driver.h``, in their order: what stands above each table."""


@dataclass(frozen=True)
class Table:
    """One table: its C type, its name after the function's stem, what its columns are, its rows."""

    kind: str
    name: str
    columns: str
    lines: list[str]


class Extents:
    """Lengths by number, in order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[Expr, int] = {}

    def __call__(self, length: Expr | None) -> int:
        """The number of a length; NONE where there is none."""
        if length is None:
            return NONE
        return self._numbers.setdefault(expand(length), len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def lines(self) -> list[str]:
        """What computes them, several a line."""
        texts = enumerate(c_axis(length) for length in self._numbers)
        return joined((f"extent[{number}] = {text};" for number, text in texts), " ")


def row(*entries: object) -> str:
    """One initialiser."""
    return "{" + ", ".join(str(entry) for entry in entries) + "}"


def call(macro: str, *entries: object) -> str:
    """One initialiser that a macro spells."""
    return f"{macro}({', '.join(str(entry) for entry in entries)})"


def filled(rows: Iterable[str]) -> list[str]:
    """Rows of a table, as many a line as fit."""
    return joined((f"{item}," for item in rows), " ")


def labelled(rows: Iterable[str], labels: Iterable[object]) -> list[str]:
    """Rows of a table, a line each: its number, and what it is of."""
    pairs = enumerate(zip(rows, labels, strict=True))
    return [f"{text}, /* {number} {label} */" for number, (text, label) in pairs]


def joined(texts: Iterable[str], between: str) -> list[str]:
    """Texts in lines, as many a line as fit."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) < LINE:
            lines[-1] += f"{between}{text}"
        else:
            lines.append(text)
    return lines


def flags(**states: bool) -> str:
    """Names of flags that are set, joined."""
    return " | ".join(f"CELLGEN_{name}" for name, is_set in states.items() if is_set) or "0"


def member_names(signature: Signature) -> list[str]:
    """Names of the members of a function's argument struct, in order."""
    return [a.name for a in (*signature.struct_members, *signature.results)]


class PlanTables:
    """Numbers what a plan names, and spells its tables."""

    def __init__(self, plan: TimePlan, signature: Signature, stem: str) -> None:
        self.plan, self.stem = plan, stem
        self.length = Extents()
        self.tables: list[Table] = []
        names = member_names(signature)
        self.member = {c_name(name): number for number, name in enumerate(names)}
        results = (item for item in signature.results if item.shape[:1] == ("T",))
        self.results = {c_name(item.name) for item in results}
        self.memory = {item.name: number for number, item in enumerate(plan.memory)}
        self.series = {item.name: number for number, item in enumerate(plan.series)}
        self.state = {item.previous: number for number, item in enumerate(plan.states)}

    def table(
        self, kind: str, name: str, rows: Iterable[str], labels: Iterable[object] = ()
    ) -> str:
        """Add a table, a line a row where rows have labels; its C name, or 0 where it has no rows.

        A label says what the row is of, beside the number that other tables call it by.
        """
        names = list(labels)
        lines = labelled(rows, names) if names else filled(rows)
        return self.add(Table(kind, f"{self.stem}_{name}", COLUMNS[kind], lines))

    def numbers(self, name: str, columns: str, numbers: Iterable[object]) -> str:
        """Add a table of numbers alone; its C name, or 0 where there are none."""
        return self.add(Table("int16_t", f"{self.stem}_{name}", columns, filled(map(str, numbers))))

    def add(self, table: Table) -> str:
        """Add a table; its C name, or 0 where it has no rows."""
        if not table.lines:
            return "0"
        self.tables.append(table)
        return f"CELLGEN_NAME({table.name})"

    def memory_of(self, name: str) -> int:
        """The number of an array of the workspace, or NONE."""
        return self.memory.get(name, NONE)

    def either(self, of: str, in_memory: bool) -> tuple[int, int]:
        """Numbers of a member and of memory: one of both."""
        return (NONE, self.memory[of]) if in_memory else (self.member[c_name(of)], NONE)

    # --- what the function has ---

    def members(self) -> list[str]:
        """Rows of the members."""
        plan = self.plan
        by_row = {c_name(name): width for name, width in plan.row_arrays}
        summed = {c_name(name): count for name, count in plan.summed}
        packed, required = set(map(c_name, plan.packs_from)), set(map(c_name, plan.required))
        outputs = {c_name(item.name) for item in plan.series if item.output}
        strided = {c_name(item.name) for item in plan.series if item.strided}
        saved = set(map(c_name, plan.forward_arrays)) - strided
        return [
            row(
                flags(
                    REQUIRED=name in required,
                    UNLESS_LAST=name in outputs,
                    PACKED=name in packed,
                    BY_ROW=name in by_row,
                    SUMMED=name in summed,
                    MADE=name in saved,
                    RESULT=name in self.results,
                ),
                self.length({**by_row, **summed}.get(name)),
            )
            for name in self.member
        ]

    def series_row(self, item: Series, strides: int) -> str:
        """The row of an array over time."""
        copies = [f"{kind}_{item.name}" for kind in ("stage", "later", "only", "rows")]
        return row(
            self.member[c_name(item.name)],
            self.length(item.width),
            strides if item.strided else NONE,
            flags(
                OUTPUT=item.output,
                SHOWN=item.repeats_when_masked,
                REPEATED=item.repeated,
                STAGED=item.staged,
                ACROSS=item.across,
                SCATTERED=item.scattered,
                AGAIN=item.name in self.plan.forward_arrays,
            ),
            *(self.memory_of(name) for name in copies),
        )

    def state_row(self, item: State) -> str:
        """The row of a state."""
        last = final_of(item.name)
        last = gradient_of(last) if self.plan.backward else last
        return row(
            self.length(item.width),
            flags(
                STATE_OUTPUT=item.output,
                STATE_NOW=item.now,
                STATE_ACROSS=item.across,
                STATE_IN_PLACE=item.in_place,
            ),
            self.series.get(item.series, NONE),
            self.member.get(c_name(item.previous), NONE),
            self.member[c_name(last)],
            self.member[c_name(item.passed)] if self.plan.backward else NONE,
            self.series.get(item.upstream, NONE) if self.plan.backward else NONE,
            self.member[c_name(item.name)] if item.saved else NONE,
            self.memory_of(item.pair),
            self.memory_of(f"now_{item.previous}"),
            self.memory_of(f"rows_{item.previous}"),
            c_start(item.start) or "0",
        )

    def memory_row(self, item: WorkspaceArray) -> str:
        """The row of an array of the workspace."""
        length, rows, when = self.length, _ROWS[item.rows], _WHEN[item.when]
        if item.rows is Rows.PANELS:
            sizes = (length(item.width), item.slots, length(item.units), item.widest)
            return call("CELLGEN_PANEL", *sizes, length(item.heads))
        if not item.slots and not item.packed:
            return call("CELLGEN_ARRAY", rows, when, length(item.width))
        return row(
            f"CELLGEN_{rows}",
            f"CELLGEN_{when}",
            length(item.width),
            int(item.packed),
            item.slots,
            length(item.units),
            item.widest,
            length(item.heads),
        )

    def place_row(self, place: Place) -> str:
        """The row of a place."""
        if place.how in (How.MEMBER, How.SAVED):
            of = self.member[c_name(place.of)]
        elif place.how in (How.MEMORY, How.KEPT, How.SUMS):
            of = self.memory[place.of]
        elif place.how in (How.BEFORE, How.CARRY, How.PASSED, How.PAIR):
            of = self.state[place.of]
        else:
            of = self.series[place.of]
        other = self.memory_of(place.other)
        return row(_HOW[place.how], of, self.length(place.width), other, int(place.optional))

    def kept_row(self, item: RowArray) -> str:
        """The row of what is kept, or copied for many steps."""
        member = self.member[c_name(item.member)] if item.member else NONE
        return row(self.memory[item.memory], self.length(item.width), member)

    def total_row(self, item: Total) -> str:
        """The row of a sum over all steps."""
        return row(
            *self.either(item.of, item.in_memory),
            self.length(item.count),
            int(item.begun),
            int(item.batched),
            self.memory_of(item.own),
            *self.wants(item.of, item.wants),
        )

    def wants(self, name: str, wants: Sequence[str]) -> tuple[int, str]:
        """How many gradients a stage or a sum is formed for, and the table of their members."""
        members = (self.member[c_name(member)] for member in wants)
        return len(wants), self.numbers(f"{name}_wants", "members", members)

    def sum_row(self, item: RowSum) -> str:
        """The row of a sum over rows."""
        either = self.either(item.of, item.in_memory)
        return row(*either, self.length(item.count), self.memory[item.groups])

    def made_row(self, name: str, forward: Mapping[str, int]) -> str:
        """The row of what a backward pass reads and a forward pass, with its members, makes."""
        return row(self.member[c_name(name)], forward[c_name(name)])

    def steps_total_row(self, item: StepsTotal) -> str:
        """The row of what each chunk of steps adds."""
        either = self.either(item.of, item.in_memory)
        return row(*either, self.memory[item.summand], self.length(item.width))

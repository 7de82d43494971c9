"""What a proof gives: a row per claim, with a figure, a bar and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from cellgen.runtime.notebook import ShownInNotebooks


@dataclass(frozen=True)
class Row:
    """One claim: ``figure`` is the largest error found, ``bar`` what it may be.

    ``verdict`` is ``"ok"``, ``"failed"`` or ``"skipped"`` (then ``note`` says why).
    """

    name: str
    figure: float | None
    bar: float | None
    verdict: str
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether it holds, or was left out."""
        return self.verdict != "failed"

    def __str__(self) -> str:
        figures = "".join(f"{'-' if n is None else f'{n:.1e}':>9}" for n in (self.figure, self.bar))
        return f"{self.verdict:8}{self.name:44}{figures}  {self.note}".rstrip()


@dataclass(frozen=True)
class Report(ShownInNotebooks):
    """All rows of one cell; ``ok`` when none failed."""

    cell: str
    seed: int
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether no row failed."""
        return all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if not row.ok)

    def as_dict(self) -> dict[str, object]:
        """Return what ``json.dumps`` takes; a figure that is infinite or NaN becomes text."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            if row["figure"] is not None and not math.isfinite(row["figure"]):
                row["figure"] = str(row["figure"])
        return {"cell": self.cell, "seed": self.seed, "ok": self.ok, "rows": rows}

    def __str__(self) -> str:
        head = f"{self.cell}: {'ok' if self.ok else 'FAILED'} (seed {self.seed})"
        return "\n".join([head, *(f"  {row}" for row in self.printed)])

    @property
    def printed(self) -> tuple[Row, ...]:
        """The rows as people read them.

        Why a cell was not built stands with the first of those that needed it.
        """
        said: set[str] = set()
        rows = []
        for row in self.rows:
            again = not row.ok and row.figure is None and row.note in said
            said.add(row.note)
            rows.append(replace(row, note="as above") if again else row)
        return tuple(rows)


def judged(name: str, errors: Mapping[str, float], bar: float, note: str = "") -> Row:
    """Make the row of some errors; a failed one lists every array above the bar.

    Where nothing was compared nothing is proven: that row failed.
    """
    if not errors:
        said = "nothing was compared" + (f"; {note}" if note else "")
        return Row(name, None, bar, "failed", said)
    worst = max(errors.values())
    bad = {key: error for key, error in errors.items() if not error <= bar}
    if bad:
        listed = ", ".join(f"{key} {error:.1e}" for key, error in bad.items())
        note = f"above the bar: {listed}" + (f"; {note}" if note else "")
        worst = max(bad.values(), key=lambda e: math.inf if math.isnan(e) else e)
    return Row(name, float(worst), bar, "failed" if bad else "ok", note)

"""The proof of a cell: ``check`` gives a ``Report``, one row per claim."""

from cellgen.proof.check.cell import C_BARS, FLOAT64_BAR, Report, Row, check, judged

__all__ = ["C_BARS", "FLOAT64_BAR", "Report", "Row", "check", "judged"]

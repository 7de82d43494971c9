"""The proof of a cell: ``check`` gives a ``Report``, one row per claim."""

from cellgen.proof.check.cell import check
from cellgen.proof.check.errors import FLOAT64_BAR
from cellgen.proof.check.kernels import C_BARS
from cellgen.proof.check.report import Report, Row, judged

__all__ = ["C_BARS", "FLOAT64_BAR", "Report", "Row", "check", "judged"]

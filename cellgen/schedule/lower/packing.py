"""Say where the rows of each left operand of weight gradients are packed.

Pass: a plan whose operands have no place there -> the same with places. Each has its own, since no
barrier keeps a thread from packing the next while another still reads this.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr

from cellgen.schedule.lower.function import FunctionOverTime
from cellgen.schedule.lower.lengths import total
from cellgen.schedule.lower.plan import OutersPlan, StagePlan, TimePlan
from cellgen.schedule.lower.sums import Operand


def with_packed_operands(function: FunctionOverTime, plan: TimePlan) -> TimePlan:
    """Put left operands behind each other."""
    lengths: list[Expr] = []

    def behind(operand: Operand) -> Operand:
        before = total(lengths)
        lengths.append(operand.length)
        return replace(operand, packed_after=before)

    def packing(name: str, stage: StagePlan) -> StagePlan:
        if not isinstance(stage, OutersPlan):
            return stage
        return replace(stage, lefts=tuple(behind(operand) for operand in stage.lefts))

    plan = plan.with_stages(packing)
    return replace(plan, product_rows=total(lengths))

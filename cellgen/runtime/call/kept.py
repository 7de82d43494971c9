"""Keep plans of calls by the kinds of calls that they are for.

Input: a kind, whatever can be told from others. Output: the plan of an earlier call of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from cellgen.runtime.call.owner import KEPT_PLANS

Plan = TypeVar("Plan")


class KeptPlans(Generic[Plan]):
    """Plans by the kind of call; where there are many, the one unused longest goes.

    Every access is one operation of a dictionary: threads and handlers of signals need no lock.
    """

    def __init__(self) -> None:
        self._kept: dict[object, _Kept[Plan]] = {}
        self._calls = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, kind: object) -> Plan | None:
        """The plan of an earlier call of a kind."""
        with suppress(TypeError):  # of a kind that cannot be told from others
            kept = self._kept.get(kind)
            if kept is not None:
                kept.used = self._calls = self._calls + 1
                return kept.plan
        return None

    def keep(self, kind: object, plan: Plan) -> None:
        """Keep a plan; make room for it."""
        while len(self._kept) >= KEPT_PLANS:
            oldest = min(list(self._kept.items()), key=lambda item: item[1].used)
            self._kept.pop(oldest[0], None)
        self._calls += 1
        with suppress(TypeError):
            self._kept[kind] = _Kept(plan, self._calls)


@dataclass
class _Kept(Generic[Plan]):
    """A plan, and the number of the call that used it last."""

    plan: Plan
    used: int

"""How to make calls on a device that are of one kind, and the kinds that a function keeps.

Input: a call that passed every check. Output: ``DevicePlan``: what is left to do are the results,
the addresses and the launch.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cellgen.runtime.call.plan import KEPT_PLANS
from cellgen.runtime.device.launching import LaunchPlan
from cellgen.runtime.options import Options


@dataclass(frozen=True)
class DevicePlan:
    """How to make a call whose arrays have known shapes, strides, types and devices.

    ``fresh`` are the results to make, of ``shapes``; ``launch`` is None where nothing is computed.
    ``tier`` is its number.
    ``options`` are what the call states, but for arrays.
    """

    dims: dict[str, int]
    element: str
    itemsize: int
    device: int
    fresh: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    launch: LaunchPlan | None
    tier: int
    options: Options


class KeptPlans:
    """Plans by the kind of call; where there are many, the one unused longest goes.

    Every access is one operation of a dictionary: threads and handlers of signals need no lock.
    """

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}
        self._calls = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, kind: object) -> DevicePlan | None:
        """The plan of an earlier call of a kind."""
        with suppress(TypeError):  # of a kind that cannot be told from others
            kept = self._kept.get(kind)
            if kept is not None:
                kept.used = self._calls = self._calls + 1
                return kept.plan
        return None

    def keep(self, kind: object, plan: DevicePlan) -> None:
        """Keep a plan; make room for it."""
        while len(self._kept) >= KEPT_PLANS:
            oldest = min(list(self._kept.items()), key=lambda item: item[1].used)
            self._kept.pop(oldest[0], None)
        self._calls += 1
        with suppress(TypeError):
            self._kept[kind] = _Kept(plan, self._calls)


@dataclass
class _Kept:
    """A plan, and the number of the call that used it last."""

    plan: DevicePlan
    used: int

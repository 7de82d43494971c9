"""How to make calls on a device that are of one kind.

Input: a call that passed every check. Output: ``DevicePlan``: what is left to do are the results,
the addresses and the launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.runtime.device.launching import LaunchPlan
from cellgen.runtime.options import Options


@dataclass(frozen=True)
class DevicePlan:
    """How to make a call whose arrays have known shapes, strides, types and devices.

    ``fresh`` are the results to make, of ``shapes``; ``launch`` is None where nothing is computed.
    ``options`` are what it states, but for arrays.
    """

    dims: dict[str, int]
    element: str
    itemsize: int
    device: int
    fresh: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    launch: LaunchPlan | None
    options: Options

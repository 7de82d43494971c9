"""Check a kernel that keeps memories in registers: what is read is there, and threads meet.

Input: ``DeviceTimePlan``. Three steps are followed, stage by stage. What a step reads has been
read, formed or left before; threads meet between a write to shared memory and what another thread
reads or writes there; the kernel stores all that the launches of a step leave for what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cellgen.schedule.device.accesses import accesses
from cellgen.schedule.device.held import (
    HeldLoop,
    HeldRenewed,
    HeldShares,
    HeldStage,
    HeldSum,
    HeldTaken,
    HeldTier,
    Origin,
    SharedAccess,
)
from cellgen.schedule.device.hold import lasts
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.schedule import Buffer

STEPS = 3


def held_faults(plan: DeviceTimePlan) -> Iterator[str]:
    """Say what a kernel reads that is not there, where threads have to meet, what it leaves out."""
    tier = plan.tier.held
    if tier is None:
        return
    seen = _Followed(tier)
    for _ in range(STEPS):
        seen.begin()
        for stage in tier.stages:
            yield from seen.follow(stage)
    for launched in plan.steps:
        for access in accesses(launched):
            if access.writes and lasts(access.rows) and access.value not in seen.stored:
                yield f"a kernel over all steps does not store {access.value} in {access.rows}"


@dataclass
class _Followed:
    """What is there while the stages of a kernel are followed.

    ``shares`` wait to be added up, ``left`` is for the next step.
    """

    tier: HeldTier
    there: set[Buffer] = field(default_factory=set)
    shares: set[Buffer] = field(default_factory=set)
    since: list[SharedAccess] = field(default_factory=list)
    stored: set[object] = field(default_factory=set)
    left: set[Buffer] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = {state.read for state in self.tier.states}

    def begin(self) -> None:
        """Begin a step: it has what is read once, and what the step before has left."""
        kept = self.tier.of(Origin.CALL, Origin.CONSTANT)
        self.there = {array.buffer for array in kept} | self.left
        self.left = set()

    def follow(self, stage: HeldStage) -> Iterator[str]:
        """Follow a stage: its reads, then what it forms."""
        touched = list(self.tier.touched(stage))
        if stage.barrier:
            self.since = []
        for access in touched:
            if any(access.races(other) for other in self.since):
                verb = "writes" if access.writes else "reads"
                yield (
                    f"`{str(stage)[:60]}` {verb} {access.buffer.name} in shared memory, "
                    f"which another thread touches, without a barrier between"
                )
        self.since += touched
        missing = [buffer.name for buffer in self._read(stage) if buffer not in self.there]
        missing += [s.buffer.name for s in self._added(stage) if s.buffer not in self.shares]
        if missing:
            yield f"`{str(stage)[:60]}` reads {', '.join(missing)}, which is not there"
        self._form(stage)

    def _read(self, stage: HeldStage) -> Iterator[Buffer]:
        if isinstance(stage, HeldLoop):
            yield from (load.buffer for load in stage.loads)
        elif isinstance(stage, HeldRenewed):
            yield from (state.new for state in stage.states)
        elif isinstance(stage, HeldTaken):
            taken = list(stage.buffers)
            for buffer in taken:
                other = self.tier.arrays[buffer].follows
                if other in taken and taken.index(other) < taken.index(buffer):
                    yield buffer

    def _added(self, stage: HeldStage) -> Iterator[HeldSum]:
        if isinstance(stage, HeldShares):
            yield from stage.sums

    def _form(self, stage: HeldStage) -> None:
        if isinstance(stage, HeldTaken):
            self.there |= set(stage.buffers)
            places = [self.tier.arrays[buffer].place for buffer in stage.buffers]
            kept = zip(stage.buffers, places, strict=True)
            self.stored |= {b.value for b, place in kept if place is not None and place.kept}
        elif isinstance(stage, HeldRenewed):
            self.left = {state.read for state in stage.states}
        elif isinstance(stage, HeldShares):
            self._formed(total.buffer for total in stage.sums)
        else:
            whole = [total.buffer for total in stage.sums if total not in stage.shares]
            self._formed([*stage.formed.values(), *whole])
            self.shares |= {total.buffer for total in stage.shares}

    def _formed(self, buffers: Iterable[Buffer]) -> None:
        for buffer in buffers:
            array = self.tier.arrays[buffer]
            self.there |= {buffer} if array.is_held else set()
            if array.place is not None:
                self.stored.add(buffer.value)

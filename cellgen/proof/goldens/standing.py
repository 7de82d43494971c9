"""Set float32 errors against the peers' own, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cellgen.proof.goldens.files import peer_worst
from cellgen.proof.goldens.measure import Measurement

FLOAT32_WORST = 2.0
"""Decision "Bars": the worst case is at most twice the peer's own worst float32 error."""

FLOAT32_MEDIAN = 1.0
"""Decision "Bars": the median over a group's arrays is not above the peer's figure."""


@dataclass(frozen=True)
class Standing:
    """One peer's float32 row against the decision "Bars", as pairs (figure, bar).

    The bar of the worst case is twice the peer's own worst error, that of the median is that error.
    """

    group: str
    arrays: int
    worst_nrm: tuple[float, float]
    worst_elt: tuple[float, float]
    median_nrm: tuple[float, float]
    median_elt: tuple[float, float]

    @property
    def pairs(self) -> Mapping[str, tuple[float, float]]:
        """The pairs by name."""
        return {
            "worst nrm": self.worst_nrm,
            "worst elt": self.worst_elt,
            "median nrm": self.median_nrm,
            "median elt": self.median_elt,
        }


def standings(measurements: Sequence[Measurement]) -> list[Standing]:
    """Set float32 measurements, group by group, against the decision "Bars"."""
    groups: dict[str, list[Measurement]] = {}
    for item in measurements:
        if item.peer_nrm is not None:
            groups.setdefault(item.group, []).append(item)
    return [_standing(group, items) for group, items in groups.items()]


def _standing(group: str, items: Sequence[Measurement]) -> Standing:
    peer_nrm, peer_elt = peer_worst()[group]
    nrm, elt = [item.nrm for item in items], [item.elt for item in items]
    return Standing(
        group,
        len(items),
        (max(nrm), FLOAT32_WORST * peer_nrm),
        (max(elt), FLOAT32_WORST * peer_elt),
        (median(nrm), FLOAT32_MEDIAN * peer_nrm),
        (median(elt), FLOAT32_MEDIAN * peer_elt),
    )

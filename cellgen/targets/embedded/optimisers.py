"""What a training step keeps to change weights by: SGD with momentum, or Adam.

Input: the name of an optimiser. Output: its rule in words, the arrays and numbers that it keeps,
and the call that updates one array. ``templates/embedded/optimisers.j2`` spells the updates, by the
same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimiser:
    """One rule.

    ``moments`` are arrays that are kept of every gradient, ``powers`` single numbers, 1 at the
    beginning; ``factors`` is what the update of an array takes beside its moments.
    """

    rule: str
    moments: tuple[str, ...]
    powers: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()

    def call(self, export: str, name: str, length: str) -> str:
        """Spell the update of one array of an export's weights."""
        moments = "".join(f"training->{moment}.{name}, " for moment in self.moments)
        own = ", ".join([length, *self.factors, "rate"])
        return f"{export}_update(weights->{name}, training->gradients.{name}, {moments}{own});"


OPTIMISERS = {
    "sgd": Optimiser(
        "SGD with momentum: velocity = MOMENTUM velocity + gradient, "
        "weight = weight - rate velocity.",
        moments=("velocity",),
    ),
    "adam": Optimiser(
        "Adam (Kingma and Ba 2015, Algorithm 1).",
        moments=("mean", "square"),
        powers=("mean_power", "square_power"),
        factors=("mean_rest", "square_rest"),
    ),
}

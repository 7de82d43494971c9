"""Spell how a training step changes weights: SGD with momentum, or Adam.

Input: the name of an optimiser. Output: its rule in words, a C99 function for one array, and its
call. ``@`` stands for the type, ``#`` for the cell's prefix, and ``%`` ends a literal of the type.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimiser:
    """One rule.

    ``moments`` are kept of every gradient, ``powers`` are single numbers, 1 at the beginning; an
    update begins with ``begin``, which makes what each array is ``given``, and has ``body`` for an
    array.
    """

    rule: str
    constants: tuple[tuple[str, str], ...]
    moments: tuple[str, ...]
    powers: tuple[str, ...]
    given: tuple[str, ...]
    begin: tuple[str, ...]
    body: str

    def function(self, prefix: str, real: str) -> str:
        """Spell the constants and the update of one array."""
        lines = []
        for name, value in self.constants:
            lines += [f"#ifndef {prefix}_{name}", f"#define {prefix}_{name} {value}%", "#endif"]
        text = "\n".join(lines) + "\n\n" + self.body
        text = text.replace("@", real).replace("#_", f"{prefix}_")
        text = text.replace("%", "f" if real == "float" else "")
        return text.replace("sqrt(", "sqrtf(") if real == "float" else text

    def call(self, name: str, length: str) -> str:
        """Spell the update of one array of weights."""
        moments = "".join(f"training->{moment}.{name}, " for moment in self.moments)
        given = ", ".join([length, *self.given, "rate"])
        return f"update(weights->{name}, training->gradients.{name}, {moments}{given});"


OPTIMISERS = {
    "sgd": Optimiser(
        rule="SGD with momentum: velocity = MOMENTUM velocity + gradient, "
        "weight = weight - rate velocity.",
        constants=(("MOMENTUM", "0.9"),),
        moments=("velocity",),
        powers=(),
        given=(),
        begin=(),
        body="""\
static void update(@ *weight, const @ *gradient, @ *velocity, int count, @ rate)
{
    for (int each = 0; each < count; ++each) {
        velocity[each] = #_MOMENTUM * velocity[each] + gradient[each];
        weight[each] -= rate * velocity[each];
    }
}""",
    ),
    "adam": Optimiser(
        rule="Adam (Kingma and Ba 2015, Algorithm 1).",
        constants=(("BETA1", "0.9"), ("BETA2", "0.999"), ("EPSILON", "1e-8")),
        moments=("mean", "square"),
        powers=("mean_power", "square_power"),
        given=("mean_rest", "square_rest"),
        begin=(
            "training->mean_power[0] *= #_BETA1;",
            "training->square_power[0] *= #_BETA2;",
            "const @ mean_rest = 1 - training->mean_power[0];",
            "const @ square_rest = 1 - training->square_power[0];",
        ),
        body="""\
static void update(@ *weight, const @ *gradient, @ *mean, @ *square, int count, @ mean_rest,
    @ square_rest, @ rate)
{
    for (int each = 0; each < count; ++each) {
        mean[each] = #_BETA1 * mean[each] + (1 - #_BETA1) * gradient[each];
        square[each] = #_BETA2 * square[each] + (1 - #_BETA2) * gradient[each] * gradient[each];
        weight[each] -= rate * (mean[each] / mean_rest)
            / (sqrt(square[each] / square_rest) + #_EPSILON);
    }
}""",
    ),
}

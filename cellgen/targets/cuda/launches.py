"""Spell the loop over steps: all in one launch where the host chooses so, else one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.tiers import TierContext, steps_of


def indented(lines: Iterable[str]) -> list[str]:
    """Indent lines by one level."""
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def loop_over_steps(
    tier: TierContext | None, backward: bool, body: Sequence[str], words: DeviceDialect
) -> list[str]:
    """All steps in one launch where the host chooses so, else one after the other."""
    loop = [f"for ({steps_of(backward)}) {{", *indented(body), "}"]
    if tier is None:
        return loop
    name = words.of_type(tier.name)
    if tier.kind == "stream":
        launch = f"{words.launch_stream}(&run, {name}, nB, {tier.widest[0]}, {tier.call});"
        chosen = "!guarded && args->tier != CELLGEN_TIER_STEPS"
        head = [f"if ({chosen}) {{ /* {_WHOLE[tier.kind]} */", f"    {launch}"]
        return [*head, "} else {", *indented(loop), "}"]
    widest = "0"
    for units in tier.widest:
        widest = f"cellgen_larger({widest}, {units})"
    heads = tier.heads or "1"
    sizes = f"nT, nB, {heads}, {widest}, {tier.shared}, {tier.fragments}, {len(tier.items)}"
    by_fragment, by_thread = (
        f"    {words.launch_blocks}(&run, ({name}<{way}>), blocks, {tier.call});"
        for way in (words.by_fragment, words.by_thread)
    )
    return [
        "cellgen_blocks blocks;",
        f"const int way = guarded ? CELLGEN_ONE_BY_ONE : cellgen_choose_blocks<store>("
        f"&run, args->tier, {sizes}, &blocks);",
        f"if (way == CELLGEN_BY_FRAGMENT) {{ /* {_WHOLE['head' if tier.heads else 'block']},"
        " with matrix units */",
        by_fragment,
        "} else if (way == CELLGEN_BY_THREAD) { /* without them */",
        by_thread,
        "} else {",
        *indented(loop),
        "}",
    ]


_WHOLE = {
    "stream": "a thread takes a unit through all steps",
    "block": "a block takes rows through all steps",
    "head": "a block takes rows of one head through all steps",
}

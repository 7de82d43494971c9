"""Spell the loop over steps: all in one launch where the host chooses so, else one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.held import HeldContext
from cellgen.targets.cuda.tiers import TierContext, steps_of


def indented(lines: Iterable[str]) -> list[str]:
    """Indent lines by one level."""
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def loop_over_steps(
    tier: TierContext | HeldContext | None,
    backward: bool,
    body: Sequence[str],
    words: DeviceDialect,
) -> list[str]:
    """All steps in one launch where the host chooses so, else one after the other."""
    loop = [f"for ({steps_of(backward)}) {{", *indented(body), "}"]
    if isinstance(tier, HeldContext):
        return _held_or(tier, loop, words)
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


def _held_or(tier: HeldContext, loop: Sequence[str], words: DeviceDialect) -> list[str]:
    """In one launch where a head fits the registers of a block and every step is valid."""
    longest = "0"
    for length in tier.lengths:
        longest = f"cellgen_larger({longest}, {length})"
    bytes_of = f"({len(tier.vectors)}, {len(tier.shares)}, sizeof(real))"
    large = f"cellgen_held_bytes<cellgen_large<real>>{bytes_of}"
    sizes = f"nT, nB, {tier.heads}, {', '.join(tier.axes)}, {longest}, {large}"
    launches = [
        f"    {words.launch_held}(&run, ({words.of_type(tier.name)}<{frame}>), {frame}, nB, "
        f"{tier.heads}, cellgen_held_bytes<{frame}>{bytes_of}, {tier.call});"
        for frame in ("cellgen_small<real>", "cellgen_large<real>")
    ]
    return [
        f"const int held = guarded ? CELLGEN_NOT_HELD : cellgen_choose_held<real>("
        f"&run, args->tier, {sizes});",
        "if (held == CELLGEN_HELD_SMALL) { /* a block keeps a head of a row in registers */",
        launches[0],
        "} else if (held == CELLGEN_HELD_LARGE) {",
        launches[1],
        "} else {",
        *indented(loop),
        "}",
    ]


_WHOLE = {
    "stream": "a thread takes a unit through all steps",
    "block": "a block takes rows through all steps",
    "head": "a block takes rows of one head through all steps",
}

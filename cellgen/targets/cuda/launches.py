"""Spell the loop over steps: all in one launch where the host chooses so, else one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.held import HeldContext
from cellgen.targets.cuda.persist import PersistentContext
from cellgen.targets.cuda.tiers import TierContext, steps_of


def indented(lines: Iterable[str]) -> list[str]:
    """Indent lines by one level."""
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def sizes_in_blocks(tier: TierContext) -> str:
    """What the model of kernels in blocks asks of a layer, as C arguments."""
    widest = "0"
    for units in tier.widest:
        widest = f"cellgen_larger({widest}, {units})"
    heads = tier.heads or "1"
    return f"nT, nB, {heads}, {widest}, {tier.shared}, {tier.fragments}, {len(tier.items)}"


def ns_apart(tier: TierContext | None) -> str:
    """C text: nanoseconds of a step where blocks meet nobody."""
    if tier is None or tier.kind != "block":
        return "CELLGEN_NS_NEVER"
    return f"cellgen_ns_apart<store>({sizes_in_blocks(tier)})"


def staying(
    persistent: PersistentContext | None, otherwise: Sequence[str], words: DeviceDialect
) -> list[str]:
    """All steps in one launch whose blocks are there together, where the host chose so."""
    refused = (
        "if (cellgen_asks_to_stay(args->tier) && nT > 0 && nB > 0) "
        "run.error = CELLGEN_TIER_DOES_NOT_FIT;"
    )
    if persistent is None:
        return [refused, *otherwise]
    name = words.of_type(persistent.name)
    heads = persistent.heads or "1"
    emptied = [
        f"    cg_empty_channel(&run, nT + 1, nB, {heads}, {c.units}, {c.memory});"
        for c in persistent.channels
    ]
    emptied += [
        f"    cg_empty_sums(&run, nT, nB, {sums.units}, {sums.memory});" for sums in persistent.sums
    ]
    launched = [
        f"        CELLGEN_BY_PRODUCTS({macro}, &run, {name}, {way}, together, {persistent.call});"
        for macro, way in ((words.launch_in_cluster, "true"), (words.launch_together, "false"))
    ]
    return [
        "bool stays = (how & CELLGEN_STAYS) != 0;",
        "#if CELLGEN_PRECISION == 32",
        "int64_t lacks = 0; /* nothing, or nothing stays */",
        "cellgen_together together = {};",
        f"stays = stays && {words.of_type(persistent.name + '_stays')}"
        f"({', '.join(persistent.dims)}, given->tier, &together, &lacks);",
        "if (stays) { /* blocks take rows through all steps together */",
        *emptied,
        "    if (together.cluster > 1)",
        launched[0],
        "    else",
        launched[1],
        *(f"    {line}" for line in persistent.after),
        "    if (!cellgen_asks_to_stay(args->tier)) stays = !cellgen_was_refused(&run);",
        "}",
        "#else",
        f"(void){', (void)'.join(persistent.exchanged)};",
        "#endif",
        "if (!stays) {",
        f"    {refused}",
        *indented(otherwise),
        "}",
    ]


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
    sizes = sizes_in_blocks(tier)
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

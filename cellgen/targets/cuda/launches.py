"""Spell the loop over steps: all in one launch where the host chooses so, else one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellgen.targets.cuda.tiers import (
    TierChoice,
)


def indented(lines: Iterable[str]) -> list[str]:
    """Indent lines by one level."""
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def loop_over_steps(choice: TierChoice, steps: str, body: Sequence[str]) -> list[str]:
    """All steps in one launch where the host chooses so, else one after the other."""
    loop = [f"for ({steps}) {{", *indented(body), "}"]
    tier = choice.kernel
    if tier is None:
        return loop
    if tier.kind == "stream":
        units = tier.widest[0]
        launch = f"CELLGEN_STREAM(&run, CELLGEN_CUDA_NAME({tier.name}), nB, {units}, {tier.call});"
        chosen = "!guarded && args->tier != CELLGEN_TIER_STEPS"
        head = [f"if ({chosen}) {{ /* {_WHOLE[tier.kind]} */"]
    else:
        widest = "0"
        for units in tier.widest:
            widest = f"cellgen_larger({widest}, {units})"
        heads = tier.heads or "1"
        sizes = f"nT, nB, {heads}, {widest}, {tier.shared}, {tier.fragments}, {len(tier.items)}"
        name = f"CELLGEN_CUDA_NAME({tier.name})"
        launch = f"CELLGEN_IN_BLOCKS(&run, ({name}<{{}}>), blocks, {tier.call});"
        head = [
            "cellgen_blocks blocks;",
            f"const int way = guarded ? CELLGEN_ONE_BY_ONE : cellgen_choose_blocks<store>("
            f"&run, args->tier, {sizes}, &blocks);",
            f"if (way == CELLGEN_BY_FRAGMENT) {{ /* {_WHOLE['head' if tier.heads else 'block']},"
            " with matrix units */",
            "    " + launch.format("cellgen_matrix_units<store>::way"),
            "} else if (way == CELLGEN_BY_THREAD) { /* without them */",
        ]
        launch = launch.format("cellgen_by_thread")
    return [*head, f"    {launch}", "} else {", *indented(loop), "}"]


_WHOLE = {
    "stream": "a thread takes a unit through all steps",
    "block": "a block takes rows through all steps",
    "head": "a block takes rows of one head through all steps",
}

"""Explain which configurations a form over time has on a device, and where the choice comes from.

Input: a cell, lengths of its dimensions if they are known. Output: a section of an explanation.
What a call chose on a device is read from the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from cellgen import api
from cellgen.language.cell import Cell, definition_of
from cellgen.runtime.build import cache
from cellgen.runtime.triton.kernel import TritonKernel, configuration_text, module_digest
from cellgen.targets.target import NotYet
from cellgen.targets.triton.passes import Passes, RowLaunch
from cellgen.targets.triton.plan import LayerPlan
from cellgen.targets.triton.source import passes_of
from cellgen.views.explanation import ChoiceRow, Section

TITLE = "form over time on a device: kernels of Triton"
TRIED = "the first call of its sizes on a device times them, and compares the best with the steps"
ALWAYS_FIRST = (
    "so it is with CELLGEN_TUNE=0 and torch.use_deterministic_algorithms(True), whatever is known"
)


def on_device_section(cell: type[Cell], sizes: Mapping[str, int]) -> Section:
    """The configurations of each layer; those of the lists that lengths ask for, if given."""
    passes = passes_of(definition_of(cell))
    if isinstance(passes, NotYet):
        return Section(TITLE, (ChoiceRow("none: torch's own operators", passes.reason),))
    rows = [*_scans(passes)]
    for memory in passes.memories:
        rows += _memory(memory, sizes)
    return Section(TITLE, (*rows, *_where_from(cell)))


def _scans(passes: Passes) -> Iterator[ChoiceRow]:
    kernels = [
        one.kernel for one in passes.forward if isinstance(one, RowLaunch) and not one.is_flat
    ]
    if kernels:
        many = len(passes.rows.blocks) * len(passes.rows.programs)
        what = "units of a lane, warps, steps loaded ahead, segments of the steps"
        yield ChoiceRow(f"{', '.join(kernels)}: up to {many} configurations: {what}", TRIED)


def _memory(memory: LayerPlan, sizes: Mapping[str, int]) -> Iterator[ChoiceRow]:
    """Of a memory the configurations of each list, or of that which lengths ask for."""
    every = [(kernel, one.most) for kernel, of in memory.configurations.items() for one in of]
    lists = sorted({most for _, most in every})
    state = next(iter(memory.configurations)).rpartition("_")[0]
    axes = (*memory.sizes["K"], *memory.sizes["V"])
    if all(dim in sizes for dim in axes):
        widest = max(math.prod(sizes[dim] for dim in memory.sizes[axis]) for axis in "KV")
        lists = [most for most in lists if widest <= most][:1]
    else:
        widest = lists[-1] + 1
    counts = [f"{[of for _, of in every].count(most)} up to {most}" for most in lists]
    if counts:
        kernels = f"{len(memory.configurations)} kernels: steps of a chunk, blocks, warps, stages"
        listed = f"by keys and values, {', '.join(counts)}"
        yield ChoiceRow(f"{state}: configurations {listed}, of {kernels}", TRIED)
    greatest = max(most for _, most in every)
    if widest > greatest:
        yield ChoiceRow(
            f"{state}, more than {greatest} keys or values: one configuration of small blocks",
            "it is not tuned",
        )


def _where_from(cell: type[Cell]) -> Iterator[ChoiceRow]:
    """What was chosen on devices, or that nothing was."""
    chosen = dict.fromkeys(_remembered(cell))
    for device, dtype, text in chosen:
        yield ChoiceRow(f"on {device}, {dtype}: {text}", "timed there and remembered")
    if not chosen:
        yield ChoiceRow("taken until then: the first of each list", ALWAYS_FIRST)


def _remembered(cell: type[Cell]) -> Iterator[tuple[str, str, str]]:
    """Devices, types and choices of a cell's kernels as they are now, by what a call kept."""
    name, own = definition_of(cell).name, ""
    for facts in cache.recalled("chosen-"):
        match facts:
            case {
                "cell": str(of),
                "module": module,
                "device": device,
                "dtype": dtype,
                "choices": [{"blocks": dict(blocks), "ms": ms, "note": note}, *_],
            } if of == name:
                own = own or _digest(cell)
                if module == own:
                    yield str(device), str(dtype), configuration_text(blocks, ms, note)


def _digest(cell: type[Cell]) -> str:
    """What tells the module of a cell from others."""
    kernel = api.compile(cell, "triton")
    assert isinstance(kernel, TritonKernel)
    return module_digest(kernel.build().path)

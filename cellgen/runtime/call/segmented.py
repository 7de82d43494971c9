"""Make a call of ``sequence_forward`` in segments of time, see ``segments``.

Input: the arguments and options of a call. Output: its results, which say how it went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cellgen.runtime.call.arguments import take_out
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared
from cellgen.runtime.call.narrow import in_float32
from cellgen.runtime.call.over_time import TimeFunction, qualname
from cellgen.runtime.call.segments import Segmentation, WholeCall, in_segments
from cellgen.runtime.call.settings import (
    read_flags,
    read_lengths,
    require_float32,
    require_forward,
)
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.host.threads import team_size
from cellgen.runtime.options import Options, with_tables
from cellgen.runtime.results import Array, InSegments, Results


@named_in_memory_errors(qualname)
def call_in_segments(
    function: TimeFunction,
    arguments: dict[str, object],
    out: Out,
    options: Options,
    threads: int | None,
    cut: Segmentation,
    *,
    save: bool,
) -> Results:
    """Make a call whose segments of time run side by side.

    Raises ArgumentError, BuildError, MemoryError.
    """
    name, outputs = function.__qualname__, function._outputs
    targets = {} if out is None else take_out(name, function._fields, out)
    if save:
        outputs.refuse(targets, options)
    formed = outputs.when_saving(options) if save else options
    timed = {item.name for item in function.function.arguments if item.over_time}
    wide, written, round_all = in_float32(
        name, arguments, targets, timed | outputs.with_steps(formed)
    )
    scalars = function._runs.scalars(arguments)
    checked = function._check(dict(wide), written, formed)
    refuse_shared(name, arguments, targets)
    team_size(threads, name)  # what no step is run with is refused all the same
    require_float32(name, formed.products, checked.call.dtype)
    if save:
        require_forward(name, formed.products, save=save)
    sizes = checked.call.sizes
    steps, rows = sizes["T"], sizes["B"]
    fresh = outputs.make(checked.call, formed, checked.results, save=save)
    results = {**fresh, **checked.results}
    plain = replace(with_tables(formed), batch_first=False)

    def run(
        arguments: dict[str, Any], results: dict[str, Array], options: Options, *, keep: bool
    ) -> Mapping[str, Array | None]:
        return function._run(arguments, results, options, threads, save=keep)[0]

    call = WholeCall(
        function.function,
        checked.arguments,
        dict(scalars),
        plain,
        read_lengths(name, options.lengths, steps, rows),
        read_flags(name, "reset", options, steps, rows),
        {n: a for n, a in results.items() if a is not None},
        run,
        save,
        (steps, rows),
        outputs.in_full(formed),
        outputs.ends_alone(plain),
    )
    ran = in_segments(call, cut)
    dims = checked.call.dims
    kept = function._runs.describe(dims, options, scalars, copied=True) if save else None
    final = round_all(outputs.as_called(results, formed))
    return InSegments.of(function._named(final, kept, options), ran)

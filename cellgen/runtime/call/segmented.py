"""Make a call of ``sequence_forward`` in segments of time, see ``segments``.

Input: the arguments and options of a call. Output: its results, which say how it went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cellgen.runtime.call.arguments import take_out
from cellgen.runtime.call.function import Out
from cellgen.runtime.call.layout import refuse_shared, swap_time_and_batch
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
    if save and out is not None:
        outputs.refuse(take_out(name, function._fields, out), options)
    scalars = function._runs.scalars(arguments)
    formed = outputs.when_saving(options) if save else options
    checked = function._check(dict(arguments), out, formed)
    if checked.results:
        refuse_shared(name, checked.arguments, checked.results)
    team_size(threads, name)  # what no step is run with is refused all the same
    require_float32(name, formed.products, checked.plan.dtype)
    if save:
        require_forward(name, formed.products, save=save)
    sizes = function._dims(checked.plan)
    steps, rows = sizes["T"], sizes["B"]
    results, at_end = function._calls.make_results(checked.plan, formed, save=save)
    results |= checked.results
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
        {n: a for n, a in {**results, **at_end}.items() if a is not None},
        run,
        save,
        (steps, rows),
        outputs.in_full(formed),
        outputs.ends_alone(plain),
    )
    ran = in_segments(call, cut)
    if options.batch_first:
        results = swap_time_and_batch(function._calls.over_time, results)
    kept = None
    if save:
        kept = function._runs.describe(checked.plan.dims, options, scalars, copied=True)
    return InSegments.of(function._named({**results, **at_end}, kept, options), ran)

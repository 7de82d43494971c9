"""The programs over time of a cell that runs alone, and of one that trains its weights.

Input: ``SequencePrograms``. Output: ``SequencePrograms`` that form less: nothing is saved, or no
gradient but those of what learns. What the gradients of inputs and of initial states alone would
need is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cellgen.language.value import Role, Value
from cellgen.program.over_time import SequencePrograms


def learning(programs: SequencePrograms) -> tuple[Value, ...]:
    """What learns: weights and biases, then scalars whose gradients were asked for."""
    definition, arguments = programs.definition, programs.arguments
    learned = [v for v in definition.learning(Role.WEIGHT, Role.BIAS) if v in arguments]
    scalars = (v for v in definition.requested if v in arguments and not v.is_batched)
    return (*learned, *scalars)


def running(programs: SequencePrograms) -> SequencePrograms:
    """The programs of a cell that runs: a step saves nothing."""
    results = _distinct(programs.outputs, (link.next for link in programs.links))
    return replace(programs, forward=programs.forward.restrict("step", results, ()), saved=())


def training(programs: SequencePrograms) -> SequencePrograms:
    """The programs of a cell that trains: the gradients of what learns, and what they need."""
    gradients_of = {value: programs.gradients_of[value] for value in learning(programs)}
    gradients, epilogue = set(gradients_of.values()), programs.epilogue
    late = set(epilogue.results) if epilogue else set[Value]()
    if epilogue is not None:
        wanted = [v for v in epilogue.results if v in gradients]
        epilogue = epilogue.restrict("epilogue", wanted, ()) if wanted else None
    read = epilogue.arguments if epilogue else ()
    formed = set(programs.deferred.results)
    first = _distinct(
        (v for v in gradients_of.values() if v not in late), (v for v in read if v in formed)
    )
    deferred = programs.deferred.restrict("deferred", first, ())
    kept = tuple(v for v in programs.kept if v in deferred.arguments)
    passed = (link.passed for link in programs.links)
    reverse = programs.reverse.restrict("reverse", _distinct(passed, kept), ())
    used = {*reverse.arguments, *deferred.arguments}
    saved = tuple(v for v in programs.saved if v in used)
    states = (link.next for link in programs.links)
    return replace(
        programs,
        forward=programs.forward.restrict(
            "forward", _distinct(programs.outputs, states, saved), ()
        ),
        reverse=reverse,
        deferred=deferred,
        saved=saved,
        kept=kept,
        gradients_of=gradients_of,
        contexts=(),
        epilogue=epilogue,
    )


def _distinct(*groups: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))

"""Plan a cell step by step, for targets that have a loop over time of their own.

Input: ``SequencePrograms``. Output: ``StreamedCell``: the planned functions of a step, each for all
rows of one step. What the gradients of inputs and of initial states alone would need is left out:
such targets train weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cellgen.language.value import Role, Value
from cellgen.program.over_time import SequencePrograms
from cellgen.program.ssa import Program
from cellgen.schedule.schedule import PlannedFunction
from cellgen.schedule.stages import plan_function


@dataclass(frozen=True)
class StreamedTraining:
    """The functions of a training step, in the order in which they run.

    ``forward`` also returns ``saved``, what ``reverse`` and ``deferred`` read of it; ``kept`` is
    what ``deferred`` reads of ``reverse``. ``deferred`` adds a step's share to the gradients and to
    ``totals``, of which ``epilogue`` makes gradients after the first step. ``gradients`` are in the
    order of the parameters that learn.
    """

    forward: PlannedFunction
    reverse: PlannedFunction
    deferred: PlannedFunction
    epilogue: PlannedFunction | None
    saved: tuple[Value, ...]
    kept: tuple[Value, ...]
    totals: tuple[Value, ...]
    gradients: tuple[Value, ...]


@dataclass(frozen=True)
class StreamedCell:
    """A cell as functions of one step.

    ``parameters`` are weights, biases and the scalars that learn; those of them that learn come in
    ``learning``. ``prologue`` runs once and forms ``fixed`` of weights alone.
    """

    programs: SequencePrograms
    parameters: tuple[Value, ...]
    learning: tuple[Value, ...]
    prologue: PlannedFunction | None
    step: PlannedFunction
    training: StreamedTraining | None

    @property
    def fixed(self) -> tuple[Value, ...]:
        """What the prologue forms."""
        return self.programs.fixed

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What a step is given beside parameters and states, in order of declaration."""
        taken = {*self.parameters, *self.programs.definition.states}
        return tuple(v for v in self.programs.given if v not in taken)

    @property
    def functions(self) -> tuple[PlannedFunction, ...]:
        """All functions, in the order in which a target writes them."""
        functions = [self.prologue, self.step]
        if self.training is not None:
            training = self.training
            functions += [training.forward, training.reverse, training.deferred, training.epilogue]
        return tuple(function for function in functions if function is not None)


def stream(programs: SequencePrograms, *, train: bool) -> StreamedCell:
    """Plan the functions of one step, those of training as well where they are wanted."""
    arguments, definition = programs.given, programs.definition
    parameters = [v for v in arguments if v.role in (Role.WEIGHT, Role.BIAS)]
    learning = [v for v in definition.learning(Role.WEIGHT, Role.BIAS) if v in arguments]
    scalars = [v for v in definition.requested if v in arguments and not v.is_batched]
    learning += scalars
    results = dict.fromkeys((*programs.outputs, *(link.next for link in programs.links)))
    step = programs.forward.restrict("step", results, ())
    return StreamedCell(
        programs,
        (*parameters, *(v for v in scalars if v not in parameters)),
        tuple(learning),
        _planned(programs.prologue, programs),
        _plan(step, programs),
        _training(programs, len(learning)) if train and learning else None,
    )


def _training(programs: SequencePrograms, count: int) -> StreamedTraining:
    """Plan what trains the weights, the last ``count`` of all gradients."""
    gradients = programs.gradients[-count:]
    epilogue, totals = programs.epilogue, programs.totals
    late = set(epilogue.results) if epilogue else set[Value]()
    if epilogue is not None:
        wanted = [v for v in epilogue.results if v in gradients]
        epilogue = epilogue.restrict("epilogue", wanted, ()) if wanted else None
    read = epilogue.arguments if epilogue else ()
    formed = set(programs.deferred.results)
    first = [v for v in gradients if v not in late]
    first += [v for v in read if v in formed and v not in first]
    deferred = programs.deferred.restrict("deferred", first, ())
    kept = tuple(v for v in programs.kept if v in deferred.arguments)
    passed = (link.passed for link in programs.links)
    reverse = programs.reverse.restrict("reverse", _distinct(passed, kept), ())
    used = {*reverse.arguments, *deferred.arguments}
    saved = tuple(v for v in programs.saved if v in used)
    states = (link.next for link in programs.links)
    forward = programs.forward.restrict("forward", _distinct(programs.outputs, states, saved), ())
    return StreamedTraining(
        _plan(forward, programs),
        _plan(reverse, programs),
        _plan(deferred, programs),
        _planned(epilogue, programs),
        saved,
        kept,
        tuple(v for v in totals if v in first),
        gradients,
    )


def _distinct(*groups: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(value for group in groups for value in group))


def _planned(program: Program | None, programs: SequencePrograms) -> PlannedFunction | None:
    return None if program is None else _plan(program, programs)


def _plan(program: Program, programs: SequencePrograms) -> PlannedFunction:
    function = plan_function(program, program.arguments, programs.definition.dims)
    function.verify()
    return function

"""Make the plain-data interface of a cell's kernel: names, shapes, what each function takes."""

from __future__ import annotations

from collections.abc import Mapping

from cellgen.language.cell import Definition
from cellgen.language.value import Role, T, Value, format_axis
from cellgen.program.branches import is_bounded
from cellgen.program.jumps import jump_of
from cellgen.program.over_time import unroll
from cellgen.program.recurrence import are_units_apart
from cellgen.runtime.abi import Argument, Interface
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import final_of, gradient_of
from cellgen.schedule import PlannedFunction, Schedule
from cellgen.schedule.on_request import on_request, on_request_of_step
from cellgen.schedule.operands import operands_alone
from cellgen.schedule.over_time import SequenceSchedule


def make_interface(
    schedule: Schedule, over_time: tuple[Signature, ...], definition: Definition
) -> Interface:
    """Return the plain-data interface of a cell's kernel."""
    sources = schedule.sources
    functions = tuple(_signature(each, definition, sources) for each in schedule.functions)
    directions = tuple(definition.directions.items())
    return Interface(
        definition.name,
        schedule.digest,
        (*functions, *over_time),
        directions,
        jump_of(definition),
        are_units_apart(unroll(definition)),
    )


_SUMMARIES = {
    "forward": "Compute one step.",
    "backward": "Compute the gradients that a step must return; upstream gradients left out are 0.",
    "input_gradients": "Compute the gradients, of parameters apart, that backward leaves out.",
    "weight_gradients": "Compute the gradients of all parameters that backward does not return.",
}


def _signature(
    function: PlannedFunction, definition: Definition, sources: Mapping[Value, Value]
) -> Signature:
    read = set(function.program.arguments)
    optional = set(function.program.optional)
    requested = {buffer.value for buffer in on_request_of_step(function)}
    carried = _carried(definition)
    arguments = tuple(
        Argument(
            name=str(value.name),
            shape=lengths_of(value),
            text=_text(_role(value, value in optional), _of(value, sources)),
            default=definition.defaults[str(value.name)] if value.role is Role.SCALAR else None,
            optional=value in optional,
            used=value in read,
            initial=definition.initial_of(value),
            role=_role(value, value in optional),
            of=_of(value, sources),
            follows=carried.get(str(value.name), ""),
        )
        for value in function.accepted
    )
    results = tuple(
        Argument(
            str(v.name),
            lengths_of(v),
            _text(_role(v, False), _of(v, sources)),
            optional=v in requested,
            role=_role(v, False),
            of=_of(v, sources),
            follows=carried.get(str(v.name), ""),
        )
        for v in function.program.results
    )
    return Signature(
        name=function.name,
        dims=tuple(str(dim) for dim in function.dims),
        arguments=arguments,
        results=results,
        workspace=function.needs_workspace,
        text=_SUMMARIES[function.name],
    )


def lengths_of(value: Value) -> tuple[str, ...]:
    """Lengths of a value's axes, as text."""
    return tuple(format_axis(axis) for axis in value.shape)


_ROLES = {Role.LOCAL: "output", Role.TEMPORARY: "intermediate"}
_TEXTS = {"upstream": "upstream gradient of ", "gradient": "gradient of "}


def _role(value: Value, optional: bool) -> str:
    """Say what a value of a step is."""
    if value.role is Role.ADJOINT:
        return "upstream" if optional else "gradient"
    return _ROLES.get(value.role) or value.role.value


def _of(value: Value, sources: Mapping[Value, Value]) -> str:
    """Name what an adjoint is the gradient of; nothing for others."""
    return str(sources[value].name) if value.role is Role.ADJOINT else ""


def _text(role: str, of: str) -> str:
    return _TEXTS.get(role, role) + of


def sequence_signatures(schedule: SequenceSchedule) -> tuple[Signature, ...]:
    """Return the plain-data interfaces of ``sequence_forward`` and ``sequence_backward``."""
    return _forward_signature(schedule), _backward_signature(schedule)


def _argument(  # noqa: PLR0913 - one argument an option
    value: Value,
    definition: Definition,
    *,
    name: str = "",
    over_time: bool = False,
    text: str = "",
    role: str = "",
    of: str = "",
    optional: bool = False,
    used: bool = True,
    saved: bool = False,
    bounded: bool = False,
    operand: bool = False,
) -> Argument:
    shape = tuple(format_axis(axis) for axis in value.shape)
    return Argument(
        name=name or str(value.name),
        shape=("T", *shape) if over_time else shape,
        text=text or _text(role or value.role.value, of),
        default=definition.defaults.get(str(value.name)) if value.role is Role.SCALAR else None,
        optional=optional,
        used=used,
        saved=saved,
        bounded=bounded,
        operand=operand,
        initial=0.0 if name else definition.initial_of(value),
        role=role or value.role.value,
        of=of,
        follows=_carried(definition).get(str(value.name), "") if role == "output" else "",
    )


def _carried(definition: Definition) -> dict[str, str]:
    """The state that each next value of one follows, by names."""
    return {str(definition.next_state(state).name): str(state.name) for state in definition.states}


def _dims(definition: Definition) -> tuple[str, ...]:
    return tuple(str(dim) for dim in (T, *definition.dims))


def _forward_signature(schedule: SequenceSchedule) -> Signature:
    programs, definition = schedule.programs, schedule.programs.definition
    bounded, operands = _bounded(schedule), operands_alone(schedule)
    arguments = [
        _argument(v, definition, over_time=v.role is Role.INPUT, operand=v in operands)
        for v in programs.arguments
    ]
    results = [_argument(v, definition, over_time=True, role="output") for v in programs.outputs]
    results += [
        _argument(
            link.next,
            definition,
            name=final_of(str(link.next.name)),
            text="final state",
            role="final",
            of=str(link.previous.name),
        )
        for link in programs.links
    ]
    results += [
        _argument(
            v,
            definition,
            over_time=True,
            text="saved for the backward pass",
            role="saved",
            saved=True,
            bounded=v in bounded,
        )
        for v in programs.saved
    ]
    return Signature(
        "sequence_forward",
        _dims(definition),
        tuple(arguments),
        tuple(results),
        True,
        "Compute all steps of a sequence.",
        team=True,
    )


def _given_to_backward(schedule: SequenceSchedule) -> list[Argument]:
    """What the forward function took and returned, then upstream gradients."""
    programs, definition = schedule.programs, schedule.programs.definition
    read, bounded = _read_by_backward(schedule), _bounded(schedule)
    operands = operands_alone(schedule)
    arguments = [
        _argument(
            v,
            definition,
            over_time=v.role is Role.INPUT,
            used=v in read,
            operand=v in operands,
        )
        for v in programs.arguments
    ]
    arguments += [
        _argument(v, definition, over_time=True, role="output", used=v in read)
        for v in programs.outputs
    ]
    arguments += [
        _argument(
            v,
            definition,
            over_time=True,
            text="saved by sequence_forward",
            role="saved",
            saved=True,
            bounded=v in bounded,
        )
        for v in programs.saved
    ]
    arguments += [
        _argument(a, definition, over_time=True, role="upstream", of=str(v.name), optional=True)
        for v, a in programs.upstream.items()
    ]
    arguments += [
        _argument(
            link.next,
            definition,
            name=gradient_of(final_of(str(link.next.name))),
            text="upstream gradient of the final state",
            role="upstream",
            of=final_of(str(link.next.name)),
            optional=True,
        )
        for link in programs.links
    ]
    return arguments


def _backward_signature(schedule: SequenceSchedule) -> Signature:
    programs, definition = schedule.programs, schedule.programs.definition
    requested = on_request(schedule)
    results = [
        _argument(
            v,
            definition,
            over_time=v.is_batched and v not in programs.contexts,
            role="gradient",
            of=str(of.name),
            optional=v in requested,
        )
        for of, v in programs.gradients_of.items()
    ]
    states = [
        _argument(
            link.passed,
            definition,
            role="gradient",
            of=str(link.previous.name),
            optional=link.passed in requested,
        )
        for link in programs.links
    ]
    inputs = [r for r in results if r.shape[:1] == ("T",)]
    others = [r for r in results if r.shape[:1] != ("T",)]
    return Signature(
        "sequence_backward",
        _dims(definition),
        tuple(_given_to_backward(schedule)),
        (*inputs, *states, *others),
        True,
        "Compute every gradient of a sequence; upstream gradients left out are 0.",
        team=True,
    )


def _bounded(schedule: SequenceSchedule) -> set[Value]:
    """Saved values that are bounded functions of others."""
    programs = schedule.programs
    defined = {s.target: s.expression for s in programs.forward.statements}
    return {v for v in programs.saved if v in defined and is_bounded(defined[v])}


def _read_by_backward(schedule: SequenceSchedule) -> set[Value]:
    """Forward values that the two backward parts find in memory."""
    programs = schedule.programs
    read = {
        v for program in programs.all if program is not programs.forward for v in program.arguments
    }
    following = {link.previous: link.next for link in programs.links}
    return (
        read | {following[v] for v in read if v in following} | {v for v in following if v in read}
    )

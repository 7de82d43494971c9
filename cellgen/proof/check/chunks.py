"""Prove programs of whole chunks: against the equations step by step, forward and every gradient.

Input: a ``Definition``. Output: rows. Sums are in another order than the step's, so that there is a
bar. Whole cells run over sequences that are no multiple of a chunk, with options of functions over
time; each memory also by itself, with gates of any strength in its streams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cellgen.errors import DerivationError
from cellgen.language.cell import Definition
from cellgen.language.value import Role, Value
from cellgen.program.chunks.layers import Decay, Memory
from cellgen.program.chunks.memory import FLOOR
from cellgen.program.chunks.programs import chunk_programs
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.program.interpret import STEP, axis_size, interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.proof.check.errors import raise_to
from cellgen.proof.check.points import (
    GRADIENT_SIZES,
    Arguments,
    Array,
    draw_arguments,
    drawn_normal,
)
from cellgen.proof.check.report import Row, judged
from cellgen.proof.chunk_layer import adjoint_of
from cellgen.proof.over_chunks import ChunkRun
from cellgen.proof.over_time import only_shown, run_steps, with_poison
from cellgen.runtime.options import NONE, Options

BAR = 1e-12
"""Float64: sums of some hundred terms in another order, and differences of sums of logarithms."""
LENGTH, STEPS, ROWS = 8, 21, 3
"""Steps of a chunk, of a sequence that is no multiple of it, and rows."""
LEAST = 1e-30
"""A gradient that is less is one of what a floored decay left: where decays are 0 it is 0."""
STRONGEST = 100.0
"""Gates are drawn down to exp(-100) a step."""
DRAWS = ((False, 1.0), (True, 1.0), (True, 0.25))
"""Whether arguments are positive (for logarithms and roots) and how large inputs are, by try.

Positive inputs of equal steps have no zeros beside them.
"""


@dataclass(frozen=True)
class ChunkCase:
    """One run of a cell: with options, the states that it starts from, and what inputs are."""

    name: str
    steps: int = STEPS
    options: Options = NONE
    is_initial: bool = False
    inputs: str = "drawn"
    exact: bool = False


def _options() -> tuple[Options, ...]:
    rng = np.random.default_rng(0)
    mask, reset = rng.random((STEPS, ROWS)) < 0.7, rng.random((STEPS, ROWS)) < 0.2
    lengths = np.array([STEPS, 0, STEPS - 9])
    return (
        Options(lengths, mask, reset),
        Options(lengths, mask, reset, reverse=True),
        Options(lengths, mask, reset, zero_output_for_mask=True, every=3),
        Options(lengths, last_only=True),
        Options(reset=reset, every=4, reverse=True),
    )


CASES = (
    ChunkCase("plain"),
    ChunkCase("plain", exact=True),
    ChunkCase("plain", steps=1),
    ChunkCase("plain", steps=2 * LENGTH, is_initial=True),
    *(ChunkCase("with options", options=options) for options in _options()),
    ChunkCase("of equal inputs and zeros", inputs="equal"),
)


def prove_chunks(definition: Definition, rng: np.random.Generator) -> list[Row]:
    """Compare chunks with steps; a cell without a form over time is left out, with the reason."""
    try:
        programs = chunk_programs(definition)
    except DerivationError as error:
        return [Row("chunks", None, BAR, "skipped", Exception.__str__(error))]
    rows = []
    for name in dict.fromkeys(case.name for case in CASES):
        forward, gradients = dict[str, float](), dict[str, float]()
        cases = [case for case in CASES if case.name == name]
        ways = (f"chunks {name}, forward", forward), (f"chunks {name}, gradients", gradients)
        draws = [_prove_case(definition, case, rng, forward, gradients) for case in cases]
        if not any(draws):
            why = "no drawn inputs give finite numbers step by step: nothing was compared"
            rows += [Row(way, None, BAR, "skipped", why) for way, _ in ways]
            continue
        note = f"T = {STEPS}, chunks of {LENGTH}"
        if name == "with options":
            note += "; lengths, mask, reset, reverse, every, last_only; NaN in masked steps"
        note += _draws_note(draws)
        rows += [judged(way, errors, BAR, note) for way, errors in ways]
    for chunk in programs.layers:
        if isinstance(chunk.layer, Memory):
            rows.append(_prove_memory(definition, chunk, chunk.layer, rng))
    return rows


# --- whole cells ---------------------------------------------------------------------------------


def _draws_note(draws: Sequence[tuple[bool, float] | None]) -> str:
    """What was drawn otherwise, so that steps give finite numbers, and what was left out."""
    positive, none = sum(bool(draw and draw[0]) for draw in draws), draws.count(None)
    note = f"; {positive} of {len(draws)} runs with positive arguments" if positive else ""
    return note + (f"; {none} of {len(draws)} left out: no finite numbers" if none else "")


def _prove_case(
    definition: Definition,
    case: ChunkCase,
    rng: np.random.Generator,
    forward: dict[str, float],
    gradients: dict[str, float],
) -> tuple[bool, float] | None:
    """Compare one run; which of ``DRAWS`` gives finite numbers step by step, None where none."""
    sizes = {str(d): n for d, n in zip(definition.dims, GRADIENT_SIZES, strict=False)}
    sizes |= {"B": ROWS, "T": case.steps}
    for draw in DRAWS:
        arguments = _arguments(definition, case, sizes, rng, *draw)
        steps = run_steps(definition, arguments, sizes, case.options)
        if all(np.isfinite(array).all() for array in steps.results.values()):
            break
    else:
        return None
    run = ChunkRun(definition, arguments, sizes, case.options, LENGTH, exact=case.exact)
    chunks = run.forward()
    for name, array in chunks.results.items():
        raise_to(forward, name, _error(array, steps.results[name]))
    for name, array in steps.at_end.items():
        raise_to(forward, f"{name} at the end", _error(chunks.at_end[name], array))
    upstream: Arguments = {}
    for name, array in chunks.results.items():
        is_timed = name in chunks.outputs
        shape = (case.steps, *array.shape[1:]) if is_timed else array.shape
        upstream[f"d_{name}"] = np.asarray(rng.standard_normal(shape))
    timed = [f"d_{name}" for name in chunks.outputs]
    above = only_shown(upstream, timed, case.options)
    poisoned = with_poison(upstream, timed, case.options) if timed else upstream
    formed = run.backward(only_shown(poisoned, timed, case.options))
    for name, error in _gradient_errors(definition, case, arguments, sizes, above, formed, rng):
        raise_to(gradients, f"d_{name}", error)
    return draw


def _arguments(
    definition: Definition,
    case: ChunkCase,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    positive: bool,
    scale: float,
) -> Arguments:
    arguments = draw_arguments(definition, sizes, rng, 1.0, positive)
    for memory in chunk_programs(definition).form.memories:
        for value in memory.positive:
            arguments[str(value)] = np.abs(arguments[str(value)])
    for value in definition.with_role(Role.SCALAR):
        del arguments[str(value)]
    steps, valid = case.steps, _valid_steps(case)
    for value in definition.with_role(Role.INPUT):
        drawn = np.array([drawn_normal(rng, value, sizes, scale) for _ in range(steps)])
        drawn = np.abs(drawn) if positive else drawn
        if case.inputs == "equal":
            drawn[:] = drawn[0]
            if not positive:
                drawn[steps // 2 :, 1:] = 0
        present = valid.reshape(steps, ROWS, *(1,) * (drawn.ndim - 2))
        arguments[str(value)] = np.where(present, drawn, np.nan)
    if case.is_initial:
        for state in definition.states:
            shape = shape_sizes(state, sizes)
            arguments[str(state)] = np.full(shape, definition.initial_of(state))
    return arguments


def _valid_steps(case: ChunkCase) -> Array:
    valid = np.ones((case.steps, ROWS), bool)
    if case.options.mask is not None:
        valid = valid & np.asarray(case.options.mask)
    if case.options.lengths is not None:
        valid = valid & (np.arange(case.steps)[:, None] < np.asarray(case.options.lengths))
    return valid


def _gradient_errors(
    definition: Definition,
    case: ChunkCase,
    arguments: Arguments,
    sizes: Mapping[str, int],
    above: Mapping[str, Array],
    formed: Mapping[str, Array],
    rng: np.random.Generator,
) -> list[tuple[str, float]]:
    """Gradients of all that learns and all that is formed, along a direction, by complex step."""
    learning = [str(v) for v in definition.declared if v not in definition.fixed]
    points = {**{n: np.asarray(number) for n, number in definition.defaults.items()}, **arguments}
    errors = []
    for name in dict.fromkeys((*learning, *formed)):
        if np.isinf(points[name]).any():
            continue  # a state that starts from an infinity moves nothing
        direction = np.asarray(rng.standard_normal(points[name].shape))
        moved = {**arguments, name: points[name] + 1j * STEP * direction}
        results = run_steps(definition, moved, sizes, case.options).results
        loss = sum(np.sum(results[n.removeprefix("d_")] * d) for n, d in above.items())
        if name in formed:
            errors.append((name, _of_direction(formed[name] * direction, loss)))
        else:
            errors.append((name, math.inf if np.imag(loss) else 0.0))
    return errors


def _of_direction(terms: Array, loss: complex) -> float:
    """The error of a gradient along a direction, relative to the sizes of its terms."""
    size = float(np.sum(np.abs(terms)))
    error = float(abs(np.sum(terms) - np.imag(loss) / STEP)) / (size if size > LEAST else 1.0)
    return error if error >= 0 else math.inf


def _error(array: Array, expected: Array) -> float:
    scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)) or 1.0
    same = array == expected  # infinities among them
    error = float(np.max(np.abs(np.where(same, 0, array - np.where(same, 0, expected))), initial=0))
    return error / scale if error >= 0 else math.inf


# --- memories by themselves -----------------------------------------------------------------------


def _prove_memory(
    definition: Definition, chunk: ChunkProgram, memory: Memory, rng: np.random.Generator
) -> Row:
    """Streams with gates of any strength, of equal keys and of zeros, against the recurrence."""
    sizes = {str(d): n for d, n in zip(definition.dims, GRADIENT_SIZES, strict=False)}
    length = next(dim for dim in chunk.program.arguments[1].shape if str(dim) not in sizes)
    sizes |= {"B": ROWS, str(length): 2 * LENGTH}
    errors = dict[str, float]()
    for kind in ("weak", "strong", "vanishing", "zeros", "equal keys"):
        streams, first = _drawn_streams(chunk, memory, kind, sizes, rng)
        for program in _programs(chunk, streams):
            _compare_memory(program, chunk, memory, streams, first, sizes, rng, errors, kind)
    note = f"gates to e^-{STRONGEST:.0f} a step and zeros, equal keys"
    return judged(f"chunks of {memory.state}, forward and gradients", errors, BAR, note)


def _programs(chunk: ChunkProgram, streams: Mapping[Value, Array]) -> Sequence[Program]:
    """The exact program, and that of plain products where no row is marked."""
    if chunk.factored is None:
        return (chunk.program,)
    assert isinstance(chunk.layer, Memory)
    assert chunk.layer.log_decay is not None
    total = streams[chunk.layer.log_decay].sum(axis=-2)
    return (chunk.program, chunk.factored) if total.min() > -60 else (chunk.program,)


def _drawn_streams(
    chunk: ChunkProgram,
    memory: Memory,
    kind: str,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> tuple[dict[Value, Array], Array]:
    streams = {}
    for value, over in chunk.streams.items():
        shape = tuple(axis_size(axis, sizes) for axis in over.shape)
        drawn = rng.standard_normal(shape)
        if value == memory.log_decay:
            drawn = -rng.random(shape) * {"strong": STRONGEST, "vanishing": 1e-12}.get(kind, 0.1)
            if kind == "zeros":
                drawn[rng.random(shape) < 0.1] = -math.inf
            drawn = np.maximum(drawn, FLOOR)
        elif value in memory.erasers or any(value == u.key for u in memory.updates):
            drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
            if kind == "equal keys":
                drawn = np.broadcast_to(np.eye(1, shape[-1]), shape).copy()
            if kind == "zeros":
                drawn[..., ::3, :] = 0
        elif any(value in u.erased.values() for u in memory.updates):
            drawn = np.ones(shape) if kind == "equal keys" else rng.random(shape)
        streams[value] = drawn
    state = tuple(axis_size(axis, sizes) for axis in chunk.first[0].shape)
    return streams, rng.standard_normal(state)


def _compare_memory(
    program: Program,
    chunk: ChunkProgram,
    memory: Memory,
    streams: Mapping[Value, Array],
    first: Array,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    errors: dict[str, float],
    kind: str,
) -> None:
    arguments = {str(over): streams[value] for value, over in chunk.streams.items()}
    arguments[str(chunk.first[0])] = first
    formed = interpret(program, arguments, sizes)
    names = [*(str(over) for over in chunk.formed.values()), str(chunk.last[0])]
    exact = dict(zip(names, memory_steps(memory, streams, first), strict=True))
    for name in names:
        raise_to(errors, f"{name} ({kind})", _error(formed[name], exact[name]))
    back = adjoint_of(program)
    upstream = {name: rng.standard_normal(formed[name].shape) for name in names}
    slopes = interpret(
        back.program, {**arguments, **{back.upstream[n]: d for n, d in upstream.items()}}, sizes
    )
    moving: dict[Value | None, str] = {v: str(over) for v, over in chunk.streams.items()}
    moving[None] = str(chunk.first[0])
    for value, name in moving.items():
        direction = rng.standard_normal(arguments[name].shape)
        moved = arguments[name] + 1j * STEP * direction
        other = dict(streams) if value is None else {**streams, value: moved}
        results = memory_steps(memory, other, moved if value is None else first)
        loss = sum(np.sum(a * upstream[n]) for n, a in zip(names, results, strict=True))
        terms = slopes[back.gradients[name]] * direction
        raise_to(errors, f"d_{name} ({kind})", _of_direction(terms, loss))


def memory_steps(memory: Memory, streams: Mapping[Value, Array], first: Array) -> tuple[Array, ...]:
    """The recurrence of a memory, written by hand: what each readout reads, and what it ends with.

    Streams are (..., T, K), the state (..., V, K).
    """

    def at(value: Value | None, t: int) -> Array:
        return np.ones(1) if value is None else streams[value][..., t, :]

    state: Array = first
    reads: list[list[Array]] = [[] for _ in memory.readouts]
    for t in range(streams[memory.updates[0].key].shape[-2]):
        erased = [(state * at(key, t)[..., None, :]).sum(-1) for key in memory.erasers]
        after = state
        if memory.decay is not Decay.NONE:
            after = after * np.exp(at(memory.log_decay, t))[..., None, :]
        for update in memory.updates:
            new = 0.0 if update.value is None else at(update.value, t) * at(update.scale, t)
            for number, coefficient in update.erased.items():
                new = new - at(coefficient, t) * erased[number]
            after = after + np.asarray(new)[..., :, None] * at(update.key, t)[..., None, :]
        for read, readout in zip(reads, memory.readouts, strict=True):
            of = after if readout.after else state
            read.append((of * at(readout.query, t)[..., None, :]).sum(-1))
        state = after
    return (*(np.stack(read, axis=-2) for read in reads), state)

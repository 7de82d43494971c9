"""Programs of chunks of delays, max-plus scans and linear scans.

What a chunk starts from goes into its first row, so that the scan itself starts from nothing.
"""

from __future__ import annotations

import math

from sympy import Add, Expr, Integer, Rational
from sympy import S as NUMBERS

from cellgen.language.ops import maximum, where, zeros_like
from cellgen.language.value import Shape, Value
from cellgen.program.chunks.layers import Delay, LinearScan, MaxPlusScan
from cellgen.program.chunks.writer import ONE, Chunk, ChunkProgram


def over_steps(chunk: Chunk, value: Value) -> Shape:
    """The shape of a value over the steps of a chunk: they lie before the last axis."""
    return (*value.shape[:-1], chunk.length, value.shape[-1])


def _first(chunk: Chunk, state: Value) -> Value:
    """The state that a chunk starts from, as one row."""
    return chunk.argument(f"{state.name}_first", (*state.shape[:-1], ONE, state.shape[-1]))


def _initial(chunk: Chunk, state: Value) -> Expr:
    number = chunk.initials.get(str(state), 0.0)
    return NUMBERS.NegativeInfinity if number == -math.inf else Rational(number)


def _before(chunk: Chunk, state: Value, new: Value, first: Value, restart: Value | None) -> Value:
    """A state before each step: what the step before left."""
    moved = chunk.apply(f"{new.name}_shifted", "shifted", new, by=(ONE,))
    start = chunk.apply(f"{state.name}_placed", "into_first_row", first, by=(chunk.length,))
    held: Expr = moved + start
    if restart is not None:
        held = where(restart, _initial(chunk, state), held)
    return chunk.emit(f"{state.name}_before", held, new.shape)


def delay_program(chunk: Chunk, layer: Delay) -> ChunkProgram:
    """A shift by a step; with gaps a scan, since a step that is left out holds what was there."""
    state, shape = layer.state, over_steps(chunk, layer.state)
    first = _first(chunk, state)
    stream = chunk.argument(f"{layer.next.name}_stream", shape)
    restart, hold = chunk.flags("restart", len(shape)), chunk.flags("hold", len(shape))
    new = stream
    if hold is not None:
        kept = chunk.emit("kept", hold, shape)
        row = chunk.apply("kept_first", "first_row", kept)
        start = chunk.emit("start", where(row, first, 0))
        placed = chunk.apply("placed", "into_first_row", start, by=(chunk.length,))
        held = chunk.emit("held", stream + placed)
        new = chunk.apply(str(layer.next), "linear_scan", kept, held, by=(ONE,))
    before = _before(chunk, state, new, first, restart)
    last = chunk.apply(f"{layer.next.name}_last", "last_row", new)
    return ChunkProgram(
        layer,
        chunk.program("delay_chunk", (new, before, last)),
        (first,),
        (last,),
        {layer.next: stream},
        {state: before, layer.next: new},
        restart,
        hold,
    )


def max_plus_program(chunk: Chunk, layer: MaxPlusScan) -> ChunkProgram:
    """A running maximum of what rises and what it is compared with."""
    state, shape = layer.state, over_steps(chunk, layer.state)
    first = _first(chunk, state)
    rises = chunk.argument(str(layer.rise), shape)
    others = chunk.argument(str(layer.other), shape)
    restart = chunk.flags("restart", len(shape))

    def greater(moved: Expr, other: Expr) -> Expr:
        return maximum(moved, other) if layer.moved_first else maximum(other, moved)

    rise, other = rises, others
    if restart is not None:
        initial = _initial(chunk, state)
        if initial != NUMBERS.NegativeInfinity:
            begun = where(restart, greater(initial + rises, others), others)
            other = chunk.emit(f"{layer.other.name}_begun", begun)
        rise = chunk.emit(f"{layer.rise.name}_begun", where(restart, -NUMBERS.Infinity, rises))
    row = chunk.apply(f"{layer.rise.name}_first", "first_row", rise)
    start = chunk.emit("start", row + first)
    placed = chunk.apply("placed", "into_first_row", start, by=(chunk.length,))
    ones = chunk.emit("ones", 1 + zeros_like(first))
    opening = chunk.apply("opening", "into_first_row", ones, by=(chunk.length,))
    joined = chunk.emit("joined", where(opening, greater(placed, other), other))
    order = (Integer(layer.moved_first),)
    new = chunk.apply(str(layer.next), "max_scan", rise, joined, by=order)
    before = _before(chunk, state, new, first, restart)
    last = chunk.apply(f"{layer.next.name}_last", "last_row", new)
    return ChunkProgram(
        layer,
        chunk.program("max_plus_chunk", (new, before, last)),
        (first,),
        (last,),
        {layer.rise: rises, layer.other: others},
        {state: before, layer.next: new},
        restart,
    )


def scan_program(chunk: Chunk, layer: LinearScan) -> ChunkProgram:
    """A scan of one state, or of states that are coupled, beside each other."""
    count, shape = len(layer.states), over_steps(chunk, layer.states[0])
    first = [_first(chunk, state) for state in layer.states]
    streams = {value: chunk.argument(str(value), shape) for value in layer.streams}
    restart = chunk.flags("restart", len(shape))
    factors = {at: streams[value] for at, value in layer.factors.items()}
    terms = [streams[value] for value in layer.terms]
    if restart is not None:
        factors, terms = _begun(chunk, layer, factors, terms, restart)
    opened = []
    for i, term in enumerate(terms):
        rows = [
            chunk.apply(f"{factors[i, j].name}_first", "first_row", factors[i, j]) * first[j]
            for j in range(count)
            if (i, j) in factors
        ]
        start = chunk.emit(f"{layer.following[i].name}_start", Add(*rows), first[i].shape)
        placed = chunk.apply(f"{start.name}_placed", "into_first_row", start, by=(chunk.length,))
        opened.append(chunk.emit(f"{term.name}_opened", term + placed, shape))
    new = _scanned(chunk, layer, factors, opened)
    before = [
        _before(chunk, state, value, row, restart)
        for state, value, row in zip(layer.states, new, first, strict=True)
    ]
    last = [
        chunk.apply(f"{following.name}_last", "last_row", value)
        for following, value in zip(layer.following, new, strict=True)
    ]
    formed = dict(zip(layer.states, before, strict=True))
    formed |= dict(zip(layer.following, new, strict=True))
    program = chunk.program("linear_scan_chunk", (*new, *before, *last))
    return ChunkProgram(layer, program, tuple(first), tuple(last), streams, formed, restart)


def _begun(
    chunk: Chunk,
    layer: LinearScan,
    factors: dict[tuple[int, int], Value],
    terms: list[Value],
    restart: Value,
) -> tuple[dict[tuple[int, int], Value], list[Value]]:
    """Factors of 0 where a row starts anew; what the initial states would have given is a term."""
    begun = []
    for i, term in enumerate(terms):
        initial = [
            factors[i, j] * _initial(chunk, state)
            for j, state in enumerate(layer.states)
            if (i, j) in factors
        ]
        joined = where(restart, term + Add(*initial), term)
        begun.append(chunk.emit(f"{term.name}_begun", joined, term.shape))
    cut = {
        at: chunk.emit(f"{value.name}_begun", where(restart, 0, value))
        for at, value in factors.items()
    }
    return cut, begun


def _scanned(
    chunk: Chunk, layer: LinearScan, factors: dict[tuple[int, int], Value], terms: list[Value]
) -> list[Value]:
    names = [str(value) for value in layer.following]
    count = len(names)
    if count == 1 and factors:
        return [chunk.apply(names[0], "linear_scan", factors[0, 0], terms[0], by=(ONE,))]
    zero = chunk.emit("zero", Integer(0), terms[0].shape)
    rows = [
        chunk.apply("factors", "stacked", *(factors.get((i, j), zero) for j in range(count)))
        for i in range(count)
    ]
    factor = chunk.apply("factors", "stacked", *rows)
    scanned = chunk.apply("states", "coupled_scan", factor, chunk.apply("terms", "stacked", *terms))
    return [chunk.apply(name, "entry", scanned, by=(Integer(i),)) for i, name in enumerate(names)]

"""Two identities that make the backward pass of a memory short, for every memory.

*Decays by symmetry*: a scale of the key's units that queries undo changes nothing, so that what
reaches a decay is a sum of what reaches queries and keys. *An erased read is a query*: the backward
pass of a memory that erases is that of a plain one with one query more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cellgen import Cell, Dim
from cellgen.cells import RWKV6, RWKV7, DeltaNet, GatedDeltaNet, GatedLinearAttention, Mamba2
from cellgen.language.value import Role, Value
from cellgen.program.chunks import Decay, Memory, Readout, form_over_time
from cellgen.program.chunks.of_memory import memory_program
from cellgen.program.chunks.writer import Chunk, ChunkProgram
from cellgen.program.interpret import axis_size, interpret
from cellgen.proof.chunk_layer import adjoint_of

STEPS = 24
SIZES = {"B": 2, "N": 2, "D": 3, "K": 4, "C": STEPS}
CLOSE = 1e-12
Arrays = dict[str, np.ndarray]

by_cell = pytest.mark.parametrize(
    "cell",
    [DeltaNet, GatedDeltaNet, GatedLinearAttention, Mamba2, RWKV6, RWKV7],
    ids=lambda cell: cell.definition.name,
)


def memory_of(cell: type[Cell]) -> Memory:
    """The memory of a cell, each update with a value that nothing scales."""
    (memory,) = form_over_time(cell.definition).memories
    shape = memory.readouts[0].value.shape
    updates = tuple(
        replace(
            update,
            value=update.value or Value(f"nothing_{n}", shape, Role.TEMPORARY, "", 10**6 + n),
            scale=None,
        )
        for n, update in enumerate(memory.updates)
    )
    return replace(memory, updates=updates)


def written(memory: Memory) -> ChunkProgram:
    return memory_program(Chunk("memory", Dim("C"), False, {}), memory)


def drawn(chunk: ChunkProgram, rng: np.random.Generator) -> Arrays:
    arrays = {}
    for value in chunk.program.arguments:
        shape = tuple(axis_size(axis, SIZES) for axis in value.shape)
        is_decay = value == chunk.streams.get(chunk.layer.log_decay)  # type: ignore[union-attr]
        arrays[str(value)] = -0.3 * rng.random(shape) if is_decay else 0.5 * rng.normal(size=shape)
    return arrays


def gradients(chunk: ChunkProgram, given: Arrays, upstream: Arrays) -> Arrays:
    back = adjoint_of(chunk.program)
    above = {back.upstream[name]: array for name, array in upstream.items()}
    formed = interpret(back.program, given | above, SIZES)
    return {argument: formed[name] for argument, name in back.gradients.items()}


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def later(array: np.ndarray, own: bool) -> np.ndarray:
    """Sums over all later steps, the own one among them or not."""
    summed = np.cumsum(array[..., ::-1, :], axis=-2)[..., ::-1, :]
    return summed if own else summed - array


@by_cell
def test_what_reaches_a_decay_is_a_sum_of_what_reaches_queries_and_keys(cell: type[Cell]) -> None:
    memory, rng = memory_of(cell), np.random.default_rng(0)
    if memory.decay is Decay.NONE:
        return
    chunk = written(memory)
    given = drawn(chunk, rng)
    read = str(chunk.formed[memory.readouts[0].value])
    shape = interpret(chunk.program, given, SIZES)[read].shape
    of = gradients(chunk, given, {read: rng.normal(size=shape)})

    def weighed(stream: Value) -> np.ndarray:
        name = str(chunk.streams[stream])
        return given[name] * of[name]

    total = sum(later(weighed(r.query), r.after) for r in memory.readouts)
    total = total - sum(later(weighed(update.key), True) for update in memory.updates)
    total = total + sum(later(weighed(eraser), False) for eraser in memory.erasers)
    if memory.decay is Decay.HEAD:
        total = np.sum(total, axis=-1, keepdims=True)
    assert distance(total, of[str(chunk.streams[memory.log_decay])]) < CLOSE


@pytest.mark.parametrize(
    "cell", [DeltaNet, GatedDeltaNet, RWKV7], ids=lambda cell: cell.definition.name
)
def test_an_erased_read_is_a_query_of_a_plain_memory(cell: type[Cell]) -> None:
    memory, rng = memory_of(cell), np.random.default_rng(0)
    (eraser,) = memory.erasers
    chunk = written(memory)
    given = drawn(chunk, rng)
    read = str(chunk.formed[memory.readouts[0].value])
    every = interpret(chunk.program, given, SIZES, keep=True)
    upstream = {read: rng.normal(size=every[read].shape)}
    of = gradients(chunk, given, upstream)
    held = _held(memory, chunk, given)
    more = Value("held", memory.readouts[0].value.shape, Role.TEMPORARY, "", 10**7)
    plain = replace(
        memory,
        erasers=(),
        updates=tuple(replace(update, erased={}) for update in memory.updates),
        readouts=(*memory.readouts, Readout(more, eraser, False)),
    )
    other = written(plain)
    erased = np.zeros_like(held)
    inner = {str(v): given[str(v)] for v in other.program.arguments}
    for update in memory.updates:
        name = str(chunk.streams[update.value])
        for coefficient in update.erased.values():
            weight = given[str(chunk.streams[coefficient])]
            inner[name] = given[name] - weight * held
            erased -= weight * of[name]  # lambda: what reaches the erased read
    found = gradients(other, inner, upstream | {str(other.formed[more]): erased})
    assert distance(interpret(other.program, inner, SIZES)[read], every[read]) < CLOSE
    for name, array in found.items():
        assert distance(array, of[name]) < CLOSE, name


def _held(memory: Memory, chunk: ChunkProgram, given: Arrays) -> np.ndarray:
    """What the memory holds for its erased read, step by step."""
    state = given[str(chunk.first[0])]
    streams = {value: given[str(over)] for value, over in chunk.streams.items()}
    held = []
    for t in range(STEPS):
        at = {value: array[..., t, :] for value, array in streams.items()}
        held.append((state * at[memory.erasers[0]][..., None, :]).sum(-1))
        if memory.log_decay is not None:
            state = state * np.exp(at[memory.log_decay])[..., None, :]
        for update in memory.updates:
            new = at[update.value] - sum(at[c] * held[-1] for c in update.erased.values())
            state = state + new[..., :, None] * at[update.key][..., None, :]
    return np.stack(held, axis=-2)

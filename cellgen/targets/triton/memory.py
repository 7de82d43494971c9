"""Spell a matrix memory as Triton kernels, forward and back, and plan their launches.

Input: the programs of a cell's chunks and one of its memories. Output: the text of kernels, and a
``LayerPlan``. Five templates serve every memory of the class:

    prepare     what erased reads are made of: solved for, chunks in parallel
    scan        all chunks of a row and head in turn, the state in registers
    outputs     what is read, of states that the scan saved: chunks in parallel, for few rows
    back        what reaches the state and what each step adds, from the last chunk to the first
    gradients   of keys, queries, erased reads and decays, chunks in parallel

The backward pass rests on two identities (``docs/explanation/chunks.md``): an erased read is a
query, and what reaches a decay is a sum of products of keys and queries with what reaches them.
Not spelled: vectors that are no column of a matrix, axes of a state behind its keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cellgen.language.value import Dim
from cellgen.program.chunks import Decay, Memory, equation_of
from cellgen.program.chunks.programs import ChunkPrograms
from cellgen.targets.target import NotYet
from cellgen.targets.templates import fill
from cellgen.targets.triton.memory_plan import LONGEST, buffers_of, configurations_of, launches_of
from cellgen.targets.triton.memory_text import MemoryText
from cellgen.targets.triton.plan import LayerPlan

LIMIT = -120.0
"""Sums of logarithms in a chunk above which exp(m - G), about the middle m, is a float32."""


@dataclass(frozen=True)
class NoContext:
    """Of templates that read nothing."""


@dataclass(frozen=True)
class MemoryContext:
    """Of a kernel's template: the memory and the text of its parameters."""

    m: MemoryText
    parameters: str


@dataclass(frozen=True)
class MemoryKernels:
    """Kernels of a memory as text, and how they are launched."""

    text: str
    plan: LayerPlan
    by_key: bool


def memory_head(by_key: bool) -> str:
    """What the kernels of memories share; where decays are by key, products with them too."""
    head = fill("triton/memory_head.py.j2", NoContext())
    return head + ("\n\n" + fill("triton/memory_by_key.py.j2", NoContext()) if by_key else "")


def column_of(programs: ChunkPrograms, memory: Memory) -> Memory | None:
    """The vector that is one more column of a memory, if its value waits for none of its reads."""
    reads = {readout.value for readout in memory.readouts}
    for other in programs.form.memories:
        if other.beside == memory.state and other.value_axis is None:
            is_free = not reads & set(programs.form.pre[other.states].arguments)
            return other if is_free else None
    return None


def memory_kernels(programs: ChunkPrograms, memory: Memory) -> MemoryKernels | NotYet:
    """Spell a memory, with the vector that is a column of it."""
    sizes = _sizes(memory)
    if isinstance(sizes, NotYet):
        return sizes
    column = column_of(programs, memory)
    is_by_key = memory.decay is Decay.KEY
    bound = memory.bound if memory.bound is not None else -math.inf
    is_marked = is_by_key and bound * LONGEST < LIMIT
    equation = equation_of(memory, programs.form)
    m = MemoryText.of(memory, column, equation, is_marked)
    launches = launches_of(m)
    plan = LayerPlan(
        sizes,
        buffers_of(m),
        launches.forward,
        launches.few_rows,
        launches.training,
        launches.backward,
        configurations_of(m),
    )
    kernels = [
        fill(f"triton/memory_{name}.j2", MemoryContext(m, text))
        for name, text in launches.parameters.items()
    ]
    return MemoryKernels(_tidied("\n\n".join(kernels)), plan, is_by_key)


def _sizes(memory: Memory) -> Mapping[str, tuple[str, ...]] | NotYet:
    shape, value, key = memory.state.shape, memory.value_axis, memory.key_axis
    if value is None:
        return NotYet(f"{memory.state} is a vector for each row and head, which is no product")
    if {value, key} != {len(shape) - 2, len(shape) - 1}:
        return NotYet(f"{memory.state} has axes behind those of its keys and values")
    front = shape[1:-2]
    for axis in (*front, shape[value], shape[key]):
        if not isinstance(axis, Dim):
            return NotYet(f"{memory.state} has an axis of {axis}, which is no dimension")
    return {"N": tuple(map(str, front)), "V": (str(shape[value]),), "K": (str(shape[key]),)}


def _tidied(text: str) -> str:
    """Drop blank lines in front of indented ones, where parts of templates spelled nothing."""
    lines: list[str] = []
    is_prose = False
    for line in reversed([line.rstrip() for line in text.split("\n")]):
        is_prose ^= line.count('"""') % 2 == 1
        is_spare = not line and lines and lines[-1].startswith((" ", ")"))
        if is_prose or not is_spare:
            lines.append(line)
    return "\n".join(reversed(lines)).rstrip("\n") + "\n"

"""What a generated module says of its kernels: buffers, launches, sizes of blocks.

Input: layers that are spelled. Output: ``PLAN``, a table of strings and numbers at the end of
``<cell>_triton.py``. A runtime reads the table and launches; it needs nothing of the compiler.

Sizes go by name. A runtime knows ``T`` (steps), ``B`` (rows), the dimensions of the cell, and, for
each layer, the names in its ``sizes``; those of blocks come from the configuration. From them it
forms the counts that shapes and grids are made of: ``ceil(T / BT)`` is ``("T", "BT")``. Three
constants are of a call as well: ``GAPS``, that steps are left out or begin anew; ``RESETS``, that
some may begin anew, so that states which are no finite numbers are cleared; ``PRECISION``, how
products of float32 are formed: ``"ieee"`` of float32 streams, ``"tf32"`` of others.

Which steps these are says one table of a call, ``STEP_BEFORE``: of each step and row the last step
before it that is not left out, -1 where there is none, ``ANEW`` where states begin with what they
were declared with, ``LEFT_OUT`` where the step is left out. What is stored of a step that is left
out is 0, gradients too: nothing of it reaches others, and states go on from the step before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import TypeAlias

Count: TypeAlias = int | str | tuple[str, ...]
"""A number, a size by name, a size divided by that of a block, rounded up, ``("T", "BT")``, or,
``("K",)``, the least power of two that is not below a size, and at least 16."""
Shape: TypeAlias = tuple[Count, ...]
STEP_BEFORE = "step.before"
"""The name of that table among arrays and buffers; no name of an author has a dot."""
MARKS = "rows.marks"
"""The name of the table of rows that exact launches do again."""
ANEW, LEFT_OUT = -2, -3
WIDE = 100
"""Columns of a module."""


class BufferRole(Enum):
    """What a buffer is to a runtime."""

    STREAM = "stream"
    """Of every step, formed by ``pre``; contiguous, (T, B, heads or none, units or none)."""
    FIRST = "first"
    """A state before the first step, in the cell's own shape, float32."""
    LAST = "last"
    """A state after the last step, the same."""
    READ = "read"
    """What a layer forms at every step: written by the forward pass."""
    UPSTREAM = "upstream"
    """What reaches a ``READ``, read by the backward pass."""
    UPSTREAM_LAST = "upstream_last"
    """What reaches a ``LAST``."""
    GRADIENT = "gradient"
    """Of a stream or of a first state. With a ``share`` axis in front, shares that are added up."""
    SAVED = "saved"
    """Written by the forward pass, read by the backward pass."""
    SCRATCH = "scratch"
    """Written and read within a pass."""
    MARKS = "marks"
    """Rows that exact launches do again; zeros before the forward pass, kept for the backward."""
    BEFORE = "before"
    """(T, B), int32, ``STEP_BEFORE``; any buffer where every step follows the one before it."""


@dataclass(frozen=True)
class BufferPlan:
    """An array that kernels take.

    ``dtype`` is ``"streams"``, the caller's (float32, bfloat16, float16), or a name of its own.
    ``of`` is the value that it holds, in the names of the author. ``shares``: that its first axis
    counts shares, which a runtime adds up.
    """

    role: BufferRole
    shape: Shape
    dtype: str
    of: str = ""
    shares: bool = False


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel.

    ``buffers`` by the kernel's parameters; ``sizes`` are parameters that are numbers of a call;
    ``constants`` those fixed when the kernel is compiled, as sizes, numbers or flags; ``blocks``
    those that the configuration of the kernel sets. The grid has one axis: as many programs as the
    product of ``grid``, the first count fastest. A launch whose constant ``EXACT`` is true does
    marked rows again.
    """

    kernel: str
    buffers: Mapping[str, str]
    sizes: tuple[str, ...]
    constants: Mapping[str, Count | bool]
    blocks: tuple[str, ...]
    grid: Shape


@dataclass(frozen=True)
class Configuration:
    """Sizes of blocks, warps and stages that a kernel may be compiled with.

    Of one call all kernels take the same ``BT``. ``most`` bounds sizes that it is meant for: the
    largest K and V. The first that fits is taken where nothing is measured.
    """

    blocks: Mapping[str, int]
    warps: int
    stages: int
    most: int = 0


@dataclass(frozen=True)
class RowBlock:
    """Units of a lane, warps of a program, steps that are loaded ahead if registers hold them."""

    units: int
    warps: int
    ahead: int


@dataclass(frozen=True)
class RowConfigurations:
    """How kernels over rows and units may be cut. The first of each is taken unmeasured.

    With fewer than ``programs`` of one warp the steps of a linear scan are cut into segments: that
    reads streams twice; 0 never does. Blocks of ``once`` cut them into segments of as many steps as
    are loaded ahead, each of which is read once; their programs have one warp, whose lanes look at
    the segments before. Both passes of a scan take the same.
    """

    blocks: tuple[RowBlock, ...]
    programs: tuple[int, ...]
    once: tuple[RowBlock, ...] = ()


@dataclass(frozen=True)
class LayerPlan:
    """One layer: its kernels over all steps.

    ``sizes`` give names to products of the cell's dimensions, ``{"N": ("N",), "V": ("D",)}``.
    ``forward`` and ``few_rows`` do the same, the second for calls with few rows and heads;
    ``training`` is the forward pass that saves what ``backward`` reads. Buffers by name.
    """

    sizes: Mapping[str, tuple[str, ...]]
    buffers: Mapping[str, BufferPlan]
    forward: tuple[KernelLaunch, ...]
    few_rows: tuple[KernelLaunch, ...]
    training: tuple[KernelLaunch, ...]
    backward: tuple[KernelLaunch, ...]
    configurations: Mapping[str, tuple[Configuration, ...]] = field(default_factory=dict)


def literal(value: object) -> object:
    """Write a plan as strings, numbers, tuples and dicts."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: literal(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): literal(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(literal(one) for one in value)
    return value


def _has_table(value: object) -> bool:
    """Whether a literal is a table that holds something, or has one in it."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, tuple) and any(map(_has_table, value))


def laid_out(plan: object, indent: int = 0, begins: int = 0) -> str:
    """Lay a plan out as Python: on one line where it fits, else tables begin lines of their own.

    ``begins`` is the column of its first letter.

    >>> print(laid_out({"T": 1, "B": 2, "x": {"shape": ("T", "B")}}, begins=90))
    {
      'T': 1, 'B': 2,
      'x': {'shape': ('T', 'B')},
    }
    """
    line, inner = repr(plan), indent + 2
    if begins + len(line) < WIDE or not isinstance(plan, Mapping | tuple):
        return line
    entries: list[tuple[str, object]] = [("", entry) for entry in plan]
    if isinstance(plan, Mapping):
        entries = [(f"{key!r}: ", entry) for key, entry in plan.items()]
    rows: list[str] = []
    is_table = True
    for head, entry in entries:
        was_table, is_table = is_table, _has_table(entry)
        text = f"{head}{laid_out(entry, inner, inner + len(head))},"
        if was_table or is_table or inner + len(rows[-1]) + len(text) >= WIDE:
            rows.append(text)
        else:
            rows[-1] += f" {text}"
    opening, closing = "{}" if isinstance(plan, Mapping) else "()"
    return "\n".join([opening, *(" " * inner + row for row in rows), " " * indent + closing])

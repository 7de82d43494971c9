"""What the templates of an export read.

Input: a layout and what was asked for. Output: contexts of ``cell.h.j2`` and ``cell.c.j2``.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgen.targets.embedded.layout import Struct
from cellgen.targets.embedded.spelling import Lengths
from cellgen.targets.head import Head


@dataclass(frozen=True)
class MemberText:
    """One array of a struct; ``initial`` is where a state begins if not at 0."""

    name: str
    length: str
    factor: str
    shape: str
    initial: str = ""


@dataclass(frozen=True)
class StructText:
    """A struct of arrays and what it is."""

    name: str
    what: str
    members: list[MemberText]

    @staticmethod
    def of(struct: Struct, lengths: Lengths) -> StructText:
        """Spell a struct."""
        members = [
            MemberText(m.name, lengths.product(m.shape), lengths.bracketed(m.shape), m.text)
            for m in struct.members
        ]
        return StructText(struct.name, struct.what, members)


@dataclass(frozen=True)
class FrameText:
    """What a frame holds of one array: its type, where it is for a step, and in training."""

    name: str
    type: str
    at_step: str
    in_training: str


@dataclass(frozen=True)
class FunctionText:
    """A static function: what it does, its parameters, of which structs they are, and lines."""

    kind: str
    name: str
    what: str
    parameters: str
    structs: tuple[str, ...]
    lines: list[str]


@dataclass(frozen=True)
class TrainingHeader:
    """What the header says of training: parts of its memory by struct, parameters, a call."""

    parts: list[tuple[str, str]]
    powers: list[str]
    works: list[str]
    gradients: str
    train: str
    call: str
    rule: str


@dataclass(frozen=True)
class TrainingBody:
    """What the body says of training: calls of the functions of a step, and the update."""

    powers: list[str]
    place: str
    placed: str
    gradients: str
    train: str
    passed: str
    prologue: str
    forward: str
    reverse: str
    deferred: str
    epilogue: str
    has_totals: bool
    has_backward: bool
    carries: list[tuple[str, str]]
    optimiser: str
    updates: list[str]


@dataclass(frozen=True)
class EmbeddedHeader:
    """Of ``cell.h.j2``."""

    head: Head
    name: str
    prefix: str
    real: str
    sizes: list[tuple[str, int, str]]
    structs: list[StructText]
    memory: list[str]
    works: list[str]
    constant: bool
    prologue: bool
    start: str
    step: str
    sequence: str
    start_call: str
    step_call: str
    training: TrainingHeader | None


@dataclass(frozen=True)
class EmbeddedBody:
    """Of ``cell.c.j2``."""

    head: Head
    name: str
    prefix: str
    real: str
    frame: list[FrameText]
    math: list[str]
    functions: list[FunctionText]
    states: list[MemberText]
    outputs: list[MemberText]
    prologue: str
    prologue_frame: list[str]
    start: str
    step: str
    sequence: str
    run_step: str
    step_reads_weights: bool
    step_of_sequence: str
    training: TrainingBody | None
    values: list[tuple[str, list[str]]]

"""Read machine code as ``nvdisasm -c`` prints it: instructions, their operands, labels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

LABEL = re.compile(r"^(\.L\w+|\$[\w$]+):")
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s*(.*)$")
GUARD = re.compile(r"^@(!?)(U?P[0-9T])\s+(.*)$")
COMMA = re.compile(r",\s*(?![^\[]*\])")
PREDICATE = re.compile(r"^!?U?P[0-9T]$")
REGISTER = re.compile(r"^([-~!|]*)(UR|R|UP|P)(\d+|Z|T)\|?((?:\.\w+)*)$")
CONSTANT = re.compile(r"^(-?)c\[0x0\]\[(0x[0-9a-f]+)\]$")
NUMBER = re.compile(r"^[-~]?(0x[0-9a-f]+|\d+)$")


@dataclass(frozen=True)
class SassOperand:
    """An operand: its kind, which one, its value, its signs.

    ``kind`` is "R", "UR", "P", "UP", "constant", "number" or "text"; ``index`` is the register's
    number (-1: zero, or true), the constant's offset in bank 0, or the number.
    """

    text: str
    kind: str
    index: int = 0
    negative: bool = False
    inverted: bool = False
    """Bits inverted (``~``), or a predicate that is negated (``!``)."""

    @property
    def is_predicate(self) -> bool:
        """Say whether it is one bit."""
        return self.kind in ("P", "UP")

    @property
    def is_uniform(self) -> bool:
        """Say whether a warp has one of it."""
        return self.kind in ("UR", "UP")


@dataclass(frozen=True)
class Instruction:
    """An instruction: where it stands, under which predicate, its name, parts of it, operands."""

    address: int
    guard: SassOperand | None
    parts: tuple[str, ...]
    operands: tuple[SassOperand, ...]
    text: str

    @property
    def name(self) -> str:
        """The first part: ``IMAD`` of ``IMAD.WIDE.U32``."""
        return self.parts[0]

    def has(self, part: str) -> bool:
        """Say whether a modifier stands behind the name."""
        return part in self.parts[1:]

    @property
    def bytes(self) -> int:
        """Bytes that a lane moves."""
        sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        return next((sizes[part] for part in self.parts[1:] if part in sizes), 4)


@dataclass(frozen=True)
class Code:
    """The instructions of a kernel, and where labels stand among them."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def count(self, name: str) -> int:
        """Count the instructions of a name."""
        return sum(instruction.name == name for instruction in self.instructions)


def read(text: str) -> Code:
    """Read the text of one kernel."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label, match = LABEL.match(line), LINE.match(line)
        if label:
            labels[label[1]] = len(instructions)
        elif match:
            body = match[2].split("/*")[0].strip(" {};\t")
            if body:
                instructions.append(_instruction(int(match[1], 16), body))
    return Code(tuple(instructions), labels)


def _instruction(address: int, body: str) -> Instruction:
    guard, rest = None, body
    match = GUARD.match(body)
    if match:
        guard, rest = operand(match[1] + match[2]), match[3]
    name, _, tail = rest.partition(" ")
    operands = COMMA.split(tail.strip()) if tail.strip() else []
    parts = tuple(operand(text.strip()) for text in operands)
    return Instruction(address, guard, tuple(name.split(".")), parts, body)


@cache
def operand(text: str) -> SassOperand:
    """Read one operand."""
    plain = text.replace(".reuse", "")
    match = REGISTER.match(plain)
    if match:
        index = -1 if match[3] in ("Z", "T") else int(match[3])
        signs = match[1]
        return SassOperand(text, match[2], index, "-" in signs, "~" in signs or "!" in signs)
    match = CONSTANT.match(plain)
    if match:
        return SassOperand(text, "constant", int(match[2], 16), match[1] == "-")
    if NUMBER.match(plain):
        value = int(plain.lstrip("~"), 0)
        return SassOperand(text, "number", ~value if plain.startswith("~") else value)
    return SassOperand(text, "text")

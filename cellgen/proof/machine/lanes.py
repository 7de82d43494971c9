"""Registers, predicates and operands of all lanes of a block, twice side by side.

The first half of the lanes and the second run the same block. What was never written differs
between them, and so does where the stack lies: whatever is made of either differs as well, and
nothing else does. Numbers that data decide (loads, products, exponentials) are ``DATA`` in both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cellgen.errors import CellgenError
from cellgen.proof.machine.sass import SassOperand

Words = npt.NDArray[np.uint32]
Wide = npt.NDArray[np.uint64]
Lanes = npt.NDArray[np.bool_]
UNWRITTEN = (0xDEADBEE1, 0x51C3A75B)
STACK = (0x8000, 0xB400)
"""Where the stack of a thread ends, in each half."""
DATA = 0x7FC0DA7A
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
WARP = 32
STACK_AT = 0x28
"""Of bank 0: where the stack of a thread lies."""


class MachineError(CellgenError):
    """Machine code that this check cannot run."""

    code = "proof.machine"


class BlockState:
    """What a block's lanes hold. ``constants`` are words of bank 0 by their offset."""

    def __init__(
        self, threads: int, constants: Mapping[int, int], program: tuple[int, int, int]
    ) -> None:
        self.threads = threads
        self.lanes = 2 * threads
        self.warps = self.lanes // WARP
        self.half = np.arange(self.lanes) >= threads
        self.thread = np.arange(self.lanes) % threads
        self.constants = dict(constants)
        self.special = {f"SR_CTAID.{axis}": at for axis, at in zip("XYZ", program, strict=True)}
        self.special |= {"SR_TID.Y": 0, "SR_TID.Z": 0, "SR_CgaCtaId": 0}
        lane = self.thread % WARP
        self.by_lane = {"SR_TID.X": self.thread, "SR_LANEID": lane, "SR_LTMASK": (1 << lane) - 1}
        unwritten = np.where(self.half, *reversed(UNWRITTEN)).astype(np.uint32)
        self.R = np.tile(unwritten, (256, 1))
        self.UR = np.tile(unwritten[::WARP], (64, 1))
        self.P = np.tile(self.half, (8, 1))
        self.UP = np.tile(self.half[::WARP], (8, 1))
        self.unwritten = unwritten

    def word(self, operand: SassOperand, part: int = 0) -> Words:
        """Read 32 bits of an operand: the lower ones, or with ``part`` 1 the upper ones."""
        value = self._plain(operand, part)
        if operand.negative:
            value = np.uint32(0) - value
        return ~value if operand.inverted else value

    def _plain(self, operand: SassOperand, part: int) -> Words:
        kind, index = operand.kind, operand.index
        if kind == "R":
            return self.R[index + part] if index >= 0 else self._all(0)
        if kind == "UR":
            return np.repeat(self.UR[index + part], WARP) if index >= 0 else self._all(0)
        if kind == "number":
            return self._all((index >> 32 * part) & 0xFFFFFFFF)
        if kind == "constant":
            return self._constant(index + 4 * part)
        if operand.text == "SRZ":
            return self._all(0)
        return self._all(DATA)

    def _constant(self, offset: int) -> Words:
        if offset == STACK_AT:
            return np.where(self.half, *reversed(STACK)).astype(np.uint32)
        value = self.constants.get(offset)
        return self.unwritten if value is None else self._all(value)

    def _all(self, value: int) -> Words:
        return np.full(self.lanes, value, np.uint32)

    def carried(self, operand: SassOperand) -> Wide:
        """Read 32 bits for a sum with carry: minus x is ~x + 1, in 33 bits."""
        value = self._plain(operand, 0).astype(np.uint64)
        if operand.negative:
            return np.uint64(1 << 32) - value
        return ~value & LOW if operand.inverted else value

    def wide(self, operand: SassOperand) -> Wide:
        """Read 64 bits: a pair of registers, a constant, or a number with its sign."""
        low = self.word(operand).astype(np.uint64)
        return low | (self.word(operand, 1).astype(np.uint64) << HALF)

    def bit(self, operand: SassOperand) -> Lanes:
        """Read a predicate."""
        if operand.index < 0:
            value = np.ones(self.lanes, bool)
        elif operand.kind == "UP":
            value = np.repeat(self.UP[operand.index], WARP)
        else:
            value = self.P[operand.index]
        return ~value if operand.inverted else value

    def set(self, operand: SassOperand, value: Words | Wide, mask: Lanes, part: int = 0) -> None:
        """Write 32 bits of a register where the mask holds."""
        if operand.index < 0:
            return
        words = value.astype(np.uint32)
        if operand.is_uniform:
            some, first = self._leaders(mask)
            self.UR[operand.index + part][some] = words[first][some]
        else:
            self.R[operand.index + part][mask] = words[mask]

    def set_wide(self, operand: SassOperand, value: Wide, mask: Lanes) -> None:
        """Write 64 bits to a pair of registers."""
        self.set(operand, value & LOW, mask)
        self.set(operand, value >> HALF, mask, 1)

    def set_bit(self, operand: SassOperand, value: Lanes, mask: Lanes) -> None:
        """Write a predicate where the mask holds."""
        if operand.index < 0:
            return
        if operand.is_uniform:
            some, first = self._leaders(mask)
            self.UP[operand.index][some] = value[first][some]
        else:
            self.P[operand.index][mask] = value[mask]

    def set_data(self, operand: SassOperand, mask: Lanes, words: int = 1) -> None:
        """Write what data decide to some registers in a row."""
        for part in range(words):
            self.set(operand, self._all(DATA), mask, part)

    def _leaders(self, mask: Lanes) -> tuple[Lanes, npt.NDArray[np.intp]]:
        by_warp = mask.reshape(self.warps, WARP)
        some = np.asarray(by_warp.any(axis=1), bool)
        return some, np.arange(self.warps) * WARP + by_warp.argmax(axis=1)

    def differs(self, value: Words | Wide | Lanes, mask: Lanes) -> Lanes:
        """Threads whose value differs between the halves: it is made of what nobody wrote."""
        threads = self.threads
        differ: Lanes = value[:threads] != value[threads:]
        return differ & mask[:threads] & mask[threads:]

"""Instructions on memory, and the products of matrices that read it: every address is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cellgen.proof.machine.lanes import STACK, WARP, BlockState, Lanes, MachineError, Words
from cellgen.proof.machine.sass import Instruction, SassOperand, operand

Addresses = npt.NDArray[np.int64]
ADDRESS = re.compile(r"^(?:desc\[UR\d+\])?\[(.*)\]$")
SHARED_BASE = 0x400
"""Where the shared memory of a kernel begins on Hopper."""
SWIZZLES = (16, 128, 64, 32)
"""Bytes of a row of a matrix in shared memory, by the two uppermost bits of its descriptor."""
DESCRIPTOR = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 3 << 62
"""Bits that Triton sets: address, both strides, swizzle."""
STACK_BYTES = 0x2000
FLOAT32 = 4


@dataclass
class BlockMemory:
    """What a block may reach, its stack, and the faults so far.

    ``tensors``: name, first byte and last of every argument in global memory. ``shared``: bytes.
    ``words``: what stands in tensors whose numbers decide where a program goes; all others hold
    data.
    """

    shared: int
    tensors: Mapping[str, tuple[int, int]]
    words: Mapping[str, Words] = field(default_factory=dict)
    faults: dict[tuple[int, str], str] = field(default_factory=dict)
    stack: dict[int, Words] = field(default_factory=dict)
    in_flight: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """Registers that products under way still read: the group of the product, and which."""
    groups: int = 0
    checked: int = 0

    def fault(self, i: Instruction, kind: str, message: str) -> None:
        """Keep the first fault of a kind at an instruction."""
        self.faults.setdefault((i.address, kind), message)


Operation = Callable[[BlockState, BlockMemory, Instruction, Lanes], None]


def _address(s: BlockState, text: str) -> Addresses:
    match = ADDRESS.match(text)
    if match is None:
        raise MachineError(f"the address {text} is not known to this check")
    is_wide = ".64" in match[1]
    total = np.zeros(s.lanes, np.int64)
    for part in match[1].split("+"):
        name, _, suffix = part.strip().partition(".")
        one = operand(name)
        if one.kind == "text":
            raise MachineError(f"the address {text} is not known to this check")
        if suffix == "64":
            total = total + s.wide(one).astype(np.int64)
        elif one.kind == "number":
            total = total + one.index
        else:
            factor = int(suffix[1:]) if suffix.startswith("X") else 1
            total = total + s.word(one).astype(np.int64) * factor
    return total if is_wide else total & 0xFFFFFFFF


def _defined(s: BlockState, m: BlockMemory, i: Instruction, at: Addresses, mask: Lanes) -> bool:
    """Fault where an address is made of what nobody wrote."""
    wrong = s.differs(at.astype(np.uint64), mask)
    if wrong.any():
        thread = int(np.flatnonzero(wrong)[0])
        m.fault(i, "unwritten", f"thread {thread}: an address is made of what nobody wrote")
    return not wrong.any()


def _shared(
    s: BlockState, m: BlockMemory, i: Instruction, text: str, mask: Lanes, size: int
) -> None:
    at = _address(s, text)
    if not mask.any():
        return
    m.checked += 1
    if not _defined(s, m, i, at, mask):
        return
    outside = mask & ((at < SHARED_BASE) | (at + size > SHARED_BASE + m.shared))
    if outside.any():
        lane = int(np.flatnonzero(outside)[0])
        m.fault(
            i,
            "shared",
            f"thread {lane % s.threads}: bytes {at[lane] - SHARED_BASE:#x} to "
            f"{at[lane] - SHARED_BASE + size:#x} of {m.shared:#x} in shared memory",
        )
    elif (at[mask] % size).any():
        m.fault(i, "misaligned", f"an address in shared memory is no multiple of {size}")


def _global(s: BlockState, m: BlockMemory, i: Instruction, text: str, mask: Lanes) -> None:
    at = _address(s, text)
    if not mask.any():
        return
    m.checked += 1
    if not _defined(s, m, i, at, mask):
        return
    low, high = int(at[mask].min()), int(at[mask].max()) + i.bytes
    home = next(((n, a, b) for n, (a, b) in m.tensors.items() if a <= low < b), None)
    if home is None:
        m.fault(i, "global", f"bytes {low:#x} to {high:#x} lie in no argument")
    elif high > home[2]:
        m.fault(i, "global", f"bytes to {high - home[1]:#x} of {home[0]}, {home[2] - home[1]:#x}")
    elif (at[mask] % i.bytes).any():
        m.fault(i, "misaligned", f"an address in {home[0]} is no multiple of {i.bytes}")


def _store_shared(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    _shared(s, m, i, i.operands[0].text, mask, i.bytes)


def _load_shared(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    _shared(s, m, i, i.operands[1].text, mask, i.bytes)
    s.set_data(i.operands[0], mask, max(1, i.bytes // 4))


def _matrices(i: Instruction) -> int:
    return int(i.parts[-1]) if i.parts[-1] in ("2", "4") else 1


def _load_matrices(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    count = _matrices(i)
    rows: Lanes = s.thread % WARP < 8 * count
    _shared(s, m, i, i.operands[1].text, mask & rows, 16)
    s.set_data(i.operands[0], mask, count)


def _store_matrices(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    rows: Lanes = s.thread % WARP < 8 * _matrices(i)
    _shared(s, m, i, i.operands[0].text, mask & rows, 16)


def _copy_to_shared(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    to, source, *mask_bits = i.operands
    _shared(s, m, i, to.text, mask, i.bytes)
    reads = mask & s.bit(mask_bits[0]) if mask_bits else mask
    _global(s, m, i, source.text, reads)


def _load_global(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    text = i.operands[-1].text if len(i.operands) == 2 else i.operands[1].text
    _global(s, m, i, text, mask)
    _give(s, m, i.operands[0], text, mask, max(1, i.bytes // 4))


def _give(
    s: BlockState, m: BlockMemory, to: SassOperand, text: str, mask: Lanes, count: int
) -> None:
    """Write words of global memory to registers, which may be those of the address."""
    at = _address(s, text)
    s.set_data(to, mask, count)
    for name, words in m.words.items():
        start, _ = m.tensors[name]
        inside = mask & (at >= start) & (at + 4 * count <= start + 4 * len(words))
        for part in range(count):
            s.set(to, words[np.where(inside, (at - start) // 4 + part, 0)], inside, part)


def _store_global(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    _global(s, m, i, i.operands[0].text, mask)


def _add_global(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    """ATOMG: a predicate, what was there, the address, what is added."""
    _global(s, m, i, i.operands[2].text, mask)
    _give(s, m, i.operands[1], i.operands[2].text, mask, 1)


def _slots(s: BlockState, text: str) -> Addresses:
    """Addresses on the stack, from its end, which differs between the halves."""
    return _address(s, text) - np.where(s.half, STACK[1], STACK[0])


def _store_stack(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    at = _slots(s, i.operands[0].text)
    if (np.abs(at[mask]) > STACK_BYTES).any():
        m.fault(i, "stack", "an address on the stack is not on the stack")
        return
    for part in range(max(1, i.bytes // 4)):
        value = s.word(i.operands[1], part)
        for slot in np.unique(at[mask]):
            held = m.stack.setdefault(int(slot) + 4 * part, s.unwritten.copy())
            here = mask & (at == slot)
            held[here] = value[here]


def _load_stack(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    at = _slots(s, i.operands[1].text)
    for part in range(max(1, i.bytes // 4)):
        value = s.unwritten.copy()
        for slot in np.unique(at[mask]):
            held = m.stack.get(int(slot) + 4 * part)
            here = mask & (at == slot)
            if held is not None:
                value[here] = held[here]
        s.set(i.operands[0], value, mask, part)


def _product(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    """HGMMA: D += A B, with A in registers or in shared memory and B in shared memory."""
    rows, columns, depth = (int(n) for n in i.parts[1].split("x"))
    at, matrices = next((n, x) for n, x in enumerate(i.operands) if "gdesc" in x.text)
    first = int(re.search(r"gdesc\[UR(\d+)\]", matrices.text)[1])  # type: ignore[index]
    element = FLOAT32 if "TF32" in i.parts[1:] else 2
    if at == 1:
        is_across = "tnspA" in matrices.text
        _descriptor(s, m, i, "A", (first, rows, depth, element, is_across), mask)
    else:
        left = i.operands[1].index
        m.in_flight.append((m.groups, frozenset(range(left, left + 4))))
    is_across = "tnspB" in matrices.text
    _descriptor(s, m, i, "B", (first + 2, columns, depth, element, is_across), mask)
    s.set_data(i.operands[0], mask, columns // 2)
    if any(x.text.startswith("gsb") for x in i.operands):
        m.groups += 1
    m.checked += 1


def _descriptor(
    s: BlockState,
    m: BlockMemory,
    i: Instruction,
    side: str,
    matrix: tuple[int, int, int, int, bool],
    mask: Lanes,
) -> None:
    register, rows, depth, element, is_across = matrix
    pair = s.UR[register].astype(np.uint64) | (
        s.UR[register + 1].astype(np.uint64) << np.uint64(32)
    )
    warps = s.threads // WARP
    for warp in range(warps):
        if not mask[WARP * warp : WARP * (warp + 1)].any():
            continue
        if pair[warp] != pair[warp + warps]:
            text = "its descriptor is made of what nobody wrote, or of the stack's address"
            m.fault(i, f"descriptor {side}", f"warp {warp}: {text}")
            return
        extent = _extent(int(pair[warp]), rows, depth, element, is_across)
        if extent is None or extent[0] < SHARED_BASE or extent[1] > SHARED_BASE + m.shared:
            target = "bits that no descriptor has" if extent is None else f"to {extent[1]:#x}"
            text = f"its descriptor {int(pair[warp]):#x} leaves {m.shared:#x} bytes: {target}"
            m.fault(i, f"descriptor {side}", f"warp {warp}: {text}")
            return
        if pair[warp] != pair[warp - warp % 4]:
            m.fault(i, f"descriptor {side}", f"warp {warp}: its descriptor is not its group's")
            return


def _extent(
    bits: int, rows: int, depth: int, element: int, is_across: bool
) -> tuple[int, int] | None:
    """First byte and last of a matrix in shared memory, by the PTX manual's matrix descriptor."""
    if bits & ~DESCRIPTOR:
        return None
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    swizzle = SWIZZLES[bits >> 62]
    atom = 8 * swizzle
    first = start - (start - SHARED_BASE) % atom if swizzle > SWIZZLES[0] else start
    across = rows * element
    if not is_across:
        reach = (rows // 8 - 1) * stride
    elif across >= swizzle:
        reach = max(0, across // swizzle - 1) * leading + (depth // 8 - 1) * stride
    else:
        reach = (depth // 8 - 1) * stride
    return start, first + reach + atom


def _wait_for_products(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    """WARPGROUP.DEPBAR: all groups of products but the last few have ended."""
    if i.has("DEPBAR"):
        left = i.operands[1].index
        m.in_flight = [(group, read) for group, read in m.in_flight if group >= m.groups - left]


WRITES_NOTHING = frozenset(
    ("STS", "STSM", "STG", "STL", "RED", "REDG", "LDGSTS", "WARPGROUP", "HGMMA")
)


def check_in_flight(m: BlockMemory, i: Instruction) -> None:
    """Fault where a register is written that a product under way still reads."""
    written = next((x for x in i.operands if not x.is_predicate), None)
    if written is None or written.kind != "R" or i.name in WRITES_NOTHING:
        return
    registers = set(range(written.index, written.index + max(1, i.bytes // 4)))
    if any(registers & read for _, read in m.in_flight):
        m.fault(i, "in flight", f"{written.text} is written while a product may still read it")


OPERATIONS: dict[str, Operation] = {
    "STS": _store_shared,
    "LDS": _load_shared,
    "LDSM": _load_matrices,
    "STSM": _store_matrices,
    "LDGSTS": _copy_to_shared,
    "LDG": _load_global,
    "STG": _store_global,
    "RED": _store_global,
    "REDG": _store_global,
    "ATOMG": _add_global,
    "STL": _store_stack,
    "LDL": _load_stack,
    "HGMMA": _product,
    "WARPGROUP": _wait_for_products,
}

"""Instructions on integers and predicates; those on floating-point numbers give data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cellgen.proof.machine.lanes import HALF, LOW, WARP, BlockState, Lanes, MachineError, Wide
from cellgen.proof.machine.sass import Instruction, SassOperand

Integers = npt.NDArray[np.int64]
Operation = Callable[[BlockState, Instruction, Lanes], None]


def _split(i: Instruction) -> tuple[SassOperand, list[SassOperand], list[SassOperand]]:
    """The destination, predicates that are written behind it, and what is read."""
    destination, *rest = i.operands
    outs: list[SassOperand] = []
    while rest and rest[0].is_predicate:
        outs.append(rest.pop(0))
    return destination, outs, rest


def _carries(s: BlockState, outs: list[SassOperand], total: Wide, mask: Lanes) -> None:
    for number, out in enumerate(outs):
        s.set_bit(out, (total >> HALF) > np.uint64(number), mask)


def _carried_in(s: BlockState, i: Instruction, rest: list[SassOperand]) -> Wide:
    total = np.zeros(s.lanes, np.uint64)
    if i.has("X"):
        for operand in rest:
            total = total + s.bit(operand).astype(np.uint64)
    return total


def _move(s: BlockState, i: Instruction, mask: Lanes) -> None:
    s.set(i.operands[0], s.word(i.operands[1]), mask)


def _load_constant(s: BlockState, i: Instruction, mask: Lanes) -> None:
    for part in range(max(1, i.bytes // 4)):
        s.set(i.operands[0], s.word(i.operands[1], part), mask, part)


def _clear(s: BlockState, i: Instruction, mask: Lanes) -> None:
    zero = np.zeros(s.lanes, np.uint32)
    for part in range(1 if i.has("32") else 2):
        s.set(i.operands[0], zero, mask, part)


def _special(s: BlockState, i: Instruction, mask: Lanes) -> None:
    name = i.operands[1].text
    if name in s.by_lane:
        value = s.by_lane[name]
    elif name in s.special:
        value = np.full(s.lanes, s.special[name])
    else:
        raise MachineError(f"the special register {name} is not known to this check")
    s.set(i.operands[0], value.astype(np.uint32), mask)


def _multiply_add(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, outs, (a, b, c, *rest) = _split(i)
    if not (i.has("WIDE") or i.has("HI")):
        product = s.word(a).astype(np.uint64) * s.word(b).astype(np.uint64)
        s.set(destination, (product + s.carried(c) + _carried_in(s, i, rest)) & LOW, mask)
        return
    if i.has("U32"):
        product = s.word(a).astype(np.uint64) * s.word(b).astype(np.uint64)
    else:
        signed = [s.word(x).astype(np.int32).astype(np.int64) for x in (a, b)]
        product = (signed[0] * signed[1]).astype(np.uint64)
    addend = s.wide(c)
    total = product + addend + _carried_in(s, i, rest)
    for out in outs:
        s.set_bit(out, total < addend, mask)
    if i.has("WIDE"):
        s.set_wide(destination, total, mask)
    else:
        s.set(destination, total >> HALF, mask)


def _add(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, outs, rest = _split(i)
    if i.has("64"):
        total = s.wide(rest[0]) + s.wide(rest[1]) + s.wide(rest[2])
        s.set_wide(destination, total, mask)
        return
    total = sum((s.carried(x) for x in rest[:3]), np.zeros(s.lanes, np.uint64))
    total = total + _carried_in(s, i, rest[3:])
    _carries(s, outs, total, mask)
    s.set(destination, total & LOW, mask)


def _add_two(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, a, b, *_ = i.operands
    s.set(destination, (s.carried(a) + s.carried(b)) & LOW, mask)


def _halves(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """HFMA2 of zeros and two numbers is how a constant is loaded; anything else gives data."""
    destination, a, b, *rest = i.operands
    if len(rest) != 2 or a.text.lstrip("-") != "RZ" or b.text != "RZ":
        s.set_data(destination, mask)
        return
    high, low = (int(np.float16(float(x.text)).view(np.uint16)) for x in rest)
    s.set(destination, np.full(s.lanes, high << 16 | low, np.uint32), mask)


def _shift_add(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """LEA: (a << n) + b, or its upper half."""
    destination, outs, (a, b, *rest) = _split(i)
    if not i.has("HI"):
        shifted = (s.word(a).astype(np.uint64) << np.uint64(rest[0].index)) & LOW
    elif i.has("SX32"):
        signed = s.word(a).astype(np.int32).astype(np.int64)
        shifted = ((signed << rest[0].index) >> 32).astype(np.uint64) & LOW
    else:
        pair = s.word(a).astype(np.uint64) | (s.word(rest.pop(0)).astype(np.uint64) << HALF)
        shifted = ((pair << np.uint64(rest[0].index)) >> HALF) & LOW
    total = shifted + s.carried(b) + _carried_in(s, i, rest[1:])
    _carries(s, outs, total, mask)
    s.set(destination, total & LOW, mask)


def _logic(s: BlockState, i: Instruction, mask: Lanes) -> None:
    operands = list(i.operands)
    out = operands.pop(0) if operands[0].is_predicate else None
    destination, a, b, c, table, *last = operands
    x, y, z = s.word(a), s.word(b), s.word(c)
    value = np.zeros(s.lanes, np.uint32)
    for row in range(8):
        if table.index >> row & 1:
            value |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    if out is not None:
        bit = value != 0
        joined = s.bit(last[0]) if last else np.zeros(s.lanes, bool)
        s.set_bit(out, bit & joined if i.has("PAND") else bit | joined, mask)
    s.set(destination, value, mask)


def _funnel_shift(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, low, count, high = i.operands
    is_wide = i.has("U64") or i.has("S64")
    by = s.word(count)
    most = 63 if is_wide else 31
    by = by & np.uint32(most) if i.has("W") else np.minimum(by, np.uint32(63 if is_wide else 32))
    pair = s.word(low).astype(np.uint64) | (s.word(high).astype(np.uint64) << HALF)
    value: Wide
    if i.has("L"):
        value = np.left_shift(pair, by, dtype=np.uint64)
    elif i.has("S32") or i.has("S64"):
        value = (pair.astype(np.int64) >> by.astype(np.int64)).astype(np.uint64)
    else:
        value = np.right_shift(pair, by, dtype=np.uint64)
    shifted: Wide = value >> HALF if i.has("HI") else value
    s.set(destination, shifted & LOW, mask)


def _extend_sign(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, a, bits, *_ = i.operands
    count = np.minimum(s.word(bits), np.uint32(32)).astype(np.uint64)
    x = s.word(a).astype(np.uint64)
    if i.has("U32"):
        value = x & ((np.uint64(1) << count) - np.uint64(1))
    else:
        left = np.uint64(64) - np.maximum(count, np.uint64(1))
        value = ((x << left).astype(np.int64) >> left.astype(np.int64)).astype(np.uint64)
    s.set(destination, value & LOW, mask)


def _permute_bytes(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, a, chosen, b = i.operands
    pair = s.word(a).astype(np.uint64) | (s.word(b).astype(np.uint64) << HALF)
    choice = s.word(chosen).astype(np.uint64)
    value = np.zeros(s.lanes, np.uint64)
    for byte in range(4):
        nibble = (choice >> np.uint64(4 * byte)) & np.uint64(15)
        one = (pair >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign = np.where(one & np.uint64(128), np.uint64(255), np.uint64(0))
        one = np.where(nibble & np.uint64(8), sign, one)
        value |= one << np.uint64(8 * byte)
    s.set(destination, value, mask)


COMPARE: dict[str, Callable[[Integers, Integers], Lanes]] = {
    "GT": np.greater,
    "GE": np.greater_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def _ordered(s: BlockState, i: Instruction, operand: SassOperand) -> Integers:
    return _signed(s.word(operand).astype(np.uint64), i)


def _signed(word: Wide, i: Instruction) -> Integers:
    """32 bits as a number, with a sign or, with U32, without."""
    number = word.astype(np.int64)
    return number if i.has("U32") else number - ((number >> 31) << 32)


def _compare(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """ISETP: with EX, the upper halves of a comparison whose lower halves gave a predicate."""
    first, second, a, b, joined, *lower = i.operands
    x, y = _ordered(s, i, a), _ordered(s, i, b)
    result = COMPARE[i.parts[1]](x, y)
    if i.has("EX"):
        below = s.bit(lower[0])
        unequal = x != y
        result = below | unequal if i.parts[1] == "NE" else np.where(unequal, result, below)
    other = s.bit(joined)
    joins: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
        "AND": np.logical_and,
        "OR": np.logical_or,
        "XOR": np.logical_xor,
    }
    join = next(joins[part] for part in i.parts if part in joins)
    s.set_bit(first, join(result, other), mask)
    s.set_bit(second, join(~result, other), mask)


def _predicates(s: BlockState, i: Instruction, mask: Lanes) -> None:
    first, second, a, b, c, table, other = i.operands
    row = s.bit(a) * 4 + s.bit(b) * 2 + s.bit(c) * 1
    s.set_bit(first, (table.index >> row & 1).astype(bool), mask)
    s.set_bit(second, (other.index >> row & 1).astype(bool), mask)


def _select(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, a, b, chosen = i.operands
    s.set(destination, np.where(s.bit(chosen), s.word(a), s.word(b)), mask)


def _predicates_to_register(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, _, old, kept = i.operands
    bits = np.zeros(s.lanes, np.uint32)
    for number in range(7):
        bits |= s.P[number].astype(np.uint32) << np.uint32(number)
    which = np.uint32(kept.index & 0xFFFFFFFF)
    s.set(destination, (s.word(old) & ~which) | (bits & which), mask)


def _register_to_predicates(s: BlockState, i: Instruction, mask: Lanes) -> None:
    value, which = s.word(i.operands[1]), i.operands[2].index
    for number in range(7):
        if which >> number & 1:
            s.P[number][mask] = (value >> np.uint32(number) & np.uint32(1)).astype(bool)[mask]


def _to_uniform(s: BlockState, i: Instruction, mask: Lanes) -> None:
    source = i.operands[-1]
    s.set(next(x for x in i.operands if x.kind == "UR"), s.word(source), mask)


def _shuffle(s: BlockState, i: Instruction, mask: Lanes) -> None:
    out, destination, source, by, clamp = i.operands
    shape = (s.warps, WARP)
    values, lane = s.word(source).reshape(shape), np.arange(WARP)[None]
    count = s.word(by).reshape(shape).astype(np.int64) & 31
    bounds = s.word(clamp).reshape(shape).astype(np.int64)
    segment = bounds >> 8 & 31
    low = lane & segment
    high = low | (bounds & 31 & ~segment)
    to = {"IDX": low | (count & ~segment), "UP": lane - count, "DOWN": lane + count}
    at = to.get(i.parts[1], lane ^ count)
    inside = at >= high if i.parts[1] == "UP" else at <= high
    at = np.clip(np.where(inside, at, lane), 0, WARP - 1)
    s.set_bit(out, inside.reshape(-1), mask)
    s.set(destination, np.take_along_axis(values, at, 1).reshape(-1), mask)


def _ballot(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """VOTE with a register: which lanes of a warp are there with a predicate that holds."""
    if not i.has("ANY") or i.operands[0].is_predicate:
        raise MachineError(f"the instruction {i.text} is not known to this check")
    holds = (mask & s.bit(i.operands[-1])).reshape(s.warps, WARP)
    bits = (holds.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(1, dtype=np.uint64)
    s.set(i.operands[0], np.repeat(bits, WARP), mask)


def _count_bits(s: BlockState, i: Instruction, mask: Lanes) -> None:
    bits = s.word(i.operands[-1])[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    s.set(i.operands[0], bits.sum(1).astype(np.uint32), mask)


def _highest_bit(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """FLO: where the highest bit that is set stands, all bits where none is."""
    word = s.word(i.operands[-1])
    place = np.where(word > 0, np.frexp(word.astype(np.float64))[1] - 1, -1)
    s.set(i.operands[0], place.astype(np.int64).astype(np.uint64) & LOW, mask)


def _reduce(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """REDUX of numbers: the least, or the largest, of the lanes of a warp that are there."""
    if not (i.has("MIN") or i.has("MAX")):
        raise MachineError(f"the instruction {i.text} is not known to this check")
    number = s.word(i.operands[1]).astype(np.int64)
    number = number - ((number >> 31) << 32) if i.has("S32") else number
    far = np.int64(1 << 40)
    there = np.where(mask, number, far if i.has("MIN") else -far).reshape(s.warps, WARP)
    taken = there.min(1) if i.has("MIN") else there.max(1)
    s.set(i.operands[0], np.repeat(taken, WARP).astype(np.uint64) & LOW, mask)


def _absolute(s: BlockState, i: Instruction, mask: Lanes) -> None:
    s.set(i.operands[0], np.abs(s.word(i.operands[1]).astype(np.int32)).astype(np.uint32), mask)


def _integer_to_float(s: BlockState, i: Instruction, mask: Lanes) -> None:
    s.set(i.operands[0], s.word(i.operands[1]).astype(np.float32).view(np.uint32), mask)


def _reciprocal(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """MUFU: a reciprocal takes part in integer division; all others give data."""
    if not i.has("RCP"):
        s.set_data(i.operands[0], mask)
        return
    with np.errstate(all="ignore"):
        value = np.float32(1) / s.word(i.operands[1]).view(np.float32)
    s.set(i.operands[0], value.astype(np.float32).view(np.uint32), mask)


def _float_to_integer(s: BlockState, i: Instruction, mask: Lanes) -> None:
    with np.errstate(all="ignore"):
        value = s.word(i.operands[1]).view(np.float32).astype(np.float64)
        value = np.nan_to_num(value, nan=0.0, posinf=2.0**32 - 1, neginf=0.0)
    s.set(i.operands[0], np.clip(value, 0, 2**32 - 1).astype(np.uint64), mask)


def _minimum(s: BlockState, i: Instruction, mask: Lanes) -> None:
    destination, a, b, is_minimum, *_ = i.operands
    x, y = _ordered(s, i, a), _ordered(s, i, b)
    chosen = np.where(s.bit(is_minimum), np.minimum(x, y), np.maximum(x, y))
    s.set(destination, chosen.astype(np.uint32), mask)


def _sum_minimum(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """VIADDMNMX: the smaller, or the larger, of a + b and c; the sum wraps."""
    destination, a, b, c, is_minimum, *_ = i.operands
    total = (s.carried(a) + s.carried(b)) & LOW
    x, y = _signed(total, i), _ordered(s, i, c)
    chosen = np.where(s.bit(is_minimum), np.minimum(x, y), np.maximum(x, y))
    s.set(destination, chosen.astype(np.uint32), mask)


def _data(s: BlockState, i: Instruction, mask: Lanes) -> None:
    s.set_data(i.operands[0], mask)


def _data_pairs(s: BlockState, i: Instruction, mask: Lanes) -> None:
    s.set_data(i.operands[0], mask, 4)


def _data_bits(s: BlockState, i: Instruction, mask: Lanes) -> None:
    for out in i.operands[:2]:
        s.set_bit(out, np.zeros(s.lanes, bool), mask)


def _nothing(s: BlockState, i: Instruction, mask: Lanes) -> None:
    """What orders other instructions, and has no result."""


GIVE_DATA = (
    *("FMUL", "FADD", "FFMA", "FSEL", "FMNMX", "F2FP", "F2F", "HADD2", "HMUL2", "FSWZADD"),
    *("FCHK", "FSET"),
)
ORDER = (
    *("NOP", "BSSY", "BSYNC", "BAR", "LDGDEPBAR", "DEPBAR", "MEMBAR", "FENCE", "WARPSYNC", "CCTL"),
    *("ERRBAR", "CGAERRBAR", "YIELD", "BREAK"),
)
OPERATIONS: dict[str, Operation] = {
    "MOV": _move,
    "UMOV": _move,
    "LDC": _load_constant,
    "ULDC": _load_constant,
    "CS2R": _clear,
    "S2R": _special,
    "S2UR": _special,
    "IMAD": _multiply_add,
    "UIMAD": _multiply_add,
    "VIADD": _add_two,
    "IADD3": _add,
    "UIADD3": _add,
    "LEA": _shift_add,
    "ULEA": _shift_add,
    "LOP3": _logic,
    "ULOP3": _logic,
    "SHF": _funnel_shift,
    "USHF": _funnel_shift,
    "SGXT": _extend_sign,
    "USGXT": _extend_sign,
    "PRMT": _permute_bytes,
    "UPRMT": _permute_bytes,
    "ISETP": _compare,
    "UISETP": _compare,
    "PLOP3": _predicates,
    "UPLOP3": _predicates,
    "SEL": _select,
    "USEL": _select,
    "P2R": _predicates_to_register,
    "R2P": _register_to_predicates,
    "R2UR": _to_uniform,
    "SHFL": _shuffle,
    "VOTE": _ballot,
    "VOTEU": _ballot,
    "POPC": _count_bits,
    "UPOPC": _count_bits,
    "FLO": _highest_bit,
    "UFLO": _highest_bit,
    "REDUX": _reduce,
    "IABS": _absolute,
    "I2F": _integer_to_float,
    "I2FP": _integer_to_float,
    "MUFU": _reciprocal,
    "F2I": _float_to_integer,
    "VIMNMX": _minimum,
    "IMNMX": _minimum,
    "VIADDMNMX": _sum_minimum,
    "HMMA": _data_pairs,
    "HFMA2": _halves,
    "FSETP": _data_bits,
    **dict.fromkeys(GIVE_DATA, _data),
    **dict.fromkeys(ORDER, _nothing),
}

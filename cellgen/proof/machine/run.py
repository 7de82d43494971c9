"""Go through the machine code of one block, all threads side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cellgen.proof.machine import integers, memory
from cellgen.proof.machine.lanes import WARP, BlockState, Lanes, MachineError, Words
from cellgen.proof.machine.memory import BlockMemory
from cellgen.proof.machine.sass import Code, Instruction, read
from cellgen.proof.machine.sass import operand as operand_of

Places = npt.NDArray[np.int64]
MOST_STEPS = 200_000
PARAMETERS = 0x210
"""Of bank 0: where the arguments of a kernel begin on Hopper."""
THREADS, GRID = 0x0, 0xC
TARGET = re.compile(r"\((\.L\w+|\$[\w$]+)\)")
FAR, APART = 0x7F0000000000, 1 << 32
"""Where tensors lie, and how far from each other, so that no address of one is another's."""


@dataclass(frozen=True)
class TensorArgument:
    """An argument in global memory, of some bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class MachineLaunch:
    """What a kernel is launched with: warps, shared bytes, arguments, grid, programs that run.

    Arguments are tensors or numbers of 32 bits, in the order of the kernel's parameters. ``words``
    stand in tensors whose numbers decide where a program goes; the first of ``counter`` is how many
    programs have begun.
    """

    warps: int
    shared: int
    arguments: tuple[TensorArgument | int, ...]
    programs: tuple[tuple[int, int, int], ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    words: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counter: str = ""


@dataclass(frozen=True)
class MachineFault:
    """An instruction that must not be: where, its kind, what is wrong, its text, which block."""

    address: int
    kind: str
    message: str
    text: str
    program: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.address:#06x} {self.text}: {self.message} (program {self.program})"


def check(text: str, launch: MachineLaunch) -> list[MachineFault]:
    """Run the chosen programs of a kernel, of which ``nvdisasm -c`` printed the text.

    Raises MachineError for an instruction that is not known, and where nothing was checked.
    """
    code = read(text)
    by_address = {i.address: i for i in code.instructions}
    faults: list[MachineFault] = []
    for program in launch.programs:
        reached = _run(code, launch, program)
        if not reached.checked:
            raise MachineError(f"program {program} reads and writes nothing: not a kernel's text?")
        for (address, kind), message in sorted(reached.faults.items()):
            text = by_address[address].text
            faults.append(MachineFault(address, kind, message, text, program))
    return faults


def _arguments(launch: MachineLaunch) -> tuple[dict[int, int], dict[str, tuple[int, int]]]:
    """Words of bank 0, and where each tensor lies."""
    words, tensors, at = {THREADS: launch.warps * WARP, 0x208: 0, 0x20C: 0}, {}, PARAMETERS
    words |= {GRID + 4 * axis: many for axis, many in enumerate(launch.grid)}
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, int):
            words[at] = argument & 0xFFFFFFFF
            at += 4
            continue
        at += -at % 8
        start = FAR + number * APART
        tensors[argument.name] = (start, start + argument.bytes)
        words |= {at: start & 0xFFFFFFFF, at + 4: start >> 32}
        at += 8
    at += -at % 8
    return words | {at + 4 * n: 0 for n in range(4)}, tensors  # no scratch in global memory


def _words(launch: MachineLaunch, program: tuple[int, int, int]) -> dict[str, Words]:
    """What a program finds that begins behind all before it."""
    words = {n: np.array(of, np.int64).astype(np.uint32) for n, of in launch.words.items()}
    if launch.counter:
        x, y, z = program
        words[launch.counter][0] = x + launch.grid[0] * (y + launch.grid[1] * z)
    return words


def _run(code: Code, launch: MachineLaunch, program: tuple[int, int, int]) -> BlockMemory:
    words, tensors = _arguments(launch)
    state = BlockState(launch.warps * WARP, words, program)
    reached = BlockMemory(launch.shared, tensors, _words(launch, program))
    at, alive = np.zeros(state.lanes, np.int64), np.ones(state.lanes, bool)
    called = np.zeros(state.lanes, np.int64)
    for here, lanes in _order(at, alive, called):
        if here >= len(code.instructions):
            raise MachineError("the kernel ends without EXIT")
        i = code.instructions[here]
        mask = lanes & state.bit(i.guard) if i.guard else lanes
        after = np.full(state.lanes, here + 1)
        if i.name in ("BRA", "CALL"):
            _branch(state, reached, i, mask, after, code)
            called[mask] += i.name == "CALL"
        elif i.name == "RET":
            _return(state, i, mask, after, code)
            called[mask] -= 1
        elif i.name == "EXIT":
            _decided(state, reached, i, mask, lanes)
            alive &= ~mask
        elif mask.any():
            _one(state, reached, i, mask)
        at[lanes] = after[lanes]
    return reached


def _order(at: Places, alive: Lanes, called: Places) -> Iterator[tuple[int, Lanes]]:
    """The next instruction, and the lanes that stand there, until none is left.

    Lanes within a function go first, so that a warp is whole where it goes on.
    """
    for _ in range(MOST_STEPS):
        if not alive.any():
            return
        within = alive & (called == called[alive].max())
        here = int(at[within].min())
        yield here, within & (at == here)
    raise MachineError(f"a block takes more than {MOST_STEPS} instructions")


def _branch(
    s: BlockState,
    m: BlockMemory,
    i: Instruction,
    mask: Lanes,
    after: Places,
    code: Code,
) -> None:
    label = TARGET.search(i.text)
    if label is None or label[1] not in code.labels:
        raise MachineError(f"the branch {i.text} goes nowhere that is known")
    lanes = mask
    for operand in i.operands:
        if operand.is_predicate:
            mask = mask & s.bit(operand)
    _decided(s, m, i, mask, lanes)
    after[mask] = code.labels[label[1]]


def _return(s: BlockState, i: Instruction, mask: Lanes, after: Places, code: Code) -> None:
    """Go back from a function to the address that a pair of registers holds."""
    address = s.wide(operand_of(i.operands[0].text.split()[0]))
    places = {instruction.address: n for n, instruction in enumerate(code.instructions)}
    for one in np.unique(address[mask]):
        if int(one) not in places:
            raise MachineError(f"{i.text} goes back to {one:#x}, where no instruction is")
        after[mask & (address == one)] = places[int(one)]


def _decided(s: BlockState, m: BlockMemory, i: Instruction, taken: Lanes, lanes: Lanes) -> None:
    """Fault where what nobody wrote decides which way a thread goes."""
    if s.differs(taken, lanes).any():
        m.fault(i, "branch", "what nobody wrote decides which way a thread goes")


def _one(s: BlockState, m: BlockMemory, i: Instruction, mask: Lanes) -> None:
    in_memory = memory.OPERATIONS.get(i.name)
    if m.in_flight:
        memory.check_in_flight(m, i)
    if in_memory is not None:
        in_memory(s, m, i, mask)
        return
    operation = integers.OPERATIONS.get(i.name)
    if operation is None:
        raise MachineError(f"the instruction {i.text} is not known to this check")
    operation(s, i, mask)

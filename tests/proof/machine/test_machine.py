"""Machine code of Hopper, run on a CPU: the known miscompilation, planted faults, arithmetic.

``nu.ptx`` is a kernel of the gated delta rule (values of a chunk, D = 64, chunks of 64, blocks of
32) as Triton 3.6 writes it, without its notes for debuggers. ``nu_ptxas_12_8.sass`` is what ptxas
12.8.93 makes of it: the base of three descriptors is never written. Other releases are right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cellgen.errors import BuildError
from cellgen.proof.machine import MachineFault, MachineLaunch, assemble, check, disassemble
from cellgen.proof.machine.assembled import tool
from cellgen.proof.machine.integers import OPERATIONS
from cellgen.proof.machine.lanes import BlockState, MachineError
from cellgen.proof.machine.run import TensorArgument
from cellgen.proof.machine.sass import read

HERE = Path(__file__).parent
B, N, T, D, BV = 2, 3, 128, 64, 32
ROWS = B * T * N
ARGUMENTS: tuple[TensorArgument | int, ...] = (
    TensorArgument("k0", 2 * ROWS * D),
    TensorArgument("w0", 2 * ROWS * D),
    TensorArgument("n0", 2 * ROWS * D),
    TensorArgument("g", 4 * ROWS),
    TensorArgument("nu", 2 * ROWS * D),
    TensorArgument("first", 4 * B * N * D * D),
    T,
    N,
)
LAUNCH = MachineLaunch(4, 12288, ARGUMENTS, ((0, 0, 0), (D // BV - 1, B * N - 1, 0)))


def has_tools() -> bool:
    try:
        return bool(tool("ptxas") and tool("nvdisasm"))
    except BuildError:
        return False


with_tools = pytest.mark.skipif(not has_tools(), reason="neither Triton nor CUDA is installed")


def bad() -> str:
    return (HERE / "nu_ptxas_12_8.sass").read_text(encoding="utf-8")


@cache
def good() -> str:
    ptx = (HERE / "nu.ptx").read_text(encoding="utf-8")
    return disassemble(assemble(ptx).cubin)


def test_a_descriptor_whose_base_is_lost_is_a_fault() -> None:
    faults = check(bad(), LAUNCH)
    assert {(f.kind, f.address) for f in faults} == {
        ("descriptor B", address) for address in (0x21E0, 0x21F0, 0x2220)
    }
    assert "made of what nobody wrote" in str(faults[0])
    assert "HGMMA" in str(faults[0])


@with_tools
def test_the_same_kernel_by_the_installed_assembler_has_no_fault() -> None:
    assert check(good(), LAUNCH) == []


@with_tools
def test_registers_and_spills_are_read() -> None:
    made = assemble((HERE / "nu.ptx").read_text(encoding="utf-8"))
    assert 64 <= made.registers <= 255
    assert made.spilled == 0


@pytest.mark.skipif("CELLGEN_OLD_PTXAS" not in os.environ, reason="names no ptxas 12.8")
@with_tools
def test_an_old_assembler_is_caught_in_the_act() -> None:
    """CELLGEN_OLD_PTXAS: that of the package nvidia-cuda-nvcc-cu12 12.8, for example."""
    ptx = (HERE / "nu.ptx").read_text(encoding="utf-8")
    made = assemble(ptx, ptxas=os.environ["CELLGEN_OLD_PTXAS"])
    assert check(disassemble(made.cubin), LAUNCH)


@with_tools
def test_an_argument_that_is_too_small_is_a_fault() -> None:
    for number, argument in enumerate(ARGUMENTS):
        if isinstance(argument, TensorArgument):
            small = TensorArgument(argument.name, argument.bytes - 16)
            arguments = (*ARGUMENTS[:number], small, *ARGUMENTS[number + 1 :])
            faults = check(good(), MachineLaunch(4, 12288, arguments, LAUNCH.programs))
            assert {f.kind for f in faults} == {"global"}, argument.name
            assert argument.name in faults[0].message
    assert check(good(), MachineLaunch(4, 12288 - 1024, ARGUMENTS, LAUNCH.programs))


@with_tools
def test_the_first_write_of_every_register_that_descriptors_need_is_missed() -> None:
    """Drop one instruction at a time. A later write leaves an older number, which may be right."""
    lines = good().splitlines()
    dropped = _first_writes(lines)
    assert len(dropped) > 10
    assert [lines[n] for n in dropped if not _faults_without(lines, n)] == []


HOW_CACHED = "c[0x0][0x208]"
"""What loads and stores take beside an address: how global memory is cached."""


def _first_writes(lines: list[str]) -> list[int]:
    """Lines before the first product that write a uniform register which was not written yet."""
    written: set[int] = set()
    places = []
    for number, line in enumerate(lines):
        if "HGMMA" in line:
            return places
        match = re.search(r"\b(R2UR\S*|U[A-Z0-9.]+) UR(\d+)", line)
        if match is None:
            continue
        register, is_pair = int(match[2]), ".64" in match[1]
        if register not in written and HOW_CACHED not in line:
            places.append(number)
        written |= {register, register + is_pair}
    raise AssertionError("there is no product")


def _faults_without(lines: list[str], number: int) -> list[MachineFault] | str:
    text = re.sub(r"(/\*[0-9a-f]{4,}\*/\s+).*", r"\1NOP ;", lines[number])
    try:
        return check("\n".join([*lines[:number], text, *lines[number + 1 :]]), LAUNCH)
    except MachineError as error:
        return str(error)


def program(*lines: str) -> str:
    return "\n".join(f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate((*lines, "EXIT")))


def kinds(*lines: str, shared: int = 0x100) -> list[str]:
    launch = MachineLaunch(4, shared, (TensorArgument("x", 0x1000),), ((0, 0, 0),))
    return [fault.kind for fault in check(program(*lines), launch)]


LOAD_X = ("S2R R1, SR_TID.X", "LDC.64 R2, c[0x0][0x210]", "IMAD.WIDE R2, R1, 0x4, R2")


def test_addresses_in_global_memory_are_checked() -> None:
    assert kinds(*LOAD_X, "LDG.E R4, desc[UR4][R2.64]") == []
    assert kinds(*LOAD_X, "LDG.E R4, desc[UR4][R2.64+0xf00]") == ["global"]
    assert kinds(*LOAD_X, "LDG.E.64 R4, desc[UR4][R2.64]") == ["misaligned"]
    assert kinds("LDG.E R4, desc[UR4][R2.64]") == ["unwritten"]
    assert kinds(*LOAD_X, "IADD3 R2, R9, R2, RZ", "STG.E desc[UR4][R2.64], R1") == ["unwritten"]


def test_addresses_in_shared_memory_are_checked() -> None:
    start = ("UMOV UR4, 0x400", "S2R R1, SR_TID.X")
    assert kinds(*start, "STS.U8 [R1+UR4], R1") == []
    assert kinds(*start, "STS [R1.X4+UR4], R1") == ["shared"]
    assert kinds(*start, "STS [UR5], R1") == ["unwritten"]


def test_what_decides_a_branch_has_to_be_written() -> None:
    tail = "LDG.E R4, desc[UR4][R2.64]"
    assert kinds(*LOAD_X, "ISETP.GE.AND P0, PT, R1, 0x10, PT", "@P0 EXIT", tail) == []
    assert kinds(*LOAD_X, "ISETP.GE.AND P0, PT, R9, 0x10, PT", "@P0 EXIT", tail) == ["branch"]


def test_the_stack_gives_back_what_was_stored_and_no_base() -> None:
    start = (*LOAD_X, "LDC R8, c[0x0][0x28]")
    assert (
        kinds(
            *start, "STL.64 [R8+-0x10], R2", "LDL.64 R6, [R8+-0x10]", "LDG.E R4, desc[UR4][R6.64]"
        )
        == []
    )
    assert kinds(*start, "LDL.64 R6, [R8+-0x10]", "LDG.E R4, desc[UR4][R6.64]") == ["unwritten"]
    assert kinds(*start, "IADD3 R2, R2, R8, RZ", "LDG.E R4, desc[UR4][R2.64]") == ["unwritten"]


def test_a_register_that_a_product_reads_is_left_alone_until_it_ends() -> None:
    base = ("UMOV UR4, 0x40", "UMOV UR5, 0x40000000", "UMOV UR6, 0x40", "UMOV UR7, 0x40000000")
    start = "HGMMA.64x8x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0"
    wait, write = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "IMAD.MOV.U32 R6, RZ, RZ, R1"
    assert kinds(*base, start, wait, write, shared=0x1000) == []
    assert kinds(*base, start, write, wait, shared=0x1000) == ["in flight"]
    assert kinds(*base, start, "IMAD.MOV.U32 R8, RZ, RZ, R1", wait, shared=0x1000) == []


def test_an_instruction_that_is_not_known_is_named() -> None:
    with pytest.raises(MachineError, match=r"FROB R1, R2.*is not known"):
        kinds("FROB R1, R2")
    with pytest.raises(MachineError, match="reads and writes nothing"):
        kinds("NOP")


def result(line: str, **registers: int) -> int:
    """What one instruction gives in R0, of registers by name."""
    (i,) = read(f"/*0000*/ {line} ;").instructions
    s = BlockState(32, {}, (0, 0, 0))
    s.P[0][:] = bool(registers.pop("P0", 0))
    for name, value in registers.items():
        s.R[int(name[1:])][:] = value & 0xFFFFFFFF
    OPERATIONS[i.name](s, i, np.ones(s.lanes, bool))
    assert (s.R[0] == s.R[0][0]).all()
    return int(s.R[0][0]) | int(s.P[1][0]) << 32 if "P1" in line else int(s.R[0][0])


M = 0xFFFFFFFF
A, C = 0x89ABCDEF, 0x12345678


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("IMAD R0, R1, R2, R3", A * C + 7),
        ("IMAD.HI.U32 R0, R1, R2, RZ", A * C >> 32),
        ("IMAD.HI R0, R1, R2, RZ", (A - 2**32) * C >> 32),
        ("IMAD.SHL.U32 R0, R2, 0x10, RZ", C << 4),
        ("IADD3 R0, R1, -R2, R3", A - C + 7),
        ("IADD3.X R0, R1, ~R2, RZ, P0, !PT", A - C),
        ("VIADD R0, R1, 0xffffffff", A - 1),
        ("LEA R0, R1, R2, 0x4", (A << 4) + C),
        ("LEA.HI R0, R1, R2, R3, 0x4", (A >> 28) + (7 << 4) + C),
        ("LEA.HI.SX32 R0, R1, R2, 0x4", ((A - 2**32) >> 28) + C),
        ("LOP3.LUT R0, R1, R2, R3, 0xe8, !PT", (A & C) | (A & 7) | (C & 7)),
        ("LOP3.LUT R0, R1, 0xff, RZ, 0xc0, !PT", A & 0xFF),
        ("SHF.R.U32.HI R0, RZ, R3, R1", A >> 7),
        ("SHF.R.S32.HI R0, RZ, R3, R1", (A - 2**32) >> 7),
        ("SHF.L.U32 R0, R1, R3, RZ", A << 7),
        ("SHF.L.U64.HI R0, R1, R3, R2", (C << 7) | (A >> 25)),
        ("SHF.R.U64 R0, R1, R3, R2", (A >> 7) | (C << 25)),
        ("SGXT.U32 R0, R1, 0xe", A & 0x3FFF),
        ("SGXT R0, R1, 0x8", 0xEF - 256),
        ("PRMT R0, R1, 0x7540, R2", 0x125678EF),
        ("SEL R0, R1, R2, P0", A),
        ("SEL R0, R1, R2, !P0", C),
        ("IABS R0, R1", 2**32 - A),
        ("VIMNMX R0, R1, R2, PT", A),
        ("VIADDMNMX R0, R1, R2, R3, PT", A + C),
        ("VIADDMNMX R0, R1, R2, R3, !PT", 7),
        ("VIADDMNMX.U32 R0, R1, R2, R3, PT", 7),
        ("VIMNMX.U32 R0, R1, R2, PT", C),
        ("HFMA2.MMA R0, -RZ, RZ, 0, 4.76837158203125e-07", 8),
        ("POPC R0, R2", 13),
        ("FLO.U32 R0, R2", 28),
        ("FLO.U32 R0, RZ", M),
    ],
)  # fmt: skip
def test_arithmetic(line: str, expected: int) -> None:
    assert result(line, R1=A, R2=C, R3=7, P0=1) == expected & M


def test_lanes_of_a_warp_vote_and_find_the_least() -> None:
    for line, expected in (("VOTEU.ANY UR0, UPT, PT", 0xF0), ("REDUX.MIN.S32 UR0, R1", M - 6)):
        (i,) = read(f"/*0000*/ {line} ;").instructions
        s = BlockState(32, {}, (0, 0, 0))
        s.R[1][:] = -s.thread
        there = (s.thread >= 4) & (s.thread < 8)
        OPERATIONS[i.name](s, i, there)
        assert [*s.UR[0]] == [expected] * 2
    with pytest.raises(MachineError, match=r"REDUX\.SUM"):
        kinds("REDUX.SUM UR0, R1")


def test_a_function_is_called_and_goes_back() -> None:
    start = (*LOAD_X, "ISETP.GT.AND P0, PT, R1, 0x7, PT", "MOV R6, 0x70", "@P0 BRA `(.L_x_1)")
    call, back = "CALL.REL.NOINC `($__internal_0_$__root)", "RET.REL.NODEC R6 `(kernel)"
    behind = ("HFMA2.MMA R7, -RZ, RZ, 0, 0", "SHFL.IDX PT, R1, R1, 0x1f, 0x1f", "STG.E [R2.64], R1")
    text = program(*start, call, *behind)

    def function(*lines: str) -> str:
        body = "\n".join(f"/*{0x1000 + 16 * n:04x}*/ {line} ;" for n, line in enumerate(lines))
        return f"{text}\n$__internal_0_$__root:\n{body}"

    launch = MachineLaunch(4, 0x100, (TensorArgument("x", 0x1000),), ((0, 0, 0),))
    clear = "MOV R7, RZ"
    label = re.sub(r"(/\*0070\*/)", r".L_x_1:\n\1", function(clear, back))
    assert check(label, launch) == []
    with pytest.raises(MachineError, match="where no instruction is"):
        check(label.replace(clear, "NOP"), launch)


def test_an_atomic_gives_what_stands_in_a_tensor_that_decides_where_a_program_goes() -> None:
    take = "ATOMG.E.ADD.STRONG.GPU PT, R2, desc[UR4][R2.64], R5"  # over its own address
    lines = ("LDC.64 R2, c[0x0][0x210]", take, "LDC.64 R6, c[0x0][0x218]")
    text = program(*lines, "IMAD.WIDE R6, R2, 0x4, R6", "LDG.E R8, desc[UR4][R6.64]")
    arguments = (TensorArgument("told", 4), TensorArgument("x", 4 * 6))
    for z, kind in ((2, None), (3, "global")):
        launch = MachineLaunch(4, 0, arguments, ((1, 0, z),), (2, 1, 4), {"told": (0,)}, "told")
        assert [fault.kind for fault in check(text, launch)] == ([kind] if kind else [])


@pytest.mark.parametrize("b", [0, 1, 5, 6, M])
def test_a_difference_carries_unless_it_borrows(b: int) -> None:
    carry = result("IADD3 R0, P1, R1, -R2, RZ", R1=5, R2=b) >> 32
    assert carry == (b <= 5)


def test_64_bits_are_pairs_of_registers() -> None:
    texts: list[tuple[str, Callable[[int, int], int]]] = [
        ("IMAD.WIDE.U32 R4, R1, R2, RZ", lambda a, c: a * c),
        ("IMAD.WIDE R4, R1, R2, RZ", lambda a, c: (a - 2**32) * c),
    ]
    for line, of in texts:
        (i,) = read(f"/*0000*/ {line} ;").instructions
        s = BlockState(32, {}, (0, 0, 0))
        s.R[1][:], s.R[2][:] = A, C
        OPERATIONS[i.name](s, i, np.ones(s.lanes, bool))
        assert int(s.R[4][0]) | int(s.R[5][0]) << 32 == of(A, C) & (2**64 - 1)

"""Kernels are compiled without a device, and their machine code is run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cellgen.errors import BuildError
from cellgen.proof.machine import MachineLaunch, check, disassemble, resources
from cellgen.proof.machine.compiled import (
    MI300,
    CompiledKernel,
    SpecialisedKernel,
    compile_kernels,
)
from cellgen.proof.machine.run import TensorArgument
from cellgen.proof.machine.sass import read

pytest.importorskip("triton")
PATH = str(Path(__file__).parent / "toy_kernels.py")
T, D, BT, ROWS = 150, 64, 64, 3
COPIED = SpecialisedKernel(
    PATH, "copied", {"x_p": "*fp32", "y_p": "*fp32", "N": "i32"}, {"BLOCK": 256}, 4, 2
)
CHAINED = SpecialisedKernel(
    PATH,
    "chained",
    {"q_p": "*bf16", "k_p": "*bf16", "o_p": "*bf16", "T": "i32"},
    {"D": D, "BT": BT},
    4,
    2,
)


@cache
def made() -> tuple[CompiledKernel, CompiledKernel]:
    copied, chained = compile_kernels([COPIED, CHAINED])
    return copied, chained


def test_products_become_those_of_matrix_units() -> None:
    copied, chained = made()
    assert chained.text.count("wgmma.mma_async") >= 4
    assert "wgmma" not in copied.text
    code = read(disassemble(chained.binary))
    assert code.count("HGMMA") >= 4
    assert resources(copied.binary).registers < 40
    assert resources(chained.binary).stack == 0


def chained_launch(elements: int) -> MachineLaunch:
    tensors = tuple(TensorArgument(n, 2 * elements * D) for n in ("q", "k", "o"))
    shared = made()[1].shared
    return MachineLaunch(4, shared, (*tensors, T), ((0, 0, 0), (ROWS - 1, 0, 0)))


def test_every_address_of_compiled_kernels_lies_in_an_argument() -> None:
    copied, chained = made()
    two = (TensorArgument("x", 4 * 1000), TensorArgument("y", 4 * 1000), 1000)
    text = disassemble(copied.binary)
    assert check(text, MachineLaunch(4, copied.shared, two, ((0, 0, 0), (3, 0, 0)))) == []
    assert check(disassemble(chained.binary), chained_launch(ROWS * T)) == []


def test_a_step_too_few_shows_in_the_last_row() -> None:
    faults = check(disassemble(made()[1].binary), chained_launch(ROWS * T - 1))
    assert {fault.program for fault in faults} == {(ROWS - 1, 0, 0)}
    assert {fault.kind for fault in faults} == {"global"}


def test_the_same_kernels_compile_for_amd() -> None:
    copied, chained = compile_kernels([COPIED, CHAINED], MI300)
    assert "v_mfma" in chained.text
    assert "gfx942" in copied.text


def test_what_triton_says_is_in_the_error() -> None:
    wrong = SpecialisedKernel(PATH, "chained", CHAINED.signature, {"D": 65, "BT": 64}, 4, 2)
    with pytest.raises(BuildError, match=r"(?s)Triton cannot compile a kernel: .*power of 2"):
        compile_kernels([wrong])

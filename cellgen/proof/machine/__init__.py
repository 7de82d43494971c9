"""Run the integer part of a kernel's machine code for Hopper on a CPU and check every address.

Input: what ``nvdisasm`` prints of a cubin, and what a launch hands over. Output: faults. An
assembler that drops a write gives code that looks right and reads what nobody wrote; this finds it
without a device, since every block runs twice side by side, with other numbers in what was never
written.

``sass`` reads the text, ``lanes`` has registers and operands, ``integers`` and ``memory`` the
instructions, ``run`` goes through a block, ``assembled`` calls ``ptxas`` and ``nvdisasm``,
``compiled`` Triton.
"""

from cellgen.proof.machine.assembled import (
    Assembled,
    Resources,
    assemble,
    disassemble,
    resources,
)
from cellgen.proof.machine.run import MachineFault, MachineLaunch, check

__all__ = [
    "Assembled",
    "MachineFault",
    "MachineLaunch",
    "Resources",
    "assemble",
    "check",
    "disassemble",
    "resources",
]

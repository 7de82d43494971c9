"""Say which assemblers of NVIDIA code are known to be wrong, for which devices, and why.

Triton hands its PTX to ``ptxas``. Some of its versions turn right PTX into wrong machine code for
Hopper, without a message: an illegal address at best, wrong numbers at worst. ``REFUSED`` has those
that a kernel of products must not go through. Others have faults that need a construct which a
kernel need not have (docs/lab/0019-forms-on-a-device.md): there the proof on the device at first
use decides. Nothing is run here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellgen.errors import DeviceError

Version = tuple[int, int]
OLDEST: Version = (0, 0)


@dataclass(frozen=True)
class AssemblerFault:
    """A fault of ``ptxas``: releases from ``since`` up to, not with, ``until``, for ``arch``.

    ``arch`` is the compute capability times ten, ``source`` where the fault is described.
    """

    since: Version
    until: Version
    arch: int
    effect: str
    source: str

    def has(self, version: Version, arch: int) -> bool:
        """Say whether a release has it for a device."""
        return self.arch == arch and self.since <= version < self.until


REFUSED = (
    AssemblerFault(
        OLDEST,
        (12, 9),
        90,
        "it loses the base of the descriptors of matrix instructions: an illegal address, or a "
        "wrong product without an error",
        "triton issues 10486, 10573 and 11366; flash-linear-attention pull request 1262",
    ),
)
"""What no kernel goes through."""


def version_of(text: str) -> Version:
    """Read a release: "12.8", "12.8.93", or what ``ptxas --version`` prints.

    Raises DeviceError for a text without one.
    """
    match = re.search(r"release (\d+)\.(\d+)", text) or re.match(r"\s*(\d+)\.(\d+)", text)
    if match is None:
        raise DeviceError(
            f"the version of the assembler ptxas is not known from {text.strip()[:80]!r}; name one "
            f"that works: TRITON_PTXAS_PATH=/path/to/ptxas",
            code="device.assembler",
        )
    return int(match[1]), int(match[2])


def refuse_assembler(version: str, arch: int, variable: str = "TRITON_PTXAS_PATH") -> None:
    """Raise DeviceError where ``ptxas`` of this release must not be used for a device.

    ``arch`` is the compute capability times ten: 90 is Hopper; ``variable`` names another one.
    Whoever calls this names the cell.
    """
    for fault in REFUSED:
        if fault.has(version_of(version), arch):
            raise DeviceError(
                f"ptxas {_short(version)} is wrong for sm_{arch}: {fault.effect} ({fault.source}). "
                f"Take {joined(fault.until)} or later: {variable}=/path/to/ptxas, or a newer "
                f"Triton",
                code="device.assembler",
            )


def joined(version: Version) -> str:
    """Write a release.

    >>> joined((12, 9))
    '12.9'
    """
    return ".".join(map(str, version))


def _short(version: str) -> str:
    return version.strip() if "\n" not in version else joined(version_of(version))

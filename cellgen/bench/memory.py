"""How much memory this process has resident, and had at most."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What to write there so that the peak starts again from now (proc(5))."""


def resident() -> int:
    """Bytes resident now; the peak so far where the system does not tell."""
    return _status("VmRSS") or _most()


def peak() -> int:
    """Bytes resident at most, since ``forget_peak`` where that works."""
    return _status("VmHWM") or _most()


def forget_peak() -> None:
    """Let the peak start from now; without effect where the system does not allow it."""
    with contextlib.suppress(OSError):
        CLEAR.write_text(FORGET_PEAK)


def _status(field: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    figures = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(figures[0]) if figures else 0


def _most() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most

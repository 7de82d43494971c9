"""The entry point ``cellgen``: a command whose answer is at hand, or the whole command line.

Input: the words of the command. Output: an exit status, whatever becomes of stdout. What takes no
arguments and is there sooner than the command line is imported is answered without it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from cellgen.cli.listing import list_families
from cellgen.cli.status import FAILED, interrupted

AT_ONCE: Mapping[tuple[str, ...], Callable[[], None]] = {("list",): list_families}
"""Commands as they are typed, whole, and what ``cellgen.cli.commands`` does for each as well."""
PATIENCE = 5.0
"""Seconds that a command has after SIGTERM, which Python hears of once C returns."""


def main() -> None:
    """Run the command line (the entry point ``cellgen``)."""
    if sys.stdout is None:  # closed by who started it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
        if os.name == "posix":
            _end_what_c_keeps()
    try:
        _command()()
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        sys.exit(interrupted(stop))
    except OSError as error:
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer fails no more
        if not isinstance(error, BrokenPipeError):  # a reader, as `head`, may have had enough
            print(f"cellgen: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM ends a command as Ctrl-C does: what the command began ends with it."""
    raise KeyboardInterrupt(number)


def _end_what_c_keeps() -> None:
    """Let a thread hear of SIGTERM as well, which ends the process where Python does not."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_sigterm, args=(reading,), daemon=True).start()


def _wait_for_sigterm(reading: int) -> None:
    while os.read(reading, 1) != bytes((signal.SIGTERM,)):
        pass
    time.sleep(PATIENCE)
    os._exit(128 + signal.SIGTERM)


def _command() -> Callable[[], object]:
    at_once = AT_ONCE.get(tuple(sys.argv[1:]))
    if at_once is not None:
        return at_once
    from cellgen.cli.commands import app

    return app

"""The entry point ``cellgen``: a command whose answer is at hand, or the whole command line.

Input: the words of the command. Output: an exit status, whatever becomes of stdout. What takes no
arguments and is there sooner than the command line is imported is answered without it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from cellgen.cli.listing import list_families
from cellgen.cli.status import FAILED, interrupted

AT_ONCE: Mapping[tuple[str, ...], Callable[[], None]] = {("list",): list_families}
"""Commands as they are typed, whole, and what ``cellgen.cli.commands`` does for each as well."""


def main() -> None:
    """Run the command line (the entry point ``cellgen``)."""
    if sys.stdout is None:  # closed by who started it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
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


def _command() -> Callable[[], object]:
    at_once = AT_ONCE.get(tuple(sys.argv[1:]))
    if at_once is not None:
        return at_once
    from cellgen.cli.commands import app

    return app

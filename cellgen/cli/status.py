"""How a command ends: errors become one message on stderr and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from cellgen.cli.screen import BOLD_RED, marked
from cellgen.errors import CellgenError, Failure, UsageError

FAILED, USAGE = 1, 2


@contextmanager
def ending() -> Iterator[None]:
    """Turn cellgen's errors into one message and an exit status; no traceback."""
    try:
        yield
    except UsageError as error:
        leave(str(error), USAGE)
    except CellgenError as error:
        leave(str(error), FAILED)
    except KeyboardInterrupt as stop:
        leave("interrupted", interrupted(stop))


def interrupted(stop: KeyboardInterrupt) -> int:
    """The status of a command that a signal ended, as shells count it; Ctrl-C names no signal."""
    named = stop.args and isinstance(stop.args[0], int)
    return 128 + (stop.args[0] if named else signal.SIGINT)


def leave_for(failures: Sequence[Failure], *, is_worse: bool = False) -> None:
    """End where something failed, with every reason on stderr: wrong usage, if it was no more."""
    if failures:
        usage = not is_worse and all(isinstance(f.error, UsageError) for f in failures)
        texts = dict.fromkeys(str(failure.error) for failure in failures)
        leave("\n".join(texts), USAGE if usage else FAILED)


def leave(message: str, status: int = FAILED) -> NoReturn:
    """Say why on stderr and end with a status."""
    print(marked("cellgen: ", BOLD_RED, sys.stderr) + message, file=sys.stderr)
    sys.exit(status)

"""Import other libraries whole or not at all, also when Ctrl-C comes in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def whole_imports() -> Iterator[None]:
    """Leave no half of a package behind when the body ends early.

    Python forgets a package whose import fails, but not those of its modules that were complete;
    imported again, the package does not have them as attributes. Those are forgotten here.
    """
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in sorted(set(sys.modules) - before):
            above = name.rpartition(".")[0]
            if above and above not in sys.modules:
                sys.modules.pop(name, None)
        raise

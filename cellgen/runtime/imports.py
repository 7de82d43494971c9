"""Import other libraries whole or not at all, also when Ctrl-C comes in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader


@contextmanager
def whole_imports() -> Iterator[None]:
    """Leave no half of a package behind when the body ends early.

    Python forgets a package whose import fails, but not those of its modules that were complete;
    imported again, the package does not have them as attributes. Those are forgotten here, but for
    packages with compiled modules, which may load once only (NumPy's).
    """
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        added = sorted(set(sys.modules) - before)
        compiled = {name.partition(".")[0] for name in added if _is_compiled(name)}
        for name in added:
            above = name.rpartition(".")[0]
            if above and above not in sys.modules and name.partition(".")[0] not in compiled:
                sys.modules.pop(name, None)
        raise


@contextmanager
def needed(package: str, otherwise: str) -> Iterator[None]:
    """Import a library in the body; ``otherwise`` says what to install where it is missing.

    One that is there and lacks something says so in its own words. Raises ImportError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(otherwise) from None


def _is_compiled(name: str) -> bool:
    return isinstance(getattr(sys.modules[name], "__loader__", None), ExtensionFileLoader)

"""Functions in C whose calls are counted, or decline every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cellgen.torch import native


@contextmanager
def replaced(names: tuple[str, ...], other: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """Functions of these names are ``other`` of them within the body."""
    every = native.functions()
    assert every is not None
    own = {name: other(getattr(every, name)) for name in names}
    with mock.patch.object(native, "functions", return_value=every._replace(**own)):
        yield


@contextmanager
def counted(*names: str) -> Iterator[list[bool]]:
    """Whether each call of these functions within the body was taken."""
    taken: list[bool] = []

    def counting(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            made = run(*given)
            taken.append(made is not None)
            return made

        return call

    with replaced(names, counting):
        yield taken


@contextmanager
def declined() -> Iterator[None]:
    """All calls go the long way."""
    with replaced(("direct", "back", "track", "track_back"), lambda run: lambda *_: None):
        yield

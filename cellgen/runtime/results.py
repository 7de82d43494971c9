"""What a kernel function returns: named tuples that pickle."""

from __future__ import annotations

from collections import namedtuple
from functools import cache as cached
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

Array: TypeAlias = np.ndarray


class HasDLPack(Protocol):
    """An array of another library that NumPy can look into, as PyTorch's and JAX's are."""

    @property
    def __dlpack__(self) -> object:
        """What hands its memory over."""


AnyArray: TypeAlias = Array | HasDLPack
"""What stubs of kernels take as an array."""


class Results(tuple[Array, ...]):
    """What a kernel function returns: a named tuple whose fields are the names of the results."""

    __slots__ = ()
    _fields: tuple[str, ...]
    _function: str

    if TYPE_CHECKING:

        def __new__(cls, *values: Array) -> Results: ...  # noqa: D102 - for type checkers

        def __getattr__(self, name: str) -> Array: ...

        def _asdict(self) -> dict[str, Array]: ...

        def _replace(self, /, **changes: Array) -> Results: ...

    def __reduce__(self) -> tuple[object, ...]:
        return _result, (self._function, self._fields, tuple(self))


class InSegments(Results):
    """What a call in segments returns: ``parallel`` says how it went."""

    parallel: object = None

    def __reduce__(self) -> tuple[object, ...]:
        return _in_segments, (self._function, self._fields, tuple(self), self.parallel)

    def _replace(self, /, **changes: Array) -> Results:
        """The same results but for some, which say how the call went."""
        return InSegments.of(super()._replace(**changes), self.parallel)

    @classmethod
    def of(cls, results: Results, parallel: object) -> Results:
        """The same results, which say how the call went."""
        kind = tuple_class(results._function, results._fields, InSegments)
        those: InSegments = tuple.__new__(kind, results)
        those.parallel = parallel
        return those


def said_of(results: Results, call: Results) -> Results:
    """Results in the place of those of a call, which say of it what those said."""
    if isinstance(call, InSegments):
        return InSegments.of(results, call.parallel)
    return results


Kind = TypeVar("Kind", bound=Results)


def result_class(function: str, fields: tuple[str, ...]) -> type[Results]:
    """Make the named tuple of a function's results: ``weight_gradients`` gives WeightGradients."""
    return tuple_class(function, fields, Results)


@cached
def tuple_class(function: str, fields: tuple[str, ...], kind: type[Kind]) -> type[Kind]:
    """Make the named tuple of some fields that is a ``kind``."""
    name = "".join(word.capitalize() for word in function.split("_"))
    named = namedtuple(name, fields)  # type: ignore[misc]
    body = {
        "__slots__": (),
        "__module__": __name__,
        "__doc__": f"Results of {function}: {', '.join(fields)}.",
        "_function": function,
    }
    return type(name, (kind, named), body)


def _in_segments(
    function: str, fields: tuple[str, ...], values: tuple[Array, ...], parallel: object
) -> Results:
    """Make results of a call in segments again from a pickle."""
    return InSegments.of(_result(function, fields, values), parallel)


def _result(function: str, fields: tuple[str, ...], values: tuple[Array, ...]) -> Results:
    """Make results again from a pickle."""
    return result_class(function, fields)(*values)

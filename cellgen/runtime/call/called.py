"""How a public function of a kernel is called: what it does not take ends in cellgen's own error.

Functions of the interface say so themselves, since they take arrays by name (``arguments``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function, Interface
from cellgen.runtime.call.arguments import by_name

P = ParamSpec("P")
R = TypeVar("R")


def called_as(form: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method that is called in another form say which it has: ``called_as("plan({dims})")``.

    ``{dims}`` are the dimensions of the kernel or the function, ``{sizes}`` those of its weights,
    ``{arguments}`` its arrays.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except TypeError:
                problem = _problem(method, *args, **kwargs)
                if not problem:
                    raise
            raise form_error(method.__name__, form, problem, *args, **kwargs)

        return call

    return decorate


def _problem(method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> str:
    """What a method does not take, in Python's words; nothing where the error is another one."""
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def form_error(
    name: str, form: str, problem: str, owner: object, *unnamed: object, **named: object
) -> ArgumentError:
    """Say how a method of an owner was called, why it is not, and how it is."""
    interface: Interface | None = getattr(owner, "interface", None)
    function: Function | None = getattr(owner, "function", None)
    if function is None:
        assert interface is not None
        label, way, dims, arguments = interface.name, "kernel", interface.dims, ""
    else:
        label, way = str(getattr(owner, "__qualname__", "")), f"kernel.{function.name}"
        dims, arguments = function.dims, by_name(function)
    sizes = [f"{dim}=..." for dim in dims if dim not in ("T", "B")]
    every = ", ".join(f"{dim}=..." for dim in dims)
    expected = form.format(dims=every, sizes=", ".join(sizes), arguments=arguments)
    values = ", ".join([*map(accept.quoted, unnamed), *(f"{one}=..." for one in named)])
    return ArgumentError(
        f"{label}.{name}: called as {name}({values}), {problem}; write {way}.{expected}"
    )

"""Types of a package of prebuilt kernels: its ``__init__.pyi``.

Input: interfaces. Output: text, of which type checkers learn what each call takes and returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.call.stub import class_name

HEAD = '''"""Prebuilt kernels of {cells}: types, for type checkers and editors."""

from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from {name}.kernels import PrebuiltFunction
from {name}.kernels import PrebuiltKernel as PrebuiltKernel
from {name}.kernels import SavedArrays
from {name}.options import KernelError as KernelError

Array = np.ndarray[Any, np.dtype[Any]]
level: str
levels: list[str]
__version__: str
'''
OPTIONS = (
    "lengths: npt.ArrayLike | None = ...",
    "mask: npt.ArrayLike | None = ...",
    "reset: npt.ArrayLike | None = ...",
    "reverse: bool | Array = ...",
    "zero_output_for_mask: bool | Array = ...",
    "products: str | Array | None = ...",
    "threads: int | Array | None = ...",
)
"""The fields of ``CallOptions``; an array may stand for each, so that ``f(**arrays)`` passes."""


def wheel_stub(name: str, interfaces: Sequence[Interface]) -> str:
    """The text for a package that is imported as ``name``."""
    lines = [HEAD.format(name=name, cells=", ".join(i.name for i in interfaces))]
    for interface in interfaces:
        prefix = class_name(interface.name)
        for function in interface.functions:
            lines += _function(prefix, function)
        lines.append(f"class {prefix}Kernel(PrebuiltKernel):")
        for function in interface.functions:
            lines.append(f"    {function.name}: {prefix}{class_name(function.name)}Function")
        lines += ["", f"{interface.name}: {prefix}Kernel", ""]
    return "\n".join(lines)


def _function(prefix: str, function: Function) -> Iterator[str]:
    result = f"{prefix}{class_name(function.name)}"
    plain = [item for item in function.results if not item.saved]
    yield f"class {result}(NamedTuple):"
    yield from (f"    {item.name}: Array  # {_shape(item)}" for item in plain)
    if len(plain) < len(function.results):
        yield "    saved: Any"
    yield ""
    arguments = [item for item in function.arguments if item.used]
    shapes = ", ".join(f"{item.name} {_shape(item)}" for item in arguments if not item.is_scalar)
    options = [*OPTIONS] if function.team else []
    if any(item.saved for item in function.results):
        options.append("save: bool | Array = ...")
    ways = [[_argument(item) for item in arguments] + options]
    if any(item.saved for item in arguments):
        run = [_argument(item, may_be_left_out=True) for item in arguments]
        ways.append(["saved: SavedArrays", *run, *options])
    yield f"class {result}Function(PrebuiltFunction):"
    yield f'    """{function.text} Of {shapes}."""'
    for number, way in enumerate(ways):
        ignored = "" if number else "  # type: ignore[override]"
        if len(ways) > 1:
            yield f"    @overload{ignored}"
            ignored = ""
        yield f"    def __call__({ignored}"
        yield from (f"        {line}," for line in ("self", "/", "*", *way))
        yield f"    ) -> {result}: ..."
    yield ""


def _argument(item: Argument, *, may_be_left_out: bool = False) -> str:
    if item.is_scalar:
        return f"{item.name}: float | Array = ..."
    if item.optional or may_be_left_out:
        return f"{item.name}: Array | None = ..."
    return f"{item.name}: Array"


def _shape(item: Argument) -> str:
    return f"({', '.join(item.shape)})"

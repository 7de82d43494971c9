"""Spell products of a row's matrices in C: tiles of a matrix product in place of a loop.

Input: a ``TileProduct`` and the pointers to its arrays. Output: lines that are run for each row.
The chain of additions of an element is that of all products, fused, in the order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable

from sympy import Expr

from cellgen.language.value import Shape, Value
from cellgen.schedule.lower.tile_products import INNER, TileProduct
from cellgen.schedule.schedule import Line, Load
from cellgen.targets.c_expressions import c_axis, c_factor


def product_lines(product: TileProduct, axes: Shape, pointer: Callable[[Value], str]) -> list[str]:
    """The loops over axes that a product has others side by side along, and its routine."""
    outer = [f"axis{n}" for n in range(1, len(axes) - INNER + 1)]
    kind = product.kind
    items: tuple[Line | Load, ...] = product.arrays
    target, left, right = (
        _place(pointer(value_of(one)), strides, unit, outer)
        for one, strides, unit in zip(items, product.strides, kind.unit, strict=True)
    )
    sizes = ", ".join(c_axis(axes[-INNER:][axis]) for axis in kind.sizes)
    loops = [
        f"for (int64_t {name} = 0; {name} < {c_axis(axis)}; ++{name})"
        for name, axis in zip(outer, axes, strict=False)
    ]
    routine = f"cg_gemm_{kind.form.value}"
    return [*loops, f"    {routine}({sizes}, {left}, {right}, {target}, {int(kind.adds)});"]


def value_of(item: Load | Line) -> Value:
    """What is read or written."""
    return item.value if isinstance(item, Load) else item.statement.target


def _place(pointer: str, strides: tuple[Expr, ...], unit: int, outer: list[str]) -> str:
    """Where a matrix begins, and how far its rows are apart."""
    at = [
        f" + {axis} * {c_factor(stride)}"
        for axis, stride in zip(outer, strides, strict=False)
        if stride != 0
    ]
    (gap,) = (s for n, s in enumerate(strides[-INNER:]) if s != 0 and n != unit)
    return f"{pointer}{''.join(at)}, {c_factor(gap)}"

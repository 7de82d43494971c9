"""Spell the functions of a single step in C.

Input: planned functions and their signatures. Output: contexts for ``cell.c.j2``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cellgen.language.names import Names
from cellgen.language.value import Shape, Value, format_shape
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import Interface, c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule import Buffer, BufferKind, Loop, PlannedFunction, Product, Routine
from cellgen.schedule.lower.tile_products import TileProduct, tile_product
from cellgen.schedule.lower.touches import walk_in
from cellgen.schedule.on_request import wanted_in_step
from cellgen.schedule.schedule import Line, Load, View, describe
from cellgen.targets.c.loops import (
    LoopLines,
    LoopWriter,
    column_of,
    comments_of,
    offset_of,
    routine_call,
)
from cellgen.targets.c.matrix_products import product_lines, value_of
from cellgen.targets.c.tables import joined
from cellgen.targets.c_expressions import c_axis, c_factor


@dataclass(frozen=True)
class ProductContext:
    """One call of a matrix product."""

    comment: str
    call: str
    wanted: str = ""
    """Whether one of the results is there for which alone it is formed, in C; empty: always."""


@dataclass(frozen=True)
class LoopContext:
    """One loop nest over rows and units, as C lengths; empty where the index space has none."""

    rows: str
    units: str
    lines: LoopLines
    wanted: str = ""


@dataclass(frozen=True)
class FunctionContext:
    """One kernel function.

    ``buffers`` are (name, element count, shape) of workspace arrays; ``optional`` are (pointer,
    stride, argument, row length) of upstream gradients that may be missing.
    """

    stem: str
    text: str
    parameters: str
    dims: list[str]
    missing: list[str]
    buffers: list[tuple[str, str, str]]
    sizes: list[str]
    zeros: str
    optional: list[tuple[str, str, str, str]]
    scalars: list[str]
    stages: list[ProductContext | LoopContext]
    needs_workspace: bool


def step_function(
    function: PlannedFunction, signature: Signature, interface: Interface
) -> FunctionContext:
    """Spell one planned function."""
    writer = StepWriter(function)
    workspace = function.of_kind(BufferKind.WORKSPACE)
    required = [
        argument.name
        for argument in signature.struct_members
        if not argument.is_scalar and not argument.optional
    ]
    required += [result.name for result in signature.results if not result.optional]
    zeros = c_axis(function.zeros) if function.zeros is not None else ""
    return FunctionContext(
        stem=f"{interface.name}_{function.name}",
        text=signature.text,
        parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in signature.dims),
        dims=[c_dim(dim) for dim in signature.dims],
        missing=joined([f"!args->{c_member(name)}" for name in required], " || "),
        buffers=[(writer.memory[b], _count(b), format_shape(b.shape)) for b in workspace],
        sizes=[_count(buffer) for buffer in workspace] + ([zeros] if zeros else []),
        zeros=zeros,
        optional=[
            (writer.memory[b], writer.strides[b], b.name, c_axis(b.row))
            for b in function.of_kind(BufferKind.OPTIONAL)
        ],
        scalars=[b.name for b in function.of_kind(BufferKind.SCALAR)],
        stages=[
            replace(writer.stage(stage), wanted=any_given(buffer.name for buffer in wanted))
            for stage, wanted in zip(function.stages, wanted_in_step(function), strict=True)
        ],
        needs_workspace=function.needs_workspace,
    )


def any_given(names: Iterable[str]) -> str:
    """Spell whether the caller gives memory for one of some results; empty where there are none."""
    return " || ".join(f"args->{c_member(name)}" for name in names)


def _count(buffer: Buffer) -> str:
    return " * ".join(c_factor(axis) for axis in buffer.shape) or "1"


class StepWriter(LoopWriter):
    """Spells the stages of one function; knows the C name of every array, ``memory``."""

    def __init__(self, function: PlannedFunction) -> None:
        names = Names([*LOCALS, *(str(v.name) for v in function.program.values)])
        self.memory: dict[Buffer, str] = {}
        self.strides: dict[Buffer, str] = {}
        for buffer in function.buffers:
            if buffer.kind in (BufferKind.WORKSPACE, BufferKind.OPTIONAL):
                self.memory[buffer] = names.fresh(f"{buffer.name}_rows")
                self.strides[buffer] = names.fresh(f"{buffer.name}_stride")
            else:
                self.memory[buffer] = f"args->{c_member(buffer.name)}"
        self.pointers: dict[Value, str] = {
            value: names.fresh(f"{value.name}_row") for value in function.program.values
        }

    def stage(self, stage: Product | Loop | Routine) -> ProductContext | LoopContext:
        """Spell one stage."""
        if isinstance(stage, Product):
            return self._product(stage)
        if isinstance(stage, Routine):
            return self._routine(stage)
        rows = c_axis(stage.space[0]) if len(stage.space) == 2 else ""
        units = c_axis(stage.space[-1]) if stage.space else ""
        product = tile_product(stage, stage.axes) if stage.is_nest else None
        lines = self._tiles(stage, product) if product is not None else self.loop(stage)
        return LoopContext(rows, units, lines)

    def _tiles(self, loop: Loop, product: TileProduct) -> LoopLines:
        """Spell a nest that is a product of each row: where its arrays begin, and its routine."""
        lines = LoopLines(comments_of(loop.lines))
        for item in product.arrays:
            assert item.view is not None
            pointer = self.pointers[value_of(item)]
            if isinstance(item, Line) and product.kind.adds:
                lines.before.extend(self.begin_total(item, pointer))
                continue
            in_row, whole = self._starts(item.view)
            start = in_row if walk_in(item, loop, loop.axes).rows else whole
            constant = "const " if isinstance(item, Load) else ""
            lines.row_start.append(f"{constant}real *{pointer} = {start};")
        spelled = product_lines(product, loop.axes, self.pointers.__getitem__)
        return replace(lines, product=spelled)

    def _product(self, stage: Product) -> ProductContext:
        if stage.heads is not None:
            return self._products(stage)
        rows, columns = stage.target.shape
        inner = stage.a.shape[0] if stage.is_outer else stage.a.shape[1]
        operands = [
            f"{self.address(view)}, {c_axis(view.row_stride)}"
            for view in (stage.a, stage.b, stage.target)
        ]
        sizes = ", ".join(c_axis(axis) for axis in (rows, columns, inner))
        arguments = ", ".join([sizes, *operands, "1" if stage.accumulate else "0"])
        return ProductContext(_matrix_comment(stage), f"cg_gemm_{stage.form.value}({arguments})")

    def _products(self, stage: Product) -> ProductContext:
        """One product for each head, on columns of what lies side by side."""
        first, second = stage.weights
        heads, head = c_axis(stage.heads), f"head * {c_factor(first)} * {c_factor(second)}"
        at = {axis: f" + head * {c_factor(axis)}" for axis in (first, second)}
        a, b, y = (self.address(view) for view in (stage.a, stage.b, stage.target))
        a_row, b_row, y_row = (c_axis(v.row_stride) for v in (stage.a, stage.b, stage.target))
        rows, inner, columns = stage.a.shape[0], first, second
        if stage.is_transposed:
            inner, columns = second, first
        operands = [f"{a}{at[inner]}", a_row, f"{b} + {head}", c_axis(second)]
        operands += [f"{y}{at[columns]}", y_row]
        if stage.is_outer:
            rows, inner = first, stage.a.shape[0]
            operands = [f"{a}{at[first]}", a_row, f"{b}{at[second]}", b_row]
            operands += [f"{y} + {head}", c_axis(second)]
        sizes = ", ".join(c_axis(axis) for axis in (rows, columns, inner))
        arguments = ", ".join([sizes, *operands, "1" if stage.accumulate else "0"])
        product = f"cg_gemm_{stage.form.value}({arguments})"
        call = f"for (int64_t head = 0; head < {heads}; ++head) {product}"
        return ProductContext(_matrix_comment(stage), call)

    def _routine(self, stage: Routine) -> ProductContext:
        target, *operands = (
            (self.address(view), c_axis(view.row_stride))
            for view in (stage.target, *stage.operands)
        )
        call = routine_call(stage, c_axis(stage.rows), operands, target)
        return ProductContext(describe(stage.statement), call)

    def address(self, view: View) -> str:
        """The address of a view's first element."""
        return f"{self.memory[view.buffer]}{offset_of(view)}"

    def row(self, view: View) -> str:
        """The pointer to a view's row."""
        buffer, stride = view.buffer, f" * {c_factor(view.row_stride)}"
        if buffer.kind is BufferKind.OPTIONAL:
            stride = f" * {self.strides[buffer]}"
        elif view.row_stride == 1:
            stride = ""
        first = view.start[0] if len(view.start) == 2 else 0
        row = "row" if first == 0 else f"(row + {c_axis(first)})"
        return f"{self.memory[buffer]} + {row}{stride}{column_of(view)}"

    def begin_total(self, line: Line, pointer: str) -> list[str]:
        """Begin a sum over rows."""
        assert line.view is not None
        length = c_count(line.view.shape)
        return [
            f"real *{pointer} = {self.address(line.view)};",
            f"for (int64_t unit = 0; unit < {length}; ++unit) {pointer}[unit] = 0;",
        ]

    def sum_of_all(self, line: Line, lines: LoopLines) -> None:
        """Spell a sum over rows and units."""
        assert line.view is not None
        name = line.statement.target.name
        lines.before.append(f"real {name} = 0;")
        lines.after.append(f"*({self.address(line.view)}) = {name};")


def c_count(shape: Shape) -> str:
    """Spell how many elements an array has."""
    return c_axis(shape[0]) if len(shape) == 1 else " * ".join(map(c_factor, shape)) or "1"


def _matrix_comment(stage: Product) -> str:
    sign = "+=" if stage.accumulate else "="
    a, b = str(stage.a), str(stage.b)
    a, b = f"{a}.T" if stage.is_outer else a, f"{b}.T" if stage.is_transposed else b
    return f"{stage.target} {sign} {a} @ {b}"

"""Render a Schedule through the templates of a target.

Input: ``Schedule`` and ``Definition``. Output: ``Source``, strings only. Python prepares every
value here; the templates place them. Each template's context is a dataclass, and the two are held
equal.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import jinja2.meta

from cellgen.abi import PRECISIONS, Argument, Interface, c_dim, struct_lines
from cellgen.abi import Function as Signature
from cellgen.cell import Definition
from cellgen.errors import DerivationError
from cellgen.paths import templates_folder
from cellgen.printer import c_axis, c_expression, c_factor
from cellgen.program import Names
from cellgen.render_sequence import SequenceContext, render_sequence, sequence_signatures
from cellgen.schedule import Access, Buffer, Function, Kind, Load, Loop, Product, Schedule, Store
from cellgen.schedule.plan import Line, View, describe
from cellgen.schedule.sequence import SequenceSchedule
from cellgen.value import Role, Value, format_axis, format_shape


@dataclass(frozen=True)
class Source:
    """The generated files of a cell and the interface they implement."""

    name: str
    interface: Interface
    header: str
    body: str
    init: str

    @property
    def files(self) -> dict[str, str]:
        """Contents by file name, as they stand in ``generated/<cell>/``."""
        return {
            f"{self.name}.h": self.header,
            f"{self.name}.c": self.body,
            "__init__.py": self.init,
        }


def render(schedule: Schedule, sequence: SequenceSchedule, definition: Definition) -> Source:
    """Render the C sources and the Python interface of a cell."""
    over_time = sequence_signatures(sequence)
    interface = make_interface(schedule, over_time, definition)
    signatures = {function.name: function for function in interface.functions}
    head = _Head.of(definition, interface.digest)
    functions = [_function(f, signatures[f.name], interface) for f in schedule.functions]
    sequences = render_sequence(sequence, over_time)
    header = _render("c/cell.h.j2", HeaderContext(head, _structs(interface)))
    body = _render("c/cell.c.j2", BodyContext(head, functions, sequences))
    init = _render("c/init.py.j2", InitContext(head, _literal(interface), _exports(interface)))
    return Source(definition.name, interface, header, body, init)


# --- interface -----------------------------------------------------------------------------------


def make_interface(
    schedule: Schedule, over_time: tuple[Signature, ...], definition: Definition
) -> Interface:
    """Return the plain-data interface of a cell's kernel."""
    functions = tuple(_signature(function, definition) for function in schedule.functions)
    return Interface(definition.name, schedule.digest, (*functions, *over_time))


_SUMMARIES = {
    "forward": "Compute one step.",
    "backward": "Compute the gradients that a step must return; upstream gradients left out are 0.",
    "input_gradients": "Compute the gradients of inputs and states that backward leaves out.",
    "weight_gradients": "Compute the gradients of all parameters that backward does not return.",
}


def _signature(function: Function, definition: Definition) -> Signature:
    read = set(function.program.arguments)
    optional = set(function.program.optional)
    arguments = tuple(
        Argument(
            name=str(value.name),
            shape=_lengths(value),
            text=_argument_text(value, value in optional),
            default=definition.defaults[str(value.name)] if value.role is Role.SCALAR else None,
            optional=value in optional,
            used=value in read,
        )
        for value in function.accepted
    )
    results = tuple(
        Argument(
            str(v.name), tuple(format_axis(axis) for axis in v.shape), _argument_text(v, False)
        )
        for v in function.program.results
    )
    return Signature(
        name=function.name,
        dims=tuple(str(dim) for dim in function.dims),
        arguments=arguments,
        results=results,
        workspace=function.needs_workspace,
        text=_SUMMARIES[function.name],
    )


def _lengths(value: Value) -> tuple[str, ...]:
    return tuple(format_axis(axis) for axis in value.shape)


def _argument_text(value: Value, optional: bool) -> str:
    name = str(value.name)
    if value.role is Role.ADJOINT:
        kind = "upstream gradient" if optional else "gradient"
        return f"{kind} of {name.removeprefix('d_').removesuffix('_total')}"
    names = {Role.LOCAL: "output", Role.TEMPORARY: "intermediate"}
    return names.get(value.role) or str(value.role.value)


def _literal(interface: Interface) -> str:
    """The interface as Python source, one argument a line."""

    def argument(item: Argument) -> str:
        parts = [repr(item.name), repr(item.shape), repr(item.text)]
        if item.default is not None:
            parts.append(f"default={item.default!r}")
        if item.optional:
            parts.append("optional=True")
        if not item.used:
            parts.append("used=False")
        if item.saved:
            parts.append("saved=True")
        return f"Argument({', '.join(parts)}),".replace("'", '"')

    def listed(name: str, items: Sequence[Argument]) -> list[str]:
        return [
            f"            {name}=(",
            *(f"                {argument(i)}" for i in items),
            "            ),",
        ]

    lines = []
    for function in interface.functions:
        dims = "".join(f'"{dim}", ' for dim in function.dims).rstrip()
        lines += [
            "        Function(",
            f'            name="{function.name}",',
            f"            dims=({dims}),",
            *listed("arguments", function.arguments),
            *listed("results", function.results),
            f"            workspace={function.workspace},",
            f'            text="{function.text}",',
            *(["            team=True,"] if function.team else []),
            "        ),",
        ]
    return "\n".join(lines)


def _exports(interface: Interface) -> list[str]:
    return [function.name for function in interface.functions]


# --- contexts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Head:
    """What every file says first."""

    name: str
    title: str
    doc: list[str]
    origin: str
    digest: str
    equations: list[str]

    @staticmethod
    def of(definition: Definition, digest: str) -> _Head:
        doc = " ".join(definition.doc.split()) or f"The cell {definition.class_name}."
        safe = doc.replace("*/", "* /").replace("\\", "/").replace('"""', "'''")
        lines = textwrap.wrap(safe, 96)
        return _Head(
            name=definition.name,
            title=doc.split(" (")[0].split(". ")[0].rstrip(".,;:") + ".",
            doc=lines,
            origin=definition.origin,
            digest=digest,
            equations=[str(equation) for equation in definition.equations],
        )


@dataclass(frozen=True)
class StructContext:
    """One argument struct and its prototypes, in one precision."""

    members: list[tuple[str, str]]
    struct: str
    call: str
    workspace_size: str
    parameters: str
    text: str


@dataclass(frozen=True)
class HeaderContext:
    """Of ``cell.h.j2``."""

    head: _Head
    structs: list[StructContext]


@dataclass(frozen=True)
class ProductContext:
    """One call of a matrix product."""

    comment: str
    call: str


@dataclass(frozen=True)
class LoopContext:
    """One loop nest: what stands before it, in each row, in each unit, and after."""

    comments: list[str]
    rows: str
    units: str
    before: list[str]
    row_start: list[str]
    body: list[str]
    row_end: list[str]
    after: list[str]


@dataclass(frozen=True)
class FunctionContext:
    """One kernel function."""

    stem: str
    text: str
    parameters: str
    dims: list[str]
    required: list[str]
    buffers: list[tuple[str, str, str]]
    sizes: list[str]
    zeros: str
    optional: list[tuple[str, str, str, str]]
    scalars: list[str]
    stages: list[ProductContext | LoopContext]
    needs_workspace: bool


@dataclass(frozen=True)
class BodyContext:
    """Of ``cell.c.j2``."""

    head: _Head
    functions: list[FunctionContext]
    sequences: list[SequenceContext]


@dataclass(frozen=True)
class InitContext:
    """Of ``init.py.j2``."""

    head: _Head
    functions: str
    exports: list[str]


def _structs(interface: Interface) -> list[StructContext]:
    structs = []
    for suffix, c_type in PRECISIONS:
        for function in interface.functions:
            names = interface.symbols(function, suffix)
            structs.append(
                StructContext(
                    members=list(struct_lines(function, c_type)),
                    struct=names.struct,
                    call=names.call,
                    workspace_size=names.workspace_size if function.workspace else "",
                    parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in function.dims),
                    text=function.text,
                )
            )
    return structs


# --- functions -----------------------------------------------------------------------------------


def _function(function: Function, signature: Signature, interface: Interface) -> FunctionContext:
    writer = _Writer(function)
    workspace = function.of_kind(Kind.WORKSPACE)
    required = [
        argument.name
        for argument in signature.struct_members
        if not argument.is_scalar and not argument.optional
    ]
    zeros = c_axis(function.zeros) if function.zeros is not None else ""
    sizes = [_count(buffer) for buffer in workspace] + ([zeros] if zeros else [])
    return FunctionContext(
        stem=f"{interface.name}_{function.name}",
        text=signature.text,
        parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in signature.dims),
        dims=[c_dim(dim) for dim in signature.dims],
        required=[*required, *(result.name for result in signature.results)],
        buffers=[(writer.memory[b], _count(b), format_shape(b.shape)) for b in workspace],
        sizes=sizes,
        zeros=zeros,
        optional=[
            (writer.memory[b], writer.strides[b], b.name, c_axis(b.shape[-1]))
            for b in function.of_kind(Kind.OPTIONAL)
        ],
        scalars=[b.name for b in function.of_kind(Kind.SCALAR)],
        stages=[writer.stage(stage) for stage in function.stages],
        needs_workspace=function.needs_workspace,
    )


def _count(buffer: Buffer) -> str:
    return " * ".join(c_factor(axis) for axis in buffer.shape) or "1"


class _Writer:
    """Spells the stages of one function; knows the C name of every array."""

    def __init__(self, function: Function) -> None:
        names = Names([str(v.name) for v in function.program.values])
        self.memory: dict[Buffer, str] = {}
        self.strides: dict[Buffer, str] = {}
        self.pointers: dict[Value, str] = {}
        for buffer in function.buffers:
            if buffer.kind in (Kind.WORKSPACE, Kind.OPTIONAL):
                self.memory[buffer] = names.fresh(f"{buffer.name}_rows")
                self.strides[buffer] = names.fresh(f"{buffer.name}_stride")
            else:
                self.memory[buffer] = f"args->{buffer.name}"
        for value in function.program.values:
            self.pointers[value] = names.fresh(f"{value.name}_row")

    def stage(self, stage: Product | Loop) -> ProductContext | LoopContext:
        return self._product(stage) if isinstance(stage, Product) else self._loop(stage)

    # --- products ---

    def _product(self, stage: Product) -> ProductContext:
        rows, columns = stage.target.shape
        inner = stage.a.shape[0] if stage.op == "outer_sum" else stage.a.shape[1]
        routine = {"matmul": "nn", "matmul_transposed": "nt", "outer_sum": "tn"}[stage.op]
        operands = [
            f"{self._address(view)}, {c_axis(view.row_stride)}"
            for view in (stage.a, stage.b, stage.target)
        ]
        sizes = ", ".join(c_axis(axis) for axis in (rows, columns, inner))
        arguments = ", ".join([sizes, *operands, "1" if stage.accumulate else "0"])
        return ProductContext(_matrix_comment(stage), f"cg_gemm_{routine}({arguments})")

    def _address(self, view: View) -> str:
        """Address of a view's first element."""
        name = self.memory[view.buffer]
        return f"{name} + {_offset(view)}" if any(start != 0 for start in view.start) else name

    # --- loops ---

    def _loop(self, loop: Loop) -> LoopContext:
        has_rows = len(loop.space) == 2
        before: list[str] = []
        row_start: list[str] = []
        body: list[str] = []
        row_end: list[str] = []
        after: list[str] = []
        stored: dict[View, Line] = {ln.view: ln for ln in loop.lines if ln.view is not None}
        for load in loop.loads:
            if load.view.buffer.kind is Kind.SCALAR:
                continue
            self._add_load(load, has_rows, row_start, body)
        for line in stored.values():
            self._add_store(line, has_rows, before, row_start, row_end, after)
        body += [piece for line in loop.lines for piece in self._line(line)]
        comments = [
            describe(line.origin)
            for line in loop.lines
            if line.statement.target.role is not Role.TEMPORARY or line.store is not Store.LOCAL
        ]
        return LoopContext(
            comments=comments,
            rows=c_axis(loop.space[0]) if has_rows else "",
            units=c_axis(loop.space[-1]) if loop.space else "",
            before=before,
            row_start=row_start,
            body=body,
            row_end=row_end,
            after=after,
        )

    def _add_load(self, load: Load, has_rows: bool, row_start: list[str], body: list[str]) -> None:
        name, pointer = load.value.name, self.pointers[load.value]
        if load.access is Access.SCALAR:
            row_start.append(f"const real {name} = *({self._address(load.view)});")
        elif load.access is Access.ROW:
            row_start.append(f"const real {name} = *({self._row_start(load.view)});")
        else:
            by_row = load.access is Access.ELEMENT and has_rows
            start = self._row_start(load.view) if by_row else self._address(load.view)
            if load.access is Access.UNIT and load.view.buffer.kind is Kind.OPTIONAL:
                start = self.memory[load.view.buffer]
            row_start.append(f"const real *{pointer} = {start};")
            body.append(f"const real {name} = {pointer}[unit];")

    def _row_start(self, view: View) -> str:
        """Address of a view in the current row."""
        buffer = view.buffer
        stride = self.strides[buffer] if buffer.kind is Kind.OPTIONAL else c_factor(view.row_stride)
        first = view.start[0] if len(view.start) == 2 else 0
        row = f"row * {stride}" if first == 0 else f"(row + {c_axis(first)}) * {stride}"
        if stride == "1":
            row = "row"
        column = (
            f" + {c_axis(view.start[1])}" if len(view.start) == 2 and view.start[1] != 0 else ""
        )
        return f"{self.memory[buffer]} + {row}{column}"

    def _add_store(
        self,
        line: Line,
        has_rows: bool,
        before: list[str],
        row_start: list[str],
        row_end: list[str],
        after: list[str],
    ) -> None:
        assert line.view is not None
        name, pointer = line.statement.target.name, self.pointers[line.statement.target]
        if line.store is Store.WRITE:
            by_row = has_rows and len(line.view.shape) == 2
            start = self._row_start(line.view) if by_row else self._address(line.view)
            row_start.append(f"real *{pointer} = {start};")
        elif line.store is Store.ADD_ROWS:
            before.append(f"real *{pointer} = {self._address(line.view)};")
            length = c_axis(line.view.shape[-1])
            before.append(f"for (int64_t unit = 0; unit < {length}; ++unit) {pointer}[unit] = 0;")
        elif line.store is Store.ADD_UNITS:
            row_start.append(f"real {name} = 0;")
            row_end.append(f"*({self._row_start(line.view)}) = {name};")
        else:
            before.append(f"real {name} = 0;")
            after.append(f"*({self._address(line.view)}) = {name};")

    def _line(self, line: Line) -> list[str]:
        name, value = line.statement.target.name, c_expression(line.statement.expression)
        pointer = self.pointers[line.statement.target]
        if line.store is Store.LOCAL:
            return [f"const real {name} = {value};"]
        if line.store is Store.WRITE:
            if line.used:
                return [f"const real {name} = {value};", f"{pointer}[unit] = {name};"]
            return [f"{pointer}[unit] = {value};"]
        if line.store is Store.ADD_ROWS:
            return [f"{pointer}[unit] += {value};"]
        return [f"{name} += {value};"]


def _offset(view: View) -> str:
    if len(view.start) == 2:
        pieces = []
        if view.start[0] != 0:
            pieces.append(f"{c_factor(view.start[0])} * {c_factor(view.row_stride)}")
        if view.start[1] != 0:
            pieces.append(c_axis(view.start[1]))
        return " + ".join(pieces)
    return c_axis(view.start[0])


def _matrix_comment(stage: Product) -> str:
    sign = "+=" if stage.accumulate else "="
    a, b = str(stage.a), str(stage.b)
    product = {
        "matmul": f"{a} @ {b}",
        "matmul_transposed": f"{a} @ {b}.T",
        "outer_sum": f"{a}.T @ {b}",
    }[stage.op]
    return f"{stage.target} {sign} {product}"


# --- templates -----------------------------------------------------------------------------------


@cache
def _environment(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _render(template: str, context: HeaderContext | BodyContext | InitContext) -> str:
    environment = _environment(templates_folder())
    keys = {item.name for item in dataclasses.fields(context)}
    check_template(template, keys)
    values = {key: getattr(context, key) for key in sorted(keys)}
    return environment.get_template(template).render(values)


def check_template(template: str, keys: set[str]) -> None:
    """Hold a template's free variables equal to its context's keys.

    Raises:
        DerivationError: a key without use, or a variable without key.
    """
    environment = _environment(templates_folder())
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, template)
    free = jinja2.meta.find_undeclared_variables(environment.parse(source))
    if free != keys:
        raise DerivationError(
            f"template {template} reads {sorted(free)}, its context has {sorted(keys)}",
            code="render.template",
        )

"""Spell the deferred part: every stage once, over the rows of all steps."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.runtime.names import c_member
from cellgen.schedule import Buffer, BufferKind, Loop, Product, Routine
from cellgen.schedule.groups import Group
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.over_time import Part, Storage
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.host import HostFunction, named_loops, operands_of_stages, term_comment
from cellgen.targets.cuda.kernels import spell_loop
from cellgen.targets.cuda.places import DevicePlace, Over, address, factor
from cellgen.targets.cuda.products import (
    Column,
    gemm,
    gemm_heads,
    outer_products,
    stack,
    summed_over_steps,
)
from cellgen.targets.cuda.states import KeptOverTime
from cellgen.targets.cuda.step import (
    element_count,
    not_rendered,
    row_stride,
    spell_routine,
)


class DeferredWriter:
    """Spells the deferred part: every stage once, over the rows of all steps."""

    def __init__(self, host: HostFunction, part: Part, kept: KeptOverTime) -> None:
        self.host, self.part, self.kept = host, part, kept
        self.neighbours = kept.neighbours(part)
        self.operands = operands_of_stages(part.stages)
        self.own: dict[Buffer, DevicePlace] = {}

    def lines(self) -> list[str]:
        """Host lines, stage by stage."""
        lines: list[str] = []
        waiting: list[Product] = []
        for index, stage in enumerate(self.part.stages, start=1):
            if isinstance(stage, Product):
                waiting.append(stage)
                continue
            lines += self._products(waiting)
            waiting = []
            stem = f"deferred_{index}"
            if isinstance(stage, Loop):
                lines += self._loop(stem, stage)
                continue
            if isinstance(stage, Routine):
                lines += self._routine(stage)
                continue
            lines += self._group(stem, stage)
            for name, loop in named_loops(stem, stage.loops):
                lines += self._loop(name, loop)
        return [*lines, *self._products(waiting), *self._contexts()]

    def _contexts(self) -> list[str]:
        """Add up the steps' shares in the gradients of what is constant over time."""
        contexts = self.host.schedule.programs.contexts
        validity = f"guarded ? {self.host.options.validity} : nullptr"
        lines = []
        for buffer in (b for b in self.part.storage if b.value in contexts):
            shares, stride = self.place(buffer), row_stride(buffer)
            lines.append(
                f"cg_add_steps(&run, nB, {stride}, nT, cg_in({shares.pointer}, {stride}), "
                f"{validity}, cg_rows(args->{c_member(buffer.name)}, {stride}));"
            )
        return lines

    def _loop(self, stem: str, loop: Loop) -> list[str]:
        spelled = spell_loop(
            f"{self.host.cell}_{stem}",
            loop,
            self.place,
            self.host.memory.add,
            steps="nT",
            validity=f"guarded ? {self.host.options.validity} : nullptr"
            if leaves_out_rows(loop)
            else "",
        )
        self.host.kernels += spelled.kernels
        return spelled.launches

    def _routine(self, stage: Routine) -> list[str]:
        places = [self.place(view.buffer) for view in stage.operands]
        if stage.by_row and any(place.over is not Over.ROWS for place in places):
            raise not_rendered(self.host.cell, stage)
        return spell_routine(stage, "nT * nB", self.place)

    def _products(self, products: Sequence[Product]) -> list[str]:
        """Weight gradients: one product for each left operand and run of adjoints."""
        lines: list[str] = []
        for run in outer_products(products, self.neighbours):
            lines.append("/* " + "; ".join(f"{p.target} = {p.a}.T @ {p.b}" for p in run) + " */")
            lines += self._outer(run)
        return lines

    def _outer(self, run: tuple[Product, ...]) -> list[str]:
        first = run[0]
        rows = c_axis(first.target.shape[0])
        a = (first.a, self.place(first.a.buffer))
        b = (first.b, self.place(first.b.buffer))
        if len(run) == 1:
            target = self.place(first.target.buffer)
            c = (address(first.target, target), target.stride)
            shape = first.target.shape if first.heads is None else first.weights
            return summed_over_steps((c_axis(shape[0]), c_axis(shape[1])), a, b, c, first.heads)
        widths = [product.target.shape[1] for product in run]
        total = sum(widths[1:], start=widths[0])
        name = f"{first.a.buffer.name}_products"
        joint = self.host.memory.add(name, "real", f"{factor(rows)} * {c_factor(total)}")
        lines = summed_over_steps((rows, c_axis(total)), a, b, (joint, c_axis(total)))
        start: Expr = Integer(0)
        for product, width in zip(run, widths, strict=True):
            target = self.place(product.target.buffer)
            at = joint if start == 0 else f"{joint} + {c_axis(start)}"
            lines.append(
                f"cg_copy(&run, {rows}, {c_axis(width)}, "
                f"cg_rows({address(product.target, target)}, {target.stride}), "
                f"cg_in({at}, {c_axis(total)}));"
            )
            start = start + width
        return lines

    def _group(self, stem: str, group: Group) -> list[str]:
        columns = [
            Column(slot.view.buffer.name, slot.view.start[-1], slot.view.shape[-1])
            for slot in group.slots
        ]
        lines = []
        for number, run in enumerate(stack(group, columns, self.neighbours), start=1):
            panel = self.host.packing.panel(f"{stem}_weights_{number}", run, self.place)
            operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
            a, c = self.place(operand.buffer), self.place(target.buffer)
            if a.over is not Over.ROWS:
                raise DerivationError(
                    f"{self.host.cell}: `{operand} @ ...` over all steps is not rendered for CUDA "
                    f"yet, because {operand} lies in {a.over.value}",
                    code="cuda.stage",
                )
            inner = sum((t.inner for t in run.terms[1:]), start=run.terms[0].inner)
            width, heads = group.units * len(run.slots), run.heads(group)
            terms = zip(run.terms, run.weights, strict=True)
            lines.append("/* " + "; ".join(term_comment(t, w) for t, w in terms) + " */")
            routine = "nt" if panel.transposed else "nn"
            matrices = (
                (address(operand, a), a.stride),
                (panel.pointer, panel.stride),
                (address(target, c), c.stride),
            )
            if heads is None:
                sizes = ("nT * nB", c_axis(width), c_axis(inner))
                lines.append(gemm(routine, sizes, *matrices, run.onto))
            else:
                sizes = ("nT * nB", c_axis(group.units / heads), c_axis(inner))
                slots = len(run.slots)
                lines.append(gemm_heads(routine, slots, heads, sizes, *matrices, run.onto))
        return lines

    def place(self, buffer: Buffer) -> DevicePlace:
        """Where a buffer lies, from its first step on."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        storage, stride = self.part.storage[buffer], row_stride(buffer)
        argument = f"args->{c_member(buffer.name)}"
        optional = buffer.kind is BufferKind.OPTIONAL
        self.host.options.whole.add(buffer.name)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.PREVIOUS:
            link = next(k for k in self.host.schedule.programs.links if k.previous == buffer.value)
            self.host.options.whole.add(str(link.next.name))
            copy = self.host.options.before[buffer.value]
            made = f"(guarded ? {copy} + nB * {stride} : args->{c_member(str(link.next.name))})"
            first = f"(guarded ? {copy} : {argument})"
            return DevicePlace(made, stride, "store", over=Over.PREVIOUS, initial=first)
        if buffer.value in self.kept.order:
            return self.kept.place(buffer.value)
        is_row = storage is Storage.CONSTANT and buffer.value.is_batched
        over = Over.BATCH if is_row else Over.ROWS
        return DevicePlace(argument, stride, "store", optional=optional, over=over)

    def _scratch(self, buffer: Buffer) -> DevicePlace:
        if buffer not in self.own:
            element = "store" if buffer in self.operands else "real"
            count = f"nT * {element_count(buffer)}"
            name = self.host.memory.add(f"deferred_{buffer.name}", element, count)
            self.own[buffer] = DevicePlace(name, row_stride(buffer), element)
        return self.own[buffer]

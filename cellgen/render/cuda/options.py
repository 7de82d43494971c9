"""Spell options over time for a host function: order of steps, steps that do not count, resets.

Input: the arrays over time and the states of a function. Output: lines of host code around the
steps, which call ``cellgen_cuda_options.cuh``. Steps themselves stay as they are: the arguments
that they read are redirected to copies in the order of computation (``own``), and a state before a
step is read from a copy where ``guarded``.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellgen.abi import Argument
from cellgen.abi import Function as Signature
from cellgen.printer import c_axis
from cellgen.render.cuda.kernels import factor
from cellgen.render.cuda.memory import Memory
from cellgen.render.sequence import c_axis_text, c_mul
from cellgen.schedule.plan import flat
from cellgen.schedule.unroll import SequencePrograms, StateLink
from cellgen.value import Value


class OverTime:
    """The options of one function over time; ``before`` names the copy of each state."""

    def __init__(
        self,
        programs: SequencePrograms,
        signature: Signature,
        memory: Memory,
        links: Sequence[StateLink],
    ) -> None:
        self.programs, self.signature, self.links = programs, signature, links
        self.is_backward = signature.name != "sequence_forward"
        rows = "CELLGEN_IF_GUARDED(nT * nB)"
        self.counts = memory.add("step_counts", "unsigned char", rows)
        self.fresh = memory.add("step_fresh", "unsigned char", rows)
        self.source = "(int32_t *)nullptr"
        if self.is_backward:
            self.source = memory.add("step_before", "int32_t", rows)
        self.given = [a for a in signature.struct_members if a.over_time]
        self.made = [a for a in signature.results if a.over_time]
        self.ordered = {
            a.name: memory.add(
                f"{a.name}_ordered", "store", f"CELLGEN_IF_ORDERED(nT * nB * {factor(_units(a))})"
            )
            for a in (*self.given, *self.made)
        }
        steps = "nT * nB" if self.is_backward else "nB"
        self.before = {
            link.previous: memory.add(
                f"{link.previous.name}_before",
                "store",
                f"CELLGEN_IF_GUARDED({steps} * {factor(_width(link.previous))})",
            )
            for link in links
        }

    def begin(self) -> list[str]:
        """Fill the tables; redirect arrays over time to copies in the order of computation."""
        rows = f"nT, nB, {{}}, {{}}, args->{{}}, args->reverse, guarded ? {self.counts} : nullptr"
        lines = [
            "if (guarded)",
            "    cg_fill_tables(&run, nT, nB, args->lengths, args->mask, args->reset, "
            f"args->reverse, args->hold, {self.counts}, {self.fresh}, {self.source});",
        ]
        if self.is_backward and self.links:
            copies = [f"    {self._collect_before(link)}" for link in self.links]
            lines += ["if (guarded) {", *copies, "}"]
        lines.append("if (ordered) {")
        for item in self.given:
            listed = rows.format(_units(item), self.ordered[item.name], item.name)
            indent = "    "
            if item.optional:
                lines.append(f"    if (args->{item.name}) {{")
                indent = "        "
            lines.append(f"{indent}cg_collect(&run, {listed});")
            lines.append(f"{indent}own.{item.name} = {self.ordered[item.name]};")
            if item.optional:
                lines.append("    }")
        lines += [f"    own.{item.name} = {self.ordered[item.name]};" for item in self.made]
        lines.append("}")
        if not self.is_backward:
            lines += [f"if (guarded) {self._begin_state(link)}" for link in self.links]
        return lines

    def _collect_before(self, link: StateLink) -> str:
        """Copy the state before every step; outputs lie in the caller's order, saved ones not."""
        order = "args->reverse" if link.next in self.programs.outputs else "0"
        return (
            f"cg_collect_before(&run, nT, nB, {_width(link.previous)}, "
            f"{self.before[link.previous]}, args->{link.next.name}, args->{link.previous.name}, "
            f"{self.source}, {order});"
        )

    def _begin_state(self, link: StateLink) -> str:
        return (
            f"cg_begin_state(&run, nB, {_width(link.previous)}, {self.before[link.previous]}, "
            f"args->{link.previous.name}, nT > 0 ? {self.fresh} : nullptr);"
        )

    def settle(self, link: StateLink, made: str) -> str:
        """Put a new state right where its step does not count."""
        is_output = int(link.next in self.programs.outputs)
        return (
            f"cg_settle(&run, nB, {_width(link.next)}, {self.before[link.previous]}, {made}, "
            f"{is_output}, {self.counts} + step * nB, "
            f"step + 1 < nT ? {self.fresh} + (step + 1) * nB : nullptr);"
        )

    def settle_gradient(self, link: StateLink, passed: str, carry: str) -> str:
        """Put the gradient for the step before right where a step does not count."""
        upstream, width = "(const store *)nullptr", _width(link.passed)
        if link.next in self.programs.upstream:
            name = self.programs.upstream[link.next].name
            upstream = (
                f"given->{name} ? given->{name} + (args->reverse ? nT - 1 - step : step) * nB * "
                f"{factor(width)} : nullptr"
            )
        return (
            f"cg_settle_gradient(&run, nB, {width}, {passed}, {carry}, {upstream}, "
            f"{self.counts} + step * nB, {self.fresh} + step * nB);"
        )

    def leave_out(self, kept: str, width: str) -> str:
        """Clear adjoints of steps that do not count."""
        return f"cg_leave_out(&run, nB, {width}, {kept}, {self.counts} + step * nB);"

    def end(self) -> list[str]:
        """Copy results over time to where the caller wants them."""
        states = {str(link.next.name) for link in self.programs.links}
        lines = []
        for item in self.made:
            counts = "(const unsigned char *)nullptr"
            if item.name not in states:
                counts = f"guarded ? {self.counts} : nullptr"
            lines.append(
                f"    cg_deliver(&run, nT, nB, {_units(item)}, given->{item.name}, "
                f"{self.ordered[item.name]}, args->reverse, {counts});"
            )
        return ["if (ordered) {", *lines, "}"] if lines else []


def _width(value: Value) -> str:
    return c_axis(flat(value.shape)[-1])


def _units(item: Argument) -> str:
    """Elements of a row of one step."""
    return " * ".join(c_mul(c_axis_text(axis)) for axis in item.shape[2:])

"""Spell options over time for a host function: layout and order of steps, masked steps.

Input: the arrays over time and the states of a function. Output: lines of host code around the
steps, which call ``cellgen_cuda_options.cuh``. Steps read and write arrays over time where they
are, at strides (``<name>_step``, ``<name>_row``) that are negative where steps are taken backwards.
An array that products or loops over all steps touch (``whole``) is redirected to a copy in the
workspace (``own``) unless one row follows the other, any array where steps may be masked; a state
before a step is read from a copy where ``guarded``.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellgen.language.value import Value
from cellgen.program.over_time import SequencePrograms, StateLink
from cellgen.runtime.abi import Argument
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import c_member
from cellgen.schedule.schedule import flat
from cellgen.targets.c_expressions import c_axis, c_axis_text, c_mul, c_start
from cellgen.targets.cuda.memory import DeviceWorkspace
from cellgen.targets.cuda.places import factor


class OverTime:
    """The options of one function over time.

    ``before`` names the copy of each state, ``strides_of`` the strides of each array over time.
    """

    def __init__(
        self,
        programs: SequencePrograms,
        signature: Signature,
        memory: DeviceWorkspace,
        links: Sequence[StateLink],
    ) -> None:
        self.programs, self.signature, self.links = programs, signature, links
        self.is_backward = signature.name != "sequence_forward"
        rows = "CELLGEN_IF_GUARDED(nT * nB)"
        self.validity = memory.add("step_validity", "unsigned char", rows)
        self.resets = memory.add("step_resets", "unsigned char", rows)
        states = {str(link.next.name) for link in programs.links}
        outputs = {str(v.name): programs.upstream[v] for v in programs.outputs}
        self.shown = {  # outputs that are no states, or their gradients
            str(gradient.name) if self.is_backward else name
            for name, gradient in outputs.items()
            if name not in states
        }
        self.source = "(int32_t *)nullptr"
        if self.is_backward or self.shown:
            self.source = memory.add("step_before", "int32_t", rows)
        self.given = [a for a in signature.struct_members if a.over_time]
        self.made = [a for a in signature.results if a.over_time]
        self.places = {a.name: n for n, a in enumerate((*self.given, *self.made))}
        self.ordered = {
            a.name: memory.add(
                f"{a.name}_ordered",
                "store",
                f"CELLGEN_IF_MOVED({self.places[a.name]}, nT * nB * {factor(_units(a))})",
            )
            for a in (*self.given, *self.made)
        }
        self.whole: set[str] = set()
        self.strides_of = {
            name: (memory.names.fresh(f"{name}_step"), memory.names.fresh(f"{name}_row"))
            for name in self.places
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

    def strides(self) -> dict[str, str]:
        """C texts: elements from step to step and from row to row of arrays over time, by name."""
        members = {}
        for name, place in self.places.items():
            step, row = self.strides_of[name]
            members[step] = f"args->strides[{2 * place}]"
            members[row] = f"args->strides[{2 * place + 1}]"
        return members

    def moves(self) -> list[str]:
        """C texts: the bit of each array over time, set where it has to be moved."""
        bits = []
        for item in (*self.given, *self.made):
            place = self.places[item.name]
            if item.name in self.whole:
                layout = f"args->strided ? args->strides + {2 * place} : nullptr"
                bits.append(
                    f"cellgen_moves({place}, {layout}, args->reverse, nT, nB, {_units(item)})"
                )
            if self._is_shown(item):
                absent = "" if self.is_backward else "args->last || "
                bits.append(f"({absent}args->every > 1 ? CELLGEN_MOVED({place}) : 0)")
        return bits or ["0"]

    def _series(self, item: Argument) -> str:
        """C text: an array over time as the caller has it."""
        text = f"cg_series(given->{c_member(item.name)}, {self._layout(item)}, nB, {_units(item)})"
        return f"cg_every({text}, args->every)" if self._is_shown(item) else text

    def _is_shown(self, item: Argument) -> bool:
        """Whether an array has the steps that ``every`` shows alone: an output, or its gradient."""
        return item in self.given and item.optional if self.is_backward else item in self.made

    def _layout(self, item: Argument) -> str:
        return f"given->strided ? given->strides + {2 * self.places[item.name]} : nullptr"

    def _flags(self, name: str) -> str:
        """C text: a table of the caller."""
        place = len(self.places) + ("mask", "reset").index(name)
        layout = f"given->strided ? given->strides + {2 * place} : nullptr"
        return f"cg_series(given->{name}, {layout}, nB, 1)"

    def begin(self) -> list[str]:
        """Fill the tables; redirect arrays over time to copies in the order of computation."""
        lines = [
            "if (guarded)",
            f"    cg_fill_tables(&run, nT, nB, args->lengths, {self._flags('mask')}, "
            f"{self._flags('reset')}, args->reverse, args->hold, {self.validity}, {self.resets}, "
            f"{self.source});",
        ]
        if self.is_backward and self.links:
            copies = [f"    {self._gather_before(link)}" for link in self.links]
            lines += ["if (guarded) {", *copies, "}"]
        for item in (*self.given, *self.made):
            place, units, member = self.places[item.name], _units(item), c_member(item.name)
            lines += [
                f"if (how & CELLGEN_MOVED({place}){self._wanted(item)}) {{",
                *self._gather(item),
                f"    own.{member} = {self.ordered[item.name]};",
                f"    cellgen_lay(own.strides + {2 * place}, nB, {units});",
                "} else {",
                f"    own.{member} = cellgen_first(given->{member}, {self._layout(item)}, "
                f"args->reverse, nT, nB, {units}, own.strides + {2 * place});",
                "}",
            ]
        if not self.is_backward:
            lines += [f"if (guarded) {self._begin_state(link)}" for link in self.links]
        return lines

    def _wanted(self, item: Argument) -> str:
        """C text: whether an array that may be left out is there."""
        return f" && given->{c_member(item.name)}" if item in self.given and item.optional else ""

    def _gather(self, item: Argument) -> list[str]:
        """Copy an argument into the order of computation."""
        if item in self.made:
            return []
        validity = f"guarded ? {self.validity} : nullptr"
        routine, window = "cg_gather_steps", ""
        if item.name in self.shown:
            routine, window = "cg_gather_shown", "args->window, "
        return [
            f"    {routine}(&run, nT, nB, {_units(item)}, {self.ordered[item.name]}, "
            f"{self._series(item)}, args->reverse, {window}{validity});"
        ]

    def _gather_before(self, link: StateLink) -> str:
        """Copy the state before every step; outputs lie in the caller's order, saved ones not."""
        name, width = str(link.next.name), _width(link.previous)
        found = next((a for a in self.given if a.name == name), None)
        series, order = f"cg_series(args->{c_member(name)}, nullptr, nB, {width})", "0"
        if found is not None:
            series, order = self._series(found), "args->reverse"
        return self._started(
            link,
            f"cg_gather_before(&run, nT, nB, {width}, {self.before[link.previous]}, {series}, "
            f"args->{c_member(str(link.previous.name))}, {self.source}, {order});",
            "nT * nB",
            self.resets,
        )

    def _started(self, link: StateLink, text: str, rows: str, resets: str) -> str:
        """Behind a reset a state starts where it is declared to, if that is not 0."""
        initial = c_start(self.programs.definition.initial_of(link.previous))
        if not initial:
            return text
        width, before = _width(link.previous), self.before[link.previous]
        return f"{{ {text} cg_start_rows(&run, {rows}, {width}, {before}, {initial}, {resets}); }}"

    def _begin_state(self, link: StateLink) -> str:
        resets = f"nT > 0 ? {self.resets} : nullptr"
        return self._started(
            link,
            f"cg_begin_state(&run, nB, {_width(link.previous)}, {self.before[link.previous]}, "
            f"args->{c_member(str(link.previous.name))}, {resets});",
            "nB",
            resets,
        )

    def masked_select(self, link: StateLink, made: str) -> str:
        """Put a new state right where its step is masked."""
        is_output = int(link.next in self.programs.outputs)
        resets = f"step + 1 < nT ? {self.resets} + (step + 1) * nB : nullptr"
        return self._started(
            link,
            f"cg_masked_select(&run, nB, {_width(link.next)}, {self.before[link.previous]}, "
            f"{made}, {is_output}, {self.validity} + step * nB, {resets});",
            "nB",
            resets,
        )

    def masked_select_gradient(self, link: StateLink, passed: str, carry: str) -> str:
        """Put the gradient for the step before right where a step is masked."""
        width = _width(link.passed)
        if link.next in self.programs.upstream:
            name = str(self.programs.upstream[link.next].name)
            upstream = self._series(next(a for a in self.given if a.name == name))
        else:
            upstream = f"cg_series((const store *)nullptr, nullptr, nB, {width})"
        return (
            f"cg_masked_select_gradient(&run, nB, {width}, {passed}, {carry}, {upstream}, "
            f"args->reverse ? nT - 1 - step : step, {self.validity} + step * nB, "
            f"{self.resets} + step * nB);"
        )

    def leave_out(self, kept: str, width: str) -> str:
        """Clear adjoints of masked steps."""
        return f"cg_leave_out(&run, nB, {width}, {kept}, {self.validity} + step * nB);"

    def end(self) -> list[str]:
        """Copy results over time to where the caller wants them."""
        states = {str(link.next.name) for link in self.programs.links}
        lines = []
        for item in self.made:
            routine, validity = "cg_scatter_steps", "(const unsigned char *)nullptr"
            if item.name not in states:
                validity = f"guarded ? {self.validity} : nullptr"
            if item.name in self.shown:
                routine, validity = "cg_scatter_shown", f"{validity}, {self.source}"
            wanted = "" if self.is_backward else f" && given->{c_member(item.name)}"
            lines += [
                f"if (how & CELLGEN_MOVED({self.places[item.name]}){wanted})",
                f"    {routine}(&run, nT, nB, {_units(item)}, {self._series(item)}, "
                f"{self.ordered[item.name]}, args->reverse, {validity});",
            ]
        return lines


def _width(value: Value) -> str:
    return c_axis(flat(value.shape)[-1])


def _units(item: Argument) -> str:
    """Elements of a row of one step."""
    return " * ".join(c_mul(c_axis_text(axis)) for axis in item.shape[2:])

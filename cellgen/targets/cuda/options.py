"""Spell options over time for a host function: layout and order of steps, masked steps.

Input: ``ArraysOverTime``. Output: lines of host code around the steps, which call
``cellgen_cuda_options.cuh``. ``own`` are the arguments with copies in the place of arrays that
``schedule/device/over_time`` redirects; ``guarded`` says that steps may be masked.
"""

from __future__ import annotations

from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.abi import Argument
from cellgen.runtime.names import c_member
from cellgen.schedule.device.over_time import ArrayOverTime, ArraysOverTime
from cellgen.schedule.schedule import flat
from cellgen.targets.c_expressions import c_axis, c_factors, c_start


class OptionLines:
    """Spells the options of one function over time."""

    def __init__(self, options: ArraysOverTime) -> None:
        self.options, self.arrays = options, options.arrays
        self.is_backward = options.is_backward
        self.validity, self.resets = options.validity, options.resets
        self.source = options.source or "(int32_t *)nullptr"

    @property
    def valid_rows(self) -> str:
        """C text: the table of valid rows, where there is one."""
        return f"guarded ? {self.validity} : nullptr"

    def strides(self) -> dict[str, str]:
        """C texts: elements from step to step and from row to row of arrays over time, by name."""
        names = (name for array in self.arrays for name in array.strides)
        return {name: f"args->strides[{place}]" for place, name in enumerate(names)}

    def moves(self) -> list[str]:
        """C texts: the bit of each array over time, set where it has to be moved."""
        bits = []
        for array in self.arrays:
            place = array.number
            if array.name in self.options.whole:
                layout = f"cellgen_layout(args->options.strides, {place})"
                units = _units(array.item)
                bits.append(
                    f"cellgen_moves({place}, {layout}, args->options.reverse, nT, nB, {units})"
                )
            if array.is_shown:
                absent = "" if self.is_backward else "args->options.last || "
                bits.append(f"({absent}args->options.every > 1 ? CELLGEN_MOVED({place}) : 0)")
        return bits or ["0"]

    def _series(self, array: ArrayOverTime) -> str:
        """C text: an array over time as the caller has it."""
        member, units = c_member(array.name), _units(array.item)
        text = f"cg_series(given->{member}, {self._layout(array)}, nB, {units})"
        return f"cg_every({text}, args->options.every)" if array.is_shown else text

    def _layout(self, array: ArrayOverTime) -> str:
        return f"cellgen_layout(given->options.strides, {array.number})"

    def _flags(self, name: str) -> str:
        """C text: a table of the caller."""
        place = len(self.arrays) + ("mask", "reset").index(name)
        layout = f"cellgen_layout(given->options.strides, {place})"
        return f"cg_series(given->options.{name}, {layout}, nB, 1)"

    def begin(self) -> list[str]:
        """Fill the tables; redirect arrays over time to copies in the order of computation."""
        lines = [
            "if (guarded)",
            f"    cg_fill_tables(&run, nT, nB, args->options.lengths, {self._flags('mask')}, "
            f"{self._flags('reset')}, args->options.reverse, args->options.hold, {self.validity}, "
            f"{self.resets}, {self.source});",
        ]
        links = self.options.links
        if self.is_backward and links:
            copies = [f"    {self._gather_before(link)}" for link in links]
            lines += ["if (guarded) {", *copies, "}"]
        for array in self.arrays:
            place, units, member = array.number, _units(array.item), c_member(array.name)
            lines += [
                f"if (how & CELLGEN_MOVED({place}){self._wanted(array)}) {{",
                *self._gather(array),
                f"    own.{member} = {array.ordered};",
                f"    cellgen_lay(own.strides + {2 * place}, nB, {units});",
                "} else {",
                f"    own.{member} = cellgen_first(given->{member}, {self._layout(array)}, "
                f"args->options.reverse, nT, nB, {units}, own.strides + {2 * place});",
                "}",
            ]
        if not self.is_backward:
            lines += [f"if (guarded) {self._begin_state(link)}" for link in links]
        return lines

    def _wanted(self, array: ArrayOverTime) -> str:
        """C text: whether an array that may be left out is there."""
        may_lack = array.item.optional and not array.is_result
        return f" && given->{c_member(array.name)}" if may_lack else ""

    def _gather(self, array: ArrayOverTime) -> list[str]:
        """Copy an argument into the order of computation."""
        if array.is_result:
            return []
        routine, window = "cg_gather_steps", ""
        if array.stateless:
            routine, window = "cg_gather_shown", "args->options.window, "
        return [
            f"    {routine}(&run, nT, nB, {_units(array.item)}, {array.ordered}, "
            f"{self._series(array)}, args->options.reverse, {window}{self.valid_rows});"
        ]

    def _gather_before(self, link: StateLink) -> str:
        """Copy the state before every step; outputs lie in the caller's order, saved ones not."""
        name, width = str(link.next.name), _width(link.previous)
        array = self.options.find(name)
        series, order = f"cg_series(args->{c_member(name)}, nullptr, nB, {width})", "0"
        if array is not None and not array.is_result:
            series, order = self._series(array), "args->options.reverse"
        return self._started(
            link,
            f"cg_gather_before(&run, nT, nB, {width}, {self._before(link)}, {series}, "
            f"args->{c_member(str(link.previous.name))}, {self.source}, {order});",
            "nT * nB",
            self.resets,
        )

    def _started(self, link: StateLink, text: str, rows: str, resets: str) -> str:
        """Behind a reset a state starts where it is declared to, if that is not 0."""
        initial = c_start(self.options.programs.definition.initial_of(link.previous))
        if not initial:
            return text
        width, before = _width(link.previous), self._before(link)
        return f"{{ {text} cg_start_rows(&run, {rows}, {width}, {before}, {initial}, {resets}); }}"

    def _begin_state(self, link: StateLink) -> str:
        resets = f"nT > 0 ? {self.resets} : nullptr"
        return self._started(
            link,
            f"cg_begin_state(&run, nB, {_width(link.previous)}, {self._before(link)}, "
            f"args->{c_member(str(link.previous.name))}, {resets});",
            "nB",
            resets,
        )

    def _before(self, link: StateLink) -> str:
        return self.options.copy_of(link.previous)

    def masked_select(self, link: StateLink, left: str) -> str:
        """Put a new state right where its step is masked."""
        is_output = int(link.next in self.options.programs.outputs)
        resets = f"step + 1 < nT ? {self.resets} + (step + 1) * nB : nullptr"
        return self._started(
            link,
            f"cg_masked_select(&run, nB, {_width(link.next)}, {self._before(link)}, "
            f"{left}, {is_output}, {self.validity} + step * nB, {resets});",
            "nB",
            resets,
        )

    def masked_select_gradient(self, link: StateLink, passed: str, carry: str) -> str:
        """Put the gradient for the step before right where a step is masked."""
        width = _width(link.passed)
        upstream = self.upstream(link) or f"cg_series((const store *)nullptr, nullptr, nB, {width})"
        return (
            f"cg_masked_select_gradient(&run, nB, {width}, {passed}, {carry}, {upstream}, "
            f"args->options.reverse ? nT - 1 - step : step, {self.validity} + step * nB, "
            f"{self.resets} + step * nB);"
        )

    def upstream(self, link: StateLink) -> str:
        """C text: the series of upstream gradients of a state; nothing where it is no output."""
        if link.next not in self.options.programs.upstream:
            return ""
        array = self.options.find(str(self.options.programs.upstream[link.next].name))
        assert array is not None
        return self._series(array)

    def leave_out(self, kept: str, width: str) -> str:
        """Clear adjoints of masked steps."""
        return f"cg_leave_out(&run, nB, {width}, {kept}, {self.validity} + step * nB);"

    def end(self) -> list[str]:
        """Copy results over time to where the caller wants them."""
        states = {str(link.next.name) for link in self.options.programs.links}
        lines = []
        for array in (array for array in self.arrays if array.is_result):
            routine, validity = "cg_scatter_steps", "(const unsigned char *)nullptr"
            if array.name not in states:
                validity = self.valid_rows
            if array.stateless:
                routine, validity = "cg_scatter_shown", f"{validity}, {self.source}"
            member = c_member(array.name)
            wanted = "" if self.is_backward else f" && given->{member}"
            if array.stateless:
                units, valid = _units(array.item), self.valid_rows
                lines += [
                    f"if (args->options.last{wanted})",
                    f"    cg_show_last(&run, nT, nB, {units}, given->{member}, {array.ordered}, "
                    f"{valid});",
                    "else",
                ]
            lines += [
                f"if (how & CELLGEN_MOVED({array.number}){wanted})",
                f"    {routine}(&run, nT, nB, {_units(array.item)}, {self._series(array)}, "
                f"{array.ordered}, args->options.reverse, {validity});",
            ]
        return lines


def _width(value: Value) -> str:
    return c_axis(flat(value.shape)[-1])


def _units(item: Argument) -> str:
    """Elements of a row of one step."""
    return c_factors(item.shape[2:])

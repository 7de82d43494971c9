"""Lay out what options over time need of a function: copies, tables of steps, strides.

Input: the arrays over time and the states of a function. Output: ``ArraysOverTime``. Steps read
and write arrays over time where they are, at strides that are negative where steps are taken
backwards. An array that products or loops over all steps touch (``whole``) is redirected to a copy
in the workspace unless one row follows the other, any array where steps may be masked; a state
before a step is read from a copy there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellgen.language.value import B, T, Value
from cellgen.program.over_time import SequencePrograms, StateLink
from cellgen.runtime.abi import Argument
from cellgen.runtime.abi import Function as Signature
from cellgen.schedule.device.places import (
    DeviceWorkspace,
    Element,
    Extent,
    NeededWhen,
    row_width,
)


@dataclass(frozen=True)
class ArrayOverTime:
    """One array over time: its number, its copy in the order of computation, its strides.

    ``is_result``: the function writes it. ``is_shown``: it has the steps that ``every`` shows
    alone: an output, or its gradient. ``stateless``: an output that is no state, or the gradient of
    one.
    """

    item: Argument
    number: int
    ordered: str
    strides: tuple[str, str]
    is_result: bool
    is_shown: bool
    stateless: bool

    @property
    def name(self) -> str:
        """Its name in the interface."""
        return self.item.name


@dataclass(frozen=True)
class ArraysOverTime:
    """Arrays over time of one function and the tables of its steps, by name in the workspace.

    ``before`` names the copy of each state. ``source`` tells which step a masked one repeats; empty
    where nobody asks. ``whole`` are arrays that lie row after row.
    """

    programs: SequencePrograms
    is_backward: bool
    links: tuple[StateLink, ...]
    validity: str
    resets: str
    source: str
    arrays: tuple[ArrayOverTime, ...]
    before: tuple[tuple[Value, str], ...]
    whole: tuple[str, ...] = ()

    def find(self, name: str) -> ArrayOverTime | None:
        """The array of a name, if it is one over time."""
        return next((array for array in self.arrays if array.name == name), None)

    def strides_of(self, name: str) -> tuple[str, str] | None:
        """Names of an array's strides, if it is one over time."""
        array = self.find(name)
        return array.strides if array else None

    def copy_of(self, state: Value) -> str:
        """Where a state before a step lies where steps may be masked."""
        return dict(self.before)[state]


def lay_out(
    programs: SequencePrograms,
    signature: Signature,
    memory: DeviceWorkspace,
    links: Sequence[StateLink],
    *,
    is_backward: bool,
) -> ArraysOverTime:
    """Reserve what options over time need."""
    flags = Extent((T, B), NeededWhen.GUARDED)
    validity = memory.add("step_validity", Element.FLAG, flags)
    resets = memory.add("step_resets", Element.FLAG, flags)
    states = {str(link.next.name) for link in programs.links}
    outputs = {str(v.name): programs.upstream[v] for v in programs.outputs}
    stateless = {
        str(gradient.name) if is_backward else name
        for name, gradient in outputs.items()
        if name not in states
    }
    source = memory.add("step_before", Element.NUMBER, flags) if is_backward or stateless else ""
    arguments = [a for a in signature.struct_members if a.over_time]
    results = [a for a in signature.results if a.over_time]
    items = list(enumerate((*arguments, *results)))
    ordered = [memory.add(f"{a.name}_ordered", Element.STORE, _copied(a, n)) for n, a in items]
    strides = [
        (memory.names.fresh(f"{a.name}_step"), memory.names.fresh(f"{a.name}_row"))
        for _, a in items
    ]
    rows = (T, B) if is_backward else (B,)
    before = tuple(
        (
            link.previous,
            memory.add(
                f"{link.previous.name}_before",
                Element.STORE,
                Extent((*rows, row_width(link.previous)), NeededWhen.GUARDED),
            ),
        )
        for link in links
    )
    arrays = tuple(
        ArrayOverTime(
            a,
            n,
            ordered[n],
            strides[n],
            is_result=a in results,
            is_shown=a in arguments and a.optional if is_backward else a in results,
            stateless=a.name in stateless,
        )
        for n, a in items
    )
    return ArraysOverTime(
        programs, is_backward, tuple(links), validity, resets, source, arrays, before
    )


def _copied(item: Argument, number: int) -> Extent:
    return Extent((T, B), NeededWhen.MOVED, item.shape[2:], number)

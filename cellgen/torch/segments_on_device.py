"""Run segments of time side by side as rows of a device's kernels: ``parallel="segments"`` there.

Input: a ``Call`` with a cut and tensors of a device. Output: what the operator of the forward pass
gives. ``frameworks/segments_on_device.py`` says how segments lie; states are compared where they
are, each sweep waits for one answer, and runs those segments alone that changed.

With a tolerance, cells whose units are apart carry products of Jacobians: the kernel of the tangent
along each state, on all segments, says what a segment makes of a difference of its first state, so
that first states of a sweep are those of Newton's method (arXiv:2510.21450), which serves memory
that is longer than a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from cellgen.frameworks.segments_on_device import (
    Operands,
    Segments,
    has_steps,
    last_states,
    states_of,
)
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.segments import Segmentation
from cellgen.runtime.options import SEGMENTS
from cellgen.torch.devices import is_capturing
from cellgen.torch.errors import KindError

if TYPE_CHECKING:
    from cellgen.torch.calls import Tables
    from cellgen.torch.derivatives import Call

Forward: TypeAlias = Callable[..., Sequence[Tensor]]
Parts: TypeAlias = Sequence[Tensor]
"""Of an array of states that of each segment."""
Cut = TypeVar("Cut", bound=Segments)


def run_segments_on_device(
    call: Call,
    cut: Segmentation,
    tables: Tables,
    theta: Sequence[Tensor],
    *,
    save: bool,
    forward: Forward,
) -> list[Tensor]:
    """Compute all steps. ``forward`` calls the operator. Raises KindError, TensorError."""
    layout, device = call.known.layout, theta[0].device
    if is_capturing(device):
        raise KindError(
            f"{layout.label}: parallel is {SEGMENTS!r} while a graph of CUDA is captured, which "
            f"cannot wait to see whether segments agree; leave parallel out"
        )
    plain, arrays = replace(call, cut=None), [tensor.detach() for tensor in theta]

    def run(part: Operands, save: bool) -> Sequence[Tensor]:
        return forward(plain, (part.lengths, None, part.reset), part.theta, save=save)

    with torch.no_grad():
        segments = segments_of_call(Segments, call, tables, arrays)
        if segments is None:
            return list(forward(plain, tables, arrays, save=save))
        return CutCall(segments, cut, run, save, plain if are_linear(call) else None).fill()


def are_linear(call: Call) -> bool:
    """Whether a call in segments is not to the bit, and their Jacobians have n x n numbers a unit.

    n is the number of states. Truncated gradients (``window``) are cut at steps of the whole row.
    """
    is_near = call.cut is not None and call.cut.tolerance > 0 and not call.options.window
    return is_near and call.known.kernel.interface.units_apart


def segments_of_call(
    kind: type[Cut], call: Call, tables: Tables, theta: Sequence[Tensor]
) -> Cut | None:
    """Cut the time of a call; None where there is one segment, no row or no state."""
    layout, device, cut = call.known.layout, theta[0].device, call.cut
    lengths, mask, reset = tables
    assert mask is None
    assert cut is not None
    first, sizes = states_of(layout, theta), layout.sizes(theta)
    count = cut.count(sizes["T"], max((one.numel() for one in first), default=1))
    if count < 2 or not first or sizes["B"] == 0:
        return None
    return kind(
        torch,
        lambda most: torch.arange(most, device=device),
        layout,
        theta,
        count,
        lengths,
        reset,
        call.options.reverse,
    )


@dataclass(frozen=True)
class CutCall:
    """A call whose time is cut; ``linear`` is that of all steps where Jacobians are carried."""

    segments: Segments
    cut: Segmentation
    run: Callable[[Operands, bool], Sequence[Tensor]]
    save: bool
    linear: Call | None

    @property
    def _items(self) -> tuple[Argument, ...]:
        layout = self.segments.layout
        return (*layout.outputs, *layout.saved) if self.save else layout.outputs

    def fill(self) -> list[Tensor]:
        """Run all steps; outputs, then what is saved, if it is."""
        segments = self.segments
        results, exact = self._converge()
        done, rest = exact * segments.steps, None
        if done < segments.total:  # the rest follows from the last segment that is right to the bit
            last = segments.last(last_states(segments.layout, results), exact)
            rest = self.run(segments.rest(done, last), self.save)
        return segments.joined(self._items, results, exact, rest)

    def _converge(self) -> tuple[list[Tensor], int]:
        """Run segments until they agree: results, and how many segments count."""
        segments, layout = self.segments, self.segments.layout
        guess = self.run(segments.guess(), False)
        firsts = segments.first_of_all(last_states(layout, guess))
        results = list(self.run(segments.side_by_side(firsts), self.save))
        for sweep in range(self.cut.sweeps + 1):
            ends = last_states(layout, results)
            wrong = segments.wrong(firsts, ends, self.cut.tolerance)
            places = wrong.any(1).nonzero().flatten().tolist()  # waits for the device
            if not places:
                return results, segments.count
            if sweep == self.cut.sweeps:
                break
            if self.linear is None:
                firsts = segments.following(firsts, ends, wrong)
                self.run_again(firsts, results, places[0] + 1, places[-1] + 2)
            else:
                firsts = self._carried(self.linear, firsts, ends, places[0] + 1)
                self.run_again(firsts, results, places[0] + 1, segments.count)
        exact = segments.wrong(firsts, last_states(layout, results), 0.0).any(1)
        return results, int(exact.nonzero()[0]) + 1

    def _carried(
        self, call: Call, firsts: list[Tensor], ends: list[Tensor], begin: int
    ) -> list[Tensor]:
        """Give first states, from segment ``begin`` on those that follow but for second orders.

        Segments before it keep theirs, from which their results are.
        """
        segments, rows = self.segments, self.segments.rows
        part, maps = segments.side_by_side(firsts), []
        for along in firsts:
            left = iter([torch.full_like(one, float(one is along)) for one in firsts])
            roles = (item.role for item in segments.layout.theta)
            dots = [next(left) if role == "state" else None for role in roles]
            moved = call.moved((part.lengths, None, part.reset), part.theta, dots)
            maps.append([one.split(rows) for one in last_states(segments.layout, moved)])
        old, last = ([one.split(rows) for one in states] for states in (firsts, ends))
        new = [[*one[:begin]] for one in old]
        for at in range(begin - 1, segments.count - 1):
            moves = [states[at] - before[at] for states, before in zip(new, old, strict=True)]
            for states, own in zip(new, through(maps, at, moves, last), strict=True):
                states.append(own)
        return [torch.cat(states) for states in new]

    def run_again(self, firsts: list[Tensor], results: list[Tensor], begin: int, end: int) -> None:
        """Run some segments once more, into the results."""
        rows = slice(begin * self.segments.rows, end * self.segments.rows)

        def pick(array: Any, axis: int) -> Any:
            return array.narrow(axis, begin, end - begin)

        part = self.segments.side_by_side([one[rows] for one in firsts], pick)
        again = self.run(part, self.save)
        for item, whole, new in zip(self._items, results, again, strict=True):
            (whole[:, rows] if has_steps(item) else whole[rows]).copy_(new)


def through(
    maps: Sequence[Sequence[Parts]], at: int, moves: Sequence[Tensor], onto: Sequence[Parts]
) -> list[Tensor]:
    """What a segment makes of a difference of each state, added onto what it has.

    ``maps`` are its products of Jacobians, of each state to each; 0 of 0, even where infinite.
    """
    return [
        sum(
            (
                torch.where(move == 0, 0, of_state[m][at] * move)
                for of_state, move in zip(maps, moves, strict=True)
            ),
            own[at],
        )
        for m, own in enumerate(onto)
    ]

"""Go back through segments of time side by side, on a device: one linear scan over segments.

A gradient that a segment's first state gets is a linear map of that which its last one has. Where
units are apart the kernel's own backward pass gives the map, n x n numbers a unit of n states: it
runs all segments as rows, with no gradient of what they give and 1 behind each state in turn. One
more call without anything behind says what a segment adds; then what is behind each segment follows
from the last one to the first, and a last call forms all gradients. Exact, without a guess; sums
are added up in another order than step by step.

Input: what the operator of the backward pass takes, and a call with a cut. Output: its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from cellgen.frameworks.layout import TensorLayout
from cellgen.frameworks.segments_on_device import Operands, SegmentsBack
from cellgen.torch.devices import PLACES
from cellgen.torch.segments_on_device import Parts, are_linear, segments_of_call, through

if TYPE_CHECKING:
    from cellgen.torch.calls import Tables, Tensors
    from cellgen.torch.derivatives import Call

Back: TypeAlias = Callable[..., Sequence[Tensor]]


def goes_back_in_segments(call: Call, like: Tensor) -> bool:
    """Whether the backward pass of a call may run in segments: on a device, and not to the bit."""
    return are_linear(call) and not PLACES[like.device.type].reads


def back_in_segments(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    kept: Sequence[Tensor],
    upstream: Tensors,
    back: Back,
) -> Sequence[Tensor]:
    """Return the gradients that are wanted; ``back`` calls the operator."""
    plain = replace(call, cut=None)
    segments = segments_of_call(SegmentsBack, call, tables, theta)
    if segments is None:
        return back(plain, tables, theta, kept, upstream)
    return _Back(segments, plain, plain.layout(tables), kept, upstream, back).gradients()


@dataclass(frozen=True)
class _Back:
    """The backward pass of a call whose time is cut."""

    segments: SegmentsBack
    call: Call
    layout: TensorLayout
    kept: Sequence[Tensor]
    upstream: Tensors
    back: Back

    @property
    def _states(self) -> list[int]:
        """The places of states in theta."""
        return [n for n, item in enumerate(self.layout.theta) if item.role == "state"]

    @property
    def _finals(self) -> list[int]:
        """The places of final states among outputs, in the order of the first ones."""
        places = {o.of: n for n, o in enumerate(self.layout.outputs) if not o.over_time}
        return [places[self.layout.theta[n].name] for n in self._states]

    def gradients(self) -> list[Tensor]:
        """Every gradient that is wanted."""
        segments, layout, places = self.segments, self.layout, self.call.places
        ends = segments.ends(self.kept)
        rest, last = self._rest([one[-segments.rows :] for one in ends])
        items = (*layout.outputs, *layout.saved)
        kept = self._with_finals(segments.as_rows(items, self.kept), ends)
        above = segments.as_rows(layout.outputs, self.upstream)
        part = segments.side_by_side(segments.first_of_all(ends))

        def back(call: Call, above: Tensors, behind: Sequence[Tensor]) -> Sequence[Tensor | None]:
            upstream = self._with_finals(above, behind)
            tables = part.lengths, None, part.reset
            return call.spread(self.back(call, tables, part.theta, kept, upstream))

        behind = self._behind(back, above, ends, last)
        gradients = back(self.call, above, behind)
        learned = [layout.theta[n] for n in places]
        whole = segments.gradients(
            learned, [gradients[n] for n in places], rest and [rest[n] for n in places]
        )
        return [*whole]

    def _behind(
        self, back: Back, above: Tensors, ends: Sequence[Tensor], last: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradients of the last states of all segments."""
        rows, states = self.segments.rows, self._states
        alone = self._wanting(states)
        none = [torch.zeros_like(one) for one in ends]

        def firsts(above: Tensors, behind: Sequence[Tensor]) -> list[Parts]:
            gradients = back(alone, above, behind)
            return [gradients[place].split(rows) for place in states]

        added = firsts(above, none)
        maps = [
            firsts([None] * len(above), [*none[:n], torch.ones_like(one), *none[n + 1 :]])
            for n, one in enumerate(ends)
        ]
        behind = [[one] for one in last]
        for at in range(self.segments.count - 1, 0, -1):
            own = [gradients[-1] for gradients in behind]
            for gradients, before in zip(behind, through(maps, at, own, added), strict=True):
                gradients.append(before)
        return [torch.cat(gradients[::-1]) for gradients in behind]

    def _rest(self, firsts: Sequence[Tensor]) -> tuple[list[Tensor | None] | None, list[Tensor]]:
        """Gradients of the steps behind the segments, by places of theta, and of their states."""
        segments, layout = self.segments, self.layout
        done = segments.count * segments.steps
        if done == segments.total:
            finals = [self.upstream[place] for place in self._finals]
            pairs = zip(finals, firsts, strict=True)
            return None, [torch.zeros_like(own) if one is None else one for one, own in pairs]
        part: Operands = segments.rest(done, firsts)
        items = (*layout.outputs, *layout.saved)
        call = self._wanting({*self.call.places, *self._states})
        kept = segments.of_rest(items, self.kept)
        upstream = segments.of_rest(layout.outputs, self.upstream)
        tables = part.lengths, None, part.reset
        gradients = call.spread(self.back(call, tables, part.theta, kept, upstream))
        return gradients, [gradients[place] for place in self._states]

    def _wanting(self, places: Sequence[int] | set[int]) -> Call:
        """The call with the gradients of some places of theta."""
        whole = replace(self.call, wanted=-1)
        return whole.wanting(tuple(n in places for n in range(len(self.layout.theta))))

    def _with_finals(self, arrays: Sequence[Tensor | None], finals: Sequence[Tensor]) -> Tensors:
        """Put final states, or their gradients, in their places."""
        by_place = dict(zip(self._finals, finals, strict=True))
        return [by_place.get(place, array) for place, array in enumerate(arrays)]

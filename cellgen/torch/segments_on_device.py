"""Run segments of time side by side as rows of a device's kernels: ``parallel="segments"`` there.

Input: a ``Call`` with a cut and tensors of a device. Output: what the operator of the forward pass
gives. ``frameworks/segments_on_device.py`` says how segments lie; states are compared where they
are, each sweep waits for one answer, and runs those segments alone that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

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
            f"{layout.where}: parallel is {SEGMENTS!r} while a graph of CUDA is captured, which "
            f"cannot wait to see whether segments agree; leave parallel out"
        )
    plain, arrays = replace(call, cut=None), [tensor.detach() for tensor in theta]
    lengths, mask, reset = tables
    assert mask is None

    def run(operands: Operands, save: bool) -> Sequence[Tensor]:
        return forward(plain, (operands.lengths, None, operands.reset), operands.theta, save=save)

    first = states_of(layout, arrays)
    sizes = layout.sizes(arrays)
    count = cut.count(sizes["T"], max((one.numel() for one in first), default=1))
    with torch.no_grad():
        if count < 2 or not first or sizes["B"] == 0:
            return list(run(Operands(lengths, reset, arrays), save))
        segments = Segments(
            torch,
            lambda most: torch.arange(most, device=device),
            layout,
            arrays,
            count,
            lengths,
            reset,
            call.options.reverse,
        )
        return _Cut(segments, cut, run, save).fill()


@dataclass(frozen=True)
class _Cut:
    """A call whose time is cut."""

    segments: Segments
    cut: Segmentation
    run: Callable[[Operands, bool], Sequence[Tensor]]
    save: bool

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
            firsts = segments.following(firsts, ends, wrong)
            self._again(firsts, results, places[0] + 1, places[-1] + 2)
        exact = segments.wrong(firsts, last_states(layout, results), 0.0).any(1)
        return results, int(exact.nonzero()[0]) + 1

    def _again(self, firsts: list[Tensor], results: list[Tensor], begin: int, end: int) -> None:
        """Run some segments once more, into the results."""
        rows = slice(begin * self.segments.rows, end * self.segments.rows)

        def pick(array: Any, axis: int) -> Any:
            return array.narrow(axis, begin, end - begin)

        part = self.segments.side_by_side([one[rows] for one in firsts], pick)
        again = self.run(part, self.save)
        for item, whole, new in zip(self._items, results, again, strict=True):
            (whole[:, rows] if has_steps(item) else whole[rows]).copy_(new)

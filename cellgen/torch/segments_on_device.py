"""Run segments of time side by side as rows of a device's kernels: ``parallel="segments"`` there.

Input: a ``Call`` with a cut and tensors of a device. Output: what the operator of the forward pass
gives. All rows are cut alike: T steps of B rows are s steps of T / s x B rows, which one call of
the same operator takes; its states are compared where they lie, and each sweep waits for one
number. A row of a kernel has the bits that it has alone, so that segments which start from the
right bits end with them, as those of the CPU do (``runtime/call/segments.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from cellgen.runtime.abi import Argument
from cellgen.runtime.call.segments import WARM, Segmentation
from cellgen.runtime.options import BY_ROW, FORWARD, OF_OPTIONS, SEGMENTS
from cellgen.torch.devices import is_capturing
from cellgen.torch.errors import KindError

if TYPE_CHECKING:
    from cellgen.torch.calls import Tables
    from cellgen.torch.derivatives import Call

Forward: TypeAlias = Callable[..., Sequence[Tensor]]
WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integers that have the bits of a type."""
OF_FORWARD = [o for o in OF_OPTIONS if o.on_device and FORWARD in o.functions]
"""What a call of a device may say of its forward pass: nothing of it, where time is cut."""
BY_ROWS = [o.name for o in OF_FORWARD if o.kind == BY_ROW]


def refuse_on_device(call: Call, tables: Tables, device: torch.device) -> None:
    """Refuse what rows that are cut alike cannot have. Raises KindError."""
    given = dict(zip(BY_ROWS, tables, strict=True))
    for option in OF_FORWARD:
        name = option.name
        if given.get(name, getattr(call.options, name)) != option.default:
            raise KindError(
                f"{call.known.layout.where}: parallel is {SEGMENTS!r} and {name} is given, and "
                f"tensors are on a device, where all rows are cut alike; leave {name} out, or "
                f"parallel"
            )
    if is_capturing(device):
        raise KindError(
            f"{call.known.layout.where}: parallel is {SEGMENTS!r} while a graph of CUDA is "
            f"captured, which cannot wait to see whether segments agree; leave parallel out"
        )


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
    refuse_on_device(call, tables, theta[0].device)
    with torch.no_grad():
        return _Cut(replace(call, cut=None), theta, save, forward).fill(cut)


@dataclass(frozen=True)
class _Cut:
    """A call whose time is cut; arrays in the order of the layout."""

    call: Call
    theta: Sequence[Tensor]
    save: bool
    forward: Forward

    def fill(self, cut: Segmentation) -> list[Tensor]:
        """Run all steps; outputs, then what is saved, if it is."""
        first = self._states(self.theta)
        total, rows = self.theta[0].shape[:2]
        count = cut.count(total, max((one.numel() for one in first), default=1))
        steps = total // count
        if count < 2 or not first or rows == 0:
            return list(self._run(0, total, 1, first))
        firsts, results, exact = self._converge(cut, count, steps, first)
        if exact < count:  # the rest follows from the last segment that is right to the bit
            firsts = [one[(exact - 1) * rows : exact * rows] for one in self._ends(results)]
        else:
            firsts = [one[-rows:] for one in self._ends(results)]
        done = exact * steps
        rest = list(self._run(done, total - done, 1, firsts)) if done < total else []
        whole: list[Tensor] = []
        for place, (item, array) in enumerate(zip(self._items(), results, strict=True)):
            if not _has_steps(item):
                whole.append(rest[place] if rest else array[-rows:].clone())
                continue
            by_time = array.unflatten(1, (count, rows)).transpose(0, 1)[:exact].flatten(0, 1)
            whole.append(torch.cat([by_time, rest[place]]) if rest else by_time.contiguous())
        return whole

    def _converge(
        self, cut: Segmentation, count: int, steps: int, first: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], int]:
        """Run segments until they agree: first states, results, and how many segments count."""
        rows = self.theta[0].shape[1]
        many = [one.repeat(count, *[1] * (one.dim() - 1)) for one in first]
        guess = self._ends(self._run(0, steps, count, many, warm=max(steps // WARM, 1)))
        firsts = [torch.cat([a, b[:-rows]]) for a, b in zip(first, guess, strict=True)]
        results = list(self._run(0, steps, count, firsts))
        for sweep in range(cut.sweeps + 1):
            wrong = self._wrong(firsts, results, rows, cut.tolerance)
            places = wrong.nonzero().flatten().tolist()  # waits for the device
            if not places:
                return firsts, results, count
            if sweep == cut.sweeps:
                break
            begin, end = places[0], places[-1] + 1
            part = slice(begin * rows, end * rows)
            before = slice((begin - 1) * rows, (end - 1) * rows)
            for own, last in zip(firsts, self._ends(results), strict=True):
                chosen = wrong[begin:end].repeat_interleave(rows)
                shape = (-1, *[1] * (own.dim() - 1))
                own[part] = torch.where(chosen.reshape(shape), last[before], own[part])
            again = self._run(begin * steps, steps, end - begin, [one[part] for one in firsts])
            for item, whole, new in zip(self._items(), results, again, strict=True):
                if _has_steps(item):
                    whole[:, part] = new
                else:
                    whole[part] = new
        exact = self._wrong(firsts, results, rows, 0.0)
        return firsts, results, int(exact.nonzero()[0])

    def _wrong(
        self, firsts: Sequence[Tensor], results: Sequence[Tensor], rows: int, tolerance: float
    ) -> Tensor:
        """The segments of which a row's first state is not the last one of the segment before."""
        wrong = torch.zeros(firsts[0].shape[0], dtype=torch.bool, device=firsts[0].device)
        for own, last in zip(firsts, self._ends(results), strict=True):
            a, b = own[rows:], last[:-rows]
            word = WORDS[a.dtype]
            same = a.contiguous().view(word) == b.contiguous().view(word)
            if tolerance:
                bound = tolerance * b.double().abs().clamp(min=1.0)
                same |= b.isfinite() & ((a.double() - b.double()).abs() <= bound)
            wrong[rows:] |= ~same.flatten(1).all(1)
        return wrong.unflatten(0, (-1, rows)).any(1)

    # --- a part of the steps ---

    def _items(self) -> tuple[Argument, ...]:
        layout = self.call.known.layout
        return (*layout.outputs, *layout.saved) if self.save else layout.outputs

    def _states(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        layout = self.call.known.layout
        pairs = zip(layout.theta, arrays, strict=True)
        return [array.detach() for item, array in pairs if item.role == "state"]

    def _ends(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The last states, in the order of the first ones."""
        layout = self.call.known.layout
        finals = {o.of: a for o, a in zip(layout.outputs, results, strict=False) if not o.over_time}
        return [finals[item.name] for item in layout.theta if item.role == "state"]

    def _run(
        self, done: int, steps: int, count: int, states: Sequence[Tensor], warm: int = 0
    ) -> Sequence[Tensor]:
        """Run segments side by side behind so many steps; with ``warm`` their last steps alone."""
        left = iter(states)
        arrays: list[Tensor] = []
        for item, tensor in zip(self.call.known.layout.theta, self.theta, strict=True):
            array = tensor.detach()
            if item.over_time:
                part = array[done : done + steps * count].unflatten(0, (count, steps))
                array = part.transpose(0, 1).flatten(1, 2)[steps - warm if warm else 0 :]
            elif item.role == "state":
                array = next(left).contiguous()
            elif item.shape[:1] == ("B",):
                array = array.repeat(count, *[1] * (array.dim() - 1))
            arrays.append(array)
        return self.forward(self.call, (None, None, None), arrays, save=self.save and not warm)


def _has_steps(item: Argument) -> bool:
    """Whether a result has all steps: what is saved, too."""
    return item.over_time or item.saved

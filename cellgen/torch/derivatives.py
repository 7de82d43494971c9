"""Derivatives of any order: those of a cell's two functions are the same functions of its tangent.

With theta the tensors of a call, u the gradients of its outputs, g(theta, u) its backward pass and
T the tangent of the cell:

- the derivative of forward along v is T.forward(theta, v);
- for a cotangent v of g, the gradient of u is what T.forward(theta, v) gives for the outputs'
  directions, that of theta is T.backward of it with u upstream of these directions;
- the derivative of g along (theta', u') is T.backward of T.forward(theta, theta') with u' upstream
  of the outputs and u of their directions.

``forward`` and ``backward`` are what everything calls: operators, or, where ``torch.func`` or
forward-mode is at work, functions that have these rules. Outputs and saved tensors among the
arguments of ``backward`` follow from theta; nothing is differentiated by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cellgen.frameworks.layout import row_axis
from cellgen.frameworks.selection import formed, hidden, is_whole, showing
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.segments import Segmentation
from cellgen.runtime.numbers import MOST_BITS, as_numbers
from cellgen.runtime.options import Options
from cellgen.torch.batches import fold, one_by_one, unfold
from cellgen.torch.calls import Tables, Tensors, run_backward, run_forward
from cellgen.torch.devices import PLACES
from cellgen.torch.direct import Direct, how, is_quiet
from cellgen.torch.errors import TensorError
from cellgen.torch.layout import Layout
from cellgen.torch.modes import has_gradient, is_differentiated, is_forward_mode, is_transforming
from cellgen.torch.registry import Known
from cellgen.torch.segments_back import back_in_segments, goes_back_in_segments

Of = TypeVar("Of")

TABLE_AXES = (0, 1, 1)
"""The axis of the rows of lengths (B), mask (T, B) and reset (T, B)."""


@dataclass(frozen=True)
class Call:
    """All of a call but its tensors; bits of ``wanted`` say which gradients are formed, -1: all.

    ``options`` are as in ``cellgen.frameworks.selection``, without tables, which are tensors; those
    of a call that saves show all outputs, or with a ``checkpoint`` some. ``saves``: whether
    ``forward`` keeps what a gradient reads. With a ``cut`` it runs segments of time side by side.
    No default is an object of a class of ours: torch 2.10 to 2.12 trace none.
    """

    known: Known
    scalars: tuple[float, ...]
    options: Options
    wanted: int = -1
    saves: bool = True
    cut: Segmentation | None = None
    _wanting: dict[tuple[bool, ...], Call] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The same call with other gradients, as they have been wanted."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """What follows the tables in both operators."""
        return as_numbers(self.options, formed(self.known.layout, self.options))

    @property
    def hidden(self) -> int:
        """The outputs that are not formed, as bits."""
        return hidden(self.known.layout, self.options)

    @cached_property
    def ends(self) -> tuple[str, tuple[tuple[Any, ...], ...]]:
        """The arguments of a forward pass without tables, before and behind theta.

        The second is for a call that does not save, and for one that does.
        """
        none: list[Tensor] = []
        rest = tuple((self.scalars, save, none, 0, *self.numbers) for save in (False, True))
        return self.known.text, rest

    @cached_property
    def direct(self) -> Direct | None:
        """How to make the call without torch's dispatcher; None where C does not make it."""
        return how(self.known.text, self.scalars, self.numbers)

    def saving(self, *, is_read: bool) -> Call:
        """The same call, which keeps what a gradient reads where one follows."""
        if is_read:
            return self
        return replace(self, saves=False, options=replace(self.options, checkpoint=0))

    def layout(self, tables: Tables) -> Layout:
        """What the call takes and gives, with its options."""
        if is_whole(self.options):
            return self.known.layout
        skips = any(table is not None for table in tables)
        return showing(self.known.layout, self.options, skips=skips)

    def kept(self, results: Sequence[Of]) -> Sequence[Of]:
        """What the backward pass reads of what the forward pass gives."""
        return results[self.outputs :] if self.options.checkpoint else results

    @property
    def outputs(self) -> int:
        """How many outputs and final states the call gives."""
        count = len(self.known.layout.outputs)
        return count if self.options.outputs is None else count - bin(self.hidden).count("1")

    def moved(self, tables: Tables, theta: Sequence[Tensor], dots: Tensors) -> list[Tensor]:
        """The directional derivatives of outputs and final states along those of theta."""
        return _Tangent(self, tables, theta, dots, save=False).outputs()

    def split(self, tensors: Sequence[Tensor]) -> tuple[Tables, list[Tensor], list[Tensor]]:
        """Take a list apart: tables, theta, and what follows."""
        lengths, mask, reset, *others = tensors
        count = len(self.known.layout.theta)
        return (lengths, mask, reset), others[:count], others[count:]

    @property
    def formed(self) -> list[int]:
        """The numbers of the gradients that are wanted, among all that there are."""
        return [n for n in range(len(self.known.layout.learns)) if self.wanted >> n & 1]

    @property
    def places(self) -> list[int]:
        """The places in theta of what has a gradient that is wanted."""
        return [self.known.layout.learns[number] for number in self.formed]

    def wanting(self, needed: tuple[bool, ...]) -> Call:
        """The same call with the gradients that are needed, of all of theta in order."""
        call = self._wanting.get(needed)
        if call is None:
            call = self._wanting[needed] = self._with_wanted(needed)
        return call

    def _with_wanted(self, needed: tuple[bool, ...]) -> Call:
        learns = self.known.layout.learns
        if all(needed[place] for place in learns) or len(learns) > MOST_BITS:
            return self
        wanted = sum(1 << number for number, place in enumerate(learns) if needed[place])
        return replace(self, wanted=wanted)

    def spread(self, gradients: Tensors) -> list[Tensor | None]:
        """Put the gradients of what learns in the places of theta."""
        layout = self.known.layout
        if self.wanted == -1 and len(layout.learns) == len(layout.theta):
            return list(gradients)
        spread: list[Tensor | None] = [None] * len(layout.theta)
        for place, gradient in zip(self.places, gradients, strict=True):
            spread[place] = gradient
        return spread

    def of_tangent(self, by: tuple[str, ...]) -> Call:
        """The same call of the cell's tangent. Raises TensorError where it has none."""
        layout = self.known.layout
        own = self.options
        if own.window:
            raise TensorError(
                f"{layout.label}: window is {own.window}, expected 0 where gradients are "
                f"differentiated: truncated ones are no derivative of anything; leave it out"
            )
        tangent = self.known.tangent(by)
        by_name = dict(zip((item.name for item in layout.scalars), self.scalars, strict=True))
        scalars = tuple(by_name.get(item.name, 0.0) for item in tangent.layout.scalars)
        outputs = layout.outputs_in(own, tangent.layout, tangent.directions)
        options = own if outputs == own.outputs else replace(own, outputs=outputs)
        changes: dict[str, Any] = {"known": tangent, "scalars": scalars, "options": options}
        return replace(self, **changes, wanted=-1, cut=None)


def forward_along(call: Call, tables: Tables, theta: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """Run the forward pass in forward mode alone: outputs and their tangents from one call.

    None where there is another mode, or nothing moves.
    """
    if not is_forward_mode() or has_gradient(theta):
        return None
    pairs = [forward_ad.unpack_dual(tensor) for tensor in theta]
    dots = [pair.tangent for pair in pairs]
    if all(dot is None for dot in dots):
        return None
    tangent = _Tangent(call, tables, [pair.primal for pair in pairs], dots, save=False)
    return [
        primal if dot is None else forward_ad.make_dual(primal, dot)
        for primal, dot in tangent.outputs_moved()
    ]


def forward(call: Call, tables: Tables, theta: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run the forward pass: outputs, final states, then what is saved."""
    if is_transforming():
        results: Sequence[Tensor] = Forward.apply(call, *tables, *theta)
        return results
    return run_forward(call, tables, theta, save=call.saves)


def backward(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    kept: Sequence[Tensor],
    upstream: Tensors,
) -> Sequence[Tensor]:
    """Run the backward pass: the gradients of what learns."""
    if is_transforming():
        results: Sequence[Tensor] = Backward.apply(call, *tables, *theta, *kept, *upstream)
        return results
    return run_backward(call, tables, theta, kept, upstream)


def run_back(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    kept: Sequence[Tensor],
    upstream: Tensors,
) -> Sequence[Tensor]:
    """Run the backward pass where torch only runs it; in forward mode with the tangents of it."""
    lengths, mask, reset = tables
    if call.cut is not None and goes_back_in_segments(call, theta[0]) and not is_transforming():
        with torch._C._AutoDispatchBelowAutograd():
            return back_in_segments(call, tables, theta, kept, upstream, run_backward)
    direct = call.direct
    if direct is not None and lengths is None and mask is None and reset is None and is_quiet():
        gradients = direct.back(theta, kept, upstream, call.wanted)
        if gradients is not None:
            return gradients
    with torch._C._AutoDispatchBelowAutograd():
        return backward(call, tables, theta, kept, upstream)


# --- the rules --------------------------------------------------------------------------------


class _Tangent:
    """The tangent of a call, with the directions of its theta put in; None counts as zero.

    Gradients need one that saves.
    """

    def __init__(
        self,
        call: Call,
        tables: Tables,
        theta: Sequence[Tensor],
        dots: Tensors,
        *,
        save: bool = True,
    ) -> None:
        layout = call.layout(tables)
        self.layout, self.tables = layout, tables
        self.call = call.of_tangent(_moving(layout.theta, dots)).saving(is_read=save)
        self.of_call = self.call.layout(tables)
        directions = self.call.known.directions
        self.moved = layout.moved_outputs(self.of_call, directions)
        named = {item.name: tensor for item, tensor in zip(layout.theta, theta, strict=True)}
        along = dict(named)
        for item, dot in zip(layout.theta, dots, strict=True):
            if item.name in directions:
                zero = torch.zeros_like(named[item.name]) if dot is None else dot
                along[directions[item.name]] = zero
        self.theta = [along[item.name] for item in self.of_call.theta]
        self.formed = forward(self.call, tables, self.theta)

    def outputs(self) -> list[Tensor]:
        """The directional derivatives of the cell's outputs and final states."""
        return [torch.zeros_like(h) if dot is None else dot for h, dot in self.outputs_moved()]

    def outputs_moved(self) -> list[tuple[Tensor, Tensor | None]]:
        """The cell's outputs and final states, each with its directional derivative, None for 0."""
        formed = zip(self.of_call.outputs, self.formed, strict=False)
        by_name = {item.name: tensor for item, tensor in formed}
        moved = (self.moved.get(item.name, "") for item in self.layout.outputs)
        return [
            (by_name[item.name], by_name.get(direction))
            for item, direction in zip(self.layout.outputs, moved, strict=True)
        ]

    def gradients(self, upstream: Tensors, of_directions: Tensors) -> list[Tensor | None]:
        """The gradients of theta, given those of the outputs and of their directions."""
        names = [item.name for item in self.layout.outputs]
        upstream_of = {f"d_{name}": u for name, u in zip(names, upstream, strict=True)}
        along = zip(names, of_directions, strict=True)
        upstream_of |= {f"d_{self.moved[name]}": u for name, u in along if name in self.moved}
        layout = self.of_call
        ordered = [upstream_of[item.name] for item in layout.upstream]
        own = {item.name for item in self.layout.theta}  # those of directions are not wanted
        call = self.call.wanting(tuple(item.name in own for item in layout.theta))
        kept = call.kept(self.formed)
        formed = backward(call, self.tables, self.theta, kept, ordered)
        spread = zip(layout.theta, call.spread(formed), strict=True)
        gradients = {item.name: gradient for item, gradient in spread}
        return [gradients.get(item.name) for item in self.layout.theta]


def _moving(items: Sequence[Argument], dots: Tensors) -> tuple[str, ...]:
    """What a tangent must move along: inputs and states where no weight moves, else everything."""
    moves = [item for item, dot in zip(items, dots, strict=True) if dot is not None]
    if any(row_axis(item) is None for item in moves):
        return ()
    return tuple(item.name for item in moves)


def second(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    upstream: Tensors,
    cotangents: Tensors,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Differentiate the backward pass: the gradients of theta and of the upstream gradients."""
    if all(cotangent is None for cotangent in cotangents):
        return [None] * len(theta), [None] * len(upstream)
    tangent = _Tangent(call, tables, theta, call.spread(cotangents))
    d_theta = tangent.gradients([None] * len(upstream), upstream)
    d_upstream = [
        None if u is None else dot for u, dot in zip(upstream, tangent.outputs(), strict=True)
    ]
    return d_theta, d_upstream


def along_backward(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    upstream: Tensors,
    dots: Tensors,
    upstream_dots: Tensors,
) -> list[Tensor | None]:
    """The directional derivative of the backward pass, in the order of its results."""
    if all(dot is None for dot in dots):  # linear in the upstream gradients
        kept = call.kept(forward(call, tables, theta))
        return list(backward(call, tables, theta, kept, upstream_dots))
    gradients = _Tangent(call, tables, theta, dots).gradients(upstream_dots, upstream)
    return [gradients[place] for place in call.places]


# --- functions for torch.func and forward-mode ------------------------------------------------


class Forward(torch.autograd.Function):
    """The forward pass with every rule: arguments are a call, its tables and theta."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        tables, theta, _ = call.split(tensors)
        return tuple(run_forward(call, tables, theta, save=call.saves))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivatives read."""
        call: Call
        call, *tensors = inputs
        ctx.call = call
        ctx.save_for_backward(*tensors, *(call.kept(output) if call.saves else ()))
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*output[call.outputs :])
        ctx.saved = len(output) - call.outputs
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of the tensors, themselves differentiable."""
        call: Call = ctx.call
        tables, theta, kept = call.split(ctx.saved_tensors)
        call = call.wanting(ctx.needs_input_grad[4:])
        gradients = backward(call, tables, theta, kept, upstream[: call.outputs])
        return (None, None, None, None, *call.spread(gradients))

    @staticmethod
    def jvp(ctx: Any, *dots: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return tangents of the results."""
        call: Call = ctx.call
        tables, theta, _ = call.split(ctx.saved_tensors)
        save = has_gradient((*theta, *dots[4:]))
        tangent = _Tangent(call, tables, theta, dots[4:], save=save)
        return (*tangent.outputs(), *[None] * ctx.saved)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: Call, *tensors: Any) -> Any:
        """Run every member of a mapped axis."""
        layout = call.layout(tensors[:3])
        axes = (*TABLE_AXES, *(row_axis(item) for item in layout.theta))
        dims = in_dims[1:]
        own = any(dim is not None and axis is None for dim, axis in zip(dims, axes, strict=True))
        if own or not info.batch_size:
            return one_by_one(Forward.apply, info.batch_size, call, dims, tensors)
        folded = [
            fold(tensor, dim, info.batch_size, axis)
            for tensor, dim, axis in zip(tensors, dims, axes, strict=True)
        ]
        results = Forward.apply(call, *folded)
        items = (*layout.outputs, *layout.saved) if call.saves else layout.outputs
        unfolded = tuple(
            unfold(result, info.batch_size, item)
            for result, item in zip(results, items, strict=True)
        )
        return unfolded, (0,) * len(unfolded)


class Backward(torch.autograd.Function):
    """The backward pass with every rule, as a function of theta and the upstream gradients."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> tuple[Tensor, ...]:
        """Run the backward kernel."""
        tables, theta, others = call.split(tensors)
        count = _kept(call, tables)
        return tuple(run_backward(call, tables, theta, others[:count], others[count:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivatives read."""
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return second derivatives."""
        call: Call = ctx.call
        tables, theta, others = call.split(ctx.saved_tensors)
        count = _kept(call, tables)
        d_theta, d_upstream = second(call, tables, theta, others[count:], cotangents)
        return (None, None, None, None, *d_theta, *[None] * count, *d_upstream)

    @staticmethod
    def jvp(ctx: Any, *dots: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return tangents of the gradients."""
        call: Call = ctx.call
        tables, theta, others = call.split(ctx.saved_tensors)
        count, end = _kept(call, tables), 4 + len(theta)
        return tuple(
            along_backward(call, tables, theta, others[count:], dots[4:end], dots[end + count :])
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: Call, *tensors: Any) -> Any:
        """Run every member of a mapped axis: as rows of one call where they share their weights."""
        dims, size = in_dims[1:], info.batch_size
        layout = call.layout(tensors[:3])
        kept = call.kept((*layout.outputs, *layout.saved))
        items = (*layout.theta, *kept, *layout.upstream)
        axes = (*TABLE_AXES, *(row_axis(item) for item in items))
        share = all(dim is None or axis is not None for dim, axis in zip(dims, axes, strict=True))
        per_row = PLACES[tensors[len(TABLE_AXES)].device.type].per_row
        if not (size and share and per_row) or is_differentiated(tensors):
            return one_by_one(Backward.apply, size, call, dims, tensors)
        folded = [
            fold(tensor, dim, size, axis)
            for tensor, dim, axis in zip(tensors, dims, axes, strict=True)
        ]
        tables, theta, others = call.split(folded)
        count = len(kept)
        gradients = backward_by_row(call, tables, theta, others[:count], others[count:])
        formed = [layout.gradients[number] for number in call.formed]
        unfolded = tuple(
            _by_member(gradient, size, item)
            for gradient, item in zip(gradients, formed, strict=True)
        )
        return unfolded, (0,) * len(unfolded)


def backward_by_row(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    kept: Sequence[Tensor],
    upstream: Tensors,
) -> list[Tensor]:
    """Run the backward pass with the gradients of weights row by row, (B, ...)."""
    by_row = replace(call, options=replace(call.options, per_row=True))
    return list(run_backward(by_row, tables, theta, kept, upstream))


def _by_member(gradient: Tensor, size: int, item: Argument) -> Tensor:
    """What a member's own call gives: its rows of a gradient, or a weight's, summed over them."""
    if row_axis(item) is not None:
        return unfold(gradient, size, item)
    rows = gradient.unflatten(0, (size, gradient.shape[0] // size))
    return rows.squeeze(1) if rows.shape[1] == 1 else rows.sum(1)


def _kept(call: Call, tables: Tables) -> int:
    """How many tensors the backward pass reads of what the forward pass gives."""
    layout = call.layout(tables)
    return len(layout.saved) + (0 if call.options.checkpoint else len(layout.outputs))

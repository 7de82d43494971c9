"""Derivatives of any order: those of a cell's two functions are the same functions of its tangent.

With theta the arrays of a call, u the gradients of its outputs, g(theta, u) its backward pass and
T the tangent of the cell:

- ``Push``, the derivative of forward along v, is T.forward(theta, v); its transpose ``Pull`` is g;
- ``Turn``, the derivative of g along (v, u'), is T.backward of T.forward(theta, v) with u' upstream
  of the outputs and u of their directions; its transpose ``TurnBack``, for a cotangent w of g,
  gives u what T.forward(theta, w) gives for the outputs' directions, and theta T.backward of it
  with u upstream of these directions.

What was kept and outputs follow from theta; nothing is differentiated by them. ``moves`` are names
of theta; ``outputs``, ``present`` and ``upstream`` tell the outputs in question. In reverse mode
Push is transposed and never run, so that a gradient needs no tangent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from cellgen.frameworks.layout import row_axis
from cellgen.jax.calls import JaxCall
from cellgen.jax.errors import ArrayError
from cellgen.jax.linear import Shape, is_zero, linear, zero
from cellgen.jax.pairs import Own, pair
from cellgen.jax.platforms import dtype_of_numbers
from cellgen.jax.primitives import backward, backward_p, forward, forward_p, row_by_row
from cellgen.jax.selection import show

Arrays: TypeAlias = Sequence[Any]
Which: TypeAlias = tuple[bool, ...]
Names: TypeAlias = tuple[str, ...]


def _within(whole: Which, some: Which) -> Which:
    """Of what is marked in ``whole``, mark those that ``some`` marks, one for each of them."""
    own = iter(some)
    return tuple(marked and next(own) for marked in whole)


def _named(call: JaxCall, arrays: Arrays) -> dict[str, Any]:
    """The values of a call by name."""
    _, values, _ = call.split(arrays)
    return {item.name: array for item, array in zip(call.values, values, strict=True)}


@dataclass(frozen=True)
class Push:
    """The derivative of forward: constants are tables, values and what was kept.

    As a pair with ``forward`` itself it has no use for what was kept, and saves if that does.
    """

    call: JaxCall
    moves: Names
    outputs: Which
    save: bool = False

    def own(self) -> Own:
        """The forward pass."""
        return Own(forward_p, {"call": self.call, "save": self.save})

    def both(self, constants: Arrays, arrays: Arrays) -> tuple[list[Any], list[Any]]:
        """Give what the forward pass does and its derivative, from one call."""
        moved = dict(zip(self.moves, arrays, strict=True))
        tangent = Tangent(self.call, constants, moved, save=self.save)
        saved = forward(self.call, True, constants)[len(self.outputs) :] if self.save else []
        own = [tangent.formed[item.name] for item in self.call.layout.outputs]
        return [*own, *saved], list(compress(tangent.outputs(), self.outputs))

    def begun(self, constants: Arrays) -> tuple[list[Any], list[Any]]:
        """Give what the forward pass does, and constants with what it kept."""
        formed = forward(self.call, True, constants)
        named = {item.name: array for item, array in zip(self.call.formed, formed, strict=True)}
        kept = [named[item.name] for item in self.call.kept]
        return formed if self.save else formed[: len(self.outputs)], [*constants, *kept]

    def alone(self) -> Push:
        """Give the derivative by itself."""
        return replace(self, save=False)

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """Give the results, linear in ``arrays``."""
        moved = dict(zip(self.moves, arrays, strict=True))
        tangent = Tangent(self.call, constants, moved, save=False)
        return list(compress(tangent.outputs(), self.outputs))

    def shapes(self, constants: Arrays) -> list[Shape]:
        """Give the shapes of the results."""
        return self.call.shapes(list(compress(self.call.layout.outputs, self.outputs)), constants)

    def along(self, moved: Which) -> Push:
        """Give the map of some arrays alone."""
        return replace(self, moves=tuple(compress(self.moves, moved)))

    def transposed(self, present: Which) -> Pull:
        """Give the transpose, from some of the results."""
        return Pull(self.call, self.moves, _within(self.outputs, present))


@dataclass(frozen=True)
class Pull:
    """The backward pass as a map of the upstream gradients that are ``present``."""

    call: JaxCall
    moves: Names
    present: Which

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """Give the results, linear in ``arrays``."""
        gradients = backward(self.call, self.present, (*constants, *arrays), self.moves)
        return [gradients[name] for name in self.moves]

    def shapes(self, constants: Arrays) -> list[Shape]:
        """Give the shapes of the results."""
        return _shapes_of(self.call, self.moves, constants)

    def along(self, moved: Which) -> Pull:
        """Give the map of some arrays alone."""
        return replace(self, present=_within(self.present, moved))

    def transposed(self, present: Which) -> Push:
        """Give the transpose, from some of the results."""
        return Push(self.call, tuple(compress(self.moves, present)), self.present)


@dataclass(frozen=True)
class Turn:
    """The derivative of the backward pass along ``moves`` and some of the upstream gradients.

    Constants are all of its operands, results the gradients of ``names``. As a pair with the
    backward pass, names are those of what moves.
    """

    call: JaxCall
    present: Which
    moves: Names
    upstream: Which
    names: Names

    def own(self) -> Own:
        """The backward pass."""
        learn = (self.call.layout.theta[place].name for place in self.call.layout.learns)
        wanted = tuple(name in self.names for name in learn)
        how = {"call": self.call, "present": self.present, "wanted": wanted, "per_row": False}
        return Own(backward_p, how)

    def both(self, constants: Arrays, arrays: Arrays) -> tuple[list[Any], list[Any]]:
        """Give gradients and their derivatives, from one call: those of directions are the first.

        What a tangent gives for outputs' directions is linear in its own, by the cell's Jacobian.
        """
        tangent, upstream, own = self._turned(constants, arrays)
        names = [tangent.call.known.directions[name] for name in self.names]
        gradients = tangent.gradients(upstream, own, (*names, *self.names))
        return [gradients[name] for name in names], [gradients[name] for name in self.names]

    def begun(self, constants: Arrays) -> tuple[list[Any], list[Any]]:
        """Give the gradients, and the same constants."""
        own = self.own()
        return list(own.primitive.bind(*constants, **own.parameters)), list(constants)

    def alone(self) -> Turn:
        """Give the derivative by itself."""
        return self

    def _turned(self, constants: Arrays, arrays: Arrays) -> tuple[Tangent, list[Any], list[Any]]:
        """The tangent along what moves, then what is upstream of outputs and of directions."""
        count = len(self.moves)
        moved = dict(zip(self.moves, arrays[:count], strict=True))
        upstream = _spread(_within(self.present, self.upstream), arrays[count:])
        own = _spread(self.present, _upstream(constants, self.present))
        return Tangent(self.call, constants, moved), upstream, own

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """Give the results, linear in ``arrays``."""
        if not self.moves:  # linear in the upstream gradients
            own = constants[: len(constants) - sum(self.present)]
            present = _within(self.present, self.upstream)
            gradients = backward(self.call, present, (*own, *arrays), self.names)
            return [gradients[name] for name in self.names]
        tangent, upstream, own = self._turned(constants, arrays)
        gradients = tangent.gradients(upstream, own, self.names)
        return [gradients[name] for name in self.names]

    def shapes(self, constants: Arrays) -> list[Shape]:
        """Give the shapes of the results."""
        return _shapes_of(self.call, self.names, constants)

    def along(self, moved: Which) -> Turn:
        """Give the map of some arrays alone."""
        count = len(self.moves)
        return replace(
            self,
            moves=tuple(compress(self.moves, moved[:count])),
            upstream=_within(self.upstream, moved[count:]),
        )

    def transposed(self, present: Which) -> TurnBack:
        """Give the transpose, from some of the results."""
        names = tuple(compress(self.names, present))
        return TurnBack(self.call, self.present, self.moves, self.upstream, names)


@dataclass(frozen=True)
class TurnBack:
    """The transpose of ``Turn``: from gradients of ``names`` to ``moves`` and upstream ones."""

    call: JaxCall
    present: Which
    moves: Names
    upstream: Which
    names: Names

    def apply(self, constants: Arrays, arrays: Arrays) -> list[Any]:
        """Give the results, linear in ``arrays``."""
        tangent = Tangent(self.call, constants, dict(zip(self.names, arrays, strict=True)))
        of_theta: list[Any] = []
        if self.moves:
            nothing = [None] * len(self.present)
            own = _spread(self.present, _upstream(constants, self.present))
            gradients = tangent.gradients(nothing, own, self.moves)
            of_theta = [gradients[name] for name in self.moves]
        outputs = tangent.outputs()
        return [*of_theta, *compress(outputs, _within(self.present, self.upstream))]

    def shapes(self, constants: Arrays) -> list[Shape]:
        """Give the shapes of the results."""
        outputs = list(compress(self.call.layout.outputs, _within(self.present, self.upstream)))
        of_upstream = self.call.shapes(outputs, constants)
        return [*_shapes_of(self.call, self.moves, constants), *of_upstream]

    def along(self, moved: Which) -> TurnBack:
        """Give the map of some arrays alone."""
        return replace(self, names=tuple(compress(self.names, moved)))

    def transposed(self, present: Which) -> Turn:
        """Give the transpose, from some of the results."""
        count = len(self.moves)
        moves = tuple(compress(self.moves, present[:count]))
        upstream = _within(self.upstream, present[count:])
        return Turn(self.call, self.present, moves, upstream, self.names)


def _upstream(constants: Arrays, present: Which) -> Arrays:
    return constants[len(constants) - sum(present) :]


def _spread(present: Which, arrays: Arrays) -> list[Any]:
    """Put arrays in the places of their outputs, None in the others."""
    own = iter(arrays)
    return [next(own) if is_present else None for is_present in present]


def _shapes_of(call: JaxCall, names: Names, constants: Arrays) -> list[Shape]:
    sizes = call.sizes(constants)
    return [call.layout.shape(name, sizes) for name in names]


class Tangent:
    """The forward pass of a cell's tangent, with directions by the names of what moves.

    Gradients need one that saves.
    """

    def __init__(
        self, call: JaxCall, constants: Arrays, moved: Mapping[str, Any], *, save: bool = True
    ) -> None:
        self.own = call
        self.call = of_tangent(call, tuple(moved))
        directions = self.call.known.directions
        self.moved = call.layout.moved_outputs(self.call.layout, directions)
        named = _named(call, constants)
        along = dict(named)
        for name, direction in directions.items():
            if name in named:
                along[direction] = moved[name] if name in moved else jnp.zeros_like(named[name])
        for item in self.call.layout.scalars:
            if item.name not in along:
                like = next(iter(named.values()))
                along[item.name] = jnp.zeros_like(
                    like, shape=(), dtype=dtype_of_numbers(like.dtype)
                )
        tables, _, _ = call.split(constants)
        self.arrays = (*tables, *(along[item.name] for item in self.call.values))
        formed = forward(self.call, save, self.arrays)
        items = self.call.formed if save else self.call.layout.outputs
        self.formed = {i.name: a for i, a in zip(items, formed, strict=True)}
        self.named = named

    def outputs(self) -> list[Any]:
        """The directional derivatives of the cell's outputs and final states."""
        return [
            self.formed[self.moved[item.name]]
            if item.name in self.moved
            else jnp.zeros_like(self.formed[item.name])
            for item in self.own.layout.outputs
        ]

    def gradients(
        self, upstream: Sequence[Any], of_directions: Sequence[Any], wanted: Names
    ) -> dict[str, Any]:
        """Some gradients, given those of outputs and of their directions, None for zero."""
        names = [item.name for item in self.own.layout.outputs]
        by_name = {f"d_{name}": u for name, u in zip(names, upstream, strict=True)}
        along = zip(names, of_directions, strict=True)
        by_name |= {f"d_{self.moved[name]}": u for name, u in along if name in self.moved}
        ordered = [by_name.get(item.name) for item in self.call.layout.upstream]
        present = tuple(u is not None for u in ordered)
        kept = [self.formed[item.name] for item in self.call.kept]
        operands = (*self.arrays, *kept, *(u for u in ordered if u is not None))
        gradients = backward(self.call, present, operands, wanted)
        return {
            name: gradients[name] if name in gradients else jnp.zeros_like(self.named[name])
            for name in wanted
        }


def of_tangent(call: JaxCall, moves: Names) -> JaxCall:
    """The same call of the cell's tangent. Raises ArrayError where it has none."""
    own = call.options
    if own.window:
        raise ArrayError(
            f"{call.layout.label}: window is {own.window}, expected 0 in forward mode and where "
            f"gradients are differentiated: truncated ones are no derivative of anything; leave it "
            f"out"
        )
    layout = call.known.layout
    rows = {item.name for item in layout.theta if row_axis(item) is not None}
    ordered = tuple(item.name for item in layout.theta if item.name in moves)
    tangent = call.known.tangent(ordered if {*moves} <= rows else ())
    outputs = layout.outputs_in(own, tangent.layout, tangent.directions)
    options = own if outputs == own.outputs else replace(own, outputs=outputs)
    return replace(call, text=tangent.text, options=options, cut=None)


# --- rules ------------------------------------------------------------------------------------


def _moves(call: JaxCall, dots: Arrays) -> dict[str, Any]:
    """The tangents of what learns and moves, by name; nothing else is differentiated by."""
    theta = call.layout.theta
    return {theta[k].name: dots[k] for k in call.layout.learns if not is_zero(dots[k])}


def _forward_jvp(arrays: Arrays, dots: Arrays, *, call: JaxCall, save: bool) -> Any:
    moves = _moves(call, call.split(dots)[1])
    if not moves:
        results = forward(call, save, arrays)
        return results, [zero(result) for result in results]
    saving = call.saving
    outputs = len(saving.layout.outputs)
    push = Push(saving, tuple(moves), (True,) * outputs, save)
    formed, derivative = pair(push, arrays, list(moves.values()))
    if save:
        return formed, [*derivative, *(zero(array) for array in formed[outputs:])]
    tables, _, _ = call.split(arrays)
    return show(call, tables, formed), show(call, tables, derivative)


def _backward_jvp(
    arrays: Arrays, dots: Arrays, *, call: JaxCall, present: Which, wanted: Which, per_row: bool
) -> Any:
    if per_row:
        return _along_rows(arrays, dots, call=call, present=present, wanted=wanted)
    _, own, others = call.split(dots)
    moves, upstream = _moves(call, own), others[len(call.kept) :]
    moved = [dot for dot in upstream if not is_zero(dot)]
    learn = (call.layout.theta[place].name for place in call.layout.learns)
    names = tuple(compress(learn, wanted))
    marked = tuple(not is_zero(dot) for dot in upstream)
    turn = Turn(call, present, tuple(moves), marked, names)
    if moves and {*names} <= {*of_tangent(call, tuple(moves)).known.directions}:
        return pair(turn, arrays, [*moves.values(), *moved])
    gradients = backward_p.bind(*arrays, call=call, present=present, wanted=wanted, per_row=False)
    if not moves and not moved:
        return gradients, [zero(gradient) for gradient in gradients]
    return gradients, linear(turn, arrays, [*moves.values(), *moved])


def _along_rows(arrays: Arrays, dots: Arrays, **how: Any) -> Any:
    """The gradients of single rows and their derivative along ``dots``, a call for each row."""
    places = [place for place, dot in enumerate(dots) if not is_zero(dot)]

    def moved(*values: Any) -> tuple[Any, ...]:
        whole = list(arrays)
        for place, value in zip(places, values, strict=True):
            whole[place] = value
        return row_by_row(whole, **how)

    operands = [arrays[place] for place in places]
    return jax.jvp(moved, operands, [dots[place] for place in places])


ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[backward_p] = _backward_jvp

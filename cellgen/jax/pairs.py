"""A primitive for a function and its derivative in one call, which JAX may take apart again.

A call of a tangent's kernel gives both. In forward mode that is all there is to run. Reverse mode
transposes the derivative alone, once the function has been computed, so that there it is the
function and a linear map: JAX asks for that by evaluating in part, with directions unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from cellgen.jax.batches import Axes
from cellgen.jax.linear import LinearMap, Shape, is_zero, linear, linear_p
from cellgen.jax.programs import anywhere, result, state

Arrays: TypeAlias = Sequence[Any]

pair_p = Primitive("cellgen_pair")


@dataclass(frozen=True)
class Own:
    """The function by itself: a primitive whose operands are the constants of the pair."""

    primitive: Primitive
    parameters: Mapping[str, Any]

    def results(self, constants: Arrays) -> list[ShapedArray]:
        """Tell the shapes of its results."""
        shapes = [result(array.shape, array.dtype, [array]) for array in constants]
        abstract, _ = self.primitive.abstract_eval(*shapes, **self.parameters)
        return list(abstract)


class Pair(Protocol):
    """A function of constants, and its derivative along some arrays; equal ones do the same."""

    def own(self) -> Own:
        """The function."""

    def both(self, constants: Arrays, arrays: Arrays) -> tuple[list[Any], list[Any]]:
        """What the function gives, and its derivative."""

    def shapes(self, constants: Arrays) -> list[Shape]:
        """The shapes of its derivative."""

    def begun(self, constants: Arrays) -> tuple[list[Any], list[Any]]:
        """What the function gives, and the constants of its derivative by itself."""

    def alone(self) -> LinearMap:
        """The derivative by itself."""


def pair(of: Pair, constants: Arrays, arrays: Arrays) -> tuple[list[Any], list[Any]]:
    """Compute a function and its derivative."""
    results = list(pair_p.bind(*constants, *arrays, of=of, constants=len(constants)))
    count = len(of.own().results(constants))
    return results[:count], results[count:]


# --- rules ------------------------------------------------------------------------------------


def _shapes(*arrays: Any, of: Pair, constants: int) -> list[ShapedArray]:
    operands, dtype = arrays[:constants], arrays[-1].dtype
    along = [result(shape, dtype, arrays) for shape in of.shapes(operands)]
    return [*of.own().results(operands), *along]


def _lowered(*arrays: Any, of: Pair, constants: int) -> list[Any]:
    own, derivative = of.both(arrays[:constants], arrays[constants:])
    return [*own, *derivative]


def _jvp(arrays: Arrays, dots: Arrays, *, of: Pair, constants: int) -> Any:
    places = [place for place, dot in enumerate(dots) if not is_zero(dot)]

    def moved(*values: Any) -> list[Any]:
        whole = list(arrays)
        for place, value in zip(places, values, strict=True):
            whole[place] = value
        return _lowered(*whole, of=of, constants=constants)

    return jax.jvp(moved, [arrays[place] for place in places], [dots[place] for place in places])


def _batch(arrays: Arrays, axes: Axes, *, of: Pair, constants: int) -> Any:
    """Run a batch; where directions alone differ, what the function gives is one for all."""
    if any(axis is not None for axis in axes[:constants]):
        run = functools.partial(_lowered, of=of, constants=constants)
        results = jax.vmap(run, in_axes=tuple(axes))(*arrays)
        return results, [0] * len(results)
    own, more = of.begun(arrays[:constants])

    def along(*directions: Any) -> list[Any]:
        return linear(of.alone(), more, directions)

    derivative = jax.vmap(along, in_axes=tuple(axes[constants:]))(*arrays[constants:])
    return [*own, *derivative], [*(None,) * len(own), *(0,) * len(derivative)]


def _in_part(trace: Any, *tracers: Any, of: Pair, constants: int) -> list[Any]:
    """Evaluate what is known: the function, where directions alone are not."""
    known = [tracer.pval.get_known() for tracer in tracers[:constants]]
    if any(array is None for array in known) or all(t.is_known() for t in tracers):
        parameters = {"of": of, "constants": constants}
        return list(trace.default_process_primitive(pair_p, tracers, parameters))
    own, more = of.begun(known)
    parameters = {"map": of.alone(), "constants": len(more)}
    operands = (*more, *tracers[constants:])
    return [*own, *trace.default_process_primitive(linear_p, operands, parameters)]


def _in_part_in_a_checkpoint(saveable: Any, unknown: Any, there: Any, equation: Any) -> Any:
    """Say what ``jax.checkpoint`` runs: the function, and in its second run all of the pair."""
    own = _own_results(equation)
    first, is_unknown = equation, [False] * len(equation.outvars)
    if any(unknown[: equation.params["constants"]]):
        first, is_unknown = None, [True] * len(equation.outvars)
    elif any(unknown):
        first = _own_alone(equation, [True] * own)[1]
        is_unknown = [place >= own for place in range(len(equation.outvars))]
    needed = [v for v, is_present in zip(equation.invars, there, strict=True) if not is_present]
    return first, equation, is_unknown, [True] * len(equation.outvars), needed


def _without_unread(read: Sequence[bool], equation: Any) -> Any:
    """Leave out the derivative, where nobody reads what it gives."""
    own = _own_results(equation)
    if any(read) and not any(read[own:]):
        return _own_alone(equation, read[:own])
    return [any(read)] * len(equation.invars), equation if any(read) else None


def _own_results(equation: Any) -> int:
    operands = [v.aval for v in equation.invars[: equation.params["constants"]]]
    return len(equation.params["of"].own().results(operands))


def _own_alone(equation: Any, read: Sequence[bool]) -> tuple[list[bool], Any]:
    """The function by itself, and which operands of the pair it has."""
    own, count = equation.params["of"].own(), equation.params["constants"]
    alone = equation.replace(
        invars=equation.invars[:count],
        outvars=equation.outvars[: len(read)],
        primitive=own.primitive,
        params=dict(own.parameters),
    )
    _, alone = pe.dce_rules[own.primitive](list(read), alone)
    return [place < count for place in range(len(equation.invars))], alone


state(pair_p, _shapes, anywhere(_lowered))
ad.primitive_jvps[pair_p] = _jvp
batching.primitive_batchers[pair_p] = _batch
pe.custom_partial_eval_rules[pair_p] = _in_part
pe.partial_eval_jaxpr_custom_rules[pair_p] = _in_part_in_a_checkpoint
pe.dce_rules[pair_p] = _without_unread

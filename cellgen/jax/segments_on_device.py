"""Run segments of time side by side as rows of a device's kernels: ``parallel="segments"`` there.

Input: a ``JaxCall`` with a cut and arrays that a program traces. Output: what the forward pass
gives. ``frameworks/segments_on_device.py`` says how segments lie. The program decides where arrays
are: a loop runs all segments until they agree or a limit is reached, another one takes those that
are not right one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from cellgen.frameworks.segments_on_device import (
    Operands,
    Segments,
    has_steps,
    last_states,
    states_of,
)
from cellgen.jax.calls import JaxCall
from cellgen.jax.errors import ArrayError
from cellgen.runtime.abi import Argument
from cellgen.runtime.options import SEGMENTS

Arrays: TypeAlias = Sequence[Any]
Run: TypeAlias = Callable[[JaxCall, bool, Arrays], list[Any]]
"""Puts a call of a kernel into the program: the call, whether it saves, its operands."""


def run_segments_on_device(call: JaxCall, save: bool, arrays: Arrays, run: Run) -> list[Any]:
    """Compute all steps: outputs, final states, then what is saved if it is. Raises ArrayError."""
    cut, layout, sizes = call.cut, call.layout, call.sizes(arrays)
    assert cut is not None
    if not isinstance(sizes["T"], int) or not isinstance(sizes["B"], int):
        raise ArrayError(
            f"{layout.label}: parallel is {SEGMENTS!r} on a device of CUDA, and T is {sizes['T']} "
            f"and B {sizes['B']}, expected numbers; export for these, or leave parallel out"
        )
    tables, values, _ = call.split(arrays)
    plain, named = replace(call, cut=None), dict(zip(call.tables, tables, strict=True))
    theta, scalars = values[: len(layout.theta)], values[len(layout.theta) :]
    first = states_of(layout, theta)
    count = cut.count(sizes["T"], max((one.size for one in first), default=1))
    if count < 2 or not first or sizes["B"] == 0:
        return run(plain, save, arrays)

    def run_operands(operands: Operands, save: bool) -> list[Any]:
        own = {"lengths": operands.lengths, "reset": operands.reset}
        return run(plain, save, [*(own[name] for name in call.tables), *operands.theta, *scalars])

    segments = Segments(
        jnp,
        jnp.arange,
        layout,
        theta,
        count,
        named.get("lengths"),
        named.get("reset"),
        call.options.reverse,
    )
    items = call.formed if save else layout.outputs
    return _Program(segments, cut.tolerance, cut.sweeps, items, save, run_operands).fill()


@dataclass(frozen=True)
class _Program:
    """A call whose time is cut, as a program."""

    segments: Segments
    tolerance: float
    sweeps: int
    items: Sequence[Argument]
    save: bool
    run: Callable[[Operands, bool], list[Any]]

    def fill(self) -> list[Any]:
        """Run all steps."""
        segments = self.segments
        results, done = self._one_by_one(*self._converge()), segments.count * segments.steps
        rest = None
        if done < segments.total:
            last = segments.last(self._ends(results), segments.count)
            rest = self.run(segments.rest(done, last), self.save)
        return segments.joined(self.items, results, segments.count, rest)

    def _ends(self, results: Arrays) -> list[Any]:
        return last_states(self.segments.layout, results)

    def _converge(self) -> tuple[list[Any], Any]:
        """Run segments until they agree: results, and how many segments count."""
        segments = self.segments

        def wrong(firsts: Arrays, results: Arrays, tolerance: float) -> Any:
            return segments.wrong(firsts, self._ends(results), tolerance)

        def goes_on(carry: Any) -> Any:
            sweep, firsts, results = carry
            return (sweep < self.sweeps) & wrong(firsts, results, self.tolerance).any()

        def again(carry: Any) -> Any:
            sweep, firsts, results = carry
            apart = wrong(firsts, results, self.tolerance)
            firsts = segments.following(firsts, self._ends(results), apart)
            return sweep + 1, firsts, self.run(segments.side_by_side(firsts), self.save)

        firsts = segments.first_of_all(self._ends(self.run(segments.guess(), False)))
        results = self.run(segments.side_by_side(firsts), self.save)
        _, firsts, results = jax.lax.while_loop(goes_on, again, (0, firsts, results))
        unlike = wrong(firsts, results, 0.0).any(1)
        agree = ~wrong(firsts, results, self.tolerance).any()
        return results, jnp.where(agree, segments.count, jnp.argmax(unlike) + 1)

    def _one_by_one(self, results: list[Any], exact: Any) -> list[Any]:
        """Run the segments that do not count, each from the one before."""
        segments = self.segments

        def step(carry: Any) -> Any:
            place, results = carry

            def pick(array: Any, axis: int) -> Any:
                return jax.lax.dynamic_slice_in_dim(array, place, 1, axis)

            states = segments.last(self._ends(results), place)
            formed = self.run(segments.side_by_side(states, pick), self.save)
            return place + 1, [
                jax.lax.dynamic_update_slice_in_dim(
                    whole, new, place * segments.rows, int(has_steps(item))
                )
                for item, whole, new in zip(self.items, results, formed, strict=True)
            ]

        _, results = jax.lax.while_loop(
            lambda carry: carry[0] < segments.count, step, (exact, results)
        )
        return results

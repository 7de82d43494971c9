"""What is computed: random arguments of a cell's functions over time, and the work in them.

Input: a cell, a shape. Output: a ``Problem``; equal seeds draw equal arrays in every process.
Not supported: cells whose arguments over time are not float arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from cellgen.bench.shapes import BenchShape
from cellgen.runtime.abi import Argument, Function, Interface, axis_length

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]
Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]

BYTES = 4
"""Of a float32, in which everything is timed."""

SEED = 1

SCORES = frozenset({"a"})
"""Inputs that are attention scores, in (0, 1): beyond it an AUGRU grows without bound."""
POSITIVE = frozenset({"ts", "tau"})
"""Elapsed times and time constants, of the cells that are solvers."""


class Mode(StrEnum):
    """What one call does: without saving anything, or with every gradient."""

    FORWARD = "forward"
    BOTH = "forward+backward"


@dataclass(frozen=True)
class Problem:
    """Arguments and results by the cell's names, as ``(name, lengths)``.

    ``selector`` finds the cell (a name or ``FILE.py:NAME``). Initial states are zero, as a layer
    starts; the loss is ``sum(d_h * h)``. ``flush_denormals``: those that can are told to count
    denormal numbers as zeros; XLA always does.
    """

    cell: str
    selector: str
    shape: BenchShape
    states: Shapes
    inputs: Shapes
    parameters: Shapes
    upstream: Shapes
    outputs: Shapes
    last: Shapes
    saved: Shapes
    gradients: Shapes
    dims: tuple[str, ...]
    flush_denormals: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths of the cell's own dimensions too."""
        return self.shape.sizes_of(self.dims)

    @property
    def compared(self) -> dict[Mode, tuple[str, ...]]:
        """Results that contestants must agree on: outputs with a gradient, and all gradients."""
        outputs = tuple(name.removeprefix("d_") for name, _ in self.upstream)
        return {
            Mode.FORWARD: outputs,
            Mode.BOTH: outputs + tuple(name for name, _ in self.gradients),
        }

    def flops(self, mode: Mode) -> int:
        """Multiplications and additions of all matrix products.

        Three times as many with the gradients of both operands.
        """
        steps = self.shape.T * self.shape.B
        matrices = sum(math.prod(lengths) for _, lengths in self.parameters if len(lengths) > 1)
        return 2 * steps * matrices * (3 if mode is Mode.BOTH else 1)

    def bytes(self, mode: Mode) -> int:
        """Bytes that must move: each argument and each result once."""
        arrays = self.states + self.inputs + self.parameters + self.outputs + self.last
        if mode is Mode.BOTH:
            arrays += self.upstream + self.gradients
        return _bytes(arrays)

    def argument_bytes(self, mode: Mode) -> int:
        """Bytes of what a call is given: inputs, states, parameters, upstream gradients."""
        arrays = self.states + self.inputs + self.parameters
        return _bytes(arrays + (self.upstream if mode is Mode.BOTH else ()))

    def necessary_bytes(self, mode: Mode) -> int:
        """Bytes that a call cannot do without: results, what is saved, matrices packed once."""
        packed = tuple(item for item in self.parameters if len(item[1]) > 1)
        arrays = self.outputs + self.last + packed
        return _bytes(arrays + (self.saved + self.gradients if mode is Mode.BOTH else ()))

    def draw(self) -> Arrays:
        """Draw all arguments: inputs and upstream gradients of unit variance.

        Weights are as layers start, in (-1, 1)/sqrt(H), where gradients neither vanish nor explode;
        times are positive, attention scores between 0 and 1.
        """
        rng = np.random.default_rng(SEED)
        bound = np.float32(1 / math.sqrt(self.shape.H))
        arrays = {name: np.zeros(lengths, np.float32) for name, lengths in self.states}
        for name, lengths in self.inputs + self.upstream:
            arrays[name] = rng.standard_normal(lengths, np.float32)
        for name, lengths in self.parameters:
            values = rng.random(lengths, np.float32)
            values -= np.float32(0.5)
            values *= 2 * bound
            arrays[name] = values
        for name in POSITIVE & arrays.keys():
            arrays[name] = np.abs(arrays[name])
        for name in SCORES & arrays.keys():
            arrays[name] = np.reciprocal(1 + np.exp(-arrays[name]))
        return arrays


def _bytes(arrays: Shapes) -> int:
    return BYTES * sum(math.prod(lengths) for _, lengths in arrays)


def problem_of(interface: Interface, selector: str, shape: BenchShape) -> Problem:
    """Read the arguments of a cell's functions over time off its interface."""
    functions = {function.name: function for function in interface.functions}
    forward, backward = functions["sequence_forward"], functions["sequence_backward"]

    sizes = shape.sizes_of(forward.dims)

    def lengths(arguments: list[Argument]) -> Shapes:
        return tuple((a.name, tuple(axis_length(x, sizes) for x in a.shape)) for a in arguments)

    arguments = [a for a in forward.arguments if not a.is_scalar and not a.optional]
    over_time = [a for a in arguments if "T" in a.shape]
    states = [a for a in arguments if "B" in a.shape and "T" not in a.shape]
    results = [a for a in forward.results if not a.saved]
    return Problem(
        cell=interface.name,
        selector=selector,
        shape=shape,
        states=lengths(states),
        inputs=lengths(over_time),
        parameters=lengths([a for a in arguments if a not in over_time and a not in states]),
        upstream=lengths(_upstream(backward)),
        outputs=lengths([a for a in results if "T" in a.shape]),
        last=lengths([a for a in results if "T" not in a.shape]),
        saved=lengths([a for a in forward.results if a.saved]),
        gradients=lengths(list(backward.results)),
        dims=forward.dims,
    )


def _upstream(backward: Function) -> list[Argument]:
    """The gradient of ``h`` alone where there is an ``h``: what every library takes."""
    over_time = [a for a in backward.arguments if a.optional and "T" in a.shape]
    return [a for a in over_time if a.name == "d_h"] or over_time

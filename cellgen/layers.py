"""Stack layers of any cell, in one direction or both; forward and every gradient.

Nothing is computed here but sums of gradients: every layer and direction is a call of the cell's
functions over time. Two directions write into the halves of one array, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .abi import Argument, Function, axis_length
from .arguments import Item, infer_dims
from .errors import ArgumentError
from .kernel import Kernel
from .results import Array, Results

Arrays: TypeAlias = dict[str, Array]
Nested: TypeAlias = Sequence[Sequence[Mapping[str, Array]]]
"""Arrays by name for each layer and each of its directions."""


@dataclass(frozen=True)
class Run:
    """What ``Layers.forward`` returns.

    ``output`` is (T, B, D H), or (B, T, D H) batch-first, the directions side by side; ``last`` the
    final states by name of every layer and direction; ``tape`` what ``Layers.backward`` needs.
    """

    output: Array
    last: tuple[tuple[Arrays, ...], ...]
    tape: tuple[tuple[_Call, ...], ...]


@dataclass(frozen=True)
class Gradients:
    """What ``Layers.backward`` returns: of the input, of initial states, of weights by name."""

    d_input: Array
    d_states: tuple[tuple[Arrays, ...], ...]
    d_weights: tuple[tuple[Arrays, ...], ...]


@dataclass(frozen=True)
class _Call:
    """One layer in one direction: what it was given and what it returned."""

    arguments: Arrays
    options: dict[str, object]
    result: Results


class Layers:
    """Layers of one cell, each reading the output of the one below.

    ``weights[layer][direction]`` maps the cell's weights and biases to arrays; one direction runs
    forward, a second one in reverse (from each row's own last step, where there are lengths).
    ``output`` names the output that the next layer reads; ``threads`` as for the kernel.

    Raises ArgumentError for a cell with no input or several, or for other than 1 or 2 directions.
    """

    def __init__(
        self, kernel: Kernel, weights: Nested, *, output: str = "", threads: int | None = None
    ) -> None:
        forward = kernel.functions["sequence_forward"].function
        outputs = [item.name for item in forward.results if item.over_time]
        inputs = [item.name for item in forward.arguments if item.over_time]
        where = f"Layers({kernel.name})"
        if len(inputs) != 1:
            raise ArgumentError(
                f"{where}: the cell has the inputs {', '.join(inputs) or '(none)'}, expected one, "
                f"which the layer below gives"
            )
        if output and output not in outputs:
            raise ArgumentError(
                f"{where}: output is {output!r}, expected one of {', '.join(outputs)}"
            )
        for index, layer in enumerate(weights):
            if len(layer) not in (1, 2) or len(layer) != len(weights[0]):
                raise ArgumentError(
                    f"{where}: layer {index} has {len(layer)} directions, expected as many as "
                    f"layer 0 and 1 or 2; pass weights[layer][direction]"
                )
        if not weights:
            raise ArgumentError(f"{where}: weights has no layer, expected at least one")
        self.kernel, self.weights, self.threads = kernel, weights, threads
        self._input, self._output = inputs[0], output or outputs[0]
        self._function = forward
        self._states = tuple(
            item.name.removesuffix("_last") + "_prev"
            for item in forward.results
            if not item.over_time and not item.saved
        )

    def forward(
        self, x: Array, states: Nested | None = None, *, save: bool = False, **options: object
    ) -> Run:
        """Compute every layer. ``states`` are the initial ones, zeros where left out.

        ``options`` are those of ``sequence_forward``: lengths, mask, reset, batch_first, ...

        Raises ArgumentError, BuildError, MemoryError.
        """
        if options.get("last_only") or options.get("reverse"):
            raise ArgumentError(
                f"Layers({self.kernel.name}).forward: last_only and reverse belong to a single "
                f"layer, expected neither; read run.last, or flip the input"
            )
        call = self.kernel.functions["sequence_forward"]
        tape: list[tuple[_Call, ...]] = []
        for index, layer in enumerate(self.weights):
            calls = []
            halves = None
            for direction, own in enumerate(layer):
                given = {} if states is None else states[index][direction]
                arguments = {self._input: x, **own, **given}
                arguments |= self._zero_states(arguments, options)
                chosen = {**options, "reverse": bool(direction)}
                out = None
                if len(layer) == 2:
                    halves = self._halves(x, arguments, options) if halves is None else halves
                    out = {self._output: halves[..., direction, :]}
                result = call(out=out, **arguments, **chosen, save=save, threads=self.threads)
                calls.append(_Call(arguments, chosen, result))
            x = getattr(calls[0].result, self._output)
            if halves is not None:
                x = halves.reshape(*halves.shape[:2], -1)
            tape.append(tuple(calls))
        names = {name: f"{name.removesuffix('_prev')}_last" for name in self._states}
        last = tuple(
            tuple(
                {last.removesuffix("_last"): getattr(c.result, last) for last in names.values()}
                for c in calls
            )
            for calls in tape
        )
        return Run(x, last, tuple(tape))

    def backward(
        self, run: Run, d_output: Array | None = None, d_last: Nested | None = None
    ) -> Gradients:
        """Compute every gradient of a forward run with ``save=True``.

        ``d_output`` is the gradient of ``run.output``, ``d_last`` those of ``run.last``; what is
        left out counts as zero.

        Raises ArgumentError: the run was not saved; BuildError, MemoryError.
        """
        call = self.kernel.functions["sequence_backward"]
        takes = {item.name for item in call.function.arguments}
        d_states: list[tuple[Arrays, ...]] = []
        d_weights: list[tuple[Arrays, ...]] = []
        for index in reversed(range(len(run.tape))):
            found = []
            for direction, made in enumerate(run.tape[index]):
                if getattr(made.result, "saved", None) is None:
                    raise ArgumentError(
                        f"Layers({self.kernel.name}).backward: the run holds nothing saved, "
                        f"expected one of forward(..., save=True)"
                    )
                arguments = {n: a for n, a in made.arguments.items() if n in takes}
                outputs = made.result._asdict()
                arguments |= {n: a for n, a in outputs.items() if n in takes}
                if d_output is not None:
                    width = d_output.shape[-1] // len(run.tape[index])
                    part = d_output[..., direction * width : (direction + 1) * width]
                    arguments[f"d_{self._output}"] = part
                if d_last is not None:
                    given = d_last[index][direction]
                    arguments |= {f"d_{name}_last": array for name, array in given.items()}
                found.append(
                    call(
                        out=None,
                        **arguments,
                        **made.options,
                        saved=made.result.saved,
                        threads=self.threads,
                    )._asdict()
                )
            d_output = (
                sum(one[f"d_{self._input}"] for one in found[1:]) + found[0][f"d_{self._input}"]
            )
            d_states.append(tuple({n: one[f"d_{n}"] for n in self._states} for one in found))
            d_weights.append(
                tuple(
                    {n: one[f"d_{n}"] for n in own if f"d_{n}" in one}
                    for own, one in zip(self.weights[index], found, strict=True)
                )
            )
        assert d_output is not None
        return Gradients(d_output, tuple(d_states[::-1]), tuple(d_weights[::-1]))

    # --- shapes ---

    def _dims(
        self, arguments: Mapping[str, Array], options: Mapping[str, object]
    ) -> dict[str, int]:
        items = []
        for item in self._function.arguments:
            array = arguments.get(item.name)
            if array is not None and not item.is_scalar:
                if item.over_time and options.get("batch_first"):
                    array = array.swapaxes(0, 1)
                items.append(Item(item, array, item.name))
        return infer_dims(f"Layers({self.kernel.name})", items)[0]

    def _zero_states(self, arguments: Mapping[str, Array], options: Mapping[str, object]) -> Arrays:
        """Initial states that were left out: zeros."""
        missing = [name for name in self._states if name not in arguments]
        if not missing:
            return {}
        dims = self._dims(arguments, options)
        dtype = arguments[self._input].dtype
        return {
            item.name: np.zeros([axis_length(axis, dims) for axis in item.shape], dtype)
            for item in self._function.arguments
            if item.name in missing
        }

    def _halves(
        self, x: Array, arguments: Mapping[str, Array], options: Mapping[str, object]
    ) -> Array:
        """Memory for the output of both directions, (T, B, 2, H) or (B, T, 2, H)."""
        dims = self._dims(arguments, options)
        result = _named(self._function, self._output)
        width = axis_length(result.shape[2], dims)
        return np.empty((*x.shape[:2], 2, width), x.dtype)


def _named(function: Function, name: str) -> Argument:
    return next(item for item in function.results if item.name == name)

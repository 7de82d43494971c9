"""Stack layers of any cell, in one direction or both; forward and every gradient.

Nothing is computed here but sums of gradients: every layer and direction is a call of the cell's
functions over time. Two directions write into the halves of one array, so nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from cellgen import accept
from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import (
    lengths,
    suggestion,
)
from cellgen.runtime.call.checkpoints import limit_bytes
from cellgen.runtime.call.function import KernelFunction
from cellgen.runtime.call.segments import segments_of
from cellgen.runtime.call.settings import checked_options
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.host.threads import thread_count
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.names import final_of, gradient_of, state_of
from cellgen.runtime.options import ALL_LAYERS, BACKWARD, FORWARD, ROWS, TABLE
from cellgen.runtime.results import Array, Results
from cellgen.runtime.stacked_inputs import Arrays, Named, Nested, StackedInputs
from cellgen.runtime.stacked_steps import LayerCall, added, at_last_step, last_of
from cellgen.runtime.streams.stack import StreamedStack

OPTIONS = tuple(option.name for option in TABLE if option.layers)
"""Options of ``sequence_forward`` that a stack takes, for all of its layers or for the last one
alone: others read every step. ``reverse`` turns every direction round."""


@dataclass(frozen=True)
class Run:
    """What ``Layers.forward`` returns.

    ``output`` is (T, B, D H), or (B, T, D H) batch-first, the directions side by side and heads
    flattened; with ``last_only`` (B, D H), each direction's at its own last step, with ``every``
    (T // every, B, D H), both directions' at the same steps. ``last`` are the
    final states by name of every layer and direction; ``tape`` is what ``Layers.backward`` needs.
    """

    output: Array
    last: tuple[tuple[Arrays, ...], ...]
    tape: tuple[tuple[LayerCall, ...], ...]


@dataclass(frozen=True)
class Gradients:
    """What ``Layers.backward`` returns: gradients by the names of what they belong to.

    ``d_input`` is that of x; ``d_states``, ``d_weights`` and ``d_inputs`` are nested as those were
    given; ``d_shared`` are sums over all layers and directions.
    """

    d_input: Array
    d_states: tuple[tuple[Arrays, ...], ...]
    d_weights: tuple[tuple[Arrays, ...], ...]
    d_inputs: tuple[tuple[Arrays, ...], ...]
    d_shared: Arrays


def _layers_of(layers: Layers) -> str:
    return f"Layers({layers.kernel.name})"


class Layers(StreamedStack):
    """Layers of one cell, each reading the output of the one below.

    ``weights[layer][direction]`` maps the cell's weights and biases to arrays; one direction runs
    forward, a second one in reverse (from each row's own last step, where there are lengths);
    with the option ``reverse`` the other way round.
    Widths may differ from layer to layer. ``reads`` names the input that is x and then the output
    of the layer below, ``output`` the output that the next layer reads: the cell's first over time
    where left out. Outputs with heads, (T, B, K, D), are read as (T, B, K D). ``threads`` as for
    the kernel.

    Raises ArgumentError for a cell with no input over time, for other than 1 or 2 directions, and
    for weights that are missing, unknown or no arrays.
    """

    def __init__(
        self,
        kernel: Kernel,
        weights: Nested,
        *,
        reads: str = "",
        output: str = "",
        threads: int | None = None,
    ) -> None:
        function = _forward_of(kernel)
        inputs = {item.name: item for item in function.arguments if item.over_time}
        outputs = {item.name: item for item in function.results if item.over_time}
        label = f"Layers({kernel.name})"
        if not inputs:
            raise ArgumentError(
                f"{label}: the cell has no input over time, expected one, which the layer below "
                f"gives"
            )
        for what, name, known in (("reads", reads, inputs), ("output", output, outputs)):
            if not isinstance(name, str) or name:
                accept.choice(label, what, name, known)
        if threads is not None:
            thread_count(threads, label)
        self.kernel, self.weights, self.threads = kernel, weights, threads
        self._input = inputs[reads or next(iter(inputs))]
        self._output = outputs[output or next(iter(outputs))]
        backward = kernel.functions.get(BACKWARD)
        results = () if backward is None else backward.function.results
        learned = frozenset(item.of for item in results)
        self._operands = StackedInputs(label, function, weights, self._input, learned)
        self._is_state = self._output.name in self._operands.states

    @named_in_memory_errors(_layers_of)
    def forward(
        self,
        x: Array,
        states: Nested | None = None,
        *,
        inputs: Nested | None = None,
        shared: Named | None = None,
        save: bool = False,
        **options: object,
    ) -> Run:
        """Compute every layer.

        ``states`` are the initial ones, by their names or by those of ``Run.last``: with
        ``states=run.last`` a run goes on. Those left out start where they are declared to.

        What else the cell reads, such as elapsed times, masks of a regularised cell or run-time
        scalars, is given by name: in ``shared`` where every layer and direction reads the same,
        in ``inputs[layer][direction]`` where they differ. ``options`` are those of
        ``sequence_forward`` that ``OPTIONS`` lists, the same for all; of ``memory_limit`` each
        layer and direction has the same part.

        Raises ArgumentError, BuildError, MemoryError.
        """
        label = f"Layers({self.kernel.name}).forward"
        accept.flag(label, "save", save)
        _check_options(label, options, self.kernel.interface.jumps)
        options |= _limited(label, options, self._operands.directions, self._output.name, save=save)
        common = {} if shared is None else accept.names(label, "shared", shared, "arrays")
        sources: dict[str, Nested] = {
            "weights": self.weights,
            "states": self._operands.first(label, states),
            "inputs": self._operands.nested(label, "inputs", inputs),
            "shared": [[common for _ in layer] for layer in self.weights],  # type: ignore[misc]
        }
        tape = []
        last_only = bool(options.pop("last_only", False))
        for index in range(len(self.weights)):
            parts = {source: nested[index] for source, nested in sources.items()}
            is_last = index == len(self.weights) - 1
            own = {n: v for n, v in options.items() if is_last or ROWS[n].layers == ALL_LAYERS}
            how = {"save": save, "last": last_only and is_last}
            x, calls = self._layer(f"{label}, layer {index}", x, parts, own, **how)
            tape.append(calls)
        ends = {name: final_of(name) for name in self._operands.states}
        last = tuple(
            tuple({n: getattr(call.result, end) for n, end in ends.items()} for call in calls)
            for calls in tape
        )
        return Run(x, last, tuple(tape))

    @named_in_memory_errors(_layers_of)
    def backward(
        self,
        run: Run,
        d_output: Array | None = None,
        d_last: Nested | None = None,
        *,
        window: int = 0,
        bp_lim: int | None = None,
    ) -> Gradients:
        """Compute every gradient of a forward run with ``save=True``.

        ``d_output`` is the gradient of ``run.output``, ``d_last`` those of ``run.last``; what is
        left out counts as zero. ``window`` and ``bp_lim`` are those of ``sequence_backward``, for
        each layer and direction along its own steps: what comes from the layer above at a step
        counts as that step's loss.

        Raises ArgumentError: the run was not saved, or a shape is wrong; BuildError, MemoryError.
        """
        label = f"Layers({self.kernel.name}).backward"
        self._require_run(label, run)
        if d_output is not None:
            _check_upstream(label, d_output, run)
        nested = self._operands.nested(label, "d_last", d_last)
        limits = {"window": window, "bp_lim": bp_lim}
        gradients: list[list[Arrays]] = []
        for calls, finals in zip(run.tape[::-1], nested[::-1], strict=True):
            one = []
            for place, (call, last) in enumerate(zip(calls, finals, strict=True)):
                part = self._part(d_output, calls, place)
                if call.last and part is not None:
                    part, last = at_last_step(
                        call, self._output.name, part, last, is_state=self._is_state
                    )
                one.append(self._gradients(call, part, last, limits))
            gradients.insert(0, one)
            d_output = reduce(added, (each[self._input.name] for each in one))
        assert d_output is not None
        states = tuple(state_of(name) for name in self._operands.states)
        d_shared: Arrays = {}
        scalars = [a.name for a in self._operands.items.values() if a.is_scalar]
        for layer in _picked(run, gradients, "shared", scalars):
            for each in layer:
                for name, array in each.items():
                    d_shared[name] = added(d_shared[name], array) if name in d_shared else array
        return Gradients(
            d_output,
            tuple(tuple({n: each[n] for n in states} for each in layer) for layer in gradients),
            _picked(run, gradients, "weights"),
            _picked(run, gradients, "inputs"),
            d_shared,
        )

    def _require_run(self, label: str, run: object) -> None:
        """Raise ArgumentError for what ``forward`` of other layers returned, or without saving.

        Whether it was this cell is known by what each call has saved.
        """
        mine = self._operands.directions
        directions = [len(calls) for calls in run.tape] if isinstance(run, Run) else None
        if directions != mine:
            text = (
                type_name(run) if directions is None else f"of layers with {directions} directions"
            )
            raise ArgumentError(
                f"{label}: run is {text}, expected what forward(..., save=True) of these layers "
                f"returned, with {mine} directions"
            )
        assert isinstance(run, Run)
        for call in (call for calls in run.tape[::-1] for call in calls):
            if getattr(call.result, "saved", None) is None:
                raise ArgumentError(
                    f"{call.label.replace('.forward', '.backward')}: the run holds nothing "
                    f"saved, expected one of forward(..., save=True)"
                )

    # --- one layer ---

    def _layer(
        self,
        label: str,
        x: Array,
        parts: Mapping[str, Sequence[Named]],
        options: Mapping[str, object],
        *,
        save: bool,
        last: bool,
    ) -> tuple[Array, tuple[LayerCall, ...]]:
        """Compute one layer in its directions; return what the next one reads."""
        function = self.kernel.functions[FORWARD]
        count, calls, both = len(parts["weights"]), [], np.empty(0)
        for direction in range(count):
            place = f"{label}, direction {direction}" if count > 1 else label
            own = {source: layer[direction] for source, layer in parts.items()}
            arguments = self._operands.merged(place, own)
            arguments[self._input.name] = self._operands.with_heads(place, x, arguments)
            dims = self._operands.dims(place, arguments, options)
            arguments |= self._operands.first_states(arguments, dims, x.dtype)
            halves = count > 1 and not last
            if not direction and halves:
                shape = (dims["T"] // int(options.get("every", 1)), dims["B"])  # type: ignore[call-overload]
                rows = shape[::-1] if options.get("batch_first") else shape
                both = np.empty((*rows, count, *lengths(self._output, dims)[2:]), x.dtype)
            out = {self._output.name: both[:, :, direction]} if halves else None
            chosen = {**options, "reverse": bool(direction) != bool(options.get("reverse", False))}
            keywords = {**arguments, **chosen, "save": save, "threads": self.threads}
            keywords |= {"last_only": True} if last else {}
            result = _called(place, function, out, keywords)
            sources = {source: tuple(values) for source, values in own.items()}
            calls.append(LayerCall(place, x.shape, arguments, sources, chosen, result, last))
        name = self._output.name
        if last:
            return np.concatenate(
                [last_of(call, name, is_state=self._is_state) for call in calls], axis=1
            ), tuple(calls)
        return _flat(both if count > 1 else getattr(result, self._output.name)), tuple(calls)

    def _gradients(
        self, call: LayerCall, d_output: Array | None, d_last: Named, limits: Mapping[str, object]
    ) -> Arrays:
        """Compute the gradients of one layer in one direction, by the names without ``d_``."""
        function = self.kernel.functions[BACKWARD]
        label = call.label.replace(".forward", ".backward")
        if gradient_of(self._input.name) not in {item.name for item in function.function.results}:
            raise ArgumentError(
                f"{label}: {self._input.name} is declared without gradient, expected one, which "
                f"the layer below gets"
            )
        takes = {item.name for item in function.function.arguments}
        known = {**call.arguments, **call.result._asdict()}
        arguments: dict[str, object] = {n: a for n, a in known.items() if n in takes}
        if d_output is not None:
            arguments[gradient_of(self._output.name)] = d_output
        arguments |= {gradient_of(final_of(name)): array for name, array in d_last.items()}
        options = {n: v for n, v in call.options.items() if BACKWARD in ROWS[n].functions}
        arguments |= {**options, **limits, "saved": call.result.saved}
        result = _called(label, function, None, {**arguments, "threads": self.threads})
        gradients = {item.of: getattr(result, item.name) for item in function.function.results}
        return {**gradients, self._input.name: gradients[self._input.name].reshape(call.shape)}

    def _part(
        self, d_output: Array | None, calls: Sequence[LayerCall], direction: int
    ) -> Array | None:
        """The share of one direction in the gradient of a layer's output, with its heads."""
        if d_output is None:
            return None
        call, name = calls[direction], self._output.name
        units = call.units(name)
        width = math.prod(units)
        part: Array = d_output[..., direction * width : (direction + 1) * width]
        return part.reshape(*d_output.shape[:-1], *units)


def _forward_of(kernel: object) -> Function:
    """The function over time of a kernel. Raises ArgumentError."""
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"Layers: kernel is {accept.quoted(kernel)}, expected a kernel; pass "
            f"cellgen.load(...) or cellgen.compile(...)"
        )
    if FORWARD not in kernel.functions:
        raise ArgumentError(
            f"Layers({kernel.name}): the cell has no sequence_forward, expected one; `cellgen "
            f"explain` says why not"
        )
    return kernel.functions[FORWARD].function


def _check_options(label: str, options: Mapping[str, object], jumps: str) -> None:
    """Look at options that all layers or the last one get. Raises ArgumentError."""
    for name in options:
        if name not in OPTIONS:
            raise ArgumentError(f"{label}: unknown option {name!r}; {suggestion(name, OPTIONS)}")
    others = dict(options)
    segments_of(label, others, options, jumps)
    checked_options(label, others)


def _limited(
    label: str,
    options: Mapping[str, object],
    directions: Sequence[int],
    output: str,
    *,
    save: bool,
) -> dict[str, object]:
    """Give each layer and direction the same part of a limit in bytes, for the output it gives."""
    limit, shares = options.get("memory_limit") if save else None, dict[str, object]()
    if limit is not None:
        shares["memory_limit"] = limit_bytes(label, limit) // max(sum(directions), 1)
    if limit is not None or (save and options.get("checkpoint")):
        shares["outputs"] = (output,)
    return shares


def _check_upstream(label: str, d_output: object, run: Run) -> None:
    """Refuse a gradient of the output that has not its shape and dtype."""
    array = d_output if isinstance(d_output, np.ndarray) else None
    if array is None or array.dtype != run.output.dtype:  # which may have 16 bits
        array = accept.array(label, "d_output", d_output)
    if array.shape != run.output.shape:
        raise ArgumentError(
            f"{label}: d_output has shape {array.shape}, expected that of run.output, "
            f"{run.output.shape}"
        )
    if not isinstance(d_output, np.ndarray) or array.dtype != run.output.dtype:
        raise ArgumentError(
            f"{label}: d_output is {type_name(d_output)} of "
            f"{getattr(d_output, 'dtype', 'no dtype')}, expected an array of run.output's, "
            f"{run.output.dtype}; convert it with np.asarray(d_output, run.output.dtype)"
        )


def _called(
    label: str, function: KernelFunction, out: Arrays | None, arguments: Mapping[str, object]
) -> Results:
    """Call a function of the cell; its errors name the layer and direction too."""
    try:
        return function(out=out, **arguments)
    except ArgumentError as error:
        raise ArgumentError(f"{label}: {error.args[0]}") from error


def _flat(array: Array) -> Array:
    """Lay directions, heads and units side by side: (T, B, 2, K, D) is (T, B, 2 K D)."""
    return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))


def _picked(
    run: Run, gradients: Sequence[Sequence[Arrays]], source: str, unnamed: Sequence[str] = ()
) -> tuple[tuple[Arrays, ...], ...]:
    """The gradients of what was given in ``source``, nested by layer and direction.

    And those of what no source gave, by the names of what need not be given.
    """

    def names(call: LayerCall) -> list[str]:
        known = {name for named in call.sources.values() for name in named}
        return [*call.sources[source], *(name for name in unnamed if name not in known)]

    return tuple(
        tuple(
            {name: each[name] for name in names(call) if name in each}
            for call, each in zip(calls, layer, strict=True)
        )
        for calls, layer in zip(run.tape, gradients, strict=True)
    )

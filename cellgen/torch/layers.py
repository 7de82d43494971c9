"""Layers of a cell, in one direction or both, as a module of torch: ``module(GRU, 28, 128)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from cellgen import accept
from cellgen.frameworks.segments import SEGMENT_OPTIONS
from cellgen.frameworks.selection import ON_TENSORS, OUTPUT_OPTIONS, asks_for_last
from cellgen.runtime.abi import axis_length
from cellgen.torch.checks import (
    check_free,
    check_given,
    check_shapes,
    check_states,
    check_tensors,
)
from cellgen.torch.derivatives import Call
from cellgen.torch.devices import known_dtype
from cellgen.torch.draws import Rates, check_rates, draw
from cellgen.torch.errors import KindError
from cellgen.torch.forms import STEP, STEPS_OF_CHUNK
from cellgen.torch.functional import CellFunction, function
from cellgen.torch.initial import Rule, check_rules, rule_of
from cellgen.torch.packed import Padded, padded
from cellgen.torch.registry import CellOrName
from cellgen.torch.roles import Roles, roles_of, sizes_of, units
from cellgen.torch.stack import StackPlace, run_layers
from cellgen.torch.tools import KnownToTools, as_node
from cellgen.torch.usual import Stack, stack_of

State: TypeAlias = Tensor | tuple[Tensor, ...]
SELECTION = (*OUTPUT_OPTIONS, *SEGMENT_OPTIONS)
"""Options of a call that cells take as they are."""


class CellLayers(KnownToTools, torch.nn.Module):
    """Layers of any cell over time; ``cellgen.torch.module`` makes one and documents it."""

    _stack: Stack | bool | None = None
    _said: tuple[object, ...] = ()  # what usual calls were made with

    def __init__(  # noqa: PLR0913 - one argument an option
        self,
        cell: CellFunction,
        sizes: Mapping[str, int],
        num_layers: int,
        *,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        window: int,
        rate: Rates,
        initial: Mapping[str, Rule],
        scalars: Mapping[str, float],
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.cell, self.sizes, self.num_layers = cell, dict(sizes), num_layers
        self.roles: Roles = roles_of(cell.layout, cell.masks)
        self.batch_first, self.bidirectional = batch_first, bidirectional
        self.dropout, self.window, self.rate = dropout, window, rate
        self.initial, self.scalars = dict(initial), dict(scalars)
        self.input_size = self.roles.input_width(self.sizes)
        self.hidden_size = self.sizes.get("H", self.roles.output_width(self.sizes))
        self.layer_sizes = _sizes_by_layer(self.roles, self.sizes, num_layers, 1 + bidirectional)
        self.output_size = self.roles.output_width(self.layer_sizes[-1])
        for layer, suffix, _ in self.places():
            own = self.layer_sizes[layer]
            for item in self.roles.parameters:
                shape = tuple(axis_length(axis, own) for axis in item.shape)
                learns = item.name not in self.roles.fixed
                check_free(self, item.name + suffix)
                value = torch.empty(shape, device=device, dtype=dtype)
                self.register_parameter(item.name + suffix, torch.nn.Parameter(value, learns))
        self.reset_parameters()

    @property
    def form(self) -> str:
        """The form in which calls run: ``"step"``, ``"chunk"`` or ``"scan"``."""
        return self.cell.form

    def places(self) -> Iterator[tuple[int, str, bool]]:
        """Every layer and direction: number, what its parameters' names end in, whether reverse."""
        for layer in range(self.num_layers):
            for reverse in (False, True)[: 1 + self.bidirectional]:
                suffix = f"_l{layer}" if layer else ""
                yield layer, suffix + ("_reverse" if reverse else ""), reverse

    def reset_parameters(self) -> None:
        """Fill every parameter as its rule says; ``cellgen.runtime.initial`` lists them.

        Raises KindError for one that does not learn and has no rule.
        """
        with torch.no_grad():
            for _, suffix, _ in self.places():
                for item in self.roles.parameters:
                    parameter = getattr(self, item.name + suffix)
                    if parameter.device.type != "meta":
                        rule = self.initial.get(item.name) or rule_of(self.roles, item)
                        rule(parameter)

    def extra_repr(self) -> str:
        """What ``print`` says of a layer."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        parts = [f"{self.cell.layout.cell}, {sizes}"]
        usual = {"num_layers": 1, "batch_first": False, "bidirectional": False, "dropout": 0.0}
        for name, default in {**usual, "window": 0}.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        parts += [f"form={self.form}"] * (self.form != STEP)
        parts += [f"{name}={value}" for name, value in self.scalars.items()]
        return ", ".join(parts)

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        zero_output_for_mask: bool = False,
        return_outputs: bool = False,
        form: str | None = None,
        **arguments: Any,
    ) -> tuple[Any, State]:
        """Run all layers; see ``module``."""
        is_plain = lengths is None and mask is None and reset is None and not arguments
        is_in_steps = self.form == STEP if form is None else isinstance(form, str) and form == STEP
        if is_plain and is_in_steps and not (return_outputs or torch.compiler.is_compiling()):
            results = _usual(self, x, state)
            if results is not None:
                return results
        tables = {"lengths": lengths, "mask": mask, "reset": reset}
        flags = {"zero_output_for_mask": zero_output_for_mask, "form": form}
        named = {**tables, **flags, "return_outputs": return_outputs}
        node: Any = as_node(self, self.label, (x, state), named, arguments)
        if node is not None:
            return node  # type: ignore[no-any-return]
        selection = self._shown(arguments) if arguments else {}
        if isinstance(x, PackedSequence):
            return self._run_packed(x, state, tables, return_outputs, arguments, selection, form)
        check_tensors(self.label, [self.roles.input], {self.roles.input.name: x})
        is_single = x.dim() == len(units(self.roles.input)) + 1
        check_shapes(self, x, self._split(state), arguments, batch_first=self.batch_first)
        if is_single:
            x, state, arguments = self._as_batch(x, state, arguments)
        options = {**tables, **flags, "batch_first": self.batch_first}
        outputs, states = self._run(x, self._split(state), arguments, options, selection)
        if is_single:
            axis = 0 if self.batch_first or asks_for_last(selection) else 1
            outputs = _each(outputs, lambda output: output.squeeze(axis))
            states = tuple(one.squeeze(1) for one in states)
        last = states[0] if len(states) == 1 else states
        return (outputs if return_outputs else outputs[0]), last

    def _shown(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Take options that say what is shown and kept out of the arguments, and check the rest.

        A limit of memory is that of all layers and directions together.
        """
        selection = {name: arguments.pop(name) for name in SELECTION if name in arguments}
        limit = selection.get("memory_limit")
        if isinstance(limit, int):
            selection["memory_limit"] = limit // (self.num_layers * (1 + self.bidirectional))
        check_given(self, arguments)
        return selection

    def _run_packed(
        self,
        x: PackedSequence,
        state: State | None,
        tables: Mapping[str, Tensor | None],
        return_outputs: bool,
        inputs: Mapping[str, Tensor],
        selection: Mapping[str, Any],
        form: str | None,
    ) -> tuple[Any, State]:
        """Run on a packed sequence; its rows are in the order of the packing meanwhile."""
        tables = {**tables, "every": selection.get("every")}
        for name, table in tables.items():
            if table is not None:
                raise KindError(
                    f"{self.label}: {name} is given with a PackedSequence, expected one of them; "
                    f"leave {name} out, or pass a tensor with lengths"
                )
        rows: Padded = padded(x)
        check_shapes(self, rows.array, self._split(state), inputs, batch_first=False)
        states = tuple(rows.sorted(one, 1) for one in self._split(state))
        extra = {
            name: value if name in self.cell.scalars else rows.sorted(value, self._row_axis(name))
            for name, value in inputs.items()
        }
        options = {"lengths": rows.lengths_there, "batch_first": False, "form": form}
        outputs, last = self._run(rows.array, states, extra, options, selection)
        if asks_for_last(selection):
            again = _each(outputs, lambda output: rows.unsorted(output, 0))
        else:
            again = _each(outputs, rows.packed_again)
        last = tuple(rows.unsorted(one, 1) for one in last)
        return (again if return_outputs else again[0]), last[0] if len(last) == 1 else last

    def _row_axis(self, name: str) -> int:
        over_time = {item.name for item in self.roles.shared if item.over_time}
        return 1 if name in over_time else 0

    @property
    def label(self) -> str:
        """How a message begins."""
        return f"module({self.cell.layout.cell})"

    def _as_batch(
        self, x: Tensor, state: State | None, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, State | None, dict[str, Tensor]]:
        """Make a batch of one of a sequence without rows."""
        axis = 0 if self.batch_first else 1
        states = tuple(one.unsqueeze(1) for one in self._split(state))
        rows = {
            n: v if n in self.cell.scalars else v.unsqueeze(axis if self._row_axis(n) else 0)
            for n, v in inputs.items()
        }
        return x.unsqueeze(axis), states or None, rows

    def _split(self, state: State | None) -> tuple[Tensor, ...]:
        """The states of a call in the order of declaration; none for those to be made."""
        if state is None:
            return ()
        states = tuple(state) if isinstance(state, tuple | list) else (state,)
        if len(states) != len(self.roles.states):
            names = ", ".join(item.name for item in self.roles.states)
            raise KindError(
                f"{self.label}: state holds {len(states)} tensors, expected "
                f"{len(self.roles.states)}: {names}; pass a tuple in this order"
            )
        check_states(self.label, "state", states)
        return states

    def _run(
        self,
        x: Tensor,
        states: tuple[Tensor, ...],
        inputs: Mapping[str, Tensor],
        options: Mapping[str, Any],
        selection: Mapping[str, Any],
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Run every layer and direction; return the last one's outputs, and final states."""
        if self.cell.needs_states and not states:
            states = _begun(self, x, batch_first=options["batch_first"])
        layers: list[list[StackPlace]] = [[] for _ in range(self.num_layers)]
        for layer, suffix, reverse in self.places():
            own = {i.name: _parameter(self, i.name + suffix) for i in self.roles.parameters}
            named = {**self.scalars, **inputs, **own}
            layers[layer].append(
                StackPlace(reverse, self._giver(layer, named, options["batch_first"]))
            )
        rate = self.dropout if self.training else 0.0
        options = {**options, "window": self.window}
        return run_layers(
            self.cell, layers, x, states, rate=rate, options=options, selection=selection
        )

    def _giver(
        self, layer: int, named: Mapping[str, Any], batch_first: bool
    ) -> Callable[[Tensor], Mapping[str, Any]]:
        """What a layer is given: with masks, which are drawn for its input."""
        return lambda x: {**named, **self._drawn(x, layer, named, batch_first)}

    def _drawn(
        self, x: Tensor, layer: int, inputs: Mapping[str, Any], batch_first: bool
    ) -> dict[str, Tensor]:
        """The masks of a regularised cell that the caller has not given."""
        masks = [mask for mask in self.roles.masks if mask.name not in inputs]
        if not masks:
            return {}
        first, second = x.shape[:2]
        steps, rows = (second, first) if batch_first else (first, second)
        sizes = self.layer_sizes[layer] | {"T": steps, "B": rows}
        layout = self.cell.layout
        return {
            mask.name: draw(
                mask, layout.shape(mask.name, sizes), self.rate, x, self.training, batch_first
            )
            for mask in masks
        }


def _usual(layers: CellLayers, x: Any, state: Any) -> tuple[Tensor, State] | None:
    """Compute a usual call; None for others."""
    stack, said = layers._stack, (layers.window, *layers.scalars.items())
    if stack is None or said != layers._said:
        stack = layers._stack = _stack_of(layers)
        layers._said = said  # last: another thread goes by it
    if not isinstance(stack, Stack) or (layers.training and layers.dropout):
        return None
    if state is None and layers.cell.needs_states:
        return None
    states = (state,) if type(state) is Tensor else state
    return stack.run(x, states, layers._parameters, layers.batch_first)


def _stack_of(layers: CellLayers) -> Stack | bool:
    """Say what usual calls take; False where there are none."""
    ends: list[list[str]] = [[] for _ in range(layers.num_layers)]
    for layer, suffix, _ in layers.places():
        ends[layer].append(suffix)
    stack = None
    if not (layers.roles.shared or layers.roles.masks) and len(units(layers.roles.outputs[0])) == 1:
        scalars = tuple({**layers.cell.scalars, **layers.scalars}.values())
        types = [type(layers.window), *map(type, scalars)]
        if types != [int, *[float] * len(scalars)] or layers.window < 0:
            return False  # other calls convert them, or have words for them
        ways = (replace(ON_TENSORS, reverse=way, window=layers.window) for way in (False, True))
        calls = [Call(layers.cell.known, scalars, options) for options in ways]
        stack = stack_of(layers.cell, (calls[0], calls[1]), ends)
    return stack or False


def _begun(layers: CellLayers, x: Tensor, *, batch_first: bool) -> tuple[Tensor, ...]:
    """The states where sequences begin, of dimensions that nothing else in a call tells."""
    sizes = {**layers.sizes, "B": x.shape[0 if batch_first else 1]}
    count = layers.num_layers * (1 + layers.bidirectional)
    return tuple(
        x.new_full((count, *layers.cell.layout.shape(item.name, sizes)), item.initial)
        for item in layers.roles.states
    )


def _parameter(layer: torch.nn.Module, name: str) -> Tensor:
    """A parameter, also where a hook forms it from others."""
    parameter: Tensor | None = layer._parameters.get(name)
    if parameter is None:
        parameter = getattr(layer, name)
    return parameter


def _each(outputs: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every output of a named tuple but those that are None."""
    named = outputs._asdict().items()
    return outputs._replace(**{n: None if o is None else change(o) for n, o in named})


def _sizes_by_layer(
    roles: Roles, sizes: dict[str, int], layers: int, directions: int
) -> list[dict[str, int]]:
    """The dimensions of every layer: later ones read what the one before gives."""
    by_layer = [sizes]
    while len(by_layer) < layers:
        by_layer.append(roles.fed_by(roles.output_width(by_layer[-1]) * directions, sizes))
    return by_layer


def module(  # noqa: PLR0913 - one argument an option
    cell: CellOrName,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    *,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    window: int = 0,
    rate: float | Mapping[str, float] = 0.0,
    initial: Mapping[str, Rule | Tensor] | None = None,
    device: Any = None,
    dtype: Any = None,
    form: str = STEP,
    chunk: int = STEPS_OF_CHUNK,
    **sizes: float,
) -> CellLayers:
    """Return layers of any cell as a ``torch.nn.Module``: ``module(MGU, 28, 128)``.

    ``output, state = layer(x, state=None)``: x (T, B, I), or (B, T, I) with ``batch_first``, or
    without B, or a ``PackedSequence``. ``output`` is the cell's first output over time, heads
    flattened and directions side by side; with ``return_outputs=True`` a named tuple of all.
    ``state`` is a tensor (layers x directions, B, H), or a tuple of them in the order of
    declaration; left out, states start where the cell says. Other inputs and statics are passed by
    name, the same for all layers. ``lengths`` (B), ``mask``, ``reset`` (T, B) and
    ``zero_output_for_mask`` as in ``cellgen.torch.function``, and so are ``checkpoint``,
    ``memory_limit`` (of all layers together), ``products`` and ``parallel``; what else
    ``cellgen.frameworks.selection.OUTPUT_OPTIONS`` lists says what is shown of the last layer.

    Parameters have the names of the declaration; those of later layers end in ``_l1``, those of the
    reverse direction in ``_reverse``. They start as ``cellgen.runtime.initial`` says; ``initial``
    has other rules or tensors by name, and must have those of fixed weights (``gradient=False``).
    ``sizes`` are dimensions beside I and H by name (``D=16``), and run-time scalars. ``dropout`` is
    between layers; ``window`` cuts gradients; ``rate`` is p of a regularised cell's masks, drawn in
    training; ``form`` and ``chunk`` are as in ``cellgen.torch.function``, of a call too.

    Raises:
        DeclarationError, BuildError: as ``cellgen.torch.function``.
        ArgumentError: a size or a fixed weight is missing or does not fit; no such form.
    """
    cell_function = function(cell, form=form, chunk=chunk)
    label = f"module({cell_function.layout.cell})"
    scalars = {n: accept.real(label, n, sizes.pop(n)) for n in cell_function.scalars if n in sizes}
    roles = roles_of(cell_function.layout, cell_function.masks)
    accept.real(label, "dropout", dropout, 0, 1, expected="a probability from 0 to 1")
    return CellLayers(
        cell_function,
        sizes_of(cell_function.layout, roles, input_size, hidden_size, sizes, OPTIONS),
        accept.whole(label, "num_layers", num_layers, 1),
        batch_first=accept.flag(label, "batch_first", batch_first),
        dropout=dropout,
        bidirectional=accept.flag(label, "bidirectional", bidirectional),
        window=accept.whole(label, "window", window),
        rate=check_rates(label, cell_function.masks, rate),
        initial=check_rules(label, roles, initial),
        scalars=scalars,
        device=device,
        dtype=known_dtype(label, dtype),
    )


OPTIONS = tuple(inspect.signature(module).parameters)
"""What ``module`` takes by name, beside dimensions and scalars."""

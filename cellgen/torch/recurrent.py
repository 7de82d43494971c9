"""Drop-ins for ``torch.nn.GRU``, ``LSTM``, ``RNN`` and their cells.

Same constructors, parameters, layouts, results within rounding, same errors; the arithmetic is
cellgen's.

What cellgen has no kernel for (devices other than the CPU and those of CUDA, arguments that torch
refuses) goes the way of ``torch.nn``, which computes it or raises its own error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from cellgen.errors import ArgumentError
from cellgen.frameworks.selection import ON_TENSORS
from cellgen.torch.checks import check_states
from cellgen.torch.derivatives import Call
from cellgen.torch.devices import PLACES
from cellgen.torch.functional import CAST, CellFunction, function
from cellgen.torch.packed import padded
from cellgen.torch.stack import StackPlace, dropped_rows_first, run_layers
from cellgen.torch.steps import CellStep, step_of
from cellgen.torch.tools import KnownToTools, as_node, is_exported_to_onnx, layer_signature
from cellgen.torch.usual import Stack, stack_of

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Names of parameters, without the layer's number."""

MODES = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}
"""What ``torch.nn`` calls a layer of Elman's network, by its function."""


_cells: dict[str, CellFunction] = {}


def _cell(mode: str) -> CellFunction:
    """The cell of a mode, made when it is first needed."""
    cell = _cells.get(mode)
    if cell is None:
        from cellgen.torch.cells import BY_MODE

        cell = _cells[mode] = function(BY_MODE[mode])
    return cell


_steps: dict[str, CellStep | None] = {}


def _step_of(mode: str) -> CellStep | None:
    """The step of the cell of a mode, made when it is first needed."""
    if mode not in _steps:
        _steps[mode] = step_of(_cell(mode))
    return _steps[mode]


class _Recurrent(KnownToTools, torch.nn.RNNBase):
    """What the three layers share; ``peer`` is torch's own, for what cellgen does not compute."""

    peer: type[torch.nn.RNNBase]
    _stack: Stack | bool | None = None

    @property
    def cell(self) -> CellFunction:
        """The cell as a function of tensors."""
        return _cell(self.mode + (" with proj_size" if self.proj_size else ""))

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.prepare()

    def prepare(self) -> None:
        """Compile the kernel now: it cannot be compiled within a graph that torch compiles."""
        _ = self.cell

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.prepare()

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As ``torch.nn``: output and final states, of a batch, one sequence or a packed one."""
        results = None if torch.compiler.is_compiling() else self._usual(input, hx)
        if results is None:
            results = as_node(self, type(self).__name__, (input, hx), {}, {})
        return self._computed(input, hx) if results is None else results

    def _given(self, hx: Any) -> tuple[Any, ...] | None:
        return _given(type(self).__name__, hx, len(self.cell.states))

    def _computed(self, input: Any, hx: Any) -> Any:
        """Compute by operators, or as ``torch.nn`` does, which says what is wrong."""
        states = None if is_exported_to_onnx() else self._given(hx)
        if states is None:
            return self.peer.forward(self, input, hx)
        if isinstance(input, PackedSequence) or torch.compiler.is_compiling():
            if self._is_mine(input, states):
                return self._compute(input, states)
            return self.peer.forward(self, input, hx)
        count = self.num_layers * (1 + self.bidirectional)
        if any(not isinstance(state, Tensor) or len(state) != count for state in states):
            return self.peer.forward(self, input, hx)
        try:
            if input.numel() or self._is_mine(input, states):
                return self._compute(input, states)
        except (ArgumentError, AttributeError, RuntimeError):
            if self._is_mine(input, states):
                raise
        return self.peer.forward(self, input, hx)

    def _usual(self, input: Any, hx: Any) -> Any:
        """Compute a usual call; None for others."""
        stack = self._stack
        if stack is None:
            stack = self._make_stack()
        if not isinstance(stack, Stack) or (self.training and self.dropout):
            return None
        states = (hx,) if len(stack.start) == 1 and hx is not None else hx
        return stack.run(input, states, self._parameters, self.batch_first)

    def _make_stack(self) -> Stack | bool:
        """Say what usual calls take; False where there are none."""
        ends = ("", "_reverse")[: 1 + self.bidirectional]
        layers = [[f"_l{layer}{end}" for end in ends] for layer in range(self.num_layers)]
        cell = self.cell
        reverse = replace(ON_TENSORS, reverse=True)
        calls = Call(cell.known, (), ON_TENSORS), Call(cell.known, (), reverse)
        usual_calls = stack_of(cell, calls, layers) if self.bias else None
        self._stack = usual_calls or False
        return self._stack

    def _compute(self, input: Any, states: tuple[Any, ...]) -> Any:
        if isinstance(input, PackedSequence):
            rows = padded(input)
            start = [rows.sorted(state, 1) for state in states]
            options = {"lengths": rows.lengths_there}
            outputs, last = self._run(rows.array, start, options, rows.dropped)
            kept = tuple(rows.unsorted(state, 1) for state in last)
            return rows.packed_again(outputs[0]), self._as_states(kept)
        if input.dim() == 3:
            drop = dropped_rows_first if self.batch_first else dropout
            outputs, last = self._run(input, states, {"batch_first": self.batch_first}, drop)
            return outputs[0], self._as_states(last)
        outputs, last = self._run(input.unsqueeze(1), [s.unsqueeze(1) for s in states], {})
        return outputs[0].squeeze(1), self._as_states(tuple(s.squeeze(1) for s in last))

    def _run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        options: Mapping[str, Any],
        drop: Callable[[Tensor, float], Tensor] = dropout,
    ) -> tuple[Any, tuple[Tensor, ...]]:
        ends = ("", "_reverse")[: 1 + self.bidirectional]
        layers = [
            [self._place(f"_l{layer}{end}", bool(end)) for end in ends]
            for layer in range(self.num_layers)
        ]
        rate = self.dropout if self.training else 0.0
        return run_layers(self.cell, layers, x, states, rate=rate, drop=drop, options=options)

    def _place(self, suffix: str, reverse: bool) -> StackPlace:
        parameters: dict[str, Any] = {}
        for name in WEIGHTS if self.proj_size else WEIGHTS[: 4 if self.bias else 2]:
            value = self._parameters.get(name + suffix)
            if value is None:  # also where a hook forms it from others
                value = getattr(self, name + suffix, None)
            if value is not None:
                parameters[name] = value
        if not self.bias:
            zeros = parameters["weight_ih"].new_zeros(parameters["weight_ih"].shape[0])
            parameters |= {"bias_ih": zeros, "bias_hh": zeros}
        return StackPlace(reverse, lambda x: parameters)

    def _is_mine(self, input: Any, states: Sequence[Any]) -> bool:
        """Whether cellgen computes a call; torch does, or refuses, what it does not."""
        data = input.data if isinstance(input, PackedSequence) else input
        tensors = (data, *states)
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            return False
        weight = self.weight_ih_l0
        if not all(t.device == weight.device and _has_kernel(t, weight) for t in tensors):
            return False
        if torch.jit.is_tracing():  # a look at numbers would make constants of them
            return isinstance(input, PackedSequence) or data.dim() in (2, 3)
        rows: tuple[int, ...] = ()
        if isinstance(input, PackedSequence):
            rows = (int(input.batch_sizes[0]),)
        elif data.dim() == 3:
            rows = (data.shape[0 if self.batch_first else 1],)
        elif data.dim() != 2:
            return False
        if not torch.compiler.is_compiling() and not self._has_steps(data):
            return False
        return bool(data.shape[-1] == self.input_size) and self._fits(states, rows)

    def _has_steps(self, data: Tensor) -> bool:
        """Whether there is a step, which torch asks for."""
        return bool(data.shape[1 if self.batch_first and data.dim() == 3 else 0])

    def _fits(self, states: Sequence[Tensor], rows: tuple[int, ...]) -> bool:
        widths = (self.proj_size or self.hidden_size, self.hidden_size)[: len(self.cell.states)]
        count = self.num_layers * (1 + self.bidirectional)
        return all(
            tuple(state.shape) == (count, *rows, wide)
            for state, wide in zip(states, widths, strict=False)
        )

    def _as_states(self, states: tuple[Tensor, ...]) -> Any:
        return states if len(states) > 1 else states[0]


def _given(label: str, hx: Any, count: int) -> tuple[Any, ...] | None:
    """The states that a call is given; None where torch refuses what holds them.

    Raises KindError where some are None.
    """
    if hx is None:
        return ()
    if count == 1:
        return (hx,) if isinstance(hx, Tensor) else None
    if not isinstance(hx, tuple | list) or len(hx) != count:
        return None
    check_states(label, "hx", hx)
    return tuple(hx)


def _has_kernel(tensor: Tensor, weight: Tensor) -> bool:
    """Whether there is a kernel for a tensor: of a precision that its device has, of one kind."""
    kind = tensor.device.type
    if kind not in PLACES:
        return False
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return tensor.dtype in CAST and weight.dtype in CAST
    return bool(tensor.dtype in PLACES[kind].dtypes and tensor.dtype == weight.dtype)


class GRU(_Recurrent):
    """``torch.nn.GRU`` on cellgen's kernels; arguments and results as there."""

    peer = torch.nn.GRU
    __signature__ = layer_signature()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        if "proj_size" in named:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__("GRU", *arguments, **named)


class LSTM(_Recurrent):
    """``torch.nn.LSTM`` on cellgen's kernels, ``proj_size`` included."""

    peer = torch.nn.LSTM
    __signature__ = layer_signature(has_projection=True)
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
    check_forward_args = torch.nn.LSTM.check_forward_args
    permute_hidden = torch.nn.LSTM.permute_hidden

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__("LSTM", *arguments, **named)


class RNN(_Recurrent):
    """``torch.nn.RNN`` on cellgen's kernels, with ``nonlinearity`` ``"tanh"`` or ``"relu"``."""

    peer = torch.nn.RNN
    __signature__ = layer_signature(has_nonlinearity=True)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        if "proj_size" in named:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        positional = list(arguments)
        self.nonlinearity = (
            positional.pop(3) if len(positional) > 3 else named.pop("nonlinearity", "tanh")
        )
        if self.nonlinearity not in MODES:
            raise ValueError(
                f"Unknown nonlinearity '{self.nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(MODES[self.nonlinearity], *positional, **named)


class _Step(KnownToTools):
    """What the cells share: one step is a sequence of one."""

    mode = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.prepare()

    def prepare(self) -> None:
        """Compile the kernel now: it cannot be compiled within a graph that torch compiles."""
        _cell(self._mode())

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.prepare()

    def _mode(self) -> str:
        return self.mode

    def _usual(self, input: Any, states: tuple[Any, ...] | None) -> Sequence[Tensor] | None:
        """Compute a usual call; None for others."""
        if states is None or torch.compiler.is_compiling():
            return None
        step = _step_of(self._mode())
        if step is None:
            return None
        return step.run(input, states, self._parameters)  # type: ignore[attr-defined]

    def _step(self, input: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        cell = _cell(self._mode())
        named = {name: getattr(self, name) for name in WEIGHTS[:4]}
        if named["bias_ih"] is None:
            zeros = input.new_zeros(named["weight_ih"].shape[0])
            named |= {"bias_ih": zeros, "bias_hh": zeros}
        is_single = input.dim() == 1
        x, start = input.unsqueeze(0), list(states)
        if is_single:
            x, start = x.unsqueeze(0), [state.unsqueeze(0) for state in states]
        results = cell(x=x, **named, **dict(zip(cell.states, start, strict=False)))
        last = [getattr(results, name) for name in cell.finals]
        return tuple(state.squeeze(0) for state in last) if is_single else tuple(last)

    def _is_mine(self, input: Any, states: Sequence[Any]) -> bool:
        weight = self.weight_ih  # type: ignore[attr-defined]
        if is_exported_to_onnx() or not isinstance(input, Tensor) or input.dim() not in (1, 2):
            return False
        wanted = (*input.shape[:-1], self.hidden_size)  # type: ignore[attr-defined]
        shapes = all(isinstance(s, Tensor) and tuple(s.shape) == wanted for s in states)
        tensors = (input, *states)
        return bool(
            shapes
            and input.shape[-1] == self.input_size  # type: ignore[attr-defined]
            and all(t.device == weight.device and _has_kernel(t, weight) for t in tensors)
        )


class GRUCell(_Step, torch.nn.GRUCell):
    """``torch.nn.GRUCell`` on cellgen's kernels."""

    __signature__ = inspect.signature(torch.nn.GRUCell)

    mode = "GRU"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        """One step: the new state."""
        states = () if hx is None else (hx,)
        results = self._usual(input, states)
        if results is not None:
            return results[0]
        node = as_node(self, "GRUCell", (input, hx), {}, {})
        if node is not None:
            return node
        if not self._is_mine(input, states):
            return super().forward(input, hx)
        return self._step(input, states)[0]


class RNNCell(_Step, torch.nn.RNNCell):
    """``torch.nn.RNNCell`` on cellgen's kernels."""

    __signature__ = inspect.signature(torch.nn.RNNCell)

    def _mode(self) -> str:
        return MODES.get(self.nonlinearity, MODES["tanh"])

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        """One step: the new state."""
        states = () if hx is None else (hx,)
        results = self._usual(input, states) if self.nonlinearity in MODES else None
        if results is not None:
            return results[0]
        node = as_node(self, "RNNCell", (input, hx), {}, {})
        if node is not None:
            return node
        if not self._is_mine(input, states) or self.nonlinearity not in MODES:
            return super().forward(input, hx)
        return self._step(input, states)[0]


class LSTMCell(_Step, torch.nn.LSTMCell):
    """``torch.nn.LSTMCell`` on cellgen's kernels."""

    __signature__ = inspect.signature(torch.nn.LSTMCell)

    mode = "LSTM"

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> Any:
        """One step: the new states h and c."""
        states = _given("LSTMCell", hx, 2)
        results = self._usual(input, states)
        if results is not None:
            return results[0], results[1]
        node = as_node(self, "LSTMCell", (input, hx), {}, {})
        if node is not None:
            return node
        if states is None or not self._is_mine(input, states):
            return super().forward(input, hx)
        return self._step(input, states)

"""Any cell as a layer of Keras 3, on its torch and JAX backends: ``cellgen.keras.RNN(GRU, 64)``.

Needs keras and one of the two: ``pip install 'cellgen-compiler[keras,torch]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from cellgen import accept
from cellgen.errors import ArgumentError, BuildError
from cellgen.frameworks.registry import CellOrName
from cellgen.language.cell import Cell
from cellgen.runtime.abi import Argument
from cellgen.runtime.initial import drawn, input_axes, must_be_given, rule_of

BACKEND = keras.backend.backend()
if BACKEND == "torch":
    from cellgen.torch import function
elif BACKEND == "jax":
    from cellgen.jax import function  # type: ignore[assignment]
else:
    raise ImportError(
        f"cellgen.keras runs on Keras' torch and JAX backends, and the backend is {BACKEND!r}; set "
        f"KERAS_BACKEND=torch before keras is imported"
    )

Shape: TypeAlias = Sequence[int | None]
Tensors: TypeAlias = Any
"""What the backend has for arrays, alone or in a list."""


OWN: dict[str, type[Cell]] = {}
"""Classes of one's own that layers were made of, by their names: wrappers copy layers by those."""


def name_of(cell: type[Cell]) -> str:
    """What a saved layer calls a class."""
    return f"{cell.__module__}:{cell.__qualname__}"


def cell_of(name: str) -> CellOrName:
    """The class of a name among Keras' custom objects and ours; else the name of one that ships."""
    custom = keras.saving.get_registered_object(name.rpartition(":")[2])
    return custom or OWN.get(name, name)


@keras.saving.register_keras_serializable(package="cellgen")
class RNN(keras.layers.Layer):  # type: ignore[misc]
    """A cell over time as ``keras.layers.GRU`` is one: inputs (batch, steps, features).

    ``cell`` is a class or the name of one that ships; ``units`` the width of its output, ``dims``
    its other dimensions by name, ``initial`` arrays of weights that do not learn. The other options
    and what a call returns are those of ``keras.layers.RNN``: the first output of the last step, or
    of all steps, then the states in the order of their declaration. Masks leave steps out, outputs
    repeat there, or are zeros with ``zero_output_for_mask``. A class of one's own is saved by its
    name; ``load_model(path, custom_objects={"MyCell": MyCell})`` says what that is. Raises
    ArgumentError, BuildError, DeclarationError.
    """

    def __init__(
        self,
        cell: CellOrName,
        units: int,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        *,
        dims: Mapping[str, int] | None = None,
        initial: Mapping[str, Any] | None = None,
        **layer: Any,
    ) -> None:
        super().__init__(**layer)
        cell = cell_of(cell) if isinstance(cell, str) else cell
        self.cell, self.function = cell, function(cell)
        if not isinstance(cell, str):
            OWN[name_of(cell)] = cell
        layout = self.function.layout
        self.where = f"keras.RNN({layout.cell})"
        self.units = accept.whole(self.where, "units", units, 1)
        self.return_sequences, self.return_state = return_sequences, return_state
        self.go_backwards, self.stateful = go_backwards, stateful
        self.zero_output_for_mask = zero_output_for_mask
        self.dims, self.initial = dict(dims or {}), dict(initial or {})
        self.supports_masking = True
        items = [item for item in layout.theta if item.role != "state"]
        self.input_item, *others = [i for i in items if i.role in ("input", "static", "mask")]
        if others or len(self.input_item.shape) != 3:
            names = ", ".join(item.name for item in (self.input_item, *others))
            raise BuildError(
                f"{self.where}: this cell reads {names}, expected one input (I), which is what a "
                f"layer of Keras gets; call cellgen.{BACKEND}.function"
            )
        self.parameter_items = [item for item in items if item is not self.input_item]
        self.state_items = [item for item in layout.theta if item.role == "state"]
        self.state_variables: list[Any] = []
        self.fixed = {i.name for i in items} - {layout.theta[n].name for n in layout.learns}

    def sizes(self, features: int | None) -> dict[str, int]:
        """Every dimension of the cell. Raises ArgumentError."""
        layout = self.function.layout
        sizes = dict(self.dims)
        output = layout.outputs[0].shape
        wide = "H" if "H" in layout.dims else output[-1]
        for axis, size in ((wide, self.units), (self.input_item.shape[-1], features)):
            if size is not None and sizes.setdefault(axis, size) != size:
                raise ArgumentError(
                    f"{self.where}: {axis} is {sizes[axis]} and {size}; let units, dims and the "
                    f"{features} features of the input agree"
                )
        for axis in layout.dims:
            if axis not in ("T", "B") and axis not in sizes:
                raise ArgumentError(f"{self.where}: {axis} is missing; pass dims={{{axis!r}: ...}}")
        return sizes

    def build(self, sequences_shape: Shape, initial_state_shape: object = None) -> None:
        """Make weights, and the states of a stateful layer. Raises ArgumentError."""
        sizes = self.sizes(sequences_shape[-1])
        for item in self.parameter_items:
            variable = self.add_weight(
                shape=self.function.layout.shape(item.name, sizes),
                initializer=self._start_of(item),
                trainable=item.name not in self.fixed,
                name=item.name,
            )
            setattr(self, f"weight_{item.name}", variable)
        if self.stateful:
            if sequences_shape[0] is None:
                raise ArgumentError(
                    f"{self.where}: stateful, and the batch is None, expected a number; pass "
                    f"keras.Input(batch_shape=...)"
                )
            self.state_variables = [
                self.add_weight(
                    shape=shape,
                    initializer=keras.initializers.Constant(item.initial or 0.0),
                    trainable=False,
                    name=item.name,
                )
                for item, shape in zip(
                    self.state_items, self._state_shapes(sequences_shape), strict=True
                )
            ]

    def call(
        self,
        sequences: Tensors,
        initial_state: Tensors = None,
        mask: Tensors = None,
        training: bool = False,
    ) -> Tensors:
        """Run the cell over all steps."""
        if self.go_backwards:
            sequences = ops.flip(sequences, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
        if initial_state is None and self.stateful:
            initial_state = [ops.convert_to_tensor(state) for state in self.state_variables]
        states: dict[str, Any] = {}
        if initial_state is not None:
            several = initial_state if isinstance(initial_state, list | tuple) else [initial_state]
            if len(several) != len(self.state_items):
                raise ArgumentError(
                    f"{self.where}: initial_state has {len(several)} tensors, expected "
                    f"{len(self.state_items)}: {', '.join(i.name for i in self.state_items)}"
                )
            names = (item.name for item in self.state_items)
            states = dict(zip(names, several, strict=True))
        results = self._run(sequences, states, mask)
        output = results[0] if self.return_sequences else results[0][:, -1]
        finals = {item.of: n for n, item in enumerate(self.function.layout.outputs) if item.of}
        last = [results[finals[item.name]] for item in self.state_items]
        for variable, state in zip(self.state_variables, last, strict=False):
            variable.assign(ops.cast(state, variable.dtype))
        return [output, *last] if self.return_state else output

    def _run(self, sequences: Tensors, states: dict[str, Any], mask: Tensors) -> Any:
        weights = {
            item.name: ops.convert_to_tensor(getattr(self, f"weight_{item.name}"))
            for item in self.parameter_items
        }
        options: dict[str, Any] = {"batch_first": True}
        if mask is not None:
            zeros = self.zero_output_for_mask and self.return_sequences
            options |= {"mask": ops.cast(mask, "bool"), "zero_output_for_mask": zeros}
        name = self.input_item.name
        call: Callable[..., Any] = self.function
        if BACKEND == "torch":
            return call(**weights, **states, **{name: sequences}, **options)
        return call(weights, {name: sequences}, states, **options)

    def _start_of(self, item: Argument) -> Callable[..., Any]:
        """An initializer as ``cellgen.runtime.initial`` says. Raises ArgumentError."""
        if item.name in self.initial:
            numbers = np.asarray(self.initial[item.name])
            return lambda shape, dtype=None: ops.cast(np.broadcast_to(numbers, shape), dtype)
        inputs = input_axes((self.input_item,))
        rule = rule_of(self.function.layout.cell, item, inputs, frozenset(self.fixed))
        if rule is None:
            raise ArgumentError(must_be_given(self.where, item, "an array"))
        rng = np.random.default_rng(np.random.randint(2**31))  # keras.utils.set_random_seed
        return lambda shape, dtype=None: ops.cast(
            drawn(rule.of(tuple(shape)), tuple(shape), rng), dtype
        )

    def _state_shapes(self, sequences_shape: Shape) -> list[tuple[int | None, ...]]:
        sizes = self.sizes(sequences_shape[-1])
        layout = self.function.layout
        shapes = (layout.shape(item.name, {**sizes, "B": 1}) for item in self.state_items)
        return [(sequences_shape[0], *shape[1:]) for shape in shapes]

    def compute_output_shape(
        self, sequences_shape: Shape, initial_state_shape: object = None
    ) -> Any:
        """Shapes of what a call returns."""
        sizes = {**self.sizes(sequences_shape[-1]), "T": 1, "B": 1}
        layout = self.function.layout
        units = layout.shape(layout.outputs[0].name, sizes)[2:]
        front = sequences_shape[:2] if self.return_sequences else sequences_shape[:1]
        output = (*front, *units)
        return [output, *self._state_shapes(sequences_shape)] if self.return_state else output

    def compute_mask(self, _: object, mask: Tensors) -> Any:
        """The mask of the output, which has steps where all are returned."""
        mask = (mask[0] if mask else None) if isinstance(mask, list) else mask
        mask = mask if self.return_sequences else None
        return [mask, *(None for _ in self.state_items)] if self.return_state else mask

    def reset_state(self) -> None:
        """Put the states of a stateful layer back to where they start."""
        for item, variable in zip(self.state_items, self.state_variables, strict=False):
            variable.assign(ops.full(variable.shape, item.initial or 0.0, variable.dtype))

    reset_states = reset_state

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from again."""
        is_own = "@" in self.function.known.text  # which names a declaration by its digest
        own = name_of(self.function.known.cell) if is_own else self.function.layout.cell
        names = ("units", "return_sequences", "return_state", "go_backwards", "stateful")
        options = {name: getattr(self, name) for name in (*names, "zero_output_for_mask", "dims")}
        initial = {name: np.asarray(value).tolist() for name, value in self.initial.items()}
        return {**super().get_config(), "cell": own, **options, "initial": initial}

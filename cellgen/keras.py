"""Any cell as a layer of Keras 3, on its torch and JAX backends: ``cellgen.keras.RNN(GRU, 64)``.

Needs keras and one of the two: ``pip install 'cellgen-compiler[keras,torch]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cellgen.runtime.imports import needed

with needed(
    "keras",
    "cellgen.keras needs Keras, which is not installed; pip install "
    "'cellgen-compiler[keras,torch]', or with jax in place of torch",
):
    import keras

from keras import ops

from cellgen import accept
from cellgen.errors import ArgumentError, BuildError
from cellgen.frameworks.registry import CellOrName, KnownCell
from cellgen.language.cell import Cell
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.initial import drawn, must_be_given, read_axes, rule_of

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
"""Classes of one's own that layers were made of, by what configurations call them."""


def name_of(known: KnownCell) -> str:
    """What a configuration calls a cell: its name if it ships, else its class and its digest.

    The digest tells classes of one name apart, ``module:qualname@digest``.
    """
    _, own, digest = known.text.partition("@")
    if not own:
        return known.text
    return f"{known.cell.__module__}:{known.cell.__qualname__}@{digest}"


def cell_of(text: str) -> CellOrName:
    """The class of one's own that a configuration names; other names as they are.

    A class is looked up among those that layers were made of, then among Keras' custom objects, by
    its qualified name or the last part of it. Raises ArgumentError, DeclarationError.
    """
    name, _, digest = text.rpartition("@")
    if ":" not in name:
        return text
    if text in OWN:
        return OWN[text]
    qualified = name.partition(":")[2]
    last = qualified.rpartition(".")[2]
    custom = keras.saving.get_registered_object
    cell = custom(qualified) or custom(last)
    advice = f"pass custom_objects={{{last!r}: ...}} with the class that it was saved with"
    if not (isinstance(cell, type) and issubclass(cell, Cell)):
        raise ArgumentError(
            f"keras.RNN: the cell is {name!r}, which is "
            f"{'not known here' if cell is None else accept.quoted(cell)}; {advice}"
        )
    read = function(cell).known.kernel.interface.digest
    if read != digest:
        raise ArgumentError(
            f"keras.RNN: the cell {name!r} was saved with other equations, or by another version "
            f"of cellgen: its digest is {digest}, that of {cell.__qualname__} is {read}; {advice}, "
            f"or make the model anew and load its weights"
        )
    return cell


def numbers_of(label: str, name: str, value: Any) -> np.ndarray:
    """An array of the backend's, or of NumPy's, or a list, as an array. Raises ArgumentError."""
    value = ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value
    return accept.array(label, f"initial[{name!r}]", value)


def refuse_unknown(label: str, option: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name that is none of a cell's. Raises ArgumentError."""
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"{label}: {option} has {name!r}; {accept.nearest(str(name), known)}expected "
                f"{', '.join(known) or 'none'}"
            )


@keras.saving.register_keras_serializable(package="cellgen")
class RNN(keras.layers.Layer):  # type: ignore[misc]
    """A cell over time as ``keras.layers.GRU`` is one: inputs (batch, steps, features).

    ``cell`` is a class, or the name of one that ships or that a package brings
    (``package:name``); ``units`` is H where the cell has it, else the last axis of its output;
    ``dims`` its other dimensions by name; ``initial`` arrays that weights start as, above all those
    that do not learn. The other options
    and what a call returns are those of ``keras.layers.RNN``: the first output of the last step, or
    of all steps, then the states in the order of their declaration. Masks leave steps out, outputs
    repeat there, or are zeros with ``zero_output_for_mask``. ``states`` are the variables of a
    stateful layer that is built. A class of one's own is saved by its name and the digest of its
    equations; ``load_model(path, custom_objects={"MyCell": MyCell})`` says what that is, and a
    class with other equations is refused. Raises ArgumentError, BuildError, DeclarationError.
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
        known = self.function.known
        self.cell_name = cell if isinstance(cell, str) and "@" not in cell else name_of(known)
        if "@" in self.cell_name:
            OWN[self.cell_name] = known.cell
        layout = self.function.layout
        self.label = f"keras.RNN({layout.cell})"
        self.units = accept.whole(self.label, "units", units, 1)
        self.return_sequences, self.return_state = return_sequences, return_state
        self.go_backwards, self.stateful = go_backwards, stateful
        self.zero_output_for_mask = zero_output_for_mask
        self.supports_masking = True
        items = [item for item in layout.theta if item.role != "state"]
        self.input_item, *others = [i for i in items if i.role in ("input", "static", "mask")]
        if others or len(self.input_item.shape) != 3:
            names = ", ".join(item.name for item in (self.input_item, *others))
            raise BuildError(
                f"{self.label}: this cell reads {names}, expected one input (I), which is what a "
                f"layer of Keras gets; call cellgen.{BACKEND}.function"
            )
        self.parameter_items = [item for item in items if item is not self.input_item]
        self.state_items = [item for item in layout.theta if item.role == "state"]
        self.states: list[Any] | None = None
        self.fixed = {i.name for i in items} - {layout.theta[n].name for n in layout.learns}
        self.dims, self.initial = dict(dims or {}), dict(initial or {})
        refuse_unknown(self.label, "dims", self.dims, [d for d in layout.dims if d not in "TB"])
        refuse_unknown(
            self.label, "initial", self.initial, [item.name for item in self.parameter_items]
        )
        for axis, size in self.dims.items():
            self.dims[axis] = accept.whole(self.label, f"dims[{axis!r}]", size, 1)
        for name, value in self.initial.items():
            self.initial[name] = numbers_of(self.label, name, value)

    def sizes(self, features: int | None) -> dict[str, int]:
        """Every dimension of the cell. Raises ArgumentError."""
        layout = self.function.layout
        sizes = dict(self.dims)
        output = layout.outputs[0].shape
        wide = "H" if "H" in layout.dims else output[-1]
        for axis, size in ((wide, self.units), (self.input_item.shape[-1], features)):
            if size is not None and sizes.setdefault(axis, size) != size:
                raise ArgumentError(
                    f"{self.label}: {axis} is {sizes[axis]} and {size}; let units, dims and the "
                    f"{features} features of the input agree"
                )
        for axis in layout.dims:
            if axis not in ("T", "B") and axis not in sizes:
                raise ArgumentError(f"{self.label}: {axis} is missing; pass dims={{{axis!r}: ...}}")
        return sizes

    def build(self, sequences_shape: Shape, initial_state_shape: object = None) -> None:
        """Make weights, and the states of a stateful layer. Raises ArgumentError."""
        sizes = self.sizes(sequences_shape[-1])
        for item in self.parameter_items:
            shape = self.function.layout.shape(item.name, sizes)
            variable = self.add_weight(
                shape=shape,
                initializer=self._start_of(item, shape),
                trainable=item.name not in self.fixed,
                name=item.name,
            )
            setattr(self, f"weight_{item.name}", variable)
        if self.stateful:
            if sequences_shape[0] is None:
                raise ArgumentError(
                    f"{self.label}: stateful, and the batch is None, expected a number; pass "
                    f"keras.Input(batch_shape=...)"
                )
            self.states = [
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
        """Run the cell over all steps. Raises ArgumentError."""
        if not (self.return_sequences or sequences.shape[1] != 0):
            raise ArgumentError(
                f"{self.label}: the input has shape {tuple(sequences.shape)}, expected a step at "
                f"least, since the output is that of the last one; pass return_sequences=True"
            )
        if self.go_backwards:
            sequences = ops.flip(sequences, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
        if initial_state is None:
            initial_state = self.states
        states: dict[str, Any] = {}
        if initial_state is not None:
            several = initial_state if isinstance(initial_state, list | tuple) else [initial_state]
            if len(several) != len(self.state_items):
                raise ArgumentError(
                    f"{self.label}: initial_state has {len(several)} tensors, expected "
                    f"{len(self.state_items)}: {', '.join(i.name for i in self.state_items)}"
                )
            if self.stateful:  # they are assigned to below, and the backward pass reads these
                several = [ops.copy(ops.convert_to_tensor(state)) for state in several]
            names = (item.name for item in self.state_items)
            states = dict(zip(names, several, strict=True))
        results = self._run(sequences, states, mask)
        output = results[0] if self.return_sequences else results[0][:, -1]
        finals = {item.of: n for n, item in enumerate(self.function.layout.outputs) if item.of}
        last = [results[finals[item.name]] for item in self.state_items]
        for variable, state in zip(self.states or (), last, strict=False):
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

    def _start_of(self, item: Argument, shape: tuple[int, ...]) -> Callable[..., Any]:
        """An initializer as ``cellgen.runtime.initial`` says. Raises ArgumentError."""
        if item.name in self.initial:
            numbers = self.initial[item.name]
            try:
                whole = np.broadcast_to(numbers, shape)
            except ValueError:
                raise ArgumentError(
                    f"{self.label}: initial[{item.name!r}] has shape {numbers.shape}, expected "
                    f"{shape_text(item)} = {shape}, or what broadcasts to it"
                ) from None
            return lambda _, dtype=None: ops.cast(whole, dtype)
        axes = read_axes(self.function.layout.theta)
        rule = rule_of(self.function.layout.cell, item, axes, frozenset(self.fixed))
        if rule is None:
            raise ArgumentError(must_be_given(self.label, item, "an array"))
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
        for item, variable in zip(self.state_items, self.states or (), strict=False):
            variable.assign(ops.full(variable.shape, item.initial or 0.0, variable.dtype))

    reset_states = reset_state

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from again."""
        names = ("units", "return_sequences", "return_state", "go_backwards", "stateful")
        options = {name: getattr(self, name) for name in (*names, "zero_output_for_mask", "dims")}
        initial = {name: value.tolist() for name, value in self.initial.items()}
        return {**super().get_config(), "cell": self.cell_name, **options, "initial": initial}

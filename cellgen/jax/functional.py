"""A cell over time as a pure function of arrays: ``function(GRU)(params, x, state)``.

Input: arrays by the names of the declaration. Output: a named tuple of arrays.
"""

from __future__ import annotations

import difflib
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from cellgen import accept
from cellgen.frameworks import elsewhere
from cellgen.frameworks.layout import TensorLayout, UntoldError
from cellgen.frameworks.segments import SEGMENT_OPTIONS, refuse_narrow
from cellgen.frameworks.selection import (
    ON_TENSORS,
    OUTPUT_OPTIONS,
    is_last,
    joined,
    options_of,
)
from cellgen.jax import derivatives, handler  # noqa: F401 - derivatives states the rules
from cellgen.jax.calls import JaxCall
from cellgen.jax.checks import check_tables, check_values
from cellgen.jax.errors import ArrayError
from cellgen.jax.initial import initial_arrays
from cellgen.jax.platforms import dtype_of_numbers
from cellgen.jax.primitives import forward
from cellgen.jax.programs import alike
from cellgen.jax.registry import CellOrName, KnownInJax, known
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.call.segments import segments_of
from cellgen.runtime.host.threads import team_size
from cellgen.runtime.options import BF16, TABLES, Options

SWITCHES = ("reverse", "zero_output_for_mask", "flush_denormals")
OPTIONS = (
    *(*TABLES, *SWITCHES, "batch_first", "window", "threads"),
    *(*OUTPUT_OPTIONS, *SEGMENT_OPTIONS),
)
"""What a call takes beside arrays and scalars of the cell."""

ELSEWHERE = {
    **elsewhere.ELSEWHERE,
    "save": "JAX keeps what gradients read by itself",
    "saved": "JAX keeps what gradients read by itself",
    "out": "donate buffers: jax.jit(..., donate_argnums=...)",
    "gradients": "XLA forms those that are read",
    "per_row": "jax.vmap over rows of jax.grad",
}
"""Options of ``kernel.sequence_forward`` that a pure function has no use for, and what to do."""


class CellFunction:
    """A cell over time as a pure function of arrays, differentiable to any order.

    ``f(params, x, state=None)``: ``params`` are weights, biases and run-time scalars by their names
    in the declaration; scalars may be left out. ``x`` is the cell's input (T, B, ...), or a dict of
    inputs, statics (B, ...) and masks by name where there are several. ``state`` is an array
    (B, ...), a tuple in the order of the declaration, or a dict; states that are left out start
    where the cell says, at zero most often. The result is a named tuple: outputs over time, then
    final states.

    Options: ``lengths`` (B) integers, ``mask`` (T, B) bool, ``reset`` (T, B) bool, ``reverse``,
    ``batch_first``, ``zero_output_for_mask``, ``window``, ``flush_denormals``, ``threads``, and
    those that ``cellgen.frameworks.selection.OUTPUT_OPTIONS`` lists, which say what is shown and
    kept: as those of ``kernel.sequence_forward``. Tables are arrays that may be traced, the others
    are Python's. Outputs that are not asked for are None. ``parallel="segments"``, with
    ``segments``, ``tolerance`` and ``sweeps``, is the forward pass of that function too, called
    back from the program, on a device of CUDA a part of it; gradients are formed step by step.

    Raises ArrayError (a TypeError), ArgumentError (a ValueError), BuildError.
    """

    def __init__(self, known: KnownInJax) -> None:
        self.known = known
        layout = self.layout = known.layout
        by_role: dict[str, list[str]] = {}
        for item in (*layout.theta, *layout.scalars):
            by_role.setdefault(item.role, []).append(item.name)
        self.states = tuple(by_role.get("state", ()))
        self.inputs = (*by_role.get("input", ()), *by_role.get("static", ()))
        self.scalars = {
            item.name: item.default or 0.0
            for item in (*layout.theta, *layout.scalars)
            if item.is_scalar
        }
        taken = {*self.states, *self.inputs}
        self.params = tuple(
            item.name for item in (*layout.theta, *layout.scalars) if item.name not in taken
        )
        fields = [item.name for item in layout.outputs]
        self.result = _named(f"{layout.cell}_outputs", fields)
        self.__name__ = layout.cell
        handler.add(known)

    def __repr__(self) -> str:
        return f"<{self.layout.cell} over time, a function of {', '.join(self.params)}>"

    def __reduce__(self) -> tuple[object, ...]:
        text = self.known.text
        return function, (self.known.cell if "@" in text else text,)

    def __hash__(self) -> int:
        return hash(self.known.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellFunction) and other.known is self.known

    def shapes(self, **sizes: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights and biases by name: ``gru.shapes(I=28, H=64)``.

        Raises ArrayError for a dimension that is missing, ArgumentError for one that is no number.
        """
        label = f"{self.layout.cell}.shapes"
        items = [item for item in self.layout.theta if item.name in self.params]
        items = [item for item in items if not item.is_scalar]
        needed = {dim: None for i in items for axis in self.layout.terms[i.name] for _, dim in axis}
        numbers = {name: accept.whole(label, name, size) for name, size in sizes.items()}
        for name in filter(None, needed):
            if name not in numbers:
                raise ArrayError(f"{label}: the dimension {name} is missing; pass {name}=...")
        return {item.name: self.layout.shape(item.name, numbers) for item in items}

    def init(
        self,
        key: jax.Array,
        /,
        *,
        dtype: Any = jnp.float32,
        initial: Mapping[str, Any] | None = None,
        **sizes: int,
    ) -> dict[str, jax.Array]:
        """Return weights and biases to begin with, by name: ``gru.init(key, I=28, H=64)``.

        They start as ``cellgen.runtime.initial`` says. ``initial`` has other arrays by name, or
        functions of a key, a shape and a dtype, as those of ``jax.nn.initializers``, and must have
        those of fixed weights (``gradient=False``). May be traced. Raises ArrayError.
        """
        shapes = self.shapes(**sizes)
        return initial_arrays(self.layout, key, shapes, dtype, {} if initial is None else initial)

    def __call__(
        self,
        params: Mapping[str, Any],
        x: Any,
        state: Any = None,
        **options: Any,
    ) -> Any:
        """Compute all steps; options are those that the class lists. Raises as it says."""
        label = self.layout.label
        for name in options:
            if name not in OPTIONS:
                self._refuse_option(name)
        cut = segments_of(label, options, options, self.known.kernel.interface.jumps)
        is_batch_first = accept.flag(label, "batch_first", options.get("batch_first", False))
        arrays = self._given(params, x, state)
        for name, value in {**options, **arrays}.items():
            accept.refuse_masked(label, name, value)
        tables = {n: self._array(n, options[n]) for n in TABLES if options.get(n) is not None}
        if is_batch_first:
            arrays, tables = _time_first(self.layout, arrays), _steps_first(tables)
        values = check_values(self.layout, self._complete(arrays))
        if cut is not None:
            refuse_narrow(label, values[0].dtype.name)
        sizes = self.layout.sizes(values)
        check_tables(label, sizes, tables)
        if "lengths" in tables:
            tables["lengths"] = _counts(tables["lengths"])
        threads = options.get("threads")
        rare = tuple((name, options[name]) for name in OUTPUT_OPTIONS if name in options)
        wanted = self._request(rare, sizes, values[0].dtype, skips=bool(tables)) if rare else None
        switches: dict[str, Any] = {
            name: accept.flag(label, name, options.get(name, False)) for name in SWITCHES
        }
        chosen = replace(
            ON_TENSORS,
            window=accept.whole(label, "window", options.get("window", 0)),
            **switches,
        )
        call = JaxCall(
            self.known.text,
            tuple(tables),
            chosen if wanted is None else joined(chosen, wanted),
            0 if threads is None else team_size(threads, label),
            cut,
        )
        given_outputs = iter(forward(call, False, alike([*tables.values(), *values])))
        outputs = [
            None if call.hidden >> place & 1 else next(given_outputs)
            for place in range(len(self.layout.outputs))
        ]
        if is_batch_first and not is_last(call.options):
            outputs = [
                jnp.swapaxes(output, 0, 1) if item.over_time and output is not None else output
                for item, output in zip(self.layout.outputs, outputs, strict=True)
            ]
        return self.result(*outputs)

    def _request(
        self, pairs: Sequence[tuple[str, object]], sizes: Mapping[str, Any], dtype: Any, skips: bool
    ) -> Options:
        """Look at options that say what is shown and kept. Raises ArgumentError, ArrayError."""
        if any(name == "memory_limit" and limit is not None for name, limit in pairs):
            for name, size in sizes.items():
                if not isinstance(size, int):
                    raise ArrayError(
                        f"{self.layout.label}: memory_limit is given and {name} is {size}, "
                        f"expected a number; pass checkpoint= in its place"
                    )
        options = options_of(self.layout, pairs, tuple(sizes.items()), dtype.itemsize, skips)
        if options.products == BF16 and dtype.name == "float64":
            raise ArrayError(
                f"{self.layout.label}: products is 'bf16' and the arrays are {dtype.name}, "
                f"expected float32 arrays; pass those, or leave products out"
            )
        return options

    def _given(self, params: object, x: object, state: object) -> dict[str, Any]:
        """All arrays of a call by name. Raises ArrayError."""
        if not isinstance(params, Mapping):
            raise ArrayError(
                f"{self.layout.label}: params is a {type(params).__name__}, expected a dict with "
                f"{', '.join(self.params)}"
            )
        inputs = x if isinstance(x, Mapping) else {self.inputs[0]: x}
        states = self._states(state)
        for what, group, names in (
            ("params", params, self.params),
            ("x", inputs, self.inputs),
            ("state", states, self.states),
        ):
            for name in group:
                if name not in names:
                    self._refuse_name(what, str(name), names)
        return {**params, **inputs, **states}

    def _states(self, state: Any) -> Mapping[str, Any]:
        if state is None:
            return {}
        if isinstance(state, Mapping):
            return state
        several = tuple(state) if isinstance(state, tuple | list) else (state,)
        if len(several) != len(self.states):
            raise ArrayError(
                f"{self.layout.label}: state has {len(several)} arrays, expected "
                f"{len(self.states)}: {', '.join(self.states)}"
            )
        return dict(zip(self.states, several, strict=True))

    def _complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """Make scalars and states that a call leaves out. Raises ArrayError."""
        left_out = [item for item in self.layout.theta if values.get(item.name) is None]
        for item in left_out:
            if not item.is_scalar and item.name not in self.states:
                place = "params" if item.name in self.params else "x"
                raise ArrayError(
                    f"{self.layout.label}: {item.name} is missing, expected an array "
                    f"{shape_text(item)}; put it into {place}"
                )
        values = {**self.scalars, **{name: v for name, v in values.items() if v is not None}}
        arrays = {name: self._array(name, value) for name, value in values.items()}
        dtype = arrays[self.layout.theta[0].name].dtype
        fixed = {item.name for item in self.layout.scalars}
        for name in self.scalars:
            if arrays[name].ndim == 0:
                own = dtype_of_numbers(dtype) if name in fixed else dtype
                arrays[name] = jax.lax.convert_element_type(arrays[name], own)
        sizes = self._known_sizes(arrays) if left_out else {}
        for item in left_out:
            if item.name in self.states:
                shape = self.layout.shape(item.name, sizes)
                arrays[item.name] = jnp.full(shape, item.initial, dtype)
        return arrays

    def _array(self, name: str, value: Any) -> jax.Array:
        """JAX's array of what a call gives. Raises ArrayError for one without memory."""
        return jnp.asarray(accept.in_memory(self.layout.label, name, value, error=ArrayError))

    def _known_sizes(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """The dimensions that a call tells, states left out. Raises ArrayError."""
        try:
            return self.layout.known_sizes(arrays)
        except UntoldError as error:
            raise ArrayError(str(error)) from None

    def _refuse_name(self, what: str, name: str, names: Sequence[str]) -> NoReturn:
        close = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(names)}"
        raise ArrayError(f"{self.layout.label}: {what} has an unknown name {name!r}; {advice}")

    def _refuse_option(self, name: str) -> NoReturn:
        if name in ELSEWHERE:
            raise ArrayError(
                f"{self.layout.label}: {name} is no option of a function of JAX; {ELSEWHERE[name]}"
            )
        close = difflib.get_close_matches(name, OPTIONS, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(OPTIONS)}"
        raise ArrayError(f"{self.layout.label}: unknown option {name!r}; {advice}")


def _named(name: str, fields: Sequence[str]) -> Callable[..., Any]:
    return namedtuple(name, fields)


def _time_first(layout: TensorLayout, arrays: Mapping[str, Any]) -> dict[str, Any]:
    timed = {item.name: len(item.shape) for item in layout.theta if item.over_time}
    return {
        name: jnp.swapaxes(value, 0, 1) if timed.get(name) == jnp.ndim(value) else value
        for name, value in arrays.items()
    }


def _steps_first(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {n: jnp.swapaxes(t, 0, 1) if t.ndim == 2 else t for n, t in tables.items()}


def _counts(lengths: jax.Array) -> jax.Array:
    """Lengths in 32 or 64 bits with a sign; one beyond those is the largest, which no row has."""
    dtype = lengths.dtype
    if dtype in (jnp.int32, jnp.int64):
        return lengths
    most = jnp.iinfo(jnp.int32).max
    if jnp.iinfo(dtype).max > most:
        lengths = jnp.minimum(lengths, jnp.array(most, dtype))
    return lengths.astype(jnp.int32)


def function(cell: CellOrName) -> CellFunction:
    """Return a cell over time as a function of arrays: ``function(MyCell)``, ``function("gru")``.

    The kernel is compiled now if the cache does not have it; tangents, for forward mode and
    derivatives of derivatives, when they are first needed.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: no cell that ships has the name, or the kernel cannot be compiled.
    """
    return CellFunction(known(cell))

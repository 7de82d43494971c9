"""A cell over time as a function of tensors: ``function(GRU)(x=x, w_z=..., ...)``.

Input: tensors by the names of the declaration. Output: a named tuple of tensors.
"""

from __future__ import annotations

import difflib
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.frameworks import elsewhere
from cellgen.frameworks.layout import UntoldError
from cellgen.frameworks.segments import SEGMENT_OPTIONS
from cellgen.frameworks.selection import ON_TENSORS, OUTPUT_OPTIONS, options_of
from cellgen.runtime.call.arguments import as_scalar
from cellgen.runtime.call.owner import KEPT_PLANS
from cellgen.runtime.call.segments import KEYWORDS, Segmentation, segments_of
from cellgen.runtime.options import SEGMENTS, TABLES, Options
from cellgen.torch import (
    forms,
    operators,  # noqa: F401 - defines the operators
)
from cellgen.torch.calls import Tables
from cellgen.torch.derivatives import Call
from cellgen.torch.devices import PLACES
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.modes import is_transforming
from cellgen.torch.planned import Planned, planned
from cellgen.torch.registry import CellOrName, Known, known
from cellgen.torch.running import run, run_compiled
from cellgen.torch.tools import is_exported_to_onnx

Rare: TypeAlias = tuple[tuple[str, object], ...]
"""Options that say what is shown and kept, by name."""
NOTHING_RARE: tuple[Rare, None] = (), None


def _lacks(values: Sequence[object]) -> bool:
    """Whether a value is None."""
    for value in values:  # noqa: SIM110 - a third of the time of any(...)
        if value is None:
            return True
    return False


def _exported(known: Known, *call: Any) -> Sequence[Tensor]:
    """A call as torch.onnx.export translates it, as ``run_exported``. Raises KindError."""
    from cellgen.torch.exported import run_exported

    return run_exported(known, *call)


class CellFunction:
    """A cell over time as a pure function of tensors, differentiable to any order.

    ``f(x=x, h_prev=h, w=w, ...)`` takes the tensors of the declaration by name, inputs (T, B, ...),
    states and statics (B, ...), weights as declared, and run-time scalars; it returns a named tuple
    of the outputs over time, then the final states. States that are left out start where the cell
    says, at zero most often.

    Options: ``lengths`` (B) int64, ``mask`` (T, B) bool, ``reset`` (T, B) bool, ``reverse``,
    ``batch_first``, ``zero_output_for_mask``, ``window``, ``flush_denormals``, and those that
    ``cellgen.frameworks.selection.OUTPUT_OPTIONS`` lists, which say what is shown and kept: as
    those of ``kernel.sequence_forward`` and, where they are of gradients, ``sequence_backward``.
    Outputs that are not asked for are None. ``parallel="segments"``, with ``segments``,
    ``tolerance`` and ``sweeps``, is the forward pass of that function too; gradients are formed
    step by step.

    Raises TensorError (a RuntimeError), KindError (a TypeError).
    """

    def __init__(self, known: Known, form: str, chunk: int) -> None:
        self.known, self.asked_form, self.chunk = known, form, chunk
        self.form = forms.taken(known, form)
        layout = self.layout = known.layout
        self.names = tuple(item.name for item in layout.theta)
        self.scalars = {item.name: float(item.default or 0.0) for item in layout.scalars}
        self.states = tuple(item.name for item in layout.theta if item.role == "state")
        fields = [item.name for item in layout.outputs]
        timed = [item.name for item in layout.outputs if item.over_time]
        self.over_time: Callable[..., Any] = namedtuple(f"{layout.cell}_over_time", timed)  # type: ignore[misc]
        self.over_time_names = tuple(timed)
        finals = {item.of: item.name for item in layout.outputs if item.of}
        self.finals = tuple(finals[name] for name in self.states)
        self.masks = known.masks
        self.results = forms.results_of(f"{layout.cell}_outputs", fields)
        self.result: Callable[..., Any] = self.results[forms.STEP]
        self.__name__ = layout.cell
        self._expected = frozenset(self.names)
        self._items = {item.name: item for item in layout.theta}
        self._telling = tuple(dict.fromkeys(item.name for item in layout.telling))
        self.needs_states = not {*self._telling}.isdisjoint(
            self.states
        )  # they alone tell a dimension
        self._calls: dict[object, Planned] = {}
        self._options_of: Callable[..., Options] = torch.compiler.assume_constant_result(
            lambda *stated: options_of(layout, *stated)
        )

    def __repr__(self) -> str:
        return f"<{self.layout.cell} over time, a function of {', '.join(self.names)}>"

    def __reduce__(self) -> tuple[object, ...]:
        text = self.known.text
        return _again, (self.known.cell if "@" in text else text, self.asked_form, self.chunk)

    def __call__(
        self,
        *,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        reverse: bool = False,
        batch_first: bool = False,
        zero_output_for_mask: bool = False,
        window: int = 0,
        flush_denormals: bool = False,
        form: str | None = None,
        **arguments: Any,
    ) -> Any:
        """Run the cell over time."""
        scalars: tuple[float, ...] = ()
        if self.scalars:
            scalars = tuple(self._number(n, arguments.pop(n, v)) for n, v in self.scalars.items())
        if batch_first is not False and accept.flag(self.layout.label, "batch_first", batch_first):
            arguments = self._time_first(arguments)
            mask, reset = _steps_first(mask), _steps_first(reset)
        rare, cut = (
            NOTHING_RARE
            if self._expected.issuperset(arguments)
            else _rare(self, arguments, {"mask": mask, "form": form})
        )
        theta = self._ordered(arguments)
        is_traced = torch.compiler.is_compiling()
        if is_traced or torch._C._is_any_autocast_enabled():
            theta = self._cast(theta)
        tables = (lengths, mask, reset)
        if (is_traced or torch._C._is_tracing()) and is_exported_to_onnx():
            others = {**dict(rare), "zero_output_for_mask": zero_output_for_mask}
            order = (reverse, batch_first)
            return self.result(*_exported(self.known, theta, scalars, tables, others, order))
        if form is not None or self.form != forms.STEP:
            how = forms.of_call(self.known, self.asked_form, form, self.chunk, theta)
            if how is not None:
                stated = (*rare, ("window", window), ("flush_denormals", flush_denormals))
                how = how.with_options(self.layout, stated, self._options_of)
                flags = (reverse, zero_output_for_mask, batch_first)
                results, chosen = forms.run(self.known, how, theta, scalars, tables, flags)
                return forms.chosen_results(self.results, how.form, chosen)(*results)
        options = (scalars, reverse, zero_output_for_mask, window, flush_denormals)
        wanted = self._asked(rare, theta, tables) if rare else None
        if is_traced:
            plan = planned(replace(_call(self.known, *options), cut=cut), wanted)
            call, outputs = run_compiled(plan, tables, theta)
        else:
            kind = (options, wanted, cut)
            plan = self._calls.get(kind) or self._planned(*kind)
            try:
                call, outputs = run(plan, tables, theta)
            except (RuntimeError, TypeError, AttributeError):
                self._explain(plan.plain, theta, tables)
                raise
        if batch_first or plan.wanted is not None:
            return self.result(*plan.show(call, outputs, tables, batch_first))
        return self.result(*outputs)

    def _asked(self, stated: Rare, theta: Sequence[Tensor], tables: Tables) -> Options:
        """Look at these options. Raises ArgumentError, TensorError."""
        names = [name for name, _ in stated]
        if "memory_limit" not in names:
            return self._options_of(stated)
        sizes = self.layout.check(theta)
        numbers = tuple((name, len(range(size))) for name, size in sizes.items())  # no symbols
        skips = any(table is not None for table in tables)
        return self._options_of(stated, numbers, theta[0].element_size(), skips)

    def _planned(
        self, options: tuple[Any, ...], wanted: Options | None, cut: Segmentation | None
    ) -> Planned:
        """Make the plan of a call, and keep it for others like it. Raises ArgumentError."""
        if len(self._calls) >= KEPT_PLANS:
            self._calls.clear()
        call = replace(self._checked(*options), cut=cut)
        plan = self._calls[options, wanted, cut] = planned(call, wanted)
        return plan

    def _number(self, name: str, value: object) -> float:
        """A run-time scalar that does not learn. Raises TensorError, ArgumentError."""
        if isinstance(value, float | int):
            return float(value)
        if isinstance(value, Tensor) and value.requires_grad:
            raise TensorError(
                f"{self.layout.label}: {name} requires a gradient, which the cell does not form "
                f"for it; pass {name}.detach()"
            )
        if isinstance(value, Tensor) and value.dim() == 0:
            return float(value)
        return as_scalar(self.layout.label, name, value, self.scalars[name])

    def _checked(
        self,
        scalars: tuple[float, ...],
        reverse: bool,
        zero_output_for_mask: bool,
        window: int,
        flush_denormals: bool,
    ) -> Call:
        """Look at the options of a call that are no tensors. Raises ArgumentError."""
        label = self.layout.label
        return _call(
            self.known,
            scalars,
            accept.flag(label, "reverse", reverse),
            accept.flag(label, "zero_output_for_mask", zero_output_for_mask),
            accept.whole(label, "window", window),
            accept.flag(label, "flush_denormals", flush_denormals),
        )

    def _explain(self, call: Call, theta: Sequence[Tensor], tables: Tables) -> None:
        """Say in full what is wrong of a call that failed, if it is a tensor.

        Raises TensorError, KindError.
        """
        sizes = self.layout.check(theta)
        self.layout.check_products(call.options.products, theta[0])
        self.layout.check_steps(sizes, theta[0], *tables)
        self.layout.check_memory(dict(zip((*self.names, *TABLES), (*theta, *tables), strict=True)))
        reads = PLACES[theta[0].device.type].reads
        if tables[0] is not None and reads and not is_transforming():  # then it has no values
            self.layout.check_lengths(tables[0], sizes["T"])

    def _time_first(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        timed = {item.name for item in self.layout.theta if item.over_time}
        return {
            name: value.transpose(0, 1) if name in timed and value.dim() > 1 else value
            for name, value in arrays.items()
        }

    def _ordered(self, arrays: dict[str, Any]) -> list[Tensor]:
        """Put the tensors of a call in order, states that are left out made. Raises KindError."""
        if not self._expected.issuperset(arrays):
            raise self._unknown(next(name for name in arrays if name not in self._expected))
        theta = list(map(arrays.get, self.names))
        if _lacks(theta):
            missing = [n for n, tensor in zip(self.names, theta, strict=True) if tensor is None]
            others = self._made(arrays, missing)
            theta = [others[n] if t is None else t for n, t in zip(self.names, theta, strict=True)]
        return theta

    def _made(self, arrays: dict[str, Any], missing: Sequence[str]) -> dict[str, Any]:
        """Make the states that a call leaves out, and scalars that learn."""
        others: dict[str, Any] = {}
        first = next((v for v in arrays.values() if isinstance(v, Tensor)), None)
        sizes: dict[str, int] | None = None
        for item in map(self._items.__getitem__, missing):
            if item.is_scalar and first is not None:
                others[item.name] = first.new_full((), item.default)
            elif item.name not in self.states or first is None:
                self.layout.check_forms(arrays)
                raise KindError(
                    f"{self.layout.label}: {item.name} is missing, expected a tensor "
                    f"({', '.join(item.shape)}); pass {item.name}=..."
                )
            else:
                sizes = self._known_sizes(arrays) if sizes is None else sizes
                shape = self.layout.shape(item.name, sizes)
                zeros = first.new_zeros(shape)
                others[item.name] = zeros.fill_(item.initial) if item.initial else zeros
        return others

    def _known_sizes(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """The dimensions that a call tells, states left out. Raises KindError."""
        try:
            telling = {name: arrays.get(name) for name in self._telling}
            return self.layout.known_sizes(
                {n: v for n, v in telling.items() if isinstance(v, Tensor)}
            )
        except UntoldError as error:
            self.layout.check_forms(arrays)
            raise KindError(str(error)) from None

    def _cast(self, theta: list[Any]) -> list[Tensor]:
        """Under autocast, bring tensors to the precision that it asks for."""
        kind = theta[0].device.type if isinstance(theta[0], Tensor) else "cpu"
        kind = "cuda" if kind == "cuda" else "cpu"
        if not torch.is_autocast_enabled(kind):
            return theta
        wanted = torch.get_autocast_dtype(kind)
        return [t.to(wanted) if getattr(t, "dtype", None) in CAST else t for t in theta]

    def _unknown(self, name: str) -> KindError:
        if name in ELSEWHERE:
            return KindError(
                f"{self.layout.label}: {name} is no option of a function of torch; "
                f"{ELSEWHERE[name]}"
            )
        names = (*self.names, *self.scalars, *OPTIONS)
        close = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(self.names)}"
        return KindError(f"{self.layout.label}: unknown argument {name!r}; {advice}")


def _call(
    known: Known,
    scalars: tuple[float, ...],
    reverse: bool,
    zero_output_for_mask: bool,
    window: int,
    flush_denormals: bool,
) -> Call:
    """All of a call but its tensors, and what is said of its outputs."""
    options = replace(
        ON_TENSORS,
        reverse=reverse,
        zero_output_for_mask=zero_output_for_mask,
        window=window,
        flush_denormals=flush_denormals,
    )
    return Call(known, scalars, options)


def _rare(
    function: CellFunction, arguments: dict[str, Any], others: dict[str, object]
) -> tuple[Rare, Segmentation | None]:
    """Take options that say what is shown and kept, and segments, out of a call's arguments."""
    rare = tuple((name, arguments.pop(name)) for name in OUTPUT_OPTIONS if name in arguments)
    if KEYWORDS.isdisjoint(arguments):
        return rare, None
    return rare, _cut(function.known, function.form, arguments, {**others, **dict(rare)})


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _cut(
    known: Known, form: str, arguments: dict[str, Any], stated: Mapping[str, object]
) -> Segmentation | None:
    """Take what a call says of segments out of its arguments; None: it is step by step.

    ``stated`` are others of its options, ``form`` that of a call which states none.

    Raises ArgumentError.
    """
    label = known.layout.label
    cut = segments_of(label, arguments, stated, known.kernel.interface.jumps)
    if cut is None:
        return None
    own = form if stated["form"] is None else stated["form"]
    if own != forms.STEP:
        raise ArgumentError(
            f"{label}: parallel is {SEGMENTS!r} and form is {own!r}, expected the form "
            f"{forms.STEP!r} with it; leave one of them out"
        )
    if torch._C._is_tracing() or torch.compiler.is_exporting():
        raise KindError(
            f"{label}: parallel is {SEGMENTS!r} in a graph that is traced or exported, "
            f"expected a call with values, which say how often segments run; leave parallel out"
        )
    return cut


CAST = (torch.float32, torch.bfloat16, torch.float16)
"""What autocast converts."""

OPTIONS = (
    *TABLES,
    "form",
    "reverse",
    "batch_first",
    "zero_output_for_mask",
    "window",
    "flush_denormals",
    *OUTPUT_OPTIONS,
    *SEGMENT_OPTIONS,
)
"""What a call takes beside tensors and scalars of the cell."""


ELSEWHERE = {
    **elsewhere.ELSEWHERE,
    "save": "torch keeps what gradients read by itself",
    "saved": "torch keeps what gradients read by itself",
    "gradients": "those of tensors that require none are not formed",
    "per_row": "torch.func.vmap over rows of torch.func.grad, or per_row= of sequence_backward",
    "out": "results are new tensors; copy_ them",
    "threads": "use torch.set_num_threads",
}
"""Options of functions over time that a function of tensors has no use for, and what to do."""


def _steps_first(table: Any) -> Any:
    """Swap the first two axes of a table (B, T); what has not two is refused later."""
    return table.transpose(0, 1) if isinstance(table, Tensor) and table.dim() > 1 else table


def function(
    cell: CellOrName, *, form: str = forms.STEP, chunk: int = forms.STEPS_OF_CHUNK
) -> CellFunction:
    """Return a cell over time as a function of tensors: ``function(MyCell)``, ``function("gru")``.

    The kernel is compiled now if the cache does not have it; tangents, for derivatives of
    derivatives, when they are first needed.

    ``form`` is ``"step"``, step by step; ``"chunk"`` or ``"scan"``, by layers of whole chunks of so
    many steps (``chunk``), for cells with a memory and for scans alone; ``"auto"``: that of the two
    which the cell has, of sequences of more than one step, else steps. Bits differ between forms.
    ``form`` of the function and of what a call returns say what is taken; a call may have another
    one.

    Raises:
        DeclarationError: what is given is no complete cell.
        BuildError: no cell that ships has the name, or the kernel cannot be compiled.
        ArgumentError: the cell has no such form, with the statement that forbids it.
    """
    known_cell = known(cell)
    label = known_cell.layout.label
    return CellFunction(
        known_cell, forms.check_form(label, form), accept.whole(label, "chunk", chunk, 1)
    )


def _again(cell: CellOrName, form: str, chunk: int) -> CellFunction:
    """The function that a pickle holds."""
    return function(cell, form=form, chunk=chunk)

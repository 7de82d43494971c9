"""The form in which a cell runs over time: step by step, or by layers of whole chunks.

Input: a cell and the word of a caller. Output: the word for what is taken; for a form that a cell
has not, one message with the statement that forbids it. Bits differ between forms, so that a form
is a caller's choice.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.frameworks.layout import outputs_of
from cellgen.frameworks.selection import OUTPUT_OPTIONS, is_in_bf16, is_last
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.options import BY_TYPE, Options
from cellgen.torch.calls import Tables
from cellgen.torch.chunks.rows import Gaps, rows_of_call, valid_steps
from cellgen.torch.devices import ANYWHERE
from cellgen.torch.launched import PRODUCTS, Launched, assembler_of, launch_of, may_launch
from cellgen.torch.modes import is_transforming
from cellgen.torch.planned import last_step
from cellgen.torch.registry import Known

if TYPE_CHECKING:
    from cellgen.torch.chunks.cell import ChunkedCell, HowRun
    from cellgen.torch.layout import Layout

STEP, CHUNK, SCAN, AUTO = "step", "chunk", "scan", "auto"
FORMS = (STEP, CHUNK, SCAN, AUTO)
STEPS_OF_CHUNK = 64
"""Steps of a chunk where a caller says nothing."""

FLAGS = ("reverse", "zero_output_for_mask", "batch_first")

REFUSED: Mapping[str, str] = {
    "window": "gradients go through all steps of a chunk; leave window out, or pass form='step'",
    "flush_denormals": "it is an option of kernels in C; leave it out and call "
    "torch.set_flush_denormal(True), or pass form='step'",
    "checkpoint": "torch keeps what gradients of chunks read; leave it out, wrap the call in "
    "torch.utils.checkpoint, or pass form='step'",
    "memory_limit": "torch keeps what gradients of chunks read; leave it out, wrap the call in "
    "torch.utils.checkpoint, or pass form='step'",
}
"""Options that steps alone have, and what to do."""


def check_form(label: str, form: object) -> str:
    """Return the word of a form. Raises ArgumentError."""
    if isinstance(form, str) and form in FORMS:
        return FORMS[FORMS.index(form)]
    raise ArgumentError(
        f"{label}: form is {accept.quoted(form)}, expected one of {', '.join(map(repr, FORMS))}"
    )


def results_of(name: str, fields: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Named tuples of a call's results, by the form that gave them, which ``form`` of each says.

    ``assembler`` says what kernels of Triton are assembled by where the results lie,
    ``configuration`` which blocks, warps and stages were chosen for them.
    """
    return {form: _results_of(name, fields, form) for form in (STEP, CHUNK, SCAN)}


def chosen_results(
    classes: dict[str, Callable[..., Any]], form: str, configuration: str
) -> Callable[..., Any]:
    """The one of them that says what was chosen; made where it is not among them."""
    if not configuration:
        return classes[form]
    key = f"{form} {configuration}"
    if key not in classes:
        like: Any = classes[form]
        classes[key] = _results_of(like.__name__, like._fields, form, configuration)
    return classes[key]


def _results_of(
    name: str, fields: Sequence[str], form: str, configuration: str = ""
) -> Callable[..., Any]:
    make: Callable[..., Any] = namedtuple
    kind = make(name, fields)
    kind.form = form
    if "assembler" not in fields:
        kind.assembler = property(_assembled_by)
    if "configuration" not in fields:
        kind.configuration = configuration
    return kind  # type: ignore[no-any-return]


def _assembled_by(results: Any) -> str:
    """The version and path of ``ptxas``; "" of steps, and where nothing of NVIDIA's serves."""
    device = next(tensor.device for tensor in results if tensor is not None)
    assembler = None if results.form == STEP else assembler_of(device)
    return "" if assembler is None else str(assembler)


@functools.cache
def own_form(known: Known) -> tuple[str, str]:
    """The form of a cell beside steps, ``chunk`` or ``scan``; of one without, why it has none."""
    from cellgen.language.cell import definition_of
    from cellgen.program.chunks import form_over_time

    form = form_over_time(definition_of(known.cell))
    if form.refusal is None:
        return (CHUNK if form.memories else SCAN), ""
    states = ", ".join(map(str, form.refusal.states))
    return "", f"{states}: {form.refusal.reason}"


def taken(known: Known, form: str) -> str:
    """The form that a word asks for. Raises ArgumentError for one that the cell has not."""
    if form == STEP:
        return STEP
    own, reason = own_form(known)
    if form == AUTO:
        return own or STEP
    label = known.layout.label
    if not own:
        raise ArgumentError(
            f"{label}: form is {form!r}, but the cell runs step by step: {reason}; pass "
            f"form='step', or form='auto' for whatever a cell has"
        )
    if form != own:
        what = "has a memory, which goes in chunks" if own == CHUNK else "is scans alone"
        raise ArgumentError(f"{label}: form is {form!r}, but the cell {what}; pass form={own!r}")
    return own


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _taken_once(known: Known, form: str) -> str:
    """The same where torch compiles a call."""
    return taken(known, form)


@dataclass(frozen=True)
class FormOfCall:
    """The form of one call, the steps of a chunk, and what is asked of its outputs."""

    form: str
    chunk: int
    outputs: object = None
    wanted: Options | None = None

    def with_options(
        self,
        layout: Layout,
        stated: Sequence[tuple[str, object]],
        options_of: Callable[[Sequence[tuple[str, object]]], Options],
    ) -> FormOfCall:
        """Look at options of the call. Raises ArgumentError for those that only steps have."""
        for name, value in stated:
            if value and name in REFUSED:
                raise ArgumentError(
                    f"{layout.label}: {name} is {accept.quoted(value)} with form={self.form!r}; "
                    f"{REFUSED[name]}"
                )
        of_outputs = tuple((name, value) for name, value in stated if name in OUTPUT_OPTIONS)
        wanted = options_of(of_outputs) if of_outputs else None
        return replace(self, outputs=dict(stated).get("outputs"), wanted=wanted)


def of_call(
    known: Known, usual: str, form: str | None, chunk: int, theta: Sequence[Tensor]
) -> FormOfCall | None:
    """The form of a call; None where it runs step by step.

    Where the choice is left to us, a sequence of one step is a step; so is an empty one always.
    Raises ArgumentError.
    """
    wanted = usual if form is None else check_form(known.layout.label, form)
    own = _taken_once(known, wanted)
    if own == STEP or not isinstance(theta[0], Tensor):
        return None
    shape = theta[0].shape[:2]
    is_step = wanted == AUTO and len(shape) > 0 and shape[0] == 1
    if is_step or any(length == 0 for length in shape):
        return None
    return FormOfCall(own, chunk)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _derive(known: Known, gaps: bool) -> bool:
    """Derive what a call needs; where torch compiles it, torch does not follow that."""
    from cellgen.language.cell import definition_of
    from cellgen.torch.chunks.cell import ChunkedCell

    if known.chunked is None:
        known.chunked = ChunkedCell(definition_of(known.cell))
    known.chunked.derive(gaps)
    return True


def _how_run(
    chunk: int, narrow: bool, options: Options, stored: torch.dtype | None = None
) -> HowRun:
    from cellgen.torch.chunks.cell import HowRun

    return HowRun(chunk, narrow, options, stored)


def _check_outputs(cell: ChunkedCell, layout: Layout, how: FormOfCall) -> None:
    """Refuse outputs by name that chunks do not form. Raises ArgumentError."""
    names: Collection[object] = ()
    if isinstance(how.outputs, tuple | list | set | frozenset):
        names = how.outputs
    for name in names:
        if name in cell.unformed:
            raise ArgumentError(
                f"{layout.label}: outputs names {name!r} with form={how.form!r}, which forms a "
                f"memory at the end alone; read {name}_last, or pass form='step'"
            )


def run(
    known: Known,
    how: FormOfCall,
    theta: Sequence[Tensor],
    scalars: Sequence[float],
    tables: Tables,
    flags: tuple[object, object, object],
) -> tuple[list[Tensor | None], str]:
    """Outputs of a cell over time in a form, then final states, in the order of its layout.

    Beside them the configuration that was chosen for kernels of a device, in words; empty for none.
    ``flags``: reverse, zero_output_for_mask, batch_first. Raises TensorError, KindError,
    ArgumentError.
    """
    layout, wanted = known.layout, how.wanted
    reverse, zeros, batch_first = (
        accept.flag(layout.label, name, flag) for name, flag in zip(FLAGS, flags, strict=True)
    )
    sizes = layout.check(theta, ANYWHERE)
    layout.check_steps(sizes, theta[0], *tables)
    is_derived = _derive(known, any(table is not None for table in tables))
    cell = known.chunked
    assert is_derived
    assert cell is not None
    _check_outputs(cell, layout, how)
    tensors = dict(zip((item.name for item in layout.theta), theta, strict=True))
    _look(cell, layout, tensors, tables, sizes)
    products = BY_TYPE if wanted is None else wanted.products
    layout.check_products(products, theta[0])
    narrow = is_in_bf16(products, element_name(theta[0].dtype))
    scalars_by_name = dict(zip((item.name for item in layout.scalars), scalars, strict=True))
    every = 1 if wanted is None else wanted.every
    own = Options(reverse=reverse, zero_output_for_mask=zeros, every=every)
    run_in = _how_run(how.chunk, narrow, own)
    learning = frozenset(layout.theta[place].name for place in layout.learns)
    launched, like = None, theta[0].dtype
    if products in PRODUCTS.get(like, ()):
        launched = _launched(known, cell, theta, sizes, tables, own, learning)
    if launched is not None:
        over_time, last, configuration = launched
    else:
        over_time, last = cell.run(tensors, scalars_by_name, sizes, tables, run_in, learning)
        configuration = ""
    outputs = _shown(layout, over_time, last, tables, reverse, wanted)
    if batch_first and not (wanted is not None and is_last(wanted)):
        outputs = [
            output.transpose(0, 1) if item.over_time and output is not None else output
            for item, output in zip(layout.outputs, outputs, strict=True)
        ]
    return outputs, configuration


def _launched(
    known: Known,
    cell: ChunkedCell,
    theta: Sequence[Tensor],
    sizes: Mapping[str, int],
    tables: Tables,
    options: Options,
    learning: frozenset[str],
) -> tuple[dict[str, Tensor], dict[str, Tensor], str] | None:
    """Outputs over time and final states by kernels of a device; None where there are none.

    Kernels see steps in the order in which they run; what they store of those that are left out is
    0, and what is shown there is put there behind them.
    """
    layout, names = known.layout, [item.name for item in known.layout.theta]

    def exact(
        tensors: Sequence[Tensor], gaps: Gaps | None, stored: torch.dtype | None
    ) -> dict[str, Tensor]:
        named = dict(zip(names, tensors, strict=True))
        left_out = (None, None, None) if gaps is None else (None, gaps.valid, gaps.restart)
        how = _how_run(STEPS_OF_CHUNK, False, Options(zero_output_for_mask=True), stored)
        outputs, last = cell.run(named, {}, layout.sizes(tensors), left_out, how, learning)
        return outputs | last

    if not may_launch(known, theta):
        return None
    rows = rows_of_call(theta[0], sizes, tables, options)
    read = [t if n in learning else t.detach() for n, t in zip(names, theta, strict=True)]
    launch = launch_of(known, sizes, read, exact, learning, rows.gaps)
    if launch is None:
        return None
    read = [
        rows.ordered(tensor) if item.over_time else tensor
        for item, tensor in zip(layout.theta, read, strict=True)
    ]
    results = dict(zip(launch.results, Launched.apply(launch, *read), strict=True))
    timed = {item.name for item in layout.outputs if item.over_time}
    outputs = {n: rows.output(t, options.every) for n, t in results.items() if n in timed}
    last = {n: t for n, t in results.items() if n not in timed}
    return outputs, last, launch.chosen.text


def _look(
    cell: ChunkedCell,
    layout: Layout,
    tensors: Mapping[str, Tensor],
    tables: Tables,
    sizes: Mapping[str, int],
) -> None:
    """Look at numbers, where that waits for no device and no transform. Raises TensorError."""
    if torch.compiler.is_compiling() or is_transforming():
        return
    like = next(iter(tensors.values()))
    if like.device.type != "cpu":
        return
    lengths, mask, _ = tables
    if lengths is not None:
        layout.check_lengths(lengths, sizes["T"])
    if cell.positive:
        gaps = lengths is not None or mask is not None
        valid = valid_steps(like, sizes["T"], sizes["B"], lengths, mask)[1] if gaps else None
        cell.check_positive(tensors, valid)


def _shown(
    layout: Layout,
    outputs: Mapping[str, Tensor],
    last: Mapping[str, Tensor],
    tables: Tables,
    reverse: bool,
    wanted: Options | None,
) -> list[Tensor | None]:
    results: list[Tensor | None] = []
    names = None if wanted is None else outputs_of(wanted)
    for item in layout.outputs:
        if not item.over_time:
            results.append(last[item.name])
            continue
        is_wanted = names is None or item.name in names
        output = outputs.get(item.name) if is_wanted else None
        if output is not None and wanted is not None and is_last(wanted):
            output = last_step(output, tables, reverse)
        results.append(output)
    return results

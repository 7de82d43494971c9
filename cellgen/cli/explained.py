"""What ``explain`` is asked for: a target, a shape, a device; and what answers it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cellgen.errors import UsageError
from cellgen.runtime.backend import BACKENDS, Backend, backend, backend_names

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.runtime.abi import Function
    from cellgen.runtime.backend import AnyKernel
    from cellgen.views.explanation import Explanation

ONE_CELL = "CELL|FILE.py[:NAME]|PACKAGE:NAME"
"""How a cell is named."""


FORMS = ("step", "chunk")
"""Forms that a cell is shown and proved in."""


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="|".join(BACKENDS),
        help="What it is compiled for; or a target of a package.",
    ),
]

FormOption = Annotated[
    str, typer.Option("--form", metavar="|".join(FORMS), help="A cell by steps, or by chunks.")
]


def require_form(form: str) -> None:
    """Refuse a --form that there is not. Raises UsageError."""
    if form not in FORMS:
        raise UsageError(f"--form {form}: expected one of {', '.join(FORMS)}")


def backend_of(target: str) -> Backend:
    """The backend that --target names. Raises UsageError."""
    names = backend_names(target)
    if target not in names:
        raise UsageError(f"--target {target}: expected one of {', '.join(names)}")
    return backend(target)


def require_of_backend(
    runs: Backend, shape: str, threads: int | None, dtype: str, device: str
) -> None:
    """Refuse options of ``explain`` that decide nothing for a target, or that it does not know."""
    if threads is not None and not runs.threads:
        raise UsageError(f"--threads is of targets on the host; leave it out for {runs.name}")
    if device and not runs.devices:
        of = ", ".join(name for name in BACKENDS if backend(name).devices)
        raise UsageError(f"--device is of --target {of}; leave it out for {runs.name}")
    if device and device not in runs.devices:
        raise UsageError(f"--device {device!r}: expected one of {', '.join(runs.devices)}")
    if dtype not in runs.precisions:
        raise UsageError(f"--dtype {dtype!r}: expected one of {', '.join(runs.precisions)}")
    for name, is_named in (("threads", threads is not None), ("device", device)):
        if is_named and not shape:
            raise UsageError(f"--{name} decides nothing without --shape T,B,I,H; give both")


def require_of_shape(runs: Backend, shape: str, memory_limit: int | None) -> None:
    """Refuse a limit for a target without checkpoints, or without what it is a limit for."""
    if memory_limit is None:
        return
    if not runs.threads:
        raise UsageError(f"--memory-limit is of targets on the host; leave it out for {runs.name}")
    if not shape:
        raise UsageError("--memory-limit decides nothing without --shape T,B,I,H; give both")


def explained(
    cell: type[Cell], shape: str, threads: int | None, dtype: str, memory_limit: int | None = None
) -> Explanation:
    """The plan of a cell, with figures for a shape where one is given."""
    from cellgen import api
    from cellgen.runtime.host.threads import thread_count
    from cellgen.views.explain import explain, shape_of

    plain = explain(cell)  # a cell without functions over time is told so first
    if not shape:
        return plain
    kernel = api.compile(cell)
    over_time = _over_time(kernel)
    count = thread_count(threads, "cellgen explain")
    sized = replace(shape_of(over_time, shape, count, dtype), memory_limit=memory_limit)
    return explain(cell, sized, kernel)


def weighed(cell: type[Cell], runs: Backend, shape: str, dtype: str, device: str) -> list[str]:
    """What a backend chooses for a shape on devices, with the figures it is chosen by."""
    from cellgen import api
    from cellgen.views.explain import shape_of
    from cellgen.views.segments import on_device

    kernel = api.compile(cell, runs.name, emulated=runs.emulates)
    sized = shape_of(_over_time(kernel), shape, 1, dtype)
    sizes = ", ".join(f"{name} = {size}" for name, size in sized.sizes.items())
    lines = [f"at {sizes}; {dtype}:", *runs.weigh(kernel, sized.sizes, dtype, device)]
    if runs.name == "cuda":
        lines += on_device(cell.definition, kernel.interface.functions, sized.sizes)
    return lines


def _over_time(kernel: AnyKernel) -> Function:
    """The first of a kernel's functions over time. Raises UsageError: it has none."""
    function = next((f for f in kernel.interface.functions if f.team), None)
    if function is None:
        raise UsageError(f"{kernel.name} has the functions of one step only: no --shape")
    return function

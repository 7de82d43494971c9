"""What ``help()`` says of a function: its arguments with shapes, its options, its results."""

from __future__ import annotations

import inspect

import numpy as np

from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.options import ROWS, STEPS, SWITCH, Option, taken_by

_ANNOTATIONS = {SWITCH: bool, STEPS: int}


def headline(label: str, function: Function) -> str:
    """The call as it is written, with every argument."""
    arguments = ", ".join(
        f"{item.name}={item.default}" if item.is_scalar else f"{item.name} {shape_text(item)}"
        for item in function.arguments
    )
    results = ", ".join(f"{item.name} {shape_text(item)}" for item in function.results)
    return f"{label}({arguments}) -> {results}"


def document(function: Function) -> str:
    """Document a function: its arguments with shapes and meaning, its options, results, errors."""
    results = [item for item in function.results if not item.saved]
    lines = [function.text or f"Compute {', '.join(item.name for item in results)}.", ""]
    layout = "numpy arrays, units contiguous" if function.team else "C-contiguous numpy arrays"
    lines += [f"Arguments, by name; {layout}, all float32 or all float64:"]
    lines += [f"    {_argument_line(item)}" for item in function.arguments if not item.saved]
    lines += [
        "    out: dict or tuple of arrays to write results into; None where a new one will do"
    ]
    lines += [f"    {option.name}: {option.text}" for option in _options_of(function)]
    lines += ["", "Returns a named tuple:"]
    lines += [f"    {_result_line(item)}" for item in results]
    kept = [item for item in function.results if item.saved]
    if kept:
        names = ", ".join(f"{item.name} {shape_text(item)}" for item in kept)
        lines += [f"    saved: with save=True, what the backward pass reads: {names}; else None"]
    lines += ["", "Raises ArgumentError for a wrong name, dtype, shape or memory; BuildError where"]
    lines += ["the kernel cannot be compiled or loaded; MemoryError. The GIL is released."]
    return "\n".join(lines)


def notes_on(item: Argument) -> list[str]:
    """What there is to say of an argument beside its shape."""
    notes = [item.text] if item.text else []
    if item.is_scalar:
        return notes
    if item.optional:
        notes.append("counts as zero when left out")
    if item.initial:
        notes.append(f"starts from {item.initial}, in Layers and behind a reset")
    if not item.used:
        notes.append("may be left out; checked, then ignored")
    return notes


def _argument_line(item: Argument) -> str:
    kind = f"number, {item.default} when left out" if item.is_scalar else shape_text(item)
    return f"{item.name}: {kind}" + "".join(f"; {note}" for note in notes_on(item))


def _result_line(item: Argument) -> str:
    return f"{item.name}: {shape_text(item)}" + (f"; {item.text}" if item.text else "")


def _options_of(function: Function) -> tuple[Option, ...]:
    """The keywords beside arguments: of steps, which gradients are wanted."""
    if function.team or not any(item.optional for item in function.results):
        return taken_by(function.name)
    return (ROWS["gradients"],)


def signature_of(function: Function) -> inspect.Signature:
    """The arguments by name, then ``out``, then the options of functions over time."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for item in function.arguments:
        if item.saved:
            continue
        default: object = inspect.Parameter.empty
        if item.is_scalar:
            default = item.default
        elif item.optional or not item.used:
            default = None
        annotation = float if item.is_scalar else np.ndarray
        parameters.append(
            inspect.Parameter(item.name, kind, default=default, annotation=annotation)
        )
    parameters.append(inspect.Parameter("out", kind, default=None))
    for option in _options_of(function):
        default = option.default_in(function.name)
        note: object = _ANNOTATIONS.get(option.kind, object)
        parameters.append(inspect.Parameter(option.name, kind, default=default, annotation=note))
    return inspect.Signature(parameters)

"""Spell where a buffer lies in a launch: pointers, strides and addresses of views, in C."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr

from cellgen.errors import DerivationError
from cellgen.runtime.names import c_member
from cellgen.schedule.device.places import (
    BeforeStep,
    BeforeSteps,
    DevicePlace,
    Extent,
    IfGiven,
    Matrix,
    Moment,
    NeededWhen,
    RowsOfArray,
    Source,
)
from cellgen.schedule.schedule import View
from cellgen.targets.c_expressions import c_axis, c_factor, c_factors

_STEPS = {
    Moment.BEFORE: "(step - 1)",
    Moment.NOW: "step",
    Moment.AFTER: "(step + 1)",
    Moment.LAST: "(nT - 1)",
    Moment.END: "nT",
}


def rows_at(rows: RowsOfArray) -> str:
    """The pointer to the first of some rows."""
    text = f"args->{c_member(rows.array)}" if rows.of_caller else rows.array
    if rows.at is not None and rows.strides is not None:
        text += f" + {_STEPS[rows.at]} * {rows.strides[0]}"
    elif rows.at is not None:
        turn = " % 2" if rows.by_turns else ""
        text += f" + {_STEPS[rows.at]}{turn} * nB * {c_factor(rows.stride)}"
    return f"{text} + {c_axis(rows.column)}" if rows.column != 0 else text


def pointer_of(source: Source) -> str:
    """The pointer to a place's first element."""
    if isinstance(source, RowsOfArray):
        return rows_at(source)
    if isinstance(source, IfGiven):
        other = rows_at(source.other) if source.other is not None else "nullptr"
        return f"(args->{c_member(source.rows.array)} ? {rows_at(source.rows)} : {other})"
    if isinstance(source, BeforeStep):
        text = f"step ? {pointer_of(source.rows)} : args->{c_member(source.initial)}"
        masked = f"guarded ? {rows_at(source.copy)} : " if source.copy is not None else ""
        return f"({masked}{text})"
    stride = c_factor(source.stride)
    return f"(guarded ? {source.copy} + nB * {stride} : args->{c_member(source.left)})"


def initial_of(source: BeforeSteps) -> str:
    """The pointer to the states before the first step."""
    return f"(guarded ? {source.copy} : args->{c_member(source.initial)})"


def stride_of(source: Source) -> str:
    """How many elements two rows lie apart, as a factor."""
    if isinstance(source, RowsOfArray):
        return c_factor(source.stride) if source.strides is None else source.strides[1]
    if isinstance(source, IfGiven):
        return stride_of(source.rows)
    stride = c_factor(source.stride)
    if isinstance(source, BeforeStep) and _is_strided(source.rows):
        dense = "step == 0" if source.copy is None else "guarded || step == 0"
        return f"({dense} ? {stride} : {stride_of(source.rows)})"
    return stride


def _is_strided(rows: RowsOfArray | IfGiven) -> bool:
    own = rows if isinstance(rows, RowsOfArray) else rows.rows
    return own.strides is not None


def pointer(place: DevicePlace) -> str:
    """The pointer to a place's first element."""
    return pointer_of(place.source)


def stride(place: DevicePlace) -> str:
    """How many elements two rows of a place lie apart."""
    return stride_of(place.source)


def offset(view: View, place: DevicePlace) -> str:
    """How far a view's first element is from its buffer's: `` + nI * nH``, or nothing."""
    if len(view.start) > 2:
        raise DerivationError(
            f"{view}: an array of {len(view.start)} axes is not rendered for CUDA yet",
            code="cuda.loop",
        )
    text = ""
    if len(view.start) == 2 and view.start[0] != 0:
        text += f" + {c_factor(view.start[0])} * {stride(place)}"
    if view.start and view.start[-1] != 0:
        text += f" + {c_axis(view.start[-1])}"
    return text


def moved(view: View, place: DevicePlace) -> str:
    """The address of a view's first element; NULL stays NULL."""
    at, by = pointer(place), offset(view, place)
    return f"{at} ? {at}{by} : nullptr" if by and place.optional else f"{at}{by}"


def address(at: Matrix) -> str:
    """The address of a view's first element, in an array that is there."""
    return f"{pointer(at.place)}{offset(at.view, at.place)}"


def matrix(at: Matrix) -> tuple[str, str]:
    """The address and the row stride of a matrix."""
    return address(at), stride(at.place)


def count(lengths: Sequence[Expr]) -> str:
    """So many elements: a product of lengths."""
    return " * ".join(map(c_factor, lengths)) or "1"


def launched(lengths: Sequence[Expr]) -> str:
    """So many rows or units, as a number of 64 bits."""
    return " * ".join("(int64_t)1" if length == 1 else c_axis(length) for length in lengths)


def extent(of: Extent) -> str:
    """How many elements an array of the workspace has."""
    if of.chunks_of:
        each = f"(int64_t)({count(of.lengths)})" if of.entries else f"({launched(of.lengths)})"
        return f"CELLGEN_CHUNKS({launched(of.chunks_of)}) * {each}"
    text = count(of.lengths)
    if of.need is NeededWhen.GUARDED:
        return f"CELLGEN_IF_GUARDED({text})"
    if of.need is NeededWhen.TOGETHER:
        return f"CELLGEN_IF_STAYS({text})"
    if of.need is NeededWhen.MOVED:
        return f"CELLGEN_IF_MOVED({of.moved}, {text} * {c_factors(of.axes)})"
    return text

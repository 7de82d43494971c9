"""How loops go through arrays: flat, over rows and units, or as a nest of several inner axes.

Input: the shape of a value and the index space of a loop. Output: an ``Access`` where rows and
units side by side suffice, a ``Walk`` where inner axes have to be told apart; what a sum adds up.
"""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.language.value import Shape, Value, format_shape
from cellgen.schedule.schedule import Access, Store, View, Walk

ONE = Integer(1)


def access_of(shape: Shape, space: Shape) -> Access | None:
    """Tell how a value of one shape is read in a loop over rows and units.

    All inner axes lie side by side; None where it differs along some of them only.
    """
    units = space[1:] if len(space) > 1 else space
    if all(axis == 1 for axis in shape):
        return Access.SCALAR
    if len(space) > 1 and len(shape) == len(space) and shape[0] == space[0]:
        if shape == space:
            return Access.ELEMENT
        if all(axis == 1 for axis in shape[1:]):
            return Access.ROW
    if shape[-len(units) :] == units and all(axis == 1 for axis in shape[: -len(units)]):
        return Access.UNIT
    return None


def walk_of(value: Value, view: View, space: Shape) -> Walk:
    """Tell how a nest over a space goes through a value.

    Along rows, and by how many elements along each inner axis that is longer than 1.

    Raises:
        DerivationError: a value that the space does not hold, which is a fault of cellgen.
    """
    shape = value.shape
    own = (ONE,) * (len(space) - len(shape)) + tuple(shape)
    if len(own) != len(space) or any(n not in (1, m) for n, m in zip(own, space, strict=True)):
        raise DerivationError(
            f"{value} of shape {format_shape(shape)} cannot be read in a loop over "
            f"{format_shape(space)}",
            code="schedule.access",
        )
    steps = (ONE,) * (len(space) - len(shape)) + _strides(shape, view)
    strides = tuple(
        step if n != 1 else Integer(0)
        for n, m, step in zip(own[1:], space[1:], steps[1:], strict=True)
        if m != 1
    )
    return Walk(own[0] != 1, strides or (Integer(0),))


def _strides(shape: Shape, view: View) -> tuple[Expr, ...]:
    """How many elements lie between neighbours along each axis of a value in memory."""
    if len(shape) < 2:
        return (ONE,) * len(shape)
    if view.transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    inner, step = [ONE], ONE
    for axis in reversed(shape[2:]):
        step = step * axis
        inner.insert(0, step)
    strides = (view.row_stride, *inner)
    return (*strides[:-2], strides[-1], strides[-2]) if view.transposed else strides


def store_of(space: Shape, target: Shape) -> Store | None:
    """Tell what a sum in a loop over rows and units adds up, all inner axes side by side.

    None where it adds up over some of them only.
    """
    if all(axis == 1 for axis in target):
        rows_alone = len(space) == 2 and len(target) == 2 and space[0] == 1
        return Store.ADD_UNITS if rows_alone else Store.ADD_ALL
    if len(space) > 1:
        units, ones = space[1:], (ONE,) * (len(space) - 1)
        if target in (units, (ONE, *units)):
            return Store.ADD_ROWS
        if target == (space[0], *ones):
            return Store.ADD_UNITS
    return None


def store_in_nest(space: Shape, target: Shape) -> Store:
    """Tell what a sum in a nest adds up: within each row, over rows, or over all."""
    if len(target) == len(space) and target[0] == space[0]:
        return Store.ADD_UNITS
    return Store.ADD_ALL if all(axis == 1 for axis in target) else Store.ADD_ROWS


def inner_axes(space: Shape) -> Shape:
    """The axes of a nest within a row: those longer than 1, and one at least."""
    return tuple(axis for axis in space[1:] if axis != 1) or space[-1:]

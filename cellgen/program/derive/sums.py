"""Sums over broadcast axes: what summands share, and sums that are 0 whatever the values are."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from sympy import Expr, Integer

from cellgen.language.value import Shape, Value
from cellgen.program.ssa import Statement


class Summing:
    """Sums over the axes along which values of ``shape`` are summed ``into`` another shape."""

    def __init__(
        self,
        shape: Shape,
        into: Shape,
        known: Mapping[tuple[Value, Shape], Value],
        definitions: Mapping[Value, Statement],
    ) -> None:
        self.shape, self.rank = shape, len(shape)
        self.known, self.definitions = known, definitions
        self.into = (Integer(1),) * (len(shape) - len(into)) + tuple(into)
        self.axes = [axis for axis, kept in enumerate(self.into) if kept != shape[axis]]
        self.count = sympy.Mul(*(shape[axis] for axis in self.axes))

    def split(self, term: Expr) -> tuple[Expr, list[Expr]]:
        """Split a product into what all summands share, and the factors in which they differ."""
        factors = sympy.Mul.make_args(term)
        units = [factor for factor in factors if not self._is_shared(factor)]
        return sympy.Mul(*(f for f in factors if f not in units)), units

    def _is_shared(self, factor: Expr) -> bool:
        values = [(value.shape, self.rank - len(value.shape)) for value in factor.atoms(Value)]
        return all(
            axis < missing or own[axis - missing] == 1
            for own, missing in values
            for axis in self.axes
        )

    def _is_summed(self, factor: Expr) -> bool:
        """Whether it is a value along all axes of the sum, and its own sum is known."""
        if (factor, self.into) not in self.known:
            return False
        own = (Integer(1),) * (self.rank - len(factor.shape)) + tuple(factor.shape)
        return all(own[axis] == self.shape[axis] for axis in self.axes)

    def cancels(self, term: Expr) -> bool:
        """Whether a sum is 0 whatever the values are.

        As that of ``v - sum(v) / n`` is, times what all summands share. Rounding alone would be
        left of it.
        """
        _, units = self.split(term)
        if len(units) != 1:
            return False
        inner = units[0]
        if isinstance(inner, Value) and inner in self.definitions:
            inner = self.definitions[inner].expression
        if not inner.is_Add:
            return False
        total: Expr = Integer(0)
        for part_of in inner.args:
            shared, values = self.split(part_of)
            if not values:
                total += self.count * shared
            elif len(values) == 1 and self._is_summed(values[0]):
                total += shared * self.known[values[0], self.into]
            else:
                return False
        return bool(sympy.expand(total) == 0)

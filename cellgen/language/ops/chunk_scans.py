"""Operators that go through the steps of a chunk in order: solves of unit triangles, scans.

A solve is of one value, or of blocks: n values beside each other (``stacked``), (B, n, ..., C, K),
that a factor of n by n, (B, n, n, ..., C, C), couples. So is a coupled scan; that of one value is
``linear_scan``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sympy import Add, Expr, Integer

from cellgen.language.ops.chunks import ONE, Attributes, Size, listed_shapes, rows_of
from cellgen.language.ops.operator import Array, Operator, mismatch
from cellgen.language.ops.pointwise import ge, gt, zeros_like
from cellgen.language.value import Apply, Shape, Value


def _blocks(factor: Shape, value: Shape) -> int:
    """How many values a factor couples; 0 where it is of one."""
    return int(value[1]) if len(factor) == len(value) + 1 else 0


def _fits(factor: Shape, value: Shape) -> bool:
    """Whether the axes in front of steps and units agree."""
    if len(factor) == len(value):
        return factor[:-2] == value[:-2]
    is_block = len(factor) == len(value) + 1 and factor[1] == factor[2] == value[1]
    return is_block and factor[:1] + factor[3:-2] == value[:1] + value[2:-2]


def _each(count: int, entry: Callable[[int, int], Expr]) -> Expr:
    """Stack what a function gives for each pair of coupled values."""
    rows = [Apply("stacked", [entry(i, j) for j in range(count)]) for i in range(count)]
    return Apply("stacked", rows)


def _entry(value: Expr, at: int) -> Apply:
    return Apply("entry", (value,), (Integer(at),))


# --- solves --------------------------------------------------------------------------------------


def _solve_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    lower, y = shapes
    for shape in shapes:
        rows_of(shape, "a solve")
    if not _fits(lower, y) or not lower[-1] == lower[-2] == y[-2]:
        raise mismatch(f"a solve of {listed_shapes(shapes)}")
    return y


def _triangle(lower: Array) -> Array:
    """Blocks of rows as rows of blocks: one triangle, of strictly lower triangles in blocks."""
    n = lower.ndim
    order = (0, *range(3, n - 2), n - 2, 1, n - 1, 2)
    turned = np.transpose(lower, order)
    size = lower.shape[-1] * lower.shape[1]
    return turned.reshape(*turned.shape[:-4], size, size)


@dataclass(frozen=True)
class _Solve:
    """``(I + L)^-1 y``, of the strict lower triangle of L, or of that transposed."""

    name: str
    other: str
    is_transposed: bool

    def numpy(self, arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
        lower, y = np.tril(arrays[0], -1), arrays[1]
        if lower.ndim == y.ndim:
            return self._solved(lower, y)
        m = y.ndim
        order = (0, *range(2, m - 2), m - 2, 1, m - 1)
        turned = np.transpose(y, order)
        flat = turned.reshape(*turned.shape[:-3], -1, turned.shape[-1])
        solved = self._solved(_triangle(lower), flat).reshape(turned.shape)
        return np.transpose(solved, np.argsort(order))

    def _solved(self, lower: Array, y: Array) -> Array:
        unit = np.eye(lower.shape[-1]) + lower
        turned = np.swapaxes(unit, -1, -2) if self.is_transposed else unit
        return np.asarray(np.linalg.solve(turned, y))

    def adjoint(
        self, x: Value, d_x: Value, operands: Sequence[Value], attributes: Attributes
    ) -> tuple[Expr | None, ...]:
        """``d_y = (I + L)^-T d_x``, ``d_L = -d_y x^T`` below the diagonal."""
        d_y = Apply(self.other, (operands[0], d_x))
        first, second = (x, d_y) if self.is_transposed else (d_y, x)
        count = _blocks(operands[0].shape, x.shape)
        d_lower: Expr = Apply("chunk_nt", (first, second))
        if count:
            d_lower = _each(
                count, lambda i, j: Apply("chunk_nt", (_entry(first, i), _entry(second, j)))
            )
        return Apply("strictly_lower", (-d_lower,)), d_y

    def tangent(
        self,
        x: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        """``t_x = (I + L)^-1 (t_y - t_L x)``."""
        (lower, _), (t_lower, t_y) = operands, tangents
        terms = [] if t_y is None else [Apply(self.name, (lower, t_y))]
        if t_lower is not None:
            moved = self._times(Apply("strictly_lower", (t_lower,)), x, t_lower.shape)
            terms.append(Apply(self.name, (lower, -moved)))
        return tuple(terms)

    def _times(self, triangle: Expr, x: Value, shape: Shape) -> Expr:
        form = "chunk_tn" if self.is_transposed else "chunk_nn"
        count = _blocks(shape, x.shape)
        if not count:
            return Apply(form, (triangle, x))
        rows = []
        for i in range(count):
            pairs = [(j, i) if self.is_transposed else (i, j) for j in range(count)]
            blocks = [_entry(_entry(triangle, k), n) for k, n in pairs]
            rows.append(Add(*(Apply(form, (b, _entry(x, j))) for j, b in enumerate(blocks))))
        return Apply("stacked", rows)

    @property
    def row(self) -> Operator:
        power = r"\top" if self.is_transposed else "1"
        return Operator(
            self.name,
            _solve_shape,
            self.numpy,
            self.adjoint,
            tangent=self.tangent,
            mixes_units=True,
            is_solve=True,
            stem="solved",
            text=f"solve(I + {{0}}{'.T' if self.is_transposed else ''}, {{1}})",
            latex=rf"\left(I + {{0}}\right)^{{{{-{power}}}}} {{1}}",
        )


# --- scans ---------------------------------------------------------------------------------------


def _coupled_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    factor, value = shapes
    for shape in shapes:
        rows_of(shape, "a coupled scan")
    if not _blocks(factor, value) or not _fits(factor, value) or factor[-2:] != value[-2:]:
        raise mismatch(f"a coupled scan of {listed_shapes(shapes)}")
    return value


def _shifted(value: Expr) -> Apply:
    """Each step what stands at the one before, the first 0."""
    return Apply("shifted", (value,), (ONE,))


@dataclass(frozen=True)
class _Coupled:
    """``x_t = b_t + a_t x_(t - 1)``, or ``x_t = b_t + a_(t + 1)^T x_(t + 1)``; from 0."""

    name: str
    other: str
    is_transposed: bool

    def numpy(self, arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
        a, b = arrays
        formed = np.empty(b.shape, np.result_type(a, b))
        total = np.zeros((*b.shape[:-2], b.shape[-1]), formed.dtype)
        for t in range(b.shape[-2])[:: -1 if self.is_transposed else 1]:
            factor = a[..., t, :]
            if self.is_transposed:
                formed[..., t, :] = b[..., t, :] + total
                total = (factor * formed[..., t, :][:, :, None]).sum(axis=1)
            else:
                total = b[..., t, :] + (factor * total[:, None]).sum(axis=2)
                formed[..., t, :] = total
        return formed

    def adjoint(
        self, x: Value, d_x: Value, operands: Sequence[Value], attributes: Attributes
    ) -> tuple[Expr | None, ...]:
        """``d_b``: the scan the other way; ``d_a`` an outer product of it and the step before."""
        d_b = Apply(self.other, (operands[0], d_x))
        row, column = (x, _shifted(d_b)) if self.is_transposed else (d_b, _shifted(x))
        count = int(x.shape[1])
        return _each(count, lambda i, j: _entry(row, i) * _entry(column, j)), d_b

    def tangent(
        self,
        x: Value,
        tangents: Sequence[Value | None],
        operands: Sequence[Value],
        attributes: Attributes,
    ) -> tuple[Expr, ...]:
        """The scan of ``t_b + t_a x_(t - 1)``."""
        (a, _), (t_a, t_b) = operands, tangents
        terms = [] if t_b is None else [Apply(self.name, (a, t_b))]
        if t_a is not None:
            terms.append(Apply(self.name, (a, self._moved(t_a, x))))
        return tuple(terms)

    def _moved(self, t_a: Value, x: Value) -> Expr:
        count, seen = int(x.shape[1]), x if self.is_transposed else _shifted(x)
        rows = []
        for i in range(count):
            pairs = [(j, i) if self.is_transposed else (i, j) for j in range(count)]
            factors = [_entry(_entry(t_a, k), n) for k, n in pairs]
            rows.append(Add(*(f * _entry(seen, j) for j, f in enumerate(factors))))
        moved = Apply("stacked", rows)
        return Apply("shifted_back", (moved,), (ONE,)) if self.is_transposed else moved

    @property
    def row(self) -> Operator:
        return Operator(
            self.name,
            _coupled_shape,
            self.numpy,
            self.adjoint,
            tangent=self.tangent,
            mixes_units=True,
            stem=self.name,
        )


# --- running maxima: x_t = max(x_(t - 1) + rise_t, other_t), from other_0 -------------------------
# The attribute tells which of equal ones is taken: 1 for what moved, 0 for the other.


def _alike(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    rows_of(shapes[0], "a scan")
    if shapes[0] != shapes[1]:
        raise mismatch(f"a scan of {listed_shapes(shapes)}")
    return shapes[0]


def _np_max_scan(arrays: Sequence[Array], attributes: Attributes, size: Size) -> Array:
    rise, other = arrays
    formed = np.array(other, np.result_type(rise, other))
    for t in range(1, other.shape[-2]):
        moved, rest = formed[..., t - 1, :] + rise[..., t, :], other[..., t, :]
        first, second = np.real(moved), np.real(rest)
        taken = first >= second if attributes[0] == 1 else first > second
        formed[..., t, :] = np.where(taken, moved, rest)
    return formed


def _taken(x: Value, operands: Sequence[Value], attributes: Attributes) -> Expr:
    """Where what moved was taken; not at the first step."""
    rise, other = operands
    is_later = _shifted(1 + zeros_like(rise))
    moved = _shifted(x) + rise
    return is_later * (ge if attributes[0] == 1 else gt)(moved, other)


def _max_scan_adjoint(
    x: Value, d_x: Value, operands: Sequence[Value], attributes: Attributes
) -> tuple[Expr | None, ...]:
    taken = _taken(x, operands, attributes)
    back = Apply("linear_scan_transposed", (taken, d_x), (ONE,))
    return taken * back, (1 - taken) * back


def _max_scan_tangent(
    x: Value,
    tangents: Sequence[Value | None],
    operands: Sequence[Value],
    attributes: Attributes,
) -> tuple[Expr, ...]:
    taken, (t_rise, t_other) = _taken(x, operands, attributes), tangents
    terms = [] if t_rise is None else [Apply("linear_scan", (taken, taken * t_rise), (ONE,))]
    if t_other is not None:
        terms.append(Apply("linear_scan", (taken, (1 - taken) * t_other), (ONE,)))
    return tuple(terms)


SCANS = (
    _Solve("unit_lower_solve", "unit_lower_solve_transposed", False).row,
    _Solve("unit_lower_solve_transposed", "unit_lower_solve", True).row,
    _Coupled("coupled_scan", "coupled_scan_transposed", False).row,
    _Coupled("coupled_scan_transposed", "coupled_scan", True).row,
    Operator(
        "max_scan",
        _alike,
        _np_max_scan,
        _max_scan_adjoint,
        tangent=_max_scan_tangent,
        mixes_units=True,
        prints_attributes=True,
        stem="max_scan",
    ),
)

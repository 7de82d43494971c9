"""Operators of ONNX that look across elements, in the language: products, joins, parts, sums.

Input: a node of a body. Output: the text of what it gives. The first axis is that of rows, which
stays; parts and joins are of units, the last axis. Raises UsageError for what a cell cannot say.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sympy import Expr, Integer

from cellgen import accept
from cellgen.errors import UsageError
from cellgen.language.value import B, format_shape
from cellgen.onnx.calls import NodeCall, Row, axis_text
from cellgen.onnx.terms import BodyTerm, StepText

REDUCED = {
    "ReduceSum": "sum({0}{1})",
    "ReduceMean": "mean({0}{1})",
    "ReduceMax": "max({0}{1})",
    "ReduceMin": "-max(-{0}{1})",
    "ReduceSumSquare": "sum({0} ** 2{1})",
    "ReduceL2": "sqrt(sum({0} ** 2{1}))",
    "ReduceLogSumExp": "logsumexp({0}{1})",
}
"""Reductions: an operand, and which axes."""

MOST_ROWS = 2**31 - 1
"""The end of a slice that takes every row."""

SOFTMAX_ALONG_AN_AXIS = 13
"""The opset from which on Softmax and LogSoftmax go along one axis, not all from one on."""


def _matmul(call: NodeCall) -> list[BodyTerm]:
    a, w = (call.units(k) for k in (0, 1))
    _require_weight(a, w)
    return [call.new_term(f"{call.step.number(a)} @ {call.step.number(w)}")]


def _require_weight(a: BodyTerm, w: BodyTerm) -> None:
    """Refuse products that are none of a cell's: with what changes from call to call."""
    if B in a.shape and B in w.shape and len(w.shape) == 2 and len(a.shape) == 2:
        raise UsageError(
            f"the right side {w.name!r} of the product, {format_shape(w.shape)}, depends on the "
            f"model's inputs; expected a weight, which is the same in every call"
        )
    if B in a.shape and B not in w.shape and len(w.shape) > 2:
        raise UsageError(
            f"a product with {w.name!r} of shape {format_shape(w.shape)}: expected a matrix, or an "
            f"Einsum bkd,kde->bke for heads"
        )


def _gemm(call: NodeCall) -> list[BodyTerm]:
    a, w = (call.units(k) for k in (0, 1))
    if call.options.get("transA"):
        raise UsageError("transA mixes rows of the batch")
    if call.options.get("transB"):
        w = _transposed(call.step, w)
    _require_weight(a, w)
    alpha, beta = (call.number(name, 1.0) for name in ("alpha", "beta"))
    text = f"{alpha} * ({call.step.number(a)} @ {call.step.number(w)})"
    for bias in call.terms[2:]:
        text += f" + {beta} * {call.step.number(bias)}"
    return [call.new_term(text)]


def _transposed(step: StepText, w: BodyTerm) -> BodyTerm:
    """The transpose of a weight: of a constant another constant."""
    if w.array is not None and w.array.ndim == 2:
        # No value of a model has a name with such a character: another weight may be W_transposed.
        return BodyTerm(f"{w.name}\0transposed", array=np.ascontiguousarray(w.array.T))
    return step.new_term(w.name, f"transpose({step.number(w)})")


def _einsum(call: NodeCall) -> list[BodyTerm]:
    equation = call.options["equation"].replace(" ", "")
    letters: dict[str, str] = {}
    plain = "".join(
        c if c in ",->" else letters.setdefault(c, "abcdefgh"[len(letters) % 8]) for c in equation
    )
    if plain not in ("abc,bcd->abd", "ab,bc->ac"):
        raise UsageError(
            f"the equation {accept.quoted(equation)}; expected bkd,kde->bke or bk,kn->bn"
        )
    a, w = (call.units(k) for k in (0, 1))
    return [call.new_term(f"{call.step.number(a)} @ {call.step.number(w)}")]


def _transpose(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    rank = len(x.shape)
    order = [int(axis) for axis in call.options.get("perm", range(rank)[::-1])]
    swapped = list(range(rank))
    swapped[-2:] = swapped[:-3:-1]
    if order == list(range(rank)):
        return [call.new_term(call.step.number(x))]
    if order != swapped:
        raise UsageError(f"perm {order} of {format_shape(x.shape)}; expected {swapped}")
    return [call.new_term(f"transpose({call.step.number(x)})")]


def _concat(call: NodeCall) -> list[BodyTerm]:
    terms = [call.units(k) for k in range(len(call.operands))]
    rank = len(terms[0].shape)
    if call.options["axis"] % rank != rank - 1:
        shape = format_shape(terms[0].shape)
        raise UsageError(f"axis {call.options['axis']} of {shape}; expected the last")
    return [call.new_term(f"concat({', '.join(map(call.step.number, terms))})")]


def _split(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    rank, count = len(x.shape), len(call.node.output)
    axis = call.options.get("axis", 0)
    if axis % rank != rank - 1:
        raise UsageError(f"axis {axis} of {format_shape(x.shape)}; expected the last")
    sizes = call.constant(1, "split") or call.options.get("split")
    total = int(x.shape[-1])
    if sizes is None:
        each = -(-total // count)
        sizes = [min(each, total - place * each) for place in range(count)]
    equal = len(set(sizes)) == 1
    parts = str(count) if equal else f"({', '.join(map(str, sizes))})"
    name = call.step.atom(x)
    return [
        call.step.new_term(output, f"split({name}, {parts})[{place}]")
        for place, output in enumerate(call.node.output)
    ]


def _slice(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    starts, ends, axes, steps = (
        call.constant(place, "a bound") or call.options.get(name)
        for place, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    if starts is None or ends is None:
        raise UsageError("a slice without bounds")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    rank = len(x.shape)
    every = [slice(*bounds) for bounds in zip(starts, ends, steps, strict=True)]
    parts = [
        (int(axis) % rank, one)
        for axis, one in zip(axes, every, strict=True)
        if not _is_whole(x.shape[int(axis) % rank], one)
    ]
    if not parts:
        return [call.new_term(call.step.number(x))]
    (axis, one), *others = parts
    if others or axis != rank - 1 or rank != 2:
        raise UsageError(
            f"a slice of {format_shape(x.shape)}; expected one of units, the last axis"
        )
    if one.step != 1:
        raise UsageError(f"a slice with step {one.step}; expected 1")
    total = int(x.shape[-1])
    start, end, _ = one.indices(total)
    sizes = [n for n in (start, end - start, total - end) if n]
    text = f"({', '.join(map(str, sizes))})"
    return [call.new_term(f"split({call.step.number(x)}, {text})[{int(start > 0)}]")]


def _is_whole(length: Expr, part: slice) -> bool:
    """Whether a slice takes all of an axis; of rows where it takes as many as there can be."""
    if length == B:
        return bool(part.start == 0 and part.stop >= MOST_ROWS and part.step == 1)
    return bool(part.indices(int(length)) == (0, int(length), 1))


def _reshape(call: NodeCall) -> list[BodyTerm]:
    x = call.terms[0]
    wanted = [int(n) for n in call.constant(1, "the shape") or ()]
    before = x.shape
    inner = wanted[1:]
    known = [int(before[place + 1]) if n == 0 else n for place, n in enumerate(inner)]
    units = int(np.prod([int(n) for n in before[1:]]))
    if -1 in known:
        rest = int(np.prod([n for n in known if n != -1]))
        known[known.index(-1)] = units // rest
    if not wanted or (wanted[0] == -1 and wanted.count(-1) > 1) or int(np.prod(known)) != units:
        raise UsageError(
            f"{format_shape(before)} as {accept.quoted(wanted)}; expected rows of the same length"
        )
    return [call.along(x, (B, *map(Integer, known)))]


def _unsqueeze(call: NodeCall) -> list[BodyTerm]:
    x, axes = call.terms[0], call.axes or []
    shape = list(x.shape[:1] if x.flat else x.shape)
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        if axis == 0 and shape[0] == B:
            raise UsageError(f"an axis before that of rows of {format_shape(x.shape)}")
        shape.insert(axis, Integer(1))
    return [call.along(x, tuple(shape))]


def _squeeze(call: NodeCall) -> list[BodyTerm]:
    x, axes = call.units(), call.axes
    rank = len(x.shape)
    gone = [k for k in range(rank) if x.shape[k] == 1] if axes is None else [a % rank for a in axes]
    if 0 in gone and x.shape[0] == B:
        raise UsageError(f"it takes the axis of rows from {format_shape(x.shape)}")
    return [call.along(x, tuple(n for k, n in enumerate(x.shape) if k not in gone))]


def _flatten(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    if call.options.get("axis", 1) != 1:
        raise UsageError(f"axis {call.options['axis']}; expected 1")
    units = Integer(int(np.prod([int(n) for n in x.shape[1:]])))
    return [call.along(x, (B, units))]


def _expand(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    wanted = call.constant(1, "the shape") or []
    behind = [1 if n == B else int(n) for n in x.shape]
    if any(n not in (1, own) for n, own in zip(wanted[::-1], behind[::-1], strict=False)):
        raise UsageError(
            f"{format_shape(x.shape)} as {accept.quoted(wanted)}; what reads it broadcasts by "
            f"itself"
        )
    return [call.new_term(call.step.number(x))]


def _cumsum(call: NodeCall) -> list[BodyTerm]:
    x = call.units()
    label = axis_text([int(n) for n in call.constant(1, "axis") or (-1,)], len(x.shape))
    name = call.step.atom(x)
    text = f"cumsum({name}{label})"
    if call.options.get("reverse"):
        text = f"sum({name}{label}) - {text} + {name}"
    if call.options.get("exclusive"):
        text = f"{text} - {name}"
    return [call.new_term(text)]


def _layer_norm(call: NodeCall) -> list[BodyTerm]:
    _, scale, bias = (*call.operands, None)[:3]
    x = call.units()
    if call.options.get("axis", -1) % len(x.shape) != len(x.shape) - 1:
        raise UsageError(f"axis {call.options['axis']}; expected the last")
    name = call.step.atom(x)
    distances = call.step.new_term(f"{call.node.output[0]}_centred", f"{name} - mean({name})")
    centred = call.step.write(distances).text
    epsilon = call.number("epsilon", 1e-5)
    text = f"{centred} / sqrt(mean({centred} ** 2) + {epsilon})"
    if scale is not None:
        text = f"({text}) * {call.step.number(scale)}"
    if bias is not None:
        text = f"{text} + {call.step.number(bias)}"
    return [call.new_term(text)]


def _reduced(template: str) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        x, axes = call.units(), call.axes
        rank = len(x.shape)
        own = [axis % rank for axis in axes or ()]
        if not own and call.options.get("noop_with_empty_axes"):
            return [call.new_term(call.step.number(x))]
        if not own or (0 in own and x.shape[0] == B):
            raise UsageError("it goes over rows of the batch; expected axes of units alone")
        text = template.format(call.step.number(x), axis_text(own, rank))
        term = call.new_term(text)
        if call.options.get("keepdims", 1):
            return [term]
        after = tuple(n for k, n in enumerate(x.shape) if k not in own)
        return [call.along(term, after)]

    return row


def _softmax(template: str) -> Row:
    def row(call: NodeCall) -> list[BodyTerm]:
        x = call.units()
        rank, is_old = len(x.shape), call.opset < SOFTMAX_ALONG_AN_AXIS
        axis = call.options.get("axis", 1 if is_old else -1) % rank
        label = axis_text(range(axis, rank) if is_old else [axis], rank)
        return [call.new_term(template.format(call.step.atom(x), label))]

    return row


ACROSS: Mapping[str, Row] = {
    **{name: _reduced(template) for name, template in REDUCED.items()},
    "Concat": _concat,
    "CumSum": _cumsum,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("{0} - logsumexp({0}{1})"),
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax("softmax({0}{1})"),
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Rows by the operator's name."""

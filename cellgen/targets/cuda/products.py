"""Spell matrix products as calls of ``cg_gemm_*``, and the copies that put weights side by side.

Input: products with their places. Output: lines of host code.
"""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.language.ops import Form
from cellgen.schedule.device.places import BeforeSteps, Matrix, Over
from cellgen.schedule.device.stages import (
    Cleared,
    DeviceProduct,
    Panel,
    PanelCopy,
    WeightGradients,
    WholeProduct,
)
from cellgen.schedule.schedule import Product, View, describe
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.places import address, count, initial_of, matrix, offset, stride

Text = tuple[str, str]
"""The pointer to a matrix and its row stride."""


def gemm(routine: str, sizes: tuple[str, str, str], a: Text, b: Text, c: Text, onto: bool) -> str:
    """Spell one call: rows, columns and inner length; pointer and stride of each matrix."""
    operands = ", ".join([*sizes, *a, *b, *c, str(int(onto))])
    return f"cg_gemm_{routine}(&run, {operands});"


def gemm_heads(
    routine: str,
    slots: int,
    heads: Expr,
    sizes: tuple[str, str, str],
    a: Text,
    b: Text,
    c: Text,
    onto: bool,
) -> str:
    """Spell the products of so many heads, of so many slots side by side; sizes are of one head."""
    operands = ", ".join([str(slots), c_axis(heads), *sizes, *a, *b, *c, str(int(onto))])
    return f"cg_gemm_heads_{routine}(&run, {operands});"


def spell_product(stage: DeviceProduct, *, hoisted: bool = False) -> list[str]:
    """Spell a product of a step, or of all steps."""
    routine = "nt" if stage.panel.transposed else "nn"
    rows = "nT * nB" if stage.all_steps else "nB"
    matrices = matrix(stage.operand), panel(stage.panel), matrix(stage.sums)
    if stage.heads is None:
        sizes = (rows, c_axis(stage.units * stage.slots), c_axis(stage.inner))
        call = gemm(routine, sizes, *matrices, stage.onto)
    else:
        sizes = (rows, c_axis(stage.units), c_axis(stage.inner))
        call = gemm_heads(routine, stage.slots, stage.heads, sizes, *matrices, stage.onto)
    return [f"/* {stage}{', all steps at once' if hoisted else ''} */", call]


def panel(of: Panel) -> Text:
    """Pointer and row stride of weights."""
    if isinstance(of.place, str):
        return of.place, c_axis(of.stride)
    at, by = matrix(of.place)
    is_head = of.stride != of.place.view.row_stride
    return at, c_axis(of.stride) if is_head else by


def spell_ahead(stage: Cleared | DeviceProduct) -> list[str]:
    """Spell what is done for all steps before the loop over them."""
    if isinstance(stage, DeviceProduct):
        return spell_product(stage, hoisted=True)
    at = f"{stage.array} + {c_axis(stage.column)}" if stage.column != 0 else stage.array
    target = f"cg_rows({at}, {c_factor(stage.stride)})"
    return [f"cg_clear(&run, nT * nB, {c_axis(stage.width)}, {target});"]


def spell_packed(item: PanelCopy) -> str:
    """Copy weights to where they lie side by side."""
    rows, columns = c_axis(item.rows), c_axis(item.columns)
    stride_of_panel, at = c_axis(item.stride), item.panel
    if item.slot:
        at += f" + {item.slot} * {count((item.rows, item.columns))}"
    if item.above != 0:
        at += f" + {c_factor(item.above)} * {c_factor(item.stride)}"
    if item.beside != 0:
        at += f" + {c_axis(item.beside)}"
    routine = "cg_transpose" if item.transposed else "cg_copy"
    target, source = f"cg_rows({at}, {stride_of_panel})", ", ".join(matrix(item.source))
    return f"{routine}(&run, {rows}, {columns}, {target}, cg_in({source}));"


def whole_product(item: WholeProduct) -> list[str]:
    """Spell one product of a single step."""
    stage = item.product
    comment = f"/* {describe(stage.statement)} */"
    if stage.heads is not None:
        return [comment, _product_of_heads(item, stage.heads)]
    rows, columns = stage.target.shape
    inner = stage.a.shape[0] if stage.is_outer else stage.a.shape[1]
    sizes = (c_axis(rows), c_axis(columns), c_axis(inner))
    a, b, c = _matrices(item)
    return [comment, gemm(stage.form.value, sizes, a, b, c, stage.accumulate)]


def _matrices(item: WholeProduct) -> tuple[Text, Text, Text]:
    stage, places = item.product, item.places
    a, b, c = (
        matrix(Matrix(view, places[view.buffer])) for view in (stage.a, stage.b, stage.target)
    )
    return a, b, c


def _product_of_heads(item: WholeProduct, heads: Expr) -> str:
    """Spell the products of all heads in a single step."""
    stage = item.product
    first, second = stage.weights
    batch = stage.a.shape[0]
    sizes = {
        Form.NN: (batch, second, first),
        Form.NT: (batch, first, second),
        Form.TN: (first, second, batch),
    }[stage.form]
    a, b, c = _matrices(item)
    tight = c_axis(second)
    b, c = (b, (c[0], tight)) if stage.is_outer else ((b[0], tight), c)
    rows, columns, inner = (c_axis(size) for size in sizes)
    routine, onto = stage.form.value, stage.accumulate
    return gemm_heads(routine, 1, heads, (rows, columns, inner), a, b, c, onto)


def weight_gradients(stage: WeightGradients) -> list[str]:
    """Spell weight gradients that share their left operand, over all steps."""
    lines = [f"/* {stage} */"]
    first = stage.products[0]
    if not stage.joint:
        target = stage.targets[0]
        shape = first.target.shape if first.heads is None else first.weights
        sizes = (c_axis(shape[0]), c_axis(shape[1]))
        return lines + _summed_over_steps(sizes, stage, matrix(target), first)
    rows, total = c_axis(first.target.shape[0]), sum(stage.widths[1:], start=stage.widths[0])
    lines += _summed_over_steps((rows, c_axis(total)), stage, (stage.joint, c_axis(total)), first)
    start: Expr = Integer(0)
    for target, width in zip(stage.targets, stage.widths, strict=True):
        at = stage.joint if start == 0 else f"{stage.joint} + {c_axis(start)}"
        lines.append(
            f"cg_copy(&run, {rows}, {c_axis(width)}, cg_rows({', '.join(matrix(target))}), "
            f"cg_in({at}, {c_axis(total)}));"
        )
        start = start + width
    return lines


def _summed_over_steps(sizes: Text, stage: WeightGradients, c: Text, first: Product) -> list[str]:
    """Spell ``c = sum over steps of a.T @ b``, one product over all rows where they lie so.

    With heads, sizes are of one head.
    """
    heads = first.heads if not stage.joint else None

    def summed(rows: str, left: Text, right: Text, onto: bool) -> str:
        """Spell the sum over some rows."""
        if heads is None:
            return gemm("tn", (*sizes, rows), left, right, c, onto)
        tight = (c[0], sizes[1])
        return gemm_heads("tn", 1, heads, (*sizes, rows), left, right, tight, onto)

    a, b = stage.left, stage.right
    a_at, a_stride = matrix(a)
    b_at, b_stride = matrix(b)
    source = a.place.source
    if isinstance(source, BeforeSteps) and b.place.over is Over.ROWS:
        later = f"{b_at} + nB * {b_stride}"
        initial = _initial(a.view, a, source)
        return [
            summed("(nT > 0 ? nB : 0)", (initial, a_stride), (b_at, b_stride), False),
            "if (nT > 1)",
            "    " + summed("(nT - 1) * nB", (a_at, a_stride), (later, b_stride), True),
        ]
    if a.place.over is b.place.over is Over.ROWS:
        return [summed("nT * nB", (a_at, a_stride), (b_at, b_stride), False)]
    rows = sizes[0] if heads is None else f"{c_factor(heads)} * {c_factor(first.weights[0])}"
    stride_of_c = c[1] if heads is None else sizes[1]
    return [
        f"cg_clear(&run, {rows}, {sizes[1]}, cg_rows({c[0]}, {stride_of_c}));",
        "for (int64_t step = 0; step < nT; ++step)",
        "    " + summed("nB", _at_step(a), _at_step(b), True),
    ]


def _initial(view: View, at: Matrix, source: BeforeSteps) -> str:
    return f"{initial_of(source)}{offset(view, at.place)}"


def _at_step(at: Matrix) -> Text:
    """A matrix of one step, inside a loop over steps."""
    text, by = address(at), stride(at.place)
    if at.place.over is Over.BATCH:
        return text, by
    if isinstance(at.place.source, BeforeSteps):
        initial = _initial(at.view, at, at.place.source)
        return f"(step ? {text} + (step - 1) * nB * {by} : {initial})", by
    return f"{text} + step * nB * {by}", by

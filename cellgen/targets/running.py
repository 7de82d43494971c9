"""Spell the routines that go along units, one for each row of ``language/ops/running.py``.

Output: texts of headers by their names, which ``cellgen build`` writes: the routines in C, their
names in one precision, and the kernels of CUDA. All are one loop with the expressions of the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy

from cellgen.language.ops import OPERATORS, Operator
from cellgen.targets.function_headers import IN_HEADERS, INDEX, FunctionNames, RowFunctions

C_HEADER = "cellgen_running.h"
NAMES_HEADER = "cellgen_running_names.h"
CUDA_HEADER = "cellgen_cuda_running.cuh"

PRECISIONS: Mapping[str, str] = {"f32": "float", "f64": "double"}
_BEGINS = {sympy.Integer(0): "0", sympy.Integer(1): "1", -sympy.oo: "-INFINITY"}
_CALL = re.compile(r"\bcg_(\w+)(?=\()")
_WRITTEN = (
    "Written by `cellgen build` from the table\n"
    " * cellgen/language/ops/running.py; edit that, not this file."
)


def running_rows() -> list[Operator]:
    """The rows that have such a routine."""
    return [row for row in OPERATORS.values() if row.running is not None]


def running_headers() -> dict[str, str]:
    """The headers by name."""
    rows = running_rows()
    return {C_HEADER: _c_header(rows), NAMES_HEADER: _names(rows), CUDA_HEADER: _cuda_header(rows)}


def _c_header(rows: Sequence[Operator]) -> str:
    head = f"""/* Work along units, one after the other. {_WRITTEN}
 *
 * A row is so many heads, of each so many units, of each so many elements, `after`. */
#ifndef CELLGEN_RUNNING_H
#define CELLGEN_RUNNING_H

#include "cellgen.h"
#include "cellgen_math.h"
"""
    routines = [running_routine(row, _in_header(suffix)) for row in rows for suffix in PRECISIONS]
    return "\n".join([head, *routines, "#endif\n"])


def _in_header(suffix: str) -> RowFunctions:
    names = FunctionNames(f"cellgen_{{}}_{suffix}".format)
    return RowFunctions(IN_HEADERS, PRECISIONS[suffix], INDEX, names)


def _operands(row: Operator) -> list[str]:
    """The letters of its operands, those that its expressions read."""
    assert row.running is not None
    texts = f"{row.running.result} {row.running.carried}"
    return ["a", "b"] if "{b}" in texts else ["a"]


def _statements(row: Operator, real: str, names: FunctionNames, load: str, store: str) -> list[str]:
    """What is done at a unit: read operands, form the result, carry on, write."""
    running, operands = row.running, _operands(row)
    assert running is not None
    words = {"total": "total", "y": "y_unit", **{name: f"{name}_unit" for name in operands}}
    result, carried = (
        _CALL.sub(lambda call: names[call[1]], text.format(**words))
        for text in (running.result, running.carried)
    )
    read = [f"const {real} {name}_unit = {load.format(name)};" for name in operands]
    written = store.format("y_unit")
    return [*read, f"const {real} y_unit = {result};", f"total = {carried};", written]


def running_routine(row: Operator, c: RowFunctions) -> str:
    """The routine of a row in C, in words of a header or an export."""
    running, real, index, operands = row.running, c.real, c.index, _operands(row)
    assert running is not None
    each = f"{index} unit = units - 1; unit >= 0; --unit"
    if not running.is_reversed:
        each = f"{index} unit = 0; unit < units; ++unit"
    arguments = [f"const {real} *{name}, {index} {name}_row" for name in operands]
    begins = [
        f"const {real} *{name}_first = {name} + row * {name}_row + first;" for name in operands
    ]
    load, store = "{0}_first[unit * after]", "y_first[unit * after] = {0};"
    lines = _statements(row, real, c.both, load, store)
    inner = "\n".join(f"                {line}" for line in lines)
    listed = "\n".join(f"            {line}" for line in begins)
    return f"""/* {row.name}: {running.says} */
{c.math} void {c.both[row.name]}(
    {index} rows, {index} heads, {index} units, {index} after,
    {", ".join(arguments)}, {real} *y, {index} y_row)
{{
    for ({index} row = 0; row < rows; ++row)
        for ({index} each = 0; each < heads * after; ++each) {{
            const {index} first = each / after * units * after + each % after;
{listed}
            {real} *y_first = y + row * y_row + first;
            {real} total = {_BEGINS[running.begins]};
            for ({each}) {{
{inner}
            }}
        }}
}}
"""


def _names(rows: Sequence[Operator]) -> str:
    """Names in one precision; CUDA's own are functions."""
    undone = [f"#undef cg_{row.name}" for row in rows]
    done = [f"#define cg_{row.name} CELLGEN_NAME(cellgen_{row.name})" for row in rows]
    head = f"/* Names of cellgen_running.h in one precision, for cellgen_real.h. {_WRITTEN} */"
    return "\n".join([head, *undone, "#ifndef CELLGEN_STORE", *done, "#endif\n"])


def _cuda_header(rows: Sequence[Operator]) -> str:
    texts = [f"{row.running.result} {row.running.carried}" for row in rows if row.running]
    functions = dict.fromkeys(name for text in texts for name in _CALL.findall(text))
    overloads = [
        f"CELLGEN_MATH {real} cellgen_{name}_of({real} x) {{ return cellgen_{name}_{suffix}(x); }}"
        for name in functions
        for suffix, real in PRECISIONS.items()
    ]
    head = f"""/* Work along units, one after the other, a thread for each head of a row. {_WRITTEN}
 * Part of cellgen_cuda.cuh. */
#ifndef CELLGEN_CUDA_RUNNING_CUH
#define CELLGEN_CUDA_RUNNING_CUH
"""
    return "\n".join([head, *overloads, "", *map(_kernel, rows), "#endif\n"])


def _kernel(row: Operator) -> str:
    running, operands = row.running, _operands(row)
    assert running is not None
    unit = "units - 1 - k" if running.is_reversed else "k"
    names, load = FunctionNames("cellgen_{}_of".format), "cg_load({0}, row, unit)"
    lines = _statements(row, "R", names, load, "cg_store(y, row, unit, {0});")
    inner = "\n".join(f"        {line}" for line in lines)
    letters = [name.upper() for name in operands]
    types = [*letters, "Y"]
    arrays = [f"cellgen_rows<const {name.upper()}> {name}" for name in operands]
    listed, template = ", ".join([*arrays, "cellgen_rows<Y> y"]), ", typename ".join(types)
    return f"""/* {row.name}: {running.says} */
template <typename {template}>
__global__ void cellgen_{row.name}_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, {listed})
{{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = {_BEGINS[running.begins]};
    for (int64_t k = 0; k < units; ++k) {{
        const int64_t unit = first + {f"({unit})" if running.is_reversed else unit} * after;
{inner}
    }}
}}

template <typename {template}>
void cg_{row.name}(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    {listed})
{{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_{row.name}_heads<{
        ", ".join(types)
    }>), rows, width, units, after, {", ".join([*operands, "y"])});
}}
"""

"""The C of a cell of one function whose body a test writes."""

from __future__ import annotations

from collections.abc import Iterator

from cellgen.runtime.abi import PRECISIONS, Function, Interface, c_parameters, struct_lines
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.paths import include_folder
from cellgen.targets.c.descriptor import descriptor


def small_sources(interface: Interface, code: str, size: str) -> SourceFiles:
    """Sources of a cell ``small`` whose function runs ``code`` in both precisions."""
    (function,) = interface.functions
    texts = {
        "small.h": '#include "cellgen.h"\n#include "cellgen_driver_engine.c"\n',
        "small.c": "\n".join(['#include "small.h"', *_body(interface, function, code, size)]),
    }
    return SourceFiles.gather("small", texts, None, include_folder())


def _body(interface: Interface, function: Function, code: str, size: str) -> Iterator[str]:
    given = ", ".join(f"n[{place}]" for place in range(len(function.dims)))
    for suffix, c_type in PRECISIONS:
        names, parameters = interface.symbols(function, suffix), c_parameters(function)
        members = " ".join(line for line, _ in struct_lines(function, c_type))
        yield f"typedef struct {{ {members} }} {names.struct};"
        yield f"static int run_{suffix}({parameters}, const {names.struct} *args) {{ {code} }}"
        yield f"static int64_t bytes_{suffix}({parameters}) {{ return {size}; }}"
        yield f"static int call_{suffix}(const int64_t *n, const void *args)"
        yield f"{{ return run_{suffix}({given}, args); }}"
        yield f"static int64_t size_{suffix}(const int64_t *n, const void *options)"
        yield f"{{ return bytes_{suffix}({given}); }}"
        entry = f"{{call_{suffix}, size_{suffix}, 0, 0, 0}}"
        yield f"static const cellgen_entry entry_{suffix} = {entry};"
    described = descriptor(interface)
    (of_function,) = described.functions
    tables = {
        "cellgen_term small_terms": described.terms,
        "cellgen_axis small_axes": described.axes,
        "char *const small_dims": described.dims,
        "cellgen_value small_values": [
            value.replace("CELLGEN_ROLE_,", "CELLGEN_ROLE_INPUT,") for value in of_function.values
        ],
    }
    for table, rows in tables.items():
        yield f"static const {table}[] = {{{' '.join(rows)}}};"
    count = len(function.dims)
    yield f"static const int64_t dims[] = {{{of_function.dims}}};"
    yield "static const cellgen_signature signature ="
    yield f'{{"{function.name}", "", {count}, dims, {len(function.struct_members)},'
    yield f"{len(of_function.values)}, small_values, 1, 0}};"
    yield "static const cellgen_precision precisions[] ="
    yield '{{"f32", 4, &entry_f32}, {"f64", 8, &entry_f64}};'
    yield f"CELLGEN_EXPORT const cellgen_cell *{interface.descriptor_symbol}(void)"
    yield "{ static const cellgen_cell cell = {CELLGEN_ABI_VERSION,"
    yield f'"{interface.name}", "{interface.digest}", {len(described.dims)}, small_dims, 1,'
    yield "&signature, 2, precisions, 0, 0, 0, &cellgen_driver_engine};"
    yield "return &cell; }"

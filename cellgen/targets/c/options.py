"""Spell the options of functions over time as a struct in C.

Input: the table of options. Output: the text of ``cellgen_options.h``, which ``cellgen.h``
includes, and of ``cellgen_numbers.h``, with which bridges to frameworks read the options that
their programs have as numbers.
"""

from __future__ import annotations

from cellgen.runtime.numbers import NUMBERED, USUAL, c_value
from cellgen.runtime.options import c_members

HEADER, NUMBERS_HEADER = "cellgen_options.h", "cellgen_numbers.h"


def options_header() -> str:
    """The header that declares ``cellgen_options``."""
    members = [f"    {m.declared} /* {m.text} */" for m in c_members()]
    return "\n".join((_HEAD, *members, _FOOT))


_HEAD = """/* Options of functions over time. Written by `cellgen build` from its table,
 * cellgen/runtime/options.py; edit that, not this file. */
#ifndef CELLGEN_OPTIONS_H
#define CELLGEN_OPTIONS_H

/* Which steps of which rows a function over time computes, which it shows, and how its arrays lie
 * in memory. NULL in place of it, or zeros throughout: every step of every row, arrays
 * (T, B, units) without gaps.
 *
 * A masked step leaves the state as it is, and x is not read there. Outputs show what the step
 * before showed (`hold`), or zeros; zeros they are beyond a length, and before the first valid
 * step.
 *
 * `strides` are two numbers, from step to step and from row to row, for each array over time of the
 * struct in its order, saved ones left out, then for mask and for reset. Where the first of them is
 * CELLGEN_NO_GAPS, an array has none. */
#define CELLGEN_NO_GAPS INT64_MIN
typedef struct {"""
_FOOT = "} cellgen_options;\n\n#endif /* CELLGEN_OPTIONS_H */\n"


def numbers_header() -> str:
    """The header that declares ``cellgen_numbers``."""
    rows = [f"    each({option.name}, {USUAL[option.name]})" for option in NUMBERED]
    members = [f"    int64_t {option.name};" for option in NUMBERED]
    values = [
        f"    options->{option.c[0].name} = {c_value(option, f'numbers->{option.name}')};"
        for option in NUMBERED
    ]
    each = " \\\n".join(("#define CELLGEN_EACH_NUMBER(each)", *rows))
    return "\n".join((_NUMBERS_HEAD, each, "", "typedef struct {", *members, _SET, *values, _END))


_NUMBERS_HEAD = """/* Options of functions over time as numbers, by their keywords: arguments of
 * torch's operators, in this order, and attributes of programs of XLA. Written by `cellgen build`
 * from the table cellgen/runtime/options.py; edit that, not this file. */
#ifndef CELLGEN_NUMBERS_H
#define CELLGEN_NUMBERS_H

#include <string.h>

#include "cellgen.h"

/* Of each its keyword, and its number where a call says nothing. Bit k of `outputs`: the k-th
 * output of the cell is formed; -1: all are. -1 as `products`: the type of the arrays tells. */"""
_SET = """} cellgen_numbers;

/* Set the members that are numbers, and all others to zero. */
static inline void cellgen_set_numbers(cellgen_options *options, const cellgen_numbers *numbers)
{
    memset(options, 0, sizeof *options);"""
_END = "}\n\n#endif /* CELLGEN_NUMBERS_H */\n"

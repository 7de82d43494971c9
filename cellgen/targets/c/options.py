"""Spell the options of functions over time as a struct in C.

Input: the table of options. Output: the text of ``cellgen_options.h``, which
``cellgen.h`` includes.
"""

from __future__ import annotations

from cellgen.runtime.options import c_members

HEADER = "cellgen_options.h"


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
 * struct in its order, saved ones left out, then for mask and for reset. */
typedef struct {"""
_FOOT = "} cellgen_options;\n\n#endif /* CELLGEN_OPTIONS_H */\n"

"""Cells whose every name is a parameter: a scan, and memories that decay, erase and have a column.

An author's names are in braces; ``named`` fills them in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import ModuleType

import cellgen
from cellgen import Cell
from cellgen.errors import DeclarationError
from cellgen.language.names import check_argument, check_dim, check_name

SCAN = """
class Scan(Cell):
    {x}, {s}_prev, {t}_prev = of.Input(of.I), of.State({D}, initial=0.5), of.State({D})
    {w}, {u}, {b} = of.Weight(of.I, {D}), of.Weight(of.I, {D}), of.Bias({D})
    {z}, {n} = of.sigmoid({x} @ {w} + {b}), of.tanh({x} @ {u}) + {D} * {b}
    {s} = (1 - {z}) * {s}_prev + {z} * {n}
    {t} = {z} * {t}_prev + {s}_prev
    {h} = of.tanh({s}) * {n} + {t}
    outputs = {h}, {s}, {t}
"""
DECAYS = """
class Decays(Cell):
    {x}, {s}_prev = of.Input(of.I), of.State({N}, {K}, {D})
    {w}, {u} = of.Weight(of.I, {N}, {K}), of.Weight(of.I, {N}, {K})
    {y}, {z} = of.Weight(of.I, {N}, {D}), of.Weight(of.I, {N}, {K})
    {q}, {k}, {v} = {x} @ {w}, {x} @ {u}, {x} @ {y}
    {g} = of.exp(-of.softplus({x} @ {z}))
    {s} = of.expand_dims({g}, -1) * {s}_prev + of.outer({k}, {v})
    {h} = {q} @ {s}
    outputs = {h}, {s}
"""
ERASES = """
class Erases(Cell):
    {x}, {s}_prev = of.Input(of.I), of.State({N}, {D}, {K})
    {w}, {u} = of.Weight(of.I, {N}, {K}), of.Weight(of.I, {N}, {K})
    {y}, {z} = of.Weight(of.I, {N}, {D}), of.Weight(of.I, {N}, 1)
    {q}, {k}, {v} = {x} @ {w}, of.l2_normalise({x} @ {u}, epsilon=1e-6), {x} @ {y}
    {b} = of.sigmoid({x} @ {z})
    {s} = {s}_prev + of.outer({b} * ({v} - {s}_prev @ {k}), {k})
    {h} = {s} @ {q}
    outputs = {h}, {s}
"""
COLUMN = """
class Column(Cell):
    {x}, {n}_prev, {s}_prev = of.Input(of.I), of.State({K}), of.State({D}, {K})
    {w}, {u}, {y} = of.Weight(of.I, 1), of.Weight(of.I, {K}), of.Weight(of.I, {D})
    {a}, {k}, {v} = of.sigmoid({x} @ {w}), of.softplus({x} @ {u}), {x} @ {y}
    {n} = {a} * {n}_prev + {k}
    {s} = of.expand_dims({a}, -1) * {s}_prev + of.outer({v}, {k})
    {h} = ({s} @ {k}) / (1 + of.sum({n} * {k}))
    outputs = {h}, {n}, {s}
"""
TEXTS = {"Scan": SCAN, "Decays": DECAYS, "Erases": ERASES, "Column": COLUMN}


def slots(text: str) -> list[str]:
    """The names of a cell that are an author's to choose."""
    return list(dict.fromkeys(re.findall(r"\{(\w+)\}", text)))


def named(text: str, names: Mapping[str, str]) -> type[Cell]:
    """The cell with an author's names.

    Raises:
        DeclarationError: the language refuses one of them.
    """
    dims = "".join(f"{names[d]} = of.Dim({names[d]!r})\n" for d in slots(text) if d.isupper())
    module = ModuleType("hostile_cell")
    module.__dict__.update(of=cellgen, Cell=Cell)
    sys.modules[module.__name__] = module
    exec(dims + text.format(**names), module.__dict__)
    cells = [v for v in vars(module).values() if isinstance(v, type) and v is not Cell]
    (cell,) = (one for one in cells if issubclass(one, Cell))
    return cell


def may_be_named(name: str) -> bool:
    """Whether the language lets an author use a name for everything, dimensions too."""
    try:
        for check in (check_name, check_argument):
            check(name, "value")
        check_dim(name)
    except DeclarationError:
        return False
    return name not in ("of", "outputs", "Cell", "B", "T", "I") and not name.endswith("_prev")

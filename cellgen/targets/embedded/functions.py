"""The functions of the runtime in an export: those that it calls, and what they call.

Input: the names of functions that a body calls. Output: definitions for one precision, under the
export's name, in the order of the headers. Fused multiply-adds are written as two operations and
``tanh`` and ``sigmoid`` are those of time loops, so that every machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cellgen.targets.function_headers import (
    MATH,
    ROWS,
    FunctionNames,
    MathFunctions,
    RowFunctions,
    constant_names,
    template_of,
)
from cellgen.targets.running import PRECISIONS, running_routine, running_rows
from cellgen.targets.templates import blocks_of, fill_block

BEFORE, INDEX = "static", "int"
SUFFIXES: Mapping[str, str] = {real: suffix for suffix, real in PRECISIONS.items()}
OF_LIBM: Mapping[str, str] = {"float": "{}f", "double": "{}"}
OF_TIME_LOOPS: Mapping[str, str] = {"quick_tanh": "tanh", "quick_sigmoid": "sigmoid"}
"""Functions of time loops, and what an export calls them, which has no others."""


@dataclass(frozen=True)
class SpelledFunction:
    """A function of an export: its place among others, its C, what it calls and reads."""

    place: tuple[int, int]
    text: str
    calls: frozenset[str]
    constants: frozenset[str]


def definitions(calls: Collection[str], dtype: str, export: str) -> list[str]:
    """Return what calls need: constants, then functions, each as a text under the export's name."""
    needed, pending = dict[str, SpelledFunction](), list(calls)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed[name] = ExportedFunction(name, dtype, export).definition()
            pending += needed[name].calls
    functions = sorted(needed.values(), key=lambda function: function.place)
    read = {name for function in functions for name in function.constants}
    constants = "".join(
        fill_block(template_of(MATH), block, ExportedFunction(block, dtype, export).of_math)
        for block in blocks_of(template_of(MATH))
        if block in read
    )
    return [text for text in (constants, *(f.text for f in functions)) if text]


class ExportedFunction:
    """Spells one function of an export, and notes what it calls and reads."""

    def __init__(self, name: str, dtype: str, export: str) -> None:
        self.name, self.dtype = name, dtype
        self.names = FunctionNames(lambda of: f"{export}_cg_{OF_TIME_LOOPS.get(of, of)}")
        self.constants, libm = constant_names(), FunctionNames(OF_LIBM[dtype].format)
        self.of_rows = RowFunctions(BEFORE, dtype, INDEX, self.names)
        self.of_math = MathFunctions(
            math=BEFORE,
            real=dtype,
            f32=self.names,
            f64=self.names,
            both=self.names,
            libm=libm,
            constant=self.constants,
            is_export=True,
        )

    def definition(self) -> SpelledFunction:
        """Its text and what that needs."""
        place, text = self._spelled()
        calls = frozenset(OF_TIME_LOOPS.get(name, name) for name in self.names.read)
        return SpelledFunction(place, text, calls, frozenset(self.constants.read))

    def _spelled(self) -> tuple[tuple[int, int], str]:
        """Its place and its text: a block of a header, or a row of the operator table."""
        contexts: dict[str, MathFunctions | RowFunctions] = {MATH: self.of_math, ROWS: self.of_rows}
        for number, (header, context) in enumerate(contexts.items()):
            template = template_of(header)
            for block in (f"{self.name}_{SUFFIXES[self.dtype]}", self.name):
                if block in blocks_of(template):
                    place = number, blocks_of(template).index(block)
                    return place, fill_block(template, block, context)
        rows = {row.name: row for row in running_rows()}
        place = len(contexts), list(rows).index(self.name)
        return place, running_routine(rows[self.name], self.of_rows)

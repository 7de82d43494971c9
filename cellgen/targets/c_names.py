"""Give every value of a schedule the name that it has in C.

Input: what was scheduled, with an author's names. Output: the same with those of ``c_name``, from
which everything in C is written, its comments too: an author's ``tile`` is ``tile_`` beside the
templates' own, ``α`` is ``alpha``. Members of the argument structs follow ``c_member``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar, cast

from sympy import Expr

from cellgen.language.cell import Definition
from cellgen.language.ops import Operator
from cellgen.language.value import Value
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.names import c_name
from cellgen.schedule import Schedule
from cellgen.schedule.over_time import SequenceSchedule

S = TypeVar("S")


def in_c(
    schedule: Schedule, sequence: SequenceSchedule | None
) -> tuple[Schedule, SequenceSchedule | None]:
    """Return both schedules with the names that values have in C."""
    programs = [function.program for function in schedule.functions]
    programs += sequence.programs.all if sequence else ()
    values = {value for program in programs for value in program.values}
    values |= {value for function in schedule.functions for value in function.accepted}
    renamed = {v: _renamed(v) for v in values if c_name(str(v.name)) != v.name}
    if not renamed:
        return schedule, sequence
    spell = _Spelling(renamed)
    return spell(schedule), spell(sequence)


def signature_in_c(signature: Signature) -> Signature:
    """Return the interface of a function with the names that its arguments have in C."""
    return dataclasses.replace(
        signature,
        arguments=tuple(dataclasses.replace(a, name=c_name(a.name)) for a in signature.arguments),
        results=tuple(dataclasses.replace(r, name=c_name(r.name)) for r in signature.results),
    )


def _renamed(value: Value) -> Value:
    return Value(c_name(str(value.name)), value.shape, value.role, value.owner, value.order)


class _Spelling:
    """Rebuilds frozen data with other values in place of some."""

    def __init__(self, renamed: Mapping[Value, Value]) -> None:
        self._renamed = dict(renamed)

    def __call__(self, item: S) -> S:
        return cast("S", self._of(item))

    def _of(self, item: object) -> object:  # noqa: PLR0911 - one case a return
        if isinstance(item, Value):
            return self._renamed.get(item, item)
        if isinstance(item, Expr):
            return item.xreplace(self._renamed)
        if item is None or isinstance(item, str | int | float | Enum | Operator):
            return item
        if isinstance(item, Mapping):
            return {self._of(key): self._of(value) for key, value in item.items()}
        if isinstance(item, Iterable):
            return type(item)(map(self._of, item))  # type: ignore[call-arg]
        if isinstance(item, Definition):
            return self._definition(item)
        assert dataclasses.is_dataclass(item)
        assert not isinstance(item, type)
        fields = [field.name for field in dataclasses.fields(item) if field.init]
        return dataclasses.replace(item, **{n: self._of(getattr(item, n)) for n in fields})

    def _definition(self, item: Definition) -> Definition:
        """What rendering reads of a definition: its values, and their defaults by name."""
        return dataclasses.replace(
            item,
            declared=self(item.declared),
            outputs=self(item.outputs),
            defaults={c_name(name): default for name, default in item.defaults.items()},
            fixed=self(item.fixed),
        )

"""The options of a call as numbers: as C, operators of torch and programs of XLA have them.

Input: ``Options`` that have been checked. Output: a number for each row of the table that is
``numbered``, in its order, or by the names of C. Another module says which outputs are formed:
of names there are bits, one for each output of the cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellgen.runtime.options import (
    BY_TYPE,
    CHOICE,
    NAMES,
    OF_OPTIONS,
    SWITCH,
    Option,
    Options,
)

ALL = -1
"""In the place of bits: every output."""
MOST_BITS = 63
"""Places that bits of a number tell one by one; its sign tells all that follow."""
AS_ARRAYS = -1
"""In the place of a choice: the type of the arrays tells."""
NUMBERED = tuple(option for option in OF_OPTIONS if option.numbered)


def c_numbers(options: Options) -> dict[str, int]:
    """The members of the options in C that are numbers."""
    numbers = {}
    for option in NUMBERED:
        value = getattr(options, option.name)
        number = int(value is not None) if option.kind == NAMES else number_of(option, value)
        numbers[option.c[0].name] = 1 - number if option.inverted else number
    return numbers


def number_of(option: Option, value: object) -> int:
    """The number of a switch, of steps, or of what is chosen."""
    if option.kind != CHOICE:
        return int(value)  # type: ignore[call-overload,no-any-return]
    return AS_ARRAYS if value == BY_TYPE else option.choices.index(value)


def as_numbers(options: Options, formed: int = ALL) -> tuple[int, ...]:
    """The numbers of a call's options; bit k of ``formed``: its k-th output is."""
    return tuple(
        formed
        if option.kind == NAMES
        else getattr(options, option.name)
        if option.kind != CHOICE
        else number_of(option, getattr(options, option.name))
        for option in NUMBERED
    )


def from_numbers(
    numbers: Sequence[int],
    outputs: Sequence[str],
    lengths: object = None,
    mask: object = None,
    reset: object = None,
) -> Options:
    """The options that numbers are of; ``outputs`` are those over time of the cell, in order."""
    values: dict[str, object] = {"lengths": lengths, "mask": mask, "reset": reset}
    for option, number in zip(NUMBERED, numbers, strict=True):
        if option.kind == NAMES:
            names = (name for place, name in enumerate(outputs) if number >> place & 1)
            values[option.name] = None if number == ALL else tuple(names)
        elif option.kind == CHOICE:
            values[option.name] = BY_TYPE if number == AS_ARRAYS else option.choices[number]
        else:
            values[option.name] = number
    return Options(**values)  # type: ignore[arg-type]


def torch_arguments() -> str:
    """The arguments of an operator of torch that say these numbers."""
    kinds = {SWITCH: "bool"}
    return ", ".join(f"{kinds.get(option.kind, 'int')} {option.name}" for option in NUMBERED)


_USUAL = zip(NUMBERED, as_numbers(Options()), strict=True)
USUAL = {option.name: int(number) for option, number in _USUAL}
"""The numbers of a call without options, by name."""


def c_value(option: Option, number: str) -> str:
    """The member of the options in C that an option sets, spelled in C for its number."""
    if option.kind == NAMES:
        return f"{number} != {USUAL[option.name]}"
    return f"!{number}" if option.inverted else number

"""Spell a cell's interface as the tables of ``cellgen_descriptor.h``, for any language.

Input: ``Interface``. Output: the context of ``descriptor.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cellgen.errors import DerivationError
from cellgen.runtime.abi import PRECISIONS, Argument, Function, Interface, axis_terms, term_dims
from cellgen.targets.c.tables import filled, flags, row

AXES, TERM_DIMS, MEMBERS = 8, 3, 1020
"""Limits of ``cellgen_descriptor.h``: ``CELLGEN_VALUE_AXES``, ``CELLGEN_TERM_DIMS``; and of the
driver: ``CELLGEN_WORDS_MAX`` but for what follows the members."""

NO_DIM = -1


@dataclass(frozen=True)
class SignatureContext:
    """One function of a kernel.

    ``entry`` spells how it is called in one precision, ``by_words`` the functions behind it.
    """

    stem: str
    values: list[str]
    dims: str
    dim_names: str
    signature: str
    by_words: str
    entry: str


@dataclass(frozen=True)
class DescriptorContext:
    """All that ``cellgen_cell`` and what it points to hold."""

    name: str
    symbol: str
    terms: list[str]
    axes: list[str]
    dims: list[str]
    functions: list[SignatureContext]
    precisions: list[str]
    cell: list[str]


def descriptor(interface: Interface) -> DescriptorContext:
    """Spell the descriptor of a cell.

    Raises:
        DerivationError: a function has more members, or a value more axes, than it has room for.
    """
    _refuse_beyond_limits(interface)
    name, shapes = interface.name, _Shapes(interface)
    functions = [_signature(interface, shapes, i) for i in range(len(interface.functions))]
    teams = ("team_of", "team_create", "team_destroy")
    cell = [
        f"CELLGEN_ABI_VERSION, {c_text(name)}, {c_text(interface.digest)}, /* abi, name, digest */",
        f"{len(interface.dims)}, {name}_dims, /* dims, dim */",
        f"{len(functions)}, {name}_signatures, /* functions, function */",
        f"{len(PRECISIONS)}, {name}_precisions, /* precisions, precision */",
        ", ".join(f"cellgen_driver_{team}" for team in teams) + ",",
        "&cellgen_driver_engine, /* engine */",
    ]
    return DescriptorContext(
        name=name,
        symbol=interface.descriptor_symbol,
        terms=filled(shapes.terms),
        axes=filled(shapes.axes),
        dims=filled(map(c_text, interface.dims)),
        functions=functions,
        precisions=[
            f"{row(c_text(suffix), f'(int64_t)sizeof({c_type})', f'{name}_entries_{suffix}')},"
            for suffix, c_type in PRECISIONS
        ],
        cell=cell,
    )


class _Shapes:
    """Axis lengths and their terms by number, each once."""

    def __init__(self, interface: Interface) -> None:
        self.name, self.dims = interface.name, interface.dims
        self.terms: list[str] = []
        self.axes: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, axis: str) -> str:
        """Spell where the length of an axis is."""
        if axis not in self._numbers:
            terms = [self._term(factor, name) for factor, name in axis_terms(axis)]
            self._numbers[axis] = len(self.axes)
            self.axes.append(row(len(terms), f"{self.name}_terms + {len(self.terms)}"))
            self.terms += terms
        return f"{self.name}_axes + {self._numbers[axis]}"

    def _term(self, factor: int, name: str) -> str:
        dims = [self.dims.index(dim) for dim in term_dims(name)]
        return row(factor, row(*dims, *[NO_DIM] * (TERM_DIMS - len(dims))))


def _signature(interface: Interface, shapes: _Shapes, number: int) -> SignatureContext:
    function = interface.functions[number]
    stem, read = f"{interface.name}_{function.name}", function.struct_members
    members = (*((item, False) for item in read), *((item, True) for item in function.results))
    values = [f"{_value(item, shapes, written)}," for item, written in members]
    sizes = ", ".join(f"n[{place}]" for place in range(len(function.dims)))
    kind = "TEAM" if function.team else "WORKSPACE" if function.workspace else "PLAIN"
    which = f"{interface.name}_signatures + {number}"
    return SignatureContext(
        stem=stem,
        values=values,
        dims=", ".join(str(interface.dims.index(dim)) for dim in function.dims),
        dim_names=", ".join(function.dims),
        signature=row(
            *(c_text(function.name), c_text(function.text), len(function.dims), f"{stem}_dims"),
            *(len(read), len(values), f"{stem}_values" if values else "0"),
            *(int(function.workspace), int(function.team)),
        ),
        by_words=f"CELLGEN_{kind}_BY_WORDS({stem}, {which}, {sizes})",
        entry=f"CELLGEN_{kind}_ENTRY({stem}),",
    )


def _value(item: Argument, shapes: _Shapes, written: bool) -> str:
    number = item.default if item.default is not None else item.initial
    said = flags(
        VALUE_OPTIONAL=item.optional,
        VALUE_OVER_TIME=item.over_time,
        VALUE_SAVED=item.saved,
        VALUE_WRITTEN=written,
        VALUE_WEIGHT=item.is_weight,
        VALUE_BOUNDED=item.bounded,
        VALUE_OPERAND=item.operand,
        VALUE_CARRIED=bool(item.follows),
    )
    axes = row(*map(shapes, item.shape)) if item.shape else "{0}"
    role = f"CELLGEN_ROLE_{item.role.upper()}"
    return row(
        c_text(item.name), c_text(item.of), role, said, c_number(number), len(item.shape), axes
    )


def c_text(text: str) -> str:
    r"""Spell a text in C: ASCII, other characters as the bytes of UTF-8.

    >>> c_text("W_α")
    '"W_\\316\\261"'
    """
    plain = (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in text.encode())
    return '"' + "".join(f"\\{sign}" if sign in '"?' else sign for sign in plain) + '"'


def c_number(number: float) -> str:
    """Spell a number of double precision in C."""
    if math.isinf(number):
        return "HUGE_VAL" if number > 0 else "-HUGE_VAL"
    return repr(float(number))


def _refuse_beyond_limits(interface: Interface) -> None:
    for function in interface.functions:
        for what, count, most in _counted(function):
            if count > most:
                raise DerivationError(
                    f"{interface.name}.{function.name}: {count} {what}, expected at most {most}; "
                    f"split the cell into smaller ones",
                    code="target.limit",
                )


def _counted(function: Function) -> Iterable[tuple[str, int, int]]:
    members = (*function.struct_members, *function.results)
    yield "arguments and results", len(members), MEMBERS
    yield from ((f"axes of {item.name}", len(item.shape), AXES) for item in members)
    for item in members:
        terms = [term for axis in item.shape for term in axis_terms(axis)]
        most = max((len(term_dims(names)) for _, names in terms), default=0)
        yield f"dimensions multiplied in an axis of {item.name}", most, TERM_DIMS

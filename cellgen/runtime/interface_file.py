"""The interface of a kernel as a file: ``interface.json`` of a generated folder.

Input: an ``Interface``, or the text that was written of one. Output: the other. Fields that have
their default are left out, as is a text that is the role; an infinite number is the text "inf" or
"-inf", which JSON has no number for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, fields
from functools import lru_cache

from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION, Argument, Function, Interface

FILE = "interface.json"
"""Its name in a generated folder."""

_ARGUMENT = {item.name: item.default for item in fields(Argument)}
_FUNCTION = {item.name: item.default for item in fields(Function)}
_LISTS = ("arguments", "results")
_NUMBERS = ("default", "initial")


def interface_text(interface: Interface, origin: str) -> str:
    """Write an interface: one argument a line; ``origin`` says what the cell was declared as."""
    head: dict[str, object] = {
        "generator": "cellgen",
        "origin": origin,
        "abi": ABI_VERSION,
        "name": interface.name,
        "digest": interface.digest,
    }
    if interface.directions:
        head["directions"] = dict(interface.directions)
    if interface.jumps:
        head["jumps"] = interface.jumps
    if interface.units_apart:
        head["units_apart"] = True
    lines = [f'  "{name}": {_json(value)},' for name, value in head.items()]
    functions = ",\n".join(_function_text(function) for function in interface.functions)
    return "\n".join(["{", *lines, '  "functions": [', functions, "  ]", "}", ""])


def _function_text(function: Function) -> str:
    own = [
        f'      "{name}": {_json(getattr(function, name))}'
        for name, default in _FUNCTION.items()
        if name not in _LISTS and getattr(function, name) != default
    ]
    lists = [
        f'      "{name}": [\n{_argument_lines(getattr(function, name))}\n      ]' for name in _LISTS
    ]
    return "\n".join(["    {", ",\n".join([*own, *lists]), "    }"])


def _argument_lines(items: Iterable[Argument]) -> str:
    return ",\n".join(f"        {_json(_argument_fields(item))}" for item in items)


def _argument_fields(item: Argument) -> dict[str, object]:
    fields = {name: getattr(item, name) for name in _ARGUMENT}
    for name in _NUMBERS:
        if fields[name] is not None and math.isinf(fields[name]):
            fields[name] = str(fields[name])
    if item.text == item.role:
        del fields["text"]
    return {name: value for name, value in fields.items() if value != _ARGUMENT[name]}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def interface_of(text: str, label: str) -> Interface:
    """Read what ``interface_text`` wrote.

    Raises:
        BuildError: it is no JSON, of another ABI, or lacks something; names it.
    """
    try:
        abi, interface = _of_text(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BuildError(
            f"{label} holds no interface of a cell ({type(error).__name__}: {error}); write it "
            f"again with `cellgen build`"
        ) from error
    if interface is None:
        raise BuildError(
            f"{label} is of ABI {abi}, expected {ABI_VERSION}; write it again with `cellgen build`"
        )
    return interface


@lru_cache(maxsize=256)
def _of_text(text: str) -> tuple[object, Interface | None]:
    """The ABI that a text names, and its interface where that is this one."""
    record = json.loads(text)
    if record["abi"] != ABI_VERSION:
        return record["abi"], None
    functions = tuple(_function(item) for item in record["functions"])
    moves = tuple((str(n), str(dot)) for n, dot in record.get("directions", {}).items())
    jumps, apart = str(record.get("jumps", "")), bool(record.get("units_apart"))
    name, digest = str(record["name"]), str(record["digest"])
    return ABI_VERSION, Interface(name, digest, functions, moves, jumps, apart)


def _function(record: dict[str, object]) -> Function:
    fields = _known(record, _FUNCTION)
    for name in _LISTS:
        fields[name] = tuple(_argument(item) for item in _listed(fields[name]))
    fields["dims"] = tuple(map(str, _listed(fields["dims"])))
    return Function(**fields)  # type: ignore[arg-type]  # as it was written


def _argument(record: object) -> Argument:
    if not isinstance(record, dict):
        raise TypeError(f"{record!r} is no argument")
    fields = _known(record, _ARGUMENT)
    fields["shape"] = tuple(map(str, _listed(fields["shape"])))
    fields.setdefault("text", fields.get("role", ""))
    for name in _NUMBERS:
        if isinstance(fields.get(name), str):
            fields[name] = float(str(fields[name]))
    return Argument(**fields)  # type: ignore[arg-type]  # as it was written


def _known(record: dict[str, object], defaults: dict[str, object]) -> dict[str, object]:
    """Hold a record to the fields that it has. Raises KeyError."""
    lacking = [n for n, default in defaults.items() if default is MISSING and n not in record]
    unknown = [name for name in record if name not in defaults]
    if lacking or unknown:
        raise KeyError(*lacking, *unknown)
    return dict(record)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value

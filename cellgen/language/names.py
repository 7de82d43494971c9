"""Names: which a cell may use. How each is spelled in C says ``runtime.names``."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable

from cellgen.errors import DeclarationError
from cellgen.runtime.names import (
    HEADERS,
    IDENTIFIER,
    OPTIONS,
    PLAN_KEYWORDS,
    RUNTIME,
    of_gradient,
    reserved_by,
    spelled,
)

_DIRECTIONS = re.compile(r"^(dot\d*_)+")
"""How the names of directions begin, those of a tangent of a tangent too."""


def check_identifier(name: str, what: str) -> None:
    """Accept what is an identifier in every language, Greek letters spelled out.

    C++ keeps ``a__b`` to itself, and names of derived values join with underscores, so none may
    stand at either end; but for a word that is taken, as in ``lambda_`` and its direction
    ``dot_lambda_``.

    Raises:
        DeclarationError: naming the rule.
    """
    stem = name.removesuffix("_")
    word = _DIRECTIONS.sub("", stem)
    is_habit = stem != name and (reserved_by(word) is not None or hasattr(builtins, word))
    if not IDENTIFIER.match(stem if is_habit else name):
        raise DeclarationError(
            f"{what} {name!r} is no valid name: use ASCII or Greek letters, digits and single "
            f"underscores between them, starting with a letter",
            code="declaration.name",
        )


def check_name(name: str, what: str) -> None:
    """Accept a name that is a plain identifier, unreserved and outside the derived prefixes.

    Raises:
        DeclarationError: with the reason and a name that would do.
    """
    check_identifier(name, what)
    if of_gradient(name) is not None:
        raise DeclarationError(
            f"{what} {name!r} starts with d_, which names derived gradients; "
            f"rename it, for example to {name[2:] + '_value'!r}",
            code="declaration.name",
        )
    owner = reserved_by(name)
    if owner is not None:
        raise DeclarationError(
            f"{what} {name!r} is reserved by {owner}; rename it, for example to "
            f"{_other_name(name)!r}",
            code="declaration.name",
        )


def check_argument(name: str, what: str) -> None:
    """Accept the name of an argument of a kernel's functions: none of their keywords.

    Raises:
        DeclarationError: naming the keyword.
    """
    if name in OPTIONS:
        raise DeclarationError(
            f"{what} {name!r} is an argument of the kernel's functions, and {name} is an option of "
            f"their calls; rename it, for example to {f'{name}_value'!r} (a value that is neither "
            f"declared nor returned may have the name)",
            code="declaration.name",
        )


def check_dim(name: str) -> None:
    """Accept the name of a dimension.

    Raises:
        DeclarationError: no identifier, or a keyword of ``plan`` or ``init``, which take
            dimensions by name.
    """
    check_identifier(name, "dimension")
    if name in PLAN_KEYWORDS:
        raise DeclarationError(
            f"dimension {name!r} would be an argument of plan(...) and init(...), which have one "
            f"of that name; rename it, for example to {f'{name}_size'!r}",
            code="declaration.name",
        )


def check_cell_name(name: str) -> None:
    """Accept the name of a cell: of its folder, its files and its functions in C.

    Raises:
        DeclarationError: with the reason and a name that would do.
    """
    check_name(name, "cell")
    if not name.isascii():
        raise DeclarationError(
            f"cell {name!r} is named in letters that file systems may not have; rename it, for "
            f"example to {spelled(name)!r}",
            code="declaration.name",
        )
    if is_taken_for_cells(name):
        raise DeclarationError(
            f"cell {name!r}: its files and functions would have names of the runtime or of a "
            f"header of C; rename it, for example to {f'my_{name}'!r}",
            code="declaration.name",
        )


def is_taken_for_cells(name: str) -> bool:
    """Whether files or functions named after a cell would hide others.

    None of them are of a ``..._cell``.
    """
    taken = reserved_by(name) is not None or name in HEADERS
    runtime = name in ("cg", "cellgen") or bool(RUNTIME.match(name))
    return taken or (runtime and not name.endswith("_cell"))


def _other_name(name: str) -> str:
    """A name that would do for one that is taken."""
    small = name.lower()
    return next(o for o in (f"{small}_value", f"my_{small}") if reserved_by(o) is None)


def snake_case(class_name: str) -> str:
    """Turn a class name into a cell name: ``GRUBlockCell`` is ``gru_block_cell``.

    >>> snake_case("GRUBlockCell"), snake_case("LSTM"), snake_case("MinimalGatedUnit2")
    ('gru_block_cell', 'lstm', 'minimal_gated_unit2')
    """
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", spelled(class_name))
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()


def cell_name(class_name: str) -> str:
    """Name a cell after its class; where that is taken, with ``_cell``: ``Cellgen``, ``Exp``.

    >>> cell_name("LSTM"), cell_name("Cellgen"), cell_name("Double")
    ('lstm', 'cellgen_cell', 'double_cell')
    """
    small = snake_case(class_name)
    return f"{small}_cell" if is_taken_for_cells(small) else small


class Names:
    """Hands out names that are not taken yet, however they are spelled: ``x_h``, ``x_h_2``, ..."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {spelled(name) for name in taken}

    def fresh(self, name: str, *, is_whole: bool = False) -> str:
        """Return a name that is not taken, and take it; 40 letters of it unless ``is_whole``."""
        name = name if is_whole or len(name) <= 40 else name[:40].rstrip("_")
        candidate, count = name, 1
        while spelled(candidate) in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(spelled(candidate))
        return candidate

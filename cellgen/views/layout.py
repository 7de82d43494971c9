"""Break lines of text and equations so that they fit: nothing is cut.

Input: text, and how many columns there are. Output: the same words on more lines; what goes on is
indented under the line that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

LINE = 98
"""Columns of signatures and prose, where there is room for as many."""
HANGING = 4
"""Columns that a line which goes on is indented by, under its first."""
LEAST_ROOM = 16
"""Columns of words, however deep a line is indented."""
LEAST_FIRST = 30
"""Columns of the first words of a row beside the others."""
AFTER, BETWEEN = ("+", "-", "*", "/", "@", "->", "="), ("@", "*", "/")
"""What a line is not broken after, and what it is broken before where nothing else is left."""


def fitted(text: str, width: int | None) -> str:
    """The text with no line wider than ``width``, but for words that are; None: as it is."""
    if width is None:
        return text
    return "\n".join(piece for line in text.splitlines() for piece in broken(line, width))


def broken(line: str, width: int) -> list[str]:
    """The lines that one line becomes, broken where the fewest brackets are open."""
    rest = line.strip()
    indent = " " * (len(line) - len(line.lstrip()))
    pieces: list[str] = []
    while len(rest) > (room := max(width - len(indent), LEAST_ROOM)):
        at = _break_of(rest, room)
        if at is None:
            break
        pieces.append(indent + rest[:at])
        rest = rest[at + 1 :].lstrip()
        indent = indent if len(pieces) > 1 else indent + " " * HANGING
    return [*pieces, (indent + rest).rstrip()]


def columns_of(rows: Sequence[tuple[str, ...]], width: int | None = None) -> list[str]:
    """Rows of words in columns; where they are too wide, the words of the first are broken.

    Where little is left for those, the others stand below.
    """
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    if width is None or not rows:
        return [_row(row, widths) for row in rows]
    room = width - sum(size + 2 for size in widths[1:] if size)
    if room < min(LEAST_FIRST, widths[0]):
        return [line for row in rows for line in _stacked(row, width)]
    widths[0] = min(widths[0], room)
    lines = []
    for first, *others in rows:
        *above, last = broken(first, widths[0])
        lines += [*above, _row((last, *others), widths)]
    return lines


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(word.ljust(n) for word, n in zip(row, widths, strict=True)).rstrip()


def _stacked(row: tuple[str, ...], width: int) -> list[str]:
    below = "  ".join(word for word in row[1:] if word)
    return [*broken(row[0], width), *broken(" " * HANGING + below, width)]


def _break_of(text: str, room: int) -> int | None:
    """The space to break at: of the right half where there is one there, the outermost, the last.

    The first of all where none is within the room; None where there is none.
    """
    depths, depth = {}, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == " " and place:
            if place > room:
                break
            depths[place] = depth
    if not depths:
        after = text.find(" ", 1)
        return after if after > 0 else None
    right = [place for place in depths if 2 * place >= room] or list(depths)
    return min(right, key=lambda place: (depths[place], _cost(text, place), -place))


def _cost(text: str, place: int) -> int:
    before, after = text[:place].rpartition(" ")[2], text[place + 1 :].partition(" ")[0]
    return 2 if before in AFTER else int(after in BETWEEN)

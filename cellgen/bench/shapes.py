"""The shapes to time: lengths of T, B, I, H, by name or in figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from cellgen import accept
from cellgen.errors import UsageError

HEADS = 4


@dataclass(frozen=True)
class BenchShape:
    """Steps T, rows B, inputs I, units H; ``name`` is how tables call it."""

    T: int
    B: int
    I: int
    H: int
    name: str

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths by the names of dimensions."""
        return {"T": self.T, "B": self.B, "I": self.I, "H": self.H}

    def sizes_of(self, names: Iterable[str]) -> dict[str, int]:
        """Lengths of a cell's dimensions: H units are ``HEADS`` heads K of D, or N of D and K keys.

        Any other dimension (a projection, a hidden layer inside a step) is as long as the input.
        """
        names, units = tuple(names), max(1, self.H // HEADS)
        keys = {"N": HEADS, "K": units} if "N" in names else {"K": HEADS}
        known = self.sizes | keys | {"D": units}
        return {name: known.get(name, self.I) for name in names} | self.sizes

    @property
    def text(self) -> str:
        """The lengths as the command line takes them."""
        return f"{self.T},{self.B},{self.I},{self.H}"


NAMED = {
    shape.name: shape
    for shape in (
        BenchShape(100, 1, 128, 128, "W1"),
        BenchShape(100, 32, 128, 256, "W2"),
        BenchShape(100, 64, 512, 512, "W3"),
        BenchShape(50, 128, 1024, 1024, "W4"),
        BenchShape(1000, 16, 64, 64, "W5"),
        BenchShape(1, 32, 128, 256, "W6"),
    )
}
"""One row, a small and a large layer, a very large one, many small steps, a single step."""


def parse_shapes(texts: Sequence[str], option: str = "--shapes") -> tuple[BenchShape, ...]:
    """Read ``W1,W2`` and ``T,B,I,H``, also mixed: ``W1,20,4,8,16``; W1 to W6 where none is given.

    ``option`` is what messages call it.

    Raises:
        UsageError: an unknown name, or lengths that are not four positive numbers.
    """
    words = iter([word for text in texts for word in re.split(r"[\s,;]+", text) if word])
    shapes = []
    for word in words:
        if word.upper() in NAMED:
            shapes.append(NAMED[word.upper()])
        else:
            shapes.append(_in_figures((word, *islice(words, 3)), option))
    return tuple(dict.fromkeys(shapes)) or tuple(NAMED.values())


def _in_figures(words: tuple[str, ...], option: str) -> BenchShape:
    text = ",".join(words)
    lengths = [length for word in words if (length := accept.digits(word))]
    if len(words) != 4 or len(lengths) != 4:
        raise UsageError(
            f"{option}: {accept.quoted(text)} is neither one of {', '.join(NAMED)} nor four "
            f"positive lengths T,B,I,H; write for example {option} W5 or {option} 100,32,128,256"
        )
    T, B, I, H = lengths
    return BenchShape(T, B, I, H, text)

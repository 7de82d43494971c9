"""Cells with a matrix for each row, drawn: states, inputs and weights over axes N, D, K and 1, what
broadcasting makes of them, and sums along any of their axes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import cellgen
from cellgen import Cell

NAMES = ("N", "D", "K")


class Draft:
    """One cell, as the lines of a class body."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rank = 3 if self.random.random() < 0.3 else 2
        self.axes = NAMES[-self.rank :]
        self.shapes: dict[str, tuple[str, ...]] = {}
        self.lines: list[str] = []
        self.states: list[str] = []

    def shape(self, least: int = 0) -> tuple[str, ...]:
        """Axes of which some are 1; at least so many are not."""
        while True:
            found = tuple(self.random.choice((axis, axis, "1")) for axis in self.axes)
            if sum(axis != "1" for axis in found) >= least:
                return found

    def declare(self, name: str, kind: str, shape: Sequence[str]) -> None:
        self.lines.append(f"{name} = {kind}({', '.join(shape)})")

    def source(self) -> str:
        draw = self.random.random
        for n in range(self.random.choice((1, 1, 2))):
            shape = self.shape(2 if n == 0 else 1)
            self.declare(f"s{n}_prev", "State", shape)
            self.shapes[f"s{n}_prev"] = shape
            self.states.append(f"s{n}")
        for n in range(self.random.choice((2, 3))):
            self.shapes[f"i{n}"] = self.shape()
            self.declare(f"i{n}", "Input", self.shapes[f"i{n}"])
        for n in range(self.random.choice((1, 2))):
            own = self.shape(1)[-self.random.choice((1, self.rank)) :]
            self.declare(f"w{n}", self.random.choice(("Weight", "Bias")), own)
            self.shapes[f"w{n}"] = ("1",) * (self.rank - len(own)) + own
        if draw() < 0.5:
            shape = self.shape()
            self.lines += ["x = Input(I)", f"u = Weight(I, {', '.join(shape)})", "p = x @ u"]
            self.shapes["p"] = shape
        for n in range(self.random.choice((1, 2, 3))):
            shape = self.shape()
            self.lines.append(f"v{n} = {self.term(shape)}")
            self.shapes[f"v{n}"] = shape
        for state in self.states:
            shape = self.shapes[f"{state}_prev"]
            gate, term = self.term(shape), self.term(shape)
            self.lines.append(f"{state} = sigmoid({gate}) * {state}_prev + {term}")
            self.shapes[state] = shape
        self.read_all()
        self.lines.append(f"outputs = {', '.join(['y', *self.states])}")
        return "\n".join(self.lines)

    def read_all(self) -> None:
        """An output that reads what nothing else does, and every state."""
        read = set(re.findall(r"\w+", " ".join(line.split(" = ", 1)[1] for line in self.lines)))
        unread = [name for name in self.shapes if name not in read or name in self.states]
        shape = self.shape()
        terms = [self.reduced(name, self.shapes[name], shape) for name in unread]
        self.lines.append(f"y = {' + '.join([self.term(shape), *terms])}")

    def term(self, shape: tuple[str, ...]) -> str:
        """A product of some values, added up along the axes that the shape lacks; as wide as it."""
        names = self.random.choices(sorted(self.shapes), k=self.random.choice((1, 2, 3)))
        wide = list(shape)
        for name in names:
            wide = [b if a == "1" else a for a, b in zip(wide, self.shapes[name], strict=True)]
        factors = [f"tanh({n})" if self.random.random() < 0.5 else n for n in names]
        whole = next(
            (n for n in sorted(self.shapes, key=self.priority) if self.shapes[n] == shape), None
        )
        covered = {axis for name in names for axis in self.shapes[name]}
        if not {axis for axis in shape if axis != "1"} <= covered:
            factors.append(whole or f"({self.cover(shape)})")
        return self.reduced(" * ".join(factors), tuple(wide), shape)

    def priority(self, name: str) -> float:
        return self.random.random()

    def cover(self, shape: tuple[str, ...]) -> str:
        """Values that together have all axes of a shape and no other."""
        names = []
        for n, axis in enumerate(shape):
            if axis == "1":
                continue
            name = f"c{len(self.shapes)}"
            own = tuple(axis if m == n else "1" for m in range(self.rank))
            self.lines.insert(0, f"{name} = Input({', '.join(own)})")
            self.shapes[name] = own
            names.append(name)
        return " + ".join(names) or "1"

    def reduced(self, text: str, wide: tuple[str, ...], shape: tuple[str, ...]) -> str:
        axes = [a for a, b in zip(wide, shape, strict=True) if b == "1" and a != "1"]
        if not axes:
            return text
        reduce = self.random.choice(("sum", "sum", "mean"))
        return f"{reduce}({text}, axis=({', '.join(axes)},))"


def drawn(seed: int) -> type[Cell]:
    """The cell of a seed."""
    body = "\n".join(f"    {line}" for line in Draft(seed).source().splitlines())
    names = {name: cellgen.Dim(name) for name in NAMES}
    names |= {name: getattr(cellgen, name) for name in cellgen.__all__ if name not in names}
    exec(f"class Drawn{seed}(Cell):\n{body}\n", names)
    cell: type[Cell] = names[f"Drawn{seed}"]
    return cell

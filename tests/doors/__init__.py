"""One description of a case, and the doors through which a call can be made.

A ``Case`` is a cell with options over time: its arguments, the gradients of its results and what
NumPy's checked call gives of them. A ``Door`` makes the same call in its own way. ``cases_of`` says
which cases a door has: those whose options it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np

import cellgen
from cellgen.runtime.call.segments import KEYWORDS
from cellgen.runtime.kernel import Kernel
from tests.drawing import draw_arrays

Arrays = dict[str, np.ndarray]

SIZES = {"T": 7, "B": 2, "I": 2, "H": 3}
CELLS = ("gru", "sru")
"""All outputs are states; an output that is none."""
MASK = np.array([[1, 0], [1, 1], [0, 1]] * 2 + [[1, 0]], bool)
RESET = np.array([[0, 0], [1, 0], [0, 1]] * 2 + [[0, 1]], bool)
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "reset": {"reset": RESET, "zero_output_for_mask": True},
    "flush": {"flush_denormals": True},
    "checkpoint": {"checkpoint": 3},
    "beyond the end": {"checkpoint": 9},
    "limit": {"memory_limit": 900},
    "no limit": {"memory_limit": 1 << 20},
    "every": {"every": 2},
    "every, checkpoint": {"every": 3, "checkpoint": 2},
    "outputs": {"outputs": ("h",)},
    "outputs, checkpoint": {"outputs": ("h",), "checkpoint": 3},
    "last": {"last_only": True},
    "last, checkpoint": {"last_only": True, "checkpoint": 3},
    "batch first": {"batch_first": True},
    "batch first, every": {"batch_first": True, "every": 2},
    "batch first, outputs": {"batch_first": True, "outputs": ("h",), "checkpoint": 2},
    "batch first, last, reset": {
        "batch_first": True,
        "last_only": True,
        "checkpoint": 3,
        "reset": RESET,
    },
    "products": {"products": "bf16"},
    "segments": {"parallel": "segments", "segments": 3, "sweeps": 9},
    "segments, reset": {"parallel": "segments", "segments": 2, "sweeps": 0, "reset": RESET},
    "products, checkpoint": {"products": "bf16", "checkpoint": 2},
}
"""What a call shows, keeps, clears and multiplies in."""
TABLES: Mapping[str, Mapping[str, object]] = {
    "all": {},
    "lengths": {"lengths": np.array([7, 4])},
    "mask": {"mask": MASK, "reverse": True},
}
"""Which steps are valid, and their order."""


@dataclass(frozen=True)
class Results:
    """Outputs and final states by name, None where a call shows none; gradients by argument."""

    shown: Mapping[str, np.ndarray | None]
    gradients: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A cell with options; ``afresh``: its states begin at zero, and no final one is wanted."""

    cell: str
    option: str = "plain"
    tables: str = "all"
    afresh: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.cell}, {self.tables}, {self.option}"

    @property
    def options(self) -> dict[str, object]:
        """Keywords of the call beside its arrays; tables of steps are laid out as those are."""
        options = {**TABLES[self.tables], **OPTIONS[self.option]}
        laid_out = {n: self.laid_out(options[n]) for n in ("mask", "reset") if n in options}
        return {**options, **laid_out}

    def laid_out(self, over_time: np.ndarray) -> np.ndarray:
        """An array (T, B, ...) as the call has it: (B, T, ...) where rows come first."""
        is_batch_first = "batch_first" in OPTIONS[self.option]
        return np.ascontiguousarray(over_time.swapaxes(0, 1)) if is_batch_first else over_time

    @property
    def fits(self) -> bool:
        """Whether its options go together: segments take no mask, and of outputs that are states
        the last step alone is final states, which a run that begins afresh does not show."""
        shows_nothing = self.afresh and self.cell == "gru" and "last_only" in self.options
        return not ({"parallel", "mask"} <= {*self.options} or shows_nothing)

    @property
    def kernel(self) -> Kernel:
        """The kernel of the C target."""
        return cellgen.load(self.cell)

    @cached_property
    def arguments(self) -> Arrays:
        """Arrays of the call by name, small numbers."""
        function = self.kernel.sequence_forward.function
        arrays = draw_arrays(function, SIZES, scale=0.4, dtype=self.dtype)
        for item in function.arguments:
            if self.afresh and item.role == "state":
                arrays[item.name] *= 0
            elif item.over_time:
                arrays[item.name] = self.laid_out(arrays[item.name])
        return arrays

    def of_role(self, *roles: str) -> Arrays:
        """Arrays of the call that are inputs, states, weights, ... of the cell."""
        items = self.kernel.sequence_forward.function.arguments
        return {i.name: self.arguments[i.name] for i in items if i.role in roles}

    @cached_property
    def run(self) -> tuple[object, ...]:
        """NumPy's checked call, step by step, which saves.

        What it shows of the last step alone it keeps at checkpoints: beside all that a backward
        pass reads it shows that.
        """
        options = {n: value for n, value in self.options.items() if n not in KEYWORDS}
        if "last_only" in options:
            options.setdefault("checkpoint", 3)
        return self.kernel.sequence_forward(**self.arguments, **options, save=True)

    @property
    def shown(self) -> dict[str, np.ndarray | None]:
        """Results of the call, by name; of a run that begins afresh, those over time."""
        shown = {n: a for n, a in self.run._asdict().items() if n != "saved"}
        return {n: a for n, a in shown.items() if not (self.afresh and n.endswith("_last"))}

    @cached_property
    def upstream(self) -> Arrays:
        """Gradients of the results, by the results' names."""
        rng = np.random.default_rng(1)
        shown = {n: a for n, a in self.shown.items() if a is not None}
        return {n: rng.standard_normal(a.shape).astype(self.dtype) for n, a in shown.items()}

    @property
    def backward(self) -> dict[str, object]:
        """Arguments of ``sequence_backward`` beside ``saved``."""
        names = {a.name for a in self.kernel.sequence_backward.function.arguments}
        part = {"every", "outputs"} & {*self.options} or self.run.saved.run.checkpoint
        outputs = {} if part else {n: a for n, a in self.shown.items() if n in names}
        upstream = {f"d_{n}": self._over_time(n, a) for n, a in self.upstream.items()}
        upstream = {n: a for n, a in upstream.items() if n in names}
        how = {n: v for n, v in self.options.items() if n in ("products", "batch_first")}
        return {**self.arguments, **outputs, **upstream, **how}

    def _over_time(self, name: str, upstream: np.ndarray) -> np.ndarray:
        """The gradient of an output as a backward pass takes it: of all steps, of the last too."""
        if "last_only" not in self.options or name.endswith("_last"):
            return upstream
        tables = TABLES[self.tables]
        steps, rows = np.arange(SIZES["T"])[:, None], np.arange(SIZES["B"])
        valid = tables.get("mask", steps < tables.get("lengths", np.full(SIZES["B"], SIZES["T"])))
        last = valid.argmax(0) if "reverse" in tables else (steps * valid).argmax(0)
        spread = np.zeros((SIZES["T"], *upstream.shape), upstream.dtype)
        spread[last, rows] = upstream
        return self.laid_out(spread)

    @cached_property
    def expected(self) -> Results:
        """What NumPy's checked calls give."""
        found = self.kernel.sequence_backward(**self.backward, saved=self.run.saved)
        return Results(self.shown, by_argument(found._asdict()))


def by_argument(gradients: Mapping[str, np.ndarray]) -> Arrays:
    """Gradients by the names of what they are of."""
    return {name.removeprefix("d_"): array for name, array in gradients.items()}


@dataclass(frozen=True)
class Door:
    """A way to make a call; ``needs`` are modules beside NumPy, ``options`` those that it takes.

    ``tolerance`` is 0 where its bits are the kernel's. A door may have fewer pairs of a cell and
    its tables; ``afresh`` as a ``Case``. ``gradients``: all, of
    what learns ("weights"), or none (""). ``in_turn``: each option meets one of the pairs each
    time, and all of them with the slow tests.
    """

    name: str
    run: Callable[[Case], Results]
    options: tuple[str, ...] = tuple(OPTIONS)
    needs: tuple[str, ...] = ()
    tolerance: float = 0.0
    pairs: tuple[tuple[str, str], ...] = tuple((c, t) for c in CELLS for t in TABLES)
    afresh: bool = False
    gradients: str = "all"
    in_turn: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def is_there(self) -> bool:
        """Whether the modules that it needs are there."""
        return all(find_spec(module) for module in self.needs)

    def cases(self) -> Iterator[Case]:
        """The cases that it takes."""
        for cell, tables in self.pairs:
            cases = (Case(cell, option, tables, self.afresh) for option in self.options)
            yield from (case for case in cases if case.fits)

    def is_seldom(self, case: Case) -> bool:
        """Whether a case waits for the slow tests: another pair has its option each time."""
        if not self.in_turn:
            return False
        fit = [p for p in self.pairs if Case(p[0], case.option, p[1]).fits]
        return (case.cell, case.tables) != fit[self.options.index(case.option) % len(fit)]

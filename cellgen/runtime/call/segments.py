"""Segments of time run side by side, as rows: ``parallel="segments"`` of a forward pass.

A row of T steps is cut into segments of s steps. All run at once, as rows of one call of the same
kernel on the same arrays, s steps apart; then every segment whose first state is not the last state
of the segment before runs once more from there. A row of a kernel has the bits that it has alone,
so a segment that starts from the right bits ends with them: results are those of step by step, to
the bit, however first states were guessed. Cells that forget are done after the first pass, since
a guess is what the last steps of the segment before make of the row's own first state.

Input: a checked call, and ``Segmentation``. Output: its results by name, and ``SegmentsRun``.
Not supported: mask, every, plans, checkpoints; cells whose states go through steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.names import final_of
from cellgen.runtime.options import NONE, ROWS, SEGMENTS, Options, with_tables
from cellgen.runtime.results import Array

KEYWORDS = frozenset({"parallel", "segments", "tolerance", "sweeps"})
REFUSED = ("mask", "every", "plan", "checkpoint", "memory_limit")
"""Options that a call in segments cannot have."""

LEAST_STEPS, MOST_SEGMENTS, MOST_UNITS = 512, 64, 1024
"""Where a call does not say how many segments there are: steps of one at least, segments at most,
and numbers of a state over all of them at most."""
PAYS_STEPS, PAYS_UNITS = 16384, 8
"""Where segments are faster than steps on a CPU, by benchmarks/long_rows.py: from so many steps on,
up to so many numbers of a state over all rows."""
TOLERANT_STEPS, TOLERANT_UNITS = 8192, (32, 256)
"""Where one row whose units read each other gains with a tolerance of 1e-6, by
benchmarks/long_rows_dense.py."""
DEVICE_STEPS, DEVICE_UNITS = 1000, 8000
"""Where segments are faster than steps on a GPU, by a model of an H100: from so many steps on,
below so many numbers of a state over all rows."""
WARM = 4
"""A guess runs one of so many parts of the segment before."""
NEAR = 4
"""Segments to run once more that lie as near are one call, with those between them."""


class SegmentsRun(NamedTuple):
    """How a call in segments went.

    ``segments`` and ``sweeps`` are those of the row that had the most, ``stepped`` counts steps,
    over all rows, that were run step by step because ``sweeps`` did not suffice.
    """

    segments: int
    sweeps: int
    stepped: int


@dataclass(frozen=True)
class Segmentation:
    """What a call says of its segments; ``segments``: 0 for as many as suit the shape."""

    segments: int = 0
    tolerance: float = 0.0
    sweeps: int = 4

    def count(self, steps: int, units: int) -> int:
        """The segments of a row of so many steps whose largest state has so many units."""
        if self.segments:
            return max(min(self.segments, steps), 1)
        most = min(steps // LEAST_STEPS, MOST_SEGMENTS, MOST_UNITS // max(units, 1))
        return max(most, 1)


def segments_of(
    label: str, arguments: dict[str, Any], options: Mapping[str, object], jumps: str
) -> Segmentation | None:
    """Take what a call says of segments out of its arguments; None: it is step by step.

    ``options`` are the others that it states, ``jumps`` the statement by which the cell's states
    jump. Raises ArgumentError.
    """
    if KEYWORDS.isdisjoint(arguments):
        return None
    stated = {name: arguments.pop(name) for name in KEYWORDS if name in arguments}
    cut = Segmentation(
        accept.whole(label, "segments", stated.get("segments", Segmentation.segments)),
        accept.real(
            label,
            "tolerance",
            stated.get("tolerance", Segmentation.tolerance),
            0.0,
            float(np.finfo(np.float32).max),
            expected="a finite number, 0 or more",
        ),
        accept.whole(label, "sweeps", stated.get("sweeps", Segmentation.sweeps)),
    )
    if stated.get("parallel") is None:
        for name in ("segments", "tolerance", "sweeps"):
            if getattr(cut, name) != ROWS[name].default:
                raise ArgumentError(
                    f"{label}: {name} is {accept.quoted(stated[name])} and parallel is None, "
                    f"expected {name} with parallel={SEGMENTS!r} alone; pass that too, or leave "
                    f"{name} out"
                )
        return None
    accept.choice(label, "parallel", stated["parallel"], (SEGMENTS,))
    for name in REFUSED:
        if name in options and not _is_usual(options[name], getattr(NONE, name)):
            raise ArgumentError(
                f"{label}: parallel is {SEGMENTS!r} and {name} is given, expected none of "
                f"{', '.join(REFUSED)}; leave {name} out, or parallel"
            )
    if jumps:
        raise ArgumentError(
            f"{label}: parallel is {SEGMENTS!r}, expected a cell whose states follow each other "
            f"without steps: `{jumps}` jumps, so that a segment forgets no difference of its first "
            f"state, and would be run step by step; leave parallel out"
        )
    return cut


def _is_usual(value: object, usual: object) -> bool:
    """Whether an option says what it says where it is left out; NumPy's numbers are numbers."""
    is_number = isinstance(value, int | np.integer) and isinstance(usual, int)
    return value is usual or (is_number and bool(value == usual))


def refuse_bound(label: str, arguments: dict[str, Any], limit: object) -> None:
    """Refuse what takes several calls of other dimensions in a bound call. Raises ArgumentError.

    What a call says of segments is taken out of its arguments.
    """
    cut = segments_of(f"{label}.bind", arguments, {}, "")
    if limit is not None or cut is not None:
        several = "parallel" if limit is None else "bp_lim"
        raise ArgumentError(
            f"{label}.bind: {several} is given, expected none: it takes several calls of other "
            f"dimensions; call {label} itself"
        )


class RunSegments(Protocol):
    """Makes a call of some rows and steps."""

    def __call__(
        self, arguments: dict[str, Any], results: dict[str, Array], options: Options, *, keep: bool
    ) -> Mapping[str, Array | None]:
        """Return results by name."""


@dataclass(frozen=True)
class WholeCall:
    """A call of all steps: its arrays time-major, its results made, how a part of it is run.

    ``run`` takes arguments, results to write to, and options; it returns results by name, with
    ``keep`` what steps save, too. ``sizes`` are steps and rows, ``whole`` the outputs that are
    formed at all steps, ``ends_alone`` the options of a run of which final states count alone.
    """

    function: Function
    arguments: Mapping[str, Any]
    scalars: Mapping[str, object]
    options: Options
    lengths: Array | None
    reset: Array | None
    results: Mapping[str, Array]
    run: RunSegments
    save: bool
    sizes: tuple[int, int]
    whole: frozenset[str]
    ends_alone: Options


def in_segments(call: WholeCall, cut: Segmentation) -> SegmentsRun:
    """Fill the results of a call, row by row."""
    total, rows = call.sizes
    ran = [
        _Row(call, row, total if call.lengths is None else int(call.lengths[row])).fill(cut)
        for row in range(rows)
    ]
    segments, sweeps, stepped = zip(*ran, strict=True) if ran else ((0,), (0,), (0,))
    return SegmentsRun(max(segments), max(sweeps), sum(stepped))


class _Row:
    """One row of a batch: its valid steps are the first ``total`` ones."""

    def __init__(self, call: WholeCall, row: int, total: int) -> None:
        self.call, self.row, self.total = call, row, total
        function = call.function
        self.states, self.finals = function.states, function.finals
        items = {item.name: item for item in function.arguments if item.used}
        arrays = {n: a for n, a in call.arguments.items() if n in items and a is not None}
        self.over_time = {n: a for n, a in arrays.items() if items[n].over_time}
        self.weights = {n: a for n, a in arrays.items() if items[n].is_weight}
        self.still = {
            n: a[row : row + 1]
            for n, a in arrays.items()
            if items[n].shape[:1] == ("B",) and items[n].role != "state"
        }
        self.first = {n: arrays[n][row : row + 1] for n in self.states}
        saved = {item.name for item in function.results if item.saved}
        results = call.results
        # What steps save lies in the order of computation, all else by time.
        order = slice(None, None, -1 if call.options.reverse else 1)
        self.saved = {n: results[n][order] for n in results if n in saved}
        self.outputs = {n: results[n] for n in results if n in call.whole}
        self.at_end = {n: results[n] for n in results if n not in saved | call.whole}
        self.reached = 0

    def fill(self, cut: Segmentation) -> SegmentsRun:
        """Run all steps of the row and write its results."""
        for array in (*self.outputs.values(), *self.saved.values()):
            array[self.total :, self.row] = 0
        units = max((a.size for a in self.first.values()), default=1)
        count = cut.count(self.total, units)
        steps = self.total // count
        if count < 2:
            self._finish(self.run(0, self.total, 1, self.first) if self.total else dict(self.first))
            return SegmentsRun(1, 0, 0)
        ends, exact, sweeps = self._converge(cut, count, steps)
        if exact < count:  # the rest follows from the last segment that is right to the bit
            ends = {n: a[exact - 1 : exact] for n, a in ends.items()}
        else:
            ends = {n: a[-1:] for n, a in ends.items()}
        done = exact * steps
        if done < self.total:
            ends = self.run(done, self.total - done, 1, ends)
        self._finish(ends)
        return SegmentsRun(count, sweeps, self.total - done if exact < count else 0)

    def _converge(
        self, cut: Segmentation, count: int, steps: int
    ) -> tuple[dict[str, Array], int, int]:
        """Run segments until they agree.

        Returns their last states, how many segments count, from the first on, and the sweeps.
        """
        warm = max(steps // WARM, 1)
        many = {n: np.repeat(a, count, axis=0) for n, a in self.first.items()}
        guess = self.run(0, steps, count, many, warm)
        firsts = {n: np.concatenate([a, guess[n][:-1]]) for n, a in self.first.items()}
        ends = self.run(0, steps, count, firsts)
        sweeps = 0
        while True:
            wrong = self._wrong(firsts, ends, cut.tolerance)
            if not wrong.any():
                return ends, count, sweeps
            if sweeps >= cut.sweeps:
                return ends, int(np.argmax(self._wrong(firsts, ends, 0.0))), sweeps
            sweeps += 1
            for n, a in firsts.items():
                a[1:][wrong[1:]] = ends[n][:-1][wrong[1:]]
            for begin, end in _runs(np.flatnonzero(wrong)):
                part = {n: a[begin:end] for n, a in firsts.items()}
                again = self.run(begin * steps, steps, end - begin, part)
                for n, a in again.items():
                    ends[n][begin:end] = a

    def _wrong(
        self, firsts: Mapping[str, Array], ends: Mapping[str, Array], tolerance: float
    ) -> Array:
        """The segments whose first state is not the last one of the segment before."""
        wrong = np.zeros(len(next(iter(firsts.values()))), bool)
        for n, a in firsts.items():
            wrong[1:] |= differ(a[1:], ends[n][:-1], tolerance)
        return wrong

    # --- a part of the row ---

    def run(
        self, done: int, steps: int, count: int, states: Mapping[str, Array], warm: int = 0
    ) -> dict[str, Array]:
        """Run segments side by side behind so many steps; return their last states.

        With ``warm`` the last so many steps of each, of which nothing is kept.
        """
        call, reverse = self.call, self.call.options.reverse
        begin = self.total - done - count * steps if reverse else done

        def cut(array: Array) -> Array:
            part = array[begin : begin + count * steps, self.row]
            rows = part.reshape(count, steps, *part.shape[1:]).swapaxes(0, 1)
            return (rows[:warm] if reverse else rows[steps - warm :]) if warm else rows

        def ordered(array: Array) -> Array:  # rows lie by time, states by the order of computation
            return np.ascontiguousarray(array[::-1] if reverse else array)

        arguments: dict[str, Any] = {n: cut(a) for n, a in self.over_time.items()}
        arguments |= self.weights
        arguments |= {n: np.repeat(a, count, axis=0) for n, a in self.still.items()}
        arguments |= {n: ordered(a) for n, a in states.items()} | dict(call.scalars)
        options = call.ends_alone if warm else call.options
        if call.reset is not None:
            options = with_tables(options, reset=cut(call.reset))
        out = {} if warm else {n: cut(a) for n, a in self.outputs.items()}
        formed = call.run(arguments, out, options, keep=call.save and not warm)
        results = {n: a for n, a in formed.items() if a is not None}
        for n, array in () if warm else self.saved.items():
            cut(array)[...] = results[n][:: -1 if reverse else 1]
        if not warm and done + count * steps >= self.reached:
            self.reached, last = done + count * steps, 0 if reverse else count - 1
            for n in self.at_end.keys() - self.finals:
                self.at_end[n][self.row] = results[n][last]
        ends = {n: results[final_of(new)] for n, new in self.states.items()}
        return {n: ordered(a) for n, a in ends.items()}

    def _finish(self, ends: Mapping[str, Array]) -> None:
        """Write the final states."""
        for n, new in self.states.items():
            self.at_end[final_of(new)][self.row : self.row + 1] = ends[n]


def _runs(places: Array) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of places, those that are near in one."""
    apart = np.flatnonzero(np.diff(places) > NEAR)
    begins = places[np.concatenate([[0], apart + 1])]
    ends = places[np.concatenate([apart, [len(places) - 1]])]
    for begin, end in zip(begins, ends, strict=True):
        yield int(begin), int(end) + 1


def differ(a: Array, b: Array, tolerance: float) -> Array:
    """Which rows of two arrays differ: in bits, or by more than a tolerance from what is finite."""
    word = np.dtype(f"u{a.itemsize}")
    same = a.view(word) == b.view(word)
    if tolerance:
        numbers, due = a.astype(np.float64), b.astype(np.float64)  # arithmetic without a buffer
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(numbers - due) <= tolerance * np.maximum(1.0, np.abs(due))
        same |= np.isfinite(due) & near
    rows: Array = ~same.all(axis=tuple(range(1, a.ndim)))
    return rows

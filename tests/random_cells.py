"""Random cells from the operator table, written as an author would; the long run is a command.

    python -m tests.random_cells --count 1000 --seed 0          # everything, compiled at -O1
    python -m tests.random_cells --count 1000 --equations-only  # no compiler: derivation alone

A cell is drawn as source text, line by line, so that a failure shrinks to a declaration that can be
read, saved and run. Values stay of ordinary size (gates are bounded, new states are convex or
bounded), so that float32 has a meaning after several steps.
"""

from __future__ import annotations

import argparse
import linecache
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, reject, seed, settings
from hypothesis import strategies as st

import cellgen
from cellgen import Cell
from cellgen.check import check
from cellgen.derive import forward
from cellgen.errors import DeclarationError
from cellgen.functions import derive_functions
from cellgen.pipeline import generate, recurrence
from cellgen.reference import interpret, shape_sizes
from cellgen.schedule.recurrence import RecurrenceClass
from cellgen.value import Role

STEP = 1e-100
"""Complex step: its square underflows, so the imaginary part is the derivative without error."""

BAR = 1e-11
"""Of the complex step against derived gradients, relative to the sum of the sizes of the terms:
450 spacings of float64 is 1e-13; a random cell may chain ten divisions by sums close to zero."""

HEADS = "N, D"
"""The width of a state with heads: N of them with D units each."""
WIDTHS = ("H", "K", "1", "2 * H", "H", HEADS)
BOUNDED = ("tanh", "sigmoid", "hard_sigmoid", "sin", "cos")
KINDS = ("atom", "affine", "sum", "product", "call", "choice", "clip", "norm", "reduce", "other")
CHOICES = ("where({a} > {b}, {a}, 0.5 * {b})", "maximum({a}, {b})", "minimum({a}, {b})")
CLIPS = ("clip({a}, -0.5, 0.75)", 'clip({a}, -0.5, 0.75, gradient="straight_through")')
NORMS = (
    "({a} - mean({a}))",
    "exp({a} - max({a}))",
    "({a} / sqrt(mean({a} ** 2) + 0.5))",
    "(exp(tanh({a})) / sum(exp(tanh({a}))))",
)
UPDATES = (
    "{new}",
    "{gate} * {old} + (1 - {gate}) * {new}",
    "0.5 * {old} + {new}",
    "where({gate} > 0.25, {old}, {new})",
)
FOLDED = ("declaration.constant", "declaration.unused")
"""Codes of what SymPy folds away before cellgen sees it, ``a - a``: such a draft is no cell."""
OTHERS = ("relu", "abs", "softplus", "log_sigmoid", "expm1", "stop_gradient", "keep")


@dataclass
class Drafting:
    """A class body while it is written: lines, and what has which width."""

    draw: Callable[..., object]
    declared: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    weights: dict[str, tuple[str, str]] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def pick(self, *options: str) -> str:
        return str(self.draw(st.sampled_from(options)))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def declare(self, kind: str, prefix: str, width: str) -> str:
        name = f"{prefix}{len(self.declared)}"
        self.declared.append(f"{name} = {kind}({width})")
        return name

    # --- expressions of one width; every one is safe to bracket ---

    def atom(self, width: str) -> str:
        """A value of a width that exists, or a new input, mask or product of one."""
        names = [name for name, own in self.known.items() if own == width]
        if names and self.draw(st.integers(0, 3)):
            name = self.pick(*names)
            self.used.add(name)
            return name
        choice = self.pick("product", "input", "static")
        if choice == "product":
            return self.product(width)
        return self.input(width, choice.capitalize())

    def input(self, width: str, kind: str) -> str:
        name = self.declare(kind, kind[0].lower(), width)
        self.known[name] = width
        self.used.add(name)
        return name

    def weight(self, inner: str, width: str) -> str:
        """A weight, shared or new, now and then the other way round or an expression."""
        if HEADS in (inner, width):
            shape = f"{HEADS}, D" if inner == width else f"{inner}, {width}"
            return self.declare("Weight", "w", shape)
        same = [name for name, shape in self.weights.items() if shape == (inner, width)]
        turned = [name for name, shape in self.weights.items() if shape == (width, inner)]
        if turned and self.chance():
            return f"transpose({self.pick(*turned)})"
        if same and self.chance():
            return self.pick(*same)
        name = self.declare("Weight", "w", f"{inner}, {width}")
        self.weights[name] = (inner, width)
        return f"(0.5 * {name})" if self.draw(st.integers(0, 9)) == 9 else name

    def product(self, width: str) -> str:
        flat = [name for name, own in self.known.items() if own != HEADS]
        able = list(self.known) if width == HEADS else flat
        if not able:
            return self.input(width, "Input")
        name = self.pick(*able)
        inner = self.known[name]
        self.used.add(name)
        operand = name
        if inner != HEADS and self.draw(st.integers(0, 4)) == 4:
            other = self.pick(*flat)
            self.used.add(other)
            operand, inner = f"concat({name}, {other})", f"{inner} + {self.known[other]}"
        elif self.draw(st.integers(0, 4)) == 4:
            operand = f"({self.pick(*BOUNDED)}({name}))"
        return f"matmul({operand}, {self.weight(inner, width)})"

    def bias(self, width: str) -> str:
        same = [name for name, own in self.biases.items() if own == width]
        if same and self.chance():
            return self.pick(*same)
        name = self.declare("Bias", "b", width)
        self.biases[name] = width
        return name

    def expression(self, width: str, depth: int = 2) -> str:
        kind = self.pick(*KINDS) if depth else "atom"
        if kind == "atom":
            return self.atom(width)
        if kind == "affine":
            return f"({self.product(width)} + {self.bias(width)})"
        if kind == "call":
            return f"{self.pick(*BOUNDED)}({self.expression(width, depth - 1)})"
        if kind == "other":
            return f"{self.pick(*OTHERS)}({self.bounded(width, depth - 1)})"
        a = self.expression(width, depth - 1)
        if kind == "clip":
            return self.pick(*CLIPS).format(a=a)
        if kind == "norm":
            return self.pick(*NORMS).format(a=a)
        b = self.expression(width, depth - 1)
        if kind == "sum":
            return f"({a} {self.pick('+', '-') if a != b else '+'} {b})"
        if kind == "product":
            return f"({self.pick('tanh', 'sigmoid')}({a}) * {b})"
        if kind == "choice":
            return self.pick(*CHOICES).format(a=a, b=b)
        return f"({b} * {self.pick('mean', 'sum', 'max')}(tanh({a})))"

    def bounded(self, width: str, depth: int = 1) -> str:
        return f"{self.pick('tanh', 'sigmoid')}({self.expression(width, depth)})"

    # --- lines ---

    def state(self, expression: str, name: str, width: str) -> None:
        self.lines.append(f"{name} = {expression}")
        self.known.setdefault(name, width)
        self.computed.append(name)

    def cell(self) -> str:
        states = {}
        for index in range(int(str(self.draw(st.integers(1, 3))))):
            width = self.pick(*WIDTHS)
            states[f"s{index}"] = width
            self.declared.append(f"s{index}_prev = State({width})")
            self.known[f"s{index}_prev"] = width
        for index in range(int(str(self.draw(st.integers(0, 4))))):
            width = self.pick(*WIDTHS)
            expression = self.expression(width)
            if expression in self.known:  # a second name is no value of its own
                expression = f"tanh({expression})"
            self.state(expression, f"v{index}", width)
            if width == "2 * H" and self.chance():
                self.lines.append(f"p{index}, q{index} = split(v{index}, 2)")
                self.used.add(f"v{index}")
                self.known |= {f"p{index}": "H", f"q{index}": "H"}
                self.computed += [f"p{index}", f"q{index}"]
        for name, width in states.items():
            old = f"{name}_prev"
            update, new = self.pick(*UPDATES), self.bounded(width)
            gate = self.bounded(width) if "{gate}" in update else ""
            update = update.format(gate=gate, new=new, old=old)
            self.state(update, name, width)
        outputs = [*states, *(n for n in self.computed if n not in states and n not in self.used)]
        body = [*self.declared, *self.lines, f"outputs = {', '.join(outputs)},"]
        lines = "".join(f"    {line}\n" for line in body)
        return f"class RandomCell(Cell):\n{lines}"


@st.composite
def sources(draw: Callable[..., object]) -> str:
    """Draw the source of a cell."""
    return Drafting(draw).cell()


def declared(source: str, noted: bool = True) -> type[Cell]:
    """Run a source as Python does, so that messages show its lines; a failed draw prints it."""
    if noted:
        note(source)
    names = {name: getattr(cellgen, name) for name in cellgen.__all__}
    names |= {"__name__": "random_cell", **{name: cellgen.Dim(name) for name in "KND"}}
    file = "<random cell>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        exec(compile(source, file, "exec"), names)
    except DeclarationError as error:
        if error.code in FOLDED:
            reject()
        raise
    made = names["RandomCell"]
    assert isinstance(made, type)
    return made


# --- what must hold ------------------------------------------------------------------------------


def equations_hold(cell: type[Cell], number: int = 0) -> None:
    """Derived gradients by complex step, the class of the recurrence, and that C is generated."""
    definition = cell.definition
    rng = np.random.default_rng(number)
    sizes = {"T": 1, **dict(zip(map(str, definition.dims), (3, 4, 3, 2, 3), strict=False))}
    arrays = {
        str(v): np.asarray(0.5 * rng.normal(size=shape_sizes(v, sizes)))
        for v in definition.declared
    }
    _gradients_hold(cell, arrays, sizes, rng)
    _class_holds(cell, arrays, sizes, rng)
    assert generate(cell).body == generate(cell).body


def _gradients_hold(cell, arrays, sizes, rng):
    definition = cell.definition
    plain, programs = forward(definition), derive_functions(definition)
    values = interpret(plain, arrays, sizes)
    upstream = {f"d_{n}": rng.normal(size=a.shape) for n, a in values.items()}
    known = {**arrays, **values, **upstream}
    for program in programs.functions[1:]:
        known |= interpret(program, known, sizes)
    for value in definition.learning(Role.INPUT, Role.STATE, Role.WEIGHT, Role.BIAS):
        if value not in plain.arguments:
            continue
        gradient = known[str(programs.adjoints[value])]
        along = rng.normal(size=gradient.shape)
        moved = {**arrays, str(value): arrays[str(value)] + 1j * STEP * along}
        loss = sum(
            np.sum(np.imag(a) / STEP * upstream[f"d_{n}"])
            for n, a in interpret(plain, moved, sizes).items()
        )
        terms = gradient * along
        size = float(np.sum(np.abs(terms))) or 1.0
        assert abs(np.sum(terms) - loss) <= BAR * size, f"d_{value}"


def _class_holds(cell, arrays, sizes, rng):
    """Where the class says so, units or heads read only themselves, and linearly."""
    found, definition = recurrence(cell), cell.definition
    if found.kind is RecurrenceClass.DENSE:
        return
    new = tuple(definition.next_state(state) for state in definition.states)
    step = forward(definition.with_outputs(new))
    moved = {**arrays, **{str(s): rng.normal(size=arrays[str(s)].shape) for s in definition.states}}
    for state in definition.states:
        for unit in np.ndindex(arrays[str(state)].shape[1:]):
            slopes = []
            for point in (arrays, moved):
                nudged = point[str(state)].astype(complex)
                nudged[:, *unit] += 1j * STEP
                results = interpret(step, {**point, str(state): nudged}, sizes)
                slopes.append({n: np.imag(a) / STEP for n, a in results.items()})
            for target in new:
                first, second = (slope[str(target)] for slope in slopes)
                others = np.ones(first.shape[1:], bool)
                own = unit[:1] if found.kind is RecurrenceClass.BLOCK_DIAGONAL else unit
                if target.shape == state.shape:
                    others[own] = False
                assert not first[:, others].any(), f"{target} reads other units of {state}"
                if found.kind is RecurrenceClass.LINEAR:
                    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-12)


def everything_holds(cell: type[Cell], number: int = 0) -> None:
    """What ``cellgen check`` proves, of C that is compiled for it."""
    equations_hold(cell, number)
    report = check(cell, seed=number)
    assert report.ok, str(report)


# --- the long run --------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="how many cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equations-only", action="store_true", help="no C compiler")
    options = parser.parse_args()
    os.environ.setdefault("CELLGEN_CFLAGS", "-O1")
    prove = equations_hold if options.equations_only else everything_holds
    began, done = time.perf_counter(), 0

    @seed(options.seed)
    @settings(
        max_examples=options.count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(sources())
    def run(source: str) -> None:
        nonlocal done
        prove(declared(source), options.seed)
        done += 1
        if done % 10 == 0:
            seconds = time.perf_counter() - began
            print(f"{done} cells, {seconds:.0f} s", file=sys.stderr)

    run()
    print(f"{done} cells hold ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()

"""Random cells from the operator table, written as an author would; the long run is a command.

    python -m tests.random_cells --count 1000 --seed 0          # everything, compiled at -O1
    python -m tests.random_cells --count 1000 --equations-only  # no compiler: derivation alone
    python -m tests.random_cells --count 1000 --keep-going      # every kind of failure, unshrunk

A cell is drawn as source text, line by line, so that a failure shrinks to a declaration that can be
read, saved and run (``bump``, ``blend`` and ``spike`` are the functions below). Values stay of
ordinary size (gates are bounded, new states are convex or bounded), so that float32 has a meaning
after several steps.
"""

from __future__ import annotations

import argparse
import linecache
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

import cellgen
from cellgen import Cell, activation, tangent
from cellgen.errors import BuildError, DeclarationError
from cellgen.language.value import Role
from cellgen.pipeline import generate, recurrence
from cellgen.program.chunks import LinearScan, Memory, Refusal, form_over_time
from cellgen.program.derive import forward
from cellgen.program.interpret import STEP, interpret, shape_sizes
from cellgen.program.recurrence import RecurrenceClass
from cellgen.program.step import derive_functions
from cellgen.proof.check import check
from cellgen.proof.check.points import Subject
from cellgen.proof.check.tangents import prove_tangent
from cellgen.runtime.host import threads as host_threads
from tests.drawing import draw_arrays

BAR = 1e-11
"""Of the complex step against derived gradients, relative to the sum of the sizes of the terms:
450 spacings of float64 is 1e-13; a random cell may chain ten divisions by sums close to zero."""

NOT_BUILT = BuildError("equations alone are proved")

OWN = {
    "bump": activation(
        "bump",
        numpy=lambda x: 1 / (1 + x * x),
        derivative=lambda y, x: -2 * x * y**2,
        c="1 / (1 + {0} * {0})",
    ),
    "blend": activation(
        "blend",
        numpy=lambda a, b: a * b / (1 + b * b),
        derivative=(
            lambda y, a, b: b / (1 + b**2),
            lambda y, a, b: a * (1 - b**2) / (1 + b**2) ** 2,
        ),
        c="{0} * {1} / (1 + {1} * {1})",
    ),
    "spike": activation(
        "spike",
        numpy=lambda x: np.where(np.real(x) > 0, 1.0, 0.0),
        derivative=lambda y, x: 1 / (1 + x**2),
        c="cg_gt({0}, 0)",
        stated=True,
        kinks=True,
    ),
}
"""Functions as an author adds them: of one argument, of two, with a stated derivative."""

HEADS = "N, D"
"""The width of a value with heads: N of them with D units each."""
ONE_A_HEAD = "N, 1"
WIDTHS = ("H", "K", "1", "2 * H", "H", HEADS, "H + K", "3")
JOINED = {"2 * H": ("H", "H"), "H + K": ("H", "K"), "3": ("1", "1", "1")}
"""Widths that others add up to: what ``concat`` makes and ``split`` takes apart."""
CUTS = {"2 * H": "2", "H + K": "(H, K)", "3": "3"}
BOUNDED = ("tanh", "sigmoid", "hard_sigmoid", "sin", "cos", "bump")
KINDS = (
    *("atom", "affine", "sum", "product", "call", "choice", "clip", "norm", "reduce", "other"),
    *("power", "diagonal", "narrow", "join", "own", "along"),
)
CHOICES = (
    "where({a} > {b}, {a}, 0.5 * {b})",
    "where({a} <= {b}, {b}, {a})",
    "where(relu({a} - 0.25), {b}, 0.25)",  # a state that only float32 rounds to 0 decides nothing
    "maximum({a}, {b})",
    "minimum({a}, {b})",
    "where({a} > 0.25, sqrt({a} - 0.125), {b})",
    "where({a} <= 0.25, {b}, tanh(log({a}) / {a}))",
    "sqrt(maximum(0.0625, {a}))",
    "where({a} < 0.5, exp(4 * {a} - 2), 1)",
)
CLIPS = (
    "clip({a}, -0.5, 0.75)",
    'clip({a}, -0.5, 0.75, gradient="straight_through")',
    "where({k} > 0, clip({a}, -{k}, {k}), {a})",
    'where({k} > 0, clip({a}, -{k}, {k}, gradient="straight_through"), {a})',
    "clip({a}, -0.1 - sigmoid({b}), sigmoid({b}))",
    'clip({a}, -0.1 - sigmoid({b}), sigmoid({b}), gradient="straight_through")',
)
ALONG = (
    "cumsum(tanh({a}))",
    "cumprod(0.5 + sigmoid({a}))",
    "cummax({a})",
    "logcumsumexp({a})",
)
"""What goes along units; within a head, and along heads."""
ALONG_HEADS = (*ALONG, "cumprod(0.5 + sigmoid({a}), axis=N)", "logcumsumexp({a}, axis=N)")
NORMS = (
    "({a} - mean({a}))",
    "exp({a} - max({a}))",
    "({a} / sqrt(mean({a} ** 2) + 0.5))",
    "(exp(tanh({a})) / sum(exp(tanh({a}))))",
    "({a} * tanh(norm({a})))",
)
NORMS_OF_HEADS = (
    *NORMS,
    "({a} - mean({a}, axis=all))",
    "exp({a} - max({a}, axis=all))",
    "({a} / sqrt(sum({a} ** 2, axis=all) + 0.5))",
)
POWERS = (
    "tanh({a}) ** 2",
    "tanh({a}) ** 3",
    "sqrt({a} ** 2 + 0.5)",
    "log({a} ** 2 + 0.5)",
    "log1p({a} ** 2)",
    "(1 / (1 + {a} ** 2))",
    "(0.2 + sigmoid({a})) ** 0.5",
    "({a} ** 2 + 1) ** -1.5",
    "(0.2 + sigmoid({a})) ** tanh({b})",
    "exp(sin({a}))",
    "(sign({a}) * {b})",
)
OF_OWN = ("bump({a})", "spike({a})", "blend({a}, {b})", "(spike({a} - 0.25) * {b})")
UPDATES = (
    "{new}",
    "{gate} * {old} + (1 - {gate}) * {new}",
    "0.5 * {old} + {new}",
    "where({gate} > 0.25, {old}, {new})",
    "{old} + {gate} * ({new} - {old})",
)
VECTORS = ("{w}", "exp(-exp({w}))", "tanh({w})", "({w} - mean({w}))")
"""What multiplies a value unit by unit: a weight, or a function of one, formed once a sequence."""
MATRICES = (
    "(0.5 * {w})",
    "tanh({w})",
    "({w} * {m})",
    "({w} / sqrt(sum({w} ** 2) + 1.0))",
)
"""Functions of a weight alone; ``m`` is one of its shape that learns nothing."""
FOLDED = (
    "declaration.constant",
    "declaration.unused",
    "declaration.where",
    "declaration.split",
    "declaration.dims",
)
"""Codes of what SymPy folds before cellgen sees it, ``a - a`` and ``h - x + x``, and of dimensions
that stand in sums alone: such a draft is no cell. A state that is folded to what it was is refused
as an output, in the words of ``FOLDED_STATE``; other refusals of outputs are findings."""
FOLDED_STATE = "a declared state"
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
    vectors: dict[str, str] = field(default_factory=dict)
    scalars: list[str] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    computed: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def pick(self, *options: str) -> str:
        return str(self.draw(st.sampled_from(options)))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def seldom(self) -> bool:
        """One time in five."""
        return self.draw(st.integers(0, 4)) == 4

    def declare(self, kind: str, prefix: str, width: str, options: str = "") -> str:
        name = f"{prefix}{len(self.declared)}"
        self.declared.append(f"{name} = {kind}({width}{options})")
        return name

    # --- expressions of one width; every one is safe to bracket ---

    def atom(self, width: str) -> str:
        """A value of a width that exists, or a new input, mask or product of one."""
        names = [name for name, own in self.known.items() if own == width]
        if names and self.draw(st.integers(0, 3)):
            return self.read(self.pick(*names))
        choice = self.pick("product", "input", "static")
        if choice == "product":
            return self.product(width)
        return self.input(width, choice.capitalize())

    def read(self, name: str) -> str:
        self.used.add(name)
        return name

    def input(self, width: str, kind: str) -> str:
        is_fixed = kind == "Input" and self.seldom()
        learns = kind == "Static" and self.chance()
        options = ", gradient=False" if is_fixed else ", gradient=True" if learns else ""
        name = self.declare(kind, kind[0].lower(), width, options)
        self.known[name] = width
        if is_fixed:
            self.fixed.add(name)
        return self.read(name)

    def scalar(self) -> str:
        if self.scalars and self.chance():
            return self.pick(*self.scalars)
        options = ", gradient=True" if self.seldom() else ""
        self.scalars.append(self.declare("Scalar", "k", "0.7", options))
        return self.scalars[-1]

    def weight(self, inner: str, width: str) -> str:
        """A weight, shared or new, now and then the other way round or an expression."""
        if HEADS in (inner, width):
            shape = f"{inner}, D" if inner in (HEADS, ONE_A_HEAD) else f"{inner}, {width}"
            return self.formed(self.declare("Weight", "w", shape), shape)
        same = [name for name, shape in self.weights.items() if shape == (inner, width)]
        transposed = [name for name, shape in self.weights.items() if shape == (width, inner)]
        if transposed and self.chance():
            return f"transpose({self.pick(*transposed)})"
        if same and self.chance():
            return self.pick(*same)
        name = self.declare("Weight", "w", f"{inner}, {width}")
        self.weights[name] = (inner, width)
        if self.seldom() and inner == width:
            return f"({name} - transpose({name}))"
        if self.draw(st.integers(0, 9)) == 9:
            low = self.declare("Weight", "w", f"{width}, {width}")
            return f"matmul({name}, {low})"
        return self.formed(name, f"{inner}, {width}")

    def formed(self, name: str, shape: str) -> str:
        """The weight itself, or now and then a function of it alone."""
        if not self.seldom():
            return name
        form = self.pick(*MATRICES)
        mask = self.declare("Weight", "m", shape, ", gradient=False") if "{m}" in form else ""
        return form.format(w=name, m=mask)

    def product(self, width: str) -> str:
        flat = [name for name, own in self.known.items() if own not in (HEADS, ONE_A_HEAD)]
        able = list(self.known) if width == HEADS else flat
        if not able:
            return self.input(width, "Input")
        name = self.read(self.pick(*able))
        inner = self.known[name]
        operand = name
        if inner not in (HEADS, ONE_A_HEAD) and self.seldom():
            other = self.read(self.pick(*flat))
            operand, inner = f"concat({name}, {other})", f"{inner} + {self.known[other]}"
        elif self.seldom():
            operand = f"({self.pick(*BOUNDED)}({name}))"
        return f"matmul({operand}, {self.weight(inner, width)})"

    def bias(self, width: str) -> str:
        same = [name for name, own in self.biases.items() if own == width]
        if same and self.chance():
            return self.pick(*same)
        name = self.declare("Bias", "b", width)
        self.biases[name] = width
        return name

    def vector(self, width: str) -> str:
        """A weight that multiplies unit by unit; with heads, one for all of them now and then."""
        same = [name for name, own in self.vectors.items() if own == width]
        if same and self.chance():
            return self.pick(*same)
        shape = self.pick(HEADS, "D", ONE_A_HEAD) if width == HEADS else width
        name = self.declare("Weight", "d", shape)
        self.vectors[name] = width
        return self.pick(*VECTORS).format(w=name)

    def narrow(self, width: str) -> str:
        """One number for a row, or for all: an elapsed time, a scalar, a sum over a head."""
        one = {HEADS: ONE_A_HEAD}.get(width, "1")
        names = [name for name, own in self.known.items() if own == one]
        choice = self.pick("scalar", "known", "input") if names else self.pick("scalar", "input")
        if choice == "scalar":
            return self.scalar()
        return self.read(self.pick(*names)) if choice == "known" else self.input(one, "Input")

    def expression(self, width: str, depth: int = 2) -> str:
        kind = self.pick(*KINDS) if depth else "atom"
        # One unit alone, less its mean or over its sum, is a constant but for rounding.
        is_one = width in ("1", ONE_A_HEAD)
        unfit = {"join": width not in JOINED, "norm": is_one, "along": is_one}
        if kind == "atom" or unfit.get(kind):
            return self.atom(width)
        if kind == "affine":
            return f"({self.product(width)} + {self.bias(width)})"
        if kind == "call":
            return f"{self.pick(*BOUNDED)}({self.expression(width, depth - 1)})"
        if kind == "other":
            return f"{self.pick(*OTHERS)}({self.bounded(width, depth - 1)})"
        if kind == "join":
            pieces = [self.expression(piece, depth - 1) for piece in JOINED[width]]
            return f"concat({', '.join(pieces)})"
        a = self.expression(width, depth - 1)
        if kind == "norm":
            return self.pick(*(NORMS_OF_HEADS if width == HEADS else NORMS)).format(a=a)
        if kind == "along":
            return self.pick(*(ALONG_HEADS if width == HEADS else ALONG)).format(a=a)
        if kind == "diagonal":
            return f"({self.vector(width)} * {a})"
        if kind == "narrow":
            return f"({self.narrow(width)} {self.pick('*', '+', '*')} {a})"
        forms = {"clip": CLIPS, "power": POWERS, "own": OF_OWN, "choice": CHOICES}
        form = self.pick(*forms[kind]) if kind in forms else "{b}"
        b = self.expression(width, depth - 1) if "{b}" in form else ""
        if kind in forms:
            return form.format(a=a, b=b, k=self.scalar() if "{k}" in form else "")
        if kind == "sum":
            cancels = a in b or b in a  # a - (a - mean(a)) folds to one unit
            return f"({a} {'+' if cancels else self.pick('+', '-')} {b})"
        if kind == "product":
            return f"({self.pick('tanh', 'sigmoid')}({a}) * {b})"
        reduced = f"{self.pick('mean', 'sum', 'max')}(tanh({a}){', axis=all' * self.whole(width)})"
        return f"({b} * {reduced})"

    def whole(self, width: str) -> bool:
        """Whether a sum runs over heads and units."""
        return width == HEADS and self.chance()

    def bounded(self, width: str, depth: int = 1) -> str:
        return f"{self.pick('tanh', 'sigmoid')}({self.expression(width, depth)})"

    # --- lines ---

    def state(self, expression: str, name: str, width: str) -> None:
        self.lines.append(f"{name} = {expression}")
        self.known.setdefault(name, width)
        self.computed.append(name)

    def value(self, name: str) -> None:
        """A value between; a wide one may be split, one with heads summed over its units."""
        width = self.pick(*WIDTHS)
        expression = self.expression(width)
        if expression in self.known:  # a second name is no value of its own
            expression = f"tanh({expression})"
        self.state(expression, name, width)
        if width in CUTS and self.chance():
            parts = [f"{name}_{index}" for index in range(len(JOINED[width]))]
            self.lines.append(f"{', '.join(parts)} = split({self.read(name)}, {CUTS[width]})")
            self.known |= dict(zip(parts, JOINED[width], strict=True))
            self.computed += parts
        elif width == HEADS and self.seldom():
            reduce = self.pick("mean", "sum", "max")
            self.state(f"{reduce}({self.read(name)})", f"{name}_a_head", ONE_A_HEAD)

    def layers(self, name: str) -> None:
        """A layer that runs several times within a step, its matrix the same or its own."""
        width = self.pick("H", "K", HEADS)
        self.state(self.bounded(width), f"{name}_0", width)
        shared = self.weight(width, width) if self.chance() else ""
        gate = self.bounded(width, 0)
        for layer in range(1, 3):
            before = self.read(f"{name}_{layer - 1}")
            new = f"tanh(matmul({before}, {shared or self.weight(width, width)}))"
            update = f"{gate} * {before} + (1 - {gate}) * {new}"
            self.state(update if self.chance() else f"{before} + {new}", f"{name}_{layer}", width)

    def cell(self) -> str:
        states = {}
        for index in range(int(str(self.draw(st.integers(1, 3))))):
            width = self.pick(*WIDTHS)
            states[f"s{index}"] = width
            self.declared.append(f"s{index}_prev = State({width})")
            self.known[f"s{index}_prev"] = width
        for index in range(int(str(self.draw(st.integers(0, 4))))):
            if self.draw(st.integers(0, 7)) == 7:
                self.layers(f"l{index}")
            else:
                self.value(f"v{index}")
        for name, width in states.items():
            old = f"{name}_prev"
            update, new = self.pick(*UPDATES), self.bounded(width)
            gate = self.bounded(width) if "{gate}" in update else ""
            update = update.format(gate=gate, new=new, old=old)
            self.state(update, name, width)
        unread = [n for n in self.computed if n not in states and n not in self.used]
        shown = [n for n in self.computed if n in self.used and self.seldom() and n not in states]
        outputs = [*states, *unread, *shown]
        body = [*self.declared, *self.lines]
        if outputs != [*states] or self.chance():
            body.append(f"outputs = {', '.join(outputs)},")
        body += self.gradients(states)
        lines = "".join(f"    {line}\n" for line in body)
        return f"class RandomCell(Cell):\n{lines}"

    def gradients(self, states: dict[str, str]) -> list[str]:
        """Now and then what the step returns of the gradients, in any order."""
        if not self.seldom():
            return []
        moving = [n for n in (*self.known, *self.weights, *self.biases) if n not in self.fixed]
        able = [name for name in moving if not name.startswith("s") or name.endswith("_prev")]
        chosen = self.draw(st.lists(st.sampled_from(able), max_size=4, unique=True))
        assert isinstance(chosen, list)
        return [f"gradients = {', '.join(chosen)},"] if chosen else []


@st.composite
def sources(draw: Callable[..., object]) -> str:
    """Draw the source of a cell."""
    return Drafting(draw).cell()


def declared(source: str, noted: bool = True) -> type[Cell]:
    """Run a source as Python does, so that messages show its lines; a failed draw prints it."""
    if noted:
        note(source)
    names = {name: getattr(cellgen, name) for name in (*cellgen.__all__, "abs")}
    names |= {"__name__": "random_cell", **OWN, **{name: cellgen.Dim(name) for name in "KND"}}
    file = "<random cell>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        exec(compile(source, file, "exec"), names)
    except DeclarationError as error:
        refused = error.code == "declaration.outputs" and FOLDED_STATE in str(error)
        if error.code in FOLDED or refused:
            reject()
        raise
    made = names["RandomCell"]
    assert isinstance(made, type)
    return made


# --- what must hold ------------------------------------------------------------------------------


def equations_hold(cell: type[Cell], number: int = 0) -> None:
    """Derived gradients by complex step, those of the tangent too, the class of the recurrence, and
    that C is generated."""
    definition = cell.definition
    rng = np.random.default_rng(number)
    sizes = {"T": 1, **dict(zip(map(str, definition.dims), (3, 4, 3, 5, 3), strict=False))}
    arrays = {
        str(v): np.asarray(0.5 * rng.normal(size=shape_sizes(v, sizes)))
        for v in definition.declared
    }
    _gradients_hold(cell, arrays, sizes, rng)
    _class_holds(cell, arrays, sizes, rng)
    _tangent_holds(cell, rng)
    generate(cell)


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


def _tangent_holds(cell, rng):
    subject = Subject(cell, derive_functions(cell.definition), forward(cell.definition), NOT_BUILT)
    rows = prove_tangent(subject, rng)
    assert all(row.ok for row in rows), "\n".join(map(str, rows))
    if not form_over_time(cell.definition).memories:
        assert recurrence(tangent(cell)).kind is recurrence(cell).kind


def _class_holds(cell, arrays, sizes, rng):
    """Where the class says so, units or heads read only themselves, and linearly.

    That holds among the states of a layer, and among those that have none.
    """
    found, definition = recurrence(cell), cell.definition
    layers = form_over_time(definition).layers
    layer_of = {
        state: -1 if isinstance(layer, Refusal) else number
        for number, layer in enumerate(layers)
        for state in layer.states
    }
    state_of = {definition.next_state(state): state for state in definition.states}
    if found.kind is RecurrenceClass.DENSE:
        return
    new = tuple(definition.next_state(state) for state in definition.states)
    step = forward(definition.with_outputs(new))
    for state in definition.states:
        together = [s for s in definition.states if layer_of[s] == layer_of[state]]
        drawn = {str(s): rng.normal(size=arrays[str(s)].shape) for s in together}
        moved = {**arrays, **drawn}
        is_linear = any(isinstance(k, LinearScan | Memory) and state in k.states for k in layers)
        for unit in np.ndindex(arrays[str(state)].shape[1:]):
            slopes = []
            for point in (arrays, moved):
                nudged = point[str(state)].astype(complex)
                nudged[:, *unit] += 1j * STEP
                results = interpret(step, {**point, str(state): nudged}, sizes)
                slopes.append({n: np.imag(a) / STEP for n, a in results.items()})
            for target in (v for v in new if layer_of[state_of[v]] == layer_of[state]):
                first, second = (slope[str(target)] for slope in slopes)
                others = np.ones(first.shape[1:], bool)
                own = unit
                if found.kind is RecurrenceClass.BLOCK_DIAGONAL:
                    own = unit[:1]
                elif found.kind is RecurrenceClass.RANK_ONE:
                    own = unit[:-2]
                has_heads = len(target.shape) > 2 and target.shape[:2] == state.shape[:2]
                is_block = has_heads and found.kind is RecurrenceClass.BLOCK_DIAGONAL
                if target.shape == state.shape or is_block:
                    others[own] = False
                assert not first[:, others].any(), f"{target} reads other units of {state}"
                if is_linear:
                    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-12)


def everything_holds(cell: type[Cell], number: int = 0) -> None:
    """What ``cellgen check`` proves, of C that is compiled for it, and what it leaves to tests:
    threads, batch-first arrays and truncation."""
    equations_hold(cell, number)
    report = check(cell, seed=number)
    assert report.ok, str(report)
    kernel = cellgen.compile(cell)
    if "sequence_forward" in kernel.functions:
        _options_hold(cell, kernel, np.random.default_rng(number))


WINDOW = 2
LENGTHS = np.array([5, 0, 3, 5])


def _options_hold(cell, kernel, rng):
    """Threads and layouts change no bit; a window is the chunked form with carried state."""
    forward_function = kernel.sequence_forward.function
    sizes = dict(zip(forward_function.dims, (5, 4, 6, 3, 2, 3), strict=False))
    arrays = draw_arrays(forward_function, sizes, rng, optional=False)
    given = draw_arrays(kernel.sequence_backward.function, sizes, rng, optional=True)
    functions = (forward_function, kernel.sequence_backward.function)
    timed = {a.name for f in functions for a in (*f.arguments, *f.results) if a.over_time}
    plain = run_both(cell, kernel, arrays, given, lengths=LENGTHS, threads=1)
    threaded = run_both(cell, kernel, arrays, given, lengths=LENGTHS, threads=3)
    swapped = [
        {n: np.ascontiguousarray(a.swapaxes(0, 1)) if n in timed else a for n, a in kind.items()}
        for kind in (arrays, given)
    ]
    transposed = run_both(cell, kernel, *swapped, lengths=LENGTHS, threads=2, batch_first=True)
    for name, array in plain.items():
        assert array.tobytes() == threaded[name].tobytes(), f"{name}: 1 thread and 3"
        back = transposed[name].swapaxes(0, 1) if name in timed else transposed[name]
        assert array.tobytes() == back.tobytes(), f"{name}: batch first"
    _window_holds(cell, kernel, arrays, given, timed)


def _window_holds(cell, kernel, arrays, given, timed):
    """Gradients of chunks run one after the other, each from the last one's state."""
    states = [str(state) for state in cell.definition.states]
    found = run_both(cell, kernel, arrays, given, window=WINDOW)
    total, state = {}, {}
    for start in range(0, 5, WINDOW):
        part = slice(start, start + WINDOW)
        own = {n: a[part] if n in timed else a for n, a in arrays.items()} | state
        seen = {n: a[part] if n in timed else a * (part.stop >= 5) for n, a in given.items()}
        chunk = run_both(cell, kernel, own, seen)
        state = {n: chunk[f"{n.removesuffix('_prev')}_last"] for n in states}
        for name, array in chunk.items():
            if name not in found or not name.startswith("d_"):
                continue
            if name in timed:
                total.setdefault(name, np.zeros_like(found[name]))[part] = array
            elif name.removeprefix("d_") in states:
                total.setdefault(name, array)
            else:
                total[name] = total.get(name, 0) + array
    for name, array in total.items():
        # float64 sums over five steps, in the order of chunks instead of the order of steps.
        size = max(1.0, float(np.max(np.abs(array), initial=0)))
        assert np.max(np.abs(found[name] - array), initial=0) <= BAR * size, f"{name}: window"


def run_both(cell, kernel, arrays, given, threads=2, window=0, **options):
    """Run forward and backward; every result by name."""
    result = kernel.sequence_forward(**arrays, save=True, threads=threads, **options)
    outputs = {str(v): getattr(result, str(v)) for v in cell.definition.outputs}
    gradients = kernel.sequence_backward(
        **arrays, **outputs, **given, saved=result.saved, threads=threads, window=window, **options
    )
    found = result._asdict() | gradients._asdict()
    del found["saved"]
    return found


# --- the long run --------------------------------------------------------------------------------


@dataclass
class Finding:
    """One kind of failure: where it was raised, its message, the shortest cell that shows it."""

    error: Exception
    source: str
    count: int = 1

    @property
    def kind(self) -> str:
        """What failures of one origin share: the place, and the message but for the cell's own."""
        frame = traceback.extract_tb(self.error.__traceback__)[-1]
        return f"{type(self.error).__name__} in {frame.name}, line {frame.lineno}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="how many cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equations-only", action="store_true", help="no C compiler")
    parser.add_argument(
        "--keep-going", action="store_true", help="list every kind of failure, and shrink none"
    )
    options = parser.parse_args()
    os.environ.setdefault("CELLGEN_CFLAGS", "-O1")
    host_threads.is_crowding = True  # three threads on any machine
    prove = equations_hold if options.equations_only else everything_holds
    began, done = time.perf_counter(), 0
    findings: dict[str, Finding] = {}

    @seed(options.seed)
    @settings(
        max_examples=options.count,
        deadline=None,
        database=None,
        phases=(Phase.generate,) if options.keep_going else (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(sources())
    def run(source: str) -> None:
        nonlocal done
        try:
            prove(declared(source, noted=not options.keep_going), options.seed)
        except Exception as error:
            if not options.keep_going or isinstance(error, HypothesisException):
                raise
            finding = Finding(error, source)
            if finding.kind not in findings:
                print(f"{finding.kind}: {error}\n{source}", flush=True)
            _add(findings, finding)
        done += 1
        if done % 10 == 0:
            seconds = time.perf_counter() - began
            print(f"{done} cells, {len(findings)} findings, {seconds:.0f} s", file=sys.stderr)

    run()
    for kind, finding in findings.items():
        print(f"{finding.count} times {kind}: {finding.error}\n{finding.source}")
    failed = sum(finding.count for finding in findings.values())
    print(f"{done - failed} of {done} cells hold ({time.perf_counter() - began:.0f} s)")
    sys.exit(bool(findings))


def _add(findings: dict[str, Finding], new: Finding) -> None:
    """Count a failure; the shortest cell stands for all of its kind."""
    known = findings.get(new.kind)
    if known is not None:
        shortest = min(known, new, key=lambda finding: len(finding.source))
        new = replace(shortest, count=known.count + 1)
    findings[new.kind] = new


if __name__ == "__main__":
    main()

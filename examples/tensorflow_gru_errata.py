"""Evaluate TensorFlow's published GRU gradient equations literally, beside the derived ones.

The documentation of the raw op GRUBlockCellGrad (tensorflow/core/api_def/base_api/
api_def_GRUBlockCellGrad.pbtxt) states the gradients of the GRUBlockCell; `o` is the element-wise
product, `*` the matrix product. Each published equation is evaluated as it is written, all it
refers to being right, and compared with the complex-step derivative of a hand-written NumPy
forward; so are the equations that cellgen derives from the declaration of the cell. TensorFlow's
kernel computes the right gradients: its text is wrong, not its code, and contradicts itself
(elsewhere it has d_h o u, and d_r_bar_u_bar * w_ru^T).

    python examples/tensorflow_gru_errata.py

Exit status 0: every derived gradient is exact and every published error is reproduced.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cellgen.cells import GRUBlockCell
from cellgen.pipeline import programs_of
from cellgen.program.interpret import interpret
from cellgen.proof.truths import gru_block_cell

Arrays = dict[str, np.ndarray]

SIZES = {"B": 3, "I": 4, "H": 5}
STEP = 1e-100  # complex step: its square underflows, so the derivative has no truncation error
EXACT = 1e-13  # float64 rounding; what is found is near 1e-15
WRONG = 0.1  # an equation with an error of a tenth of the largest entry is wrong, not inaccurate


@dataclass(frozen=True)
class Erratum:
    """A published equation: its text, its literal meaning, and the gradient it should give.

    ``derived`` names the statements that cellgen derives for it; ``evaluate`` is None where nothing
    is published.
    """

    published: str
    evaluate: Callable[[Arrays], np.ndarray] | None
    gradient: str
    wrong: str
    derived: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One line of the table; ``error`` is infinite for a wrong shape, None where it has none."""

    source: str
    equation: str
    error: float | None
    note: str = ""


def w_x_h(v: Arrays, gate: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a gate's weight that multiply x, and those that multiply h_prev."""
    units = SIZES["H"]
    columns = {"r": v["w_ru"][:, :units], "u": v["w_ru"][:, units:], "c": v["w_c"]}[gate]
    return columns[: SIZES["I"]], columns[SIZES["I"] :]


def published_d_h_prev(v: Arrays) -> np.ndarray:
    component_1 = v["d_r_bar"] @ w_x_h(v, "r")[1].T + v["d_u_bar"] @ w_x_h(v, "u")[1].T
    return component_1 + v["d_h_prevr"] * v["r"] + v["u"]


def published_d_h_prev_component_1(v: Arrays) -> np.ndarray:
    component_1 = v["d_r_bar"] @ w_x_h(v, "r")[1].T + v["d_u_bar"] @ w_x_h(v, "r")[1].T
    return component_1 + v["d_h_prevr"] * v["r"] + v["d_h"] * v["u"]


def published_d_x(v: Arrays) -> np.ndarray:
    component_1 = v["d_r_bar"] @ w_x_h(v, "r")[0].T + v["d_u_bar"] @ w_x_h(v, "r")[0].T
    return component_1 + v["d_c_bar"] @ w_x_h(v, "c")[0].T


ERRATA = (
    Erratum(
        "d_h_prev = d_h_prev_component_1 + d_h_prevr o r + u",
        published_d_h_prev,
        "d_h_prev",
        "u must be d_h o u",
        ("d_h_prev",),
    ),
    Erratum(
        "d_h_prev_component_1 = d_r_bar * w_r_h_prev^T + d_u_bar * w_r_h_prev^T",
        published_d_h_prev_component_1,
        "d_h_prev",
        "the second w_r_h_prev must be w_u_h_prev",
        ("d_h_prev_1", "d_h_prev"),
    ),
    Erratum(
        "d_x_component_1 = d_r_bar * w_r_x^T + d_u_bar * w_r_x^T",
        published_d_x,
        "d_x",
        "the second w_r_x must be w_u_x",
        ("d_x_1", "d_x"),
    ),
    Erratum(
        "d_u_bar = d_h o (h - c) o u o (1 - u)",
        lambda v: v["d_h"] * (v["h"] - v["c"]) * v["u"] * (1 - v["u"]),
        "d_u_bar",
        "h must be h_prev",
        ("d_u_total", "d_r_bar_u_bar_1"),
    ),
    Erratum(
        "d_w_ru = x_h_prevr^T * d_c_bar",
        lambda v: np.hstack([v["x"], v["h_prev"] * v["r"]]).T @ v["d_c_bar"],
        "d_w_ru",
        "this is d_w_c",
        ("d_w_ru_x", "d_w_ru_h_prev", "d_w_ru"),
    ),
    Erratum(
        "d_w_c = x_h_prev^T * d_r_bar_u_bar",
        lambda v: np.hstack([v["x"], v["h_prev"]]).T @ v["d_r_bar_u_bar"],
        "d_w_c",
        "this is d_w_ru",
        ("d_w_c_x", "d_w_c_h_prev_r", "d_w_c"),
    ),
    Erratum(
        "(d_r_bar is not stated)",
        None,
        "d_r_bar",
        "missing",
        ("d_h_prev_r", "d_r_total", "d_r_bar_u_bar_0"),
    ),
)


def some_arguments() -> Arrays:
    """Float64 arguments of ordinary size, the same at every run."""
    normal = np.random.default_rng(0).normal
    rows, inputs, units = SIZES["B"], SIZES["I"], SIZES["H"]
    return {
        "x": normal(size=(rows, inputs)),
        "h_prev": normal(size=(rows, units)),
        "w_ru": 0.5 * normal(size=(inputs + units, 2 * units)),
        "w_c": 0.5 * normal(size=(inputs + units, units)),
        "b_ru": 0.5 * normal(size=2 * units),
        "b_c": 0.5 * normal(size=units),
    }


def complex_step(arguments: Arrays, d_h: np.ndarray) -> Arrays:
    """Gradients of sum(d_h * h) by every argument, entry by entry.

    With the biases repeated for each row, their gradients are those of the pre-activations.
    """
    rows = SIZES["B"]
    repeated = {k: np.tile(a, (rows, 1)) if a.ndim == 1 else a for k, a in arguments.items()}
    gradients = {}
    for name, array in repeated.items():
        gradients[f"d_{name}"] = np.empty_like(array)
        for place in np.ndindex(array.shape):
            stepped = array.astype(complex)
            stepped[place] += 1j * STEP
            h = gru_block_cell({**repeated, name: stepped})["h"]
            gradients[f"d_{name}"][place] = np.sum(d_h * h.imag) / STEP
    gradients["d_r_bar_u_bar"], gradients["d_c_bar"] = gradients["d_b_ru"], gradients["d_b_c"]
    for bias in ("d_b_ru", "d_b_c"):
        gradients[bias] = gradients[bias].sum(axis=0)
    gradients["d_r_bar"], gradients["d_u_bar"] = np.hsplit(gradients["d_r_bar_u_bar"], 2)
    return gradients


def derived_gradients(arguments: Arrays, d_h: np.ndarray) -> Arrays:
    """The same gradients as cellgen derives them, the equations interpreted in float64."""
    known = {**arguments, "d_h": d_h}
    for program in programs_of(GRUBlockCell).functions:
        known |= interpret(program, known, SIZES)
    known["d_r_bar"], known["d_u_bar"] = np.hsplit(known["d_r_bar_u_bar"], 2)
    return known


def derived_equations() -> dict[str, str]:
    """Every derived equation as cellgen prints it, by the name of its target."""
    statements = [s for program in programs_of(GRUBlockCell).functions for s in program.statements]
    return {str(statement.target): str(statement) for statement in statements}


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    """The largest error relative to the largest entry; infinite for another shape."""
    if found.shape != truth.shape:
        return math.inf
    return float(np.abs(found - truth).max() / np.abs(truth).max())


def table() -> list[Line]:
    arguments = some_arguments()
    d_h = np.random.default_rng(1).normal(size=(SIZES["B"], SIZES["H"]))
    truth = complex_step(arguments, d_h)
    derived = derived_gradients(arguments, d_h)
    known = {**arguments, **gru_block_cell(arguments), **truth, "d_h": d_h}
    known["d_h_prevr"] = known["d_c_bar"] @ w_x_h(known, "c")[1].T
    equations = derived_equations()
    lines = []
    for erratum in ERRATA:
        error = erratum.evaluate and relative(erratum.evaluate(known), truth[erratum.gradient])
        lines.append(Line("published", erratum.published, error, erratum.wrong))
        *first, last = (equations[name] for name in erratum.derived)
        lines += [Line("cellgen", equation, None) for equation in first]
        error = relative(derived[erratum.gradient], truth[erratum.gradient])
        lines.append(Line("cellgen", last, error, "exact" if error <= EXACT else "WRONG"))
    return lines


def show(lines: list[Line]) -> None:
    print(f"{'':11}{'equation':73}{'error':>8}")
    for line in lines:
        if line.source == "published":
            print()
        error = "" if line.error is None else f"{line.error:.1e}"
        error = "shape" if line.error == math.inf else error
        print(f"{line.source:11}{line.equation:73}{error:>8}  {line.note}".rstrip())


def as_expected(line: Line) -> bool:
    if line.error is None:
        return True
    return line.error > WRONG if line.source == "published" else line.error <= EXACT


def main() -> int:
    lines = table()
    show(lines)
    good = all(map(as_expected, lines))
    print()
    print(
        "Every derived gradient is exact; every published error is reproduced."
        if good
        else "NOT as expected: a derived gradient is wrong or a published equation is right."
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Train a cell on a stream, without a pass backward in time and without a history.

A linear recurrent unit echoes what came some steps ago. Each step gives its own gradient; every few
steps the parameters move. What is kept between two steps does not grow with the stream.

    python examples/online_learning.py
"""

import sys

import numpy as np

import cellgen
from cellgen.cells import LRU

DELAY, ROWS, UNITS = 3, 4, 16
STEPS, EVERY, RATE = 3000, 10, 0.01

Arrays = dict[str, np.ndarray]


def first_parameters(draw: np.random.Generator) -> Arrays:
    """Rings of states that fade slowly, as in the paper; one input, one output."""
    size, angle = draw.uniform(0.5, 0.95, UNITS), draw.uniform(0.1, 3.0, UNITS)
    return {
        "nu_log": np.log(-np.log(size)),
        "theta_log": np.log(angle),
        "gamma_log": np.log(np.sqrt(1 - size**2)),
        "b_re": draw.normal(size=(1, UNITS)),
        "b_im": draw.normal(size=(1, UNITS)),
        "c_re": draw.normal(size=(UNITS, 1)) / UNITS,
        "c_im": draw.normal(size=(UNITS, 1)) / UNITS,
        "d": np.zeros(1),
    }


class Adam:
    """Kingma & Ba 2015, arXiv:1412.6980, algorithm 1."""

    def __init__(self, rate: float) -> None:
        self.rate, self.count = rate, 0
        self.means: Arrays = {}
        self.squares: Arrays = {}

    def move(self, parameters: Arrays, gradients: Arrays) -> None:
        self.count += 1
        for name, g in gradients.items():
            mean = 0.9 * self.means.get(name, 0.0) + 0.1 * g
            square = 0.999 * self.squares.get(name, 0.0) + 0.001 * g * g
            self.means[name], self.squares[name] = mean, square
            slope = mean / (1 - 0.9**self.count)
            size = np.sqrt(square / (1 - 0.999**self.count)) + 1e-8
            parameters[name] = parameters[name] - self.rate * slope / size


def learn(seed: int = 0, steps: int = STEPS) -> list[float]:
    """Return the mean squared error of every stretch of a tenth of the stream."""
    cell = cellgen.online(LRU, outputs="y")
    plain, stepping = cellgen.load("lru"), cellgen.compile(cell)
    draw = np.random.default_rng(seed)
    parameters, adam = first_parameters(draw), Adam(RATE)
    lengths = {"I": 1, "H": UNITS}
    states = {
        str(s.name): np.zeros((ROWS, *(lengths[str(axis)] for axis in s.shape[1:])))
        for s in cell.definition.states
    }
    recent = [np.zeros((ROWS, 1))] * DELAY
    errors = []
    for step in range(steps):
        x = draw.normal(size=(ROWS, 1))
        own = {"x": x, "h_re_prev": states["h_re_prev"], "h_im_prev": states["h_im_prev"]}
        error = plain.forward(**own, **parameters).y - recent[0]
        made = stepping.forward(**{**states, "x": x, "grad_y": error}, **parameters)
        states = {name: getattr(made, name.removesuffix("_prev")) for name in states}
        recent = [*recent[1:], x]
        errors.append(float(np.mean(error**2)))
        if (step + 1) % EVERY == 0:
            gradients = {n: states[f"grad_{n}_prev"].sum(0) / EVERY for n in parameters}
            adam.move(parameters, gradients)
            states |= {f"grad_{n}_prev": 0 * states[f"grad_{n}_prev"] for n in parameters}
    return [float(part.mean()) for part in np.array_split(errors, 10)]


def main() -> int:
    errors = learn()
    print("mean squared error over the stream:", "  ".join(f"{e:.3f}" for e in errors))
    return 0 if errors[-1] < 0.1 * errors[0] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Declare a cell of your own, compile it, run it and check its gradients.

The minimal gated unit: one gate that both forgets and updates (Zhou, Wu, Zhang & Zhou 2016,
arXiv:1603.09420).

    python examples/own_cell.py
"""

import sys

import numpy as np

import cellgen
from cellgen import Bias, Cell, H, I, Input, State, Weight, concat, sigmoid, tanh


class MGU(Cell):
    x, h_prev = Input(I), State(H)
    w_f, b_f = Weight(I + H, H), Bias(H)
    w_c, b_c = Weight(I + H, H), Bias(H)

    f = sigmoid(concat(x, h_prev) @ w_f + b_f)
    c = tanh(concat(x, f * h_prev) @ w_c + b_c)
    h = (1 - f) * h_prev + f * c


def some_arguments(mgu: cellgen.Kernel, B: int, I: int, H: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = mgu.init(rng, I=I, H=H, dtype=np.float64)
    return {"x": rng.normal(size=(B, I)), "h_prev": rng.normal(size=(B, H)), **weights}


def derived_gradients(
    mgu: cellgen.Kernel, arguments: dict[str, np.ndarray], d_h: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradients of sum(d_h * h) as cellgen derived them, by the names of the arguments."""
    g = mgu.backward(**arguments, d_h=d_h)._asdict()
    w = mgu.weight_gradients(**arguments, **g)._asdict()
    return {name: (g | w)[f"d_{name}"] for name in arguments}


def numerical_gradient(
    mgu: cellgen.Kernel, arguments: dict[str, np.ndarray], d_h: np.ndarray, name: str
) -> np.ndarray:
    """Gradient of sum(d_h * h) with respect to one argument, by central differences."""
    step = 1e-5  # near the cube root of float64's epsilon: truncation and rounding both 1e-10
    gradient = np.empty_like(arguments[name])
    for place in np.ndindex(gradient.shape):
        shift = np.zeros_like(gradient)
        shift[place] = step
        above = mgu.forward(**arguments | {name: arguments[name] + shift}).h
        below = mgu.forward(**arguments | {name: arguments[name] - shift}).h
        gradient[place] = np.sum(d_h * (above - below)) / (2 * step)
    return gradient


def main() -> None:
    mgu = cellgen.compile(MGU)
    arguments = some_arguments(mgu, B=2, I=3, H=4)
    h = mgu.forward(**arguments).h
    print(f"h {h.shape}:\n{h.round(4)}\n\ngradient   largest difference from numerical")

    d_h = np.random.default_rng(1).normal(size=h.shape)
    worst = 0.0
    for name, derived in derived_gradients(mgu, arguments, d_h).items():
        difference = np.abs(derived - numerical_gradient(mgu, arguments, d_h, name)).max()
        print(f"d_{name:8} {difference:.1e}")
        worst = max(worst, float(difference))
    sys.exit(0 if worst < 1e-8 else 1)


if __name__ == "__main__":
    main()

"""What each pointwise function is, as ``help`` and the reference say it."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    "atan2": "``atan2(y, x)``, the angle of the point (x, y); its derivatives at the origin are 0.",
    "cos": "Cosine.",
    "erf": "The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0.",
    "exp": "Exponential function.",
    "expm1": "``exp(x) - 1``, exact near 0.",
    "floor": "The largest whole number that is not above, with derivative 0.",
    "hard_sigmoid": "``clip(x / 6 + 1 / 2, 0, 1)``, as in Keras 3 and PyTorch.",
    "keep": "``x``, through which SymPy folds nothing: it holds an expression together.",
    "log": "Natural logarithm.",
    "log1p": "``log(1 + x)``, exact near 0.",
    "log_sigmoid": "``log(sigmoid(x))``, without overflow.",
    "maximum": "The larger of two; of equal ones the first has the derivative.",
    "minimum": "The smaller of two; of equal ones the first has the derivative.",
    "relu": "``maximum(0, x)``: at 0 the derivative is 0.",
    "sigmoid": "``1 / (1 + exp(-x))``, without overflow.",
    "sign": "-1, 0 or 1, with derivative 0.",
    "sin": "Sine.",
    "softplus": "``log(1 + exp(x))``, without overflow.",
    "sqrt": "Square root; at 0 the derivative is infinite.",
    "stop_gradient": "``x``, with derivative 0.",
    "tanh": "Hyperbolic tangent.",
}
"""By the name of a row. What no author calls has none."""

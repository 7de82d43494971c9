"""The liquid time-constant network."""

from collections.abc import Mapping

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid
from cellgen.language.value import H, I


def ltc(unfolds: int = 6) -> type[Cell]:
    """Return the liquid time-constant network whose solver takes ``unfolds`` sub-steps a step."""

    class LTC(Cell, name="ltc" if unfolds == 6 else f"ltc_{unfolds}"):
        __doc__ = f"""Liquid time-constant network, {unfolds} sub-steps of the fused Euler solver
        (Hasani et al. 2021, arXiv:2006.04439); ts is the time that has passed since
        the step before, f a layer of sigmoid units."""

        x, ts, h_prev = Input(I), Input(1), State(H)
        w, u, b, a, tau = Weight(I, H), Weight(H, H), Bias(H), Weight(H), Weight(H)

        drive = x @ w + b
        dt = ts / unfolds
        for k in range(1, unfolds + 1):
            vars()[f"f_{k}"] = sigmoid(drive + (vars()[f"h_{k - 1}"] if k > 1 else h_prev) @ u)
            vars()[f"h_{k}" if k < unfolds else "h"] = fused_euler(vars(), k)

    return LTC


def fused_euler(cell: Mapping[str, Expr], k: int) -> Expr:
    """The state after sub-step k: explicit in the products, implicit in the decay."""
    h, f, dt = cell.get(f"h_{k - 1}", cell["h_prev"]), cell[f"f_{k}"], cell["dt"]
    return (h + dt * f * cell["a"]) / (1 + dt * (1 / cell["tau"] + f))


LTC = ltc()

"""Recurrent highway networks: several layers within one step."""

from collections.abc import Mapping

from sympy import Expr

from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I


def recurrent_highway(depth: int, coupled: bool = True) -> type[Cell]:
    """Return a recurrent highway network of some depth, with carry gate 1 - t or one of its own."""
    gates, own = ("ht", "1 - t") if coupled else ("htc", "of its own")

    class RecurrentHighway(Cell, name=f"recurrent_highway_{depth}" + ("" if coupled else "_full")):
        __doc__ = f"""Recurrent highway network of {depth} layers, carry gate {own} (Zilly et al.
        2017, arXiv:1607.03474, equations 6 to 9); the input enters the first layer only."""

        x, h_prev = Input(I), State(H)
        for gate in gates:
            vars()[f"w_{gate}"] = Weight(I, H)
            for layer in range(1, depth + 1):
                vars()[f"r_{gate}_{layer}"], vars()[f"b_{gate}_{layer}"] = Weight(H, H), Bias(H)
        for layer in range(1, depth + 1):
            vars()[f"q_{layer}"] = tanh(pre_activation(vars(), "h", layer))
            vars()[f"t_{layer}"] = sigmoid(pre_activation(vars(), "t", layer))
            if not coupled:
                vars()[f"c_{layer}"] = sigmoid(pre_activation(vars(), "c", layer))
            vars()[f"s_{layer}" if layer < depth else "h"] = highway(vars(), layer)

    return RecurrentHighway


def pre_activation(cell: Mapping[str, Expr], gate: str, layer: int) -> Expr:
    """The sum that a gate of a layer looks at: ``s r + b``, and ``x w`` in the first layer."""
    if layer == 1:
        drive = cell["x"] @ cell[f"w_{gate}"] + cell["h_prev"] @ cell[f"r_{gate}_1"]
        return drive + cell[f"b_{gate}_1"]
    return cell[f"s_{layer - 1}"] @ cell[f"r_{gate}_{layer}"] + cell[f"b_{gate}_{layer}"]


def highway(cell: Mapping[str, Expr], layer: int) -> Expr:
    """The state after a layer, ``q t + s c``."""
    before, transform = cell.get(f"s_{layer - 1}", cell["h_prev"]), cell[f"t_{layer}"]
    return cell[f"q_{layer}"] * transform + before * cell.get(f"c_{layer}", 1 - transform)


RecurrentHighway3 = recurrent_highway(3)
RecurrentHighway2Full = recurrent_highway(2, coupled=False)

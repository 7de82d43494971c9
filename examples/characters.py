"""Learn to predict a text character by character, with the readout inside the cell.

Data: the licence that comes with Python (or ``--text FILE``). Model: an LSTM or GRU over one-hot
characters; the layer that predicts the next character is part of the declaration, so that
*every* gradient comes from the derived kernels. Training: truncated back-propagation through time,
the states carried from one stretch of text to the next; Adam in NumPy.

Where PyTorch is installed the same model is trained there, from the same weights on the same
characters, and the two curves of the loss are printed with their largest difference.

    python examples/characters.py
    python examples/characters.py --cell gru --steps 500 --plot characters.svg
"""

from __future__ import annotations

import json
import pydoc_data.topics
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

try:
    import numpy as np
    import typer
    from matplotlib.figure import Figure
    from rich.console import Console

    import cellgen
    from cellgen import Bias, Dim, H, Weight
    from cellgen.cells import GRU, LSTM
    from cellgen.runtime.abi import axis_length
except ModuleNotFoundError as missing:
    print(
        f"examples/characters.py needs matplotlib, and {missing.name} cannot be imported; "
        f"install it with: pip install 'cellgen-compiler[examples]'",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

try:
    import torch
except ModuleNotFoundError:
    torch = None

Array: TypeAlias = np.ndarray
Arrays: TypeAlias = dict[str, Array]

HIDDEN = 128
STRETCH = 32
"""Characters between two updates: how far gradients go back."""
ROWS = 16
"""Places of the text that are read at once."""
LEARNING_RATE = 0.005
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
PICTURE = Path(__file__).parent / "output" / "characters.svg"

O = Dim("O")  # outputs, one for each character


class CharacterLSTM(LSTM, name="character_lstm"):
    """An LSTM that predicts the next input: y are the logits."""

    w_y, b_y = Weight(H, O), Bias(O)

    y = LSTM.h @ w_y + b_y
    outputs = LSTM.h, LSTM.c, y


class CharacterGRU(GRU, name="character_gru"):
    """A GRU that predicts the next input: y are the logits."""

    w_y, b_y = Weight(H, O), Bias(O)

    y = GRU.h @ w_y + b_y
    outputs = GRU.h, y


class Cell(StrEnum):
    LSTM = "lstm"
    GRU = "gru"


CELLS = {Cell.LSTM: CharacterLSTM, Cell.GRU: CharacterGRU}
GATES = {Cell.LSTM: "ifgo", Cell.GRU: "rzn"}
"""PyTorch's order of the gates, by the names that the cells give them."""


# --- data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """A text as numbers (N,), one for each of its ``alphabet``."""

    alphabet: str
    codes: Array


def licence() -> str:
    """Python's licence; where an installation has no copy of it, a chapter of its manual."""
    file = Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return "\n".join(pydoc_data.topics.topics[name] for name in ("execmodel", "objects"))


def encode(text: str) -> Text:
    alphabet = "".join(sorted(set(text)))
    places = {character: place for place, character in enumerate(alphabet)}
    return Text(alphabet, np.array([places[character] for character in text]))


def stretches(text: Text, steps: int) -> Iterator[tuple[Array, Array, bool]]:
    """Yield inputs and what follows them, codes (T, B), and whether reading starts anew.

    The text is cut into as many strips as there are rows; each row reads its strip to the end.
    """
    length = (len(text.codes) - 1) // ROWS
    whole = length // STRETCH * STRETCH
    if not whole:
        raise SystemExit(f"the text has {len(text.codes)} characters; give one of {ROWS * 40}")
    now = text.codes[: ROWS * length].reshape(ROWS, length).T
    following = text.codes[1 : ROWS * length + 1].reshape(ROWS, length).T
    for step in range(steps):
        first = step * STRETCH % whole
        yield now[first : first + STRETCH], following[first : first + STRETCH], first == 0


def cross_entropy(logits: Array, following: Array) -> tuple[float, Array]:
    """Return the mean cross-entropy in nats of logits (T, B, O), and its gradient."""
    places = following[..., None]
    shifted = logits - logits.max(axis=-1, keepdims=True)  # the largest is 0: exp cannot overflow
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(log_probability, places, axis=-1)
    d_logits = np.exp(log_probability)
    np.put_along_axis(d_logits, places, np.exp(chosen) - 1, axis=-1)
    d_logits /= logits.dtype.type(following.size)
    return -float(chosen.mean()), d_logits


# --- cellgen ----------------------------------------------------------------------------------


def draw(kernel: cellgen.Kernel, characters: int, seed: int, dtype: str) -> Arrays:
    """Draw weights uniformly from +-1/sqrt(H) in float64, whatever the dtype; biases are 0."""
    rng, sizes = np.random.default_rng(seed), {"I": characters, "H": HIDDEN, "O": characters}
    weights, bound = {}, HIDDEN**-0.5
    for argument in kernel.forward.function.arguments:
        if argument.text in ("weight", "bias"):
            shape = [axis_length(axis, sizes) for axis in argument.shape]
            is_bias = argument.text == "bias"
            array = np.zeros(shape) if is_bias else rng.uniform(-bound, bound, shape)
            weights[argument.name] = array.astype(dtype)
    return weights


class Writer:
    """The model on generated kernels: two calls a stretch, then Adam on every weight."""

    def __init__(self, kernel: cellgen.Kernel, weights: Arrays, threads: int) -> None:
        self.kernel, self.weights, self.threads = kernel, weights, threads
        arguments = kernel.sequence_forward.function.arguments
        self.names = [item.name.removesuffix("_prev") for item in arguments if item.text == "state"]
        taken = {item.name for item in kernel.sequence_backward.function.arguments}
        self.passed_on = [name for name in (*self.names, "y") if name in taken]
        self.one_hot = np.eye(weights["w_y"].shape[1], dtype=weights["w_y"].dtype)
        self.mean = {name: np.zeros_like(array) for name, array in weights.items()}
        self.square = {name: np.zeros_like(array) for name, array in weights.items()}
        self.updates = 0
        self.states = self.no_states()

    def no_states(self) -> Arrays:
        zeros = np.zeros((ROWS, HIDDEN), self.one_hot.dtype)
        return {f"{name}_prev": zeros for name in self.names}

    def learn(self, now: Array, following: Array, anew: bool) -> float:
        """Read a stretch (T, B), take one step; return the loss in nats a character."""
        states = self.no_states() if anew else self.states
        given = {"x": self.one_hot[now], **states, **self.weights}
        done = self.kernel.sequence_forward(**given, save=True, threads=self.threads)
        loss, d_y = cross_entropy(done.y, following)
        gradients = self.kernel.sequence_backward(
            **given,
            **{name: getattr(done, name) for name in self.passed_on},
            saved=done.saved,
            d_y=d_y,
            threads=self.threads,
        )
        self.states = {f"{name}_prev": getattr(done, f"{name}_last") for name in self.names}
        self.update({name: getattr(gradients, f"d_{name}") for name in self.weights})
        return loss

    def update(self, gradients: Arrays) -> None:
        """Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1)."""
        self.updates += 1
        rate = LEARNING_RATE / (1 - BETA_1**self.updates)
        for name, gradient in gradients.items():
            self.mean[name] += (1 - BETA_1) * (gradient - self.mean[name])
            self.square[name] += (1 - BETA_2) * (gradient * gradient - self.square[name])
            spread = np.sqrt(self.square[name] / (1 - BETA_2**self.updates))
            self.weights[name] -= rate * self.mean[name] / (spread + EPSILON)


# --- PyTorch ----------------------------------------------------------------------------------


class TorchWriter:
    """The same model of nn.LSTM or nn.GRU and nn.Linear, from the same weights.

    The cells have one bias where PyTorch adds two. Its second one stays 0 (``bias_hh``), but for
    the GRU's n, which reads it apart.
    """

    def __init__(self, cell: Cell, weights: Arrays, threads: int) -> None:
        torch.set_num_threads(threads)
        gates, dtype = GATES[cell], weights["w_y"].dtype
        characters = weights["w_y"].shape[1]
        self.layer = (torch.nn.LSTM if cell is Cell.LSTM else torch.nn.GRU)(characters, HIDDEN)
        self.readout = torch.nn.Linear(HIDDEN, characters)
        for module in (self.layer, self.readout):
            module.to(torch.from_numpy(np.zeros(0, dtype)).dtype)
        stacked = [np.concatenate([weights[f"{k}_{g}"].T for g in gates]) for k in "wub"]
        recurrent, trained = np.zeros((2, *stacked[2].shape), dtype)
        if cell is Cell.GRU:
            recurrent[2 * HIDDEN :], trained[2 * HIDDEN :] = weights["c_n"], 1
        targets = [*self.layer.parameters(), *self.readout.parameters()]
        values = [*stacked, recurrent, weights["w_y"].T, weights["b_y"]]
        with torch.no_grad():
            for target, value in zip(targets, values, strict=True):
                target.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        only = torch.from_numpy(trained)
        self.layer.bias_hh_l0.register_hook(lambda gradient: gradient * only)
        settings = {"lr": LEARNING_RATE, "betas": (BETA_1, BETA_2), "eps": EPSILON}
        self.adam = torch.optim.Adam(targets, **settings, fused=True)
        self.one_hot = torch.eye(characters, dtype=self.readout.weight.dtype)
        self.states = None

    def learn(self, now: Array, following: Array, anew: bool) -> float:
        x = self.one_hot[torch.from_numpy(now)]
        h, states = self.layer(x, None if anew else self.states)
        logits, wanted = self.readout(h).flatten(0, 1), torch.from_numpy(following).flatten()
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        is_pair = isinstance(states, tuple)
        self.states = tuple(s.detach() for s in states) if is_pair else states.detach()
        return float(loss.detach())


# --- both -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Losses in nats a character, one a step, and the seconds of all steps."""

    by: str
    losses: list[float]
    seconds: float


def learn(by: str, writer: Writer | TorchWriter, text: Text, steps: int) -> Curve:
    started = time.perf_counter()
    losses = [writer.learn(*stretch) for stretch in stretches(text, steps)]
    return Curve(by, losses, round(time.perf_counter() - started, 3))


def curves(
    cell: Cell, text: Text, steps: int, seed: int, threads: int, dtype: str, peer: bool
) -> list[Curve]:
    """Learn on kernels, then in PyTorch, from the same weights."""
    kernel, characters = cellgen.compile(CELLS[cell]), len(text.alphabet)

    def weights() -> Arrays:
        return draw(kernel, characters, seed, dtype)

    found = [learn("cellgen", Writer(kernel, weights(), threads), text, steps)]
    if peer:
        found.append(learn("torch", TorchWriter(cell, weights(), threads), text, steps))
    return found


COMPARED = 50
"""Updates over which two curves must be the same. After some hundred the rounding of one sum has
grown to 1e-3 nats in an LSTM; in the first 50 it stays below 1e-5 in float32, 1e-14 in float64."""

BOUND = {"float32": 1e-4, "float64": 1e-12}
"""Nats by which they may differ there; a wrong gradient shows after two or three updates."""


def difference(found: list[Curve], updates: int | None = None) -> float:
    """The largest difference of two curves, or of their first updates, in nats."""
    first, second = (curve.losses[:updates] for curve in found)
    return float(np.max(np.abs(np.subtract(first, second))))


def print_curves(found: list[Curve], console: Console) -> None:
    steps = len(found[0].losses)
    shown = sorted({0, *range(0, steps, max(1, steps // 12)), steps - 1})
    console.print("step  " + "".join(f"{curve.by:>12s}" for curve in found), highlight=False)
    for step in shown:
        row = "".join(f"{curve.losses[step]:12.6f}" for curve in found)
        console.print(f"{step:4d}  {row}", highlight=False)
    for curve in found:
        console.print(f"{curve.by}: {curve.seconds:.2f} s", highlight=False)
    if len(found) == 2:
        console.print(f"largest difference: {difference(found):.1e} nats", highlight=False)


def save_plot(found: list[Curve], cell: Cell, file: Path) -> None:
    """Draw the curves, and what is left between them; the file's suffix chooses the format."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for curve, style in zip(found, ("-", "--"), strict=False):
        axes.plot(curve.losses, style, label=f"{curve.by}, {curve.seconds:.1f} s")
    note = f", curves differ by at most {difference(found):.0e}" if len(found) == 2 else ""
    axes.set(xlabel="step", ylabel="nats a character", title=f"{cell}{note}")
    axes.grid(alpha=0.3)
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main(
    cell: Annotated[Cell, typer.Option(help="Which layer.")] = Cell.LSTM,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Of both.")] = 2,
    double: Annotated[bool, typer.Option("--float64", help="Instead of float32.")] = False,
    text: Annotated[Path | None, typer.Option(help="A file to learn.")] = None,
    peer: Annotated[bool, typer.Option(help="Learn in PyTorch too, if it is there.")] = True,
    plot: Annotated[Path, typer.Option(help="Where the curves go: .png or .svg.")] = PICTURE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the curves as JSON.")] = False,
) -> None:
    """Learn to predict the characters of a text, on kernels over time and in PyTorch."""
    if plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{plot} must end in .png or .svg", param_hint="--plot")
    encoded = encode(text.read_text(encoding="utf-8") if text else licence())
    dtype, beside = "float64" if double else "float32", peer and torch is not None
    found = curves(cell, encoded, steps, seed, threads, dtype, beside)
    if as_json:
        print(json.dumps([asdict(curve) for curve in found]))
    else:
        print_curves(found, Console())
    save_plot(found, cell, plot)
    Console(stderr=True).print(f"curves: {plot}", markup=False, soft_wrap=True)
    if len(found) == 2 and not difference(found, COMPARED) <= BOUND[dtype]:
        sys.exit(
            f"the first {COMPARED} updates differ by {difference(found, COMPARED):.1e} nats from "
            f"PyTorch's, expected at most {BOUND[dtype]:.0e}"
        )


if __name__ == "__main__":
    typer.run(main)

"""Train a recurrent network of generated kernels to read handwritten digits.

Data: the UCI handwritten digits (Alpaydin & Kaynak 1998), 1797 images of 8 x 8 pixels that
scikit-learn carries; an image is a sequence of T = 8 rows of I = 8 pixels. Model: one recurrent
cell, read out after the last row by a softmax layer. Training: back-propagation through time, Adam.

The cell is a kernel that cellgen compiled: this file holds none of its mathematics, not even the
names of its weights, so ``--cell`` may be any cell that ships. Softmax and Adam are NumPy.
Every run with the same ``--seed`` on the same machine gives the same numbers, bit for bit.

    python examples/digits.py
    python examples/digits.py --cell lstm_block_cell --plot lstm.svg
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

try:
    import numpy as np
    import typer
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import cellgen
    from cellgen.runtime.abi import axis_length
except ModuleNotFoundError as missing:
    print(
        f"examples/digits.py needs scikit-learn and matplotlib, and {missing.name} cannot be "
        f"imported; install them with: pip install 'cellgen-compiler[examples]'",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

Array: TypeAlias = np.ndarray
Arrays: TypeAlias = dict[str, Array]

HIDDEN = 64
CLASSES = 10
BATCH = 32
LEARNING_RATE = 0.01
HELD_OUT = 0.2
REQUIRED_ACCURACY = 0.95
DEFAULT_PLOT = Path(__file__).parent / "output" / "digits.png"


# --- data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Sequences (T, N, I) and labels (N,): what is trained on, and the fifth that is held out."""

    x: Array
    labels: Array
    held_out_x: Array
    held_out_labels: Array


def read_digits(seed: int) -> Digits:
    """Split the images, every digit in proportion; float32, pixels between 0 and 1."""
    data = load_digits()
    parts = train_test_split(
        data.images, data.target, test_size=HELD_OUT, stratify=data.target, random_state=seed
    )
    images, held_out_images, labels, held_out_labels = parts
    return Digits(sequences(images), labels, sequences(held_out_images), held_out_labels)


def sequences(images: Array) -> Array:
    """Turn images (N, 8, 8) into sequences of rows, time first: (T, N, I)."""
    return np.ascontiguousarray(images.transpose(1, 0, 2) / 16, dtype=np.float32)


# --- model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A recurrent cell and the softmax layer that reads its last ``h``.

    ``cell`` holds the cell's weights by the names of its equations, ``readout`` the softmax
    layer's: w (H, classes) and b (classes,).
    """

    kernel: cellgen.Kernel
    cell: Arrays
    readout: Arrays

    @property
    def parameters(self) -> list[Array]:
        return [*self.cell.values(), *self.readout.values()]


def new_model(
    kernel: cellgen.Kernel,
    rng: np.random.Generator,
    sizes: dict[str, int],
    classes: int,
    dtype: type[np.floating] = np.float32,
) -> Model:
    """Draw weights uniformly from +-1/sqrt(H), as is usual for recurrent cells; biases are 0."""

    def draw(shape: tuple[int, ...]) -> Array:
        bound = sizes["H"] ** -0.5
        return rng.uniform(-bound, bound, shape).astype(dtype)

    cell = {}
    for argument in kernel.forward.function.arguments:
        if argument.text in ("weight", "bias"):
            shape = tuple(axis_length(axis, sizes) for axis in argument.shape)
            is_bias = argument.text == "bias"
            cell[argument.name] = np.zeros(shape, dtype) if is_bias else draw(shape)
    readout = {"w": draw((sizes["H"], classes)), "b": np.zeros(classes, dtype)}
    return Model(kernel, cell, readout)


def run_forward(model: Model, x: Array) -> list[Arrays]:
    """Run the cell over x (T, B, I) from zero states; return the values of every step by name."""
    state = zero_states(model, x)
    steps = []
    for x_now in x:
        before = {"x": x_now, **state}
        after = model.kernel.forward(**before, **model.cell)._asdict()
        state = {f"{name}_prev": after[name] for name in names_of_states(model)}
        steps.append(before | after)
    return steps


def run_backward(model: Model, steps: list[Arrays], d_h: Array) -> Arrays:
    """Propagate ``d_h`` (B, H) of the last step back through time; return the weights' gradients.

    Only what a step must hand to the one before it runs in the loop. The weights are the same at
    every step, so the gradient of each is a sum over steps of sums over rows; nothing in the loop
    waits for it, and it is the same sum whichever way its terms are grouped. With the rows of all
    steps stacked, one call over T B rows therefore gives all of it: a few long matrix products
    instead of T times as many short ones.
    """
    kernel = model.kernel
    upstream = {f"d_{name}": np.zeros_like(d_h) for name in names_of_states(model)} | {"d_h": d_h}
    done = []
    for forward in reversed(steps):
        step = forward | upstream
        step |= kernel.backward(**step, **model.cell)._asdict()
        d_before = step
        if "input_gradients" in kernel.functions:  # TensorFlow's LSTM: d_x, d_h_prev on their own
            d_before = step | kernel.input_gradients(**step, **model.cell)._asdict()
        upstream = {f"d_{name}": d_before[f"d_{name}_prev"] for name in names_of_states(model)}
        done.append(step)

    by_step = [f"d_{name}" for name in model.cell if f"d_{name}" in done[0]]  # its peepholes
    summed = {name: np.sum([step[name] for step in done], axis=0) for name in by_step}
    by_row = [name for name in done[0] if name not in by_step]
    rows = {name: np.concatenate([step[name] for step in done]) for name in by_row}
    return summed | kernel.weight_gradients(**rows, **model.cell)._asdict()


def names_of_states(model: Model) -> list[str]:
    """Name the values that a step hands to the next: ``h`` where the cell declares ``h_prev``."""
    arguments = model.kernel.forward.function.arguments
    return [item.name.removesuffix("_prev") for item in arguments if item.text == "state"]


def zero_states(model: Model, x: Array) -> Arrays:
    shape = (x.shape[1], len(model.readout["w"]))
    return {f"{name}_prev": np.zeros(shape, x.dtype) for name in names_of_states(model)}


# --- loss -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy in nats, and the share of digits that were read correctly."""

    loss: float
    accuracy: float


def classify(model: Model, h: Array) -> Array:
    """Return the logits (B, classes) for last outputs ``h`` (B, H)."""
    return h @ model.readout["w"] + model.readout["b"]


def score(logits: Array, labels: Array) -> tuple[Score, Array]:
    """Compare logits with labels; return the score and the gradient of its loss, (B, classes)."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)  # the largest is 0: exp cannot overflow
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    d_logits = np.exp(log_probability)
    d_logits[rows, labels] -= 1
    loss = -log_probability[rows, labels].mean()
    accuracy = (logits.argmax(axis=1) == labels).mean()
    return Score(float(loss), float(accuracy)), d_logits / len(labels)


def score_and_gradients(model: Model, x: Array, labels: Array) -> tuple[Score, list[Array]]:
    """Run the whole classifier forward and backward; gradients in the order of ``parameters``."""
    steps = run_forward(model, x)
    h = steps[-1]["h"]
    result, d_logits = score(classify(model, h), labels)
    d_cell = run_backward(model, steps, d_logits @ model.readout["w"].T)
    d_readout = [h.T @ d_logits, d_logits.sum(axis=0)]
    return result, [*(d_cell[f"d_{name}"] for name in model.cell), *d_readout]


def evaluate(model: Model, x: Array, labels: Array) -> Score:
    return score(classify(model, run_forward(model, x)[-1]["h"]), labels)[0]


# --- training ---------------------------------------------------------------------------------


class Adam:
    """Update arrays in place (Kingma & Ba 2015, arXiv:1412.6980, section 2, second form)."""

    def __init__(self, parameters: list[Array]) -> None:
        self.parameters = parameters
        self.mean = [np.zeros_like(array) for array in parameters]
        self.square = [np.zeros_like(array) for array in parameters]
        self.step = 0

    def update(
        self, gradients: list[Array], rate: float, beta_1: float = 0.9, beta_2: float = 0.999
    ) -> None:
        self.step += 1
        scale = rate * (1 - beta_2**self.step) ** 0.5 / (1 - beta_1**self.step)
        moments = zip(self.parameters, gradients, self.mean, self.square, strict=True)
        for parameter, gradient, mean, square in moments:
            mean += (1 - beta_1) * (gradient - mean)
            square += (1 - beta_2) * (gradient**2 - square)
            parameter -= scale * mean / (np.sqrt(square) + 1e-8)


@dataclass(frozen=True)
class Epoch:
    """Scores of one pass over the data: ``training`` is the mean over its batches, as they came."""

    training: Score
    held_out: Score


def train(kernel: cellgen.Kernel, digits: Digits, epochs: int, seed: int) -> Iterator[Epoch]:
    """Train a new model; yield after each epoch. The learning rate falls linearly to 0.

    The held-out digits are looked at, never used: not for training, nor for choosing an epoch.
    """
    rng = np.random.default_rng(seed)
    model = new_model(kernel, rng, {"I": digits.x.shape[2], "H": HIDDEN}, CLASSES)
    adam = Adam(model.parameters)
    batches = len(digits.labels) // BATCH
    for _ in range(epochs):
        scores = []
        for rows in np.array_split(rng.permutation(len(digits.labels)), batches):
            x = digits.x.take(rows, axis=1)
            result, gradients = score_and_gradients(model, x, digits.labels[rows])
            adam.update(gradients, LEARNING_RATE * (1 - adam.step / (epochs * batches)))
            scores.append((result.loss, result.accuracy))
        loss, accuracy = np.mean(scores, axis=0)
        held_out = evaluate(model, digits.held_out_x, digits.held_out_labels)
        yield Epoch(Score(float(loss), float(accuracy)), held_out)


# --- command line -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What ``--json`` prints; ``accuracy`` is on the held-out digits, ``seconds`` of training."""

    accuracy: float
    seconds: float
    epochs: int
    seed: int
    cell: str

    def __str__(self) -> str:
        return (
            f"{self.cell}: {self.accuracy:.2%} of the held-out digits read correctly "
            f"(epochs {self.epochs}, seed {self.seed}, {self.seconds:.1f} s)"
        )


def watch(history: Iterator[Epoch], epochs: int, cell: str, console: Console) -> list[Epoch]:
    """Run the training behind a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    seen = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"training {cell}", total=epochs, figures="")
        for epoch in history:
            seen.append(epoch)
            figures = f"loss {epoch.training.loss:.4f}  held-out {epoch.held_out.accuracy:.2%}"
            progress.update(task, advance=1, figures=figures)
    return seen


def save_plot(history: list[Epoch], cell: str, file: Path) -> None:
    """Draw loss and accuracy against epochs; the file's suffix chooses the format."""
    epochs = range(1, len(history) + 1)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(f"UCI handwritten digits, {cell}")
    loss, accuracy = figure.subplots(1, 2)
    for label, scores in (
        ("training", [epoch.training for epoch in history]),
        ("held out", [epoch.held_out for epoch in history]),
    ):
        loss.semilogy(epochs, [each.loss for each in scores], marker=".", label=label)
        accuracy.plot(epochs, [each.accuracy for each in scores], marker=".", label=label)
    loss.set(xlabel="epoch", ylabel="cross-entropy (nats)")
    accuracy.set(xlabel="epoch", ylabel="accuracy")
    accuracy.axhline(REQUIRED_ACCURACY, color="grey", linestyle=":", label="required")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (loss, accuracy):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main(
    cell: Annotated[str, typer.Option(help="A cell that ships.")] = "gru_block_cell",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the split, weights and batches.")] = 0,
    plot: Annotated[Path, typer.Option(help="Where the curves go: .png or .svg.")] = DEFAULT_PLOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a classifier of handwritten digits; exit 1 if it reads less than 95 % correctly."""
    console = Console(stderr=True)
    if plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{plot} must end in .png or .svg", param_hint="--plot")
    try:
        with console.status(f"compiling {cell}, unless the cache has it"):
            kernel = cellgen.load(cell)
    except cellgen.BuildError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(2) from None

    digits = read_digits(seed)
    started = time.perf_counter()
    history = watch(train(kernel, digits, epochs, seed), epochs, cell, console)
    seconds = round(time.perf_counter() - started, 2)

    result = Result(history[-1].held_out.accuracy, seconds, epochs, seed, cell)
    print(json.dumps(asdict(result)) if as_json else result)
    try:
        save_plot(history, cell, plot)
    except OSError as error:
        console.print(f"{plot} cannot be written: {error.strerror}", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    console.print(f"loss and accuracy: {plot}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if result.accuracy >= REQUIRED_ACCURACY else 1)


if __name__ == "__main__":
    typer.run(main)

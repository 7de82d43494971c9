"""Read handwritten digits as sequences, on the kernels over time; the same model in PyTorch beside.

Data: the UCI handwritten digits (Alpaydin & Kaynak 1998), 1797 images of 8 x 8 pixels that
scikit-learn carries, once as T = 8 rows of I = 8 pixels, once as T = 64 single pixels. Model: one
recurrent layer, a softmax layer on its last state. Training: back-propagation through time, Adam,
learning rate falling linearly to 0.

One call of ``sequence_forward`` and one of ``sequence_backward`` run a batch, and gradients go into
one array that is allocated once. Where PyTorch is installed, nn.LSTM or nn.GRU start from the same
weights and see the same batches on as many threads, and both times are printed.

    python examples/digits_over_time.py
    python examples/digits_over_time.py --cell gru --task pixels --threads 1
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

try:
    import numpy as np
    import typer
    from rich.console import Console
    from rich.table import Table
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import cellgen
    from cellgen.runtime.abi import axis_length
except ModuleNotFoundError as missing:
    print(
        f"examples/digits_over_time.py needs scikit-learn, and {missing.name} cannot be imported; "
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

HIDDEN = 64
CLASSES = 10
ACCURACY = 0.02
"""By how much kernels may read fewer digits than PyTorch: 7 of 360. Both start from the same
weights on the same batches; rounding, which grows from update to update, moves a few digits."""

BATCH = 32
LEARNING_RATE = 0.01
HELD_OUT = 0.2
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Cell(StrEnum):
    LSTM = "lstm"
    GRU = "gru"


class Task(StrEnum):
    ROWS = "rows"
    PIXELS = "pixels"


GATES = {Cell.LSTM: "ifgo", Cell.GRU: "rzn"}
"""PyTorch's order of the gates, by the names that the cells give them."""


# --- data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Sequences (T, N, I) and labels (N,): what is trained on, and the fifth that is held out."""

    x: Array
    labels: Array
    held_out_x: Array
    held_out_labels: Array


def read_digits(task: Task, seed: int) -> Digits:
    """Split the images, every digit in proportion; float32, pixels between 0 and 1."""
    data = load_digits()
    images, held_out_images, labels, held_out_labels = train_test_split(
        data.images, data.target, test_size=HELD_OUT, stratify=data.target, random_state=seed
    )
    x, held_out_x = sequences(images, task), sequences(held_out_images, task)
    return Digits(x, labels, held_out_x, held_out_labels)


def sequences(images: Array, task: Task) -> Array:
    """Turn images (N, 8, 8) into sequences, time first: (8, N, 8) or (64, N, 1)."""
    by_row = images.transpose(1, 0, 2) if task is Task.ROWS else images.reshape(-1, 64, 1)
    by_time = by_row if task is Task.ROWS else by_row.transpose(1, 0, 2)
    return np.ascontiguousarray(by_time / 16, dtype=np.float32)


def batches(labels: Array, epochs: int, seed: int) -> Iterator[tuple[Array, float]]:
    """Yield the rows of every batch and its learning rate: the same for whoever trains."""
    rng, done = np.random.default_rng(seed), 0
    count = len(labels) // BATCH
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(labels)), count):
            yield rows, LEARNING_RATE * (1 - done / (epochs * count))
            done += 1


# --- weights ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vector:
    """Named arrays that lie one after the other in one: an optimiser sees a single array."""

    whole: Array
    parts: Arrays

    @staticmethod
    def zeros(shapes: dict[str, tuple[int, ...]]) -> Vector:
        sizes = [int(np.prod(shape)) for shape in shapes.values()]
        whole = np.zeros(sum(sizes), np.float32)
        pieces = np.split(whole, np.cumsum(sizes)[:-1])
        parts = {n: a.reshape(shapes[n]) for n, a in zip(shapes, pieces, strict=True)}
        return Vector(whole, parts)


def shapes_of(kernel: cellgen.Kernel, inputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the cell's weights by name, then of the softmax layer's."""
    sizes = {"I": inputs, "H": HIDDEN}
    shapes = {
        argument.name: tuple(axis_length(axis, sizes) for axis in argument.shape)
        for argument in kernel.forward.function.arguments
        if argument.text in ("weight", "bias")
    }
    return {**shapes, "readout": (HIDDEN, CLASSES), "offset": (CLASSES,)}


def draw(shapes: dict[str, tuple[int, ...]], seed: int) -> Vector:
    """Draw weights uniformly from +-1/sqrt(H); biases are 0, the forget gate's 1."""
    rng, vector = np.random.default_rng(seed), Vector.zeros(shapes)
    for name, array in vector.parts.items():
        if array.ndim == 2:
            array[...] = rng.uniform(-(HIDDEN**-0.5), HIDDEN**-0.5, array.shape)
        elif name == "b_f":
            array[...] = 1
    return vector


# --- cellgen ----------------------------------------------------------------------------------


class Trainer:
    """A classifier on generated kernels: one call forward, one backward, one step of Adam."""

    def __init__(self, kernel: cellgen.Kernel, weights: Vector, threads: int) -> None:
        self.kernel, self.weights, self.threads = kernel, weights, threads
        shapes = {name: array.shape for name, array in weights.parts.items()}
        self.gradients = Vector.zeros(shapes)
        self.mean, self.square = np.zeros((2, len(weights.whole)), np.float32)
        self.updates = 0
        arguments = kernel.sequence_forward.function.arguments
        self.cell = {n: a for n, a in weights.parts.items() if n not in ("readout", "offset")}
        self.states = [item.name for item in arguments if item.text == "state"]
        taken = {item.name for item in kernel.sequence_backward.function.arguments}
        self.passed_on = [n for n in ("h", "c") if n in taken]
        self.out = {f"d_{name}": self.gradients.parts[name] for name in self.cell}

    def logits(self, x: Array, *, save: bool) -> tuple[Array, Arrays, object]:
        """Run the layer over x (T, B, I); return logits, the call's arguments, its results."""
        zeros = np.zeros((x.shape[1], HIDDEN), np.float32)
        given = {"x": x, **dict.fromkeys(self.states, zeros), **self.cell}
        done = self.kernel.sequence_forward(**given, save=save, threads=self.threads)
        readout, offset = self.weights.parts["readout"], self.weights.parts["offset"]
        return done.h_last @ readout + offset, given, done

    def train(self, x: Array, labels: Array, rate: float) -> float:
        """Take one step; return the batch's loss in nats."""
        logits, given, done = self.logits(x, save=True)
        loss, d_logits = cross_entropy(logits, labels)
        parts = self.gradients.parts
        np.matmul(done.h_last.T, d_logits, out=parts["readout"])
        np.sum(d_logits, axis=0, out=parts["offset"])
        self.kernel.sequence_backward(
            **given,
            **{name: getattr(done, name) for name in self.passed_on},
            saved=done.saved,
            d_h_last=d_logits @ self.weights.parts["readout"].T,
            out=self.out,
            threads=self.threads,
        )
        self.update(rate)
        return loss

    def update(self, rate: float) -> None:
        """Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1) for all weights at once."""
        self.updates += 1
        gradient = self.gradients.whole
        self.mean += (1 - BETA_1) * (gradient - self.mean)
        self.square += (1 - BETA_2) * (gradient * gradient - self.square)
        scale = np.float32(rate / (1 - BETA_1**self.updates))
        spread = np.sqrt(self.square / np.float32(1 - BETA_2**self.updates))
        weights = self.weights.whole
        weights -= scale * self.mean / (spread + np.float32(EPSILON))

    def accuracy(self, x: Array, labels: Array) -> float:
        return float((self.logits(x, save=False)[0].argmax(axis=1) == labels).mean())


def cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean cross-entropy in nats and its gradient (B, classes)."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)  # the largest is 0: exp cannot overflow
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    d_logits = np.exp(log_probability)
    d_logits[rows, labels] -= 1
    return -float(log_probability[rows, labels].mean()), d_logits / np.float32(len(labels))


# --- PyTorch ----------------------------------------------------------------------------------


class TorchTrainer:
    """The same classifier of nn.LSTM or nn.GRU, from the same weights.

    The cells have one bias where PyTorch adds two. Its second one stays 0 (``bias_hh``), but for
    the GRU's n, which reads it apart.
    """

    def __init__(self, cell: Cell, weights: Vector, threads: int) -> None:
        torch.set_num_threads(threads)
        parts, gates = weights.parts, GATES[cell]
        inputs = parts[f"w_{gates[0]}"].shape[0]
        self.layer = (torch.nn.LSTM if cell is Cell.LSTM else torch.nn.GRU)(inputs, HIDDEN)
        self.readout = torch.nn.Linear(HIDDEN, CLASSES)
        stacked = [np.concatenate([parts[f"{k}_{g}"].T for g in gates]) for k in ("w", "u", "b")]
        recurrent = np.zeros_like(stacked[2])
        trained = np.zeros_like(recurrent)
        if cell is Cell.GRU:
            recurrent[2 * HIDDEN :], trained[2 * HIDDEN :] = parts["c_n"], 1
        targets = [
            self.layer.weight_ih_l0,
            self.layer.weight_hh_l0,
            self.layer.bias_ih_l0,
            self.layer.bias_hh_l0,
            self.readout.weight,
            self.readout.bias,
        ]
        values = [*stacked, recurrent, parts["readout"].T, parts["offset"]]
        with torch.no_grad():
            for target, value in zip(targets, values, strict=True):
                target.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        if cell is Cell.LSTM:
            self.layer.bias_hh_l0.requires_grad_(False)
        else:
            only = torch.from_numpy(trained)
            self.layer.bias_hh_l0.register_hook(lambda gradient: gradient * only)
        learned = [parameter for parameter in targets if parameter.requires_grad]
        settings = {"lr": LEARNING_RATE, "betas": (BETA_1, BETA_2), "eps": EPSILON}
        self.adam = torch.optim.Adam(learned, **settings, fused=True)

    def logits(self, x: Array) -> torch.Tensor:
        return self.readout(self.layer(torch.from_numpy(x))[0][-1])

    def train(self, x: Array, labels: Array, rate: float) -> float:
        self.adam.param_groups[0]["lr"] = rate
        self.adam.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.logits(x), torch.from_numpy(labels))
        loss.backward()
        self.adam.step()
        return float(loss.detach())

    def accuracy(self, x: Array, labels: Array) -> float:
        with torch.inference_mode():
            return float((self.logits(x).numpy().argmax(axis=1) == labels).mean())


# --- both -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """One training: ``accuracy`` on the held-out digits; ``seconds`` of all its batches."""

    task: str
    by: str
    accuracy: float
    seconds: float
    first_loss: float
    last_loss: float


def run(
    name: str, trainer: Trainer | TorchTrainer, task: Task, digits: Digits, epochs: int, seed: int
) -> Result:
    """Train and look at the held-out digits once; the clock runs while batches are trained."""
    given = [
        (digits.x.take(rows, axis=1), digits.labels[rows], rate)
        for rows, rate in batches(digits.labels, epochs, seed)
    ]
    started = time.perf_counter()
    losses = [trainer.train(*batch) for batch in given]
    seconds = time.perf_counter() - started
    accuracy = trainer.accuracy(digits.held_out_x, digits.held_out_labels)
    mean = float(np.mean(losses[-len(digits.labels) // BATCH :]))
    return Result(task, name, accuracy, round(seconds, 3), losses[0], mean)


def compare(
    cell: Cell, task: Task, epochs: int, seed: int, threads: int, peer: bool
) -> list[Result]:
    """Train on kernels, then in PyTorch, from the same weights on the same batches."""
    kernel, digits = cellgen.load(cell), read_digits(task, seed)
    shapes = shapes_of(kernel, digits.x.shape[2])
    results = [
        run("cellgen", Trainer(kernel, draw(shapes, seed), threads), task, digits, epochs, seed)
    ]
    if peer:
        trainer = TorchTrainer(cell, draw(shapes, seed), threads)
        results.append(run("torch", trainer, task, digits, epochs, seed))
    return results


def print_results(results: list[Result], console: Console) -> None:
    table = Table("task", "by", "accuracy", "seconds", "first loss", "last epoch's loss")
    for each in results:
        figures = f"{each.accuracy:.2%}", f"{each.seconds:.2f}"
        losses = f"{each.first_loss:.6f}", f"{each.last_loss:.4f}"
        table.add_row(each.task, each.by, *figures, *losses)
    console.print(table)
    for own, peer in pairs(results):
        console.print(f"{own.task}: {peer.seconds / own.seconds:.1f} times as fast as PyTorch")


def pairs(results: list[Result]) -> list[tuple[Result, Result]]:
    """Our result and PyTorch's of each task, where there are both."""
    own = {each.task: each for each in results if each.by == "cellgen"}
    return [(own[each.task], each) for each in results if each.by == "torch"]


def main(
    cell: Annotated[Cell, typer.Option(help="Which layer.")] = Cell.LSTM,
    task: Annotated[list[Task] | None, typer.Option(help="One of them only.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the split, weights and batches.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Of both.")] = 2,
    peer: Annotated[bool, typer.Option(help="Train in PyTorch too, if it is there.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train classifiers of digits as rows and as pixels, on kernels over time and in PyTorch."""
    results = []
    for each in task or list(Task):
        results += compare(cell, each, epochs, seed, threads, peer and torch is not None)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        print_results(results, Console())
    for own, theirs in pairs(results):
        if own.accuracy < theirs.accuracy - ACCURACY:
            sys.exit(
                f"{own.task}: {own.accuracy:.2%} of the held-out digits, PyTorch "
                f"{theirs.accuracy:.2%}; expected at most {ACCURACY:.0%} less"
            )


if __name__ == "__main__":
    typer.run(main)

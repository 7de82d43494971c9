"""Train a reader of digits, export it to a microcontroller, and let it adapt there.

Data: the UCI handwritten digits (Alpaydin & Kaynak 1998) that scikit-learn carries, 1797 images,
each a sequence of eight rows of eight pixels. Model: a FastGRNN of 24 units; the layer that tells
digits apart is an equation of the cell, so that its gradients are derived too. It is trained here
by generated kernels and Adam, then exported as C99 with its weights and a training step. The
program (digits.c) runs on an emulated Cortex-M4F, or here where there is none: it reads held-out
images, then the same through a sensor that sits two pixels to the right and sees less contrast,
then learns from images of that sensor, one at a time, and reads again.

    python examples/embedded/digits.py
    python examples/embedded/digits.py --here --json
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import cellgen
    from cellgen import Bias, Dim, H, Weight
    from cellgen.cells import FastGRNN
except ModuleNotFoundError as missing:
    print(
        f"examples/embedded/digits.py needs scikit-learn, and {missing.name} cannot be imported; "
        f"install it with: pip install 'cellgen-compiler[examples]'",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

FOLDER = Path(__file__).resolve().parent
BOARD = FOLDER / "board"

UNITS, CLASSES, SHIFT = 24, 10, 2
EPOCHS, BATCH, LEARNING_RATE = 40, 32, 0.01
ROUNDS, RATE = 12, 0.006
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

CHIP = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wdouble-promotion", "-Werror")


class DigitRows(FastGRNN):
    """FastGRNN with a layer on its state: one number for each class."""

    w_y, b_y = Weight(H, Dim("C")), Bias(Dim("C"))
    y = FastGRNN.h @ w_y + b_y

    outputs = FastGRNN.h, y


def read_data(seed: int) -> dict[str, np.ndarray]:
    """Images (N, 8, 8) of whole numbers up to 16, and labels: to train on, to see, to test."""
    data = load_digits()
    kept = {"test_size": 0.2, "random_state": seed}
    split = train_test_split(data.images, data.target, stratify=data.target, **kept)
    images, usual, labels, usual_labels = split
    images, seen, labels, seen_labels = train_test_split(images, labels, stratify=labels, **kept)
    return {
        "images": images,
        "labels": labels,
        "seen": moved(seen),
        "seen_labels": seen_labels,
        "usual": usual,
        "usual_labels": usual_labels,
        "moved": moved(usual),
    }


def moved(images: np.ndarray) -> np.ndarray:
    """The same images two pixels to the right, at three quarters of the contrast."""
    found = np.zeros_like(images)
    found[:, :, SHIFT:] = images[:, :, :-SHIFT]
    return np.floor(found * 0.75)


# --- training here ----------------------------------------------------------------------------


def train(kernel: cellgen.Kernel, images: np.ndarray, labels: np.ndarray, seed: int):
    """Weights after so many epochs of Adam."""
    rng, sizes = np.random.default_rng(seed), {"I": 8, "H": UNITS, "C": CLASSES}
    shapes = {"w": "IH", "u": "HH", "b_z": "H", "b_h": "H", "w_y": "HC", "b_y": "C"}
    weights = {
        name: rng.normal(0, 1 / np.sqrt(sizes[axes[0]]), [sizes[a] for a in axes])
        if len(axes) == 2
        else np.zeros(sizes[axes])
        for name, axes in shapes.items()
    }
    weights |= {"zeta": np.ones(1), "nu": np.full(1, -4.0)}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    first = {name: np.zeros_like(array) for name, array in weights.items()}
    second = {name: np.zeros_like(array) for name, array in weights.items()}
    count, updates = 0, EPOCHS * (len(labels) // BATCH)
    for _ in range(EPOCHS):
        for rows in np.array_split(rng.permutation(len(labels)), len(labels) // BATCH):
            count += 1
            rate = LEARNING_RATE * (1 - count / updates)
            for name, gradient in gradients(kernel, weights, images[rows], labels[rows]).items():
                first[name] += (1 - BETA_1) * (gradient - first[name])
                second[name] += (1 - BETA_2) * (gradient**2 - second[name])
                mean = first[name] / (1 - BETA_1**count)
                square = second[name] / (1 - BETA_2**count)
                weights[name] -= (rate * mean / (np.sqrt(square) + EPSILON)).astype(np.float32)
    return weights


def gradients(kernel: cellgen.Kernel, weights, images: np.ndarray, labels: np.ndarray):
    """Gradients of the mean cross-entropy behind the last row, by the names of the weights."""
    x = np.ascontiguousarray(images.transpose(1, 0, 2) / 16, np.float32)
    given = {"x": x, "h_prev": np.zeros((len(labels), UNITS), np.float32), **weights}
    run = kernel.sequence_forward(**given, save=True)
    d_y = np.zeros_like(run.y)
    likely = np.exp(run.y[-1] - run.y[-1].max(1, keepdims=True))
    d_y[-1] = likely / likely.sum(1, keepdims=True) / len(labels)
    d_y[-1, np.arange(len(labels)), labels] -= 1 / len(labels)
    outputs = {"h": run.h, "y": run.y, "d_h": np.zeros_like(run.h), "d_y": d_y}
    found = kernel.sequence_backward(**given, **outputs, saved=run.saved)
    return {name: getattr(found, f"d_{name}") for name in weights}


# --- the device -------------------------------------------------------------------------------


def write_program(
    folder: Path, weights: dict[str, np.ndarray], data: dict[str, np.ndarray]
) -> None:
    """Export the cell, and write the images beside it."""
    np.savez(folder / "weights.npz", **weights)
    command = ["export", f"{FOLDER / 'digits.py'}:DigitRows", "--embedded", "--train"]
    command += ["--window", "8", "--weights", folder / "weights.npz"]
    command += ["--dims", f"I=8,H={UNITS},C={CLASSES}", folder]
    subprocess.run([sys.executable, "-m", "cellgen", *map(str, command)], check=True, stdout=2)
    lines = [f"#define USUAL {len(data['usual'])}", f"#define SEEN {len(data['seen'])}"]
    lines += [f"#define ROUNDS {ROUNDS}", f"#define RATE {RATE}f"]
    for name in ("usual", "usual_labels", "moved", "seen", "seen_labels"):
        numbers = ",".join(str(int(number)) for number in data[name].ravel())
        lines.append(f"static const unsigned char {name}[] = {{{numbers}}};")
    (folder / "images.h").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_here(folder: Path) -> str:
    """Compile the program for this machine and run it."""
    program, sources = folder / "here", [FOLDER / "digits.c", BOARD / "here.c"]
    command = ["gcc", *STRICT, "-O2", f"-I{BOARD}", f"-I{folder}"]
    sources.append(folder / "digit_rows.c")
    subprocess.run([*command, *map(str, sources), "-lm", "-o", str(program)], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def run_on_device(folder: Path) -> str:
    """Compile the program for a Cortex-M4F and run it in QEMU."""
    image, objects = folder / "device.elf", []
    sources = (FOLDER / "digits.c", folder / "digit_rows.c", BOARD / "board.c")
    for source in sources:
        flags = ("-std=gnu99",) if source.parent == BOARD else STRICT
        objects.append(folder / f"{source.stem}.o")
        command = ["arm-none-eabi-gcc", *CHIP, *flags, "-O2", f"-I{BOARD}", f"-I{folder}"]
        subprocess.run([*command, "-c", source, "-o", objects[-1]], check=True)
    linked = ["-nostartfiles", "-T", BOARD / "board.ld", *objects, "-lm", "-lc", "-lgcc"]
    subprocess.run(["arm-none-eabi-gcc", *CHIP, *linked, "-o", image], check=True)
    machine = ["qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none"]
    machine += ["-serial", "none", "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(
        [*machine, "-kernel", image], check=True, capture_output=True, text=True, timeout=600
    )
    return done.stdout + done.stderr


def main() -> int:
    """Train, export, run; 1 where adapting helps too little."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--here", action="store_true", help="run the program on this machine")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tools = ("arm-none-eabi-gcc", "qemu-system-arm")
    is_here = options.here or any(shutil.which(tool) is None for tool in tools)
    data = read_data(options.seed)
    weights = train(cellgen.compile(DigitRows), data["images"], data["labels"], options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_program(folder, weights, data)
        said = (run_here if is_here else run_on_device)(folder)
    count = len(data["usual"])
    found = {what: int(number) / count for what, number in map(str.split, said.splitlines())}
    if options.json:
        print(json.dumps({"place": "here" if is_here else "device", **found}))
    else:
        print(
            f"{'on this machine' if is_here else 'on an emulated Cortex-M4F'}, of {count} images:"
        )
        print(f"  as in training                       {found['usual']:.1%}")
        print(f"  the sensor moved                     {found['moved']:.1%}")
        print(f"  the sensor moved, after adapting     {found['adapted']:.1%}")
    return 0 if found["adapted"] > found["moved"] + 0.2 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Sizes and load times of wheels of prebuilt kernels, as a table and a picture.

    python -m benchmarks.wheels --cells 1 2 4 8 --svg docs/how-to/wheels.svg

Makes wheels of the first so many of ``CELLS``, each for four levels of x86-64, and imports each in
new processes, whose processor time is counted from after the import of NumPy. The picture needs
matplotlib (``pip install 'cellgen-compiler[plot]'``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cellgen.cells
from cellgen.wheel import make
from cellgen.wheel.pack import Naming

CELLS = ("GRU", "LSTM", "Elman", "MinGRU", "SRU", "LRU", "GRUBlockCell", "LSTMBlockCell")
LEVELS = ("v2", "v3", "v4", "amx")
IMPORTS = 12
LOADED = """
import time
import numpy
before = time.process_time()
import {name}
print(time.process_time() - before)
"""


@dataclass(frozen=True)
class WheelFigures:
    """One wheel: megabytes of the file and of each level's object, milliseconds of each import."""

    cells: int
    wheel: float
    objects: tuple[float, ...]
    imports: tuple[float, ...]


def measured(count: int) -> WheelFigures:
    """Make a wheel of so many cells, and import it."""
    naming = Naming(f"cells_{count}", "1.0")
    cells = make.sources_of([getattr(cellgen.cells, name) for name in CELLS[:count]])
    with TemporaryDirectory() as folder:
        planned = make.plan(["x86_64"], ",".join(LEVELS))
        (path,) = make.make(naming, cells, planned, Path(folder), for_c=False, say=_said)
        with zipfile.ZipFile(path) as archive:
            sizes = {i.filename: i.file_size / 1e6 for i in archive.infolist()}
            archive.extractall(folder)
        objects = [
            next(s for n, s in sizes.items() if f"/x86_64-{level}/" in n) for level in LEVELS
        ]
        imports = [_import(naming.name, folder) for _ in range(IMPORTS)]
        return WheelFigures(count, path.stat().st_size / 1e6, tuple(objects), tuple(imports))


def _import(name: str, folder: str) -> float:
    command = [sys.executable, "-c", LOADED.format(name=name)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return float(done.stdout) * 1e3


def _said(level: str, what: str) -> None:
    print(f"{level}: {what}", file=sys.stderr, flush=True)


def table(figures: Sequence[WheelFigures]) -> str:
    """A table in Markdown."""
    lines = [f"| cells | wheel, MB | {' | '.join(LEVELS)} | import, ms: least, median, most |"]
    lines.append("|---" * (len(LEVELS) + 3) + "|")
    for one in figures:
        objects = " | ".join(f"{size:.2f}" for size in one.objects)
        ordered = sorted(one.imports)
        least, median, most = ordered[0], ordered[len(ordered) // 2], ordered[-1]
        lines.append(
            f"| {one.cells} | {one.wheel:.2f} | {objects} | {least:.0f}, {median:.0f}, {most:.0f} |"
        )
    return "\n".join(lines)


def draw(figures: Sequence[WheelFigures], path: Path) -> None:
    """Draw sizes of objects and wheels, and times of imports, by the number of cells."""
    from matplotlib.figure import Figure

    from cellgen.bench.plot import save

    figure = Figure((7.2, 2.9), layout="constrained")
    sizes, times = figure.subplots(1, 2)
    counts = [one.cells for one in figures]
    for level, marker, values in zip(
        LEVELS, "sv^D", zip(*(one.objects for one in figures), strict=True), strict=True
    ):
        sizes.plot(counts, values, marker=marker, markersize=4, linewidth=1, label=level)
    wheels = [one.wheel for one in figures]
    sizes.plot(counts, wheels, "o-", color="#009988", label="the wheel, all four")
    sizes.set_ylabel("MB")
    sizes.legend(frameon=False, fontsize="small")
    for one in figures:
        times.plot([one.cells] * IMPORTS, one.imports, "o", color="#0077bb", alpha=0.4)
    times.set_ylabel("import, ms of a processor")
    times.set_ylim(bottom=0)
    for axes in (sizes, times):
        axes.set_xlabel("cells")
        axes.set_xticks(counts)
        axes.grid(linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def main() -> None:
    """Measure, print a table, draw a picture where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--svg", type=Path, help="where to draw; else no picture")
    words = parser.parse_args()
    figures = [measured(count) for count in words.cells]
    print(table(figures))
    if words.svg:
        draw(figures, words.svg)


if __name__ == "__main__":
    main()

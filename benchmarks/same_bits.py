"""Compare the results of two checkouts to the bit: cells, precisions, shapes, options, threads.

    python benchmarks/same_bits.py OLD NEW [--cells lstm,gru] [--quick]

Each checkout runs in a process of its own and prints one digest for each case; the lists must be
equal. A refusal counts as a result. Without ``--cells``, the cells that both ship.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SHAPES = (
    {"T": 7, "B": 3, "I": 5, "H": 17},
    {"T": 40, "B": 20, "I": 6, "H": 33},
    {"T": 1, "B": 4, "I": 9, "H": 64},
    {"T": 13, "B": 64, "I": 2, "H": 16},
    {"T": 30, "B": 1, "I": 16, "H": 128},
    {"T": 0, "B": 2, "I": 3, "H": 4},
    {"T": 3, "B": 0, "I": 3, "H": 4},
    {"T": 5, "B": 2, "I": 0, "H": 4},
)
THREADS = (1, 2, 3, 4)


def options_of(T: int, B: int) -> dict[str, dict[str, object]]:
    """Named options over time."""
    import numpy as np

    draw = np.random.default_rng(T * 100 + B)
    mask = draw.random((T, B)) < 0.7
    reset = draw.random((T, B)) < 0.2
    lengths = draw.integers(0, T + 1, B)
    return {
        "plain": {},
        "lengths": {"lengths": lengths},
        "mask": {"mask": mask},
        "zeros": {"mask": mask, "zero_output_for_mask": True},
        "reset": {"reset": reset},
        "reverse": {"reverse": True},
        "batch_first": {"batch_first": True},
        "window": {"window": 3},
        "all": {
            "lengths": lengths,
            "mask": mask.T.copy(),
            "reset": reset.T.copy(),
            "reverse": True,
            "batch_first": True,
            "window": 4,
        },
        "last_only": {"last_only": True},
        "last_only_mask": {"last_only": True, "mask": mask},
        "bp_lim": {"bp_lim": 2},
        "flush": {"flush_denormals": True},
        "packed": {"packed": True},
    }


def digests(cells: list[str], quick: bool) -> Iterator[str]:
    """Run this checkout: one line for each case."""
    import cellgen
    from cellgen.api import shipped_names

    for name in cells or shipped_names():
        kernel = cellgen.load(name)
        if not hasattr(kernel, "sequence_forward"):
            continue
        for shape in SHAPES[:2] if quick else SHAPES:
            for dtype in ("float32", "float64"):
                for threads in (1, 2) if quick else THREADS:
                    yield from _cases(name, kernel, shape, dtype, threads)


def _cases(name: str, kernel: object, shape: dict, dtype: str, threads: int) -> Iterator[str]:
    import numpy as np

    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    named = set(forward.function.dims)
    sizes = {dim: shape.get(dim, 2) for dim in named}
    sizes.setdefault("T", shape["T"])
    if "D" in sizes and "K" in sizes:
        sizes["D"], sizes["K"] = max(shape["H"] // 2, 1), 2
    draw = np.random.default_rng(7)
    arrays = {}
    for argument in forward.function.arguments:
        if argument.default is not None:
            continue
        dims = [_length(axis, sizes) for axis in argument.shape]
        arrays[argument.name] = (0.4 * draw.standard_normal(dims)).astype(dtype)
    for label, options in options_of(shape["T"], shape["B"]).items():
        found = hashlib.sha256()
        try:
            _run(forward, backward, arrays, dict(options), threads, found, kernel)
            text = found.hexdigest()[:16]
        except Exception as error:  # the same refusal counts as the same
            text = f"{type(error).__name__}"
        yield f"{name} {dtype} {tuple(shape.values())} threads={threads} {label} {text}"


def _length(axis: str, sizes: dict[str, int]) -> int:
    from cellgen.runtime.abi import axis_length

    return axis_length(axis, sizes)


def _turned(name: str, array: object, function: object, batch_first: bool) -> object:
    over_time = {
        a.name
        for a in (*function.function.arguments, *function.function.results)
        if a.shape[:1] == ("T",) and not a.saved
    }
    return array.swapaxes(0, 1) if batch_first and name in over_time else array


def _run(forward, backward, arrays, options, threads, found, kernel) -> None:
    import numpy as np

    batch_first = bool(options.get("batch_first"))
    packed, bp_lim = options.pop("packed", False), options.pop("bp_lim", None)
    window, last_only = options.pop("window", None), options.get("last_only")
    given = {n: _turned(n, a, forward, batch_first) for n, a in arrays.items()}
    weights = [a.name for a in forward.function.arguments if a.is_weight and a.default is None]
    extra = {}
    if packed:
        extra["packed"] = kernel.pack(**{n: given[n] for n in weights})
        given = {n: a for n, a in given.items() if n not in weights}
    y = forward(**given, **options, **extra, threads=threads, save=not last_only)
    for name, value in sorted(y._asdict().items()):
        if name == "saved" or value is None:
            continue
        found.update(name.encode() + _bytes(value))
    if last_only:
        return
    rng = np.random.default_rng(11)
    upstream = {}
    for argument in backward.function.arguments:
        if argument.optional and argument.name[2:] in y._fields:
            like = getattr(y, argument.name[2:])
            upstream[argument.name] = rng.standard_normal(like.shape).astype(like.dtype)
    outputs = {
        a.name: getattr(y, a.name)
        for a in backward.function.arguments
        if a.name in y._fields and not a.optional and not a.saved
    }
    more = {"window": window} if window else {}
    if bp_lim:
        more["bp_lim"] = bp_lim
    base = {n: _turned(n, a, forward, batch_first) for n, a in arrays.items()}
    g = backward(**base, **outputs, **upstream, **options, **more, saved=y.saved, threads=threads)
    for name, value in sorted(g._asdict().items()):
        found.update(name.encode() + _bytes(value))


def _bytes(array) -> bytes:
    """The bytes of an array; NaN is NaN, whatever its sign."""
    import numpy as np

    return np.where(np.isnan(array), np.nan, array).astype(array.dtype).tobytes()


def _shipped(checkout: Path) -> set[str]:
    """The cells that a checkout ships."""
    return {path.stem for path in checkout.glob("generated/*/*.c") if path.stem == path.parent.name}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--cells", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="store_true", help="print the digests of OLD alone")
    args = parser.parse_args()
    cells = [name for name in args.cells.split(",") if name]
    if args.only:
        for line in digests(cells, args.quick):
            print(line, flush=True)
        return 0
    chosen = args.cells or ",".join(sorted(_shipped(args.old) & _shipped(args.new)))
    lists = []
    for checkout in (args.old, args.new):
        words = [sys.executable, __file__, str(checkout), "--only", "--cells", chosen]
        words += ["--quick"] if args.quick else []
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            words, env=environment, cwd=checkout, text=True, capture_output=True, check=True
        )
        lists.append(done.stdout.splitlines())
    differing = [pair for pair in zip(*lists, strict=True) if pair[0] != pair[1]]
    for old, new in differing[:40]:
        print(f"- {old}\n+ {new}")
    refused = sum(line.split()[-1].endswith("Error") for line in lists[1])
    print(f"{len(lists[0])} cases, {len(differing)} differ, {refused} refused by both")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

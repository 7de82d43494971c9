"""Every function of prebuilt kernels beside that of kernels compiled here: equal to the bit.

``python -m tests.wheel.bits PACKAGE LEVEL [CELL...]`` compares cells of a package on the path, at
the level that CELLGEN_LEVEL names, and ends with 1 where one differs. Sums over units run in the
lanes of vectors, whose number is not that of another level: on a machine with AVX-512, v3 is
compared with kernels of CELLGEN_CFLAGS=-march=haswell.

Other bits are allowed at v2, whose products are not fused with additions, and with products of
int8, whose sums depend on the processor: both stay within rounding of the local kernel's results,
or within what a rounding of each argument does to them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

import cellgen
from cellgen.runtime.abi import Argument, Function, Interface, axis_length
from cellgen.runtime.kernel import Kernel

SIZES = {"T": 9, "B": 5, "I": 7, "H": 12}
ELSE = 3
"""Of a dimension that has another name."""


def drawn(
    interface: Interface, function: Function, dtype: type, seed: int = 5
) -> dict[str, np.ndarray]:
    """Arguments of a function by name; an axis that a constraint would refuse has its smallest.

    Weights shrink with their rows, so that states stay small: of large ones a gate that is all but
    closed would make a difference in the last bit one of many.
    """
    sizes = {dim: SIZES.get(dim, ELSE) for dim in interface.dims}
    numbers = np.random.default_rng(seed)

    def array(argument: Argument) -> np.ndarray:
        shape = tuple(axis_length(axis, sizes) for axis in argument.shape)
        scale = shape[0] if argument.role == "weight" and len(shape) > 1 else 1
        return (numbers.uniform(0.1, 0.9, shape) / max(1, scale)).astype(dtype)

    return {a.name: array(a) for a in function.arguments if a.used and not a.is_scalar}


ROUNDINGS = 64
"""By how many roundings of the largest number of a result two orders of one sum may differ.

A weight's gradient adds T x B = 45 terms, each of sums of H = 12, which in either order are within
a rounding a term. Found at v2 in 26 cells: up to 14, 26 with the norms of ``layer_norm_lstm``.
"""

TIMES = 4
"""By how many times what a rounding of arguments does; found at v2: up to 1.7."""

Alike = Callable[..., bool]
"""Whether two results are alike, given those of the first with arguments a rounding away."""
SHAKEN = 4
"""So many times arguments are moved by a rounding."""


def moved(arrays: Mapping[str, np.ndarray], alike: Alike) -> list[dict[str, np.ndarray]]:
    """Arguments, each number a rounding away from what it was; none where bits are compared."""
    signs = np.random.default_rng(7)
    return [
        {
            name: np.nextafter(a, np.where(signs.random(a.shape) < 0.5, -9, 9).astype(a.dtype))
            for name, a in arrays.items()
        }
        for _ in range(SHAKEN if alike is near else 0)
    ]


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two results have the same bits."""
    one, two = (np.ascontiguousarray(array).view(np.uint8) for array in (a, b))
    return np.array_equal(one, two)


def near(a: np.ndarray, b: np.ndarray, *shaken: np.ndarray) -> bool:
    """Whether two results differ by roundings alone.

    ``shaken`` are the first with arguments a rounding away, which tells what roundings do to a
    result that they are large in (TTT-Linear divides by a deviation of three units).
    """
    most = ROUNDINGS * np.finfo(a.dtype).eps * max(1, np.abs(a).max(initial=0))
    most = max(most, *(TIMES * np.abs(a - one).max(initial=0) for one in shaken), 0)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= most))


def rounded(local: Kernel, built: object) -> Iterator[tuple[str, bool]]:
    """Names of results of products of int8, and whether those of both kernels are near."""
    forward = next(f for f in local.interface.functions if f.name == "sequence_forward")
    given, ours = drawn(local.interface, forward, np.float32), local.sequence_forward
    runs = [
        (ours, given),
        (built.sequence_forward, given),
        *((ours, a) for a in moved(given, near)),
    ]
    yield from _alike("int8", [run(**a, products="int8") for run, a in runs], near)


def compared(
    local: Kernel, built: object, dtype: type, alike: Alike = equal
) -> Iterator[tuple[str, bool]]:
    """Names of results, and whether those of both kernels are alike."""
    for function in local.interface.functions:
        given = drawn(local.interface, function, dtype)
        ours, theirs = local.functions[function.name], getattr(built, function.name)
        options: tuple[Mapping[str, object], ...] = ({},)
        if function.name == "sequence_forward":
            lengths = np.arange(SIZES["B"]) * 2
            reset = np.arange(SIZES["T"] * SIZES["B"]).reshape(SIZES["T"], SIZES["B"]) % 4 == 0
            options = ({}, {"lengths": lengths, "reset": reset, "reverse": True})
        if function.name == "sequence_backward":
            yield from _both_ways(local, built, dtype, alike)
            continue
        for stated in options:
            runs = [(ours, given), (theirs, given), *((ours, a) for a in moved(given, alike))]
            yield from _alike(function.name, [run(**a, **stated) for run, a in runs], alike)


def _both_ways(
    local: Kernel, built: object, dtype: type, alike: Alike
) -> Iterator[tuple[str, bool]]:
    """Forward that saves, and backward of what was saved."""
    functions = {f.name: f for f in local.interface.functions}
    forward, backward = functions["sequence_forward"], functions["sequence_backward"]
    given = drawn(local.interface, forward, dtype)
    upstream = drawn(local.interface, backward, dtype, seed=6)
    for stated in ({}, {"lengths": np.arange(SIZES["B"]) * 2}):
        found = []
        runs = [(local, given), (built, given), *((local, a) for a in moved(given, alike))]
        for kernel, own in runs:
            y = kernel.sequence_forward(**own, **stated, save=True)
            results = {n: getattr(y, n) for n in y._fields if n != "saved"}
            arrays = {**{n: a for n, a in upstream.items() if n.startswith("d_")}, **own}
            arrays |= {n: a for n, a in results.items() if n in upstream}
            found.append(kernel.sequence_backward(**arrays, saved=y.saved))
        yield from _alike("sequence_backward", found, alike)


def _alike(label: str, runs: Sequence[object], alike: Alike) -> Iterator[tuple[str, bool]]:
    """Of the local kernel, of the other, and of the local one with arguments a rounding away."""
    for name in runs[1]._fields:
        yield f"{label}.{name}", alike(*(getattr(run, name) for run in runs))


def main(package: str, level: str, *cells: str) -> int:
    kernels, differ = importlib.import_module(package), 0
    assert kernels.level == level, kernels.level
    own = [
        name
        for name in kernels.__all__
        if isinstance(getattr(kernels, name), kernels.PrebuiltKernel)
    ]
    names = cells or own
    for name in names:
        local, count, cell = cellgen.load(name), 0, getattr(kernels, name)
        alike = near if level == "v2" else equal
        parts = [
            (dtype.__name__, compared(local, cell, dtype, alike))
            for dtype in (np.float32, np.float64)
        ]
        for kind, results in (*parts, ("float32", rounded(local, cell))):
            for result, is_alike in results:
                count += 1
                if not is_alike:
                    differ += 1
                    print(f"{name} {result} {kind}: not {alike.__name__} at {level}")
        print(f"{name}: {count} results at {level}")
    return 1 if differ or not names else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Every function of prebuilt kernels beside that of kernels compiled here: equal to the bit.

``python -m tests.wheel.bits PACKAGE LEVEL [CELL...]`` compares cells of a package on the path, at
the level that CELLGEN_LEVEL names, and ends with 1 where one differs. Sums over units run in the
lanes of vectors, whose number is not that of another level: on a machine with AVX-512, v3 is
compared with kernels of CELLGEN_CFLAGS=-march=haswell.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping

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
    """Arguments of a function by name; an axis that a constraint would refuse has its smallest."""
    sizes = {dim: SIZES.get(dim, ELSE) for dim in interface.dims}
    numbers = np.random.default_rng(seed)

    def array(argument: Argument) -> np.ndarray:
        shape = tuple(axis_length(axis, sizes) for axis in argument.shape)
        return numbers.uniform(0.1, 0.9, shape).astype(dtype)

    return {a.name: array(a) for a in function.arguments if a.used and not a.is_scalar}


def compared(local: Kernel, built: object, dtype: type) -> Iterator[tuple[str, bool]]:
    """Names of results, and whether both kernels give the same bits."""
    for function in local.interface.functions:
        given = drawn(local.interface, function, dtype)
        ours, theirs = local.functions[function.name], getattr(built, function.name)
        options: tuple[Mapping[str, object], ...] = ({},)
        if function.name == "sequence_forward":
            lengths = np.arange(SIZES["B"]) * 2
            reset = np.arange(SIZES["T"] * SIZES["B"]).reshape(SIZES["T"], SIZES["B"]) % 4 == 0
            options = ({}, {"lengths": lengths, "reset": reset, "reverse": True})
        if function.name == "sequence_backward":
            yield from _both_ways(local, built, dtype)
            continue
        for stated in options:
            expected, found = ours(**given, **stated), theirs(**given, **stated)
            yield from _same(function.name, expected, found)


def _both_ways(local: Kernel, built: object, dtype: type) -> Iterator[tuple[str, bool]]:
    """Forward that saves, and backward of what was saved."""
    functions = {f.name: f for f in local.interface.functions}
    forward, backward = functions["sequence_forward"], functions["sequence_backward"]
    given = drawn(local.interface, forward, dtype)
    upstream = drawn(local.interface, backward, dtype, seed=6)
    for stated in ({}, {"lengths": np.arange(SIZES["B"]) * 2}):
        found = []
        for kernel in (local, built):
            y = kernel.sequence_forward(**given, **stated, save=True)
            results = {n: getattr(y, n) for n in y._fields if n != "saved"}
            arrays = {**{n: a for n, a in upstream.items() if n.startswith("d_")}, **given}
            arrays |= {n: a for n, a in results.items() if n in upstream}
            found.append(kernel.sequence_backward(**arrays, saved=y.saved))
        yield from _same("sequence_backward", *found)


def _same(where: str, expected: object, found: object) -> Iterator[tuple[str, bool]]:
    for name in found._fields:
        pair = getattr(expected, name), getattr(found, name)
        yield (
            f"{where}.{name}",
            all(
                np.array_equal(a.view(np.uint8), b.view(np.uint8))
                for a, b in [[np.ascontiguousarray(x) for x in pair]]
            ),
        )


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
        local, count = cellgen.load(name), 0
        for dtype in (np.float32, np.float64):
            for result, is_same in compared(local, getattr(kernels, name), dtype):
                count += 1
                if not is_same:
                    differ += 1
                    print(f"{name} {result} {dtype.__name__}: other bits at {level}")
        print(f"{name}: {count} results at {level}")
    return 1 if differ or not names else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

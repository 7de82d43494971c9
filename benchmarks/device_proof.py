"""Compare the CUDA kernels of a cell with its C kernels: what ``device.py`` asks of every cell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from typing import Protocol

import numpy as np

import cellgen
from cellgen.cells import SHIPPED
from cellgen.errors import ArgumentError, DeviceError
from cellgen.language.cell import definition_of
from cellgen.program.derive import forward as forward_program
from cellgen.proof.check.kinks import kinks_of
from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.device.cuda_abi import ON_UNITS
from cellgen.runtime.device.function import CudaFunction
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.kernel import Kernel

SHAPES = ((5, 3, 4, 7), (1, 1, 1, 1), (12, 33, 20, 40), (3, 130, 17, 65))
DIMS = {"K": 2, "D": 3, "P": 3, "M": 5, "N": 4, "R": 3}
RUNS = (("steps", False), ("whole", False), ("fragments", False), ("steps", True))
"""Tiers, and whether steps are left out, start anew and are taken from the last to the first."""
# float64 and float32: sums of up to 10^3 terms over 12 steps, growth included. bfloat16: 2^-9 for
# each of some tens of roundings in a row; float16: 2^-12 for each of as many.
BARS = {"float64": 1e-11, "float32": 2e-4, "bfloat16": 0.08, "float16": 0.01}
POSITIVE = ("n_prev", "tau", "ts")
"""What is divided by, or is a time: elsewhere a cell is not defined, or grows without bound."""
FEW = 5
"""Steps over which a rounding to 16 bits does not grow much. Of a cell with thresholds, few values
besides: among many, some are always rounded across one."""
WORSE = 4
"""Times the error of the C kernel in float32 that a device's may have, where that is over the bar:
products of other orders, of numbers that are nearly equal and are subtracted."""
VANISHED = 2.0**-40
"""Of the largest entry of a call's results: below it nothing but rounding is left."""

Arrays = dict[str, np.ndarray]


class Named(Protocol):
    """Results by name."""

    def _asdict(self) -> dict[str, np.ndarray]: ...


Record = dict[str, object]
Record = dict[str, object]


def check_cell(name: str, options: argparse.Namespace) -> list[Record]:
    """Compare one cell with its C kernel."""
    kernel, exact = cellgen.load_cuda(name, emulated=options.emulated), cellgen.load(name)
    seeds, worst = list(range(options.seeds)), _worst_of(name)
    records: list[Record] = []
    for dtype in BARS:
        asked: dict[str, Callable[[int], float]] = {
            "over time": lambda s: error_over_time(kernel, exact, dtype, s, options.quick),  # noqa: B023
            "step": lambda s: error_of_steps(kernel, exact, dtype, s),  # noqa: B023
        }
        if dtype != "bfloat16":  # __cuda_array_interface__, which brings the gaps, has none
            asked["layouts"] = lambda s: error_of_layouts(kernel, exact, dtype, s)  # noqa: B023
        for what, measure in asked.items():
            error = worst(dtype, [measure(seed) for seed in seeds])
            record = {"cell": name, "dtype": dtype, "what": what, "error": error}
            records.append(_said(record, error <= BARS[dtype]))
    wrong = wrong_calls(kernel, exact)
    return [*records, _said({"cell": name, "what": "wrong calls", "wrong": wrong}, not wrong)]


def _worst_of(name: str) -> Callable[[str, list[float]], float]:
    """How errors of several draws count: the worst.

    Rounded values may cross a threshold or a kink, whose far side is another function: of a cell
    that has such, the best draw counts outside float64. What is wrong is so at every draw.
    """
    kinked = _is_kinked(name)
    return lambda dtype, errors: (min if kinked and dtype != "float64" else max)(errors)


@lru_cache
def _is_kinked(name: str) -> bool:
    """Whether a shipped cell has thresholds or kinks."""
    definition = next((d for d in map(definition_of, SHIPPED) if d.name == name), None)
    return definition is not None and bool(kinks_of(forward_program(definition)))


def _said(record: Record, ok: bool) -> Record:
    """Finish a record and print it as a line."""
    error = f"{record['error']:8.1e}" if "error" in record else ""
    columns = f"{record['cell']:40s} {record.get('dtype', ''):9s} {record['what']:12s} {error}"
    print(f"{columns} {record.get('wrong') or ''} {'ok' if ok else 'FAILED'}", flush=True)
    return {**record, "ok": ok}


def error_over_time(kernel: CudaKernel, exact: Kernel, dtype: str, seed: int, quick: bool) -> float:
    """Largest error of the functions over time; infinite for a cell that has none."""
    if "sequence_forward" not in kernel.functions:
        return float("inf")
    worst = 0.0
    shapes = SHAPES[:2] if quick else SHAPES
    if dtype in ON_UNITS:
        shapes = (
            SHAPES[:1] if _is_kinked(kernel.name) else tuple((min(t, FEW), *o) for t, *o in shapes)
        )
    for shape, (tier, with_options) in product(shapes, RUNS):
        if tier == "fragments" and dtype not in ON_UNITS:
            continue
        if dtype in ON_UNITS and shape[-1] == 1:
            continue  # a layer norm of one unit is 1 / sqrt(epsilon) times its rounding
        options = _options(shape, seed) if with_options else {}
        try:
            worst = max(worst, _compare(kernel, exact, dtype, shape, seed, tier, options))
        except DeviceError as error:
            if "do not fit" not in str(error):
                raise
    return worst


def error_of_steps(kernel: CudaKernel, exact: Kernel, dtype: str, seed: int) -> float:
    """Largest error of the functions of one step; each takes what those before it gave."""
    sizes = {**DIMS, **dict(zip("TBIH", (1, 3, 2, 5), strict=True))}
    rng, known, worst = np.random.default_rng(seed), Arrays(), 0.0
    for name, function in exact.functions.items():
        if function.function.team:
            continue
        for optional in (False, True):
            known = {**_draw(function.function, sizes, rng, optional), **known}
        taken = {a.name for a in function.function.arguments if not a.is_scalar}
        given = {n: a for n, a in known.items() if n in taken}
        device = {n: kernel.array(a, dtype=dtype) for n, a in given.items()}
        expected = function(**given)._asdict()
        found = _call(kernel, kernel.functions[name], sizes, dtype, device, {})
        for result, array in expected.items():
            worst = max(worst, largest_error(found[result].numpy(), array, dtype, expected))
        known |= {n: a for n, a in expected.items() if n not in known}
    return worst


class Strided:
    """A part of a larger array on a device, by ``__cuda_array_interface__``."""

    def __init__(self, room: DeviceArray, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.room = room
        whole = room.__cuda_array_interface__
        self.__cuda_array_interface__ = {**whole, "shape": shape, "strides": strides}


def _with_gaps(kernel: CudaKernel, array: np.ndarray, dtype: str) -> Strided:
    """Steps and rows of (T, B, ...) as (B, T, ...), a step of NaN behind those of each row."""
    steps, rows, *units = array.shape
    room = np.full((rows, steps + 1, *units), np.nan, dtype)
    room[:, :steps] = array.swapaxes(0, 1)
    return Strided(kernel.array(room), (rows, steps, *units), room.strides)


def error_of_layouts(kernel: CudaKernel, exact: Kernel, dtype: str, seed: int) -> float:
    """Largest error with rows first, gaps, gradients that stop at windows, the last state alone."""
    sizes = {**DIMS, **dict(zip("TBIH", SHAPES[0], strict=True))}
    rng, worst = np.random.default_rng(seed), 0.0
    forward, backward = exact.sequence_forward, exact.sequence_backward
    given = _draw(forward.function, sizes, rng, optional=False)
    above = _draw(backward.function, sizes, rng, optional=True)
    expected = forward(**given, save=True)
    outputs = {n: getattr(expected, n) for n in backward_outputs(backward.function, expected)}
    gradients = backward(**given, **outputs, **above, saved=expected.saved, window=2)

    def placed(function: Function, arrays: Arrays) -> dict[str, object]:
        over_time = {a.name for a in function.arguments if a.over_time}
        return {
            n: _with_gaps(kernel, a, dtype) if n in over_time else kernel.array(a, dtype=dtype)
            for n, a in arrays.items()
        }

    on_device = placed(forward.function, given)
    found = kernel.sequence_forward(**on_device, save=True, batch_first=True)
    call = placed(backward.function, {**given, **outputs, **above})
    back = kernel.sequence_backward(**call, saved=found.saved, batch_first=True, window=2)
    last = kernel.sequence_forward(**on_device, batch_first=True, last_only=True)
    for function, exactly, arrays in (
        (forward.function, expected, found),
        (backward.function, gradients, back),
    ):
        for result in (r for r in function.results if not r.saved):
            array = getattr(arrays, result.name).numpy()
            array = array.swapaxes(0, 1) if result.over_time else array
            exact_array = getattr(exactly, result.name)
            worst = max(worst, largest_error(array, exact_array, dtype, exactly._asdict()))
    for result in (r for r in forward.function.results if not r.saved):
        one, other = getattr(last, result.name), getattr(found, result.name)
        same = one is None if result.over_time else np.array_equal(one.numpy(), other.numpy())
        worst = worst if same else float("inf")
    return worst


def wrong_calls(kernel: CudaKernel, exact: Kernel) -> list[str]:
    """Calls that are wrong: each has to be refused, by name, and right calls to work after it."""
    sizes = {**DIMS, **dict(zip("TBIH", SHAPES[0], strict=True))}
    rng, forward = np.random.default_rng(0), kernel.sequence_forward
    given = _draw(exact.sequence_forward.function, sizes, rng, optional=False)
    device = {n: kernel.array(a) for n, a in given.items()}
    right = forward(**device)[-2].numpy()
    name, first = next(iter(given.items()))
    library = kernel.library()
    calls: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
        "on the host": (
            ArgumentError,
            f"{name} is a numpy.ndarray in the host's memory",
            lambda: forward(**{**device, name: first}),
        ),
        "of another type": (
            ArgumentError,
            f"{name} is float32, but ",
            lambda: forward(**{**device, name: kernel.array(first, dtype="float32")}),
        ),
        "of another shape": (
            ArgumentError,
            "axes, shape (",
            lambda: forward(**{**device, name: kernel.array(first[..., 0])}),
        ),
        "too large": (MemoryError, "no memory for", lambda: library.allocate(0, 1 << 50, 0)),
        "on no device": (DeviceError, "is not there", lambda: kernel.array(first, device=63)),
    }
    problems = []
    for what, (kind, said, call) in calls.items():
        try:
            call()
            problems.append(f"{what}: taken")
        except kind as error:
            if said not in str(error):
                problems.append(f"{what}: {error}")
        if not np.array_equal(forward(**device)[-2].numpy(), right):
            problems.append(f"{what}: the call after it is wrong")
    return problems


def _options(shape: tuple[int, ...], seed: int) -> dict[str, object]:
    """Options over time: lengths from 0 on, steps left out, resets, the order reversed."""
    rng = np.random.default_rng(seed)
    steps, rows = shape[:2]
    return {
        "lengths": rng.integers(0, steps + 1, rows),
        "mask": rng.random((steps, rows)) < 0.7,
        "reset": rng.random((steps, rows)) < 0.3,
        "reverse": True,
    }


def _compare(
    kernel: CudaKernel,
    exact: Kernel,
    dtype: str,
    shape: tuple[int, ...],
    seed: int,
    tier: str,
    options: dict[str, object],
) -> float:
    """Largest error over all results of one call of both functions over time."""
    rng = np.random.default_rng(seed)
    sizes = {**DIMS, **dict(zip("TBIH", shape, strict=True))}
    forward, backward = exact.sequence_forward, exact.sequence_backward
    given = _draw(forward.function, sizes, rng, optional=False)
    above = _draw(backward.function, sizes, rng, optional=True)
    expected = forward(**given, **options, save=True)
    outputs = {n: getattr(expected, n) for n in backward_outputs(backward.function, expected)}
    gradients = backward(**given, **outputs, **above, **options, saved=expected.saved)
    on_device = {n: kernel.array(a) if isinstance(a, np.ndarray) else a for n, a in options.items()}
    device = {n: kernel.array(a, dtype=dtype) for n, a in given.items()}
    device_above = {n: kernel.array(a, dtype=dtype) for n, a in above.items()}
    worst, bits = 0.0, []
    for graph in (False, True):
        chosen = {**on_device, "tier": tier, "graph": graph}
        found = _call(kernel, kernel.sequence_forward, sizes, dtype, device, chosen, save=True)
        made = {n: found[n] for n in outputs}
        saved = {n: found[n] for n in found if n not in expected._fields}
        found |= _call(
            kernel,
            kernel.sequence_backward,
            sizes,
            dtype,
            device | made | device_above | saved,
            chosen,
        )
        bits.append({n: a.numpy() for n, a in found.items()})
    for results in (expected._asdict(), gradients._asdict()):
        for name in results.keys() - {"saved"}:
            first, second = bits[0][name], bits[1][name]
            if not np.array_equal(first, second):
                return float("inf")
            worst = max(worst, largest_error(first, results[name], dtype, results))
    if dtype != "float32" or worst <= BARS[dtype]:
        return worst
    own = _of_float32(exact, given, above, options, expected, gradients)
    return worst * min(1.0, BARS[dtype] / max(WORSE * own, 1e-30))


def _of_float32(
    kernel: Kernel, given: Arrays, above: Arrays, options: dict[str, object], *exact: Named
) -> float:
    """The error of the C kernel in float32 on the same arguments."""
    given, above = ({n: a.astype(np.float32) for n, a in some.items()} for some in (given, above))
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    found = forward(**given, **options, save=True)
    outputs = {n: getattr(found, n) for n in backward_outputs(backward.function, found)}
    gradients = backward(**given, **outputs, **above, **options, saved=found.saved)
    errors = [
        largest_error(getattr(some, name), array, "float32", every._asdict())
        for some, every in zip((found, gradients), exact, strict=True)
        for name, array in every._asdict().items()
        if name != "saved"
    ]
    return max(errors)


def largest_error(
    found: np.ndarray, exact: np.ndarray, dtype: str, results: Mapping[str, object]
) -> float:
    """Largest difference over the largest entry; infinite where an entry is no number.

    What cancels to nothing in float64 (a gradient of a stabiliser) is measured by the largest entry
    of all results of its call.
    """
    sizes = [_largest(a) for a in results.values() if isinstance(a, np.ndarray)]
    scale, whole = _largest(exact), max(sizes, default=0.0)
    scale = (scale if scale > VANISHED * whole else whole) or 1.0
    error = _largest(found - exact) / scale
    if not np.isfinite(error):
        return float("inf")
    return 0.0 if dtype in ON_UNITS and exact.size == 1 else error  # a single sum may cancel


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def backward_outputs(function: Function, expected: object) -> list[str]:
    """Outputs of the forward pass that a call of the backward pass takes."""
    return [a.name for a in function.arguments if hasattr(expected, a.name) and not a.saved]


def _draw(
    function: Function, sizes: dict[str, int], rng: np.random.Generator, optional: bool
) -> dict[str, np.ndarray]:
    """Random arguments that bfloat16 holds too, and float16 unless they are next to nothing, so
    that rounding them is no error.

    Weights are scaled by their fan-in, so that many steps do not blow roundings up.
    """
    drawn = {}
    for a in function.arguments:
        if (
            not a.is_scalar
            and a.optional == optional
            and not a.saved
            and (optional or a.text != "output")
        ):
            lengths = [axis_length(axis, sizes) for axis in a.shape]
            values = rng.standard_normal(lengths) * 0.5
            if a.text == "weight" and len(lengths) > 1:
                values *= 2 / np.sqrt(max(4, lengths[-2]))
            values = np.abs(values) + 0.5 if a.name in POSITIVE else values
            bits = values.astype(np.float32).view(np.uint32)
            drawn[a.name] = (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
    return drawn


def _call(
    kernel: CudaKernel,
    function: CudaFunction,
    sizes: dict[str, int],
    dtype: str,
    given: dict[str, DeviceArray],
    options: dict[str, object],
    **more: bool,
) -> dict[str, DeviceArray]:
    """Call with results in memory full of NaN."""
    out = {}
    for item in function.function.results:
        lengths = [axis_length(axis, sizes) for axis in item.shape]
        out[item.name] = kernel.array(np.full(lengths, np.nan), dtype=dtype)
    taken = {a.name for a in function.function.arguments}
    function(**{n: a for n, a in given.items() if n in taken}, out=out, **options, **more)
    return out

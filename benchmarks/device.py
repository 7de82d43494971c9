"""Prove and time the CUDA kernels on a device: one command, run where there is one.

    python benchmarks/device.py --save benchmarks/results/cuda.json

1. ``check``: every cell, element type, tier and seed against the C kernels in float64, with and
   without options over time, results in memory full of NaN, twice with equal bits: launch by launch
   and as a graph.
2. ``sanitize``: a part of that under compute-sanitizer, memcheck and racecheck.
3. ``bench``: LSTM and GRU against cuDNN through PyTorch (kernel names recorded), sLSTM of 12 x 64
   units against FlashRNN where it is installed, minGRU against the bandwidth of a copy; medians of
   CUDA events.

``--emulated`` runs the check on the CPU, for tests of this file. Where a part cannot run (no
compute-sanitizer, no PyTorch), the report says so; nothing is filled in.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

import cellgen
from cellgen.abi import Function, axis_length
from cellgen.api import shipped_names
from cellgen.cuda import CudaFunction, CudaKernel, DeviceArray
from cellgen.errors import DeviceError
from cellgen.kernel import Kernel

SHAPES = ((5, 3, 4, 7), (1, 1, 1, 1), (12, 33, 20, 40), (3, 130, 17, 65))
DIMS = {"K": 2, "D": 3, "P": 3, "M": 5}
HEADS = {"K": 12, "D": 64}
RUNS = (("steps", False), ("whole", False), ("fragments", False), ("steps", True))
"""Tiers, and whether steps are left out, start anew and are taken from the last to the first."""
# float64 and float32: sums of up to 10^3 terms over 12 steps, growth included. bfloat16: 2^-9 for
# each of some tens of roundings in a row.
BARS = {"float64": 1e-11, "float32": 2e-4, "bfloat16": 0.08}
SANITIZED = ("lstm", "gru", "min_gru", "layer_norm_lstm", "slstm_heads")
BENCH_SHAPES = ((100, 32, 256), (100, 64, 512), (512, 16, 1024))
SLSTM_SHAPE = (1024, 16, 768)
SCAN_SHAPE = (4096, 8, 1024)
ROUNDS, WARM = 20, 5


# --- check ---------------------------------------------------------------------------------------


def check(
    names: list[str], seeds: list[int], quick: bool, emulated: bool
) -> list[dict[str, object]]:
    """Compare every cell with its C kernel; returns one record per cell and element type."""
    records = []
    for name in names:
        kernel = cellgen.load_cuda(name, emulated=emulated)
        exact = cellgen.load(name)
        shapes = SHAPES[:2] if quick else SHAPES
        for dtype in BARS:
            worst = 0.0
            for shape, seed, (tier, with_options) in product(shapes, seeds, RUNS):
                if tier == "fragments" and dtype != "bfloat16":
                    continue
                if dtype == "bfloat16" and shape[-1] == 1:
                    continue  # a layer norm of one unit is 1 / sqrt(epsilon) times its rounding
                options = _options(shape, seed) if with_options else {}
                try:
                    error = _compare(kernel, exact, dtype, shape, seed, tier, options)
                    worst = max(worst, error)
                except DeviceError as error:
                    if "do not fit" not in str(error):
                        raise
            ok = worst <= BARS[dtype]
            records.append({"cell": name, "dtype": dtype, "error": worst, "ok": ok})
            print(f"{name:40s} {dtype:9s} {worst:8.1e}  {'ok' if ok else 'FAILED'}", flush=True)
    return records


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
    if "sequence_forward" not in kernel.functions:
        return 0.0
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
    for name, array in {**expected._asdict(), **gradients._asdict()}.items():
        if name != "saved":
            first, second = bits[0][name], bits[1][name]
            if not np.array_equal(first, second):
                return float("inf")
            scale = np.max(np.abs(array), initial=0.0) or 1.0
            error = float(np.max(np.abs(first - array), initial=0.0) / scale)
            if np.isnan(error):
                return float("inf")
            if dtype != "bfloat16" or array.size > 1:  # a single sum may cancel
                worst = max(worst, error)
    return worst


def backward_outputs(function: Function, expected: object) -> list[str]:
    """Outputs of the forward pass that a call of the backward pass takes."""
    return [a.name for a in function.arguments if hasattr(expected, a.name) and not a.saved]


def _draw(
    function: Function, sizes: dict[str, int], rng: np.random.Generator, optional: bool
) -> dict[str, np.ndarray]:
    """Random arguments that bfloat16 holds too, so that rounding them is no error.

    The normaliser of an sLSTM, by which it divides, is positive.
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
            values = np.abs(values) + 0.5 if a.name == "n_prev" else values
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


# --- sanitize ------------------------------------------------------------------------------------


def sanitize() -> list[dict[str, object]]:
    """Run a part of the check under compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return [{"tool": "compute-sanitizer", "skipped": "not installed"}]
    records: list[dict[str, object]] = []
    for tool in ("memcheck", "racecheck"):
        command = [program, "--tool", tool, "--error-exitcode", "3", sys.executable, __file__]
        command += ["--only", "check", "--quick", "--cells", ",".join(SANITIZED), "--seeds", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        records.append({"tool": tool, "status": done.returncode, "ok": done.returncode == 0})
        print(f"compute-sanitizer {tool}: status {done.returncode}", flush=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:])
    return records


# --- bench ---------------------------------------------------------------------------------------


def bench() -> list[dict[str, object]]:
    """Time forward, and forward with backward, against what PyTorch runs."""
    if importlib.util.find_spec("torch") is None:
        return [{"skipped": "PyTorch is not installed"}]
    import torch

    if not torch.cuda.is_available():
        return [{"skipped": "PyTorch finds no device"}]
    records: list[dict[str, object]] = []
    for cell, shape, dtype in product(("lstm", "gru"), BENCH_SHAPES, ("float32", "bfloat16")):
        records.append(_time_own(torch, cell, shape, dtype))
    for cell, shape in product(("LSTM", "GRU"), BENCH_SHAPES):
        for dtype in ("float32", "float16", "bfloat16"):
            records.append(_time_cudnn(torch, cell, shape, dtype))
    for dtype in ("float32", "bfloat16"):
        records.append(_time_own(torch, "slstm_heads", SLSTM_SHAPE, dtype))
    if importlib.util.find_spec("flashrnn") is None:
        records.append({"peer": "flashrnn", "skipped": "not installed"})
    else:
        records.append(_time_flashrnn(torch))
    for dtype in ("float32", "bfloat16"):
        records.append(_time_own(torch, "min_gru", SCAN_SHAPE, dtype) | _copy_rate(torch))
    for record in records:
        print(json.dumps(record), flush=True)
    return records


def _median_ms(torch: object, call: Callable[[], object]) -> float:
    """Median over rounds of CUDA events around one call."""
    cuda = torch.cuda  # type: ignore[attr-defined]
    for _ in range(WARM):
        call()
    times = []
    for _ in range(ROUNDS):
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def _graph(torch: object, call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call; its replay costs no launches of the host."""
    cuda = torch.cuda  # type: ignore[attr-defined]
    side = cuda.Stream()
    with cuda.stream(side):
        call()
    side.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()
    return lambda: graph.replay()


def _time_own(torch: object, cell: str, shape: tuple[int, ...], dtype: str) -> dict[str, object]:
    kernel = cellgen.load_cuda(cell)
    sizes = {"T": shape[0], "B": shape[1], "I": shape[2], "H": shape[2], **DIMS, **HEADS}
    kind = getattr(torch, dtype)

    def drawn(function: Function, optional: bool) -> dict[str, object]:
        found = {}
        for a in function.arguments:
            if not a.is_scalar and a.optional == optional and not a.saved and a.text != "output":
                lengths = [axis_length(axis, sizes) for axis in a.shape]
                values = torch.randn(lengths, device="cuda") / shape[2] ** 0.5  # type: ignore[attr-defined]
                values = values.abs() + 1 if a.name == "n_prev" else values
                found[a.name] = values.to(kind)
        return found

    given = drawn(kernel.sequence_forward.function, False)
    above = drawn(kernel.sequence_backward.function, True)
    record: dict[str, object] = {"who": "cellgen", "cell": cell, "shape": shape, "dtype": dtype}

    def both() -> None:
        y = kernel.sequence_forward(**given, save=True)
        names = backward_outputs(kernel.sequence_backward.function, y)
        outputs = {n: getattr(y, n) for n in names}
        kernel.sequence_backward(**given, **outputs, **above, saved=y.saved)

    for mode, call in (("f", lambda: kernel.sequence_forward(**given)), ("fb", both)):
        record[f"{mode}_ms"] = _median_ms(torch, call)
        record[f"{mode}_graph_ms"] = _median_ms(torch, _graph(torch, call))
    record["f_without_graph_ms"] = _median_ms(
        torch, lambda: kernel.sequence_forward(**given, graph=False)
    )
    return record


def _time_cudnn(torch: object, cell: str, shape: tuple[int, ...], dtype: str) -> dict[str, object]:
    kind = getattr(torch, dtype)
    steps, rows, units = shape
    layer = getattr(torch.nn, cell)(units, units).to("cuda", kind)  # type: ignore[attr-defined]
    x = torch.randn(steps, rows, units, device="cuda", dtype=kind, requires_grad=True)  # type: ignore[attr-defined]

    def both() -> None:
        layer(x)[0].sum().backward()

    record: dict[str, object] = {"who": "torch", "cell": cell, "shape": shape, "dtype": dtype}
    with torch.no_grad():  # type: ignore[attr-defined]
        record["f_ms"] = _median_ms(torch, lambda: layer(x))
    record["fb_ms"] = _median_ms(torch, both)
    with torch.profiler.profile() as seen:  # type: ignore[attr-defined]
        layer(x)
        torch.cuda.synchronize()  # type: ignore[attr-defined]
    names = {event.key for event in seen.key_averages() if "elementwise" not in event.key}
    record["kernels"] = sorted(n for n in names if "rnn" in n.lower() or "gemm" in n.lower())
    return record


def _time_flashrnn(torch: object) -> dict[str, object]:
    from flashrnn import flashrnn

    steps, rows, units = SLSTM_SHAPE
    heads, wide = units // 64, 64
    options = {"device": "cuda", "dtype": torch.bfloat16}  # type: ignore[attr-defined]
    wx = torch.randn(rows, steps, 4, heads, wide, **options)  # type: ignore[attr-defined]
    r = torch.randn(4, heads, wide, wide, **options) / 8  # type: ignore[attr-defined]
    b = torch.zeros(4, heads, wide, **options)  # type: ignore[attr-defined]
    time = _median_ms(torch, lambda: flashrnn(wx, r, b, function="slstm", backend="cuda_fused"))
    return {"who": "flashrnn", "cell": "slstm", "shape": SLSTM_SHAPE, "heads": heads, "f_ms": time}


def _copy_rate(torch: object) -> dict[str, object]:
    """Bytes read and written a second by a copy: what a scan can reach."""
    source = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)  # type: ignore[attr-defined]
    target = torch.empty_like(source)  # type: ignore[attr-defined]
    time = _median_ms(torch, lambda: target.copy_(source))
    return {"copy_GB_per_s": 2 * source.numel() / time / 1e6}


# --- the command ---------------------------------------------------------------------------------


def _device(emulated: bool) -> str:
    if emulated:
        return "emulated on the CPU"
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _failed(report: dict[str, object]) -> Iterator[object]:
    for part in ("check", "sanitize"):
        records = report.get(part, [])
        assert isinstance(records, list)
        yield from (record for record in records if record.get("ok") is False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("check", "sanitize", "bench"))
    parser.add_argument("--cells", default="", help="comma-separated; all that ship when left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small shapes only")
    parser.add_argument("--emulated", action="store_true", help="check on the CPU")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    names = options.cells.split(",") if options.cells else list(shipped_names())
    if not options.emulated:
        try:
            cellgen.load_cuda(names[0]).devices()
        except DeviceError as error:
            print(f"no device to run on: {error}", file=sys.stderr)
            return 2
    parts: dict[str, Callable[[], list[dict[str, object]]]] = {
        "check": lambda: check(names, list(range(options.seeds)), options.quick, options.emulated),
        "sanitize": sanitize,
        "bench": bench,
    }
    chosen = [options.only] if options.only else ["check"] if options.emulated else list(parts)
    report: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]),
        "device": _device(options.emulated),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report |= {part: parts[part]() for part in chosen}
    if options.save:
        options.save.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if list(_failed(report)) else 0


if __name__ == "__main__":
    sys.exit(main())

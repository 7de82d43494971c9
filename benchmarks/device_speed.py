"""Time the CUDA kernels on a device, beside what PyTorch, FlashRNN and a copy reach there.

Imported by ``device.py`` where PyTorch is installed. Times are medians of CUDA events around one
call, first calls apart; each is given as a multiple of a limit (``device_limits``). Both sides get
the same work: an upstream gradient of the sequence ``h``, gradients of everything that is given.
Kernels of every call are recorded, forward and backward, and a name that is not expected fails.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import device_cells
import numpy as np
import torch
from device_limits import Limit, bytes_of, limit_of

import cellgen
from cellgen.runtime.abi import Function, axis_length
from cellgen.runtime.device.cuda_abi import ON_UNITS
from cellgen.runtime.device.kernel import CudaKernel

Record = dict[str, object]
Call = Callable[[], object]
SHAPES = ((100, 32, 256), (100, 64, 512), (512, 16, 1024))
SLSTM_SHAPE = (1024, 16, 768)
SCAN_SHAPE = (4096, 8, 1024)
HEADS = {"K": 12, "D": 64}
ROUNDS, WARM = 20, 5
OWN = r"{cell}_|cellgen_|gemm|gemv|cutlass|xmma|cublas|nvjet|split[kK]|[Mm]em(set|cpy)"
"""Kernels that a call of ours may launch: the cell's, the runtime header's, products of cuBLAS."""
CUDNN = r"RNN|LSTM_element|GRU_element|[Pp]ersist"
"""A kernel that only cuDNN's recurrences have; it must be there, forward and backward."""
NOT_CUDNN = r"(lstm|gru)_cell_(forward|backward)"
"""What PyTorch launches step by step where it does not call cuDNN."""
FINISHED = {
    "lstm": device_cells.LSTMFinished,
    "gru": device_cells.GRUFinished,
    "slstm_heads": device_cells.SLSTMFinished,
    "min_gru": device_cells.MinGRUScan,
}


CELLS = ("lstm", "gru", "slstm_heads", "min_gru")


def bench(device: str, cells: Sequence[str] = CELLS, rounds: int = ROUNDS) -> list[Record]:
    """Time some cells; one record for each side, shape and element type."""
    records: list[Record] = []
    global ROUNDS
    ROUNDS = rounds
    for record in _records(device, cells):
        print(json.dumps(record), flush=True)
        records.append(record)
    return records


def _records(device: str, cells: Sequence[str]) -> Iterator[Record]:
    layers = [cell for cell in ("lstm", "gru") if cell in cells]
    for cell, shape, dtype in product(layers, SHAPES, ("float32", *ON_UNITS)):
        yield from _both(cell, shape, dtype, device)
    for cell, shape in product([cell.upper() for cell in layers], SHAPES):
        for dtype, tf32 in (
            ("float32", False),
            ("float32", True),
            ("float16", False),
            ("bfloat16", False),
        ):
            yield _cudnn(cell, shape, dtype, tf32, device)
    if "slstm_heads" in cells:
        for dtype in ("float32", "bfloat16"):
            yield from _both("slstm_heads", SLSTM_SHAPE, dtype, device)
        yield from _flashrnn(device)
    for dtype in ("float32", "bfloat16") if "min_gru" in cells else ():
        yield from _scan(dtype, device)


# --- measuring ---------------------------------------------------------------------------------


def median_ms(call: Call) -> float:
    """Median over rounds of CUDA events around one call."""
    for _ in range(WARM):
        call()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def captured(call: Call) -> Call:
    """Capture a call; its replay costs no launches of the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda: graph.replay()


def kernels_of(call: Call) -> list[str]:
    """Names of the kernels that a call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    return sorted({event.name for event in seen.events() if event.device_type == on_device})


def unexpected_own(cell: str, names: list[str]) -> str:
    """Say what is wrong with the kernels of a call of ours, or nothing."""
    strange = [name for name in names if not re.search(OWN.format(cell=cell), name)]
    if strange:
        return f"kernels that no call of {cell} should launch: {', '.join(strange)}"
    return "" if any(f"{cell}_" in name for name in names) else f"no kernel of {cell} ran"


def unexpected_cudnn(names: list[str]) -> str:
    """Say what is wrong with the kernels of a layer of PyTorch, or nothing."""
    stepwise = [name for name in names if re.search(NOT_CUDNN, name)]
    if stepwise:
        return f"not cuDNN, step by step: {', '.join(stepwise)}"
    seen = any(re.search(CUDNN, name) for name in names)
    return "" if seen else f"no recurrence of cuDNN among {', '.join(names)}"


def timed(f: Call, fb: Call, limit: Limit | None) -> Record:
    """Times of both calls, launched and as graphs, each with its multiple of the limit."""
    record: Record = {}
    for mode, call in (("f", f), ("fb", fb)):
        record[f"{mode}_ms"] = median_ms(call)
        try:
            record[f"{mode}_graph_ms"] = median_ms(captured(call))
        except RuntimeError as error:
            record[f"{mode}_graph"] = f"cannot be captured: {error}"[:200]
    if limit is None:
        return record | {"limit": "no figures for this device"}
    least = {"f": limit.f_ms, "fb": limit.fb_ms}
    ratios = {
        f"{name.removesuffix('_ms')}_to_limit": time / least[name.partition("_")[0]]
        for name, time in record.items()
        if isinstance(time, float)
    }
    stated = {"limit": limit.source, "limit_f_ms": limit.f_ms, "limit_fb_ms": limit.fb_ms}
    return record | ratios | stated


def checked(record: Record, f: list[str], fb: list[str], wrong: list[str]) -> Record:
    """A record with its kernels; not ok where one is wrong."""
    problems = [text for text in wrong if text]
    return record | {"f_kernels": f, "fb_kernels": fb, "ok": not problems, "wrong": problems}


# --- ours ----------------------------------------------------------------------------------------


def sizes_of(shape: tuple[int, ...]) -> dict[str, int]:
    steps, rows, units = shape
    return {"T": steps, "B": rows, "I": units, "H": units, **HEADS}


def _both(cell: str, shape: tuple[int, ...], dtype: str, device: str) -> Iterator[Record]:
    """With the input product, and without."""
    whole, rest = cellgen.load_cuda(cell), cellgen.compile_cuda(FINISHED[cell])
    yield own(whole, shape, dtype, device) | {"input_product": True}
    yield own(rest, shape, dtype, device) | {"input_product": False}


def drawn(
    function: Function, sizes: Mapping[str, int], kind: torch.dtype, names: set[str]
) -> Record:
    """Arguments of a kernel as tensors; the normaliser of an sLSTM is positive."""
    found: Record = {}
    for a in function.arguments:
        if a.name in names:
            lengths = [axis_length(axis, sizes) for axis in a.shape]
            values = torch.randn(lengths, device="cuda") / sizes["H"] ** 0.5
            found[a.name] = (values.abs() + 1 if a.name == "n_prev" else values).to(kind)
    return found


def calls_of(kernel: CudaKernel, sizes: Mapping[str, int], dtype: str) -> tuple[Call, Call, Call]:
    """A forward pass; forward and backward pass; and the latter launch by launch."""
    kind = getattr(torch, dtype)
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    names = {a.name for a in forward.function.arguments if not a.is_scalar}
    given = drawn(forward.function, sizes, kind, names)
    above = drawn(backward.function, sizes, kind, {"d_h"})
    taken = {a.name for a in backward.function.arguments}

    def both(graph: bool | None = None) -> object:
        y = forward(**given, save=True, graph=graph)
        outputs = {n: getattr(y, n) for n in y._fields if n in taken}
        return backward(**given, **outputs, **above, saved=y.saved, graph=graph)

    return lambda: forward(**given), both, lambda: both(False)


def own(kernel: CudaKernel, shape: tuple[int, ...], dtype: str, device: str) -> Record:
    """Time a cell of ours."""
    sizes = sizes_of(shape)
    f, fb, plain = calls_of(kernel, sizes, dtype)
    limit = limit_of(kernel, kernel.name, shape, dtype, sizes, device)
    record: Record = {"who": "cellgen", "cell": kernel.name, "shape": shape, "dtype": dtype}
    record |= timed(f, fb, limit)
    names, all_names = kernels_of(f), kernels_of(plain)
    wrong = [unexpected_own(kernel.name, found) for found in (names, all_names)]
    return checked(record, names, all_names, wrong)


# --- the others ----------------------------------------------------------------------------------


def _cudnn(cell: str, shape: tuple[int, ...], dtype: str, tf32: bool, device: str) -> Record:
    """A layer of PyTorch, which has the input product in it."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    kind, (steps, rows, units) = getattr(torch, dtype), shape
    layer = getattr(torch.nn, cell)(units, units).to("cuda", kind)
    x = torch.randn(steps, rows, units, device="cuda", dtype=kind, requires_grad=True)
    above = torch.randn(steps, rows, units, device="cuda", dtype=kind)
    wanted = (x, *layer.parameters())

    def f() -> object:
        with torch.no_grad():
            return layer(x)

    def fb() -> object:
        return torch.autograd.grad(layer(x)[0], wanted, above)

    own_cell = cell.lower()
    asked = "float32 with TF32" if tf32 else dtype
    limit = limit_of(cellgen.load_cuda(own_cell), own_cell, shape, asked, sizes_of(shape), device)
    record: Record = {"who": "torch", "torch": torch.__version__, "cell": cell, "shape": shape}
    record |= {"dtype": dtype, "tf32": tf32, "input_product": True, **timed(f, fb, limit)}
    names, all_names = kernels_of(f), kernels_of(fb)
    training = kernels_of(lambda: layer(x))
    backward = [name for name in all_names if name not in training]
    return checked(record, names, all_names, [unexpected_cudnn(names), unexpected_cudnn(backward)])


def _flashrnn(device: str) -> Iterator[Record]:
    """Both kernels of FlashRNN, which takes finished input products; where it runs."""
    if importlib.util.find_spec("flashrnn") is None:
        yield {"who": "flashrnn", "skipped": "not installed"}
        return
    flashrnn = importlib.import_module("flashrnn").flashrnn
    steps, rows, _ = SLSTM_SHAPE
    heads, wide = HEADS["K"], HEADS["D"]
    options = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    wx = torch.randn(rows, steps, 4, heads, wide, **options)
    r, b = torch.randn(4, heads, wide, wide, **options), torch.zeros(4, heads, wide, **options)
    above = torch.randn(rows, steps, heads, wide, device="cuda", dtype=torch.bfloat16)
    sizes = sizes_of(SLSTM_SHAPE)
    kernel = cellgen.compile_cuda(FINISHED["slstm_heads"])
    limit = limit_of(kernel, kernel.name, SLSTM_SHAPE, "bfloat16", sizes, device)
    for backend in ("cuda_fused", "cuda"):
        record: Record = {"who": "flashrnn", "backend": backend, "cell": "slstm"}
        record |= {"shape": SLSTM_SHAPE, "dtype": "bfloat16", "input_product": False}

        def run(backend: str = backend) -> torch.Tensor:
            return flashrnn(wx, r, b, function="slstm", backend=backend)[0][0]

        def f(run: Callable[[], torch.Tensor] = run) -> object:
            with torch.no_grad():
                return run()

        def fb(run: Callable[[], torch.Tensor] = run) -> object:
            return torch.autograd.grad(run(), (wx, r, b), above)

        try:
            yield record | timed(f, fb, limit) | {"kernels": kernels_of(fb)}
        except (RuntimeError, ValueError, OSError) as error:
            yield record | {"skipped": f"does not run: {error}"[:300]}


def _scan(dtype: str, device: str) -> Iterator[Record]:
    """minGRU: whole, its two input products apart, and the scan beside a copy of as many bytes."""
    kind, sizes = getattr(torch, dtype), sizes_of(SCAN_SHAPE)
    torch.backends.cuda.matmul.allow_tf32 = False
    yield own(cellgen.load_cuda("min_gru"), SCAN_SHAPE, dtype, device) | {"input_product": True}
    rows, units = sizes["T"] * sizes["B"], sizes["H"]
    x, w = (torch.randn(n, units, device="cuda", dtype=kind) for n in (rows, units))
    products = median_ms(lambda: (torch.mm(x, w), torch.mm(x, w)))
    yield {"who": "torch", "what": "the two input products", "dtype": dtype, "f_ms": products}
    kernel = cellgen.compile_cuda(FINISHED["min_gru"])
    record = own(kernel, SCAN_SHAPE, dtype, device) | {"input_product": False}
    moved = dict(zip(("f", "b"), bytes_of(kernel, sizes, dtype), strict=True))
    copied = copy_rate()
    least_f = moved["f"] / copied * 1e3
    least_fb = sum(moved.values()) / copied * 1e3
    record |= {"bytes_f": moved["f"], "bytes_b": moved["b"], "copy_GB_per_s": copied / 1e9}
    record |= {
        f"{mode}_to_copy": record[f"{mode}_ms"] / least  # type: ignore[operator]
        for mode, least in (("f", least_f), ("fb", least_fb))
    }
    yield record


def copy_rate() -> float:
    """Bytes read and written a second by a copy of 256 MiB: what a scan can reach."""
    source = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_ms(lambda: target.copy_(source)) * 1e3


# --- tensors on a caller's stream ----------------------------------------------------------------


def check_stream(name: str) -> Record:
    """Tensors of PyTorch, made and used on a stream that is not the current one and busy before."""
    kernel, sizes = cellgen.load_cuda(name), {**sizes_of((6, 5, 16)), "I": 8, "K": 2, "D": 8}
    forward = kernel.sequence_forward
    names = {a.name for a in forward.function.arguments if not a.is_scalar}
    given = drawn(forward.function, sizes, torch.float32, names)
    expected = forward(**given).h.clone()
    torch.cuda.synchronize()
    side, found = torch.cuda.Stream(), []
    for graph in (False, True):
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            later = {n: torch.zeros_like(a) for n, a in given.items()}
            for n, a in given.items():
                later[n].copy_(a)
            found.append(forward(**later, graph=graph).h)
        for explicit in (side, side.cuda_stream):
            found.append(forward(**later, stream=explicit, graph=graph).h)
    torch.cuda.synchronize()
    same = all(torch.equal(array, expected) for array in found)
    kind = all(isinstance(array, torch.Tensor) for array in found)
    return {"cell": name, "what": "tensors on a stream", "ok": same and kind}

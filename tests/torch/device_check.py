"""Prove and time cells of torch on a device: one command, some minutes, run where there is one.

    python -m tests.torch.device_check              # all of it
    python -m tests.torch.device_check --no-bench   # the cases alone
    python -m tests.torch.device_check --only lstm  # cases whose name has the word
    python -m tests.torch.device_check --emulated   # cases that need no device, on the CPU

Prints a line for each case: the largest difference from the CPU's result, as a part of the largest
entry, and what is allowed. Ends with 1 where a case fails, with 0 where there is no device. It
needs torch with CUDA, nvcc (CELLGEN_CUDA_ARCH=sm_90 spares the driver a compilation on an H100), a
C compiler, and no network. Kernels are compiled first, several at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

import cellgen.torch
from cellgen.language.cell import Bias, Cell, Input, State, Weight
from cellgen.language.ops import sigmoid, tanh
from cellgen.language.value import H, I
from cellgen.runtime.directions import BOTH, DIRECTIONS_VARIABLE
from cellgen.torch.cells import TorchGRU, TorchLSTM
from cellgen.torch.registry import known
from cellgen.torch.streams import in_tier
from tests.torch.emulated import emulated_device

BARS = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 0.08, torch.float16: 0.01}
"""Of sums over some tens of steps, as a part of the largest entry."""
SHAPES = ((100, 32, 128, 256), (256, 16, 256, 512))
"""T, B, I, H of what is timed."""


class Coupled(Cell, name="device_check_coupled"):
    """A cell of one's own: two states, each of which reads the other."""

    x, h_prev, m_prev = Input(I), State(H), State(H)
    w, u, v = Weight(I, H), Weight(H, H), Weight(H, H)
    b = Bias(H)

    f = sigmoid(m_prev @ v + b)
    m = f * m_prev + (1 - f) * tanh(x @ w + h_prev @ u)
    h = tanh(m) * sigmoid(f + m_prev)

    outputs = h, m


CELLS = {"GRU": TorchGRU, "LSTM": TorchLSTM, "own cell": Coupled, "minGRU": "min_gru"}

Case = Callable[[], "float | str"]
"""Returns the largest difference, or words for what has none; raises where it fails."""


class Check:
    """Runs cases, prints their lines, counts what failed."""

    def __init__(self, emulated: bool, only: str) -> None:
        self.emulated, self.only, self.failed = emulated, only.lower(), 0
        self.device = "cpu" if emulated else "cuda"
        # (T, B, I, H)
        self.sizes = (4, 3, 2, 5) if emulated else (50, 20, 24, 40)

    def there(self) -> contextlib.AbstractContextManager[None]:
        """Where the device's kernels run."""
        return emulated_device() if self.emulated else contextlib.nullcontext()

    def case(self, name: str, run: Case, bar: float = BARS[torch.float32]) -> None:
        """Run a case and print its line."""
        if self.only not in name.lower():
            return
        start = time.perf_counter()
        try:
            found = run()
        except Exception as error:  # one that fails must not hide the others
            found, said = float("nan"), f"{type(error).__name__}: {error}"
            traceback.print_exc()
        else:
            said = found if isinstance(found, str) else f"{found:.1e} (at most {bar:.0e})"
        is_right = isinstance(found, str) or found <= bar
        self.failed += not is_right
        took = time.perf_counter() - start
        print(f"{'ok  ' if is_right else 'FAIL'} {name:44} {said}  [{took:.1f} s]", flush=True)

    def apart(self, run: Callable[[str], Sequence[Tensor]]) -> float:
        """The largest difference between what the CPU gives and what the device gives."""
        expected = run("cpu")
        with self.there():
            found = run(self.device)
        return largest(expected, found)


def largest(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference, each tensor's as a part of its largest entry.

    It is inf for NaN, and where all that is expected is zero, which proves nothing.
    """
    if not any(bool(tensor.any()) for tensor in expected):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        wide, near = one.detach().double().cpu(), other.detach().double().cpu()
        if wide.shape != near.shape or not bool((wide - near).isfinite().all()):
            return float("inf")
        if wide.numel():
            scale = max(float(wide.abs().max()), 1e-3)
            worst = max(worst, float((wide - near).abs().max()) / scale)
    return worst


def trained(layer: torch.nn.Module, x: Tensor, **options: object) -> list[Tensor]:
    """Output, states and gradients of a step of training."""
    x = x.detach().requires_grad_()
    output, state = layer(x, **options)
    states = [state] if isinstance(state, Tensor) else [*state]
    weight = torch.linspace(0.5, 1.5, output.shape[-1], dtype=x.dtype, device=x.device)
    loss = (output * weight).sin().sum() + sum(one.cos().sum() for one in states)
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    return [output, *states, *torch.autograd.grad(loss, leaves)]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(cell: object, wide: int, hidden: int, layers: int = 1, **options: object) -> object:
    torch.manual_seed(0)
    return cellgen.torch.module(cell, wide, hidden, layers, **options)


# --- cases ---------------------------------------------------------------------------------------


def check_cells(check: Check) -> None:
    """Forward and gradients of every cell, in every precision; lengths, mask and reset."""
    steps, rows, wide, hidden = check.sizes
    for name, cell in CELLS.items():
        for dtype, bar in BARS.items():
            layer = layer_of(cell, wide, hidden).to(dtype)
            x = drawn(steps, rows, wide).to(dtype)
            # 16 bits are compared with what float32 makes of the same rounded numbers
            exact = torch.float32 if dtype.itemsize == 2 else dtype

            def step(device: str, layer=layer, x=x, dtype=dtype, exact=exact) -> list[Tensor]:
                kind = exact if device == "cpu" and not in_place() else dtype
                own = copy.deepcopy(layer).to(device, kind)
                return trained(own, x.to(device, kind))

            kind = str(dtype).removeprefix("torch.")
            check.case(f"{name}, {kind}", lambda s=step: check.apart(s), bar)
        check.case(f"{name}, lengths, mask, reset", lambda c=cell: with_tables(check, c))


def in_place() -> bool:
    """Whether tensors of the CPU go to emulated kernels."""
    from cellgen.torch.devices import PLACES

    return PLACES["cpu"].emulated


def with_tables(check: Check, cell: object) -> float:
    steps, rows, wide, hidden = check.sizes
    layer, x = layer_of(cell, wide, hidden), drawn(rows, steps, wide).transpose(0, 1)
    lengths = torch.randint(0, steps + 1, (rows,), generator=torch.Generator().manual_seed(2))
    mask, reset = drawn(steps, rows, seed=3) > -1, drawn(steps, rows, seed=4) > 1
    tables = {"lengths": lengths, "mask": mask, "reset": reset}

    def step(device: str) -> list[Tensor]:
        there = {name: table.to(device) for name, table in tables.items()}
        return trained(copy.deepcopy(layer).to(device), x.to(device), **there)

    return check.apart(step)


def check_layers(check: Check) -> None:
    """Two layers in both directions, packed sequences, cells, derivatives of derivatives."""
    steps, rows, wide, hidden = check.sizes
    for name, kind in (("GRU", cellgen.torch.GRU), ("LSTM", cellgen.torch.LSTM)):
        torch.manual_seed(0)
        layer = kind(wide, hidden, 2, bidirectional=True)
        x = drawn(steps, rows, wide)

        def step(device: str, layer=layer, x=x) -> list[Tensor]:
            return trained(copy.deepcopy(layer).to(device), x.to(device))

        def packed(device: str, layer=layer, x=x) -> list[Tensor]:
            counts = torch.arange(rows) % steps + 1
            pack = torch.nn.utils.rnn.pack_padded_sequence
            own = copy.deepcopy(layer).to(device)
            output, _ = own(pack(x.to(device), counts, enforce_sorted=False))
            return [output.data, *torch.autograd.grad(output.data.sin().sum(), own.weight_hh_l0)]

        check.case(f"{name}, 2 layers, both directions", lambda s=step: check.apart(s))
        check.case(f"{name}, packed sequence", lambda s=packed: check.apart(s))

    def penalty(device: str) -> list[Tensor]:
        layer = layer_of(Coupled, wide, hidden).to(device)
        x = drawn(steps, rows, wide).to(device).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x)[0].sin().sum(), x, create_graph=True)
        loss = slope.square().sum()
        return [loss, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    def by_sample(device: str) -> list[Tensor]:
        layer = layer_of("min_gru", wide, hidden).to(device)
        weights = {name: p.detach() for name, p in layer.named_parameters()}

        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            found = torch.func.functional_call(layer, weights, (x.unsqueeze(1),))
            return found[0].sin().sum()

        x = drawn(steps, rows, wide).to(device)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 1))
        return [*each(weights, x).values()]

    check.case("own cell, gradient penalty", lambda: check.apart(penalty))
    check.case("minGRU, gradients of single samples", lambda: check.apart(by_sample))


def check_words(check: Check) -> None:
    """Autocast, and what is said of tensors on several devices."""
    steps, rows, wide, hidden = check.sizes

    def autocast(dtype: torch.dtype) -> float:
        layer, x = layer_of(TorchLSTM, wide, hidden), drawn(steps, rows, wide)
        with check.there():
            own, there = copy.deepcopy(layer).to(check.device), x.to(check.device)
            with torch.autocast(check.device, dtype):
                found = trained(own, there)
            if found[0].dtype != dtype:
                raise TypeError(f"output is {found[0].dtype}, expected {dtype}")
        return largest(trained(layer, x), found)

    for dtype in (torch.bfloat16, torch.float16):
        name = f"LSTM, autocast to {str(dtype).removeprefix('torch.')}"
        check.case(name, lambda d=dtype: autocast(d), BARS[dtype])
    if check.emulated:
        return

    def mixed() -> str:
        layer = layer_of("min_gru", wide, hidden).to("cuda")
        try:
            layer(drawn(steps, rows, wide))
        except cellgen.torch.CellgenError as error:
            if "is on cuda:0, but x is on cpu" in str(error):
                return str(error)
            raise
        raise TypeError("tensors of two devices were taken")

    check.case("minGRU, input left on the CPU", mixed)


def check_device(check: Check) -> None:
    """What needs a device: cuDNN, streams, no waiting, graphs, the compiler."""
    steps, rows, wide, hidden = check.sizes
    for name in ("GRU", "LSTM"):
        torch.manual_seed(0)
        peer = getattr(torch.nn, name)(wide, hidden, 2, bidirectional=True).cuda()
        mine = getattr(cellgen.torch, name)(wide, hidden, 2, bidirectional=True).cuda()
        mine.load_state_dict(peer.state_dict())
        x = drawn(steps, rows, wide).cuda()
        check.case(
            f"{name} beside torch.nn.{name} on cuDNN",
            lambda p=peer, m=mine, x=x: largest(trained(p, x), trained(m, x)),
        )
    layer = cellgen.torch.GRU(wide, hidden).cuda()
    x = drawn(steps, rows, wide).cuda()
    expected = trained(layer, x)
    check.case("GRU, on a stream of the caller's", lambda: on_stream(layer, x, expected))
    check.case("GRU, repeated (replayed as a graph)", lambda: again(layer, x, expected), 1e-6)
    check.case("GRU, both directions at once", lambda: at_once(check.sizes), 0)
    check.case("GRU, no waiting for the device", lambda: without_waiting(layer, x))
    check.case("GRU, forward in torch.cuda.graph", lambda: in_graph(layer, x), 1e-6)
    check.case("GRU, training step in torch.cuda.graph", lambda: step_in_graph(layer, x), 1e-6)
    for backend in ("aot_eager", "inductor"):
        check.case(
            f"GRU, torch.compile({backend})",
            lambda b=backend: compiled(layer, x, expected, b),
        )


def on_stream(layer: torch.nn.Module, x: Tensor, expected: list[Tensor]) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = trained(layer, x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return largest(expected, found)


def again(layer: torch.nn.Module, x: Tensor, expected: list[Tensor]) -> float:
    return max(largest(expected, trained(layer, x)) for _ in range(20))


def in_both() -> contextlib.AbstractContextManager[object]:
    """Where the two directions of a layer run at once."""
    return mock.patch.dict(os.environ, {DIRECTIONS_VARIABLE: BOTH})


def at_once(sizes: tuple[int, int, int, int]) -> float:
    """Forty steps of training, launched and replayed, beside directions in turn by the same tier.

    What a step gives is dropped before the next one, so that memory that is given out too early
    shows.
    """
    steps, rows, wide, hidden = sizes
    layer = cellgen.torch.GRU(wide, hidden, 2, bidirectional=True).cuda()
    x = drawn(steps, rows, wide).cuda()
    with in_tier("half"):
        expected = trained(layer, x)
    with in_both():
        return max(largest(expected, trained(layer, x)) for _ in range(40))


def without_waiting(layer: torch.nn.Module, x: Tensor) -> str:
    """Train behind a kernel that takes a second: torch complains of waiting, and nothing does."""
    lengths = torch.full((x.shape[1],), x.shape[0] - 1, device="cuda")
    own = layer_of(TorchGRU, layer.input_size, layer.hidden_size).cuda()
    for _ in range(2):
        trained(layer, x), trained(own, x, lengths=lengths)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)  # cycles
        trained(layer, x), trained(own, x, lengths=lengths)
        is_behind = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if not is_behind:
        raise TypeError("the calls came back when the device had done all of it")
    return "none"


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """What a function launches, as a graph, after three calls outside it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def in_graph(layer: torch.nn.Module, x: Tensor) -> float:
    static, other, kept = x.clone(), drawn(*x.shape, seed=9).cuda(), [x]

    def run() -> None:
        with torch.no_grad():
            kept[0] = layer(static)[0]

    graph = captured(run)
    static.copy_(other)
    graph.replay()
    with torch.no_grad():
        return largest([layer(other)[0]], kept)


def step_in_graph(layer: torch.nn.Module, x: Tensor) -> float:
    """A copy of the layer: no graph of autograd, made on another stream, holds its parameters."""
    static, other, kept = x.clone(), drawn(*x.shape, seed=9).cuda(), [x]
    layer = copy.deepcopy(layer)

    def run() -> None:
        kept[:] = [found.detach() for found in trained(layer, static)]

    graph = captured(run)
    static.copy_(other)
    graph.replay()
    return largest(trained(layer, other), kept)


def compiled(layer: torch.nn.Module, x: Tensor, expected: list[Tensor], backend: str) -> float:
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    fast.parameters = layer.parameters
    return largest(expected, trained(fast, x))


# --- times ---------------------------------------------------------------------------------------


def milliseconds(runs: Sequence[Callable[[], object]], calls: int = 10) -> list[float]:
    """The fastest of seven turns, each of some calls, of functions that take turns; CUDA events."""
    best = [float("inf")] * len(runs)
    for run in runs:
        for _ in range(5):
            run()
    for _ in range(7):
        for place, run in enumerate(runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                run()
            end.record()
            torch.cuda.synchronize()
            best[place] = min(best[place], start.elapsed_time(end) / calls)
    return best


def bench(only: str) -> None:
    """Times beside cuDNN; each figure in milliseconds by the device's clock."""
    print(
        f"\n{'ms':34} {'cuDNN f':>9} {'ours f':>9} {'graph f':>9} {'cuDNN f+b':>10} {'ours f+b':>9}"
    )
    rows: list[tuple[str, Callable[[], str]]] = []
    for name in ("GRU", "LSTM"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kind = str(dtype).removeprefix("torch.")
            rows += [(f"{name} {kind} {s}", partial(times, name, dtype, s)) for s in SHAPES]
        rows += [(f"{name} both directions {s}", partial(directions, name, s)) for s in SHAPES]
    for label, timed in rows:
        if only not in label.lower():
            continue
        try:
            line = timed()
        except Exception as error:  # the others are wanted all the same
            line = f"{type(error).__name__}: {error}"
        print(f"{label:34} {line}", flush=True)


def directions(name: str, shape: tuple[int, int, int, int]) -> str:
    """Times of a layer in both directions, in turn and at once, and of torch's."""
    steps, rows, wide, hidden = shape
    kind, found = {"device": "cuda", "dtype": torch.bfloat16}, []
    x = drawn(steps, rows, wide).to("cuda", torch.bfloat16).requires_grad_()
    for library, where in (
        (torch.nn, contextlib.nullcontext),
        (cellgen.torch, contextlib.nullcontext),
        (cellgen.torch, in_both),
    ):
        layer = getattr(library, name)(wide, hidden, bidirectional=True, **kind)
        leaves, ones = [x, *layer.parameters()], torch.ones(steps, rows, 2 * hidden, **kind)

        def step(layer=layer, leaves=leaves, ones=ones) -> object:
            return torch.autograd.grad(layer(x)[0], leaves, ones)

        with where():
            found += milliseconds([step])
    return "cuDNN {:.3f}, in turn {:.3f}, at once {:.3f}, f+b, bfloat16".format(*found)


def times(name: str, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> str:
    steps, rows, wide, hidden = shape
    peer = getattr(torch.nn, name)(wide, hidden, device="cuda", dtype=dtype)
    mine = getattr(cellgen.torch, name)(wide, hidden, device="cuda", dtype=dtype)
    mine.load_state_dict(peer.state_dict())
    x = drawn(steps, rows, wide).to("cuda", dtype).requires_grad_()
    upstream = drawn(steps, rows, hidden).to("cuda", dtype)

    def forward(layer: torch.nn.Module) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return layer(x)

        return run

    def both(layer: torch.nn.Module) -> Callable[[], object]:
        leaves = [x, *layer.parameters()]
        return lambda: torch.autograd.grad(layer(x)[0], leaves, upstream)

    graph = captured(forward(mine))
    runs = (forward(peer), forward(mine), graph.replay, both(peer), both(mine))
    found = milliseconds(runs)
    widths = (9, 9, 9, 10, 9)
    return " ".join(f"{ms:{width}.3f}" for ms, width in zip(found, widths, strict=True))


# --- all of it -----------------------------------------------------------------------------------


@contextlib.contextmanager
def said(what: str) -> Iterator[None]:
    """Print how long the body took."""
    start = time.perf_counter()
    yield
    print(f"     {what}: {time.perf_counter() - start:.1f} s", flush=True)


def build(check: Check) -> None:
    """Compile every kernel that the cases need, several at a time."""
    with said("C kernels"):
        found = [known(cell) for cell in CELLS.values()]
        found.append(known(Coupled).tangent(()))
        found.append(known(Coupled).tangent(("x",)))
    with said("CUDA kernels"), ThreadPoolExecutor(8) as pool:
        kernels = [one.device_runner(emulated=check.emulated).kernel for one in found]
        for built in pool.map(lambda kernel: kernel.build(), kernels):
            print(
                f"     {built.path.name}: {'found' if built.cached else f'{built.seconds:.0f} s'}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--emulated", action="store_true", help="on the CPU, what needs no device")
    parser.add_argument("--no-bench", action="store_true", help="leave the times out")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    chosen = parser.parse_args(arguments)
    if not chosen.emulated and not torch.cuda.is_available():
        print(f"no device: torch {torch.__version__} finds none; nothing was checked")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    where = "emulated" if chosen.emulated else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {where}")
    check = Check(chosen.emulated, chosen.only)
    build(check)
    check_cells(check)
    check_layers(check)
    check_words(check)
    if not chosen.emulated:
        check_device(check)
        if not chosen.no_bench:
            bench(check.only)
    print(f"\n{f'{check.failed} cases failed' if check.failed else 'all cases passed'}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    warnings.simplefilter("default")
    sys.exit(main())

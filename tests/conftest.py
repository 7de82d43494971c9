"""What the tests of the compiler share: cells, random arguments, complex-step derivatives."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from pathlib import Path

import numpy as np
import pytest

from cellgen import (
    Bias,
    Cell,
    Dim,
    H,
    I,
    Input,
    Scalar,
    State,
    Static,
    Weight,
    clip,
    concat,
    cummax,
    cumprod,
    cumsum,
    exp,
    keep,
    log_sigmoid,
    logcumsumexp,
    max,
    maximum,
    mean,
    sigmoid,
    split,
    sqrt,
    stop_gradient,
    sum,
    tanh,
    transpose,
    where,
)
from cellgen.cells import GRU, LIF, LSTM, SHIPPED, AntisymmetricRNN, GRUBlockCell
from cellgen.language.value import Value
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.runtime.abi import Interface
from cellgen.runtime.build import cache, driver, shared_object
from cellgen.runtime.build.compiler import CompilerInfo
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step
from cellgen.runtime.host import threads
from cellgen.wheel import objects
from tests.cover import covering, each_of, of_all, of_code

Arrays = dict[str, np.ndarray]

os.environ.setdefault("CELLGEN_CALLS", "python")  # what tests replace in Python is called
os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when triton is first imported

gc.set_threshold(20_000, 20, 20)  # SymPy's trees are many small objects that stay

has_cxx = bool(shutil.which("clang++") or shutil.which("g++")) and bool(shutil.which("sha256sum"))
if has_cxx and not {"CELLGEN_CXX", "CXX"} & set(os.environ):
    os.environ["CELLGEN_CXX"] = str(Path(__file__).with_name("emulation_compiler"))
    os.environ["EMULATION_HEADERS"] = str(cache.folder() / "emulation_headers")

SIZES = {"T": 1, "B": 3, "I": 2, "H": 4, "K": 2, "D": 3, "P": 3, "M": 5, "N": 2, "R": 2}
STEP = 1e-100
"""Complex step: its square underflows, so the imaginary part is the derivative without error."""


class LayerNormGRU(GRUBlockCell, name="layer_norm_candidate"):
    """GRU with a normalised candidate."""

    gamma, beta = Bias(H), Bias(H)
    c_hat = GRUBlockCell.c_bar - mean(GRUBlockCell.c_bar)
    c_std = sqrt(mean(c_hat**2) + 1e-5)
    c = tanh(gamma * c_hat / c_std + beta)


class SLSTM(Cell, name="slstm_fused"):
    """Scalar LSTM of the xLSTM paper: exponential input gate, stabiliser state m."""

    x, h_prev, c_prev, n_prev, m_prev = Input(I), State(H), State(H), State(H), State(H)
    w, r, b = Weight(I, 4 * H), Weight(H, 4 * H), Bias(4 * H)

    z_bar, i_bar, f_bar, o_bar = split(x @ w + h_prev @ r + b, 4)
    z, o = tanh(z_bar), sigmoid(o_bar)
    log_f = log_sigmoid(f_bar) + m_prev
    m = maximum(log_f, i_bar)
    i, f = exp(i_bar - m), exp(log_f - m)
    c = f * c_prev + i * z
    n = f * n_prev + i
    h = o * c / n


class Softmax(Cell):
    """Reductions, a per-row scalar, a unit bias: every way to broadcast."""

    x, dt, h_prev = Input(I), Input(1), State(H)
    w, g, k = Weight(I, H), Bias(1), Scalar(0.5)

    e = exp(x @ w * g)
    decay = exp(-dt * k)
    h = e / sum(e) * (1 - decay) + decay * h_prev * mean(h_prev)

    gradients = x, dt, h_prev, w, g, k


class Attend(Cell):
    """Heads with every reduction: softmax within a head, centred over all of them."""

    K, D = Dim("K"), Dim("D")
    x, s, h_prev = Input(I), Input(1, 1), State(K, D)
    w, r, b = Weight(I, K, D), Weight(K, D, D), Bias(K, D)
    g, t, q = Weight(K, 1), Weight(D), Weight(1)

    a = x @ w + h_prev @ r + b
    e = exp(a - max(a))
    p = e / sum(e)
    v = (a - mean(a, axis=all)) * g + t * s
    h = tanh(p * v * q) * t + max(v, axis=all) * h_prev / D


class Cumulated(Cell):
    """Running sums along the units of each head."""

    K, D = Dim("K"), Dim("D")
    x, h_prev, w, r = Input(I), State(K, D), Weight(I, K, D), Weight(K, D, D)

    h = tanh(cumsum(x @ w + h_prev @ r))


class RunningUnits(Cell):
    """Along the units of a state, of a product and of a weight."""

    x, h_prev, w, v = Input(I), State(H), Weight(I, H), Bias(H)

    p = cumprod(1 + 0.3 * tanh(h_prev * v))
    m = cummax(x @ w)
    h = tanh(p * m + logcumsumexp(h_prev + v)) + 0.1 * cumprod(v)


class RunningHeads(Cell):
    """Along the units of each head, and along heads."""

    K, D = Dim("K"), Dim("D")
    x, h_prev, w, r = Input(I), State(K, D), Weight(I, K, D), Weight(K, D, D)

    a = x @ w + h_prev @ r
    h = tanh(cumprod(a) + cummax(a, axis=K) + logcumsumexp(a))


class ColumnParts(Cell):
    """A running sum over columns of a weight that lie beside those of others."""

    x, h_prev, w = Input(I), State(H), Weight(I, 2 * H)

    a, b = split(w, 2)
    h = tanh(x @ cumsum(b) + h_prev * max(x @ a))


class DeltaRule(Cell):
    """A matrix for each row, corrected along a key: sums along either of its axes."""

    D, K = Dim("D"), Dim("K")
    x, s_prev = Input(I), State(D, K)
    w_q, w_k, w_v, w_b = Weight(I, 1, K), Weight(I, 1, K), Weight(I, D, 1), Weight(I, 1, 1)

    q, k, v, beta = x @ w_q, x @ w_k, x @ w_v, sigmoid(x @ w_b)
    s = s_prev + beta * (v - sum(s_prev * k)) * k
    h = sum(s * q)
    outputs = h, s


class MatrixHeads(Cell):
    """A matrix for each head of a row, with weights along some of its axes."""

    N, D, K = Dim("N"), Dim("D"), Dim("K")
    q, k, v, f = Input(N, 1, K), Input(N, 1, K), Input(N, D, 1), Input(N, 1, 1)
    g, e, s_prev = Weight(K), Weight(N, D, 1), State(N, D, K)

    s = sigmoid(f) * s_prev * g + v * k * e
    h = sum(s * q)
    outputs = h, s


class Swap(Cell):
    """Parts and concatenations that are arguments, results and upstream gradients at once."""

    x, h_prev, w = Input(I), State(2 * H), Weight(I, 2 * H)

    a, b = split(h_prev + x @ w, 2)
    h = concat(b * a, a)

    outputs = a, h


class Stated(Cell):
    """Everything that changes what flows back."""

    x, h_prev, w, v = Input(I), State(H), Weight(I, H), Bias(H)

    y = tanh(x @ w + stop_gradient(h_prev) * v)
    low = clip(h_prev, -0.3, 0.3) + clip(h_prev, -0.2, 0.2, gradient="straight_through")
    h = where(h_prev > 0.1, keep(h_prev + 1) - 1, y) + low


class WeightSharing(Cell):
    """One weight read three ways, one of them the other way round."""

    x, h_prev, w = Input(H), State(H), Weight(H, H)

    h = tanh(x @ w + h_prev @ w @ transpose(w))


class Contexts(Cell):
    """What is the same at every step and learns: in a product, by unit, by row, a number."""

    M = Dim("M")
    x, h_prev, ctx = Input(I), State(H), Static(M, gradient=True)
    gain, shift, rate = (
        Static(H, gradient=True),
        Static(1, gradient=True),
        Scalar(0.5, gradient=True),
    )
    w, u, v = Weight(I, H), Weight(H, H), Weight(M, H)

    a = tanh(x @ w + h_prev @ u + ctx @ v)
    h = (1 - rate) * h_prev + rate * gain * a + shift * exp(-gain)


TYPICAL = (*SHIPPED[:11], AntisymmetricRNN)
"""Cells with which the compiler is tested. ``cover`` says which cells are proved each time."""

ESTABLISHED = SHIPPED[:45]
"""Cells among which those stand that regularisers and the emulation of CUDA take each time."""

VARIANTS = (LayerNormGRU, SLSTM, Softmax, Attend, Swap, Stated, WeightSharing, Contexts)
CELLS = (*TYPICAL, *VARIANTS)

every_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
typical_cell = pytest.mark.parametrize("cell", each_of(of_all, TYPICAL))
shipped_cell = pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)


def draw(values: Iterable[Value], seed: int = 0, sizes: Mapping[str, int] = SIZES) -> Arrays:
    """Random arrays for values; of size 1/2, so that no gate saturates."""
    rng = np.random.default_rng(seed)
    return {
        str(value.name): np.asarray(0.5 * rng.normal(size=shape_sizes(value, sizes)))
        for value in values
    }


def directional(program: Program, given: Arrays, along: Arrays) -> Arrays:
    """Derivative of every result along a direction, by complex step."""
    moved = {
        name: array + 1j * STEP * along[name] if name in along else array
        for name, array in given.items()
    }
    return {
        name: np.imag(result) / STEP for name, result in interpret(program, moved, SIZES).items()
    }


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest entry expected."""
    scale = np.max(np.abs(expected), initial=0.0) or 1.0
    return float(np.max(np.abs(found - expected), initial=0.0) / scale)


@pytest.fixture(autouse=True, scope="session")
def as_many_threads_as_asked_for() -> None:
    """Run calls on teams of the size that a test says, whatever this machine has and is doing."""
    threads.is_crowding = True


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is heeded, also where what started the tests ignores it, as a shell does for a job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


QUICK_FLAGS = ("-O0",)
"""With which most cells are compiled: a tenth of the time that ``-O3`` takes."""


@pytest.fixture(autouse=True, scope="session")
def most_cells_are_quickly_compiled(pytestconfig: pytest.Config) -> None:
    """Compile with ``QUICK_FLAGS`` what is not ``optimised``, unless slow tests are asked for.

    The time driver that every cell is linked with, and cells that other processes compile, are as
    users have them; of wheels, which have one for each level, all is compiled so. An entry of the
    cache says with which flags it was made.
    """
    if asks_for_slow_tests(pytestconfig.option.markexpr):
        return
    entry = shared_object.entry_of

    def of_its_flags(sources: SourceFiles, interface: Interface, found: CompilerInfo) -> str:
        return entry(sources, interface, _with_flags(found, _quick_flags(interface.name)))

    class Compiling:
        """What the compilation of a cell asks ``driver`` for; wheels ask it themselves."""

        def compiling(self, call: Sequence[str], name: str, suffix: str) -> Step:
            return driver.compiling((*call, *_quick_flags(name)), name, suffix)

        def __getattr__(self, name: str) -> object:
            return getattr(driver, name)

    shared_object.entry_of, shared_object.driver = of_its_flags, Compiling()  # type: ignore[assignment]
    of_a_level = objects.compiler_of
    objects.compiler_of = lambda level: _with_flags(of_a_level(level), QUICK_FLAGS)


def _with_flags(info: CompilerInfo, more: tuple[str, ...]) -> CompilerInfo:
    return replace(info, flags=(*info.flags, *more))


def _quick_flags(name: str) -> tuple[str, ...]:
    """Flags of a cell by its name; where a test names flags, those are all."""
    is_quick = name not in optimised() and not os.environ.get("CELLGEN_CFLAGS")
    return QUICK_FLAGS if is_quick else ()


@once
def optimised() -> frozenset[str]:
    """Names of cells that are compiled as users compile them, each time.

    LSTM, GRU and a cell of spikes, and those that have, between them, all names of the runtime and
    all kinds of stages that any cell that ships has.
    """
    return frozenset(cell.definition.name for cell in (LSTM, GRU, LIF, *covering(of_code)))


@pytest.fixture
def compiled_as_by_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile a test's own cells as users do: where bits are compared that an optimiser decides."""
    monkeypatch.setattr("tests.conftest.QUICK_FLAGS", ())


def asks_for_slow_tests(marks: str) -> bool:
    """Tell whether ``-m`` takes slow tests; ``not slow`` leaves them out, as is done without it."""
    return re.search(r"(?<!not )\bslow\b", marks) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``slow`` unless ``-m`` asks for it."""
    if asks_for_slow_tests(config.option.markexpr):
        return
    slow = {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=[*slow])
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what was imported before the tests.

    To walk all of it again and again, and often, took a tenth of the time of the tests.
    """
    gc.collect()
    gc.freeze()


def heed_ctrl_c() -> None:
    """Let a process that starts heed Ctrl-C: what a shell runs in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

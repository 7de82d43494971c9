"""CUDA sources: run on the CPU by the emulation against the equations, compiled by nvcc.

What takes long is marked ``slow`` (`pytest -m slow`): every cell, every architecture.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from typer.testing import CliRunner

import cellgen
from cellgen import (
    Cell,
    H,
    I,
    Input,
    State,
    Weight,
    api,
    cells,
    exp,
    mean,
    sqrt,
    tanh,
)
from cellgen.cells import (
    GRU,
    LRU,
    LSTM,
    LTC,
    QRNN,
    RAN,
    SHIPPED,
    SRU,
    Elman,
    GRUResetBefore,
    LayerNormGRU,
    LayerNormLSTM,
    MinGRU,
    SLSTMHeads,
)
from cellgen.cli.commands import app
from cellgen.errors import ArgumentError, BuildError, DeviceError
from cellgen.files import tree
from cellgen.language.value import Role
from cellgen.pipeline import generate, programs_of
from cellgen.program.interpret import interpret
from cellgen.proof.over_time import forward_errors, gradient_errors, shared_keywords
from cellgen.runtime.abi import Argument, Function, axis_length
from cellgen.runtime.backend import backend
from cellgen.runtime.build import cache as kernels
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.device import cublas, nvcc
from cellgen.runtime.device.arrays import DeviceArray, DevicePart, to_bfloat16
from cellgen.runtime.device.function import CudaFunction
from cellgen.runtime.device.graphs import FEWEST, KEPT, Graphs, Launch
from cellgen.runtime.device.kernel import CudaKernel, open_blas
from cellgen.runtime.device.model import DEVICES, WAYS, choices
from cellgen.runtime.device.settings import TABLES
from cellgen.runtime.folders import TextDigest, read_listed
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BY_ROW, TABLE, Options
from cellgen.runtime.paths import generated_folder, include_folder
from cellgen.runtime.results import Results, result_class
from tests import cuda_budgets
from tests.awkward_cells import AWKWARD
from tests.conftest import (
    ESTABLISHED,
    VARIANTS,
    Softmax,
    asks_for_slow_tests,
    draw,
    relative,
)
from tests.cuda_cover import OPTION_CELLS, in_any_order, is_covering
from tests.drawing import draw_arrays
from tests.language.test_rows import Along, ByWeight, InHeads

Arrays = dict[str, np.ndarray]
QUICK = (LSTM, Softmax, SLSTMHeads)
"""Products side by side and sums over rows; sums over units and over everything; heads."""
SHAPES = ((3, 4, 5, 7), (1, 1, 1, 1), (2, 17, 3, 33), (10, 30, 2, 3))
EMPTY = ((0, 2, 3, 4), (2, 0, 3, 4), (3, 2, 0, 4))
# float64: sums of up to 300 terms over 10 steps. float32: the same at 6e-8, times the growth of a
# difference over the steps. bfloat16: 2^-9 for each of some tens of roundings in a row; float16:
# 2^-12 for each of as many.
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.06, "float16": 0.0075}
POSITIVE = ("n_prev", "tau", "ts")
"""Normalisers, time constants and times: near zero gradients grow without bound."""
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""From 1 to the next number, of types that matrix units multiply."""

CXX = tuple(name for name in ("clang++", "g++") if shutil.which(name))
with_cxx = pytest.mark.skipif(not CXX, reason="no C++ compiler")
with_nvcc = pytest.mark.skipif(next(nvcc.candidates(), None) is None, reason="no nvcc")
ALL = (*ESTABLISHED, *VARIANTS)
KINDS = (LSTM, Softmax, SLSTMHeads, GRUResetBefore, LayerNormLSTM, LRU, LTC)
"""One of each way to run: a level of products, sums over units, heads, two levels, normalisation in
the loop, several states of one stream, many loops. What does not depend on the equations is proven
of these; cells that stand for all (``cuda_cover``) are proven by one shape always, every cell by
that and the rest with the slow tests."""


def names(group: tuple[type[Cell], ...], chosen: tuple[type[Cell], ...]) -> list[ParameterSet]:
    """Parameters: the chosen cells run always, the others with the slow tests."""
    return [
        pytest.param(c, id=c.definition.name, marks=() if c in chosen else pytest.mark.slow)
        for c in group
    ]


each_cell = pytest.mark.parametrize("cell", names(ALL, QUICK))
few_cells = pytest.mark.parametrize("cell", names(KINDS, QUICK))


@cache
def emulated(cell: type[Cell]) -> CudaKernel:
    kernel = api.compile_cuda(cell, emulated=True)
    kernel.build()
    return kernel


def in_elements(kernel: CudaKernel, *elements: str) -> CudaKernel:
    """A kernel compiled for some element types: each takes a compiler as long as the headers."""
    sources = sources_in(kernel.sources, *elements)
    return CudaKernel(kernel.interface, sources, emulated=kernel.emulated)


def sources_in(sources: SourceFiles, *elements: str) -> SourceFiles:
    """A cell's files, compiled for some element types."""
    own = f"{sources.name}.cu"
    files = tuple(
        (name, cuda_budgets.only(text, elements) if name == own else text)
        for name, text in sources.files
    )
    return replace(sources, files=files)


@cache
def emulated_in(cell: type[Cell], *elements: str) -> CudaKernel:
    """A cell of which tests run no other element types."""
    return in_elements(api.compile_cuda(cell, emulated=True), *elements)


PLAIN = ("tier", "graph", *(o.name for o in TABLE if o.kind != BY_ROW or not o.on_device))
"""Arguments that are no arrays."""


class OnHost:
    """A kernel on device arrays that takes and gives NumPy arrays."""

    def __init__(self, kernel: CudaKernel, dtype: str = "float64") -> None:
        self.kernel, self.dtype = kernel, dtype
        self.tables: dict[tuple[object, ...], DeviceArray] = {}
        self.functions = {name: self._wrapped(f) for name, f in kernel.functions.items()}

    def __getattr__(self, name: str) -> Callable[..., Results]:
        return self.functions[name]

    def _wrapped(self, function: CudaFunction) -> Callable[..., Results]:
        scalars = {a.name for a in function.function.arguments if a.is_scalar}

        def call(out: None = None, **given: object) -> Results:
            device = {
                name: value
                if value is None or name in (*scalars, *PLAIN)
                else self.table(np.asarray(value))
                if name in TABLES
                else self.kernel.array(np.asarray(value), dtype=self.dtype)
                for name, value in given.items()
            }
            found = function(**device)
            values = [a.numpy() if isinstance(a, DeviceArray | DevicePart) else a for a in found]
            return tuple.__new__(type(found), values)

        call.function = function.function  # type: ignore[attr-defined]
        return call

    def table(self, values: np.ndarray) -> DeviceArray:
        """The same device array for the same contents: a backward pass wants that of its run."""
        key = values.tobytes(), values.shape, values.dtype
        if key not in self.tables:
            self.tables[key] = self.kernel.array(values)
        return self.tables[key]


def sizes_of(shape: tuple[int, ...]) -> dict[str, int]:
    return {
        "K": 2,
        "D": 3,
        "P": 3,
        "M": 5,
        "N": 2,
        "R": 2,
        "E": 3,
        **dict(zip("TBIHD", shape, strict=False)),
    }


def inputs(kernel: CudaKernel, shape: tuple[int, ...]) -> Arrays:
    """Random arguments; what is divided by, or is a time, is positive."""
    drawn = draw_arrays(kernel.sequence_forward.function, sizes_of(shape))
    return {n: np.abs(a) + 0.5 if n in POSITIVE else a for n, a in drawn.items()}


def upstream(kernel: CudaKernel, shape: tuple[int, ...]) -> Arrays:
    return draw_arrays(kernel.sequence_backward.function, sizes_of(shape), 1, optional=True)


def shapes(cell: type[Cell]) -> list[tuple[int, ...]]:
    """A softmax over one unit is constant: nothing but rounding to compare. Sums over units of
    many rows are slow to emulate."""
    if cell is Softmax:
        return [shape for shape in SHAPES if shape[-1] > 1 and shape[0] < 10]
    return list(SHAPES)


def run(
    cell: type[Cell], kernel: CudaKernel, shape: tuple[int, ...], dtype: str, tier: str = "auto"
) -> dict[str, np.ndarray]:
    """Everything that both functions over time compute from numbers that 16 bits hold too."""
    device = OnHost(kernel, dtype)
    given = {n: rounded(a, "bfloat16") for n, a in inputs(kernel, shape).items()}
    above = {n: rounded(a, "bfloat16") for n, a in upstream(kernel, shape).items()}
    result = device.sequence_forward(**given, save=True, tier=tier)
    outputs = {str(v.name): getattr(result, str(v.name)) for v in cell.definition.outputs}
    gradients = device.sequence_backward(**given, **outputs, **above, saved=result.saved, tier=tier)
    found = {name: getattr(result, name) for name in result._fields if name != "saved"}
    return {**found, **gradients._asdict()}


# --- emulated: the numbers -----------------------------------------------------------------------


EMULATED = (*ALL, *AWKWARD[len(VARIANTS) :], Along, InHeads, ByWeight)
"""Established cells and those of the tests."""


def has_blocks_that_stay(cell: type[Cell]) -> bool:
    """Whether a pass of a cell has kernels whose blocks stay, which float64 has not."""
    return "_persistent_stays(" in generate(cell, ["cuda"]).text(".cu")


@with_cxx
@pytest.mark.parametrize(
    "cell",
    names((*EMULATED, *SHIPPED[len(ESTABLISHED) :]), tuple(filter(is_covering, EMULATED))),
)
def test_every_cell_agrees_with_the_equations_in_every_tier_and_precision(
    cell: type[Cell], pytestconfig: pytest.Config
) -> None:
    """One small shape of each: outputs and every gradient in float64 against the equations; the
    tiers to the bit in float32 (`in_any_order` aside), and with the other precisions to what
    rounding explains. Numbers of 16 bits go through the same templates: each time in ``KINDS``.
    So do those of float32 but for blocks that stay: each time in cells that have such."""
    is_whole = asks_for_slow_tests(pytestconfig.option.markexpr)
    in_halves = is_whole or cell in KINDS
    narrow = "float32" if in_halves or has_blocks_that_stay(cell) else "float64"
    elements = () if in_halves else ("f32", "f64") if narrow == "float32" else ("f64",)
    kernel = emulated_in(cell, *elements) if elements else emulated(cell)
    shape = (3, 4, 5, 7)
    given, above, sizes = inputs(kernel, shape), upstream(kernel, shape), sizes_of(shape)
    device, rng = OnHost(kernel), np.random.default_rng(2)
    errors = forward_errors(device, cell.definition, given, sizes, "float64")
    errors |= gradient_errors(device, cell.definition, given, above, sizes, rng)
    assert max(errors.values()) < TOLERANCE["float64"], errors
    exact = run(cell, kernel, shape, "float64", "steps")
    steps, whole = (run(cell, kernel, shape, narrow, tier) for tier in ("steps", "whole"))
    halves = UNITS if in_halves else ()
    rough = {dtype: run(cell, kernel, shape, dtype, "fragments") for dtype in halves}
    for name, array in exact.items():
        if in_any_order(cell, name):
            assert relative(whole[name], array) < TOLERANCE[narrow], name
        else:
            assert np.array_equal(steps[name], whole[name]), name
        assert relative(steps[name], array) < TOLERANCE[narrow], name
        for dtype, found in rough.items():
            assert apart(found[name], array) < TOLERANCE[dtype], (dtype, name)


@with_cxx
@few_cells
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sequences_agree_with_the_equations(cell: type[Cell], dtype: str) -> None:
    kernel = emulated(cell)
    for shape in shapes(cell):
        given = inputs(kernel, shape)
        errors = forward_errors(
            OnHost(kernel, dtype), cell.definition, given, sizes_of(shape), dtype
        )
        assert max(errors.values()) < TOLERANCE[dtype], (shape, errors)


@with_cxx
@each_cell
def test_every_gradient_agrees_with_the_complex_step(cell: type[Cell]) -> None:
    kernel, rng = emulated(cell), np.random.default_rng(2)
    for shape in shapes(cell):
        errors = gradient_errors(
            OnHost(kernel),
            cell.definition,
            inputs(kernel, shape),
            upstream(kernel, shape),
            sizes_of(shape),
            rng,
        )
        assert max(errors.values()) < TOLERANCE["float64"], (shape, errors)


@with_cxx
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [
        pytest.param(*p.values, dtype, id=f"{p.id}-{dtype}", marks=p.marks)
        for dtype in TOLERANCE
        for p in names(ALL if dtype != "float32" else KINDS, QUICK)
    ],
)
def test_steps_agree_with_the_interpreter(cell: type[Cell], dtype: str) -> None:
    """Of 16 bits not one unit: a layer norm of it is 1 / sqrt(epsilon) times its rounding."""
    device, programs = OnHost(emulated(cell), dtype), programs_of(cell)
    one = [s for s in shapes(cell) if s == (1, 1, 1, 1) and dtype not in UNITS]
    for shape in ((1, 3, 2, 5), *one):
        sizes = sizes_of(shape)
        first, full = programs.mathematics
        known = draw((*first.arguments, *full.optional), sizes=sizes)
        known = {n: rounded(a, dtype) for n, a in known.items()}
        for program in programs.functions:
            taken = {str(v) for v in programs.accepted[program.function]} & set(known)
            call = {n: a if a.ndim else float(a) for n, a in known.items() if n in taken}
            found = device.functions[program.function](**call)
            exact = interpret(program, {n: known[n] for n in known}, sizes)
            for result in program.results:
                array = getattr(found, str(result))
                assert relative(array, exact[str(result)]) < TOLERANCE[dtype], result
                known.setdefault(str(result), np.asarray(array, np.float64))


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """How far off what was rounded to 16 bits on the way is; infinite for what is no number.

    A single sum may cancel: only its terms have a relative error.
    """
    if not np.isfinite(found).all():
        return np.inf
    return relative(found, expected) if expected.size > 1 else 0.0


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """What the device holds of an array, in float64."""
    if dtype == "bfloat16":
        bits = to_bfloat16(array.astype(np.float32)).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64).reshape(array.shape)
    return array.astype(dtype).astype(np.float64)


@with_cxx
@few_cells
def test_lower_precisions_agree_with_float64(cell: type[Cell]) -> None:
    kernel, shape = emulated(cell), (5, 4, 6, 18)
    exact = run(cell, kernel, shape, "float64")
    for dtype in ("float32", *UNITS):
        for name, array in run(cell, kernel, shape, dtype).items():
            error = apart(array, exact[name]) if dtype in UNITS else relative(array, exact[name])
            assert error < TOLERANCE[dtype], (dtype, name)


@with_cxx
@pytest.mark.parametrize("tier", ["steps", "whole"])
def test_a_sum_that_float16_has_is_right_where_its_terms_are_beyond_it(tier: str) -> None:
    """LTC's d_ts is a sum over units of terms that steps leave, and no product reads these."""
    kernel, shape = emulated_in(LTC, "f16"), (3, 4, 5, 7)
    drawn = draw_arrays(kernel.sequence_forward.function, sizes_of(shape))  # times near zero, too
    given = {n: rounded(a, "bfloat16") for n, a in drawn.items()}
    above = {n: rounded(a, "bfloat16") for n, a in upstream(kernel, shape).items()}

    def gradients(device: OnHost | Kernel, **how: str) -> Arrays:
        y = device.sequence_forward(**given, save=True, **how)
        return device.sequence_backward(**given, h=y.h, **above, saved=y.saved, **how)._asdict()

    exact = gradients(cellgen.load("ltc"))
    found = gradients(OnHost(kernel, "float16"), tier=tier)
    for name, array in found.items():
        is_number = np.abs(exact[name]) < 65520
        assert np.isinf(array[~is_number]).all()
        assert apart(array[is_number], exact[name][is_number]) < TOLERANCE["float16"], name


@with_cxx
@pytest.mark.parametrize("cell", names(KINDS, (LSTM,)))
def test_results_do_not_depend_on_the_order_of_threads(cell: type[Cell]) -> None:
    kernel = emulated(cell)
    runs = []
    for seed in (1, 2, 3):
        kernel.library().lib.cellgen_emulation_seed(seed)
        found = run(cell, kernel, (3, 90, 3, 18), "float32")
        runs.append({name: array.tobytes() for name, array in found.items()})
    assert runs[0] == runs[1] == runs[2]


@with_cxx
def test_threads_of_a_process_take_turns_in_the_emulation() -> None:
    """A call lets other threads of Python go on; the emulation is one device."""
    kernel, shape = emulated(Elman), (8, 9, 5, 18)
    right = run(Elman, kernel, shape, "float32", "whole")
    with ThreadPoolExecutor(4) as pool:
        started = [pool.submit(run, Elman, kernel, shape, "float32", "whole") for _ in range(16)]
    for found in (one.result() for one in started):
        for name, array in right.items():
            assert np.array_equal(found[name], array), name


@with_cxx
@pytest.mark.parametrize("cell", names((*KINDS, MinGRU, QRNN), OPTION_CELLS))
def test_all_steps_in_one_launch_give_the_same_bits(cell: type[Cell]) -> None:
    kernel = emulated(cell)
    for shape in ((4, 9, 5, 7), (0, 2, 3, 4), (2, 0, 3, 4)):
        for dtype in ("float32", *UNITS):
            one_by_one = run(cell, kernel, shape, dtype, "steps")
            whole = run(cell, kernel, shape, dtype, "whole")
            for name, array in one_by_one.items():
                assert np.array_equal(array, whole[name]), (shape, dtype, name)


@with_cxx
@pytest.mark.parametrize("cell", names(ALL, (LSTM, SLSTMHeads)))
def test_matrix_units_form_the_same_sums(cell: type[Cell]) -> None:
    """Whole numbers have exact sums in any order: one step forward has the bits of the other tiers.
    Later steps and gradients have rounded factors, whose sums in float32 differ in the last bits by
    their order; where that makes a number of 16 bits round the other way, by a unit of it, and what
    follows from it. A single number may cancel: only its terms have a relative error."""
    kernel = emulated(cell)
    for shape in ((1, 9, 5, 7), (1, 3, 2, 21)):
        given = inputs(kernel, shape)
        whole = {n: a if n in POSITIVE else np.round(a * 4) for n, a in given.items()}
        for dtype in UNITS:
            device = OnHost(kernel, dtype)
            one, other = (device.sequence_forward(**whole, tier=t) for t in ("steps", "fragments"))
            for name in one._fields[:-1]:
                pair = getattr(one, name), getattr(other, name)
                assert np.array_equal(*pair, equal_nan=True), (shape, dtype, name)
    shapes = ((5, 4, 6, 18), (2, 17, 3, 33), (0, 2, 3, 4), (2, 0, 3, 4))
    for shape, (dtype, unit) in product(shapes, UNITS.items()):
        exact = run(cell, kernel, shape, dtype, "steps")
        for name, array in run(cell, kernel, shape, dtype, "fragments").items():
            assert apart(array, exact[name]) < 4 * unit, (shape, dtype, name)


@with_cxx
@each_cell
def test_empty_sequences_batches_and_inputs_are_legal(cell: type[Cell]) -> None:
    kernel = emulated(cell)
    for shape in EMPTY:
        found = run(cell, kernel, shape, "float64")
        given, above = inputs(kernel, shape), upstream(kernel, shape)
        assert not any(np.isnan(array).any() for array in found.values())
        if shape[0] == 0:
            for state in cell.definition.states:
                name = str(cell.definition.next_state(state).name)
                first = rounded(given[str(state.name)], "bfloat16")
                last = rounded(above[f"d_{name}_last"], "bfloat16")
                assert np.array_equal(found[f"{name}_last"], first)
                assert np.array_equal(found[f"d_{state.name}"], last)
        if 0 in shape[:2]:
            for parameter in cell.definition.parameters:
                assert not found[f"d_{parameter.name}"].any()


@with_cxx
def test_what_is_not_saved_or_not_given_changes_nothing() -> None:
    kernel, shape = emulated(LSTM), (4, 3, 5, 6)
    device = OnHost(kernel)
    given, above = inputs(kernel, shape), upstream(kernel, shape)
    plain, saving = (device.sequence_forward(**given, save=save) for save in (False, True))
    assert plain.saved is None
    assert np.array_equal(plain.h, saving.h)
    known = {**given, "h": saving.h, "c": saving.c, "saved": saving.saved}
    zeros = {n: a if n == "d_c" else np.zeros_like(a) for n, a in above.items()}
    full = device.sequence_backward(**known, **zeros)
    alone = device.sequence_backward(**known, d_c=above["d_c"])
    for a, b in zip(full, alone, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.skipif(len(CXX) < 2, reason="one C++ compiler")
def test_two_compilers_of_the_emulation_give_the_same_bits(monkeypatch) -> None:
    """And one that has compiled the headers before, which the other tests take."""
    found = []
    for compiler in dict.fromkeys((*CXX, nvcc.emulator().command[0])):
        monkeypatch.setenv("CELLGEN_CXX", compiler)
        assert Path(nvcc.emulator().command[0]).name == Path(compiler).name
        kernel = api.compile_cuda(MinGRU, emulated=True)
        found.append(run(MinGRU, kernel, (3, 4, 5, 7), "float32"))
    for name, array in found[0].items():
        for other in found[1:]:
            assert array.tobytes() == other[name].tobytes(), name


# --- emulated: options over time -----------------------------------------------------------------


def drawn_options(shape: tuple[int, ...], seed: int) -> Options:
    """Some of the options over time; among them lengths of 0 and steps that start anew."""
    rng = np.random.default_rng(seed)
    steps, rows = shape[:2]
    lengths = rng.integers(0, steps + 1, rows)
    mask, reset = rng.random((steps, rows)) < 0.7, rng.random((steps, rows)) < 0.3
    chosen = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (1, 1, 1))[seed % 6]
    return Options(
        *(a if taken else None for a, taken in zip((lengths, mask, reset), chosen, strict=True)),
        reverse=seed % 2 == 0,
        zero_output_for_mask=seed % 4 > 1,
    )


def padded(given: Arrays, cell: type[Cell], options: Options, shape: tuple[int, ...]) -> Arrays:
    """Arguments whose inputs are NaN where a step is masked."""
    valid = np.ones(shape[:2], bool)
    if options.lengths is not None:
        valid &= np.arange(shape[0])[:, None] < options.lengths
    if options.mask is not None:
        valid &= options.mask
    names = {str(v.name) for v in cell.definition.with_role(Role.INPUT)}
    return {
        n: np.where(valid.reshape(*shape[:2], *(1,) * (a.ndim - 2)), a, np.nan) if n in names else a
        for n, a in given.items()
    }


OPTION_SEEDS = range(6)


@with_cxx
@pytest.mark.parametrize("cell", names((*ALL, *AWKWARD[len(VARIANTS) :]), OPTION_CELLS))
def test_options_over_time_agree_with_the_equations(cell: type[Cell]) -> None:
    kernel, rng = emulated(cell), np.random.default_rng(3)
    device = OnHost(kernel)
    for seed in OPTION_SEEDS:
        shape = shapes(cell)[0] if seed % 3 else (7, 3, 2, 5)
        options, sizes = drawn_options(shape, seed), sizes_of(shape)
        given = inputs(kernel, shape)
        poisoned = padded(given, cell, options, shape)
        for dtype in ("float64", "float32"):
            errors = forward_errors(
                OnHost(kernel, dtype), cell.definition, poisoned, sizes, dtype, options
            )
            assert max(errors.values()) < TOLERANCE[dtype], (seed, errors)
        above = upstream(kernel, shape)
        errors = gradient_errors(device, cell.definition, given, above, sizes, rng, options)
        assert max(errors.values()) < TOLERANCE["float64"], (seed, errors)


@with_cxx
@pytest.mark.parametrize("cell", names(KINDS, (LSTM,)))
def test_options_over_time_agree_with_the_c_kernels(cell: type[Cell]) -> None:
    """Both functions, poisoned inputs, all results; products add up in another order."""
    kernel, exact = OnHost(emulated(cell)), api.compile(cell)
    for seed in OPTION_SEEDS:
        shape = shapes(cell)[0]
        options = drawn_options(shape, seed)
        chosen = shared_keywords(options)
        given = padded(inputs(emulated(cell), shape), cell, options, shape)
        above = upstream(emulated(cell), shape)
        expected = exact.sequence_forward(**given, **chosen, save=True)
        found = kernel.sequence_forward(**given, **chosen, save=True)
        outputs = {str(v.name): getattr(expected, str(v.name)) for v in cell.definition.outputs}
        call = {**given, **outputs, **above, **chosen}
        gradients = exact.sequence_backward(**call, saved=expected.saved)
        others = kernel.sequence_backward(**call, saved=found.saved)
        pairs = [(n, getattr(found, n), getattr(expected, n)) for n in expected._fields[:-1]]
        pairs += [(n, getattr(others, n), getattr(gradients, n)) for n in gradients._fields]
        for name, one, other in pairs:
            assert relative(one, other) < TOLERANCE["float64"], (seed, name)


@with_cxx
@pytest.mark.parametrize("every", [2, 3, 8])
@pytest.mark.parametrize("cell", names((LSTM, LRU), (LSTM, LRU)))
def test_outputs_of_some_steps_are_those_of_all_steps_cut(cell: type[Cell], every: int) -> None:
    """To the bit, saved or not; gradients are those of zeros at the other steps."""
    device, kernel = OnHost(emulated(cell)), emulated(cell)
    few, shape = slice(every - 1, None, every), shapes(cell)[0]
    given, above = inputs(kernel, shape), upstream(kernel, shape)
    outputs = {str(v.name) for v in cell.definition.outputs}
    for seed in OPTION_SEEDS:
        chosen = shared_keywords(drawn_options(shape, seed))
        whole = device.sequence_forward(**given, **chosen, save=True)
        part = device.sequence_forward(**given, **chosen, every=every)
        saved = device.sequence_forward(**given, **chosen, every=every, save=True)
        for name in whole._fields[:-1]:
            expected = getattr(whole, name)[few] if name in outputs else getattr(whole, name)
            assert np.array_equal(getattr(part, name), expected), (seed, name)
            assert np.array_equal(getattr(saved, name), expected), (seed, name)
        some = {n: a[few].copy() if n[2:] in outputs else a for n, a in above.items()}
        spread_out = {n: np.zeros_like(a) if n[2:] in outputs else a for n, a in above.items()}
        for name in outputs:
            spread_out[f"d_{name}"][few] = some[f"d_{name}"]
        all_outputs = {name: getattr(whole, name) for name in outputs}
        backward = device.sequence_backward
        expected = backward(**given, **all_outputs, **spread_out, **chosen, saved=whole.saved)
        for found in (
            backward(**given, **some, saved=saved.saved),
            backward(**given, **all_outputs, **some, every=every, saved=whole.saved),
        ):
            for name in expected._fields:
                assert np.array_equal(getattr(found, name), getattr(expected, name)), (seed, name)


def spread(array: np.ndarray, seed: int) -> np.ndarray:
    """The same numbers with gaps of NaN: batch first, in a part of a larger array, or backwards."""
    steps, rows, *units = array.shape
    if seed % 3 == 0:
        room = np.full((rows, steps + 1, *units), np.nan).swapaxes(0, 1)[:-1]
    elif seed % 3 == 1:
        wide = (*units[:-1], units[-1] + 3) if len(units) == 1 else tuple(units)
        room = np.full((steps, rows + 2, *wide), np.nan)[:, 1:-1]
        room = room[..., 2:-1] if len(units) == 1 else room
    else:
        room = np.full((2 * steps + 1, rows, *units), np.nan)[::-2][:steps]
    room[...] = array
    return room


def base_of(array: np.ndarray) -> np.ndarray:
    return array if array.base is None else base_of(array.base)


def laid(
    arrays: Mapping[str, np.ndarray], function: Function, seed: int, *, batch_first: bool
) -> Arrays:
    """Arrays of which those over time have gaps, (B, T, ...) if ``batch_first``."""
    timed = {a.name for a in (*function.arguments, *function.results) if a.over_time}
    found = {n: spread(a, seed + len(n)) if n in timed else a for n, a in arrays.items()}
    return {n: transposed(a, batch_first) if n in timed else a for n, a in found.items()}


def transposed(array: np.ndarray, batch_first: bool) -> np.ndarray:
    return array.swapaxes(0, 1) if batch_first else array


def room_over_time(function: Function, shape: tuple[int, ...]) -> Arrays:
    return {
        a.name: np.zeros([axis_length(axis, sizes_of(shape)) for axis in a.shape])
        for a in function.results
        if a.over_time
    }


def lent(call: Mapping[str, object]) -> dict[str, object]:
    return {n: Lent(a) if isinstance(a, np.ndarray) else a for n, a in call.items()}


@with_cxx
@pytest.mark.parametrize(
    ("cell", "turn"),
    [
        pytest.param(
            *p.values, turn, id=f"{p.id}-{'batch' if turn else 'steps'} first", marks=p.marks
        )
        for turn in (False, True)
        for p in names(ALL if turn else OPTION_CELLS, OPTION_CELLS)
    ],
)
def test_layouts_and_windows_agree_with_the_c_kernels(cell: type[Cell], turn: bool) -> None:
    """Arrays over time with gaps, results as well, with and without masked steps."""
    kernel, exact = emulated(cell), api.compile(cell)
    forward, backward = kernel.sequence_forward.function, kernel.sequence_backward.function
    for seed in range(5):
        shape = shapes(cell)[0] if seed % 2 else (7, 3, 2, 5)
        options = drawn_options(shape, seed) if seed % 4 else Options(reverse=seed > 0)
        chosen = {n: v for n, v in shared_keywords(options).items() if v is not None}
        for name in {"mask", "reset"} & chosen.keys():
            chosen[name] = transposed(np.repeat(chosen[name], 2, axis=1)[:, ::2], turn)
        chosen["batch_first"] = turn
        poisoned = padded(inputs(kernel, shape), cell, options, shape)
        given = laid(poisoned, forward, seed, batch_first=turn)
        above = laid(upstream(kernel, shape), backward, seed, batch_first=turn)
        out, back = (
            laid(room_over_time(f, shape), f, seed + 1, batch_first=turn)
            for f in (forward, backward)
        )
        expected = exact.sequence_forward(**given, **chosen, save=True)
        found = kernel.sequence_forward(**lent({**given, **chosen}), out=lent(out), save=True)
        straight = {n: transposed(getattr(expected, n), turn) for n in out}
        outputs = laid(straight, forward, seed, batch_first=turn)
        call = {**given, **outputs, **above, **chosen, "window": seed}
        gradients = exact.sequence_backward(**call, saved=expected.saved)
        others = kernel.sequence_backward(**lent(call), saved=found.saved, out=lent(back))
        for result, other in ((expected, found), (gradients, others)):
            for name in set(result._fields) - {"saved"}:
                array = getattr(other, name)
                array = array.array if isinstance(array, Lent) else array.numpy()
                error = relative(array, getattr(result, name))
                assert error < TOLERANCE["float64"], (seed, name)
        for name, array in (out | back).items():
            whole = base_of(array)
            assert np.isnan(whole).sum() == whole.size - array.size, (seed, name)


@with_cxx
@pytest.mark.parametrize("cell", names((*KINDS, MinGRU, QRNN), OPTION_CELLS))
@pytest.mark.parametrize("tier", ["steps", "whole"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gaps_change_no_bit_in_any_tier(cell: type[Cell], tier: str, reverse: bool) -> None:
    kernel, shape, how = emulated(cell), (4, 3, 5, 7), {"tier": tier, "reverse": reverse}
    forward, backward = kernel.sequence_forward.function, kernel.sequence_backward.function
    given, above = inputs(kernel, shape), upstream(kernel, shape)
    found = kernel.sequence_forward(**lent(given), **how, save=True)
    names = [str(v.name) for v in cell.definition.outputs]
    outputs = {n: getattr(found, n).numpy() for n in names}
    call = {**given, **outputs, **above}
    back = kernel.sequence_backward(**lent(call), **how, saved=found.saved)
    for seed in range(3):
        apart = laid(given, forward, seed, batch_first=False)
        out = laid(room_over_time(forward, shape), forward, seed + 1, batch_first=False)
        other = kernel.sequence_forward(**lent(apart), **how, out=lent(out), save=True)
        for name in names:
            assert np.array_equal(out[name], outputs[name]), (seed, name)
        apart = laid(call, backward, seed, batch_first=False)
        again = kernel.sequence_backward(**lent(apart), **how, saved=other.saved)
        for name in back._fields:
            one, two = getattr(back, name).numpy(), getattr(again, name).numpy()
            assert np.array_equal(one, two), (seed, name)


@with_cxx
@pytest.mark.parametrize("cell", names((*KINDS, MinGRU, QRNN), OPTION_CELLS))
def test_a_window_cuts_in_every_tier(cell: type[Cell]) -> None:
    kernel, shape = emulated(cell), (5, 9, 4, 18)
    fragments = [(dtype, ("steps", "fragments")) for dtype in UNITS]
    for dtype, tiers in (("float32", ("steps", "whole")), *fragments):
        device = OnHost(kernel, dtype)
        given, above = inputs(kernel, shape), upstream(kernel, shape)
        found = device.sequence_forward(**given, save=True)
        outputs = {str(v.name): getattr(found, str(v.name)) for v in cell.definition.outputs}
        call = {**given, **outputs, **above, "saved": found.saved}
        for window in (1, 2, 5):
            one, other = (device.sequence_backward(**call, window=window, tier=t) for t in tiers)
            for name in one._fields:
                if dtype == "float32":
                    assert np.array_equal(getattr(one, name), getattr(other, name)), name
                else:
                    error = relative(getattr(other, name), getattr(one, name))
                    assert error < TOLERANCE[dtype], name
        free = device.sequence_backward(**call, tier="whole")
        tight = device.sequence_backward(**call, window=1, tier="whole")
        assert any(not np.array_equal(a, b) for a, b in zip(free, tight, strict=True))


class Divided(Cell):
    """Gradients are formed by dividing by outputs, which are zeros where a step is masked."""

    x, s_prev, w, g = Input(I), State(H), Weight(I, H), Weight(H)

    v = sqrt((x @ w) ** 2 * exp(g) + 0.5)
    n = v / sqrt(mean(v**2))
    s = tanh(s_prev) * n

    outputs = s, v, n


@with_cxx
def test_a_gradient_divided_by_an_output_is_finite_where_steps_do_not_count() -> None:
    kernel, shape = emulated_in(Divided, "f64"), (5, 4, 5, 7)
    errors = gradient_errors(
        OnHost(kernel),
        Divided.definition,
        inputs(kernel, shape),
        upstream(kernel, shape),
        sizes_of(shape),
        np.random.default_rng(2),
        Options(lengths=np.array([5, 2, 0, 3])),
    )
    assert max(errors.values()) < TOLERANCE["float64"], errors


class Unread(Cell):
    """Its backward pass reads no state."""

    x, h_prev, w = Input(I), State(H), Weight(I, H)

    h = tanh(x @ w) + 0.5 * h_prev


@with_cxx
def test_gradients_of_states_that_no_gradient_reads_are_right_under_a_mask() -> None:
    kernel, shape = emulated_in(Unread, "f64"), (6, 3, 2, 9)
    rng = np.random.default_rng(1)
    mask, reset = rng.random((6, 3)) < 0.6, rng.random((6, 3)) < 0.3
    for options in (Options(mask=mask), Options(mask=mask, reset=reset, reverse=True)):
        errors = gradient_errors(
            OnHost(kernel),
            Unread.definition,
            inputs(kernel, shape),
            upstream(kernel, shape),
            sizes_of(shape),
            np.random.default_rng(2),
            options,
        )
        assert max(errors.values()) < TOLERANCE["float64"], errors


@with_cxx
@pytest.mark.parametrize("cell", [LSTM, MinGRU])
def test_the_last_state_alone(cell: type[Cell]) -> None:
    kernel, shape = emulated(cell), (4, 3, 5, 7)
    device = {n: kernel.array(a) for n, a in inputs(kernel, shape).items()}
    every = kernel.sequence_forward(**device)
    for tier in ("steps", "whole"):
        last = kernel.sequence_forward(**device, last_only=True, tier=tier)
        for name in every._fields[:-1]:
            one, other = getattr(every, name), getattr(last, name)
            if name.endswith("_last"):
                assert np.array_equal(one.numpy(), other.numpy())
            else:
                assert other is None
    assert kernel.sequence_forward(**device, last_only=True, save=True).h is not None


@with_cxx
@pytest.mark.parametrize("tables", [(), ("lengths",), ("mask", "reset"), ("lengths", "mask")])
def test_an_output_that_is_no_state_is_that_of_the_last_valid_step(tables: tuple[str, ...]) -> None:
    kernel, shape = emulated(SRU), (4, 3, 5, 7)
    device, given = OnHost(kernel), inputs(kernel, shape)
    flags = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]], bool)
    known = {"lengths": np.array([2, 0, 4]), "mask": flags, "reset": ~flags}
    call = {**given, **{name: known[name] for name in tables}, "last_only": True}
    for reverse in (False, True):
        found = device.sequence_forward(**call, reverse=reverse)
        expected = api.load("sru").sequence_forward(**call, reverse=reverse)
        assert found.h.shape == expected.h.shape == (3, 7)
        assert found.c is None
        assert relative(found.h, expected.h) < TOLERANCE["float64"]


@with_cxx
def test_results_whose_rows_share_memory_are_refused() -> None:
    kernel, shape = emulated(Elman), (3, 4, 5, 6)
    device = {n: kernel.array(a) for n, a in inputs(kernel, shape).items()}
    out = {"h": Lent(np.zeros((3, 4, 6)), strides=(0, 48, 8))}
    with pytest.raises(ArgumentError, match="out h has rows that share memory"):
        kernel.sequence_forward(**device, out=out)


@with_cxx
@pytest.mark.parametrize("cell", [LSTM, MinGRU])
def test_a_reversed_sequence_runs_in_every_tier(cell: type[Cell]) -> None:
    kernel, shape = emulated(cell), (4, 9, 5, 7)
    device, given = OnHost(kernel, "float32"), inputs(kernel, shape)
    steps = device.sequence_forward(**given, reverse=True, tier="steps")
    whole = device.sequence_forward(**given, reverse=True, tier="whole")
    flipped = device.sequence_forward(**{**given, "x": given["x"][::-1]}, tier="steps")
    assert np.array_equal(steps.h, whole.h)
    assert np.array_equal(steps.h, flipped.h[::-1])


@with_cxx
def test_lengths_outside_the_sequence_count_as_the_nearest() -> None:
    kernel, shape = emulated(LSTM), (4, 3, 2, 5)
    device, given = OnHost(kernel), inputs(kernel, shape)
    found = device.sequence_forward(**given, lengths=np.array([-7, 9, 2]))
    expected = device.sequence_forward(**given, lengths=np.array([0, 4, 2]))
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        assert np.array_equal(one, other)


@with_cxx
@pytest.mark.parametrize("shape", EMPTY)
def test_options_over_time_are_legal_on_nothing(shape: tuple[int, ...]) -> None:
    kernel = emulated(LSTM)
    device, given, above = OnHost(kernel), inputs(kernel, shape), upstream(kernel, shape)
    options = {
        "lengths": np.zeros(shape[1], np.int64),
        "reset": np.ones(shape[:2], bool),
        "reverse": True,
    }
    found = device.sequence_forward(**given, **options, save=True)
    outputs = {"h": found.h, "c": found.c}
    gradients = device.sequence_backward(**given, **outputs, **above, **options, saved=found.saved)
    assert np.array_equal(found.h_last, given["h_prev"])
    assert np.array_equal(gradients.d_h_prev, above["d_h_last"])
    assert not found.h.any()
    assert not gradients.d_u_i.any()


# --- emulated: products of cuBLAS ----------------------------------------------------------------

CUBLAS = r"""
#include <stdint.h>
#include <stdlib.h>
typedef int64_t N;
int cublasCreate_v2(void **handle) { return (*handle = malloc(1)) ? 0 : 3; }
int cublasDestroy_v2(void *handle) { return free(handle), 0; }
int cublasSetStream_v2(void *handle, void *stream) { return 0; }
int cublasSetWorkspace_v2(void *handle, void *memory, size_t bytes) { return 0; }
static double at(const void *m, int wide, N i)
{
    return wide ? ((const double *)m)[i] : ((const float *)m)[i];
}
/* Columns first, as documented: c[i + j * ldc] = sum of op(a)[i][k] op(b)[k][j]. */
int cublasGemmEx_64(void *handle, int ta, int tb, N m, N n, N k, const void *alpha, const void *a,
    int type_a, N lda, const void *b, int type_b, N ldb, const void *beta, void *c, int type_c,
    N ldc, int compute, int algorithm)
{
    if (type_a > 1 || type_b > 1 || type_c > 1) return 15;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return 7;
    for (N j = 0; j < n; ++j)
        for (N i = 0; i < m; ++i) {
            double sum = 0;
            for (N l = 0; l < k; ++l)
                sum += at(a, type_a, ta ? l + i * lda : i + l * lda)
                    * at(b, type_b, tb ? j + l * ldb : l + j * ldb);
            sum *= at(alpha, compute == 70, 0);
            if (at(beta, compute == 70, 0)) sum += at(c, type_c, i + j * ldc);
            if (type_c)
                ((double *)c)[i + j * ldc] = sum;
            else
                ((float *)c)[i + j * ldc] = (float)sum;
        }
    return 0;
}
int cublasGemmStridedBatchedEx_64(void *handle, int ta, int tb, N m, N n, N k, const void *alpha,
    const char *a, int type_a, N lda, long long next_a, const char *b, int type_b, N ldb,
    long long next_b, const void *beta, char *c, int type_c, N ldc, long long next_c, N count,
    int compute, int algorithm)
{
    int status = 0;
    for (N i = 0; i < count && !status; ++i)
        status = cublasGemmEx_64(handle, ta, tb, m, n, k, alpha, a + i * next_a * (4 << type_a),
            type_a, lda, b + i * next_b * (4 << type_b), type_b, ldb, beta,
            c + i * next_c * (4 << type_c), type_c, ldc, compute, algorithm);
    return status;
}
"""
"""A library with the functions of cuBLAS that are called, written from their documentation."""


def with_cublas(kernel: CudaKernel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel call a library with the interface of cuBLAS."""
    (folder / "cublas.c").write_text(CUBLAS)
    command = ["gcc", "-shared", "-fPIC", "-O1", "cublas.c", "-o", "cublas.so"]
    subprocess.run(command, cwd=folder, check=True)
    blas = open_blas(kernel.library(), str(folder / "cublas.so"))
    assert blas != kernel.library().ffi.NULL
    monkeypatch.setattr(kernel, "blas", lambda device: blas)


@with_cxx
@pytest.mark.parametrize("cell", [LSTM, SLSTMHeads, Elman])
def test_products_of_cublas_are_called_as_documented(
    cell: type[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 to 32 rows in float32 or float64, a kernel of the runtime header runs instead."""
    kernel = emulated(cell)
    shapes = (
        (3, 4, 5, 7),
        (1, 7, 300, 33),
        (2, 1, 3, 5),
        (2, 17, 3, 40),
        (2, 35, 3, 5),
        (0, 2, 3, 4),
    )
    own = [run(cell, kernel, shape, "float64") for shape in shapes]
    with_cublas(kernel, tmp_path, monkeypatch)
    for shape, expected in zip(shapes, own, strict=True):
        for name, array in run(cell, kernel, shape, "float64").items():
            assert relative(array, expected[name]) < TOLERANCE["float64"], (shape, name)


@with_cxx
def test_cublas_of_a_wheel_is_found_and_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library of the wheel needs lies beside it, where no search path leads."""
    kernel = api.compile_cuda(Elman, emulated=True)
    kernel.build()
    null = kernel.library().ffi.NULL
    monkeypatch.setattr(kernel, "emulated", False)
    monkeypatch.setattr("cellgen.runtime.device.cublas.NAMES", ("libcublas_of_a_test.so.13",))
    said = (
        r"elman: cuBLAS was not found .*libcublas_of_a_test.* slow: pip install 'cellgen-compiler\["
    )
    with pytest.warns(RuntimeWarning, match=said):
        assert kernel.blas(0) == null
    assert not cublas.find()
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "needed.c").write_text("int needed_by_cublas(void) { return 0; }\n")
    needs = CUBLAS.replace("return free(handle), 0", "return free(handle), needed_by_cublas()")
    (folder / "cublas.c").write_text("int needed_by_cublas(void);\n" + needs)
    needed, made = "libcublasLt.so.13", "libcublas_of_a_test.so.13"
    compile_ = ["gcc", "-shared", "-fPIC", "-Wl,-z,now"]
    for command in (
        [*compile_, "needed.c", f"-Wl,-soname,{needed}", "-o", needed],
        [*compile_, "cublas.c", needed, "-o", made],
    ):
        subprocess.run(command, cwd=folder, check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cublas.find() == str(folder / made)
    assert kernel.blas(1) != null


# --- emulated: one machine for all libraries -----------------------------------------------------

LIBRARY = """
#include "cellgen_cuda_emulation.h"
static void kernel(int value)
{
    CELLGEN_SHARED(int, room, 4);
    room[threadIdx.x] = value;
    __syncthreads();
}
extern "C" void run() { cellgen_emulator::one().launch(nullptr, true, 2, 2, 0, 1, kernel, 1); }
"""
CLOSED = """
import ctypes, _ctypes
first, second = (ctypes.CDLL(f"./{name}.so") for name in ("first", "second"))
second.run()  # the first to ask for the machine
_ctypes.dlclose(second._handle)
with open("/proc/self/maps") as maps:
    assert "second.so" not in maps.read()
first.run()
"""


@with_cxx
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_library_that_is_closed_leaves_the_machine_of_the_others_as_it_is(tmp_path: Path) -> None:
    """g++ makes variables of inline functions unique in the process, clang++ does not."""
    (tmp_path / "library.cpp").write_text(LIBRARY)
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{include_folder()}", "library.cpp", "-o"]
    subprocess.run(["g++", *flags, "first.so"], cwd=tmp_path, check=True)
    shutil.copyfile(tmp_path / "first.so", tmp_path / "second.so")
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


THREADS = """
#include <thread>
#include "cellgen_cuda_emulation.h"
int main()
{
    cellgen_emulation_machine(2, 1, 90);
    int device = -1, unasked = 0, wrong = 0;
    cudaSetDevice(1);
    cudaSetDevice(2); /* there is none: an error of this thread */
    CELLGEN_TELL(1.0);
    std::thread([&] {
        cudaGetDevice(&device);
        unasked = cudaGetLastError();
        double figure = 0;
        wrong += cellgen_emulation_told(&figure, 1) != 0;
    }).join();
    double figure = 0;
    wrong += device != 0 || unasked || cellgen_emulation_told(&figure, 1) != 1 || figure != 1;
    wrong += cudaGetDevice(&device) || device != 1 || cudaGetLastError() != cudaErrorInvalidDevice;
    return wrong;
}
"""


@with_cxx
def test_a_device_an_error_and_figures_are_a_threads_own(tmp_path: Path) -> None:
    (tmp_path / "threads.cpp").write_text(THREADS)
    flags = ["-std=c++17", "-pthread", f"-I{include_folder()}", "threads.cpp", "-o", "threads"]
    subprocess.run(["g++", *flags], cwd=tmp_path, check=True)
    subprocess.run(["./threads"], cwd=tmp_path, check=True)


# --- emulated: planted faults --------------------------------------------------------------------

RUNTIME_OF_HOST = (include_folder() / "cellgen_cuda_emulation_runtime.h").read_text()
SUMS, PRODUCTS = "cellgen_cuda.cuh", "cellgen_cuda_products.cuh"
BARRIERS = [
    (header, number)
    for header in (SUMS, PRODUCTS)
    for number, line in enumerate((include_folder() / header).read_text().splitlines(), start=1)
    if "__syncthreads();" in line
]


@with_cxx
@pytest.mark.parametrize(
    ("header", "line"),
    [
        pytest.param(*barrier, marks=pytest.mark.slow if number % 3 else ())
        for number, barrier in enumerate(BARRIERS)
    ],
)
def test_a_barrier_that_is_left_out_is_noticed(
    header: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LSTM has products and several sums over rows, Softmax several sums over units.

    Products of few rows run beside cuBLAS only.
    """
    text = (include_folder() / PRODUCTS).read_text().splitlines()
    few = [n for n, code in enumerate(text, start=1) if "few_rows(" in code]
    if header == PRODUCTS and few[0] < line < few[1]:
        with_cublas(emulated(LSTM), tmp_path, monkeypatch)
    assert any(_notices(cell, line) for cell in (LSTM, Softmax)), f"{header}:{line}"


@with_cxx
@pytest.mark.parametrize(("part", "count"), [("forward", 2), ("reverse", 1)])
@pytest.mark.parametrize(("tier", "dtype"), [("whole", "float32"), ("fragments", "bfloat16")])
@pytest.mark.parametrize("cell", [LSTM, pytest.param(SLSTMHeads, marks=pytest.mark.slow)])
def test_a_barrier_left_out_of_a_kernel_over_all_steps_is_noticed(
    cell: type[Cell], part: str, count: int, tier: str, dtype: str
) -> None:
    """After the weights have been brought, and between a loop and the product that follows."""
    lines = generate(cell).text(".cu").splitlines()
    name = f"{cell.definition.name}_{part}_block)"
    start = next(n for n, text in enumerate(lines) if name in text)
    barriers = [n + 1 for n, text in enumerate(lines) if n > start and "__syncthreads();" in text]
    for line in barriers[:count]:
        assert _notices(cell, line, tier, dtype), line


def _notices(cell: type[Cell], line: int, tier: str = "steps", dtype: str = "float32") -> bool:
    """Whether some order of the threads shows it; the orders are the same in every run."""
    kernel, shape = emulated(cell), (2, 9, 3, 18, 18)  # more than a warp has, also of a head
    lib = kernel.library().lib
    right = run(cell, kernel, shape, dtype, tier)
    try:
        lib.cellgen_emulation_skip(line)
        for seed in range(8):
            lib.cellgen_emulation_seed(seed)
            wrong = run(cell, kernel, shape, dtype, tier)
            if any(not np.array_equal(right[n], wrong[n], equal_nan=True) for n in right):
                return True
    finally:
        lib.cellgen_emulation_skip(-1)
    return False


FAULTS = (
    (PRODUCTS, "b_tile[k * pitch + x]", "b_tile[x * pitch + k]"),
    (SUMS, "partial[me + half * CELLGEN_CHUNK_UNITS]", "partial[me + half]"),
    ("elman.cu", "(step + 1) % 2 * nB", "step % 2 * nB"),
    ("cellgen_cuda_blocks.cuh", "+= x[at] * w[at][slot]", "+= x[0] * w[at][slot]"),
    ("elman.cu", "args->h + (step - 1) * h_step", "args->h + step * h_step"),
)


@with_cxx
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        pytest.param(*fault, id=f"{number}", marks=pytest.mark.slow if number else ())
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_swapped_index_is_noticed(file: str, right: str, wrong: str) -> None:
    good, bad = planted(Elman, file, right, wrong)
    bad, shape = in_elements(bad, "f64"), (4, 9, 20, 18)
    expected, found = (run(Elman, kernel, shape, "float64") for kernel in (good, bad))
    assert any(relative(found[name], expected[name]) > 1e-3 for name in expected) or any(
        np.isnan(array).any() for array in found.values()
    )


def planted(cell: type[Cell], file: str, right: str, wrong: str) -> tuple[CudaKernel, CudaKernel]:
    """A cell's kernel, and one with a fault in a file."""
    good = emulated(cell)
    files = tuple(
        (name, text.replace(right, wrong) if name.endswith(file) else text)
        for name, text in good.sources.files
    )
    assert files != good.sources.files
    sources = type(good.sources)(cell.definition.name, files)
    return good, CudaKernel(good.interface, sources, emulated=True)


FRAGMENT_FAULTS = (
    ("a1 for a2", "low.x, high.x, low.y, high.y", "low.x, low.y, high.x, high.y"),
    ("b of another lane", "top + column, k, inner", "top + column, k ^ 2, inner"),
    ("halves of b", "at[1] << 16 | at[0]", "at[0] << 16 | at[1]"),
    ("c1 for c2", "slot % 2 * 2 + second", "second * 2 + slot % 2"),
    ("columns of a", "lane % 4 * 2 + at % 2", "lane % 4 + at % 2 * 4"),
)


@pytest.mark.slow
@with_cxx
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize(
    ("right", "wrong"), [pytest.param(*fault, id=name) for name, *fault in FRAGMENT_FAULTS]
)
def test_a_swapped_fragment_is_noticed(right: str, wrong: str, dtype: str) -> None:
    """Far beyond what rounding does: results agree to TOLERANCE with the right fragments."""
    good, bad = planted(Elman, "cellgen_cuda_blocks.cuh", right, wrong)
    bad, shape = in_elements(bad, "bf16", "f16"), (3, 9, 4, 21)
    exact = run(Elman, good, shape, "float64")
    found = run(Elman, bad, shape, dtype, "fragments")
    assert any(
        relative(found[name], exact[name]) > 5 * TOLERANCE[dtype] or np.isnan(found[name]).any()
        for name in exact
    )


# --- emulated: graphs ----------------------------------------------------------------------------

LAUNCHED, CAPTURED, REPLAYED, GRAPHS, MULTIPLIED, FAILED = range(6)


class Counts:
    """What the emulated device has been asked for since the last look."""

    def __init__(self, kernel: CudaKernel) -> None:
        self.lib = kernel.library().lib
        self.before = self.now()

    def now(self) -> list[int]:
        return [self.lib.cellgen_emulation_count(what) for what in range(4)]

    def new(self) -> list[int]:
        before, self.before = self.before, self.now()
        return [b - a for a, b in zip(before, self.before, strict=True)]


@pytest.fixture
def on_device() -> tuple[CudaKernel, Arrays, dict[str, object], Counts]:
    """An sLSTM with heads, whose arrays stay where they are; the device counts."""
    kernel = api.compile_cuda(SLSTMHeads, emulated=True)
    given = inputs(kernel, (5, 3, 4, 6))
    device = {n: kernel.array(a) for n, a in given.items()}
    return kernel, given, device, Counts(kernel)


@with_cxx
def test_a_call_that_comes_again_is_replayed_as_a_graph(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
) -> None:
    kernel, given, device, counts = on_device
    forward, out = kernel.sequence_forward, {"h": kernel.array(np.zeros((5, 3, 2, 3)))}
    first = forward(**device, out=out, tier="steps", graph=False)
    plain = counts.new()
    assert plain[LAUNCHED] > 2 * 5
    assert plain[1:] == [0, 0, 0]
    out |= {name: getattr(first, name) for name in first._fields if name.endswith("_last")}
    out |= {name: getattr(first, name) for name in ("c", "n", "m")}
    expected = first.h_last.numpy()
    found = []
    for _ in range(4):
        kernel.library().write(first.h_last.pointer, 0 * expected, first.h_last.bytes, 0)
        forward(**device, out=out, tier="steps")
        found.append((counts.new(), first.h_last.numpy()))
    assert all(np.array_equal(array, expected) for _, array in found)
    assert [seen[0] for seen, _ in found] == [plain[LAUNCHED], 0, 0, 0]
    assert [seen[1] for seen, _ in found] == [0, plain[LAUNCHED], 0, 0]
    assert [seen[2] for seen, _ in found] == [0, 1, 1, 1]
    x = given["x"] * 0.5
    kernel.library().write(device["x"].pointer, x, x.nbytes, 0)
    forward(**device, out=out, tier="steps")
    assert counts.new() == [0, 0, 1, 0]
    exact = OnHost(kernel).sequence_forward(**{**given, "x": x}, tier="steps").h_last
    assert np.array_equal(first.h_last.numpy(), exact)


@with_cxx
def test_graphs_are_of_their_arrays_and_the_oldest_make_room(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
) -> None:
    kernel, given, device, counts = on_device
    forward = kernel.sequence_forward
    places = [kernel.array(given["x"] * number) for number in range(KEPT + 2)]  # all held
    for number, x in enumerate(places):
        held = forward(**{**device, "x": x}, graph=True, tier="steps")
        assert len(forward.graphs) == min(number + 1, KEPT)
        exact = OnHost(kernel).sequence_forward(**{**given, "x": given["x"] * number})
        assert np.array_equal(held.h.numpy(), exact.h)
    counts.new()
    forward.graphs.clear()
    assert counts.new()[GRAPHS] == -KEPT


@with_cxx
def test_calls_that_take_turns_do_not_push_each_others_graphs_out(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five layers where two graphs are kept: those two stay, until nobody has used one for long."""
    kernel, given, device, counts = on_device
    monkeypatch.setattr("cellgen.runtime.device.graphs.KEPT", 2)
    monkeypatch.setattr("cellgen.runtime.device.graphs.IDLE", 20)
    layers = [kernel.array(given["x"] * number) for number in range(5)]
    out = {
        a.name: kernel.array(np.zeros([axis_length(x, sizes_of((5, 3, 4, 6))) for x in a.shape]))
        for a in kernel.sequence_forward.function.results
        if not a.saved
    }
    rounds = []
    for _ in range(4):
        for x in layers:
            kernel.sequence_forward(**{**device, "x": x}, out=out, tier="steps")
        rounds.append(counts.new())
    assert [seen[REPLAYED] for seen in rounds] == [0, 2, 2, 2]
    assert [seen[GRAPHS] for seen in rounds] == [0, 2, 0, 0]
    shared = {graph.workspace for graph in kernel.sequence_forward.graphs._graphs.values()}
    assert len(shared) == 1
    for _ in range(25):
        kernel.sequence_forward(**{**device, "x": layers[4]}, out=out, tier="steps")
    assert counts.new()[REPLAYED] > 0
    exact = OnHost(kernel).sequence_forward(**{**given, "x": given["x"] * 4}, tier="steps")
    assert np.array_equal(out["h"].numpy(), exact.h)


@with_cxx
def test_a_graph_of_few_kernels_is_not_kept() -> None:
    kernel = emulated(MinGRU)
    counts = Counts(kernel)
    device = {n: kernel.array(a) for n, a in inputs(kernel, (3, 4, 5, 6)).items()}
    out = {a.name: kernel.array(np.zeros((3, 4, 6))) for a in _results(kernel, "h")}
    out |= {a.name: kernel.array(np.zeros((4, 6))) for a in _results(kernel, "h_last")}
    seen = []
    for _ in range(3):
        kernel.sequence_forward(**device, out=out)
        seen.append(counts.new())
    assert seen[0][LAUNCHED] < FEWEST
    assert seen[0] == seen[2]
    assert seen[1][REPLAYED] == 0
    assert len(kernel.sequence_forward.graphs) == 0


def _results(kernel: CudaKernel, name: str) -> list[Argument]:
    return [a for a in kernel.sequence_forward.function.results if a.name == name]


@with_cxx
def test_a_caller_who_captures_gets_the_kernels_themselves(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
) -> None:
    kernel, given, device, counts = on_device
    library, stream, out = kernel.library(), 4096, {}
    for a in kernel.sequence_forward.function.results:
        lengths = [axis_length(axis, sizes_of((5, 3, 4, 6))) for axis in a.shape]
        if not a.saved:
            out[a.name] = kernel.array(np.full(lengths, np.nan))
    handle, nodes = library.ffi.new("void **"), library.ffi.new("int64_t *")
    pointer = library.ffi.cast("void *", stream)
    assert library.lib.cellgen_cuda_graph_begin(pointer) == 0
    kernel.sequence_forward(**device, out=out, stream=stream, graph=True, tier="steps")
    assert library.lib.cellgen_cuda_graph_end(pointer, handle, nodes) == 0
    assert counts.new()[:3] == [0, nodes[0], 0]
    assert np.isnan(out["h"].numpy()).all()
    assert library.lib.cellgen_cuda_graph_launch(handle[0], pointer) == 0
    exact = OnHost(kernel).sequence_forward(**given, tier="steps")
    assert np.array_equal(out["h"].numpy(), exact.h)
    assert library.lib.cellgen_cuda_graph_destroy(handle[0]) == 0


@with_cxx
@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_a_switch_of_numpy_says_what_one_of_python_says(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts], kind: Callable[[bool], bool]
) -> None:
    """``graph`` False is never a graph, also the second time, and True always."""
    kernel, _, device, counts = on_device
    first = kernel.sequence_forward(**device, tier="steps", graph=kind(False))
    out = {name: getattr(first, name) for name in first._fields if name != "saved"}
    for _ in range(3):
        kernel.sequence_forward(**device, out=out, tier="steps", graph=kind(False))
    assert counts.new()[REPLAYED] == 0
    kernel.sequence_forward(**device, out=out, tier="steps", graph=kind(True))
    assert counts.new()[REPLAYED] == 1


@with_cxx
def test_what_cannot_be_captured_is_launched_or_said(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
) -> None:
    kernel, given, device, counts = on_device
    exact = OnHost(kernel).sequence_forward(**given)
    kernel.library().lib.cellgen_emulation_refuse_capture(1)
    try:
        with pytest.raises(DeviceError, match=r"cannot be captured .*900.*; pass graph=False"):
            kernel.sequence_forward(**device, graph=True)
        for _ in range(3):
            found = kernel.sequence_forward(**device)
            assert np.array_equal(found.h.numpy(), exact.h)
    finally:
        kernel.library().lib.cellgen_emulation_refuse_capture(0)
    step = inputs_of_step(kernel)
    with pytest.raises(ArgumentError, match="graph is an option of functions over time"):
        kernel.forward(**step, graph=True)
    assert counts.new()[GRAPHS] == 0


def inputs_of_step(kernel: CudaKernel) -> dict[str, object]:
    drawn = draw_arrays(kernel.forward.function, sizes_of((1, 3, 4, 6)))
    return {n: kernel.array(np.abs(a) + 0.5) for n, a in drawn.items()}


@with_cxx
def test_graphs_give_their_memory_back_when_it_is_short(
    on_device: tuple[CudaKernel, Arrays, dict[str, object], Counts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, _, device, _ = on_device
    kernel.sequence_forward(**device, graph=True)
    library, forward = kernel.library(), kernel.sequence_forward
    allocate = library.allocate
    results = [a for a in forward.function.results if not a.saved]
    asked: list[int] = []

    def short(place: int, size: int, stream: int) -> int:
        asked.append(size)
        if len(asked) == len(results) + 1:
            raise MemoryError("none left")
        return allocate(place, size, stream)

    monkeypatch.setattr(library, "allocate", short)
    forward(**device, graph=False)
    assert len(asked) == len(results) + 2
    assert len(forward.graphs) == 0


# --- emulated: the planner -----------------------------------------------------------------------


@with_cxx
@pytest.mark.parametrize(
    ("processors", "kilobytes", "in_blocks"),
    [
        pytest.param(132, 227, True, id="H100"),
        pytest.param(108, 163, True, id="A100"),
        pytest.param(132, 63, False, id="weights of a head do not fit"),
        pytest.param(4, 227, False, id="blocks take turns"),
    ],
)
def test_twelve_heads_of_64_units_run_in_blocks_where_that_fits_and_pays(
    processors: int, kilobytes: int, in_blocks: bool
) -> None:
    """A head has 64 x 4 x 64 weights, 64 KB of float32.

    What a step is made of where heads run in no blocks is launched, but does not run: kernels of a
    step are compared with equations at other sizes.
    """
    kernel = emulated(SLSTMHeads)
    counts, launched = Counts(kernel), []
    counts.lib.cellgen_emulation_device(processors, kilobytes << 10)
    try:
        for steps in (2, 4):
            sizes = {"T": steps, "B": 2, "I": 3, "K": 12, "D": 64}
            device = {
                a.name: kernel.array(np.ones([sizes[axis] for axis in a.shape]), dtype="float32")
                for a in kernel.sequence_forward.function.arguments
            }
            counts.new()
            counts.lib.cellgen_emulation_dry(not in_blocks)
            kernel.sequence_forward(**device, graph=False)
            counts.lib.cellgen_emulation_dry(0)
            launched.append(counts.new()[LAUNCHED])
        assert (launched[0] == launched[1]) == in_blocks
        if kilobytes < 64:
            with pytest.raises(DeviceError, match="weights do not fit a block's shared memory"):
                kernel.sequence_forward(**device, tier="whole")
    finally:
        counts.lib.cellgen_emulation_dry(0)
        counts.lib.cellgen_emulation_device(4, 99 << 10)


@with_cxx
@pytest.mark.parametrize(
    ("dtype", "processors", "kilobytes", "with_units"),
    [
        pytest.param("bfloat16", 132, 227, True, id="H100"),
        pytest.param("bfloat16", 132, 31, False, id="weights of a head do not fit"),
        pytest.param("float32", 132, 227, False, id="float32 would lose bits"),
    ],
)
def test_matrix_units_are_taken_where_they_fit_and_lose_nothing(
    dtype: str, processors: int, kilobytes: int, with_units: bool
) -> None:
    """A head has 64 x 4 x 64 weights, 32 KB of bfloat16."""
    kernel = emulated(SLSTMHeads)
    lib = kernel.library().lib
    sizes = {"T": 2, "B": 9, "I": 3, "K": 2, "D": 64}
    device = {
        a.name: kernel.array(np.ones([sizes[axis] for axis in a.shape]), dtype=dtype)
        for a in kernel.sequence_forward.function.arguments
    }
    lib.cellgen_emulation_device(processors, kilobytes << 10)
    try:
        before = lib.cellgen_emulation_count(MULTIPLIED)
        kernel.sequence_forward(**device, graph=False)
        lanes = lib.cellgen_emulation_count(MULTIPLIED) - before
        # 2 heads, 2 steps, 9 rows one to a block, 8 units a tile, 4 slots two by two, 16 a product
        assert lanes == (32 * 2 * 2 * 9 * (64 // 8) * 2 * (64 // 16) if with_units else 0)
        if kilobytes < 32:
            with pytest.raises(DeviceError, match="weights do not fit a block's shared memory"):
                kernel.sequence_forward(**device, tier="fragments")
    finally:
        lib.cellgen_emulation_device(4, 99 << 10)


# --- compiled ------------------------------------------------------------------------------------


TOGETHER = [
    SHIPPED[n : n + cuda_budgets.TOGETHER] for n in range(0, len(SHIPPED), cuda_budgets.TOGETHER)
]


@pytest.mark.slow
@with_nvcc
@pytest.mark.parametrize("group", TOGETHER, ids=lambda group: group[0].definition.name)
def test_every_cell_compiles_without_a_warning_or_spill_and_with_the_registers_counted_on(
    group: tuple[type[Cell], ...], tmp_path: Path
) -> None:
    sources = {cell.definition.name: generate(cell).text(".cu") for cell in group}
    entries = cuda_budgets.compiled(tmp_path, sources)
    cuda_budgets.require_budgets(entries, "".join(sources.values()))


@with_nvcc
@pytest.mark.parametrize(
    ("cell", "elements", "architectures"),
    [
        pytest.param(Elman, ("bf16",), ("90a",), id="elman in one element type"),
        *(
            pytest.param(
                *(c, ("f32", "f64", "bf16", "f16"), cuda_budgets.ARCHITECTURES),
                id=c.definition.name,
                marks=pytest.mark.slow,
            )
            for c in (LSTM, *VARIANTS)
        ),
    ],
)
def test_host_code_compiles_without_a_warning(
    cell: type[Cell], elements: tuple[str, ...], architectures: tuple[str, ...], tmp_path: Path
) -> None:
    """Kernels keep to their registers too. Products of float32 are by threads, those of bfloat16 by
    matrix units: one cell is compiled for these each time, for the newer devices, and that one, for
    the others, by ``test_no_driver_is_said_and_the_process_stays_usable``."""
    source = cuda_budgets.only(generate(cell).text(".cu"), elements)
    cells = {cell.definition.name: source}
    entries = cuda_budgets.compiled(tmp_path, cells, whole=True, architectures=architectures)
    cuda_budgets.require_budgets(entries, source, architectures)


def test_texts_of_cells_that_ship_are_generated_once_and_held_by_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path))
    listed = read_listed(generated_folder(), "cuda")
    assert {*listed, *tree.BY_DIGEST["cuda"]} == {cell.definition.name for cell in SHIPPED}
    first = cellgen.load_cuda("elman")
    monkeypatch.setattr(api, "sources_of", None)  # from here on nothing can be generated
    again = cellgen.load_cuda("elman")
    assert again.sources == first.sources
    assert listed["elman"] == TextDigest.of("elman.cu", dict(first.sources.files)["elman.cu"])


def test_a_list_of_digests_that_does_not_hold_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    other = {"elman": TextDigest("elman.cu", "0" * 64)}
    monkeypatch.setattr(api, "read_listed", lambda *_: other)
    with pytest.raises(BuildError, match="elman: what is generated for cuda is not what the list"):
        cellgen.load_cuda("elman")
    for text in ("elman.cu\n", "0" * 64 + " elman/elman.cu\n"):
        (tmp_path / "cuda.sha256").write_text(text)
        with pytest.raises(BuildError, match=r"cuda\.sha256, line 1: found .*expected a SHA-256"):
            read_listed(tmp_path, "cuda")


def test_a_text_in_the_cache_that_is_not_the_listed_one_is_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path))
    digest = read_listed(generated_folder(), "cuda")["elman"].digest
    kernels.remember(f"elman.cu-{digest[: kernels.KEY_DIGITS]}", {"text": "int x;"})
    texts = dict(cellgen.load_cuda("elman").sources.files)
    assert texts["elman.cu"] == generate(Elman).text(".cu")


def test_a_text_in_the_cache_that_older_templates_made_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is as old as the text: it has to be written again."""
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path))
    old = TextDigest.of("elman.cu", "int x;")
    old.remember("int x;", "older templates")
    monkeypatch.setattr(api, "read_listed", lambda *_: {"elman": old})
    with pytest.raises(BuildError, match="elman: what is generated for cuda is not what the list"):
        cellgen.load_cuda("elman")


# --- errors --------------------------------------------------------------------------------------


def test_no_compiler_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path))  # from which no kernel is loaded
    monkeypatch.setattr(nvcc, "candidates", lambda: iter(()))
    with pytest.raises(
        BuildError, match=r"no CUDA compiler.*pip install 'cellgen-compiler\[cuda\]'"
    ):
        api.load_cuda("lstm").build()
    monkeypatch.setenv("CELLGEN_NVCC", "/nowhere/nvcc")
    with pytest.raises(BuildError, match="CELLGEN_NVCC names the CUDA compiler '/nowhere/nvcc'"):
        api.load_cuda("lstm").build()


@pytest.fixture
def by_nvcc_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc compiles one element type in the place of four, which take it twice as long."""
    build = nvcc.build
    monkeypatch.setattr(
        nvcc, "build", lambda sources, *rest, **how: build(sources_in(sources, "f32"), *rest, **how)
    )


@with_nvcc
@pytest.mark.usefixtures("by_nvcc_in_float32")
def test_no_driver_is_said_and_the_process_stays_usable() -> None:
    """By the library that ``test_build_compiles_for_cuda_and_says_what_it_did`` builds, too."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")
    kernel = api.load_cuda("elman")
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"elman: .*CUDA error \d+, .*driver"):
            kernel.devices()
        with pytest.raises(DeviceError, match="driver"):
            kernel.array(np.zeros(3))


RUNTIME = [
    *re.findall(
        r"^inline cudaError_t (\w+)\([^{]*\{[^}]*?CELLGEN_MAY_FAIL", RUNTIME_OF_HOST, re.MULTILINE
    ),
    "launch",
]
"""What the emulated runtime is asked for."""


def several_devices(kernel: CudaKernel, device: int) -> dict[str, np.ndarray]:
    """Use everything of the runtime on a device; what comes out."""
    given = inputs(kernel, (3, 4, 5, 6))
    arrays_there = {n: kernel.array(a, device=device) for n, a in given.items()}
    try:
        found = [
            kernel.sequence_forward(**arrays_there, graph=True, tier="steps").h_last.numpy(),
            kernel.sequence_forward(**arrays_there, graph=False).h_last.numpy(),
            kernel.sequence_forward(**lent(given), graph=False).h_last.numpy(),
        ]
    finally:
        kernel.sequence_forward.graphs.clear()
        kernel.sequence_forward.launcher.graphs = Graphs()  # with a stream of its own to capture on
    return {f"{number}": array for number, array in enumerate(found)}


@with_cxx
@pytest.mark.parametrize("call", RUNTIME)
def test_after_a_call_of_the_runtime_that_fails_the_process_stays_usable(call: str) -> None:
    """The runtime keeps the failure as its last error: the next launch must not report it."""
    kernel = emulated(Elman)
    lib, expected = kernel.library().lib, OnHost(emulated(Elman)).sequence_forward
    right = expected(**inputs(kernel, (3, 4, 5, 6))).h_last
    device = 1 + RUNTIME.index(call)  # one that has no memory pool yet
    lib.cellgen_emulation_machine(64, 0, 80)
    before = lib.cellgen_emulation_count(FAILED)
    lib.cellgen_emulation_fail(call.encode(), 999)
    try:
        if call in UNNOTICED:
            several_devices(kernel, device)
        else:
            with pytest.raises(DeviceError, match=r"elman.*CUDA error 999.*; the driver failed"):
                several_devices(kernel, device)
        assert lib.cellgen_emulation_count(FAILED) == before + 1
        for array in several_devices(kernel, device).values():
            assert np.array_equal(array, right)
    finally:
        lib.cellgen_emulation_fail(b"", 0)
        lib.cellgen_emulation_machine(1, 0, 80)


UNNOTICED = ("cudaFreeAsync", "cudaGraphDestroy", "cudaGraphExecDestroy")
"""What fails without a word: giving back what was used."""


@pytest.fixture
def machine() -> Iterator[CudaKernel]:
    """A kernel of its own, to whose emulated machine a test does what it likes."""
    kernel = api.compile_cuda(Elman, emulated=True)
    yield kernel
    lib = kernel.library().lib
    lib.cellgen_emulation_machine(1, 0, 80)
    lib.cellgen_emulation_fail(b"", 0)


@with_cxx
def test_no_device_and_one_that_is_not_there_are_said(machine: CudaKernel) -> None:
    lib, given = machine.library().lib, lent(inputs(machine, (3, 4, 5, 6)))
    lib.cellgen_emulation_machine(0, 0, 80)
    for use in (
        lambda: machine.sequence_forward(**given),
        lambda: machine.array(np.zeros(3)),
        machine.devices,
    ):
        with pytest.raises(
            DeviceError, match=r"elman: .*CUDA error 100.*; no CUDA device was foun"
        ):
            use()
    lib.cellgen_emulation_machine(2, 0, 80)
    with pytest.raises(DeviceError, match=r"elman: device 2 is not there, expected one of 0 to 1"):
        machine.array(np.zeros(3), device=2)
    right = OnHost(emulated(Elman)).sequence_forward(**inputs(machine, (3, 4, 5, 6)))
    assert np.array_equal(machine.sequence_forward(**given).h.numpy(), right.h)


@with_cxx
def test_a_device_that_is_too_old_is_said_at_the_call(
    machine: CudaKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the arrays' device, also of arrays of another library; other devices serve."""
    lib, given = machine.library().lib, inputs(machine, (3, 4, 5, 6))
    lib.cellgen_emulation_machine(2, 1, 75)
    old = {n: ByCapsule(a, device=1) for n, a in given.items()}
    said = (
        r"elman: device 1 has compute capability 7\.5, expected 8\.0 or newer; use another device"
    )
    for _ in range(2):
        with pytest.raises(DeviceError, match=said):
            machine.sequence_forward(**old)
    machine.sequence_forward(**lent(given))
    assert machine.devices() == 2
    lib.cellgen_emulation_machine(2, 1, 89)
    monkeypatch.setenv("CELLGEN_CUDA_ARCH", "sm_90a")
    with pytest.raises(DeviceError, match=r"capability 8\.9, expected 9\.0"):
        machine.sequence_forward(**old)
    monkeypatch.delenv("CELLGEN_CUDA_ARCH")
    machine.sequence_forward(**old)


@with_cxx
@pytest.mark.parametrize("of", [-1, 1], ids=["destroyed", "of another device"])
@pytest.mark.parametrize("graph", [True, False])
def test_a_stream_that_cannot_be_used_is_said(machine: CudaKernel, of: int, graph: bool) -> None:
    lib, given = machine.library().lib, lent(inputs(machine, (3, 4, 5, 6)))
    lib.cellgen_emulation_machine(2, 0, 80)
    stream = 0x5150
    lib.cellgen_emulation_stream(machine.library().ffi.cast("void *", stream), of)
    out = {"h": Lent(np.zeros((3, 4, 6))), "h_last": Lent(np.zeros((4, 6)))}
    for room in ({}, out):
        said = r"elman.* on device 0, stream 0x5150: CUDA error 400.*; the stream is of another dev"
        with pytest.raises(DeviceError, match=said):
            machine.sequence_forward(**given, stream=stream, out=room, graph=graph)
    machine.sequence_forward(**given, graph=graph)


@with_cxx
def test_a_kernel_that_cannot_be_launched_is_said(machine: CudaKernel) -> None:
    lib, given = machine.library().lib, lent(inputs(machine, (3, 4, 5, 6)))
    step = {
        n: machine.array(a[0] if n == "x" else a) for n, a in inputs(machine, (1, 4, 5, 6)).items()
    }
    for name, call in (("sequence_forward", given), ("forward", step)):
        lib.cellgen_emulation_fail(b"launch", 209)
        said = rf"elman.{name}: on device 0, the default stream: CUDA error 209.*CELLGEN_CUDA_ARCH"
        with pytest.raises(DeviceError, match=said):
            machine.functions[name](**call)
        machine.functions[name](**call)


class Lent:
    """An array of another library, by ``__cuda_array_interface__``."""

    def __init__(self, array: np.ndarray, **changes: object) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": array.strides,
            "version": 3,
            **changes,
        }


class ByCapsule:
    """An array of another library, by ``__dlpack__``; says that it is on a device."""

    def __init__(self, array: np.ndarray, device: int = 0, kind: int = 2) -> None:
        self.array, self.device, self.kind = array, device, kind
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device

    def __dlpack__(self, *, stream: object = None) -> object:
        self.streams.append(stream)
        return self.array.__dlpack__()


@pytest.fixture
def elman() -> tuple[CudaKernel, Arrays]:
    kernel = emulated(Elman)
    return kernel, inputs(kernel, (3, 4, 5, 6))


@with_cxx
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("wrap", [Lent, ByCapsule])
def test_arrays_of_other_libraries_are_read_where_they_are(
    elman: tuple[CudaKernel, Arrays], wrap: Callable[[np.ndarray], object], dtype: str
) -> None:
    kernel, given = elman
    given = {name: array.astype(dtype) for name, array in given.items()}
    expected = OnHost(kernel, dtype).sequence_forward(**given)
    out = np.full((3, 4, 6), np.nan, dtype)
    found = kernel.sequence_forward(
        **{name: wrap(array) for name, array in given.items()}, out={"h": wrap(out)}
    )
    assert np.array_equal(out, expected.h)
    assert np.array_equal(found.h_last.numpy(), expected.h_last)
    assert found.h_last.numpy().dtype == dtype
    assert found.h_last.__cuda_array_interface__["shape"] == (4, 6)
    assert found.h_last.__cuda_array_interface__["typestr"] == np.dtype(dtype).str


@with_cxx
def test_arrays_without_memory_are_refused(elman: tuple[CudaKernel, Arrays]) -> None:
    kernel, given = elman
    nowhere = Lent(given["x"], data=(0, False))
    with pytest.raises(ArgumentError, match=r"x is a .*Lent \(3, 4, 5\) that lends no memory"):
        kernel.sequence_forward(**{**given, "x": nowhere})


@with_cxx
def test_the_callers_stream_reaches_the_arrays(elman: tuple[CudaKernel, Arrays]) -> None:
    kernel, given = elman
    lent = {name: ByCapsule(array) for name, array in given.items()}

    class Stream:
        cuda_stream = 77

    kernel.sequence_forward(**lent, stream=Stream())
    kernel.sequence_forward(**lent, stream=78)
    kernel.sequence_forward(**lent)
    assert lent["x"].streams == [77, 78, 1]
    with pytest.raises(ArgumentError, match="stream is 'fast', expected an address"):
        kernel.sequence_forward(**lent, stream="fast")


@with_cxx
def test_results_are_taken_in_the_order_of_the_callers_stream(
    elman: tuple[CudaKernel, Arrays], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library gives memory again that its current stream may still read: where the call runs on
    another one, that one has to be current when the library is asked."""
    kernel, given = elman
    current, asked = [5], []

    @contextmanager
    def stream(other: int) -> Iterator[None]:
        before, current[0] = current[0], other
        yield
        current[0] = before

    class Tensor(ByCapsule):
        def new_empty(self, shape: tuple[int, ...]) -> Tensor:
            asked.append(current[0])
            return Tensor(np.full(shape, np.nan))

        def data_ptr(self) -> int:
            return self.array.ctypes.data

    Tensor.__module__ = "torch"
    cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=current[0]),
        default_stream=lambda device: 0,
        ExternalStream=lambda handle, device: handle,
        stream=stream,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    tensors = {n: Tensor(a) for n, a in given.items()}
    expected = OnHost(kernel).sequence_forward(**given)
    for given_stream, used in ((None, 5), (77, 77), (0, 0)):
        asked.clear()
        found = kernel.sequence_forward(**tensors, stream=given_stream)
        assert asked == [used] * 2
        assert current == [5]
        assert np.array_equal(found.h.array, expected.h)


@with_cxx
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"argument x is missing, expected an array \(T, B, I\)"),
        ({"y": np.zeros(3)}, "unknown argument 'y'"),
        ({"x": np.zeros((3, 4, 5))}, "x is a numpy.ndarray in the host's memory"),
        ({"x": [1.0]}, "x is a list in the host's memory"),
        ({"x": Lent(np.zeros((3, 4, 10))[:, :, ::2])}, "x has units that are not contiguous"),
        ({"x": ByCapsule(np.zeros((3, 4, 10))[:, :, ::2])}, "x has units that are not contiguous"),
        ({"w": Lent(np.zeros((5, 12))[:, ::2])}, "w is not C-contiguous"),
        ({"w": Lent(np.zeros((5, 8))[:, :6])}, "w is not C-contiguous"),
        (
            {"x": Lent(np.zeros((3, 4, 5)), strides=(163, 40, 8))},
            "x has strides .*, expected multiples of its items' 8 bytes",
        ),
        ({"x": Lent(np.zeros((3, 4, 5), np.int32))}, "x has element type <i4, expected one of"),
        (
            {"x": ByCapsule(np.zeros((3, 4, 5), np.int32))},
            r"x has dtype DLPack type \(0, 32\), expected float32 or float64 or bf",
        ),
        (
            {"w": Lent(np.zeros((5, 6), np.float32))},
            "w is float32, but 4 other arrays are float64; convert it to float64",
        ),
        ({"w": ByCapsule(np.zeros((5, 6)), device=1)}, "w is on device 1 and x on device 0"),
        ({"w": ByCapsule(np.zeros((5, 6)), kind=1)}, "w is a .*ByCapsule in the host's memory"),
        (
            {"w": Lent(np.zeros((5, 7)))},
            r"w has shape \(5, 7\), expected \(I, H\) = \(5, 6\) with I = 5 from x",
        ),
        ({"b": Lent(np.zeros((1, 6)))}, r"b has 2 axes, shape \(1, 6\), expected 1: \(H\)"),
        ({"b": Lent(np.zeros((1,) * 12))}, "b has 12 axes"),
        (
            {"last_only": True, "out": {"h": Lent(np.zeros((3, 4, 6)))}},
            "out has h, expected final states alone, since last_only forms no outputs over time",
        ),
        ({"bp_lim": 3}, "bp_lim is an option of the C kernels .* not have yet"),
        ({"bp_lim": 0}, "bp_lim is an option of the C kernels .* not have yet"),
        ({"window": 3}, "window is no option of this function"),
        ({"batch_first": 1}, "batch_first is 1, expected True or False"),
        (
            {
                "batch_first": True,
                "x": Lent(np.zeros((4, 3, 5))),
                "mask": Lent(np.zeros((3, 4), bool)),
            },
            r"mask is bool of shape \(3, 4\), expected bool of shape \(B, T\) = \(4, 3\)",
        ),
        ({"lengths": np.array([1, 2])}, "lengths is a numpy.ndarray in the host's memory"),
        ({"lengths": Lent(np.array([1, 2]))}, r"lengths is int64 of shape \(2,\), expected int64"),
        ({"mask": Lent(np.zeros((3, 4)))}, r"mask is float64 .*, expected bool of shape \(T, B\)"),
        ({"lengths": ByCapsule(np.zeros(8, int)[::2])}, "lengths is on device 0 and not cont"),
        ({"mask": ByCapsule(np.zeros((3, 4), bool), device=1)}, "mask is on device 1, expected"),
        ({"reverse": 2}, "reverse is 2, expected True or False"),
        ({"mask": Lent(np.ones((3, 4), bool)), "tier": "whole"}, "only where every step is valid"),
        ({"tier": "fragments"}, "arrays are float64: matrix units take bfloat16 and float16 only"),
    ],
)
def test_wrong_arguments_are_named_and_the_kernel_stays_usable(
    elman: tuple[CudaKernel, Arrays], change: Mapping[str, object], message: str
) -> None:
    kernel, given = elman
    lent = {name: Lent(array) for name, array in given.items()}
    with pytest.raises(ArgumentError, match=message):
        kernel.sequence_forward(**{**lent, **change})
    kernel.sequence_forward(**lent)


@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        ("sequence_forward", {"alpha": True}, "scalar alpha is True, expected one real number"),
        ("sequence_forward", {"alpha": np.str_("1.5")}, "scalar alpha is .*1.5.*, expected one"),
        ("sequence_forward", {"alpha": np.complex64(1)}, "scalar alpha is .*, expected one real"),
        (
            "sequence_forward",
            {"alpha": np.zeros(1)},
            r"scalar alpha is an array \(1,\) of float64, expected",
        ),
        ("sequence_forward", {"xx": 1}, "unknown argument 'xx'; did you mean 'x'"),
        ("sequence_forward", {"out": {"hh": 1}}, "out has an unknown result 'hh'; did"),
        ("sequence_forward", {"out": [1]}, "out is a list, expected a dict or a tuple"),
        ("sequence_backward", {"saved": (1, 2)}, "saved is tuple, expected what "),
        (
            "sequence_backward",
            {"saved": result_class("saved", ("f", "r", "z"))(1, 2, 3)},
            "saved is ",
        ),
    ],
)
def test_names_and_scalars_are_checked_as_those_of_the_c_kernels(
    function: str, call: Mapping[str, object], message: str
) -> None:
    """Before anything is compiled or any array looked at."""
    kernel = api.load_cuda("sru")
    given = {a.name: 1 for a in kernel.functions[function].function.arguments if not a.is_scalar}
    with pytest.raises(ArgumentError, match=message):
        kernel.functions[function](**{**given, **call})


@with_cxx
def test_memory_that_does_not_suffice_is_said(elman: tuple[CudaKernel, Arrays]) -> None:
    kernel, given = elman
    lent: dict[str, object] = {name: Lent(array) for name, array in given.items()}
    huge = 1 << 40
    lent["x"] = Lent(given["x"], shape=(huge, 4, 5), strides=None)
    with pytest.raises(MemoryError, match=r"no memory for [\d,]+ bytes on device 0.*fewer rows"):
        kernel.sequence_forward(**lent)
    lent["x"] = Lent(given["x"])
    kernel.sequence_forward(**lent)


def test_a_cell_without_cuda_source_says_that_its_c_works(tmp_path: Path) -> None:
    folder = tmp_path / "elman"
    shutil.copytree(generated_folder() / "elman", folder)
    with pytest.raises(BuildError, match=r"no elman.cu: .*its C kernel works"):
        backend("cuda").load(folder, emulated=False)


# --- the command line ----------------------------------------------------------------------------


@with_nvcc
@pytest.mark.usefixtures("by_nvcc_in_float32")
def test_build_compiles_for_cuda_and_says_what_it_did(tmp_path: Path) -> None:
    command = ["build", "elman", "--target", "cuda", "--out", str(tmp_path / "generated")]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    (record,) = json.loads(done.stdout)
    assert Path(record["object"]).name == "elman.so"
    assert (tmp_path / "generated" / "elman" / "elman.cu").is_file()
    assert (tmp_path / "generated" / "include" / "cellgen_cuda.cuh").is_file()


def test_a_target_that_does_not_exist_is_refused() -> None:
    done = CliRunner().invoke(app, ["build", "elman", "--target", "metal"])
    assert done.exit_code == 2
    assert "--target metal: expected one of c, cuda" in done.output


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("lstm", "a block takes rows through all steps in one launch where nH * 4 * nH weights"),
        ("lstm", "with matrix units (mma m16n8k16: factors as stored, sums in float32)"),
        ("slstm_heads", "a block takes rows of one head through all steps in one launch where nD"),
        ("min_gru", "sequence_forward: a thread takes a unit of a row through all steps"),
        ("layer_norm_lstm", "because a sum over units in every step needs whole rows"),
    ],
)
def test_explain_says_how_a_cell_runs_on_a_device_and_why(cell: str, said: str) -> None:
    done = CliRunner().invoke(app, ["explain", cell, "--target", "cuda"])
    assert done.exit_code == 0, done.output
    assert said in done.output


@with_cxx
def test_explain_weighs_the_tiers_for_a_shape_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """LSTM has 4 x 256 x 256 weights: 512 KiB of bfloat16; a head of 64 units 32 KiB of them."""
    monkeypatch.setenv("CELLGEN_PERSISTENT", "0")  # blocks that stay: see test_persistent
    command = ["explain", "--target", "cuda", "--dtype", "bfloat16"]
    done = CliRunner().invoke(app, [*command, "lstm", "--shape", "100,32,256,256"])
    assert done.exit_code == 0, done.output
    assert "at T = 100, B = 32, I = 256, H = 256; bfloat16:" in done.output
    assert [f"\n{name}: " in done.output for name in ("A100", "H100", "H200")] == [True] * 3
    assert "A100: 108 multiprocessors of 65,536 registers, 163 KiB" in done.output
    assert "sequence_forward: launch by launch; " in done.output
    assert "in blocks: 512 KiB of weights do not fit a block's 227 KiB" in done.output
    shape = ["slstm_heads", "--shape", "1024,16,768,12,64", "--device", "h200", "--json"]
    done = CliRunner().invoke(app, [*command, *shape])
    assert done.exit_code == 0, done.output
    told = "\n".join(json.loads(done.stdout))
    assert "A100" not in told
    assert re.search(r"sequence_forward: in blocks; \d+ launches, 2,061 step", told)
    assert "in blocks with matrix units: 32 KiB of weights fit, " in told
    # 12 heads and 132 multiprocessors: 11 blocks for the 16 rows of a head, of 2 rows each
    assert "96 blocks of 128 threads and up to 2 rows, all at once; room for 255 regist" in told


@with_cxx
def test_what_explain_says_is_what_runs() -> None:
    """The launches that it counts are those of a call; afterwards the emulation runs again."""
    for kernel, sizes, dtype in (
        (emulated(SLSTMHeads), "TBIKD", "float32"),
        (emulated(MinGRU), "TBIH", "float32"),
        (emulated_in(LayerNormGRU, "f64"), "TBIH", "float64"),
    ):
        lengths = dict(zip(sizes, (3, 4, 5, 2, 6), strict=False))
        told = choices(kernel, lengths, dtype, DEVICES["h200"])
        lib = kernel.library().lib
        given = {
            a.name: kernel.array(np.ones([axis_length(x, lengths) for x in a.shape]), dtype=dtype)
            for a in kernel.sequence_forward.function.arguments
        }
        lib.cellgen_emulation_device(132, 227 << 10)
        try:
            for tier, expected in (("auto", told[0].launches), ("steps", told[0].stepwise)):
                before = lib.cellgen_emulation_count(LAUNCHED)
                found = kernel.sequence_forward(**given, tier=tier, graph=False)
                assert lib.cellgen_emulation_count(LAUNCHED) - before == expected
                assert not np.isnan(found.h.numpy()).any()
        finally:
            lib.cellgen_emulation_device(4, 99 << 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shape", "1,2,3"], "--shape '1,2,3': expected T,B,I,H, for example 100,32,128,128"),
        (["--device", "h100"], "--device decides nothing without --shape"),
        (["--shape", "1,2,3,4", "--device", "p4"], "--device 'p4': expected one of a100, h100"),
        (["--shape", "1,2,3,4", "--dtype", "int8"], "--dtype 'int8': expected one of float32"),
        (["--threads", "2"], "--threads is of targets on the host; leave it out for cuda"),
    ],
)
def test_explain_refuses_what_it_cannot_weigh(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["explain", "lstm", "--target", "cuda", *options])
    assert done.exit_code == 2
    assert said in done.output


# --- the device suite ----------------------------------------------------------------------------

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@with_cxx
@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        pytest.param(GRU, [2, 2], id="gru", marks=pytest.mark.slow),
        pytest.param(LSTM, [2, 2], id="lstm"),
        pytest.param(RAN, [2, 2], id="ran", marks=pytest.mark.slow),
        pytest.param(LRU, [4, 5], id="lru"),
    ],
)
def test_a_step_has_few_launches(cell: type[Cell], expected: list[int]) -> None:
    """A product for all gates and a loop, forward and backward; LRU has no product of its input."""

    def launches(steps: int) -> list[int]:
        sizes = {"T": steps, "B": 3, "I": 4, "H": 5}
        found = choices(emulated(cell), sizes, "float32", DEVICES["h100"])
        return [choice.stepwise for choice in found]

    one, other = launches(4), launches(5)
    assert [more - less for less, more in zip(one, other, strict=True)] == expected


@with_cxx
def test_a_stream_reads_as_many_steps_ahead_as_registers_hold() -> None:
    """minGRU reads two values a step forward, four backward; each twice, eight bytes at most."""
    text = generate(MinGRU).text(".cu")
    assert re.findall(r"real (\w+)_ahead\[2\]\[(\d)\]", text) == [
        *(("x_w_z", "8"), ("x_w_n", "8")),
        *(("d_h", "4"), ("h_prev", "4"), ("z", "4"), ("n_bar", "4")),
    ]


@with_cxx
def test_the_cost_model_takes_a_good_way_on_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 calls whose tiers were timed on an H100: never 1.3 times the best, 1.02 on average."""
    monkeypatch.setenv("CELLGEN_PERSISTENT", "0")  # the record has no blocks that stay
    report = json.loads((BENCHMARKS / "results" / "cuda_h100.json").read_text(encoding="utf-8"))
    tiers = dict(zip(WAYS, ("steps", "whole", "fragments"), strict=True))
    kernels = {kernel.name: kernel for kernel in map(emulated, (Elman, LSTM, SLSTMHeads))}
    kernels["gru"] = emulated_in(GRU, "f32", "bf16")
    regrets = []
    for record in report["tiers"]:
        (steps, rows, units), kernel = record["shape"], kernels[record["cell"]]
        sizes = {"T": steps, "B": rows, "I": units, "H": units, "K": 4, "D": units // 4}
        found = choices(kernel, sizes, record["dtype"], DEVICES["h100"])
        taken = tiers[found[record["pass"] == "backward"].taken]
        regrets.append(record[taken] / min(record[t] for t in tiers.values() if t in record))
    assert len(regrets) == 80
    assert max(regrets) < 1.3
    assert np.mean(regrets) < 1.02


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the device suite."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@with_cxx
def test_the_device_suite_runs_where_there_is_no_device() -> None:
    """Over time, a step, layouts (not of bfloat16); calls that are wrong."""
    command = [sys.executable, str(BENCHMARKS / "device.py"), "--cells", "elman", "--seeds", "1"]
    command += ["--quick", "--emulated"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^elman .* ok$", done.stdout, re.MULTILINE)) == 3 + 3 + 2 + 3 + 1


def test_what_fails_or_is_missing_without_leave_fails_the_device_suite(
    benchmark: Callable[[str], ModuleType],
) -> None:
    failures = benchmark("device").failures
    report = {"device": "none", "check": [{"ok": True}], "bench": [{"missing": "torch"}]}
    assert failures(report, []) == [{"missing": "torch"}]
    assert failures(report, ["torch"]) == []
    assert failures({"check": [{"ok": False}]}, ["torch"]) == [{"ok": False}]


@with_cxx
def test_a_fault_fails_the_device_suite(benchmark: Callable[[str], ModuleType]) -> None:
    """Another cell's kernel, one that gives errors nowhere, one without functions over time."""
    device = benchmark("device_proof")
    kernel, exact = emulated(Elman), api.load("elman")
    assert device.error_of_steps(kernel, exact, "float64", 0) < device.BARS["float64"]
    assert device.error_of_layouts(kernel, exact, "float64", 0) < device.BARS["float64"]
    assert device.wrong_calls(kernel, exact) == []
    other = api.load("elman_relu")
    assert device.error_of_steps(kernel, other, "float64", 0) > 0.01
    assert device.error_of_layouts(kernel, other, "float64", 0) > 0.01
    assert device.error_over_time(kernel, other, "float64", 0, True) > 0.01
    functions = {n: f for n, f in kernel.functions.items() if not f.function.team}
    alone = SimpleNamespace(functions=functions)
    assert device.error_over_time(alone, exact, "float64", 0, True) == np.inf


def test_a_single_entry_that_was_never_written_is_no_right_one(
    benchmark: Callable[[str], ModuleType],
) -> None:
    """A sum may cancel; NaN is what memory was full of."""
    error, exact = benchmark("device_proof").largest_error, np.ones(1)
    assert error(np.zeros(1), exact, "bfloat16", {"y": exact}) == 0.0
    assert error(np.full(1, np.nan), exact, "bfloat16", {"y": exact}) == np.inf
    assert error(np.full(2, np.nan), np.ones(2), "float64", {"y": np.ones(2)}) == np.inf


def test_what_cancels_to_nothing_is_measured_by_the_largest_result(
    benchmark: Callable[[str], ModuleType],
) -> None:
    error, nothing = benchmark("device_proof").largest_error, np.full(2, 1e-18)
    assert error(np.full(2, 1e-9), nothing, "float32", {"d_m": nothing, "d_x": np.ones(2)}) < 1e-8
    assert error(np.full(2, 1e-9), nothing, "float32", {"d_m": nothing}) > 1e8


def test_limits_count_bytes_and_operations(benchmark: Callable[[str], ModuleType]) -> None:
    """minGRU's scan reads two arrays and writes one, backward reads four and writes two; the rest
    is states. An LSTM multiplies each row by 8 matrices, a head's weights are of its units."""
    limits, cells = benchmark("device_limits"), benchmark("device_cells")
    scan = api.compile_cuda(cells.MinGRUScan)
    sizes = {"T": 1000, "B": 8, "I": 64, "H": 64, "K": 2, "D": 32}
    array = 1000 * 8 * 64 * 2
    forward, backward = limits.bytes_of(scan, sizes, "bfloat16")
    assert 3 * array < forward < 3.01 * array
    assert 6 * array < backward < 6.01 * array
    assert limits.flops_of(scan, sizes) == 0
    assert limits.flops_of(api.load_cuda("lstm"), sizes) == 2 * 8000 * 8 * 64 * 64
    heads = api.compile_cuda(cells.SLSTMFinished)
    assert limits.flops_of(heads, sizes) == 2 * 8000 * 4 * 2 * 32 * 32
    found = limits.limit_of(scan, "scan", (1000, 8, 64), "bfloat16", sizes, "NVIDIA H200")
    assert found.f_ms == pytest.approx(forward / 4.8e12 * 1e3)
    assert "data sheet" in found.source
    assert limits.limit_of(scan, "scan", (1000, 8, 64), "bfloat16", sizes, "another") is None


@with_cxx
@pytest.mark.parametrize(
    "name",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in ("LSTM", "GRU", "MinGRU")), "SLSTMHeads"],
)
def test_cells_of_finished_products_are_what_is_left_of_a_layer(
    name: str, benchmark: Callable[[str], ModuleType]
) -> None:
    """The cell that ships, its input products formed before."""
    rest = getattr(benchmark("device_cells"), name.replace("Heads", "") + "Finished", None)
    rest = rest or benchmark("device_cells").MinGRUScan
    whole = getattr(cells, name)
    given = inputs(emulated(whole), (3, 4, 5, 6))
    if name == "MinGRU":
        given = {n: 0 * a if n.startswith("b_") else a for n, a in given.items()}
    products = {
        n.replace("w_", "a_") if name != "MinGRU" else {"w_z": "a_z", "w_n": "n"}[n]: np.tensordot(
            given["x"], a, 1
        )
        for n, a in given.items()
        if n.startswith("w_")
    }
    kernel = in_elements(api.compile_cuda(rest, emulated=True), "f64")
    taken = {a.name for a in kernel.sequence_forward.function.arguments}
    call = {n: a for n, a in {**given, **products}.items() if n in taken}
    found = OnHost(kernel).sequence_forward(**call).h
    expected = OnHost(emulated(whole)).sequence_forward(**given).h
    assert relative(found, expected) < TOLERANCE["float64"]


@with_cxx
def test_saved_knows_its_run() -> None:
    kernel = emulated(LSTM)
    device, given, above = (
        OnHost(kernel),
        inputs(kernel, (4, 3, 2, 5)),
        upstream(kernel, (4, 3, 2, 5)),
    )
    mask = np.random.default_rng(0).random((4, 3)) < 0.5
    found = device.sequence_forward(**given, reverse=True, mask=mask, save=True)
    call = {**given, "h": found.h, "c": found.c, **above}
    brought = device.sequence_backward(**call, saved=found.saved)
    repeated = device.sequence_backward(**call, saved=found.saved, reverse=True, mask=mask)
    options = {"reverse": True, "mask": mask}
    by_name = device.sequence_backward(**call, saved=found.saved._asdict(), **options)
    for one in (repeated, by_name):
        assert all(np.array_equal(a, b) for a, b in zip(one, brought, strict=True))
    for wrong, message in (
        ({"reverse": False}, "reverse is False, but the run that saved had True"),
        ({"mask": ~mask}, "mask is another array than the run that saved had"),
        ({"reset": mask}, "reset is given, but the run that saved had none"),
        ({"batch_first": True}, "mask of the run that saved is laid out for batch_first=False"),
    ):
        with pytest.raises(ArgumentError, match=message):
            device.sequence_backward(**call, saved=found.saved, **wrong)
    narrow = inputs(kernel, (4, 3, 1, 5))
    with pytest.raises(
        ArgumentError, match="arguments have I = 1, but saved is of a run with I = 2"
    ):
        device.sequence_backward(**{**call, **narrow}, saved=found.saved)
    other = emulated(MinGRU)
    foreign = OnHost(other).sequence_forward(**inputs(other, (4, 3, 2, 5)), save=True).saved
    with pytest.raises(ArgumentError, match="saved is of the cell min_gru, expected what"):
        device.sequence_backward(**call, saved=foreign)


@with_cxx
@pytest.mark.parametrize("options", [{}, {"reverse": True, "lengths": np.zeros(0, np.int64)}])
def test_steps_without_rows_are_not_launched(options: dict[str, object]) -> None:
    kernel, shape = emulated(LSTM), (1 << 33, 0, 2, 5)
    device, given, above = OnHost(kernel), inputs(kernel, shape), upstream(kernel, shape)
    found = device.sequence_forward(**given, **options, save=True)
    assert found.h.shape == (1 << 33, 0, 5)
    call = {**given, "h": found.h, "c": found.c, **above}
    gradients = device.sequence_backward(**call, saved=found.saved)
    assert gradients.d_u_i.shape == (5, 5)
    assert not gradients.d_u_i.any()


def test_a_handler_that_comes_while_a_graph_is_looked_for_launches_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread holds the lock: to wait for it would take for ever."""
    kept, found = Graphs(), []
    call = Launch("lstm.sequence_forward", b"key", 0, 0, 0, lambda on, workspace: 0)
    monkeypatch.setattr("cellgen.runtime.device.graphs._is_captured", lambda *_: False)

    def handled(key: bytes) -> bool:
        kept.clear()
        launch()
        return False

    monkeypatch.setattr(kept, "_came_before", handled)

    def launch() -> None:
        found.append(kept.launch(None, call, None))  # type: ignore[arg-type]

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    thread.join(60)
    assert found == [False, False]

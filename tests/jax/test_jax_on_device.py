"""Cells on arrays of a device: the way to the CUDA kernels, in their emulation.

``device_check.py`` has the cases, which one command runs on a device.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cellgen.jax
from cellgen import Cell, H, I, Input, State, Weight, api, tanh
from cellgen.errors import ArgumentError, BuildError
from cellgen.jax.registry import find
from tests.jax.arrays import call, drawn, function
from tests.jax.device_check import BARS, CASES, CELLS, apart, arrays_of, twice
from tests.jax.emulated import NO_MEMORY, NO_STREAM, emulated_device

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("clang++", "g++"))), reason="no C++ compiler"
)

OFTEN = {"janet": ("float32", "bfloat16")}
"""Cases of a cell with scalars that run always."""
SELDOM = ("float16", "float64", "second order in bfloat16", "every", "gradient penalty")
"""Cases that others stand for: of 16 bits, of double precision, of what is shown, of a tangent."""


def is_often(cell: str, case: str) -> bool:
    return case in OFTEN.get(cell, ()) or (cell == "elman" and case not in SELDOM)


@pytest.mark.parametrize(
    ("cell", "case"),
    [
        pytest.param(cell, case, marks=() if is_often(cell, case) else pytest.mark.slow)
        for cell in CELLS
        for case in CASES
        if not (case == "single samples" and cell == "slstm_heads")
    ],
)
def test_a_device_gives_what_the_cpu_does(cell: str, case: str) -> None:
    assert apart(case, cell, emulated=True) <= BARS[CASES[case][1]]


def given(dtype: str = "float32") -> dict[str, jax.Array]:
    return arrays_of(function("elman"), dtype)


def test_a_call_takes_a_stream_and_memory_of_xla_and_gives_the_memory_back() -> None:
    cell, arrays = function("elman"), given()
    with emulated_device() as there:
        calls, allocated = there.calls, there.allocated
        call(cell, arrays).h.block_until_ready()
        assert there.calls == calls + 1
        assert there.allocated > allocated
        assert there.held == 0
        with (
            there.lacking(NO_MEMORY),
            pytest.raises(Exception, match="bytes of device 0"),
        ):
            call(cell, arrays).h.block_until_ready()
        with there.lacking(NO_STREAM), pytest.raises(Exception, match="XLA says no stream"):
            call(cell, arrays).h.block_until_ready()
        call(cell, arrays).h.block_until_ready()


def test_one_function_runs_where_its_arrays_lie() -> None:
    """Its program has a lowering for each platform; a cell of one's own is found by its digest."""
    cell = function("elman")
    run = jax.jit(lambda a: jax.grad(lambda a: call(cell, a).h.sum())(a))
    allowed = [jax.export.DisabledSafetyCheck.custom_call(cellgen.jax.TARGET)]
    shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in given("bfloat16").items()}
    program = jax.export.export(run, platforms=["cuda", "cpu"], disabled_checks=allowed)(shapes)
    text = program.mlir_module()
    assert text.count("element = ") == 2  # forward and backward, of devices alone
    assert text.count(f"@{cellgen.jax.TARGET}") == 4
    found, wanted = program.call(given("bfloat16")), run(given("bfloat16"))
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"checkpoint": 2}, "checkpoint"),
        ({"flush_denormals": True}, "flush_denormals"),
        ({"products": "bf16"}, "products"),
        ({"parallel": "segments", "segments": 2, "products": "bf16"}, "products"),
    ],
)
def test_options_that_kernels_of_a_device_lack_are_named(
    options: dict[str, object], name: str
) -> None:
    cell = function("elman")
    loss = lambda a: call(cell, a, **options).h.sum()
    said = rf"elman\.sequence_forward: {name} is given, and arrays are on a device of CUDA, whose"
    with emulated_device(), pytest.raises(ArgumentError, match=f"{said} .*; leave it out"):
        jax.jit(jax.grad(loss))(given())


def test_a_device_that_fails_says_so_in_the_kernels_words() -> None:
    cell, arrays = function("elman"), given()
    library = find("elman").kernel_of(emulated=True).library()
    with emulated_device():
        library.lib.cellgen_emulation_fail(b"launch", 1)
        try:
            said = r"elman\.sequence_forward: on device 0, stream 0x1000: CUDA error 1"
            with pytest.raises(Exception, match=said):
                call(cell, arrays).h.block_until_ready()
        finally:
            library.lib.cellgen_emulation_fail(b"", 0)


class Lonely(Cell):
    """A cell of one's own."""

    x, h_prev = Input(I), State(H)
    w, u = Weight(I, H), Weight(H, H)
    h = tanh(x @ w + h_prev @ u)


@pytest.mark.parametrize("what", ["no CUDA compiler", "it is not rendered for CUDA"])
def test_a_kernel_that_cannot_be_compiled_is_a_clear_word(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cell = cellgen.jax.function(Lonely)

    def refuse(*_: object, **__: object) -> Any:
        raise BuildError(what)

    arrays = drawn(cell)
    with emulated_device():
        monkeypatch.setattr(api, "compile_cuda", refuse)
        with pytest.raises(Exception, match=what):
            call(cell, arrays).h.block_until_ready()


def test_lengths_beyond_the_steps_count_as_all() -> None:
    """A device is not waited for, so that nobody looks at them."""
    cell, arrays = function("elman"), given()
    with emulated_device():
        found = call(cell, arrays, lengths=jnp.array([9, -1, 5, 0])).h
        wanted = call(cell, arrays, lengths=jnp.array([5, 0, 5, 0])).h
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_derivatives_of_a_cell_of_ones_own() -> None:
    cell = cellgen.jax.function(Lonely)
    arrays = {n: jnp.asarray(a) for n, a in drawn(cell).items()}
    wanted = twice(cell, arrays)
    with emulated_device():
        found = twice(cell, arrays)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_the_command_for_a_device_runs_in_the_emulation() -> None:
    command = [sys.executable, "-m", "tests.jax.device_check", "--emulated", "--cells", "elman"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok  ") == len(CASES)
    assert done.stdout.endswith("all cases passed\n")

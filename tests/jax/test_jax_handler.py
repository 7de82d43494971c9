"""The handler in C by itself: what it makes of programs that are not as they should be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cellgen
import cellgen.jax
from cellgen.jax.handler import SOURCE
from cellgen.runtime.paths import include_folder
from tests.jax.arrays import drawn, function

ELMAN = cellgen.load("elman").interface
NAMES = ("x", "h_prev", "w", "u", "b")


def program(**changes: object) -> jax.Array:
    """A call of Elman's forward pass, as text that anybody may write into a program."""
    function("elman")
    given = drawn(function("elman")) | {k: v for k, v in changes.items() if k in NAMES}
    attributes = {
        "cell": "elman",
        "digest": ELMAN.digest,
        "function": "sequence_forward",
        "operands": np.arange(5, dtype=np.int32),
        "results": np.array([5, 6], np.int32),
    } | {k: v for k, v in changes.items() if k not in NAMES}
    dtype = jnp.asarray(given["x"]).dtype
    results = [jax.ShapeDtypeStruct((3, 2, 3), dtype), jax.ShapeDtypeStruct((2, 3), dtype)]
    call = jax.ffi.ffi_call(cellgen.jax.TARGET, results)
    h, _ = call(*(given[name] for name in NAMES), **attributes)
    return h.block_until_ready()


def test_a_program_may_be_written_by_anybody() -> None:
    wanted = cellgen.load("elman").sequence_forward(**drawn(function("elman")))
    np.testing.assert_array_equal(program(), wanted.h)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"digest": "0"},
            f"elman: the program was made for the mathematics 0, found {ELMAN.digest}",
        ),
        ({"cell": "nothing"}, "nothing: this process does not know the cell"),
        ({"function": "nothing"}, "elman: it has no function nothing"),
        (
            {"w": np.zeros((3, 3))},
            r"elman\.sequence_forward: w has 2 axes, the length of axis 0 is 3",
        ),
        ({"b": np.zeros((3, 1))}, r"elman\.sequence_forward: b has 2 axes"),
        ({"b": np.zeros(3, np.float32)}, "the program's operands are not those of this function"),
        ({"operands": np.arange(4, dtype=np.int32)}, "operands are not those of this function"),
        ({"operands": np.arange(5, dtype=np.int64)}, "operands are not those of this function"),
        ({"operands": np.array([0, 1, 2, 3, 99], np.int32)}, "operands are not those of this"),
        ({"operands": np.array([0, 1, 2, 3, -9], np.int32)}, "operands are not those of this"),
        ({"results": np.array([0, 6], np.int32)}, "operands are not those of this function"),
        ({"operands": np.array([0, 1, 2, 3, 3], np.int32)}, "u has 1 axes"),
        ({"operands": np.array([0, 1, 2, 3, -1], np.int32)}, r"lengths are not \(B\) integers"),
    ],
)
def test_a_program_that_does_not_fit_the_cell_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        program(**changes)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({"every": np.int64(0)}, "every is less than 1, or checkpoint less than 0"),
        ({"checkpoint": np.int64(-1)}, "every is less than 1, or checkpoint less than 0"),
        ({"products": np.int64(2)}, "products are in int8, or per_row gives norms"),
        ({"per_row": np.int64(2)}, "products are in int8, or per_row gives norms"),
    ],
)
def test_options_that_no_call_of_a_framework_has_are_refused(
    number: dict[str, object], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        program(**number)


def checkpointed(*shapes: tuple[int, ...]) -> list[jax.Array]:
    """A forward pass that keeps the state before every step but the first, in arrays of shapes."""
    given = drawn(function("elman"))
    dtype = jnp.asarray(given["x"]).dtype
    results = [jax.ShapeDtypeStruct(s, dtype) for s in ((3, 2, 3), (2, 3), *shapes)]
    call = jax.ffi.ffi_call(cellgen.jax.TARGET, results)
    numbers = [5, 6, *(-10 - k for k in range(len(shapes)))]
    found = call(
        *(given[name] for name in NAMES),
        cell="elman",
        digest=ELMAN.digest,
        function="sequence_forward",
        operands=np.arange(5, dtype=np.int32),
        results=np.array(numbers, np.int32),
        checkpoint=np.int64(1),
    )
    return [array.block_until_ready() for array in found]


def test_checkpoints_have_every_axis_that_a_kernel_writes() -> None:
    h, _, kept = checkpointed((2, 2, 3))
    np.testing.assert_array_equal(kept, h[:2])
    wrong = [(2, 2, 1)], [(2, 2)], [(1, 2, 3)], [(2, 2, 3, 1)], [(2, 2, 3)] * 2, []
    for shapes in wrong:
        with pytest.raises(Exception, match="operands are not those of this function"):
            checkpointed(*shapes)


def test_integers_are_refused() -> None:
    whole = {name: np.ones(a.shape, np.int32) for name, a in drawn(function("elman")).items()}
    with pytest.raises(Exception, match="found arrays of XLA's type 4, expected float32, float64"):
        program(**whole)


def test_a_missing_array_is_refused() -> None:
    given = drawn(function("elman"))
    call = jax.ffi.ffi_call(cellgen.jax.TARGET, [jax.ShapeDtypeStruct((3, 2, 3), jnp.float64)])
    attributes = {"cell": "elman", "digest": ELMAN.digest, "function": "sequence_forward"}
    with pytest.raises(Exception, match="returned 1: an array is missing"):
        call(
            *(given[name] for name in NAMES[:4]),
            operands=np.arange(4, dtype=np.int32),
            results=np.array([5], np.int32),
            **attributes,
        )[0].block_until_ready()


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_it_is_plain_c_without_warnings(tmp_path: Path) -> None:
    folders = (f"-I{include_folder()}", f"-I{jax.ffi.include_dir()}")
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-c")
    command = ["gcc", *flags, *folders, str(SOURCE), "-o", str(tmp_path / "handler.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

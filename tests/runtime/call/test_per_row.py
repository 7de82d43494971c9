"""Gradients of weights row by row: sums agree, each row is the bits of a call with it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import ArgumentError, Cell, Dim, H, I, Input, Scalar, State, Static, Weight, tanh
from cellgen.runtime.abi import axis_length
from cellgen.runtime.kernel import Kernel
from tests.cover import each_name_of, of_call

Arrays = dict[str, Any]
SIZES = {"T": 6, "B": 5, "I": 3, "H": 5, "K": 2, "N": 2, "D": 3, "P": 3, "R": 2, "M": 4}
every_kernel = pytest.mark.parametrize("name", each_name_of(of_call))


class Run:
    """A forward run that saved, and what its backward pass takes; random, ``dtype`` throughout."""

    def __init__(self, kernel: Kernel, dtype: str = "float64", **options: Any) -> None:
        sizes = options.pop("sizes", SIZES)
        rng = np.random.default_rng(7)
        self.kernel, self.sizes, self.options = kernel, sizes, options
        self.forward, self.backward = kernel.sequence_forward, kernel.sequence_backward
        arguments = self.forward.function.arguments
        self.given = {a.name: 0.5 * _drawn(rng, a, sizes) for a in arguments if not a.is_scalar}
        self.given = {n: a.astype(dtype) for n, a in self.given.items()}
        upstream = [a for a in self.backward.function.arguments if a.optional]
        self.upstream = {a.name: _drawn(rng, a, sizes).astype(dtype) for a in upstream}
        self.result = self.forward(**self.given, **options, save=True)
        self.shapes = {a.name: a.shape for a in (*arguments, *self.backward.function.arguments)}

    def gradients(self, **how: Any) -> Arrays:
        read = {a.name for a in self.backward.function.arguments}
        outputs = {n: a for n, a in self.result._asdict().items() if n in read}
        given = {**self.given, **outputs, **self.upstream}
        return self.backward(**given, saved=self.result.saved, **how)._asdict()

    def alone(self, row: int) -> Arrays:
        """The gradients of a call with one row."""

        def cut(name: str, array: Any) -> Any:
            if not isinstance(array, np.ndarray):
                return array
            shape = self.shapes.get(name, ("T", "B") if array.ndim > 1 else ("B",))
            axis = shape.index("B") if "B" in shape else None
            return array if axis is None else np.ascontiguousarray(array.take([row], axis))

        one = object.__new__(Run)
        one.kernel, one.forward, one.backward = self.kernel, self.forward, self.backward
        one.given = {n: cut(n, a) for n, a in self.given.items()}
        one.upstream = {n: cut(n, a) for n, a in self.upstream.items()}
        options = {n: cut(n, a) for n, a in self.options.items()}
        one.result = self.forward(**one.given, **options, save=True)
        return one.gradients()

    def summed(self) -> list[str]:
        results = self.backward.function.results
        return [item.name for item in results if not {"T", "B"} & set(item.shape)]


def _drawn(rng: np.random.Generator, item: Any, sizes: dict[str, int]) -> np.ndarray:
    return np.asarray(rng.normal(size=tuple(axis_length(axis, sizes) for axis in item.shape)))


def holds(run: Run, **how: Any) -> None:
    whole, rows = run.gradients(**how), run.gradients(**how, per_row=True)
    norms = run.gradients(**how, per_row="norms")
    count = run.sizes["B"]
    for name, array in whole.items():
        if name not in run.summed():
            np.testing.assert_array_equal(rows[name], array)
            np.testing.assert_array_equal(norms[name], array)
            continue
        assert rows[name].shape == (count, *array.shape)
        assert norms[name].shape == (count,)
        scale = np.abs(rows[name]).sum(axis=0) + 1e-30
        assert np.max(np.abs(rows[name].sum(axis=0) - array) / scale) < 1e-13, name
        squares = (rows[name].reshape(count, -1) ** 2).sum(axis=1)
        np.testing.assert_allclose(norms[name], squares, rtol=1e-13)
    for row in range(count):
        one = run.alone(row)
        for name in run.summed():
            np.testing.assert_array_equal(rows[name][row], one[name], err_msg=name)


@every_kernel
def test_rows_of_gradients_are_those_of_each_row_alone(name: str) -> None:
    holds(Run(cellgen.load(name)))


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize(
    "sizes", [{"T": 1}, {"B": 1}, {"T": 0}, {"T": 40, "B": 20}, {"T": 3, "B": 33}], ids=str
)
def test_any_shape_and_any_number_of_threads(sizes: dict[str, int], threads: int) -> None:
    holds(Run(cellgen.load("gru"), sizes={**SIZES, **sizes}), threads=threads)


@pytest.mark.parametrize("name", ["lstm", "gru_block_cell", "antisymmetric_rnn", "lru"])
def test_steps_that_do_not_count_add_nothing(name: str) -> None:
    rng = np.random.default_rng(3)
    options = {
        "lengths": np.array([6, 0, 3, 6, 5]),
        "mask": rng.random((6, 5)) < 0.7,
        "reset": rng.random((6, 5)) < 0.3,
        "reverse": True,
    }
    holds(Run(cellgen.load(name), **options), threads=2)


def test_float32_batch_first_window_and_packed_weights() -> None:
    kernel = cellgen.load("gru")
    run = Run(kernel, "float32")
    weights = {n: a for n, a in run.given.items() if n not in ("x", "h_prev")}
    rows = run.gradients(per_row=True, window=2)
    packed = run.gradients(per_row=True, window=2, packed=kernel.pack(**weights))
    assert rows["d_w_z"].dtype == np.float32
    np.testing.assert_array_equal(rows["d_w_z"], packed["d_w_z"])
    np.testing.assert_allclose(
        rows["d_u_z"].sum(axis=0), run.gradients(window=2)["d_u_z"], rtol=1e-4, atol=1e-5
    )
    transposed = np.ascontiguousarray(run.given["x"].swapaxes(0, 1))
    other = {**run.given, "x": transposed}
    made = kernel.sequence_forward(**other, save=True, batch_first=True)
    d_h = np.ascontiguousarray(run.upstream["d_h"].swapaxes(0, 1))
    last = run.upstream["d_h_last"]
    given = {**other, "h": made.h, "d_h": d_h, "d_h_last": last, "saved": made.saved}
    found = kernel.sequence_backward(**given, per_row=True)
    np.testing.assert_array_equal(found.d_w_z, run.gradients(per_row=True)["d_w_z"])


def test_gradients_of_every_second_output_alone() -> None:
    run = Run(cellgen.load("lstm"))
    run.upstream = {n: a for n, a in run.upstream.items() if n.endswith("_last")}
    run.upstream["d_h"] = np.random.default_rng(1).normal(size=(3, 5, 5))
    rows, whole = run.gradients(per_row=True, every=2), run.gradients(every=2)
    for name in run.summed():
        np.testing.assert_allclose(rows[name].sum(axis=0), whole[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", [True, "norms"])
def test_gradients_that_nobody_wants_are_left_out(mode: object) -> None:
    run = Run(cellgen.load("gru"))
    whole = run.gradients(per_row=mode)
    some = run.gradients(per_row=mode, gradients=("d_u_r", "d_b_n", "d_h_prev"))
    assert {n for n, a in some.items() if a is not None} == {"d_u_r", "d_b_n", "d_h_prev"}
    for name in ("d_u_r", "d_b_n", "d_h_prev"):
        np.testing.assert_array_equal(some[name], whole[name])


class Learned(Cell):
    """A number, a context and heads, each with a gradient of its own kind."""

    K, D = Dim("K"), Dim("D")
    x, h_prev, ctx, rate = Input(I), State(K, D), Static(1, 1, gradient=True), Scalar(0.5)
    w, r, gain = Weight(I, K, D), Weight(K, D, D), Scalar(0.7, gradient=True)
    h = gain * tanh(x @ w + h_prev @ r) + rate * ctx * h_prev


class Shared(Cell):
    """A weight read twice: its gradient is formed at the end, from two sums."""

    x, h_prev, w = Input(H), State(H), Weight(H, H)
    h = tanh(x @ w + h_prev @ w)


@pytest.mark.parametrize("cell", [Learned, Shared], ids=lambda cell: cell.__name__)
def test_numbers_heads_contexts_and_shared_weights(cell: type[Cell]) -> None:
    holds(Run(cellgen.compile(cell)))


def test_the_tangent_of_a_cell_has_them_too() -> None:
    holds(Run(cellgen.compile(cellgen.tangent(cellgen.cells.Elman))))


def test_results_go_where_the_caller_says() -> None:
    run = Run(cellgen.load("elman"))
    out = {"d_w": np.full((5, 3, 5), np.nan)}
    rows = run.gradients(per_row=True, out=out)
    assert rows["d_w"] is out["d_w"]
    np.testing.assert_array_equal(out["d_w"], run.gradients(per_row=True)["d_w"])
    with pytest.raises(ArgumentError, match=r"d_w has 2 axes, .* expected 3: \(B, I, H\)"):
        run.gradients(per_row=True, out={"d_w": np.zeros((3, 5))})
    read = {a.name for a in run.backward.function.arguments}
    outputs = {n: a for n, a in run.result._asdict().items() if n in read}
    bound = run.backward.bind(
        **run.given, **outputs, **run.upstream, saved=run.result.saved, per_row=True
    )
    np.testing.assert_array_equal(bound().d_w, rows["d_w"])


def test_sums_of_squares_clip_rows_for_private_training() -> None:
    """Gradients are linear in those from above: rows scaled there are scaled gradients."""
    run = Run(cellgen.load("gru"))
    rows, norms = run.gradients(per_row=True), run.gradients(per_row="norms")
    scale = 1 / np.maximum(1, np.sqrt(sum(norms[name] for name in run.summed())))
    run.upstream = {
        n: a * (scale[:, None] if n.endswith("_last") else scale[None, :, None])
        for n, a in run.upstream.items()
    }
    clipped = run.gradients()
    for name in run.summed():
        expected = np.tensordot(scale, rows[name], axes=(0, 0))
        np.testing.assert_allclose(clipped[name], expected, rtol=1e-10, atol=1e-12)


def test_what_is_neither_is_refused() -> None:
    run = Run(cellgen.load("elman"))
    for wrong in ("sums", 1, 2.0, [True]):
        with pytest.raises(ArgumentError, match=r"per_row is .*expected one of False, True"):
            run.gradients(per_row=wrong)
    with pytest.raises(ArgumentError, match="per_row and bp_lim are both given"):
        run.gradients(per_row=True, bp_lim=2)
    plain = run.gradients()
    for off in (False, np.False_):
        np.testing.assert_array_equal(run.gradients(per_row=off)["d_w"], plain["d_w"])

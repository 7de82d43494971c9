"""Gradients that nobody wants: not formed, not written, the others the same to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cellgen
from cellgen.cells import GRU, M2RNN, Elman
from cellgen.errors import ArgumentError, DerivationError
from cellgen.pipeline import sequence_of
from cellgen.runtime.abi import axis_length
from cellgen.schedule.lower import lower
from cellgen.schedule.lower.plan import OutersPlan
from cellgen.schedule.lower.verify import verify
from cellgen.schedule.on_request import on_request
from cellgen.targets.interface import sequence_signatures
from tests.by_words import RawFunction
from tests.drawing import draw_arrays

SHAPES = ((5, 3, 1), (0, 3, 1), (1, 2, 2), (40, 20, 2))
"""T, B and threads: one step, none, several row blocks."""


def arrays_of(raw: RawFunction, steps: int, rows: int) -> tuple[list[int], dict[str, np.ndarray]]:
    sizes = {**dict.fromkeys(raw.function.dims, 4), "T": steps, "B": rows, "I": 5, "H": 8}
    numbers = np.random.default_rng(3)
    arrays = {
        m.name: numbers.uniform(0.1, 0.9, [axis_length(a, sizes) for a in m.shape])
        for m in raw.members
    }
    return [sizes[dim] for dim in raw.function.dims], arrays


@pytest.mark.parametrize("name", ["backward", "weight_gradients"])
@pytest.mark.parametrize("cell", ["elman", "lstm", "layer_norm_gru", "slstm_heads", "m2rnn"])
def test_of_a_step_too_any_of_them_may_be_null(cell: str, name: str) -> None:
    kernel = cellgen.load(cell)
    raw = RawFunction(kernel, name, np.float64)
    requested = [item.name for item in raw.function.results if item.optional]
    assert requested
    dims, arrays = arrays_of(raw, 1, 3)

    def run(null):
        for item in raw.function.results:
            arrays[item.name].fill(np.nan)
        raw(dims, [0 if m.name in null else arrays[m.name].ctypes.data for m in raw.members])
        return {item.name: arrays[item.name].copy() for item in raw.function.results}

    whole = run(())
    given = {item.name: arrays[item.name] for item in raw.function.struct_members}
    for left in (*((n,) for n in requested), tuple(requested)):
        found = run(left)
        named = kernel.functions[name](**given, gradients=[n for n in whole if n not in left])
        bound = kernel.functions[name].bind(**given, gradients=[n for n in whole if n not in left])
        for result, array in whole.items():
            expected = np.full_like(array, np.nan) if result in left else array
            np.testing.assert_array_equal(found[result], expected, f"{left}: {result}")
            for shown in (getattr(named, result), getattr(bound(), result)):
                assert (shown is None) == (result in left)
                assert shown is None or np.array_equal(shown, array)


def test_steps_that_form_no_gradients_take_no_names_of_them() -> None:
    forward = cellgen.load("elman").forward
    assert "gradients" not in str(forward.__signature__)
    assert "gradients" in str(cellgen.load("elman").backward.__signature__)
    assert "counts as zero" not in (cellgen.load("elman").weight_gradients.__doc__ or "")
    with pytest.raises(ArgumentError, match="gradients"):
        forward(x=np.ones((1, 2)), gradients=("h",))


@pytest.mark.parametrize("guarded", [False, True], ids=["all steps", "masked, reverse, window"])
@pytest.mark.parametrize(
    "cell",
    [
        "gru",
        "lru",
        "slstm_heads",
        "augru",
        "m2rnn",
        "antisymmetric_rnn",
        "mamba2",
        "rwkv4",
        "gru_d",
    ],
)
def test_any_of_them_may_be_null_and_the_others_stay_the_same(cell: str, guarded: bool) -> None:
    """NULL is an address that nothing can be written to."""
    raw = RawFunction(cellgen.load(cell), "sequence_backward", np.float64)
    requested = [item.name for item in raw.function.results if item.optional]
    for steps, rows, threads in SHAPES:
        dims, arrays = arrays_of(raw, steps, rows)
        mask = np.random.default_rng(5).random((steps, rows)) < 0.5
        options = (
            raw.options(mask=mask.ctypes.data, reverse=1, window=2) if guarded and steps else None
        )

        def run(null, dims=dims, arrays=arrays, options=options, threads=threads):
            for item in raw.function.results:
                arrays[item.name].fill(np.nan)
            words = [
                0 if m.name in null else float(m.default or 0) if m.is_scalar else a.ctypes.data
                for m, a in ((m, arrays[m.name]) for m in raw.members)
            ]
            raw(dims, words, options, threads)
            return {item.name: arrays[item.name].copy() for item in raw.function.results}

        whole = run(())
        assert not any(np.isnan(array).any() for array in whole.values())
        one = [(name,) for name in requested]
        alone = [tuple(n for n in requested if n != name) for name in requested]
        for null in (*one, *alone, tuple(requested)):
            found = run(null)
            for name, array in whole.items():
                expected = np.full_like(array, np.nan) if name in null else array
                np.testing.assert_array_equal(found[name], expected, f"{null}: {name}")


def call_of(kernel, **options):
    sizes = {"T": 6, "B": 3, "I": 4, "H": 8}
    given = draw_arrays(kernel.sequence_forward.function, sizes, 1, scale=1.0)
    made = kernel.sequence_forward(**given, save=True, **options)
    shape = (3, 6, 8) if options.get("batch_first") else (6, 3, 8)
    return {**given, "h": made.h, "d_h": np.ones(shape), "saved": made.saved}


def test_a_call_names_those_that_it_wants() -> None:
    backward = cellgen.load("gru").sequence_backward
    call = call_of(cellgen.load("gru"))
    whole = backward(**call)
    for wanted in (("d_x",), ["d_w_z", "d_b_z"], {"d_h_prev"}, ()):
        for found in (
            backward(**call, gradients=wanted),
            backward.bind(**call, gradients=wanted)(),
            backward(**call, gradients=wanted, plan=backward.plan(T=6, B=3, I=4, H=8, threads=2)),
        ):
            for name in whole._fields:
                array = getattr(found, name)
                assert (array is not None) == (name in wanted), name
                assert array is None or np.array_equal(array, getattr(whole, name))
    limited, all_limited = (backward(**call, bp_lim=2, gradients=g) for g in (("d_x",), None))
    assert np.array_equal(limited.d_x, all_limited.d_x)
    assert limited.d_w_z is None


def test_a_gradient_that_others_follow_from_is_formed_and_not_shown() -> None:
    kernel = cellgen.load("fast_grnn")
    results = kernel.sequence_backward.function.results
    needed = [item.name for item in results if not item.optional]
    assert needed
    call = call_of(kernel)
    found = kernel.sequence_backward(**call, gradients=("d_x",))
    assert np.array_equal(found.d_x, kernel.sequence_backward(**call).d_x)
    assert getattr(found, needed[0]) is None


@pytest.mark.parametrize("wanted", ["d_x", ("x",), ("d_x", 3), ["d_x", ["d_h"]], 7], ids=repr)
def test_names_that_are_none_are_refused(wanted: object) -> None:
    kernel = cellgen.load("elman")
    with pytest.raises(ArgumentError, match=r"gradients is .*expected a tuple of some of d_x, d_h"):
        kernel.sequence_backward(**call_of(kernel), gradients=wanted)


def test_out_and_gradients_agree() -> None:
    kernel = cellgen.load("elman")
    call, out = call_of(kernel), {"d_w": np.empty((4, 8))}
    with pytest.raises(ArgumentError, match="out has d_w, expected gradients that are wanted"):
        kernel.sequence_backward(**call, gradients=("d_x",), out=out)
    found = kernel.sequence_backward(**call, gradients=("d_w",), out=out)
    assert found.d_w is out["d_w"]
    assert found.d_x is None


@pytest.mark.parametrize("cell", [Elman, GRU], ids=lambda cell: cell.definition.name)
def test_stages_that_form_nothing_else_are_left_out(cell) -> None:
    """The product of d_x and the sums of biases; products of weights are left out one by one."""
    schedule = sequence_of(cell)
    _, plan = lower(schedule, sequence_signatures(schedule))
    wants = {
        stage.name: getattr(stage, "wants", ()) for part in plan.parts for stage in part.stages
    }
    assert all(not names for stage, names in wants.items() if stage.startswith("reverse"))
    assert ("d_x",) in wants.values()
    assert any(set(names) >= {"d_b"} or "d_b_z" in names for names in wants.values())


def test_what_leads_to_nothing_wanted_is_not_formed() -> None:
    """A sum over all steps that the epilogue alone reads, what forms it and what follows."""
    schedule = sequence_of(M2RNN)
    _, plan = lower(schedule, sequence_signatures(schedule))
    assert on_request(schedule) >= set(schedule.programs.gradients)
    wants = [stage.wants for stage in plan.parts[1].stages if not isinstance(stage, OutersPlan)]
    assert all(wants)
    assert {total.wants for total in plan.totals if total.in_memory} == {("d_a_log",), ("d_u",)}
    assert sorted(plan.late_wants) == [("d_a_log",), ("d_u",)]
    _, again = lower(schedule, sequence_signatures(schedule))
    late = replace(again, late_wants=((), ()))
    with pytest.raises(DerivationError, match="is skipped without d_u but d_reshaped_u is read"):
        verify(late)


@pytest.mark.parametrize("products", ["bf16", "full"])
def test_operands_of_products_that_nobody_wants_are_left_out(products: str) -> None:
    """Three products of GRU share an operand each; chunks carry rows on to the next one."""
    kernel, rng = cellgen.load("gru"), np.random.default_rng(2)
    given = kernel.init(rng, dtype=np.float32, B=5, I=24, H=40)
    given["x"] = rng.standard_normal((37, 5, 24), np.float32)
    made = kernel.sequence_forward(**given, save=True, products=products)
    call = {**given, "h": made.h, "d_h": made.h, "saved": made.saved, "products": products}
    whole = kernel.sequence_backward(**call)
    for names in (("d_u_n",), ("d_w_r", "d_u_z"), ("d_w_n", "d_x"), ("d_b_z",)):
        found = kernel.sequence_backward(**call, gradients=names)
        for name in names:
            assert np.array_equal(getattr(found, name), getattr(whole, name)), (names, name)

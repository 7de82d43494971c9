"""Kernels of Triton behind a form of scans, by its interpreter: results, proof, what is refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen.torch  # noqa: E402
from cellgen import Cell, I, Input, State, Static, Weight, sigmoid  # noqa: E402
from cellgen.proof.interpreted import bfloat16_as_on_devices  # noqa: E402
from cellgen.torch import first_use, launched  # noqa: E402
from cellgen.torch.chunks.rows import Gaps  # noqa: E402
from cellgen.torch.errors import TensorError  # noqa: E402
from cellgen.torch.launched import HigherDerivativeWarning  # noqa: E402
from cellgen.torch.passes import PlanRun  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402
from tests.torch.test_torch_forms import (  # noqa: E402
    MASK,
    OPTIONS,
    RESET,
    arguments,
    farthest,
    formed,
    gradients,
    shown,
    spoiled,
)

BAR = 1e-12
SIZES = {"T": 6, "B": 2, "H": 3, "I": 2}
SMALL = SIZES | {"N": 1, "K": 2, "D": 2}
NAMES = ("min_gru", "hgrn2")
"""A cell of scans, and one with a memory."""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setattr(first_use, "STEPS", 5)
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    first_use.proofs_of_process.cache_clear()
    launched.say_once.cache_clear()


def results(cell: object, tensors: dict[str, object], **how: object) -> list[object]:
    found = [v for v in cell(**tensors, **how) if v is not None]
    numbers = torch.Generator().manual_seed(0)
    above = [torch.randn(v.shape, generator=numbers).to(v.dtype) for v in found]
    return [*found, *torch.autograd.grad(found, [*tensors.values()], above)]


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"last_only": True}])
def test_kernels_give_what_steps_give(options: dict[str, object]) -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    taken = cell(**tensors, **options)
    assert taken.h is None or "Launched" in str(taken.h_last.grad_fn)
    found = results(cell, tensors, **options)
    pairs = zip(found, results(cell, tensors, form="step", **options), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= BAR


def test_units_between_powers_of_two_are_units_of_programs() -> None:
    """Triton has vectors of powers of two alone: 96 units are two programs of 64."""
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **(SIZES | {"T": 2, "H": 96}))
    found, expected = cell(**tensors).h, cell(**tensors, form="step").h
    assert (found - expected).abs().max() <= BAR


def test_a_gradient_that_is_differentiated_goes_by_torch_and_says_so() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")

    def second(form: str) -> list[object]:
        tensors = drawn(cell, **SIZES)
        result = cell(**tensors, form=form).h
        first = torch.autograd.grad((result**2).sum(), [*tensors.values()], create_graph=True)
        return list(torch.autograd.grad(sum((g**2).sum() for g in first), [*tensors.values()]))

    with pytest.warns(HigherDerivativeWarning, match="the gradient of a cell in chunks or sc"):
        found = second("scan")
    pairs = zip(found, second("step"), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) <= BAR


def test_what_kernels_do_not_have_goes_by_torch() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    for products in ("full", "bf16"):
        assert "Launched" not in str(cell(**halves, products=products).h_last.grad_fn)


GAPS = ("tables", "reverse", "zeros", "last", "reset")
"""Options by name: lengths, masks, resets, reverse, every, last_only, together and alone."""


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(("min_gru", case) for case in GAPS),
        ("gla", "reverse"),
        *(
            pytest.param(name, case, marks=pytest.mark.slow)
            for name in ("s5", "rwkv4", "gated_delta_net", "mlstm", "rwkv7", "mamba2", "qrnn")
            for case in ("tables", "reverse", "zeros")
        ),
    ],
)
def test_kernels_leave_steps_out_begin_anew_and_run_back(name: str, case: str) -> None:
    """Inputs are no numbers at steps that are left out; the gradients are those of steps."""
    cell, options = formed(name), OPTIONS[case]
    tensors = spoiled(arguments(cell), options)
    with np.errstate(all="ignore"):  # the interpreter computes lanes that are masked, too
        results = cell(**tensors, **options)
        assert "Launched" in str(getattr(results, results._fields[-1]).grad_fn)
        found, expected = shown(cell, results), shown(cell, cell(**tensors, **options, form="step"))
        assert farthest(found, expected) <= BAR
        assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


def test_a_row_without_valid_steps_may_hold_anything() -> None:
    """Its states are no numbers; what others get shows nothing of them."""
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    spoilt = {n: t.detach().clone() for n, t in tensors.items()}
    spoilt["h_prev"][1], spoilt["x"][:, 1] = torch.nan, torch.nan
    spoilt = {name: tensor.requires_grad_() for name, tensor in spoilt.items()}
    lengths = torch.tensor([6, 0])
    (w,) = torch.autograd.grad(cell(**spoilt, lengths=lengths).h[:, 0].sum(), spoilt["w_z"])
    alone = {n: t[..., :1, :] if n in ("h_prev", "x") else t for n, t in tensors.items()}
    (true,) = torch.autograd.grad(cell(**alone).h.sum(), tensors["w_z"])
    assert torch.allclose(w, true, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("segments", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_segments_beside_each_other_leave_steps_out_and_begin_anew(segments: int) -> None:
    """A segment may be left out as a whole, begin anew at its first step or at its last."""
    cell = cellgen.torch.function("s5", form="scan")
    arrays = {n: t.detach() for n, t in drawn(cell, T=20, B=2, H=3, I=2, P=2).items()}
    valid = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) < 0.7
    valid[4:12, 0] = False
    restart = torch.zeros_like(valid)
    restart[[4, 7, 11, 12, 16], 1] = True
    before = Gaps(valid, restart & valid).before
    every = []
    for many in (1, segments):
        sizes = dict(cell.layout.sizes([*arrays.values()]))
        run = PlanRun(launched.module_of(cell.known), sizes, dict(arrays), many, before=before)
        formed_by = run.forward()
        above = {f"d_{n}": torch.ones_like(a) for n, a in formed_by.items()}
        every.append(formed_by | run.backward(above))
    assert any(float(a.abs().max()) > 0 for a in every[0].values())
    for name, array in every[0].items():
        assert torch.allclose(every[1][name], array, rtol=1e-11, atol=1e-13), name


class Placed(Cell):
    """A scan whose rows have a number of their own, which begins at one half."""

    x, place, h_prev = Input(I), Static(I), State(I, initial=0.5)
    w = Weight(I, I)
    h = sigmoid(x @ w + place @ w) * h_prev + x
    outputs = h


@pytest.mark.parametrize("options", [{}, {"reset": RESET, "mask": MASK}], ids=["plain", "gaps"])
def test_what_is_the_same_at_all_steps_of_a_row_is_read_at_each(options: dict[str, object]) -> None:
    cell = formed(Placed)
    tensors = arguments(cell)
    found, expected = (shown(cell, cell(**tensors, **options, form=f)) for f in ("scan", "step"))
    assert "Launched" in str(found["h_last"].grad_fn)
    assert farthest(found, expected) <= BAR
    assert farthest(gradients(found, tensors), gradients(expected, tensors)) <= BAR


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_of_16_bits_go_in_and_out_of_kernels(dtype: object) -> None:
    """Results and gradients are of their type, and near those of float64 on the same numbers."""
    cell = cellgen.torch.function("min_gru", form="scan")
    narrow = drawn(cell, dtype=dtype, **SIZES)
    assert "Launched" in str(cell(**narrow).h_last.grad_fn)
    with bfloat16_as_on_devices():
        found = results(cell, narrow)
    wide = {name: t.detach().double().requires_grad_() for name, t in narrow.items()}
    for a, b in zip(found, results(cell, wide, form="step"), strict=True):
        assert a.dtype == dtype
        assert first_use.apart(a, b.detach()) <= 4 * torch.finfo(dtype).eps


def test_under_autocast_products_have_the_types_of_the_plan() -> None:
    """mLSTM's gates are formed in float32 of numbers of 16 bits: autocast would round them."""
    cell = cellgen.torch.function("mlstm", form="chunk")
    tensors = drawn(cell, dtype=torch.bfloat16, **SMALL)
    with bfloat16_as_on_devices():
        plain = results(cell, tensors)
        with torch.autocast("cpu", torch.bfloat16):
            same = [v for v in cell(**tensors) if v is not None]
    assert all(torch.equal(a, b) for a, b in zip(same, plain, strict=False))


def test_under_autocast_kernels_run_in_its_precision() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, dtype=torch.float32, **SIZES)
    with torch.autocast("cpu", torch.bfloat16), bfloat16_as_on_devices():
        h = cell(**tensors).h
    assert "Launched" in str(h.grad_fn)
    assert h.dtype == torch.bfloat16
    assert torch.autograd.grad(h.float().sum(), tensors["x"])[0].dtype == torch.float32


# --- what a run keeps ----------------------------------------------------------------------------


def leaves_of(tensors: dict[str, object]) -> list[object]:
    return [tensor for tensor in tensors.values() if tensor.requires_grad]


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_result_that_is_dropped_is_freed_at_once(name: str, is_trained: bool) -> None:
    cell = cellgen.torch.function(name, form="auto")
    tensors = drawn(cell, **SMALL)
    gc.collect()
    gc.disable()
    try:
        result = cell(**tensors)
        assert "Launched" in str(result.h.grad_fn)
        if is_trained:
            result.h.sum().backward()
        gone = weakref.ref(result.h)
        del result
        assert gone() is None
    finally:
        gc.enable()


def test_an_output_that_is_changed_in_place_stops_the_backward_pass() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    changed = cell(**tensors).h.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_last_states_can_be_changed_in_place(name: str) -> None:
    """Nothing of the backward pass reads them."""
    cell = cellgen.torch.function(name, form="auto")
    tensors = drawn(cell, **SMALL)
    expected = torch.autograd.grad(cell(**tensors).h.sum(), leaves_of(tensors))
    result = cell(**tensors)
    getattr(result, result._fields[-1]).zero_()
    found = torch.autograd.grad(result.h.sum(), leaves_of(tensors))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["min_gru", pytest.param("hgrn2", marks=pytest.mark.slow)])
def test_a_second_backward_pass_leaves_the_gradients_of_the_first_alone(name: str) -> None:
    cell = cellgen.torch.function(name, form="auto")
    tensors = drawn(cell, **SMALL)
    result, leaves = cell(**tensors), leaves_of(tensors)
    total = sum(getattr(result, n).sum() for n in ("h", result._fields[-1]))
    first = torch.autograd.grad(total, leaves, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad((3 * result.h).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    again = torch.autograd.grad((3 * cell(**tensors).h).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(second, again, strict=True))


def test_a_run_of_a_plan_goes_back_twice() -> None:
    """Gradients of a memory are new arrays, and an upstream gradient is that of its pass."""
    cell = cellgen.torch.function(NAMES[1], form="chunk")
    arrays = {n: t.detach() for n, t in drawn(cell, **SMALL).items()}
    sizes = cell.layout.sizes([*arrays.values()])
    run = PlanRun(launched.module_of(cell.known), dict(sizes), arrays)
    above = {f"d_{name}": torch.ones_like(a) for name, a in run.forward().items()}
    first = run.backward(above)
    kept = {name: gradient.clone() for name, gradient in first.items()}
    only = run.backward({"d_h": above["d_h"]})
    last = run.backward({"d_s_last": above["d_s_last"]})
    for name, gradient in first.items():
        assert torch.equal(gradient, kept[name])
        assert torch.allclose(only[name] + last[name], gradient, rtol=1e-12, atol=1e-14)


def test_hooks_of_saved_tensors_see_what_a_run_keeps() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    packed: list[object] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.clone(), lambda t: t
    ):
        result = cell(**tensors)
    assert (6, 2, 3) in packed
    assert len(packed) > len(tensors)
    found = torch.autograd.grad(result.h.sum(), leaves_of(tensors))
    expected = torch.autograd.grad(cell(**tensors).h.sum(), leaves_of(tensors))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# --- what a call asks for ------------------------------------------------------------------------


def test_a_weight_that_does_not_learn_gets_no_gradient() -> None:
    cell = cellgen.torch.function("retnet", form="chunk")
    tensors = drawn(cell, **SMALL)
    tensors["gamma"] = tensors["gamma"].detach().abs().requires_grad_()

    def twice(form: str) -> list[object]:
        h = cell(**tensors, form=form).h
        gamma, x = torch.autograd.grad(
            (h**2).sum(), [tensors["gamma"], tensors["x"]], allow_unused=True, create_graph=True
        )
        (second,) = torch.autograd.grad((x**2).sum(), [tensors["gamma"]], allow_unused=True)
        return [gamma, second]

    # the interpreter takes logarithms of lanes that are masked, too
    with pytest.warns(HigherDerivativeWarning), np.errstate(divide="ignore"):
        assert twice("chunk") == [None, None]
    assert twice("step") == [None, None]


def test_products_in_bf16_are_not_launched_and_refused_of_float64() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, dtype=torch.float32, **SIZES)
    assert "Launched" in str(cell(**tensors).h_last.grad_fn)
    rounded = cell(**tensors, products="bf16")
    assert "Launched" not in str(rounded.h_last.grad_fn)
    assert not torch.equal(rounded.h, cell(**tensors).h)
    narrow = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    assert "Launched" in str(cell(**narrow, products="bf16").h_last.grad_fn)
    for form in ("scan", "step"):
        with pytest.raises(TensorError, match="products is 'bf16' and the tensors are float64"):
            cell(**drawn(cell, **SIZES), products="bf16", form=form)

"""A reset clears states that are no finite numbers, in every form, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen import Cell, I, Input, State, Weight, sigmoid  # noqa: E402
from cellgen.torch import launched  # noqa: E402
from cellgen.torch.chunks.rows import Gaps  # noqa: E402
from cellgen.torch.functional import CellFunction  # noqa: E402
from cellgen.torch.passes import PlanRun  # noqa: E402
from tests.cover import in_turn  # noqa: E402
from tests.torch.test_torch_forms import BAR, QUICK, arguments, formed, shown  # noqa: E402

STEPS, ROWS = 21, 3
BEGINS = 10
"""Where two rows begin anew; the third never does, and is never spoilt."""
NAMES = [*QUICK, "min_gru", "gla", "delta_product"]
SLOW = ["gla", "mlstm", "rwkv7", "rwkv4"]
"""In Triton's interpreter."""


class Delayed(Cell):
    """A delay beside a scan that reads it."""

    x, last_prev, h_prev = Input(I), State(I), State(I)
    w = Weight(I, I)
    last = x @ w
    h = sigmoid(last_prev) * h_prev + x
    outputs = h, last


def reset_at(step: int) -> Tensor:
    reset = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    reset[step, :2] = True
    return reset


def unfit_states(cell: CellFunction, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """States of two rows of which some entries, of one all of them, are no finite numbers."""
    spoilt = dict(tensors)
    for name in cell.states:
        state = tensors[name].detach().clone()
        state[0].flatten()[::3] = torch.inf
        state[1] = torch.nan
        spoilt[name] = state.requires_grad_()
    return spoilt


def unfit_inputs(cell: CellFunction, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of two rows that are no finite numbers at one step."""
    x = tensors["x"].detach().clone()
    x[5, 0, 0], x[8, 1] = torch.nan, torch.inf
    return {**tensors, "x": x.requires_grad_()}


SPOILT: Mapping[str, Callable[[CellFunction, dict[str, Tensor]], dict[str, Tensor]]] = {
    "states": unfit_states,
    "inputs": unfit_inputs,
}


def results(
    cell: CellFunction, tensors: Mapping[str, Tensor], step: int, form: str
) -> dict[str, Tensor]:
    with np.errstate(all="ignore"):
        return shown(cell, cell(**tensors, reset=reset_at(step), form=form))


def over_time(found: dict[str, Tensor], cell: CellFunction) -> dict[str, Tensor]:
    return {name: value for name, value in found.items() if name not in cell.finals}


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels run in Triton's interpreter."""
    pytest.importorskip("triton")
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setenv("CELLGEN_PROVE", "0")


def by_name(cell: str | type[Cell]) -> str:
    return cell if isinstance(cell, str) else cell.__name__


# --- by torch's operators ------------------------------------------------------------------------


EVERY = {by_name(cell): cell for cell in (*NAMES, Delayed)}


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize(("name", "spoil"), in_turn(EVERY, SPOILT.keys()))
def test_what_follows_a_reset_shows_nothing_of_what_was_there(
    name: str | type[Cell], spoil: str, chunk: int
) -> None:
    _check_outputs(formed(name, chunk=chunk), spoil)


@pytest.mark.parametrize("name", [*NAMES, Delayed], ids=by_name)
def test_gradients_are_numbers_where_states_are_cleared_at_the_first_step(
    name: str | type[Cell],
) -> None:
    _check_gradients(formed(name))


@pytest.mark.parametrize(("name", "chunk"), in_turn(EVERY, {"8": 8, "64": 64}))
def test_a_gradient_goes_back_no_further_than_a_reset(name: str | type[Cell], chunk: int) -> None:
    _check_gradients_behind(formed(name, chunk=chunk))


def test_gradients_behind_a_reset_are_numbers_where_a_normaliser_was_lost() -> None:
    """The quotient of outputs and a normaliser has a gradient of NaN for both, of one 0 alone."""
    cell = formed("mlstm", chunk=8)
    tensors = unfit_states(cell, arguments(cell))
    every = []
    for how in ("auto", "step"):
        found = over_time(results(cell, tensors, BEGINS, how), cell)
        behind = sum(value[BEGINS:].sum() for value in found.values())
        assert isinstance(behind, Tensor)
        with np.errstate(all="ignore"):
            every.append(torch.autograd.grad(behind, [tensors["x"]])[0][BEGINS:])
    assert torch.isfinite(every[0]).all()
    assert torch.allclose(*every, rtol=BAR, atol=BAR)


# --- by kernels ----------------------------------------------------------------------------------


BY_KERNELS = [
    "min_gru",
    "gated_delta_net",
    *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW),
]
BACK_BY_KERNELS = [
    "min_gru",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("gated_delta_net", *SLOW)),
]


@pytest.mark.parametrize("spoil", ["states", pytest.param("inputs", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BY_KERNELS)
@pytest.mark.usefixtures("by_kernels")
def test_kernels_show_nothing_behind_a_reset_of_what_was_there(name: str, spoil: str) -> None:
    _check_outputs(formed(name), spoil)


@pytest.mark.parametrize("name", BACK_BY_KERNELS)
@pytest.mark.usefixtures("by_kernels")
def test_gradients_of_kernels_are_numbers_where_states_are_cleared_at_the_first_step(
    name: str,
) -> None:
    _check_gradients(formed(name))


@pytest.mark.parametrize("name", BACK_BY_KERNELS)
@pytest.mark.usefixtures("by_kernels")
def test_a_gradient_of_kernels_goes_back_no_further_than_a_reset(name: str) -> None:
    _check_gradients_behind(formed(name))


@pytest.mark.parametrize("segments", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.usefixtures("by_kernels")
def test_segments_behind_a_reset_show_nothing_of_what_was_there(segments: int) -> None:
    """Of a scan whose steps are cut: states and upstream gradients that are no numbers."""
    cell = cellgen.torch.function("s5", form="scan")
    arrays = {n: t.detach() for n, t in arguments(cell, P=2).items()}
    for state in cell.states:
        arrays[state][:2] = torch.nan
    restart = reset_at(BEGINS)
    before = Gaps(torch.ones_like(restart), restart).before
    sizes = dict(cell.layout.sizes([*arrays.values()]))
    with np.errstate(all="ignore"):
        module = launched.module_of(cell.known)
        assert module is not None
        run = PlanRun(module, sizes, arrays, segments, before=before)
        formed_by = run.forward()
        above = {f"d_{n}": torch.zeros_like(a) for n, a in formed_by.items()}
        for name in cell.finals:
            above[f"d_{name}"].fill_(torch.nan)
        gradients = run.backward(above)
    for name, array in formed_by.items():
        behind = array if name in cell.finals else array[BEGINS:]
        assert torch.isfinite(behind).all()
    assert torch.isnan(gradients["x"][BEGINS:, :2]).any()
    for state in cell.states:
        assert not gradients[state][:2].any()


# --- what both are held to -----------------------------------------------------------------------


def _check_outputs(cell: CellFunction, spoil: str) -> None:
    """Outputs behind it and last states are those of steps; what steps lose is lost, too."""
    tensors = SPOILT[spoil](cell, arguments(cell))
    found = results(cell, tensors, BEGINS, "auto")
    expected = results(cell, tensors, BEGINS, "step")
    for name, value in found.items():
        true = expected[name]
        if name in cell.finals:
            assert torch.allclose(value, true, rtol=BAR, atol=BAR), name
            continue
        assert torch.isfinite(true[BEGINS:]).all()
        assert torch.allclose(value[BEGINS:], true[BEGINS:], rtol=BAR, atol=BAR), name
        assert torch.allclose(value[:, 2], true[:, 2], rtol=BAR, atol=BAR), name
        is_lost = ~torch.isfinite(true)
        assert not torch.isfinite(value[is_lost]).any(), name
        if spoil == "inputs":  # before it came
            assert torch.allclose(value[:5, 0], true[:5, 0], rtol=BAR, atol=BAR), name


def _check_gradients(cell: CellFunction) -> None:
    tensors = unfit_states(cell, arguments(cell))
    learning = {n: t for n, t in tensors.items() if t.requires_grad}
    every = []
    for how in ("auto", "step"):
        found = results(cell, tensors, 0, how)
        above = [torch.linspace(1, 2, v.numel()).to(v).view(v.shape) for v in found.values()]
        with np.errstate(all="ignore"):
            gradients = torch.autograd.grad([*found.values()], [*learning.values()], above)
        every.append(dict(zip(learning, gradients, strict=True)))
    for name, gradient in every[0].items():
        assert torch.isfinite(every[1][name]).all(), name
        assert torch.allclose(gradient, every[1][name], rtol=BAR, atol=BAR), name
    for name in cell.states:
        assert not every[0][name][:2].any()


def _check_gradients_behind(cell: CellFunction) -> None:
    """What reaches steps behind it is no number; what steps before it get is exactly 0."""
    tensors = arguments(cell)
    found = over_time(results(cell, tensors, BEGINS, "auto"), cell)
    above = [torch.zeros_like(v) for v in found.values()]
    for upstream in above:
        upstream[BEGINS + 2] = torch.nan
    with np.errstate(all="ignore"):
        (x,) = torch.autograd.grad([*found.values()], [tensors["x"]], above)
    assert not x[:BEGINS, :2].any()
    assert torch.isnan(x[BEGINS : BEGINS + 3, :2]).any()

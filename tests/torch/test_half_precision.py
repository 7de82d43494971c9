"""Products in bfloat16 beside the layers of torch in bfloat16, both against float64.

    python -m tests.torch.test_half_precision

prints the figures of torch that ``tests/runtime/call/test_half_precision.py``,
``test_half_storage.py`` and this file have written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cellgen  # noqa: E402
from tests.runtime.call.test_half_precision import (  # noqa: E402
    CELLS,
    PEER,
    Arrays,
    both,
    drawn_bf16,
    errors_of,
    upstream,
)
from tests.runtime.call.test_half_storage import PEER_MEANS, mean_errors_of, run_in_16_bits  # noqa: E402

GATES = {"lstm": "ifgo", "gru": "rzn"}
FUSED = [False] + [True] * torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether oneDNN computes. In bfloat16 it does on some processors alone, of x86 on those with
AVX-512."""

IN_STEPS = {
    "largest": {
        "h": 6.36e-03,
        "h_last": 7.59e-03,
        "c_last": 5.72e-03,
        "d_x": 8.41e-03,
        "d_h_prev": 7.23e-03,
        "d_c_prev": 5.78e-03,
        "d_w_i": 6.92e-03,
        "d_w_f": 4.67e-03,
        "d_w_g": 5.32e-03,
        "d_w_o": 4.90e-03,
        "d_u_i": 1.19e-02,
        "d_u_f": 1.09e-02,
        "d_u_g": 1.48e-02,
        "d_u_o": 8.59e-03,
        "d_b_i": 5.44e-03,
        "d_b_f": 1.10e-02,
        "d_b_g": 8.13e-03,
        "d_b_o": 3.74e-03,
    },
    "mean": {
        "h": 5.10e-03,
        "h_last": 5.06e-03,
        "c_last": 4.63e-03,
        "d_x": 6.04e-03,
        "d_h_prev": 5.73e-03,
        "d_c_prev": 4.54e-03,
        "d_w_i": 6.64e-03,
        "d_w_f": 7.30e-03,
        "d_w_g": 5.88e-03,
        "d_w_o": 5.82e-03,
        "d_u_i": 1.02e-02,
        "d_u_f": 1.05e-02,
        "d_u_g": 9.34e-03,
        "d_u_o": 9.02e-03,
        "d_b_i": 6.21e-03,
        "d_b_f": 9.03e-03,
        "d_b_g": 7.04e-03,
        "d_b_o": 3.92e-03,
    },
}
"""Of torch.nn.LSTM without oneDNN, which has one that rounds less: here every product and function
of a step is rounded. torch 2.13 on a Zen 3. A GRU has the same figures either way."""


@contextmanager
def computed(fused: bool) -> Iterator[None]:
    """Let oneDNN compute, or torch in its absence."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(fused)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def written_down(cell: str, fused: bool) -> dict[str, dict[str, float]]:
    """What torch's errors were: the largest of each array, and the mean."""
    if cell == "lstm" and not fused:
        return IN_STEPS
    return {"largest": PEER[cell], "mean": PEER_MEANS[cell]}


def layer_of(cell: str, arrays: Arrays) -> torch.nn.RNNBase:
    """A layer in bfloat16 with a cell's weights."""
    layer = getattr(torch.nn, cell.upper())(*arrays["w_z" if cell == "gru" else "w_i"].shape)
    gates = GATES[cell]
    inner = [np.zeros_like(arrays[f"b_{g}"]) for g in gates]
    if cell == "gru":
        inner[2] = arrays["c_n"]
    state = {
        "weight_ih_l0": np.concatenate([arrays[f"w_{g}"].T for g in gates]),
        "weight_hh_l0": np.concatenate([arrays[f"u_{g}"].T for g in gates]),
        "bias_ih_l0": np.concatenate([arrays[f"b_{g}"] for g in gates]),
        "bias_hh_l0": np.concatenate(inner),
    }
    layer.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in state.items()})
    return layer.to(torch.bfloat16)


def torch_bf16(cell: str, arrays: Arrays, fused: bool) -> Arrays:
    """Outputs, final states and gradients by the names of the cell, of torch in bfloat16."""
    with computed(fused):
        return _run(cell, arrays)


def _run(cell: str, arrays: Arrays) -> Arrays:
    layer = layer_of(cell, arrays)
    leaf = {
        n: torch.from_numpy(arrays[n]).to(torch.bfloat16).requires_grad_()
        for n in ("x", "h_prev", "c_prev")
        if n in arrays
    }
    h, c = leaf["h_prev"][None], leaf.get("c_prev")
    out, last = layer(leaf["x"], h if c is None else (h, c[None]))
    out.backward(torch.from_numpy(upstream(arrays)["d_h"]).to(torch.bfloat16))
    found = {"h": out, "h_last": last[0] if c is None else last[0][0]}
    if c is not None:
        found["c_last"] = last[1][0]
    found |= {f"d_{n}": a.grad for n, a in leaf.items()}
    for side, name in (("w", "weight_ih_l0"), ("u", "weight_hh_l0"), ("b", "bias_ih_l0")):
        parts = getattr(layer, name).grad.chunk(len(GATES[cell]))
        found |= {f"d_{side}_{g}": a.t() for g, a in zip(GATES[cell], parts, strict=True)}
    return {n: a.detach().float().numpy() for n, a in found.items()}


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("cell", CELLS)
def test_no_array_is_further_off_than_torch_in_bfloat16(cell: str, fused: bool) -> None:
    arrays = drawn_bf16(cell)
    peer = errors_of(cell, arrays, torch_bf16(cell, arrays, fused))
    mine = errors_of(cell, arrays, both(cell, arrays, products="bf16"))
    assert {n: e for n, e in mine.items() if n in peer and e > peer[n]} == {}
    for name, figure in written_down(cell, fused)["largest"].items():  # are what torch does
        assert figure == pytest.approx(peer[name], rel=0.5)


DRAWS = 12


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[pytest.mark.slow] * (cell == "lstm")) for cell in CELLS]
)
def test_arrays_of_16_bits_are_nearer_than_those_of_torch(cell: str, fused: bool) -> None:
    """In the root of the mean square in every draw, in the largest error in the mean of some."""
    largest: dict[str, list[tuple[float, float]]] = {}
    for seed in range(DRAWS):
        arrays = drawn_bf16(cell, seed)
        mine, peer = run_in_16_bits(cell, arrays), torch_bf16(cell, arrays, fused)
        own, other = mean_errors_of(cell, arrays, mine), mean_errors_of(cell, arrays, peer)
        assert {n: (own[n], e) for n, e in other.items() if own[n] > e} == {}
        if seed == 0:  # what is written down is what torch does
            assert other == pytest.approx(written_down(cell, fused)["mean"], rel=0.2)
        own, other = errors_of(cell, arrays, mine), errors_of(cell, arrays, peer)
        for name, error in other.items():
            largest.setdefault(name, []).append((own[name], error))
    means = {name: np.mean(errors, 0) for name, errors in largest.items()}
    assert {name: m for name, m in means.items() if m[0] > m[1]} == {}


def test_tensors_in_bfloat16_give_tensors_in_bfloat16() -> None:
    kernel, arrays = cellgen.load("gru"), drawn_bf16("gru")
    given = {n: torch.from_numpy(a).to(torch.bfloat16) for n, a in arrays.items()}
    found = kernel.sequence_forward(**given).h
    expected = kernel.sequence_forward(**arrays, products="bf16").h
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.from_numpy(expected).to(torch.bfloat16))


if __name__ == "__main__":
    for each, way in ((each, way) for each in CELLS for way in FUSED):
        given = drawn_bf16(each)
        found = torch_bf16(each, given, way)
        for kind, errors in (("largest", errors_of), ("mean", mean_errors_of)):
            print(f'    "{each}": {{  # {kind}, {"oneDNN" if way else "in steps"}')
            for key, figure in errors(each, given, found).items():
                print(f'        "{key}": {figure:.2e},')
            print("    },")

"""Products in bfloat16 beside the layers of torch in bfloat16, both against float64.

    python -m tests.torch.test_half_precision

prints the figures of torch that ``tests/runtime/call/test_half_precision.py`` has written down.
"""

from __future__ import annotations

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


def torch_bf16(cell: str, arrays: Arrays) -> Arrays:
    """Outputs, final states and gradients by the names of the cell, of torch in bfloat16."""
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


@pytest.mark.parametrize("cell", CELLS)
def test_no_array_is_further_off_than_torch_in_bfloat16(cell: str) -> None:
    arrays = drawn_bf16(cell)
    peer = errors_of(cell, arrays, torch_bf16(cell, arrays))
    mine = errors_of(cell, arrays, both(cell, arrays, products="bf16"))
    assert {n: e for n, e in mine.items() if n in peer and e > peer[n]} == {}
    for name, figure in PEER[cell].items():  # what is written down is what torch does
        assert figure == pytest.approx(peer[name], rel=0.5)


DRAWS = 12


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[pytest.mark.slow] * (cell == "lstm")) for cell in CELLS]
)
def test_arrays_of_16_bits_are_nearer_than_those_of_torch(cell: str) -> None:
    """In the root of the mean square in every draw, in the largest error in the mean of some."""
    largest: dict[str, list[tuple[float, float]]] = {}
    for seed in range(DRAWS):
        arrays = drawn_bf16(cell, seed)
        mine, peer = run_in_16_bits(cell, arrays), torch_bf16(cell, arrays)
        own, other = mean_errors_of(cell, arrays, mine), mean_errors_of(cell, arrays, peer)
        assert {n: (own[n], e) for n, e in other.items() if own[n] > e} == {}
        if seed == 0:  # what is written down is what torch does
            assert other == pytest.approx(PEER_MEANS[cell], rel=0.2)
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
    for each in CELLS:
        given = drawn_bf16(each)
        peers = errors_of(each, given, torch_bf16(each, given))
        means = mean_errors_of(each, given, torch_bf16(each, given))
        for kind, figures in (("largest", peers), ("mean", means)):
            print(f'    "{each}": {{  # {kind}')
            for key, figure in figures.items():
                print(f'        "{key}": {figure:.2e},')
            print("    },")

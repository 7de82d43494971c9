"""Functions by the names of GPU libraries, against what those libraries' own references gave."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cellgen.errors import ArgumentError  # noqa: E402
from cellgen.torch.errors import KindError, TensorError  # noqa: E402
from cellgen.torch.peers import fla  # noqa: E402
from cellgen.torch.peers.causal_conv1d import causal_conv1d_fn  # noqa: E402
from cellgen.torch.peers.mamba_ssm import selective_scan_fn  # noqa: E402

FOLDER = Path(__file__).parents[1] / "golden" / "gpu"
CASES = sorted(path.stem for path in FOLDER.glob("*.npz"))
SIGNATURES = json.loads((FOLDER / "signatures.json").read_text())
BAR = 1e-5
"""Of the largest entry; both sides compute in float32."""


def recorded(case: str) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    groups: dict[str, dict[str, np.ndarray]] = {"in": {}, "out": {}, "cot": {}, "grad": {}}
    with np.load(FOLDER / f"{case}.npz") as file:
        for key in file.files:
            if key != "meta":
                group, _, name = key.partition(".")
                groups[group][name] = file[key]
        return groups, json.loads(str(file["meta"]))


def named(name: str) -> Any:
    for module in ("fla", "mamba_ssm", "causal_conv1d"):
        found = getattr(import_module(f"cellgen.torch.peers.{module}"), name, None)
        if found is not None:
            return found
    raise AssertionError(name)


def near(value: torch.Tensor, reference: np.ndarray, what: str) -> None:
    assert tuple(value.shape) == reference.shape, what
    apart = np.abs(value.detach().double().numpy() - reference).max()
    assert apart <= BAR * max(np.abs(reference).max(), 1e-3), (what, apart)


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_the_peers_reference(case: str) -> None:
    groups, meta = recorded(case)
    for name, renamed in meta["functions"].items():
        leaves = {n: torch.from_numpy(a) for n, a in groups["in"].items()}
        for n in groups["grad"]:
            leaves[n].requires_grad_(True)
        outcome = named(name)(
            **{renamed.get(n, n): a for n, a in leaves.items()}, **meta["options"]
        )
        outputs = outcome if isinstance(outcome, tuple) else (outcome,)
        outputs = [output for output in outputs if output is not None]
        for n, output in zip(meta["outputs"], outputs, strict=True):
            near(output, groups["out"][n], f"{name} {n}")
        torch.autograd.backward(
            outputs, [torch.from_numpy(groups["cot"][n]) for n in meta["outputs"]]
        )
        for n, gradient in groups["grad"].items():
            near(leaves[n].grad, gradient, f"{name} d_{n}")


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_arguments_are_the_peers_in_order_with_their_defaults(name: str) -> None:
    own = list(inspect.signature(named(name)).parameters.values())
    for (theirs, *default), parameter in zip(SIGNATURES[name], own, strict=False):
        assert parameter.name == theirs
        bare = parameter.default is inspect.Parameter.empty
        assert bare == (not default)
        assert bare or parameter.default == default[0]
    assert len(own) >= len(SIGNATURES[name])
    assert all(p.default is not inspect.Parameter.empty for p in own[len(SIGNATURES[name]) :])


def streams(*, rows: int = 2, steps: int = 5, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(3)
    q, k, v = (torch.randn(rows, steps, 2, 3, dtype=dtype) for _ in range(3))
    return q, k, v, -torch.rand(rows, steps, 2, dtype=dtype)


@pytest.mark.parametrize("steps", [5, 40])
def test_gradients_are_derivatives_in_float64(steps: int) -> None:
    q, k, v, g = streams(rows=1, steps=steps, dtype=torch.float64)
    state = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    leaves = [a.requires_grad_(True) for a in (q, k, v, g, g.sigmoid().detach(), state)]

    def both(*a: torch.Tensor) -> Any:
        *rest, state = a
        return fla.chunk_gated_delta_rule(*rest, initial_state=state, output_final_state=True)

    assert torch.autograd.gradcheck(both, leaves, fast_mode=True)


def test_sixteen_bits_are_computed_in_float32_and_rounded_once() -> None:
    q, k, v, g = streams()
    narrow = [a.bfloat16() for a in (q, k, v, g)]
    o, state = fla.chunk_simple_gla(*narrow, output_final_state=True)
    wide, wide_state = fla.chunk_simple_gla(*(a.float() for a in narrow), output_final_state=True)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(o, wide.bfloat16())
    assert torch.equal(state, wide_state)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fla.chunk_simple_gla(*(a.float() for a in narrow))[0], wide)


def test_a_sequence_goes_on_from_the_state_where_it_ended() -> None:
    q, k, v, g = streams(steps=9)
    whole, last = fla.chunk_simple_gla(q, k, v, g, output_final_state=True)
    state, parts = None, []
    for step in range(9):
        one = [a[:, step : step + 1] for a in (q, k, v, g)]
        o, state = fla.fused_recurrent_simple_gla(
            *one, initial_state=state, output_final_state=True
        )
        parts.append(o)
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(state, last)


def test_reverse_reads_each_packed_sequence_from_its_own_end() -> None:
    q, k, v, g = streams(rows=1, steps=7)
    bounds = torch.tensor([0, 3, 7], dtype=torch.int32)
    o, _ = fla.fused_recurrent_simple_gla(q, k, v, g, reverse=True, cu_seqlens=bounds)
    for first, end in ((0, 3), (3, 7)):
        part = [a[:, first:end].flip(1) for a in (q, k, v, g)]
        alone = fla.chunk_simple_gla(*part)[0].flip(1)
        torch.testing.assert_close(o[:, first:end], alone)


def test_decays_that_depend_on_no_step_are_added_to_those_that_do() -> None:
    q, k, v, g = streams()
    gamma = torch.tensor([-0.1, -0.7])
    both = fla.chunk_simple_gla(q, k, v, g, gamma)[0]
    assert torch.equal(both, fla.chunk_simple_gla(q, k, v, g + gamma)[0])
    alone = fla.chunk_simple_gla(q, k, v, None, gamma)[0]
    assert torch.equal(alone, fla.chunk_simple_gla(q, k, v, gamma.expand(2, 5, 2))[0])


def test_decays_of_values_are_those_of_keys_on_the_other_axis() -> None:
    q, k, v, _ = streams()
    q = torch.eye(3).expand(2, 5, 2, 3, 3)[..., 0, :]  # reads the first key alone
    gk, gv = -torch.rand(2, 5, 2, 3), -torch.rand(2, 5, 2, 3)
    _, by_both = fla.fused_recurrent_gla(q, k, v, gk, gv, output_final_state=True)
    _, turned = fla.fused_recurrent_gla(q, v, k, gv, gk, output_final_state=True)
    torch.testing.assert_close(by_both, turned.transpose(-1, -2))
    _, alone = fla.fused_recurrent_gla(q, k, v, gv=gv, output_final_state=True)
    _, other = fla.fused_recurrent_gla(q, v, k, gk=gv, output_final_state=True)
    torch.testing.assert_close(alone, other.transpose(-1, -2))


def test_training_keeps_one_state_in_32_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def packed(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    q, k, v, g = (a.requires_grad_(True) for a in streams(steps=320))
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        fla.chunk_simple_gla(q, k, v, g)[0].sum().backward()
    assert sizes
    assert max(sizes) < 320 * 2 * 2 * 3 * 3  # the states of all steps


def test_one_graph_holds_a_function() -> None:
    q, k, v, g = streams()
    compiled = torch.compile(fla.chunk_simple_gla, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q, k, v, g)[0], fla.chunk_simple_gla(q, k, v, g)[0])


def test_a_convolution_sees_its_own_sequence_alone() -> None:
    x, weight, bias = torch.randn(2, 3, 9), torch.randn(3, 4), torch.randn(3)
    numbers = torch.tensor([[0] * 4 + [1] * 5] * 2)
    y = causal_conv1d_fn(x, weight, bias, numbers)
    for part in (slice(0, 4), slice(4, 9)):
        torch.testing.assert_close(y[..., part], causal_conv1d_fn(x[..., part], weight, bias))


Q, K_, V, G = streams()
BETA = torch.rand(2, 5, 2)
SCAN = (torch.randn(2, 4, 5), torch.rand(2, 4, 5), -torch.rand(4, 3), torch.randn(2, 3, 5))
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (
        lambda: fla.chunk_simple_gla(Q, K_, V, G[:, :4]),
        TensorError,
        r"chunk_simple_gla: g has shape \(2, 4, 2\), expected \(2, 5, 2\)",
    ),
    "heads first": (
        lambda: fla.chunk_gla(Q[0], K_, V, K_),
        TensorError,
        "heads are the third axis",
    ),
    "heads": (
        lambda: fla.chunk_simple_gla(torch.cat([Q, Q[:, :, :1]], 2), K_, V, G),
        TensorError,
        "v has 2 heads, expected a multiple of q's 3",
    ),
    "integers": (lambda: fla.chunk_simple_gla(Q, K_, V.int(), G), KindError, "v is torch.int32"),
    "no tensor": (lambda: fla.chunk_simple_gla(Q, [1], V, G), KindError, "k is .1."),
    "batch": (
        lambda: fla.chunk_simple_gla(Q, K_, V, G, cu_seqlens=torch.tensor([0, 5])),
        TensorError,
        "a batch of 2 rows with cu_seqlens",
    ),
    "bounds": (
        lambda: fla.chunk_simple_gla(Q[:1], K_[:1], V[:1], G[:1], cu_seqlens=torch.tensor([0, 4])),
        TensorError,
        r"cu_seqlens is \[0, 4\], expected bounds that rise from 0 to the 5 steps",
    ),
    "falling bounds": (
        lambda: fla.chunk_simple_gla(
            Q[:1], K_[:1], V[:1], G[:1], cu_seqlens=torch.tensor([0, 6, 5])
        ),
        TensorError,
        "rise",
    ),
    "state": (
        lambda: fla.chunk_simple_gla(Q, K_, V, G, initial_state=torch.zeros(1, 2, 3, 3)),
        TensorError,
        r"initial_state has shape \(1, 2, 3, 3\), expected \(2, 2, 3, 3\)",
    ),
    "context": (
        lambda: fla.chunk_gated_delta_rule(Q, K_, V, G, BETA, cp_context=object()),
        ArgumentError,
        "cp_context",
    ),
    "gate": (
        lambda: fla.chunk_gated_delta_rule(Q, K_, V, G, BETA, use_gate_in_kernel=True),
        ArgumentError,
        "A_log is None",
    ),
    "rate": (
        lambda: fla.chunk_kda(Q, K_, V, K_, BETA, allow_neg_eigval=True),
        ArgumentError,
        "use_beta_sigmoid_in_kernel",
    ),
    "decay of values": (
        lambda: fla.fused_recurrent_gated_delta_rule(Q, K_, V, G, gv=V, beta=BETA),
        ArgumentError,
        "gv",
    ),
    "complex": (
        lambda: selective_scan_fn(*SCAN[:2], SCAN[2] + 0j, SCAN[3], SCAN[3]),
        KindError,
        "A is torch.complex64, expected a tensor of real numbers",
    ),
    "scan": (
        lambda: selective_scan_fn(*SCAN, SCAN[3][:, :2]),
        TensorError,
        r"C has shape \(2, 2, 5\), expected \(2, 3, 5\)",
    ),
    "groups": (
        lambda: selective_scan_fn(*SCAN, torch.randn(2, 3, 3, 5)),
        TensorError,
        "C has 3 groups",
    ),
    "activation": (
        lambda: causal_conv1d_fn(SCAN[0], torch.zeros(4, 2), activation="tanh"),
        ArgumentError,
        "activation is 'tanh'",
    ),
    "bias": (
        lambda: causal_conv1d_fn(SCAN[0], torch.zeros(4, 2), torch.zeros(1)),
        TensorError,
        r"bias has shape \(1,\), expected \(4,\)",
    ),
    "states before": (
        lambda: causal_conv1d_fn(SCAN[0], torch.zeros(4, 2), initial_states=SCAN[0]),
        TensorError,
        r"initial_states has shape \(2, 4, 5\), expected \(2, 4, 1\)",
    ),
    "numbers and states": (
        lambda: causal_conv1d_fn(
            SCAN[0],
            torch.zeros(4, 2),
            seq_idx=torch.zeros(2, 5, dtype=torch.int32),
            return_final_states=True,
        ),
        ArgumentError,
        "seq_idx is passed with initial_states or return_final_states",
    ),
    "no g": (
        lambda: fla.fused_recurrent_gated_delta_rule(
            Q, K_, V, use_gate_in_kernel=True, A_log=torch.zeros(2)
        ),
        ArgumentError,
        "g is None",
    ),
    "safe gate": (
        lambda: fla.chunk_kda(
            Q, K_, V, K_, BETA, safe_gate=True, use_gate_in_kernel=True, A_log=torch.zeros(2)
        ),
        ArgumentError,
        "safe_gate is True and lower_bound None",
    ),
    "name of the function": (
        lambda: fla.chunk_kda(Q, K_, V, K_, BETA[:, :4]),
        TensorError,
        "chunk_kda: beta has shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_argument_is_named(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_a_convolution_of_sixteen_bits_is_computed_in_float32_and_rounded_once() -> None:
    torch.manual_seed(4)
    narrow = [torch.randn(*s).bfloat16() for s in ((2, 3, 9), (3, 4), (3,))]
    wide = [a.float() for a in narrow]
    for options in ({}, {"seq_idx": torch.tensor([[0] * 4 + [1] * 5] * 2)}):
        y = causal_conv1d_fn(*wide, **options, activation="silu")
        assert torch.equal(causal_conv1d_fn(*narrow, **options, activation="silu"), y.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(causal_conv1d_fn(*wide, **options, activation="silu"), y)


def test_padding_between_sequences_has_no_result() -> None:
    numbers = torch.tensor([[0, 0, -1, 1, -1]])
    y = causal_conv1d_fn(torch.randn(1, 3, 5), torch.randn(3, 4), torch.ones(3), numbers)
    assert (y[..., [2, 4]] == 0).all()
    assert (y[..., [0, 1, 3]] != 0).all()


def test_a_bounded_gate_of_kda_needs_no_strength() -> None:
    bias, options = torch.randn(6), {"use_gate_in_kernel": True, "lower_bound": -5.0}
    decay = -5 * torch.sigmoid(K_ + bias.reshape(2, 3))
    for rule in (fla.chunk_kda, fla.fused_recurrent_kda):
        o, _ = rule(Q, K_, V, K_, BETA, dt_bias=bias, **options)
        torch.testing.assert_close(o, rule(Q, K_, V, decay, BETA)[0])


def test_gates_are_formed_in_float32() -> None:
    g, beta, log, kk, a = (t.bfloat16() for t in (G, BETA, torch.randn(2), K_, V))
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    rule = fla.fused_recurrent_gated_delta_rule
    for gk in (None, kk.sigmoid()):
        wide = None if gk is None else gk.float()
        o, _ = rule(Q, K_, V, g, gk, None, beta, A_log=log, **options)
        same, _ = rule(Q, K_, V, g.float(), wide, None, beta.float(), A_log=log.float(), **options)
        assert torch.equal(o, same)
    o, _ = rule(Q, K_, V, g, -a.sigmoid(), beta=BETA)
    assert torch.equal(o, rule(Q, K_, V, g.float(), -a.sigmoid().float(), beta=BETA)[0])
    o, _ = fla.fused_mul_recurrent_rwkv7(Q, K_, K_, V, kk, a)
    assert torch.equal(o, fla.fused_mul_recurrent_rwkv7(Q, K_, K_, V, kk.float(), a.float())[0])
    gamma = torch.tensor([-0.1, -0.7]).bfloat16()
    o, _ = fla.chunk_simple_gla(Q, K_, V, g, gamma)
    assert torch.equal(o, fla.chunk_simple_gla(Q, K_, V, g.float(), gamma.float())[0])


def test_rwkv7_by_a_removal_key_is_rwkv7() -> None:
    q, k, v, _ = streams(dtype=torch.float64)
    kk, a = k.tanh(), v.sigmoid()
    o, last = fla.fused_mul_recurrent_rwkv7(q, -a, k, v, kk, a, 0.5, output_final_state=True)
    same, end = fla.fused_recurrent_rwkv7(q, -a, k, v, -kk, kk * a, 0.5)
    torch.testing.assert_close(o, same)
    torch.testing.assert_close(last, end)


def test_a_state_of_float64_stays_so() -> None:
    state = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    _, last = fla.chunk_simple_gla(Q, K_, V, G, initial_state=state, output_final_state=True)
    wide = (a.double() for a in (Q, K_, V, G))
    _, same = fla.chunk_simple_gla(*wide, initial_state=state, output_final_state=True)
    assert last.dtype == torch.float64
    torch.testing.assert_close(last, same)


@pytest.mark.parametrize(("rows", "steps"), [(2, 0), (0, 4), (1, 1)])
def test_empty_and_single_steps_are_sequences(rows: int, steps: int) -> None:
    q, k, v, g = streams(rows=rows, steps=steps)
    o, state = fla.chunk_simple_gla(q, k, v, g, output_final_state=True)
    assert o.shape == v.shape
    assert state.shape == (rows, 2, 3, 3)

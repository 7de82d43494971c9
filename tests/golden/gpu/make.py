"""Record what the peers' own reference code computes: ``make.py FLA MAMBA CONV``.

FLA is the folder of an installed ``fla`` (fla-core 0.6.0), MAMBA the file
``selective_scan_interface.py`` of mamba_ssm 2.3.2, CONV ``causal_conv1d_interface.py`` of
causal-conv1d 1.6.1. Their reference functions are read by name, since the modules around them need
a GPU, and run in float32 on the CPU; einops must be there. A file holds ``in.*``, ``out.*``,
``cot.*``, the gradient of the loss by each output, and ``grad.*``, that by each of ``in``;
``meta`` says which functions of ``cellgen.torch.peers`` are to give the same, by which names and
options.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn import functional

HERE = Path(__file__).resolve().parent
B, T, H, K, V = 2, 35, 2, 5, 4  # more steps than lie between kept states
BOUNDS = (0, 3, 3, 36, 70)  # of 70 steps, one sequence without any
ENDS = (0, 3, 20, T)
Results = tuple[Tensor, ...]


class Peer:
    """Reference functions of a file, by their names; and what the signatures of others are."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def functions(self, path: str) -> list[ast.FunctionDef]:
        tree = ast.parse((self.root / path).read_text(encoding="utf-8"))
        return [node for node in tree.body if isinstance(node, ast.FunctionDef)]

    def reference(self, path: str, name: str) -> Callable[..., Any]:
        names = {"torch": torch, "F": functional, "rearrange": rearrange, "repeat": repeat}
        node = next(node for node in self.functions(path) if node.name == name)
        exec(compile(ast.Module([node], []), path, "exec"), names)
        return names[name]  # type: ignore[return-value]

    def signature(self, path: str, name: str) -> list[list[Any]]:
        """Names and defaults of the arguments, in order; a name alone has none."""
        node = next(node for node in self.functions(path) if node.name == name)
        defaults = [ast.literal_eval(value) for value in node.args.defaults]
        names = [argument.arg for argument in node.args.args]
        bare = len(names) - len(defaults)
        return [
            [name, *defaults[n - bare : n - bare + 1]] if n >= bare else [name]
            for n, name in enumerate(names)
        ]


def heads_second(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A reference that lays steps before heads, of one that has heads before steps."""

    def turned(*streams: Tensor, initial_state: Tensor | None = None) -> Results:
        options = {} if initial_state is None else {"initial_state": initial_state}
        outcome = function(
            *(s.transpose(1, 2) if s.dim() > 2 else s for s in streams), **options, **fixed
        )
        o, last = outcome if isinstance(outcome, tuple) else (outcome, None)
        return (o.transpose(1, 2),) if last is None else (o.transpose(1, 2), last)

    return turned


def packed(function: Callable[..., Results]) -> Callable[..., Results]:
    """Every sequence of a packed row by itself."""

    def whole(*streams: Tensor, initial_state: Tensor) -> Results:
        o, last = [], []
        for n, (first, end) in enumerate(pairwise(BOUNDS)):
            if first == end:
                last.append(initial_state[n : n + 1])
                continue
            part = (s[:, first:end] if s.shape[1:2] == (BOUNDS[-1],) else s for s in streams)
            read, state = function(*part, initial_state=initial_state[n : n + 1])
            o.append(read)
            last.append(state)
        return torch.cat(o, 1), torch.cat(last)

    return whole


def record(
    name: str,
    function: Callable[[Mapping[str, Tensor]], Results],
    arrays: Mapping[str, Tensor],
    meta: Mapping[str, Any],
) -> None:
    """Run a reference forward and back, and write its file."""
    leaves = {
        n: a.detach().clone().requires_grad_(a.is_floating_point()) for n, a in arrays.items()
    }
    outputs = dict(zip(meta["outputs"], function(leaves), strict=True))
    cotangents = {n: torch.randn(a.shape) for n, a in outputs.items()}
    learned = {n: a for n, a in leaves.items() if a.requires_grad}
    torch.autograd.backward(list(outputs.values()), list(cotangents.values()))
    groups = {
        "in": leaves,
        "out": outputs,
        "cot": cotangents,
        "grad": {n: torch.zeros_like(a) if a.grad is None else a.grad for n, a in learned.items()},
    }
    flat = {f"{g}.{n}": a.detach().numpy() for g, part in groups.items() for n, a in part.items()}
    np.savez_compressed(HERE / f"{name}.npz", meta=json.dumps(meta), **flat)


def unit(a: Tensor) -> Tensor:
    return a * torch.rsqrt(a.square().sum(-1, keepdim=True) + 1e-6)


def streams(
    rows: int = B, steps: int = T, sequences: int | None = None, groups: int = H
) -> dict[str, Tensor]:
    """What the rules of fla are read with."""
    head, key, value = (rows, steps, groups), (rows, steps, groups, K), (rows, steps, groups, V)
    return {
        "q": torch.randn(rows, steps, H, K),
        "k": unit(torch.randn(rows, steps, H, K)),
        "v": torch.randn(value),
        "g_head": functional.logsigmoid(torch.randn(head)),
        "g_key": functional.logsigmoid(torch.randn(key)),
        "beta": torch.rand(head),
        "beta_value": torch.rand(value),
        "a": -unit(torch.randn(key)),
        "b": torch.rand(key) * 0.5,
        "u": torch.randn(groups, K),
        "initial_state": torch.randn(sequences or rows, groups, K, V),
    }


def fla_cases(fla: Peer) -> None:
    ops = "ops"
    gla = fla.reference(f"{ops}/gla/naive.py", "naive_recurrent_gla")
    simple = fla.reference(f"{ops}/simple_gla/naive.py", "naive_recurrent_simple_gla")
    retention = fla.reference(f"{ops}/retention/naive.py", "naive_retention")
    delta = fla.reference(f"{ops}/delta_rule/naive.py", "delta_rule_recurrence")
    gated = fla.reference(f"{ops}/gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
    kda = fla.reference(f"{ops}/kda/naive.py", "naive_recurrent_kda")
    rwkv6 = fla.reference(f"{ops}/rwkv6/recurrent_naive.py", "naive_recurrent_rwkv6")
    rwkv7 = fla.reference(f"{ops}/generalized_delta_rule/dplr/naive.py", "dplr_recurrence")
    final = {"output_final_state": True}

    def by_steps(function: Callable[..., Any]) -> Callable[..., Results]:
        return lambda *a, **o: function(*a, **o, **final)

    both = {
        "gla": (
            by_steps(gla),
            ("q", "k", "v", "g_key"),
            {"chunk_gla": {"g_key": "g"}, "fused_recurrent_gla": {"g_key": "gk"}},
            {},
        ),
        "simple_gla": (
            by_steps(simple),
            ("q", "k", "v", "g_head"),
            {
                f"{n}_simple_gla": {"g_head": "g"}
                for n in ("chunk", "fused_chunk", "fused_recurrent")
            },
            {},
        ),
        "delta_rule": (
            heads_second(delta),
            ("q", "k", "v", "beta"),
            {"chunk_delta_rule": {}, "fused_recurrent_delta_rule": {}},
            {},
        ),
        "gated_delta_rule": (
            by_steps(gated),
            ("q", "k", "v", "beta", "g_head"),
            {f"{n}_gated_delta_rule": {"g_head": "g"} for n in ("chunk", "fused_recurrent")},
            {},
        ),
        "kda": (
            by_steps(kda),
            ("q", "k", "v", "g_key", "beta"),
            {
                "chunk_kda": {"g_key": "g"},
                "fused_recurrent_kda": {"g_key": "g"},
                "fused_recurrent_gated_delta_rule": {"g_key": "gk"},
            },
            {},
        ),
        "rwkv6": (
            heads_second(rwkv6, output_final_state=True),
            ("q", "k", "v", "g_key", "u"),
            {f"{n}_rwkv6": {"q": "r", "g_key": "w"} for n in ("chunk", "fused_recurrent")},
            {},
        ),
        "rwkv7": (
            heads_second(rwkv7),
            ("q", "k", "v", "a", "b", "g_key"),
            {f"{n}_rwkv7": {"q": "r", "g_key": "w"} for n in ("chunk", "fused_recurrent")},
            {"scale": K**-0.5},
        ),
    }
    for name, (function, names, functions, options) in both.items():
        for kind, whole, sizes in (
            ("", function, {}),
            (
                "_packed",
                packed(function),
                {"rows": 1, "steps": BOUNDS[-1], "sequences": len(BOUNDS) - 1},
            ),
        ):
            given = streams(**sizes)
            arrays = {n: given[n] for n in (*names, "initial_state")}
            bounds = {"cu_seqlens": torch.tensor(BOUNDS)} if kind else {}
            meta = {
                "module": "fla",
                "functions": functions,
                "options": {**options, **final},
                "outputs": ["o", "final_state"],
            }
            record(
                f"{name}{kind}",
                lambda a, f=whole, names=names: f(
                    *(a[n] for n in names), initial_state=a["initial_state"]
                ),
                {**arrays, **bounds},
                meta,
            )

    def one(
        name: str,
        names: tuple[str, ...],
        functions: dict[str, Any],
        function: Callable[[Mapping[str, Tensor]], Results],
        more: dict[str, Tensor] | None = None,
        groups: int = H,
        **options: Any,
    ) -> None:
        given = {**streams(groups=groups), **(more or {})}
        meta = {
            "module": "fla",
            "functions": functions,
            "options": options,
            "outputs": ["o", "final_state"] if options.get("output_final_state") else ["o"],
        }
        record(name, function, {n: given[n] for n in names}, meta)

    one(
        "retention",
        ("q", "k", "v"),
        {f"{n}_retention": {} for n in ("chunk", "fused_chunk", "fused_recurrent")},
        lambda a: heads_second(retention)(a["q"], a["k"], a["v"]),
    )
    backwards = lambda *a: (by_steps(gla)(*(s.flip(1) for s in a))[0].flip(1),)
    one(
        "gla_reverse",
        ("q", "k", "v", "g_key"),
        {"fused_recurrent_gla": {"g_key": "gk"}},
        lambda a: backwards(a["q"], a["k"], a["v"], a["g_key"]),
        reverse=True,
    )
    one(
        "delta_rule_by_value",
        ("q", "k", "v", "beta_value"),
        {"fused_recurrent_delta_rule": {"beta_value": "beta"}},
        lambda a: heads_second(delta)(a["q"], a["k"], a["v"], a["beta_value"]),
        output_final_state=True,
    )
    one(
        "gated_delta_rule_all_options",
        ("q", "k", "v", "g_head", "beta", "A_log", "dt_bias", "initial_state"),
        {f"{n}_gated_delta_rule": {"g_head": "g"} for n in ("chunk", "fused_recurrent")},
        lambda a: (lambda o, s: (o, s.transpose(-1, -2)))(
            *gated(
                unit(a["q"].repeat_interleave(2, 2)),
                unit(a["k"].repeat_interleave(2, 2)),
                a["v"],
                2 * torch.sigmoid(a["beta"]),
                -a["A_log"].exp() * functional.softplus(a["g_head"] + a["dt_bias"]),
                0.3,
                a["initial_state"].transpose(-1, -2),
                True,
            )
        ),
        {
            "A_log": torch.randn(2 * H),
            "dt_bias": torch.randn(2 * H),
            "k": 3 * torch.randn(B, T, H, K),
            "initial_state": torch.randn(B, 2 * H, V, K),
        },
        2 * H,
        scale=0.3,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=True,
        use_gate_in_kernel=True,
        state_v_first=True,
    )
    gate = fla.reference(f"{ops}/kda/gate.py", "naive_kda_gate")
    low = fla.reference(f"{ops}/kda/gate.py", "naive_kda_lowerbound_gate")
    learned = {"A_log": torch.randn(2 * H), "dt_bias": torch.randn(2 * H * K)}
    for name, form, options in (
        ("kda_gate", gate, {}),
        ("kda_lower_bound", low, {"lower_bound": -5.0}),
    ):
        one(
            name,
            ("q", "k", "v", "g_key", "beta", "A_log", "dt_bias"),
            {"chunk_kda": {"g_key": "g"}, "fused_recurrent_kda": {"g_key": "g"}},
            lambda a, form=form, options=options: kda(
                a["q"],
                a["k"],
                a["v"],
                form(a["g_key"], a["A_log"], a["dt_bias"], **options),
                a["beta"],
                output_final_state=True,
            ),
            learned,
            2 * H,
            output_final_state=True,
            use_gate_in_kernel=True,
            **options,
        )


def mamba_cases(mamba: Peer) -> None:
    scan = mamba.reference("selective_scan_interface.py", "selective_scan_ref")
    dim, N = 6, 3
    u = lambda: torch.randn(B, dim, T)
    plain = {
        "u": u(),
        "delta": torch.rand(B, dim, T),
        "A": -torch.rand(dim, N),
        "B": torch.randn(B, N, T),
        "C": torch.randn(B, N, T),
    }
    every = {"D": torch.randn(dim), "z": u(), "delta_bias": torch.randn(dim)}
    groups = {"B": torch.randn(B, 2, N, T), "C": torch.randn(B, 2, N, T)}
    cases: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {
        "scan": (plain, {}),
        "scan_all": (
            {**plain, "delta": u(), **every},
            {"delta_softplus": True, "return_last_state": True},
        ),
        "scan_groups": ({**plain, **groups}, {"return_last_state": True}),
        "scan_fixed": ({**plain, "B": torch.randn(dim, N)}, {"return_last_state": True}),
        "scan_all_fixed": ({**plain, "B": torch.randn(dim, N), "C": torch.randn(dim, N)}, {}),
        "scan_packed": (plain, {}),
    }

    def by_sequence(a: Mapping[str, Tensor]) -> Results:
        over_time = ("u", "delta", "B", "C")
        bounds = pairwise(ENDS)
        parts = [{n: s[..., i:j] if n in over_time else s for n, s in a.items()} for i, j in bounds]
        return (
            torch.cat(
                [scan(**{n: s for n, s in part.items() if n != "cu_seqlens"}) for part in parts], -1
            ),
        )

    for name, (arrays, options) in cases.items():
        outputs = ["out", "last_state"] if options.get("return_last_state") else ["out"]
        meta = {
            "module": "mamba_ssm",
            "functions": {"selective_scan_fn": {}},
            "options": options,
            "outputs": outputs,
        }
        as_tuple = lambda a, o=options: (lambda r: r if isinstance(r, tuple) else (r,))(
            scan(**a, **o)
        )
        if name == "scan_packed":
            record(name, by_sequence, {**arrays, "cu_seqlens": torch.tensor(ENDS)}, meta)
        else:
            record(name, as_tuple, arrays, meta)


def conv_cases(conv: Peer) -> None:
    reference = conv.reference("causal_conv1d_interface.py", "causal_conv1d_ref")
    x, weight, bias = torch.randn(B, 6, T), torch.randn(6, 4), torch.randn(6)
    first = torch.randn(B, 6, 3)
    for name, arrays, options in (
        ("conv", {"x": x, "weight": weight}, {}),
        (
            "conv_all",
            {"x": x, "weight": weight, "bias": bias, "initial_states": first},
            {"activation": "silu", "return_final_states": True},
        ),
    ):
        outputs = ["out", "final_states"] if options else ["out"]
        meta = {
            "module": "causal_conv1d",
            "functions": {"causal_conv1d_fn": {}},
            "options": options,
            "outputs": outputs,
        }
        as_tuple = lambda a, o=options: (lambda r: r if isinstance(r, tuple) else (r,))(
            reference(**a, **o)
        )
        record(name, as_tuple, arrays, meta)


def signatures(fla: Peer, mamba: Peer, conv: Peer) -> None:
    rows: dict[str, Any] = {}
    for folder in (
        "gla",
        "simple_gla",
        "retention",
        "delta_rule",
        "gated_delta_rule",
        "kda",
        "rwkv6",
        "rwkv7",
    ):
        for file in ("chunk", "fused_chunk", "fused_recurrent"):
            path = f"ops/{folder}/{file}.py"
            if (fla.root / path).exists():
                for node in fla.functions(path):
                    is_public = node.name.startswith(("chunk_", "fused_")) and node.name.endswith(
                        folder
                    )
                    if is_public and node.args.args:
                        rows[node.name] = fla.signature(path, node.name)
    rows["selective_scan_fn"] = mamba.signature("selective_scan_interface.py", "selective_scan_fn")
    rows["causal_conv1d_fn"] = conv.signature("causal_conv1d_interface.py", "causal_conv1d_fn")
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(rows[n])}" for n in sorted(rows))
    (HERE / "signatures.json").write_text(f"{{\n{lines}\n}}\n")


def main(fla: Path, mamba: Path, conv: Path) -> None:
    torch.manual_seed(7)
    fla_cases(Peer(fla))
    mamba_cases(Peer(mamba.parent))
    conv_cases(Peer(conv.parent))
    signatures(Peer(fla), Peer(mamba.parent), Peer(conv.parent))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

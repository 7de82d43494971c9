"""The selective scan by the name and signature of ``mamba_ssm`` (2.3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from cellgen import accept
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.peers import cells
from cellgen.torch.peers.memories import Reading, bounds_of, run


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba's scan; u, delta, z (batch, dim, L), A (dim, N), D, delta_bias (dim).

    B and C are (dim, N), (batch, N, L) or (batch, G, N, L). Returns (batch, dim, L) in the type
    of u, and with ``return_last_state`` the state (batch, dim, N), whose gradient counts here.
    ``cu_seqlens`` says where sequences in every row begin and end; a state begins anew there.
    Raises TensorError, KindError; complex A is refused.
    """
    peer = "selective_scan_fn"
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z}
    wide = _widened(peer, {**tensors, "delta_bias": delta_bias})
    _check(peer, wide)
    u_, step, bias = wide["u"], wide["delta"], wide.get("delta_bias")
    rows, channels, steps = u_.shape
    if bias is not None:
        step = step + bias[:, None]
    if delta_softplus:
        step = softplus(step)
    is_shared = wide["B"].dim() > 2 and wide["C"].dim() > 2  # among the channels of a group
    groups = (
        max(wide[n].shape[1] if wide[n].dim() == 4 else 1 for n in "BC") if is_shared else channels
    )
    split = {"u": u_, "delta": step}
    streams = {n: t.transpose(1, 2).reshape(rows, steps, groups, -1) for n, t in split.items()}
    streams |= {n.lower(): _by_group(wide[n], rows, steps, groups) for n in "BC"}
    states = A.shape[1]
    streams["a"] = wide["A"].reshape(groups, -1, states)
    sizes = {"B": rows, "T": steps, "N": groups, "D": channels // max(groups, 1), "K": states}
    call = Reading(peer, None, None, return_last_state)
    o, last = run(call, cells.SelectiveScan, sizes, streams, reset=_reset(peer, u_, cu_seqlens))
    y = o.reshape(rows, steps, channels).transpose(1, 2)
    if "D" in wide:
        y = y + u_ * wide["D"][:, None]
    if "z" in wide:
        y = y * silu(wide["z"])
    y = y.to(u.dtype)
    return y if last is None else (y, last.reshape(rows, channels, states))


def _widened(peer: str, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Those that are passed, in float32, or all in float64 where one is. Raises KindError."""
    passed = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in passed.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            what = tensor.dtype if isinstance(tensor, Tensor) else accept.quoted(tensor)
            raise KindError(f"{peer}: {name} is {what}, expected a tensor of real numbers")
    is_double = any(tensor.dtype == torch.float64 for tensor in passed.values())
    kind = torch.float64 if is_double else torch.float32
    return {name: tensor.to(kind) for name, tensor in passed.items()}


def _check(peer: str, tensors: dict[str, Tensor]) -> None:
    """Hold shapes to those of u and A. Raises TensorError."""
    u, a = tensors["u"], tensors["A"]
    if u.dim() != 3 or a.dim() != 2:
        raise TensorError(
            f"{peer}: u has shape {tuple(u.shape)} and A {tuple(a.shape)}, expected (batch, dim, "
            f"L) and (dim, N)"
        )
    (rows, channels, steps), states = u.shape, a.shape[1]
    expected: dict[str, tuple[int, ...]]
    expected = dict.fromkeys(("u", "delta", "z"), (rows, channels, steps))
    expected |= {"A": (channels, states), "D": (channels,), "delta_bias": (channels,)}
    for name in "BC":
        groups = tensors[name].shape[1] if tensors[name].dim() == 4 else 1
        if groups < 1 or channels % groups:
            raise TensorError(f"{peer}: {name} has {groups} groups, expected a part of {channels}")
        shapes = {2: (channels, states), 4: (rows, groups, states, steps)}
        expected[name] = shapes.get(tensors[name].dim(), (rows, states, steps))
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise TensorError(
                f"{peer}: {name} has shape {tuple(tensor.shape)}, expected {expected[name]}"
            )


def _by_group(stream: Tensor, rows: int, steps: int, groups: int) -> Tensor:
    """B or C as (rows, steps, groups, N)."""
    if stream.dim() == 2:
        return stream.expand(rows, steps, *stream.shape)
    grouped = stream.unsqueeze(1) if stream.dim() == 3 else stream
    grouped = grouped.repeat_interleave(groups // grouped.shape[1], 1)
    return grouped.permute(0, 3, 1, 2)


def _reset(peer: str, u: Tensor, bounds: Tensor | None) -> Tensor | None:
    """A mark at the first step of each sequence but the first, (batch, L)."""
    if bounds is None:
        return None
    marks = u.new_zeros(u.shape[0], u.shape[2] + 1, dtype=torch.bool)
    marks[:, bounds_of(peer, bounds, u.shape[2])[1:-1]] = True
    return marks[:, :-1]

"""Options of functions over time that a framework's function has no use for."""

from __future__ import annotations

_SAVES = "its gradients read what every step saves; call the kernel of cellgen.load(...)"

ELSEWHERE = {
    "last_only": "read the final states, or index outputs: h[-1]",
    "every": "index outputs: h[every - 1 :: every]",
    "plan": "plans are chosen at each call",
    "packed": "weights are packed at each call",
    "bp_lim": "use window=",
    "outputs": "leave outputs alone that nobody reads",
    "checkpoint": _SAVES,
    "memory_limit": _SAVES,
}
"""What to do instead, in any framework; each adds what only it can say."""

"""Options of functions over time that a framework's function has no use for."""

from __future__ import annotations

ELSEWHERE = {
    "plan": "plans are chosen at each call",
    "packed": "weights are packed at each call",
    "bp_lim": "use window=",
}
"""What to do instead, in any framework; each adds what only it can say."""

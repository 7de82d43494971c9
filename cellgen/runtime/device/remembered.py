"""Remember what compiled CUDA kernels, so that the cache loads where no compiler is.

An entry's key says which compiler it is of. Where that is not there (an image of a container that
took over the cache of another), what it said of itself is read here; it is asked for keys, not to
run. Machine code of the host is for any processor of a kind, so that another than the one that
compiled may load it.
"""

from __future__ import annotations

import platform
import sys

from cellgen.runtime.abi import ABI_VERSION
from cellgen.runtime.build import cache

NVCC, NVRTC, CXX, WAY = "nvcc", "nvrtc", "c++", "way"
"""What is remembered: three compilers, and which of the two ways was taken."""
MOST_RELEASES = 8


def keep(tool: str, facts: dict[str, object], *, is_new: bool) -> None:
    """Remember a compiler, by what it is called: that of the last new entry, or the first."""
    key = _key(tool)
    last = cache.recall(key)
    if last is None or (is_new and last != facts):
        cache.remember(key, facts)


def keep_release(tool: str, facts: dict[str, object], *, is_new: bool) -> None:
    """Remember a release beside others of its tool, those of the last new entries first."""
    known = recall_releases(tool)
    if facts not in known or (is_new and known[0] != facts):
        others = [other for other in known if other != facts]
        cache.remember(_key(f"{tool} releases"), {"known": [facts, *others][:MOST_RELEASES]})


def recall_releases(tool: str) -> list[dict[str, object]]:
    """What was remembered of each release, the last first."""
    match cache.recall(_key(f"{tool} releases")):
        case {"known": [*known]}:
            return [facts for facts in known if isinstance(facts, dict)]
    return []


def recall(tool: str) -> dict[str, object] | None:
    """What was remembered; None where nothing was."""
    return cache.recall(_key(tool))


def _key(tool: str) -> str:
    return cache.digest(
        [
            ("abi", str(ABI_VERSION)),
            ("cuda", tool),
            ("machine", f"{sys.platform} {platform.machine()}"),
        ]
    )

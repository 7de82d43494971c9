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


def keep(tool: str, facts: dict[str, object], *, is_new: bool) -> None:
    """Remember a compiler, by what it is called: that of the last new entry, or the first."""
    key = _key(tool)
    last = cache.recall(key)
    if last is None or (is_new and last != facts):
        cache.remember(key, facts)


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

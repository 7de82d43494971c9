"""Pictures as images that stand in the page itself: nothing in them reaches the page around."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class EmbeddedPicture:
    """An SVG as a ``data:`` address, its width in pixels, and what it shows, in words."""

    address: str
    width: int
    text: str


def embedded(svg: str, text: str) -> EmbeddedPicture:
    """Embed an SVG document."""
    width = re.search(r'<svg[^>]* width="(\d+)"', svg)
    data = base64.b64encode(svg.encode()).decode()
    return EmbeddedPicture(f"data:image/svg+xml;base64,{data}", int(width[1]) if width else 0, text)

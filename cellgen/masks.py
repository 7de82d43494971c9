"""Masks for regularised cells: what they are, drawn and drawn again."""

from cellgen.runtime.masks import Kind, Mask, Varies, draw_masks

__all__ = ["Kind", "Mask", "Varies", "draw_masks"]

"""Set LaTeX as MathML, which browsers draw without fonts or scripts of ours.

Input: the LaTeX that ``notation.Latex`` prints. Output: markup for HTML.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape

from latex2mathml.converter import convert
from markupsafe import Markup

_NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
"""Needed in XML alone."""
_TALL = re.compile("<mfrac|<mtable|<msqrt")
"""What brackets grow with; around a line they keep its height, whatever the font has."""


@lru_cache(maxsize=4096)
def mathml(latex: str) -> Markup:
    """Return a formula as a ``<math>`` element; LaTeX that cannot be read is shown as it is."""
    try:
        text = convert(latex).replace(_NAMESPACE, "", 1)
        text = text.replace(
            ' display="inline"', ' displaystyle="true"', 1
        )  # fractions of full size
        if not _TALL.search(text):
            text = text.replace(' stretchy="true" fence="true"', ' stretchy="false"')
    except Exception:  # an author may give an activation any LaTeX
        text = f"<code>{escape(latex)}</code>"
    return Markup(text)

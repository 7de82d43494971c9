"""Look at an author's own C: an expression must end what it begins.

Input: the C of an activation, its arguments filled in. Output: what is wrong with it, or nothing.
It is no parser of C: the compiler may refuse what it lets pass, which stays in its place.
"""

from __future__ import annotations

import re

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_REFUSED = {
    "/*": "a comment",
    "//": "a comment",
    "*/": "the end of a comment",
    "#": "a directive",
    "\\": "a backslash",
    "??": "a trigraph",
    "@": "@",
    "`": "`",
    "$": "$",
}
_QUOTED = re.compile(r"\"[^\"\\\n]*\"|'[^'\\\n]+'")
_TOKEN = re.compile(rf"{_QUOTED.pattern}|/\*|//|\*/|\?\?|[^\w\s]")


def fault_of(expression: str) -> str:  # noqa: C901, PLR0911 - one case a branch; one case a return
    """Say why a text is not one whole expression of C, or nothing.

    >>> fault_of("x / (1 + cg_abs(x))")
    ''
    >>> fault_of("cg_abs(x")
    '( is not closed'
    """
    if not expression.strip():
        return "it is empty"
    strange = re.search(r"[^ -~\n]", expression)
    if strange:
        return f"{strange[0]!r} is no character of C"
    opened: list[str] = []
    for match in _TOKEN.finditer(expression):
        token = match[0]
        if token in _REFUSED:
            return f"{_REFUSED[token]} has no place in an expression"
        if token in "\"'":
            return f"{token} is not closed"
        if token in _CLOSING:
            opened.append(token)
        elif token in _CLOSING.values():
            if not opened or _CLOSING[opened.pop()] != token:
                return f"{token} closes nothing"
        elif token == ";" and "{" not in opened:
            return "; ends the statement that it is part of"
        elif token == "," and not opened:
            return ", outside of brackets makes two expressions of it"
    return f"{opened[-1]} is not closed" if opened else ""

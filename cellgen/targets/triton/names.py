"""Name what kernels hold: an author's name, unless the text of a kernel has a use for it.

Input: the names of values, dimensions and buffers. Output: identifiers of a kernel. What kernels
use themselves is read off their templates, so that a line that is added there reserves what it
names. A name that is taken has an underscore behind it: no name of an author ends in one, none of
a template does, and what is formed of a name (``q_p``, ``q_first``) is told from an author's by its
end, which is taken too. So no two things of a kernel have one name, whatever an author writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from keyword import iskeyword

from cellgen.language.ops.pointwise_triton import FUNCTIONS
from cellgen.language.value import Dim, Value
from cellgen.runtime.names import spelled as in_ascii
from cellgen.runtime.paths import templates_folder

HELPERS = ("memory_head.py.j2", "memory_by_key.py.j2", "once_head.py.j2")
"""Templates of functions that kernels call: what is inside them meets no author's name."""
_MADE = (
    *(r"\w+_ptr", r"\w+_first", r"\w+_last", r"\w+_carry", r"\w+_above", r"\w+_so_far"),
    *(r"\w+_real", r"\w+_size", r"\w+_states", r"\w+_added_\d+", r"\w+_held_\d+"),
    *(r"\w+_left_\d+", r"\w+_seen_\d+_\d+", r"factor_\d+", r"term_\d+", r"at_\w+", r"rows_\d+\w*"),
)
"""Names that are formed outside templates, of values and of numbers."""
_JINJA = re.compile(r"\{#.*?#\}|\{%(.*?)%\}|\{\{(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r'"([^"]*)"')
_PROSE = re.compile(r'""".*?"""|(?<!\{)#(?!\})[^\n]*', re.DOTALL)
_HOLE = "\0"
_WORD = re.compile(rf"(?<![\w.{_HOLE}])[A-Za-z_{_HOLE}][\w{_HOLE}]*")


def triton_name(value: Value) -> str:
    """The name of a value in a kernel: the author's, unless the kernel's own lines need it."""
    return variable(str(value.name))


@cache
def variable(name: str) -> str:
    """What a kernel calls a value of a name.

    >>> variable("alpha"), variable("tl"), variable("h_p"), variable("S"), variable("λ")
    ('alpha', 'tl_', 'h_p_', 'S_', 'lambda_')

    Gradients have the name of what they are of, which no author's begins as:

    >>> variable("d_h"), variable("d_tl")
    ('d_h', 'd_tl_')
    """
    if name.startswith("d_"):
        return f"d_{variable(name[2:])}"
    name = in_ascii(name) or name
    return f"{name}_" if is_taken(name) else name


def is_taken(name: str) -> bool:
    """Whether kernels have a use for a name."""
    words, patterns = _own()
    is_capital = len(name) == 1 and name.isupper()
    return is_capital or iskeyword(name) or name in words or patterns.fullmatch(name) is not None


def dimension(dim: Dim) -> str:
    """The parameter that is the size of a dimension: a capital, else a name that no value has.

    >>> dimension(Dim("H")), dimension(Dim("heads"))
    ('H', 'heads_size')
    """
    name = in_ascii(str(dim.name)) or str(dim.name)
    is_capital = len(name) == 1 and name.isupper() and name not in "BT"
    return name if is_capital else f"{name}_size"


def held(buffer: str) -> str:
    """What a kernel calls what a buffer holds.

    >>> held("q"), held("tl"), held("s.added.0")
    ('q', 'tl_', 's_added_0')
    """
    name, *ends = buffer.split(".")
    return "_".join([variable(name), *ends])


# --- what kernels use ----------------------------------------------------------------------------


@cache
def _own() -> tuple[frozenset[str], re.Pattern[str]]:
    """Names of kernels, and how those look that they form of names and numbers."""
    words = {*FUNCTIONS, *(stem for word in template_words() for stem in _stems(word))} - {""}
    plain = frozenset(word for word in words if _HOLE not in word)
    holes = sorted(word.replace(_HOLE, r"\w+") for word in words - plain if word.strip(_HOLE))
    return plain, re.compile("|".join([*_MADE, *holes]))


@cache
def template_words() -> frozenset[str]:
    """Identifiers that templates of kernels write; a NUL stands for what is filled in."""
    folder = templates_folder() / "triton"
    texts = [path.read_text() for path in sorted(folder.glob("*.j2")) if path.name not in HELPERS]
    for name in HELPERS:
        texts += re.findall(r"^(?:def )?(\w+)(?= =|\()", (folder / name).read_text(), re.MULTILINE)
    return frozenset(word for text in texts for word in _words_of(text))


def _words_of(template: str) -> Iterator[str]:
    """Identifiers of a template, those in its quoted parts too; no attributes, no prose."""
    template = _PROSE.sub(" ", template)
    for tag in _JINJA.finditer(template):
        for part in _QUOTED.findall(tag[0]):
            yield from _WORD.findall(re.sub(r"%\w", _HOLE, part))
    yield from _WORD.findall(_JINJA.sub(_filled, template))


def _filled(tag: re.Match[str]) -> str:
    return _HOLE if tag[0].startswith("{{") else " "


def _stems(word: str) -> Iterator[str]:
    """A word, and names of which kernels would form it: of ``d_S_p`` ``S_p`` and ``S``."""
    word = word.removeprefix("d_")
    yield word
    for end in _ends():
        stem = word.removesuffix(end)
        if stem and stem != word:
            yield from _stems(stem)


@cache
def _ends() -> tuple[str, ...]:
    """What is put behind names: ``_p`` of ``{{ name }}_p``."""
    of_patterns = [pattern.removeprefix(r"\w+") for pattern in _MADE if pattern.startswith(r"\w+")]
    of_templates = [w[1:] for w in template_words() if w[0] == _HOLE and _HOLE not in w[1:]]
    return tuple(
        sorted({end for end in (*of_patterns, *of_templates) if re.fullmatch(r"_\w+", end)})
    )

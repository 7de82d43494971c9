"""ClassText of declarations: expressions tidied, names that a cell may use, files that are run.

Input: pieces of text. Output: classes, and the text of a file that defines them.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cellgen.errors import DeclarationError
from cellgen.language.cell import Cell
from cellgen.language.names import Names, check_argument, check_cell_name, check_name

LANGUAGE = (
    *("Bias", "Cell", "H", "I", "Input", "Scalar", "State", "Static", "Weight"),
    *("abs", "atan2", "clip", "concat", "cos", "cumsum", "erf", "exp", "expand_dims", "expm1"),
    *(
        "flatten",
        "floor",
        "gelu",
        "heads",
        "keep",
        "leaky_relu",
        "log",
        "logsumexp",
        "matmul",
        "max",
    ),
    *("maximum", "mean", "minimum", "relu", "round", "sigmoid", "sign", "silu", "sin", "softmax"),
    *("softplus", "split", "sqrt", "sum", "tanh", "transpose", "where"),
)
"""Names of cellgen that declarations may use; ``from cellgen import *`` brings all of them."""


@dataclass(frozen=True)
class ClassText:
    """A class in text: its name, the cell's name, and the lines of its body."""

    class_name: str
    cell_name: str
    doc: str
    lines: tuple[str, ...]

    @property
    def body(self) -> str:
        """What the cell is, without its names: equal cells have equal bodies."""
        return "\n".join(self.lines)

    def __str__(self) -> str:
        inside = "\n".join(f"    {line}" if line else "" for line in self.lines)
        head = f'class {self.class_name}(Cell, name="{self.cell_name}"):'
        return f'{head}\n    """{_quoted(self.doc)}"""\n\n{inside}\n'


def module(doc: str, texts: Iterable[ClassText]) -> str:
    """A file that defines some cells."""
    classes = "\n\n".join(str(text) for text in texts)
    head = "import math\n\n" if "math." in classes else ""
    start = f'"""{_quoted(doc)}"""\n\n{head}'
    return f"{start}from cellgen import *  # noqa: F403\n\n\n{classes}"


def _quoted(text: str) -> str:
    """A text as it stands between quotes: whatever a model calls its nodes, it is no code."""
    printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return printable.replace("\\", "\\\\").replace('"', '\\"')


def defined(text: ClassText, label: str) -> type[Cell]:
    """Run the text of one class. Raises DeclarationError, which shows the line."""
    whole, name = module(label, [text]), f"<{text.class_name} of {label}>"
    linecache.cache[name] = (len(whole), None, whole.splitlines(keepends=True), name)
    namespace: dict[str, object] = {"__name__": f"cells_of_{_identifier(label)}"}
    exec(compile(whole, name, "exec"), namespace)
    cell = namespace[text.class_name]
    assert isinstance(cell, type)
    return cell


# --- expressions ---------------------------------------------------------------------------------


class _Tidy(ast.NodeTransformer):
    """Leave out what changes nothing: a factor 1, a term 0."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and _is(node.left, 1):
            return node.right
        if isinstance(node.op, ast.Add) and _is(node.right, 0):
            return node.left
        return node


def _is(node: ast.expr, number: float) -> bool:
    return isinstance(node, ast.Constant) and node.value == number


def tidy(text: str) -> str:
    """An expression with the brackets that it needs, without factors 1 and terms 0."""
    return ast.unparse(_Tidy().visit(ast.parse(text.strip(), mode="eval")).body)


def number(value: float, dtype: str = "float32") -> str:
    """The shortest text that is the number in a precision."""
    rounded = float(str(np.dtype(dtype).type(value)))
    if not np.isfinite(rounded):
        return {True: "math.nan", False: "math.inf" if rounded > 0 else "-math.inf"}[
            bool(np.isnan(rounded))
        ]
    return repr(int(rounded)) if rounded == int(rounded) and abs(rounded) < 1e6 else repr(rounded)


# --- names ---------------------------------------------------------------------------------------


def _identifier(name: str) -> str:
    plain = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")
    return plain if plain and plain[0].isalpha() else f"v_{plain}".strip("_")


class OwnNames(Names):
    """Hands out names that values of a cell may have, like those of a model."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        super().__init__([*LANGUAGE, "B", "T", *taken])

    def like(self, name: str) -> str:
        """A fresh name like one of a model: ``/rnn/Add_output_0`` gives ``rnn_Add_output_0``."""
        plain = _identifier(name)
        try:
            check_name(plain, "value")
            check_argument(plain, "value")
        except DeclarationError:
            plain = f"v_{plain}"
        return self.fresh(plain)


class CellNames(Names):
    """Hands out names of cells, of which no two have classes of one name."""

    def __init__(self, shipped: Sequence[str]) -> None:
        super().__init__(shipped)
        self._shipped = frozenset(shipped)
        self._classes: set[str] = set()

    def like(self, node: str) -> str:
        """A fresh name in snake case, like that of a node.

        None of a cell that ships, and none that its class or its files could not have.
        """
        plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _identifier(node)).lower()
        plain = re.sub("^(d_)+", "", plain) or "cell"
        is_taken = plain in self._shipped or _is_taken(plain)
        return self.fresh(f"{plain}_cell" if is_taken else plain)

    def fresh(self, name: str, *, is_whole: bool = False) -> str:
        """Return a name that is not taken, nor its class, and take both."""
        unused = super().fresh(name, is_whole=is_whole)
        while class_name(unused) in self._classes:
            unused = super().fresh(name, is_whole=is_whole)
        self._classes.add(class_name(unused))
        return unused


def _is_taken(name: str) -> bool:
    """Whether a cell of this name, or its class, has a name of C, of Python or of a declaration."""
    try:
        check_cell_name(name)
    except DeclarationError:
        return True
    upper = class_name(name)
    return upper in LANGUAGE or keyword.iskeyword(upper) or hasattr(builtins, upper)


def class_name(cell: str) -> str:
    """``rnn_lstm_1`` is ``RnnLstm1``."""
    return "".join(word.capitalize() for word in cell.split("_"))


def declared(kinds: Mapping[str, str], per_line: int = 4) -> list[str]:
    """Lines ``a, b = Weight(I, H), Weight(H, H)`` of declarations by name."""
    items = list(kinds.items())
    lines = []
    for start in range(0, len(items), per_line):
        some = items[start : start + per_line]
        names, values = ", ".join(n for n, _ in some), ", ".join(v for _, v in some)
        lines.append(f"{names} = {values}")
    return lines

"""ClassText of declarations: expressions tidied, names that a cell may use, files that are run.

Input: pieces of text. Output: classes, and the text of a file that defines them.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cellgen.errors import DeclarationError
from cellgen.language.cell import Cell
from cellgen.language.names import Names, check_argument, check_name

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
        return f'{head}\n    """{self.doc}"""\n\n{inside}\n'


def module(doc: str, texts: Iterable[ClassText]) -> str:
    """A file that defines some cells."""
    classes = "\n\n".join(str(text) for text in texts)
    head = "import math\n\n" if "math." in classes else ""
    return f'"""{doc}"""\n\n{head}from cellgen import *  # noqa: F403\n\n\n{classes}'


def defined(text: ClassText, where: str) -> type[Cell]:
    """Run the text of one class. Raises DeclarationError, which shows the line."""
    whole, name = module(where, [text]), f"<{text.class_name} of {where}>"
    linecache.cache[name] = (len(whole), None, whole.splitlines(keepends=True), name)
    namespace: dict[str, object] = {"__name__": f"cells_of_{_identifier(where)}"}
    exec(compile(whole, name, "exec"), namespace)
    made = namespace[text.class_name]
    assert isinstance(made, type)
    return made


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
        super().__init__([*LANGUAGE, *taken])

    def like(self, name: str) -> str:
        """A fresh name like one of a model: ``/rnn/Add_output_0`` gives ``rnn_Add_output_0``."""
        plain = _identifier(name)
        try:
            check_name(plain, "value")
            check_argument(plain, "value")
        except DeclarationError:
            plain = f"v_{plain}"
        return self.fresh(plain)


def cell_name(node: str, taken: Names, shipped: Sequence[str]) -> str:
    """A fresh name of a cell, in snake case, like that of a node; none of a cell that ships."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _identifier(node)).lower()
    plain = plain.removeprefix("d_") or "cell"
    return taken.fresh(f"{plain}_cell" if plain in shipped else plain)


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

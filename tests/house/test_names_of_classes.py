"""Names of classes: one name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.parsing import parsed

PACKAGE = Path(__file__).parents[2] / "cellgen"

SHARED = {
    "RNN": "what layers of torch.nn and of Keras are called",
    "CellFunction": "a cell as a function of tensors, in PyTorch and in JAX",
    "GRU": "the cell, and PyTorch's layer of that name",
    "LSTM": "the cell, and PyTorch's layer of that name",
    "GRUBlockCell": "the cell, and what TensorFlow's op of that name returns",
}
"""Names that stand twice, and why."""


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in SHARED} == {}
    assert sorted(SHARED.keys() - twice.keys()) == []

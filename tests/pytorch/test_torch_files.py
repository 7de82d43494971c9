"""Files of PyTorch: tensors by their names, and no code of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cellgen import weights  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402


def test_a_state_dict_is_read_and_converted(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.GRU(3, 4), torch.nn.Linear(4, 2))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    held = weights.load(tmp_path / "model.pt")
    assert held.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(held[name], tensor.numpy())
    found = weights.convert(held, "torch.nn.GRU", "cellgen.gru", prefix="0.", prove=True)
    assert found["w_z"].shape == (3, 4)


def test_tensors_of_a_checkpoint_are_named_by_their_places(tmp_path: Path) -> None:
    held = {
        "state_dict": {"rnn.weight": torch.ones(2, dtype=torch.bfloat16)},
        "moments": [torch.zeros(1), (torch.full((1,), 3.0),)],
        "epoch": 3,
        "note": "a text",
    }
    torch.save(held, tmp_path / "last.ckpt")
    found = weights.load(tmp_path / "last.ckpt")
    assert {*found} == {"state_dict/rnn.weight", "moments/0", "moments/1/0"}
    assert found["state_dict/rnn.weight"].dtype == np.float32
    assert found["moments/1/0"].tolist() == [3.0]


class Hostile:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return self.path.write_text, ("here",)


@pytest.mark.parametrize("kind", ["module", "hostile", "tensor", "sparse", "cut"])
def test_what_is_no_dict_of_tensors_is_refused(kind: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "a.pth"
    held, says = {
        "module": (torch.nn.GRU(3, 4), r"more than tensors, .* save model\.state_dict\(\)"),
        "hostile": ({"w": Hostile(mark)}, "more than tensors"),
        "tensor": (torch.ones(2), "one tensor without a name"),
        "sparse": ({"w": torch.eye(3).to_sparse()}, r"w is torch\.float32, torch\.sparse_coo"),
        "cut": ({"w": torch.ones(2)}, "cannot be read as pth"),
    }[kind]
    torch.save(held, path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArgumentError, match=says):
        weights.load(path)
    assert not mark.exists()

"""Files of PyTorch: tensors by their names, and no code of a file."""

from __future__ import annotations

import pickle
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


@pytest.mark.parametrize(
    "kind", ["module", "hostile", "scalar", "tensor", "sparse", "twice", "cut"]
)
def test_what_is_no_dict_of_tensors_is_refused(kind: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "a.pth"
    held, says = {
        "module": (
            torch.nn.GRU(3, 4),
            r"more than tensors, torch\.nn\.modules\.rnn\.GRU, .* save model\.state_dict\(\)",
        ),
        "scalar": (
            {"w": torch.ones(2), "loss": np.float64(0.5)},
            r"more than tensors, numpy\._?core\.multiarray\.scalar, ",
        ),
        "twice": (
            {"a/b": torch.ones(2), "a": {"b": torch.zeros(2)}},
            "two arrays of the name a/b; rename",
        ),
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


@pytest.mark.parametrize("kind", ["text", "pickle", "legacy", "end"])
def test_a_damaged_file_is_not_said_to_hold_code(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=kind != "legacy")
    whole = path.read_bytes()
    path.write_bytes(
        {
            "text": b"\x80\x02no file of torch.save",
            "pickle": pickle.dumps({"w": np.ones(2)}, protocol=4),
            "legacy": whole[:-4],
            "end": whole[:-30],
        }[kind]
    )
    with pytest.raises(ArgumentError, match=r"give a whole file$") as caught:
        weights.load(path)
    assert "more than tensors" not in str(caught.value)
    assert "Weights only load failed" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_program_of_torch_is_code(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "a.pt")
    with pytest.raises(
        ArgumentError, match=r"more than tensors, TorchScript, .* model\.state_dict"
    ):
        weights.load(tmp_path / "a.pt")

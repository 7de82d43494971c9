"""Weights of other libraries: numbers of the libraries themselves, conversions, errors, files."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import cellgen
from cellgen import weights
from cellgen.cli.commands import app
from cellgen.errors import ArgumentError
from cellgen.weights import Dialect, convert, dialect, semantics
from cellgen.weights.dialects import ROWS
from cellgen.weights.grids import Array, Arrays, read_blocks
from cellgen.weights.layouts import CELLS, PackedWeight

ROOT = Path(__file__).parents[1]
MADE = sorted((ROOT / "golden" / "weights").glob("*.npz"))
VARIANTS = (
    *ROWS,
    "keras.layers.GRU(reset_after=False)",
    "onnx.GRU(linear_before_reset=1)",
    "onnx.LSTM(peepholes=True)",
    "onnx.RNN(activation='Relu')",
    "tf.LSTMBlockCell(use_peephole=True)",
    "tf.BlockLSTM(forget_bias=0.5)",
    "torch.nn.RNN(nonlinearity='relu')",
    "torch.nn.LSTM(layer=2, reverse=True)",
    "onnx.GRU(reverse=True)",
    "xlstm.sLSTMLayer(backend='vanilla')",
)
I, H = 3, 4
K = D = 2
ORDER = {"lstm": "hc", "slstm": "hcnm"}


def drawn(name: str, draw: Callable[..., Array] | None = None) -> Arrays:
    """Arrays of a dialect, drawn. The own cell's are drawn, and converted."""
    known = dialect(name)
    draw = draw or np.random.default_rng(3).normal
    own = dialect(f"cellgen.{CELLS[known.function]}")
    given: Arrays = {}
    for array in own.arrays:
        kind, block = array.name[0], array.name
        if own.heads:
            full = np.zeros((K, D, K, D))
            for head in range(K):
                full[head, :, head] = draw(size=(D, D))
            shapes = {"r": (K, D, D), "b": (K, D)}
            given[block] = full.reshape(K * D, K, D) if kind == "w" else draw(size=shapes[kind])
        else:
            given[block] = draw(size={"w": (I, H), "u": (H, H)}.get(kind, (H,)))
    if name == "flax.nnx.GRUCell":
        given["c_n"] = np.zeros(H)
    return convert(given, own, known)


def by_kernel(known: Dialect, arrays: Arrays, x: Array, states: tuple[Array, ...]) -> Any:
    """The last states by a kernel that ships, from the weights that the table reads."""
    peepholes = any(block.startswith("p_") for block in known.blocks)
    cell = "lstm_peephole" if peepholes else CELLS[known.function]
    own = convert(arrays, known, f"cellgen.{cell}")
    kernel, order = cellgen.load(cell), ORDER.get(known.function, "h")
    for step in x:
        before = {f"{name}_prev": state for name, state in zip(order, states, strict=True)}
        done = kernel.forward(x=step, **before, **own)
        states = tuple(getattr(done, name) for name in order)
    return states


def require_numbers(
    known: Dialect, arrays: Arrays, x: Array, states: tuple[Array, ...], wanted: tuple[Array, ...]
) -> None:
    """The equations as written and the kernel on converted weights both give the numbers."""
    bound = 1e-13 if wanted[0].dtype == np.float64 else 3e-6
    for run in (semantics.run, by_kernel):
        found = run(known, arrays, x, states)
        for got, known_to_be in zip(found, wanted, strict=False):
            assert np.abs(got - known_to_be).max() <= bound * np.abs(known_to_be).max()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_equations_and_table_give_the_numbers_of_the_library(path: Path) -> None:
    with np.load(path) as held:
        meta = json.loads(str(held["meta"]))
        every = {name: held[name] for name in held.files}
    arrays = {k.partition(":")[2]: v for k, v in every.items() if k.startswith("array:")}
    states = tuple(v for k, v in sorted(every.items()) if k.startswith("state_"))
    wanted = tuple(v for k, v in sorted(every.items()) if k.startswith("result_"))
    require_numbers(dialect(meta["dialect"]), arrays, every["x"], states, wanted)


OLDER = {
    "keras/lstm_nomask_f64": ("keras.layers.LSTM", "initial_state_0 initial_state_1", "state_0"),
    "keras/gru_reset_after_nomask_f64": ("keras.layers.GRU", "initial_state_0", "state_0"),
    "keras/gru_reset_before_nomask_f64": (
        "keras.layers.GRU(reset_after=False)", "initial_state_0", "state_0",
    ),
    "keras/simplernn_nomask_f64": ("keras.layers.SimpleRNN", "initial_state_0", "state_0"),
    "torch/lstm_a_f64": ("torch.nn.LSTM", "h_0 c_0", "h_n c_n"),
    "torch/gru_a_f64": ("torch.nn.GRU", "h_0", "h_n"),
    "torch/rnn_tanh_a_f64": ("torch.nn.RNN", "h_0", "h_n"),
    "torch/rnn_relu_a_f64": ("torch.nn.RNN(nonlinearity='relu')", "h_0", "h_n"),
    "torch/lstmcell_0_f64": ("torch.nn.LSTMCell", "h_0 c_0", "h_1 c_1"),
    "torch/grucell_0_f64": ("torch.nn.GRUCell", "h_0", "h_1"),
    "torch/rnncell_tanh_0_f64": ("torch.nn.RNNCell", "h_0", "h_1"),
    "tf/gru_block_cell_a": ("tf.GRUBlockCell", "h_prev", "ref64.h"),
    "tf/lstm_block_cell_a_peep1_fb1_clip-1": (
        "tf.LSTMBlockCell(use_peephole=True)", "h_prev cs_prev", "ref64.h ref64.cs",
    ),
    "tf/block_lstm_a_peep0_clip-1_len6": ("tf.BlockLSTM", "h_prev cs_prev", "ref64.h ref64.cs"),
    "tf/block_lstm_v2_a_peep1_clip-1_len6": (
        "tf.BlockLSTMV2(use_peephole=True)", "h_prev cs_prev", "ref64.h ref64.cs",
    ),
    "mygrad/gru_a_s0_f64": ("mygrad.nnet.layers.gru", "s0", "S"),
    "epynn/gru_a_seq": ("epynn.GRU", "", "A"),
    "epynn/lstm_a_seq": ("epynn.LSTM", "", "A"),
    "epynn/rnn_a_seq": ("epynn.RNN", "", "A"),
}  # fmt: skip
"""Records of the peers' layers: dialect, states before, states after."""


@pytest.mark.parametrize("file", OLDER)
def test_records_of_the_peers_layers_agree(file: str) -> None:
    name, before, after = OLDER[file]
    known = dialect(name)
    with np.load(ROOT / "golden" / f"{file}.npz") as held:
        every = {n: held[n] for n in held.files if n != "meta"}
    every = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in every.items()}
    arrays = {array.name: every[array.name] for array in known.arrays}
    inputs = every[next(n for n in ("input", "X", "x") if n in every)]
    rows_first = file.startswith(("keras", "epynn"))
    inputs = inputs[None] if inputs.ndim == 2 else inputs
    inputs = np.ascontiguousarray(inputs.swapaxes(0, 1)) if rows_first else inputs
    recurrent = next(v for k, v in read_blocks(known, arrays).items() if k[0] == "u")
    none = np.zeros((inputs.shape[1], len(recurrent)))
    states = tuple(every[n] for n in before.split()) or (none,) * len(
        ORDER.get(known.function, "h")
    )
    wanted = [every[n] for n in after.split()]
    if file.startswith("torch") and wanted[0].ndim == 3:
        states, wanted = tuple(state[0] for state in states), [state[0] for state in wanted]
    last = {"epynn": lambda all_: all_[:, -1], "mygrad": lambda all_: all_[-1]}
    last["tf"] = lambda all_: all_[-1] if all_.ndim == 3 else all_
    chosen = last.get(file.partition("/")[0], lambda all_: all_)
    require_numbers(known, arrays, inputs, states, tuple(chosen(all_) for all_ in wanted))


@pytest.mark.parametrize("source", VARIANTS)
def test_every_dialect_converts_to_every_other_of_its_equations(source: str) -> None:
    known, arrays = dialect(source), drawn(source)
    if source == "onnx.GRU(reverse=True)":  # the other direction is another layer's
        arrays = {n: np.concatenate([7 + array, array]) for n, array in arrays.items()}
    for target in VARIANTS:
        if dialect(target).function != known.function:
            continue
        if target == "flax.nnx.GRUCell" != source:
            continue
        there = convert(arrays, source, target, prove=True)
        assert there.difference is not None
        assert there.difference < 1e-14, target
        own = f"cellgen.{CELLS[known.function]}"
        first = convert(arrays, known, own)
        for name, array in convert(there, dialect(target).alone, own).items():
            np.testing.assert_allclose(array, first[name], rtol=1e-14, atol=1e-15)


def test_two_biases_stay_two_where_the_target_has_two() -> None:
    arrays = {name: np.random.default_rng(0).normal(size=array.shape)
              for name, array in drawn("torch.nn.LSTM").items()}  # fmt: skip
    back = convert(convert(arrays, "torch.nn.LSTM", "onnx.LSTM"), "onnx.LSTM", "torch.nn.LSTM")
    for name, array in arrays.items():
        assert np.array_equal(back[name], array), name
    one = convert(arrays, "torch.nn.LSTM", "keras.layers.LSTM")
    assert np.array_equal(one["bias"], arrays["bias_ih_l0"] + arrays["bias_hh_l0"])


def test_precision_prefixes_and_nested_arrays() -> None:
    arrays = {f"model.rnn.{n}": a.astype(np.float32) for n, a in drawn("torch.nn.GRU").items()}
    arrays["model.head.weight"] = np.ones((2, 2), np.float32)
    arrays["model.rnn.weight_ih_l1"] = np.ones((2, 2), np.float32)
    done = convert(arrays, "torch.nn.GRU", "flax.linen.GRUCell", prefix="model.rnn.", prove=True)
    assert {array.dtype for array in done.values()} == {np.dtype(np.float32)}
    assert done.cell == "gru"
    nested: dict[str, dict[str, Array]] = {}
    for name, array in done.items():
        layer, _, kind = name.partition("/")
        nested.setdefault(layer, {})[kind] = array
    back = convert(nested, "flax.linen.GRUCell", "torch.nn.GRU")
    assert np.array_equal(back["weight_ih_l0"], arrays["model.rnn.weight_ih_l0"])


def test_a_wrong_row_of_the_table_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped() -> Dialect:
        known = real()
        at = next(i for i, array in enumerate(known.arrays) if array.name == "b_ru")
        wrong = PackedWeight("b_ru", (("b_z", "b_r"),))
        arrays = (*known.arrays[:at], wrong, *known.arrays[at + 1 :])
        return Dialect(known.name, known.function, arrays)

    real = ROWS["tf.GRUBlockCell"]
    monkeypatch.setitem(ROWS, "tf.GRUBlockCell", swapped)
    with pytest.raises(ArgumentError, match=r"differ by .* after five steps"):
        convert(drawn("epynn.GRU"), "epynn.GRU", "tf.GRUBlockCell", prove=True)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "a name": (lambda: dialect("torch.nn.LTSM"), "did you mean 'torch.nn.LSTM'"),
    "half a name": (lambda: dialect("keras.GRU"), "did you mean 'keras.layers.GRU'"),
    "no name": (lambda: dialect(3), "expected a text such as"),
    "an option": (lambda: dialect("onnx.GRU(layers=2)"), "options {'layers': 2} do not fit"),
    "no options": (lambda: dialect("onnx.GRU(2"), "cannot read"),
    "an activation": (lambda: dialect("onnx.RNN(activation='Elu')"), "expected 'tanh' or 'relu'"),
    "a backend": (lambda: dialect("xlstm.sLSTMLayer(backend='rocm')"), "'cuda' or 'vanilla'"),
    "equations": (
        lambda: convert({}, "torch.nn.GRU", "mygrad.nnet.layers.gru"),
        "computes gru, mygrad.nnet.layers.gru gru_reset_before",
    ),
    "no dict": (lambda: convert([1], "onnx.LSTM", "onnx.LSTM"), "expected arrays by name"),
    "missing": (
        lambda: convert({"W": np.ones((1, 4, 1))}, "onnx.LSTM", "torch.nn.LSTM"),
        "R, B missing among the arrays; found: W; expected: W, R, B",
    ),
    "left over": (
        lambda: convert(dict(drawn("onnx.LSTM"), Q=np.ones(3)), "onnx.LSTM", "torch.nn.LSTM"),
        "Q not known",
    ),
    "integers": (
        lambda: convert(
            dict(drawn("onnx.LSTM"), B=np.ones((1, 32), int)), "onnx.LSTM", "onnx.LSTM"
        ),
        "B is of int64, expected floating-point",
    ),
    "precisions": (
        lambda: convert(
            dict(drawn("onnx.LSTM"), B=np.ones((1, 32), np.float32)), "onnx.LSTM", "onnx.LSTM"
        ),
        "several precisions",
    ),
    "width": (
        lambda: convert(
            dict(drawn("keras.layers.LSTM"), bias=np.ones(15)), "keras.layers.LSTM", "onnx.LSTM"
        ),
        "bias holds 15 numbers for its 4 blocks b_i, b_f, b_g, b_o, expected 4 H = 16",
    ),
    "height": (
        lambda: convert(
            dict(drawn("keras.layers.LSTM"), recurrent_kernel=np.ones((5, 16))),
            "keras.layers.LSTM", "onnx.LSTM",
        ),
        "first of recurrent_kernel's axes holds 5, expected H = 4",
    ),
    "axes": (
        lambda: convert(
            dict(drawn("keras.layers.LSTM"), bias=np.ones((2, 16))),
            "keras.layers.LSTM", "onnx.LSTM",
        ),
        "bias has shape (2, 16), expected one axis",
    ),
    "directions": (
        lambda: convert(drawn("onnx.LSTM"), "onnx.LSTM(reverse=True)", "torch.nn.LSTM"),
        "expected a first axis of 2 or more",
    ),
    "inputs": (
        lambda: convert(
            dict(drawn("epynn.GRU"), Ur=np.ones((2, 4))), "epynn.GRU", "tf.GRUBlockCell"
        ),
        "disagree on I",
    ),
    "no bias": (
        lambda: convert(drawn("torch.nn.LSTM"), "torch.nn.LSTM", "torch.nn.LSTM(bias=False)"),
        "has no bias there: b_i[0] = ",
    ),
    "one bias": (
        lambda: convert(drawn("torch.nn.GRU"), "torch.nn.GRU", "flax.nnx.GRUCell"),
        "has no second bias there: c_n[0] = ",
    ),
    "no peepholes": (
        lambda: convert(
            dict(drawn("onnx.LSTM"), P=np.arange(12.0)[None]), "onnx.LSTM(peepholes=True)",
            "torch.nn.LSTM",
        ),
        "has no peephole there: p_i[1] = 1",
    ),
    "heads": (
        lambda: convert(
            dict(drawn("cellgen.slstm_heads"), w_z=np.ones((4, 2, 2))), "cellgen.slstm_heads",
            "xlstm.sLSTMLayer",
        ),
        "8 entries of w_z lead from one head's inputs to another head, the first at [0, 1, 0]",
    ),
    "heads' shape": (
        lambda: convert(
            dict(drawn("xlstm.sLSTMLayer"), **{"slstm_cell._bias_": np.ones(12)}),
            "xlstm.sLSTMLayer", "cellgen.slstm_heads",
        ),
        "_bias_ has shape (12,), expected (16,) for K = 2 heads of D = 2 units",
    ),
    "a layer": (lambda: dialect("torch.nn.LSTM(layer=-1)"), "layer is -1, expected a number from"),
    "a flag": (lambda: dialect("keras.layers.GRU(reset_after=2)"), "reset_after is 2, expected Tr"),
    "a word": (lambda: dialect("onnx.RNN(activation=3)"), "activation is 3, expected a text"),
    "an offset": (lambda: dialect("tf.BlockLSTM(forget_bias='x')"), "forget_bias is 'x', expected"),
    "no offset": (lambda: dialect("tf.BlockLSTM(forget_bias=1e999)"), "forget_bias is inf, expect"),
    "a prefix": (
        lambda: convert(drawn("onnx.LSTM"), "onnx.LSTM", "torch.nn.LSTM", prefix=3),
        "prefix is 3",
    ),
    "quadruple precision": (
        lambda: convert(
            {n: a.astype(np.longdouble) for n, a in drawn("onnx.LSTM").items()}, "onnx.LSTM",
            "torch.nn.LSTM",
        ),
        "expected floating-point numbers: float16, bfloat16, float32, float64",
    ),
    "a sum of biases": (
        lambda: convert(
            {n: np.full_like(a, 3e38, np.float32) for n, a in drawn("torch.nn.LSTM").items()},
            "torch.nn.LSTM", "keras.layers.LSTM",
        ),
        "the sum of two biases, b_i, is beyond float32",
    ),
    "no proof": (
        lambda: convert(
            dict(drawn("torch.nn.LSTM"), bias_hh_l0=np.full(16, np.nan)), "torch.nn.LSTM",
            "onnx.LSTM", prove=True,
        ),
        "bias_hh_l0 has entries that are not finite, of which nothing can be proved",
    ),
    "a masked array": (
        lambda: convert(
            dict(drawn("torch.nn.LSTM"), bias_hh_l0=np.ma.ones(16)), "torch.nn.LSTM", "onnx.LSTM"
        ),
        "torch.nn.LSTM: bias_hh_l0 is a masked array",
    ),
    "a masked array in a file": (
        lambda: weights.save("a.npz", {"x": np.ma.ones(2)}),
        "save: x is a masked array",
    ),
    "no path": (lambda: weights.load(3), "path is 3"),
    "no folder": (lambda: weights.save("nowhere/a.safetensors", {}), "cannot be written"),
    "complex numbers": (
        lambda: weights.save("a.npz", {"x": np.ones(2, complex)}),
        "x is of complex128, which an .npz does not hold",
    ),
    "a file's kind": (
        lambda: weights.load("a.bin"), "ends with '.bin', expected .safetensors, .npz, .pt"
    ),
    "a kind that is read alone": (
        lambda: weights.save("a.pt", {}), "ends with '.pt', expected .safetensors or .npz"
    ),
    "a prefix that was left out": (
        lambda: convert(
            {f"a/{n}:0": a for n, a in drawn("keras.layers.GRU").items()}
            | {"b/kernel:0": np.ones((3, 12))},
            "keras.layers.GRU", "torch.nn.GRU",
        ),
        "expected: kernel, recurrent_kernel, bias; all are there with prefix 'a/'",
    ),
    "a name that stands twice": (
        lambda: convert(
            {**drawn("keras.layers.GRU"), "kernel:0": np.ones((3, 12))},
            "keras.layers.GRU", "torch.nn.GRU",
        ),
        "kernel stands twice, as kernel and kernel:0; give one",
    ),
    "a nested name that stands twice": (
        lambda: convert(
            {"a/kernel": np.ones(2), "a": drawn("keras.layers.GRU")},
            "keras.layers.GRU", "torch.nn.GRU", prefix="a/",
        ),
        "convert: a/kernel stands twice among the arrays",
    ),
    "no file": (lambda: weights.load("nowhere.npz"), "there is no file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_one_clear_message(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ArgumentError, match=re.escape(text)):
        call()


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_files_go_in_and_out(kind: str, tmp_path: Path) -> None:
    if kind == "safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"weights.{kind}"
    arrays = drawn("keras.layers.LSTM")
    arrays = dict(arrays, kernel=np.asfortranarray(arrays["kernel"]))
    arrays |= {"number": np.array(0.5), "file": np.ones(2), "a/b": np.ones((1, 2))}
    weights.save(path, arrays)
    found = weights.load(path)
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert all(found[name].shape == arrays[name].shape for name in arrays)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ArgumentError, match="cannot be read"):
        weights.load(path)


def npy(header: str) -> bytes:
    """An .npy file of a header alone."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as held:
        held.writestr(name, data)
    return file.getvalue()


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
DAMAGED = {
    "empty.npz": (b"", "is empty"),
    "empty.safetensors": (b"", "is empty"),
    "empty.h5": (b"", "is empty"),
    "text.npz": (b"no arrays", "it holds no archive, expected an .npz"),
    "one.npz": (npy(HUGE), "it holds one array without a name, as .npy files do"),
    "huge.npz": (archive("w.npy", npy(HUGE)), "cannot be read as npz"),
    "objects.npz": (archive("w.npy", npy(OBJECTS)), "Object arrays cannot be loaded"),
    "nested.npz": (archive("w.npy", npy("(" * 100)), "cannot be read as npz"),
    "cut.npz": (archive("w.npy", b"\x93NUMPY"), "cannot be read as npz"),
    "long.safetensors": (struct.pack("<Q", 2**40) + b"{}", "cannot be read as safetensors"),
    "text.h5": (b"no arrays", "cannot be read as h5"),
    "text.keras": (b"no arrays", "cannot be read as keras"),
    "other.keras": (archive("a.txt", b""), "cannot be read as keras"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_message(name: str, tmp_path: Path) -> None:
    data, says = DAMAGED[name]
    path = tmp_path / name
    path.write_bytes(data)
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors")
    with pytest.raises(ArgumentError, match=re.escape(says)) as caught:
        weights.load(path)
    assert str(path) in str(caught.value)
    command = ["export", "elman", "--embedded", "--dims", "I=3,H=4", "--weights", str(path)]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
    assert done.exit_code == 2
    assert says in done.output
    assert "--weights" in done.output


def test_a_model_of_keras_is_read_in_both_formats() -> None:
    """Keras 3 numbers a cell's variables, the older format has their names."""
    pytest.importorskip("h5py")
    new, old = (weights.load(ROOT / f"golden/weights/keras_model.{s}") for s in ("keras", "h5"))
    places = {
        "layers/gru/cell/": "model_weights/gru/sequential/gru/gru_cell/",
        **{
            f"layers/bidirectional/{way}_layer/cell/": (
                f"model_weights/both/sequential/both/{way}_lstm/lstm_cell/"
            )
            for way in ("forward", "backward")
        },
    }
    for one, other in places.items():
        names = {name.removeprefix(one) for name in new if name.startswith(one)}
        assert names == {"kernel", "recurrent_kernel", "bias"}
        for name in names:
            np.testing.assert_array_equal(new[one + name], old[other + name])
    first = "layers/gru/cell/"
    assert "weight_ih_l0" in convert(new, "keras.layers.GRU", "torch.nn.GRU", prefix=first)
    assert {"layers/dense/vars/0", "layers/dense/vars/1"} <= {*new}


def test_what_lies_in_another_file_is_not_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "theirs").write_bytes(b"secret00")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["mine"], file["text"] = np.ones(2), "a text"
        outside = h5py.File(tmp_path / "b.h5", "w")
        outside["w"] = np.ones(2)
        outside.close()
        file["linked"] = h5py.ExternalLink(tmp_path / "b.h5", "w")
    assert {*weights.load(tmp_path / "a.h5")} == {"mine"}
    with h5py.File(tmp_path / "a.h5", "a") as file:
        place = [(str(tmp_path / "theirs"), 0, 8)]
        file.create_dataset("outside", (2,), np.float32, external=place)
    with pytest.raises(ArgumentError, match="outside lies in another file"):
        weights.load(tmp_path / "a.h5")


def test_a_name_that_stands_twice_in_a_file_is_named(tmp_path: Path) -> None:
    arrays = drawn("keras.layers.GRU")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("w.npy", "w"):
            archive.writestr(name, array_file(arrays["kernel"]))
    with pytest.raises(ArgumentError, match="two arrays of the name w;"):
        weights.load(tmp_path / "a.npz")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["gru/cell/kernel"] = arrays["kernel"]
        file["gru/cell/vars/0"] = arrays["kernel"]
        file["gru/cell/vars/1"] = arrays["recurrent_kernel"]
    with pytest.raises(ArgumentError, match="two arrays of the name gru/cell/kernel;"):
        weights.load(tmp_path / "a.h5")


def array_file(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_names_of_tensorflow_are_those_of_keras() -> None:
    arrays = drawn("keras.layers.GRU")
    of_tf = {f"{name}:0": array for name, array in arrays.items()}
    expected = convert(arrays, "keras.layers.GRU", "torch.nn.GRU")
    found = convert(of_tf, "keras.layers.GRU", "torch.nn.GRU")
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_the_command_converts_files_and_proves(tmp_path: Path) -> None:
    source, out = tmp_path / "in.npz", tmp_path / "out.npz"
    weights.save(source, {f"rnn.{n}": a for n, a in drawn("torch.nn.GRU").items()})
    words = ["convert", str(source), str(out), "--from", "torch.nn.GRU", "--to", "keras.layers.GRU"]
    done = CliRunner().invoke(app, [*words, "--prefix", "rnn.", "--prove"])
    assert done.exit_code == 0, done.output
    assert "kernel (3, 12)" in done.output
    assert "differ by at most" in done.output
    assert set(weights.load(out)) == {"kernel", "recurrent_kernel", "bias"}
    failed = CliRunner().invoke(app, words)
    assert failed.exit_code == 1
    assert "missing among the arrays" in failed.output
    before = source.read_bytes()
    words[2] = str(tmp_path / "." / "folder" / ".." / "in.npz")
    refused = CliRunner().invoke(app, [*words, "--prefix", "rnn."])
    assert refused.exit_code == 2
    assert "OUT is IN" in refused.output
    assert source.read_bytes() == before


def test_the_page_has_a_row_for_every_dialect() -> None:
    page = (ROOT.parent / "docs" / "reference" / "weights.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z][\w.]+)", page, re.MULTILINE) == list(ROWS)

"""The examples do what they say: they learn, repeat themselves exactly, their gradients hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import typer

import cellgen
from examples import characters, digits, digits_over_time, online_learning, own_cell, regularised

ROOT = Path(__file__).parents[2]


@cache
def kernel(name: str) -> cellgen.Kernel:
    return cellgen.compile(own_cell.MGU) if name == "mgu" else cellgen.load(name)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def history(seed: int, epochs: int = 2, cell: str = "gru_block_cell") -> list[digits.Epoch]:
    return list(digits.train(kernel(cell), digits.read_digits(seed), epochs, seed))


# --- digits: the main job ---------------------------------------------------------------------


def test_the_default_run_reads_at_least_95_percent_of_the_held_out_digits(tmp_path: Path) -> None:
    plot = tmp_path / "folder" / "curves.png"
    done = run_python("examples/digits.py", "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result) == ["accuracy", "seconds", "epochs", "seed", "cell"]
    assert result["accuracy"] >= 0.95
    assert (result["epochs"], result["seed"], result["cell"]) == (20, 0, "gru_block_cell")
    assert "loss" in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_fifth_that_is_held_out_has_every_digit_in_proportion() -> None:
    data = digits.read_digits(seed=0)
    assert data.x.shape == (8, 1437, 8)
    assert data.held_out_x.shape == (8, 360, 8)
    assert data.x.dtype == data.held_out_x.dtype == np.float32
    counts = np.bincount(data.held_out_labels)
    assert counts.min() >= 35
    assert counts.max() <= 37


@pytest.mark.parametrize("cell", ["gru_block_cell", "lstm_block_cell", "mgu"])
def test_loss_falls_from_the_first_epoch_on(cell: str) -> None:
    losses = [epoch.training.loss for epoch in history(seed=0, epochs=3, cell=cell)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    assert losses[0] < np.log(digits.CLASSES)  # what guessing costs


def test_equal_seeds_give_equal_curves_bit_for_bit_in_another_process_too() -> None:
    first = history(seed=3)
    assert history(seed=3) == first
    code = (
        "import cellgen; from examples import digits; "
        "kernel = cellgen.load('gru_block_cell'); "
        "print(list(digits.train(kernel, digits.read_digits(3), 2, 3)))"
    )
    other = run_python("-c", code, PYTHONHASHSEED="7")
    assert other.stdout.strip() == repr(first), other.stderr


def test_another_seed_gives_another_curve() -> None:
    assert history(seed=3, epochs=1) != history(seed=4, epochs=1)


# --- digits: gradients ------------------------------------------------------------------------


def tiny(cell: str) -> tuple[digits.Model, np.ndarray, np.ndarray]:
    """A classifier in float64 with weights that leave no gate near 0 or 1, biases included."""
    rng = np.random.default_rng(5)
    model = digits.new_model(kernel(cell), rng, {"I": 2, "H": 3}, 4, np.float64)
    for parameter in model.parameters:
        parameter += rng.uniform(-0.5, 0.5, parameter.shape)
    return model, rng.normal(size=(4, 5, 2)), rng.integers(4, size=5)


@pytest.mark.parametrize("cell", ["gru_block_cell", "lstm_block_cell"])
def test_gradients_of_the_whole_classifier_equal_numerical_ones(cell: str) -> None:
    model, x, labels = tiny(cell)
    _, gradients = digits.score_and_gradients(model, x, labels)
    step = 1e-5
    for parameter, gradient in zip(model.parameters, gradients, strict=True):
        assert gradient.shape == parameter.shape
        numerical = np.empty_like(parameter)
        for place in np.ndindex(parameter.shape):
            kept = parameter[place]
            parameter[place] = kept + step
            above = digits.evaluate(model, x, labels).loss
            parameter[place] = kept - step
            below = digits.evaluate(model, x, labels).loss
            parameter[place] = kept
            numerical[place] = (above - below) / (2 * step)
        # Central differences of a loss near 1: truncation step**2 = 1e-10 times a third
        # derivative of order 1, rounding 2e-16 / step = 2e-11; found 4e-11, gradients up to 0.4.
        np.testing.assert_allclose(gradient, numerical, rtol=0, atol=1e-9)


def test_one_call_over_all_steps_gives_the_sum_of_the_calls_of_each_step() -> None:
    model, x, _ = tiny("gru_block_cell")
    steps = digits.run_forward(model, x)
    upstream = np.random.default_rng(6).normal(size=(5, 3))
    stacked = digits.run_backward(model, steps, upstream)

    summed = {name: np.zeros_like(array) for name, array in stacked.items()}
    d_h = upstream
    for step in reversed(steps):
        y = {name: step[name] for name in ("x", "h_prev", "r", "u", "c")}
        g = model.kernel.backward(**y, **model.cell, d_h=d_h)
        w = model.kernel.weight_gradients(
            x=y["x"],
            h_prev=y["h_prev"],
            r=y["r"],
            d_c_bar=g.d_c_bar,
            d_r_bar_u_bar=g.d_r_bar_u_bar,
        )
        summed = {name: summed[name] + array for name, array in w._asdict().items()}
        d_h = g.d_h_prev
    for name, array in stacked.items():
        # The same 20 products in another order: some roundings of terms up to about 1.
        np.testing.assert_allclose(array, summed[name], rtol=0, atol=1e-14)


# --- digits: command line ---------------------------------------------------------------------


def test_too_few_epochs_exit_1_and_still_print_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "curves.svg"
    with pytest.raises(typer.Exit) as ended:
        digits.main(epochs=1, plot=plot, as_json=True)
    assert ended.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["accuracy"] < 0.95
    assert "<svg" in plot.read_text(encoding="utf-8")


def test_an_unknown_cell_is_told_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        digits.main(cell="gru_blok_cell")
    assert ended.value.exit_code == 2
    assert "did you mean 'gru_block_cell'" in capsys.readouterr().err


def test_a_plot_of_an_unknown_format_is_refused_before_training() -> None:
    with pytest.raises(typer.BadParameter, match=r"curves\.bmp must end in \.png or \.svg"):
        digits.main(plot=Path("curves.bmp"))


@pytest.mark.parametrize("package", ["sklearn", "matplotlib"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import examples.digits"
    done = run_python("-c", code)
    assert done.returncode == 2
    assert re.search(rf"{package}\S* cannot be imported", done.stderr)
    assert "pip install 'cellgen-compiler[examples]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- over time --------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", list(digits_over_time.Cell))
@pytest.mark.parametrize("task", list(digits_over_time.Task))
def test_digits_over_time_are_learnt_as_rows_and_as_pixels(cell: str, task: str) -> None:
    """Pixels are checked to be 64 steps of one input, and the loss to fall."""
    data = digits_over_time.read_digits(task, seed=0)
    assert data.x.shape == ((8, 1437, 8) if task == "rows" else (64, 1437, 1))
    image = data.held_out_x[:, 0].reshape(8, 8)
    same = digits_over_time.read_digits(digits_over_time.Task.ROWS, seed=0).held_out_x[:, 0]
    np.testing.assert_array_equal(image, same)
    epochs = 3 if task == "rows" else 1
    (result,) = digits_over_time.compare(cell, task, epochs, seed=0, threads=1, peer=False)
    assert result.first_loss == pytest.approx(np.log(10), abs=0.2)  # what guessing costs
    assert result.last_loss < (0.7 if task == "rows" else 2.2)


@pytest.mark.parametrize("cell", list(characters.Cell))
def test_gradients_of_the_writer_equal_numerical_ones(cell: str) -> None:
    text = characters.encode("to be or not to be, that is the question: " * 40)
    kernel = cellgen.compile(characters.CELLS[cell])
    weights = characters.draw(kernel, len(text.alphabet), 0, "float64")
    now, following, anew = next(characters.stretches(text, 1))
    assert np.array_equal(now[1:], following[:-1])
    losses = {}
    gradients: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(1)
    along = {name: rng.standard_normal(array.shape) for name, array in weights.items()}
    for step in (0, 1e-5, -1e-5):
        moved = {name: array + step * along[name] for name, array in weights.items()}
        writer = characters.Writer(kernel, moved, threads=1)
        if not step:
            writer.update = gradients.update
        losses[step] = writer.learn(now, following, anew)
    expected = (losses[1e-5] - losses[-1e-5]) / 2e-5
    found = sum(np.sum(gradients[name] * along[name]) for name in weights)
    # Central differences of a loss near 3: truncation 1e-10 of a third derivative that grows with
    # the length of the direction (2e2 entries squared and more), rounding 1e-16 / 1e-5.
    assert found == pytest.approx(expected, rel=1e-6)


def test_characters_are_predicted_better_and_better() -> None:
    text = characters.encode(characters.licence())
    assert len(text.codes) > 5000
    (curve,) = characters.curves(
        characters.Cell.GRU, text, 60, seed=0, threads=1, dtype="float32", peer=False
    )
    assert curve.losses[0] == pytest.approx(np.log(len(text.alphabet)), abs=0.1)
    assert curve.losses[-1] < 0.85 * curve.losses[0]


@pytest.mark.parametrize("cell", list(characters.Cell))
def test_the_writers_curve_is_pytorchs(cell: str) -> None:
    pytest.importorskip("torch")
    text = characters.encode(characters.licence())
    found = characters.curves(cell, text, 10, seed=0, threads=1, dtype="float64", peer=True)
    assert characters.difference(found) <= characters.BOUND["float64"]


@pytest.mark.parametrize(("off", "fails"), [(1e-5, False), (1e-3, True), (np.nan, True)])
def test_curves_that_differ_end_the_run(off, fails, monkeypatch, tmp_path) -> None:
    losses = [3.0, 2.0, 1.0]
    found = [
        characters.Curve("cellgen", losses, 1.0),
        characters.Curve("torch", [a + off for a in losses], 1.0),
    ]
    monkeypatch.setattr(characters, "curves", lambda *_: found)
    run = partial(characters.main, text=None, plot=tmp_path / "c.svg", as_json=True)
    with pytest.raises(SystemExit, match="nats from PyTorch's") if fails else nullcontext():
        run()


@pytest.mark.parametrize(("theirs", "fails"), [(0.95, False), (0.99, True)])
def test_fewer_digits_than_pytorch_end_the_run(theirs, fails, monkeypatch) -> None:
    task = digits_over_time.Task.ROWS
    found = [
        digits_over_time.Result(task, name, accuracy, 1.0, 2.3, 0.1)
        for name, accuracy in (("cellgen", 0.94), ("torch", theirs))
    ]
    monkeypatch.setattr(digits_over_time, "compare", lambda *_: found)
    said = r"rows: 94\.00% of the held-out digits, PyTorch 99\.00%"
    with pytest.raises(SystemExit, match=said) if fails else nullcontext():
        digits_over_time.main(task=[task], as_json=True)


# --- a cell of one's own ----------------------------------------------------------------------


def test_own_cell_prints_gradients_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        own_cell.main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"d_{name} " in text for name in ("x", "h_prev", "w_f", "b_f", "w_c", "b_c"))


# --- a regularised cell -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_regularised_run_learns_and_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        regularised.main()
    assert ended.value.code == 0
    assert "the same bits" in capsys.readouterr().out


# --- online ------------------------------------------------------------------------------------


def test_a_stream_is_learned_without_its_history() -> None:
    errors = online_learning.learn(steps=600)
    assert errors[-1] < 0.1 * errors[0]

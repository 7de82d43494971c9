"""Names that generated code has a use for, as an author's own: in every role, in C and for CUDA."""

from __future__ import annotations

import shutil
import subprocess
import types
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, Dim, H, I, Input, State, Weight, sigmoid, tanh
from cellgen.errors import DeclarationError
from cellgen.language.latex import latex
from cellgen.pipeline import generate
from cellgen.proof.check import check
from cellgen.proof.over_time import forward_errors, gradient_errors
from cellgen.runtime.paths import include_folder
from tests.drawing import draw_arrays
from tests.name_cells import DIMS, TAKEN, TURNS, cell_of_names
from tests.targets.test_cuda import TOLERANCE, OnHost, emulated, emulated_in, with_cxx

FEW = 3
"""Of inputs, states, statics and weights each, so that the kernel compiles in half a minute."""


@cache
def of_few() -> type[Cell]:
    """The cell of both tests, derived once."""
    return cell_of_names(0, FEW)


def test_a_cell_of_all_names_that_generated_code_needs_is_proved() -> None:
    """Steps, gradients, sequences and their options, by the author's names; a class ``Cellgen``."""
    cell = of_few()
    names = {str(v) for v in (*cell.definition.declared, *cell.definition.aliases)}
    names |= {str(equation.target) for equation in cell.definition.equations}
    assert names >= set(TAKEN)
    report = check(cell)
    assert report.ok, str(report)


@with_cxx
def test_a_cell_of_all_names_that_generated_code_needs_runs_in_the_emulation_of_cuda() -> None:
    cell = of_few()
    kernel, rng = emulated_in(cell, "f64"), np.random.default_rng(0)
    sizes = dict(zip(("B", "H", *map(str, DIMS)), (4, 7, 3, 2, 5, 3, 2), strict=True)) | {"T": 3}

    given = draw_arrays(kernel.sequence_forward.function, sizes, rng)
    above = draw_arrays(kernel.sequence_backward.function, sizes, rng, optional=True)
    errors = forward_errors(OnHost(kernel), cell.definition, given, sizes, "float64")
    errors |= gradient_errors(OnHost(kernel), cell.definition, given, above, sizes, rng)
    assert max(errors.values()) < TOLERANCE["float64"], errors


class Options(Cell):
    """Saved values with the names of all options of a call."""

    x, h_prev = Input(I), State(H)
    lengths_w, mask_w, reset_w = Weight(I, H), Weight(I, H), Weight(I, H)
    reverse_w, window_w, plan_w = Weight(I, H), Weight(I, H), Weight(I, H)
    packed_w, threads_w, out_w = Weight(I, H), Weight(I, H), Weight(I, H)
    lengths, mask, reset = sigmoid(x @ lengths_w), sigmoid(x @ mask_w), sigmoid(x @ reset_w)
    reverse, window, plan = tanh(x @ reverse_w), tanh(x @ window_w), tanh(x @ plan_w)
    packed, threads, out = tanh(x @ packed_w), tanh(x @ threads_w), tanh(x @ out_w)
    first = h_prev * lengths * mask * reset
    h = first + reverse * window * plan + packed * threads * out


@with_cxx
def test_what_is_saved_may_have_the_names_of_options() -> None:
    """Beside those options: of C, bound and measured, and of the emulation of CUDA."""
    kernel, device, rng = (
        cellgen.compile(Options),
        OnHost(emulated_in(Options, "f64")),
        np.random.default_rng(0),
    )
    sizes = {"T": 5, "B": 3, "I": 4, "H": 6}
    given = draw_arrays(kernel.sequence_forward.function, sizes, rng, scale=1.0)
    mask, reset = rng.random((5, 3)) < 0.7, rng.random((5, 3)) < 0.3
    options = {"lengths": np.array([5, 0, 3]), "mask": mask, "reset": reset, "reverse": True}
    made = kernel.sequence_forward(**given, **options, save=True)
    assert {"lengths", "mask", "reset", "reverse", "window", "plan"} <= set(made.saved._fields)
    call = {**given, "h": made.h, "d_h": rng.standard_normal(made.h.shape)}
    whole = kernel.sequence_backward(**call, **options, saved=made.saved, window=2)
    bare = dict(zip(made.saved._fields, made.saved, strict=True))
    bound = kernel.sequence_backward.bind(**call, **options, saved=bare, window=2)
    on_device = device.sequence_forward(**given, **options, save=True)
    other = device.sequence_backward(**call, **options, saved=on_device.saved, window=2)
    for name in whole._fields:
        assert np.array_equal(getattr(bound(), name), getattr(whole, name)), name
        np.testing.assert_allclose(getattr(other, name), getattr(whole, name), 1e-12, 1e-12)
    timed = kernel.sequence_backward.measure(**call, **options, saved=made.saved)
    assert isinstance(timed.threads, int)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(TURNS))
def test_every_such_name_compiles_in_every_role(turn: int, tmp_path: Path) -> None:
    cell = cell_of_names(turn)
    source = generate(cell)
    for name, text in source.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include_folder()}"]
    for command in (["cc", "-std=gnu11", "cellgen_cell.c"], ["c++", "-x", "c++", "cellgen_cell.h"]):
        if shutil.which(command[0]) is not None:
            subprocess.run([*command, *flags], cwd=tmp_path, check=True)
    if shutil.which("g++") is not None:
        emulated(cell)


class Paper(Cell):
    """A gated cell as a paper writes it."""

    x, h_prev, λ_prev = Input(I), State(H), State(H)
    W_α, U_α, β = Weight(I, H), Weight(H, H), Bias(H)
    α = sigmoid(x @ W_α + h_prev @ U_α + β)
    Σ = tanh(α * h_prev)
    λ = α * λ_prev + (1 - α) * Σ
    Δt = tanh(λ)
    Μ = Δt * Δt  # a capital mu
    lambda_c = Μ * α
    h = (1 - α) * Σ + lambda_c


def test_greek_letters_are_kept_in_python_text_and_latex_and_spelled_out_in_c() -> None:
    source = generate(Paper)
    said = '{"name": "W_α", "shape": ["I", "H"], "role": "weight"}'
    assert said in source.files["interface.json"]
    assert "Σ = tanh(h_prev * α)" in str(Paper.definition)
    assert "const float *W_alpha;" in source.text(".h")
    assert "Sigma = tanh(h_prev * alpha)" in source.text(".h")
    assert (source.text(".h") + source.text(".c") + source.text(".cu")).isascii()
    spelled = {str(e.target): latex.value(e.target) for e in Paper.definition.equations}
    assert spelled["α"] == r"\alpha"
    assert spelled["Σ"] == r"\Sigma"
    assert spelled["Δt"] == r"\Delta t"
    assert spelled["Μ"] == r"\mathrm{M}"
    assert spelled["lambda_c"] == r"\lambda_{c}"
    assert latex.value(Paper.λ_prev) == r"\lambda_{t-1}"


def test_two_spellings_of_a_letter_are_one_name() -> None:
    class Read(Cell):
        x, h_prev, α = Input(I), State(H), Weight(I, H)
        h = tanh(x @ alpha + h_prev)  # noqa: F821 - the weight above

    assert str(Read.definition.equations[-1]) == "h = tanh(x @ α + h_prev)"
    with pytest.raises(DeclarationError, match="α and alpha are two spellings of one name"):

        class Twice(Cell):
            x, h_prev, α = Input(I), State(H), Weight(I, H)
            alpha = x @ α
            h = tanh(alpha + h_prev)

    with pytest.raises(DeclarationError, match="dimensions Phi and Φ are two spellings"):

        class Dims(Cell):
            x, y, h_prev = Input(Dim("Φ")), Input(Dim("Phi")), State(H)
            w, v = Weight(Dim("Φ"), H), Weight(Dim("Phi"), H)
            h = tanh(x @ w + y @ v + h_prev)


@pytest.mark.parametrize("name", ["reverse", "packed", "window", "plan", "lengths", "stream"])
def test_an_argument_named_like_an_option_is_refused_where_it_is_declared(name: str) -> None:
    expected = f"{name!r} is an argument of the kernel's functions, and {name} is an option"

    def as_weight(own: dict[str, object]) -> None:
        own[name] = Weight(I, H)

    def as_output(own: dict[str, object]) -> None:
        own["h_prev"] = State(H)
        own[name] = tanh(own["h_prev"])
        own["h"] = tanh(own[name])
        own["outputs"] = (own["h"], own[name])

    def as_state(own: dict[str, object]) -> None:
        own[f"{name}_prev"] = State(H)

    for body, line in (
        (as_weight, "own[name] = Weight(I, H)"),
        (as_output, 'own[name] = tanh(own["h_prev"])'),
        (as_state, 'own[f"{name}_prev"] = State(H)'),
    ):
        with pytest.raises(DeclarationError, match=expected) as caught:
            types.new_class("Named", (Cell,), {}, body)
        assert line in str(caught.value)

"""Values show themselves in notebooks: HTML and LaTeX, made on request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import html5lib
import pytest

import cellgen
from cellgen import Bias, Cell, H, I, Input, State, Weight, tanh
from cellgen.bench.report import BenchReport
from cellgen.cells import GRU, LSTM, AntisymmetricRNN, Elman
from cellgen.cli.bench import read
from cellgen.pipeline import programs_of, sequence_of, time_plans
from cellgen.proof.check import Report, Row
from cellgen.report.notebook import html
from cellgen.views.explain import explain

ROOT = Path(__file__).parents[2]
KERNEL = cellgen.load("gru")


def bench() -> BenchReport:
    return read(ROOT / "benchmarks" / "results" / "cpu-2-threads.json")


VALUES = {
    "cell": lambda: GRU,
    "programs": lambda: programs_of(GRU),
    "program": lambda: programs_of(GRU)["backward"],
    "schedule": lambda: sequence_of(AntisymmetricRNN),
    "plan forward": lambda: time_plans(GRU)[0],
    "plan backward": lambda: time_plans(AntisymmetricRNN)[1],
    "explanation": lambda: explain(GRU),
    "kernel": lambda: KERNEL,
    "kernel function": lambda: KERNEL.sequence_forward,
    "chosen plan": lambda: KERNEL.sequence_forward.plan(T=10, B=2, I=3, H=4, threads=1),
    "CUDA kernel": lambda: cellgen.load("gru", "cuda"),
    "proof": lambda: Report("gru", 0, (Row("a < b", 1e-16, 1e-13, "ok", "h"),)),
    "benchmark": bench,
}
SHOWN = {
    "cell": ("Gated recurrent unit", "<math", "Derivation", "data:image/svg+xml"),
    "programs": ("weight_gradients(", "<math"),
    "program": ("gru.backward", "<math"),
    "schedule": ("Before the steps", "of weights alone", "Kept"),
    "plan forward": ("x @ [w_n, w_z, w_r]",),
    "plan backward": ("Behind the reverse loop", "of sums over all steps"),
    "explanation": ("a minimum cut",),
    "kernel": (
        "sequence_backward(x (T, B, I), h_prev (B, H)",
        "upstream gradient of h; counts as zero when left out",
        "gradient of w_z; formed where it is wanted",
    ),
    "kernel function": ("→ h (T, B, H), h_last (B, H)", "with save=True"),
    "chosen plan": ("chunk_rows", "by_units"),
    "CUDA kernel": ("sequence_forward(x (T, B, I)",),
    "proof": ("every claim holds", "a &lt; b", "1.0e-16"),
    "benchmark": ("onnxruntime", "bar own"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_shows_itself_as_a_fragment_of_html(kind: str) -> None:
    made = VALUES[kind]()._repr_html_()
    html5lib.HTMLParser(strict=True).parseFragment(made)
    for text in SHOWN[kind]:
        assert text in made
    for text in ("<script", "http:", "https:"):
        assert text not in made


def test_a_cell_shows_its_equations_as_latex() -> None:
    made = LSTM._repr_latex_()
    assert made.startswith("\\begin{align*}")
    assert r"\sigma\left(" in made


def test_an_unfinished_cell_shows_its_text_alone() -> None:
    unfinished = Elman.replaced("h", "h_raw")
    assert (
        unfinished._repr_html_()
        == f"<pre>{repr(unfinished).replace('<', '&lt;').replace('>', '&gt;')}</pre>"
    )
    assert unfinished._repr_latex_() is None
    assert Cell._repr_html_().startswith("<pre>")


def test_a_docstring_does_not_become_markup() -> None:
    class Odd(Cell):
        """A <script>alert(1)</script> cell."""

        x, h_prev = Input(I), State(H)
        w, u, b = Weight(I, H), Weight(H, H), Bias(H)
        h = tanh(x @ w + h_prev @ u + b)

    assert "<script" not in Odd._repr_html_()
    assert "&lt;script&gt;" in Odd._repr_html_()


def test_a_value_of_no_kind_is_an_error() -> None:
    with pytest.raises(TypeError, match="int has no HTML"):
        html(3)


def test_nothing_is_imported_for_it_before_a_value_is_shown() -> None:
    code = (
        "import sys, cellgen; kernel = cellgen.load('elman'); kernel.functions; "
        "before = set(sys.modules); kernel._repr_html_(); "
        "print(sorted(before)); print('cellgen.report.notebook' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after = done.stdout.splitlines()
    for name in ("cellgen.report", "cellgen.views", "latex2mathml", "jinja2", "rich", "html5lib"):
        assert f"'{name}" not in before, name
    assert after == "True"

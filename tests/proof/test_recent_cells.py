"""What each cell of recent papers has: every claim is a check, for every one of them.

A claim about ONNX or about chunks of time is tried where onnxruntime or PyTorch is installed.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cellgen import Cell
from cellgen.cells import SHIPPED
from cellgen.cli import gallery
from cellgen.language.value import Role
from cellgen.program.chunks import form_over_time
from tests.proof import test_paper_goldens as papers

ROOT = Path(__file__).parents[1]
BY_NAME = {cell.definition.name: cell for cell in SHIPPED}
LINEAR = ("kda", "gated_delta_net_2", "delta_product", "comba", "mamba3", "hgrn2", "mlstm_sigmoid")
"""Cells that have a form over chunks of time; Hawk's is a scan of units."""
NONLINEAR = {
    "m2rnn": "s_prev",
    "titans": "m_prev",
    "para_gru": "h",
    "para_lstm": "h",
    "slstm": "h",
    "slstm_exp": "h",
    "slstm_heads": "h",
    "slstm_exp_heads": "h",
}
"""Cells that have none, and what the reason names."""
RECENT = (*LINEAR, "hawk", *NONLINEAR)
SINGLE_IN_ONNXRUNTIME = ("hawk",)
"""Cells whose erf onnxruntime has in float32 alone."""
LINES = 15
"""The most lines of declarations and equations."""


def has_its_paper(cell: type[Cell], folder: Path) -> None:
    """The paper's number, and which of its equations or sections, by number or by name."""
    text = " ".join((cell.__doc__ or "").split())
    named = r"equations? \d|sections? \d|algorithm \d|the [a-z-]+"
    assert re.search(rf"arXiv:\d{{4}}\.\d{{5}}, (?:{named})", text), text


def is_short(cell: type[Cell], folder: Path) -> None:
    """Declarations and equations are few lines of the class body."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(cell))).body
    assert isinstance(declared, ast.ClassDef)
    lines = {
        line
        for statement in declared.body
        if not isinstance(statement, ast.Expr) and "__doc__" not in ast.unparse(statement)
        for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
    }
    assert 0 < len(lines) <= LINES, len(lines)


def has_a_reference_written_by_hand(cell: type[Cell], folder: Path) -> None:
    """A step in JAX, from the paper, from which its numbers were computed in float64."""
    written = (ROOT / "golden" / "recorders" / "papers.py").read_text(encoding="utf-8")
    name = cell.definition.name
    assert f"def {name.removesuffix('_heads').removesuffix('_exp')}(" in written
    tables = papers.golden(name)
    assert {array.dtype for table in tables.values() for array in table.values()} == {
        np.dtype(np.float64)
    }
    outputs = {str(value) for value in cell.definition.outputs}
    assert outputs <= tables["out"].keys()
    learns = {str(value) for value in cell.definition.learning(Role.WEIGHT, Role.INPUT)}
    assert learns
    assert learns <= tables["grad"].keys()


def agrees_in_c(cell: type[Cell], folder: Path) -> None:
    """Outputs and every gradient."""
    papers.test_sequences_and_gradients_are_those_of_the_papers_equations(cell.definition.name)


def agrees_on_cuda(cell: type[Cell], folder: Path) -> None:
    """In emulation."""
    from tests.targets.test_cuda import OnHost, emulated

    tables = papers.golden(cell.definition.name)
    found = OnHost(emulated(cell)).sequence_forward(**tables["in"])
    for output, expected in tables["out"].items():
        assert papers.error(np.asarray(getattr(found, output)), expected) < papers.BAR, output


def has_a_page(cell: type[Cell], folder: Path) -> None:
    """The gallery draws it and sets its derivation."""
    name = cell.definition.name
    files = gallery.page(cell, gallery.kept_results())
    assert {f"{name}.md", f"{name}.svg"} <= files.keys()
    text = files[f"{name}.md"]
    assert all(f"\n## {part}\n" in text for part in ("Equations", "Use", "Derivation", "Plan"))
    assert "arxiv.org/abs/" in text


def has_chunks_or_a_reason(cell: type[Cell], folder: Path) -> None:
    """A form over time, or the statement that forbids it."""
    name = cell.definition.name
    refusal = form_over_time(cell.definition).refusal
    assert (refusal is None) == (name not in NONLINEAR)
    if refusal is not None:
        assert NONLINEAR[name] in str(refusal)


def agrees_in_chunks(cell: type[Cell], folder: Path) -> None:
    """PyTorch runs chunks of two steps; a scan where states are units."""
    torch = pytest.importorskip("torch")
    import cellgen.torch

    if cell.definition.name in NONLINEAR:
        pytest.skip("it has no form over chunks of time, and says why")
    tables = papers.golden(cell.definition.name)
    given = {n: torch.from_numpy(a) for n, a in tables["in"].items()}
    form = "scan" if cell.definition.name not in LINEAR else "chunk"
    found = cellgen.torch.function(cell, form=form, chunk=2)(**given)
    for output, expected in tables["out"].items():
        over_time, numbers = getattr(found, output), expected
        if over_time is None:  # memories are formed at the ends of chunks alone
            over_time, numbers = getattr(found, f"{output}_last"), expected[-1]
        assert papers.error(over_time.numpy(), numbers) < 10 * papers.BAR, output


def agrees_in_onnxruntime(cell: type[Cell], folder: Path) -> None:
    """An exported model runs there."""
    pytest.importorskip("onnxruntime")
    import cellgen.onnx
    from tests.onnx.sessions import dims_of, draw, run
    from tests.onnx.test_onnx_export import BARS, kernel_results, worst

    dtype = "float32" if cell.definition.name in SINGLE_IN_ONNXRUNTIME else "float64"
    drawn = draw(cell).of(dtype)
    model = cellgen.onnx.export(cell, drawn.weights, dims=dims_of(cell), dtype=dtype)
    assert worst(run(model, drawn.rest), kernel_results(cell, drawn)) < BARS[dtype]


def agrees_embedded(cell: type[Cell], folder: Path) -> None:
    """An export of two files, compiled alone: outputs and gradients."""
    from tests.targets.test_embedded import prove

    prove(cell, folder)


CHEAP: tuple[Callable[[type[Cell], Path], None], ...] = (
    *(has_its_paper, is_short, has_a_reference_written_by_hand, agrees_in_c, has_a_page),
    has_chunks_or_a_reason,
)
BY_BRIDGES = (agrees_in_onnxruntime, agrees_in_chunks)
DEAR = (agrees_on_cuda, agrees_embedded)


@pytest.mark.parametrize("name", RECENT)
@pytest.mark.parametrize(
    "claim",
    [
        *(pytest.param(claim, marks=pytest.mark.of_numpy) for claim in CHEAP),
        *BY_BRIDGES,
        *(pytest.param(c, marks=[pytest.mark.slow, pytest.mark.of_numpy]) for c in DEAR),
    ],
    ids=lambda claim: claim.__name__,
)
def test_every_recent_cell(
    claim: Callable[[type[Cell], Path], None], name: str, tmp_path: Path
) -> None:
    claim(BY_NAME[name], tmp_path)

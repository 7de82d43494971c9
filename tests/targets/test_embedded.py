"""Exports for small machines: C99 that agrees with the equations, sizes, limits, bad input."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cellgen import Bias, Cell, H, I, Input, Scalar, State, Weight, tanh
from cellgen.cells import SHIPPED
from cellgen.cli.commands import app
from cellgen.errors import UsageError
from cellgen.language.cell import definition_of
from cellgen.pipeline import planned
from cellgen.program.interpret import STEP
from cellgen.proof.check.over_time import SEQUENCE_BARS
from cellgen.proof.over_time import VALUES, run_steps
from cellgen.proof.rounding import NUDGE, largest, scales_of
from cellgen.runtime.names import c_name
from cellgen.targets.embedded.functions import definitions
from cellgen.targets.embedded.limits import Limits
from cellgen.targets.embedded.request import ExportRequest
from cellgen.targets.embedded.source import EmbeddedTarget
from cellgen.targets.function_headers import MATH, ROWS, template_of
from cellgen.targets.running import running_rows
from cellgen.targets.target import NotYet
from cellgen.targets.templates import blocks_of
from tests.conftest import RunningHeads, RunningUnits
from tests.embedded import FLAGS, Case, Export, asked_for, case, write

CELLS = {definition_of(cell).name: cell for cell in SHIPPED}
FLOAT_GRADIENT = 2.0**-16
"""As the bar of float32 results over time, times two: gradients pass through all steps twice."""


class Greek(Cell, name="greek"):
    """Names that C or the export has a use for, a scalar that learns, one that does not."""

    value, place, later_prev = Input(I), Input(H), State(H)
    w, β, α, unit = Weight(I, H), Bias(H), Scalar(0.7, gradient=True), Scalar(0.25)
    later = α * tanh(value @ w + β * place) + unit * later_prev


def forward_errors(cell: type[Cell], given: Case, export: Export) -> dict[str, float]:
    """How far results are from the equations, in what rounding can do to them."""
    definition, steps = definition_of(cell), given.sizes["T"]
    exact = run_steps(definition, given.arguments, given.sizes).outputs
    scales = scales_of(
        exact,
        lambda nudge, inner: (
            run_steps(
                definition,
                {n: nudge(a) if np.isfinite(a).all() else a for n, a in given.arguments.items()},
                given.sizes,
                nudge=inner,
            ).outputs
        ),
        np.random.default_rng(0),
        VALUES,
    )
    found, stepped = (run(given.arguments, steps) for run in (export.forward, export.stepped))
    for name, array in found.items():
        np.testing.assert_array_equal(array, stepped[name])
    return {n: largest(found[c_name(n)] - a) / (scales[n] or 1) for n, a in exact.items()}


def gradient_errors(cell: type[Cell], given: Case, export: Export) -> dict[str, float]:
    """How far gradients are from the complex step, along a random direction, in their terms."""
    definition, rng = definition_of(cell), np.random.default_rng(1)
    gradients, errors = export.gradients(given.arguments, given.upstream), {}
    start = {name: np.asarray(value) for name, value in definition.defaults.items()}
    arguments = {**start, **given.arguments}
    for name in arguments:
        if c_name(name) not in gradients:
            continue
        direction = rng.standard_normal(arguments[name].shape)
        moved = {**arguments, name: arguments[name] + 1j * STEP * direction}
        outputs = run_steps(definition, moved, given.sizes).outputs
        loss = sum(np.sum(np.imag(a) * given.upstream[n]) for n, a in outputs.items()) / STEP
        terms = gradients[c_name(name)].reshape(direction.shape) * direction
        errors[name] = abs(float(np.sum(terms) - loss)) / (float(np.sum(np.abs(terms))) or 1.0)
    assert len(errors) == len(gradients)
    return errors


def float_gradient_errors(given: Case, single: Export, double: Export) -> dict[str, float]:
    """How far gradients in float are from those in double, in what rounding can do to them."""
    exact = double.gradients(given.arguments, given.upstream)
    found = single.gradients(given.arguments, given.upstream)
    rng, scales = np.random.default_rng(2), {n: largest(a) for n, a in exact.items()}
    for _ in range(3):
        nudged = {
            n: a * (1 + rng.choice([-NUDGE, NUDGE], a.shape)) for n, a in given.arguments.items()
        }
        for name, array in double.gradients(nudged, given.upstream).items():
            scales[name] = max(scales[name], largest(array - exact[name]) / NUDGE)
    return {n: largest(found[n] - a) / (scales[n] or 1) for n, a in exact.items()}


def prove(cell: type[Cell], folder: Path) -> None:
    """Compile an export in both precisions and hold it to the equations."""
    given, exports = case(cell), {}
    learns = bool(definition_of(cell).parameters)
    for dtype, bar in (("double", "float64"), ("float", "float32")):
        (folder / dtype).mkdir()
        exports[dtype] = Export(cell, asked_for(given, dtype, train=learns), folder / dtype)
        errors = forward_errors(cell, given, exports[dtype])
        assert max(errors.values()) <= SEQUENCE_BARS[bar], errors
    if not learns:
        return
    errors = gradient_errors(cell, given, exports["double"])
    assert max(errors.values()) <= SEQUENCE_BARS["gradient"], errors
    errors = float_gradient_errors(given, exports["float"], exports["double"])
    assert max(errors.values()) <= FLOAT_GRADIENT, errors


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_each_function_of_a_header_stands_in_an_export_with_what_it_needs(
    dtype: str, tmp_path: Path
) -> None:
    """In as many exports as there are functions, in one unit of compilation; none stands twice."""
    suffix = {"float": "_f32", "double": "_f64"}[dtype]
    blocks = [block for header in (MATH, ROWS) for block in blocks_of(template_of(header))]
    of_both = [block for block in blocks if block.islower() and block[-4:-2] != "_f"]
    names = [block.removesuffix(suffix) for block in blocks if block.endswith(suffix)] + of_both
    assert {"exp", "relu", "first_max"} <= {*names}
    names += [row.name for row in running_rows()]
    texts = [text for name in names for text in definitions([name], dtype, f"own_{name}")]
    together = definitions(names, dtype, "all")
    assert len(together) == len(set(together)) == len(names) + (dtype == "float")
    body = tmp_path / "functions.c"
    lines = [*(f"#include <{head}.h>" for head in ("math", "stdint", "string")), *texts, *together]
    body.write_text("\n".join(lines), encoding="utf-8")
    flags = [*FLAGS, "-Wno-unused-function", "-fsyntax-only"]
    subprocess.run(["gcc", *flags, str(body)], check=True)


def test_an_export_s_tanh_is_that_of_time_loops_and_never_fused() -> None:
    *_, tanh_of_export = definitions(["tanh"], "float", "gru")
    assert "float gru_cg_tanh(float x)" in tanh_of_export
    assert "a - n * (0.5f * CELLGEN_LN2_HIGH)" in tanh_of_export
    assert "HAS_FMA" not in "".join(definitions(["tanh", "sigmoid", "exp"], "float", "gru"))


@pytest.mark.parametrize("name", ["gru", "antisymmetric_rnn"])
def test_an_export_is_strict_c99_and_agrees_with_the_equations(name: str, tmp_path: Path) -> None:
    prove(CELLS[name], tmp_path)


@pytest.mark.parametrize("cell", [RunningUnits, RunningHeads])
def test_what_goes_along_units_exports(cell: type[Cell], tmp_path: Path) -> None:
    prove(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CELLS} - {"gru", "antisymmetric_rnn"}))
def test_every_cell_exports(name: str, tmp_path: Path) -> None:
    prove(CELLS[name], tmp_path)


def test_names_that_c_spells_otherwise_and_scalars_that_learn(tmp_path: Path) -> None:
    given = case(Greek)
    export = Export(Greek, asked_for(given, "double", train=True), tmp_path)
    assert max(forward_errors(Greek, given, export).values()) <= SEQUENCE_BARS["float64"]
    errors = gradient_errors(Greek, given, export)
    assert set(errors) == {"w", "β", "α"}
    assert max(errors.values()) <= SEQUENCE_BARS["gradient"]


@pytest.mark.parametrize(
    ("sizes", "window"), [({"I": 100_000, "H": 100_000}, 16), ({"I": 2, "H": 3}, 10**11)]
)
def test_sizes_that_an_int_does_not_count_are_refused(sizes: dict[str, int], window: int) -> None:
    target = EmbeddedTarget(ExportRequest(sizes, train=True, window=window))
    with pytest.raises(UsageError, match=r"gru: its \w+ would take \d+ bytes, .* up to 2147483647"):
        target.render(planned(CELLS["gru"]))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_steps_are_the_optimiser_s_over_windows_one_after_the_other(
    optimizer: str, tmp_path: Path
) -> None:
    given, rates = case(CELLS["elman"], steps=3), (0.5, 0.25, 0.125)
    asked = asked_for(given, "double", train=True, optimizer=optimizer)
    export = Export(CELLS["elman"], asked, tmp_path)
    weights = {m.name: given.arguments[m.name] for m in export.layout.weights.members}
    first = {n: np.zeros_like(a) for n, a in weights.items()}
    second, state = dict(first), given.arguments["h_prev"]
    for count, rate in enumerate(rates, start=1):
        now = {**given.arguments, **weights, "h_prev": state}
        for name, gradient in export.gradients(now, given.upstream).items():
            if optimizer == "sgd":
                first[name] = 0.9 * first[name] + gradient
                weights[name] = weights[name] - rate * first[name]
            else:
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                mean, square = first[name] / (1 - 0.9**count), second[name] / (1 - 0.999**count)
                weights[name] = weights[name] - rate * mean / (np.sqrt(square) + 1e-8)
        state = run_steps(definition_of(CELLS["elman"]), now, given.sizes).outputs["h"][-1]
    found = export.unpacked(export.trained(given.arguments, given.upstream, rates))
    for name, array in weights.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)


def test_a_float_export_computes_in_float_and_calls_nothing_but_the_memory_functions(
    tmp_path: Path,
) -> None:
    body = write(CELLS["gru"], ExportRequest({"I": 3, "H": 4}, train=True), tmp_path)
    text = re.sub(r"/\*.*?\*/", "", body.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "double" not in text
    assert re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?(?![\w.])", text) == []
    target = tmp_path / "gru.o"
    flags = (*FLAGS, "-O1", "-fno-math-errno", "-fno-stack-protector", "-U_FORTIFY_SOURCE")
    subprocess.run(["gcc", *flags, "-c", body, "-o", target], check=True)
    called = subprocess.run(["nm", "-u", target], check=True, capture_output=True, text=True)
    assert {line.split()[-1] for line in called.stdout.splitlines()} <= {"memcpy", "memset"}


def test_weights_are_a_constant(tmp_path: Path) -> None:
    rng, sizes = np.random.default_rng(0), {"I": 3, "H": 4}
    shapes = {"w": (3, 4), "u": (4, 4), "b": (4,)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    weights["w"][0, :2] = 1e-30, 2**30
    export = Export(CELLS["elman"], ExportRequest(sizes, weights=weights), tmp_path)
    kind = np.ctypeslib.ctypes.c_float * (export.bytes["weights"] // 4)
    kept = np.ctypeslib.as_array(kind.in_dll(export.library, "elman_exported"))
    for name, array in export.unpacked(kept).items():
        np.testing.assert_array_equal(array, weights[name])


def test_a_cell_without_steps_over_time_is_not_exported() -> None:
    class Clock(Cell, name="clock"):
        """Nothing tells how many steps there are."""

        h_prev, b = State(H), Bias(H)
        h = tanh(h_prev + b)

    found = EmbeddedTarget(ExportRequest({"H": 3})).render(planned(Clock))
    assert isinstance(found, NotYet)
    assert "one step only" in found.reason


def test_a_cell_without_weights_runs_and_has_nothing_to_train(tmp_path: Path) -> None:
    class Mean(Cell, name="running_mean"):
        """Half of what was, half of what is."""

        x, h_prev = Input(H), State(H)
        h = (x + h_prev) / 2

    prove(Mean, tmp_path)
    with pytest.raises(UsageError, match="nothing of it learns"):
        EmbeddedTarget(ExportRequest({"H": 3}, train=True)).render(planned(Mean))


LIMITS = (
    ({"ram": 20000}, {"train": True}, "RAM", "H="),
    ({"ram": 55000}, {"train": True, "window": 64}, "RAM", "--window "),
    ({"ram": 700}, {}, "RAM", "H="),
    ({"ram": 3}, {}, "RAM", "no smaller size"),
)


@pytest.mark.parametrize(("limits", "more", "kind", "says"), LIMITS)
def test_an_export_that_is_too_large_says_by_how_much_and_what_would_fit(
    limits: dict[str, int], more: dict[str, object], kind: str, says: str
) -> None:
    plan, sizes = planned(CELLS["gru"]), {"I": 8, "H": 32}
    with pytest.raises(UsageError) as raised:
        EmbeddedTarget(ExportRequest(sizes, **more), Limits(**limits)).render(plan)
    text = str(raised.value)
    total, over = re.search(rf"take (\d+) bytes of {kind} .*, (\d+) more than", text).groups()
    assert int(total) - int(over) == limits["ram"]
    assert says in text
    for name, size in re.findall(r"(\w+)=(\d+)", text.rpartition("with the other")[2]):
        for of, fits in ((int(size), True), (int(size) + 1, False)):
            target = EmbeddedTarget(ExportRequest({**sizes, name: of}, **more), Limits(**limits))
            if fits:
                target.render(plan)
            else:
                with pytest.raises(UsageError):
                    target.render(plan)


def test_constants_have_a_limit_too(tmp_path: Path) -> None:
    shapes = {"w": (3, 4), "u": (4, 4), "b": (4,)}
    asked = ExportRequest({"I": 3, "H": 4}, weights={n: np.ones(s) for n, s in shapes.items()})
    plan = planned(CELLS["elman"])
    EmbeddedTarget(asked, Limits(flash=128)).render(plan)
    with pytest.raises(UsageError, match=r"128 bytes of flash .*, 1 more than --limit"):
        EmbeddedTarget(asked, Limits(flash=127)).render(plan)


def run(*arguments: object):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_command_writes_two_files(tmp_path: Path) -> None:
    found = run("elman", "--embedded", "--dims", "I=3,H=4", tmp_path / "new")
    assert found.exit_code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"elman.h", "elman.c"}


def test_an_export_of_another_is_not_written_over_without_a_word(tmp_path: Path) -> None:
    shapes = {"w": (3, 3), "u": (3, 3), "b": (3,)}
    for file, value in (("one.npz", 1.0), ("two.npz", 2.0)):
        np.savez(tmp_path / file, **{name: np.full(shape, value) for name, shape in shapes.items()})
    out = tmp_path / "out"
    first = ("elman", "--embedded", "--dims", "I=3,H=3", "--weights", tmp_path / "one.npz")
    assert run(*first, out).exit_code == 0
    before = {path: path.read_text() for path in out.iterdir()}
    assert run(*first, out).exit_code == 0  # the same once more
    others = (
        ((*first[:-1], tmp_path / "two.npz"), "I=3, H=3, other weights)"),
        (("elman", "--embedded", "--dims", "I=3,H=4"), "(cellgen.cells.elman:Elman, B=1, I=3, H=3"),
        ((*first, "--dtype", "double"), "holds another export"),
    )
    for second, says in others:
        found = run(*second, out)
        assert found.exit_code == 1
        assert says in found.output
        assert (
            "--name elman_2, or another folder, or replace that one with --replace" in found.output
        )
        assert {path: path.read_text() for path in out.iterdir()} == before
    assert run(*others[0][0], "--name", "second", out).exit_code == 0
    assert {path.name for path in out.iterdir()} == {
        f"{n}{s}" for n in ("elman", "second") for s in (".h", ".c")
    }
    assert run(*others[0][0], "--replace", out).exit_code == 0
    assert {path: path.read_text() for path in before} != before
    for theirs in ("int mine;\n", "caf\xe9"):
        (out / "elman.c").write_bytes(theirs.encode("latin-1"))
        found = run(*first, "--replace", out)
        assert found.exit_code == 1
        assert "elman.c is there and holds no export" in found.output
        assert (out / "elman.c").read_bytes() == theirs.encode("latin-1")


@pytest.mark.parametrize("dtypes", [("float", "float"), ("float", "double")])
def test_bodies_of_two_exports_are_one_unit_of_compilation(
    dtypes: tuple[str, str], tmp_path: Path
) -> None:
    asked = [
        ExportRequest({"I": 3, "H": 2 + n}, dtype, train=True, optimizer="adam", name=f"layer{n}")
        for n, dtype in enumerate(dtypes)
    ]
    for one in asked:
        write(CELLS["antisymmetric_rnn"], one, tmp_path)
    (tmp_path / "both.c").write_text(
        '#include "layer0.c"\n#include "layer1.c"\n'
        "int main(void) { static layer0_memory first; static layer1_memory second;\n"
        "    static layer0_weights w; static layer1_weights v; layer0_start(&w, &first);\n"
        "    layer1_start(&v, &second);\n"
        "    return (double)first.state.h[0] + (double)second.state.h[0] != 0; }\n"
    )
    for compiler in (("gcc", *FLAGS), ("g++", "-Wall", "-Wextra", "-Werror", "-x", "c++")):
        command = (*compiler, tmp_path / "both.c", "-lm", "-o", tmp_path / "both")
        subprocess.run(command, check=True)
        subprocess.run([tmp_path / "both"], check=True)


def test_a_file_of_weights_is_held_to_the_cell(tmp_path: Path) -> None:
    file, arrays = tmp_path / "w.npz", {"w": np.ones((3, 4)), "u": np.ones((4, 4)), "b": np.ones(4)}
    command = ("elman", "--embedded", "--dims", "I=3,H=4", "--weights", file, tmp_path)
    bad = (
        ({"w": np.ones((4, 3))}, r"w is float64 of shape (4, 3), expected real numbers of shape"),
        ({"b": np.array([1, 2, np.nan, 3])}, "b has entries that are not finite in float"),
        ({"b": np.array([1, 2, 1e39, 3])}, "b has entries that are not finite in float"),
        ({"v": np.ones(3)}, "the weights hold v, which it does not have"),
        ({"u": None}, "the weights lack u; expected arrays named w, u, b"),
    )
    for change, says in bad:
        np.savez(file, **{n: a for n, a in {**arrays, **change}.items() if a is not None})
        found = run(*command)
        assert found.exit_code == 2
        assert says in found.output
    np.savez(file, **arrays)
    assert run(*command).exit_code == 0
    assert ".b = {\n        1.0f, 1.0f, 1.0f, 1.0f," in (tmp_path / "elman.c").read_text()


def test_bad_input_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "none.npz").write_text("no arrays", encoding="utf-8")
    sizes = ("--embedded", "--dims", "I=3,H=4")
    bad = (
        (("gru", tmp_path), "say what to export: --embedded"),
        (("gru", *sizes), "name it, last: OUT/"),
        (("gru", "--embedded", "--dims", "I=3", tmp_path), "has no size for H"),
        (("gru", "--embedded", "--dims", "I=3,H=4,K=2", tmp_path), "does not know K"),
        (("gru", "--embedded", "--dims", "I=3,H", tmp_path), "'H' is no size"),
        (("gru", "--embedded", "--dims", "I=3,H=0", tmp_path), "H=0: expected a whole number"),
        (("gru", "--embedded", "--dims", "I=3,H=4,H=5", tmp_path), "H has two sizes"),
        (("gru", *sizes, "--dtype", "half", tmp_path), "expected one of float, double"),
        (("gru", *sizes, "--window", "3", tmp_path), "nothing without --train"),
        (("gru", *sizes, "--train", "--optimizer", "x", tmp_path), "expected one of sgd, adam"),
        (("gru", *sizes, "--weights", tmp_path / "none.npz", tmp_path), "cannot be read"),
        (("no_cell", *sizes, tmp_path), "no_cell"),
        (("gru", *sizes, "--name", "int", tmp_path), "--name 'int'"),
        (("gru", "--embedded", "--dims", f"I=3,H={'9' * 5000}", tmp_path), "is no size; write"),
        (("gru", *sizes, "--name", "../gru", tmp_path), "no valid name"),
        (("gru", "--onnx", tmp_path / "a.onnx", "--name", "a"), "--onnx takes --weights"),
    )
    for arguments, says in bad:
        found = run(*arguments)
        assert found.exit_code == 2, arguments
        assert says in found.output, found.output


class Begun(Cell, name="begun"):
    """Two states, of which one begins elsewhere than at 0."""

    x, a_prev, b_prev = Input(I), State(H), State(I, initial=0.5)
    w, u = Weight(I, H), Weight(H, I)
    a = tanh(x @ w + a_prev)
    b = tanh(a_prev @ u + b_prev)


def test_one_row_begins_anew_and_the_others_go_on(tmp_path: Path) -> None:
    given = case(Begun)
    rows = given.sizes["B"]
    assert rows > 2
    export = Export(Begun, asked_for(given, "float", train=False), tmp_path)
    before, after = export.reset_at(given.arguments, 3, row=1)
    starts = {"a": 0.0, "b": 0.5}
    place = 0
    for member in export.layout.state.members:
        width = int(np.prod([export.sizes[str(axis)] for axis in member.shape[1:]]))
        own = slice(place, place + rows * width)
        old, new = (array[own].reshape(rows, width) for array in (before, after))
        assert old.all()
        np.testing.assert_array_equal(new[1], np.full(width, starts[member.name]))
        np.testing.assert_array_equal(new[[0, *range(2, rows)]], old[[0, *range(2, rows)]])
        place += rows * width
    assert place == len(before)

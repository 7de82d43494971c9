"""Rows on two devices, donated buffers, programs that are lowered ahead of time or exported."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import cellgen.jax
from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid
from tests.jax.arrays import call, drawn, function, loop

ROOT = Path(__file__).parent.parent.parent
ALLOWED = [jax.export.DisabledSafetyCheck.custom_call(cellgen.jax.TARGET)]


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",))


def spread(cell: cellgen.jax.CellFunction, given: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Arrays whose rows are shared by the two devices; weights lie on both."""
    return {
        item.name: jax.device_put(given[item.name], NamedSharding(mesh(), spec(item.shape)))
        for item in cell.layout.theta
    }


def spec(axes: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(*("rows" if axis == "B" else None for axis in axes))


def near(found: object, wanted: object) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["gru", *(pytest.param(n, marks=pytest.mark.slow) for n in ("janet", "lstm"))]
)
def test_rows_stay_where_they_are(name: str) -> None:
    cell = function(name)
    given = drawn(cell, B=4)
    shared = spread(cell, given)
    mask = jax.device_put(np.ones((3, 4), bool), NamedSharding(mesh(), spec(("T", "B"))))
    run = jax.jit(lambda a, mask: call(cell, a, mask=mask))
    found = run(shared, mask)
    np.testing.assert_array_equal(found.h, call(cell, given).h)
    assert found.h.sharding.spec == PartitionSpec(None, "rows")
    assert run.lower(shared, mask).compile().as_text().count("all-gather(") == 0


def test_gradients_of_weights_are_added_up_across_devices() -> None:
    cell = function("elman")
    given = drawn(cell, B=4)
    shared = spread(cell, given)
    loss = lambda run: lambda a: jnp.sin(run(a)[0]).sum()
    grad = jax.jit(jax.grad(loss(lambda a: call(cell, a))))
    by_loop = jax.jit(jax.grad(loss(lambda a: loop("elman", a))))
    near(grad(shared), by_loop(given))
    text = grad.lower(shared).compile().as_text()
    assert text.count("all-gather(") == 0
    assert text.count("all-reduce(") >= 1
    hvp = lambda run: lambda a: jax.jvp(jax.grad(loss(run)), (a,), (a,))[1]
    found = jax.jit(hvp(lambda a: call(cell, a)))(shared)
    near(found, jax.jit(hvp(lambda a: loop("elman", a)))(given))


def test_shard_map_over_rows() -> None:
    cell = function("gru")
    given = drawn(cell, B=4)
    specs = {item.name: spec(item.shape) for item in cell.layout.theta}
    run = jax.shard_map(
        lambda a: call(cell, a).h,
        mesh=mesh(),
        in_specs=(specs,),
        out_specs=PartitionSpec(None, "rows"),
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(run)(given), call(cell, given).h)
    loss = lambda run: lambda a: jnp.sin(run(a)).sum()
    found = jax.jit(jax.grad(loss(run)))(given)
    near(found, jax.jit(jax.grad(loss(lambda a: call(cell, a).h)))(given))


def weights_of(cell: cellgen.jax.CellFunction, given: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: jnp.asarray(given[name]) for name in cell.params}


def test_gradients_within_shard_map_are_of_all_rows() -> None:
    cell = function("gru")
    given = drawn(cell, B=4)
    params, x, lengths = weights_of(cell, given), given["x"], np.array([3, 1, 2, 3])
    loss = lambda p, x, lengths: jnp.sin(cell(p, x, lengths=lengths).h).sum()
    grad = jax.grad(loss)
    along = lambda p, *rest: jax.jvp(lambda q: grad(q, *rest), (p,), (p,))[1]
    twice = lambda p, *rest: jax.vmap(lambda by: grad({n: by * q for n, q in p.items()}, *rest))(
        jnp.array([1.0, 2.0])
    )
    rows = PartitionSpec(None, "rows"), PartitionSpec("rows")
    every = lambda *given: (along(*given), twice(*given), grad(*given))
    where = {"mesh": mesh(), "in_specs": (PartitionSpec(), *rows), "out_specs": PartitionSpec()}
    given = params, x, lengths
    near(jax.jit(jax.shard_map(every, **where))(*given), jax.jit(every)(*given))
    near(jax.shard_map(grad, **where)(*given), grad(*given))  # outside of a program


def test_shard_map_over_some_axes_of_a_mesh() -> None:
    cell = function("gru")
    given = drawn(cell, B=4)
    grad = jax.grad(lambda p, x: jnp.sin(cell(p, x).h).sum())
    run = jax.shard_map(
        grad,
        mesh=Mesh(np.array(jax.devices()).reshape(2, 1), ("rows", "others")),
        in_specs=(PartitionSpec(), PartitionSpec(None, "rows")),
        out_specs=PartitionSpec(),
        axis_names={"rows"},
    )
    params = weights_of(cell, given)
    near(jax.jit(run)(params, given["x"]), jax.jit(grad)(params, given["x"]))


def test_shard_map_knows_that_results_differ_from_device_to_device() -> None:
    cell = function("gru")
    given = drawn(cell, B=4)
    params = weights_of(cell, given)
    own = lambda x: cell(params, x).h.sum()
    specs = {"mesh": mesh(), "in_specs": PartitionSpec(None, "rows"), "out_specs": PartitionSpec()}
    with pytest.raises(ValueError, match="replication"):
        jax.shard_map(own, **specs)(given["x"])
    found = jax.jit(jax.shard_map(lambda x: jax.lax.psum(own(x), "rows"), **specs))(given["x"])
    near(found, jax.jit(own)(given["x"]))


def test_donated_buffers_may_be_reused() -> None:
    cell = function("gru")
    given = drawn(cell)
    wanted = call(cell, given).h_last
    params = {name: given[name] for name in cell.params}
    step = jax.jit(lambda p, x, h: cell(p, x, h).h_last, donate_argnums=2)
    h = jnp.array(given["h_prev"])
    np.testing.assert_array_equal(step(params, given["x"], h), wanted)
    assert h.is_deleted()


def test_programs_are_lowered_and_compiled_ahead_of_time() -> None:
    cell = function("lstm")
    given = drawn(cell)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), given)
    compiled = jax.jit(lambda a: tuple(call(cell, a))).lower(shapes).compile()
    for one, other in zip(compiled(given), call(cell, given), strict=True):
        np.testing.assert_array_equal(one, other)


SCRIPT = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import cellgen.jax
import numpy as np
{before}
program = jax.export.deserialize(open(sys.argv[1], "rb").read())
given = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], jax.jit(program.call)(given))
"""


class Own(Cell):
    """A cell of one's own that a program may name."""

    x, h_prev = Input(I), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)
    h = sigmoid(x @ w + h_prev @ u + b)


UNKNOWN_FIRST = """
try:
    jax.jit(jax.export.deserialize(open(sys.argv[1], "rb").read()).call)(dict(np.load(sys.argv[2])))
except Exception as error:
    print(error)
from tests.jax.test_jax_devices import Own
cellgen.jax.function(Own)
"""


def elsewhere(
    tmp_path: Path, exported: jax.export.Exported, given: dict[str, np.ndarray], before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run an exported program in another process, which writes ``found.npy``."""
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "given.npz", **given)
    files = (tmp_path / "program", tmp_path / "given.npz", tmp_path / "found.npy")
    command = [sys.executable, "-c", SCRIPT.format(before=before), *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def shapes_of(given: dict[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in given.items()}


def test_an_exported_gradient_runs_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    cell = function("elman")
    given = drawn(cell)
    f = jax.jit(lambda a: jax.grad(lambda w: call(cell, a | {"w": w}).h.sum())(a["w"]))
    exported = jax.export.export(f, disabled_checks=ALLOWED)(shapes_of(given))
    done = elsewhere(tmp_path, exported, given)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), f(given))


def test_an_exported_cell_of_ones_own_must_be_known_there(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    cell = cellgen.jax.function(Own)
    given = drawn(cell)
    f = jax.jit(lambda a: call(cell, a).h)
    exported = jax.export.export(f, disabled_checks=ALLOWED)(shapes_of(given))
    done = elsewhere(tmp_path, exported, given, UNKNOWN_FIRST)
    assert "this process does not know the cell; call cellgen.jax.function" in done.stdout
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), f(given))


def test_an_exported_program_has_any_number_of_rows_and_steps() -> None:
    cell = function("gru")
    given = drawn(cell)
    t, b = jax.export.symbolic_shape("t, b")
    shapes = shapes_of(given) | {
        "x": jax.ShapeDtypeStruct((t, b, 2), jnp.float64),
        "h_prev": jax.ShapeDtypeStruct((b, 3), jnp.float64),
    }
    f = jax.jit(lambda a: call(cell, a).h)
    exported = jax.export.export(f, disabled_checks=ALLOWED)(shapes)
    for sizes in ({}, {"T": 7, "B": 5}):
        own = drawn(cell, **sizes)
        np.testing.assert_array_equal(exported.call(own), f(own))


def test_other_devices_are_refused_by_jax() -> None:
    cell = function("gru")
    given = drawn(cell)
    f = jax.jit(lambda a: call(cell, a).h)
    with warnings.catch_warnings(), pytest.raises(NotImplementedError, match="cellgen_forward"):
        jax.export.export(f, platforms=["rocm"], disabled_checks=ALLOWED)(shapes_of(given))


CACHED = """
import sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import cellgen.jax
import numpy as np
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
cell = cellgen.jax.function(sys.argv[2])
given = dict(np.load(sys.argv[3]))
params = {name: given[name] for name in cell.params}
np.save(sys.argv[4], jax.jit(lambda p, x: cell(p, x).h)(params, given["x"]))
print("/jax/compilation_cache/cache_hits" in hits)
"""


def test_a_program_from_jaxs_cache_on_disk_means_the_same_in_another_process(
    tmp_path: Path,
) -> None:
    given = drawn(function("elman"), "float32")
    np.savez(tmp_path / "given.npz", **given)
    said = []
    for number in range(2):
        places = (tmp_path / "cache", "elman", tmp_path / "given.npz", tmp_path / f"{number}.npy")
        command = [sys.executable, "-c", CACHED, *map(str, places)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        said.append(done.stdout.strip())
    assert said == ["False", "True"]
    params = {name: given[name] for name in function("elman").params}
    wanted = function("elman")(params, given["x"]).h
    for number in range(2):
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}.npy"), wanted)

"""Prove and time cells of JAX on a device: one command, some minutes, run where there is one.

    python -m tests.jax.device_check              # all of it
    python -m tests.jax.device_check --no-bench   # the cases alone
    python -m tests.jax.device_check --cells lstm # of these cells
    python -m tests.jax.device_check --emulated   # the cases on the CPU, by emulated kernels

Prints a line for each case: the largest difference from the CPU's result, as a part of the largest
entry, and what is allowed. Ends with 1 where a case fails, with 0 where there is no device. It
needs JAX with CUDA, nvcc or NVRTC, a C compiler, and no network.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).parents[2]))

import cellgen.jax
from tests.jax.arrays import call, drawn, loop
from tests.jax.emulated import emulated_device, two_devices

BARS = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.05, "float16": 0.00625}
"""Of sums over some steps of some products of small numbers, as a part of the largest entry."""
CELLS = ("elman", "gru", "lstm", "sru", "janet", "slstm_heads", "min_gru")
SHAPES = ((100, 32, 128, 256), (256, 16, 256, 512))
"""T, B, I, H of what is timed."""
T, B = 5, 4

Arrays = Mapping[str, Any]
Run = Callable[[cellgen.jax.CellFunction, Arrays], Any]
MASK = np.arange(T * B).reshape(T, B) % 5 != 1
RESET = np.arange(T * B).reshape(T, B) % 7 == 3


def weighted(found: Any) -> jax.Array:
    """A number that depends on every entry of every output."""
    shown = [a.astype(jnp.promote_types(a.dtype, "float32")) for a in found if a is not None]
    each = (jnp.sin(a) * jnp.linspace(0.5, 1.5, a.shape[-1], dtype=a.dtype) for a in shown)
    return sum(jnp.sum(array) for array in each)


def trained(**options: object) -> Run:
    """What a call shows, and its gradients by everything, in one program."""

    def run(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
        def loss(arrays: Arrays) -> Any:
            found = call(cell, arrays, **options)
            return weighted(found), tuple(a for a in found if a is not None)

        return jax.jit(lambda a: (call(cell, a, **options), jax.grad(loss, has_aux=True)(a)))(given)

    return run


def by_sample(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
    """Calls, and gradients, of single rows with weights that all share; then of several weights."""
    rows = {i.name: i.shape.index("B") for i in cell.layout.theta if "B" in i.shape}
    axes = ({name: rows.get(name) for name in given},)

    def alone(arrays: Arrays) -> jax.Array:
        one = {n: jnp.expand_dims(a, rows[n]) if n in rows else a for n, a in arrays.items()}
        return weighted(call(cell, one))

    several = {n: jnp.stack([a, 2 * a]) for n, a in given.items() if n in cell.params and a.ndim}
    others = {n: a for n, a in given.items() if n not in several}
    each = jax.vmap(jax.value_and_grad(alone), in_axes=axes)
    many = jax.vmap(lambda some: call(cell, {**others, **some}))
    return jax.jit(each)(given), jax.jit(many)(several)


def twice(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
    """Forward mode, and a Hessian times a vector."""

    def loss(arrays: Arrays) -> jax.Array:
        return weighted(call(cell, arrays))

    along = {n: jnp.cos(a) for n, a in given.items()}
    run = lambda a, v: (jax.jvp(loss, (a,), (v,)), jax.jvp(jax.grad(loss), (a,), (v,)))
    return jax.jit(run)(given, along)


def penalty(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
    """Gradients of the square of a gradient by the input, along which alone a tangent is."""
    first = cell.inputs[0]

    def loss(arrays: Arrays) -> jax.Array:
        slope = jax.grad(lambda x: weighted(call(cell, {**arrays, first: x})))(arrays[first])
        return (slope**2).sum()

    return jax.jit(jax.grad(loss))(given)


def sharded(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
    """Rows on two devices: gradients of weights are added up across them, nothing is gathered."""
    device = next(iter(jax.tree.leaves(given)[0].devices()))
    mesh = Mesh(np.array(jax.devices(device.platform)[:2]), ("rows",))
    spec = {
        i.name: PartitionSpec(*("rows" if axis == "B" else None for axis in i.shape))
        for i in (*cell.layout.theta, *cell.layout.scalars)
    }
    there = {n: jax.device_put(a, NamedSharding(mesh, spec[n])) for n, a in given.items()}
    run = jax.jit(lambda a: (call(cell, a).h, jax.grad(lambda a: weighted(call(cell, a)))(a)))
    assert run.lower(there).compile().as_text().count("all-gather(") == 0
    mapped = jax.shard_map(
        lambda a: call(cell, a).h,
        mesh=mesh,
        in_specs=({n: spec[n] for n in given},),
        out_specs=PartitionSpec(None, "rows"),
        check_vma=False,
    )
    return run(there), jax.jit(mapped)(there)


def empty(cell: cellgen.jax.CellFunction, given: Arrays) -> Any:
    """No rows, and no steps."""
    found = []
    for axis in ("B", "T"):
        none = {}
        for item in cell.layout.theta:
            at = item.shape.index(axis) if axis in item.shape else None
            array = given[item.name]
            none[item.name] = array if at is None else jax.lax.slice_in_dim(array, 0, 0, axis=at)
        found += trained()(cell, none)
    return found


CASES: dict[str, tuple[Run, str]] = {
    **{dtype: (trained(), dtype) for dtype in BARS},
    "tables": (
        trained(lengths=np.array([5, 0, 3, 4]), mask=MASK, reset=RESET, reverse=True),
        "float32",
    ),
    "zeros for masked steps": (trained(mask=MASK, zero_output_for_mask=True), "bfloat16"),
    "window": (trained(window=2), "float32"),
    "every": (trained(every=2), "float32"),
    "last_only": (trained(last_only=True, lengths=np.array([5, 0, 3, 4])), "float32"),
    "outputs": (trained(outputs=()), "float32"),
    "single samples": (by_sample, "float64"),
    "second order": (twice, "float64"),
    "second order in bfloat16": (twice, "bfloat16"),
    "gradient penalty": (penalty, "float64"),
    "nothing": (empty, "float32"),
    "two devices": (sharded, "float64"),
}
"""What is run, and the type of its arrays, by name."""


def arrays_of(cell: cellgen.jax.CellFunction, dtype: str) -> dict[str, jax.Array]:
    """Arrays of a call, and its scalars, in a type; scalars that do not learn are not rounded."""
    wide = dtype if dtype == "float64" else "float32"
    given = {n: jnp.asarray(a, dtype) for n, a in drawn(cell, wide, T=T, B=B).items()}
    return given | {i.name: jnp.asarray(i.default, wide) for i in cell.layout.scalars}


def apart(name: str, cell_name: str, *, emulated: bool) -> float:
    """The largest difference between what the CPU gives and what the device gives."""
    run, dtype = CASES[name]
    cell = cellgen.jax.function(cell_name)
    given = arrays_of(cell, dtype)
    if emulated:
        wanted = run(cell, given)
        places = two_devices(cell_name) if run is sharded else contextlib.nullcontext()
        with emulated_device() as there, places:
            calls = there.calls
            found = run(cell, given)
            jax.block_until_ready(found)
            assert there.calls > calls, "no kernel was launched"
    else:
        on = {kind: jax.devices(kind)[0] for kind in ("cpu", "cuda")}
        wanted, found = (run(cell, jax.device_put(given, on[kind])) for kind in on)
    return largest(wanted, found)


def largest(wanted: Any, found: Any) -> float:
    """The largest difference, each array's as a part of its largest entry; inf for NaN."""
    worst = 0.0
    pairs = zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True)
    for one, other in ((np.asarray(a), np.asarray(b)) for a, b in pairs):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return float("inf")
        near, wide = other.astype(np.float64), one.astype(np.float64)
        if not np.isfinite(near).all():
            return float("inf")
        scale = max(float(np.abs(wide).max(initial=0)), 1e-3)
        worst = max(worst, float(np.abs(wide - near).max(initial=0)) / scale)
    return worst


def cases(emulated: bool) -> tuple[str, ...]:
    """The cases that there are devices for."""
    several = emulated or len(jax.devices("cuda")) > 1
    return tuple(name for name in CASES if several or CASES[name][0] is not sharded)


def check(cells: tuple[str, ...], *, emulated: bool) -> int:
    """Run cases, print their lines, count what failed."""
    failed = 0
    for cell in cells:
        for name in cases(emulated):
            begun, bar = time.perf_counter(), BARS[CASES[name][1]]
            try:
                found = apart(name, cell, emulated=emulated)
            except Exception:  # one that fails must not hide the others
                found = float("inf")
                traceback.print_exc()
            failed += not found <= bar
            said = f"{found:.1e} (at most {bar:.0e})  [{time.perf_counter() - begun:.1f} s]"
            print(f"{'ok  ' if found <= bar else 'FAIL'} {cell}, {name:32} {said}", flush=True)
    return failed


def bench() -> None:
    """Time the GRU beside the same equations by ``lax.scan``, forward and with backward."""
    cell = cellgen.jax.function("gru")
    for shape in SHAPES:
        sizes = dict(zip("TBIH", shape, strict=True))
        for dtype in ("float32", "bfloat16"):
            given = {n: jnp.asarray(a, dtype) for n, a in drawn(cell, "float32", **sizes).items()}
            given = jax.device_put(given, jax.devices("cuda")[0])
            said = []
            for run in (lambda a: call(cell, a)[0], lambda a: loop("gru", a)[0]):
                grad = jax.grad(lambda a, run=run: run(a).astype("float32").sum())
                said += [milliseconds(jax.jit(run), given), milliseconds(jax.jit(grad), given)]
            ours, own = (f"{a:.3f} / {b:.3f} ms" for a, b in (said[:2], said[2:]))
            print(f"GRU {shape} {dtype:8}: {ours}, by lax.scan {own}", flush=True)


def milliseconds(run: Callable[..., Any], given: Arrays, calls: int = 20) -> float:
    """Of a call among several in a row, the least of five rounds."""
    jax.block_until_ready(run(given))
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(calls):
            found = run(given)
        jax.block_until_ready(found)
        best = min(best, (time.perf_counter() - begun) / calls)
    return best * 1e3


def has_device() -> bool:
    """Whether JAX has a device of CUDA."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(CELLS), help="these, comma-separated")
    parser.add_argument("--no-bench", action="store_true", help="time nothing")
    parser.add_argument("--emulated", action="store_true", help="on the CPU, by emulated kernels")
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    if not chosen.emulated and not has_device():
        print("JAX has no device of CUDA: nothing was run; --emulated needs none")
        return 0
    place = "emulated on the CPU" if chosen.emulated else jax.devices("cuda")[0].device_kind
    print(f"JAX {jax.__version__}, {place}")
    failed = check(tuple(chosen.cells.split(",")), emulated=chosen.emulated)
    if not chosen.emulated and not chosen.no_bench:
        bench()
    print(f"\n{f'{failed} cases failed' if failed else 'all cases passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare kernels with numbers that the peer libraries computed: TensorFlow, PyTorch, JAX.

Input: a kernel and the files of ``tests/golden`` (a checkout has them, a wheel does not). Output:
``Measurement``, one per array, and the bars of decision 23. A peer's case is one step (TensorFlow,
PyTorch's cells) or a short sequence (JAX), which is run here in two ways: as steps with NumPy
around them, forward in time, then back through backward and weight_gradients; and over time, by
sequence_forward and sequence_backward.
Not supported: the peers' sequence functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from cellgen.runtime.kernel import Kernel, Results
from cellgen.runtime.paths import PACKAGE, in_checkout

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]
Attributes: TypeAlias = Mapping[str, float]
Run: TypeAlias = Callable[[Kernel, Arrays, Attributes], Arrays]

FLOAT32_WORST = 2.0
"""Decision 23: the worst case is at most twice the peer's own worst float32 error."""

FLOAT32_MEDIAN = 1.0
"""Decision 23: the median over a group's arrays is not above the peer's figure."""

FLOAT64_BAR = 1e-13
"""Decision 23: float64 agrees relative to the largest entry of the array."""

SMALL = 1e-3
"""Share of the largest entry that ``elt`` adds to each entry, as golden/README.md does."""


@dataclass(frozen=True)
class Measurement:
    """One array of one case: ``nrm`` is relative to the largest entry, ``elt`` entry by entry.

    ``group`` is the peer's row in the accuracy table; ``peer_nrm`` and ``peer_elt`` are the errors
    of the peer's own float32 run on this array (None where the peer has none).
    """

    group: str
    case: str
    array: str
    nrm: float
    elt: float
    peer_nrm: float | None
    peer_elt: float | None


@dataclass(frozen=True)
class Peer:
    """Which files a cell is compared with, and how a file's case is run with its kernel.

    ``attributes`` are those a file must have; ``exact`` chooses the masked derivative of the clip
    (``true64``) over TensorFlow's.
    """

    files: str
    run: Run
    attributes: tuple[tuple[str, object], ...] = ()
    exact: bool = False


def folder() -> Path | None:
    """Return the folder of golden files, or None outside a checkout."""
    path = PACKAGE.parent / "tests" / "golden"
    return path if in_checkout() and (path / "index.json").is_file() else None


# --- how a peer's case is run --------------------------------------------------------------------


def _given(kernel: Kernel, function: str, known: Mapping[str, Array | float]) -> Results:
    """Call a function with those of the known values that it accepts."""
    called = kernel.functions[function]
    names = [a.name for a in called.function.arguments if a.name in known]
    arguments: dict[str, object] = {name: known[name] for name in names}
    return called(out=None, **arguments)


def _step_gradients(kernel: Kernel, known: Mapping[str, Array | float]) -> Arrays:
    """Run backward and what follows it; returns every gradient by name."""
    everything, found = dict(known), Arrays()
    for function in ("backward", "input_gradients", "weight_gradients"):
        if function in kernel.functions:
            results = _given(kernel, function, everything)
            found |= dict(zip(results._fields, results, strict=True))
            everything |= found
    return found


def _forward(kernel: Kernel, known: Mapping[str, Array | float]) -> Arrays:
    results = _given(kernel, "forward", known)
    return dict(zip(results._fields, results, strict=True))


def run_tf_gru(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """TensorFlow's GRUBlockCell and its gradient: the names are the cell's own."""
    names = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c", "d_h")
    known = {name: z[name] for name in names}
    outputs = _forward(kernel, known)
    return {**outputs, **_step_gradients(kernel, {**known, **outputs})}


_TF_LSTM_GRADIENTS = {
    "cs_prev_grad": "d_cs_prev",
    "dicfo": "d_icfo",
    "wci_grad": "d_wci",
    "wcf_grad": "d_wcf",
    "wco_grad": "d_wco",
    "x_grad": "d_x",
    "h_prev_grad": "d_h_prev",
    "w_grad": "d_w",
    "b_grad": "d_b",
}


def run_tf_lstm(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """TensorFlow's LSTMBlockCell and its gradient; without peepholes theirs are zero."""
    names = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")
    known: dict[str, Array | float] = {name: z[name] for name in names}
    known |= {name: float(attributes[name]) for name in ("forget_bias", "cell_clip")}
    outputs = _forward(kernel, known)
    upstream = {"d_cs": z["cs_grad"], "d_h": z["h_grad"]}
    found = _step_gradients(kernel, {**known, **outputs, **upstream})
    zero = np.zeros_like(z["wci"])
    return {**outputs, **{k: found.get(name, zero) for k, name in _TF_LSTM_GRADIENTS.items()}}


@dataclass(frozen=True)
class _Case:
    """A file of JAX's by the names of the cell: ``inputs`` tells which each of its arrays has."""

    inputs: Mapping[str, str]
    states: tuple[str, ...]
    given: Arrays
    scalars: Mapping[str, float]

    @property
    def over_time(self) -> tuple[str, ...]:
        return tuple(name for name in ("x", "ts") if name in self.given)


def _case(kernel: Kernel, z: Arrays, attributes: Attributes) -> _Case:
    """Name JAX's arrays: ``W_z`` is ``w_z``, ``h0`` the first ``h_prev``; (T, B, .) throughout.

    An array takes the axes that the cell gives it: ``ts`` (T, B) is (T, B, 1), units are (heads,
    units of a head), one head has no axis; one that stacks layers, ``R_h`` (L, H, H), is ``r_h_1``,
    ``r_h_2``, ... Numbers of the file's record that the cell has as run-time scalars are given.
    """
    states = tuple(key[:-1] for key in z if key.endswith("0") and f"cot.{key[:-1]}" in z)
    names = {f"{state}0": f"{state}_prev" for state in states}
    inputs = {key: names.get(key, key.lower()) for key in z if "." not in key}
    axes = {a.name: len(a.shape) for a in kernel.forward.function.arguments}
    given = Arrays()
    for key, name in inputs.items():
        if name in axes:
            rank = axes[name] + (name in ("x", "ts"))
            given[name] = _with_axes(z[key], rank, int(attributes.get("heads", 1)))
        else:
            given |= {f"{name}_{layer}": part for layer, part in enumerate(z[key], start=1)}
    return _Case(inputs, states, given, {k: v for k, v in attributes.items() if axes.get(k) == 0})


def run_jax(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """JAX's sequences step by step, states and gradients handed on by NumPy; see ``_case``."""
    case = _case(kernel, z, attributes)
    given, over_time = dict(case.given), case.over_time
    carried = {f"{state}_prev": given.pop(f"{state}_prev") for state in case.states}
    weights = {name: array for name, array in given.items() if name not in over_time}
    steps = []
    for time in range(len(z["x"])):
        known = {n: given[n][time] for n in over_time} | weights | carried | dict(case.scalars)
        outputs = _forward(kernel, known)
        steps.append((known, outputs))
        carried = {f"{state}_prev": outputs[state] for state in case.states}
    cotangents = {
        name: z[f"cot.{name}"].reshape(len(steps), *output.shape)
        for name, output in steps[0][1].items()
    }
    found = {
        name: np.stack([outputs[name] for _, outputs in steps]).reshape(z[f"cot.{name}"].shape)
        for name in cotangents
    }
    gradients = _back_through_time(kernel, steps, cotangents, case.states, over_time)
    return {**found, **{f"grad.{k}": _as_given(n, gradients, z[k]) for k, n in case.inputs.items()}}


def run_jax_over_time(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
    """JAX's sequences by the functions over time; see ``_case``."""
    case = _case(kernel, z, attributes)
    known: dict[str, Array | float] = {**case.given, **case.scalars}
    result = kernel.functions["sequence_forward"](out=None, **known, save=True)
    items = kernel.functions["sequence_forward"].function.results
    outputs = {item.name: getattr(result, item.name) for item in items if item.over_time}
    upstream = {f"d_{n}": z[f"cot.{n}"].reshape(a.shape) for n, a in outputs.items()}
    gradients = kernel.functions["sequence_backward"](
        out=None, **known, **outputs, **upstream, saved=result.saved
    )._asdict()
    found = {name: array.reshape(z[f"cot.{name}"].shape) for name, array in outputs.items()}
    return {**found, **{f"grad.{k}": _as_given(n, gradients, z[k]) for k, n in case.inputs.items()}}


def _with_axes(array: Array, rank: int, heads: int) -> Array:
    """A file's array with the cell's axes."""
    if array.ndim > rank:
        return array.reshape(array.shape[array.ndim - rank :])
    if array.ndim < rank and heads > 1:
        return array.reshape(*array.shape[:-1], heads, -1)
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def _as_given(name: str, gradients: Arrays, like: Array) -> Array:
    """The gradient of a file's array, in its own shape."""
    if f"d_{name}" in gradients:
        return gradients[f"d_{name}"].reshape(like.shape)
    layers = range(1, len(like) + 1)
    return np.stack([gradients[f"d_{name}_{layer}"] for layer in layers])


def _back_through_time(
    kernel: Kernel,
    steps: Sequence[tuple[Mapping[str, Array | float], Arrays]],
    cotangents: Arrays,
    states: Sequence[str],
    over_time: Sequence[str],
) -> Arrays:
    """Run the steps backwards: states hand gradients on, weights sum them, inputs keep them."""
    carried = {state: np.zeros_like(steps[0][1][state]) for state in states}
    sums, kept = Arrays(), {name: list[Array]() for name in over_time}
    for time in reversed(range(len(steps))):
        known, outputs = steps[time]
        upstream = {f"d_{s}": a[time] + carried.get(s, 0) for s, a in cotangents.items()}
        found = _step_gradients(kernel, {**known, **outputs, **upstream})
        carried = {state: found[f"d_{state}_prev"] for state in states}
        for name in over_time:
            kept[name].insert(0, found[f"d_{name}"])
        for name, array in found.items():
            sums[name] = sums[name] + array if name in sums else array
    firsts = {f"d_{state}_prev": array for state, array in carried.items()}
    return {**sums, **firsts, **{f"d_{name}": np.stack(rows) for name, rows in kept.items()}}


def run_torch(gates: str) -> Run:
    """PyTorch's cells: gates are row blocks of transposed weights, in the order of ``gates``.

    ``y = x weight_ih^T + bias_ih + h weight_hh^T + bias_hh``; the two biases are added where only
    their sum matters, which is everywhere but in the GRU's n (``b_n``, ``c_n``). Both then have the
    gradient of the sum.
    """

    def run(kernel: Kernel, z: Arrays, attributes: Attributes) -> Arrays:
        known = {"x": z["input"], "h_prev": z["h_0"]} | _torch_weights(z, gates)
        if "c_0" in z:
            known["c_prev"] = z["c_0"]
        outputs = _forward(kernel, known)
        upstream = {f"d_{s}": z[f"cot.{s}_1"] for s in "hc" if f"cot.{s}_1" in z}
        found = _step_gradients(kernel, {**known, **outputs, **upstream})
        results = {f"{s}_1": outputs[s] for s in "hc" if s in outputs}
        results |= {"grad.input": found["d_x"], "grad.h_0": found["d_h_prev"]}
        if "c_0" in z:
            results["grad.c_0"] = found["d_c_prev"]
        return results | _torch_gradients(found, gates)

    return run


def _suffix(gate: str) -> str:
    return f"_{gate}" if gate else ""


def _torch_weights(z: Arrays, gates: str) -> Arrays:
    known, parts = Arrays(), list(gates) or [""]
    none = np.zeros(z["weight_ih"].shape[0], z["weight_ih"].dtype)
    blocks = {
        key: np.split(z.get(key, none), len(parts))
        for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    for index, gate in enumerate(map(_suffix, parts)):
        known[f"w{gate}"] = np.ascontiguousarray(blocks["weight_ih"][index].T)
        known[f"u{gate}"] = np.ascontiguousarray(blocks["weight_hh"][index].T)
        if gate == "_n":
            known["b_n"], known["c_n"] = blocks["bias_ih"][index], blocks["bias_hh"][index]
        else:
            known[f"b{gate}"] = blocks["bias_ih"][index] + blocks["bias_hh"][index]
    return known


def _torch_gradients(found: Arrays, gates: str) -> Arrays:
    names = [_suffix(gate) for gate in (list(gates) or [""])]
    recurrent = ["d_c_n" if name == "_n" else f"d_b{name}" for name in names]
    return {
        "grad.weight_ih": np.concatenate([found[f"d_w{name}"].T for name in names]),
        "grad.weight_hh": np.concatenate([found[f"d_u{name}"].T for name in names]),
        "grad.bias_ih": np.concatenate([found[f"d_b{name}"] for name in names]),
        "grad.bias_hh": np.concatenate([found[name] for name in recurrent]),
    }


def _tf_lstm(peephole: bool, exact: bool) -> Peer:
    return Peer("tf/lstm_block_cell_*", run_tf_lstm, (("use_peephole", peephole),), exact)


PEERS: Mapping[str, tuple[Peer, ...]] = {
    "elman": (Peer("torch/rnncell_tanh_*", run_torch("")),),
    "elman_relu": (Peer("torch/rnncell_relu_*", run_torch("")),),
    "gru": (Peer("torch/grucell_*", run_torch("rzn")), Peer("cells/gru_reset_after_*", run_jax)),
    "gru_block_cell": (Peer("tf/gru_block_cell_*", run_tf_gru),),
    "gru_reset_before": (Peer("cells/gru_reset_before_*", run_jax),),
    "lstm": (Peer("torch/lstmcell_*", run_torch("ifgo")), Peer("cells/lstm_a_*", run_jax)),
    "lstm_peephole": (Peer("cells/lstm_peephole_*", run_jax),),
    "lstm_block_cell": (_tf_lstm(True, False),),
    "lstm_block_cell_no_peephole": (_tf_lstm(False, False),),
    "lstm_block_cell_exact_clip": (_tf_lstm(True, True),),
    "lstm_block_cell_no_peephole_exact_clip": (_tf_lstm(False, True),),
    "cifg": (Peer("cells/cifg_*", run_jax),),
    "layer_norm_lstm": (Peer("cells/lnlstm_*", run_jax),),
    "slstm": (Peer("cells/slstm_sigf_heads1_*", run_jax),),
    "slstm_exp": (Peer("cells/slstm_expf_heads1_*", run_jax),),
    "slstm_heads": (Peer("cells/slstm_sigf_heads2_*", run_jax),),
    "slstm_exp_heads": (Peer("cells/slstm_expf_heads2_*", run_jax),),
    "mgu": (Peer("cells/mgu_*", run_jax),),
    "janet": (Peer("cells/janet_*", run_jax),),
    "li_gru": (Peer("cells/ligru_*", run_jax),),
    "ind_rnn": (Peer("cells/indrnn_tanh_*", run_jax),),
    "ind_rnn_relu": (Peer("cells/indrnn_relu_*", run_jax),),
    "sru": (Peer("cells/sru_highway_*", run_jax),),
    "sru_projection": (Peer("cells/sru_proj_*", run_jax),),
    "min_gru": (Peer("cells/mingru_a_*", run_jax),),
    "min_gru_log": (Peer("cells/mingru_g_a_*", run_jax),),
    "min_lstm": (Peer("cells/minlstm_*", run_jax),),
    "recurrent_highway_3": (Peer("cells/rhn_L3_coupled_*", run_jax),),
    "recurrent_highway_2_full": (Peer("cells/rhn_L2_full_*", run_jax),),
    "cfc": (Peer("cells/cfc_*", run_jax),),
    "lru": (Peer("cells/lru_*", run_jax),),
    "ltc": (Peer("cells/ltc_*", run_jax),),
}
"""The files that each shipped cell is compared with."""


# --- measuring -----------------------------------------------------------------------------------


OVER_TIME: Mapping[Run, Run] = {run_jax: run_jax_over_time}
"""How the cases of a run are run by the functions over time."""


def measure(kernel: Kernel, name: str, dtype: str, *, over_time: bool = False) -> list[Measurement]:
    """Compare a kernel with every case of its peers, in float32 or float64.

    With ``over_time``, sequences are run by the functions over time, and steps are left out. The
    reference is the peer's own float64 run, or the float64 evaluation that a file carries. A
    float16 case is computed in float32 and rounded.
    """
    root = folder()
    found: list[Measurement] = []
    for peer in PEERS.get(name, ()):
        run = OVER_TIME.get(peer.run) if over_time else peer.run
        if run is None:
            continue
        for path in sorted(root.glob(f"{peer.files}.npz")) if root else ():
            found += _measure_file(kernel, replace(peer, run=run), path, dtype)
    return found


def _measure_file(kernel: Kernel, peer: Peer, path: Path, dtype: str) -> Iterator[Measurement]:
    z, meta = read(path)
    wrong = any(meta["attrs"].get(key) != value for key, value in peer.attributes)
    twin = path.with_name(path.name.replace("_f32.", "_f64."))
    is_twin = path.name != twin.name
    if (
        wrong
        or path.name.endswith("_f64.npz")
        or (dtype == "float64" and meta["dtype"] == "float16")
    ):
        return
    inputs = [*meta["roles"]["inputs"], *meta["roles"]["cotangents"].values()]
    arrays = {key: z[key].astype(dtype) for key in inputs}
    reference = read(twin)[0] if is_twin else _reference(z, peer.exact)
    for array, value in peer.run(kernel, arrays, meta["attrs"]).items():
        if array in reference:
            rounded = value.astype(meta["dtype"]) if dtype == "float32" else value
            yield _measurement(meta, array, rounded, reference[array])


def read(path: Path) -> tuple[Arrays, Any]:
    """Read a golden file: its arrays, and its meta record."""
    with np.load(path) as z:
        return {k: z[k] for k in z.files if k != "meta"}, json.loads(str(z["meta"]))


def _reference(z: Arrays, exact: bool) -> Arrays:
    """Pick the float64 evaluation inside a TensorFlow file."""
    reference = {k.removeprefix("ref64."): a for k, a in z.items() if k.startswith("ref64.")}
    if exact:
        reference |= {k.removeprefix("true64."): a for k, a in z.items() if k.startswith("true64.")}
    return reference


def _measurement(meta: Any, array: str, value: Array, reference: Array) -> Measurement:
    group, op, case = _group(meta, array)
    peer = accuracy().get(op, {}).get(case, {}).get(array, (None, None))
    nrm, elt = _errors(value.astype(np.float64), reference)
    return Measurement(group, case, array, nrm, elt, *peer)


def _errors(value: Array, reference: Array) -> tuple[float, float]:
    """The two errors of golden/README.md; infinite where something is not finite."""
    difference, size = np.abs(value - reference), np.abs(reference)
    largest = float(size.max())
    if largest == 0 or not np.isfinite(difference).all():
        wrong = np.inf if difference.any() else 0.0
        return wrong, wrong
    return float(difference.max()) / largest, float((difference / (size + SMALL * largest)).max())


def _group(meta: Any, array: str) -> tuple[str, str, str]:
    """Name the row of the accuracy table, its op, and the case without its dtype."""
    case = str(meta["case"]).removesuffix("_f32")
    ops = str(meta["op"]).split("+")
    half = " float16" if meta["dtype"] == "float16" else ""
    is_gradient = array not in meta["roles"]["outputs"]
    op = ops[-1 if is_gradient else 0] + half
    saturated = " (sat)" if case.endswith("_sat") else ""
    return f"{op}{saturated} {'bwd' if is_gradient else 'fwd'}", op, case


@lru_cache(maxsize=1)
def accuracy() -> Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]:
    """Errors of the peers' own float32 runs: {op: {case: {array: (nrm, elt)}}}."""
    root = folder()
    return json.loads((root / "accuracy.json").read_text(encoding="utf-8")) if root else {}


@lru_cache(maxsize=1)
def peer_worst() -> Mapping[str, tuple[float, float]]:
    """The peers' worst float32 errors (nrm, elt) by group: the table of golden/README.md."""
    worst: dict[str, tuple[float, float]] = {}
    for op, cases in accuracy().items():
        for case, arrays in cases.items():
            for array, (nrm, elt) in arrays.items():
                group = f"{op}{' (sat)' if case.endswith('_sat') else ''} {_direction(op, array)}"
                known = worst.get(group, (0.0, 0.0))
                worst[group] = max(known[0], nrm), max(known[1], elt)
    return worst


def _direction(op: str, array: str) -> str:
    return "bwd" if "Grad" in op or array.startswith("grad.") else "fwd"


@dataclass(frozen=True)
class Standing:
    """One peer's float32 row against decision 23, as pairs (figure, bar).

    The bar of the worst case is twice the peer's own worst error, that of the median is that error.
    """

    group: str
    arrays: int
    worst_nrm: tuple[float, float]
    worst_elt: tuple[float, float]
    median_nrm: tuple[float, float]
    median_elt: tuple[float, float]

    @property
    def pairs(self) -> Mapping[str, tuple[float, float]]:
        return {
            "worst nrm": self.worst_nrm,
            "worst elt": self.worst_elt,
            "median nrm": self.median_nrm,
            "median elt": self.median_elt,
        }


def standings(measurements: Sequence[Measurement]) -> list[Standing]:
    """Set float32 measurements, group by group, against decision 23."""
    groups: dict[str, list[Measurement]] = {}
    for item in measurements:
        if item.peer_nrm is not None:
            groups.setdefault(item.group, []).append(item)
    return [_standing(group, items) for group, items in groups.items()]


def _standing(group: str, items: Sequence[Measurement]) -> Standing:
    peer_nrm, peer_elt = peer_worst()[group]
    nrm, elt = [item.nrm for item in items], [item.elt for item in items]
    return Standing(
        group,
        len(items),
        (max(nrm), FLOAT32_WORST * peer_nrm),
        (max(elt), FLOAT32_WORST * peer_elt),
        (median(nrm), FLOAT32_MEDIAN * peer_nrm),
        (median(elt), FLOAT32_MEDIAN * peer_elt),
    )

"""Run PyTorch's cases: one step of its cells."""

from __future__ import annotations

import numpy as np

from cellgen.proof.goldens.case import Arrays, Attributes, Run, forward, step_gradients
from cellgen.runtime.kernel import Kernel


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
        outputs = forward(kernel, known)
        upstream = {f"d_{s}": z[f"cot.{s}_1"] for s in "hc" if f"cot.{s}_1" in z}
        gradients = step_gradients(kernel, {**known, **outputs, **upstream})
        results = {f"{s}_1": outputs[s] for s in "hc" if s in outputs}
        results |= {"grad.input": gradients["d_x"], "grad.h_0": gradients["d_h_prev"]}
        if "c_0" in z:
            results["grad.c_0"] = gradients["d_c_prev"]
        return results | _torch_gradients(gradients, gates)

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


def _torch_gradients(gradients: Arrays, gates: str) -> Arrays:
    names = [_suffix(gate) for gate in (list(gates) or [""])]
    recurrent = ["d_c_n" if name == "_n" else f"d_b{name}" for name in names]
    return {
        "grad.weight_ih": np.concatenate([gradients[f"d_w{name}"].T for name in names]),
        "grad.weight_hh": np.concatenate([gradients[f"d_u{name}"].T for name in names]),
        "grad.bias_ih": np.concatenate([gradients[f"d_b{name}"] for name in names]),
        "grad.bias_hh": np.concatenate([gradients[name] for name in recurrent]),
    }

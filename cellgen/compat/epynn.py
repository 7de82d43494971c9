"""EpyNN's recurrent layers: the forward and backward passes of its GRU, LSTM and RNN.

Input and output: NumPy arrays in EpyNN's layouts (1.1): X (m, s, e) batch-major, parameters by
EpyNN's names, U (e, u), V (u, u), b (1, u); caches ``fc`` and ``bc`` (m, s, u) by its names.
Initial states are zero. m samples, s steps, e elements, u units.

    RNN : h_ = X U + hp V + b;  h = activate(h_)
    GRU : r = activate_reset(X Ur + hp Vr + br);  z = activate_update(X Uz + hp Vz + bz)
          hh = activate(X Uhh + (r hp) Vhh + bhh);  h = z hp + (1 - z) hh
    LSTM: f, i, o = activate_forget, activate_input, activate_output of X U + hp V + b
          g = activate_candidate(...);  C_ = Cp_ f + i g;  C = activate(C_);  h = o C

A trailing underscore is the value before the activation. In ``bc``, dhn is the gradient that comes
from the next step, dh the one sent to the previous step; in the GRU and LSTM dh_ is the total
gradient of h, in the RNN that of the pre-activation; dC_, dC and dCn are the same for the memory.

Everything is float64, as in EpyNN, unless ``dtype`` says float32. An activation is given by EpyNN's
name or as its function (tanh, sigmoid, relu, lrelu, elu, identity); each choice is a cell of its
own, generated and compiled when it is first used (which needs SymPy and a C compiler).

Where EpyNN is wrong or surprising, this is right:

* tanh is NaN there for |x| > 709; not here.
* elu and its derivative lose digits near 0 there; not here.
* lrelu with LRELU_alpha > 1: the derivative there is not that of max(a x, x).
* Its text names the GRU's arguments activate_output and activate_candidate; they are
  activate_update and activate_reset, here too.
* It keeps dz_ for the LSTM and never writes it: zeros, here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cellgen import accept, api
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]
Activation: TypeAlias = str | Callable[..., Any]

ACTIVATIONS = ("identity", "relu", "lrelu", "elu", "sigmoid", "tanh")
MAX_NORM = 0.25
"""What ``clip_gradients`` limits the norm of all parameter gradients to."""


@dataclass(frozen=True)
class Layer:
    """EpyNN's names of one layer, and the cell's: parameters, caches of both passes.

    ``previous`` maps a cache to the one that it holds one step later, ``following`` to the one that
    it holds one step earlier; ``unused`` caches are zero.
    """

    name: str
    parameters: Mapping[str, str]
    forward: Mapping[str, str]
    previous: Mapping[str, str]
    backward: Mapping[str, str]
    following: Mapping[str, str]
    unused: tuple[str, ...] = ()


def _parameters(*gates: str) -> dict[str, str]:
    """Name U, V and b of every gate: Uz is u_z."""
    return {
        f"{kind}{gate}": f"{kind.lower()}_{gate}" if gate else kind.lower()
        for gate in gates
        for kind in ("U", "V", "b")
    }


RNN = Layer(
    "rnn",
    _parameters(""),
    {"h_": "h_bar", "h": "h"},
    {"hp": "h"},
    {"dh_": "d_p_h_bar", "dh": "d_p_hp"},
    {"dhn": "dh"},
)
GRU = Layer(
    "gru",
    _parameters("z", "r", "hh"),
    {"h": "h", "hh_": "hh_bar", "hh": "hh", "z": "z", "z_": "z_bar", "r": "r", "r_": "r_bar"},
    {"hp": "h"},
    {"dh_": "d_p_h", "dh": "d_p_hp", "dhh_": "d_p_hh", "dz_": "d_p_z", "dr_": "d_p_r"},
    {"dhn": "dh"},
)
LSTM = Layer(
    "lstm",
    _parameters("f", "i", "g", "o"),
    {"h": "h", "C_": "c", "C": "c_act"}
    | {f"{gate}{bar}": f"{gate}{'_bar' if bar else ''}" for gate in "oifg" for bar in ("_", "")},
    {"hp": "h", "Cp_": "C_"},
    {"dh_": "d_p_h", "dh": "d_p_hp", "dC_": "d_p_c", "dC": "d_p_cp"}
    | {f"d{gate}_": f"d_p_{gate}" for gate in "ogif"},
    {"dhn": "dh", "dCn": "dC"},
    ("dz_",),
)


# --- the layers ----------------------------------------------------------------------------------


def rnn(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays]:
    """Run an RNN with parameters U, V, b; returns A and the cache fc: X, h_, h, hp, A.

    A is h (m, s, u), or its last step (m, u) where ``sequences`` is false.

    Raises:
        ArgumentError: a parameter that is missing, an unknown activation, shapes that do not agree.
    """
    kernel = _kernel(RNN.name, (_named("activate", activate),))
    return _forward(RNN, kernel, X, parameters, sequences, (LRELU_alpha, ELU_alpha), dtype)


def rnn_backward(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    fc: Mapping[str, ArrayLike],
    dA: ArrayLike,
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    clip_gradients: bool = True,
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays, Arrays]:
    """Differentiate ``rnn``; returns dX, the gradients dU, dV, db, and the cache bc.

    ``dA`` has the shape of A. ``clip_gradients`` (EpyNN's default here) scales all parameter
    gradients together to a norm of at most 0.25; dX and bc are not scaled.

    Raises:
        ArgumentError: as ``rnn``, and a cache that is missing.
    """
    kernel = _kernel(RNN.name, (_named("activate", activate),))
    alphas = LRELU_alpha, ELU_alpha
    return _backward(RNN, kernel, X, parameters, fc, dA, sequences, clip_gradients, alphas, dtype)


def gru(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    activate_update: Activation = "sigmoid",
    activate_reset: Activation = "sigmoid",
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays]:
    """Run a GRU with parameters U, V, b of z, r, hh; returns A and the cache fc.

    A is h (m, s, u), or its last step (m, u) where ``sequences`` is false; fc holds X, h, hp, hh_,
    hh, z, z_, r, r_, A.

    Raises:
        ArgumentError: a parameter that is missing, an unknown activation, shapes that do not agree.
    """
    kernel = _gru_kernel(activate, activate_update, activate_reset)
    return _forward(GRU, kernel, X, parameters, sequences, (LRELU_alpha, ELU_alpha), dtype)


def gru_backward(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    fc: Mapping[str, ArrayLike],
    dA: ArrayLike,
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    activate_update: Activation = "sigmoid",
    activate_reset: Activation = "sigmoid",
    clip_gradients: bool = False,
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays, Arrays]:
    """Differentiate ``gru``; returns dX, the gradients by parameter (dUz, ...), and the cache bc.

    ``clip_gradients`` as in ``rnn_backward``.

    Raises:
        ArgumentError: as ``gru``, and a cache that is missing.
    """
    kernel = _gru_kernel(activate, activate_update, activate_reset)
    alphas = LRELU_alpha, ELU_alpha
    return _backward(GRU, kernel, X, parameters, fc, dA, sequences, clip_gradients, alphas, dtype)


def lstm(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    activate_output: Activation = "sigmoid",
    activate_candidate: Activation = "tanh",
    activate_input: Activation = "sigmoid",
    activate_forget: Activation = "sigmoid",
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays]:
    """Run an LSTM with parameters U, V, b of f, i, g, o; returns A and the cache fc.

    A is h (m, s, u), or its last step (m, u) where ``sequences`` is false; fc holds X, h, hp, o_,
    o, i_, i, f_, f, g_, g, C_ (the memory), Cp_, C, A.

    Raises:
        ArgumentError: a parameter that is missing, an unknown activation, shapes that do not agree.
    """
    kernel = _lstm_kernel(
        activate, activate_output, activate_candidate, activate_input, activate_forget
    )
    return _forward(LSTM, kernel, X, parameters, sequences, (LRELU_alpha, ELU_alpha), dtype)


def lstm_backward(
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    fc: Mapping[str, ArrayLike],
    dA: ArrayLike,
    *,
    sequences: bool = True,
    activate: Activation = "tanh",
    activate_output: Activation = "sigmoid",
    activate_candidate: Activation = "tanh",
    activate_input: Activation = "sigmoid",
    activate_forget: Activation = "sigmoid",
    clip_gradients: bool = False,
    LRELU_alpha: float = 0.3,
    ELU_alpha: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, Arrays, Arrays]:
    """Differentiate ``lstm``; returns dX, the gradients by parameter (dUf, ...), and the cache bc.

    ``clip_gradients`` as in ``rnn_backward``.

    Raises:
        ArgumentError: as ``lstm``, and a cache that is missing.
    """
    kernel = _lstm_kernel(
        activate, activate_output, activate_candidate, activate_input, activate_forget
    )
    alphas = LRELU_alpha, ELU_alpha
    return _backward(LSTM, kernel, X, parameters, fc, dA, sequences, clip_gradients, alphas, dtype)


# --- kernels -------------------------------------------------------------------------------------


@cached
def _kernel(layer: str, activations: tuple[str, ...]) -> Kernel:
    """Generate and compile the cell of a layer with its activations; SymPy is imported here."""
    from cellgen.cells import epynn as cells

    make = {"rnn": cells.epynn_rnn, "gru": cells.epynn_gru, "lstm": cells.epynn_lstm}[layer]
    return api.compile(make(*activations))


def _gru_kernel(
    activate: Activation, activate_update: Activation, activate_reset: Activation
) -> Kernel:
    names = (
        _named("activate", activate),
        _named("activate_update", activate_update),
        _named("activate_reset", activate_reset),
    )
    return _kernel(GRU.name, names)


def _lstm_kernel(
    activate: Activation,
    activate_output: Activation,
    activate_candidate: Activation,
    activate_input: Activation,
    activate_forget: Activation,
) -> Kernel:
    names = (
        _named("activate", activate),
        _named("activate_output", activate_output),
        _named("activate_candidate", activate_candidate),
        _named("activate_input", activate_input),
        _named("activate_forget", activate_forget),
    )
    return _kernel(LSTM.name, names)


def _named(argument: str, activation: Activation) -> str:
    """Name an activation, which may be EpyNN's own function."""
    name = getattr(activation, "__name__", None) if callable(activation) else activation
    return accept.choice("epynn", argument, activation if name is None else name, ACTIVATIONS)


# --- both passes ---------------------------------------------------------------------------------


def _forward(
    layer: Layer,
    kernel: Kernel,
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    sequences: bool,
    alphas: tuple[float, float],
    dtype: DTypeLike,
) -> tuple[Array, Arrays]:
    label = f"epynn.{layer.name}"
    accept.flag(label, "sequences", sequences)
    x, known = _arguments(label, layer, kernel, X, parameters, dtype)
    if not sequences and not len(x):
        raise ArgumentError(
            f"{label}: X has shape {_swapped(x).shape}, expected a step at least, since A is that "
            f"of the last one; pass sequences=True"
        )
    scalars = _scalars(label, kernel, "sequence_forward", alphas)
    run = kernel.sequence_forward(out=None, **known, **scalars)
    fc = {"X": _swapped(x)}
    for cache, output in layer.forward.items():
        fc[cache] = _swapped(getattr(run, output))
    for cache, source in layer.previous.items():
        fc[cache] = np.zeros_like(fc[source])
        fc[cache][:, 1:] = fc[source][:, :-1]
    A = fc["h"] if sequences else fc["h"][:, -1]
    return A, fc | {"A": A}


def _backward(
    layer: Layer,
    kernel: Kernel,
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    fc: Mapping[str, ArrayLike],
    dA: ArrayLike,
    sequences: bool,
    clip_gradients: bool,
    alphas: tuple[float, float],
    dtype: DTypeLike,
) -> tuple[Array, Arrays, Arrays]:
    label = f"epynn.{layer.name}_backward"
    accept.flag(label, "sequences", sequences)
    accept.flag(label, "clip_gradients", clip_gradients)
    x, known = _arguments(label, layer, kernel, X, parameters, dtype)
    upstream = _upstream(layer, dA, known["p_hp"], sequences)
    caches = accept.names(label, "fc", fc, "caches")
    outputs = {output: _cache(layer, caches, cache, x) for cache, output in layer.forward.items()}
    scalars = _scalars(label, kernel, "sequence_backward", alphas)
    results = kernel.sequence_backward(out=None, **known, **outputs, **scalars, d_h=upstream)
    gradients = {
        f"d{name}": getattr(results, f"d_{own}").reshape(np.shape(parameters[name]))
        for name, own in layer.parameters.items()
    }
    bc = {cache: _swapped(getattr(results, result)) for cache, result in layer.backward.items()}
    for cache, source in layer.following.items():
        bc[cache] = np.zeros_like(bc[source])
        bc[cache][:, :-1] = bc[source][:, 1:]
    bc |= {cache: np.zeros_like(bc["dh"]) for cache in layer.unused}
    dX = _swapped(results.d_x)
    return (
        dX,
        _clipped(gradients) if clip_gradients else gradients,
        bc
        | {
            "dA": _swapped(upstream),
            "dX": dX,
        },
    )


def _arguments(
    label: str,
    layer: Layer,
    kernel: Kernel,
    X: ArrayLike,
    parameters: Mapping[str, ArrayLike],
    dtype: DTypeLike,
) -> tuple[Array, Arrays]:
    """Lay out X time-major, name the parameters, and make the zeros: states and ``p_`` inputs."""
    dtype, batch = accept.float_dtype(label, dtype), accept.array(label, "X", X)
    named = accept.names(label, "parameters", parameters, "parameters")
    missing = [name for name in layer.parameters if name not in named]
    if batch.ndim != 3 or missing:
        raise ArgumentError(
            f"{label}: X has shape {batch.shape}, expected (m, s, e); parameters lack "
            f"{', '.join(missing) or 'nothing'} of {', '.join(layer.parameters)}"
        )
    unknown = [name for name in named if name not in layer.parameters]
    if unknown:
        raise ArgumentError(
            f"{label}: parameters hold {', '.join(unknown)}, expected {', '.join(layer.parameters)}"
        )
    x = np.ascontiguousarray(_swapped(batch), dtype)
    known = {"x": x}
    for name, own in layer.parameters.items():
        array = accept.array(label, f"parameters[{name!r}]", named[name])
        if not array.ndim:
            raise ArgumentError(f"{label}: parameters[{name!r}] is a number, expected an array")
        bias = name.startswith("b") and array.ndim == 2 and len(array) == 1
        known[own] = np.ascontiguousarray(array[0] if bias else array, dtype)
    units = known[next(own for name, own in layer.parameters.items() if name[0] == "b")].shape[-1]
    steps = np.zeros((*x.shape[:2], units), dtype)
    start = np.zeros((x.shape[1], units), dtype)
    for argument in kernel.sequence_forward.function.arguments:
        if argument.role == "state":
            known[argument.name] = start
        elif argument.role == "input" and argument.name != "x":
            known[argument.name] = steps
    return x, known


def _upstream(layer: Layer, dA: ArrayLike, zeros: Array, sequences: bool) -> Array:
    """Lay out dA over all steps (s, m, u): as it is, or at the last one."""
    gradient = accept.array(f"epynn.{layer.name}_backward", "dA", dA)
    steps, rows, units = zeros.shape
    shape = (rows, steps, units) if sequences else (rows, units)
    if gradient.shape != shape:
        raise ArgumentError(
            f"epynn.{layer.name}_backward: dA has shape {gradient.shape}, expected {shape} with "
            f"sequences={sequences}"
        )
    upstream = zeros.copy()
    if sequences:
        upstream[:] = _swapped(gradient)
    elif steps:
        upstream[-1] = gradient
    return upstream


def _cache(layer: Layer, fc: Mapping[str, object], name: str, x: Array) -> Array:
    if name not in fc:
        raise ArgumentError(
            f"epynn.{layer.name}_backward: fc lacks {name!r}, expected what {layer.name} returned"
        )
    owner, label = f"epynn.{layer.name}_backward", f"fc[{name!r}]"
    array = accept.array(owner, label, fc[name])
    if array.ndim != 3:
        raise ArgumentError(f"{owner}: {label} has shape {array.shape}, expected (m, s, u)")
    return np.ascontiguousarray(_swapped(array), x.dtype)


def _scalars(
    label: str, kernel: Kernel, function: str, alphas: tuple[float, float]
) -> dict[str, float]:
    """Choose the parameters of activations that the cell has."""
    known = {argument.name for argument in kernel.functions[function].function.arguments}
    labels = ("LRELU_alpha", "ELU_alpha")
    slopes = [accept.real(label, n, value) for n, value in zip(labels, alphas, strict=True)]
    scalars = dict(zip(("lrelu_alpha", "elu_alpha"), slopes, strict=True))
    return {name: value for name, value in scalars.items() if name in known}


def _clipped(gradients: Arrays) -> Arrays:
    """Scale gradients together to a norm of at most ``MAX_NORM``."""
    norm = float(np.sqrt(sum(np.square(array).sum() for array in gradients.values())))
    if not norm > MAX_NORM:
        return gradients
    return {name: array * array.dtype.type(MAX_NORM / norm) for name, array in gradients.items()}


def _swapped(array: Array) -> Array:
    """Exchange samples and steps."""
    return array.swapaxes(0, 1)

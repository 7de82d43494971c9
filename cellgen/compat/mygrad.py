"""mygrad's GRU layer: ``mygrad.nnet.layers.gru`` and what its ``backward`` computes.

Input and output: NumPy arrays in mygrad's layouts (2.5.0): X (T, N, C), U* (C, D), W* (D, D),
b* (D,), S (T + 1, N, D). Anything that NumPy can read as an array passes, mygrad's tensors too.

    Z = sigmoid(X Uz + S' Wz + bz);  R = sigmoid(X Ur + S' Wr + br)
    H = tanh(X Uh + (R S') Wh + bh);  S = (1 - Z) H + Z S';  S[0] = s0 or 0

There are no tensors here, so ``gru`` returns an array, and ``gru_vjp`` the array and a function
that gives its gradients. The dtype is the largest of the ten inputs (not of s0), float32 or
float64; each gradient has the dtype of its own input.

Where mygrad is surprising, this is not:

* Its backward pass overwrites the gradient that it is given; ours writes to no argument.
* Its text says that ``bp_lim`` is not zero; 0 is allowed, here too.
* Plain arrays are constants there; here each gets a gradient, unless ``constant`` is true, it is a
  tensor that says so, or it holds integers.

The same on purpose: the gradient of S[0] is dropped, and s0 never gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cellgen import accept, api
from cellgen.errors import ArgumentError
from cellgen.runtime.kernel import Kernel, Results

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]

NAMES: Mapping[str, str] = {
    "X": "x", "Uz": "w_z", "Wz": "u_z", "bz": "b_z", "Ur": "w_r", "Wr": "u_r", "br": "b_r",
    "Uh": "w_n", "Wh": "u_n", "bh": "b_n",
}  # fmt: skip
"""The cell's name of each argument."""

MASKS: Mapping[str, str] = {"Uz": "m_z", "Ur": "m_r", "Uh": "m_n", "Wz": "", "Wr": "", "Wh": ""}
"""Dropout masks in the order in which they are drawn; those of U are arguments of the cell."""


class PeerAssertionError(ArgumentError, AssertionError):
    """What mygrad asserts; an ArgumentError as well."""


def gru(
    X: ArrayLike,
    Uz: ArrayLike,
    Wz: ArrayLike,
    bz: ArrayLike,
    Ur: ArrayLike,
    Wr: ArrayLike,
    br: ArrayLike,
    Uh: ArrayLike,
    Wh: ArrayLike,
    bh: ArrayLike,
    s0: Array | None = None,
    bp_lim: int | None = None,
    dropout: float = 0.0,
    constant: bool | None = None,
) -> Array:
    """Run a GRU over X and return S (T + 1, N, D), its states from s0 on.

    ``bp_lim`` is checked and ignored. ``dropout`` in (0, 1) draws masks from NumPy's global state,
    in mygrad's order (``draw_masks``).

    Raises:
        ArgumentError: shapes that do not agree, s0 not as ``gru_vjp`` says; it is a ValueError.
        AssertionError: ``bp_lim`` or ``dropout`` out of range, as in mygrad.
    """
    variables = {"X": X, "Uz": Uz, "Wz": Wz, "bz": bz, "Ur": Ur, "Wr": Wr, "br": br}
    variables |= {"Uh": Uh, "Wh": Wh, "bh": bh}
    return _run(variables, s0, bp_lim, dropout, constant, None, save=False).states


def gru_vjp(
    X: ArrayLike,
    Uz: ArrayLike,
    Wz: ArrayLike,
    bz: ArrayLike,
    Ur: ArrayLike,
    Wr: ArrayLike,
    br: ArrayLike,
    Uh: ArrayLike,
    Wh: ArrayLike,
    bh: ArrayLike,
    s0: Array | None = None,
    bp_lim: int | None = None,
    dropout: float = 0.0,
    constant: bool | None = None,
    masks: Mapping[str, ArrayLike] | None = None,
) -> tuple[Array, Callable[[ArrayLike], Arrays]]:
    """Run a GRU and return S (T + 1, N, D) and ``backward``.

    ``backward(G)`` takes dL/dS, of S's shape, and returns the gradients by argument name, without
    those of constants; it may be called any number of times. With ``constant=True`` it returns {}.

    ``bp_lim`` in [0, T) limits how far each term of the loss is followed: the gradient G[t] reaches
    the states t - 1, ..., t - bp_lim and no further (not a truncation in chunks). ``None`` and
    T - 1 follow it to the start. ``masks`` by weight, Uz, Ur, Uh (1, N, D) or (N, D), Wz, Wr, Wh
    (D, D), are used as given, scale included; otherwise ``dropout`` draws them.

    Raises:
        ArgumentError: shapes that do not agree; masks that are missing or unknown; an s0 that is
            neither an array nor a constant tensor (any tensor with ``constant=True``), as in
            mygrad. It is a ValueError.
        AssertionError: ``bp_lim`` or ``dropout`` out of range, as in mygrad.
    """
    variables = {"X": X, "Uz": Uz, "Wz": Wz, "bz": bz, "Ur": Ur, "Wr": Wr, "br": br}
    variables |= {"Uh": Uh, "Wh": Wh, "bh": bh}
    run = _run(variables, s0, bp_lim, dropout, constant, masks, save=True)
    return run.states, run.backward


def draw_masks(dropout: float, N: int, D: int) -> Arrays:
    """Draw the six masks of mygrad from NumPy's global state, in its order; float64.

    Those of Uz, Ur, Uh (1, N, D) multiply X U at every step, those of Wz, Wr, Wh (D, D) the
    weights.
    """
    dropout = _dropout(dropout)
    most = 2**31 - 1
    N, D = (accept.whole("draw_masks", n, k, 0, most) for n, k in (("N", N), ("D", D)))
    keep = 1 - dropout
    inputs = np.random.binomial(1, keep, size=(3, 1, N, D)) / keep
    weights = np.random.binomial(1, keep, size=(3, D, D)) / keep
    return dict(zip(MASKS, (*inputs, *weights), strict=True))


# --- forward -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """One forward pass: what the kernel was given and what it returned."""

    kernel: Kernel
    known: Arrays
    states: Array
    saved: Results | None
    window: int | None
    dtypes: Mapping[str, np.dtype[Any]]
    masks: Arrays

    def backward(self, G: ArrayLike) -> Arrays:
        """Return the gradients of sum(G * S) by argument name."""
        upstream = accept.array("gru", "G", G)
        if upstream.shape != self.states.shape:
            raise ArgumentError(
                f"gru: the gradient has shape {upstream.shape}, expected that of S, "
                f"{self.states.shape}"
            )
        if not self.dtypes:
            return {}
        d_h = np.ascontiguousarray(upstream[1:], self.known["x"].dtype)
        through_time = self._through_time(d_h)
        gradients = {name: through_time[f"d_{NAMES[name]}"] for name in self.dtypes}
        for name in gradients.keys() & self.masks.keys():
            gradients[name] = gradients[name] * self.masks[name]
        return {name: array.astype(self.dtypes[name]) for name, array in gradients.items()}

    def _through_time(self, d_h: Array) -> Arrays:
        states = self.states.astype(d_h.dtype, copy=False)
        backward = self.kernel.functions["sequence_backward"]
        results = backward(
            out=None,
            **self.known,
            h_prev=states[0],
            h=states[1:],
            d_h=d_h,
            saved=self.saved,
            bp_lim=self.window,
        )
        return results._asdict()


def _run(
    variables: dict[str, ArrayLike],
    s0: Array | None,
    bp_lim: int | None,
    dropout: float,
    constant: bool | None,
    masks: Mapping[str, ArrayLike] | None,
    *,
    save: bool,
) -> _Run:
    """Check what mygrad checks, run the kernel, keep what the backward pass needs."""
    if constant is not None:
        accept.flag("gru", "constant", constant)
    arrays = {name: accept.array("gru", name, value) for name, value in variables.items()}
    time, rows, features = _require_shape("X", arrays["X"], 3)
    (units,) = _require_shape("bz", arrays["bz"], 1)
    shapes = {"U": (features, units), "W": (units, units), "b": (units,), "X": arrays["X"].shape}
    for name, array in arrays.items():
        if array.shape != shapes[name[0]]:
            raise ArgumentError(
                f"gru: {name} has shape {array.shape}, expected {shapes[name[0]]}, with C = "
                f"{features} of X {arrays['X'].shape} and D = {units} of bz"
            )
    _require(
        bp_lim is None or accept.is_whole(bp_lim, 0, time - 1),
        f"bp_lim is {accept.quoted(bp_lim)}, expected None or an integer in [0, {time})",
    )
    dropout = _dropout(dropout)
    start = _initial_state(s0, constant)
    if masks is None and dropout:
        masks = draw_masks(dropout, rows, units)
    dtype = np.result_type(*(array.dtype for array in arrays.values()))
    work = np.dtype(np.float32) if dtype == np.float16 else dtype
    drop = {} if masks is None else _masks(masks, rows, units)
    known = _kernel_arguments(arrays, drop, work)
    states = np.zeros((time + 1, rows, units), work)
    if start is not None:
        if start.shape != states.shape[1:]:
            raise ArgumentError(f"gru: s0 has shape {start.shape}, expected {states.shape[1:]}")
        states[0] = start
    kernel = _kernel(bool(drop))
    result = kernel.sequence_forward(**known, h_prev=states[0], out={"h": states[1:]}, save=save)
    return _Run(
        kernel,
        known,
        states.astype(dtype, copy=False),
        _saved(result) if save else None,
        None if bp_lim is None or bp_lim == time - 1 else int(bp_lim),
        {} if constant else _variables(variables, arrays),
        {name: mask for name, mask in drop.items() if name.startswith("W")},
    )


def _saved(result: Results) -> Results:
    """What sequence_forward(save=True) keeps for the backward pass, a named tuple of its own."""
    saved = result.saved
    assert isinstance(saved, Results)
    return saved


@lru_cache(maxsize=2)
def _kernel(has_dropout: bool) -> Kernel:
    """Load the cell that ships, or generate the one with masks (which needs SymPy)."""
    if not has_dropout:
        return api.load("gru_reset_before")
    from cellgen.cells.gru_dropout import GRUDropout

    return api.compile(GRUDropout)


def _kernel_arguments(arrays: Arrays, masks: Arrays, dtype: np.dtype[Any]) -> Arrays:
    """Name the arrays as the cell does, weights times their masks, in the dtype of the call."""
    known = {}
    for name, array in arrays.items():
        is_masked = name in masks and name.startswith("W")
        value = array * masks[name] if is_masked else array
        known[NAMES[name]] = np.ascontiguousarray(value, dtype)
    for name, mask in masks.items():
        if MASKS[name]:
            known[MASKS[name]] = np.ascontiguousarray(mask, dtype)
    return known


# --- arguments -----------------------------------------------------------------------------------


def _masks(masks: Mapping[str, ArrayLike], rows: int, units: int) -> Arrays:
    """Check the names and shapes of masks; those of U become (N, D)."""
    named = accept.names("gru", "masks", masks, "weights")
    if set(named) != set(MASKS):
        raise ArgumentError(
            f"gru: masks are {', '.join(sorted(named)) or 'none'}, expected one each for "
            f"{', '.join(MASKS)}"
        )
    checked = {}
    for name in MASKS:
        mask = accept.array("gru", f"mask {name}", named[name])
        shape = (units if name.startswith("W") else rows, units)
        if mask.shape not in (shape, (1, *shape)) or (mask.ndim == 3 and name.startswith("W")):
            raise ArgumentError(f"gru: mask {name} has shape {mask.shape}, expected {shape}")
        checked[name] = mask.reshape(shape)
    return checked


def _variables(variables: Mapping[str, ArrayLike], arrays: Arrays) -> dict[str, np.dtype[Any]]:
    """List the arguments that get a gradient, with their dtypes."""
    return {
        name: array.dtype
        for name, array in arrays.items()
        if np.issubdtype(array.dtype, np.floating)
        and getattr(variables[name], "constant", False) is not True
    }


def _initial_state(s0: object, constant: bool | None) -> Array | None:
    """Take s0 as mygrad does: an array, or a tensor that is constant or made so."""
    if s0 is None:
        return None
    if isinstance(s0, np.ndarray):
        return accept.array("gru", "s0", s0)
    is_tensor = hasattr(s0, "constant") and hasattr(s0, "data")
    if is_tensor and (constant or getattr(s0, "constant", False) is True):
        return accept.array("gru", "s0", getattr(s0, "data", None))
    raise ArgumentError(
        f"gru: s0 is a {type(s0).__name__}, expected a numpy.ndarray or a constant tensor (s0 gets "
        f"no gradient); pass np.asarray(s0)"
    )


def _dropout(dropout: object) -> float:
    """Check a rate as mygrad does."""
    rate = accept.number(dropout)
    if rate is None or not 0 <= rate < 1:
        raise PeerAssertionError(
            f"gru: dropout is {accept.quoted(dropout)}, expected a number in [0, 1)"
        )
    return rate


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise PeerAssertionError(f"gru: {what}")


def _require_shape(name: str, array: Array, axes: int) -> tuple[int, ...]:
    if array.ndim != axes:
        raise ArgumentError(f"gru: {name} has shape {array.shape}, expected {axes} axes")
    shape: tuple[int, ...] = array.shape
    return shape

"""Compile recurrent-cell equations into fused forward and backward kernels in readable C.

Declaring a cell::

    from cellgen import Bias, Cell, H, I, Input, State, Weight, tanh

    class Elman(Cell):
        x, h_prev = Input(I), State(H)
        w, u, b = Weight(I, H), Weight(H, H), Bias(H)
        h = tanh(x @ w + h_prev @ u + b)

``compile(Elman)`` gives its kernel, ``load("lstm")`` the kernel of a cell that ships. Names are
loaded when they are first used: loading a built kernel imports neither SymPy nor Jinja2.

``from cellgen import *`` brings what a declaration needs, and hides nothing that Python has:
``sum`` and ``max`` are Python's own for what is no expression, and Python's ``abs`` is that of
expressions, too. ``compile``, ``load``, kernels and errors are imported by name.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from cellgen.runtime.imports import whole_imports as _whole_imports

# Read when SymPy is first imported. With its own 1000, what an earlier cell began with is partly
# forgotten, and a cell that begins alike is compared with the rest of it tree by tree: minutes.
os.environ.setdefault("SYMPY_CACHE_SIZE", "20000")

if TYPE_CHECKING:
    from cellgen.api import compile as compile
    from cellgen.api import compile_cuda as compile_cuda
    from cellgen.api import load_cuda as load_cuda
    from cellgen.errors import ArgumentError as ArgumentError
    from cellgen.errors import BuildError as BuildError
    from cellgen.errors import CellgenError as CellgenError
    from cellgen.errors import DeclarationError as DeclarationError
    from cellgen.errors import DerivationError as DerivationError
    from cellgen.language.cell import Bias, Cell, Input, Scalar, State, Static, Weight
    from cellgen.language.ops import absolute as _absolute
    from cellgen.language.ops import (
        activation,
        atan2,
        clip,
        concat,
        cos,
        cummax,
        cumprod,
        cumsum,
        erf,
        exp,
        expand_dims,
        expm1,
        flatten,
        floor,
        gelu,
        hard_sigmoid,
        hard_tanh,
        hardmax,
        heads,
        identity,
        keep,
        l2_normalise,
        leaky_relu,
        log,
        log1p,
        log_sigmoid,
        logaddexp,
        logcumsumexp,
        logsumexp,
        matmul,
        maximum,
        minimum,
        mod,
        outer,
        relu,
        repeat_heads,
        rms_norm,
        sigmoid,
        sign,
        silu,
        sin,
        softmax,
        softplus,
        split,
        sqrt,
        stop_gradient,
        tanh,
        transpose,
        where,
    )
    from cellgen.language.ops import nearest as round
    from cellgen.language.ops import units_max as max
    from cellgen.language.ops import units_mean as mean
    from cellgen.language.ops import units_sum as sum
    from cellgen.language.value import Dim, H, I
    from cellgen.program.transforms.online import online as online
    from cellgen.program.transforms.tangent import tangent as tangent
    from cellgen.runtime.kernel import Kernel as Kernel
    from cellgen.runtime.stacks import Layers as Layers
    from cellgen.shipped import load as load

    abs = _absolute

__version__ = "0.1.0"

_HOME = {
    "cellgen.api": "compile compile_cuda load load_cuda",
    "cellgen.language.cell": "Bias Cell Input Scalar State Static Weight",
    "cellgen.errors": "ArgumentError BuildError CellgenError DeclarationError DerivationError",
    "cellgen.program.transforms.online": "online",
    "cellgen.program.transforms.tangent": "tangent",
    "cellgen.runtime.kernel": "Kernel",
    "cellgen.runtime.stacks": "Layers",
    "cellgen.language.ops": "activation atan2 clip concat cos cummax cumprod cumsum erf exp "
    "expand_dims expm1 flatten floor gelu hard_sigmoid hard_tanh hardmax heads identity keep "
    "l2_normalise leaky_relu log log1p log_sigmoid logaddexp logcumsumexp logsumexp matmul "
    "maximum minimum mod norm outer relu repeat_heads rms_norm "
    "sigmoid sign silu sin softmax softplus split sqrt stop_gradient tanh transpose where",
    "cellgen.language.value": "Dim H I",
}
_RENAMED = {
    "abs": ("cellgen.language.ops", "absolute"),
    "max": ("cellgen.language.ops", "units_max"),
    "mean": ("cellgen.language.ops", "units_mean"),
    "round": ("cellgen.language.ops", "nearest"),
    "sum": ("cellgen.language.ops", "units_sum"),
}
_MODULES = ("derivatives", "jax", "keras", "onnx", "regularise", "torch", "weights")
EXPORTS = {
    **{name: (module, name) for module, names in _HOME.items() for name in names.split()},
    **_RENAMED,
}

__all__ = [
    "Bias",
    "Cell",
    "Dim",
    "H",
    "I",
    "Input",
    "Scalar",
    "State",
    "Static",
    "Weight",
    "activation",
    "atan2",
    "clip",
    "concat",
    "cos",
    "cummax",
    "cumprod",
    "cumsum",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "flatten",
    "floor",
    "gelu",
    "hard_sigmoid",
    "hard_tanh",
    "hardmax",
    "heads",
    "identity",
    "keep",
    "l2_normalise",
    "leaky_relu",
    "log",
    "log1p",
    "log_sigmoid",
    "logaddexp",
    "logcumsumexp",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "minimum",
    "mod",
    "norm",
    "outer",
    "relu",
    "repeat_heads",
    "rms_norm",
    "round",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "stop_gradient",
    "sum",
    "tanh",
    "transpose",
    "where",
]


def __getattr__(name: str) -> object:
    if name == "cells":  # a module: `cellgen.cells.GRU` without an import of its own
        with _whole_imports():
            return importlib.import_module("cellgen.cells")
    if name not in EXPORTS:
        advice = f" before it is imported: import cellgen.{name}" if name in _MODULES else ""
        message = f"module 'cellgen' has no attribute {name!r}{advice}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    module, original = EXPORTS[name]
    with _whole_imports():
        value = getattr(importlib.import_module(module), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *EXPORTS})

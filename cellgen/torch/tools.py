"""Tools of torch that know its layers by type: what they find where cellgen's stand.

``torch.fx.symbolic_trace`` keeps layers whole, as it keeps those of ``torch.nn``: a layer that is
called with what stands for a tensor there becomes a node. ``torch.nn.utils.skip_init`` reads
signatures. ``torch.ao.quantization`` and ``torch.onnx`` translate types that they know: drop-ins go
the way of ``torch.nn`` in an export, ``restore`` makes them layers of ``torch.nn`` for the rest.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Proxy
from torch.onnx import is_in_onnx_export

from cellgen.torch.errors import KindError


class KnownToTools:
    """What every layer here has: it says where quantisation leaves it as it is."""

    @property
    def qconfig(self) -> Any:
        """How torch.ao.quantization would quantise the layer; it sets this and reads it."""
        if "qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["qconfig"]

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        say_precision(type(self).__name__)
        self.__dict__["qconfig"] = value

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["qconfig"]


@functools.cache
def say_precision(kind: str) -> None:
    """Say once in a process what becomes of a layer that is to be quantised."""
    warnings.warn(
        f"torch.ao.quantization leaves cellgen.torch.{kind} as it is, since it knows the layers of "
        f"torch.nn by their types; call cellgen.torch.restore(model) first to quantise those, or "
        f"pack the weights for a kernel: kernel.pack(..., products='int8')",
        stacklevel=4,
    )


def as_node(
    layer: torch.nn.Module,
    label: str,
    positional: Sequence[Any],
    named: Mapping[str, Any],
    others: Any,
) -> Any:
    """A call of a layer as one node of a graph that torch.fx traces; None where it traces none.

    ``others`` are more arguments by name; where a layer is traced by itself, they are one value
    that stands for them. Raises KindError for such a layer.
    """
    named = {**named, "": others} if isinstance(others, Proxy) else {**named, **others}
    values = [*positional, *named.values()]
    values += [one for value in values if isinstance(value, tuple | list) for one in value]
    tracer = next((value.tracer for value in values if isinstance(value, Proxy)), None)
    if tracer is None:
        return None
    if getattr(tracer, "root", None) is layer:
        raise KindError(
            f"{label}: torch.fx.symbolic_trace is given the layer itself, which it keeps whole, "
            f"expected a model that holds it; trace torch.nn.Sequential(layer)"
        )
    path = tracer.path_of_module(layer)
    return tracer.create_proxy("call_module", path, (*positional,), named)


def is_exported_to_onnx() -> bool:
    """Whether torch.onnx.export traces the call, by either of its ways."""
    if not (torch.jit.is_tracing() or torch.compiler.is_compiling()):
        return False
    exports: bool = _exports_to_onnx()
    return exports


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _exports_to_onnx() -> bool:
    return bool(is_in_onnx_export())


def layer_signature(*, has_nonlinearity: bool = False, has_projection: bool = False) -> Any:
    """The signature of a layer, as torch.nn documents it; its own classes take ``*args``."""
    rows: list[tuple[str, object]] = [("num_layers", 1)]
    rows += [("nonlinearity", "tanh")] if has_nonlinearity else []
    rows += [("bias", True), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)]
    rows += [("proj_size", 0)] if has_projection else []
    rows += [("device", None), ("dtype", None)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    sizes = [inspect.Parameter(name, kind) for name in ("input_size", "hidden_size")]
    others = [inspect.Parameter(name, kind, default=default) for name, default in rows]
    return inspect.Signature([*sizes, *others])

"""Prebuilt kernels in JAX: a whole sequence with its gradients, within ``jit`` and ``grad``.

y = sequence(kernels.gru, x=x, h_prev=h, w_z=w_z, ...)      # y.h, y.h_last: arrays of JAX
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np

from cellgen.wheel.packed.kernels import (
    GRADIENT,
    UPSTREAM,
    PrebuiltFunction,
    PrebuiltKernel,
    Results,
)

JaxArray: TypeAlias = Any
"""An array of JAX, or what stands for one within a transformation."""


def sequence(
    kernel: PrebuiltKernel, *, options: dict[str, object] | None = None, **arrays: JaxArray
) -> Results:
    """Compute a sequence on the host.

    ``options`` are those of ``kernel.sequence_forward``, and scalars. Gradients are those of
    reverse mode, once. Raises KernelError.
    """
    return kernel.sequence_forward.named(
        _SequenceCall(kernel, options or {}, tuple(arrays))(arrays)
    )


class _SequenceCall:
    """A sequence of a kernel: arguments by name, in an order."""

    def __init__(
        self, kernel: PrebuiltKernel, options: dict[str, object], names: tuple[str, ...]
    ) -> None:
        self._forward, self._backward = kernel.sequence_forward, kernel.sequence_backward
        self._options, self._names = options, names
        self._plain = tuple(n for n in self._forward.results if n not in self._forward.saved)
        self._own = {n: v for n, v in options.items() if n in kernel.names}

    def __call__(self, arrays: dict[str, JaxArray]) -> tuple[JaxArray, ...]:
        call = jax.custom_vjp(lambda *values: self._first(values, save=False)[0])
        call.defvjp(self._kept, self._back)
        results: tuple[JaxArray, ...] = call(*arrays.values())
        return results

    def _first(
        self, values: tuple[JaxArray, ...], *, save: bool
    ) -> tuple[tuple[JaxArray, ...], tuple[JaxArray, ...]]:
        def compute(*values: JaxArray) -> tuple[object, ...]:
            arrays = dict(zip(self._names, map(np.asarray, values), strict=True))
            y = self._forward(**arrays, **self._options, save=save)
            kept = y[-1].arrays if save else {}
            return *y[: len(self._plain)], *(kept[name] for name in self._saved(save))

        specs = _specs(self._forward, dict(zip(self._names, values, strict=True)), save=save)
        wanted = [specs[name] for name in (*self._plain, *self._saved(save))]
        results = jax.pure_callback(compute, wanted, *values, vmap_method="sequential")
        return tuple(results[: len(self._plain)]), tuple(results[len(self._plain) :])

    def _saved(self, save: bool) -> tuple[str, ...]:
        return self._forward.saved if save else ()

    def _kept(self, *values: JaxArray) -> tuple[tuple[JaxArray, ...], tuple[JaxArray, ...]]:
        results, saved = self._first(values, save=True)
        return results, (*values, *results, *saved)

    def _back(
        self, known: tuple[JaxArray, ...], upstream: tuple[JaxArray, ...]
    ) -> tuple[JaxArray, ...]:
        function = self._backward
        by_name = dict(zip((*self._names, *self._plain, *self._forward.saved), known, strict=True))
        upstream_of = dict(zip(self._plain, upstream, strict=True))
        for name, member in function.arguments.items():
            if member.role == UPSTREAM:
                by_name[name] = upstream_of[member.of]
        taken = {name: by_name[name] for name in function.arguments if name in by_name}

        def compute(*values: JaxArray) -> tuple[object, ...]:
            arrays = dict(zip(taken, map(np.asarray, values), strict=True))
            return tuple(function(**arrays, **self._options))

        specs = list(_specs(function, taken).values())
        gradients = jax.pure_callback(compute, specs, *taken.values(), vmap_method="sequential")
        of = dict(zip(function.results.values(), gradients, strict=True))
        by_argument = {m.of: gradient for m, gradient in of.items() if m.role == GRADIENT}
        zeros = jax.numpy.zeros_like
        return tuple(by_argument.get(n, zeros(by_name[n])) for n in self._names)


def _specs(
    function: PrebuiltFunction, arrays: dict[str, JaxArray], *, save: bool = False
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of the results, of arrays that may not be there yet."""
    specs = function.specs(arrays, save=save)
    return {name: jax.ShapeDtypeStruct(*spec) for name, spec in specs.items()}
